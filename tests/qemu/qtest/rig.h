/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What each test has: a machine, a transport to its NVMe controller, and the driver on it.
 */
#ifndef QTEST_RIG_H
#define QTEST_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gpunvme/io.h"
#include "qemu/qtest/qemu.h"
#include "qemu/qtest/qmp.h"
#include "qemu/qtest/qtest_transport.h"

#define RIG_BUF_NBYTES ((size_t)8 << 20)

struct rig {
    struct qemu qemu;
    struct qmp qmp;
    struct gpunvme_ctrl_opts opts; /* the defaults, to be changed before rig_open() */
    struct gpunvme_transport *transport;
    struct gpunvme_ctrl *ctrl;
    const struct gpunvme_ns *ns; /* the first one that there is; may be NULL */
    struct gpunvme_ioq *ioq;
    struct gpunvme_buf buf;
};

#define assert_ok(err) rig_assert_ok((err), __FILE__, __LINE__)
void rig_assert_ok(gpunvme_err_t err, const char *file, int line);

#define assert_err(err, expected)                                                                  \
    assert_string_equal(gpunvme_err_name(err), gpunvme_err_name(expected))
#define assert_status(err, status)                                                                 \
    assert_int_equal(GPUNVME_STATUS_CODE(gpunvme_err_nvme_status(err)), status)

/* cmocka's: *state is a struct rig. */
int rig_set_up(void **state);
int rig_tear_down(void **state);
#define rig_test(f) cmocka_unit_test_setup_teardown(f, rig_set_up, rig_tear_down)

/* Starts a machine with these arguments (as printf) and opens the transport. */
void rig_start(struct rig *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same with one namespace on an image of `nbytes`; `options` ("" or ",mdts=1") of the nvme. */
void rig_start_disk(struct rig *r, uint64_t nbytes, const char *options);

/* The arguments of a namespace `nsid` on a new image, with `options`; in `text` of `size`. */
const char *rig_ns_args(struct rig *r, char *text, size_t size, unsigned nsid, uint64_t nbytes,
                        const char *options);

/* Brings the driver up, with a buffer; rig_open also makes a queue of 64 entries. */
void rig_open_ctrl(struct rig *r);
void rig_open(struct rig *r);

/* Closes the driver, which must succeed; the machine stays. */
void rig_close(struct rig *r);

/* Ends the driver as if its process died: the controller stays as it is. */
void rig_abandon(struct rig *r);

/* A new transport to the machine, after rig_close() or rig_abandon(). */
void rig_reconnect(struct rig *r);

uint32_t rig_reg(struct rig *r, uint32_t offset);

/* Writes random bytes at `offset`, reads them back into another place, compares. */
void rig_check_io(struct rig *r, uint64_t offset, size_t nbytes);

uint64_t rig_random(uint64_t *state);
void rig_fill(void *p, size_t nbytes, uint64_t seed);

/* main() of a test program. */
#define RIG_MAIN(tests)                                                                            \
    int main(void)                                                                                 \
    {                                                                                              \
        return qemu_is_installed() ? cmocka_run_group_tests(tests, NULL, NULL) : 77;               \
    }

#endif
