/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The posix backend: files and block devices of the kernel.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fail.h"
#include "gpunvme/memory.h"
#include "storage/crew.h"

#define DEFAULT_CHUNK   (1u << 20)
#define DEFAULT_THREADS 4u
#define WAIT_NS         1000000000u /* of a worker without work, before it looks around */

struct posix {
    int fd;
    bool block_device;
    size_t chunk;
    struct crew *crew;
};

/* All of it, or up to the end of the file, or an error behind `*done` bytes. */
static gpunvme_err_t move(int fd, enum gpunvme_op op, uint8_t *cpu, size_t nbytes, uint64_t offset,
                          size_t *done)
{
    *done = 0;
    while (*done < nbytes) {
        off_t at = (off_t)(offset + *done);
        ssize_t n = op == GPUNVME_OP_READ ? pread(fd, cpu + *done, nbytes - *done, at)
                                          : pwrite(fd, cpu + *done, nbytes - *done, at);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return base_fail_errno(errno, "%zu bytes at offset %llu", nbytes - *done,
                                   (unsigned long long)at);
        if (n == 0 && op == GPUNVME_OP_WRITE)
            return base_fail(GPUNVME_ERR_NOSPC, "nothing was written at offset %llu",
                             (unsigned long long)at);
        if (n == 0)
            break;
        *done += (size_t)n;
    }
    return GPUNVME_OK;
}

static gpunvme_err_t move_gpu(struct crew_worker *worker, const struct crew_piece *piece,
                              size_t *done)
{
    struct posix *posix = worker->store->priv;
    struct gpunvme_buf *bounce = worker->state;
    gpunvme_err_t err = store_allows(worker->store, GPUNVME_MEM_GPU, GPUNVME_ROUTE_BOUNCE);

    *done = 0;
    if (!err && piece->io->op == GPUNVME_OP_WRITE)
        err = gpunvme_mem_copy(bounce->cpu, GPUNVME_MEM_PINNED, piece->ptr, GPUNVME_MEM_GPU,
                               piece->nbytes);
    if (err)
        return err;
    err = move(posix->fd, piece->io->op, bounce->cpu, piece->nbytes, piece->offset, done);
    if (*done && piece->io->op == GPUNVME_OP_READ) {
        gpunvme_err_t copied =
            gpunvme_mem_copy(piece->ptr, GPUNVME_MEM_GPU, bounce->cpu, GPUNVME_MEM_PINNED, *done);

        if (copied) {
            *done = 0;
            return copied;
        }
    }
    return err;
}

static void serve(struct crew_worker *worker, const struct crew_piece *piece)
{
    struct posix *posix = worker->store->priv;
    enum gpunvme_op op = piece->io->op;
    bool gpu = piece->io->mem == GPUNVME_MEM_GPU;
    gpunvme_err_t err = GPUNVME_OK;
    size_t done = 0;

    if (op == GPUNVME_OP_FLUSH) {
        if (fdatasync(posix->fd))
            err = base_fail_errno(errno, "fdatasync");
    } else if (gpu) {
        err = move_gpu(worker, piece, &done);
    } else {
        err = move(posix->fd, op, piece->ptr, piece->nbytes, piece->offset, &done);
    }
    store_moved(worker->store, op, gpu ? GPUNVME_ROUTE_BOUNCE : GPUNVME_ROUTE_HOST, done);
    crew_end(piece, err, done);
}

static void work(struct crew_worker *worker)
{
    struct posix *posix = worker->store->priv;
    struct crew_piece piece;
    bool stop = false;

    while (!stop)
        if (crew_take(worker, &piece, 1, posix->chunk, WAIT_NS, &stop))
            serve(worker, &piece);
}

static gpunvme_err_t prepare(struct crew_worker *worker)
{
    struct posix *posix = worker->store->priv;
    struct gpunvme_buf *bounce = calloc(1, sizeof(*bounce));
    gpunvme_err_t err;

    if (!bounce)
        return base_fail(GPUNVME_ERR_NOMEM, "a bounce buffer");
    err = gpunvme_mem_alloc(posix->chunk, GPUNVME_MEM_PINNED, bounce);
    if (err)
        free(bounce);
    else
        worker->state = bounce;
    return err;
}

static void release(struct crew_worker *worker)
{
    gpunvme_mem_free(worker->state);
    free(worker->state);
}

static const struct crew_ops crew_ops = {.prepare = prepare, .release = release, .work = work};

static gpunvme_err_t posix_size(struct gpunvme_store *store, uint64_t *nbytes)
{
    struct posix *posix = store->priv;
    struct stat st;

    if (posix->block_device)
        return ioctl(posix->fd, BLKGETSIZE64, nbytes)
                   ? base_fail_errno(errno, "%s: its size", store->uri.target)
                   : GPUNVME_OK;
    if (fstat(posix->fd, &st))
        return base_fail_errno(errno, "%s: its size", store->uri.target);
    *nbytes = (uint64_t)st.st_size;
    return GPUNVME_OK;
}

static gpunvme_err_t posix_resize(struct gpunvme_store *store, uint64_t nbytes)
{
    struct posix *posix = store->priv;

    if (nbytes > INT64_MAX)
        return base_fail(GPUNVME_ERR_RANGE, "%llu bytes", (unsigned long long)nbytes);
    return ftruncate(posix->fd, (off_t)nbytes)
               ? base_fail_errno(errno, "%s: %llu bytes", store->uri.target,
                                 (unsigned long long)nbytes)
               : GPUNVME_OK;
}

static gpunvme_err_t open_fd(struct gpunvme_store *store, struct posix *posix)
{
    int how = O_CLOEXEC | (store->flags & GPUNVME_OPEN_WRITE ? O_RDWR : O_RDONLY) |
              (store->flags & GPUNVME_OPEN_CREATE ? O_CREAT : 0);
    struct stat st;

    posix->fd = open(store->uri.target, how, 0666);
    if (posix->fd < 0)
        return base_fail_errno(errno, "%s", store->uri.target);
    if (fstat(posix->fd, &st))
        return base_fail_errno(errno, "%s", store->uri.target);
    posix->block_device = S_ISBLK(st.st_mode);
    if (!posix->block_device && !S_ISREG(st.st_mode))
        return base_fail(GPUNVME_ERR_INVALID, "%s is neither a file nor a block device",
                         store->uri.target);
    store->resizable = !posix->block_device;
    store->block_size = st.st_blksize > 0 ? (uint32_t)st.st_blksize : 4096;
    return GPUNVME_OK;
}

static gpunvme_err_t posix_close(struct gpunvme_store *store)
{
    struct posix *posix = store->priv;
    gpunvme_err_t err = GPUNVME_OK;

    crew_stop(posix->crew);
    if (posix->fd >= 0 && close(posix->fd))
        err = base_fail_errno(errno, "%s", store->uri.target);
    free(posix);
    return err;
}

static gpunvme_err_t posix_open(struct gpunvme_store *store)
{
    const struct store_options *o = &store->uri.options;
    struct posix *posix = calloc(1, sizeof(*posix));
    struct base_failure failure;
    gpunvme_err_t err;

    if (!posix)
        return base_fail(GPUNVME_ERR_NOMEM, "a store");
    store->priv = posix;
    store->threads = o->threads ? o->threads : DEFAULT_THREADS;
    store->gpu_route = GPUNVME_ROUTE_BOUNCE;
    posix->chunk = o->chunk_nbytes ? o->chunk_nbytes : DEFAULT_CHUNK;
    err = open_fd(store, posix);
    if (!err)
        err = crew_start(store, &crew_ops, store->threads, &posix->crew);
    if (err) {
        base_keep(&failure, err);
        posix_close(store);
        return base_restore(&failure);
    }
    return GPUNVME_OK;
}

static void posix_submit(struct gpunvme_store *store, struct gpunvme_io *first, size_t n)
{
    struct posix *posix = store->priv;

    crew_submit(posix->crew, first, n);
}

static void posix_describe(struct gpunvme_store *store, struct gpunvme_path *path)
{
    const struct posix *posix = store->priv;

    snprintf(path->how, sizeof(path->how), "pread and pwrite, %u threads, pieces of %zu KiB",
             store->threads, posix->chunk >> 10);
    snprintf(path->why_not, sizeof(path->why_not), "p2p: the kernel's files go through its memory");
}

static void posix_about(struct gpunvme_backend_info *info)
{
    info->works = true;
    snprintf(info->why, sizeof(info->why), "files and block devices of the kernel");
}

const struct store_backend store_posix = {
    .name = "posix",
    .option_bit = STORE_POSIX,
    .open = posix_open,
    .close = posix_close,
    .size = posix_size,
    .resize = posix_resize,
    .submit = posix_submit,
    .about = posix_about,
    .describe = posix_describe,
};
