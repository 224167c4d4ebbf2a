/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What takes its place in a caller's CUDA stream is refused by its name where there is no GPU.
 */
#include "memory_util.h"
#include "no_gpu.h"

#include "memory/cuda.h"

static void nobody(void *arg)
{
    *(bool *)arg = true;
}

static void without_a_gpu_there_are_no_streams_of_the_callers(void **state)
{
    unsigned device = 7;
    bool capturing = true, called = false;
    uint32_t word = 0;

    (void)state;
    assert_int_equal(mem_cuda_user_stream_device(NULL, &device), GPUNVME_ERR_NO_GPU);
    assert_int_equal(device, 0);
    assert_int_equal(mem_cuda_user_stream_capturing(NULL, &capturing), GPUNVME_ERR_NO_GPU);
    assert_false(capturing);
    assert_int_equal(mem_cuda_user_stream_call(NULL, nobody, &called), GPUNVME_ERR_NO_GPU);
    assert_false(called);
    assert_int_equal(mem_cuda_user_stream_wait(NULL, &word, 1), GPUNVME_ERR_NO_GPU);
    assert_string_equal(gpunvme_err_detail(), gpunvme_mem_gpu_why_not());
}

static void a_release_stores_the_value(void **state)
{
    uint32_t word = 0;

    (void)state;
    mem_cuda_user_stream_release(&word, 0xfffffff0u);
    assert_int_equal(word, 0xfffffff0u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_gpu_there_are_no_streams_of_the_callers),
        cmocka_unit_test(a_release_stores_the_value),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
