/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is common to all stores, tried with a backend that the test holds in its hands: how
 * transfers are checked, how their parts come together, and how their ends are told.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fail.h"
#include "gpunvme/memory.h"
#include "storage/internal.h"
#include "transfer_util.h"

#define NBYTES   65536u
#define MOST_RUN 8192u /* transfers of a gpunvme_io_run() in flight */
#define MANY     20000u
#define BAD      7u /* offset of a transfer that fails, if they end at once */

/* Keeps what is submitted; the test ends it. */
static struct gpunvme_io *held[MOST_RUN];
static size_t nheld;
static unsigned nmapped, nunmapped;
static gpunvme_err_t map_err;
static unsigned ncanceled;
static size_t prefix;
static uint8_t memory[NBYTES];

static gpunvme_err_t hand_size(struct gpunvme_store *store, uint64_t *nbytes)
{
    (void)store;
    *nbytes = NBYTES;
    return GPUNVME_OK;
}

static bool end_by_itself, end_at_once;
static pthread_t ending;

static void *end_soon(void *unused)
{
    (void)unused;
    usleep(20000);
    store_io_end(held[0], GPUNVME_OK, 10);
    return NULL;
}

static void end_all(struct gpunvme_io *io)
{
    for (struct gpunvme_io *next; io; io = next) {
        next = io->priv.next;
        if (io->offset == BAD)
            store_io_end(io, base_fail(GPUNVME_ERR_IO, "bad block of %zu bytes", io->nbytes), 0);
        else
            store_io_end(io, GPUNVME_OK, io->nbytes);
    }
}

static void hand_submit(struct gpunvme_store *store, struct gpunvme_io *first, size_t n)
{
    (void)store;
    if (end_at_once) {
        end_all(first);
        return;
    }
    for (struct gpunvme_io *io = first; io; io = io->priv.next, n--)
        held[nheld++] = io;
    assert_int_equal(n, 0);
    if (end_by_itself)
        assert_int_equal(pthread_create(&ending, NULL, end_soon, NULL), 0);
}

static void hand_cancel(struct gpunvme_store *store, struct gpunvme_io *io)
{
    (void)store;
    (void)io;
    ncanceled++;
}

static size_t hand_prefix(struct gpunvme_store *store, const struct gpunvme_io *io)
{
    (void)store;
    (void)io;
    return prefix;
}

static const struct store_backend hand = {
    .name = "hand",
    .size = hand_size,
    .submit = hand_submit,
    .cancel = hand_cancel,
    .prefix = hand_prefix,
};

static gpunvme_err_t hand_map(void *key, const struct gpunvme_buf *buf, void **map)
{
    (void)buf;
    nmapped++;
    if (!map_err)
        *map = key;
    return map_err;
}

static void hand_unmap(void *key, void *map)
{
    assert_ptr_equal(key, map);
    nunmapped++;
}

static const struct store_domain_ops domain = {hand_map, hand_unmap};

static struct gpunvme_engine *engine;
static struct gpunvme_store store;
static char name[] = "hand:";

static int setup(void **state)
{
    (void)state;
    memset(&store, 0, sizeof(store));
    store.backend = &hand;
    store.flags = GPUNVME_OPEN_WRITE;
    store.uri.text = name;
    store.uri.options.timeout_ns = 20000000;
    if (gpunvme_engine_create(NULL, &engine))
        return -1;
    store.engine = engine;
    store_domain_join(&store, &domain, &store);
    nheld = 0;
    ncanceled = 0;
    prefix = 0;
    end_by_itself = end_at_once = false;
    map_err = GPUNVME_OK;
    nmapped = nunmapped = 0;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    store_domain_leave(&store);
    if (gpunvme_engine_destroy(engine))
        return -1;
    return atomic_load(&store.in_flight) != 0;
}

static struct gpunvme_io read_of(uint64_t offset, size_t nbytes)
{
    return (struct gpunvme_io){
        .op = GPUNVME_OP_READ, .offset = offset, .ptr = memory, .nbytes = nbytes};
}

static void submitted(struct gpunvme_io *io)
{
    if (submit_to(&store, io, 1, NULL))
        fail_msg("%s", gpunvme_err_detail());
}

static void a_transfer_ends_when_its_last_piece_does(void **state)
{
    struct gpunvme_io io = read_of(0, 3000);

    (void)state;
    submitted(&io);
    store_io_piece(held[0], 2000, 1000, GPUNVME_OK, 1000);
    store_io_piece(held[0], 0, 1000, GPUNVME_OK, 1000);
    assert_int_equal(gpunvme_io_test(&io), GPUNVME_ERR_AGAIN);
    store_io_piece(held[0], 1000, 1000, GPUNVME_OK, 1000);
    assert_int_equal(gpunvme_io_test(&io), GPUNVME_OK);
    assert_int_equal(io.done, 3000);
    assert_int_equal(gpunvme_io_test(&io), GPUNVME_ERR_STALE);
}

static void the_first_piece_that_stops_short_says_how_far_it_went(void **state)
{
    struct gpunvme_io io = read_of(0, 3000);

    (void)state;
    submitted(&io);
    store_io_piece(held[0], 2000, 1000, GPUNVME_ERR_IO, 0);
    store_io_piece(held[0], 1000, 1000, GPUNVME_OK, 10);
    store_io_piece(held[0], 0, 1000, GPUNVME_OK, 1000);
    assert_int_equal(gpunvme_io_test(&io), GPUNVME_OK);
    assert_int_equal(io.done, 1010);
}

static void an_error_before_the_end_of_the_store_is_an_error(void **state)
{
    struct gpunvme_io io = read_of(0, 3000);

    (void)state;
    submitted(&io);
    store_io_piece(held[0], 2000, 1000, GPUNVME_OK, 0);
    store_io_piece(held[0], 0, 1000, GPUNVME_OK, 1000);
    store_io_piece(held[0], 1000, 1000, GPUNVME_ERR_NVME(0x281), 512);
    assert_int_equal(gpunvme_io_test(&io), GPUNVME_ERR_NVME(0x281));
    assert_int_equal(io.done, 1512);
}

static void one_bad_transfer_stops_a_submission_and_is_named(void **state)
{
    struct gpunvme_io ios[3] = {read_of(0, 10), read_of(0, 10), read_of(0, 10)};

    (void)state;
    ios[2].ptr = NULL;
    assert_int_equal(submit_to(&store, ios, 3, NULL), GPUNVME_ERR_INVALID);
    assert_non_null(strstr(gpunvme_err_detail(), "transfer 2: 10 bytes at NULL"));
    assert_int_equal(nheld, 0);
    ios[2] = read_of(UINT64_MAX - 5, 10);
    assert_int_equal(submit_to(&store, ios, 3, NULL), GPUNVME_ERR_RANGE);
    ios[2] = read_of(0, 10);
    ios[2].op = (enum gpunvme_op)7;
    assert_int_equal(submit_to(&store, ios, 3, NULL), GPUNVME_ERR_INVALID);
}

static void a_write_that_does_not_fit_is_refused_whole(void **state)
{
    (void)state;
    assert_int_equal(gpunvme_store_write(&store, NBYTES - 10, memory, GPUNVME_MEM_HOST, 11, NULL),
                     GPUNVME_ERR_RANGE);
    assert_int_equal(nheld, 0);
}

static void a_store_opened_for_reading_is_not_written(void **state)
{
    (void)state;
    store.flags = 0;
    assert_int_equal(gpunvme_store_write(&store, 0, memory, GPUNVME_MEM_HOST, 1, NULL),
                     GPUNVME_ERR_READONLY);
}

static void nothing_is_done_at_once(void **state)
{
    struct gpunvme_io io = read_of(5, 0);

    (void)state;
    io.ptr = NULL;
    submitted(&io);
    assert_int_equal(nheld, 0);
    assert_int_equal(gpunvme_io_test(&io), GPUNVME_OK);
}

static void a_wait_ends_at_its_deadline_and_the_transfer_goes_on(void **state)
{
    struct gpunvme_io io = read_of(0, 10);

    (void)state;
    submitted(&io);
    assert_int_equal(gpunvme_io_wait(&io, 1000000), GPUNVME_ERR_TIMEOUT);
    store_io_end(held[0], GPUNVME_OK, 10);
    assert_int_equal(gpunvme_io_wait(&io, 1000000), GPUNVME_OK);
    assert_int_equal(io.done, 10);
}

static void a_wait_is_woken_by_the_end(void **state)
{
    struct gpunvme_io io = read_of(0, 10);

    (void)state;
    end_by_itself = true;
    submitted(&io);
    assert_int_equal(gpunvme_io_wait(&io, 30000000000u), GPUNVME_OK);
    pthread_join(ending, NULL);
}

static void a_synchronous_read_that_times_out_may_end_later(void **state)
{
    size_t done = 5;

    (void)state;
    assert_int_equal(gpunvme_store_read(&store, 0, memory, GPUNVME_MEM_HOST, 10, &done),
                     GPUNVME_ERR_TIMEOUT);
    assert_int_equal(done, 0);
    assert_int_equal(nheld, 1);
    store_io_end(held[0], GPUNVME_OK, 10); /* frees it: the leak checker sees to that */
}

static unsigned ncalls;

static void count_call(struct gpunvme_io *io)
{
    assert_int_equal(io->done, 7);
    ncalls++;
}

static void a_callback_is_called_once(void **state)
{
    struct gpunvme_io io = read_of(0, 10);

    (void)state;
    ncalls = 0;
    io.callback = count_call;
    submitted(&io);
    assert_int_equal(gpunvme_io_test(&io), GPUNVME_ERR_STALE);
    store_io_end(held[0], GPUNVME_OK, 7);
    assert_int_equal(ncalls, 1);
}

static void a_batch_gives_each_transfer_once_with_its_own_error(void **state)
{
    struct gpunvme_io ios[3] = {read_of(0, 10), read_of(10, 10), read_of(20, 10)}, *ended[3];
    struct gpunvme_batch *batch;
    size_t n;

    (void)state;
    assert_int_equal(gpunvme_batch_create(&batch), GPUNVME_OK);
    assert_int_equal(submit_to(&store, ios, 3, batch), GPUNVME_OK);
    assert_int_equal(gpunvme_batch_poll(batch, 0, 3, ended, &n, 0), GPUNVME_OK);
    assert_int_equal(n, 0);
    store_io_end(&ios[2], GPUNVME_ERR_IO, 0);
    store_io_end(&ios[0], GPUNVME_OK, 10);
    assert_int_equal(gpunvme_batch_poll(batch, 2, 3, ended, &n, 1000000000), GPUNVME_OK);
    assert_int_equal(n, 2);
    assert_ptr_equal(ended[0], &ios[2]);
    assert_int_equal(ios[2].err, GPUNVME_ERR_IO);
    assert_ptr_equal(ended[1], &ios[0]);
    assert_int_equal(gpunvme_batch_poll(batch, 1, 3, ended, &n, 1000000), GPUNVME_ERR_TIMEOUT);
    assert_int_equal(gpunvme_batch_pending(batch), 1);
    assert_int_equal(gpunvme_batch_destroy(batch), GPUNVME_ERR_BUSY);
    store_io_end(&ios[1], GPUNVME_OK, 10);
    assert_int_equal(gpunvme_batch_poll(batch, 3, 3, ended, &n, 1000000000), GPUNVME_OK);
    assert_int_equal(n, 1);
    assert_int_equal(gpunvme_batch_destroy(batch), GPUNVME_OK);
}

static void a_short_read_without_a_count_is_an_error(void **state)
{
    (void)state;
    end_by_itself = true; /* with 10 bytes */
    store.uri.options.timeout_ns = 30000000000u;
    assert_int_equal(gpunvme_store_read(&store, 0, memory, GPUNVME_MEM_HOST, 11, NULL),
                     GPUNVME_ERR_RANGE);
    pthread_join(ending, NULL);
}

static void registered_memory_is_found_by_any_part_of_it(void **state)
{
    struct gpunvme_io io = read_of(0, 10);

    (void)state;
    assert_int_equal(gpunvme_register(engine, memory, 4096, GPUNVME_MEM_HOST), GPUNVME_OK);
    io.ptr = memory + 4086;
    submitted(&io);
    assert_non_null(store_region_map(&store, held[0]->priv.region));
    assert_int_equal(gpunvme_unregister(engine, memory), GPUNVME_ERR_BUSY);
    store_io_end(held[0], GPUNVME_OK, 10);
    assert_int_equal(gpunvme_io_test(&io), GPUNVME_OK);
    io.ptr = memory + 4087;
    submitted(&io);
    assert_null(store_region_map(&store, held[1]->priv.region));
    store_io_end(held[1], GPUNVME_OK, 10);
    assert_int_equal(gpunvme_unregister(engine, memory), GPUNVME_OK);
    assert_int_equal(gpunvme_unregister(engine, memory), GPUNVME_ERR_NOT_FOUND);
    assert_int_equal(nmapped, 1);
    assert_int_equal(nunmapped, 1);
}

static void a_part_of_registered_memory_counts_as_the_whole(void **state)
{
    (void)state;
    assert_int_equal(gpunvme_register(engine, memory, 8192, GPUNVME_MEM_HOST), 0);
    assert_int_equal(gpunvme_register(engine, memory + 4096, 4096, GPUNVME_MEM_HOST), 0);
    assert_int_equal(gpunvme_register(engine, memory, 8192, GPUNVME_MEM_HOST), 0);
    assert_int_equal(nmapped, 1);
    assert_int_equal(gpunvme_unregister(engine, memory), GPUNVME_OK);
    assert_int_equal(gpunvme_unregister(engine, memory + 4096), GPUNVME_OK);
    assert_int_equal(nunmapped, 0);
    assert_int_equal(gpunvme_unregister(engine, memory), GPUNVME_OK);
    assert_int_equal(nunmapped, 1);
    assert_int_equal(gpunvme_unregister(engine, memory), GPUNVME_ERR_NOT_FOUND);
}

static void registrations_do_not_overlap(void **state)
{
    (void)state;
    assert_int_equal(gpunvme_register(engine, memory + 4096, 4096, GPUNVME_MEM_HOST), 0);
    assert_int_equal(gpunvme_register(engine, memory + 8188, 4096, GPUNVME_MEM_HOST),
                     GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_register(engine, memory, 4100, GPUNVME_MEM_HOST), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_register(engine, memory, 4096, GPUNVME_MEM_HOST), 0);
}

static gpunvme_err_t full_map(void *key, const struct gpunvme_buf *buf, void **map)
{
    (void)key;
    (void)buf;
    (void)map;
    return base_fail(GPUNVME_ERR_LIMIT, "no room");
}

/* By the second of two controllers, after the first has mapped it. */
static void a_registration_that_meets_a_limit_is_undone(void **state)
{
    static const struct store_domain_ops full = {full_map, hand_unmap};
    struct gpunvme_store other = {.engine = engine, .domain = STORE_DOMAINS};
    struct gpunvme_engine_info info;

    (void)state;
    store_domain_join(&other, &full, &other);
    assert_int_equal(gpunvme_register(engine, memory, 4096, GPUNVME_MEM_HOST), GPUNVME_ERR_LIMIT);
    assert_string_equal(gpunvme_err_detail(), "no room");
    assert_int_equal(nmapped, 1);
    assert_int_equal(nunmapped, 1);
    gpunvme_engine_get_info(engine, &info);
    assert_int_equal(info.registered, 0);
    assert_int_equal(gpunvme_unregister(engine, memory), GPUNVME_ERR_NOT_FOUND);
    store_domain_leave(&other);
    assert_int_equal(gpunvme_register(engine, memory, 4096, GPUNVME_MEM_HOST), GPUNVME_OK);
}

static void a_close_that_times_out_leaves_the_store_as_it_was(void **state)
{
    struct gpunvme_io io = read_of(0, 10), other = read_of(0, 10);

    (void)state;
    submitted(&io);
    assert_int_equal(gpunvme_close(&store), GPUNVME_ERR_TIMEOUT);
    submitted(&other);
    store_io_end(held[0], GPUNVME_OK, 10);
    store_io_end(held[1], GPUNVME_OK, 10);
    assert_int_equal(gpunvme_io_test(&io), GPUNVME_OK);
    assert_int_equal(gpunvme_io_test(&other), GPUNVME_OK);
}

static void registered_memory_that_a_backend_has_no_use_for_is_held_too(void **state)
{
    struct gpunvme_io io = read_of(0, 10);

    (void)state;
    map_err = GPUNVME_ERR_UNSUPPORTED;
    assert_int_equal(gpunvme_register(engine, memory, 4096, GPUNVME_MEM_HOST), GPUNVME_OK);
    submitted(&io);
    assert_null(store_region_map(&store, held[0]->priv.region));
    assert_int_equal(gpunvme_unregister(engine, memory), GPUNVME_ERR_BUSY);
    store_io_end(held[0], GPUNVME_OK, 10);
    assert_int_equal(gpunvme_unregister(engine, memory), GPUNVME_OK);
    assert_int_equal(nunmapped, 0);
}

static void what_is_in_flight_is_not_submitted_again(void **state)
{
    struct gpunvme_io io = read_of(0, 10), *ended;
    struct gpunvme_batch *batch;
    size_t n;

    (void)state;
    assert_int_equal(gpunvme_batch_create(&batch), GPUNVME_OK);
    assert_int_equal(submit_to(&store, &io, 1, batch), GPUNVME_OK);
    assert_int_equal(submit_to(&store, &io, 1, batch), GPUNVME_ERR_INVALID);
    store_io_end(held[0], GPUNVME_OK, 10);
    assert_int_equal(submit_to(&store, &io, 1, batch), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_batch_poll(batch, 1, 1, &ended, &n, 1000000000), GPUNVME_OK);
    submitted(&io);
    assert_int_equal(gpunvme_io_wait(&io, 1000000), GPUNVME_ERR_TIMEOUT);
    assert_int_equal(submit_to(&store, &io, 1, NULL), GPUNVME_ERR_INVALID);
    store_io_end(held[1], GPUNVME_OK, 10);
    submitted(&io); /* its end was not asked for: that is fine */
    store_io_end(held[2], GPUNVME_OK, 10);
    assert_int_equal(gpunvme_io_test(&io), GPUNVME_OK);
    assert_int_equal(gpunvme_batch_destroy(batch), GPUNVME_OK);
}

static void the_detail_of_an_error_is_that_of_the_transfer(void **state)
{
    struct gpunvme_io io = read_of(7, 10), other = read_of(0, 1);

    (void)state;
    submitted(&io);
    store_io_end(held[0], base_fail(GPUNVME_ERR_IO, "the disk is wet"), 3);
    assert_int_equal(submit_to(NULL, &other, 1, NULL), GPUNVME_ERR_INVALID);
    assert_string_equal(detail_of(&io), "the disk is wet");
    assert_int_equal(gpunvme_io_wait(&io, 0), GPUNVME_ERR_IO);
    assert_string_equal(gpunvme_err_detail(),
                        "the disk is wet; 10 bytes at offset 7, of which the first 3 were moved");
}

static struct gpunvme_io *many_reads(void)
{
    struct gpunvme_io *ios = calloc(MANY, sizeof(*ios));

    assert_non_null(ios);
    for (unsigned i = 0; i < MANY; i++) {
        ios[i] = read_of(0, 1 + i % 100);
        ios[i].store = &store;
    }
    return ios;
}

static void a_run_of_many_tells_each_what_came_of_it(void **state)
{
    struct gpunvme_io *ios = many_reads();

    (void)state;
    end_at_once = true;
    assert_int_equal(gpunvme_io_run(ios, MANY), GPUNVME_OK);
    for (unsigned i = 0; i < MANY; i++)
        assert_int_equal(ios[i].done, ios[i].nbytes);
    ios[15000].offset = ios[12345].offset = BAD;
    assert_int_equal(gpunvme_io_run(ios, MANY), GPUNVME_ERR_IO);
    assert_non_null(strstr(gpunvme_err_detail(), "bad block of 46 bytes"));
    for (unsigned i = 0; i < MANY; i++)
        assert_int_equal(ios[i].err, ios[i].offset == BAD ? GPUNVME_ERR_IO : GPUNVME_OK);
    free(ios);
}

/* Those that had not begun as well. */
static void a_run_of_many_in_which_nothing_moves_times_out(void **state)
{
    struct gpunvme_io *ios = many_reads();

    (void)state;
    assert_int_equal(gpunvme_io_run(ios, MANY), GPUNVME_ERR_TIMEOUT);
    assert_int_equal(nheld, MOST_RUN);
    assert_int_equal(ncanceled, MOST_RUN);
    for (unsigned i = 0; i < MANY; i++) {
        assert_int_equal(ios[i].err, GPUNVME_ERR_TIMEOUT);
        assert_int_equal(ios[i].done, 0);
    }
    free(ios);
    for (unsigned i = 0; i < MOST_RUN; i++)
        store_io_end(held[i], GPUNVME_OK, 10);
}

static void what_makes_no_sense_is_refused(void **state)
{
    struct gpunvme_store_info info;
    struct gpunvme_path way;
    struct gpunvme_io io = read_of(0, 10);
    struct gpunvme_vec vec = {memory, 10, GPUNVME_MEM_HOST};
    size_t too_many = (size_t)1 << 61; /* times the size of a transfer is 0, modulo 2^64 */
    size_t done;

    (void)state;
    io.store = &store;
    assert_int_equal(gpunvme_io_run(&io, too_many), GPUNVME_ERR_NOMEM);
    assert_int_equal(gpunvme_store_readv(&store, 0, &vec, too_many, &done), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_register(engine, memory, SIZE_MAX, GPUNVME_MEM_HOST),
                     GPUNVME_ERR_INVALID);
    gpunvme_store_get_info(NULL, &info);
    assert_null(info.backend);
    gpunvme_store_path(NULL, &way);
    assert_null(way.backend);
    gpunvme_store_get_info(&store, NULL);
    gpunvme_store_path(&store, NULL);
}

static _Atomic bool stop_looking;

static void *look_up(void *unused)
{
    (void)unused;
    while (!stop_looking)
        store_region_release(
            store_regions_hold(store_engine_regions(engine), memory, NBYTES, GPUNVME_MEM_HOST));
    return NULL;
}

static void registration_comes_in_between_transfers(void **state)
{
    pthread_t threads[8];

    (void)state;
    stop_looking = false;
    for (unsigned i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, look_up, NULL);
    for (unsigned i = 0; i < 50; i++) {
        assert_int_equal(gpunvme_register(engine, memory, 4096, GPUNVME_MEM_HOST), 0);
        assert_int_equal(gpunvme_unregister(engine, memory), GPUNVME_OK);
    }
    stop_looking = true;
    for (unsigned i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_transfer_ends_when_its_last_piece_does),
        TEST(the_first_piece_that_stops_short_says_how_far_it_went),
        TEST(an_error_before_the_end_of_the_store_is_an_error),
        TEST(one_bad_transfer_stops_a_submission_and_is_named),
        TEST(a_write_that_does_not_fit_is_refused_whole),
        TEST(a_store_opened_for_reading_is_not_written),
        TEST(nothing_is_done_at_once),
        TEST(a_wait_ends_at_its_deadline_and_the_transfer_goes_on),
        TEST(a_wait_is_woken_by_the_end),
        TEST(a_synchronous_read_that_times_out_may_end_later),
        TEST(a_callback_is_called_once),
        TEST(a_batch_gives_each_transfer_once_with_its_own_error),
        TEST(a_short_read_without_a_count_is_an_error),
        TEST(registered_memory_is_found_by_any_part_of_it),
        TEST(a_part_of_registered_memory_counts_as_the_whole),
        TEST(registrations_do_not_overlap),
        TEST(a_registration_that_meets_a_limit_is_undone),
        TEST(a_close_that_times_out_leaves_the_store_as_it_was),
        TEST(registered_memory_that_a_backend_has_no_use_for_is_held_too),
        TEST(what_is_in_flight_is_not_submitted_again),
        TEST(the_detail_of_an_error_is_that_of_the_transfer),
        TEST(a_run_of_many_tells_each_what_came_of_it),
        TEST(a_run_of_many_in_which_nothing_moves_times_out),
        TEST(what_makes_no_sense_is_refused),
        TEST(registration_comes_in_between_transfers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
