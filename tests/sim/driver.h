/* SPDX-License-Identifier: BSD-3-Clause
 *
 * For tests of the driver on the software controller: a device that is open, and that must have
 * found nothing wrong with the driver when it is closed.
 */
#ifndef TESTS_SIM_DRIVER_H
#define TESTS_SIM_DRIVER_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "gpunvme/io.h"
#include "gpunvme/sim.h"

struct device {
    struct gpunvme_ctrl *ctrl;
    struct gpunvme_sim *sim;
    const struct gpunvme_ns *ns;
    struct gpunvme_ioq *ioq;
    struct gpunvme_buf buf; /* 4 MiB */
};

#define DEVICE_BUF_NBYTES ((size_t)4 << 20)

static inline void assert_ok_at(gpunvme_err_t err, const char *file, int line)
{
    if (err) {
        print_error("%s: %s (%s)\n", gpunvme_err_name(err), gpunvme_err_text(err),
                    gpunvme_err_detail());
        _fail(file, line);
    }
}
#define assert_ok(err) assert_ok_at((err), __FILE__, __LINE__)

#define assert_err(err, expected)                                                                  \
    assert_string_equal(gpunvme_err_name(err), gpunvme_err_name(expected))

static inline void device_open_with(struct device *d, const char *uri,
                                    const struct gpunvme_ctrl_opts *opts)
{
    memset(d, 0, sizeof(*d));
    assert_ok(gpunvme_ctrl_open_uri(uri, opts, &d->ctrl));
    d->sim = gpunvme_transport_sim(gpunvme_ctrl_transport(d->ctrl));
    d->ns = gpunvme_ctrl_ns_at(d->ctrl, 0);
    assert_non_null(d->ns);
    assert_ok(gpunvme_ioq_create(d->ctrl, 64, &d->ioq));
    assert_ok(gpunvme_ctrl_alloc(d->ctrl, DEVICE_BUF_NBYTES, GPUNVME_MEM_HOST, &d->buf));
}

static inline void device_open(struct device *d, const char *uri)
{
    device_open_with(d, uri, NULL);
}

static inline void device_assert_no_violation(struct device *d)
{
    struct gpunvme_sim_report report;

    gpunvme_sim_report(d->sim, &report);
    if (report.nviolations || report.nwarnings)
        print_error("violation: %s%s\n", report.first, report.first_warning);
    assert_int_equal(report.nviolations + report.nwarnings, 0);
}

/* Closes the device, which must be alive and have nothing to complain of. */
static inline void device_close(struct device *d)
{
    gpunvme_ctrl_free(d->ctrl, &d->buf);
    assert_ok(gpunvme_ioq_delete(d->ioq));
    device_assert_no_violation(d);
    assert_ok(gpunvme_ctrl_close(d->ctrl));
}

static inline uint64_t next_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(0x2545f4914f6cdd1d);
}

static inline void fill_random(void *p, size_t nbytes, uint64_t seed)
{
    uint8_t *bytes = p;

    for (size_t i = 0; i < nbytes; i++)
        bytes[i] = (uint8_t)(next_random(&seed) >> 56);
}

#endif
