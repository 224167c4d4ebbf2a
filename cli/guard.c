/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Keeps subcommands from overwriting somebody's data: see guard.h.
 */
#include "guard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "gpunvme/signature.h"

#define BLANK_NBYTES ((size_t)1 << 20)

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
    const struct gpunvme_sim_ns_config *config = device->store ? NULL : sim_ns(device, ns);

    if (device->store && !strncmp(device->uri, "sim:", 4))
        return strstr(device->uri, "image=");
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

/* A file or block device: new, or zero in the first MiB. Of the others signatures tell. */
static gpunvme_err_t look_at_store(struct cli_device *device, struct gpunvme_signature *signature)
{
    struct gpunvme_store_info info;
    char *bytes;
    size_t n = 0;
    gpunvme_err_t err = GPUNVME_OK;

    signature->kind = GPUNVME_SIGNATURE_NONE;
    gpunvme_store_get_info(device->store, &info);
    if (gpunvme_signature_supported() || !info.resizable)
        err = gpunvme_signature_find_store(device->store, signature);
    if (info.resizable && err) /* an empty file, or a very short one */
        err = GPUNVME_OK;
    if (err || signature->kind != GPUNVME_SIGNATURE_NONE ||
        (strcmp(info.backend, "posix") && strcmp(info.backend, "cufile")))
        return err;
    bytes = malloc(BLANK_NBYTES);
    if (!bytes)
        return base_fail(GPUNVME_ERR_NOMEM, "the first MiB of %s", device->uri);
    err = gpunvme_store_read(device->store, 0, bytes, GPUNVME_MEM_HOST, BLANK_NBYTES, &n);
    if (!err && n && (bytes[0] || memcmp(bytes, bytes + 1, n - 1) != 0)) {
        signature->kind = GPUNVME_SIGNATURE_OTHER;
        snprintf(signature->text, sizeof(signature->text), "data (its first MiB is not zero)");
    }
    free(bytes);
    return err;
}

static gpunvme_err_t guard_store(struct cli_device *device, bool force)
{
    struct gpunvme_signature signature;
    gpunvme_err_t err;

    if (force || !cli_guard_is_kept(device, NULL))
        return GPUNVME_OK;
    err = look_at_store(device, &signature);
    if (err)
        return err;
    if (signature.kind == GPUNVME_SIGNATURE_NONE)
        return GPUNVME_OK;
    return base_fail(GPUNVME_ERR_INVALID,
                     "%s holds %s: nothing was written; say --force if that is to be overwritten",
                     device->uri, signature.text);
}

gpunvme_err_t cli_guard_write(struct cli_device *device, const struct gpunvme_ns *ns, bool force)
{
    const char *address = device->transport ? device->transport->address : NULL;
    struct gpunvme_signature signature;
    struct base_failure failure;
    gpunvme_err_t err = GPUNVME_OK;

    if (device->store)
        return guard_store(device, force);
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
    const char *address = device->transport ? device->transport->address : NULL;
    struct gpunvme_signature signature;

    if (force || !cli_guard_is_kept(device, ns))
        return GPUNVME_OK;
    if (device->store)
        return base_fail(GPUNVME_ERR_INVALID,
                         "%s would overwrite data on %s: say --force if that is meant", what,
                         device->uri);
    if (look(device, ns, &signature))
        snprintf(signature.text, sizeof(signature.text), "something that could not be looked at");
    return base_fail(GPUNVME_ERR_INVALID,
                     "%s would overwrite data on %s (namespace %u holds %s): say --force if that "
                     "is meant",
                     what, address, ns->nsid, signature.text);
}
