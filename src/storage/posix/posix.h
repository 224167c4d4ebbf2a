/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The posix backend inside: files and block devices of the kernel.
 *
 *   posix.c    the backend: open, close, what it says of itself
 *   engine.c   what all files of an engine share: a crew, and slots of pinned memory
 *   file.c     descriptors, what the file system can do, calls that move bytes at once
 *   uring.c    a ring of io_uring for each lane
 *   ring.c     pinned memory in slots, and copies between it and the GPU
 *   fill.c     writes into files in memory
 *   gate.c     writes past the page cache and through it, in turns
 *   work.c     the lane: takes pieces, starts them, looks what has ended
 *   request.c  what it asks the kernel for
 *   slot.c     pieces in slots
 *   direct.c   small transfers in the caller's own thread
 *
 * A read for host memory goes straight to where it belongs. One for GPU memory goes into a slot of
 * pinned memory, several small ones into the same, and from there by the copy engine, while the
 * next slot is being filled. Writes do the same the other way round.
 *
 * Where the bytes of a file are decides who fetches them: what is in the page cache is copied out
 * of it by the worker; what is not is asked for by io_uring, past the page cache (O_DIRECT) where
 * the file system lets us. Where there is no io_uring, threads of the pool read and write.
 */
#ifndef STORAGE_POSIX_H
#define STORAGE_POSIX_H

#include <sys/mman.h>
#include <sys/types.h>

#include "storage/crew.h"
#include "storage/place.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

#define POSIX_PAGE         4096u
#define POSIX_MAX_GPUS     64u         /* a slot has a stream on each that it met */
#define POSIX_MEMORY_CHUNK (4u << 20)  /* a copy costs the copy engine 3 us beside its bytes */
#define POSIX_SMALL        (1u << 20)  /* a lane has two slots for pieces of up to so much */
#define POSIX_LEAST_SLOT   (64u << 10) /* bytes: many small pieces fit */

struct posix_engine;

/* ---- file.c ---------------------------------------------------------------------------------- */

struct posix_file {
    int fd;        /* through the page cache */
    int direct_fd; /* O_DIRECT; -1: there is none, or it is not to be used */
    bool block_device;
    bool in_memory; /* our own, on tmpfs and the like: nothing is faster than to copy it */
    bool is_served; /* by a program or another machine, which may stop to answer: only threads of
                       the pool ask for its bytes */
    bool wanted;    /* O_DIRECT, whenever it can be: direct=on */
    uint32_t align; /* of offsets and lengths with O_DIRECT: a power of two, at most a page */
    uint32_t memory_align;
    _Atomic uint64_t seen_nbytes; /* its size, when that was asked for last */
    _Atomic bool no_direct;       /* the kernel refused it after all */
    _Atomic bool direct_works;
    _Atomic bool no_nowait; /* RWF_NOWAIT is not known here */
    _Atomic uint32_t cold;  /* pieces in a row that were not cached */
    _Atomic uint32_t lies;  /* looks in a row that said so, and were wrong */
    char why_not[120];      /* there is no O_DIRECT */
};

/* `own`: nobody else moves bytes of it, so one in memory is just copied. */
gpunvme_err_t posix_file_open(struct gpunvme_store *store, struct posix_file *file, bool own);
gpunvme_err_t posix_file_close(struct posix_file *file);

/*
 * Reads what is in the page cache, without waiting for a drive: *done bytes. True: that was all, or
 * all up to the end of the file, which *end tells.
 */
bool posix_file_look(struct posix_file *file, uint8_t *cpu, size_t nbytes, uint64_t offset,
                     size_t *done, bool *end);

/* Its first page and the one in its middle are in memory. */
bool posix_file_seems_cached(const struct posix_file *file);

/* Whether that is worth a call: what came of the last ones decides, and a look at the page. */
bool posix_file_is_warm(struct posix_file *file, uint64_t offset);

/* O_DIRECT is there and may be used for this much. */
bool posix_file_direct(const struct posix_file *file, enum gpunvme_op op, size_t nbytes);

/* ---- uring.c --------------------------------------------------------------------------------- */

struct posix_uring;

/* 0 or an errno: why this process can have no io_uring. */
int posix_uring_create(unsigned depth, struct posix_uring **out);
void posix_uring_destroy(struct posix_uring *uring);

/* That errno tells of a shortage of descriptors, which may be over soon. */
bool posix_uring_may_come(int error);

/* Queues a request; false: no room until some are reaped. `user` comes back with its end. */
bool posix_uring_move(struct posix_uring *uring, int fd, enum gpunvme_op op, uint8_t *cpu,
                      size_t nbytes, uint64_t offset, void *user);

/*
 * Hands over what was queued and gives what has ended: *user and *result (bytes or -errno), false
 * when there is nothing. Waits for the first end up to wait_ns.
 */
void posix_uring_submit(struct posix_uring *uring, uint64_t wait_ns);
bool posix_uring_next(struct posix_uring *uring, void **user, int *result);
unsigned posix_uring_in_flight(const struct posix_uring *uring);

/* ---- ring.c ---------------------------------------------------------------------------------- */

/* The memory of all slots. Any lane may use any slot; it takes its own first. */
struct posix_ring {
    struct place *place; /* where it is to be */
    uint8_t *base;
    size_t nbytes;
    unsigned nslots, nlanes;
    struct posix_slot *slots;
    struct posix_slot **free;  /* of each lane: the one that was used last is in the processor's
                                  cache */
    pthread_mutex_t lock;      /* of pinning and streams */
    pthread_mutex_t free_lock; /* of free slots and shares */
    struct lane_shares shares; /* slots that wait for a drive, by device */
    _Atomic unsigned nfree;    /* slots: free ones */
    _Atomic unsigned nlost;    /* those that the GPU never gave back */
    _Atomic unsigned npinned, nrefused; /* those that were pinned, and could not be */
    _Atomic size_t pinned_nbytes;
    _Atomic unsigned gpu; /* for which the first one was pinned */
    char why_not[160];    /* the first could not be */
};

/* So many slots of POSIX_MEMORY_CHUNK and of POSIX_SMALL. Destroy it also after an error. */
gpunvme_err_t posix_ring_create(struct posix_ring *ring, unsigned nlanes, unsigned nlarge,
                                unsigned nsmall, struct place *place);
void posix_ring_destroy(struct posix_ring *ring);

/*
 * Takes a slot of at least `nbytes`, one of this lane if it can be, and pins it for this
 * GPU at its first use; other GPUs reach it too. Slots of pieces that are not quick may be half of
 * what other devices leave. NULL: there is none now.
 */
struct posix_slot *posix_ring_take(struct posix_ring *ring, unsigned lane, size_t nbytes, dev_t dev,
                                   bool is_quick, unsigned gpu);
void posix_ring_give(struct posix_slot *slot);

/* Copies that were started do not end: the slot is left to the GPU. */
void posix_ring_lose(struct posix_slot *slot);

/* Several are lost, and all that were pinned. */
bool posix_ring_is_lost(const struct posix_ring *ring);

struct posix_op;

/* Some memory, and the pieces that lie in it one behind the other. All read, or all are written. */
struct posix_slot {
    uint8_t *cpu;
    size_t nbytes;
    struct posix_ring *ring;
    /* A lane pins it when it first needs it, so that several lanes zero new memory at once, which
     * is half of the work. */
    _Atomic bool tried;
    enum gpunvme_mem mem;      /* PINNED, or HOST where it could not be pinned */
    struct gpunvme_buf pinned; /* .cpu: NULL before */
    unsigned home;             /* the lane that it belongs to */
    size_t used;
    enum gpunvme_op op;
    dev_t dev;        /* of the first one's file */
    bool quick;       /* no piece has to be waited for, as far as is known */
    bool sealed;      /* takes no more pieces */
    bool lost;        /* copies that were started do not end */
    unsigned nbusy;   /* pieces whose bytes the file still moves */
    unsigned gpu;     /* all are on the same */
    uint64_t since;   /* when its copies were begun */
    uint64_t copy_ns; /* how long they may take: the timeout of its pieces' stores says it */
    bool has_mark;    /* behind its copies. Marks of single ones cost more than queries do */
    uint32_t mark;
    struct posix_op *first, **last;
    struct posix_slot *next;                                      /* free, or being copied */
    _Atomic(struct gpunvme_mem_stream *) streams[POSIX_MAX_GPUS]; /* made under the ring's lock */
};

/* Pins all slots and makes their streams to this GPU. */
gpunvme_err_t posix_ring_prepare(struct posix_ring *ring, unsigned gpu);

/* Starts copies of all its pieces for GPU memory; the rest is copied at once. */
gpunvme_err_t posix_slot_copy(struct posix_slot *slot);

/* *done: they have ended. */
gpunvme_err_t posix_slot_copied(const struct posix_slot *slot, bool *done);

/* ---- gate.c ---------------------------------------------------------------------------------- */

struct posix_gate {
    _Atomic int64_t writers; /* under way: > 0 past the page cache, < 0 through it */
    _Atomic bool wanted;     /* one through it waits for its turn */
};

/* False: not now. Who wants to go through the page cache asks again until it may. */
bool posix_gate_enter(struct posix_gate *gate, bool direct);
void posix_gate_leave(struct posix_gate *gate, bool direct);

/* ---- fill.c ---------------------------------------------------------------------------------- */

/* A mapping of what the file has when its first bytes are filled; none before. */
struct posix_fill {
    int fd;
    pthread_mutex_t lock;
    bool is_tried;
    uint8_t *cpu;              /* NULL: there is none */
    uint64_t nbytes;           /* likewise 0 */
    _Atomic bool is_forbidden; /* process_vm_readv(2) is, in some containers */
    _Atomic bool *there;       /* by granule (fill.c): its pages are mapped, or were */
};

void posix_fill_init(struct posix_fill *fill, int fd);
void posix_fill_destroy(struct posix_fill *fill);

/* Returns how many bytes were written; fewer: pwrite(2) would say why. */
size_t posix_fill_write(struct posix_fill *fill, const uint8_t *cpu, size_t nbytes,
                        uint64_t offset);

/* ---- All together ---------------------------------------------------------------------------- */

/* What belongs to a file; what serves it is the engine's. A store's priv begins with it. */
struct posix {
    struct posix_file file;
    struct posix_fill fill;
    struct posix_gate gate;     /* of writes */
    pthread_mutex_t write_lock; /* of a file in memory: the kernel's own makes them spin */
    bool uring;                 /* may be used for it */
    struct posix_engine *engine;
    /*
     * Moves a piece of GPU memory by another way than slots; *done gets the bytes moved, also after
     * an error. Called by a thread of the pool, it blocks as long as it likes. NULL: slots. Set
     * before posix_enter().
     */
    gpunvme_err_t (*serve_gpu)(const struct crew_piece *piece, size_t *done);
};

/*
 * Opens a file for backends that have it as their own: sets store->crew too. What there is after an
 * error is freed by posix_leave() all the same.
 */
gpunvme_err_t posix_enter(struct gpunvme_store *store, struct posix *posix);
gpunvme_err_t posix_leave(struct posix *posix);

/* store_backend's, for such stores. */
gpunvme_err_t posix_size(struct gpunvme_store *store, uint64_t *nbytes);
gpunvme_err_t posix_resize(struct gpunvme_store *store, uint64_t nbytes);
gpunvme_err_t posix_advise(struct gpunvme_store *store, uint64_t offset, uint64_t nbytes,
                           enum gpunvme_advice advice);

/* store_backend.direct */
bool posix_direct(struct gpunvme_store *store, struct gpunvme_io *io);

#endif
