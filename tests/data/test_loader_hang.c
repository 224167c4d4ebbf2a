/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Loaders of a file whose file system stops to answer: next and close return when their time is up,
 * nothing is lost, and no buffer is used again, or freed, while a read may still write to it.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fuse_file.h"
#include "gpunvme/loader.h"
#include "patience.h"

#define RECORD   16u
#define NSAMPLES (sizeof(bytes) / RECORD)

static uint8_t bytes[16384];
static struct fuse_file file = {.nbytes = sizeof(bytes),
                                .bytes = bytes,
                                .open_flags = FOPEN_DIRECT_IO,
                                .valid_s = 1000,
                                .mute_from = 1};

struct rig {
    struct gpunvme_dataset *datasets[2];
    struct gpunvme_loader *loader;
};

/*
 * The file as two data sets, whose samples alternate in the order: so batches take many reads, of
 * which one has reached the file system, and waits there. What has not begun could be canceled.
 */
static struct rig make(uint64_t batch, uint64_t timeout_ns)
{
    const struct gpunvme_dataset_options records = {.record_nbytes = RECORD};
    struct gpunvme_loader_source sources[2] = {{.weight = 1}, {.weight = 1}};
    const struct gpunvme_loader_options options = {
        .order = {.seed = 1, .batch = batch}, .depth = 2, .timeout_ns = timeout_ns};
    struct rig rig;
    char uri[128];
    const char *uris = uri;
    unsigned nheld = file.shared->nheld;

    snprintf(uri, sizeof(uri), "file:%s/file?timeout=%us,uring=off", file.folder, PATIENCE_S);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(gpunvme_dataset_open(NULL, &uris, 1, &records, &rig.datasets[i]),
                         GPUNVME_OK);
        sources[i].dataset = rig.datasets[i];
    }
    file.shared->is_mute = true;
    assert_int_equal(gpunvme_loader_open(sources, 2, &options, &rig.loader), GPUNVME_OK);
    while (file.shared->nheld == nheld)
        usleep(1000); /* ctest has the deadline */
    return rig;
}

static void end(struct rig *rig)
{
    assert_int_equal(gpunvme_loader_close(rig->loader), GPUNVME_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(gpunvme_dataset_close(rig->datasets[i]), GPUNVME_OK);
}

static void next_is_whole(struct rig *rig, uint64_t epoch, uint64_t index)
{
    const struct gpunvme_loader_batch *batch;

    if (gpunvme_loader_next(rig->loader, &batch, PATIENCE_NS))
        fail_msg("%s", gpunvme_err_detail());
    assert_non_null(batch);
    assert_int_equal(batch->epoch, epoch);
    assert_int_equal(batch->index, index);
    for (uint64_t i = 0; i < batch->n; i++)
        assert_memory_equal((uint8_t *)batch->ptr + batch->offsets[i],
                            bytes + batch->samples[i].index * RECORD, RECORD);
    assert_int_equal(gpunvme_loader_release(rig->loader, batch, NULL), GPUNVME_OK);
}

static void a_batch_that_stands_still_times_out_and_comes_later(void **state)
{
    const struct gpunvme_loader_batch *batch;
    struct gpunvme_sampler_state before, after;
    struct rig rig = make(256, 0);

    (void)state;
    gpunvme_loader_get_state(rig.loader, &before);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(gpunvme_loader_next(rig.loader, &batch, 50000000), GPUNVME_ERR_TIMEOUT);
        assert_null(batch);
    }
    gpunvme_loader_get_state(rig.loader, &after);
    assert_memory_equal(&before, &after, sizeof(after));
    file.shared->is_mute = false;
    for (unsigned i = 0; i < 4; i++)
        next_is_whole(&rig, 0, i);
    end(&rig);
}

static void another_epoch_begins_while_reads_stand_still(void **state)
{
    const struct gpunvme_loader_batch *batch;
    struct rig rig = make(256, 0);

    (void)state;
    for (unsigned epoch = 1; epoch < 4; epoch++) {
        assert_int_equal(gpunvme_loader_set_epoch(rig.loader, epoch), GPUNVME_OK);
        assert_int_equal(gpunvme_loader_next(rig.loader, &batch, 20000000), GPUNVME_ERR_TIMEOUT);
    }
    file.shared->is_mute = false;
    for (unsigned i = 0; i < 4; i++)
        next_is_whole(&rig, 3, i);
    end(&rig);
}

/* Each buffer is registered memory of the engine. */
static void buffers_that_reads_may_write_to_are_not_replaced_without_end(void **state)
{
    const struct gpunvme_loader_batch *batch;
    struct gpunvme_engine_info info;
    struct rig rig = make(256, 0);

    (void)state;
    for (unsigned epoch = 1; epoch < 10; epoch++) {
        assert_int_equal(gpunvme_loader_set_epoch(rig.loader, epoch), GPUNVME_OK);
        assert_int_equal(gpunvme_loader_next(rig.loader, &batch, 1000000), GPUNVME_ERR_TIMEOUT);
    }
    gpunvme_engine_get_info(NULL, &info);
    file.shared->is_mute = false;
    assert_in_range(info.registered, 1, 3); /* depth + 1 */
    next_is_whole(&rig, 9, 0);
    end(&rig);
}

static void closing_times_out_while_reads_stand_still_and_works_later(void **state)
{
    struct rig rig = make(256, 100000000);

    (void)state;
    assert_int_equal(gpunvme_loader_close(rig.loader), GPUNVME_ERR_TIMEOUT);
    file.shared->is_mute = false;
    while (gpunvme_loader_close(rig.loader) == GPUNVME_ERR_TIMEOUT)
        continue; /* ctest has the deadline */
    for (int i = 0; i < 2; i++)
        assert_int_equal(gpunvme_dataset_close(rig.datasets[i]), GPUNVME_OK);
}

static void *answer_soon(void *unused)
{
    (void)unused;
    usleep(300000);
    file.shared->is_mute = false;
    return NULL;
}

static void closing_waits_for_reads_however_many(void **state)
{
    struct rig rig = make(900, 0);
    struct gpunvme_loader_stats stats;
    pthread_t thread;

    (void)state;
    gpunvme_loader_get_stats(rig.loader, &stats);
    assert_true(stats.transfers > 200);
    assert_int_equal(pthread_create(&thread, NULL, answer_soon, NULL), 0);
    end(&rig);
    pthread_join(thread, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_batch_that_stands_still_times_out_and_comes_later),
        cmocka_unit_test(another_epoch_begins_while_reads_stand_still),
        cmocka_unit_test(buffers_that_reads_may_write_to_are_not_replaced_without_end),
        cmocka_unit_test(closing_times_out_while_reads_stand_still_and_works_later),
        cmocka_unit_test(closing_waits_for_reads_however_many),
    };
    int failed;

    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)((i * 2654435761u) >> 13);
    if (!fuse_mount(&file))
        return 77;
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    fuse_unmount(&file);
    return failed ? 1 : 0;
}
