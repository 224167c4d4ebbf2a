/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Asynchronous transfers: many at once, of one store or of many, and their place in CUDA's order.
 *
 *     struct gpunvme_io ios[2] = {
 *         {.store = a, .op = GPUNVME_OP_READ, .mem = GPUNVME_MEM_GPU, .ptr = x, .nbytes = 4096},
 *         {.store = b, .op = GPUNVME_OP_READ, .mem = GPUNVME_MEM_GPU, .ptr = y, .nbytes = 4096},
 *     };
 *
 *     gpunvme_io_submit(ios, 2, batch);
 *     gpunvme_batch_poll(batch, 2, 2, ended, &n, timeout_ns);
 *
 * Threads: as storage.h says. One transfer is waited for by one thread, and one batch polled by one
 * thread at a time; gpunvme_io_cancel() and gpunvme_io_moved() may be called by others meanwhile.
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
    GPUNVME_OP_FLUSH = 2, /* of writes that have ended; takes no memory */
};

/* A piece of memory. `ptr` is the cpu address for HOST and PINNED, the gpu address for GPU. */
struct gpunvme_vec {
    void *ptr;
    size_t nbytes;
    enum gpunvme_mem mem;
};

/*
 * One transfer: the request and the token in one. The caller fills in the first part, with zeroes
 * in what it does not use and in all that follows; keeps it where it is until it has ended; and may
 * use it again then. A transfer has one of three shapes:
 *
 *   plain    `nbytes` bytes from byte `offset` of the store on, at `ptr`, of the kind `mem`
 *   vector   `vecs` is set: `n` pieces of memory, one after the other, are one range of the store
 *            from `offset` on. `ptr`, `nbytes` and `mem` are not used
 *   gather   `offsets` is set: `n` ranges of `nbytes` bytes of the store, range i from offsets[i]
 *            on, at ptr + i * stride. A write scatters
 *
 * The arrays stay the caller's, and as they are until the transfer has ended.
 *
 * It ends once, and its end is learned in one way:
 *
 *   - `callback`, if it is set: called by a thread of the library, which it must not hold up, or by
 *     the one that submits, before submission returns, if there is nothing to move. It may submit,
 *     but not wait. The transfer is the caller's again in it;
 *   - else gpunvme_batch_poll(), if it was submitted with a batch;
 *   - else gpunvme_io_test() or gpunvme_io_wait(), by one thread.
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
    void *user; /* the caller's own */

    /*
     * What came of it, as gpunvme_store_read() says; valid when it has ended, for any thread that
     * knows that it has. `done` is the length of the valid prefix, in bytes, in the order of the
     * transfer's pieces of memory. `routes` has the bit 1 << route of each enum gpunvme_route that
     * bytes of it took. gpunvme_io_detail() has the text of an error.
     */
    gpunvme_err_t err;
    uint32_t routes;
    size_t done;

    struct {
        struct gpunvme_io *next;
        struct gpunvme_batch *batch;
        void *region;      /* registered memory that all of it lies in */
        size_t total;      /* bytes of it */
        size_t taken;      /* bytes that workers have taken */
        size_t left;       /* bytes that have not ended */
        size_t stop;       /* where the first piece stopped short */
        size_t at, in;     /* which vec or range is next, and the byte in it */
        gpunvme_err_t why; /* … it stopped: 0 is the end of the store */
        uint32_t state;    /* futex word */
        uint32_t slot;     /* of the batch's, while it is in flight */
        bool is_ordered;   /* another one does its work, behind a stream */
        uint64_t detail;   /* which text belongs to it */
    } priv;                /* private */
};

/*
 * Submits `n` transfers at once, of any stores; they end in any order. Either all are submitted, or
 * none and the error says why: INVALID (the detail names the first bad one; one that is in flight
 * is), RANGE, READONLY, CLOSED. What goes wrong with one of them later is told by its own `err`.
 * `batch` may be NULL.
 */
gpunvme_err_t gpunvme_io_submit(struct gpunvme_io *ios, size_t n, struct gpunvme_batch *batch);

/*
 * Does `n` transfers, whose callbacks are not called, and returns when all have ended: the error of
 * the submission, none begun; TIMEOUT, as gpunvme_store_read() has it; else the first of their own.
 */
gpunvme_err_t gpunvme_io_run(struct gpunvme_io *ios, size_t n);

/*
 * GPUNVME_ERR_AGAIN while it is in flight, else its error, with the detail in this thread's
 * gpunvme_err_detail(); STALE: it is not in flight.
 */
gpunvme_err_t gpunvme_io_test(struct gpunvme_io *io);

/*
 * Waits until it has ended. TIMEOUT: for timeout_ns (0: the store's) no byte of it was moved, nor
 * of its store; it is still in flight.
 */
gpunvme_err_t gpunvme_io_wait(struct gpunvme_io *io, uint64_t timeout_ns);

/*
 * What exactly went wrong with a transfer that ended with an error, as gpunvme_err_detail() has it
 * of a call's: writes at most `room` bytes, the 0 at the end among them, and returns `text`. The
 * library keeps the texts of the last 256 failures; of earlier ones it is "".
 */
const char *gpunvme_io_detail(const struct gpunvme_io *io, char *text, size_t room);

/* The length of its valid prefix, in bytes, by now. Takes some microseconds. */
size_t gpunvme_io_moved(const struct gpunvme_io *io);

/*
 * Cancels what has not begun of a transfer that is in flight. It ends when what had begun has
 * ended: with CANCELED, or as if nothing had happened where nothing was left to cancel.
 * Its end is told as always. Does nothing where it has ended. The caller must know that nobody
 * else uses the transfer again meanwhile.
 */
void gpunvme_io_cancel(struct gpunvme_io *io);

/* ---- Batches -----------------------------------------------------------------------------------
 */

/*
 * Collects the ends of transfers of one or several stores. Destroy it when all that were submitted
 * with it have been polled: BUSY else. NULL is fine.
 */
gpunvme_err_t gpunvme_batch_create(struct gpunvme_batch **out);
gpunvme_err_t gpunvme_batch_destroy(struct gpunvme_batch *batch);

/*
 * Gives up to `room` transfers that have ended, in any order; *n says how many. Waits until there
 * are at least `min` (as many as are in flight, if these are fewer), or TIMEOUT after timeout_ns,
 * with *n of them all the same; 0 ns: it does not wait. By one thread at a time.
 */
gpunvme_err_t gpunvme_batch_poll(struct gpunvme_batch *batch, size_t min, size_t room,
                                 struct gpunvme_io **ended, size_t *n, uint64_t timeout_ns);

/* How many were submitted with it and have not been polled. */
size_t gpunvme_batch_pending(struct gpunvme_batch *batch);

/*
 * gpunvme_io_cancel() for all that were submitted with it and have not ended. By the thread that
 * polls. NOMEM: none was canceled.
 */
gpunvme_err_t gpunvme_batch_cancel(struct gpunvme_batch *batch);

/*
 * An eventfd that poll(2) says is readable while there are ended transfers that have not been
 * polled: for event loops. The batch's; nobody else reads it or closes it. -1 and errno where there
 * is none to be had.
 */
int gpunvme_batch_fd(struct gpunvme_batch *batch);

/* ---- CUDA's order ------------------------------------------------------------------------------
 */

#define GPUNVME_AFTER_STREAM  0x1u
#define GPUNVME_BEFORE_STREAM 0x2u

/*
 * Where transfers stand in CUDA's order. Streams and events are CUDA's handles: cudaStream_t (NULL
 * is the default stream) and cudaEvent_t.
 */
struct gpunvme_order {
    /*
     * AFTER_STREAM: the transfers begin when the work that is on `stream` at the call has ended.
     * BEFORE_STREAM: work that is put on `stream` after the call begins when all transfers have
     * ended, well or badly. Neither: `stream` is not used.
     */
    unsigned flags;
    void *stream;
    void *after; /* event: the transfers begin when it has happened; NULL: none */
    void *done;  /* event: it happens when all transfers have ended, well or badly; NULL: none */
};

/*
 * gpunvme_io_submit() in CUDA's order. The call itself waits for nothing on the GPU.
 *
 * Memory. A read's memory is written, and a write's memory read, from the moment that the order
 * lets it begin until it has ended. So memory that kernels use before and after needs AFTER_STREAM
 * and BEFORE_STREAM on the kernels' stream, or events that say the same. A block that a caching
 * allocator (PyTorch's, CuPy's) gives out again on the stream on which it was freed is safe with
 * BEFORE_STREAM on that stream: the next user of the block is behind the transfers. With `done`
 * alone it is not: the block must be kept until the event has happened (PyTorch:
 * Tensor.record_stream() does not know of it). That the host has seen the end is always enough.
 *
 * Deadlines. Transfers that have begun and make no progress for their store's timeout end with
 * TIMEOUT and hold up stream and event no longer; their memory must stay until the store is closed.
 *
 * Loading. While a stream waits, no thread may be in a call of CUDA that locks the context and
 * waits for the stream: the engine's threads need the context to copy. So kernels that are launched
 * behind a transfer must be loaded before it is submitted (cudaFuncGetAttributes(), cuFuncLoad(),
 * or CUDA_MODULE_LOADING=EAGER for the process): to load one at its first launch may wait for all
 * streams. Else the transfer ends with TIMEOUT. docs/STORAGE.md has more of it.
 *
 * Transfers have no callback here. Errors, with nothing submitted: as gpunvme_io_submit(); NO_GPU;
 * UNSUPPORTED while the stream is being captured into a graph, or where the driver has no waits for
 * memory; AGAIN: 1,024 such submissions are in flight; what making streams and pinning memory
 * gives. If CUDA fails in the middle (GPU), what is on the stream is in doubt, and the transfers
 * may be in flight: wait for them. If the work before them fails, CUDA never begins them: the store
 * can't be closed then (TIMEOUT), as little as that GPU can be used.
 */
gpunvme_err_t gpunvme_io_submit_ordered(struct gpunvme_io *ios, size_t n,
                                        struct gpunvme_batch *batch,
                                        const struct gpunvme_order *order);

#ifdef __cplusplus
}
#endif
#endif
