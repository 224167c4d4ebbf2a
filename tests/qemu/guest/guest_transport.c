/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What a transport to a PCI function promises, tried on the controller that GPUNVME_URI names.
 * Scenarios run it; it is no test by itself.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "gpunvme/memory.h"
#include "gpunvme/nvme.h"
#include "gpunvme/transport.h"

#define MIB ((size_t)1 << 20)

static int open_transport(void **state)
{
    struct gpunvme_transport *t;
    gpunvme_err_t err = gpunvme_transport_open(getenv("GPUNVME_URI"), &t);

    if (err)
        print_error("%s\n", gpunvme_err_detail());
    *state = err ? NULL : t;
    return err;
}

static int close_transport(void **state)
{
    struct gpunvme_transport *t = *state;

    t->ops->close(t);
    return 0;
}

static void registers_can_be_read(void **state)
{
    struct gpunvme_transport *t = *state;
    uint32_t version, high;
    uint64_t cap;

    assert_int_equal(t->ops->read32(t, GPUNVME_REG_VS, &version), GPUNVME_OK);
    assert_int_equal(version >> 16, 1); /* NVMe 1.x */
    assert_int_equal(t->ops->read64(t, GPUNVME_REG_CAP, &cap), GPUNVME_OK);
    assert_int_equal(t->ops->read32(t, GPUNVME_REG_CAP + 4, &high), GPUNVME_OK);
    assert_int_equal(cap >> 32, high);
}

static void registers_beyond_the_bar_are_refused(void **state)
{
    struct gpunvme_transport *t = *state;
    uint32_t value;

    assert_int_equal(t->ops->read32(t, UINT32_MAX - 3, &value), GPUNVME_ERR_INVALID);
    assert_int_equal(t->ops->write32(t, UINT32_MAX - 3, 0), GPUNVME_ERR_INVALID);
}

static void doorbells_are_mapped(void **state)
{
    const struct gpunvme_transport *t = *state;

    assert_non_null(t->doorbells);
    assert_true(t->doorbells_nbytes >= 8);
}

static void bar_can_be_mapped_from_any_offset(void **state)
{
    struct gpunvme_transport *t = *state;
    struct gpunvme_buf buf;
    uint32_t version;

    assert_int_equal(t->ops->read32(t, GPUNVME_REG_VS, &version), GPUNVME_OK);
    assert_int_equal(t->ops->map_bar(t, 0, GPUNVME_REG_VS, 4, &buf), GPUNVME_OK);
    assert_int_equal(*(volatile uint32_t *)buf.cpu, version);
    t->ops->unmap(t, &buf);
    assert_int_not_equal(t->ops->map_bar(t, 0, 0, 64 * MIB, &buf), GPUNVME_OK);
}

/* QEMU's controller keeps its registers over a reset, so those can't tell. */
static void controller_answers_after_a_reset(void **state)
{
    struct gpunvme_transport *t = *state;
    uint64_t before, after;

    assert_int_equal(t->ops->read64(t, GPUNVME_REG_CAP, &before), GPUNVME_OK);
    assert_int_equal(t->ops->reset(t), GPUNVME_OK);
    assert_int_equal(t->ops->read64(t, GPUNVME_REG_CAP, &after), GPUNVME_OK);
    assert_int_equal(before, after);
}

static void ordinary_memory_gets_no_physical_address(void **state)
{
    struct gpunvme_transport *t = *state;
    struct gpunvme_buf buf;

    assert_int_equal(gpunvme_mem_alloc(4 * MIB, GPUNVME_MEM_HOST, &buf), GPUNVME_OK);
    assert_int_equal(t->ops->map(t, &buf), GPUNVME_ERR_UNSUPPORTED);
    assert_non_null(strstr(gpunvme_err_detail(), "huge pages"));
    assert_true(buf.bus == 0);
    gpunvme_mem_free(&buf);
}

static void every_huge_page_of_a_buffer_has_its_address(void **state)
{
    struct gpunvme_transport *t = *state;
    struct gpunvme_buf buf;

    assert_int_equal(
        gpunvme_mem_alloc_backed(8 * MIB, GPUNVME_MEM_HOST, GPUNVME_BACKING_HUGE, &buf),
        GPUNVME_OK);
    assert_int_equal(t->ops->map(t, &buf), GPUNVME_OK);
    assert_int_equal(t->ops->map(t, &buf), GPUNVME_ERR_BUSY);
    for (size_t i = 0; i < 4; i++) {
        assert_true(gpunvme_buf_bus(&buf, i * 2 * MIB) != 0);
        assert_int_equal(gpunvme_buf_bus(&buf, i * 2 * MIB) % (2 * MIB), 0);
        for (size_t j = 0; j < i; j++)
            assert_true(gpunvme_buf_bus(&buf, i * 2 * MIB) != gpunvme_buf_bus(&buf, j * 2 * MIB));
    }
    t->ops->unmap(t, &buf);
    assert_true(buf.bus == 0);
    assert_int_equal(gpunvme_mem_free(&buf), GPUNVME_OK);
}

static void queue_memory_is_aligned_and_zeroed(void **state)
{
    struct gpunvme_transport *t = *state;
    struct gpunvme_buf buf;

    assert_int_equal(t->ops->alloc(t, 64 * 1024, GPUNVME_MEM_HOST, &buf), GPUNVME_OK);
    assert_int_equal(buf.bus % (64 * 1024), 0);
    for (size_t i = 0; i < buf.nbytes; i++)
        assert_int_equal(((unsigned char *)buf.cpu)[i], 0);
    t->ops->free(t, &buf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(registers_can_be_read),
        cmocka_unit_test(registers_beyond_the_bar_are_refused),
        cmocka_unit_test(doorbells_are_mapped),
        cmocka_unit_test(bar_can_be_mapped_from_any_offset),
        cmocka_unit_test(controller_answers_after_a_reset),
        cmocka_unit_test(ordinary_memory_gets_no_physical_address),
        cmocka_unit_test(every_huge_page_of_a_buffer_has_its_address),
        cmocka_unit_test(queue_memory_is_aligned_and_zeroed),
    };

    return cmocka_run_group_tests(tests, open_transport, close_transport);
}
