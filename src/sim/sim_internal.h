/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The inside of the software controller: its structures, and what its files say to each other.
 * It must not know the driver: the two share nvme.h only.
 *
 * Threads and locks. Each controller thread owns some queues, its commands and one lane of each
 * store; all of that is guarded by the thread's lock, which the thread holds while it works. Who
 * wants to change what threads look up (queues, DMA ranges) takes their locks: sim_pause_all().
 *
 *     order:  reg_lock, then thread locks by rising index, then the keeper's (engine/host.h), then
 *             the leaf locks
 *     leaves: violation_lock, event_lock, log_lock, irq_lock; nothing is locked under one of them
 *
 * Completion data is visible before its completion: an entry's last dword is stored with release
 * order and read with acquire order; doorbells the other way round.
 */
#ifndef SIM_INTERNAL_H
#define SIM_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "gpunvme/nvme.h"
#include "gpunvme/sim.h"
#include "sim/command.h"
#include "sim/fault.h"
#include "sim/model.h"
#include "sim/store/store.h"

#define SIM_BATCH       32           /* entries fetched from a queue before the next one's turn */
#define SIM_COMMANDS    256          /* commands in work at once, by thread */
#define SIM_IOVECS      64           /* pieces of one transfer to or from a store */
#define SIM_MOVERS      2            /* streams on which GPU memory is reached: see mover.c */
#define SIM_MOVE_BYTES  4096u        /* the most that a command of a batch of copies moves */
#define SIM_STAGES      8            /* bounce buffers, by thread */
#define SIM_STAGE_BYTES (256u << 10) /* of this size: for GPU memory and ragged SGLs */
#define SIM_HELD        256          /* completions that a shuffle can hold back, by thread */
#define SIM_AERS        4            /* Asynchronous Event Requests at once: AERL + 1 */
#define SIM_EVENTS      16           /* events that wait for a request */
#define SIM_ERROR_LOG   64           /* entries of the error log: ELPE + 1 */
#define SIM_PCI_VENDOR  0x1234       /* assigned to nobody; emulators use it */
#define SIM_PCI_DEVICE  0x4e56
#define SIM_IRQS        32            /* interrupts told of after one pass of a thread */
#define SIM_CID_WORDS   (65536 / 64)  /* a bit for each command id */
#define SIM_FUSE_NS     10000000000ll /* longest that anything inside waits for a store */

/* Never a doorbell value: what the controller leaves in a doorbell whose writes it must count. */
#define SIM_DOORBELL_IDLE 0xffffffffu

struct sim_thread;

/* Moves bytes between the bus and `memory`; false when it can't. */
typedef bool sim_move_fn(void *arg, uint64_t bus, void *memory, size_t nbytes, bool to_bus);

/*
 * A piece of the bus that is memory. cpu is NULL where only the GPU's copies reach it, or only the
 * function `move`: memory of another process, or that may not be read or not be written.
 */
struct sim_range {
    uint64_t bus;
    uint64_t nbytes;
    uint8_t *cpu;
    uint8_t *gpu;
    sim_move_fn *move;
    void *move_arg;
    enum gpunvme_mem mem;
    bool in_batches; /* without cpu: the movers' batches reach it */
};

struct sim_ns {
    const struct gpunvme_sim_ns_config *config;
    struct sim_store *store;
    uint8_t *direct; /* the bytes, where they may be copied at once; else NULL */
    uint64_t nblocks;
    uint32_t nsid;
    unsigned shift; /* log2 of the block size */
};

/*
 * A doorbell as the controller sees it. With a shadow the real one counts only while the
 * controller sleeps on the queue; see sim_doorbell_poll().
 */
struct sim_doorbell {
    volatile uint32_t *reg;
    uint32_t seen;             /* value read last */
    volatile uint32_t *shadow; /* NULL: none */
    volatile uint32_t *eventidx;
    bool no_shadow;    /* the engine's: it looks at the real one alone */
    bool awake;        /* with a shadow: the real doorbell rang, the shadow is polled */
    uint64_t quiet_ns; /* since when the shadow did not change; 0: it just did */
};

struct sim_cq {
    struct sim_thread *thread;
    uint64_t bus;
    uint32_t *cpu; /* four words an entry; NULL: reached by sim_dma_write() */
    uint32_t size;
    uint32_t head, tail;
    uint32_t inflight; /* commands that will complete here: each has its entry reserved */
    unsigned nsqs;
    struct sim_doorbell doorbell;
    uint16_t qid;
    uint16_t vector;
    bool phase;
    bool broken;             /* its memory is gone */
    bool engine;             /* the engine posts here, or did: no thread does */
    bool irq;                /* interrupts are enabled, for `vector` */
    bool irq_due;            /* it is in its thread's list: */
    struct sim_cq *irq_next; /* see device/irq.c */
};

struct sim_sq {
    struct sim_thread *thread;
    struct sim_cq *cq;
    uint64_t bus;
    const struct gpunvme_sqe *cpu; /* NULL: reached by sim_dma_read() */
    uint32_t size;
    uint32_t head, tail;
    uint32_t reported; /* head as told to the driver last */
    uint32_t inflight; /* fetched, completion not posted; requests for events not counted */
    uint32_t active;   /* of those, how many a store works on */
    struct sim_doorbell doorbell;
    uint16_t qid;
    bool broken;
    bool engine;                  /* the engine fetches from it, no thread */
    bool deleting;                /* nothing more is fetched */
    uint64_t cids[SIM_CID_WORDS]; /* command ids in use */
};

/* A completion that has to wait. */
struct sim_pending {
    uint64_t due_ns;
    struct sim_sq *sq;
    uint32_t dw0;
    uint32_t order; /* breaks ties: first come, first served */
    uint16_t cid;
    uint16_t status;
    bool keep_cid;  /* the id belongs to another command: do not free it */
    bool uncounted; /* not in inflight */
};

/* A command's data: the walk through what its data pointer describes, and whose it is. */
struct sim_data {
    struct sim_walk walk;
    uint16_t qid, cid; /* for messages */
};

/* What sim_data_next() gives: cpu, or gpu, or far, or none of them (a bit bucket). */
struct sim_piece {
    uint8_t *cpu;
    uint8_t *gpu;
    const struct sim_range *far; /* whose `move` reaches it, at bus */
    uint64_t bus;
    enum gpunvme_mem mem;
    uint64_t nbytes;
};

/* A command in work. */
struct sim_cmd {
    struct gpunvme_sqe sqe;
    struct sim_thread *thread;
    struct sim_sq *sq;
    struct sim_ns *ns;
    struct sim_cmd *next; /* in the list that it is in */
    uint64_t due_ns;
    uint32_t dw0;
    uint32_t shuffle; /* hold back with so many others; 0: no */
    bool lose;
    bool keep_cid;
    bool in_store; /* a store works on it */

    void (*step)(struct sim_cmd *cmd); /* goes on when the store is done */
    gpunvme_err_t io_err;              /* how it was */
    struct sim_data data;
    uint64_t off, left; /* of the store, bytes still to do */
    uint64_t part;      /* bytes of the transfer under way */
    uint32_t index;     /* of a range or namespace */
    uint8_t *stage;     /* bounce buffer in use, or NULL */
    struct sim_store_io io;
    struct iovec iov[SIM_IOVECS];
};

#define SIM_COUNTERS(X)                                                                            \
    X(admin_commands)                                                                              \
    X(io_commands)                                                                                 \
    X(bytes_read)                                                                                  \
    X(bytes_written)                                                                               \
    X(host_reads)                                                                                  \
    X(host_writes)                                                                                 \
    X(errors)                                                                                      \
    X(media_errors)                                                                                \
    X(faults)                                                                                      \
    X(doorbell_writes)

/* Written by one thread, read by any. */
struct sim_counters {
#define X(name) _Atomic uint64_t name;
    SIM_COUNTERS(X)
#undef X
};

static inline void sim_count(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n,
                          memory_order_relaxed);
}

struct sim_thread {
    struct gpunvme_sim *sim;
    unsigned index;
    pthread_t pthread;
    bool started;
    _Atomic uint32_t wanted; /* who waits for the lock; the thread lets them go first */
    pthread_mutex_t lock;    /* guards all below */

    struct sim_sq **sqs; /* room for all queues */
    unsigned nsqs, next_sq;
    struct sim_cq *irqs; /* completion queues with an interrupt to tell of */

    struct sim_cmd *commands, *free;
    struct sim_cmd *ended, **ended_tail;     /* a store is done with them */
    struct sim_cmd *waiting, **waiting_tail; /* for a bounce buffer */
    unsigned nactive;                        /* transfers that stores work on */
    uint8_t *stages;
    uint32_t stages_free; /* a bit each */

    struct sim_pending *heap; /* by due time, the earliest first */
    unsigned nheap, heap_room;
    uint32_t order;
    struct sim_pending *held;
    unsigned nheld, held_target;
    uint64_t held_ns; /* when the last one came */

    struct sim_sq *batch_sq; /* the queue whose entries are being fetched */
    unsigned nbatch;
    uint16_t batch_cids[2 * SIM_BATCH]; /* its ids to be freed when the batch is through */

    const struct sim_range *last_data, *last_list; /* DMA ranges used last, or NULL */
    uint64_t now_ns; /* of the batch; only kept where the model asks for it */
    uint64_t random;
    uint64_t idle_ns;  /* since when there is nothing to do; 0: there is */
    uint64_t sleep_ns; /* how long to sleep next */
    unsigned passes;
    struct sim_counters counters;
};

/* A stream for copies, of one thread at a time. */
struct sim_mover {
    atomic_bool held;
    struct gpunvme_mem_stream *stream;
    struct gpunvme_buf stage; /* pinned: SIM_MOVE_BYTES for each command of a batch */
};

enum sim_phase {
    SIM_PHASE_OFF,
    SIM_PHASE_STARTING,
    SIM_PHASE_ON,
    SIM_PHASE_STOPPING,
};

/* Why nothing is fetched. */
enum sim_halt {
    SIM_HALT_RESET = 1,
    SIM_HALT_FATAL = 2,
    SIM_HALT_REMOVED = 4,
    SIM_HALT_POWER = 8,
    SIM_HALT_SHUTDOWN = 16, /* but commands in flight are finished */
};

/* What a thread asks the control step for: it must not do it under its own lock. */
enum sim_request {
    SIM_REQUEST_REMOVE = 1,
    SIM_REQUEST_POWER_CYCLE = 2,
};

struct sim_event {
    uint8_t type, info, log_page;
};

struct sim_features {
    uint32_t arbitration, power, error_recovery[GPUNVME_SIM_MAX_NAMESPACES], coalescing;
    uint32_t write_atomicity, async_events, kato_ms;
    uint32_t temperature_over, temperature_under;
    bool write_cache;
    uint32_t nqueues; /* granted: 0's based, SQs 15:0, CQs 31:16 */
    uint64_t timestamp_ms, timestamp_at_ns;
    bool timestamp_set;
    uint8_t *vectors; /* interrupt vectors: coalescing disabled, a byte each */
};

struct gpunvme_sim {
    struct gpunvme_sim_config config;
    uint32_t nns;
    struct sim_ns ns[GPUNVME_SIM_MAX_NAMESPACES]; /* by rising nsid */
    struct sim_model *model;
    struct sim_faults *faults;
    bool unlimited;            /* the model is */
    struct sim_keeper *keeper; /* of the engine; NULL: none */
    uint64_t cap;
    uint64_t created_ns;

    pthread_mutex_t mover_lock; /* for who opens them: */
    bool movers_open;           /* memory that is reached by copies only was mapped, */
    int mover_gpu;              /* first that of this GPU; -1: there is none */
    struct sim_mover movers[SIM_MOVERS];

    volatile uint32_t *doorbells;
    size_t doorbells_nbytes;
    unsigned doorbell_scan; /* queue id at which the search for strays goes on */

    /* Registers: written under reg_lock. */
    pthread_mutex_t reg_lock;
    _Atomic uint32_t cc, csts, aqa, intm;
    _Atomic uint64_t asq, acq;
    enum sim_phase phase;
    uint64_t phase_ns;   /* when the phase ends, or began */
    bool firmware;       /* enabled from the start, by nobody that left us queues */
    bool torn_down;      /* STOPPING: the queues are gone */
    bool shutdown_begun; /* SHST is OCCURRING */
    bool shutdown_flushes;
    uint64_t shutdown_ns;        /* when the shutdown may complete */
    _Atomic uint64_t control_ns; /* when the control step has work; UINT64_MAX: never */
    _Atomic uint32_t requests;   /* enum sim_request */
    _Atomic uint32_t halt;       /* enum sim_halt */
    _Atomic bool stop;

    unsigned nthreads;
    struct sim_thread *threads;

    /* Changed under all thread locks, read under any. */
    struct sim_range *ranges; /* by rising address, apart */
    size_t nranges, ranges_room;
    struct sim_sq **sqs; /* by id, 0 is admin; NULL: none */
    struct sim_cq **cqs;
    unsigned nio_queues;               /* of either kind */
    uint32_t page;                     /* CC.MPS as bytes */
    uint64_t shadow_bus, eventidx_bus; /* 0: not configured */
    volatile uint32_t *shadow, *eventidx;
    _Atomic bool write_through; /* feature: the volatile write cache is off */

    /* Thread 0's: guarded by its lock. */
    struct sim_features features;
    struct sim_pending aers[SIM_AERS];
    unsigned naers;
    uint64_t keep_alive_ns; /* when the timer began; 0: off */

    pthread_mutex_t event_lock; /* guards the events */
    struct sim_event events[SIM_EVENTS];
    unsigned nevents;
    uint8_t event_masked[8]; /* by type: log page to be read first, 0: none */
    _Atomic bool events_due;
    bool namespaces_changed; /* the Changed Namespace List has entries */

    pthread_mutex_t log_lock; /* guards the error log */
    struct gpunvme_error_log_entry error_log[SIM_ERROR_LOG];
    uint64_t error_count;

    pthread_mutex_t irq_lock; /* guards the callback, and is held while it runs */
    void (*irq)(void *arg, uint16_t vector);
    void *irq_arg;

    atomic_bool
        remaps; /* memory may be unmapped under the queues if it comes back before it is used */

    _Atomic uint64_t power_cycles, unsafe_shutdowns;

    pthread_mutex_t violation_lock; /* guards violations and warnings */
    uint64_t violations[GPUNVME_SIM_NVIOLATIONS];
    uint64_t warnings[GPUNVME_SIM_NWARNINGS];
    char first_violation[256], first_warning[256];
};

/* sim.c */
uint64_t sim_now_ns(void);
void sim_pause_ns(uint64_t ns);
void sim_violate(struct gpunvme_sim *sim, enum gpunvme_sim_violation violation, const char *format,
                 ...) __attribute__((format(printf, 3, 4)));
/* The same, n times (or none): the text is for the report where nothing was told before. */
void sim_violate_more(struct gpunvme_sim *sim, enum gpunvme_sim_violation violation, uint64_t n,
                      const char *format, ...) __attribute__((format(printf, 4, 5)));
void sim_warn(struct gpunvme_sim *sim, enum gpunvme_sim_warning warning, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
struct sim_ns *sim_ns_find(struct gpunvme_sim *sim, uint32_t nsid);
uint64_t sim_counter_sum(struct gpunvme_sim *sim, size_t offset);

/* thread.c */
gpunvme_err_t sim_threads_create(struct gpunvme_sim *sim);
void sim_threads_destroy(struct gpunvme_sim *sim);
void sim_lock(struct sim_thread *t); /* for everybody but the thread itself in its loop */
void sim_unlock(struct sim_thread *t);
void sim_pause_all(struct gpunvme_sim *sim);
void sim_resume_all(struct gpunvme_sim *sim);
/* With halt set: waits until no store works for us. Without thread locks. false: it was too long */
bool sim_quiesce(struct gpunvme_sim *sim, struct sim_thread *self);
void sim_run_ended(struct sim_thread *t);
uint64_t sim_random(struct sim_thread *t);

/* device/control.c: the states of the controller */
void sim_control_power_on(struct gpunvme_sim *sim);
void sim_control_write_cc(struct gpunvme_sim *sim, uint32_t value);
void sim_control_reset(struct gpunvme_sim *sim, struct sim_thread *self, bool power,
                       bool subsystem);
bool sim_control_step(struct gpunvme_sim *sim);
void sim_control_request(struct gpunvme_sim *sim, uint32_t halt, uint32_t request);
void sim_fail(struct gpunvme_sim *sim); /* CSTS.CFS: from any thread, any lock */

/* dma.c */
const struct sim_range *sim_dma_find(const struct gpunvme_sim *sim, const struct sim_range **last,
                                     uint64_t bus);
void *sim_dma_cpu(const struct gpunvme_sim *sim, uint64_t bus, uint64_t nbytes);
bool sim_dma_mapped(const struct gpunvme_sim *sim, uint64_t bus, uint64_t nbytes);
bool sim_dma_read(struct sim_thread *t, uint64_t bus, void *to, size_t nbytes);
bool sim_dma_write(struct sim_thread *t, uint64_t bus, const void *from, size_t nbytes);
gpunvme_err_t sim_dma_map_far(struct gpunvme_sim *sim, uint64_t bus, uint64_t nbytes,
                              sim_move_fn *move, void *arg);

/* mover.c: for memory that the CPU does not reach, once sim_movers_open() has returned GPUNVME_OK
 */
gpunvme_err_t sim_movers_open(struct gpunvme_sim *sim, const struct gpunvme_buf *buf,
                              struct sim_range *range);
void sim_movers_close(struct gpunvme_sim *sim);
bool sim_mover_copy(struct sim_thread *t, void *dst, enum gpunvme_mem dst_mem, const void *src,
                    enum gpunvme_mem src_mem, size_t nbytes);
struct sim_move;
/* Of n <= SIM_BATCH moves, those that are by copy. */
bool sim_mover_batch(struct sim_thread *t, const struct sim_move *moves, uint32_t n);

/* device/data.c: functions that return a status give GPUNVME_SC_SUCCESS or what the command ends
 * with */
void sim_data_begin(struct sim_cmd *cmd, uint64_t nbytes, bool to_host);
uint16_t sim_data_next(struct sim_thread *t, struct sim_data *data, uint64_t most,
                       struct sim_piece *piece);
uint16_t sim_data_copy(struct sim_thread *t, struct sim_data *data, void *memory, uint64_t nbytes);
uint16_t sim_data_compare(struct sim_thread *t, struct sim_data *data, const void *memory,
                          uint64_t nbytes);
uint16_t sim_data_end(struct sim_thread *t, struct sim_data *data);
/* For admin commands: moves a whole structure of nbytes. */
uint16_t sim_data_give(struct sim_cmd *cmd, const void *memory, uint64_t nbytes);
uint16_t sim_data_take(struct sim_cmd *cmd, void *memory, uint64_t nbytes);

/* device/doorbell.c */
void sim_doorbell_init(struct gpunvme_sim *sim, struct sim_doorbell *doorbell, unsigned index);
bool sim_sq_poll(struct sim_thread *t, struct sim_sq *sq);
void sim_cq_poll(struct sim_thread *t, struct sim_cq *cq);
void sim_doorbell_unshadow(struct sim_doorbell *doorbell); /* for good */
void sim_doorbell_scan(struct gpunvme_sim *sim);
void sim_doorbell_wipe(struct gpunvme_sim *sim);
/*
 * Puts other memory in the doorbells' place: a file's, whose descriptor the caller gets and where
 * they are at the offset that they have in BAR0; private memory again where fd is NULL.
 */
gpunvme_err_t sim_doorbells_share(struct gpunvme_sim *sim, int *fd);
void sim_shadow_attach(struct gpunvme_sim *sim); /* to the queues that there are */
void sim_shadow_forget(struct gpunvme_sim *sim);

/* device/queue.c */
uint16_t sim_cq_create(struct gpunvme_sim *sim, uint16_t qid, uint64_t bus, uint32_t size);
uint16_t sim_sq_create(struct gpunvme_sim *sim, uint16_t qid, uint64_t bus, uint32_t size,
                       struct sim_cq *cq);
void sim_sq_free(struct gpunvme_sim *sim, struct sim_sq *sq);
void sim_cq_free(struct gpunvme_sim *sim, struct sim_cq *cq);
void sim_queues_wipe(struct gpunvme_sim *sim);
bool sim_fetch(struct sim_thread *t, struct sim_sq *sq);
void sim_post_done(struct sim_thread *t, struct sim_sq *sq, const struct sim_move *moves,
                   uint32_t n);
bool sim_post(struct sim_thread *t, const struct sim_pending *pending);
bool sim_pass_faults(struct sim_cmd *cmd, const struct gpunvme_dsm_range *ranges, unsigned nranges);

static inline uint32_t sim_cq_used(const struct sim_cq *cq)
{
    return cq->tail >= cq->head ? cq->tail - cq->head : cq->tail + cq->size - cq->head;
}

/* Entries that are neither used nor reserved. */
static inline uint32_t sim_cq_room(const struct sim_cq *cq)
{
    uint32_t used = sim_cq_used(cq) + cq->inflight;

    return used < cq->size - 1 ? cq->size - 1 - used : 0;
}

/* device/irq.c */
void sim_irq_post(struct sim_cq *cq);
void sim_irq_forget(struct sim_cq *cq);
unsigned sim_irq_collect(struct sim_thread *t, uint16_t vectors[SIM_IRQS]);
void sim_irq_tell(struct gpunvme_sim *sim, const uint16_t *vectors, unsigned n);

/* device/fast.c: reads and writes of one page between mapped memory, the GPU's too, and a store in
 * memory
 */
struct sim_move {
    uint8_t *to;
    const uint8_t *from;
    uint64_t nbytes;
    uint16_t cid;
    bool write;
    bool by_copy; /* one of the addresses is the GPU's */
};
void sim_fast_expect(const struct sim_sq *sq, const struct gpunvme_sqe *from, uint32_t n);
bool sim_fast_prepare(struct sim_thread *t, struct sim_sq *sq, const struct gpunvme_sqe *sqe,
                      struct sim_move *move);
void sim_fast_finish(struct sim_thread *t, struct sim_sq *sq, const struct sim_move *moves,
                     uint32_t n);

/* device/complete.c */
void sim_cmd_end(struct sim_cmd *cmd, uint16_t status);
void sim_cmd_free(struct sim_cmd *cmd);
struct sim_cmd *sim_cmd_alloc(struct sim_thread *t);
void sim_complete(struct sim_thread *t, struct sim_pending *pending); /* at pending->due_ns */
bool sim_complete_due(struct sim_thread *t, uint64_t now_ns);
void sim_complete_forget(struct sim_thread *t);
bool sim_complete_abort(struct sim_thread *t, struct sim_sq *sq, uint16_t cid);
void sim_complete_abort_all(struct sim_thread *t, struct sim_sq *sq, uint16_t status);
uint64_t sim_complete_next_ns(const struct sim_thread *t);

/* device/check.c */
uint16_t sim_check_command(struct sim_cmd *cmd);
bool sim_command_supported(const struct gpunvme_sim *sim, bool admin, uint8_t opc);

/* device/admin.c and its parts, all on thread 0 */
void sim_admin(struct sim_cmd *cmd);
uint16_t sim_admin_queue(struct sim_cmd *cmd); /* the four that create and delete queues */
uint16_t sim_admin_dbbuf(struct sim_cmd *cmd);
uint16_t sim_identify(struct sim_cmd *cmd);
uint16_t sim_get_log(struct sim_cmd *cmd);
uint16_t sim_get_features(struct sim_cmd *cmd);
uint16_t sim_set_features(struct sim_cmd *cmd);
void sim_features_reset(struct gpunvme_sim *sim);
uint8_t sim_critical_warning(const struct gpunvme_sim *sim);

/* device/event.c */
void sim_event_raise(struct gpunvme_sim *sim, uint8_t type, uint8_t info, uint8_t log_page);
void sim_event_request(struct sim_cmd *cmd);
void sim_events_deliver(struct sim_thread *t);
void sim_events_read(struct gpunvme_sim *sim, uint8_t log_page);
void sim_events_reset(struct gpunvme_sim *sim);
bool sim_event_abort(struct sim_thread *t, uint16_t cid);

/* device/log.c */
void sim_log_error(struct gpunvme_sim *sim, const struct gpunvme_error_log_entry *entry);

/* device/io.c */
void sim_io(struct sim_cmd *cmd);
void sim_io_retry_waiting(struct sim_thread *t);
void sim_io_abort_waiting(struct sim_thread *t, struct sim_sq *sq, uint16_t status);
enum sim_model_op sim_io_model(const struct sim_cmd *cmd, uint64_t *nbytes);
uint16_t sim_ns_check(struct gpunvme_sim *sim, uint32_t nsid, struct sim_ns **ns);

#endif
