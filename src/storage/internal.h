/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The inside of a store, and the contract of a backend. store.c, io.c, batch.c, region.c, uri.c and
 * route.c are common to all backends; crew.h has the threads that most of them use.
 */
#ifndef STORAGE_INTERNAL_H
#define STORAGE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "gpunvme/storage.h"

#define STORE_TARGET_ROOM 4096 /* PATH_MAX: the longest URI, with the final 0 */

enum store_switch { STORE_AUTO, STORE_ON, STORE_OFF };

/* The options of a URI. uri.c has their table, and which backends know each. */
struct store_options {
    char backend[16]; /* "": by the scheme */
    bool require_set; /* */
    enum gpunvme_route require;
    uint64_t timeout_ns;      /* of calls without a timeout argument */
    uint32_t threads;         /* 0: the backend decides */
    uint64_t chunk_nbytes;    /* of a piece; 0: the backend decides */
    uint32_t depth;           /* pieces in flight per thread; 0: the backend decides */
    enum store_switch direct; /* posix, cufile: O_DIRECT */
    enum store_switch uring;  /* posix: io_uring */
    uint32_t nsid;            /* nvme, spdk; 0: the first one */
};

struct store_uri {
    char *text;      /* as it was given */
    char scheme[16]; /* "file", "nvme", "sim", "vfio-user", "spdk", "stripe" */
    char *target;    /* file: the path. Others: the URI without options and "/nsid" */
    struct store_options options;
    uint64_t given; /* which were: a bit for each row of uri.c's table */
};

/*
 * Parses a URI. Errors: URI, URI_PARAM, NOMEM. For a path without a scheme, the scheme is "file"
 * and the whole text the path. store_uri_free() frees the texts, also after an error.
 */
gpunvme_err_t store_uri_parse(const char *text, struct store_uri *uri);
void store_uri_free(struct store_uri *uri);

/* The URI of a file that is open already: `name` is for messages alone. */
gpunvme_err_t store_uri_of_file(const char *name, const char *options, struct store_uri *uri);

/* Whether the text is a path: it does not begin with a known scheme. */
bool store_uri_is_plain(const char *text);

/* The known scheme that a misspelt one ("nmve:…") is nearest to; NULL: it is near to none. */
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

/* URI_PARAM if an option is not one of this backend's. `backend` is its bit, `name` its name. */
gpunvme_err_t store_uri_check(const struct store_uri *uri, unsigned backend, const char *name);

#define STORE_DOMAINS 64u /* of an engine at a time */

/*
 * A domain is what memory is mapped for: a controller, cuFile, … Stores of an engine that need the
 * same mapping share a domain.
 */
struct store_domain_ops {
    /*
     * Maps memory and sets *priv. UNSUPPORTED: the domain can't reach it, and transfers use a
     * bounce buffer. LIMIT: the domain's table is full. May be called by several threads at once.
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
 * Registered memory of an engine, and its domains. `changes` serialises all changes; while it is
 * held CUDA may be called, which may wait for transfers. So transfers do not take it: `lock`
 * protects the list, in which they look memory up.
 */
struct store_regions {
    pthread_mutex_t changes;
    pthread_rwlock_t lock;
    struct store_region **list; /* by address */
    _Atomic size_t n;           /* 0 is looked for without a lock */
    size_t room;
    struct store_domain domains[STORE_DOMAINS];
};

struct gpunvme_store;

/*
 * A backend. All functions but open and close may be called by several threads at once.
 */
struct store_backend {
    const char *name;
    unsigned option_bit; /* STORE_POSIX, … */

    /*
     * Opens the store that store->uri names. The caller has set store->flags and store->uri, and
     * store->priv has priv_nbytes zeroes. On success open has set block_size, resizable, threads
     * and gpu_route. The caller then checks the option `require` against gpu_route.
     */
    gpunvme_err_t (*open)(struct gpunvme_store *store);
    size_t priv_nbytes;

    /* Frees all but priv, when nothing is in flight; also what a failed open left. May be NULL. */
    gpunvme_err_t (*close)(struct gpunvme_store *store);
    gpunvme_err_t (*size)(struct gpunvme_store *store, uint64_t *nbytes);
    gpunvme_err_t (*resize)(struct gpunvme_store *store, uint64_t nbytes); /* NULL: fixed size */

    /* Passes a hint on. NULL: hints are ignored. */
    gpunvme_err_t (*advise)(struct gpunvme_store *store, uint64_t offset, uint64_t nbytes,
                            enum gpunvme_advice advice);

    /*
     * Starts `n` checked transfers, linked by priv.next, without blocking for long. The backend
     * ends each of them once, now or later, by store_io_end() or in pieces by store_io_piece().
     * NULL: the store's crew serves them.
     */
    void (*submit)(struct gpunvme_store *store, struct gpunvme_io *first, size_t n);

    /* Cancels the part of a transfer that has not begun. NULL: the store's crew does. */
    void (*cancel)(struct gpunvme_store *store, struct gpunvme_io *io);

    /* The length of a transfer's valid prefix. NULL: the store's crew knows it. */
    size_t (*prefix)(struct gpunvme_store *store, const struct gpunvme_io *io);

    /*
     * Does a plain transfer in the calling thread, which waits for nothing else, if that is
     * faster. True: it is done, and io->err and io->done are set; store_io_end() is not called.
     * NULL: never.
     */
    bool (*direct)(struct gpunvme_store *store, struct gpunvme_io *io);

    /*
     * Sets `works` and `why`: whether the backend can be used on this machine. Opens nothing for
     * long. NULL: it always works, and `why` is works_with.
     */
    void (*about)(struct gpunvme_backend_info *info);
    const char *works_with;

    /* The texts of gpunvme_store_path(): `how` and `why_not`, empty before. */
    void (*describe)(struct gpunvme_store *store, struct gpunvme_path *path);
};

#define STORE_LINE 64u /* bytes: what one processor writes often is not beside what others read */

/* Transfers of a store that wait for a crew (crew.h). The crew's lock protects it. */
struct crew_queue {
    /* Set by the backend: */
    size_t piece_nbytes; /* largest piece, a power of two */
    size_t least_nbytes; /* if there would be fewer pieces than lanes, they are made smaller, down
                            to this power of two; 0: never */
    size_t max_in_hand;  /* 0: no limit */
    unsigned most_run;   /* small transfers in a run, if there is no limit; 0: one */
    unsigned nlanes;     /* lanes that may serve it, from first_lane on; 0: all */
    unsigned first_lane;
    /*
     * Ranges of a gather that lie one behind the other in memory may share a piece of up to so many
     * bytes; 0: each is a piece of its own. The backend may change it at any time.
     */
    _Atomic size_t group_nbytes;
    char apart[STORE_LINE];
    /*
     * With bytes that no lane has taken, by priv.next. Small ones lie in runs, of which a lane
     * takes many without a look at each: the first one has the number of them, the others hang on
     * it by priv.in_run. last_in_run, the last of the last run, is NULL if that takes no more.
     */
    struct gpunvme_io *first, *last, *last_in_run;
    struct gpunvme_store *next; /* the store whose turn is next */
    _Atomic size_t in_hand;     /* pieces that lanes have taken and not ended */
};

struct gpunvme_store {
    const struct store_backend *backend;
    struct store_uri uri;
    unsigned flags;
    unsigned nforks; /* store_nforks() when it was opened; see store_is_ours() */
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
    _Atomic bool closing;
    struct crew_queue queue;
    char apart[STORE_LINE];
    _Atomic size_t in_flight;
    _Atomic uint64_t progress; /* transfers that have ended, and pieces of those that go on */
    _Atomic uint64_t moved[2][GPUNVME_NROUTES]; /* bytes by route: read, written */
};

/* UNSUPPORTED in a child of fork(2) that did not open the store: its threads are the parent's. */
gpunvme_err_t store_is_ours(const struct gpunvme_store *store);

/* ---- For backends ---------------------------------------------------------------------------- */

/*
 * Ends a whole transfer. It belongs to the caller again at once: do not touch it afterwards. Here
 * and below, an error's detail is this thread's (base_fail), which the transfer keeps.
 */
void store_io_end(struct gpunvme_io *io, gpunvme_err_t err, size_t done);

/*
 * Ends a part of a transfer that moves bytes: of the `nbytes` bytes from its byte `at` on, `done`
 * were moved. If that is fewer, the store ended there (err is GPUNVME_OK) or an error occurred. The
 * transfer ends with its last part; the first part that stopped short determines its result.
 */
void store_io_piece(struct gpunvme_io *io, size_t at, size_t nbytes, gpunvme_err_t err,
                    size_t done);

/* The two halves of it: a part stopped short at byte `at`; `nbytes` bytes have ended. */
void store_io_stop(struct gpunvme_io *io, size_t at, gpunvme_err_t err);
void store_io_ended(struct gpunvme_io *io, size_t nbytes);

/*
 * For tests: host memory stands in for a GPU that is not there, so routes are reported and required
 * as if it were. Otherwise no route leads to a GPU without one: all bytes are HOST, and `require=`
 * fails. Set before stores are opened.
 */
extern bool store_gpu_stand_in;

/* Counts bytes of a transfer that took a route. In any thread, before the transfer ends. */
void store_moved(struct gpunvme_io *io, enum gpunvme_route route, uint64_t nbytes);

/* Adds the routes that a part of the transfer took. */
static inline void store_io_add_routes(struct gpunvme_io *io, uint32_t routes)
{
    /* Most transfers have one route: looking first spares the others' cache line. */
    if (~__atomic_load_n(&io->routes, __ATOMIC_RELAXED) & routes)
        __atomic_fetch_or(&io->routes, routes, __ATOMIC_RELAXED);
}

/* Appends to a text of `room` bytes as much as fits. STORE_SAY() appends to an array. */
void store_say(char *text, size_t room, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
#define STORE_SAY(text, ...) store_say(text, sizeof(text), __VA_ARGS__)

/* Finds a route to GPU memory by its name, for `require=`. False: there is none of this name. */
bool store_route_of(const char *name, enum gpunvme_route *route);

/*
 * UNSUPPORTED, with a detail, if `require=` forbids this route for memory of this kind. Backends
 * call it before a piece takes the route.
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
 * From now on this thread collects the small transfers that it ends, and reports them to their
 * batches by store_io_tell(), which it must call before it waits for anything.
 */
void store_io_tell_late(void);
void store_io_tell(void);

/* A batch has reported the transfer's completion: it can be submitted again. */
void store_io_polled(struct gpunvme_io *io);

/* One that was submitted with a batch is in flight until it has been polled. */
bool store_io_is_in_flight(const struct gpunvme_io *io);

/* The error with which a submission of these transfers would be refused. */
gpunvme_err_t store_io_check(const struct gpunvme_io *ios, size_t n);

/* Does a transfer in the calling thread if the backend's direct() does it (sync.c). */
bool store_io_run_here(struct gpunvme_io *io);

/* An element of a transfer: one range of the store, and of memory. */
struct store_span {
    uint64_t offset;
    uint8_t *ptr;
    size_t nbytes;
    enum gpunvme_mem mem;
};

/* How many bytes a transfer is to move. */
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

/* Submits transfers that were checked and that `batch` expects, also to stores that are being
 * closed. */
void store_io_start(struct gpunvme_io *ios, size_t n, struct gpunvme_batch *batch);

/* Marks transfers as in flight that others do the work of; store_io_end() ends each. */
void store_io_begin(struct gpunvme_io *ios, size_t n, struct gpunvme_batch *batch);

/* A count that grows while the stores of these transfers move anything. */
uint64_t store_io_progress(const struct gpunvme_io *ios, size_t n);

/*
 * Sleeps while the futex *word is `value`. False: it still is, and the stores of these transfers
 * have moved nothing for timeout_ns.
 */
bool store_io_sleep(uint32_t *word, uint32_t value, const struct gpunvme_io *ios, size_t n,
                    uint64_t timeout_ns);

/* The longest timeout of their stores. */
uint64_t store_io_timeout(const struct gpunvme_io *ios, size_t n);

/* ---- posix/file.c ---------------------------------------------------------------------------- */

/*
 * Opens the file or block device that store->uri names, as store->flags say, and sets resizable and
 * block_size. *fd may be open also after an error. BUSY: a block device that is mounted or
 * otherwise in use is not opened for writing.
 */
gpunvme_err_t store_open_fd(struct gpunvme_store *store, int *fd);

gpunvme_err_t store_fd_size(int fd, bool block_device, uint64_t *nbytes);

/* 0, or an errno. */
int store_fd_flush(int fd);

/* One pread(2) or pwrite(2), repeated after EINTR. Returns bytes or -errno. */
ssize_t store_fd_move(int fd, enum gpunvme_op op, uint8_t *cpu, size_t nbytes, uint64_t offset);

/* ---- worker.c -------------------------------------------------------------------------------- */

/*
 * Creates a thread that blocks all signals but those of its own faults (SIGSEGV, …). Returns 0 or
 * an errno.
 */
int store_start_thread(pthread_t *thread, void *(*main_)(void *), void *arg);

/* ---- region.c -------------------------------------------------------------------------------- */
void store_regions_init(struct store_regions *regions);
void store_regions_free(struct store_regions *regions); /* unmaps and frees them all */
struct store_region *store_regions_hold(struct store_regions *regions, const void *ptr,
                                        size_t nbytes, enum gpunvme_mem mem);
/* Holds a region once more, which is held already, if the memory lies in it. */
bool store_region_hold_too(struct store_region *region, const void *ptr, size_t nbytes,
                           enum gpunvme_mem mem);
void store_region_release(struct store_region *region);
gpunvme_err_t store_regions_add(struct store_regions *regions, void *ptr, size_t nbytes,
                                enum gpunvme_mem mem);
gpunvme_err_t store_regions_remove(struct store_regions *regions, void *ptr);

/*
 * Has a store join the domain with this key, or makes that domain and maps all registered memory
 * that it can reach. If there are too many domains, the store has none. Leave undoes it.
 */
void store_domain_join(struct gpunvme_store *store, const struct store_domain_ops *ops, void *key);
void store_domain_leave(struct gpunvme_store *store);

/* The region's mapping (map()'s *priv) for a store; NULL if there is none, or no region. */
static inline void *store_region_map(const struct gpunvme_store *store, struct store_region *region)
{
    return region && store->domain < STORE_DOMAINS
               ? atomic_load_explicit(&region->maps[store->domain], memory_order_acquire)
               : NULL;
}

/* ---- engine.c -------------------------------------------------------------------------------- */

/* Counts an open store of an engine, and starts its threads. NULL is the process's engine. */
gpunvme_err_t store_engine_enter(struct gpunvme_engine *engine, struct gpunvme_engine **out);
void store_engine_leave(struct gpunvme_engine *engine);
struct store_regions *store_engine_regions(struct gpunvme_engine *engine);

/*
 * Makes everything that serving transfers on this GPU needs: pinned memory, streams, loaded
 * kernels. Called before a transfer is put into a stream, by the thread that submits it. Without it
 * a worker would make these when it first needs them, by calls that may wait for all streams of the
 * context: also for the one that waits for the worker.
 */
gpunvme_err_t store_engine_prepare(struct gpunvme_engine *engine, unsigned gpu);

/* Locks that fork(2) takes, so that a child finds whole what they guard (engine.c). */
extern pthread_mutex_t store_stop_lock, store_details_lock, store_order_lock, nvme_share_lock;

/* How many times fork(2) lies between this process and the first one that used the library. */
unsigned store_nforks(void);

#endif
