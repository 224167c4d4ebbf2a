/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Buffers: allocation, registration and release, and the choice for each copy between the CPU
 * and CUDA. All that CUDA does stands behind cuda.h; nothing here knows what a bus address is.
 */
#include "gpunvme/memory.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fail.h"
#include "memory/check.h"
#include "memory/cuda.h"

#define HUGE_PAGE ((size_t)2 << 20)

/* PRP entries and SGL descriptors hold addresses in dwords. */
#define DWORD 4

/* Where a buffer came from, and so how it ends. A buffer's memory_private points to one. */
struct origin {
    bool registered;
    gpunvme_err_t (*release)(struct gpunvme_buf *buf);
};

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

    if (nbytes > SIZE_MAX - 2 * granule)
        return base_fail(GPUNVME_ERR_NOMEM, "%zu bytes are more than there can be", nbytes);
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

static const struct origin from_map = {.release = host_unmap};
static const struct origin from_pinned_map = {.release = unpin_and_unmap};
static const struct origin from_gpu = {.release = gpu_free};
static const struct origin from_caller = {.registered = true, .release = let_go};
static const struct origin from_caller_pinned_here = {.registered = true, .release = unpin};

/*
 * Pinned memory is mapped first and pinned afterwards: so it is ordinary anonymous memory, which
 * VFIO, io_uring and huge pages can work with, whatever the CUDA driver's own allocator makes.
 */
static gpunvme_err_t alloc_host(size_t nbytes, enum gpunvme_mem mem, struct gpunvme_buf *out)
{
    gpunvme_err_t err = host_map(nbytes, &out->cpu);

    if (err)
        return err;
    out->memory_private = (void *)&from_map;
    if (mem == GPUNVME_MEM_HOST)
        return GPUNVME_OK;
    if (!mem_cuda_present()) {
        out->gpu = out->cpu;
        return GPUNVME_OK;
    }
    err = mem_cuda_pin(out->cpu, nbytes, &out->gpu);
    if (err) {
        host_unmap(out);
        return err;
    }
    out->memory_private = (void *)&from_pinned_map;
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_mem_alloc(size_t nbytes, enum gpunvme_mem mem, struct gpunvme_buf *out)
{
    gpunvme_err_t err;

    if (!out)
        return base_fail(GPUNVME_ERR_INVALID, "out is NULL");
    memset(out, 0, sizeof(*out));
    err = check_kind(mem);
    if (err)
        return err;
    if (nbytes == 0)
        return base_fail(GPUNVME_ERR_INVALID, "a buffer of 0 bytes");
    out->nbytes = nbytes;
    out->mem = mem;
    if (is_device(mem)) {
        err = mem_cuda_alloc(nbytes, &out->gpu);
        out->memory_private = (void *)&from_gpu;
    } else {
        err = alloc_host(nbytes, mem, out);
    }
    if (err)
        memset(out, 0, sizeof(*out));
    return err;
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

static gpunvme_err_t register_gpu(void *ptr, size_t nbytes, struct gpunvme_buf *out)
{
    int first, last;

    out->gpu = ptr;
    if (!mem_cuda_present()) {
        out->cpu = ptr;
        return GPUNVME_OK;
    }
    if (mem_cuda_kind(ptr, &first) != MEM_CUDA_DEVICE)
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
    out->cpu = ptr;
    return out->mem == GPUNVME_MEM_PINNED ? register_pinned(out, kind) : GPUNVME_OK;
}

gpunvme_err_t gpunvme_mem_register(void *ptr, size_t nbytes, enum gpunvme_mem mem,
                                   struct gpunvme_buf *out)
{
    gpunvme_err_t err;

    if (!out)
        return base_fail(GPUNVME_ERR_INVALID, "out is NULL");
    memset(out, 0, sizeof(*out));
    err = check_kind(mem);
    if (err)
        return err;
    if (!ptr)
        return base_fail(GPUNVME_ERR_INVALID, "the address is NULL");
    if (nbytes == 0)
        return base_fail(GPUNVME_ERR_INVALID, "a buffer of 0 bytes");
    if (nbytes - 1 > UINTPTR_MAX - (uintptr_t)ptr)
        return base_fail(GPUNVME_ERR_INVALID, "%zu bytes at %p do not fit into memory", nbytes,
                         ptr);
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
