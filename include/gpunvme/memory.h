/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Memory: allocates buffers in host memory and on the GPU, registers memory that the caller owns,
 * copies between them, and computes checksums. It knows nothing of NVMe and gives no bus address; a
 * transport does that.
 *
 * Without a GPU, or built without CUDA, "GPU memory" is host memory and everything here works: see
 * gpunvme_mem_gpu_is_host() and gpunvme_mem_gpu_why_not(). This is decided once, at the first call.
 *
 * GPU memory is allocated on the calling thread's current CUDA device. Everything else works on the
 * device that holds the memory, from any thread, and does not change the current device. Copies,
 * fills and checksums do not wait for work that the caller queued on the GPU, except the first of
 * each kind, which may initialise things. Allocating and freeing can wait, as cudaMalloc() and
 * cudaFree() do.
 *
 * All functions may be called from several threads at once, but memory that one of them frees must
 * not be in use by another. Errors of CUDA are GPUNVME_ERR_GPU, with CUDA's text as the detail.
 */
#ifndef GPUNVME_MEMORY_H
#define GPUNVME_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpunvme/buf.h"
#include "gpunvme/error.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Allocates `nbytes` of zeroed memory: page-aligned on the host (huge pages from 2 MiB on), at
 * least 256-byte aligned on the GPU. *out has these addresses; the others are 0:
 *
 *   GPUNVME_MEM_HOST    cpu
 *   GPUNVME_MEM_PINNED  cpu, gpu        (without a GPU: the same address twice)
 *   GPUNVME_MEM_GPU     gpu             (without a GPU: cpu and gpu, the same address)
 *
 * On failure *out is all zeroes. Errors: INVALID (a size of 0, an unknown kind), NOMEM, GPU.
 */
gpunvme_err_t gpunvme_mem_alloc(size_t nbytes, enum gpunvme_mem mem, struct gpunvme_buf *out);

/*
 * Which pages a buffer's host memory consists of. GPU memory is not affected.
 *
 *   ANY     whatever is fastest
 *   SHARED  a file in memory, which another process can map (gpunvme_mem_export)
 *   HUGE    reserved huge pages (vm.nr_hugepages), whose physical addresses do not change; NOMEM if
 *           none are left
 */
enum gpunvme_mem_backing {
    GPUNVME_BACKING_ANY = 0,
    GPUNVME_BACKING_SHARED = 1,
    GPUNVME_BACKING_HUGE = 2,
};

/*
 * gpunvme_mem_alloc() on GPU `gpu`, whatever the calling thread's current one is: HOST memory is
 * not concerned; PINNED memory is pinned by way of this GPU, and all reach it. Without a GPU only 0
 * exists. INVALID: there is no such GPU.
 */
gpunvme_err_t gpunvme_mem_alloc_on(unsigned gpu, size_t nbytes, enum gpunvme_mem mem,
                                   struct gpunvme_buf *out);

/* gpunvme_mem_alloc() with a choice of pages. */
gpunvme_err_t gpunvme_mem_alloc_backed(size_t nbytes, enum gpunvme_mem mem,
                                       enum gpunvme_mem_backing backing, struct gpunvme_buf *out);

/*
 * Returns a file descriptor by which another process or driver reaches the buffer's bytes, which
 * begin at *offset in it. For a SHARED or HUGE buffer, or a registered part of one, it is the
 * memory file; for GPU memory a dma-buf of whole host pages. The caller closes it; it may outlive
 * the buffer. UNSUPPORTED: the memory has no file, or the GPU's driver no dma-buf.
 */
gpunvme_err_t gpunvme_mem_export(const struct gpunvme_buf *buf, int *fd, uint64_t *offset);

/*
 * Frees a buffer of gpunvme_mem_alloc() and zeroes *buf; ignores a zeroed buffer. INVALID: the
 * buffer was registered, or a transport still has it mapped.
 */
gpunvme_err_t gpunvme_mem_free(struct gpunvme_buf *buf);

/*
 * Makes a buffer of memory that stays the caller's, with addresses as above:
 *
 *   GPUNVME_MEM_HOST    `ptr` is host memory
 *   GPUNVME_MEM_PINNED  likewise; it is pinned and mapped into the GPU if it is not yet
 *   GPUNVME_MEM_GPU     `ptr` is a device pointer (without a GPU: host memory)
 *
 * `ptr` must be a multiple of 4, since controllers address memory by dwords; `nbytes` may be any
 * number but 0. Errors: INVALID (NULL, a size of 0, the wrong kind of memory), ALIGN, GPU,
 * UNSUPPORTED (managed memory).
 */
gpunvme_err_t gpunvme_mem_register(void *ptr, size_t nbytes, enum gpunvme_mem mem,
                                   struct gpunvme_buf *out);

/*
 * Undoes gpunvme_mem_register(). Call it before freeing the memory. Errors as gpunvme_mem_free().
 */
gpunvme_err_t gpunvme_mem_unregister(struct gpunvme_buf *buf);

/*
 * Finds out which kind of memory `ptr` points into: *mem, and in *gpu the index of the GPU that
 * holds it, or -1 for host memory.
 *
 *   GPUNVME_MEM_GPU     memory of a GPU (cudaMalloc and all its relatives)
 *   GPUNVME_MEM_PINNED  host memory that CUDA has pinned, whoever asked for it
 *   GPUNVME_MEM_HOST    any other address, valid or not; every address if there is no GPU
 *
 * UNSUPPORTED: managed memory (cudaMallocManaged), which migrates, so that a controller cannot use
 * it. INVALID: NULL. On failure *mem is HOST and *gpu is -1. A call takes about a microsecond,
 * creates no context and never waits.
 */
gpunvme_err_t gpunvme_mem_kind_of(const void *ptr, enum gpunvme_mem *mem, int *gpu);

/*
 * Copies `nbytes` and returns when they have arrived. Pass the cpu address for HOST and PINNED, the
 * gpu address for GPU. The two ranges must not overlap.
 */
gpunvme_err_t gpunvme_mem_copy(void *dst, enum gpunvme_mem dst_mem, const void *src,
                               enum gpunvme_mem src_mem, size_t nbytes);

/* Sets `nbytes` bytes to `value`, likewise. */
gpunvme_err_t gpunvme_mem_fill(void *dst, enum gpunvme_mem mem, uint8_t value, size_t nbytes);

/*
 * Copies in the background, in order within one stream. A ring of bounce buffers needs a stream for
 * each. One stream is used by one thread at a time.
 */
struct gpunvme_mem_stream;

/*
 * Creates a stream on the GPU that holds `near`; NULL: on the calling thread's current GPU. It has
 * the highest priority: copies done by a kernel go ahead of kernels that wait for room.
 */
gpunvme_err_t gpunvme_mem_stream_create(const struct gpunvme_buf *near,
                                        struct gpunvme_mem_stream **out);

/* Waits for copies in flight (as sync does, at most 10 s) and frees the stream. NULL is allowed. */
gpunvme_err_t gpunvme_mem_stream_destroy(struct gpunvme_mem_stream *stream);

/* Starts a copy. Leave both ranges unchanged until sync or query reports that it is done. */
gpunvme_err_t gpunvme_mem_copy_async(void *dst, enum gpunvme_mem dst_mem, const void *src,
                                     enum gpunvme_mem src_mem, size_t nbytes,
                                     struct gpunvme_mem_stream *stream);

/* One of many copies. Addresses are the GPU's: `gpu` of a PINNED or GPU buffer, plus an offset. */
struct gpunvme_mem_piece {
    void *dst;
    const void *src;
    size_t nbytes; /* 0 is allowed */
};

/*
 * Starts n copies between pinned host memory and GPU memory, each in any direction. Small pieces
 * are copied by a kernel: the copy engine would take more than a microsecond for each. Large ones
 * go to the copy engine. Any address and length is allowed; multiples of 16 are fastest, and equal
 * offsets modulo 16 of source and destination are faster than others. The batch runs after earlier
 * work on the stream. Its pieces run in any order, so no destination may overlap another piece.
 * `pieces` may be freed on return; leave the bytes unchanged until sync or query reports that all
 * is done.
 *
 * A piece outside memory that CUDA knows is refused before anything starts: a kernel that touched
 * it would break the process's work on that GPU. The check takes some nanoseconds per piece and
 * some microseconds per allocation. It does not cover peer access, which memory of another GPU
 * needs.
 *
 * The call waits, 10 s at most, only while tables of some 30,000 pieces are in flight on the
 * stream. Errors: INVALID (with the piece's index), NOMEM, GPU, TIMEOUT. After any but INVALID,
 * some or all copies may have been started.
 */
gpunvme_err_t gpunvme_mem_copy_batch(const struct gpunvme_mem_piece *pieces, size_t n,
                                     struct gpunvme_mem_stream *stream);

/* Waits until all copies started on the stream are done: TIMEOUT after timeout_ns. */
gpunvme_err_t gpunvme_mem_stream_sync(struct gpunvme_mem_stream *stream, uint64_t timeout_ns);

/* The same without waiting; sets *done. An error means that copies on the stream failed. */
gpunvme_err_t gpunvme_mem_stream_query(struct gpunvme_mem_stream *stream, bool *done);

/*
 * Computes a checksum of `nbytes` bytes from offset `off`, of any length and alignment: by a kernel
 * for GPU memory, else on the CPU. *by_gpu says which; it may be NULL. Equal bytes have equal
 * checksums in any memory. It detects every change within one aligned group of 8 bytes; any other
 * change, misplaced blocks included, it misses once in about 2^64. It does not protect against an
 * adversary.
 */
gpunvme_err_t gpunvme_mem_checksum(const struct gpunvme_buf *buf, size_t off, size_t nbytes,
                                   uint64_t *sum, bool *by_gpu);

/* The checksum of host memory; `ptr` may be NULL if nbytes is 0. */
uint64_t gpunvme_mem_checksum_host(const void *ptr, size_t nbytes);

/* Computes the checksum and returns GPUNVME_ERR_VERIFY if it is not `expected`. */
gpunvme_err_t gpunvme_mem_verify(const struct gpunvme_buf *buf, size_t off, size_t nbytes,
                                 uint64_t expected, bool *by_gpu);

/* True where GPU memory is host memory. */
bool gpunvme_mem_gpu_is_host(void);

/* The reason: "no driver: libcuda.so.1 not found", …; "" if there is a GPU. Static. */
const char *gpunvme_mem_gpu_why_not(void);

/* The number of GPUs that this process sees: 0 where GPU memory is host memory. */
unsigned gpunvme_mem_gpu_count(void);

/* CUDA's number for version 12.4 is 12040; 0 is unknown, or none. */
struct gpunvme_gpu_info {
    char name[256];           /* "NVIDIA H200" */
    unsigned cc_major;        /* compute capability */
    unsigned cc_minor;        /* */
    unsigned nprocessors;     /* streaming multiprocessors */
    uint64_t memory_nbytes;   /* memory of the device */
    char pci_address[32];     /* "0000:3b:00.0" */
    unsigned driver_version;  /* highest CUDA version of the driver */
    unsigned runtime_version; /* CUDA version of this build */
};

/*
 * Describes GPU `index`. Without a GPU it returns NO_GPU with gpunvme_mem_gpu_why_not() as the
 * detail, and still fills in the versions. INVALID: `index` is not below the count.
 */
gpunvme_err_t gpunvme_mem_gpu_info(unsigned index, struct gpunvme_gpu_info *info);

/* The index of the calling thread's current GPU: where gpunvme_mem_alloc() allocates. */
gpunvme_err_t gpunvme_mem_gpu_current(unsigned *index);

#ifdef __cplusplus
}
#endif
#endif
