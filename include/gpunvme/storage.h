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
 * This header has stores and calls that return when all is done. transfer.h has asynchronous
 * transfers, batches and CUDA's order; engine.h has what serves stores, and registered memory.
 *
 * Threads: all functions may be called from several threads at once, on the same store too;
 * gpunvme_close() and gpunvme_batch_destroy() exclude other calls on what they end. Transfers in
 * flight at the same time that overlap, one of them a write, leave either's bytes.
 *
 * After fork(2) the child has none of the threads that serve stores. There, transfers of a store
 * that was opened before, and gpunvme_close(), return UNSUPPORTED; the child opens stores of its
 * own.
 *
 * Nothing waits for ever: calls that wait return TIMEOUT when nothing has moved for `timeout` (an
 * option, 30 s) where they take no time of their own.
 */
#ifndef GPUNVME_STORAGE_H
#define GPUNVME_STORAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpunvme/buf.h"
#include "gpunvme/engine.h"
#include "gpunvme/error.h"
#include "gpunvme/transfer.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gpunvme_store;

/* Flags of gpunvme_open(); 0: read only. */
#define GPUNVME_OPEN_WRITE    0x1u  /* for reading and writing; the others need it */
#define GPUNVME_OPEN_CREATE   0x2u  /* makes the file if there is none; others must be there */
#define GPUNVME_OPEN_FORCE    0x4u  /* writes to an image (sim:image=) that holds data of others */
#define GPUNVME_OPEN_TRUNCATE 0x8u  /* makes the file empty; INVALID for all but files */
#define GPUNVME_OPEN_EXCL     0x10u /* with CREATE: EXISTS if the file is there; likewise */

/*
 * Opens a store; *out is the caller's, to be given to gpunvme_close(). With WRITE, a block device
 * is BUSY if it is mounted or otherwise in use, and an image file that holds data that gpunvme did
 * not write is READONLY without FORCE. Errors: URI, URI_PARAM (the detail says what is possible),
 * NOT_FOUND, EXISTS, PERMISSION, READONLY, BUSY, NO_NAMESPACE, UNSUPPORTED (the backend is not in
 * this build, or `require=` asks for a way that there is not: the detail says why), and what
 * bringing up a controller gives.
 */
gpunvme_err_t gpunvme_open(const char *uri, unsigned flags, struct gpunvme_store **out);

/* gpunvme_open() on an engine of the caller's, which must outlive the store; NULL: the process's.
 */
gpunvme_err_t gpunvme_open_on(struct gpunvme_engine *engine, const char *uri, unsigned flags,
                              struct gpunvme_store **out);

/*
 * Opens what a descriptor of a file or block device is open on: a store of its own, the descriptor
 * stays the caller's and may be closed. WRITE is the only flag, and the descriptor must be open for
 * it: READONLY or PERMISSION else. `name` is what errors and gpunvme_store_get_info() call it;
 * NULL: "fd:N". `options` are a URI's, without the '?'; may be NULL.
 */
gpunvme_err_t gpunvme_open_fd(struct gpunvme_engine *engine, int fd, const char *name,
                              const char *options, unsigned flags, struct gpunvme_store **out);

/*
 * Waits for what is in flight, and frees the store. TIMEOUT, after
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

/* The engine that it was opened on; the process's is not NULL here. */
struct gpunvme_engine *gpunvme_store_engine(struct gpunvme_store *store);

/* Its size now, in bytes: that of a file may change. */
gpunvme_err_t gpunvme_store_size(struct gpunvme_store *store, uint64_t *nbytes);

/* Makes a file longer, with zeroes, or shorter. UNSUPPORTED where the size is fixed. */
gpunvme_err_t gpunvme_store_resize(struct gpunvme_store *store, uint64_t nbytes);

/* What the caller is going to do. Hints: nothing depends on them but speed. */
enum gpunvme_advice {
    GPUNVME_ADVICE_NORMAL = 0,
    GPUNVME_ADVICE_SEQUENTIAL = 1, /* reads the range from the beginning to the end */
    GPUNVME_ADVICE_RANDOM = 2,     /* in no order */
    GPUNVME_ADVICE_WILL_NEED = 3,  /* soon: a file's bytes are fetched into the page cache */
    GPUNVME_ADVICE_DONT_NEED = 4,  /* not any more: they may leave the page cache */
};

/* For `nbytes` from byte `offset` on; 0: to the end. Where hints mean nothing it does nothing. */
gpunvme_err_t gpunvme_store_advise(struct gpunvme_store *store, uint64_t offset, uint64_t nbytes,
                                   enum gpunvme_advice advice);

/*
 * Reads or writes `nbytes` from byte `offset` of the store on, and returns when it is done. `ptr`
 * is the address that goes with `mem`: the cpu address for HOST and PINNED, the gpu address for
 * GPU. *done gets the length of the valid prefix: so many bytes from the beginning on were moved;
 * what lies behind them is undefined.
 *
 * As pread(2) and pwrite(2) do it: a read that meets the end of the store is GPUNVME_OK with fewer
 * bytes, none behind the end; a write behind the end of a file makes it longer, NOSPC when there is
 * no room. With `done` NULL a short read is GPUNVME_ERR_RANGE. A write that does not fit into a
 * store of fixed size is RANGE, and nothing is written. READONLY: not opened for writing. Any other
 * error of the transfer is of the first byte that could not be moved. TIMEOUT: nothing has moved
 * for the store's timeout. What had not begun is canceled; what had may still go on, so the memory
 * must stay until the store is closed.
 */
gpunvme_err_t gpunvme_store_read(struct gpunvme_store *store, uint64_t offset, void *ptr,
                                 enum gpunvme_mem mem, size_t nbytes, size_t *done);
gpunvme_err_t gpunvme_store_write(struct gpunvme_store *store, uint64_t offset, const void *ptr,
                                  enum gpunvme_mem mem, size_t nbytes, size_t *done);

/* The same between one range of the store and `n` pieces of memory, one after the other. */
gpunvme_err_t gpunvme_store_readv(struct gpunvme_store *store, uint64_t offset,
                                  const struct gpunvme_vec *vecs, size_t n, size_t *done);
gpunvme_err_t gpunvme_store_writev(struct gpunvme_store *store, uint64_t offset,
                                   const struct gpunvme_vec *vecs, size_t n, size_t *done);

/*
 * The same between `n` ranges of `nbytes` bytes of the store, range i from offsets[i] on, and
 * memory of one kind, range i at ptr + i * stride: a batch of samples by one call. `stride` is at
 * least `nbytes` for gather. *done counts in the order of the ranges.
 */
gpunvme_err_t gpunvme_store_gather(struct gpunvme_store *store, const uint64_t *offsets, size_t n,
                                   size_t nbytes, void *ptr, size_t stride, enum gpunvme_mem mem,
                                   size_t *done);
gpunvme_err_t gpunvme_store_scatter(struct gpunvme_store *store, const uint64_t *offsets, size_t n,
                                    size_t nbytes, const void *ptr, size_t stride,
                                    enum gpunvme_mem mem, size_t *done);

/* What writes have put there before this call is on the medium when it returns. */
gpunvme_err_t gpunvme_store_flush(struct gpunvme_store *store);

/* ---- The way that bytes took -------------------------------------------------------------------
 */

enum gpunvme_route {
    GPUNVME_ROUTE_HOST = 0,   /* between the store and host memory: no GPU in it */
    GPUNVME_ROUTE_P2P = 1,    /* the drive moves them to or from GPU memory by itself */
    GPUNVME_ROUTE_BOUNCE = 2, /* through pinned host memory */
    GPUNVME_ROUTE_COMPAT = 3, /* by cuFile, through host memory or perhaps so: it does not tell */
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
