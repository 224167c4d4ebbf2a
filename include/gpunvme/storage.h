/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Stores. A store is a range of bytes, opened by URI: a file, a block device, a namespace of an
 * NVMe drive, or several of them as one. Reads and writes of any offset and length move bytes to
 * and from host, pinned or GPU memory. gpunvme_store_path() reports the route that they took.
 *
 *     gpunvme_open("file:/data/weights.bin", 0, &store);
 *     gpunvme_store_read(store, offset, gpu_ptr, GPUNVME_MEM_GPU, nbytes, &done);
 *     gpunvme_close(store);
 *
 * URIs (docs/STORAGE.md): a plain path or "file:/path" names a file or a block device of the
 * kernel; "nvme:BDF/nsid", "vfio-user:/socket" and "sim:…" name a namespace that this library
 * drives; "spdk:…" names one that SPDK drives; "stripe:URI;URI…" combines several stores. Options
 * follow a '?' as "key=value,key=value". A plain path has no options and may contain '?'.
 *
 * This header has stores and blocking calls. transfer.h has asynchronous transfers, batches and
 * CUDA's order; engine.h has the engines that serve stores, and registered memory.
 *
 * Threads: all functions may be called from several threads at once, also on the same store. Only
 * gpunvme_close() and gpunvme_batch_destroy() must not run beside other calls on the store or batch
 * that they free. If transfers in flight overlap and one is a write, the overlapping bytes are
 * undefined.
 *
 * fork(2): the threads that serve stores do not exist in the child. There, transfers of a store
 * that the parent opened, and gpunvme_close() on it, return UNSUPPORTED at once. The child can open
 * stores of its own.
 *
 * Deadlines: every call that waits returns TIMEOUT when nothing has moved for its timeout. Calls
 * without a timeout argument use the store's option `timeout` (30 s).
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

/* Flags of gpunvme_open(). 0 opens read-only; all flags but WRITE need WRITE. */
#define GPUNVME_OPEN_WRITE    0x1u /* opens for reading and writing */
#define GPUNVME_OPEN_CREATE   0x2u /* creates a file that does not exist; other stores must exist */
#define GPUNVME_OPEN_FORCE    0x4u /* opens an image (sim:image=) that holds foreign data */
#define GPUNVME_OPEN_TRUNCATE 0x8u /* empties the file; INVALID for other stores */
#define GPUNVME_OPEN_EXCL     0x10u /* with CREATE: EXISTS if the file exists; INVALID for others */

/*
 * Opens a store. The caller owns *out and closes it with gpunvme_close(). With WRITE, a block
 * device that is mounted or otherwise in use is BUSY, and an image file with data that gpunvme did
 * not write is READONLY without FORCE. Errors: URI, URI_PARAM (the detail suggests a similar one),
 * NOT_FOUND, EXISTS, PERMISSION, READONLY, BUSY, NO_NAMESPACE, UNSUPPORTED (the backend is not in
 * this build, or the route that `require=` asks for is not available: the detail says why), and
 * those of bringing up a controller.
 */
gpunvme_err_t gpunvme_open(const char *uri, unsigned flags, struct gpunvme_store **out);

/* gpunvme_open() on an engine of the caller's, which must outlive the store. NULL is the process's
 * engine. */
gpunvme_err_t gpunvme_open_on(struct gpunvme_engine *engine, const char *uri, unsigned flags,
                              struct gpunvme_store **out);

/*
 * Opens the file or block device that a descriptor refers to. The descriptor stays the caller's;
 * the store does not need it after this call. WRITE is the only flag, and the descriptor must be
 * open for writing, else the error is READONLY or PERMISSION. `name` stands for the store in errors
 * and in gpunvme_store_get_info(); NULL is "fd:N". `options` are those of a URI, without the '?',
 * or NULL.
 */
gpunvme_err_t gpunvme_open_fd(struct gpunvme_engine *engine, int fd, const char *name,
                              const char *options, unsigned flags, struct gpunvme_store **out);

/*
 * Waits until all transfers of the store have ended, and frees it. NULL is allowed. TIMEOUT: a
 * transfer did not end within the store's timeout; the store stays open, and can be closed later.
 * UNSUPPORTED: the store was opened before fork(2); nothing was done. After any other error, which
 * is the backend's, the store is freed.
 */
gpunvme_err_t gpunvme_close(struct gpunvme_store *store);

struct gpunvme_store_info {
    const char *backend; /* "posix", "cufile", "nvme", "spdk", "stripe" */
    const char *uri;     /* as it was opened */
    uint32_t block_size; /* bytes; transfers of whole, aligned blocks are fastest */
    bool writable;       /* opened for writing */
    bool resizable;      /* a file: writes beyond its end extend it */
    uint32_t threads;    /* serve this store; files share them (docs/STORAGE.md) */
    uint64_t timeout_ns; /* of calls without a timeout argument */
};

/* Describes a store; all zeroes if `store` is NULL. The texts are valid while it is open. */
void gpunvme_store_get_info(struct gpunvme_store *store, struct gpunvme_store_info *info);

/* The engine that the store was opened on. For the process's engine too this is a pointer, not
 * NULL. */
struct gpunvme_engine *gpunvme_store_engine(struct gpunvme_store *store);

/* The size in bytes at this moment; a file's may change. */
gpunvme_err_t gpunvme_store_size(struct gpunvme_store *store, uint64_t *nbytes);

/* Extends a file with zeroes, or shortens it. UNSUPPORTED for stores of fixed size. */
gpunvme_err_t gpunvme_store_resize(struct gpunvme_store *store, uint64_t nbytes);

/* How the caller is going to use a range, as posix_fadvise(2) has it. It affects speed only. */
enum gpunvme_advice {
    GPUNVME_ADVICE_NORMAL = 0,
    GPUNVME_ADVICE_SEQUENTIAL = 1, /* reads it from beginning to end */
    GPUNVME_ADVICE_RANDOM = 2,     /* reads it in random order */
    GPUNVME_ADVICE_WILL_NEED = 3,  /* reads it soon: the page cache may fetch it now */
    GPUNVME_ADVICE_DONT_NEED = 4,  /* does not read it again: the page cache may drop it */
};

/*
 * Advises on the `nbytes` bytes from byte `offset` on; 0 bytes: to the end of the store. Stores
 * other than files ignore it.
 */
gpunvme_err_t gpunvme_store_advise(struct gpunvme_store *store, uint64_t offset, uint64_t nbytes,
                                   enum gpunvme_advice advice);

/*
 * Reads or writes `nbytes` bytes from byte `offset` of the store on, and waits until that is done.
 * `ptr` is the cpu address for HOST and PINNED, the gpu address for GPU. *done is the length of the
 * valid prefix, in bytes; the bytes behind it are undefined.
 *
 * The semantics are those of pread(2) and pwrite(2). A read that reaches the end of the store
 * returns GPUNVME_OK with fewer bytes; a read behind the end returns 0 bytes. If `done` is NULL, a
 * short read is RANGE. A write beyond the end of a file extends it, or is NOSPC. A write that does
 * not fit into a store of fixed size is RANGE, and nothing is written. READONLY: the store was not
 * opened for writing. Any other error is that of the first byte that could not be moved.
 *
 * TIMEOUT: nothing has moved for the store's timeout. The pieces that had not begun are canceled.
 * Those that had begun may still go on, so the memory must stay valid until gpunvme_close() has
 * succeeded.
 */
gpunvme_err_t gpunvme_store_read(struct gpunvme_store *store, uint64_t offset, void *ptr,
                                 enum gpunvme_mem mem, size_t nbytes, size_t *done);
gpunvme_err_t gpunvme_store_write(struct gpunvme_store *store, uint64_t offset, const void *ptr,
                                  enum gpunvme_mem mem, size_t nbytes, size_t *done);

/* The same between one range of the store and `n` pieces of memory in turn. */
gpunvme_err_t gpunvme_store_readv(struct gpunvme_store *store, uint64_t offset,
                                  const struct gpunvme_vec *vecs, size_t n, size_t *done);
gpunvme_err_t gpunvme_store_writev(struct gpunvme_store *store, uint64_t offset,
                                   const struct gpunvme_vec *vecs, size_t n, size_t *done);

/*
 * The same for `n` ranges of `nbytes` bytes each, such as a batch of samples. Range i begins at
 * byte offsets[i] of the store and at ptr + i * stride in memory, all of the kind `mem`. For
 * gpunvme_store_gather(), `stride` is at least `nbytes`. *done counts in the order of the ranges.
 */
gpunvme_err_t gpunvme_store_gather(struct gpunvme_store *store, const uint64_t *offsets, size_t n,
                                   size_t nbytes, void *ptr, size_t stride, enum gpunvme_mem mem,
                                   size_t *done);
gpunvme_err_t gpunvme_store_scatter(struct gpunvme_store *store, const uint64_t *offsets, size_t n,
                                    size_t nbytes, const void *ptr, size_t stride,
                                    enum gpunvme_mem mem, size_t *done);

/* Waits until the bytes of all writes that ended before this call are on the medium. */
gpunvme_err_t gpunvme_store_flush(struct gpunvme_store *store);

/* ---- Routes ------------------------------------------------------------------------------------
 */

enum gpunvme_route {
    GPUNVME_ROUTE_HOST = 0,   /* to or from host memory, without a GPU */
    GPUNVME_ROUTE_P2P = 1,    /* the drive reads or writes GPU memory directly */
    GPUNVME_ROUTE_BOUNCE = 2, /* to or from GPU memory through pinned host memory */
    GPUNVME_ROUTE_COMPAT = 3, /* by cuFile, which may copy through host memory and does not tell */
};
#define GPUNVME_NROUTES 4

struct gpunvme_path {
    const char *backend;
    enum gpunvme_route gpu_route;            /* the best one for GPU memory; HOST if there is no
                                                GPU, as for all bytes then */
    uint64_t bytes_read[GPUNVME_NROUTES];    /* by each route, since the store was opened */
    uint64_t bytes_written[GPUNVME_NROUTES]; /* likewise */
    char how[256];     /* how it works: "io_uring, O_DIRECT, 4 threads, 1 MiB pieces" */
    char why_not[512]; /* each faster route, and why it is not taken; "" if there is none */
};

/*
 * Reports the routes that the store's bytes took; all zeroes if `store` is NULL. To demand a route,
 * open the store with `require=`: `require=bounce` allows bounce and p2p. gpunvme_open() then
 * fails if that route is not available, and so does each transfer that would take a slower one.
 */
void gpunvme_store_path(struct gpunvme_store *store, struct gpunvme_path *path);

/* "host", "p2p", "bounce" or "compat"; static. */
const char *gpunvme_route_name(enum gpunvme_route route);

/* A backend, and whether it works on this machine. `name` and `uris` are static. */
struct gpunvme_backend_info {
    const char *name; /* the value of `backend=` */
    const char *uris; /* "/path, file:/path" */
    bool works;       /* as far as can be told without opening a store */
    char why[256];    /* what it works with, or what it lacks */
};

/* Describes the backend number `index`, counted from 0. Returns false behind the last one. */
bool gpunvme_backend_at(unsigned index, struct gpunvme_backend_info *info);

/* ---- cuFile's driver ---------------------------------------------------------------------------
 *
 * The first store with backend=cufile opens cuFile's driver, which takes a second, and the last one
 * closes it. A program that opens one such store after the other can keep the driver open.
 */

/*
 * Opens the driver, or counts one more use of it. Writes one line about its mode to `mode`
 * (GPUDirect Storage, or compat mode and why), at most `room` bytes; `mode` may be NULL with 0.
 * Errors: UNSUPPORTED (no libcufile), NO_GPU, and cuFile's own, with a remedy.
 */
gpunvme_err_t gpunvme_cufile_open(char *mode, size_t room);

/* Ends one use of the driver. The last one closes it. */
gpunvme_err_t gpunvme_cufile_close(void);

/* ---- Stripe sets -------------------------------------------------------------------------------
 *
 * A stripe set combines several stores (RAID 0). "stripe:URI;URI;…" opens one; its members may be
 * in any order. A ';' in a member's URI is written %3B. Options of the set come before the members:
 * "stripe:?timeout=5s;URI;URI". The first MiB of each member holds the set's header, and its units
 * follow. Each member contributes as much as the smallest one has. There is no redundancy: if a
 * member is lost, so is the set.
 */

#define GPUNVME_STRIPE_FORCE 0x1u /* overwrites what the members hold */

#define GPUNVME_STRIPE_UNIT ((uint64_t)128 << 10) /* bytes; the default */

/*
 * Makes a set of `n` stores (1 to 128) with units of `unit` bytes, a power of two from 4 KiB to
 * 1 GiB; 0 is GPUNVME_STRIPE_UNIT. It writes zeroes and a header to the first MiB of each member.
 * Writes to the set overwrite the rest.
 *
 * After an error the members hold what they held before. Errors: INVALID if two members are the
 * same store. Without GPUNVME_STRIPE_FORCE, INVALID if the first MiB of a member is not zero, if
 * the member has a known signature (signature.h), or if its contents can't be determined; and
 * READONLY for an image file that gpunvme did not write. URI, RANGE (a member is too small), and
 * those of opening, reading and writing a store.
 */
gpunvme_err_t gpunvme_stripe_create(const char *const *uris, size_t n, uint64_t unit,
                                    unsigned flags);

struct gpunvme_stripe_info {
    char uuid[37];          /* of the set */
    uint32_t index, count;  /* this member's index, and the number of members */
    uint64_t unit;          /* bytes */
    uint64_t used;          /* bytes of data on each member */
    uint64_t member_nbytes; /* size of this member */
};

/*
 * Reads the header of a member. Errors: INVALID (it has none), VERIFY (damaged), UNSUPPORTED (of a
 * newer version), and those of opening and reading a store.
 */
gpunvme_err_t gpunvme_stripe_inspect(const char *uri, struct gpunvme_stripe_info *info);

#ifdef __cplusplus
}
#endif
#endif
