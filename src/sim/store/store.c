/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The store: checks transfers and hands them to the backend, through the write cache where there
 * is one. Knows nothing of how either works.
 */
#include <stdlib.h>

#include "base/fail.h"
#include "sim/store/backend.h"

struct sim_store {
    struct sim_backend *backend;
    struct sim_cache *cache; /* NULL: no write cache is modelled */
    bool readonly;
};

gpunvme_err_t sim_store_open(const struct sim_store_config *config, struct sim_store **out)
{
    bool image = config->image && config->image[0];
    struct sim_store *store = calloc(1, sizeof(*store));
    gpunvme_err_t err;

    if (!store)
        return base_fail(GPUNVME_ERR_NOMEM, "a store");
    if (image)
        err = sim_image_open(config, &store->backend);
    else if (config->in_gpu)
        err = sim_gpu_open(config, &store->backend);
    else
        err = sim_ram_open(config, &store->backend);
    store->readonly = config->readonly || (!err && store->backend->is_foreign);
    if (!err && config->vwc)
        err = sim_cache_create(config, store->backend, &store->cache);
    if (err) {
        sim_store_close(store);
        return err;
    }
    *out = store;
    return GPUNVME_OK;
}

void sim_store_close(struct sim_store *store)
{
    if (!store)
        return;
    sim_cache_destroy(store->cache);
    if (store->backend)
        store->backend->ops->close(store->backend);
    free(store);
}

uint64_t sim_store_nbytes(const struct sim_store *store)
{
    return store->backend->nbytes;
}

bool sim_store_is_foreign(const struct sim_store *store)
{
    return store->backend->is_foreign;
}

const char *sim_store_path(const struct sim_store *store)
{
    return store->backend->path;
}

uint8_t *sim_store_direct(struct sim_store *store)
{
    return store->cache ? NULL : store->backend->direct;
}

uint8_t *sim_store_gpu(struct sim_store *store)
{
    return store->cache ? NULL : store->backend->gpu;
}

/* Why a transfer can't be done, GPUNVME_OK when it can. */
static gpunvme_err_t check(const struct sim_store *store, const struct sim_store_io *io)
{
    if (io->op == SIM_STORE_FLUSH)
        return GPUNVME_OK;
    if (io->off > store->backend->nbytes || io->nbytes > store->backend->nbytes - io->off)
        return base_fail(GPUNVME_ERR_RANGE, "%llu bytes at %llu, in a store of %llu",
                         (unsigned long long)io->nbytes, (unsigned long long)io->off,
                         (unsigned long long)store->backend->nbytes);
    if (store->readonly && io->op != SIM_STORE_READ)
        return base_fail(GPUNVME_ERR_READONLY, "the namespace was opened read-only");
    return GPUNVME_OK;
}

void sim_store_submit(struct sim_store *store, unsigned lane, struct sim_store_io *io)
{
    gpunvme_err_t err = check(store, io);

    if (err || (io->op != SIM_STORE_FLUSH && !io->nbytes))
        io->done(io, err);
    else if (store->cache)
        sim_cache_submit(store->cache, lane, io);
    else
        store->backend->ops->submit(store->backend, lane, io);
}

unsigned sim_store_poll(struct sim_store *store, unsigned lane)
{
    unsigned steps = store->cache ? sim_cache_poll(store->cache, lane) : 0;

    return steps + store->backend->ops->poll(store->backend, lane);
}

void sim_store_power_loss(struct sim_store *store)
{
    if (store->cache)
        sim_cache_power_loss(store->cache);
}
