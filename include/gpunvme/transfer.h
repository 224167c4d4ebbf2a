/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Asynchronous transfers: many at once, of one store or of many, also in the order of CUDA streams
 * and events.
 *
 *     struct gpunvme_io ios[2] = {
 *         {.store = a, .op = GPUNVME_OP_READ, .mem = GPUNVME_MEM_GPU, .ptr = x, .nbytes = 4096},
 *         {.store = b, .op = GPUNVME_OP_READ, .mem = GPUNVME_MEM_GPU, .ptr = y, .nbytes = 4096},
 *     };
 *
 *     gpunvme_io_submit(ios, 2, batch);
 *     gpunvme_batch_poll(batch, 2, 2, ended, &n, timeout_ns);
 *
 * Threads: as in storage.h. Only one thread at a time may wait for a transfer, or poll a batch.
 * Others may call gpunvme_io_cancel() and gpunvme_io_moved() meanwhile.
 */
#ifndef GPUNVME_TRANSFER_H
#define GPUNVME_TRANSFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpunvme/buf.h"
#include "gpunvme/error.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gpunvme_store;
struct gpunvme_batch;

enum gpunvme_op {
    GPUNVME_OP_READ = 0,
    GPUNVME_OP_WRITE = 1,
    GPUNVME_OP_FLUSH = 2, /* as gpunvme_store_flush(); uses no memory */
};

/* A piece of memory. `ptr` is the cpu address for HOST and PINNED, the gpu address for GPU. */
struct gpunvme_vec {
    void *ptr;
    size_t nbytes;
    enum gpunvme_mem mem;
};

/*
 * One transfer, both request and token. The caller fills in the first part and sets all other
 * fields to zero. The structure must stay in place until the transfer has ended; then it can be
 * used again. A transfer has one of three shapes:
 *
 *   plain    moves `nbytes` bytes between byte `offset` of the store and `ptr`, memory of the kind
 *            `mem`
 *   vector   if `vecs` is set: moves one range of the store, from `offset` on, to or from `n`
 *            pieces of memory in turn. `ptr`, `nbytes` and `mem` are not used
 *   gather   if `offsets` is set: moves `n` ranges of `nbytes` bytes. Range i begins at byte
 *            offsets[i] of the store and at ptr + i * stride in memory. A write scatters
 *
 * The caller owns the arrays, and leaves them unchanged until the transfer has ended.
 *
 * Each completion is reported once, in one way:
 *
 *   - by `callback`, if it is set. A thread of the library calls it and serves nothing else until
 *     it returns. If there is nothing to move, the submitting thread calls it, before submission
 *     returns. A callback may submit transfers, this one too, but must not wait;
 *   - else by gpunvme_batch_poll(), if the transfer was submitted with a batch;
 *   - else by gpunvme_io_test() or gpunvme_io_wait().
 */
struct gpunvme_io {
    struct gpunvme_store *store;
    enum gpunvme_op op;
    enum gpunvme_mem mem;
    uint64_t offset;
    void *ptr;
    size_t nbytes;
    const struct gpunvme_vec *vecs;
    const uint64_t *offsets;
    size_t n;
    size_t stride; /* bytes; at least `nbytes` for reads */
    void (*callback)(struct gpunvme_io *io);
    void *user; /* for the caller; the library does not use it */

    /*
     * The result, valid once the transfer has ended. `err` is as gpunvme_store_read() returns it;
     * gpunvme_io_detail() has the text. `done` is the length of the valid prefix, in bytes, counted
     * in the order of the vector's or gather's elements. `routes` has the bit 1 << route for each
     * enum gpunvme_route that bytes of the transfer took.
     */
    gpunvme_err_t err;
    uint32_t routes;
    size_t done;

    struct {
        struct gpunvme_io *next;
        struct gpunvme_batch *batch;
        void *region; /* registered memory that all of it lies in */
        size_t total; /* bytes of it */
        size_t taken; /* bytes that workers have taken */
        size_t left;  /* bytes that have not ended */
        size_t stop;  /* where the first piece stopped short */
        size_t at;    /* which vec or range is next … */
        union {
            size_t in;                 /* … and the byte in it */
            struct gpunvme_io *in_run; /* the next one that may be taken with it */
        };
        gpunvme_err_t why; /* … it stopped: 0 is the end of the store */
        uint32_t state;    /* futex word */
        uint32_t slot;     /* of the batch's, while it is in flight */
        uint16_t run;      /* how many may be taken with it, itself included */
        bool is_ordered;   /* another one does its work, behind a stream */
        uint64_t detail;   /* which text belongs to it */
    } priv;                /* private */
};

/*
 * Submits `n` transfers, of any stores. They end in any order. `batch` may be NULL. On an error
 * none is submitted: INVALID (the detail names the first bad transfer; one that is still in flight
 * is bad), RANGE, READONLY, CLOSED, UNSUPPORTED (after fork(2)), NOMEM, LIMIT (2^31 transfers in a
 * batch). An error of a transfer that was submitted is in its `err`.
 */
gpunvme_err_t gpunvme_io_submit(struct gpunvme_io *ios, size_t n, struct gpunvme_batch *batch);

/*
 * Submits `n` transfers, at most 8,192 at a time, and waits until all have ended. Their callbacks
 * are not called. Returns the error of the submission, with no transfer begun; TIMEOUT, as
 * gpunvme_store_read() does; else the first error of a transfer.
 */
gpunvme_err_t gpunvme_io_run(struct gpunvme_io *ios, size_t n);

/*
 * Returns AGAIN while the transfer is in flight, and then, once, its error, with the detail in this
 * thread's gpunvme_err_detail(). STALE: the transfer is not in flight, or its completion is
 * reported by a callback or a batch.
 */
gpunvme_err_t gpunvme_io_test(struct gpunvme_io *io);

/*
 * Waits until the transfer has ended, and returns as gpunvme_io_test(). TIMEOUT: nothing of its
 * store has moved for timeout_ns (0: the store's timeout); the transfer is still in flight.
 */
gpunvme_err_t gpunvme_io_wait(struct gpunvme_io *io, uint64_t timeout_ns);

/*
 * Writes what exactly went wrong with a failed transfer to `text`, at most `room` bytes with the
 * final 0, and returns `text`. It is what gpunvme_err_detail() is for a call. The library keeps the
 * texts of the last 256 failures; for earlier ones the text is "".
 */
const char *gpunvme_io_detail(const struct gpunvme_io *io, char *text, size_t room);

/* The length of the valid prefix now, in bytes; the transfer may be in flight. Takes some µs. */
size_t gpunvme_io_moved(const struct gpunvme_io *io);

/*
 * Cancels the part of a transfer that has not begun. The transfer ends when the rest has ended:
 * with CANCELED, or as usual if nothing was left to cancel. Its completion is reported in the usual
 * way. The call does nothing if the transfer has ended. The structure must not be used for another
 * transfer meanwhile.
 */
void gpunvme_io_cancel(struct gpunvme_io *io);

/* ---- Batches -----------------------------------------------------------------------------------
 */

/*
 * A batch collects completions of transfers of one or several stores. Destroying it is BUSY while
 * transfers that were submitted with it have not been polled; NULL is allowed.
 */
gpunvme_err_t gpunvme_batch_create(struct gpunvme_batch **out);
gpunvme_err_t gpunvme_batch_destroy(struct gpunvme_batch *batch);

/*
 * Returns up to `room` transfers that have ended, in any order, and their number in *n. Waits until
 * at least `min` have ended, or all if fewer than `min` are pending. TIMEOUT after timeout_ns, also
 * with *n valid; 0 does not wait. By one thread at a time.
 */
gpunvme_err_t gpunvme_batch_poll(struct gpunvme_batch *batch, size_t min, size_t room,
                                 struct gpunvme_io **ended, size_t *n, uint64_t timeout_ns);

/* The number of transfers that were submitted with the batch and have not been polled. */
size_t gpunvme_batch_pending(struct gpunvme_batch *batch);

/*
 * Calls gpunvme_io_cancel() for each transfer of the batch that has not ended. Only the thread that
 * polls may call it. NOMEM: none was canceled.
 */
gpunvme_err_t gpunvme_batch_cancel(struct gpunvme_batch *batch);

/*
 * An eventfd for event loops. It is readable while transfers have ended that have not been polled.
 * The batch owns it: do not read or close it. On failure returns -1 and sets errno.
 */
int gpunvme_batch_fd(struct gpunvme_batch *batch);

/* ---- CUDA's order ------------------------------------------------------------------------------
 */

#define GPUNVME_AFTER_STREAM  0x1u
#define GPUNVME_BEFORE_STREAM 0x2u

/*
 * The position of transfers in CUDA's order. `stream` is a cudaStream_t (NULL is the default
 * stream); `after` and `done` are a cudaEvent_t.
 */
struct gpunvme_order {
    /*
     * AFTER_STREAM: the transfers begin when the work that is on `stream` now has ended.
     * BEFORE_STREAM: work that is put on `stream` after this call begins when all transfers have
     * ended, successfully or not. Without either flag `stream` is not used.
     */
    unsigned flags;
    void *stream;
    void *after; /* the transfers begin when this event has happened; NULL: no event */
    void *done;  /* is recorded; happens when all transfers have ended, successfully or not */
};

/*
 * gpunvme_io_submit() in CUDA's order. The call itself does not wait for the GPU. Transfers must
 * not have a callback.
 *
 * Memory. A read writes its memory, and a write reads it, from the moment that the order allows it
 * to begin until it has ended. If kernels use the memory before and after, set AFTER_STREAM and
 * BEFORE_STREAM on their stream, or use events in the same places. A caching allocator (PyTorch's,
 * CuPy's) may reuse a freed block on the stream that freed it. With BEFORE_STREAM on that stream
 * this is safe, because the new work is behind the transfers. With `done` alone, keep the block
 * until the event has happened; Tensor.record_stream() does not help. Once the host has seen the
 * completion, memory can always be reused.
 *
 * Deadlines. A transfer that has begun and makes no progress for its store's timeout ends with
 * TIMEOUT, and the stream and the event go on. Its memory must stay valid until gpunvme_close() has
 * succeeded.
 *
 * Loading. The engine's threads need the CUDA context to copy. So while a stream waits for a
 * transfer, no thread may make a CUDA call that locks the context and waits for the stream. The
 * first launch of a kernel may be such a call, because it loads the kernel: load kernels before you
 * submit (cudaFuncGetAttributes(), cuFuncLoad(), or CUDA_MODULE_LOADING=EAGER for the process).
 * Otherwise the transfer ends with TIMEOUT. docs/STORAGE.md explains this.
 *
 * Errors, with nothing submitted: those of gpunvme_io_submit(); NO_GPU; UNSUPPORTED (the stream is
 * being captured into a graph, or the driver can't make streams wait for memory); AGAIN (1,024 such
 * submissions are in flight); those of making streams and pinning memory. GPU: a CUDA call failed
 * in between. The state of the stream is then undefined, and transfers may be in flight: wait for
 * them. If work on the stream before the transfers fails, CUDA never begins them, that GPU can't be
 * used any more, and gpunvme_close() returns TIMEOUT.
 */
gpunvme_err_t gpunvme_io_submit_ordered(struct gpunvme_io *ios, size_t n,
                                        struct gpunvme_batch *batch,
                                        const struct gpunvme_order *order);

#ifdef __cplusplus
}
#endif
#endif
