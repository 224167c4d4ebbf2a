/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What each test has.
 */
#include "qemu/qtest/rig.h"

void rig_assert_ok(gpunvme_err_t err, const char *file, int line)
{
    if (!err)
        return;
    print_error("%s: %s (%s)\n", gpunvme_err_name(err), gpunvme_err_text(err),
                gpunvme_err_detail());
    _fail(file, line);
}

int rig_set_up(void **state)
{
    struct rig *r = calloc(1, sizeof(*r));

    if (!r)
        return -1;
    gpunvme_ctrl_opts_init(&r->opts);
    r->opts.io_timeout_ms = 10000;
    *state = r;
    return 0;
}

int rig_tear_down(void **state)
{
    struct rig *r = *state;

    qemu_kill(&r->qemu); /* first, so that nothing can wait for it */
    if (r->ctrl)
        gpunvme_ctrl_close(r->ctrl);
    else if (r->transport)
        r->transport->ops->close(r->transport);
    qemu_stop(&r->qemu);
    free(r);
    return 0;
}

void rig_reconnect(struct rig *r)
{
    assert_ok(qtest_transport_open(r->qemu.qtest_fd, r->qemu.ram, QEMU_RAM_NBYTES, &r->transport));
}

void rig_start(struct rig *r, const char *format, ...)
{
    char args[4096];
    va_list list;

    va_start(list, format);
    assert_true((size_t)vsnprintf(args, sizeof(args), format, list) < sizeof(args));
    va_end(list);
    qemu_start(&r->qemu, args);
    r->qmp.fd = r->qemu.qmp_fd;
    rig_reconnect(r);
}

const char *rig_ns_args(struct rig *r, char *text, size_t size, unsigned nsid, uint64_t nbytes,
                        const char *options)
{
    snprintf(text, size,
             " -blockdev driver=file,node-name=disk%u,filename=/proc/self/fd/%d,discard=unmap"
             " -device nvme-ns,bus=nvme0,nsid=%u,drive=disk%u%s",
             nsid, qemu_new_image(&r->qemu, nbytes), nsid, nsid, options);
    return text;
}

void rig_start_disk(struct rig *r, uint64_t nbytes, const char *options)
{
    char ns[512];

    rig_start(r, "-device nvme,id=nvme0,serial=QTEST0001,addr=5%s%s", options,
              rig_ns_args(r, ns, sizeof(ns), 1, nbytes, ""));
}

void rig_open_ctrl(struct rig *r)
{
    assert_ok(gpunvme_ctrl_open(r->transport, &r->opts, &r->ctrl));
    r->ns = gpunvme_ctrl_ns_at(r->ctrl, 0);
    assert_ok(gpunvme_ctrl_alloc(r->ctrl, RIG_BUF_NBYTES, GPUNVME_MEM_HOST, &r->buf));
}

void rig_open(struct rig *r)
{
    rig_open_ctrl(r);
    assert_non_null(r->ns);
    assert_ok(gpunvme_ioq_create(r->ctrl, 64, &r->ioq));
}

void rig_close(struct rig *r)
{
    struct gpunvme_ctrl *ctrl = r->ctrl;

    gpunvme_ctrl_free(ctrl, &r->buf);
    r->ctrl = NULL;
    r->transport = NULL;
    r->ioq = NULL;
    assert_ok(gpunvme_ctrl_close(ctrl));
}

void rig_abandon(struct rig *r)
{
    struct gpunvme_ctrl *ctrl = r->ctrl;

    qtest_transport_cut(r->transport);
    r->ctrl = NULL;
    r->transport = NULL;
    r->ioq = NULL;
    assert_true(gpunvme_ctrl_close(ctrl) < 0);
}

uint32_t rig_reg(struct rig *r, uint32_t offset)
{
    uint32_t value = 0;

    assert_ok(r->transport->ops->read32(r->transport, offset, &value));
    return value;
}

void rig_check_io(struct rig *r, uint64_t offset, size_t nbytes)
{
    uint8_t *bytes = r->buf.cpu;
    size_t half = RIG_BUF_NBYTES / 2;

    assert_true(nbytes <= half);
    rig_fill(bytes, nbytes, offset + nbytes);
    memset(bytes + half, 0x5a, nbytes);
    assert_ok(gpunvme_write(r->ioq, r->ns, offset, nbytes, &r->buf, 0, 0));
    assert_ok(gpunvme_read(r->ioq, r->ns, offset, nbytes, &r->buf, half));
    assert_memory_equal(bytes, bytes + half, nbytes);
}

uint64_t rig_random(uint64_t *state)
{
    uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);

    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

void rig_fill(void *p, size_t nbytes, uint64_t seed)
{
    uint8_t *bytes = p;

    for (size_t i = 0; i < nbytes; i += 8) {
        uint64_t word = rig_random(&seed);

        memcpy(bytes + i, &word, nbytes - i < 8 ? nbytes - i : 8);
    }
}

/*
 * A submission queue entry is written again when the controller has told, in a completion, that it
 * has read it. The sanitizer can't see that order, as the controller is another process, so in
 * these programs it does not look at the entries; the tests on the software controller do.
 */
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
    return "race:gpunvme_entry_fill\n";
}
