/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The writes that a volatile write cache holds: each with the versions of its blocks, in order.
 * Memory only: knows no transfers and no locks; its user lets one thread in at a time.
 *
 * A block may have several versions, one for each write that holds it. Voiding a version takes it
 * out; a write whose versions are all void is freed.
 */
#ifndef SIM_WRITE_LOG_H
#define SIM_WRITE_LOG_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/random.h"

struct sim_log;
struct sim_log_write;

/* A log for at most max_nbytes of data; NULL when out of memory. */
struct sim_log *sim_log_create(uint32_t block_size, uint64_t max_nbytes);
void sim_log_destroy(struct sim_log *log);

/*
 * Copies a write for the log; NULL when out of memory. Any thread may, without being let in. It
 * is the caller's until sim_log_add() took it.
 */
struct sim_log_write *sim_log_prepare(uint32_t block_size, uint64_t first_block, uint32_t nblocks,
                                      const struct iovec *iov);
void sim_log_discard(struct sim_log_write *write);

/* Takes a write as the newest; false, and nothing is taken, when it is too much. */
bool sim_log_add(struct sim_log *log, struct sim_log_write *write);

bool sim_log_is_empty(const struct sim_log *log);

/* The number of the last write taken; they count up from 1. */
uint64_t sim_log_seq(const struct sim_log *log);

/* The newest version of a block, NULL when it has none. Valid until it is voided. */
const uint8_t *sim_log_find(const struct sim_log *log, uint64_t block);

/* Voids the versions of `count` blocks that came with writes up to number `seq`. */
void sim_log_forget(struct sim_log *log, uint64_t seq, uint64_t first_block, uint64_t count);

/* Draws for each write whether it stays, is voided, or loses blocks, each with even odds. */
void sim_log_draw_lots(struct sim_log *log, struct base_random *random);

/*
 * The newest versions of all blocks, as runs of blocks that lie together in one write. Returns
 * their number; fills `runs` unless it is NULL. The data are valid until voided.
 */
struct sim_log_run {
    uint64_t first_block;
    uint32_t nblocks;
    uint8_t *data;
};
unsigned sim_log_runs(const struct sim_log *log, struct sim_log_run *runs);

#endif
