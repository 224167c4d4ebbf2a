/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Errors of QEMU's controller: each reaches the command that it belongs to, and no other; nothing
 * hangs, and what can recover does.
 */
#include <pthread.h>

#include "qemu/qtest/rig.h"

#define MIB (UINT64_C(1) << 20)

/*
 * An image of 8 MiB where reads of the sector at 1 MiB fail with EIO, and writes of those at 2 MiB
 * and 3 MiB with EIO and ENOSPC.
 */
static void start_faulty(struct rig *r)
{
    rig_start(r,
              "-blockdev driver=file,node-name=f,filename=/proc/self/fd/%d"
              " -blockdev driver=blkdebug,node-name=d,image=f"
              ",inject-error.0.event=none,inject-error.0.iotype=read"
              ",inject-error.0.sector=2048,inject-error.0.errno=5"
              ",inject-error.1.event=none,inject-error.1.iotype=write"
              ",inject-error.1.sector=4096,inject-error.1.errno=5"
              ",inject-error.2.event=none,inject-error.2.iotype=write"
              ",inject-error.2.sector=6144,inject-error.2.errno=28"
              " -device nvme,id=nvme0,serial=1,drive=d",
              qemu_new_image(&r->qemu, 8 * MIB));
    rig_open(r);
}

static void a_failed_read_gives_unrecovered_read_error(void **state)
{
    struct rig *r = *state;

    start_faulty(r);
    assert_status(gpunvme_read(r->ioq, r->ns, MIB, 512, &r->buf, 0), GPUNVME_SC_UNRECOVERED_READ);
    assert_ok(gpunvme_read(r->ioq, r->ns, MIB + 512, 512, &r->buf, 0));
    rig_close(r);
}

static void a_failed_write_gives_write_fault(void **state)
{
    struct rig *r = *state;

    start_faulty(r);
    assert_status(gpunvme_write(r->ioq, r->ns, 2 * MIB, 512, &r->buf, 0, 0),
                  GPUNVME_SC_WRITE_FAULT);
    assert_ok(gpunvme_write(r->ioq, r->ns, 2 * MIB + 512, 512, &r->buf, 0, 0));
    rig_close(r);
}

static void a_write_without_space_gives_a_status(void **state)
{
    struct rig *r = *state;
    uint16_t status;

    start_faulty(r);
    status = GPUNVME_STATUS_CODE(
        gpunvme_err_nvme_status(gpunvme_write(r->ioq, r->ns, 3 * MIB, 512, &r->buf, 0, 0)));
    assert_true(status == GPUNVME_SC_WRITE_FAULT || status == GPUNVME_SC_CAP_EXCEEDED);
    rig_check_io(r, 3 * MIB + 512, 65536);
    rig_close(r);
}

static void only_the_command_that_touches_the_bad_block_fails(void **state)
{
    struct rig *r = *state;
    struct gpunvme_token tokens[32];

    start_faulty(r);
    for (unsigned i = 0; i < 32; i++)
        assert_ok(
            gpunvme_submit_read(r->ioq, r->ns, 2048 - 16 + i, 1, &r->buf, i * 512, &tokens[i]));
    for (unsigned i = 0; i < 32; i++) {
        gpunvme_err_t err = gpunvme_token_wait(&tokens[i], 0);

        assert_status(err, i == 16 ? GPUNVME_SC_UNRECOVERED_READ : 0);
        assert_int_equal(err != 0, i == 16);
    }
    rig_close(r);
}

static void a_transfer_with_a_bad_block_fails_and_the_next_one_works(void **state)
{
    struct rig *r = *state;

    start_faulty(r);
    for (unsigned i = 0; i < 10; i++) {
        assert_status(gpunvme_read(r->ioq, r->ns, 0, 4 * MIB, &r->buf, 0),
                      GPUNVME_SC_UNRECOVERED_READ);
        rig_check_io(r, 4 * MIB, MIB);
    }
    rig_close(r);
}

/* What the library would not send, by the raw queue. */
static uint16_t raw_status(struct rig *r, const struct gpunvme_sqe *sqe)
{
    struct gpunvme_qpair *q = gpunvme_ioq_qpair(r->ioq);
    struct gpunvme_completion c = {0};
    uint64_t ticket = 0;

    assert_int_equal(gpunvme_qpair_submit(q, sqe, 1, &ticket), 1);
    assert_ok(gpunvme_qpair_wait(q, ticket, gpunvme_clock_ns() + UINT64_C(10000000000), &c));
    return GPUNVME_STATUS_CODE(c.status);
}

static void statuses_of_bad_commands_are_delivered(void **state)
{
    struct rig *r = *state;
    struct gpunvme_sqe opcode = {.opc = 0x7f, .nsid = 1}, ns = {.opc = GPUNVME_CMD_READ};
    struct gpunvme_sqe range = {.opc = GPUNVME_CMD_READ, .nsid = 1, .cdw11 = 1};

    rig_start_disk(r, 8 * MIB, "");
    rig_open(r);
    ns.nsid = 77;
    ns.prp1 = range.prp1 = r->buf.bus;
    assert_int_equal(raw_status(r, &opcode), GPUNVME_SC_INVALID_OPCODE);
    assert_true(raw_status(r, &ns) != 0); /* which one depends on what NN is */
    assert_int_equal(raw_status(r, &range), GPUNVME_SC_LBA_RANGE);
    rig_check_io(r, 0, MIB);
    rig_close(r);
}

/* A disk whose commands take `latency` ms. */
static void start_slow(struct rig *r, unsigned latency)
{
    rig_start(r,
              "-blockdev driver=null-co,node-name=d,size=8388608,latency-ns=%u000000"
              " -device nvme,id=nvme0,serial=1,addr=5,drive=d",
              latency);
}

static void a_late_command_times_out_and_io_works_afterwards(void **state)
{
    struct rig *r = *state;
    struct gpunvme_token token;

    start_slow(r, 700);
    rig_open(r);
    assert_ok(gpunvme_submit_read(r->ioq, r->ns, 0, 1, &r->buf, 0, &token));
    assert_err(gpunvme_token_wait(&token, 50000000), GPUNVME_ERR_TIMEOUT);
    assert_ok(gpunvme_read(r->ioq, r->ns, 0, 4096, &r->buf, 0));
    rig_close(r);
}

static void a_timeout_of_the_options_ends_a_transfer(void **state)
{
    struct rig *r = *state;

    start_slow(r, 1000);
    r->opts.io_timeout_ms = 100;
    rig_open(r);
    assert_err(gpunvme_read(r->ioq, r->ns, 0, 4096, &r->buf, 0), GPUNVME_ERR_TIMEOUT);
    rig_close(r);
}

static void without_recovery_a_timeout_ends_everything(void **state)
{
    struct rig *r = *state;
    struct gpunvme_token tokens[2];
    struct gpunvme_ctrl *ctrl;

    start_slow(r, 500);
    r->opts.no_recovery = true;
    rig_open(r);
    for (unsigned i = 0; i < 2; i++)
        assert_ok(gpunvme_submit_read(r->ioq, r->ns, i, 1, &r->buf, i * 512, &tokens[i]));
    assert_err(gpunvme_token_wait(&tokens[0], 50000000), GPUNVME_ERR_TIMEOUT);
    assert_true(gpunvme_token_wait(&tokens[1], 0) < 0);
    assert_err(gpunvme_read(r->ioq, r->ns, 0, 4096, &r->buf, 0), GPUNVME_ERR_CLOSED);
    ctrl = r->ctrl;
    r->ctrl = NULL;
    r->transport = NULL;
    gpunvme_ctrl_close(ctrl);
}

static void a_reset_ends_the_commands_in_flight(void **state)
{
    struct rig *r = *state;
    struct gpunvme_token tokens[16];

    start_slow(r, 200);
    rig_open(r);
    for (unsigned i = 0; i < 16; i++)
        assert_ok(gpunvme_submit_read(r->ioq, r->ns, i, 1, &r->buf, i * 512, &tokens[i]));
    assert_ok(gpunvme_ctrl_reset(r->ctrl));
    for (unsigned i = 0; i < 16; i++)
        assert_err(gpunvme_token_wait(&tokens[i], 0), GPUNVME_ERR_ABORTED);
    assert_ok(gpunvme_read(r->ioq, r->ns, 0, 512, &r->buf, 0));
    rig_close(r);
}

/* --- removal ---------------------------------------------------------------------------------- */

/* The guest's side of ACPI hot-unplug, by hand: bus 0, eject slot 5. */
static void unplug(struct rig *r)
{
    qmp_unplug(&r->qmp, "nvme0");
    assert_ok(qtest_transport_outl(r->transport, 0xae10, 0));
    assert_ok(qtest_transport_outl(r->transport, 0xae08, 1 << 5));
}

static void a_removed_controller_is_found_out(void **state)
{
    struct rig *r = *state;

    rig_start(r, "-blockdev driver=null-co,node-name=d,size=8388608"
                 " -device nvme,id=nvme0,serial=1,addr=5,drive=d");
    rig_open(r);
    assert_ok(gpunvme_read(r->ioq, r->ns, 0, 4096, &r->buf, 0));
    unplug(r);
    assert_err(gpunvme_ctrl_check(r->ctrl), GPUNVME_ERR_REMOVED);
    assert_err(gpunvme_read(r->ioq, r->ns, 0, 4096, &r->buf, 0), GPUNVME_ERR_REMOVED);
    assert_err(gpunvme_ctrl_reset(r->ctrl), GPUNVME_ERR_REMOVED);
}

static void a_command_to_a_removed_controller_ends(void **state)
{
    struct rig *r = *state;

    rig_start(r, "-blockdev driver=null-co,node-name=d,size=8388608"
                 " -device nvme,id=nvme0,serial=1,addr=5,drive=d");
    rig_open(r);
    unplug(r);
    assert_err(gpunvme_read(r->ioq, r->ns, 0, 4096, &r->buf, 0), GPUNVME_ERR_REMOVED);
}

struct reader {
    struct rig *rig;
    pthread_t thread;
    uint64_t done;
    gpunvme_err_t err;
};

static void *read_until_it_fails(void *arg)
{
    struct reader *reader = arg;
    struct rig *r = reader->rig;

    while (!(reader->err = gpunvme_read(r->ioq, r->ns, 0, 4096, &r->buf, 0)))
        __atomic_fetch_add(&reader->done, 1, __ATOMIC_RELAXED);
    return NULL;
}

static void start_readers(struct rig *r, struct reader *readers, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        readers[i] = (struct reader){.rig = r};
        assert_int_equal(pthread_create(&readers[i].thread, NULL, read_until_it_fails, &readers[i]),
                         0);
    }
    for (unsigned i = 0; i < n; i++) {
        while (__atomic_load_n(&readers[i].done, __ATOMIC_RELAXED) < 20)
            r->transport->ops->pause_ns(r->transport, 100000);
    }
}

static void removal_ends_the_io_of_every_thread(void **state)
{
    struct rig *r = *state;
    struct reader readers[4];

    rig_start(r, "-blockdev driver=null-co,node-name=d,size=8388608"
                 " -device nvme,id=nvme0,serial=1,addr=5,drive=d");
    rig_open(r);
    start_readers(r, readers, 4);
    unplug(r);
    for (unsigned i = 0; i < 4; i++) {
        pthread_join(readers[i].thread, NULL);
        assert_err(readers[i].err, GPUNVME_ERR_REMOVED);
    }
}

static void the_death_of_the_machine_ends_the_io_of_every_thread(void **state)
{
    struct rig *r = *state;
    struct reader readers[4];

    rig_start_disk(r, 8 * MIB, "");
    rig_open(r);
    start_readers(r, readers, 4);
    qemu_kill(&r->qemu);
    for (unsigned i = 0; i < 4; i++) {
        pthread_join(readers[i].thread, NULL);
        assert_true(readers[i].err < 0);
    }
}

static const struct CMUnitTest tests[] = {
    rig_test(a_failed_read_gives_unrecovered_read_error),
    rig_test(a_failed_write_gives_write_fault),
    rig_test(a_write_without_space_gives_a_status),
    rig_test(only_the_command_that_touches_the_bad_block_fails),
    rig_test(a_transfer_with_a_bad_block_fails_and_the_next_one_works),
    rig_test(statuses_of_bad_commands_are_delivered),
    rig_test(a_late_command_times_out_and_io_works_afterwards),
    rig_test(a_timeout_of_the_options_ends_a_transfer),
    rig_test(without_recovery_a_timeout_ends_everything),
    rig_test(a_reset_ends_the_commands_in_flight),
    rig_test(a_removed_controller_is_found_out),
    rig_test(a_command_to_a_removed_controller_ends),
    rig_test(removal_ends_the_io_of_every_thread),
    rig_test(the_death_of_the_machine_ends_the_io_of_every_thread),
};

RIG_MAIN(tests)
