/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The spdk backend: namespaces that SPDK drives. See spdk.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <spdk/version.h>

#include "storage/spdk/spdk.h"

#define DEFAULT_DEPTH 64u
#define MAX_THREADS   4 /* unless a URI says otherwise */

/* ---- Opening --------------------------------------------------------------------------------- */

static gpunvme_err_t find_ns(struct gspdk_store *s, const struct gspdk_ctrlr *ctrlr, uint32_t nsid)
{
    const struct spdk_nvme_ctrlr_data *data = spdk_nvme_ctrlr_get_data(ctrlr->handle);
    const char *where = ctrlr->address.where;
    struct spdk_nvme_ns *ns;

    if (!nsid)
        nsid = spdk_nvme_ctrlr_get_first_active_ns(ctrlr->handle);
    ns = nsid ? spdk_nvme_ctrlr_get_ns(ctrlr->handle, nsid) : NULL;
    if (!ns || !spdk_nvme_ns_is_active(ns))
        return base_fail(GPUNVME_ERR_NO_NAMESPACE, "spdk:%s has no active namespace %u", where,
                         nsid);
    if (spdk_nvme_ns_get_md_size(ns))
        return base_fail(GPUNVME_ERR_FORMAT, "spdk:%s/%u has %u bytes of metadata a block", where,
                         nsid, spdk_nvme_ns_get_md_size(ns));
    s->ns.nsid = nsid;
    s->ns.block_size = spdk_nvme_ns_get_sector_size(ns);
    s->ns.block_shift = (unsigned)__builtin_ctz(s->ns.block_size);
    s->ns.nblocks = spdk_nvme_ns_get_num_sectors(ns);
    s->ns.nbytes = s->ns.nblocks * s->ns.block_size;
    s->ns.max_blocks = spdk_nvme_ns_get_max_io_xfer_size(ns) / s->ns.block_size;
    s->has_flush = spdk_nvme_ns_get_flags(ns) & SPDK_NVME_NS_FLUSH_SUPPORTED;
    memcpy(s->model, data->mn, sizeof(data->mn));
    for (size_t n = sizeof(data->mn); n && (s->model[n - 1] == ' ' || !s->model[n - 1]); n--)
        s->model[n - 1] = 0;
    return GPUNVME_OK;
}

static void choose(struct gpunvme_store *store, struct gspdk_store *s,
                   const struct gspdk_ctrlr *ctrlr)
{
    uint32_t most = spdk_nvme_ctrlr_get_regs_cap(ctrlr->handle).bits.mqes; /* 0's based, and one
                                                                              entry is free */
    long n = sysconf(_SC_NPROCESSORS_ONLN) / 2; /* lanes poll: leave some to others */

    s->nvme.ns = &s->ns;
    nvme_store_choose(store, &s->nvme, DEFAULT_DEPTH);
    if (s->nvme.depth > most)
        s->nvme.depth = most;
    store->threads = n < 1 ? 1 : n < MAX_THREADS ? (uint32_t)n : MAX_THREADS;
    if (store->uri.options.threads)
        store->threads = store->uri.options.threads;
}

static gpunvme_err_t spdk_open(struct gpunvme_store *store)
{
    const struct store_options *o = &store->uri.options;
    struct gspdk_store *s = store->priv;
    struct gspdk_address address;
    char target[sizeof(address.where) + 8];
    gpunvme_err_t err = gspdk_address_parse(store->uri.target + strlen("spdk:"), &address);

    snprintf(target, sizeof(target), "spdk:%s", address.where);
    if (!err)
        err = nvme_share_open(&gspdk_driver, target, o->timeout_ns, &s->nvme.share);
    if (!err)
        err = find_ns(s, s->nvme.share->other, o->nsid);
    if (err)
        return err;
    choose(store, s, s->nvme.share->other);
    store->gpu_route = GPUNVME_ROUTE_BOUNCE;
    return nvme_store_serve(store, &s->nvme);
}

/* ---- The rest -------------------------------------------------------------------------------- */

static void spdk_describe(struct gpunvme_store *store, struct gpunvme_path *path)
{
    const struct gspdk_store *s = store->priv;

    snprintf(path->how, sizeof(path->how),
             "%s, \"%s\", %u threads with %u commands each, pieces of %zu KiB", SPDK_VERSION_STRING,
             s->model, store->threads, s->nvme.depth, s->nvme.chunk >> 10);
    STORE_SAY(path->why_not, "p2p: SPDK moves bytes to and from memory of its own");
}

const struct store_backend store_spdk = {
    .name = "spdk",
    .option_bit = STORE_SPDK,
    .open = spdk_open,
    .priv_nbytes = sizeof(struct gspdk_store),
    .close = nvme_store_close,
    .size = nvme_store_size,
    .works_with =
        SPDK_VERSION_STRING ": drives that vfio-pci has, and vfio-user sockets (FOLDER/cntrl)",
    .describe = spdk_describe,
};
