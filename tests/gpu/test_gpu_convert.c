/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Kernels that convert numbers on their way to the GPU and sum up many ranges at once: they give
 * what the CPU gives. Without a GPU the program says why and is skipped.
 */
#include "convert_util.h"

#include <stdio.h>

#include "memory/cuda.h"

#define MARGIN 64u

/* Converts rows by both, and compares all bytes and what lies around them. */
static void check(const struct mem_convert *made, const uint8_t *src_bytes, size_t nsrc,
                  size_t src_off, size_t dst_off)
{
    const size_t nbytes = (size_t)(made->row * made->nrows) * mem_number_nbytes(made->to);
    struct gpunvme_buf src = new_buf(nsrc + MARGIN, GPUNVME_MEM_PINNED);
    struct gpunvme_buf dst = new_buf(nbytes + 2 * MARGIN, GPUNVME_MEM_GPU);
    struct gpunvme_buf table = new_buf(4096 * sizeof(*made), GPUNVME_MEM_PINNED);
    uint8_t *expected = malloc(nbytes + 1);
    struct mem_convert c = *made;
    uint32_t max = 0, gpu_max = 0;
    uint64_t done = 0;
    size_t n;

    assert_non_null(expected);
    memcpy((uint8_t *)src.cpu + src_off, src_bytes, nsrc);
    c.src = (uintptr_t)src.cpu + src_off;
    c.dst = (uintptr_t)expected;
    mem_convert_host(&c);
    max = c.max;
    c.src = (uintptr_t)src.gpu + src_off;
    c.dst = made->to == MEM_MAX ? 0 : (uintptr_t)dst.gpu + MARGIN + dst_off;
    assert_int_equal(gpunvme_mem_fill(dst.gpu, GPUNVME_MEM_GPU, 0xa5, dst.nbytes), GPUNVME_OK);
    while ((n = mem_convert_cut(&c, &done, table.cpu, 4096)) > 0) {
        assert_int_equal(mem_cuda_convert(table.gpu, n, nsrc, dst.gpu), GPUNVME_OK);
        for (size_t i = 0; i < n; i++) {
            const struct mem_convert *piece = (struct mem_convert *)table.cpu + i;

            gpu_max = piece->max > gpu_max ? piece->max : gpu_max;
        }
    }
    if (made->to == MEM_MAX)
        assert_int_equal(gpu_max, max);
    assert_only_range_is(&dst, 0xa5, MARGIN + dst_off, expected, nbytes);
    free(expected);
    free_buf(&src);
    free_buf(&dst);
    free_buf(&table);
}

static void all_numbers_become_what_the_cpu_makes_of_them(void **state)
{
    (void)state;
    for (unsigned from = MEM_F32; from <= MEM_BF16; from++)
        for (unsigned to = MEM_F32; to <= MEM_MAX; to++) {
            size_t n;
            void *numbers = make_numbers(from, &n);
            struct mem_convert c = {.row = n,
                                    .nrows = 1,
                                    .scale = to == MEM_F8_E4M3 ? 0.037f : 0,
                                    .from = (uint8_t)from,
                                    .to = (uint8_t)to};
            size_t nbytes = n * mem_number_nbytes(from);

            check(&c, numbers, nbytes, 0, 0);
            check(&c, numbers, nbytes, 4, 0); /* not where vectors begin */
            c.row -= 3;
            check(&c, numbers, nbytes, 0, 4);
            free(numbers);
        }
}

static void rows_that_lie_apart_arrive_and_touch_nothing_else(void **state)
{
    static const struct {
        uint64_t nrows, row, stride;
        unsigned from, to;
    } cases[] = {
        {1000, 16, 64, MEM_BYTES, MEM_BYTES},
        {1000, 7, 16, MEM_BYTES, MEM_BYTES},
        {333, 4096, 16384, MEM_BYTES, MEM_BYTES},
        {5, 100003, 100004, MEM_BYTES, MEM_BYTES},
        {2000, 6, 10, MEM_BYTES, MEM_BYTES},
        {100, 128, 1024, MEM_F32, MEM_BF16},
        {100, 3, 16, MEM_F32, MEM_F16},
        {3, 20000, 100000, MEM_F32, MEM_F8_E4M3},
        {77, 8, 20, MEM_F16, MEM_F32},
        {5000, 1, 4, MEM_BF16, MEM_F16},
        {64, 512, 4096, MEM_BF16, MEM_F8_E4M3},
        {9, 1001, 2006, MEM_F16, MEM_MAX},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t nbytes = (size_t)(cases[i].nrows * cases[i].stride);
        uint8_t *bytes = malloc(nbytes);
        struct mem_convert c = {.row = cases[i].row,
                                .nrows = cases[i].nrows,
                                .stride = cases[i].stride,
                                .scale = 0.25f,
                                .from = (uint8_t)cases[i].from,
                                .to = (uint8_t)cases[i].to};
        size_t step = c.from == MEM_BYTES ? 1 : mem_number_nbytes(c.from);

        assert_non_null(bytes);
        random_bytes(bytes, nbytes, i);
        for (size_t off = 0; off < 17; off += step)
            check(&c, bytes, nbytes, off, off * mem_number_nbytes(c.to) / step);
        free(bytes);
    }
}

/* Ranges of many lengths and alignments, some empty, some of more than one launch's pieces. */
static void checksums_of_many_ranges_are_the_cpus(void **state)
{
    enum { N = 20000 };
    const size_t nbytes = (size_t)1200 << 20;
    struct gpunvme_buf buf = new_buf(nbytes, GPUNVME_MEM_GPU);
    struct mem_checksum_range *ranges = calloc(N, sizeof(*ranges));
    uint64_t *sums = calloc(N, sizeof(*sums)), random = 5;
    uint8_t *bytes = malloc(nbytes);

    (void)state;
    assert_true(ranges && sums && bytes);
    random_bytes(bytes, 1 << 20, 3);
    for (size_t at = 1 << 20; at < nbytes; at += 1 << 20) {
        memcpy(bytes + at, bytes, 1 << 20);
        memcpy(bytes + at, &at, sizeof(at));
    }
    assert_int_equal(gpunvme_mem_copy(buf.gpu, GPUNVME_MEM_GPU, bytes, GPUNVME_MEM_HOST, nbytes),
                     GPUNVME_OK);
    for (size_t i = 0; i < N; i++) {
        size_t at = random_word(&random) % (nbytes - (1 << 20));

        ranges[i].gpu = (uint8_t *)buf.gpu + at;
        ranges[i].nbytes = i % 10 ? random_word(&random) % 5000 : random_word(&random) % (1 << 20);
        ranges[i].nbytes *= i % 7 != 0;
    }
    ranges[100] = (struct mem_checksum_range){(uint8_t *)buf.gpu + 3, nbytes - 3};
    ranges[200] = (struct mem_checksum_range){buf.gpu, nbytes};
    assert_int_equal(mem_cuda_checksums(ranges, N, sums), GPUNVME_OK);
    for (size_t i = 0; i < N; i++) {
        size_t at = (size_t)((const uint8_t *)ranges[i].gpu - (const uint8_t *)buf.gpu);

        if (sums[i] != gpunvme_mem_checksum_host(bytes + at, ranges[i].nbytes) && ranges[i].nbytes)
            fail_msg("range %zu: %zu bytes at %zu", i, ranges[i].nbytes, at);
    }
    assert_int_equal(sums[0], gpunvme_mem_checksum_host(NULL, 0));
    free(bytes);
    free(sums);
    free(ranges);
    free_buf(&buf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_numbers_become_what_the_cpu_makes_of_them),
        cmocka_unit_test(rows_that_lie_apart_arrive_and_touch_nothing_else),
        cmocka_unit_test(checksums_of_many_ranges_are_the_cpus),
    };

    if (gpunvme_mem_gpu_is_host()) {
        printf("SKIP: no GPU: %s\n", gpunvme_mem_gpu_why_not());
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
