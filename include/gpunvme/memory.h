/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Memory: allocates buffers in host memory and on the GPU, takes in memory that the caller owns,
 * copies between all of them, and checks what is in them. It knows nothing of NVMe and gives no
 * bus address; a transport does that.
 *
 * Without a GPU, or built without CUDA, "GPU memory" is host memory and everything here works;
 * gpunvme_mem_gpu_is_host() tells, and gpunvme_mem_gpu_why_not() says why. Which of the two holds
 * is found out once, at the first call.
 *
 * GPU memory is allocated on the calling thread's current CUDA device. Everything else works on
 * the device that holds the memory, from any thread, and leaves the thread's current device as
 * it is. No copy, fill or checksum waits for work that the caller queued on the GPU, but for the
 * first of its kind, which may set things up; allocating and freeing can wait, as cudaMalloc()
 * and cudaFree() do.
 *
 * All functions may be called from several threads at once; what one of them releases must not
 * be in use by another. Errors of CUDA are GPUNVME_ERR_GPU, with CUDA's text as the detail.
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
 * Allocates `nbytes` of zeroed memory, page-aligned in host memory (by huge pages from 2 MiB on),
 * at least 256-byte aligned on the GPU. The addresses that *out gets, the others are 0:
 *
 *   GPUNVME_MEM_HOST    cpu
 *   GPUNVME_MEM_PINNED  cpu, gpu        (without a GPU: the same address twice)
 *   GPUNVME_MEM_GPU     gpu             (without a GPU: cpu and gpu, the same address)
 *
 * On failure *out is all zeroes. Errors: INVALID (a size of 0, an unknown kind), NOMEM, GPU.
 */
gpunvme_err_t gpunvme_mem_alloc(size_t nbytes, enum gpunvme_mem mem, struct gpunvme_buf *out);

/*
 * What pages the host memory of a buffer is made of; GPU memory has its own.
 *
 *   ANY     whatever is fastest
 *   SHARED  a file in memory, which another process can map (gpunvme_mem_export)
 *   HUGE    reserved huge pages (vm.nr_hugepages), which stay where they are in physical memory;
 *           NOMEM where there are none left
 */
enum gpunvme_mem_backing {
    GPUNVME_BACKING_ANY = 0,
    GPUNVME_BACKING_SHARED = 1,
    GPUNVME_BACKING_HUGE = 2,
};

/* gpunvme_mem_alloc() with a choice of pages. */
gpunvme_err_t gpunvme_mem_alloc_backed(size_t nbytes, enum gpunvme_mem mem,
                                       enum gpunvme_mem_backing backing, struct gpunvme_buf *out);

/*
 * A file descriptor by which another process or driver reaches the buffer's bytes, which begin at
 * *offset of it: the memory file of a SHARED or HUGE buffer, also where a part of it was registered
 * by its address, or a dma-buf of GPU memory, made of whole pages of the host. The caller closes
 * it; it may outlive the buffer. UNSUPPORTED where the memory, or the GPU's driver, has no such
 * thing.
 */
gpunvme_err_t gpunvme_mem_export(const struct gpunvme_buf *buf, int *fd, uint64_t *offset);

/*
 * Frees what gpunvme_mem_alloc() gave and makes *buf all zeroes; does nothing to a buffer of
 * zeroes. INVALID for a buffer that was registered, or that a transport has still mapped.
 */
gpunvme_err_t gpunvme_mem_free(struct gpunvme_buf *buf);

/*
 * Makes a buffer of memory that the caller owns and keeps owning, with the addresses as above:
 *
 *   GPUNVME_MEM_HOST    `ptr` is host memory
 *   GPUNVME_MEM_PINNED  likewise, and it is pinned and mapped into the GPU, if it is not already
 *   GPUNVME_MEM_GPU     `ptr` is a device pointer (without a GPU: host memory)
 *
 * `ptr` must be a multiple of 4, since controllers address memory by dwords; `nbytes` may be any
 * number but 0. Errors: INVALID (NULL, a size of 0, the wrong kind of memory), ALIGN, GPU,
 * UNSUPPORTED (managed memory).
 */
gpunvme_err_t gpunvme_mem_register(void *ptr, size_t nbytes, enum gpunvme_mem mem,
                                   struct gpunvme_buf *out);

/* Undoes gpunvme_mem_register(), before the caller frees the memory. As gpunvme_mem_free(). */
gpunvme_err_t gpunvme_mem_unregister(struct gpunvme_buf *buf);

/*
 * What kind of memory is at `ptr`, which may point anywhere into it: *mem, and the index of the GPU
 * that holds it in *gpu, or -1 for memory of the host.
 *
 *   GPUNVME_MEM_GPU     memory of a GPU (cudaMalloc and all its relatives)
 *   GPUNVME_MEM_PINNED  host memory that CUDA has pinned, whoever asked for it
 *   GPUNVME_MEM_HOST    all that CUDA does not know, which may be no memory at all; and everything
 *                       where there is no GPU
 *
 * UNSUPPORTED for managed memory (cudaMallocManaged): it is nowhere in particular, and a
 * controller could never be told where. INVALID for NULL. Whenever it fails *mem is HOST and *gpu
 * is -1. Asks the driver, which takes about a microsecond, makes no context, and waits for nothing.
 */
gpunvme_err_t gpunvme_mem_kind_of(const void *ptr, enum gpunvme_mem *mem, int *gpu);

/*
 * Copies. An address goes with its kind: the cpu address for HOST and PINNED, the gpu address for
 * GPU. The two ranges must not overlap. When it returns, the bytes are there.
 */
gpunvme_err_t gpunvme_mem_copy(void *dst, enum gpunvme_mem dst_mem, const void *src,
                               enum gpunvme_mem src_mem, size_t nbytes);

/* Sets `nbytes` bytes to `value`, likewise. */
gpunvme_err_t gpunvme_mem_fill(void *dst, enum gpunvme_mem mem, uint8_t value, size_t nbytes);

/*
 * Copies in the background, in order within one stream; for a ring of bounce buffers take a
 * stream for each. One stream is used by one thread at a time.
 */
struct gpunvme_mem_stream;

/*
 * A stream on the GPU that holds `near`; NULL: on the calling thread's current one. It has the
 * highest priority: what is copied by a kernel comes before kernels that wait for room.
 */
gpunvme_err_t gpunvme_mem_stream_create(const struct gpunvme_buf *near,
                                        struct gpunvme_mem_stream **out);

/* Waits (as sync does, at most 10 s) for what is in flight and frees the stream. NULL is fine. */
gpunvme_err_t gpunvme_mem_stream_destroy(struct gpunvme_mem_stream *stream);

/* Starts a copy. Both ranges stay as they are until sync or query says that it is done. */
gpunvme_err_t gpunvme_mem_copy_async(void *dst, enum gpunvme_mem dst_mem, const void *src,
                                     enum gpunvme_mem src_mem, size_t nbytes,
                                     struct gpunvme_mem_stream *stream);

/* One of many copies. An address that the GPU has: `gpu` of a PINNED or GPU buffer, plus offset. */
struct gpunvme_mem_piece {
    void *dst;
    const void *src;
    size_t nbytes; /* 0 is fine */
};

/*
 * Starts n copies at once, between pinned host memory and GPU memory, in any direction each: made
 * for thousands of small pieces, which a kernel copies where the copy engine would need more than a
 * microsecond for each; large ones go to the copy engine. Any address and length will do, multiples
 * of 16 are fastest, and a piece is copied faster if source and destination lie alike within 16
 * bytes. The batch follows what was started on the stream before, and its own pieces come in no
 * order: no destination may overlap another piece. `pieces` may go when it returns; the bytes stay
 * as they are until sync or query says that all is done.
 *
 * A piece that is not all in memory that CUDA knows is refused before anything is started: given
 * to a kernel, it would break the process's work on that GPU. What is not found out: GPU memory of
 * another GPU needs peer access. The check costs some nanoseconds a piece, and some microseconds
 * for each allocation that the pieces lie in.
 *
 * Normally it does not wait; when tables of some 30,000 pieces are in flight on the stream, it
 * waits for the oldest, 10 s at most. Errors: INVALID (with the piece's index), NOMEM, GPU,
 * TIMEOUT; after the other errors some of the copies may have been started, or all.
 */
gpunvme_err_t gpunvme_mem_copy_batch(const struct gpunvme_mem_piece *pieces, size_t n,
                                     struct gpunvme_mem_stream *stream);

/* Waits until all copies started on the stream are done: TIMEOUT after timeout_ns. */
gpunvme_err_t gpunvme_mem_stream_sync(struct gpunvme_mem_stream *stream, uint64_t timeout_ns);

/* The same without waiting: *done tells. An error means that copies on the stream failed. */
gpunvme_err_t gpunvme_mem_stream_query(struct gpunvme_mem_stream *stream, bool *done);

/*
 * A checksum of `nbytes` bytes from offset `off` on, of any length and alignment, taken where the
 * bytes are: by a kernel for GPU memory, on the CPU for the rest (*by_gpu tells; may be NULL).
 * The same bytes have the same checksum wherever they are. It finds every change within one
 * aligned group of 8 bytes, and any other change, blocks in the wrong place included, but for
 * one in about 2^64; it is no protection against an adversary.
 */
gpunvme_err_t gpunvme_mem_checksum(const struct gpunvme_buf *buf, size_t off, size_t nbytes,
                                   uint64_t *sum, bool *by_gpu);

/* The checksum of host memory; 0 bytes may be at NULL. */
uint64_t gpunvme_mem_checksum_host(const void *ptr, size_t nbytes);

/* Takes the checksum and compares: GPUNVME_ERR_VERIFY if it is not `expected`. */
gpunvme_err_t gpunvme_mem_verify(const struct gpunvme_buf *buf, size_t off, size_t nbytes,
                                 uint64_t expected, bool *by_gpu);

/* True where GPU memory is host memory. */
bool gpunvme_mem_gpu_is_host(void);

/* Why it is: "no driver: libcuda.so.1 not found", … ; "" when there is a GPU. Static. */
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
 * About GPU `index`. Without a GPU NO_GPU, with gpunvme_mem_gpu_why_not() as the detail, and the
 * versions are still filled in. INVALID for an index that is not below the count.
 */
gpunvme_err_t gpunvme_mem_gpu_info(unsigned index, struct gpunvme_gpu_info *info);

/* The index of the calling thread's current GPU: where gpunvme_mem_alloc() allocates. */
gpunvme_err_t gpunvme_mem_gpu_current(unsigned *index);

#ifdef __cplusplus
}
#endif
#endif
