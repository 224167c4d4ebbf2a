/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Bring-up and shutdown by registers: a controller found in any state, what is written in which
 * order, what CAP says, and every way in which it does not come up or go down. The clock is the
 * mock's: no timeout here takes any time.
 */
#include "gpunvme/device.h"
#include "mock_test.h"
#include "no_gpu.h"

#define RDY ((uint32_t)GPUNVME_SET(1, CSTS_RDY))
#define CFS ((uint32_t)GPUNVME_SET(1, CSTS_CFS))

#define CC_ENABLED                                                                                 \
    ((uint32_t)(GPUNVME_SET(1, CC_EN) | GPUNVME_SET(6, CC_IOSQES) | GPUNVME_SET(4, CC_IOCQES)))

static void set_cap(struct mock *m, uint64_t mask, unsigned shift, uint64_t value)
{
    m->cap = (m->cap & ~(mask << shift)) | value << shift;
}
#define SET_CAP(m, field, value)                                                                   \
    set_cap(m, GPUNVME_CAP_##field##_MASK, GPUNVME_CAP_##field##_SHIFT, value)

static struct gpunvme_ctrl_info info_of(struct gpunvme_ctrl *ctrl)
{
    struct gpunvme_ctrl_info info;

    gpunvme_ctrl_get_info(ctrl, &info);
    return info;
}

/* --- found in any state ----------------------------------------------------------------------- */

static void a_disabled_controller_comes_up(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl = bring_up(m);

    (void)state;
    assert_int_equal(m->disables, 0);
    assert_int_equal(m->enables, 1);
    assert_int_equal(m->early_changes, 0);
    assert_int_equal(mock_nwritten(m, GPUNVME_REG_CC), 1);
    take_down(m, ctrl);
}

/* As firmware that booted from it leaves it, with queues of its own. */
static void found_ready(struct mock *m)
{
    m->cc = CC_ENABLED;
    m->csts = RDY;
}

static void a_controller_that_firmware_enabled_is_disabled_first(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl;

    (void)state;
    found_ready(m);
    m->disable_ns = 300 * MOCK_MS;
    ctrl = bring_up(m);
    assert_int_equal(m->disables, 1);
    assert_int_equal(m->enables, 1);
    assert_int_equal(m->early_changes, 0);
    assert_false(mock_written(m, GPUNVME_REG_CC, 0) & GPUNVME_SET(1, CC_EN));
    take_down(m, ctrl);
}

static void a_controller_that_is_being_enabled_is_waited_for_then_disabled(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl;

    (void)state;
    m->cc = CC_ENABLED;
    m->change_at_ns = m->now_ns + 2000 * MOCK_MS;
    m->change_to = RDY;
    ctrl = bring_up(m);
    assert_int_equal(m->early_changes, 0); /* CC.EN stayed until the 1 had arrived */
    assert_int_equal(m->disables, 1);
    take_down(m, ctrl);
}

static void a_controller_that_hangs_while_it_is_enabled_is_disabled_all_the_same(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl;

    (void)state;
    m->cc = CC_ENABLED; /* and CSTS.RDY never comes */
    ctrl = bring_up(m);
    assert_int_equal(m->early_changes, 1);
    assert_in_range(m->now_ns, 10000 * MOCK_MS, 11000 * MOCK_MS); /* CAP.TO: 10 s */
    take_down(m, ctrl);
}

static void a_controller_that_is_being_disabled_is_waited_for(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl;

    (void)state;
    m->csts = RDY;
    m->change_at_ns = m->now_ns + 2000 * MOCK_MS;
    m->change_to = 0;
    ctrl = bring_up(m);
    assert_int_equal(m->disables, 0);
    assert_int_equal(m->early_changes, 0);
    assert_true(m->now_ns > 2000 * MOCK_MS);
    take_down(m, ctrl);
}

static void a_failed_controller_is_disabled_and_comes_up(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl;

    (void)state;
    m->cc = CC_ENABLED;
    m->csts = RDY | CFS;
    ctrl = bring_up(m);
    assert_int_equal(m->disables, 1);
    take_down(m, ctrl);
}

/* RDY = 0, and it will not become 1: there is nothing to wait for. */
static void a_controller_that_failed_while_it_was_enabled_is_not_waited_for(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl;

    (void)state;
    m->cc = CC_ENABLED;
    m->csts = CFS;
    ctrl = bring_up(m);
    assert_true(m->now_ns < 1000 * MOCK_MS);
    take_down(m, ctrl);
}

static void a_failure_that_only_a_function_reset_clears_gets_one(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl;

    (void)state;
    m->cc = CC_ENABLED;
    m->csts = RDY | CFS;
    m->cfs_sticks = m->reset_fixes = true;
    m->ops.reset = mock_function_reset;
    ctrl = bring_up(m);
    assert_int_equal(m->function_resets, 1);
    take_down(m, ctrl);
}

static void without_a_function_reset_the_subsystem_is_reset(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl;

    (void)state;
    m->cc = CC_ENABLED;
    m->csts = RDY | CFS;
    m->cfs_sticks = m->reset_fixes = true;
    SET_CAP(m, NSSRS, 1);
    ctrl = bring_up(m);
    assert_true(mock_written(m, GPUNVME_REG_NSSR, 0) == GPUNVME_NSSR_RESET);
    assert_int_equal(m->function_resets, 1);
    take_down(m, ctrl);
}

static void a_failure_that_nothing_clears_is_fatal_when_enabling(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl;

    (void)state;
    m->cc = CC_ENABLED;
    m->csts = RDY | CFS;
    m->cfs_sticks = true;
    ctrl = NULL;
    /* Neither kind of reset, and CFS stays: enabling finds it and says so. */
    assert_err(gpunvme_ctrl_open(&m->base, NULL, &ctrl), GPUNVME_ERR_FATAL);
    assert_detail("enabling");
    assert_int_equal(mock_nbytes(m), 0);
    mock_done(m);
}

static void a_shut_down_controller_comes_up(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl;

    (void)state;
    m->cc = CC_ENABLED | (uint32_t)GPUNVME_SET(GPUNVME_CC_SHN_NORMAL, CC_SHN);
    m->csts = RDY | (uint32_t)GPUNVME_SET(GPUNVME_CSTS_SHST_COMPLETE, CSTS_SHST);
    ctrl = bring_up(m);
    assert_int_equal(m->disables, 1);
    take_down(m, ctrl);
}

/* --- it does not come up ---------------------------------------------------------------------- */

static void never_ready_is_a_timeout_that_names_the_step(void **state)
{
    struct mock *m = mock_open();

    (void)state;
    m->enable_ns = MOCK_NEVER;
    assert_open_fails(m, GPUNVME_ERR_TIMEOUT);
    assert_detail("enabling");
    assert_detail("CSTS.RDY");
    assert_false(GPUNVME_GET(m->cc, CC_EN));
    mock_done(m);
}

static void a_failure_while_it_is_enabled_is_fatal_at_once(void **state)
{
    struct mock *m = mock_open();

    (void)state;
    m->cfs_on_enable = true;
    assert_open_fails(m, GPUNVME_ERR_FATAL);
    assert_detail("enabling");
    assert_true(m->now_ns < 1000 * MOCK_MS);
    mock_done(m);
}

static void never_disabled_is_a_timeout_that_names_the_step(void **state)
{
    struct mock *m = mock_open();

    (void)state;
    found_ready(m);
    m->disable_ns = MOCK_NEVER;
    assert_open_fails(m, GPUNVME_ERR_TIMEOUT);
    assert_detail("disabling");
    assert_int_equal(m->enables, 0);
    mock_done(m);
}

static void never_disabled_is_mended_by_a_function_reset(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl;

    (void)state;
    found_ready(m);
    m->disable_ns = MOCK_NEVER;
    m->reset_fixes = true;
    m->ops.reset = mock_function_reset;
    ctrl = bring_up(m);
    assert_int_equal(m->function_resets, 1);
    take_down(m, ctrl);
}

static void a_function_reset_that_fails_leaves_the_timeout(void **state)
{
    struct mock *m = mock_open();

    (void)state;
    found_ready(m);
    m->disable_ns = MOCK_NEVER;
    m->reset_err = GPUNVME_ERR_IO;
    m->ops.reset = mock_function_reset;
    assert_open_fails(m, GPUNVME_ERR_TIMEOUT);
    assert_detail("disabling");
    mock_done(m);
}

static void remove_at_any_read(uint64_t value)
{
    for (int n = 0;; n++) {
        struct mock *m = mock_open();
        struct gpunvme_ctrl *ctrl = NULL;
        gpunvme_err_t err;

        found_ready(m);
        m->remove_at_read = n;
        m->removed_value = value;
        err = gpunvme_ctrl_open(&m->base, NULL, &ctrl);
        if (m->nreads <= n) { /* it came up with fewer reads than that */
            assert_ok(err);
            assert_true(n >= 6);
            m->remove_at_read = -1;
            take_down(m, ctrl);
            return;
        }
        assert_err(err, GPUNVME_ERR_REMOVED);
        assert_false(m->closed);
        assert_int_equal(mock_nbytes(m), 0);
        mock_done(m);
    }
}

static void all_ones_at_any_read_is_a_removed_controller(void **state)
{
    (void)state;
    remove_at_any_read(UINT64_MAX);
}

static void all_zeroes_at_any_read_is_a_removed_controller(void **state)
{
    (void)state;
    remove_at_any_read(0);
}

static void a_controller_out_of_reach_at_any_read_is_the_transports_error(void **state)
{
    (void)state;
    for (int n = 0;; n++) {
        struct mock *m = mock_open();
        struct gpunvme_ctrl *ctrl = NULL;
        gpunvme_err_t err;

        found_ready(m);
        m->unreachable_at_read = n;
        err = gpunvme_ctrl_open(&m->base, NULL, &ctrl);
        if (m->nreads <= n) {
            assert_ok(err);
            m->unreachable_at_read = -1;
            take_down(m, ctrl);
            return;
        }
        assert_err(err, GPUNVME_ERR_IO);
        assert_int_equal(mock_nbytes(m), 0);
        mock_done(m);
    }
}

/* Writes of AQA, ASQ, ACQ and CC: those before the first doorbell. */
static void a_register_that_cannot_be_written_is_the_transports_error(void **state)
{
    (void)state;
    for (int n = 0; n < 5; n++) {
        struct mock *m = mock_open();

        found_ready(m);
        m->fail_at_write = n;
        assert_open_fails(m, GPUNVME_ERR_IO);
        mock_done(m);
    }
}

static void no_memory_at_any_allocation_fails_cleanly(void **state)
{
    (void)state;
    for (int n = 0;; n++) {
        struct mock *m = mock_open();
        struct gpunvme_ctrl *ctrl = NULL;
        gpunvme_err_t err;

        m->id.oacs = GPUNVME_OACS_DBBUF;
        m->fail_at_alloc = n;
        err = gpunvme_ctrl_open(&m->base, NULL, &ctrl);
        if ((int)m->allocs <= n) {
            assert_ok(err);
            assert_true(n >= 6);
            take_down(m, ctrl);
            return;
        }
        assert_err(err, GPUNVME_ERR_NOMEM);
        assert_int_equal(mock_nbytes(m), 0);
        assert_false(GPUNVME_GET(m->cc, CC_EN));
        mock_done(m);
    }
}

/* --- what is written -------------------------------------------------------------------------- */

static void the_admin_queues_are_set_before_the_controller_is_enabled(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl = bring_up(m);
    unsigned cc = mock_when_written(m, GPUNVME_REG_CC, 0);

    (void)state;
    assert_true(mock_when_written(m, GPUNVME_REG_AQA, 0) < cc);
    assert_true(mock_when_written(m, GPUNVME_REG_ASQ, 0) < cc);
    assert_true(mock_when_written(m, GPUNVME_REG_ACQ, 0) < cc);
    assert_int_equal(mock_nwritten(m, GPUNVME_REG_AQA), 1);
    assert_int_equal(mock_written(m, GPUNVME_REG_AQA, 0), 63 | 63 << 16);
    assert_true(mock_written(m, GPUNVME_REG_ASQ, 0) != mock_written(m, GPUNVME_REG_ACQ, 0));
    take_down(m, ctrl);
}

static void cc_has_every_field_right(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl = bring_up(m);

    (void)state;
    /* EN, CSS 000b, MPS 0, AMS 000b, SHN 00b, IOSQES 6, IOCQES 4 */
    assert_int_equal(mock_written(m, GPUNVME_REG_CC, 0), 0x00460001);
    take_down(m, ctrl);
}

static void admin_queues_have_the_size_that_was_asked_for(void **state)
{
    struct gpunvme_ctrl_opts opts;

    (void)state;
    gpunvme_ctrl_opts_init(&opts);
    for (opts.admin_entries = 8; opts.admin_entries <= 4096; opts.admin_entries *= 2) {
        struct mock *m = mock_open();
        struct gpunvme_ctrl *ctrl = bring_up_with(m, &opts);
        uint64_t size = opts.admin_entries - 1;

        assert_true(mock_written(m, GPUNVME_REG_AQA, 0) == (size | size << 16));
        take_down(m, ctrl);
    }
}

static void options_that_make_no_sense_are_refused(void **state)
{
    static const uint32_t entries[] = {0, 1, 4, 7, 12, 63, 8192, UINT32_MAX};
    struct mock *m = mock_open();
    struct gpunvme_ctrl_opts opts;
    struct gpunvme_ctrl *ctrl;

    (void)state;
    for (unsigned i = 0; i < sizeof(entries) / sizeof(entries[0]); i++) {
        gpunvme_ctrl_opts_init(&opts);
        opts.admin_entries = entries[i];
        assert_open_fails_with(m, &opts, GPUNVME_ERR_INVALID);
        assert_detail("admin_entries");
    }
    gpunvme_ctrl_opts_init(&opts);
    opts.io_queues = 0;
    assert_open_fails_with(m, &opts, GPUNVME_ERR_INVALID);
    opts.io_queues = 65536;
    assert_open_fails_with(m, &opts, GPUNVME_ERR_INVALID);
    gpunvme_ctrl_opts_init(&opts);
    opts.admin_timeout_ms = 0;
    assert_open_fails_with(m, &opts, GPUNVME_ERR_INVALID);
    gpunvme_ctrl_opts_init(&opts);
    opts.io_timeout_ms = 0;
    assert_open_fails_with(m, &opts, GPUNVME_ERR_INVALID);
    assert_err(gpunvme_ctrl_open(NULL, NULL, &ctrl), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_ctrl_open(&m->base, NULL, NULL), GPUNVME_ERR_INVALID);
    assert_int_equal(m->nreads + m->nwrites, 0);
    mock_done(m);
}

/* --- CAP -------------------------------------------------------------------------------------- */

static void queues_are_no_larger_than_mqes_allows(void **state)
{
    static const struct {
        uint32_t mqes, entries;
    } cases[] = {{1, 2},       {2, 2},       {3, 4},         {6, 4},        {1022, 512},
                 {1023, 1024}, {2047, 2048}, {16383, 16384}, {65535, 16384}};

    (void)state;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mock *m = mock_open();
        struct gpunvme_ctrl *ctrl;
        struct gpunvme_ioq *ioq;

        SET_CAP(m, MQES, cases[i].mqes);
        ctrl = bring_up(m);
        assert_int_equal(info_of(ctrl).max_entries, cases[i].entries);
        assert_ok(gpunvme_ioq_create(ctrl, cases[i].entries, &ioq));
        assert_int_equal(m->sq[1].entries, cases[i].entries);
        assert_ok(gpunvme_ioq_delete(ioq));
        assert_err(gpunvme_ioq_create(ctrl, cases[i].entries * 2, &ioq), GPUNVME_ERR_LIMIT);
        assert_ok(gpunvme_ioq_create(ctrl, 0, &ioq)); /* the default, or less */
        take_down(m, ctrl);
    }
}

static void mqes_of_zero_is_against_the_specification(void **state)
{
    struct mock *m = mock_open();

    (void)state;
    SET_CAP(m, MQES, 0);
    assert_open_fails(m, GPUNVME_ERR_PROTOCOL);
    assert_detail("MQES");
    mock_done(m);
}

static void memory_pages_are_the_smallest_that_the_controller_has(void **state)
{
    (void)state;
    for (unsigned mps = 0; mps <= 4; mps++) {
        struct mock *m = mock_open();
        struct gpunvme_ctrl *ctrl;
        struct gpunvme_ioq *ioq;

        SET_CAP(m, MPSMIN, mps);
        SET_CAP(m, MPSMAX, 15);
        m->id.oacs = GPUNVME_OACS_DBBUF;
        ctrl = bring_up(m);
        assert_int_equal(info_of(ctrl).page_size, 4096u << mps);
        assert_int_equal(GPUNVME_GET(mock_written(m, GPUNVME_REG_CC, 0), CC_MPS), mps);
        /* MDTS counts these pages: 2^5 of them. */
        assert_true(info_of(ctrl).max_transfer == UINT64_C(4096) << mps << 5);
        assert_ok(gpunvme_ioq_create(ctrl, 64, &ioq));
        take_down(m, ctrl);
    }
}

/* Small ones too, which a transport aligns by their size alone. */
static void the_queues_of_a_device_begin_at_pages_of_the_controller(void **state)
{
    (void)state;
    for (unsigned mps = 0; mps <= 4; mps++) {
        struct mock *m = mock_open();
        struct gpunvme_device_opts opts;
        struct gpunvme_device *dev;
        struct gpunvme_ctrl *ctrl;

        SET_CAP(m, MPSMIN, mps);
        SET_CAP(m, MPSMAX, 15);
        ctrl = bring_up(m);
        gpunvme_device_opts_init(&opts);
        opts.queues = 2;
        opts.entries = 16;
        opts.check_ms = 3600000; /* the mock is for one thread */
        assert_ok(gpunvme_device_open(ctrl, &opts, &dev));
        assert_ok(gpunvme_device_close(dev));
        take_down(m, ctrl);
    }
}

static void pages_above_64_kib_are_not_supported(void **state)
{
    for (unsigned mps = 5; mps <= 15; mps += 5) {
        struct mock *m = mock_open();

        (void)state;
        SET_CAP(m, MPSMIN, mps);
        SET_CAP(m, MPSMAX, 15);
        assert_open_fails(m, GPUNVME_ERR_UNSUPPORTED);
        assert_detail("pages");
        mock_done(m);
    }
}

static void page_sizes_upside_down_are_against_the_specification(void **state)
{
    struct mock *m = mock_open();

    (void)state;
    SET_CAP(m, MPSMIN, 2);
    SET_CAP(m, MPSMAX, 1);
    assert_open_fails(m, GPUNVME_ERR_PROTOCOL);
    mock_done(m);
}

static void a_controller_without_the_nvm_command_set_is_not_supported(void **state)
{
    static const unsigned css[] = {0, 0x80, 0x02};

    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        struct mock *m = mock_open();

        SET_CAP(m, CSS, css[i]);
        assert_open_fails(m, GPUNVME_ERR_UNSUPPORTED);
        assert_detail("NVM command set");
        assert_int_equal(m->nwrites, 0);
        mock_done(m);
    }
}

static void the_nvm_command_set_alone_is_enabled_where_there_is_one(void **state)
{
    static const struct {
        unsigned cap, cc;
    } sets[] = {{GPUNVME_CAP_CSS_NVM, GPUNVME_CC_CSS_NVM},
                {GPUNVME_CAP_CSS_IOCS, GPUNVME_CC_CSS_ALL},
                {GPUNVME_CAP_CSS_IOCS | GPUNVME_CAP_CSS_NVM, GPUNVME_CC_CSS_NVM},
                {0xc1, GPUNVME_CC_CSS_NVM}};

    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        struct mock *m = mock_open();
        struct gpunvme_ctrl *ctrl;

        SET_CAP(m, CSS, sets[i].cap);
        ctrl = bring_up(m);
        assert_int_equal(GPUNVME_GET(mock_written(m, GPUNVME_REG_CC, 0), CC_CSS), sets[i].cc);
        take_down(m, ctrl);
    }
}

/* How long bring-up waits for a controller that never gets ready. */
static uint64_t ms_until_timeout(struct mock *m, const struct gpunvme_ctrl_opts *opts)
{
    uint64_t start = m->now_ns;

    m->enable_ns = MOCK_NEVER;
    assert_open_fails_with(m, opts, GPUNVME_ERR_TIMEOUT);
    return (m->now_ns - start) / MOCK_MS;
}

static void the_deadline_of_rdy_is_cap_to(void **state)
{
    static const struct {
        unsigned to, ms;
    } cases[] = {{0, 500}, {1, 500}, {2, 1000}, {20, 10000}, {255, 127500}};

    (void)state;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mock *m = mock_open();
        uint64_t ms;

        SET_CAP(m, TO, cases[i].to);
        ms = ms_until_timeout(m, NULL);
        /* Once to be enabled, and once more, at most, before it is disabled. */
        assert_in_range(ms, cases[i].ms, 2 * cases[i].ms + 100);
        mock_done(m);
    }
}

static void a_controller_ready_just_before_the_deadline_comes_up(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl;

    (void)state;
    SET_CAP(m, TO, 4);
    m->enable_ns = 1999 * MOCK_MS;
    ctrl = bring_up(m);
    take_down(m, ctrl);
}

static void crto_may_be_longer_than_cap_to(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl;

    (void)state;
    SET_CAP(m, TO, 1);
    SET_CAP(m, CRMS, GPUNVME_CAP_CRMS_CRWMS);
    m->crto = (uint32_t)(GPUNVME_SET(600, CRTO_CRWMT) | GPUNVME_SET(1, CRTO_CRIMT));
    m->enable_ns = 299000 * MOCK_MS;
    ctrl = bring_up(m);
    take_down(m, ctrl);
}

static void without_crms_crto_is_not_read(void **state)
{
    struct mock *m = mock_open();
    uint64_t ms;

    (void)state;
    SET_CAP(m, TO, 2);
    m->crto = 1000;
    ms = ms_until_timeout(m, NULL);
    assert_in_range(ms, 1000, 2100);
    for (unsigned i = 0; i < m->nlog; i++)
        assert_true(m->log[i].offset != GPUNVME_REG_CRTO);
    mock_done(m);
}

static void the_option_for_the_deadline_wins(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl_opts opts;
    uint64_t ms;

    (void)state;
    gpunvme_ctrl_opts_init(&opts);
    opts.ready_timeout_ms = 50;
    SET_CAP(m, TO, 255);
    ms = ms_until_timeout(m, &opts);
    assert_in_range(ms, 50, 110);
    mock_done(m);
}

static void doorbells_lie_where_dstrd_says(void **state)
{
    (void)state;
    for (unsigned dstrd = 0; dstrd <= 4; dstrd++) {
        struct mock *m = mock_open();
        struct gpunvme_ctrl *ctrl;
        struct gpunvme_ioq *ioq[3];

        SET_CAP(m, DSTRD, dstrd);
        ctrl = bring_up(m);
        for (unsigned i = 0; i < 3; i++) {
            assert_ok(gpunvme_ioq_create(ctrl, 16, &ioq[i]));
            assert_ok(gpunvme_flush(ioq[i], gpunvme_ctrl_ns_at(ctrl, 0)));
            /* SQ tail i + 1 at 2 × (i + 1) strides, CQ head one stride behind it. */
            assert_int_equal(m->doorbells[(2 * (i + 1)) << dstrd], 1);
            assert_int_equal(m->doorbells[(2 * (i + 1) + 1) << dstrd], 1);
        }
        take_down(m, ctrl);
    }
}

static void doorbells_that_are_mapped_are_written_there(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl;
    struct gpunvme_ioq *ioq;
    int writes;

    (void)state;
    m->base.doorbells = m->doorbells;
    m->base.doorbells_nbytes = m->doorbells_nbytes;
    ctrl = bring_up(m);
    writes = m->nwrites;
    assert_ok(gpunvme_ioq_create(ctrl, 16, &ioq));
    assert_ok(gpunvme_flush(ioq, gpunvme_ctrl_ns_at(ctrl, 0)));
    assert_int_equal(m->nwrites, writes);
    assert_int_equal(m->doorbells[2], 1);
    take_down(m, ctrl);
}

/* The mapping ends behind the doorbells of queue 1: those of queue 2 are written as registers. */
static void doorbells_beyond_the_mapping_are_written_as_registers(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl;
    struct gpunvme_ioq *one, *two;
    int writes;

    (void)state;
    m->base.doorbells = m->doorbells;
    m->base.doorbells_nbytes = 16;
    ctrl = bring_up(m);
    assert_ok(gpunvme_ioq_create(ctrl, 16, &one));
    assert_ok(gpunvme_ioq_create(ctrl, 16, &two));
    writes = m->nwrites;
    assert_ok(gpunvme_flush(one, gpunvme_ctrl_ns_at(ctrl, 0)));
    assert_int_equal(m->nwrites, writes);
    assert_ok(gpunvme_flush(two, gpunvme_ctrl_ns_at(ctrl, 0)));
    assert_int_equal(m->nwrites, writes + 2);
    take_down(m, ctrl);
}

/* --- shutdown --------------------------------------------------------------------------------- */

static void closing_shuts_down_normally_then_disables(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl = bring_up(m);

    (void)state;
    m->shutdown_ns = 500 * MOCK_MS;
    assert_ok(gpunvme_ctrl_close(ctrl));
    assert_int_equal(m->shutdowns, 1);
    assert_int_equal(mock_nwritten(m, GPUNVME_REG_CC), 3);
    assert_int_equal(GPUNVME_GET(mock_written(m, GPUNVME_REG_CC, 1), CC_SHN),
                     GPUNVME_CC_SHN_NORMAL);
    assert_int_equal(GPUNVME_GET(mock_written(m, GPUNVME_REG_CC, 1), CC_EN), 1);
    assert_int_equal(GPUNVME_GET(mock_written(m, GPUNVME_REG_CC, 2), CC_EN), 0);
    assert_true(m->closed);
    assert_int_equal(mock_nbytes(m), 0);
    mock_done(m);
}

static void closing_deletes_the_queues_first(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl = bring_up(m);
    struct gpunvme_ioq *ioq;
    unsigned first;

    (void)state;
    assert_ok(gpunvme_ioq_create(ctrl, 16, &ioq));
    assert_ok(gpunvme_ioq_create(ctrl, 16, &ioq));
    first = m->nadmin;
    assert_ok(gpunvme_ctrl_close(ctrl));
    assert_int_equal(m->nadmin, first + 4);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(m->admin[first + i],
                         i % 2 ? GPUNVME_ADMIN_DELETE_CQ : GPUNVME_ADMIN_DELETE_SQ);
    assert_int_equal(m->shutdowns, 1);
    mock_done(m);
}

static void closing_abruptly_says_so_and_deletes_nothing(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl = bring_up(m);
    struct gpunvme_ioq *ioq;
    unsigned first;

    (void)state;
    assert_ok(gpunvme_ioq_create(ctrl, 16, &ioq));
    first = m->nadmin;
    assert_ok(gpunvme_ctrl_close_abrupt(ctrl));
    assert_int_equal(m->nadmin, first);
    assert_int_equal(GPUNVME_GET(mock_written(m, GPUNVME_REG_CC, 1), CC_SHN),
                     GPUNVME_CC_SHN_ABRUPT);
    assert_true(m->closed);
    assert_int_equal(mock_nbytes(m), 0);
    mock_done(m);
}

static void a_shutdown_that_never_completes_is_a_timeout_and_frees_all(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl = bring_up(m);

    (void)state;
    m->shutdown_ns = MOCK_NEVER;
    assert_err(gpunvme_ctrl_close(ctrl), GPUNVME_ERR_TIMEOUT);
    assert_detail("SHST");
    assert_true(m->closed);
    assert_int_equal(mock_nbytes(m), 0);
    assert_false(GPUNVME_GET(m->cc, CC_EN));
    mock_done(m);
}

/* RTD3E, in microseconds, may be longer than CAP.TO. */
static void a_long_shutdown_that_was_announced_is_waited_for(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl;

    (void)state;
    m->id.rtd3e = 60 * 1000 * 1000;
    m->shutdown_ns = 59000 * MOCK_MS;
    ctrl = bring_up(m);
    take_down(m, ctrl);
}

static void closing_a_removed_controller_says_so_and_frees_all(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl = bring_up(m);
    struct gpunvme_ioq *ioq;

    (void)state;
    assert_ok(gpunvme_ioq_create(ctrl, 16, &ioq));
    m->removed = true;
    assert_err(gpunvme_ctrl_close(ctrl), GPUNVME_ERR_REMOVED);
    assert_true(m->closed);
    assert_int_equal(mock_nbytes(m), 0);
    mock_done(m);
}

static void closing_a_controller_out_of_reach_frees_all(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl = bring_up(m);

    (void)state;
    m->unreachable = true;
    assert_err(gpunvme_ctrl_close(ctrl), GPUNVME_ERR_IO);
    assert_true(m->closed);
    assert_int_equal(mock_nbytes(m), 0);
    mock_done(m);
}

static void closing_a_failed_controller_shuts_it_down_all_the_same(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl = bring_up(m);

    (void)state;
    m->csts |= CFS;
    assert_ok(gpunvme_ctrl_close(ctrl));
    assert_true(m->closed);
    assert_int_equal(mock_nbytes(m), 0);
    mock_done(m);
}

static void closing_nothing_is_allowed(void **state)
{
    (void)state;
    assert_ok(gpunvme_ctrl_close(NULL));
    assert_ok(gpunvme_ctrl_close_abrupt(NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_disabled_controller_comes_up),
        cmocka_unit_test(a_controller_that_firmware_enabled_is_disabled_first),
        cmocka_unit_test(a_controller_that_is_being_enabled_is_waited_for_then_disabled),
        cmocka_unit_test(a_controller_that_hangs_while_it_is_enabled_is_disabled_all_the_same),
        cmocka_unit_test(a_controller_that_is_being_disabled_is_waited_for),
        cmocka_unit_test(a_failed_controller_is_disabled_and_comes_up),
        cmocka_unit_test(a_controller_that_failed_while_it_was_enabled_is_not_waited_for),
        cmocka_unit_test(a_failure_that_only_a_function_reset_clears_gets_one),
        cmocka_unit_test(without_a_function_reset_the_subsystem_is_reset),
        cmocka_unit_test(a_failure_that_nothing_clears_is_fatal_when_enabling),
        cmocka_unit_test(a_shut_down_controller_comes_up),
        cmocka_unit_test(never_ready_is_a_timeout_that_names_the_step),
        cmocka_unit_test(a_failure_while_it_is_enabled_is_fatal_at_once),
        cmocka_unit_test(never_disabled_is_a_timeout_that_names_the_step),
        cmocka_unit_test(never_disabled_is_mended_by_a_function_reset),
        cmocka_unit_test(a_function_reset_that_fails_leaves_the_timeout),
        cmocka_unit_test(all_ones_at_any_read_is_a_removed_controller),
        cmocka_unit_test(all_zeroes_at_any_read_is_a_removed_controller),
        cmocka_unit_test(a_controller_out_of_reach_at_any_read_is_the_transports_error),
        cmocka_unit_test(a_register_that_cannot_be_written_is_the_transports_error),
        cmocka_unit_test(no_memory_at_any_allocation_fails_cleanly),
        cmocka_unit_test(the_admin_queues_are_set_before_the_controller_is_enabled),
        cmocka_unit_test(cc_has_every_field_right),
        cmocka_unit_test(admin_queues_have_the_size_that_was_asked_for),
        cmocka_unit_test(options_that_make_no_sense_are_refused),
        cmocka_unit_test(queues_are_no_larger_than_mqes_allows),
        cmocka_unit_test(mqes_of_zero_is_against_the_specification),
        cmocka_unit_test(memory_pages_are_the_smallest_that_the_controller_has),
        cmocka_unit_test(the_queues_of_a_device_begin_at_pages_of_the_controller),
        cmocka_unit_test(pages_above_64_kib_are_not_supported),
        cmocka_unit_test(page_sizes_upside_down_are_against_the_specification),
        cmocka_unit_test(a_controller_without_the_nvm_command_set_is_not_supported),
        cmocka_unit_test(the_nvm_command_set_alone_is_enabled_where_there_is_one),
        cmocka_unit_test(the_deadline_of_rdy_is_cap_to),
        cmocka_unit_test(a_controller_ready_just_before_the_deadline_comes_up),
        cmocka_unit_test(crto_may_be_longer_than_cap_to),
        cmocka_unit_test(without_crms_crto_is_not_read),
        cmocka_unit_test(the_option_for_the_deadline_wins),
        cmocka_unit_test(doorbells_lie_where_dstrd_says),
        cmocka_unit_test(doorbells_that_are_mapped_are_written_there),
        cmocka_unit_test(doorbells_beyond_the_mapping_are_written_as_registers),
        cmocka_unit_test(closing_shuts_down_normally_then_disables),
        cmocka_unit_test(closing_deletes_the_queues_first),
        cmocka_unit_test(closing_abruptly_says_so_and_deletes_nothing),
        cmocka_unit_test(a_shutdown_that_never_completes_is_a_timeout_and_frees_all),
        cmocka_unit_test(a_long_shutdown_that_was_announced_is_waited_for),
        cmocka_unit_test(closing_a_removed_controller_says_so_and_frees_all),
        cmocka_unit_test(closing_a_controller_out_of_reach_frees_all),
        cmocka_unit_test(closing_a_failed_controller_shuts_it_down_all_the_same),
        cmocka_unit_test(closing_nothing_is_allowed),
    };

    return cmocka_run_group_tests_name("bring-up", tests, NULL, NULL);
}
