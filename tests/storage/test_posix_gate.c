/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Writes past the page cache and through it take turns.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "storage/posix/engine.h"
#include "transfer_util.h"

static struct posix_gate gate;

static int setup(void **state)
{
    (void)state;
    memset(&gate, 0, sizeof(gate));
    return 0;
}

static void writes_of_one_kind_go_together(void **state)
{
    (void)state;
    for (unsigned direct = 0; direct < 2; direct++) {
        for (unsigned i = 0; i < 3; i++)
            assert_true(posix_gate_enter(&gate, direct));
        assert_false(posix_gate_enter(&gate, !direct));
        for (unsigned i = 0; i < 3; i++)
            posix_gate_leave(&gate, direct);
    }
}

static void a_write_through_the_cache_has_its_turn_next(void **state)
{
    (void)state;
    assert_true(posix_gate_enter(&gate, true));
    assert_false(posix_gate_enter(&gate, false));
    assert_false(posix_gate_enter(&gate, true)); /* or direct ones would never end */
    posix_gate_leave(&gate, true);
    assert_false(posix_gate_enter(&gate, true));
    assert_true(posix_gate_enter(&gate, false));
    posix_gate_leave(&gate, false);
    assert_true(posix_gate_enter(&gate, true));
}

#define THREADS 4
#define TURNS   20000

static uint32_t inside[2], collisions;

static void *write_often(void *direct_)
{
    bool direct = direct_ != NULL;

    for (unsigned i = 0; i < TURNS; i++) {
        if (!posix_gate_enter(&gate, direct))
            continue;
        __atomic_add_fetch(&inside[direct], 1, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&inside[!direct], __ATOMIC_SEQ_CST))
            __atomic_add_fetch(&collisions, 1, __ATOMIC_SEQ_CST);
        __atomic_sub_fetch(&inside[direct], 1, __ATOMIC_SEQ_CST);
        posix_gate_leave(&gate, direct);
    }
    return NULL;
}

static void threads_never_meet_the_other_kind(void **state)
{
    pthread_t threads[THREADS];

    (void)state;
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, write_often, i % 2 ? &gate : NULL), 0);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(collisions, 0);
    assert_int_equal(gate.writers, 0);
}

/* ---- A store whose gate this test holds --------------------------------------------------------
 */

#define NBYTES ((size_t)1 << 20)

static int fd;

static size_t pages_in_cache(void)
{
    unsigned char is_in[NBYTES / POSIX_PAGE];
    void *cpu = mmap(NULL, NBYTES, PROT_READ, MAP_SHARED, fd, 0);
    size_t in = 0;

    assert_true(cpu != MAP_FAILED);
    assert_int_equal(mincore(cpu, NBYTES, is_in), 0);
    for (size_t i = 0; i < NBYTES / POSIX_PAGE; i++)
        in += is_in[i] & 1;
    munmap(cpu, NBYTES);
    return in;
}

/* Writes whole pages while one goes through the page cache; NULL: there is no O_DIRECT. */
static struct gpunvme_store *write_beside(char *path, struct gpunvme_io *io, bool wait)
{
    struct gpunvme_store *store;
    struct posix *posix;

    assert_int_equal(gpunvme_open(path, GPUNVME_OPEN_WRITE, &store), GPUNVME_OK);
    posix = store->priv;
    if (posix->file.direct_fd < 0) {
        gpunvme_close(store);
        return NULL;
    }
    assert_true(posix_gate_enter(&posix->gate, false));
    assert_int_equal(submit_to(store, io, 1, NULL), GPUNVME_OK);
    if (wait)
        assert_int_equal(gpunvme_io_wait(io, 0), GPUNVME_OK);
    while (crew_waiting(posix->engine->crew))
        usleep(100);
    usleep(5000); /* a worker has it, and asks for its turn */
    posix_gate_leave(&posix->gate, false);
    return store;
}

/* When this machine sleeps in the wrong place a try ends the other way: most of them count. */
static void whole_pages_wait_for_a_ragged_write(void **state)
{
    char path[] = "/tmp/gpunvme-gate-XXXXXX";
    struct gpunvme_io io = {.op = GPUNVME_OP_WRITE, .nbytes = NBYTES};
    struct gpunvme_store *store;
    unsigned good = 0;

    (void)state;
    fd = mkstemp(path);
    io.ptr = aligned_alloc(POSIX_PAGE, NBYTES);
    memset(io.ptr, 7, NBYTES);
    for (int i = 0; i < 9; i++) {
        assert_int_equal(ftruncate(fd, 0), 0);
        store = write_beside(path, &io, false);
        if (!store) {
            print_message("SKIP: no O_DIRECT in /tmp\n");
            skip();
        }
        assert_int_equal(gpunvme_io_wait(&io, 0), GPUNVME_OK);
        good += !pages_in_cache();
        gpunvme_close(store);
    }
    assert_in_range(good, 5, 9);
    store = write_beside(path, &io, true); /* … but not for ever */
    gpunvme_close(store);
    free(io.ptr);
    close(fd);
    unlink(path);
}

#define TEST(name) cmocka_unit_test_setup(name, setup)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(writes_of_one_kind_go_together),
        TEST(a_write_through_the_cache_has_its_turn_next),
        TEST(threads_never_meet_the_other_kind),
        TEST(whole_pages_wait_for_a_ragged_write),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
