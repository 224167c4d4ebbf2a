/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Short names for batches: by number, in any order, each is what an epoch in order has there.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "data/data_file.h"
#include "gpunvme/batch_loader.h"

#define RECORD   64u
#define NSAMPLES (FILE_NBYTES / RECORD)
#define BATCH    100u
#define NBATCHES ((NSAMPLES + BATCH - 1) / BATCH)

static void batches_come_by_number(void **state)
{
    static struct gpunvme_sample order[NSAMPLES];
    const struct gpunvme_dataset_options records = {.record_nbytes = RECORD};
    const struct gpunvme_loader_options options = {.order = {.seed = 2, .batch = BATCH},
                                                   .mem = GPUNVME_MEM_PINNED};
    const struct gpunvme_sampler_source all = {.nsamples = NSAMPLES};
    const unsigned numbers[] = {0, 1, 2, 17, 18, 3, 3, NBATCHES - 1, 0};
    const struct gpunvme_loader_batch *batch;
    struct gpunvme_loader_source source = {0};
    struct batch_loader b = {.batch_size = BATCH};
    struct gpunvme_sampler *sampler;
    const char *uri = data_path;

    (void)state;
    assert_int_equal(gpunvme_sampler_create(&all, 1, &options.order, &sampler), GPUNVME_OK);
    gpunvme_sampler_list(sampler, 0, 0, NSAMPLES, order);
    gpunvme_sampler_destroy(sampler);
    assert_int_equal(gpunvme_dataset_open(NULL, &uri, 1, &records, &source.dataset), GPUNVME_OK);
    assert_int_equal(gpunvme_loader_open(&source, 1, &options, &b.loader), GPUNVME_OK);
    assert_null(get_pinned_buffer(&b));
    assert_int_equal(set_prefetch_depth(&b, 0), GPUNVME_ERR_INVALID);
    assert_int_equal(set_prefetch_depth(&b, 2), GPUNVME_OK);
    for (unsigned i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        const uint64_t first = numbers[i] * BATCH;

        prefetch_next_batch(&b);
        assert_int_equal(load_batch_to_gpu(&b, numbers[i], &batch), GPUNVME_OK);
        assert_int_equal(batch->n, first + BATCH < NSAMPLES ? BATCH : NSAMPLES - first);
        assert_ptr_equal(get_pinned_buffer(&b), batch->ptr);
        for (uint64_t k = 0; k < batch->n; k++)
            assert_memory_equal((uint8_t *)batch->ptr + k * RECORD,
                                bytes + order[first + k].index * RECORD, RECORD);
    }
    assert_int_equal(load_batch_to_gpu(&b, NBATCHES, &batch), GPUNVME_ERR_RANGE);
    assert_null(batch);
    assert_int_equal(gpunvme_loader_close(b.loader), GPUNVME_OK);
    assert_int_equal(gpunvme_dataset_close(source.dataset), GPUNVME_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_come_by_number),
    };

    return cmocka_run_group_tests(tests, make_all, free_all);
}
