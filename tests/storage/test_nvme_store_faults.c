/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Stores that this library drives itself, when the drive fails: what could be moved is told, the
 * controller's status is kept, nothing hangs, and the store works on where the drive does.
 */
#include "nvme_fixture.h"

#include <pthread.h>

#include "sim/sim_internal.h"
#include "transfer_util.h"

#define SIZE        ((size_t)1 << 20)
#define LONG_BEFORE UINT64_C(25000000000) /* of 40 s */

static uint8_t memory[SIZE];

static void a_media_error_is_kept_and_what_was_before_it_is_told(void **state)
{
    struct gpunvme_store *store =
        opened("sim:size=1M,fault=status=2/81:read:lba=1000-1003?chunk=4096");
    size_t done;

    (void)state;
    memset(memory, 3, SIZE);
    assert_ok(gpunvme_store_write(store, 0, memory, GPUNVME_MEM_HOST, SIZE, NULL));
    memset(memory, 0, SIZE);
    assert_err(gpunvme_store_read(store, 0, memory, GPUNVME_MEM_HOST, SIZE, &done),
               GPUNVME_ERR_NVME(0x281));
    assert_int_equal(done, 1000 * 512);
    for (size_t i = 0; i < done; i++)
        assert_int_equal(memory[i], 3);
    assert_err(gpunvme_store_read(store, 1001 * 512, memory, GPUNVME_MEM_HOST, 1, &done),
               GPUNVME_ERR_NVME(0x281));
    assert_int_equal(done, 0);
    assert_ok(gpunvme_store_read(store, 2000 * 512, memory, GPUNVME_MEM_HOST, 512, &done));
    closed(store);
}

static void partial_failures_of_a_batch_are_told_one_by_one(void **state)
{
    struct gpunvme_store *store = opened("sim:size=1M,fault=status=2/81:read:lba=50");
    static struct gpunvme_io ios[200], *ended[200];
    struct gpunvme_batch *batch;
    size_t n;

    (void)state;
    for (unsigned i = 0; i < 200; i++)
        ios[i] = (struct gpunvme_io){
            .op = GPUNVME_OP_READ, .offset = 512ull * i, .ptr = memory + 512ull * i, .nbytes = 512};
    assert_ok(gpunvme_batch_create(&batch));
    assert_ok(submit_to(store, ios, 200, batch));
    assert_ok(gpunvme_batch_poll(batch, 200, 200, ended, &n, UINT64_C(20000000000)));
    assert_int_equal(n, 200);
    for (unsigned i = 0; i < 200; i++)
        assert_err(ios[i].err, i == 50 ? GPUNVME_ERR_NVME(0x281) : GPUNVME_OK);
    assert_ok(gpunvme_batch_destroy(batch));
    closed(store);
}

#define TWO_FAULTS "sim:size=1M,fault=status=2/81:read:lba=50,fault=status=2/82:read:lba=60"

static void each_transfer_of_a_batch_has_its_own_detail(void **state)
{
    struct gpunvme_store *store = opened(TWO_FAULTS);
    static struct gpunvme_io ios[100], *ended[100];
    struct gpunvme_batch *batch;
    size_t n;

    (void)state;
    for (unsigned i = 0; i < 100; i++)
        ios[i] = (struct gpunvme_io){
            .op = GPUNVME_OP_READ, .offset = 512ull * i, .ptr = memory + 512ull * i, .nbytes = 512};
    assert_ok(gpunvme_batch_create(&batch));
    assert_ok(submit_to(store, ios, 100, batch));
    assert_ok(gpunvme_batch_poll(batch, 100, 100, ended, &n, UINT64_C(20000000000)));
    assert_non_null(strstr(detail_of(&ios[50]), "0281h"));
    assert_non_null(strstr(detail_of(&ios[60]), "0282h"));
    for (unsigned i = 0; i < 100; i++)
        if (!ios[i].err)
            assert_string_equal(detail_of(&ios[i]), "");
    assert_ok(gpunvme_batch_destroy(batch));
    ios[50].offset = 0; /* and its next transfer has none of it */
    assert_ok(submit_to(store, &ios[50], 1, NULL));
    assert_ok(gpunvme_io_wait(&ios[50], 0));
    assert_string_equal(detail_of(&ios[50]), "");
    closed(store);
}

static char told[2][256];
static _Atomic unsigned ntold;

static void tells(struct gpunvme_io *io)
{
    strcpy(told[io->offset / 512 == 60], detail_of(io));
    ntold++;
}

static void callbacks_and_those_who_wait_have_the_detail_of_theirs(void **state)
{
    struct gpunvme_store *store = opened(TWO_FAULTS);
    struct gpunvme_io ios[2];

    (void)state;
    for (unsigned by_callback = 0; by_callback < 2; by_callback++) {
        for (unsigned i = 0; i < 2; i++)
            ios[i] = (struct gpunvme_io){.op = GPUNVME_OP_READ,
                                         .offset = i ? 60 * 512 : 50 * 512,
                                         .ptr = memory + 512 * i,
                                         .nbytes = 512,
                                         .callback = by_callback ? tells : NULL};
        assert_ok(submit_to(store, ios, 2, NULL));
        for (unsigned i = 0; i < 2 && !by_callback; i++) {
            assert_err(gpunvme_io_wait(&ios[i], 0), GPUNVME_ERR_NVME(0x281 + i));
            assert_non_null(strstr(gpunvme_err_detail(), detail_of(&ios[i])));
            assert_non_null(strstr(detail_of(&ios[i]), i ? "0282h" : "0281h"));
        }
    }
    while (ntold < 2)
        usleep(1000);
    assert_non_null(strstr(told[0], "0281h"));
    assert_non_null(strstr(told[1], "0282h"));
    closed(store);
}

static void each_of_transfers_that_are_waited_for_has_its_own_detail(void **state)
{
    struct gpunvme_store *store = opened(TWO_FAULTS);
    struct gpunvme_io ios[3];

    (void)state;
    for (unsigned i = 0; i < 3; i++)
        ios[i] = (struct gpunvme_io){.op = GPUNVME_OP_READ,
                                     .offset = (40 + 10ull * i) * 512,
                                     .ptr = memory + 512ull * i,
                                     .nbytes = 512};
    assert_err(run_on(store, ios, 3), GPUNVME_ERR_NVME(0x281));
    assert_non_null(strstr(gpunvme_err_detail(), "0281h"));
    assert_string_equal(detail_of(&ios[0]), "");
    assert_non_null(strstr(detail_of(&ios[1]), "0281h"));
    assert_non_null(strstr(detail_of(&ios[2]), "0282h"));
    closed(store);
}

static void a_write_that_fails_in_its_reading_half_changes_nothing(void **state)
{
    struct gpunvme_store *store = opened("sim:size=1M,fault=status=2/81:read:lba=7:nth=1");
    uint8_t back[512];

    (void)state;
    memset(memory, 5, 512);
    assert_err(gpunvme_store_write(store, 7 * 512 + 3, memory, GPUNVME_MEM_HOST, 9, NULL),
               GPUNVME_ERR_NVME(0x281));
    assert_ok(gpunvme_store_read(store, 7 * 512, back, GPUNVME_MEM_HOST, 512, NULL));
    for (unsigned i = 0; i < 512; i++)
        assert_int_equal(back[i], 0);
    /* and the block is free again */
    assert_ok(gpunvme_store_write(store, 7 * 512 + 3, memory, GPUNVME_MEM_HOST, 9, NULL));
    closed(store);
}

static void a_flush_that_fails_says_so(void **state)
{
    struct gpunvme_store *store = opened("sim:size=1M,fault=status=0/6:flush:nth=2");
    struct gpunvme_io io = {.op = GPUNVME_OP_FLUSH};

    (void)state;
    assert_ok(gpunvme_store_flush(store));
    assert_err(gpunvme_store_flush(store), GPUNVME_ERR_NVME(6));
    assert_ok(submit_to(store, &io, 1, NULL));
    assert_ok(gpunvme_io_wait(&io, 0));
    closed(store);
}

static void what_was_flushed_survives_a_power_cut(void **state)
{
    struct gpunvme_store *store = opened("sim:size=1M,vwc");
    static uint8_t back[SIZE];

    (void)state;
    fill_random(memory, SIZE, 4);
    assert_ok(gpunvme_store_write(store, 0, memory, GPUNVME_MEM_HOST, SIZE, NULL));
    assert_ok(gpunvme_store_flush(store));
    gpunvme_sim_power_cycle(sim_of(store));
    assert_ok(gpunvme_store_read(store, 0, back, GPUNVME_MEM_HOST, SIZE, NULL));
    assert_memory_equal(memory, back, SIZE);
    assert_ok(gpunvme_close(store)); /* a doorbell was rung before the cut was noticed */
}

/* One of 64 reads never completes: it alone is a timeout, though a reset ends all. */
static void lose_one_of_many(const char *uri)
{
    struct gpunvme_store *store = opened(uri);
    static struct gpunvme_io ios[64];
    unsigned nlost = 0;

    for (unsigned i = 0; i < 64; i++)
        ios[i] = (struct gpunvme_io){.op = i % 2 ? GPUNVME_OP_WRITE : GPUNVME_OP_READ,
                                     .offset = 512ull * i,
                                     .ptr = memory + 512ull * i,
                                     .nbytes = 512};
    assert_ok(submit_to(store, ios, 64, NULL));
    for (unsigned i = 0; i < 64; i++) {
        gpunvme_err_t err = gpunvme_io_wait(&ios[i], UINT64_C(30000000000));

        nlost += err == GPUNVME_ERR_TIMEOUT;
        if (err != GPUNVME_ERR_TIMEOUT)
            assert_ok(err);
    }
    assert_int_equal(nlost, 1);
    assert_ok(gpunvme_store_read(store, 0, memory, GPUNVME_MEM_HOST, 512, NULL));
    closed(store);
}

static void a_lost_command_is_a_timeout_and_the_others_are_not(void **state)
{
    (void)state;
    memset(memory, 0, SIZE);
    lose_one_of_many("sim:size=1M,fault=lose:io:nth=20?timeout=300ms");
    lose_one_of_many(
        "sim:size=1M,fault=lose:io:nth=20,fault=delay=50ms:io:every=7?timeout=900ms,threads=2");
}

static void a_lost_command_of_a_waiting_thread_is_a_timeout(void **state)
{
    struct gpunvme_store *store = opened("sim:size=1M,fault=lose:read:nth=1?timeout=300ms");

    (void)state;
    assert_err(gpunvme_store_read(store, 0, memory, GPUNVME_MEM_HOST, 512, NULL),
               GPUNVME_ERR_TIMEOUT);
    assert_ok(gpunvme_store_read(store, 0, memory, GPUNVME_MEM_HOST, 512, NULL));
    closed(store);
}

static void a_controller_that_fails_is_reset_and_its_commands_sent_again(void **state)
{
    struct gpunvme_store *store = opened("sim:size=1M,fault=cfs:io:nth=30?threads=2,timeout=120s");
    static struct gpunvme_io ios[100];

    (void)state;
    memset(memory, 8, SIZE);
    for (unsigned i = 0; i < 100; i++)
        ios[i] = (struct gpunvme_io){
            .op = GPUNVME_OP_WRITE, .offset = 700ull * i, .ptr = memory, .nbytes = 700};
    assert_ok(submit_to(store, ios, 100, NULL));
    for (unsigned i = 0; i < 100; i++)
        assert_ok(gpunvme_io_wait(&ios[i], LONG_BEFORE)); /* a command's time is up */
    memset(memory, 0, SIZE);
    assert_ok(gpunvme_store_read(store, 0, memory, GPUNVME_MEM_HOST, 70000, NULL));
    for (unsigned i = 0; i < 70000; i++)
        assert_int_equal(memory[i], 8);
    closed(store);
}

static void a_command_that_fails_the_controller_each_time_comes_to_an_end(void **state)
{
    struct gpunvme_store *store = opened("sim:size=1M,fault=cfs:write:lba=100-101?timeout=120s");
    size_t done = 0;

    (void)state;
    assert_int_not_equal(
        gpunvme_store_write(store, 0, memory, GPUNVME_MEM_HOST, 100 * 512 + 700, &done), 0);
    assert_in_range(done, 0, 100 * 512);
    assert_ok(gpunvme_store_write(store, 0, memory, GPUNVME_MEM_HOST, 5000, NULL));
    closed(store);
}

static _Atomic bool stop_resetting;

static void *resets(void *store_)
{
    struct gpunvme_store *store = store_;
    struct nvme_store *s = store->priv;

    for (unsigned i = 0; i < 100 && !stop_resetting; i++) {
        if (gpunvme_ctrl_reset(s->share->ctrl))
            return "a reset";
        usleep(i % 2 ? 6000 : 0); /* two on each other's heels */
    }
    return NULL;
}

static void resets_by_others_are_got_over(void **state)
{
    struct gpunvme_store *store = opened("sim:size=1M?threads=2,depth=8");
    static struct gpunvme_io ios[64];
    pthread_t thread;
    void *failed;

    (void)state;
    stop_resetting = false;
    pthread_create(&thread, NULL, resets, store);
    for (unsigned round = 0; round < 300; round++) {
        for (unsigned i = 0; i < 64; i++)
            ios[i] = (struct gpunvme_io){.op = i % 3 ? GPUNVME_OP_READ : GPUNVME_OP_WRITE,
                                         .offset = 700ull * i,
                                         .ptr = memory + 700 * i,
                                         .nbytes = 700};
        assert_ok(submit_to(store, ios, 64, NULL));
        for (unsigned i = 0; i < 64; i++)
            assert_ok(gpunvme_io_wait(&ios[i], 0));
        assert_ok(gpunvme_store_read(store, 99, memory + 90000, GPUNVME_MEM_HOST, 5000, NULL));
    }
    stop_resetting = true;
    pthread_join(thread, &failed);
    assert_null(failed);
    closed(store);
}

static void a_drive_that_goes_ends_everything(void **state)
{
    struct gpunvme_store *store =
        opened("sim:size=1M,fault=remove:io:nth=40?threads=2,depth=16,timeout=120s");
    static struct gpunvme_io ios[500];
    unsigned nremoved = 0;

    (void)state;
    for (unsigned i = 0; i < 500; i++)
        ios[i] = (struct gpunvme_io){
            .op = GPUNVME_OP_READ, .offset = 512ull * i, .ptr = memory + 512ull * i, .nbytes = 512};
    assert_ok(submit_to(store, ios, 500, NULL));
    for (unsigned i = 0; i < 500; i++) {
        gpunvme_err_t err = gpunvme_io_wait(&ios[i], LONG_BEFORE);

        nremoved += err == GPUNVME_ERR_REMOVED;
        if (err != GPUNVME_ERR_REMOVED)
            assert_ok(err);
    }
    assert_in_range(nremoved, 400, 499);
    assert_err(gpunvme_store_read(store, 0, memory, GPUNVME_MEM_HOST, 512, NULL),
               GPUNVME_ERR_REMOVED);
    assert_err(gpunvme_store_flush(store), GPUNVME_ERR_REMOVED);
    gpunvme_close(store); /* what the controller says to its shutdown is of no interest */
}

static void *reads(void *store)
{
    static __thread uint8_t bytes[600];
    gpunvme_err_t err = GPUNVME_OK;

    while (!err)
        err = gpunvme_store_read(store, 13, bytes, GPUNVME_MEM_HOST, 600, NULL);
    return err == GPUNVME_ERR_REMOVED ? NULL : "another error";
}

static void a_drive_that_goes_ends_the_threads_that_wait(void **state)
{
    struct gpunvme_store *store = opened("sim:size=1M,fault=remove:io:nth=5000");
    pthread_t threads[12];

    (void)state;
    for (unsigned i = 0; i < 12; i++)
        pthread_create(&threads[i], NULL, reads, store);
    for (unsigned i = 0; i < 12; i++) {
        void *failed;

        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    gpunvme_close(store);
}

static void a_drive_that_is_gone_is_not_opened_once_more(void **state)
{
    char path[] = "/tmp/gpunvme_store_XXXXXX", uri[128];
    int fd = mkstemp(path);
    struct gpunvme_store *store;

    (void)state;
    assert_int_equal(ftruncate(fd, 1 << 20), 0);
    snprintf(uri, sizeof(uri), "sim:image=%s,fault=remove:read:nth=1", path);
    store = opened(uri);
    assert_err(gpunvme_store_read(store, 0, memory, GPUNVME_MEM_HOST, 512, NULL),
               GPUNVME_ERR_REMOVED);
    refused(uri, 0, GPUNVME_ERR_REMOVED, "");
    gpunvme_close(store);
    store = opened(uri); /* it is back, as far as anybody can tell */
    gpunvme_close(store);
    close(fd);
    unlink(path);
}

static void a_drive_that_is_not_there_is_told(void **state)
{
    (void)state;
    refused("vfio-user:/nowhere/socket", 0, GPUNVME_ERR_NOT_FOUND, "/nowhere/socket");
    refused("sim:size=1M,fault=cfs:identify", 0, GPUNVME_ERR_FATAL, "");
    refused("nvme:ffff:ff:1f.7", 0, GPUNVME_ERR_NOT_FOUND, "");
}

static void close_waits_for_what_is_in_flight(void **state)
{
    struct gpunvme_store *store = opened("sim:size=1M,fault=delay=100ms:read");
    struct gpunvme_io io = {.op = GPUNVME_OP_READ, .ptr = memory, .nbytes = 4096};

    (void)state;
    assert_ok(submit_to(store, &io, 1, NULL));
    closed(store);
    assert_int_equal(io.done, 4096);
}

/* TIMEOUT would say that the store is still there, to be closed once more. */
static void a_drive_that_does_not_shut_down_is_closed_all_the_same(void **state)
{
    struct gpunvme_store *store = opened("sim:size=1M");

    (void)state;
    sim_of(store)->config.shutdown_ns = UINT64_C(3600000000000); /* which RTD3E does not say */
    assert_err(gpunvme_close(store), GPUNVME_ERR_IO);
    assert_non_null(strstr(gpunvme_err_detail(), "shutting down"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_media_error_is_kept_and_what_was_before_it_is_told),
        cmocka_unit_test(partial_failures_of_a_batch_are_told_one_by_one),
        cmocka_unit_test(each_transfer_of_a_batch_has_its_own_detail),
        cmocka_unit_test(callbacks_and_those_who_wait_have_the_detail_of_theirs),
        cmocka_unit_test(each_of_transfers_that_are_waited_for_has_its_own_detail),
        cmocka_unit_test(a_write_that_fails_in_its_reading_half_changes_nothing),
        cmocka_unit_test(a_flush_that_fails_says_so),
        cmocka_unit_test(what_was_flushed_survives_a_power_cut),
        cmocka_unit_test(a_lost_command_is_a_timeout_and_the_others_are_not),
        cmocka_unit_test(a_lost_command_of_a_waiting_thread_is_a_timeout),
        cmocka_unit_test(a_controller_that_fails_is_reset_and_its_commands_sent_again),
        cmocka_unit_test(a_command_that_fails_the_controller_each_time_comes_to_an_end),
        cmocka_unit_test(resets_by_others_are_got_over),
        cmocka_unit_test(a_drive_that_goes_ends_everything),
        cmocka_unit_test(a_drive_that_goes_ends_the_threads_that_wait),
        cmocka_unit_test(a_drive_that_is_gone_is_not_opened_once_more),
        cmocka_unit_test(a_drive_that_is_not_there_is_told),
        cmocka_unit_test(close_waits_for_what_is_in_flight),
        cmocka_unit_test(a_drive_that_does_not_shut_down_is_closed_all_the_same),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
