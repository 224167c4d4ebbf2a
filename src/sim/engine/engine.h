/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The software controller's I/O queues as a GPU kernel ("the engine"): the structures that the host
 * prepares and the kernel works on, and the functions that start and stop it. The admin queue and
 * the registers stay with the threads of the controller; an I/O queue pair is handed over when it
 * is created. Knows nothing of the driver.
 *
 * Which memory. Three kinds are named below:
 *
 *   [gpu]     GPU memory. The host writes it while no kernel of this engine runs, and only then
 *             (stop it, wait for it, write, launch it again).
 *   [pinned]  pinned host memory that the GPU has mapped. Each word has one writer, which is
 *             named; words are read at any time.
 *   [driver]  wherever the driver put it: queues, doorbells, data. Pointers are such that the
 *             kernel can follow them.
 *
 * Where there is no GPU all three are ordinary memory and the engine runs on a thread
 * (run.h); every pointer is a plain one.
 *
 * The life of an engine. The host fills in struct sim_engine and its queues, launches, and launches
 * again whenever the kernel has ended for SIM_ENGINE_LEFT_IDLE: the kernel leaves by itself when it
 * had nothing to do for idle_ns, so that nobody who waits for the whole device waits for ever. All
 * state is in [gpu] when the kernel has ended, and the next launch goes on exactly there.
 *
 * What it does not do: one completion queue for several submission queues, shadow doorbells,
 * interrupts, Dataset Management (Invalid Command Opcode: Identify must not promise it), shuffle
 * and powerloss faults, Abort (answer that the command was not aborted).
 */
#ifndef SIM_ENGINE_H
#define SIM_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#include "gpunvme/error.h"
#include "gpunvme/fn.h"
#include "gpunvme/nvme.h"
#include "gpunvme/sim.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SIM_ENGINE_MAX_NAMESPACES 16
#define SIM_ENGINE_MAX_RULES      32
#define SIM_ENGINE_MAX_RANGES     1024
#define SIM_ENGINE_MAX_THREADS    512  /* of a block; commands in work at once by queue */
#define SIM_ENGINE_SPREAD         4096 /* entries of a latency table */
#define SIM_ENGINE_CID_WORDS      2048 /* a bit for each command id, in words of 32 */

/* A namespace, its bytes in memory. [gpu], written by the host. */
struct sim_engine_ns {
    uint8_t *bytes; /* nblocks << shift of them, at a multiple of 16 */
    uint64_t nblocks;
    uint32_t nsid;
    uint32_t shift; /* log2 of the block size */
    uint32_t readonly;
    uint32_t metadata; /* bytes of metadata a block: transfers are refused then */
};

/* A piece of the bus that is memory. [gpu], written by the host, by rising bus address, apart. */
struct sim_engine_range {
    uint64_t bus;
    uint64_t nbytes;
    uint8_t *at; /* where the kernel finds it */
};

/*
 * A command whose completion waits for its time, kept here while no kernel runs; one for each
 * thread of a block. [gpu], zeroed by the host when the queue is created, then the kernel's.
 */
struct sim_engine_pending {
    uint64_t due_ns; /* on the clock of the GPU */
    uint32_t cid_status;
    uint32_t flags; /* SIM_ENGINE_PENDING_* */
};

#define SIM_ENGINE_PENDING_USED     1u
#define SIM_ENGINE_PENDING_KEEP_CID 2u /* the id is another command's */

/* What was counted. The kernel's words are in [gpu], a copy for the host in [pinned]. */
struct sim_engine_counters {
    uint64_t commands; /* completions posted */
    uint64_t bytes_read, bytes_written;
    uint64_t host_reads, host_writes;
    uint64_t errors, media_errors; /* completions with a status other than success */
    uint64_t faults;               /* injected */
    uint64_t doorbell_writes;      /* changes seen, of both doorbells */
    uint64_t violations[GPUNVME_SIM_NVIOLATIONS];
};

#define SIM_ENGINE_NCOUNTERS (sizeof(struct sim_engine_counters) / sizeof(uint64_t))

/*
 * A queue pair. [gpu]. Zeroed and filled in by the host when it is created; not to be written
 * after that while `active`. To delete a queue: stop the kernel, clear `active`.
 */
struct sim_engine_queue {
    /* by the host */
    const struct gpunvme_sqe *sq;        /* [driver] */
    struct gpunvme_cqe *cq;              /* [driver] */
    const uint32_t *sq_doorbell;         /* [driver] the tail that the driver writes */
    const uint32_t *cq_doorbell;         /* [driver] the head that it writes */
    uint32_t *cids;                      /* [gpu] SIM_ENGINE_CID_WORDS, zeroed: ids in use */
    struct sim_engine_pending *pending;  /* [gpu] SIM_ENGINE_MAX_THREADS, zeroed */
    struct sim_engine_counters *publish; /* [pinned] zeroed; the kernel alone writes it */
    uint32_t sq_size, cq_size;           /* entries, 2 … 65536 */
    uint16_t sqid, cqid;
    uint32_t active; /* 0: there is no such queue, or it is the host's */

    /* by the kernel; what it was left at, for the host to look at while no kernel runs */
    uint32_t sq_seen, cq_seen; /* doorbell values read last */
    uint32_t sq_head, sq_tail;
    uint32_t cq_head;
    uint32_t npending; /* commands that wait for their time */
    uint64_t state;    /* private: see run.h */
    uint64_t nfetched; /* commands fetched since the queue was created */
    struct sim_engine_counters counters;
};

/* The same kinds as in fault.h. */
enum sim_engine_fault {
    SIM_ENGINE_FAULT_NONE,
    SIM_ENGINE_FAULT_STATUS, /* complete with `status`, move no data */
    SIM_ENGINE_FAULT_DELAY,  /* complete delay_ns late */
    SIM_ENGINE_FAULT_LOSE,   /* do the work, never complete */
    SIM_ENGINE_FAULT_CFS,    /* the controller fails when it fetches this command */
    SIM_ENGINE_FAULT_REMOVE, /* the drive disappears when it fetches this command */
};

/*
 * A fault rule. The first that fires hides the command from the later ones. [gpu], written by the
 * host but for nmatches, which the host sets to 0.
 */
struct sim_engine_rule {
    uint32_t kind;   /* enum sim_engine_fault */
    uint32_t status; /* 15 bits */
    uint64_t delay_ns;

    /* on */
    uint64_t first_lba, last_lba; /* if has_lba */
    uint32_t has_lba, has_sq, has_nsid;
    uint32_t sq, nsid;
    uint32_t opcodes[8]; /* a bit for each opcode of an I/O command; all set: any */
    uint64_t
        lba_one_in; /* 0: any; N: a block of it must be one that sim_engine_lba_fails() names */

    /* when */
    uint64_t nth, every;  /* 0: at any match */
    uint64_t p_of_2_to64; /* fires with this probability, in 1/2^64; UINT64_MAX: always */
    uint32_t once;
    uint32_t rsvd;
    uint64_t nmatches; /* by the kernel */
    uint64_t spent;    /* by the kernel: fired, and will not again */
};

/*
 * How fast the device is. [gpu], written by the host; `enabled` 0: nothing is limited and no clock
 * is read. Costs are in 1/4096 ns a command, and in 1/2^24 ns a byte; 0: no limit. Index 0 is
 * reads, 1 is writes.
 */
struct sim_engine_model {
    uint32_t enabled;
    uint32_t nchannels; /* 0: as many as commands */
    uint64_t latency_ns[2], flush_latency_ns;
    uint64_t command_cost[2], byte_cost[2];
    const float *spread; /* [gpu] SIM_ENGINE_SPREAD factors of the latency; NULL: all 1 */
    uint64_t *channels;  /* [gpu] nchannels words, zeroed: when each is free */

    /* by the kernel, zeroed by the host: when the last customer has passed, in 1/4096 ns since
     * epoch_ns */
    uint64_t epoch_ns;
    uint64_t command_free[2], byte_free[2];
    uint64_t next_channel;
};

/*
 * Why the kernel ended, or will: the first reason counts, so it can be SIM_ENGINE_LEFT_IDLE though
 * the host has set `stop` meanwhile; but a rule that fired counts more than either.
 */
enum sim_engine_left {
    SIM_ENGINE_RUNS = 0,         /* it has not */
    SIM_ENGINE_LEFT_IDLE = 1,    /* nothing to do for idle_ns: launch it again */
    SIM_ENGINE_LEFT_STOPPED = 2, /* the host set `stop` */
    SIM_ENGINE_LEFT_FATAL = 3,   /* a rule with cfs fired: CSTS.CFS is to be set */
    SIM_ENGINE_LEFT_REMOVED = 4, /* a rule with remove fired: the drive is gone */
};

/* What was wrong, told in full once. */
struct sim_engine_violation {
    uint32_t there; /* 1 when all below is written */
    uint32_t kind;  /* enum gpunvme_sim_violation */
    uint32_t what; /* enum sim_what (command.h): which field or rule; its text by sim_what_text() */
    uint16_t qid, cid;
    uint32_t opc;
    uint32_t rsvd;
    uint64_t value; /* of the field */
    uint64_t other; /* doorbells: what it was compared with */
};

/* What host and kernel tell each other while it runs. [pinned] */
struct sim_engine_host {
    uint32_t stop; /* by the host: not 0: leave */
    uint32_t left; /* by the kernel: enum sim_engine_left; the host clears it before a launch */
    struct sim_engine_violation first; /* by the kernel */
};

/* An engine: one controller. [gpu] */
struct sim_engine {
    /* by the host */
    struct sim_engine_host *host;    /* [pinned] */
    struct sim_engine_queue *queues; /* [gpu] */
    uint32_t nqueues;                /* of the array; those not `active` are passed over */
    uint32_t nns;
    struct sim_engine_ns ns[SIM_ENGINE_MAX_NAMESPACES]; /* by rising nsid */
    const struct sim_engine_range *ranges;              /* [gpu] */
    uint32_t nranges;                                   /* up to SIM_ENGINE_MAX_RANGES */
    uint32_t page;                                      /* CC.MPS as bytes */
    uint64_t max_transfer;                              /* MDTS as bytes; 0: no limit */
    uint32_t sgl;                                       /* SGLs are supported */
    uint32_t deac;                                      /* Write Zeroes has DEAC */
    uint32_t nrules;
    uint64_t seed;    /* of all that is random */
    uint64_t idle_ns; /* leave when there was nothing to do for so long; 0: never */
    struct sim_engine_model model;
    struct sim_engine_rule rules[SIM_ENGINE_MAX_RULES];

    /* by the kernel; the host clears them before each launch: sim_engine_rewind() */
    uint32_t leave; /* enum sim_engine_left: all blocks go */
    uint32_t nidle; /* blocks that had nothing to do for idle_ns */

    /* by the kernel; zeroed by the host once */
    uint32_t told; /* somebody writes host->first */
    uint32_t rsvd;
};

/* Which bytes of struct sim_engine the host zeroes before each launch, and host->left with them. */
#define SIM_ENGINE_REWIND_OFFSET offsetof(struct sim_engine, leave)
#define SIM_ENGINE_REWIND_NBYTES (2 * sizeof(uint32_t))

/* A well mixed word: the finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA 2014). */
GPUNVME_FN uint64_t sim_engine_mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* Whether a rule with lbahash=one_in names this block: one in so many, known to tests as well. */
GPUNVME_FN int sim_engine_lba_fails(uint64_t seed, uint64_t lba, uint64_t one_in)
{
    return one_in && sim_engine_mix(seed ^ sim_engine_mix(lba)) % one_in == 0;
}

/* Whether the engine has this I/O command; the others end with Invalid Command Opcode. */
GPUNVME_FN int sim_engine_has(uint8_t opc)
{
    return opc == GPUNVME_CMD_FLUSH || opc == GPUNVME_CMD_WRITE || opc == GPUNVME_CMD_READ ||
           opc == GPUNVME_CMD_COMPARE || opc == GPUNVME_CMD_WRITE_ZEROES ||
           opc == GPUNVME_CMD_VERIFY;
}

/*
 * ---- On a thread: engine.c, in every build ----------------------------------------------------
 */

/*
 * Plays block `block` of `blocks` on the calling thread until the engine leaves, as the kernel
 * does; each block on a thread of its own. Before: the words of SIM_ENGINE_REWIND_* and host->left
 * are zeroed. The same addresses, clock gpunvme_clock_ns().
 */
void sim_engine_run(struct sim_engine *engine, unsigned block, unsigned blocks);

/*
 * ---- The kernel: engine.cu; only where the build has CUDA ------------------------------------
 *
 * `stream` is a cudaStream_t, made with cudaStreamNonBlocking on the engine's device, which must
 * be the current one. CUDA errors are GPUNVME_ERR_GPU with a detail.
 */

/*
 * Loads the kernel. Call once before the first launch: a module that is loaded while a kernel runs
 * for ever can wait for it for ever. The same holds for the user's kernels: tell users to load
 * theirs before (CUDA_MODULE_LOADING=EAGER does).
 */
gpunvme_err_t sim_engine_preload(void);

/* How many blocks of so many threads can be resident: more must not be launched. */
gpunvme_err_t sim_engine_max_blocks(unsigned threads, unsigned *blocks);

/*
 * Zeroes the words named by SIM_ENGINE_REWIND_* and starts the kernel, all on the stream. `engine`
 * is the [gpu] structure; `blocks` at most the queues that there are (one block serves several in
 * turn if there are fewer blocks); `threads` a multiple of 32 up to SIM_ENGINE_MAX_THREADS, the
 * same at each launch (256 is a good choice). host->stop and host->left must be 0.
 */
gpunvme_err_t sim_engine_launch(struct sim_engine *engine, unsigned blocks, unsigned threads,
                                void *stream);

/* Whether it still runs. Errors of the kernel show here. */
gpunvme_err_t sim_engine_query(void *stream, int *running);

/* Waits for its end, at most until the deadline (gpunvme_clock_ns()): GPUNVME_ERR_TIMEOUT. */
gpunvme_err_t sim_engine_wait(void *stream, uint64_t deadline_ns);

#ifdef __cplusplus
}
#endif
#endif
