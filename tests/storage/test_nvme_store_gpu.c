/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Stores with issue=gpu: a kernel issues the commands, or without a GPU threads in its place. Same
 * promises, same results.
 */
#include "nvme_promises.h"

static void random_transfers_are_right(void **state)
{
    (void)state;
    random_transfers("sim:size=1M?issue=gpu", 600);
}

static void random_transfers_are_right_in_small_batches(void **state)
{
    (void)state;
    random_transfers("sim:size=1M,block=4096?issue=gpu,depth=3,chunk=16K", 400);
    random_transfers("sim:size=1M,noiob=24?issue=gpu,threads=1", 200);
}

static void the_rest_of_a_block_survives_a_part_of_it(void **state)
{
    (void)state;
    a_part_does_not_undo_a_whole_block("sim:size=1M?issue=gpu");
}

static void thousands_at_once_are_fine(void **state)
{
    (void)state;
    thousands_of_transfers_in_a_batch_all_end("sim:size=4M?issue=gpu");
}

static void the_status_of_each_transfer_is_kept(void **state)
{
    struct gpunvme_store *store =
        opened("sim:size=1M,fault=status=2/81:read:lba=50-51?issue=gpu,chunk=4096");
    static uint8_t memory[100 * 512];
    static struct gpunvme_io ios[100];
    size_t done;

    (void)state;
    for (unsigned i = 0; i < 100; i++)
        ios[i] = (struct gpunvme_io){
            .op = GPUNVME_OP_READ, .offset = 512ull * i, .ptr = memory + 512ull * i, .nbytes = 512};
    assert_ok(gpunvme_store_submit(store, ios, 100, NULL));
    for (unsigned i = 0; i < 100; i++)
        assert_err(gpunvme_io_wait(&ios[i], 0),
                   i == 50 || i == 51 ? GPUNVME_ERR_NVME(0x281) : GPUNVME_OK);
    assert_err(gpunvme_store_read(store, 0, memory, GPUNVME_MEM_HOST, sizeof(memory), &done),
               GPUNVME_ERR_NVME(0x281));
    assert_int_equal(done, 50 * 512 / 4096 * 4096);
    assert_non_null(strstr(gpunvme_err_detail(), "0281h"));
    closed(store);
}

/*
 * Where there is a GPU, the controller's threads move each block by a copy of it, and other
 * programs have the GPU in between: so few commands, and much time, that only the lost one is late.
 */
static void a_lost_command_is_a_timeout_and_the_others_are_not(void **state)
{
    struct gpunvme_store *store = opened("sim:size=1M,fault=lose:io:nth=20?issue=gpu,timeout=6s");
    struct nvme_store *s = store->priv;
    static uint8_t memory[32 * 512];
    static struct gpunvme_io ios[32];
    unsigned nlost = 0;

    (void)state;
    s->kernel_timeout_ns = UINT64_C(30000000000);
    for (unsigned i = 0; i < 32; i++)
        ios[i] = (struct gpunvme_io){
            .op = GPUNVME_OP_READ, .offset = 512ull * i, .ptr = memory + 512ull * i, .nbytes = 512};
    assert_ok(gpunvme_store_submit(store, ios, 32, NULL));
    for (unsigned i = 0; i < 32; i++) {
        gpunvme_err_t err = gpunvme_io_wait(&ios[i], UINT64_C(50000000000));

        if (err)
            print_message("%u: %s (%s)\n", i, gpunvme_err_name(err), gpunvme_err_detail());
        nlost += err == GPUNVME_ERR_TIMEOUT;
        if (err != GPUNVME_ERR_TIMEOUT)
            assert_ok(err);
    }
    assert_int_equal(nlost, 1);
    assert_ok(gpunvme_store_read(store, 0, memory, GPUNVME_MEM_HOST, 512, NULL));
    closed(store);
}

static void a_drive_that_goes_ends_everything(void **state)
{
    struct gpunvme_store *store = opened("sim:size=1M,fault=remove:io:nth=40?issue=gpu,depth=16");
    static uint8_t memory[300 * 512];
    static struct gpunvme_io ios[300];
    unsigned nremoved = 0;

    (void)state;
    for (unsigned i = 0; i < 300; i++)
        ios[i] = (struct gpunvme_io){
            .op = GPUNVME_OP_READ, .offset = 512ull * i, .ptr = memory + 512ull * i, .nbytes = 512};
    assert_ok(gpunvme_store_submit(store, ios, 300, NULL));
    for (unsigned i = 0; i < 300; i++) {
        gpunvme_err_t err = gpunvme_io_wait(&ios[i], 0);

        nremoved += err == GPUNVME_ERR_REMOVED;
        if (err != GPUNVME_ERR_REMOVED)
            assert_ok(err);
    }
    assert_in_range(nremoved, 200, 299);
    assert_err(gpunvme_store_flush(store), GPUNVME_ERR_REMOVED);
    gpunvme_close(store); /* what the controller says to its shutdown is of no interest */
}

static void flush_and_the_path_report_work(void **state)
{
    struct gpunvme_store *store = opened("sim:size=1M?issue=gpu");
    struct gpunvme_path path;
    struct gpunvme_buf buf;

    (void)state;
    assert_ok(gpunvme_store_flush(store));
    assert_ok(gpunvme_mem_alloc(65536, GPUNVME_MEM_GPU, &buf));
    assert_ok(gpunvme_store_register(store, buf.gpu, 32768, GPUNVME_MEM_GPU));
    assert_ok(gpunvme_store_read(store, 0, buf.gpu, GPUNVME_MEM_GPU, 32768, NULL));
    assert_ok(gpunvme_store_read(store, 0, (uint8_t *)buf.gpu + 32768, GPUNVME_MEM_GPU, 512, NULL));
    gpunvme_store_path(store, &path);
    assert_int_equal(path.bytes_read[GPUNVME_ROUTE_P2P], 32768);
    assert_int_equal(path.bytes_read[GPUNVME_ROUTE_BOUNCE], 512);
    assert_non_null(strstr(path.how, "kernel"));
    closed(store);
    assert_ok(gpunvme_mem_free(&buf));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_transfers_are_right),
        cmocka_unit_test(random_transfers_are_right_in_small_batches),
        cmocka_unit_test(the_rest_of_a_block_survives_a_part_of_it),
        cmocka_unit_test(thousands_at_once_are_fine),
        cmocka_unit_test(the_status_of_each_transfer_is_kept),
        cmocka_unit_test(a_lost_command_is_a_timeout_and_the_others_are_not),
        cmocka_unit_test(a_drive_that_goes_ends_everything),
        cmocka_unit_test(flush_and_the_path_report_work),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
