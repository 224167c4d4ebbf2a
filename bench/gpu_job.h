/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the kernels of the measurements are told and what they tell, and the functions that start
 * them. Knows nothing of how drives are opened.
 */
#ifndef BENCH_GPU_JOB_H
#define BENCH_GPU_JOB_H

#include <stdint.h>

#include "gpunvme/device.h"

#ifdef __cplusplus
extern "C" {
#endif

#define JOB_MAX_DRIVES    16
#define JOB_BLOCK_THREADS 256 /* at most; lockstep: 1024 */
#define JOB_TIMEOUT_NS                                                                             \
    UINT64_C(10000000000) /* of one command, or of one wait of the other ways                      \
                           */

enum job_op { JOB_READ, JOB_WRITE };

/* Ways to share queues among threads: the library's, and the two published ones (ways.cuh). */
enum job_way { JOB_OURS, JOB_LOCKSTEP, JOB_TICKET, JOB_APART };

/* A queue pair as the published ways use it; in GPU memory, entries and doorbells as opened. */
struct way_queue;

struct job_drive {
    struct gpunvme_dev_ns ns;
    struct gpunvme_dev_buf data;
    struct way_queue *ways; /* NULL for ours */
};

/* What came out, in GPU memory; all threads together. */
struct job_outcome {
    unsigned long long commands; /* ended with success */
    unsigned long long errors;   /* ended with a status, or not at all */
    unsigned long long wrong;    /* words of data that were not what they must be */
    unsigned long long expected; /* errors that had to come and did */
    unsigned long long unexpected;
    unsigned long long missing; /* errors that had to come and did not */
    int last;                   /* of the errors, any one */
    unsigned stop;              /* somebody waited in vain: all leave */
    unsigned finished;          /* warps that have done their commands */
    unsigned done;              /* all have: warps that reap leave */
};

/* By value to kernels. */
struct job {
    struct job_drive drives[JOB_MAX_DRIVES];
    uint32_t ndrives;
    uint32_t threads;     /* a multiple of 32 */
    uint32_t ops;         /* commands of each thread */
    uint32_t inflight;    /* of them at once */
    uint32_t nlb;         /* blocks of a command */
    uint32_t nchoices;    /* places where a command may begin: multiples of nlb */
    uint32_t place_bytes; /* of data for each command in flight */
    uint32_t batches;     /* lockstep: groups of a block's threads that take turns */
    uint32_t reapers;     /* warps at the front of the grid that do nothing but reap */
    uint32_t lanes;       /* of each warp that work, from the first on; the others wait for them */
    uint32_t gather;      /* apart: lanes with nothing in flight that submit at once */
    uint32_t op;
    uint64_t seed;
    uint64_t fail_seed, fail_one_in; /* which blocks must fail: lbahash of the controller */
    struct job_outcome *outcome;
};

/* The kernels. Those that check are not for timing. */
enum job_kernel {
    JOB_KERNEL_NUMBER, /* writes bench_word() into every block of the drives */
    JOB_KERNEL_OURS,
    JOB_KERNEL_OURS_CHECK,
    JOB_KERNEL_SPLIT, /* several commands in flight for each thread */
    JOB_KERNEL_SPLIT_CHECK,
    JOB_KERNEL_APART, /* one, but no lane waits for its neighbours' */
    JOB_KERNEL_APART_CHECK,
    JOB_KERNEL_LOCKSTEP,
    JOB_KERNEL_LOCKSTEP_CHECK,
    JOB_KERNEL_TICKET,
    JOB_KERNEL_TICKET_CHECK,
    JOB_KERNEL_READ_A_BLOCK, /* the least: for its registers */
    JOB_KERNEL_ERRORS,       /* reads blocks of which some must fail, and checks which did */
    JOB_NKERNELS
};

/* The word at index i (of 8 bytes) of a block: tells drive, block and place. */
GPUNVME_FN uint64_t bench_word(uint32_t drive, uint64_t lba, uint32_t i)
{
    uint64_t x = (lba << 9 | i) ^ (uint64_t)(drive + 1) << 56;

    x *= UINT64_C(0x9e3779b97f4a7c15);
    return x ^ x >> 29;
}

struct job_attributes {
    int registers;       /* of a thread */
    int local_bytes;     /* of a thread: spills */
    int blocks_per_sm;   /* resident at once where nothing else runs */
    int multiprocessors; /* of the GPU */
    int sm_threads;      /* of a multiprocessor */
    int shared_bytes;    /* of a block */
};

/* All return 0, or a CUDA error whose text job_error() gives. */
const char *job_error(int error);
int job_attributes(enum job_kernel kernel, const struct job *job, unsigned block_threads,
                   struct job_attributes *out);

/*
 * Starts the kernel and waits for it, at most timeout_s; *ms is its own span, by events. The
 * outcome is copied to *outcome.
 */
int job_run(enum job_kernel kernel, struct job *job, unsigned block_threads, double timeout_s,
            float *ms, struct job_outcome *outcome);

/*
 * Queues for the published ways, on the queue pairs of a device that nobody has used since it was
 * opened. `queues` is what struct gpunvme_dev_ns names. Free with job_ways_free().
 */
int job_ways_make(const struct gpunvme_dev_ns *ns, struct way_queue **out);
void job_ways_free(struct way_queue *ways);

#ifdef __cplusplus
}
#endif
#endif
