/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Keeps subcommands from overwriting somebody's data: see guard.h.
 */
#include "guard.h"

#include <stdio.h>

#include "base/fail.h"
#include "gpunvme/signature.h"

/* The software controller's own description of a namespace; NULL for that of a drive. */
static const struct gpunvme_sim_ns_config *sim_ns(const struct cli_device *device,
                                                  const struct gpunvme_ns *ns)
{
    const struct gpunvme_sim_config *config =
        device->is_sim ? gpunvme_sim_config_of(device->sim) : NULL;

    for (uint32_t i = 0; config && i < config->nnamespaces; i++)
        if (config->ns[i].nsid == ns->nsid)
            return &config->ns[i];
    return NULL;
}

bool cli_guard_is_kept(const struct cli_device *device, const struct gpunvme_ns *ns)
{
    const struct gpunvme_sim_ns_config *config = sim_ns(device, ns);

    return !config || config->image[0];
}

/* An image file that holds what gpunvme did not write. */
static bool is_foreign(const struct cli_device *device, const struct gpunvme_ns *ns)
{
    const struct gpunvme_sim_ns_config *config = sim_ns(device, ns);

    return config && config->is_foreign;
}

static gpunvme_err_t look(struct cli_device *device, const struct gpunvme_ns *ns,
                          struct gpunvme_signature *signature)
{
    struct base_failure failure;
    struct gpunvme_ioq *ioq;
    gpunvme_err_t err = gpunvme_ioq_create(device->ctrl, 16, &ioq);

    if (err)
        return err;
    base_keep(&failure, gpunvme_signature_find(ioq, ns, signature));
    err = gpunvme_ioq_delete(ioq);
    return failure.err ? base_restore(&failure) : err;
}

gpunvme_err_t cli_guard_write(struct cli_device *device, const struct gpunvme_ns *ns, bool force)
{
    const char *address = device->transport->address;
    struct gpunvme_signature signature;
    struct base_failure failure;
    gpunvme_err_t err = GPUNVME_OK;

    if (force || !cli_guard_is_kept(device, ns))
        return GPUNVME_OK;
    if (gpunvme_signature_supported() || !device->is_sim)
        err = look(device, ns, &signature);
    else
        signature.kind = GPUNVME_SIGNATURE_NONE; /* of an image: its mark is enough */
    if (err == GPUNVME_ERR_INTERRUPTED || err == GPUNVME_ERR_REMOVED)
        return err;
    if (err) {
        base_keep(&failure, err);
        return base_fail(err,
                         "%s, namespace %u: nothing was written, since what is on it could not be "
                         "told (%.120s); --force writes all the same",
                         address, ns->nsid, failure.detail);
    }
    if (signature.kind == GPUNVME_SIGNATURE_NONE && !is_foreign(device, ns))
        return GPUNVME_OK;
    if (signature.kind == GPUNVME_SIGNATURE_NONE)
        snprintf(signature.text, sizeof(signature.text), "data that gpunvme did not write");
    return base_fail(GPUNVME_ERR_INVALID,
                     "%s, namespace %u holds %s: nothing was written; say --force if that is to be "
                     "overwritten",
                     address, ns->nsid, signature.text);
}

gpunvme_err_t cli_guard_destroy(struct cli_device *device, const struct gpunvme_ns *ns, bool force,
                                const char *what)
{
    const char *address = device->transport->address;
    struct gpunvme_signature signature;

    if (force || !cli_guard_is_kept(device, ns))
        return GPUNVME_OK;
    if (look(device, ns, &signature))
        snprintf(signature.text, sizeof(signature.text), "something that could not be looked at");
    return base_fail(GPUNVME_ERR_INVALID,
                     "%s would overwrite data on %s (namespace %u holds %s): say --force if that "
                     "is meant",
                     what, address, ns->nsid, signature.text);
}
