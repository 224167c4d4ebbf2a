/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the measurements of GPU-issued I/O stand on: drives that are opened together, their queue
 * pairs for kernels, memory for data, blocks that say which they are, and key=value arguments.
 * Errors end the program: these are measurements.
 */
#ifndef BENCH_GPU_RIG_H
#define BENCH_GPU_RIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu_job.h"
#include "gpunvme/device.h"
#include "gpunvme/sim.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RIG_MAX_DRIVES 16

struct rig_drive {
    struct gpunvme_ctrl *ctrl;
    struct gpunvme_sim *sim; /* NULL: a controller that is not ours */
    const struct gpunvme_ns *ns;
    struct gpunvme_device *dev;
    struct gpunvme_dev_ns handle;
    struct gpunvme_buf data;
    struct gpunvme_dev_buf view;
};

struct rig {
    unsigned nopen; /* drives that are open */
    unsigned nused; /* the first so many have queues for the GPU */
    struct rig_drive drives[RIG_MAX_DRIVES];
    struct gpunvme_device_info info; /* of the first one that is used */
    bool numbered;                   /* every block holds what bench_block_word() says */
};

/* Call it first: sets what CUDA must be told before it starts. */
void rig_start(const char *program);

/* Ends the program with exit code 77 and a line "SKIP: …" where there is no GPU. */
void rig_need_gpu(void);

/* Ends the program, with what was tried and why it failed, unless err is GPUNVME_OK. */
void rig_check(gpunvme_err_t err, const char *what);
void rig_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* Opens `n` controllers by the same URI, each with so many I/O queues granted. */
void rig_open(struct rig *rig, const char *uri, unsigned n, unsigned io_queues);
void rig_close(struct rig *rig);

/*
 * Queue pairs for kernels, on the first n drives. An error of the library is returned, since a
 * point that cannot be measured is left out, not the whole run.
 */
gpunvme_err_t rig_open_queues(struct rig *rig, unsigned n, const struct gpunvme_device_opts *opts);
void rig_close_queues(struct rig *rig);

/* So many bytes of data memory for each drive that has queues. */
gpunvme_err_t rig_alloc(struct rig *rig, size_t nbytes);
void rig_free(struct rig *rig);

/*
 * How many blocks of a software controller's kernel one multiprocessor can hold where nothing else
 * runs; 0: it cannot be asked.
 */
unsigned rig_engine_blocks_per_sm(unsigned multiprocessors);

/* A job on the first n drives, commands of so many bytes, one in flight; the rest is the caller's.
 */
void rig_job(const struct rig *rig, unsigned n, uint32_t nbytes, struct job *job);

/* Writes into every block of all drives which it is. Opens queues for that, and closes them. */
void rig_number(struct rig *rig, enum gpunvme_placement placement);

/* What the software controllers have to complain of, all drives together; says the first. */
uint64_t rig_violations(const struct rig *rig);

/* The median, smallest and largest value as JSON; sorts the values. */
void rig_print_stat(const char *key, double *values, unsigned n);
double rig_median(double *values, unsigned n);

/* --- arguments -------------------------------------------------------------------------------- */

/* A list of numbers, "1,2,64K": units as in sizes. */
#define RIG_MAX_LIST 32
struct rig_list {
    unsigned n;
    uint64_t values[RIG_MAX_LIST];
};

enum rig_type { RIG_NUMBER, RIG_LIST, RIG_TEXT };

struct rig_param {
    const char *key;
    enum rig_type type;
    void *value;         /* uint64_t *, struct rig_list *, const char ** */
    const char *choices; /* RIG_LIST of words: "read|write"; the value is the word's number */
    const char *help;
};

/* Reads the arguments; ends the program with a list of the parameters (exit code 2) if it must. */
void rig_args(int argc, char **argv, const struct rig_param *params);

/* The i-th word of "a|b|c", into `text`. */
const char *rig_word(const char *choices, uint64_t i, char *text, size_t capacity);

#ifdef __cplusplus
}
#endif
#endif
