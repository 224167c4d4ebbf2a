/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the tests of the store share: a transfer that is waited for, patterns, scratch files.
 */
#ifndef STORE_UTIL_H
#define STORE_UTIL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "sim/store/store.h"

/* A transfer and how it ended. */
struct transfer {
    struct sim_store_io io; /* first */
    struct iovec iov;
    unsigned ndone;
    gpunvme_err_t err;
};

static inline void transfer_done(struct sim_store_io *io, gpunvme_err_t err)
{
    struct transfer *t = (struct transfer *)io;

    t->ndone++;
    t->err = err;
}

static inline void transfer_init(struct transfer *t, enum sim_store_op op, uint64_t off,
                                 void *memory, uint64_t nbytes)
{
    *t = (struct transfer){.iov = {.iov_base = memory, .iov_len = nbytes}};
    t->io = (struct sim_store_io){
        .op = op, .off = off, .nbytes = nbytes, .iov = &t->iov, .niov = 1, .done = transfer_done};
}

static inline time_t store_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

/* Polls until the transfer ended; a minute is a hang. */
static inline gpunvme_err_t transfer_wait(struct sim_store *store, unsigned lane,
                                          struct transfer *t)
{
    time_t deadline = store_now() + 60;

    while (!t->ndone) {
        if (!sim_store_poll(store, lane) && store_now() > deadline)
            fail_msg("a transfer hangs");
    }
    assert_int_equal(t->ndone, 1);
    return t->err;
}

static inline gpunvme_err_t transfer_run(struct sim_store *store, unsigned lane, struct transfer *t)
{
    sim_store_submit(store, lane, &t->io);
    return transfer_wait(store, lane, t);
}

static inline gpunvme_err_t store_do(struct sim_store *store, enum sim_store_op op, uint64_t off,
                                     void *memory, uint64_t nbytes)
{
    struct transfer t;

    transfer_init(&t, op, off, memory, nbytes);
    return transfer_run(store, 0, &t);
}

static inline gpunvme_err_t store_read(struct sim_store *store, uint64_t off, void *memory,
                                       uint64_t nbytes)
{
    memset(memory, 0xee, nbytes);
    return store_do(store, SIM_STORE_READ, off, memory, nbytes);
}

static inline gpunvme_err_t store_write(struct sim_store *store, uint64_t off, const void *memory,
                                        uint64_t nbytes)
{
    return store_do(store, SIM_STORE_WRITE, off, (void *)memory, nbytes);
}

static inline gpunvme_err_t store_flush(struct sim_store *store)
{
    return store_do(store, SIM_STORE_FLUSH, 0, NULL, 0);
}

/* Bytes that tell where they belong and which writing they are from. */
static inline void fill(void *memory, uint64_t off, size_t nbytes, unsigned version)
{
    uint64_t *word = memory;

    for (size_t i = 0; i < nbytes / 8; i++)
        word[i] = (off / 8 + i) * 0x9e3779b97f4a7c15ULL + version;
}

static inline void *aligned(size_t nbytes)
{
    void *memory = NULL;

    assert_int_equal(posix_memalign(&memory, 4096, nbytes), 0);
    return memory;
}

/* A folder of the test's own, for images. */
static char scratch[128];

static inline int scratch_make(void)
{
    const char *tmp = getenv("TMPDIR");

    snprintf(scratch, sizeof(scratch), "%s/gpunvme-test-XXXXXX", tmp ? tmp : "/tmp");
    return mkdtemp(scratch) ? 0 : -1;
}

static inline const char *scratch_path(const char *name)
{
    static char path[256];

    snprintf(path, sizeof(path), "%s/%s", scratch, name);
    return path;
}

#endif
