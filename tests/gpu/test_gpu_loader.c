/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Batches of samples in GPU memory: their bytes, and buffers that are left alone while a kernel
 * still reads a batch that was released behind it. Without a GPU the program says why and is
 * skipped.
 */
#include "memory_util.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpunvme/loader.h"
#include "stream_kernels.h"

#define WORDS    1024u /* of a sample */
#define NBYTES   (WORDS * sizeof(uint32_t))
#define NSAMPLES 2048u
#define BATCH    64u

static char path[64];

static uint32_t word_of(uint64_t sample, uint64_t word)
{
    return (uint32_t)((sample * WORDS + word) * 2654435761u >> 3);
}

static int make_samples(void **state)
{
    FILE *f;
    int fd;

    (void)state;
    strcpy(path, "/tmp/gpu-loader-XXXXXX");
    fd = mkstemp(path);
    f = fd < 0 ? NULL : fdopen(fd, "w");
    if (!f)
        return 1;
    for (uint64_t i = 0; i < (uint64_t)NSAMPLES * WORDS; i++) {
        const uint32_t word = word_of(i / WORDS, i % WORDS);

        fwrite(&word, sizeof(word), 1, f);
    }
    return fclose(f);
}

static int remove_samples(void **state)
{
    (void)state;
    return unlink(path);
}

static struct gpunvme_loader *open_loader(struct gpunvme_dataset **dataset, uint32_t depth,
                                          uint32_t layout, uint64_t row_nbytes)
{
    const struct gpunvme_dataset_options records = {.record_nbytes = NBYTES};
    const struct gpunvme_loader_options options = {.order = {.seed = 3, .batch = BATCH},
                                                   .mem = GPUNVME_MEM_GPU,
                                                   .depth = depth,
                                                   .layout = layout,
                                                   .row_nbytes = row_nbytes,
                                                   .pad = 0xee};
    struct gpunvme_loader_source source = {0};
    const char *uri = path;
    struct gpunvme_loader *l;

    assert_int_equal(gpunvme_dataset_open(NULL, &uri, 1, &records, dataset), GPUNVME_OK);
    source.dataset = *dataset;
    if (gpunvme_loader_open(&source, 1, &options, &l))
        fail_msg("%s", gpunvme_err_detail());
    return l;
}

static void close_loader(struct gpunvme_loader *l, struct gpunvme_dataset *dataset)
{
    assert_int_equal(gpunvme_loader_close(l), GPUNVME_OK);
    assert_int_equal(gpunvme_dataset_close(dataset), GPUNVME_OK);
}

static const struct gpunvme_loader_batch *take(struct gpunvme_loader *l)
{
    const struct gpunvme_loader_batch *batch;

    if (gpunvme_loader_next(l, &batch, 0))
        fail_msg("%s", gpunvme_err_detail());
    return batch;
}

static void has_its_samples(const struct gpunvme_loader_batch *batch)
{
    uint8_t *copy = checked_malloc(batch->nbytes);

    assert_int_equal(
        gpunvme_mem_copy(copy, GPUNVME_MEM_HOST, batch->ptr, GPUNVME_MEM_GPU, batch->nbytes),
        GPUNVME_OK);
    for (uint64_t i = 0; i < batch->n; i++) {
        const uint32_t *words = (const uint32_t *)(copy + batch->offsets[i]);
        const uint64_t end = batch->layout == GPUNVME_LAYOUT_PADDED ? batch->row_nbytes : NBYTES;

        for (uint64_t k = 0; k < WORDS; k++)
            assert_int_equal(words[k], word_of(batch->samples[i].index, k));
        for (uint64_t k = NBYTES; k < end; k++)
            assert_int_equal(copy[(uint64_t)batch->offsets[i] + k], 0xee);
    }
    free(copy);
}

static void an_epoch_arrives_in_gpu_memory(void **state)
{
    static const uint64_t rows[] = {0, NBYTES + 100};
    const struct gpunvme_loader_batch *batch;
    struct gpunvme_dataset *dataset;

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct gpunvme_loader *l =
            open_loader(&dataset, 4, i ? GPUNVME_LAYOUT_PADDED : GPUNVME_LAYOUT_ROWS, rows[i]);
        uint64_t n = 0;

        while ((batch = take(l))) {
            has_its_samples(batch);
            n += batch->n;
            assert_int_equal(gpunvme_loader_release(l, batch, NULL), GPUNVME_OK);
        }
        assert_int_equal(n, NSAMPLES);
        close_loader(l, dataset);
    }
}

/*
 * Each batch is added up by a kernel that waits behind others for milliseconds, and is released
 * at once. If its buffer were read into before, the sum would be another batch's.
 */
static void check_buffers_are_left_alone(bool by_event)
{
    uint64_t expected[NSAMPLES / BATCH] = {0}, sums[NSAMPLES / BATCH], *gpu_sums;
    const struct gpunvme_loader_batch *batch;
    struct gpunvme_dataset *dataset;
    struct gpunvme_loader *l;
    cudaStream_t stream;
    cudaEvent_t event;
    struct gpunvme_order after = {.flags = by_event ? 0 : GPUNVME_AFTER_STREAM};

    assert_int_equal(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    assert_int_equal(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    assert_int_equal(cudaMalloc((void **)&gpu_sums, sizeof(sums)), cudaSuccess);
    assert_int_equal(cudaMemset(gpu_sums, 0, sizeof(sums)), cudaSuccess);
    /* Loads the kernels: nothing may do so while the stream waits. */
    assert_int_equal(stream_crowd(1, 1000, stream), cudaSuccess);
    assert_int_equal(stream_add_up((const uint32_t *)gpu_sums, 0, gpu_sums, stream), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    if (by_event)
        after.after = event;
    else
        after.stream = stream;
    l = open_loader(&dataset, 1, GPUNVME_LAYOUT_ROWS, 0);
    while ((batch = take(l))) {
        const uint64_t at = batch->index;

        for (uint64_t i = 0; i < batch->n; i++)
            for (uint64_t k = 0; k < WORDS; k++)
                expected[at] += word_of(batch->samples[i].index, k);
        assert_int_equal(stream_crowd(1, 3000000, stream), cudaSuccess);
        assert_int_equal(
            stream_add_up(batch->ptr, (size_t)(batch->nbytes / 4), &gpu_sums[at], stream),
            cudaSuccess);
        assert_int_equal(cudaEventRecord(event, stream), cudaSuccess);
        if (gpunvme_loader_release(l, batch, &after))
            fail_msg("%s", gpunvme_err_detail());
    }
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    assert_int_equal(cudaMemcpy(sums, gpu_sums, sizeof(sums), cudaMemcpyDeviceToHost), cudaSuccess);
    for (unsigned i = 0; i < NSAMPLES / BATCH; i++)
        assert_int_equal(sums[i], expected[i]);
    close_loader(l, dataset);
    cudaFree(gpu_sums);
    cudaStreamDestroy(stream);
    cudaEventDestroy(event);
}

static void a_buffer_is_left_alone_until_kernels_have_read_it(void **state)
{
    (void)state;
    check_buffers_are_left_alone(false);
}

static void a_buffer_is_left_alone_until_an_event_has_happened(void **state)
{
    (void)state;
    check_buffers_are_left_alone(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_epoch_arrives_in_gpu_memory),
        cmocka_unit_test(a_buffer_is_left_alone_until_kernels_have_read_it),
        cmocka_unit_test(a_buffer_is_left_alone_until_an_event_has_happened),
    };

    if (gpunvme_mem_gpu_is_host()) {
        printf("skipped: %s\n", gpunvme_mem_gpu_why_not());
        return 77;
    }
    return cmocka_run_group_tests(tests, make_samples, remove_samples);
}
