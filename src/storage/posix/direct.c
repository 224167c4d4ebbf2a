/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Small transfers in the caller's own thread: to wake a worker takes longer than they do. Only what
 * can't hold the caller up is done here: reads of what is in the page cache, and writes of files in
 * memory. The rest is left to the crew, which has a deadline.
 */
#include <errno.h>
#include <sys/resource.h>

#include "base/fail.h"
#include "gpunvme/memory.h"
#include "storage/posix/posix.h"

#define HOST_NBYTES (256u << 10) /* more is faster by several hands */
#define GPU_NBYTES  (16u << 10)  /* through the stack */

/* False: it is not all in the page cache. */
static bool read_here(struct posix_file *file, struct gpunvme_io *io, uint8_t *cpu)
{
    bool end;

    return posix_file_is_warm(file, io->offset) &&
           posix_file_look(file, cpu, io->nbytes, io->offset, &io->done, &end);
}

static bool read_host(struct gpunvme_store *store, struct gpunvme_io *io)
{
    struct posix *posix = store->priv;

    if (io->nbytes > HOST_NBYTES || !read_here(&posix->file, io, io->ptr))
        return false;
    store_moved(io, GPUNVME_ROUTE_HOST, io->done);
    return true;
}

static bool read_gpu(struct gpunvme_store *store, struct gpunvme_io *io)
{
    struct posix *posix = store->priv;
    uint8_t bytes[GPU_NBYTES];

    if (io->nbytes > GPU_NBYTES || posix->serve_gpu ||
        store_allows(store, GPUNVME_MEM_GPU, GPUNVME_ROUTE_BOUNCE) ||
        !read_here(&posix->file, io, bytes))
        return false;
    io->err = gpunvme_mem_copy(io->ptr, GPUNVME_MEM_GPU, bytes, GPUNVME_MEM_HOST, io->done);
    if (io->err)
        io->done = 0;
    store_moved(io, GPUNVME_ROUTE_BOUNCE, io->done);
    return true;
}

/* A write behind the limit of this process's files is answered by a signal, which the crew blocks.
 */
static bool has_limit(void)
{
    struct rlimit limit;

    return getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur != RLIM_INFINITY;
}

static bool write_host(struct gpunvme_store *store, struct gpunvme_io *io)
{
    struct posix *posix = store->priv;

    if (io->nbytes > HOST_NBYTES || !posix->file.in_memory || has_limit())
        return false;
    for (io->done = 0; io->done < io->nbytes;) {
        ssize_t n = store_fd_move(posix->file.fd, GPUNVME_OP_WRITE, (uint8_t *)io->ptr + io->done,
                                  io->nbytes - io->done, io->offset + io->done);

        if (n <= 0) {
            io->err =
                base_fail_errno(n ? (int)-n : ENOSPC, "%zu bytes at offset %llu",
                                io->nbytes - io->done, (unsigned long long)(io->offset + io->done));
            break;
        }
        io->done += (size_t)n;
    }
    store_moved(io, GPUNVME_ROUTE_HOST, io->done);
    return true;
}

bool posix_direct(struct gpunvme_store *store, struct gpunvme_io *io)
{
    io->err = GPUNVME_OK;
    io->done = 0;
    if (!io->nbytes || io->op == GPUNVME_OP_FLUSH)
        return false;
    if (io->op == GPUNVME_OP_READ)
        return io->mem == GPUNVME_MEM_GPU ? read_gpu(store, io) : read_host(store, io);
    return io->mem != GPUNVME_MEM_GPU && write_host(store, io);
}
