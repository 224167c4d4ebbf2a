/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What a call asks of the CUDA runtime, which takes the host's time: all that can be known is asked
 * for once, and again where it may have changed.
 */
#include <pthread.h>

#include "../ops_test.h"
#include "ops/cuda/launch.h"

extern int emulated_sm;
extern uint64_t emulated_context;
extern unsigned emulated_questions;
size_t emulated_allowed(const void *kernel);

enum { ROOM = 1 << 18 };

static _Alignas(128) uint16_t a[ROOM], b[ROOM], c[ROOM], preact[ROOM];
static _Alignas(256) unsigned char workspace[1 << 22];
static const struct gpunvme_ops_exec gpu = {
    .device = GPUNVME_OPS_CUDA, .workspace = workspace, .workspace_nbytes = sizeof(workspace)};

static void multiply(int64_t m, int64_t n, int64_t k)
{
    const struct gpunvme_matmul p = {.batch = 1,
                                     .m = m,
                                     .n = n,
                                     .k = k,
                                     .a = a,
                                     .b = b,
                                     .c = c,
                                     .lda = k,
                                     .ldb = k,
                                     .ldc = n,
                                     .transpose_b = 1,
                                     .alpha = 1,
                                     .dtype = GPUNVME_OPS_BF16,
                                     .out_dtype = GPUNVME_OPS_BF16};

    expect_ok(gpunvme_matmul(&p, &gpu));
}

static void run_layer(int64_t rows, int64_t out, int64_t in)
{
    const struct gpunvme_linear p = {.rows = rows,
                                     .out = out,
                                     .in = in,
                                     .x = a,
                                     .weight = b,
                                     .y = c,
                                     .preact = preact,
                                     .ldx = in,
                                     .ldw = in,
                                     .ldy = out,
                                     .ld_preact = out,
                                     .activation = GPUNVME_OPS_ACT_GELU,
                                     .dtype = GPUNVME_OPS_BF16};

    expect_ok(gpunvme_linear_forward(&p, &gpu));
}

static const struct {
    void (*call)(int64_t m, int64_t n, int64_t k);
    int64_t m, n, k;
} calls[] = {
    {multiply, 3, 136, 192},   {multiply, 40, 64, 512},   {multiply, 256, 512, 64},
    {multiply, 24, 40, 2000},  {run_layer, 3, 136, 192},  {run_layer, 40, 64, 512},
    {run_layer, 256, 512, 64}, {run_layer, 24, 40, 2000},
};
enum { NCALLS = sizeof(calls) / sizeof(calls[0]) };

static void call_all(void)
{
    for (int i = 0; i < NCALLS; i++)
        calls[i].call(calls[i].m, calls[i].n, calls[i].k);
}

static void a_call_like_one_before_asks_nothing(void **state)
{
    unsigned before;

    (void)state;
    call_all();
    before = emulated_questions;
    assert_true(before > 0);
    call_all();
    assert_int_equal(emulated_questions, before);
}

/* (A launch with more shared memory than its context has been asked for fails.) */
static void another_context_or_device_is_asked_again(void **state)
{
    unsigned before;

    (void)state;
    call_all();
    before = emulated_questions;
    emulated_context++;
    call_all();
    assert_true(emulated_questions > before);
    emulated_sm = 80;
    emulated_context++;
    call_all();
    emulated_sm = 90;
    emulated_context--;
    before = emulated_questions;
    call_all();
    assert_true(emulated_questions > before); /* what the device is: the last one is remembered */
    before = emulated_questions;
    call_all();
    assert_int_equal(emulated_questions, before);
}

/* What is remembered of a call is of its operands, too. */
static void a_call_with_other_operands_is_another_one(void **state)
{
    static _Alignas(128) uint16_t other[256];

    (void)state;
    memset(a, 0, sizeof(a));
    for (int i = 0; i < 256; i++)
        other[i] = 0x3f80; /* 1 */
    for (int i = 0; i < 512; i++)
        b[i] = 0x3f80;
    for (int turn = 0; turn < 2; turn++)
        for (int ones = 0; ones < 2; ones++) {
            const struct gpunvme_matmul p = {.batch = 1,
                                             .m = 2,
                                             .n = 8,
                                             .k = 64,
                                             .a = ones ? other : a,
                                             .b = b,
                                             .c = c,
                                             .lda = 64,
                                             .ldb = 8,
                                             .ldc = 8,
                                             .alpha = 1,
                                             .dtype = GPUNVME_OPS_BF16,
                                             .out_dtype = GPUNVME_OPS_BF16};

            expect_ok(gpunvme_matmul(&p, &gpu));
            for (int i = 0; i < 16; i++)
                assert_int_equal(c[i], ones ? 0x4280 : 0); /* 64 */
        }
}

static void shared_memory_that_was_allowed_stays_so(void **state)
{
    static const char kernel;

    (void)state;
    expect_ok(cuda_allow_shared(&kernel, 100 * 1024));
    expect_ok(cuda_allow_shared(&kernel, 60 * 1024));
    assert_int_equal(emulated_allowed(&kernel), 100 * 1024);
    expect_ok(cuda_allow_shared(&kernel, 200 * 1024));
    assert_int_equal(emulated_allowed(&kernel), 200 * 1024);
    expect_status(cuda_allow_shared(&kernel, 300 * 1024), GPUNVME_OPS_ERR_CUDA, "shared memory");
    expect_ok(cuda_allow_shared(&kernel, 200 * 1024));
}

/* More kernels than are remembered, whose addresses differ by 16 and more. */
enum { NKERNELS = 700, NTHREADS = 4 };
static char kernels[NKERNELS][48];

static size_t wanted_by(int thread, int kernel)
{
    return (size_t)(50 + (thread * 7 + kernel) % 50) * 1024;
}

static void *allow_all(void *thread)
{
    int number = *(const int *)thread;

    for (int turn = 0; turn < 20; turn++)
        for (int i = 0; i < NKERNELS; i++)
            if (cuda_allow_shared(kernels[i], wanted_by(number, i)))
                return thread;
    return NULL;
}

static void threads_at_once_are_each_allowed_what_they_want(void **state)
{
    pthread_t threads[NTHREADS];
    int numbers[NTHREADS], highest = 0;

    (void)state;
    for (int i = 0; i < NTHREADS; i++) {
        numbers[i] = i;
        assert_int_equal(pthread_create(&threads[i], NULL, allow_all, &numbers[i]), 0);
    }
    for (int i = 0; i < NTHREADS; i++) {
        void *failed;

        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    for (int i = 0; i < NKERNELS; i++) {
        size_t most = 0;

        for (int t = 0; t < NTHREADS; t++)
            most = wanted_by(t, i) > most ? wanted_by(t, i) : most;
        highest += emulated_allowed(kernels[i]) == most;
        assert_true(emulated_allowed(kernels[i]) >= 50 * 1024);
    }
    /* Those for which there was no place have what was asked for last. */
    assert_true(highest >= 300);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_like_one_before_asks_nothing),
        cmocka_unit_test(another_context_or_device_is_asked_again),
        cmocka_unit_test(a_call_with_other_operands_is_another_one),
        cmocka_unit_test(shared_memory_that_was_allowed_stays_so),
        cmocka_unit_test(threads_at_once_are_each_allowed_what_they_want),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
