/* SPDX-License-Identifier: BSD-3-Clause
 *
 * To which GPUs drives may write, by what CUDA says of them: the linker puts the answers here in
 * the place of CUDA's (--wrap).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "memory/ordering.h"
#include "transport/common.h"

static bool is_host;
static int of_gpu[2];

bool __wrap_gpunvme_mem_gpu_is_host(void);
bool __wrap_gpunvme_mem_gpu_is_host(void)
{
    return is_host;
}

struct mem_ordering __wrap_mem_cuda_ordering(unsigned index);
struct mem_ordering __wrap_mem_cuda_ordering(unsigned index)
{
    return (struct mem_ordering){.writes = of_gpu[index], .flush_options = 1};
}

static const struct gpunvme_transport_ops drive_ops = {.name = "nvme"}, sim_ops = {.name = "sim"};
static const struct gpunvme_transport drive = {.ops = &drive_ops}, sim = {.ops = &sim_ops};

static int setup(void **state)
{
    (void)state;
    is_host = false;
    of_gpu[0] = of_gpu[1] = 200;
    return 0;
}

static void gpus_that_order_writes_for_themselves_or_for_all_may_be_written_to(void **state)
{
    (void)state;
    of_gpu[0] = 100; /* for its owner */
    of_gpu[1] = 200; /* for all */
    assert_null(transport_writes_lack(&drive, 0));
    assert_null(transport_writes_lack(&drive, 1));
}

static void a_gpu_that_orders_nothing_must_not_be_written_to(void **state)
{
    (void)state;
    of_gpu[1] = 0;
    assert_null(transport_writes_lack(&drive, 0));
    assert_non_null(strstr(transport_writes_lack(&drive, 1), "does not order"));
}

static void nor_one_of_which_that_is_unknown(void **state)
{
    (void)state;
    of_gpu[0] = -1;
    assert_non_null(strstr(transport_writes_lack(&drive, 0), "does not say"));
}

static void the_software_controller_may_write_to_any(void **state)
{
    (void)state;
    of_gpu[0] = 0;
    assert_null(transport_writes_lack(&sim, 0));
}

static void gpu_memory_that_is_host_memory_may_be_written_to(void **state)
{
    (void)state;
    is_host = true;
    of_gpu[0] = -1;
    assert_null(transport_writes_lack(&drive, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(gpus_that_order_writes_for_themselves_or_for_all_may_be_written_to,
                               setup),
        cmocka_unit_test_setup(a_gpu_that_orders_nothing_must_not_be_written_to, setup),
        cmocka_unit_test_setup(nor_one_of_which_that_is_unknown, setup),
        cmocka_unit_test_setup(the_software_controller_may_write_to_any, setup),
        cmocka_unit_test_setup(gpu_memory_that_is_host_memory_may_be_written_to, setup),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
