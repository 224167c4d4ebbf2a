/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Writes past the page cache and writes through it are not on their way at the same time. A direct
 * write takes its range out of the page cache; where a page of it (or a folio, which may be many
 * pages) is made dirty meanwhile, the kernel can't, tells every later fsync(2) of an I/O error, and
 * leaves open which bytes win.
 */
#include "storage/posix/posix.h"

/* A direct write is refused while one through the page cache wants its turn: then that has it. */
static bool enter_direct(struct posix_gate *gate)
{
    int64_t writers = atomic_load(&gate->writers);

    while (writers >= 0 && !atomic_load(&gate->wanted))
        if (atomic_compare_exchange_weak(&gate->writers, &writers, writers + 1))
            return true;
    return false;
}

static bool enter_buffered(struct posix_gate *gate)
{
    int64_t writers = atomic_load(&gate->writers);

    while (writers <= 0) {
        if (atomic_compare_exchange_weak(&gate->writers, &writers, writers - 1)) {
            atomic_store(&gate->wanted, false);
            return true;
        }
    }
    atomic_store(&gate->wanted, true);
    return false;
}

bool posix_gate_enter(struct posix_gate *gate, bool direct)
{
    return direct ? enter_direct(gate) : enter_buffered(gate);
}

void posix_gate_leave(struct posix_gate *gate, bool direct)
{
    atomic_fetch_add(&gate->writers, direct ? -1 : 1);
}
