/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cuFile's own transfers in CUDA streams (async=1): cuFileReadAsync() and cuFileWriteAsync().
 *
 * They are for those who ask for them, since they can't keep all that is promised of streams: what
 * libcufile has put on a stream can't be taken back, so one that does not end holds up the stream
 * beyond its deadline; and the call may pin memory and load kernels of its own, which alone.h would
 * not have. A transfer is one call here, which the store's threads have no part in.
 *
 * Workers finish what such a call leaves (stream.c): they find the end of the file, or the error,
 * whose errno cuFile does not tell here (*done is -1, or a number that is not even one of its own).
 */
#include "memory/cuda.h"
#include "storage/cufile.h"

/* NULL, cudaStreamLegacy and cudaStreamPerThread: cuFile takes the first for no stream at all. */
static bool is_default(void *stream)
{
    return (uintptr_t)stream <= 2;
}

static bool is_near(const struct store_region *region, void *stream)
{
    int device = cufile_buffer_device(region->priv);
    unsigned of_stream;

    return device < 0 ||
           (!mem_cuda_user_stream_device(stream, &of_stream) && of_stream == (unsigned)device);
}

/*
 * Not where cuFile may go by host memory, its compat mode: libcufile 1.20 mixes up there what two
 * streams, or a stream and a thread, do with one registered buffer, and says nothing;
 * docs/STORAGE.md has the figures.
 *
 * Memory that is not registered has no offset there (cufile_api.h); ragged writes take turns
 * (cufile.h), which a stream can't.
 */
static bool takes(struct gpunvme_store *store, const struct gpunvme_io *io,
                  const struct store_region *region, void *stream)
{
    const struct cufile *cufile = store->priv;

    if (!store->uri.options.async || !cufile->api->has_stream || cufile->mode.compat_allowed)
        return false;
    if (is_default(stream) || !region || !region->mapped || !io->nbytes)
        return false;
    if (io->op == GPUNVME_OP_WRITE && cufile_is_ragged(io->offset, io->nbytes))
        return false;
    return is_near(region, stream);
}

/* An error leaves turn->done 0: nothing was moved. */
static void put(struct gpunvme_store *store, const struct gpunvme_io *io,
                const struct store_region *region, struct store_turn *turn, void *stream)
{
    const struct cufile *cufile = store->priv;
    bool write = io->op == GPUNVME_OP_WRITE;
    uint8_t *base = cufile_buffer_base(region->priv);

    turn->base_at = (uint8_t *)io->ptr - base;
    (void)(write ? cufile->api->write_async : cufile->api->read_async)(
        cufile->handle, base, &turn->nbytes, &turn->at, &turn->base_at, &turn->done, stream);
}

/* A read asks for what there is now. Elsewhere the library may look at the size: one store. */
static void comes(struct gpunvme_store *store, const struct gpunvme_io *io, struct store_turn *turn)
{
    const struct cufile *cufile = store->priv;
    size_t nbytes = io->nbytes;

    if (io->op == GPUNVME_OP_WRITE)
        return;
    if (cufile_there(cufile, io->offset, &nbytes))
        nbytes = 0;
    if (nbytes < io->nbytes)
        __atomic_store_n(&turn->nbytes, nbytes, __ATOMIC_RELAXED);
}

static size_t over(struct gpunvme_store *store, const struct gpunvme_io *io,
                   const struct store_turn *turn)
{
    struct cufile *cufile = store->priv;
    size_t done = turn->done > 0 && (size_t)turn->done <= turn->nbytes ? (size_t)turn->done : 0;

    atomic_fetch_add(&cufile->turns, 1);
    if (done < turn->nbytes)
        atomic_fetch_add(&cufile->cut, 1);
    store_moved(store, io->op, store->gpu_route, done);
    return done;
}

const struct store_turns cufile_turns = {.takes = takes, .put = put, .comes = comes, .over = over};
