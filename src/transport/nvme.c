/* SPDX-License-Identifier: BSD-3-Clause
 *
 * "nvme:0000:01:00.0": a controller on the PCI bus, by whichever of the kernel's drivers gives
 * programs access to it.
 */
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/params.h"
#include "transport/transports.h"

static const struct via {
    const char *name;   /* of the transport: "via=" */
    const char *driver; /* that the function is bound to; "" for none */
    gpunvme_err_t (*open)(const struct pci_function *f, struct gpunvme_transport **out);
} vias[] = {
    {"uio", "uio_pci_generic", transport_uio_open},
    {"sysfs", "", transport_sysfs_open},
    {"vfio", "vfio-pci", transport_vfio_open},
    {"kmod", "gpunvme", transport_kmod_open},
    {NULL, NULL, NULL},
};

struct options {
    char via[16];
};

static const struct base_param_spec params[] = {
    {.name = "via",
     .type = BASE_PARAM_TEXT,
     .offset = offsetof(struct options, via),
     .max = sizeof(((struct options *)0)->via)},
    {.name = NULL},
};

/* A function that the kernel's own driver has is never taken from it here. */
static gpunvme_err_t no_way(const struct pci_function *f)
{
    if (!strcmp(f->driver, "nvme"))
        return base_fail(GPUNVME_ERR_BUSY,
                         "%s belongs to the kernel's nvme driver: scripts/vfio-bind.sh %s gives "
                         "it to programs",
                         f->bdf, f->bdf);
    return base_fail(GPUNVME_ERR_UNSUPPORTED, "%s is bound to %s, by which programs can't reach it",
                     f->bdf, f->driver[0] ? f->driver : "no driver");
}

gpunvme_err_t transport_nvme_open(const char *uri, struct gpunvme_transport **out)
{
    struct options options = {0};
    struct pci_function f;
    char bdf[32];
    const char *rest = uri + strlen("nvme:");
    size_t n = strcspn(rest, ",");
    gpunvme_err_t err;

    if (n >= sizeof(bdf))
        return base_fail(GPUNVME_ERR_URI, "\"%s\": no PCI address", uri);
    memcpy(bdf, rest, n);
    bdf[n] = 0;
    err = rest[n] ? base_params_set(params, &options, rest + n + 1, ',', NULL) : GPUNVME_OK;
    if (!err)
        err = pci_find(bdf, &f);
    if (err)
        return err;
    for (const struct via *v = vias; v->name; v++) {
        if (options.via[0] ? !strcmp(v->name, options.via) : !strcmp(v->driver, f.driver)) {
            err = v->open(&f, out);
            if (!err)
                snprintf((*out)->address, sizeof((*out)->address), "%s", uri);
            return err;
        }
    }
    if (options.via[0])
        return base_fail(GPUNVME_ERR_URI, "via=%s: vfio, kmod, uio and sysfs are possible",
                         options.via);
    return no_way(&f);
}
