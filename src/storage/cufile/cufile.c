/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The cufile backend: files and block devices of the kernel, through NVIDIA's libcufile, which has
 * drives move bytes to and from GPU memory by themselves where driver, file system and drive allow
 * it, and goes through host memory where not (its compat mode).
 *
 * `require=` better than compat switches compat mode off, require=compat switches it on, for the
 * whole process; without it the library's configuration decides.
 */
#include "storage/cufile/cufile.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/fail.h"
#include "gpunvme/memory.h"

#define DEFAULT_CHUNK   (1u << 20)
#define DEFAULT_THREADS 8u

/* ---- Opening --------------------------------------------------------------------------------- */

static gpunvme_err_t open_driver(struct gpunvme_store *store, struct cufile *cufile)
{
    const struct store_options *o = &store->uri.options;
    enum cufile_compat compat = CUFILE_COMPAT_AS_CONFIGURED;
    gpunvme_err_t err = cufile_api(&cufile->api);

    if (err)
        return err;
    if (gpunvme_mem_gpu_is_host() && !cufile->api->needs_no_gpu)
        return base_fail(GPUNVME_ERR_NO_GPU, "cuFile needs a GPU: %s; use backend=posix",
                         gpunvme_mem_gpu_why_not());
    if (o->require_set)
        compat = o->require == GPUNVME_ROUTE_COMPAT ? CUFILE_COMPAT_ON : CUFILE_COMPAT_OFF;
    err = cufile_driver_acquire(cufile->api, compat, &cufile->mode);
    cufile->driver_held = !err;
    return err;
}

/*
 * libcufile asks udev's database what a file is on, also for its compat mode, and says "internal
 * error" (1.14) or "not registered" (1.15, 1.20) where that does not tell, as in most containers.
 * It says the same of other files that it does not take.
 */
static gpunvme_err_t explain(const struct cufile *cufile, struct cufile_error error)
{
    bool vague = error.err == 5027 || error.err == 5030;
    const struct cufile_where *where = &cufile->where;

    if (!vague)
        return cufile_fail(error, "cuFileHandleRegister");
    if (where->udev_lacks)
        return base_fail(GPUNVME_ERR_UNSUPPORTED,
                         "cuFileHandleRegister: %s: udev's database has no %s for %s: give the "
                         "container /run/udev, take another file system, or backend=posix",
                         cufile_error_name(error.err), where->udev_lacks, where->what);
    return base_fail(GPUNVME_ERR_UNSUPPORTED,
                     "cuFileHandleRegister: %s: libcufile does not take this file, on %s, and says "
                     "why in cufile.log only: take another file system, or backend=posix",
                     cufile_error_name(error.err), where->what);
}

static gpunvme_err_t register_fd(struct cufile *cufile, bool o_direct)
{
    struct cufile_descr descr = {.type = CUFILE_HANDLE_FD};
    gpunvme_err_t err;

    descr.handle.fd = o_direct ? cufile->posix.file.direct_fd : cufile->posix.file.fd;
    err = explain(cufile, cufile->api->handle_register(&cufile->handle, &descr));
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
    char why[sizeof(cufile->why_not_direct)];
    bool have_direct = cufile->posix.file.direct_fd >= 0;
    bool first = have_direct &&
                 (store->uri.options.direct == STORE_ON ||
                  cufile_expect_direct(&cufile->mode, &cufile->where, true, why, sizeof(why)));
    struct base_failure failure;
    gpunvme_err_t err = register_fd(cufile, first);

    if (!err || store->uri.options.direct != STORE_AUTO || !have_direct)
        return err;
    base_keep(&failure, err);
    return register_fd(cufile, !first) ? base_restore(&failure) : GPUNVME_OK;
}

/* The way to GPU memory, and the limits of the store. */
static void describe_file(struct gpunvme_store *store, struct cufile *cufile)
{
    const struct store_options *o = &store->uri.options;
    bool direct = cufile_expect_direct(&cufile->mode, &cufile->where, cufile->o_direct,
                                       cufile->why_not_direct, sizeof(cufile->why_not_direct));

    store->gpu_route = direct ? GPUNVME_ROUTE_P2P : GPUNVME_ROUTE_COMPAT;
    store->block_size = CUFILE_EDGE;
    store->threads = o->threads ? o->threads : DEFAULT_THREADS;
    store->queue.max_in_hand = store->threads;
    store->queue.piece_nbytes = o->chunk_nbytes ? o->chunk_nbytes : DEFAULT_CHUNK;
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
    struct cufile *cufile = store->priv;
    gpunvme_err_t err;

    pthread_mutex_init(&cufile->edge, NULL);
    err = open_driver(store, cufile); /* first: a file is not created in vain */
    if (err)
        return err;
    cufile->has_file = true;
    cufile->posix.serve_gpu = cufile_serve;
    err = posix_enter(store, &cufile->posix);
    if (err)
        return err;
    cufile_where(cufile->posix.file.fd, &cufile->where);
    err = register_file(store, cufile);
    if (err)
        return err;
    describe_file(store, cufile);
    store_domain_join(store, &domain_ops, (void *)cufile->api);
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_cufile_open(char *mode_text, size_t room)
{
    const struct cufile_api *api;
    struct cufile_mode mode;
    gpunvme_err_t err = cufile_api(&api);

    if (!err)
        err = cufile_driver_acquire(api, CUFILE_COMPAT_AS_CONFIGURED, &mode);
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
    char mode[CUFILE_MODE_TEXT];

    snprintf(path->how, sizeof(path->how), "%s; %s%s, %u threads, pieces of %zu KiB",
             cufile_mode_text(&cufile->mode, mode, sizeof(mode)), cufile->where.what,
             cufile->o_direct ? ", O_DIRECT" : "", store->threads, store->queue.piece_nbytes >> 10);
    if (store->gpu_route == GPUNVME_ROUTE_COMPAT)
        snprintf(path->why_not, sizeof(path->why_not), "p2p: %s; bounce: a way of backend=posix",
                 cufile->why_not_direct);
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
