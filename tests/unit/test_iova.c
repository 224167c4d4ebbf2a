/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The allocator of bus addresses: each step of random work against a plain array of flags, one for
 * each address, and the ends of the 64-bit space.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "rng.h"
#include "transport/iova.h"

#define NADDRESSES 600u

struct model {
    struct iova_space space;
    bool is_free[NADDRESSES]; /* by address */
};

static void model_set(struct model *m, uint64_t first, uint64_t last, bool is_free)
{
    for (uint64_t i = first; i <= last; i++)
        m->is_free[i] = is_free && i;
}

/* The free ranges are those of the model: in order, and none touches the next. */
static void assert_same(const struct model *m)
{
    size_t at = 0;

    for (uint64_t i = 0; i < NADDRESSES; i++) {
        bool begins = m->is_free[i] && (!i || !m->is_free[i - 1]);
        bool ends = m->is_free[i] && (i + 1 == NADDRESSES || !m->is_free[i + 1]);

        if (begins) {
            assert_true(at < m->space.nfree);
            assert_int_equal(m->space.free[at].first, i);
        }
        if (ends)
            assert_int_equal(m->space.free[at++].last, i);
    }
    assert_int_equal(at, m->space.nfree);
}

/* The lowest place of nbytes free addresses, or NADDRESSES. */
static uint64_t model_find(const struct model *m, uint64_t nbytes, uint64_t align)
{
    for (uint64_t start = 0; start + nbytes <= NADDRESSES; start += align) {
        uint64_t n = 0;

        while (n < nbytes && m->is_free[start + n])
            n++;
        if (n == nbytes)
            return start;
    }
    return NADDRESSES;
}

static void step(struct model *m, struct base_random *r)
{
    uint64_t first = rng_between(r, 0, NADDRESSES - 1);
    uint64_t last = rng_between(r, first, rng_one_in(r, 8) ? NADDRESSES - 1 : first + 20);
    uint64_t nbytes = rng_between(r, 1, 40), align = UINT64_C(1) << rng_between(r, 0, 6);
    uint64_t expected, got = 7;

    last = last < NADDRESSES ? last : NADDRESSES - 1;
    switch (rng_between(r, 0, 3)) {
    case 0:
        assert_int_equal(iova_add(&m->space, first, last), 0);
        model_set(m, first, last, true);
        break;
    case 1:
        assert_int_equal(iova_remove(&m->space, first, last), 0);
        model_set(m, first, last, false);
        break;
    case 2:
        iova_free(&m->space, first, last - first + 1);
        model_set(m, first, last, true);
        break;
    default:
        expected = model_find(m, nbytes, align);
        if (expected == NADDRESSES) {
            assert_int_equal(iova_alloc(&m->space, nbytes, align, &got), GPUNVME_ERR_NOSPC);
            assert_int_equal(got, 7);
            break;
        }
        assert_int_equal(iova_alloc(&m->space, nbytes, align, &got), 0);
        assert_int_equal(got, expected);
        model_set(m, got, got + nbytes - 1, false);
    }
}

static void random_work_matches_a_plain_array(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct base_random r = {.state = seed};
        struct model m = {0};

        iova_init(&m.space);
        for (int i = 0; i < 400; i++) {
            step(&m, &r);
            assert_same(&m);
        }
        iova_destroy(&m.space);
    }
}

static void address_0_is_never_given_out(void **state)
{
    struct iova_space space;
    uint64_t iova;

    (void)state;
    iova_init(&space);
    assert_int_equal(iova_add(&space, 0, 0), 0);
    assert_int_equal(iova_alloc(&space, 1, 1, &iova), GPUNVME_ERR_NOSPC);
    assert_int_equal(iova_add(&space, 0, 0xffff), 0);
    assert_int_equal(iova_alloc(&space, 0x1000, 0x1000, &iova), 0);
    assert_int_equal(iova, 0x1000);
    iova_destroy(&space);
}

static void the_whole_64_bit_space_can_be_managed(void **state)
{
    struct iova_space space;
    uint64_t iova;

    (void)state;
    iova_init(&space);
    assert_int_equal(iova_add(&space, 0, UINT64_MAX), 0);
    assert_int_equal(iova_remove(&space, 0, UINT64_MAX - 0xfff), 0);
    assert_int_equal(iova_alloc(&space, 0x1000, 0x1000, &iova), GPUNVME_ERR_NOSPC);
    assert_int_equal(iova_add(&space, UINT64_MAX - 0xfff, UINT64_MAX), 0);
    assert_int_equal(iova_alloc(&space, 0x1000, 0x1000, &iova), 0);
    assert_int_equal(iova, UINT64_MAX - 0xfff);
    assert_int_equal(iova_alloc(&space, 1, 1, &iova), GPUNVME_ERR_NOSPC);
    iova_free(&space, UINT64_MAX - 0xfff, 0x1000);
    assert_int_equal(space.nfree, 1);
    iova_destroy(&space);
}

static void sizes_that_wrap_around_are_refused(void **state)
{
    struct iova_space space;
    uint64_t iova;

    (void)state;
    iova_init(&space);
    assert_int_equal(iova_add(&space, UINT64_MAX - 0xffff, UINT64_MAX), 0);
    assert_int_equal(iova_alloc(&space, UINT64_MAX, 1, &iova), GPUNVME_ERR_NOSPC);
    assert_int_equal(iova_alloc(&space, 0, 1, &iova), GPUNVME_ERR_NOSPC);
    assert_int_equal(iova_alloc(&space, 1, UINT64_C(1) << 63, &iova), GPUNVME_ERR_NOSPC);
    iova_destroy(&space);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_work_matches_a_plain_array),
        cmocka_unit_test(address_0_is_never_given_out),
        cmocka_unit_test(the_whole_64_bit_space_can_be_managed),
        cmocka_unit_test(sizes_that_wrap_around_are_refused),
    };

    return cmocka_run_group_tests_name("iova", tests, NULL, NULL);
}
