/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Keeps many commands in flight on one queue, times each of them, and never waits for ever: not
 * for a controller that is silent, not past a signal. One thread a pump.
 */
#ifndef CLI_PUMP_H
#define CLI_PUMP_H

#include "gpunvme/io.h"
#include "gpunvme/storage.h"

#include "hist.h"

/* One command in flight, or room for one. */
struct cli_slot {
    struct gpunvme_token token;
    struct gpunvme_io io; /* of a store */
    uint64_t start_ns;
    uint64_t slba;
    uint32_t nlb;
    bool is_write;
    size_t buf_off;
    unsigned *pending; /* counts down when the command ends; may be NULL */
};

struct cli_pump {
    struct gpunvme_ioq *ioq;
    struct gpunvme_store *store; /* instead of the queue; NULL: the queue */
    const struct gpunvme_ns *ns;
    unsigned depth;
    uint64_t timeout_ns; /* of one command; then it is aborted, or the controller reset */
    unsigned write_flags;

    /* Called as a command ended well, before its slot is free again; may be NULL. */
    gpunvme_err_t (*done)(void *context, const struct cli_slot *slot);
    /*
     * Called as a command failed, with its error and the detail of it: what it returns is the
     * pump's error, and with GPUNVME_OK the pump goes on. NULL: the first failure ends the pump.
     */
    gpunvme_err_t (*failed)(void *context, const struct cli_slot *slot, gpunvme_err_t err);
    void *context;

    struct cli_hist hist[2]; /* latencies of reads and of writes */
    uint64_t nbytes[2];      /* moved by them */

    /* private */
    struct cli_slot *slots;
    unsigned *order; /* slot numbers: nbusy busy ones, then the free ones */
    unsigned nbusy;
    uint64_t idle_since_ns, checked_ns, ended_ns;
    unsigned idle_rounds;
    bool interrupts; /* rests until the queue's */
    uint64_t seen;
};

/* The fields up to `context` are given; the others are zeroes. */
gpunvme_err_t cli_pump_start(struct cli_pump *pump);

/*
 * Starts a command as soon as one of the `depth` slots is free, and looks for ended ones. The
 * error may be of any command of the pump. After an error (an interruption is one) only
 * cli_pump_stop() may follow.
 */
gpunvme_err_t cli_pump_read(struct cli_pump *pump, uint64_t slba, uint32_t nlb,
                            const struct gpunvme_buf *buf, size_t buf_off, unsigned *pending);
gpunvme_err_t cli_pump_write(struct cli_pump *pump, uint64_t slba, uint32_t nlb,
                             const struct gpunvme_buf *buf, size_t buf_off, unsigned *pending);

/* Looks for ended commands, and rests a little when there have been none for a while. */
gpunvme_err_t cli_pump_poll(struct cli_pump *pump);

/* Until *pending is 0; NULL: until nothing is in flight. */
gpunvme_err_t cli_pump_wait(struct cli_pump *pump, const unsigned *pending);

/*
 * Frees the pump. Gives what is still in flight a moment to end; the rest ends when the queue is
 * deleted, which must come before the buffers are freed.
 */
void cli_pump_stop(struct cli_pump *pump);

/* Blocks that one command may move from `slba` on: at most `want`, up to limit and boundary. */
uint32_t cli_piece(const struct gpunvme_ns *ns, uint64_t slba, uint64_t want);

#endif
