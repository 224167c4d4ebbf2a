/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How the cufile backend moves bytes of GPU memory: threads of the engine's pool give pieces to
 * cuFileRead() and cuFileWrite().
 *
 * cuFile's calls have no deadline. A thread that is stuck in one stays there; whoever waits for
 * the transfer has a deadline of its own.
 */
#include <errno.h>

#include "base/fail.h"
#include "memory/cuda.h"
#include "storage/cufile/cufile.h"

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
            rest.op == GPUNVME_OP_WRITE && ((rest.offset | place.nbytes) & (CUFILE_EDGE - 1)) != 0;

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
gpunvme_err_t cufile_serve(const struct crew_piece *piece, size_t *done)
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
