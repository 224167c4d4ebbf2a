/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What cmocka tests on the mock transport share.
 */
#ifndef TESTS_MOCK_TEST_H
#define TESTS_MOCK_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gpunvme/io.h"
#include "mock_transport.h"

static inline void assert_err_at(gpunvme_err_t err, gpunvme_err_t expected, const char *file,
                                 int line)
{
    if (err == expected)
        return;
    print_error("%s (%s), expected %s\n", gpunvme_err_name(err), gpunvme_err_detail(),
                gpunvme_err_name(expected));
    _fail(file, line);
}
#define assert_err(err, expected) assert_err_at((err), (expected), __FILE__, __LINE__)
#define assert_ok(err)            assert_err_at((err), GPUNVME_OK, __FILE__, __LINE__)

/* The detail of the last failure contains this. */
#define assert_detail(text)                                                                        \
    do {                                                                                           \
        if (!strstr(gpunvme_err_detail(), (text))) {                                               \
            print_error("detail '%s' does not have '%s'\n", gpunvme_err_detail(), (text));         \
            _fail(__FILE__, __LINE__);                                                             \
        }                                                                                          \
    } while (0)

static inline struct gpunvme_ctrl *bring_up_with(struct mock *m, const struct gpunvme_ctrl_opts *o)
{
    struct gpunvme_ctrl *ctrl = NULL;

    assert_ok(gpunvme_ctrl_open(&m->base, o, &ctrl));
    assert_non_null(ctrl);
    return ctrl;
}

static inline struct gpunvme_ctrl *bring_up(struct mock *m)
{
    return bring_up_with(m, NULL);
}

/* The driver did nothing wrong, and, but for what it may leave behind, gave everything back. */
static inline void mock_done(struct mock *m)
{
    const char *violation = mock_close(m);

    if (violation)
        fail_msg("the driver's fault: %s", violation);
}

static inline void take_down(struct mock *m, struct gpunvme_ctrl *ctrl)
{
    assert_ok(gpunvme_ctrl_close(ctrl));
    assert_true(m->closed);
    assert_int_equal(mock_nbytes(m), 0);
    mock_done(m);
}

/* Bringing it up gives this error; nothing is left behind, and the transport is the caller's. */
static inline void assert_open_fails_with(struct mock *m, const struct gpunvme_ctrl_opts *opts,
                                          gpunvme_err_t expected)
{
    struct gpunvme_ctrl *ctrl = (void *)m;

    assert_err(gpunvme_ctrl_open(&m->base, opts, &ctrl), expected);
    assert_ptr_equal(ctrl, m);
    assert_false(m->closed);
    assert_int_equal(mock_nbytes(m), 0);
}

static inline void assert_open_fails(struct mock *m, gpunvme_err_t expected)
{
    assert_open_fails_with(m, NULL, expected);
}

#endif
