/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Threads that are held up, for tests. A callback that does not return holds up the thread that
 * ends the transfer. Where a store has one thread, nothing else of it is done meanwhile.
 */
#ifndef GATE_H
#define GATE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "gpunvme/storage.h"
#include "patience.h"

struct gate {
    struct gpunvme_io io;
    uint8_t byte;
    _Atomic bool is_reached, is_open;
};

static inline void wait_at_gate(struct gpunvme_io *io)
{
    struct gate *gate = io->user;

    gate->is_reached = true;
    while (!gate->is_open)
        usleep(200);
}

static inline void wait_for(_Atomic bool *what)
{
    for (unsigned i = 0; !*what; i++) {
        assert_true(i < PATIENCE_S * 5000);
        usleep(200);
    }
}

/* By a read of the byte at `offset`. */
static inline void shut(struct gate *gate, struct gpunvme_store *store, uint64_t offset)
{
    memset(gate, 0, sizeof(*gate));
    gate->io = (struct gpunvme_io){.store = store,
                                   .offset = offset,
                                   .ptr = &gate->byte,
                                   .nbytes = 1,
                                   .callback = wait_at_gate,
                                   .user = gate};
    assert_int_equal(gpunvme_io_submit(&gate->io, 1, NULL), GPUNVME_OK);
    wait_for(&gate->is_reached);
}

#endif
