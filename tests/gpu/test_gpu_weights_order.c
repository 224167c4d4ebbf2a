/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Weights that are converted into GPU memory which earlier work on a stream still writes to, and
 * later work reads. Without a GPU the program says why and is skipped.
 */
#include "memory_util.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpunvme/weights.h"

#define N      1000000u /* numbers: more than a slot of the staging holds */
#define NBYTES (N * sizeof(uint16_t))

struct rig {
    char folder[64], path[96];
    struct gpunvme_weights *weights;
    struct gpunvme_weights_part part;
    struct gpunvme_buf dst;
    cudaStream_t stream;
};

/* Numbers that F16 has, as F32: 0, 1, …, 2047, and again. */
static void write_file(const char *path)
{
    static const char header[] = "{\"x\":{\"dtype\":\"F32\",\"shape\":[1000000],"
                                 "\"data_offsets\":[0,4000000]}}  ";
    uint64_t nheader = strlen(header);
    float *numbers = malloc(N * sizeof(float));
    FILE *file = fopen(path, "w");

    assert_non_null(numbers);
    assert_non_null(file);
    for (unsigned i = 0; i < N; i++)
        numbers[i] = (float)(i % 2048);
    assert_int_equal(fwrite(&nheader, 8, 1, file), 1);
    assert_int_equal(fwrite(header, nheader, 1, file), 1);
    assert_int_equal(fwrite(numbers, sizeof(float), N, file), N);
    assert_int_equal(fclose(file), 0);
    free(numbers);
}

static int set_up(void **state)
{
    struct rig *rig = calloc(1, sizeof(*rig));
    const char *uri;

    assert_non_null(rig);
    *state = rig;
    snprintf(rig->folder, sizeof(rig->folder), "/tmp/gpu-weights-XXXXXX");
    assert_non_null(mkdtemp(rig->folder));
    snprintf(rig->path, sizeof(rig->path), "%s/x.safetensors", rig->folder);
    write_file(rig->path);
    uri = rig->path;
    if (gpunvme_weights_open(NULL, &uri, 1, &rig->weights))
        fail_msg("%s", gpunvme_err_detail());
    rig->dst = new_buf(NBYTES, GPUNVME_MEM_GPU);
    rig->part = (struct gpunvme_weights_part){.tensor = gpunvme_weights_at(rig->weights, 0),
                                              .ptr = rig->dst.gpu,
                                              .mem = GPUNVME_MEM_GPU,
                                              .dtype = GPUNVME_DTYPE_F16};
    assert_int_equal(cudaStreamCreateWithFlags(&rig->stream, cudaStreamNonBlocking), cudaSuccess);
    return 0;
}

static int tear_down(void **state)
{
    struct rig *rig = *state;

    assert_int_equal(gpunvme_weights_close(rig->weights), GPUNVME_OK);
    assert_int_equal(cudaStreamDestroy(rig->stream), cudaSuccess);
    free_buf(&rig->dst);
    unlink(rig->path);
    rmdir(rig->folder);
    free(rig);
    return 0;
}

static void nap(void *unused)
{
    (void)unused;
    usleep(100000);
}

/* Work on the stream that ends late, and leaves 0xdd in the destination. */
static void spoil_later(struct rig *rig)
{
    assert_int_equal(cudaLaunchHostFunc(rig->stream, nap, NULL), cudaSuccess);
    assert_int_equal(cudaMemsetAsync(rig->dst.gpu, 0xdd, NBYTES, rig->stream), cudaSuccess);
}

/* The bits of a whole number below 2,048 as F16. */
static uint16_t half_of(unsigned x)
{
    unsigned e = 0;

    if (!x)
        return 0;
    while (x >> (e + 1))
        e++;
    return (uint16_t)((e + 15) << 10 | (x << (10 - e) & 0x3ff));
}

/* What work on the stream sees now. */
static void check_numbers(struct rig *rig)
{
    uint16_t *found = malloc(NBYTES);

    assert_non_null(found);
    assert_int_equal(
        cudaMemcpyAsync(found, rig->dst.gpu, NBYTES, cudaMemcpyDeviceToHost, rig->stream),
        cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(rig->stream), cudaSuccess);
    for (unsigned i = 0; i < N; i++)
        if (found[i] != half_of(i % 2048))
            fail_msg("number %u: 0x%x instead of 0x%x", i, found[i], half_of(i % 2048));
    free(found);
}

static void a_conversion_is_behind_what_was_on_the_stream(void **state)
{
    struct rig *rig = *state;
    const struct gpunvme_order order = {.flags = GPUNVME_AFTER_STREAM | GPUNVME_BEFORE_STREAM,
                                        .stream = rig->stream};
    const struct gpunvme_weights_options options = {.order = &order, .checksum = true};

    for (int i = 0; i < 3; i++) {
        spoil_later(rig);
        if (gpunvme_weights_load(rig->weights, &rig->part, 1, &options))
            fail_msg("%s", gpunvme_err_detail());
        check_numbers(rig);
    }
}

static void a_conversion_waits_for_its_event(void **state)
{
    struct rig *rig = *state;
    struct gpunvme_weights_load *load;
    struct gpunvme_weights_part *landed;
    cudaEvent_t event;
    size_t n;

    assert_int_equal(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    spoil_later(rig);
    assert_int_equal(cudaEventRecord(event, rig->stream), cudaSuccess);
    {
        const struct gpunvme_order order = {.after = event};
        const struct gpunvme_weights_options options = {.order = &order};

        if (gpunvme_weights_load_start(rig->weights, &rig->part, 1, &options, &load))
            fail_msg("%s", gpunvme_err_detail());
    }
    assert_int_equal(gpunvme_weights_load_next(load, &landed, 1, &n, 0), GPUNVME_OK);
    assert_int_equal(n, 1);
    assert_int_equal(gpunvme_weights_load_end(load), GPUNVME_OK);
    check_numbers(rig);
    assert_int_equal(cudaEventDestroy(event), cudaSuccess);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_conversion_is_behind_what_was_on_the_stream, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_conversion_waits_for_its_event, set_up, tear_down),
    };

    if (gpunvme_mem_gpu_is_host()) {
        printf("SKIP: %s\n", gpunvme_mem_gpu_why_not());
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
