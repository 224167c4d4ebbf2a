/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A store in the memory of a GPU, for the engine, which reaches the bytes itself. Whatever the
 * controller's threads move there goes by copies of the memory module. Without a GPU it is host
 * memory, and they reach it as they do any. Knows no kernels.
 */
#include <stdlib.h>

#include "base/fail.h"
#include "gpunvme/memory.h"
#include "memory/cuda.h"
#include "sim/store/backend.h"
#include "sim/store/iov.h"

struct gpu_store {
    struct sim_backend base;
    struct gpunvme_buf buf;
};

static struct gpu_store *of(struct sim_backend *backend)
{
    return (struct gpu_store *)(void *)backend;
}

static void gpu_close(struct sim_backend *backend)
{
    struct gpu_store *store = of(backend);

    gpunvme_mem_free(&store->buf);
    free(store);
}

/* Copies between the pieces of a transfer, in host memory, and the store. */
static gpunvme_err_t copy_pieces(const struct gpu_store *store, const struct sim_store_io *io)
{
    struct sim_iov cursor = sim_iov_begin(io->iov);
    bool write = io->op == SIM_STORE_WRITE;
    uint8_t *at = store->base.gpu + io->off;
    gpunvme_err_t err = GPUNVME_OK;
    uint64_t left = io->nbytes;

    while (left && !err) {
        size_t n;
        uint8_t *memory = sim_iov_next(&cursor, left, &n);

        err = write ? gpunvme_mem_copy(at, GPUNVME_MEM_GPU, memory, GPUNVME_MEM_HOST, n)
                    : gpunvme_mem_copy(memory, GPUNVME_MEM_HOST, at, GPUNVME_MEM_GPU, n);
        at += n;
        left -= n;
    }
    return err;
}

static gpunvme_err_t gpu_now(struct sim_backend *backend, const struct sim_store_io *io)
{
    switch (io->op) {
    case SIM_STORE_READ:
    case SIM_STORE_WRITE:
        return copy_pieces(of(backend), io);
    case SIM_STORE_ZERO:
        return gpunvme_mem_fill(backend->gpu + io->off, GPUNVME_MEM_GPU, 0, io->nbytes);
    case SIM_STORE_FLUSH:
        break;
    }
    return GPUNVME_OK;
}

static void gpu_submit(struct sim_backend *backend, unsigned lane, struct sim_store_io *io)
{
    (void)lane;
    io->done(io, gpu_now(backend, io));
}

static unsigned gpu_poll(struct sim_backend *backend, unsigned lane)
{
    (void)backend;
    (void)lane;
    return 0;
}

static const struct sim_backend_ops gpu_ops = {
    .close = gpu_close,
    .submit = gpu_submit,
    .poll = gpu_poll,
    .now = gpu_now,
};

/* On the device that the configuration names, whatever the thread's current one is. */
static gpunvme_err_t allocate(const struct sim_store_config *config, struct gpunvme_buf *buf)
{
    bool enters = config->gpu >= 0 && !gpunvme_mem_gpu_is_host();
    gpunvme_err_t err = enters ? mem_cuda_enter((unsigned)config->gpu) : GPUNVME_OK;

    if (err)
        return err;
    err = gpunvme_mem_alloc(config->nbytes, GPUNVME_MEM_GPU, buf);
    if (enters)
        mem_cuda_leave();
    return err;
}

gpunvme_err_t sim_gpu_open(const struct sim_store_config *config, struct sim_backend **out)
{
    struct gpu_store *store;
    gpunvme_err_t err;

    if (!config->nbytes)
        return base_fail(GPUNVME_ERR_INVALID, "a store in GPU memory needs a size");
    store = calloc(1, sizeof(*store));
    if (!store)
        return base_fail(GPUNVME_ERR_NOMEM, "a store");
    err = allocate(config, &store->buf);
    if (err) {
        free(store);
        return err;
    }
    store->base = (struct sim_backend){
        .ops = &gpu_ops,
        .nbytes = config->nbytes,
        .direct = store->buf.cpu,
        .gpu = store->buf.gpu,
        .path = gpunvme_mem_gpu_is_host() ? "host memory, as GPU memory" : "GPU memory",
    };
    *out = &store->base;
    return GPUNVME_OK;
}
