/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Where a namespace's bytes are: in memory, in a GPU's memory or in an image file. Asynchronous;
 * knows nothing of NVMe commands. A store is shared by the controller's threads, each of which has
 * a lane of its own: submit and poll of one lane are called by one thread only.
 */
#ifndef SIM_STORE_H
#define SIM_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "gpunvme/error.h"

enum sim_store_op { SIM_STORE_READ, SIM_STORE_WRITE, SIM_STORE_FLUSH, SIM_STORE_ZERO };

/*
 * One transfer. The caller owns it until `done` was called, from submit or poll of the same lane.
 * `off` and `nbytes` are multiples of block_size and inside the store; the pieces of `iov` sum to
 * nbytes, and any of them may have any alignment. A flush has neither, and covers the writes that
 * ended before it began.
 */
struct sim_store_io {
    enum sim_store_op op;
    uint64_t off;
    uint64_t nbytes;
    const struct iovec *iov;
    unsigned niov;
    bool fua; /* writes and zeroes: durable when they end, cache or not */
    void (*done)(struct sim_store_io *io, gpunvme_err_t err);

    /* private: the lane's notes while the transfer is under way */
    struct {
        struct sim_store_io *next; /* among those that wait */
        void *bounce;              /* an aligned copy, when there is one */
        bool syncing;              /* zeroes were written; now they are made durable */
    } lane_private;
};

/* How an image is reached; tests choose, others leave it to the store. */
enum sim_store_engine {
    SIM_STORE_ENGINE_AUTO,  /* io_uring where the kernel lets us, else SYNC */
    SIM_STORE_ENGINE_URING, /* io_uring, or fail */
    SIM_STORE_ENGINE_SYNC,  /* preadv and pwritev, from poll */
};

struct sim_store_config {
    const char *image; /* NULL or "": in memory */
    bool in_gpu;       /* in memory: the GPU's, of device `gpu` (-1: the current one) */
    int gpu;
    uint64_t nbytes; /* 0: the image's own size */
    uint32_t block_size;
    bool readonly;
    bool force; /* an image: write to it even if it holds data and is none of gpunvme's */
    bool vwc;   /* model a volatile write cache */
    uint64_t seed;
    unsigned nlanes;
    enum sim_store_engine engine;
};

struct sim_store;

/* Opens (an image is created when it does not exist and nbytes is given; locked while open). */
gpunvme_err_t sim_store_open(const struct sim_store_config *config, struct sim_store **out);
void sim_store_close(struct sim_store *store); /* writes back; no transfer may be in flight */

uint64_t sim_store_nbytes(const struct sim_store *store);

/* True for an image that holds somebody else's data: it was opened as if `readonly` were set. */
bool sim_store_is_foreign(const struct sim_store *store);

/* How the bytes are reached, for reports: "memory", "image by io_uring, O_DIRECT", …; static. */
const char *sim_store_path(const struct sim_store *store);

/*
 * The bytes themselves when they are in memory and no write cache is modelled, else NULL: the
 * controller may then copy directly, without submit.
 */
uint8_t *sim_store_direct(struct sim_store *store);

/* The bytes' GPU address where they are in GPU memory (and no write cache is modelled), or NULL. */
uint8_t *sim_store_gpu(struct sim_store *store);

/* Starts a transfer; `done` may be called before it returns. Never blocks for the device. */
void sim_store_submit(struct sim_store *store, unsigned lane, struct sim_store_io *io);

/*
 * Starts what submit gathered and ends what is finished; never blocks for the device (the
 * synchronous engine excepted). To be called for as long as a transfer of the lane is in flight.
 * Returns how many steps it took: 0 when there was nothing to do.
 */
unsigned sim_store_poll(struct sim_store *store, unsigned lane);

/*
 * Power loss: unflushed writes are each kept, lost, or torn at a block, at random. No transfer may
 * be in flight, and no lane in use.
 */
void sim_store_power_loss(struct sim_store *store);

#endif
