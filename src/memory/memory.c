/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Buffers: allocation, registration and release, and the choice for each copy between the CPU
 * and CUDA. All that CUDA does stands behind cuda.h; nothing here knows what a bus address is.
 */
#include "gpunvme/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fail.h"
#include "memory/check.h"
#include "memory/cuda.h"

#define HUGE_PAGE ((size_t)2 << 20)
#define MFD_2MB   (21u << 26) /* log2 of it, where memfd_create wants it: MFD_HUGE_SHIFT */

/* PRP entries and SGL descriptors hold addresses in dwords. */
#define DWORD 4

/* Where a buffer came from, and so how it ends. A buffer's memory_private points to one. */
struct origin {
    bool registered;
    gpunvme_err_t (*release)(struct gpunvme_buf *buf);
};

/* Of memory with a file behind it. */
struct shared_origin {
    struct origin origin; /* first: memory_private points to it */
    struct shared_origin *next;
    void *base;
    int fd;
    size_t size; /* of the file and the mapping */
};

/* All of it: who registers a part by its address has the same file. */
static pthread_mutex_t shared_lock = PTHREAD_MUTEX_INITIALIZER;
static struct shared_origin *shared_list;

static gpunvme_err_t check_kind(enum gpunvme_mem mem)
{
    if (mem != GPUNVME_MEM_HOST && mem != GPUNVME_MEM_PINNED && mem != GPUNVME_MEM_GPU)
        return base_fail(GPUNVME_ERR_INVALID, "%d is not a kind of memory", (int)mem);
    return GPUNVME_OK;
}

/* True for memory that CUDA must move; without a GPU all memory is the CPU's. */
static bool is_device(enum gpunvme_mem mem)
{
    return mem == GPUNVME_MEM_GPU && mem_cuda_present();
}

static size_t map_granule(size_t nbytes)
{
    return nbytes >= HUGE_PAGE ? HUGE_PAGE : (size_t)sysconf(_SC_PAGESIZE);
}

static size_t round_up(size_t n, size_t granule)
{
    return (n + granule - 1) & ~(granule - 1);
}

/*
 * Anonymous memory, zeroed by the kernel. From 2 MiB on it begins at a huge page: the mapping is
 * made one page too large, and what is too much is given back on both sides.
 */
static gpunvme_err_t host_map(size_t nbytes, void **out)
{
    size_t granule = map_granule(nbytes), slack = nbytes >= HUGE_PAGE ? granule : 0, size, head;
    char *raw, *cpu;

    size = round_up(nbytes, granule);
    raw = mmap(NULL, size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED)
        return base_fail_errno(errno, "%zu bytes of host memory", nbytes);
    cpu = (char *)round_up((uintptr_t)raw, granule);
    head = (size_t)(cpu - raw);
    if (head)
        munmap(raw, head);
    if (slack - head)
        munmap(cpu + size, slack - head);
    if (nbytes >= HUGE_PAGE)
        madvise(cpu, size, MADV_HUGEPAGE); /* a wish: fine without */
    *out = cpu;
    return GPUNVME_OK;
}

static gpunvme_err_t host_unmap(struct gpunvme_buf *buf)
{
    if (munmap(buf->cpu, round_up(buf->nbytes, map_granule(buf->nbytes))) != 0)
        return base_fail_errno(errno, "munmap of %zu bytes", buf->nbytes);
    return GPUNVME_OK;
}

/* --- memory with a file behind it ------------------------------------------------------------- */

static void shared_add(struct shared_origin *shared)
{
    pthread_mutex_lock(&shared_lock);
    shared->next = shared_list;
    shared_list = shared;
    pthread_mutex_unlock(&shared_lock);
}

static void shared_remove(const struct shared_origin *shared)
{
    struct shared_origin **link = &shared_list;

    pthread_mutex_lock(&shared_lock);
    while (*link != shared)
        link = &(*link)->next;
    *link = shared->next;
    pthread_mutex_unlock(&shared_lock);
}

/* The file that all bytes of the buffer are in, of which *offset is the first; -1: there is none.
 */
static int shared_file(const struct gpunvme_buf *buf, uint64_t *offset)
{
    const struct shared_origin *s = shared_list;

    while (s && ((uintptr_t)buf->cpu - (uintptr_t)s->base >= s->size ||
                 buf->nbytes > s->size - ((uintptr_t)buf->cpu - (uintptr_t)s->base)))
        s = s->next;
    if (!s)
        return -1;
    *offset = (uintptr_t)buf->cpu - (uintptr_t)s->base;
    return s->fd;
}

static gpunvme_err_t shared_unmap(struct gpunvme_buf *buf)
{
    struct shared_origin *shared = buf->memory_private;
    gpunvme_err_t err = GPUNVME_OK;

    shared_remove(shared);
    if (munmap(buf->cpu, shared->size) != 0)
        err = base_fail_errno(errno, "munmap of %zu bytes", shared->size);
    close(shared->fd);
    free(shared);
    return err;
}

static gpunvme_err_t shared_unpin_and_unmap(struct gpunvme_buf *buf)
{
    gpunvme_err_t pin_err = mem_cuda_unpin(buf->cpu), map_err = shared_unmap(buf);

    return pin_err ? pin_err : map_err;
}

static gpunvme_err_t map_file(int fd, size_t size, bool huge, void **out)
{
    /* Huge pages are taken now: to find none at the first touch would be SIGBUS. */
    int flags = MAP_SHARED | (huge ? MAP_POPULATE : 0);

    /* Sealed: whoever maps it must not find it smaller one day. */
    if (ftruncate(fd, (off_t)size) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW))
        return base_fail_errno(errno, "%zu bytes of shared memory", size);
    *out = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (*out != MAP_FAILED)
        return GPUNVME_OK;
    if (huge)
        return base_fail_errno(
            errno, "%zu bytes of 2 MiB huge pages: reserve some (sysctl vm.nr_hugepages=…)", size);
    return base_fail_errno(errno, "%zu bytes of shared memory", size);
}

static gpunvme_err_t shared_map(bool huge, struct gpunvme_buf *buf)
{
    struct shared_origin *shared = malloc(sizeof(*shared));
    size_t granule = huge ? HUGE_PAGE : map_granule(buf->nbytes);
    unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING | (huge ? MFD_HUGETLB | MFD_2MB : 0);
    gpunvme_err_t err;

    if (!shared)
        return base_fail(GPUNVME_ERR_NOMEM, "a buffer");
    *shared = (struct shared_origin){.origin.release = shared_unmap,
                                     .size = round_up(buf->nbytes, granule)};
    shared->fd = memfd_create("gpunvme", flags);
    err = shared->fd < 0
              ? base_fail_errno(errno, huge ? "a file of 2 MiB huge pages" : "a file in memory")
              : map_file(shared->fd, shared->size, huge, &buf->cpu);
    if (err) {
        if (shared->fd >= 0)
            close(shared->fd);
        free(shared);
        return err;
    }
    shared->base = buf->cpu;
    shared_add(shared);
    buf->memory_private = shared;
    return GPUNVME_OK;
}

static gpunvme_err_t shared_export(const struct gpunvme_buf *buf, int *fd, uint64_t *offset)
{
    gpunvme_err_t err = GPUNVME_OK;
    int file;

    pthread_mutex_lock(&shared_lock);
    file = shared_file(buf, offset);
    *fd = file < 0 ? -1 : fcntl(file, F_DUPFD_CLOEXEC, 0);
    if (file < 0)
        err = base_fail(GPUNVME_ERR_UNSUPPORTED,
                        "only GPU memory, and memory allocated as GPUNVME_BACKING_SHARED or "
                        "_HUGE, can be exported");
    else if (*fd < 0)
        err = base_fail_errno(errno, "a file descriptor");
    pthread_mutex_unlock(&shared_lock);
    return err;
}

/* --- allocation ------------------------------------------------------------------------------- */

static const struct origin from_map = {.release = host_unmap};

static gpunvme_err_t plain_map(struct gpunvme_buf *buf)
{
    buf->memory_private = (void *)&from_map;
    return host_map(buf->nbytes, &buf->cpu);
}

static gpunvme_err_t unpin(struct gpunvme_buf *buf)
{
    return mem_cuda_unpin(buf->cpu);
}

static gpunvme_err_t unpin_and_unmap(struct gpunvme_buf *buf)
{
    gpunvme_err_t pin_err = unpin(buf), map_err = host_unmap(buf);

    return pin_err ? pin_err : map_err;
}

static gpunvme_err_t gpu_free(struct gpunvme_buf *buf)
{
    return mem_cuda_free(buf->gpu);
}

static gpunvme_err_t let_go(struct gpunvme_buf *buf)
{
    (void)buf;
    return GPUNVME_OK;
}

static const struct origin from_pinned_map = {.release = unpin_and_unmap};
static const struct origin from_gpu = {.release = gpu_free};
static const struct origin from_caller = {.registered = true, .release = let_go};
static const struct origin from_caller_pinned_here = {.registered = true, .release = unpin};

/*
 * Pinned memory is mapped first and pinned afterwards: so it is ordinary anonymous memory, which
 * VFIO, io_uring and huge pages can work with, whatever the CUDA driver's own allocator makes.
 */
static gpunvme_err_t alloc_host(enum gpunvme_mem_backing backing, struct gpunvme_buf *out)
{
    gpunvme_err_t err = backing == GPUNVME_BACKING_ANY
                            ? plain_map(out)
                            : shared_map(backing == GPUNVME_BACKING_HUGE, out);

    if (err || out->mem == GPUNVME_MEM_HOST)
        return err;
    if (!mem_cuda_present()) {
        out->gpu = out->cpu;
        return GPUNVME_OK;
    }
    err = mem_cuda_pin(out->cpu, out->nbytes, &out->gpu);
    if (err) {
        ((struct origin *)out->memory_private)->release(out);
        return err;
    }
    if (backing != GPUNVME_BACKING_ANY)
        ((struct origin *)out->memory_private)->release = shared_unpin_and_unmap;
    else
        out->memory_private = (void *)&from_pinned_map;
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_mem_alloc_backed(size_t nbytes, enum gpunvme_mem mem,
                                       enum gpunvme_mem_backing backing, struct gpunvme_buf *out)
{
    gpunvme_err_t err;

    if (!out)
        return base_fail(GPUNVME_ERR_INVALID, "out is NULL");
    memset(out, 0, sizeof(*out));
    err = check_kind(mem);
    if (err)
        return err;
    if ((unsigned)backing > GPUNVME_BACKING_HUGE)
        return base_fail(GPUNVME_ERR_INVALID, "%d is not a kind of pages", (int)backing);
    if (nbytes == 0)
        return base_fail(GPUNVME_ERR_INVALID, "a buffer of 0 bytes");
    if (nbytes > SIZE_MAX - 2 * HUGE_PAGE)
        return base_fail(GPUNVME_ERR_NOMEM, "%zu bytes are more than there can be", nbytes);
    out->nbytes = nbytes;
    out->mem = mem;
    if (is_device(mem)) {
        err = mem_cuda_alloc(nbytes, &out->gpu);
        out->memory_private = (void *)&from_gpu;
    } else {
        err = alloc_host(backing, out);
    }
    if (err)
        memset(out, 0, sizeof(*out));
    return err;
}

gpunvme_err_t gpunvme_mem_alloc(size_t nbytes, enum gpunvme_mem mem, struct gpunvme_buf *out)
{
    return gpunvme_mem_alloc_backed(nbytes, mem, GPUNVME_BACKING_ANY, out);
}

gpunvme_err_t gpunvme_mem_alloc_on(unsigned gpu, size_t nbytes, enum gpunvme_mem mem,
                                   struct gpunvme_buf *out)
{
    struct base_failure failure;
    gpunvme_err_t err = GPUNVME_OK;

    if (out)
        memset(out, 0, sizeof(*out));
    if (mem == GPUNVME_MEM_HOST)
        return gpunvme_mem_alloc(nbytes, mem, out);
    if (!mem_cuda_present())
        return gpu ? base_fail(GPUNVME_ERR_INVALID, "GPU %u: there is none, and only 0 stands in",
                               gpu)
                   : gpunvme_mem_alloc(nbytes, mem, out);
    err = mem_cuda_enter(gpu);
    if (err)
        return err;
    base_keep(&failure, gpunvme_mem_alloc(nbytes, mem, out));
    mem_cuda_leave();
    return failure.err ? base_restore(&failure) : GPUNVME_OK;
}

gpunvme_err_t gpunvme_mem_export(const struct gpunvme_buf *buf, int *fd, uint64_t *offset)
{
    if (!buf || !buf->memory_private || !fd || !offset)
        return base_fail(GPUNVME_ERR_INVALID, "NULL argument, or a buffer without memory");
    if (is_device(buf->mem))
        return mem_cuda_export(buf->gpu, buf->nbytes, fd, offset);
    return shared_export(buf, fd, offset);
}

static gpunvme_err_t release(struct gpunvme_buf *buf, bool registered)
{
    const struct origin *origin;
    gpunvme_err_t err;

    if (!buf || (!buf->memory_private && !buf->cpu && !buf->gpu))
        return GPUNVME_OK;
    origin = buf->memory_private;
    if (!origin || origin->registered != registered)
        return base_fail(GPUNVME_ERR_INVALID, registered
                                                  ? "the buffer was not registered: free it"
                                                  : "the buffer was not allocated: unregister it");
    if (buf->bus || buf->bus_pages || buf->transport_private)
        return base_fail(GPUNVME_ERR_INVALID,
                         "the buffer is still mapped by a transport: unmap it first");
    err = origin->release(buf);
    memset(buf, 0, sizeof(*buf));
    return err;
}

gpunvme_err_t gpunvme_mem_free(struct gpunvme_buf *buf)
{
    return release(buf, false);
}

gpunvme_err_t gpunvme_mem_unregister(struct gpunvme_buf *buf)
{
    return release(buf, true);
}

/* Memory that is pinned already keeps the pin that it has, and its owner takes it away. */
static gpunvme_err_t register_pinned(struct gpunvme_buf *out, enum mem_cuda_kind kind)
{
    gpunvme_err_t err;
    int device;

    if (!mem_cuda_present()) {
        out->gpu = out->cpu;
        return GPUNVME_OK;
    }
    if (kind == MEM_CUDA_PINNED) {
        if (mem_cuda_kind((char *)out->cpu + out->nbytes - 1, &device) != MEM_CUDA_PINNED)
            return base_fail(GPUNVME_ERR_INVALID, "memory at %p is pinned, but not all %zu bytes",
                             out->cpu, out->nbytes);
        return mem_cuda_pinned_address(out->cpu, &out->gpu);
    }
    err = mem_cuda_pin(out->cpu, out->nbytes, &out->gpu);
    if (!err)
        out->memory_private = (void *)&from_caller_pinned_here;
    return err;
}

static gpunvme_err_t refuse_managed(const void *ptr)
{
    return base_fail(GPUNVME_ERR_UNSUPPORTED,
                     "%p is managed memory (cudaMallocManaged), whose pages move between host and "
                     "GPU: use cudaMalloc",
                     ptr);
}

static gpunvme_err_t register_gpu(void *ptr, size_t nbytes, struct gpunvme_buf *out)
{
    enum mem_cuda_kind kind;
    int first, last;

    out->gpu = ptr;
    if (!mem_cuda_present()) {
        out->cpu = ptr;
        return GPUNVME_OK;
    }
    kind = mem_cuda_kind(ptr, &first);
    if (kind == MEM_CUDA_MANAGED)
        return refuse_managed(ptr);
    if (kind != MEM_CUDA_DEVICE)
        return base_fail(GPUNVME_ERR_INVALID, "%p is not GPU memory", ptr);
    if (mem_cuda_kind((char *)ptr + nbytes - 1, &last) != MEM_CUDA_DEVICE || last != first)
        return base_fail(GPUNVME_ERR_INVALID, "GPU memory at %p ends before %zu bytes", ptr,
                         nbytes);
    return GPUNVME_OK;
}

static gpunvme_err_t register_host(void *ptr, struct gpunvme_buf *out)
{
    enum mem_cuda_kind kind = MEM_CUDA_UNKNOWN;
    int device;

    if (mem_cuda_present())
        kind = mem_cuda_kind(ptr, &device);
    if (kind == MEM_CUDA_DEVICE)
        return base_fail(GPUNVME_ERR_INVALID, "%p is GPU memory: register it as that", ptr);
    if (kind == MEM_CUDA_MANAGED)
        return refuse_managed(ptr);
    out->cpu = ptr;
    return out->mem == GPUNVME_MEM_PINNED ? register_pinned(out, kind) : GPUNVME_OK;
}

static gpunvme_err_t check_registered(const void *ptr, size_t nbytes)
{
    if (!ptr)
        return base_fail(GPUNVME_ERR_INVALID, "the address is NULL");
    if (nbytes == 0)
        return base_fail(GPUNVME_ERR_INVALID, "a buffer of 0 bytes");
    if (nbytes - 1 > UINTPTR_MAX - (uintptr_t)ptr)
        return base_fail(GPUNVME_ERR_INVALID, "%zu bytes at %p do not fit into memory", nbytes,
                         ptr);
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_mem_register(void *ptr, size_t nbytes, enum gpunvme_mem mem,
                                   struct gpunvme_buf *out)
{
    gpunvme_err_t err;

    if (!out)
        return base_fail(GPUNVME_ERR_INVALID, "out is NULL");
    memset(out, 0, sizeof(*out));
    err = check_kind(mem);
    if (!err)
        err = check_registered(ptr, nbytes);
    if (err)
        return err;
    if ((uintptr_t)ptr % DWORD)
        return base_fail(GPUNVME_ERR_ALIGN, "address %p is not a multiple of %d", ptr, DWORD);
    out->nbytes = nbytes;
    out->mem = mem;
    out->memory_private = (void *)&from_caller;
    err = mem == GPUNVME_MEM_GPU ? register_gpu(ptr, nbytes, out) : register_host(ptr, out);
    if (err)
        memset(out, 0, sizeof(*out));
    return err;
}

gpunvme_err_t gpunvme_mem_kind_of(const void *ptr, enum gpunvme_mem *mem, int *gpu)
{
    enum mem_cuda_kind kind = MEM_CUDA_UNKNOWN;
    int device = -1;

    if (!mem || !gpu)
        return base_fail(GPUNVME_ERR_INVALID, "%s is NULL", mem ? "gpu" : "mem");
    *mem = GPUNVME_MEM_HOST;
    *gpu = -1;
    if (!ptr)
        return base_fail(GPUNVME_ERR_INVALID, "the address is NULL");
    if (mem_cuda_present())
        kind = mem_cuda_kind(ptr, &device);
    if (kind == MEM_CUDA_MANAGED)
        return refuse_managed(ptr);
    if (kind == MEM_CUDA_PINNED)
        *mem = GPUNVME_MEM_PINNED;
    if (kind == MEM_CUDA_DEVICE) {
        *mem = GPUNVME_MEM_GPU;
        *gpu = device;
    }
    return GPUNVME_OK;
}

gpunvme_err_t mem_check_copy(const void *dst, enum gpunvme_mem dst_mem, const void *src,
                             enum gpunvme_mem src_mem, size_t nbytes)
{
    gpunvme_err_t err = check_kind(dst_mem);

    if (!err)
        err = check_kind(src_mem);
    if (!err && nbytes && (!dst || !src))
        err = base_fail(GPUNVME_ERR_INVALID, "a copy %s NULL", dst ? "from" : "to");
    return err;
}

gpunvme_err_t gpunvme_mem_copy(void *dst, enum gpunvme_mem dst_mem, const void *src,
                               enum gpunvme_mem src_mem, size_t nbytes)
{
    gpunvme_err_t err = mem_check_copy(dst, dst_mem, src, src_mem, nbytes);

    if (err || nbytes == 0)
        return err;
    if (is_device(dst_mem) || is_device(src_mem))
        return mem_cuda_copy(dst, is_device(dst_mem), src, is_device(src_mem), nbytes);
    memcpy(dst, src, nbytes);
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_mem_fill(void *dst, enum gpunvme_mem mem, uint8_t value, size_t nbytes)
{
    gpunvme_err_t err = mem_check_copy(dst, mem, dst, mem, nbytes);

    if (err || nbytes == 0)
        return err;
    if (is_device(mem))
        return mem_cuda_fill(dst, value, nbytes);
    memset(dst, value, nbytes);
    return GPUNVME_OK;
}

static gpunvme_err_t check_range(const struct gpunvme_buf *buf, size_t off, size_t nbytes)
{
    if (!buf || (!buf->cpu && !buf->gpu))
        return base_fail(GPUNVME_ERR_INVALID, "no buffer");
    if (off > buf->nbytes || nbytes > buf->nbytes - off)
        return base_fail(GPUNVME_ERR_INVALID, "%zu bytes at offset %zu of a buffer of %zu", nbytes,
                         off, buf->nbytes);
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_mem_checksum(const struct gpunvme_buf *buf, size_t off, size_t nbytes,
                                   uint64_t *sum, bool *by_gpu)
{
    gpunvme_err_t err = check_range(buf, off, nbytes);
    bool device;

    if (err)
        return err;
    if (!sum)
        return base_fail(GPUNVME_ERR_INVALID, "sum is NULL");
    device = is_device(buf->mem) && nbytes;
    if (by_gpu)
        *by_gpu = device;
    if (device)
        return mem_cuda_checksum((const char *)buf->gpu + off, nbytes, sum);
    *sum = gpunvme_mem_checksum_host(nbytes ? (const char *)buf->cpu + off : NULL, nbytes);
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_mem_verify(const struct gpunvme_buf *buf, size_t off, size_t nbytes,
                                 uint64_t expected, bool *by_gpu)
{
    uint64_t sum;
    gpunvme_err_t err = gpunvme_mem_checksum(buf, off, nbytes, &sum, by_gpu);

    if (err)
        return err;
    if (sum != expected)
        return base_fail(GPUNVME_ERR_VERIFY,
                         "%zu bytes at offset %zu: checksum %016llx, expected %016llx", nbytes, off,
                         (unsigned long long)sum, (unsigned long long)expected);
    return GPUNVME_OK;
}

bool gpunvme_mem_gpu_is_host(void)
{
    return !mem_cuda_present();
}

const char *gpunvme_mem_gpu_why_not(void)
{
    return mem_cuda_why_not();
}

unsigned gpunvme_mem_gpu_count(void)
{
    return mem_cuda_count();
}

gpunvme_err_t gpunvme_mem_gpu_info(unsigned index, struct gpunvme_gpu_info *info)
{
    if (!info)
        return base_fail(GPUNVME_ERR_INVALID, "info is NULL");
    return mem_cuda_info(index, info);
}

gpunvme_err_t gpunvme_mem_gpu_current(unsigned *index)
{
    if (!index)
        return base_fail(GPUNVME_ERR_INVALID, "index is NULL");
    if (!mem_cuda_present()) {
        *index = 0;
        return base_fail(GPUNVME_ERR_NO_GPU, "%s", mem_cuda_why_not());
    }
    return mem_cuda_current(index);
}
