/* SPDX-License-Identifier: BSD-3-Clause
 *
 * For tests of device.cuh on the software controller: a device, queues made by hand, and the
 * handles. The host's own queue is what data is prepared and looked at with.
 */
#ifndef TESTS_SIM_DEVICE_FIXTURE_H
#define TESTS_SIM_DEVICE_FIXTURE_H

#include "sim/driver.h"

#include "dev_rig.h"
#include "no_gpu.h"
#include "patience.h"

#define MS UINT64_C(1000000)

struct fixture {
    struct device d;
    struct dev_rig rig;
    struct gpunvme_dev_ns ns;
    struct gpunvme_dev_buf buf; /* d.buf */
    uint8_t *bytes;             /* likewise */
    uint8_t *image;             /* what the namespace must hold, where image_fill() was called */
};

static inline void fixture_open(struct fixture *f, const char *uri, const struct dev_rig_opts *opts)
{
    struct gpunvme_ctrl_opts ctrl_opts;
    struct dev_rig_opts defaults;

    dev_rig_opts_init(&defaults);
    memset(f, 0, sizeof(*f));
    gpunvme_ctrl_opts_init(&ctrl_opts);
    ctrl_opts.no_shadow_doorbells = true; /* the rig has none */
    device_open_with(&f->d, uri, &ctrl_opts);
    assert_ok(dev_rig_open(&f->rig, f->d.ctrl, opts ? opts : &defaults));
    f->ns = dev_rig_ns(&f->rig, f->d.ns);
    f->buf = dev_rig_buf(&f->d.buf);
    f->bytes = f->d.buf.cpu;
}

static inline void fixture_close(struct fixture *f)
{
    free(f->image);
    assert_ok(dev_rig_close(&f->rig));
    device_close(&f->d);
}

/* Random bytes in the whole namespace; the buffer is all 0xee then. */
static inline void image_fill(struct fixture *f, uint64_t seed)
{
    size_t n = (size_t)f->d.ns->nbytes;

    assert_true(n <= DEVICE_BUF_NBYTES);
    f->image = malloc(n);
    fill_random(f->image, n, seed);
    memcpy(f->bytes, f->image, n);
    assert_ok(gpunvme_write(f->d.ioq, f->d.ns, 0, n, &f->d.buf, 0, 0));
    memset(f->bytes, 0xee, DEVICE_BUF_NBYTES);
}

/* The namespace holds the image. */
static inline void image_assert(struct fixture *f)
{
    size_t n = (size_t)f->d.ns->nbytes;

    assert_ok(gpunvme_read(f->d.ioq, f->d.ns, 0, n, &f->d.buf, 0));
    assert_memory_equal(f->bytes, f->image, n);
}

#endif
