/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What a kernel's threads do (device.cuh), by threads of the CPU, on QEMU's controller: another
 * reading of the specification than our own.
 */
#include <pthread.h>

#include "qemu/qtest/rig.h"

#include "dev_rig.h"
#include "no_gpu.h"

#define MIB     (UINT64_C(1) << 20)
#define THREADS 8
#define PART    ((size_t)64 << 10)

struct api {
    struct rig *rig;
    struct dev_rig dev;
    struct gpunvme_dev_ns ns;
    struct gpunvme_dev_buf buf;
    uint8_t *bytes;
};

static void api_open(struct api *a, struct rig *r, uint32_t entries)
{
    struct dev_rig_opts opts;

    memset(a, 0, sizeof(*a));
    a->rig = r;
    r->opts.no_shadow_doorbells = true;
    rig_start_disk(r, MIB, ",mdts=5");
    rig_open(r);
    dev_rig_opts_init(&opts);
    opts.entries = entries;
    assert_ok(dev_rig_open(&a->dev, r->ctrl, &opts));
    a->ns = dev_rig_ns(&a->dev, r->ns);
    a->buf = dev_rig_buf(&r->buf);
    a->bytes = r->buf.cpu;
}

static void api_close(struct api *a)
{
    assert_ok(dev_rig_close(&a->dev));
    rig_close(a->rig);
}

static void each_call_moves_the_right_bytes(void **state)
{
    struct gpunvme_dev_vec vec[3] = {{1, 40000, 3}, {100, 80000, 40}, {9, 120004, 1}};
    uint8_t *model = malloc(MIB);
    struct gpunvme_dev_token t;
    struct api a;

    api_open(&a, *state, 16);
    rig_fill(a.bytes, MIB, 5);
    memcpy(model, a.bytes, MIB);
    assert_err(gpunvme_dev_block_write(&a.ns, 0, 2048, &a.buf, 0, 0, 0), GPUNVME_OK);
    memset(a.bytes, 0xee, MIB);
    for (uint64_t lba = 0; lba < 1500; lba += 131) {
        uint64_t nlb = lba % 250 + 1;

        assert_err(gpunvme_dev_read(&a.ns, lba, nlb, &a.buf, lba * 4, 0), GPUNVME_OK);
        assert_memory_equal(a.bytes + lba * 4, model + lba * 512, nlb * 512);
    }
    assert_err(gpunvme_dev_warp_readv(&a.ns, vec, 3, &a.buf, 0), GPUNVME_OK);
    for (unsigned i = 0; i < 3; i++)
        assert_memory_equal(a.bytes + vec[i].off, model + vec[i].slba * 512, vec[i].nlb * 512);
    rig_fill(a.bytes, 1000, 6);
    memcpy(model + 777, a.bytes + 1, 999);
    assert_err(gpunvme_dev_write_bytes(&a.ns, 777, 999, &a.buf, 1, GPUNVME_IO_FUA, 0), GPUNVME_OK);
    assert_err(gpunvme_dev_submit_flush(&a.ns, &t), GPUNVME_OK);
    assert_err(gpunvme_dev_wait(&a.ns, &t, 0), GPUNVME_OK);
    assert_err(gpunvme_dev_read_bytes(&a.ns, 3, 20001, &a.buf, 50, 0), GPUNVME_OK);
    assert_memory_equal(a.bytes + 50, model + 3, 20001);
    assert_err(gpunvme_dev_warp_read(&a.ns, 0, 2048, &a.buf, 0, 0), GPUNVME_OK);
    assert_memory_equal(a.bytes, model, MIB);
    api_close(&a);
    free(model);
}

static void a_status_of_the_controller_is_told(void **state)
{
    struct api a;
    int err;

    api_open(&a, *state, 16);
    a.ns.nblocks += 8; /* a handle that lies */
    err = gpunvme_dev_read(&a.ns, a.ns.nblocks - 8, 1, &a.buf, 0, 0);
    assert_status(err, GPUNVME_SC_LBA_RANGE);
    err = gpunvme_dev_warp_read(&a.ns, 0, a.ns.nblocks, &a.buf, 0, 0);
    assert_status(err, GPUNVME_SC_LBA_RANGE);
    a.ns.nsid = 100000; /* more than there can be */
    err = gpunvme_dev_write(&a.ns, 0, 1, &a.buf, 0, 0, 0);
    assert_status(err, GPUNVME_SC_INVALID_NS);
    api_close(&a);
}

struct worker {
    struct api *api;
    pthread_t thread;
    unsigned index;
    int err;
};

static void *work(void *arg)
{
    struct worker *w = arg;
    uint64_t seed = w->index + 1, part = w->index * PART, half = PART / 2;
    const struct gpunvme_dev_ns *ns = &w->api->ns;
    uint8_t *bytes = w->api->bytes + part;

    for (unsigned i = 0; i < 60 && !w->err; i++) {
        uint64_t n = 1 + rig_random(&seed) % 5000, at = part + rig_random(&seed) % (PART - n);

        rig_fill(bytes, n, seed);
        w->err = gpunvme_dev_write_bytes(ns, at, n, &w->api->buf, part, 0, 0);
        if (!w->err)
            w->err = gpunvme_dev_read_bytes(ns, at, n, &w->api->buf, part + half, 0);
        if (!w->err && memcmp(bytes, bytes + half, n))
            w->err = GPUNVME_ERR_VERIFY;
    }
    return NULL;
}

static void eight_threads_share_a_queue_of_eight_entries(void **state)
{
    struct worker workers[THREADS];
    struct api a;

    api_open(&a, *state, 8);
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.api = &a, .index = i};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(workers[i].thread, NULL);
    for (unsigned i = 0; i < THREADS; i++)
        assert_err(workers[i].err, GPUNVME_OK);
    api_close(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        rig_test(each_call_moves_the_right_bytes),
        rig_test(a_status_of_the_controller_is_told),
        rig_test(eight_threads_share_a_queue_of_eight_entries),
    };

    return qemu_is_installed() ? cmocka_run_group_tests(tests, NULL, NULL) : 77;
}
