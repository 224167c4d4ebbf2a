/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A call of an operator, from checked arguments on. See call.h.
 */
#include "ops/call.h"

static const struct gpunvme_ops_exec default_exec;

gpunvme_ops_status_t ops_call_begin(struct ops_call *call, int op, const void *descriptor,
                                    const struct gpunvme_ops_exec *exec)
{
    if (!descriptor)
        return ops_fail(GPUNVME_OPS_ERR_INVALID, "the descriptor is NULL");
    *call = (struct ops_call){.problem = {.op = op}, .exec = exec ? exec : &default_exec};
    return ops_check_exec(call->exec);
}

static size_t needed_by(const struct ops_variant *variant, const struct ops_call *call)
{
    return variant->workspace ? variant->workspace(variant, &call->problem, call->exec) : 0;
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

gpunvme_ops_status_t ops_call_run(const struct ops_call *call)
{
    const struct ops_variant *variant;
    gpunvme_ops_status_t status = ops_check_memory(&call->spans);

    if (!status)
        status = ops_choose(&call->problem, call->exec, &variant);
    if (status || call->empty)
        return status;
    status = check_workspace(variant, call);
    return status ? status : variant->run(variant, &call->problem, call->exec);
}

gpunvme_ops_status_t ops_call_workspace(const struct ops_call *call, size_t *nbytes)
{
    const struct ops_variant *variant;
    gpunvme_ops_status_t status;

    if (!nbytes)
        return ops_fail(GPUNVME_OPS_ERR_INVALID, "nbytes is NULL");
    *nbytes = 0;
    if (call->empty)
        return GPUNVME_OPS_OK;
    status = ops_choose(&call->problem, call->exec, &variant);
    if (!status)
        *nbytes = needed_by(variant, call);
    return status;
}

gpunvme_ops_status_t ops_call_choose(const struct ops_call *call, const char **name)
{
    const struct ops_variant *variant;
    gpunvme_ops_status_t status;

    if (!name)
        return ops_fail(GPUNVME_OPS_ERR_INVALID, "name is NULL");
    status = ops_choose(&call->problem, call->exec, &variant);
    if (!status)
        *name = variant->name;
    return status;
}
