/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Many stores on one engine: each backend's stores, and stores of all backends together, walk at
 * the same time, each beside an oracle of its own. What one of them moves never reaches another.
 *
 * Environment: as for test_store_conformance, but GPUNVME_TEST_MANY_OPS is the number of transfers
 * of each store: 600, under sanitizers 60.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "storage/store_rig.h"

#define NSTORES  6u /* of a backend */
#define MOST     24u
#define FILLED   (2u << 20) /* bytes that a store has to begin with */
#define WALK_OPS (RIG_SLOW ? 60u : 600u)

struct walker {
    struct rig rig;
    struct rig_walk walk;
    pthread_t thread;
    bool ok;
};

static struct walker walkers[MOST];
static unsigned nwalkers;

/* Opens one more store of this row, unless there is none on this machine. */
static bool add_walker(const struct rig_row *row)
{
    struct walker *walker = &walkers[nwalkers];
    bool skipped;

    assert_true(nwalkers < MOST);
    if (rig_open(&walker->rig, row, NULL)) {
        walker->rig.seed += nwalkers;
        nwalkers++;
        return true;
    }
    skipped = walker->rig.skip;
    rig_close(&walker->rig);
    if (!skipped)
        fail_msg("%s", walker->rig.why);
    print_message("left out: %s\n", walker->rig.why);
    return false;
}

static void *walk(void *walker_)
{
    struct walker *walker = walker_;

    walker->ok = rig_fill(&walker->rig, FILLED) &&
                 rig_walk(&walker->walk, rig_number("GPUNVME_TEST_MANY_OPS", WALK_OPS), 0, 0);
    return NULL;
}

/* What went wrong with this one; NULL: nothing. */
static const char *verdict(struct walker *walker)
{
    if (!walker->ok)
        return walker->walk.why[0] ? walker->walk.why : walker->rig.why;
    return rig_same(&walker->rig) ? NULL : walker->rig.why;
}

/* All walkers at once; then each store is as its oracle. */
static void walk_together(void)
{
    static char why[640];
    bool ok = true;

    for (unsigned i = 0; i < nwalkers; i++) {
        struct walker *walker = &walkers[i];

        assert_true(rig_walk_init(&walker->walk, &walker->rig, walker->rig.seed));
        walker->walk.alone = true;
    }
    for (unsigned i = 0; i < nwalkers; i++)
        assert_int_equal(pthread_create(&walkers[i].thread, NULL, walk, &walkers[i]), 0);
    for (unsigned i = 0; i < nwalkers; i++)
        pthread_join(walkers[i].thread, NULL);
    for (unsigned i = 0; i < nwalkers; i++) {
        const char *what = verdict(&walkers[i]);

        if (what && ok)
            snprintf(why, sizeof(why), "%s", what);
        ok = ok && !what;
    }
    for (unsigned i = 0; i < nwalkers; i++) {
        rig_walk_free(&walkers[i].walk);
        ok = rig_close(&walkers[i].rig) && ok;
    }
    nwalkers = 0;
    if (!ok)
        fail_msg("%s", why[0] ? why : "a store was not closed");
}

static void stores_of_one_backend_do_not_meet(void **state)
{
    const struct rig_row *row = *state;

    while (nwalkers < NSTORES)
        if (!add_walker(row))
            skip();
    walk_together();
}

static void stores_of_all_backends_do_not_meet(void **state)
{
    (void)state;
    for (size_t i = 0; i < rig_nrows; i++)
        add_walker(&rig_rows[i]);
    walk_together();
}

int main(void)
{
    struct CMUnitTest tests[32] = {{NULL}};
    char names[32][64];

    for (size_t i = 0; i < rig_nrows; i++) {
        snprintf(names[i], sizeof(names[i]), "stores_of_one_backend_do_not_meet: %s",
                 rig_rows[i].name);
        tests[i] = (struct CMUnitTest){names[i], stores_of_one_backend_do_not_meet, NULL, NULL,
                                       (void *)(uintptr_t)&rig_rows[i]};
    }
    tests[rig_nrows] = (struct CMUnitTest)cmocka_unit_test(stores_of_all_backends_do_not_meet);
    return _cmocka_run_group_tests("stores", tests, rig_nrows + 1, NULL, NULL);
}
