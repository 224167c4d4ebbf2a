/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The cufile backend: files and block devices of the kernel, through NVIDIA's libcufile, which has
 * drives move bytes to and from GPU memory by themselves where driver, file system and drive allow
 * it, and goes through host memory where not (its compat mode). Files are those of the posix
 * backend, which moves bytes to and from host memory.
 *
 * cuFile's calls have no deadline. A thread of the engine's pool that is stuck in one stays there;
 * whoever waits for the transfer has a deadline of its own.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/fail.h"
#include "gpunvme/memory.h"
#include "memory/cuda.h"
#include "storage/cufile/api.h"
#include "storage/posix/posix.h"

#define DEFAULT_CHUNK   (1u << 20)
#define DEFAULT_THREADS 8u
#define EDGE            4096u /* what cuFile moves directly is whole blocks of this, in the file */

struct cufile {
    struct posix posix; /* first */
    bool has_file;      /* posix_enter() was called */
    const struct cufile_api *api;
    struct cufile_mode mode;
    bool driver_held;
    bool o_direct;   /* cuFile has the descriptor with O_DIRECT */
    bool registered; /* `handle` is valid */
    void *handle;    /* CUfileHandle_t */

    /*
     * cuFile reads, changes and writes the blocks at ragged ends of a write. Two such writes in one
     * block would lose bytes of one of them, so they go one at a time; the gate of posix keeps the
     * ragged ones from host memory apart.
     */
    pthread_mutex_t edge;
};

/* ---- Opening --------------------------------------------------------------------------------- */

static gpunvme_err_t open_driver(struct cufile *cufile)
{
    gpunvme_err_t err = cufile_api(&cufile->api);

    if (err)
        return err;
    if (gpunvme_mem_gpu_is_host() && !cufile->api->needs_no_gpu)
        return base_fail(GPUNVME_ERR_NO_GPU, "cuFile needs a GPU: %s; use backend=posix",
                         gpunvme_mem_gpu_why_not());
    err = cufile_driver_acquire(cufile->api, &cufile->mode);
    cufile->driver_held = !err;
    return err;
}

/*
 * libcufile asks udev's database what a file is on, also for its compat mode, and says "internal
 * error" (1.14) or "not registered" (1.15, 1.20) where that does not tell, as in most containers.
 * It says the same of other files that it does not take.
 */
static gpunvme_err_t explain(struct cufile_error error)
{
    if (error.err != 5027 && error.err != 5030)
        return cufile_fail(error, "cuFileHandleRegister");
    return base_fail(GPUNVME_ERR_UNSUPPORTED,
                     "cuFileHandleRegister: %s: udev's database may not know this file's device "
                     "(cufile.log says more): give the container /run/udev, take another file "
                     "system, or backend=posix",
                     cufile_error_name(error.err));
}

static gpunvme_err_t register_fd(struct cufile *cufile, bool o_direct)
{
    struct cufile_descr descr = {.type = CUFILE_HANDLE_FD};
    gpunvme_err_t err;

    descr.handle.fd = o_direct ? cufile->posix.file.direct_fd : cufile->posix.file.fd;
    err = explain(cufile->api->handle_register(&cufile->handle, &descr));
    cufile->registered = !err;
    cufile->o_direct = o_direct;
    return err;
}

/*
 * Which descriptor cuFile gets: a direct path wants O_DIRECT; through host memory the page cache
 * serves any offset and length, but older versions of the library insist on O_DIRECT there too.
 */
static gpunvme_err_t register_file(struct gpunvme_store *store, struct cufile *cufile)
{
    enum store_switch direct = store->uri.options.direct;
    bool have_direct = cufile->posix.file.direct_fd >= 0;
    bool first = have_direct && (direct == STORE_ON || !cufile_mode_is_compat(&cufile->mode));
    struct base_failure failure;
    gpunvme_err_t err = register_fd(cufile, first);

    if (!err || direct != STORE_AUTO || !have_direct)
        return err;
    base_keep(&failure, err);
    return register_fd(cufile, !first) ? base_restore(&failure) : GPUNVME_OK;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

/* Host memory needs no registration. */
static gpunvme_err_t map_memory(void *api, const struct gpunvme_buf *buf, void **out)
{
    if (buf->mem != GPUNVME_MEM_GPU)
        return GPUNVME_ERR_UNSUPPORTED;
    return cufile_buffer_register(api, buf->gpu, buf->nbytes, out);
}

static void unmap_memory(void *api, void *buffer)
{
    cufile_buffer_forget(api, buffer);
}

static const struct store_domain_ops domain_ops = {.map = map_memory, .unmap = unmap_memory};

/* ---- Moving bytes --------------------------------------------------------------------------- */

/*
 * How many of `nbytes` bytes at `offset` there are: cuFile is never asked for what is behind the
 * end of a file, where not all versions answer like pread(2).
 */
static gpunvme_err_t there_are(const struct cufile *cufile, uint64_t offset, size_t *nbytes)
{
    uint64_t size;
    const struct posix_file *file = &cufile->posix.file;
    gpunvme_err_t err = store_fd_size(file->fd, file->block_device, &size);

    if (err || offset >= size)
        *nbytes = 0;
    else if (*nbytes > size - offset)
        *nbytes = (size_t)(size - offset);
    return err;
}

/* A call for what is left of a piece, or for as much as one buffer has of its memory. */
static gpunvme_err_t call_cufile(const struct cufile *cufile, const struct crew_piece *rest,
                                 struct cufile_place place, size_t *n)
{
    bool write = rest->op == GPUNVME_OP_WRITE;
    off_t at = (off_t)rest->offset;
    gpunvme_err_t err = write ? GPUNVME_OK : there_are(cufile, rest->offset, &place.nbytes);
    ssize_t result;

    if (err || !place.nbytes)
        return err;
    do {
        errno = 0;
        result =
            write ? cufile->api->write(cufile->handle, place.base, place.nbytes, at, place.offset)
                  : cufile->api->read(cufile->handle, place.base, place.nbytes, at, place.offset);
    } while (result == -1 && errno == EINTR);
    if (result < 0)
        return cufile_fail_io(result, errno, write ? "cuFileWrite" : "cuFileRead");
    if (result == 0 && write)
        return base_fail(GPUNVME_ERR_NOSPC, "cuFileWrite wrote nothing at offset %llu",
                         (unsigned long long)rest->offset);
    if ((size_t)result > place.nbytes)
        return base_fail(GPUNVME_ERR_IO, "cuFile says %zd bytes of %zu", result, place.nbytes);
    *n = (size_t)result;
    return GPUNVME_OK;
}

/* All of it, or up to the end of the file. */
static gpunvme_err_t move(struct cufile *cufile, struct crew_piece rest, size_t *done)
{
    gpunvme_err_t err = GPUNVME_OK;
    size_t n = 1;

    while (!err && n && rest.nbytes) {
        struct cufile_place place = cufile_buffer_place(rest.ptr, rest.nbytes);
        bool ragged =
            rest.op == GPUNVME_OP_WRITE && ((rest.offset | place.nbytes) & (EDGE - 1)) != 0;

        n = 0;
        if (ragged)
            pthread_mutex_lock(&cufile->edge);
        err = call_cufile(cufile, &rest, place, &n);
        if (ragged)
            pthread_mutex_unlock(&cufile->edge);
        rest.ptr += n;
        rest.offset += n;
        rest.nbytes -= n;
        *done += n;
    }
    return err;
}

/* With the memory's GPU the current one. */
static gpunvme_err_t serve_gpu(const struct crew_piece *piece, size_t *done)
{
    int device = cufile_device_of(piece->ptr);
    gpunvme_err_t err = device < 0 ? GPUNVME_OK : mem_cuda_enter((unsigned)device);

    if (err)
        return err;
    err = move(piece->store->priv, *piece, done);
    if (device >= 0)
        mem_cuda_leave();
    return err;
}

/* ---- Closing --------------------------------------------------------------------------------- */

/* Undoes what has been done of opening. */
static gpunvme_err_t cufile_close(struct gpunvme_store *store)
{
    struct cufile *cufile = store->priv;
    gpunvme_err_t err = GPUNVME_OK;

    store_domain_leave(store);
    if (cufile->registered)
        cufile->api->handle_deregister(cufile->handle);
    if (cufile->has_file)
        err = posix_leave(&cufile->posix);
    if (cufile->driver_held) {
        gpunvme_err_t released = cufile_driver_release(cufile->api);

        err = err ? err : released;
    }
    pthread_mutex_destroy(&cufile->edge);
    return err;
}

static gpunvme_err_t cufile_open(struct gpunvme_store *store)
{
    const struct store_options *o = &store->uri.options;
    struct cufile *cufile = store->priv;
    const char *why_not;
    gpunvme_err_t err;

    pthread_mutex_init(&cufile->edge, NULL);
    err = open_driver(cufile); /* first: a file is not created in vain */
    if (err)
        return err;
    why_not = cufile_mode_why(&cufile->mode);
    store->gpu_route = why_not ? GPUNVME_ROUTE_COMPAT : GPUNVME_ROUTE_P2P;
    if (store_allows(store, GPUNVME_MEM_GPU, store->gpu_route))
        return base_fail(GPUNVME_ERR_UNSUPPORTED, "%s: require=%s: %s", store->uri.text,
                         gpunvme_route_name(o->require), why_not);
    cufile->has_file = true;
    cufile->posix.serve_gpu = serve_gpu;
    err = posix_enter(store, &cufile->posix);
    if (err)
        return err;
    err = register_file(store, cufile);
    if (err)
        return err;
    store->block_size = EDGE;
    store->threads = o->threads ? o->threads : DEFAULT_THREADS;
    store->queue.max_in_hand = store->threads;
    store->queue.piece_nbytes = o->chunk_nbytes ? o->chunk_nbytes : DEFAULT_CHUNK;
    store_domain_join(store, &domain_ops, (void *)cufile->api);
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_cufile_open(char *mode_text, size_t room)
{
    const struct cufile_api *api;
    struct cufile_mode mode;
    gpunvme_err_t err = cufile_api(&api);

    if (!err)
        err = cufile_driver_acquire(api, &mode);
    if (!err && room)
        cufile_mode_text(&mode, mode_text, room);
    return err;
}

gpunvme_err_t gpunvme_cufile_close(void)
{
    const struct cufile_api *api;
    gpunvme_err_t err = cufile_api(&api);

    return err ? err : cufile_driver_release(api);
}

/* ---- What the store asks of it --------------------------------------------------------------- */

static void cufile_describe(struct gpunvme_store *store, struct gpunvme_path *path)
{
    const struct cufile *cufile = store->priv;
    const char *why_not = cufile_mode_why(&cufile->mode);

    cufile_mode_text(&cufile->mode, path->how, CUFILE_MODE_TEXT);
    STORE_SAY(path->how, "%s; %u threads, pieces of %zu KiB", cufile->o_direct ? ", O_DIRECT" : "",
              store->threads, store->queue.piece_nbytes >> 10);
    if (why_not)
        STORE_SAY(path->why_not, "p2p: %s; bounce: a way of backend=posix", why_not);
}

/* The driver is not opened: it takes a second, GPU memory, and leaves a log. */
static void cufile_about(struct gpunvme_backend_info *info)
{
    const struct cufile_api *api;
    const char *text = "";

    if (cufile_api(&api)) {
        snprintf(info->why, sizeof(info->why), "%s", gpunvme_err_detail());
        return;
    }
    if (gpunvme_mem_gpu_is_host() && !api->needs_no_gpu) {
        snprintf(info->why, sizeof(info->why), "needs a GPU: %.200s", gpunvme_mem_gpu_why_not());
        return;
    }
    info->works = true;
    if (access("/proc/driver/nvidia-fs/version", F_OK))
        text = ", nvidia-fs is not loaded";
    snprintf(info->why, sizeof(info->why), "%.120s, version %u.%u%s", api->library,
             api->version / 1000, api->version % 1000 / 10, text);
}

const struct store_backend store_cufile = {
    .name = "cufile",
    .option_bit = STORE_CUFILE,
    .open = cufile_open,
    .priv_nbytes = sizeof(struct cufile),
    .close = cufile_close,
    .size = posix_size,
    .resize = posix_resize,
    .advise = posix_advise,
    .direct = posix_direct,
    .about = cufile_about,
    .describe = cufile_describe,
};
