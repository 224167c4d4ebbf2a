/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Threads of an engine for calls that may block for long: reads and writes where io_uring is
 * refused, cuFile. They are made when they are needed, and end when they have been idle for some
 * seconds. Jobs of one device may hold at most half of the threads that other devices leave, so
 * that a file system that hangs does not stop those on others.
 */
#ifndef STORAGE_POOL_H
#define STORAGE_POOL_H

#include "storage/crew.h"

#define POOL_THREADS 32u

struct pool;
struct pool_job;

/* Where jobs of one worker come back to. */
struct pool_box {
    _Atomic(struct pool_job *) first;
    struct worker *worker;
};

struct pool_job {
    void (*run)(struct pool_job *job); /* blocks as long as it likes */
    dev_t dev;
    struct pool_box *box;
    struct pool_job *next;
};

gpunvme_err_t pool_create(struct pool **out);
void pool_destroy(struct pool *pool); /* no job is in it. NULL is fine */

/* Runs a job; then it is put into its box, and the worker is woken. From any thread. */
void pool_submit(struct pool *pool, struct pool_job *job);

/* Takes what has come back, linked by `next`. */
struct pool_job *pool_box_take(struct pool_box *box);

/* How many threads have a job now. */
unsigned pool_busy(struct pool *pool);

#endif
