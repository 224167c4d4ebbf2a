/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How the cufile backend moves bytes: threads of the engine's pool give pieces for GPU
 * memory to cuFileRead() and cuFileWrite(), and move those for host memory themselves.
 *
 * cuFile's calls have no deadline. A thread that is stuck in one stays there; whoever waits for
 * the transfer has a deadline of its own.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fail.h"
#include "memory/cuda.h"
#include "storage/cufile/cufile.h"

/* A piece, where cuFile finds its memory, and how far it has come. */
struct move {
    struct crew_piece piece;
    uint8_t *base; /* what was registered, or the piece's own begin */
    off_t base_offset;
    bool in_region; /* of the store: all of it is in what was registered */
    bool is_split;  /* it is not, and meets registered memory: several calls */
    size_t done;
    gpunvme_err_t err;
};

static bool is_ragged(const struct crew_piece *piece)
{
    return piece->op == GPUNVME_OP_WRITE &&
           ((piece->offset | piece->nbytes) & (CUFILE_EDGE - 1)) != 0;
}

/*
 * How many of `nbytes` bytes at `offset` there are: cuFile is never asked for what is behind the
 * end of a file, where not all versions answer like pread(2).
 */
static gpunvme_err_t there_are(const struct cufile *cufile, uint64_t offset, size_t *nbytes)
{
    struct stat st;

    if (cufile->block_device)
        return GPUNVME_OK;
    if (fstat(cufile->fd, &st))
        return base_fail_errno(errno, "the file's size");
    if (offset >= (uint64_t)st.st_size)
        *nbytes = 0;
    else if (*nbytes > (uint64_t)st.st_size - offset)
        *nbytes = (size_t)((uint64_t)st.st_size - offset);
    return GPUNVME_OK;
}

/* One call for what is left of it; *n gets what was moved, 0 at the end of the file. */
static gpunvme_err_t call_once(const struct cufile *cufile, const struct move *m, ssize_t *n)
{
    bool write = m->piece.op == GPUNVME_OP_WRITE;
    size_t nbytes = m->piece.nbytes - m->done;
    off_t at = (off_t)(m->piece.offset + m->done);
    uint8_t *base = m->base;
    off_t base_at = m->base_offset + (off_t)m->done;
    gpunvme_err_t err = GPUNVME_OK;

    *n = 0;
    if (!write)
        err = there_are(cufile, (uint64_t)at, &nbytes);
    if (err || !nbytes)
        return err;
    if (!m->in_region)
        cufile_buffer_place(m->piece.ptr + m->done, &nbytes, &base, &base_at);
    do {
        errno = 0;
        *n = write ? cufile->api->write(cufile->handle, base, nbytes, at, base_at)
                   : cufile->api->read(cufile->handle, base, nbytes, at, base_at);
    } while (*n == -1 && errno == EINTR);
    if (*n < 0)
        return cufile_fail_io(*n, errno, write ? "cuFileWrite" : "cuFileRead");
    if (*n == 0 && write)
        return base_fail(GPUNVME_ERR_NOSPC, "cuFileWrite wrote nothing at offset %llu",
                         (unsigned long long)at);
    if ((size_t)*n > nbytes)
        return base_fail(GPUNVME_ERR_IO, "cuFile says %zd bytes of %zu", *n, nbytes);
    return GPUNVME_OK;
}

/* With the memory's GPU the current one: all of it, or up to the end. */
static void move_gpu(struct cufile *cufile, struct move *m)
{
    bool write = m->piece.op == GPUNVME_OP_WRITE;
    bool ragged = is_ragged(&m->piece) || (write && m->is_split);
    ssize_t n = 1;

    if (ragged)
        pthread_mutex_lock(&cufile->edge);
    while (!m->err && n > 0 && m->done < m->piece.nbytes) {
        m->err = call_once(cufile, m, &n);
        if (!m->err)
            m->done += (size_t)n;
    }
    if (ragged)
        pthread_mutex_unlock(&cufile->edge);
}

static ssize_t host_once(const struct cufile *cufile, const struct move *m)
{
    uint8_t *cpu = m->piece.ptr + m->done;
    size_t nbytes = m->piece.nbytes - m->done;
    off_t at = (off_t)(m->piece.offset + m->done);

    return m->piece.op == GPUNVME_OP_WRITE ? pwrite(cufile->fd, cpu, nbytes, at)
                                           : pread(cufile->fd, cpu, nbytes, at);
}

static void move_host(struct cufile *cufile, struct move *m)
{
    bool ragged = is_ragged(&m->piece);
    ssize_t n = 1;

    if (ragged)
        pthread_mutex_lock(&cufile->edge);
    while (!m->err && n && m->done < m->piece.nbytes) {
        n = host_once(cufile, m);
        if (n > 0)
            m->done += (size_t)n;
        else if (n < 0 && errno != EINTR)
            m->err = base_fail_errno(errno, "%zu bytes at offset %llu", m->piece.nbytes - m->done,
                                     (unsigned long long)(m->piece.offset + m->done));
        else if (n == 0 && m->piece.op == GPUNVME_OP_WRITE)
            m->err = base_fail(GPUNVME_ERR_NOSPC, "nothing was written");
    }
    if (ragged)
        pthread_mutex_unlock(&cufile->edge);
}

static void serve_host(struct cufile *cufile, struct move *m)
{
    if (m->piece.op != GPUNVME_OP_FLUSH)
        move_host(cufile, m);
    else if (fdatasync(cufile->fd))
        m->err = base_fail_errno(errno, "fdatasync");
}

static int device_of(const struct move *m)
{
    const struct cufile_buffer *buffer = store_region_map(m->piece.store, m->piece.region);

    return buffer ? cufile_buffer_device(buffer) : cufile_device_of(m->piece.ptr);
}

static void serve_gpu(struct cufile *cufile, struct move *m)
{
    int device = device_of(m);

    m->err = device < 0 ? GPUNVME_OK : mem_cuda_enter((unsigned)device);
    if (m->err)
        return;
    move_gpu(cufile, m);
    if (device >= 0)
        mem_cuda_leave();
}

/* ---- Pieces ---------------------------------------------------------------------------------- */

static struct move to_move(const struct crew_piece *piece)
{
    struct move m = {.piece = *piece, .base = piece->ptr};
    const struct cufile_buffer *buffer = store_region_map(piece->store, piece->region);

    if (piece->mem != GPUNVME_MEM_GPU || piece->op == GPUNVME_OP_FLUSH)
        return m;
    m.in_region = buffer;
    if (buffer) {
        m.base = cufile_buffer_base(buffer);
        m.base_offset = piece->ptr - m.base;
    } else {
        size_t nbytes = piece->nbytes;

        cufile_buffer_place(piece->ptr, &nbytes, &m.base, &m.base_offset);
        m.is_split = nbytes < piece->nbytes;
    }
    return m;
}

gpunvme_err_t cufile_serve(const struct crew_piece *piece, size_t *done)
{
    struct move m = to_move(piece);
    bool is_gpu = piece->mem == GPUNVME_MEM_GPU && piece->op != GPUNVME_OP_FLUSH;

    (is_gpu ? serve_gpu : serve_host)(piece->store->priv, &m);
    if (piece->op != GPUNVME_OP_FLUSH)
        store_moved(piece->store, piece->op, is_gpu ? piece->store->gpu_route : GPUNVME_ROUTE_HOST,
                    m.done);
    *done = m.done;
    return m.err;
}
