/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The short names do what they say.
 */
#include "data_file.h"
#include "gpunvme/nvme_gpu.h"

static void a_store_is_read_at_once_and_in_the_background(void **state)
{
    struct gpunvme_io io;
    struct nvme_gpu g;

    (void)state;
    clear_gpu();
    assert_int_equal(nvme_gpu_init(&g, data_path), GPUNVME_OK);
    assert_int_equal(nvme_gpu_read(&g, 10, 1000, gpu.gpu), 1000);
    assert_bytes(0, 10, 1000);
    assert_int_equal(nvme_gpu_read_async(&g, FILE_NBYTES - 7, 1000, gpu.gpu, &io), GPUNVME_OK);
    assert_int_equal(gpunvme_io_wait(&io, 0), GPUNVME_OK);
    assert_int_equal(io.done, 7);
    assert_int_equal(nvme_gpu_cleanup(&g), GPUNVME_OK);
}

static void a_store_that_is_not_there_leaves_nothing_to_clean_up(void **state)
{
    struct nvme_gpu g;

    (void)state;
    assert_int_equal(nvme_gpu_init(&g, "/nowhere"), GPUNVME_ERR_NOT_FOUND);
    assert_int_equal(nvme_gpu_cleanup(&g), GPUNVME_OK);
}

static void kinds_are_read_one_by_one_and_together(void **state)
{
    struct gpunvme_kind_io parts[2] = {{.kind = "items"}, {.kind = "users", .length = 1}};
    struct nvme_gpu g;
    uint64_t request;

    (void)state;
    clear_gpu();
    assert_int_equal(nvme_gpu_init(&g, data_path), GPUNVME_OK);
    assert_int_equal(nvme_gpu_create_request(&g, gpu.gpu, 65536, &request), GPUNVME_OK);
    assert_int_equal(nvme_gpu_add_kind(&g, request, "users", 4, 4, 512), GPUNVME_OK);
    assert_int_equal(nvme_gpu_add_kind(&g, request, "items", 9, 4, 512), GPUNVME_OK);
    assert_int_equal(read_nvme_kind(&g, request, "users", 1, 2, (uint8_t *)gpu.gpu + 30000),
                     GPUNVME_OK);
    assert_bytes(30000, 5 * 512, 1024);
    assert_int_equal(nvme_gpu_batch_read(&g, request, parts, 2), GPUNVME_OK);
    assert_bytes(0, 4 * 512, 512);
    assert_untouched(512, 3 * 512);
    assert_bytes(2048, 9 * 512, 2048);
    assert_int_equal(nvme_gpu_release_request(&g, request), GPUNVME_OK);
    assert_int_equal(read_nvme_kind(&g, request, "users", 1, 2, gpu.gpu), GPUNVME_ERR_NOT_FOUND);
    assert_int_equal(nvme_gpu_cleanup(&g), GPUNVME_OK);
}

static void files_are_read_and_written_by_one_call(void **state)
{
    struct gpunvme_io ios[2];

    (void)state;
    assert_int_equal(read_nvme_to_gpu(data_path, 5, 100, gpu.gpu), 100);
    assert_bytes(0, 5, 100);
    assert_int_equal(write_gpu_to_nvme(data_path, 5, 100, gpu.gpu), 100);
    memset(ios, 0, sizeof(ios));
    for (unsigned i = 0; i < 2; i++) {
        ios[i].mem = GPUNVME_MEM_GPU;
        ios[i].offset = 1000 * i;
        ios[i].ptr = (uint8_t *)gpu.gpu + 500 * i;
        ios[i].nbytes = 500;
    }
    assert_int_equal(async_batch_read(data_path, ios, 2), GPUNVME_OK);
    assert_bytes(500, 1000, 500);
    assert_int_equal(read_nvme_to_gpu("/nowhere", 5, 100, gpu.gpu), GPUNVME_ERR_NOT_FOUND);
    assert_int_equal(gpunvme_file_close_all(), GPUNVME_OK);
}

static void files_go_by_cufile_once_its_driver_is_open(void **state)
{
    (void)state;
    if (!gpunvme_mem_gpu_is_host()) {
        print_message("SKIP: the stand-in for libcufile does not reach a GPU's memory\n");
        skip();
    }
    clear_gpu();
    assert_int_equal(setenv("GPUNVME_CUFILE_LIBRARY", FAKE_CUFILE, 1), 0);
    assert_int_equal(init_gds(), GPUNVME_OK);
    assert_int_equal(read_nvme_to_gpu(data_path, 4096, 8192, gpu.gpu), 8192);
    assert_bytes(0, 4096, 8192);
    assert_int_equal(read_nvme_to_gpu("/nowhere?", 5, 100, gpu.gpu), GPUNVME_ERR_NOT_FOUND);
    assert_non_null(strstr(gpunvme_err_detail(), "/nowhere?"));
    assert_int_equal(cleanup_gds(), GPUNVME_OK);
    assert_int_equal(cleanup_gds(), GPUNVME_ERR_INVALID);
    assert_int_equal(read_nvme_to_gpu(data_path, 0, 100, gpu.gpu), 100);
    assert_int_equal(gpunvme_file_close_all(), GPUNVME_OK);
}

static void reads_of_blocks_are_submitted_and_polled(void **state)
{
    struct nvme_gpu_queue q;
    uint32_t size;
    int64_t n = 0;

    (void)state;
    clear_gpu();
    assert_int_equal(gpu_queue_init(&q, data_path, 4), GPUNVME_OK);
    size = q.block_size;
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(submit_gpu_read(&q, 3 * i, 1, (uint8_t *)gpu.gpu + i * size), GPUNVME_OK);
    assert_int_equal(submit_gpu_read(&q, 0, 1, gpu.gpu), GPUNVME_ERR_AGAIN);
    for (unsigned looks = 0; n < 4 && looks < 20000; looks++) {
        int64_t more = poll_completions(&q);

        assert_true(more >= 0);
        n += more;
        usleep(100);
    }
    assert_int_equal(n, 4);
    for (unsigned i = 0; i < 4; i++)
        assert_bytes(i * size, 3 * i * size, size);
    assert_int_equal(submit_gpu_read(&q, UINT64_MAX / size, 1, gpu.gpu), GPUNVME_ERR_RANGE);
    assert_non_null(strstr(gpunvme_err_detail(), "no store has a block"));
    assert_int_equal(submit_gpu_read(&q, FILE_NBYTES / size, 1, gpu.gpu), GPUNVME_OK);
    assert_int_equal(close_gpu_queue(&q), GPUNVME_OK); /* with one that nobody has polled */
}

static void a_read_behind_the_end_is_told_by_polling(void **state)
{
    struct nvme_gpu_queue q;
    char ends[64];
    int64_t n = 0;

    (void)state;
    assert_int_equal(init_spdk_nvme(&q, data_path), GPUNVME_OK);
    assert_int_equal(create_io_qpair(&q, 2), GPUNVME_OK);
    assert_int_equal(submit_gpu_read(&q, FILE_NBYTES / q.block_size, 1, gpu.gpu), GPUNVME_OK);
    for (unsigned looks = 0; !n && looks < 20000; looks++) {
        n = poll_completions(&q);
        usleep(100);
    }
    assert_int_equal(n, GPUNVME_ERR_RANGE);
    snprintf(ends, sizeof(ends), "the store ends at byte %u", (unsigned)FILE_NBYTES);
    assert_string_equal(gpunvme_err_detail(), ends);
    assert_int_equal(close_gpu_queue(&q), GPUNVME_OK);
}

static void a_read_that_fails_is_told_with_its_detail(void **state)
{
    struct nvme_gpu_queue q;
    int64_t n = 0;

    (void)state;
    assert_int_equal(gpu_queue_init(&q, "sim:size=1M,fault=status=2/81:read:lba=8", 2), GPUNVME_OK);
    assert_int_equal(submit_gpu_read(&q, 8, 1, gpu.gpu), GPUNVME_OK);
    assert_int_equal(gpunvme_err_set(GPUNVME_ERR_IO, "of something %s", "else"), GPUNVME_ERR_IO);
    assert_string_equal(gpunvme_err_detail(), "of something else");
    for (unsigned looks = 0; !n && looks < 20000; looks++) {
        n = poll_completions(&q);
        usleep(100);
    }
    assert_int_equal(n, GPUNVME_ERR_NVME(0x281));
    assert_string_not_equal(gpunvme_err_detail(), "of something else");
    assert_int_equal(close_gpu_queue(&q), GPUNVME_OK);
}

static void a_read_that_fails_does_not_hide_those_that_ended_well(void **state)
{
    struct nvme_gpu_queue q;
    unsigned nfailed = 0;
    int64_t ngood = 0;

    (void)state;
    assert_int_equal(gpu_queue_init(&q, "sim:size=1M,fault=status=2/81:read:lba=8", 4), GPUNVME_OK);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(submit_gpu_read(&q, i == 2 ? 8 : i, 1, gpu.gpu), GPUNVME_OK);
    usleep(200000); /* so that one poll finds all of them */
    for (unsigned looks = 0; ngood + nfailed < 4 && looks < 20000; looks++) {
        int64_t n = poll_completions(&q);

        if (n < 0)
            assert_int_equal(n, GPUNVME_ERR_NVME(0x281));
        nfailed += n < 0;
        ngood += n > 0 ? n : 0;
        usleep(100);
    }
    assert_int_equal(ngood, 3);
    assert_int_equal(nfailed, 1);
    assert_int_equal(q.nfree, 4);
    assert_int_equal(close_gpu_queue(&q), GPUNVME_OK);
}

static void a_queue_that_was_not_made_may_be_closed(void **state)
{
    volatile size_t too_many = SIZE_MAX / 2;
    struct nvme_gpu_queue q;

    (void)state;
    memset((void *)&q, 0xff, sizeof(q));
    assert_int_equal(gpu_queue_init(&q, data_path, too_many), GPUNVME_ERR_NOMEM);
    assert_non_null(strstr(gpunvme_err_detail(), "room for"));
    assert_null(q.store);
    assert_int_equal(close_gpu_queue(&q), GPUNVME_OK);
    memset((void *)&q, 0xff, sizeof(q));
    assert_int_equal(gpu_queue_init(&q, NULL, 1), GPUNVME_ERR_INVALID);
    assert_null(q.store);
    assert_int_equal(gpu_queue_init(&q, data_path, 1), GPUNVME_OK);
    assert_int_equal(close_gpu_queue(&q), GPUNVME_OK);
    assert_null(q.store);
    assert_int_equal(close_gpu_queue(&q), GPUNVME_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_store_is_read_at_once_and_in_the_background),
        cmocka_unit_test(a_store_that_is_not_there_leaves_nothing_to_clean_up),
        cmocka_unit_test(kinds_are_read_one_by_one_and_together),
        cmocka_unit_test(files_are_read_and_written_by_one_call),
        cmocka_unit_test(files_go_by_cufile_once_its_driver_is_open),
        cmocka_unit_test(reads_of_blocks_are_submitted_and_polled),
        cmocka_unit_test(a_read_behind_the_end_is_told_by_polling),
        cmocka_unit_test(a_read_that_fails_is_told_with_its_detail),
        cmocka_unit_test(a_read_that_fails_does_not_hide_those_that_ended_well),
        cmocka_unit_test(a_queue_that_was_not_made_may_be_closed),
    };

    return cmocka_run_group_tests(tests, make_all, free_all);
}
