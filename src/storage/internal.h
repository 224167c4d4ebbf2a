/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What a store is inside, and what a backend must do. store.c, io.c, batch.c, region.c, uri.c and
 * route.c are common to all backends; crew.h has threads that most of them work with.
 */
#ifndef STORAGE_INTERNAL_H
#define STORAGE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "gpunvme/storage.h"

#define STORE_TARGET_ROOM 4096 /* PATH_MAX: the longest URI, with its 0 */

enum store_switch { STORE_AUTO, STORE_ON, STORE_OFF };

/* What follows '?' in a URI. uri.c has the table, and which backend knows which of them. */
struct store_options {
    char backend[16]; /* "": by the scheme */
    bool require_set; /* */
    enum gpunvme_route require;
    uint64_t timeout_ns;      /* of calls that take none */
    uint32_t threads;         /* 0: the backend decides */
    uint64_t chunk_nbytes;    /* of a piece; 0: likewise */
    uint32_t depth;           /* in flight per thread; 0: likewise */
    enum store_switch direct; /* posix, cufile: O_DIRECT */
    enum store_switch uring;  /* posix: io_uring */
    uint32_t nsid;            /* nvme, spdk; 0: the first one */
};

struct store_uri {
    bool plain;      /* a path without a scheme */
    char *text;      /* as it was given */
    char scheme[16]; /* "file", "nvme", "sim", "vfio-user", "spdk", "stripe" */
    char *target;    /* file: the path. Others: the URI without options and "/nsid" */
    struct store_options options;
    uint64_t given; /* which were: a bit for each row of uri.c's table */
};

/*
 * Takes a URI apart: URI, URI_PARAM, NOMEM. A path without a scheme is "file" and all of it the
 * path. store_uri_free() frees the texts, after an error too.
 */
gpunvme_err_t store_uri_parse(const char *text, struct store_uri *uri);
void store_uri_free(struct store_uri *uri);

/* The URI of a file that was opened already, which `name` is not used for. */
gpunvme_err_t store_uri_of_file(const char *name, const char *options, struct store_uri *uri);

/* Whether it is a path, and no URI: it begins with no scheme that there is. */
bool store_uri_is_plain(const char *text);

/* The scheme that "nmve:…" may have meant; NULL where it is like none. */
const char *store_uri_nearest_scheme(const char *text);

/* Which backends know an option: bits. */
enum {
    STORE_POSIX = 1,
    STORE_CUFILE = 2,
    STORE_NVME = 4,
    STORE_SPDK = 8,
    STORE_STRIPE = 16,
    STORE_ANY = 31,
};

/* URI_PARAM for an option that is known, but not to this backend (a bit), called `name`. */
gpunvme_err_t store_uri_check(const struct store_uri *uri, unsigned backend, const char *name);

#define STORE_DOMAINS 64u /* of an engine at a time */

/*
 * What memory is mapped for: a controller, cuFile, … All stores of an engine that have the same
 * share one.
 */
struct store_domain_ops {
    /*
     * Takes memory in: sets *priv. UNSUPPORTED: out of its reach, transfers go another way. LIMIT:
     * there is no room for it. May be called from several threads at once.
     */
    gpunvme_err_t (*map)(void *key, const struct gpunvme_buf *buf, void **priv);
    void (*unmap)(void *key, void *priv);
};

struct store_domain {
    const struct store_domain_ops *ops; /* NULL: free */
    void *key;                          /* which controller, … */
    unsigned users;                     /* stores */
};

/* Registered memory. `buf` has the addresses that memory.h gave. */
struct store_region {
    struct gpunvme_buf buf;
    uint8_t *ptr; /* as it was registered: the address that goes with buf.mem */
    size_t nbytes;
    _Atomic uint32_t users;              /* transfers that hold it */
    unsigned count;                      /* registrations that it stands for */
    _Atomic(void *) maps[STORE_DOMAINS]; /* by domain; NULL: not mapped */
};

/*
 * Registered memory of an engine, and what it is mapped for. `changes` serialises those who change
 * any of it; they may call CUDA, which may wait for transfers. `lock` is of the list alone, which
 * transfers look into.
 */
struct store_regions {
    pthread_mutex_t changes;
    pthread_rwlock_t lock;
    struct store_region **list; /* by address */
    size_t n, room;
    struct store_domain domains[STORE_DOMAINS];
};

struct gpunvme_store;

/*
 * A backend. All functions may be called from several threads at once, but open and close.
 */
struct store_backend {
    const char *name;
    unsigned option_bit; /* STORE_POSIX, … */

    /*
     * Opens what store->uri names; store->flags and store->uri are set, and store->priv has
     * priv_nbytes zeroes. On success it has set block_size, resizable, threads and gpu_route. The
     * `require` option is checked by the caller, with gpu_route.
     */
    gpunvme_err_t (*open)(struct gpunvme_store *store);
    size_t priv_nbytes;

    /* Nothing is in flight: frees all but priv; after open failed, what there is. NULL: nothing. */
    gpunvme_err_t (*close)(struct gpunvme_store *store);
    gpunvme_err_t (*size)(struct gpunvme_store *store, uint64_t *nbytes);
    gpunvme_err_t (*resize)(struct gpunvme_store *store, uint64_t nbytes); /* NULL: fixed */

    /* A hint; NULL: hints mean nothing. */
    gpunvme_err_t (*advise)(struct gpunvme_store *store, uint64_t offset, uint64_t nbytes,
                            enum gpunvme_advice advice);

    /*
     * Starts `n` checked transfers, linked by priv.next; each is ended once, now or later, by
     * store_io_end() or, in pieces, by store_io_piece(). It does not block for long. NULL: the
     * store's crew serves them.
     */
    void (*submit)(struct gpunvme_store *store, struct gpunvme_io *first, size_t n);

    /* Cancels what has not begun of a transfer. NULL: the store's crew does. */
    void (*cancel)(struct gpunvme_store *store, struct gpunvme_io *io);

    /* The length of a transfer's valid prefix. NULL: the store's crew knows it. */
    size_t (*prefix)(struct gpunvme_store *store, const struct gpunvme_io *io);

    /*
     * A plain transfer of a thread that waits for nothing else: true when it has been done in the
     * caller's own thread, with io->err and io->done filled in (no store_io_end). NULL: never.
     */
    bool (*direct)(struct gpunvme_store *store, struct gpunvme_io *io);

    /*
     * Sets `works` and `why`: whether it can be used here at all. Opens nothing for long. NULL: it
     * always can, and works_with is what it says.
     */
    void (*about)(struct gpunvme_backend_info *info);
    const char *works_with;

    /* The texts of gpunvme_store_path(): `how` and `why_not`, empty before. */
    void (*describe)(struct gpunvme_store *store, struct gpunvme_path *path);
};

/* Transfers of a store that wait for a crew, whose lock guards it; crew.h. */
struct crew_queue {
    struct gpunvme_io *first, **last; /* with bytes that nobody has taken, by priv.next */
    struct gpunvme_store *next;       /* whose turn it is after this one's */
    _Atomic size_t in_hand;           /* pieces that lanes have taken and not ended */
    /* Set by the backend: */
    size_t piece_nbytes; /* of a piece, at most: a power of two */
    size_t least_nbytes; /* pieces are smaller, a power of two and so much at least, while there
                            would be fewer than lanes; 0: never */
    size_t max_in_hand;  /* 0: no limit */
    unsigned nlanes;     /* that may serve it, from first_lane on; 0: all */
    unsigned first_lane;
};

struct gpunvme_store {
    const struct store_backend *backend;
    struct store_uri uri;
    unsigned flags;
    unsigned nforks; /* of this process's forebears when it was opened: store_is_ours() */
    struct gpunvme_engine *engine;
    struct crew *crew; /* that serves it; NULL: backend->submit */
    void *priv;        /* the backend's */
    unsigned domain;   /* of the engine's regions; STORE_DOMAINS: none */
    uint32_t block_size;
    bool resizable;
    int given_fd; /* gpunvme_open_fd(); -1: none. While it is being opened */
    dev_t dev;    /* which file it is; 0, 0: none of the kernel's */
    ino_t ino;
    uint32_t threads;
    enum gpunvme_route gpu_route;
    struct crew_queue queue;
    _Atomic size_t in_flight;
    _Atomic uint64_t progress; /* counts pieces that have ended */
    _Atomic bool closing;
    _Atomic uint64_t moved[2][GPUNVME_NROUTES]; /* bytes by route: read, written */
};

/*
 * UNSUPPORTED in a child that has the store from before fork(2): it has none of the threads that
 * serve it.
 */
gpunvme_err_t store_is_ours(const struct gpunvme_store *store);

/* ---- For backends ---------------------------------------------------------------------------- */

/*
 * Ends a transfer as a whole. It is the caller's again at once: touch it no more. The detail of an
 * error is this thread's (base_fail), here and below; the transfer keeps it.
 */
void store_io_end(struct gpunvme_io *io, gpunvme_err_t err, size_t done);

/*
 * Ends a part of a transfer that moves bytes: `nbytes` bytes from byte `at` of it on were asked
 * for, `done` of them moved; fewer mean that the store ended there (err is GPUNVME_OK), or an
 * error. When all parts have ended the transfer has, as the first of them that stopped short says.
 */
void store_io_piece(struct gpunvme_io *io, size_t at, size_t nbytes, gpunvme_err_t err,
                    size_t done);

/* The two halves of it: a part stopped short at this byte, by an error or 0; so many bytes ended.
 */
void store_io_stop(struct gpunvme_io *io, size_t at, gpunvme_err_t err);
void store_io_ended(struct gpunvme_io *io, size_t nbytes);

/*
 * For tests: host memory stands in for a GPU that is not there, so routes are reported and required
 * as if it were. Otherwise no route leads to a GPU without one: all bytes are HOST, and `require=`
 * fails. Set before stores are opened.
 */
extern bool store_gpu_stand_in;

/* Counts bytes of a transfer that have taken a route; from any thread, before its end is told. */
void store_moved(struct gpunvme_io *io, enum gpunvme_route route, uint64_t nbytes);

/* Adds the routes of one that did a part of it. */
static inline void store_io_add_routes(struct gpunvme_io *io, uint32_t routes)
{
    /* Most transfers have one route: looking first spares the others' cache line. */
    if (~__atomic_load_n(&io->routes, __ATOMIC_RELAXED) & routes)
        __atomic_fetch_or(&io->routes, routes, __ATOMIC_RELAXED);
}

/* Adds to a text of `room` bytes, as much as fits; STORE_SAY(): to an array. */
void store_say(char *text, size_t room, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
#define STORE_SAY(text, ...) store_say(text, sizeof(text), __VA_ARGS__)

/* A route by name, for `require=`. False: none is called so that GPU memory can ask for. */
bool store_route_of(const char *name, enum gpunvme_route *route);

/*
 * UNSUPPORTED, with a detail, where `require=` forbids this route for memory of this kind. To be
 * asked before a piece goes that way.
 */
gpunvme_err_t store_allows(const struct gpunvme_store *store, enum gpunvme_mem mem,
                           enum gpunvme_route route);

/* ---- Backends, by URI scheme ----------------------------------------------------------------- */

extern const struct store_backend store_posix;
extern const struct store_backend store_cufile;
extern const struct store_backend store_spdk;
extern const struct store_backend store_nvme;
extern const struct store_backend store_stripe;

/* ---- io.c ------------------------------------------------------------------------------------ */

/* The error of a transfer that has ended, with its store's name in this thread's detail. */
gpunvme_err_t store_tell_of(const struct gpunvme_io *io);

/* Sets an error of a transfer, with this thread's detail. */
void store_io_blame(struct gpunvme_io *io, gpunvme_err_t err);

/*
 * From now on batches learn of the small transfers that this thread ends when it calls
 * store_io_tell(), which it does before it waits for anything.
 */
void store_io_tell_late(void);
void store_io_tell(void);

/* Its end has been told, by a batch or else: it may be submitted again. */
void store_io_polled(struct gpunvme_io *io);

/* With a batch: until it has been polled, since the batch holds it in a list. */
bool store_io_is_in_flight(const struct gpunvme_io *io);

/* What a submission would refuse of them. */
gpunvme_err_t store_io_check(const struct gpunvme_io *ios, size_t n);

/* Does a transfer in the caller's own thread, where the backend would have it (sync.c). */
bool store_io_run_here(struct gpunvme_io *io);

/* An element of a transfer: one range of the store, and of memory. */
struct store_span {
    uint64_t offset;
    uint8_t *ptr;
    size_t nbytes;
    enum gpunvme_mem mem;
};

/* How many bytes it is about. */
size_t store_io_total(const struct gpunvme_io *io);

/* How many elements a transfer that moves bytes has. */
static inline size_t store_io_nspans(const struct gpunvme_io *io)
{
    return io->vecs || io->offsets ? io->n : 1;
}

/* Element `k`, which begins `at` bytes behind the transfer's beginning. */
static inline struct store_span store_io_span(const struct gpunvme_io *io, size_t k, size_t at)
{
    if (io->vecs)
        return (struct store_span){io->offset + at, io->vecs[k].ptr, io->vecs[k].nbytes,
                                   io->vecs[k].mem};
    if (io->offsets)
        return (struct store_span){io->offsets[k], (uint8_t *)io->ptr + k * io->stride, io->nbytes,
                                   io->mem};
    return (struct store_span){io->offset, io->ptr, io->nbytes, io->mem};
}

/* Submits what was checked before, and what `batch` expects, in stores that wait for it to be
 * closed as well. */
void store_io_start(struct gpunvme_io *ios, size_t n, struct gpunvme_batch *batch);

/* Transfers that others stand for; each is ended by store_io_end(). */
void store_io_begin(struct gpunvme_io *ios, size_t n, struct gpunvme_batch *batch);

/* Counts up as long as their stores move anything. */
uint64_t store_io_progress(const struct gpunvme_io *ios, size_t n);

/* Around fork(2): no thread is amid what all transfers have in common. */
void store_io_before_fork(void);
void store_io_after_fork(void);

/*
 * Sleeps while *word, a futex, is `value`. False: it still is, and nothing has moved for the stores
 * of these transfers for so long.
 */
bool store_io_sleep(uint32_t *word, uint32_t value, const struct gpunvme_io *ios, size_t n,
                    uint64_t timeout_ns);

/* The longest timeout of their stores. */
uint64_t store_io_timeout(const struct gpunvme_io *ios, size_t n);

/* ---- posix/file.c ---------------------------------------------------------------------------- */

/*
 * Opens the file or block device that store->uri names, as store->flags say; sets resizable and
 * block_size. *fd may be open after an error, too. BUSY: a block device that is mounted or in use
 * otherwise is not opened for writing.
 */
gpunvme_err_t store_open_fd(struct gpunvme_store *store, int *fd);

gpunvme_err_t store_fd_size(int fd, bool block_device, uint64_t *nbytes);

/* 0, or an errno. */
int store_fd_flush(int fd);

/* One read or write at once, through the page cache or past it; -errno, or bytes. Not EINTR. */
ssize_t store_fd_move(int fd, enum gpunvme_op op, uint8_t *cpu, size_t nbytes, uint64_t offset);

/* ---- worker.c -------------------------------------------------------------------------------- */

/*
 * pthread_create() of a thread that gets no signals of the program's, but those of faults that it
 * makes itself. 0 or an errno.
 */
int store_start_thread(pthread_t *thread, void *(*main_)(void *), void *arg);

/* ---- region.c -------------------------------------------------------------------------------- */
void store_regions_init(struct store_regions *regions);
void store_regions_free(struct store_regions *regions); /* unmaps and frees them all */
struct store_region *store_regions_hold(struct store_regions *regions, const void *ptr,
                                        size_t nbytes, enum gpunvme_mem mem);
/* The same, of one that is held already: true, if the memory lies in it. */
bool store_region_hold_too(struct store_region *region, const void *ptr, size_t nbytes,
                           enum gpunvme_mem mem);
void store_region_release(struct store_region *region);
gpunvme_err_t store_regions_add(struct store_regions *regions, void *ptr, size_t nbytes,
                                enum gpunvme_mem mem);
gpunvme_err_t store_regions_remove(struct store_regions *regions, void *ptr);

/*
 * A store joins the domain with this key, or makes it: then all memory that is registered is
 * mapped, as far as that goes. Where there are too many domains it has none. Leave undoes it.
 */
void store_domain_join(struct gpunvme_store *store, const struct store_domain_ops *ops, void *key);
void store_domain_leave(struct gpunvme_store *store);

/* What map() made of a region for a store; NULL: it is not mapped, or there is no region. */
static inline void *store_region_map(const struct gpunvme_store *store, struct store_region *region)
{
    return region && store->domain < STORE_DOMAINS
               ? atomic_load_explicit(&region->maps[store->domain], memory_order_acquire)
               : NULL;
}

/* ---- engine.c -------------------------------------------------------------------------------- */

/* A store is opened or closed on it; NULL is the process's, made now. */
gpunvme_err_t store_engine_enter(struct gpunvme_engine *engine, struct gpunvme_engine **out);
void store_engine_leave(struct gpunvme_engine *engine);
struct store_regions *store_engine_regions(struct gpunvme_engine *engine);

/*
 * A transfer is about to be put into a stream, in the thread that submits it. Makes what serving
 * transfers on this GPU takes and would else be made when it is first needed: pinned memory,
 * streams, loaded kernels. The calls for these may wait for all streams of the context, and one of
 * them will wait for the transfer: its worker, whatever else it serves, must not make them.
 */
gpunvme_err_t store_engine_prepare(struct gpunvme_engine *engine, unsigned gpu);

/* How many forks lie between this process and the first that used this library. */
unsigned store_nforks(void);

#endif
