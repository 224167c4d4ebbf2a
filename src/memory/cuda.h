/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The wall between this project and CUDA: cuda.c and checksum.cu stand behind it in a build with
 * CUDA, cuda_none.c in a build without. It deals in plain addresses and knows no buffers.
 *
 * Everything but mem_cuda_present(), _why_not(), _count(), _info(), _ordering() and
 * _user_stream_*() is called only when mem_cuda_present() says yes.
 */
#ifndef MEMORY_CUDA_H
#define MEMORY_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpunvme/error.h"
#include "gpunvme/memory.h"
#include "memory/ordering.h"
#include "memory/ranges.h"

/* True when there is a GPU to work with; decided once. */
bool mem_cuda_present(void);
const char *mem_cuda_why_not(void); /* "" when there is one */
unsigned mem_cuda_count(void);
gpunvme_err_t mem_cuda_info(unsigned index, struct gpunvme_gpu_info *info);
gpunvme_err_t mem_cuda_current(unsigned *index);
struct mem_ordering mem_cuda_ordering(unsigned index);

/*
 * Makes `device` the calling thread's current one, until mem_cuda_leave(). Nests. Touches no other
 * device.
 */
gpunvme_err_t mem_cuda_enter(unsigned device);
void mem_cuda_leave(void);

/*
 * Lets each of the two devices reach the other's memory; UNSUPPORTED where the machine can't. May
 * be called again.
 */
gpunvme_err_t mem_cuda_peers(unsigned a, unsigned b);

/* What CUDA knows of an address; `device` is set for all kinds but MEM_CUDA_UNKNOWN. */
enum mem_cuda_kind {
    MEM_CUDA_UNKNOWN, /* nothing: ordinary host memory, or no memory at all */
    MEM_CUDA_PINNED,  /* pinned host memory */
    MEM_CUDA_DEVICE,  /* memory of a GPU */
    MEM_CUDA_MANAGED, /* managed memory, which CUDA moves between GPUs and the host */
};
enum mem_cuda_kind mem_cuda_kind(const void *ptr, int *device);

/*
 * The allocation, or mapped part of a reservation, that `ptr` lies in, or its page where CUDA does
 * not tell that; false: MEM_CUDA_UNKNOWN. Some microseconds.
 */
bool mem_cuda_range(const void *ptr, struct mem_range *range);

/* GPU memory on the calling thread's current device, zeroed. */
gpunvme_err_t mem_cuda_alloc(size_t nbytes, void **gpu);
gpunvme_err_t mem_cuda_free(void *gpu);

/*
 * A dma-buf of GPU memory, whose bytes begin at *offset of it; it ends with the page of the host
 * that the last byte is in. UNSUPPORTED where this driver or GPU has none.
 */
gpunvme_err_t mem_cuda_export(const void *gpu, size_t nbytes, int *fd, uint64_t *offset);

/* Pins host memory for all GPUs and maps it into the current one. */
gpunvme_err_t mem_cuda_pin(void *cpu, size_t nbytes, void **gpu);
gpunvme_err_t mem_cuda_unpin(void *cpu);
gpunvme_err_t mem_cuda_pinned_address(void *cpu, void **gpu); /* of memory pinned by others */

/* Synchronous. dst_gpu and src_gpu: the address is a GPU's; for one of them at least it is. */
gpunvme_err_t mem_cuda_copy(void *dst, bool dst_gpu, const void *src, bool src_gpu, size_t nbytes);
gpunvme_err_t mem_cuda_fill(void *dst, uint8_t value, size_t nbytes);

/* Makes now what MEM_CUDA_READY such calls at once need on this GPU. */
#define MEM_CUDA_READY 16u
gpunvme_err_t mem_cuda_keep_ready(unsigned device);

/*
 * Streams, of the highest priority; `near` chooses the device, NULL the calling thread's current
 * one.
 */
struct mem_cuda_stream;
gpunvme_err_t mem_cuda_stream_create(const void *near, struct mem_cuda_stream **out);
gpunvme_err_t mem_cuda_stream_destroy(struct mem_cuda_stream *stream);
gpunvme_err_t mem_cuda_stream_copy(struct mem_cuda_stream *stream, void *dst, bool dst_gpu,
                                   const void *src, bool src_gpu, size_t nbytes);

/*
 * A batch, whose addresses are all the GPU's. AUTO: pieces of up to MEM_BATCH_KERNEL_MAX bytes
 * (batch.h) by the kernel, larger ones by the copy engine; the others are for measurements and send
 * every piece one way. API is UNSUPPORTED where this build or the driver lacks it. max_blocks
 * limits the kernel's blocks; 0: as it thinks best.
 */
enum mem_batch_way {
    MEM_BATCH_AUTO,
    MEM_BATCH_KERNEL, /* one launch for thousands of pieces */
    MEM_BATCH_ENGINE, /* one cudaMemcpyAsync() for each */
    MEM_BATCH_API,    /* one cudaMemcpyBatchAsync() for hundreds */
};
gpunvme_err_t mem_cuda_stream_copy_batch(struct mem_cuda_stream *stream,
                                         const struct gpunvme_mem_piece *pieces, size_t n,
                                         enum mem_batch_way way, unsigned max_blocks);
/* Makes what the first batch on the stream would make. By any thread. */
gpunvme_err_t mem_cuda_stream_prepare_batches(struct mem_cuda_stream *stream);
gpunvme_err_t mem_cuda_stream_query(struct mem_cuda_stream *stream, bool *done);
/* mem_stream_mark() and _passed() of stream.h. */
gpunvme_err_t mem_cuda_stream_mark(struct mem_cuda_stream *stream, uint32_t *mark);
gpunvme_err_t mem_cuda_stream_passed(struct mem_cuda_stream *stream, uint32_t mark, bool *passed);
gpunvme_err_t mem_cuda_stream_sync(struct mem_cuda_stream *stream, uint64_t timeout_ns);

/*
 * Streams of the caller's: each is a cudaStream_t as void *, NULL being the legacy default stream
 * of the calling thread's current GPU. Any thread may call, whatever its current GPU; nothing
 * waits. NO_GPU where there is none, GPU for what CUDA reports.
 */

/* The GPU that the stream is on. */
gpunvme_err_t mem_cuda_user_stream_device(void *stream, unsigned *device);

/*
 * Whether what is put on the stream now goes into a graph (or would break one, for the legacy
 * stream while another stream is captured) instead of being done.
 */
gpunvme_err_t mem_cuda_user_stream_capturing(void *stream, bool *capturing);

/*
 * Has CUDA call fn(arg), on a thread of its own, when all that is on the stream now is done; what
 * comes later on the stream waits for its return. It must not call CUDA and should be short. It is
 * not called if the work before it fails: whoever counts on it has a deadline. In a stream that is
 * captured it is called whenever the graph runs.
 */
gpunvme_err_t mem_cuda_user_stream_call(void *stream, void (*fn)(void *), void *arg);

/*
 * Holds up what comes later on the stream until the word, in pinned memory (its address on the
 * GPU), is `value` or has gone past it: (int32_t)(word - value) >= 0. UNSUPPORTED where the driver
 * can't. What a CPU thread, or a copy that it has seen the end of, wrote before it released the
 * word is there for all that was held up.
 *
 * The GPU knows no deadline: who puts this on a stream must see to it that the word is released
 * whatever happens, errors and deadlines included, and must not free it before. Nor does CUDA know
 * what the stream waits for: of work on other streams that the release depends on, launches beyond
 * CUDA_DEVICE_MAX_CONNECTIONS streams can end up behind the wait. So nothing that must come
 * first may be without a deadline.
 */
gpunvme_err_t mem_cuda_user_stream_wait(void *stream, const uint32_t *gpu_word, uint32_t value);

/* Holds up what comes later on the stream until an event (a cudaEvent_t) has happened. */
gpunvme_err_t mem_cuda_user_stream_wait_event(void *stream, void *event);

/* The event happens when all that is on the stream now is done. */
gpunvme_err_t mem_cuda_user_stream_record(void *stream, void *event);

/*
 * How far a stream has come, without asking the driver: the stream writes a number into *word when
 * all that is on it now is done, and _passed() looks whether it has. *word is made where it is
 * NULL, has one mark at a time, and is given back once that is passed. UNSUPPORTED where the driver
 * can't. Work that fails is never passed.
 */
struct mem_cuda_word;
gpunvme_err_t mem_cuda_user_stream_mark(void *stream, struct mem_cuda_word **word, uint32_t *mark);
bool mem_cuda_user_stream_passed(const struct mem_cuda_word *word, uint32_t mark);
void mem_cuda_word_give(struct mem_cuda_word *word); /* nothing will be written; NULL is fine */

/* The kernel of gpunvme_convert() on a stream of the memory's GPU. */
struct mem_samples;
gpunvme_err_t mem_cuda_user_stream_convert(void *stream, const struct mem_samples *s);

/* A stream for waits, of the lowest priority, on the calling thread's current GPU. */
gpunvme_err_t mem_cuda_user_stream_create(void **stream);

/* Releases whoever waits for the word (its address on the CPU) to be `value`. Never fails. */
static inline void mem_cuda_user_stream_release(uint32_t *cpu_word, uint32_t value)
{
    __atomic_store_n(cpu_word, value, __ATOMIC_RELEASE);
}

/*
 * A stream for kernels that run beside all others, of the highest priority, on the calling thread's
 * current device: a cudaStream_t.
 */
gpunvme_err_t mem_cuda_kernels_create(void **stream);
void mem_cuda_kernels_destroy(void *stream);

/* The checksum of checksum.h, of GPU memory, by a kernel. nbytes > 0. */
gpunvme_err_t mem_cuda_checksum(const void *gpu, size_t nbytes, uint64_t *sum);

/*
 * The checksums of n ranges of GPU memory, by few launches of one kernel. They may be on several
 * GPUs; neighbours in the array that are on one go together.
 */
struct mem_checksum_range {
    const void *gpu;
    size_t nbytes; /* 0 is allowed */
};
gpunvme_err_t mem_cuda_checksums(const struct mem_checksum_range *ranges, size_t n, uint64_t *sums);

/*
 * Conversions of convert.h, by one kernel on the GPU that has `near`. `pieces` is the GPU's address
 * of a table in pinned memory; what its entries name must be the GPU's to reach, and each must be
 * what mem_convert_cut() made. `nbytes`: of all sources.
 */
struct mem_convert;
gpunvme_err_t mem_cuda_convert(struct mem_convert *pieces, size_t n, size_t nbytes,
                               const void *near);

/*
 * Registers of a device, mapped by the CPU at the page `cpu`, into all GPUs; *gpu is their address
 * on the calling thread's current one. And one 32-bit load of such an address by a kernel there,
 * only for registers that may be read.
 */
gpunvme_err_t mem_cuda_map_io(void *cpu, size_t nbytes, void **gpu);
gpunvme_err_t mem_cuda_unmap_io(void *cpu);
gpunvme_err_t mem_cuda_load32(const void *gpu, uint32_t *value);

#endif
