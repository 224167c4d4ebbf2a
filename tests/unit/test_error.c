/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Errors as values: their names and texts, NVMe statuses inside them, and the detail that each
 * thread keeps of its last failure. test_status.c has the names of the statuses.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "base/fail.h"
#include "gpunvme/nvme.h"

static const struct {
    gpunvme_err_t value;
    const char *name, *text;
} errors[] = {
#define X(name, value, text) {value, "GPUNVME_ERR_" #name, text},
    GPUNVME_ERRORS(X)
#undef X
};
#define NERRORS (sizeof(errors) / sizeof(errors[0]))

/* --- names and texts -------------------------------------------------------------------------- */

static void every_error_has_its_name_and_text(void **state)
{
    (void)state;
    for (unsigned i = 0; i < NERRORS; i++) {
        assert_string_equal(gpunvme_err_name(errors[i].value), errors[i].name);
        assert_string_equal(gpunvme_err_text(errors[i].value), errors[i].text);
    }
    assert_string_equal(gpunvme_err_name(GPUNVME_OK), "GPUNVME_OK");
    assert_string_equal(gpunvme_err_text(GPUNVME_OK), "success");
}

static void errors_are_negative_and_differ(void **state)
{
    (void)state;
    for (unsigned i = 0; i < NERRORS; i++) {
        assert_in_range(-errors[i].value, 1, 999);
        for (unsigned k = 0; k < i; k++) {
            assert_int_not_equal(errors[i].value, errors[k].value);
            assert_string_not_equal(errors[i].text, errors[k].text);
        }
    }
}

/* They are numbers that programs were built with. */
static void errors_keep_their_numbers(void **state)
{
    (void)state;
    assert_int_equal(GPUNVME_ERR_INVALID, -1);
    assert_int_equal(GPUNVME_ERR_AGAIN, -10);
    assert_int_equal(GPUNVME_ERR_TIMEOUT, -11);
    assert_int_equal(GPUNVME_ERR_REMOVED, -13);
    assert_int_equal(GPUNVME_ERR_VERIFY, -27);
    assert_int_equal(GPUNVME_ERR_LIMIT, -29);
    assert_int_equal(GPUNVME_ERR_EXISTS, -31);
}

/* It says what happened, then what to do: two parts, unless there is nothing to do. */
static void a_text_is_more_than_a_name(void **state)
{
    (void)state;
    for (unsigned i = 0; i < NERRORS; i++)
        assert_true(strlen(errors[i].text) > 20);
}

static void numbers_that_are_no_errors_have_a_text_all_the_same(void **state)
{
    static const gpunvme_err_t numbers[] = {1,       77,      INT32_MAX, -32,      -999,
                                            -0x7fff, -0x8000, -0x10000,  -0x10001, INT32_MIN};

    (void)state;
    for (unsigned i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        assert_string_equal(gpunvme_err_name(numbers[i]), "unknown error");
        assert_true(strlen(gpunvme_err_text(numbers[i])) > 0);
        assert_int_equal(gpunvme_err_nvme_status(numbers[i]), 0);
    }
}

/* --- statuses --------------------------------------------------------------------------------- */

static void every_status_goes_in_and_comes_out(void **state)
{
    (void)state;
    for (unsigned status = 1; status <= 0x7fff; status++) {
        gpunvme_err_t err = GPUNVME_ERR_NVME(status);

        assert_true(err < -999);
        assert_int_equal(gpunvme_err_nvme_status(err), status);
    }
}

static void no_error_of_ours_carries_a_status(void **state)
{
    (void)state;
    for (unsigned i = 0; i < NERRORS; i++)
        assert_int_equal(gpunvme_err_nvme_status(errors[i].value), 0);
    assert_int_equal(gpunvme_err_nvme_status(GPUNVME_OK), 0);
}

static void a_status_has_its_own_name_and_text(void **state)
{
    static const uint16_t statuses[] = {0x001, 0x080, 0x281, 0x4281, 0x7fff, 0x305, 0x7c0};

    (void)state;
    for (unsigned i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
        gpunvme_err_t err = GPUNVME_ERR_NVME(statuses[i]);

        assert_string_equal(gpunvme_err_name(err), gpunvme_status_name(statuses[i]));
        assert_string_equal(gpunvme_err_text(err), gpunvme_status_text(statuses[i]));
    }
}

/* --- details ---------------------------------------------------------------------------------- */

static void a_failure_records_its_detail(void **state)
{
    (void)state;
    assert_int_equal(base_fail(GPUNVME_ERR_RANGE, "%d of %s", 7, "nine"), GPUNVME_ERR_RANGE);
    assert_string_equal(gpunvme_err_detail(), "7 of nine");
    base_fail(GPUNVME_ERR_RANGE, "%s", "");
    assert_string_equal(gpunvme_err_detail(), "");
}

static void a_detail_that_is_too_long_is_cut(void **state)
{
    char text[1000];

    (void)state;
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = 0;
    base_fail(GPUNVME_ERR_INVALID, "%s", text);
    assert_in_range(strlen(gpunvme_err_detail()), 100, 999);
    assert_memory_equal(gpunvme_err_detail(), text, strlen(gpunvme_err_detail()));
    base_fail_errno(ENOENT, "%s", text);
    assert_true(strlen(gpunvme_err_detail()) >= 100);
}

static void a_detail_may_be_part_of_the_next(void **state)
{
    (void)state;
    base_fail(GPUNVME_ERR_INVALID, "inside");
    base_fail(GPUNVME_ERR_INVALID, "outside (%s)", gpunvme_err_detail());
    assert_string_equal(gpunvme_err_detail(), "outside (inside)");
}

static void an_errno_becomes_its_error_and_says_so(void **state)
{
    static const struct {
        int number;
        gpunvme_err_t err;
    } cases[] = {{0, GPUNVME_OK},
                 {ENOMEM, GPUNVME_ERR_NOMEM},
                 {ENOENT, GPUNVME_ERR_NOT_FOUND},
                 {ENODEV, GPUNVME_ERR_NOT_FOUND},
                 {ENXIO, GPUNVME_ERR_NOT_FOUND},
                 {ENOSPC, GPUNVME_ERR_NOSPC},
                 {EDQUOT, GPUNVME_ERR_NOSPC},
                 {EFBIG, GPUNVME_ERR_NOSPC},
                 {EROFS, GPUNVME_ERR_READONLY},
                 {EACCES, GPUNVME_ERR_PERMISSION},
                 {EPERM, GPUNVME_ERR_PERMISSION},
                 {EBUSY, GPUNVME_ERR_BUSY},
                 {EWOULDBLOCK, GPUNVME_ERR_BUSY},
                 {EINVAL, GPUNVME_ERR_INVALID},
                 {EFAULT, GPUNVME_ERR_INVALID},
                 {EINTR, GPUNVME_ERR_INTERRUPTED},
                 {EIO, GPUNVME_ERR_IO},
                 {EPIPE, GPUNVME_ERR_IO},
                 {99999, GPUNVME_ERR_IO}};

    (void)state;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(base_err_from_errno(cases[i].number), cases[i].err);
        assert_int_equal(base_fail_errno(cases[i].number, "file %d", 3), cases[i].err);
        assert_memory_equal(gpunvme_err_detail(), "file 3: ", 8);
        assert_string_equal(gpunvme_err_detail() + 8, strerror(cases[i].number));
    }
}

static void a_failure_can_be_kept_over_others(void **state)
{
    struct base_failure failure;

    (void)state;
    base_keep(&failure, base_fail(GPUNVME_ERR_TIMEOUT, "the first"));
    base_fail(GPUNVME_ERR_REMOVED, "the second");
    assert_int_equal(base_restore(&failure), GPUNVME_ERR_TIMEOUT);
    assert_string_equal(gpunvme_err_detail(), "the first");
}

static void *other_thread(void *arg)
{
    (void)arg;
    if (gpunvme_err_detail()[0])
        return "a thread begins with a detail";
    base_fail(GPUNVME_ERR_INVALID, "of the other");
    return strcmp(gpunvme_err_detail(), "of the other") ? "it lost its own" : NULL;
}

static void each_thread_has_its_own_detail(void **state)
{
    pthread_t thread;
    void *wrong;

    (void)state;
    base_fail(GPUNVME_ERR_INVALID, "mine");
    assert_int_equal(pthread_create(&thread, NULL, other_thread, NULL), 0);
    assert_int_equal(pthread_join(thread, &wrong), 0);
    if (wrong)
        fail_msg("%s", (const char *)wrong);
    assert_string_equal(gpunvme_err_detail(), "mine");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_error_has_its_name_and_text),
        cmocka_unit_test(errors_are_negative_and_differ),
        cmocka_unit_test(errors_keep_their_numbers),
        cmocka_unit_test(a_text_is_more_than_a_name),
        cmocka_unit_test(numbers_that_are_no_errors_have_a_text_all_the_same),
        cmocka_unit_test(every_status_goes_in_and_comes_out),
        cmocka_unit_test(no_error_of_ours_carries_a_status),
        cmocka_unit_test(a_status_has_its_own_name_and_text),
        cmocka_unit_test(a_failure_records_its_detail),
        cmocka_unit_test(a_detail_that_is_too_long_is_cut),
        cmocka_unit_test(a_detail_may_be_part_of_the_next),
        cmocka_unit_test(an_errno_becomes_its_error_and_says_so),
        cmocka_unit_test(a_failure_can_be_kept_over_others),
        cmocka_unit_test(each_thread_has_its_own_detail),
    };

    return cmocka_run_group_tests_name("errors", tests, NULL, NULL);
}
