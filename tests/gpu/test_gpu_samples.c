/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Tensors of raw samples: the GPU makes the same bits as the CPU, of all numbers, for rows of any
 * length and images of any channels. Without a GPU the program says why and is skipped.
 */
#include "memory_util.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpunvme/convert.h"

#define NROWS  5u
#define NBYTES 65536u /* of the source */

static void check(uint32_t from, uint32_t to, uint64_t row, uint32_t channels, bool first,
                  const uint8_t *host, void *src, void *dst, cudaStream_t stream)
{
    const size_t size = gpunvme_number_nbytes(from), out = gpunvme_number_nbytes(to);
    const size_t nbytes = NROWS * row * out;
    uint8_t *expected = checked_malloc(nbytes + out), *result = checked_malloc(nbytes + out);
    struct gpunvme_convert how = {.from = from,
                                  .to = to,
                                  .mem = GPUNVME_MEM_GPU,
                                  .channels = channels,
                                  .channels_first = first,
                                  .src = src,
                                  .dst = (uint8_t *)dst + out, /* not aligned to vectors */
                                  .stride = (row + 1) * size,
                                  .nrows = NROWS,
                                  .row = row};

    if (row % (4 * channels) == 0)
        how.dst = dst;
    if (to >= GPUNVME_NUMBER_F16)
        for (unsigned c = 0; c < channels; c++) {
            how.scale = 1 / 255.0;
            how.mean[c] = 0.4 + 0.01 * c;
            how.std[c] = 0.2 + 0.01 * c;
        }
    if (gpunvme_convert(&how, stream))
        fail_msg("%s", gpunvme_err_detail());
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    assert_int_equal(gpunvme_mem_copy(result, GPUNVME_MEM_HOST, how.dst, GPUNVME_MEM_GPU, nbytes),
                     GPUNVME_OK);
    how.mem = GPUNVME_MEM_HOST;
    how.src = host;
    how.dst = expected;
    assert_int_equal(gpunvme_convert(&how, NULL), GPUNVME_OK);
    if (memcmp(expected, result, nbytes))
        fail_msg("%u to %u, rows of %llu, %u channels, first %d", from, to, (unsigned long long)row,
                 channels, first);
    free(expected);
    free(result);
}

static void the_gpu_makes_what_the_cpu_makes(void **state)
{
    static const struct {
        uint64_t row;
        uint32_t channels;
    } shapes[] = {{1, 1}, {1024, 1}, {1023, 1}, {12, 3}, {1200, 3}, {1203, 3}, {65, 13}, {16, 16}};
    uint8_t *host = checked_malloc(NBYTES);
    cudaStream_t stream;
    void *src, *dst;

    (void)state;
    for (unsigned i = 0; i < NBYTES; i++)
        host[i] = (uint8_t)(i * 2654435761u >> 13) & 0x3f; /* no NaN of any kind */
    assert_int_equal(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    assert_int_equal(cudaMalloc(&src, NBYTES), cudaSuccess);
    assert_int_equal(cudaMalloc(&dst, 65536), cudaSuccess);
    assert_int_equal(cudaMemcpy(src, host, NBYTES, cudaMemcpyHostToDevice), cudaSuccess);
    for (uint32_t from = 0; from < GPUNVME_NNUMBERS; from++) {
        for (uint32_t to = GPUNVME_NUMBER_I32; to < GPUNVME_NNUMBERS; to++) {
            if (from == GPUNVME_NUMBER_I64 ||
                (from >= GPUNVME_NUMBER_F16 && to < GPUNVME_NUMBER_F16))
                continue;
            for (unsigned i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
                for (int first = 0; first < 2; first++)
                    check(from, to, shapes[i].row, shapes[i].channels, first, host, src, dst,
                          stream);
        }
    }
    cudaFree(src);
    cudaFree(dst);
    cudaStreamDestroy(stream);
    free(host);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_gpu_makes_what_the_cpu_makes),
    };

    if (gpunvme_mem_gpu_is_host()) {
        printf("skipped: %s\n", gpunvme_mem_gpu_why_not());
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
