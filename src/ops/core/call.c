/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A call of an operator, from the public function to the variant.
 */
#include "ops/core/operator.h"

/* Everything but pointers is checked. exec may be NULL: the CPU's best variant. */
static gpunvme_ops_status_t begin(struct ops_call *call, const struct ops_operator *op,
                                  const void *descriptor, const struct gpunvme_ops_exec *exec)
{
    static const struct gpunvme_ops_exec default_exec;
    gpunvme_ops_status_t status;

    if (!descriptor)
        return ops_fail(GPUNVME_OPS_ERR_INVALID, "the descriptor is NULL");
    *call =
        (struct ops_call){.op = op, .descriptor = descriptor, .exec = exec ? exec : &default_exec};
    status = ops_check_exec(call->exec);
    if (!status)
        status = op->check(call);
    return status ? status : ops_check_shapes(&call->spans);
}

static size_t needed_by(const struct ops_variant *variant, const struct ops_call *call)
{
    return variant->workspace ? variant->workspace(variant, call) : 0;
}

static gpunvme_ops_status_t check_workspace(const struct ops_variant *variant,
                                            const struct ops_call *call)
{
    const struct gpunvme_ops_exec *exec = call->exec;
    size_t needed = needed_by(variant, call);
    const char *overlapped;

    if (!needed)
        return GPUNVME_OPS_OK;
    if (!exec->workspace || exec->workspace_nbytes < needed)
        return ops_fail(GPUNVME_OPS_ERR_WORKSPACE, "variant '%s' needs %zu bytes and got %zu",
                        variant->name, needed, exec->workspace ? exec->workspace_nbytes : 0);
    if ((uintptr_t)exec->workspace % GPUNVME_OPS_WORKSPACE_ALIGN)
        return ops_fail(GPUNVME_OPS_ERR_ALIGN, "the workspace is at %p: it needs a multiple of %d",
                        exec->workspace, GPUNVME_OPS_WORKSPACE_ALIGN);
    overlapped = ops_overlapped(&call->spans, exec->workspace, needed);
    if (overlapped)
        return ops_fail(GPUNVME_OPS_ERR_ALIAS, "the workspace and %s overlap", overlapped);
    return GPUNVME_OPS_OK;
}

gpunvme_ops_status_t ops_run(const struct ops_operator *op, const void *descriptor,
                             const struct gpunvme_ops_exec *exec)
{
    const struct ops_variant *variant;
    struct ops_call call;
    gpunvme_ops_status_t status = begin(&call, op, descriptor, exec);

    if (!status)
        status = ops_check_memory(&call.spans);
    if (!status && call.check_memory)
        status = call.check_memory(&call);
    if (!status)
        status = ops_variant_for(&call, &variant);
    if (status || call.empty)
        return status;
    status = check_workspace(variant, &call);
    return status ? status : variant->run(variant, &call);
}

gpunvme_ops_status_t ops_workspace(const struct ops_operator *op, const void *descriptor,
                                   const struct gpunvme_ops_exec *exec, size_t *nbytes)
{
    const struct ops_variant *variant;
    struct ops_call call;
    gpunvme_ops_status_t status = begin(&call, op, descriptor, exec);

    if (status)
        return status;
    if (!nbytes)
        return ops_fail(GPUNVME_OPS_ERR_INVALID, "nbytes is NULL");
    *nbytes = 0;
    if (call.empty)
        return GPUNVME_OPS_OK;
    call.any_pointers = 1;
    status = ops_variant_for(&call, &variant);
    if (!status)
        *nbytes = needed_by(variant, &call);
    return status;
}

gpunvme_ops_status_t ops_choose(const struct ops_operator *op, const void *descriptor,
                                const struct gpunvme_ops_exec *exec, const char **name)
{
    const struct ops_variant *variant;
    struct ops_call call;
    gpunvme_ops_status_t status = begin(&call, op, descriptor, exec);

    if (status)
        return status;
    if (!name)
        return ops_fail(GPUNVME_OPS_ERR_INVALID, "name is NULL");
    status = ops_variant_for(&call, &variant);
    if (!status)
        *name = variant->name;
    return status;
}

gpunvme_ops_status_t ops_analyze(const struct ops_operator *op, const void *descriptor,
                                 const struct gpunvme_ops_exec *exec, void *metrics)
{
    const struct ops_variant *variant;
    struct ops_call call;
    gpunvme_ops_status_t status = begin(&call, op, descriptor, exec);

    if (!status)
        status = ops_variant_for(&call, &variant);
    if (status)
        return status;
    if (!variant->analyze)
        return ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED, "variant '%s' has no metrics", variant->name);
    if (!call.empty)
        variant->analyze(variant, &call, metrics);
    return GPUNVME_OPS_OK;
}
