/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Stores: bytes by offset, opened by a URI, whatever is behind it. Reads and writes of any offset
 * and length move them to and from host, pinned or GPU memory; gpunvme_store_path() says by which
 * way they went.
 *
 *     gpunvme_open("file:/data/weights.bin", 0, &store);
 *     gpunvme_store_read(store, offset, gpu_ptr, GPUNVME_MEM_GPU, nbytes, &done);
 *     gpunvme_close(store);
 *
 * URIs (docs/STORAGE.md): a plain path or "file:/path" is a file or a block device of the kernel;
 * "nvme:BDF/nsid", "vfio-user:/socket" and "sim:…" are namespaces that this library drives itself;
 * "spdk:…" one that SPDK drives; "stripe:URI;URI…" several stores as one. Options follow a '?', as
 * a list "key=value,key=value"; a plain path has none and may contain '?'.
 *
 * Threads: all functions may be called from several threads at once, on the same store too;
 * gpunvme_close() and gpunvme_batch_destroy() exclude other calls on what they end. Transfers in
 * flight at the same time that overlap, one of them a write, leave either's bytes.
 *
 * After fork(2) the child has none of the threads that serve a store. There, transfers
 * of a store that was opened before, and gpunvme_close(), return UNSUPPORTED; the child opens
 * stores of its own.
 *
 * Nothing waits for ever: calls that wait have a deadline, of `timeout` (an option, 30 s) where
 * they take none.
 */
#ifndef GPUNVME_STORAGE_H
#define GPUNVME_STORAGE_H

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

/* Flags of gpunvme_open(); 0: read only. */
#define GPUNVME_OPEN_WRITE 0x1u /* for reading and writing */
#define GPUNVME_OPEN_CREATE                                                                        \
    0x2u /* makes the file if there is none; with WRITE, for files alone                           \
          */

/* With WRITE: write to an image file (sim:image=) even if it holds data of others. */
#define GPUNVME_OPEN_FORCE 0x4u

/*
 * Opens a store; *out is the caller's, to be given to gpunvme_close(). With WRITE, a block device
 * is BUSY if it is mounted or otherwise in use, and an image file that holds data that gpunvme did
 * not write is READONLY without FORCE. Errors: URI, URI_PARAM (the detail says what is possible),
 * NOT_FOUND, PERMISSION, READONLY, BUSY, NO_NAMESPACE, UNSUPPORTED (the backend is not in this
 * build, or `require=` asks for a way that there is not: the detail says why), and what bringing up
 * a controller gives.
 */
gpunvme_err_t gpunvme_open(const char *uri, unsigned flags, struct gpunvme_store **out);

/*
 * Waits for what is in flight, lets go of registered memory, and frees the store. TIMEOUT, after
 * `timeout`: something did not end, the store stays as it was, and may be closed again later. Other
 * errors are of the backend, and all is freed. UNSUPPORTED, of a store from before fork(2): nothing
 * was done. NULL is fine.
 */
gpunvme_err_t gpunvme_close(struct gpunvme_store *store);

struct gpunvme_store_info {
    const char *backend; /* "posix", "cufile", "nvme", "spdk", "stripe" */
    const char *uri;     /* as it was opened */
    uint32_t block_size; /* bytes; transfers of whole blocks at multiples of it cost least */
    bool writable;       /* opened for writing */
    bool resizable;      /* a file: it grows by writes behind its end */
    uint32_t threads;    /* that serve it; files share them (docs/STORAGE.md) */
    uint64_t timeout_ns; /* of calls that take none */
};

/* Facts; the texts are valid while the store is open. All zeroes where `store` is NULL. */
void gpunvme_store_get_info(struct gpunvme_store *store, struct gpunvme_store_info *info);

/* Its size now, in bytes: that of a file may change. */
gpunvme_err_t gpunvme_store_size(struct gpunvme_store *store, uint64_t *nbytes);

/* Makes a file longer, with zeroes, or shorter. UNSUPPORTED where the size is fixed. */
gpunvme_err_t gpunvme_store_resize(struct gpunvme_store *store, uint64_t nbytes);

/*
 * Memory that is used again and again: registered once, transfers into any part of it go the
 * fastest way without setting anything up (mapped for the controller, pinned by cuFile, …).
 * `ptr` is a multiple of 4, of the kind `mem`: as gpunvme_mem_register() has it. The memory must
 * outlive the registration. A range inside one that is registered counts as another registration of
 * that, which holds until each has been undone; one that overlaps it in part is INVALID. LIMIT: the
 * backend's table is full; UNSUPPORTED by the backend is no error:
 * then transfers go through a bounce buffer. unregister undoes one registration of the range that
 * `ptr` lies in: NOT_FOUND if there is none, BUSY while a transfer uses it.
 */
gpunvme_err_t gpunvme_store_register(struct gpunvme_store *store, void *ptr, size_t nbytes,
                                     enum gpunvme_mem mem);
gpunvme_err_t gpunvme_store_unregister(struct gpunvme_store *store, void *ptr);

/*
 * Reads or writes `nbytes` from byte `offset` of the store on, and returns when it is done. `ptr`
 * is the address that goes with `mem`: the cpu address for HOST and PINNED, the gpu address for
 * GPU. *done gets the number of bytes moved, of which all before it are right.
 *
 * As pread(2) and pwrite(2) do it: a read that meets the end of the store is GPUNVME_OK with fewer
 * bytes, none behind the end; a write behind the end of a file makes it longer, NOSPC when there is
 * no room. With `done` NULL a short read is GPUNVME_ERR_RANGE. A write that does not fit into a
 * store of fixed size is RANGE, and nothing is written. READONLY: not opened for writing. Any other
 * error of the transfer is of the first byte that could not be moved. TIMEOUT: it may still go on,
 * and the memory must stay until the store is closed.
 */
gpunvme_err_t gpunvme_store_read(struct gpunvme_store *store, uint64_t offset, void *ptr,
                                 enum gpunvme_mem mem, size_t nbytes, size_t *done);
gpunvme_err_t gpunvme_store_write(struct gpunvme_store *store, uint64_t offset, const void *ptr,
                                  enum gpunvme_mem mem, size_t nbytes, size_t *done);

/* A piece of memory. */
struct gpunvme_vec {
    void *ptr;
    size_t nbytes;
    enum gpunvme_mem mem;
};

/* The same between one range of the store and `n` pieces of memory, one after the other. */
gpunvme_err_t gpunvme_store_readv(struct gpunvme_store *store, uint64_t offset,
                                  const struct gpunvme_vec *vecs, size_t n, size_t *done);
gpunvme_err_t gpunvme_store_writev(struct gpunvme_store *store, uint64_t offset,
                                   const struct gpunvme_vec *vecs, size_t n, size_t *done);

/* What writes have put there before this call is on the medium when it returns. */
gpunvme_err_t gpunvme_store_flush(struct gpunvme_store *store);

/* ---- Asynchronous ------------------------------------------------------------------------------
 */

enum gpunvme_op {
    GPUNVME_OP_READ = 0,
    GPUNVME_OP_WRITE = 1,
    GPUNVME_OP_FLUSH = 2, /* of writes that have ended; takes no memory */
};

#define GPUNVME_IO_DETAIL 192 /* bytes, the 0 at the end among them */

/*
 * One transfer: the request and the token in one. The caller fills in the first part (the rest is
 * zeroes), keeps it where it is until it has ended, and may use it again then. It ends once, and
 * its end is learned in one way:
 *
 *   - `callback`, if it is set: called by a thread of the library, which it must not hold up, or,
 *     if nothing is to be moved, by the one that submits, before submission returns; it may submit,
 *     but not wait. The io is the caller's again in it;
 *   - else gpunvme_batch_poll(), if it was submitted with a batch;
 *   - else gpunvme_io_test() or gpunvme_io_wait(), by one thread.
 */
struct gpunvme_io {
    enum gpunvme_op op;
    enum gpunvme_mem mem;
    uint64_t offset; /* bytes, in the store */
    void *ptr;       /* cpu address for HOST and PINNED, gpu address for GPU */
    size_t nbytes;
    void (*callback)(struct gpunvme_io *io);
    void *user; /* the caller's own */

    /*
     * What came of it, as gpunvme_store_read() says; valid when it has ended, for any thread that
     * knows that it has. `detail` is of `err`, as gpunvme_err_detail() is of a call's: what exactly
     * went wrong with this transfer, "" without an error. A part of the io like all else here: it
     * stays until the io is submitted again.
     */
    gpunvme_err_t err;
    size_t done;
    char detail[GPUNVME_IO_DETAIL];

    struct {
        struct gpunvme_store *store;
        struct gpunvme_io *next;
        struct gpunvme_batch *batch;
        void *region;        /* registered memory that it uses */
        size_t taken;        /* bytes that workers have taken */
        size_t left;         /* bytes that have not ended */
        size_t stop;         /* where the first piece stopped short */
        gpunvme_err_t why;   /* … and why: 0 is the end of the store */
        uint32_t state;      /* futex word */
        uint64_t scratch[2]; /* the backend's own */
    } priv;                  /* private */
};

/*
 * Submits `n` transfers at once; they end in any order. Either all are submitted, or none and the
 * error says why: INVALID (the detail names the first bad one; one that is in flight is), RANGE,
 * READONLY, CLOSED. What goes wrong with one of them later is told by its own `err` and `detail`.
 * `batch` may be NULL.
 */
gpunvme_err_t gpunvme_store_submit(struct gpunvme_store *store, struct gpunvme_io *ios, size_t n,
                                   struct gpunvme_batch *batch);

/*
 * Does `n` transfers, whose callbacks are not called, and returns when all have ended: the error of
 * the submission, none begun; TIMEOUT, as gpunvme_store_read() has it; else the first of their own.
 */
gpunvme_err_t gpunvme_store_transfer(struct gpunvme_store *store, struct gpunvme_io *ios, size_t n);

/*
 * GPUNVME_ERR_AGAIN while it is in flight, else its error, with io->detail in this thread's
 * gpunvme_err_detail(); STALE: it is not in flight.
 */
gpunvme_err_t gpunvme_io_test(struct gpunvme_io *io);

/* Waits for it: TIMEOUT after timeout_ns (0: the store's), and it is still in flight. */
gpunvme_err_t gpunvme_io_wait(struct gpunvme_io *io, uint64_t timeout_ns);

/*
 * Collects the ends of transfers of one or several stores. Destroy it when all that were submitted
 * with it have been polled: BUSY else.
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
 * Submits a transfer in the order of a CUDA stream (a cudaStream_t; NULL is the default one): it
 * begins when the work before it on that stream has ended, and the work after it when the transfer
 * has ended, well or badly. It has no callback, and its fields stay as they are until then. Its end
 * is learned by gpunvme_io_test() or _wait(); when a synchronisation with the stream returns it has
 * ended. A transfer that has not ended within the store's timeout after it began ends with TIMEOUT
 * and holds up the stream no longer; its memory must stay until the store is closed.
 *
 * While the stream waits, no thread may be in a call of CUDA that locks the context and waits for
 * the stream: the store's threads need the context to copy. So kernels that are launched behind a
 * transfer must be loaded before it is submitted (cudaFuncGetAttributes(), cuFuncLoad(), or
 * CUDA_MODULE_LOADING=EAGER for the process): to load one at its first launch may wait for all
 * streams. Else the transfer ends with TIMEOUT. docs/STORAGE.md has more of it.
 *
 * The first submission for a GPU makes what the store needs there.
 *
 * Errors, with nothing submitted: as gpunvme_store_submit(); NO_GPU; UNSUPPORTED while the stream
 * is being captured into a graph, or where the driver has no waits for memory; AGAIN: 1,024
 * transfers are in streams; what making streams and pinning memory gives. If CUDA fails in the
 * middle (GPU), what is on the stream is in doubt, and the transfer may be in flight: wait for it.
 * If the work before it fails, CUDA never begins it: the store can't be closed then (TIMEOUT), as
 * little as that GPU can be used.
 */
gpunvme_err_t gpunvme_store_submit_on_stream(struct gpunvme_store *store, struct gpunvme_io *io,
                                             void *stream);

/* ---- The way that bytes took -------------------------------------------------------------------
 */

enum gpunvme_route {
    GPUNVME_ROUTE_HOST = 0,   /* between the store and host memory: no GPU in it */
    GPUNVME_ROUTE_P2P = 1,    /* the drive moves them to or from GPU memory by itself */
    GPUNVME_ROUTE_BOUNCE = 2, /* through pinned host memory */
    GPUNVME_ROUTE_COMPAT = 3, /* by cuFile in its compatibility mode */
};
#define GPUNVME_NROUTES 4

struct gpunvme_path {
    const char *backend;
    enum gpunvme_route gpu_route;            /* the best that is open to GPU memory here; HOST
                                                without a GPU, as for all bytes then */
    uint64_t bytes_read[GPUNVME_NROUTES];    /* since it was opened */
    uint64_t bytes_written[GPUNVME_NROUTES]; /* */
    char how[256];     /* what does the work: "io_uring, O_DIRECT, 4 threads, 1 MiB pieces" */
    char why_not[512]; /* each faster way, and why it was not taken; "" if there is none */
};

/* Reports it; all zeroes where `store` is NULL. `require=p2p` (or bounce: that or better)
 * makes gpunvme_open() fail instead of taking a slower way, and each transfer that would have to.
 */
void gpunvme_store_path(struct gpunvme_store *store, struct gpunvme_path *path);

/* "host", "p2p", "bounce", "compat"; static. */
const char *gpunvme_route_name(enum gpunvme_route route);

/* A backend of this build, on this machine. The texts `name` and `uris` are static. */
struct gpunvme_backend_info {
    const char *name; /* as `backend=` has it */
    const char *uris; /* "/path, file:/path" */
    bool works;       /* stores can be opened by it, as far as can be told without opening one */
    char why[256];    /* what it works with, or what it lacks */
};

/* The backends by index, 0 and on; false behind the last. */
bool gpunvme_backend_at(unsigned index, struct gpunvme_backend_info *info);
/* ---- cuFile's driver ----------------------------------------------------------------------------
 *
 * Stores with backend=cufile open it by themselves, which takes a second, and the last one closes
 * it. A program that opens many, one after the other, keeps it open in between.
 */

/*
 * Opens it once more, and writes one line on its mode to `mode` (GPUDirect Storage, or compat mode
 * and why), at most `room` bytes; may be NULL with 0. Errors: UNSUPPORTED (no libcufile), NO_GPU,
 * and what cuFile says, with a remedy.
 */
gpunvme_err_t gpunvme_cufile_open(char *mode, size_t room);

/* Undoes one gpunvme_cufile_open(). */
gpunvme_err_t gpunvme_cufile_close(void);

/* ---- Stripe sets -------------------------------------------------------------------------------
 *
 * Several stores as one (RAID 0): "stripe:URI;URI;…" opens a set, its members in any order. A ';'
 * in a member's URI is written %3B. Options of the set come first: "stripe:?timeout=5s;URI;URI";
 * those of a member are its own. The first MiB of a member holds the set's header; then come its
 * units. All members give as much as the smallest. Nothing is redundant: without one member all
 * is lost.
 */

#define GPUNVME_STRIPE_FORCE 0x1u /* whatever is there now */

#define GPUNVME_STRIPE_UNIT ((uint64_t)128 << 10) /* what create takes for a unit of 0 */

/*
 * Makes a set of `n` stores, 1 to 128, in units of `unit` bytes, a power of two from 4 KiB to 1 GiB
 * (0: GPUNVME_STRIPE_UNIT). Writes zeroes and a header to the first MiB of each; what lies behind
 * is lost as well, sooner or later. Without GPUNVME_STRIPE_FORCE, INVALID where the first MiB of a
 * member is not zero, it has a signature that is known (signature.h), or what it holds can't be
 * told; READONLY where it is an image file that gpunvme did not write; with or without it INVALID
 * where two of them are the same store. Nothing has changed then. URI, RANGE (too small) and the
 * errors of opening, reading and writing a store.
 */
gpunvme_err_t gpunvme_stripe_create(const char *const *uris, size_t n, uint64_t unit,
                                    unsigned flags);

struct gpunvme_stripe_info {
    char uuid[37];          /* of the set */
    uint32_t index, count;  /* which member, of how many */
    uint64_t unit;          /* bytes */
    uint64_t used;          /* bytes of data on each member */
    uint64_t member_nbytes; /* that this one has in all */
};

/* What the header of a member says: INVALID: it has none; VERIFY: damaged; UNSUPPORTED: newer. */
gpunvme_err_t gpunvme_stripe_inspect(const char *uri, struct gpunvme_stripe_info *info);

#ifdef __cplusplus
}
#endif
#endif
