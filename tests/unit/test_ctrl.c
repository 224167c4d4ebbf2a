/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The controller object on the mock: what happens when any admin command of bring-up goes wrong,
 * admin commands by value, queues made and deleted, asynchronous events, timeouts with Abort and
 * reset, a controller that fails or goes away.
 */
#include "mock_test.h"
#include "nvme/ctrl.h"

#define CFS ((uint32_t)GPUNVME_SET(1, CSTS_CFS))

static struct gpunvme_ctrl_info info_of(struct gpunvme_ctrl *ctrl)
{
    struct gpunvme_ctrl_info info;

    gpunvme_ctrl_get_info(ctrl, &info);
    return info;
}

static const struct gpunvme_ns *first_ns(struct gpunvme_ctrl *ctrl)
{
    const struct gpunvme_ns *ns = gpunvme_ctrl_ns_at(ctrl, 0);

    assert_non_null(ns);
    return ns;
}

static void assert_works(struct gpunvme_ctrl *ctrl, struct gpunvme_ioq *ioq)
{
    assert_ok(gpunvme_flush(ioq, first_ns(ctrl)));
}

/* Admin commands that the driver sent with this opcode. */
static unsigned sent(const struct mock *m, uint8_t opcode)
{
    unsigned n = 0;

    for (unsigned i = 0; i < m->nadmin; i++)
        n += m->admin[i] == opcode;
    return n;
}

/* A lost command costs the mock as many looks at the clock as its deadline is long. */
static struct gpunvme_ctrl_opts impatient(void)
{
    struct gpunvme_ctrl_opts opts;

    gpunvme_ctrl_opts_init(&opts);
    opts.io_timeout_ms = 200;
    opts.admin_timeout_ms = 100;
    return opts;
}

/* --- bring-up, command by command ------------------------------------------------------------- */

/* With everything that a controller may have, so that bring-up is as long as it can be. */
static struct mock *open_rich(void)
{
    struct mock *m = mock_open();

    m->id.oacs = GPUNVME_OACS_DBBUF;
    mock_add_ns(m, 3, 100, 12, false);
    return m;
}

/* The optional ones: a controller that refuses them is fine. */
static bool may_be_refused(const struct mock *m, unsigned nth)
{
    return m->admin[nth] == GPUNVME_ADMIN_DOORBELL_BUFFER_CONFIG ||
           m->admin[nth] == GPUNVME_ADMIN_ASYNC_EVENT ||
           (m->admin[nth] == GPUNVME_ADMIN_SET_FEATURES &&
            (m->last_admin.cdw10 & 0xff) == GPUNVME_FEAT_ASYNC_EVENT);
}

/* Brings a controller up whose nth admin command goes wrong; true when there is none. */
static bool try_bring_up(unsigned nth, enum mock_fate fate, uint16_t status, gpunvme_err_t expected)
{
    struct mock *m = open_rich();
    struct gpunvme_ctrl *ctrl = NULL;
    struct mock_rule *rule = mock_on_admin(m, -1, (int)nth, fate, status);
    struct gpunvme_ctrl_opts opts = impatient();
    gpunvme_err_t err = gpunvme_ctrl_open(&m->base, &opts, &ctrl);
    bool all_done = (unsigned)rule->seen <= nth;

    if (err) {
        assert_false(all_done);
        assert_err(err, expected);
        assert_false(m->closed);
        assert_int_equal(mock_nbytes(m), 0);
        assert_true(m->removed || !GPUNVME_GET(m->cc, CC_EN));
        mock_done(m);
        return false;
    }
    m->nrules = 0;
    if (m->removed) { /* by a command that nobody waits for */
        assert_err(gpunvme_ctrl_close(ctrl), GPUNVME_ERR_REMOVED);
        mock_done(m);
    } else {
        take_down(m, ctrl);
    }
    return all_done;
}

static void a_status_at_any_command_of_bring_up_is_told_or_does_no_harm(void **state)
{
    unsigned nth = 0, refused = 0;

    (void)state;
    for (;; nth++) {
        struct mock *m = open_rich();
        struct gpunvme_ctrl *ctrl = NULL;
        gpunvme_err_t err;

        mock_on_admin(m, -1, (int)nth, MOCK_STATUS, GPUNVME_SC_INVALID_FIELD | GPUNVME_STATUS_DNR);
        err = gpunvme_ctrl_open(&m->base, NULL, &ctrl);
        if (!err) {
            bool done = m->nadmin <= nth;

            assert_true(done || m->admin[nth] == GPUNVME_ADMIN_DOORBELL_BUFFER_CONFIG ||
                        m->admin[nth] == GPUNVME_ADMIN_ASYNC_EVENT ||
                        m->admin[nth] == GPUNVME_ADMIN_SET_FEATURES);
            m->nrules = 0;
            take_down(m, ctrl);
            if (done)
                break;
            continue;
        }
        refused++;
        assert_err(err, GPUNVME_ERR_NVME(GPUNVME_SC_INVALID_FIELD | GPUNVME_STATUS_DNR));
        assert_false(may_be_refused(m, nth));
        assert_int_equal(mock_nbytes(m), 0);
        mock_done(m);
    }
    assert_int_equal(refused, 5); /* Identify: controller, list, two namespaces; queues */
    assert_true(nth >= 7);
}

static void a_lost_command_of_bring_up_is_a_timeout(void **state)
{
    (void)state;
    for (unsigned nth = 0; !try_bring_up(nth, MOCK_LOST, 0, GPUNVME_ERR_TIMEOUT); nth++)
        ;
}

static void a_lost_command_is_named(void **state)
{
    struct mock *m = mock_open();

    (void)state;
    mock_on_admin(m, GPUNVME_ADMIN_SET_FEATURES, 0, MOCK_LOST, 0);
    assert_open_fails(m, GPUNVME_ERR_TIMEOUT);
    assert_detail("Set Features");
    mock_done(m);
}

static void a_controller_that_fails_at_any_command_of_bring_up_is_fatal(void **state)
{
    (void)state;
    for (unsigned nth = 0; !try_bring_up(nth, MOCK_CFS, 0, GPUNVME_ERR_FATAL); nth++)
        ;
}

static void a_controller_that_goes_away_at_any_command_of_bring_up_is_removed(void **state)
{
    (void)state;
    for (unsigned nth = 0; !try_bring_up(nth, MOCK_REMOVED, 0, GPUNVME_ERR_REMOVED); nth++)
        ;
}

static void a_completion_of_something_else_is_not_taken_for_the_commands(void **state)
{
    (void)state;
    for (unsigned nth = 0; !try_bring_up(nth, MOCK_WRONG_CID, 0, GPUNVME_ERR_TIMEOUT); nth++)
        ;
}

static void a_command_that_completes_twice_does_no_harm(void **state)
{
    unsigned nth = 0;

    (void)state;
    for (bool done = false; !done; nth++) {
        struct mock *m = open_rich();
        struct gpunvme_ctrl *ctrl;

        mock_on_admin(m, -1, (int)nth, MOCK_TWICE, 0);
        ctrl = bring_up(m);
        done = m->nadmin <= nth;
        m->nrules = 0;
        take_down(m, ctrl);
    }
}

static void entry_sizes_other_than_ours_are_not_supported(void **state)
{
    static const struct {
        uint8_t sqes, cqes;
        bool fine;
    } cases[] = {{0x66, 0x44, true},  {0x76, 0x54, true},  {0x60, 0x40, true},
                 {0xf0, 0xf0, true},  {0x77, 0x44, false}, {0x55, 0x44, false},
                 {0x66, 0x55, false}, {0x66, 0x33, false}, {0, 0, false}};

    (void)state;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mock *m = mock_open();

        m->id.sqes = cases[i].sqes;
        m->id.cqes = cases[i].cqes;
        if (cases[i].fine) {
            take_down(m, bring_up(m));
            continue;
        }
        assert_open_fails(m, GPUNVME_ERR_UNSUPPORTED);
        assert_detail("SQES");
        mock_done(m);
    }
}

static void an_sgl_that_is_demanded_and_not_there_is_not_supported(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl_opts opts;

    (void)state;
    gpunvme_ctrl_opts_init(&opts);
    opts.data_format = GPUNVME_DATA_SGL;
    assert_open_fails_with(m, &opts, GPUNVME_ERR_UNSUPPORTED);
    assert_detail("SGL");
    m->id.sgls = GPUNVME_SGLS_SUPPORT_DWORD;
    take_down(m, bring_up_with(m, &opts));
}

/* --- what the controller says of itself ------------------------------------------------------- */

static void info_tells_what_was_found(void **state)
{
    struct mock *m = open_rich();
    struct gpunvme_ctrl *ctrl;
    struct gpunvme_ctrl_info info;

    (void)state;
    m->id.sgls = GPUNVME_SGLS_SUPPORT_BYTE;
    m->id.vwc = GPUNVME_VWC_PRESENT;
    ctrl = bring_up(m);
    info = info_of(ctrl);
    assert_true(info.cap == m->cap);
    assert_int_equal(info.vs, m->vs);
    assert_int_equal(info.page_size, 4096);
    assert_int_equal(info.max_entries, 1024);
    assert_int_equal(info.max_io_queues, 16);
    assert_true(info.max_transfer == 128 << 10);
    assert_true(info.sgl && info.shadow_doorbells && info.volatile_write_cache);
    assert_int_equal(info.resets, 0);
    assert_true(info.host_nbytes >= mock_nbytes(m));
    assert_memory_equal(gpunvme_ctrl_id(ctrl), &m->id, sizeof(m->id));
    assert_ptr_equal(gpunvme_ctrl_transport(ctrl), &m->base);
    take_down(m, ctrl);
}

static void no_mdts_is_our_own_limit(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl;

    (void)state;
    m->id.mdts = 0;
    ctrl = bring_up(m);
    assert_true(info_of(ctrl).max_transfer == 32 << 20);
    take_down(m, ctrl);
}

static void any_mdts_gives_a_limit_that_is_not_above_ours(void **state)
{
    (void)state;
    for (unsigned mdts = 1; mdts <= 255; mdts++) {
        struct mock *m = mock_open();
        struct gpunvme_ctrl *ctrl;

        m->id.mdts = (uint8_t)mdts;
        ctrl = bring_up(m);
        assert_true(info_of(ctrl).max_transfer == (mdts < 13 ? UINT64_C(4096) << mdts : 32 << 20));
        take_down(m, ctrl);
    }
}

static void the_number_of_queues_is_what_is_granted(void **state)
{
    static const struct {
        uint32_t granted, pairs;
    } cases[] = {{0x00000001, 1},  {0x00010000, 1},  {0x00030007, 4},
                 {0x00070003, 4},  {0x007f007f, 16}, {0xfffefffe, 16},
                 {0x000f000f, 16}, {0x0001000f, 2},  {0x000e000e, 15}};

    (void)state;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mock *m = mock_open();
        struct gpunvme_ctrl *ctrl;
        struct gpunvme_ioq *ioq;

        m->granted = cases[i].granted;
        ctrl = bring_up(m);
        assert_int_equal(info_of(ctrl).max_io_queues, cases[i].pairs);
        for (uint32_t k = 0; k < cases[i].pairs; k++)
            assert_ok(gpunvme_ioq_create(ctrl, 4, &ioq));
        assert_err(gpunvme_ioq_create(ctrl, 4, &ioq), GPUNVME_ERR_LIMIT);
        take_down(m, ctrl);
    }
}

static void one_queue_may_be_granted(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl_opts opts;
    struct gpunvme_ctrl *ctrl;
    struct gpunvme_ioq *ioq;

    (void)state;
    gpunvme_ctrl_opts_init(&opts);
    opts.io_queues = 1;
    ctrl = bring_up_with(m, &opts);
    assert_int_equal(info_of(ctrl).max_io_queues, 1);
    assert_ok(gpunvme_ioq_create(ctrl, 4, &ioq));
    assert_works(ctrl, ioq);
    take_down(m, ctrl);
}

/* --- admin commands --------------------------------------------------------------------------- */

static void a_log_page_is_asked_for_by_dwords_and_offset(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl = bring_up(m);
    uint8_t data[8192];

    (void)state;
    for (size_t nbytes = 4; nbytes <= sizeof(data); nbytes = nbytes * 3 & ~(size_t)3) {
        memset(data, 0, sizeof(data));
        assert_ok(gpunvme_ctrl_get_log(ctrl, 0x42, 7, UINT64_C(0x123456789abc), data, nbytes));
        assert_int_equal(m->last_admin.cdw10, 0x42 | (nbytes / 4 - 1) << 16);
        assert_int_equal(m->last_admin.cdw11, 0);
        assert_int_equal(m->last_admin.cdw12, 0x56789abc);
        assert_int_equal(m->last_admin.cdw13, 0x1234);
        assert_int_equal(m->last_admin.nsid, 7);
        assert_int_equal(data[0], 0x42);
        assert_int_equal(data[nbytes - 1], 0x42);
        assert_true(nbytes == sizeof(data) || data[nbytes] == 0);
    }
    take_down(m, ctrl);
}

static void a_log_page_of_odd_bytes_is_refused(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl = bring_up(m);
    unsigned before = m->nadmin;
    uint8_t data[16];

    (void)state;
    assert_err(gpunvme_ctrl_get_log(ctrl, 2, 0, 0, data, 0), GPUNVME_ERR_ALIGN);
    assert_err(gpunvme_ctrl_get_log(ctrl, 2, 0, 0, data, 3), GPUNVME_ERR_ALIGN);
    assert_err(gpunvme_ctrl_get_log(ctrl, 2, 0, 0, data, 6), GPUNVME_ERR_ALIGN);
    assert_err(gpunvme_ctrl_get_log(ctrl, 2, 0, 2, data, 8), GPUNVME_ERR_ALIGN);
    assert_err(gpunvme_ctrl_get_log(ctrl, 2, 0, 0, NULL, 8), GPUNVME_ERR_INVALID);
    assert_int_equal(m->nadmin, before);
    take_down(m, ctrl);
}

static void features_are_got_and_set(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl = bring_up(m);
    uint32_t value = 0;

    (void)state;
    assert_ok(gpunvme_ctrl_get_feature(ctrl, 0x06, 9, &value));
    assert_int_equal(value, 0xfea70006);
    assert_int_equal(m->last_admin.nsid, 9);
    assert_ok(gpunvme_ctrl_get_feature(ctrl, 0x06, 9, NULL));
    assert_ok(gpunvme_ctrl_set_feature(ctrl, 0x06, 8, 0xabcd));
    assert_int_equal(m->last_admin.opc, GPUNVME_ADMIN_SET_FEATURES);
    assert_int_equal(m->last_admin.cdw10, 6);
    assert_int_equal(m->last_admin.cdw11, 0xabcd);
    assert_int_equal(m->last_admin.nsid, 8);
    assert_ok(gpunvme_ctrl_keep_alive(ctrl));
    assert_int_equal(m->last_admin.opc, GPUNVME_ADMIN_KEEP_ALIVE);
    take_down(m, ctrl);
}

static void an_admin_status_reaches_the_caller_whole(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl = bring_up(m);
    uint32_t value = 5;

    (void)state;
    mock_on_admin(m, GPUNVME_ADMIN_GET_FEATURES, -1, MOCK_STATUS, 0x7abc);
    assert_err(gpunvme_ctrl_get_feature(ctrl, 1, 0, &value), GPUNVME_ERR_NVME(0x7abc));
    assert_int_equal(value, 5);
    take_down(m, ctrl);
}

/* An echo: what the caller sends is what the controller finds, over PRP1, PRP2 and lists. */
static void data_goes_to_the_controller_and_back(void **state)
{
    static const size_t sizes[] = {1, 4, 512, 4095, 4096, 4097, 8192, 8193, 20000, 131072};
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl = bring_up(m);
    uint8_t *data = malloc(131072);

    (void)state;
    assert_non_null(data);
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct gpunvme_sqe sqe = {.opc = GPUNVME_ADMIN_GET_LOG_PAGE,
                                  .cdw10 = 0x55u | (uint32_t)((sizes[i] + 3) / 4 - 1) << 16,
                                  .cdw11 = (uint32_t)((sizes[i] + 3) / 4 - 1) >> 16};

        memset(data, 0, sizes[i]);
        assert_ok(gpunvme_ctrl_admin(ctrl, &sqe, data, sizes[i], false, NULL));
        for (size_t k = 0; k < sizes[i]; k++)
            assert_int_equal(data[k], 0x55);
    }
    free(data);
    take_down(m, ctrl);
}

/* Huge pages that are no neighbours on the bus: the list lies beside them, in one piece. */
static void an_admin_command_in_pieces_has_its_list_where_prp2_says(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl;
    size_t nbytes = (size_t)4 << 20, before;
    uint8_t *data = calloc(1, nbytes);

    (void)state;
    m->id.mdts = 10; /* 4 MiB */
    m->scatter_shift = 21;
    ctrl = bring_up(m);
    assert_ok(gpunvme_ctrl_get_log(ctrl, 0x07, 0xffffffff, 0, data, nbytes));
    for (size_t i = 0; i < nbytes; i++)
        assert_int_equal(data[i], 0x07);
    before = mock_nbytes(m);
    for (unsigned i = 0; i < 20; i++)
        assert_ok(gpunvme_ctrl_get_log(ctrl, 0x07, 0xffffffff, 0, data, nbytes));
    assert_int_equal(mock_nbytes(m), before);
    free(data);
    take_down(m, ctrl);
}

static void an_admin_command_longer_than_mdts_is_refused(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl = bring_up(m);
    struct gpunvme_sqe sqe = {.opc = GPUNVME_ADMIN_GET_LOG_PAGE};
    uint8_t *data = calloc(1, 131073);

    (void)state;
    assert_err(gpunvme_ctrl_admin(ctrl, &sqe, data, 131073, false, NULL), GPUNVME_ERR_LIMIT);
    assert_err(gpunvme_ctrl_admin(ctrl, NULL, data, 4, false, NULL), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_ctrl_admin(NULL, &sqe, data, 4, false, NULL), GPUNVME_ERR_INVALID);
    free(data);
    take_down(m, ctrl);
}

/* --- queues ----------------------------------------------------------------------------------- */

static void a_queue_pair_is_made_completion_queue_first(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl = bring_up(m);
    unsigned first = m->nadmin;
    struct gpunvme_ioq *ioq;

    (void)state;
    assert_ok(gpunvme_ioq_create(ctrl, 32, &ioq));
    assert_int_equal(m->nadmin, first + 2);
    assert_int_equal(m->admin[first], GPUNVME_ADMIN_CREATE_CQ);
    assert_int_equal(m->admin[first + 1], GPUNVME_ADMIN_CREATE_SQ);
    assert_int_equal(m->last_admin.cdw10, 31 << 16 | 1);
    assert_int_equal(m->last_admin.cdw11, 1 << 16 | GPUNVME_QUEUE_PC);
    assert_int_equal(m->sq[1].entries, 32);
    assert_int_equal(m->cq[1].entries, 32);
    assert_int_equal(gpunvme_ioq_qpair(ioq)->qid, 1);
    assert_works(ctrl, ioq);
    assert_ok(gpunvme_ioq_delete(ioq));
    assert_false(m->sq[1].exists || m->cq[1].exists);
    take_down(m, ctrl);
}

static void the_lowest_free_queue_id_is_taken(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl = bring_up(m);
    struct gpunvme_ioq *ioq[3], *again;

    (void)state;
    for (unsigned i = 0; i < 3; i++)
        assert_ok(gpunvme_ioq_create(ctrl, 4, &ioq[i]));
    assert_ok(gpunvme_ioq_delete(ioq[1]));
    assert_ok(gpunvme_ioq_create(ctrl, 8, &again));
    assert_int_equal(gpunvme_ioq_qpair(again)->qid, 2);
    assert_int_equal(m->sq[2].entries, 8);
    assert_works(ctrl, again);
    assert_works(ctrl, ioq[2]);
    take_down(m, ctrl);
}

static void queue_sizes_that_cannot_be_are_refused(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl = bring_up(m);
    struct gpunvme_ioq *ioq;

    (void)state;
    assert_err(gpunvme_ioq_create(ctrl, 1, &ioq), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_ioq_create(ctrl, 3, &ioq), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_ioq_create(ctrl, 100, &ioq), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_ioq_create(ctrl, 2048, &ioq), GPUNVME_ERR_LIMIT);
    assert_err(gpunvme_ioq_create(NULL, 4, &ioq), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_ioq_create(ctrl, 4, NULL), GPUNVME_ERR_INVALID);
    assert_ok(gpunvme_ioq_delete(NULL));
    assert_ok(gpunvme_ioq_create(ctrl, 0, &ioq));
    assert_int_equal(m->sq[1].entries, 256);
    take_down(m, ctrl);
}

static void a_queue_that_the_controller_refuses_leaves_nothing_behind(void **state)
{
    static const uint8_t opcodes[] = {GPUNVME_ADMIN_CREATE_CQ, GPUNVME_ADMIN_CREATE_SQ};

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct mock *m = mock_open();
        struct gpunvme_ctrl *ctrl = bring_up(m);
        size_t before = mock_nbytes(m);
        struct gpunvme_ioq *ioq;

        mock_on_admin(m, opcodes[i], 0, MOCK_STATUS, GPUNVME_SC_QUEUE_SIZE_INVALID);
        assert_err(gpunvme_ioq_create(ctrl, 4, &ioq),
                   GPUNVME_ERR_NVME(GPUNVME_SC_QUEUE_SIZE_INVALID));
        assert_int_equal(mock_nbytes(m), before);
        assert_false(m->cq[1].exists || m->sq[1].exists);
        assert_ok(gpunvme_ioq_create(ctrl, 4, &ioq));
        assert_works(ctrl, ioq);
        take_down(m, ctrl);
    }
}

/* The controller may have made the queue all the same: its memory must not go before a reset. */
static void a_queue_whose_creation_is_lost_is_not_freed_under_the_controller(void **state)
{
    static const uint8_t opcodes[] = {GPUNVME_ADMIN_CREATE_CQ, GPUNVME_ADMIN_CREATE_SQ};
    struct gpunvme_ctrl_opts opts = impatient();

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct mock *m = mock_open();
        struct gpunvme_ctrl *ctrl = bring_up_with(m, &opts);
        size_t before = mock_nbytes(m);
        struct gpunvme_ioq *ioq;

        mock_on_admin(m, opcodes[i], 0, MOCK_LOST, 0);
        assert_err(gpunvme_ioq_create(ctrl, 4, &ioq), GPUNVME_ERR_TIMEOUT);
        assert_int_equal(info_of(ctrl).resets, 1);
        assert_int_equal(mock_nbytes(m), before);
        assert_ok(gpunvme_ioq_create(ctrl, 4, &ioq));
        assert_works(ctrl, ioq);
        take_down(m, ctrl);
    }
}

static void a_queue_that_cannot_be_deleted_goes_with_a_reset(void **state)
{
    static const uint8_t opcodes[] = {GPUNVME_ADMIN_DELETE_SQ, GPUNVME_ADMIN_DELETE_CQ};
    static const enum mock_fate fates[] = {MOCK_STATUS, MOCK_LOST};
    struct gpunvme_ctrl_opts opts = impatient();

    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        struct mock *m = mock_open();
        struct gpunvme_ctrl *ctrl = bring_up_with(m, &opts);
        struct gpunvme_ioq *ioq, *other;

        assert_ok(gpunvme_ioq_create(ctrl, 4, &ioq));
        assert_ok(gpunvme_ioq_create(ctrl, 4, &other));
        mock_on_admin(m, opcodes[i % 2], 0, fates[i / 2], GPUNVME_SC_INTERNAL);
        assert_ok(gpunvme_ioq_delete(ioq));
        assert_int_equal(info_of(ctrl).resets, 1);
        assert_false(m->sq[1].exists);
        assert_true(m->sq[2].exists);
        assert_works(ctrl, other);
        take_down(m, ctrl);
    }
}

/* The reset for the first has told enough of the controller. */
static void closing_waits_for_one_lost_deletion_and_no_more(void **state)
{
    struct gpunvme_ctrl_opts opts = impatient();
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl = bring_up_with(m, &opts);
    struct gpunvme_ioq *ioq;

    (void)state;
    for (unsigned i = 0; i < 8; i++)
        assert_ok(gpunvme_ioq_create(ctrl, 4, &ioq));
    mock_on_admin(m, GPUNVME_ADMIN_DELETE_SQ, -1, MOCK_LOST, 0);
    assert_ok(gpunvme_ctrl_close(ctrl));
    assert_int_equal(sent(m, GPUNVME_ADMIN_DELETE_SQ), 1);
    assert_int_equal(mock_nbytes(m), 0);
    mock_done(m);
}

static void no_memory_for_a_queue_is_told_and_leaves_nothing_behind(void **state)
{
    (void)state;
    for (unsigned n = 0; n < 2; n++) {
        struct mock *m = mock_open();
        struct gpunvme_ctrl *ctrl = bring_up(m);
        size_t before = mock_nbytes(m);
        struct gpunvme_ioq *ioq;

        m->fail_at_alloc = (int)(m->allocs + n);
        assert_err(gpunvme_ioq_create(ctrl, 4, &ioq), GPUNVME_ERR_NOMEM);
        assert_int_equal(mock_nbytes(m), before);
        take_down(m, ctrl);
    }
}

/* --- memory ----------------------------------------------------------------------------------- */

static void buffers_are_mapped_and_allocated_by_the_transport(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl = bring_up(m);
    size_t before = mock_nbytes(m);
    struct gpunvme_buf buf = {0}, mine = {0};
    uint8_t memory[64];

    (void)state;
    assert_ok(gpunvme_ctrl_alloc(ctrl, 10000, GPUNVME_MEM_HOST, &buf));
    assert_true(buf.bus && buf.cpu && buf.nbytes == 10000);
    gpunvme_ctrl_free(ctrl, &buf);
    assert_int_equal(mock_nbytes(m), before);
    mine.cpu = memory;
    mine.nbytes = sizeof(memory);
    assert_ok(gpunvme_ctrl_map(ctrl, &mine));
    assert_true(mine.bus);
    gpunvme_ctrl_unmap(ctrl, &mine);
    assert_false(mine.bus);
    gpunvme_ctrl_free(ctrl, NULL);
    gpunvme_ctrl_unmap(NULL, &mine);
    assert_err(gpunvme_ctrl_alloc(ctrl, 0, GPUNVME_MEM_HOST, &buf), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_ctrl_alloc(NULL, 1, GPUNVME_MEM_HOST, &buf), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_ctrl_alloc(ctrl, 1, GPUNVME_MEM_HOST, NULL), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_ctrl_map(ctrl, NULL), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_ctrl_map(NULL, &mine), GPUNVME_ERR_INVALID);
    mine.nbytes = 0;
    assert_err(gpunvme_ctrl_map(ctrl, &mine), GPUNVME_ERR_INVALID);
    mine = (struct gpunvme_buf){.nbytes = 8};
    assert_err(gpunvme_ctrl_map(ctrl, &mine), GPUNVME_ERR_INVALID);
    take_down(m, ctrl);
}

/* --- shadow doorbells ------------------------------------------------------------------------- */

static void io_queues_ring_their_shadows(void **state)
{
    struct mock *m = open_rich();
    struct gpunvme_ctrl *ctrl = bring_up(m);
    struct gpunvme_ioq *ioq;

    (void)state;
    assert_true(m->shadow && m->event_index);
    assert_ok(gpunvme_ioq_create(ctrl, 8, &ioq));
    for (unsigned i = 0; i < 20; i++)
        assert_works(ctrl, ioq);
    assert_ok(gpunvme_ctrl_reset(ctrl));
    for (unsigned i = 0; i < 20; i++)
        assert_works(ctrl, ioq);
    take_down(m, ctrl);
}

static void shadows_can_be_declined(void **state)
{
    struct mock *m = open_rich();
    struct gpunvme_ctrl_opts opts;
    struct gpunvme_ctrl *ctrl;

    (void)state;
    gpunvme_ctrl_opts_init(&opts);
    opts.no_shadow_doorbells = true;
    ctrl = bring_up_with(m, &opts);
    assert_false(info_of(ctrl).shadow_doorbells);
    assert_int_equal(sent(m, GPUNVME_ADMIN_DOORBELL_BUFFER_CONFIG), 0);
    take_down(m, ctrl);
}

static void shadows_that_are_refused_are_done_without(void **state)
{
    struct mock *m = open_rich();
    struct gpunvme_ctrl *ctrl;
    struct gpunvme_ioq *ioq;

    (void)state;
    mock_on_admin(m, GPUNVME_ADMIN_DOORBELL_BUFFER_CONFIG, -1, MOCK_STATUS,
                  GPUNVME_SC_INVALID_OPCODE);
    ctrl = bring_up(m);
    assert_false(info_of(ctrl).shadow_doorbells);
    assert_ok(gpunvme_ioq_create(ctrl, 8, &ioq));
    assert_works(ctrl, ioq);
    take_down(m, ctrl);
}

/* A page of 4 KiB has room for the doorbells of 16 queues at a stride of 64 bytes, no more. */
static void more_doorbells_than_fit_a_page_have_no_shadows(void **state)
{
    struct mock *m = open_rich();
    struct gpunvme_ctrl *ctrl;

    (void)state;
    m->cap |= GPUNVME_SET(5, CAP_DSTRD);
    ctrl = bring_up(m);
    assert_false(info_of(ctrl).shadow_doorbells);
    take_down(m, ctrl);
}

/* --- asynchronous events ---------------------------------------------------------------------- */

static void as_many_event_requests_wait_as_are_allowed(void **state)
{
    (void)state;
    for (unsigned aerl = 0; aerl <= 8; aerl++) {
        struct mock *m = mock_open();
        struct gpunvme_ctrl *ctrl;

        m->id.aerl = (uint8_t)aerl;
        ctrl = bring_up(m);
        assert_int_equal(m->aers, aerl + 1 < 4 ? aerl + 1 : 4);
        take_down(m, ctrl);
    }
}

static void health_and_the_notices_that_there_are_are_asked_for(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl;

    (void)state;
    m->id.oaes = GPUNVME_ASYNC_CONFIG_NS_ATTR | GPUNVME_ASYNC_CONFIG_FW_ACTIVATE | 1u << 31;
    ctrl = bring_up(m);
    assert_int_equal(m->async_config & 0xffff,
                     0xff | GPUNVME_ASYNC_CONFIG_NS_ATTR | GPUNVME_ASYNC_CONFIG_FW_ACTIVATE);
    take_down(m, ctrl);
}

static void an_event_is_taken_apart_and_its_log_page_read(void **state)
{
    static const struct {
        uint32_t dw0;
        uint8_t type, info, log_page;
        size_t nbytes;
    } cases[] = {{0x00020101, 1, 1, 2, 512},
                 {0x00040002, 2, 0, 4, 4096},
                 {0x00010300, 0, 3, 1, 64},
                 {0x00030102, 2, 1, 3, 512},
                 {0x00c0ff07, 7, 0xff, 0xc0, 512}};
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl = bring_up(m);
    struct gpunvme_event event;

    (void)state;
    assert_err(gpunvme_ctrl_next_event(ctrl, &event), GPUNVME_ERR_AGAIN);
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_true(mock_event(m, cases[i].dw0, 0));
        assert_int_equal(m->aers, 3);
        assert_ok(gpunvme_ctrl_next_event(ctrl, &event));
        assert_int_equal(event.type, cases[i].type);
        assert_int_equal(event.info, cases[i].info);
        assert_int_equal(event.log_page, cases[i].log_page);
        assert_int_equal(m->last_log_cdw10, cases[i].log_page | (cases[i].nbytes / 4 - 1)
                                                                    << 16); /* RAE is 0 */
        assert_int_equal(m->aers, 4);                                       /* asked for again */
        assert_err(gpunvme_ctrl_next_event(ctrl, &event), GPUNVME_ERR_AGAIN);
    }
    take_down(m, ctrl);
}

static void events_that_came_together_are_all_told(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl = bring_up(m);
    struct gpunvme_event event;
    unsigned seen = 0;

    (void)state;
    for (unsigned i = 0; i < 4; i++)
        assert_true(mock_event(m, 0x20001 | i << 8, 0));
    assert_false(mock_event(m, 0, 0));
    for (unsigned i = 0; i < 4; i++) {
        assert_ok(gpunvme_ctrl_next_event(ctrl, &event));
        seen |= 1u << event.info;
    }
    assert_int_equal(seen, 0xf);
    assert_err(gpunvme_ctrl_next_event(ctrl, &event), GPUNVME_ERR_AGAIN);
    assert_int_equal(m->aers, 4);
    take_down(m, ctrl);
}

static void an_event_stands_whatever_becomes_of_its_log_page(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl = bring_up(m);
    struct gpunvme_event event;

    (void)state;
    mock_on_admin(m, GPUNVME_ADMIN_GET_LOG_PAGE, -1, MOCK_STATUS, GPUNVME_SC_INVALID_FIELD);
    assert_true(mock_event(m, 0x00020101, 0));
    assert_ok(gpunvme_ctrl_next_event(ctrl, &event));
    assert_int_equal(event.log_page, 2);
    assert_int_equal(m->aers, 4);
    take_down(m, ctrl);
}

/* The reset sends the requests anew; the one that was to follow the event is one too many. */
static void a_reset_while_an_events_log_page_is_read_leaves_as_many_requests(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl = bring_up(m);
    struct gpunvme_event event;

    (void)state;
    mock_on_admin(m, GPUNVME_ADMIN_GET_LOG_PAGE, 0, MOCK_LOST, 0);
    assert_true(mock_event(m, 0x00020101, 0));
    assert_ok(gpunvme_ctrl_next_event(ctrl, &event));
    assert_int_equal(info_of(ctrl).resets, 1);
    assert_int_equal(m->aers, 4);
    for (unsigned i = 0; i < 8; i++) {
        assert_true(mock_event(m, 0x00020101, 0));
        assert_ok(gpunvme_ctrl_next_event(ctrl, &event));
        assert_int_equal(m->aers, 4);
    }
    take_down(m, ctrl);
}

/* Commands of others', which fill the admin queue as soon as it has room. */
static struct {
    struct gpunvme_ctrl *ctrl;
    void (*free)(struct gpunvme_transport *t, struct gpunvme_buf *buf);
    uint64_t tickets[8];
    int n;
} rush;

static void fill_then_free(struct gpunvme_transport *t, struct gpunvme_buf *buf)
{
    struct gpunvme_sqe sqe = {.opc = GPUNVME_ADMIN_KEEP_ALIVE};

    rush.free(t, buf);
    while (gpunvme_qpair_submit(&rush.ctrl->admin->qpair, &sqe, 1, &rush.tickets[rush.n]) == 1)
        rush.n++;
}

static void a_request_that_finds_no_room_is_sent_when_there_is(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl_opts opts;
    struct gpunvme_completion c;
    struct gpunvme_event event;

    (void)state;
    gpunvme_ctrl_opts_init(&opts);
    opts.admin_entries = 8;
    rush.ctrl = bring_up_with(m, &opts);
    rush.free = m->ops.free;
    assert_true(mock_event(m, 0x00020101, 0));
    m->ops.free = fill_then_free; /* the log page's buffer, before the request is sent */
    assert_ok(gpunvme_ctrl_next_event(rush.ctrl, &event));
    m->ops.free = rush.free;
    assert_int_equal(m->aers, 3);
    gpunvme_qpair_reap(&rush.ctrl->admin->qpair);
    while (rush.n)
        assert_ok(gpunvme_qpair_test(&rush.ctrl->admin->qpair, rush.tickets[--rush.n], &c));
    assert_err(gpunvme_ctrl_next_event(rush.ctrl, &event), GPUNVME_ERR_AGAIN);
    assert_int_equal(m->aers, 4);
    take_down(m, rush.ctrl);
}

static void an_event_request_that_fails_is_told(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl = bring_up(m);
    struct gpunvme_event event;

    (void)state;
    assert_true(mock_event(m, 0, GPUNVME_SC_INTERNAL));
    assert_err(gpunvme_ctrl_next_event(ctrl, &event), GPUNVME_ERR_NVME(GPUNVME_SC_INTERNAL));
    assert_err(gpunvme_ctrl_next_event(ctrl, &event), GPUNVME_ERR_AGAIN);
    assert_int_equal(m->aers, 4); /* another one is there in its place */
    assert_err(gpunvme_ctrl_next_event(NULL, &event), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_ctrl_next_event(ctrl, NULL), GPUNVME_ERR_INVALID);
    take_down(m, ctrl);
}

/* --- timeouts --------------------------------------------------------------------------------- */

struct line { /* a controller with two queues */
    struct mock *m;
    struct gpunvme_ctrl *ctrl;
    struct gpunvme_ioq *a, *b;
};

static struct line line_open_with(const struct gpunvme_ctrl_opts *opts)
{
    struct line l = {.m = mock_open()};

    l.ctrl = bring_up_with(l.m, opts);
    assert_ok(gpunvme_ioq_create(l.ctrl, 8, &l.a));
    assert_ok(gpunvme_ioq_create(l.ctrl, 8, &l.b));
    return l;
}

static struct line line_open(void)
{
    struct gpunvme_ctrl_opts opts = impatient();

    return line_open_with(&opts);
}

static struct gpunvme_token flush_of(struct line *l, struct gpunvme_ioq *ioq)
{
    struct gpunvme_token token = {0};

    assert_ok(gpunvme_submit_flush(ioq, first_ns(l->ctrl), &token));
    return token;
}

static void a_late_command_is_aborted_by_its_id_and_queue(void **state)
{
    struct line l = line_open_with(NULL); /* 30 s */
    struct gpunvme_token tokens[3];
    uint64_t start;

    (void)state;
    mock_on_io(l.m, GPUNVME_CMD_FLUSH, 1, MOCK_LOST, 0);
    for (unsigned i = 0; i < 3; i++)
        tokens[i] = flush_of(&l, l.b);
    start = l.m->now_ns;
    assert_err(gpunvme_token_wait(&tokens[1], 0), GPUNVME_ERR_TIMEOUT);
    assert_in_range(l.m->now_ns - start, 30000 * MOCK_MS, 30100 * MOCK_MS);
    assert_int_equal(l.m->last_abort, (tokens[1].ticket & 0xffff) << 16 | 2);
    assert_int_equal(info_of(l.ctrl).resets, 0);
    assert_ok(gpunvme_token_wait(&tokens[0], 0));
    assert_ok(gpunvme_token_wait(&tokens[2], 0));
    assert_err(gpunvme_token_wait(&tokens[1], 0), GPUNVME_ERR_STALE);
    assert_works(l.ctrl, l.b);
    take_down(l.m, l.ctrl);
}

static void the_time_given_to_a_wait_is_its_deadline(void **state)
{
    struct line l = line_open();
    struct gpunvme_token token;
    uint64_t start;

    (void)state;
    mock_on_io(l.m, -1, 0, MOCK_LOST, 0);
    token = flush_of(&l, l.a);
    start = l.m->now_ns;
    assert_err(gpunvme_token_wait(&token, 70 * MOCK_MS), GPUNVME_ERR_TIMEOUT);
    assert_in_range(l.m->now_ns - start, 70 * MOCK_MS, 80 * MOCK_MS);
    take_down(l.m, l.ctrl);
}

/* The abort came too late: what the command itself says is what counts. */
static void a_command_that_ends_by_itself_after_all_keeps_its_status(void **state)
{
    struct line l = line_open();
    struct gpunvme_token token;

    (void)state;
    mock_on_io(l.m, -1, -1, MOCK_LOST, 0);
    l.m->abort_status = GPUNVME_SC_UNRECOVERED_READ;
    token = flush_of(&l, l.a);
    assert_err(gpunvme_token_wait(&token, 0), GPUNVME_ERR_NVME(GPUNVME_SC_UNRECOVERED_READ));
    l.m->abort_status = MOCK_ABORTED_WELL;
    token = flush_of(&l, l.a);
    assert_ok(gpunvme_token_wait(&token, 0));
    assert_int_equal(info_of(l.ctrl).resets, 0);
    take_down(l.m, l.ctrl);
}

/* Abort fails, is refused, is lost, or lies: the controller is reset. */
static void a_command_that_stays_lost_is_ended_by_a_reset(void **state)
{
    (void)state;
    for (unsigned way = 0; way < 4; way++) {
        struct line l = line_open();
        struct gpunvme_token tokens[3], other;

        l.m->abort_works = false;
        l.m->abort_lies = way == 1;
        mock_on_io(l.m, -1, -1, MOCK_LOST, 0);
        if (way == 2)
            mock_on_admin(l.m, GPUNVME_ADMIN_ABORT, -1, MOCK_STATUS, GPUNVME_SC_ABORT_LIMIT);
        if (way == 3)
            mock_on_admin(l.m, GPUNVME_ADMIN_ABORT, -1, MOCK_LOST, 0);
        for (unsigned i = 0; i < 3; i++)
            tokens[i] = flush_of(&l, l.a);
        other = flush_of(&l, l.b);

        assert_err(gpunvme_token_wait(&tokens[1], 0), GPUNVME_ERR_TIMEOUT);
        assert_detail("reset");
        assert_int_equal(sent(l.m, GPUNVME_ADMIN_ABORT), 1);
        assert_int_equal(info_of(l.ctrl).resets, 1);
        assert_true(l.m->sq[1].exists && l.m->sq[2].exists);
        /* The others were in flight when it came. */
        assert_err(gpunvme_token_wait(&tokens[0], 0), GPUNVME_ERR_ABORTED);
        assert_err(gpunvme_token_test(&tokens[2]), GPUNVME_ERR_ABORTED);
        assert_err(gpunvme_token_wait(&other, 0), GPUNVME_ERR_ABORTED);
        assert_err(gpunvme_token_test(&other), GPUNVME_ERR_STALE);
        l.m->nrules = 0;
        assert_works(l.ctrl, l.a);
        assert_works(l.ctrl, l.b);
        take_down(l.m, l.ctrl);
    }
}

static void a_lost_admin_command_is_ended_by_a_reset(void **state)
{
    struct line l = line_open();
    struct gpunvme_token token = flush_of(&l, l.a);
    size_t before = mock_nbytes(l.m);
    uint8_t page[512];

    (void)state;
    mock_on_admin(l.m, GPUNVME_ADMIN_GET_LOG_PAGE, 0, MOCK_LOST, 0);
    assert_err(gpunvme_ctrl_get_log(l.ctrl, 2, 0, 0, page, sizeof(page)), GPUNVME_ERR_TIMEOUT);
    assert_int_equal(info_of(l.ctrl).resets, 1);
    assert_int_equal(sent(l.m, GPUNVME_ADMIN_ABORT), 0);
    assert_int_equal(mock_nbytes(l.m), before);
    assert_ok(gpunvme_ctrl_get_log(l.ctrl, 2, 0, 0, page, sizeof(page)));
    gpunvme_token_wait(&token, 0);
    assert_works(l.ctrl, l.a);
    take_down(l.m, l.ctrl);
}

static void a_hundred_lost_aborts_leave_the_admin_queue_empty(void **state)
{
    struct gpunvme_ctrl_opts opts = impatient();
    struct line l = line_open_with(&opts);
    size_t before = mock_nbytes(l.m);

    (void)state;
    mock_on_io(l.m, -1, -1, MOCK_LOST, 0);
    mock_on_admin(l.m, GPUNVME_ADMIN_ABORT, -1, MOCK_LOST, 0);
    for (unsigned i = 0; i < 100; i++) {
        struct gpunvme_token token = flush_of(&l, l.a);

        assert_err(gpunvme_token_wait(&token, 0), GPUNVME_ERR_TIMEOUT);
    }
    assert_int_equal(info_of(l.ctrl).resets, 100);
    assert_int_equal(sent(l.m, GPUNVME_ADMIN_ABORT), 100);
    assert_int_equal(l.m->aers, 4);
    assert_int_equal(mock_nbytes(l.m), before);
    l.m->nrules = 0;
    assert_works(l.ctrl, l.a);
    take_down(l.m, l.ctrl);
}

static void without_recovery_a_timeout_ends_everything(void **state)
{
    struct gpunvme_ctrl_opts opts = impatient();
    struct gpunvme_token tokens[2], more;
    struct line l;

    (void)state;
    opts.no_recovery = true;
    l = line_open_with(&opts);
    mock_on_io(l.m, -1, -1, MOCK_LOST, 0);
    tokens[0] = flush_of(&l, l.a);
    tokens[1] = flush_of(&l, l.b);
    assert_err(gpunvme_token_wait(&tokens[0], 0), GPUNVME_ERR_TIMEOUT);
    assert_detail("given up");
    assert_int_equal(sent(l.m, GPUNVME_ADMIN_ABORT), 0);
    assert_int_equal(info_of(l.ctrl).resets, 0);
    assert_false(GPUNVME_GET(l.m->cc, CC_EN));
    assert_err(gpunvme_token_wait(&tokens[1], 0), GPUNVME_ERR_ABORTED);
    assert_err(gpunvme_submit_flush(l.a, first_ns(l.ctrl), &more), GPUNVME_ERR_CLOSED);
    assert_err(gpunvme_ctrl_check(l.ctrl), GPUNVME_ERR_FATAL);
    take_down(l.m, l.ctrl);
}

static void without_recovery_a_lost_queue_command_ends_everything_too(void **state)
{
    struct gpunvme_ctrl_opts opts = impatient();
    struct gpunvme_ioq *ioq;
    struct line l;

    (void)state;
    opts.no_recovery = true;
    l = line_open_with(&opts);
    mock_on_admin(l.m, GPUNVME_ADMIN_CREATE_SQ, 0, MOCK_LOST, 0);
    assert_err(gpunvme_ioq_create(l.ctrl, 4, &ioq), GPUNVME_ERR_TIMEOUT);
    assert_int_equal(info_of(l.ctrl).resets, 0);
    assert_false(GPUNVME_GET(l.m->cc, CC_EN));
    assert_err(gpunvme_ctrl_check(l.ctrl), GPUNVME_ERR_FATAL);
    take_down(l.m, l.ctrl);

    l = line_open_with(&opts);
    mock_on_admin(l.m, GPUNVME_ADMIN_DELETE_SQ, 0, MOCK_LOST, 0);
    assert_err(gpunvme_ioq_delete(l.a), GPUNVME_ERR_TIMEOUT);
    assert_int_equal(info_of(l.ctrl).resets, 0);
    assert_false(GPUNVME_GET(l.m->cc, CC_EN));
    take_down(l.m, l.ctrl);
}

/* --- resets ----------------------------------------------------------------------------------- */

static void a_reset_ends_what_is_in_flight_and_keeps_the_queues(void **state)
{
    struct line l = line_open();
    struct gpunvme_token tokens[7];

    (void)state;
    for (unsigned round = 1; round <= 20; round++) {
        l.m->nrules = 0;
        mock_on_io(l.m, -1, -1, MOCK_LOST, 0);
        for (unsigned i = 0; i < 7; i++)
            tokens[i] = flush_of(&l, i % 2 ? l.a : l.b);
        assert_ok(gpunvme_ctrl_reset(l.ctrl));
        assert_int_equal(info_of(l.ctrl).resets, round);
        for (unsigned i = 0; i < 7; i++)
            assert_err(gpunvme_token_wait(&tokens[i], 0), GPUNVME_ERR_ABORTED);
        l.m->nrules = 0;
        for (unsigned i = 0; i < round; i++)
            assert_works(l.ctrl, l.a);
        assert_works(l.ctrl, l.b);
        assert_int_equal(l.m->aers, 4);
    }
    assert_err(gpunvme_ctrl_reset(NULL), GPUNVME_ERR_INVALID);
    take_down(l.m, l.ctrl);
}

/* Its nth admin command goes wrong: true when there is none. */
static bool try_reset(unsigned nth, enum mock_fate fate, gpunvme_err_t expected)
{
    struct gpunvme_ctrl_opts opts = impatient();
    struct line l = line_open_with(&opts);
    struct mock_rule *rule = mock_on_admin(l.m, -1, (int)nth, fate, GPUNVME_SC_INTERNAL);
    struct gpunvme_token token = flush_of(&l, l.a), more;
    gpunvme_err_t err = gpunvme_ctrl_reset(l.ctrl);
    bool all_done = (unsigned)rule->seen <= nth;

    gpunvme_token_wait(&token, 0);
    if (err) {
        assert_false(all_done);
        assert_err(err, expected);
        assert_err(gpunvme_submit_flush(l.a, first_ns(l.ctrl), &more),
                   expected == GPUNVME_ERR_REMOVED ? expected : GPUNVME_ERR_CLOSED);
        assert_err(gpunvme_ctrl_check(l.ctrl),
                   expected == GPUNVME_ERR_REMOVED ? expected : GPUNVME_ERR_FATAL);
        /* Another try may help. */
        l.m->nrules = 0;
        if (expected == GPUNVME_ERR_REMOVED) {
            assert_err(gpunvme_ctrl_reset(l.ctrl), GPUNVME_ERR_REMOVED);
        } else {
            assert_ok(gpunvme_ctrl_reset(l.ctrl));
            assert_works(l.ctrl, l.a);
            assert_works(l.ctrl, l.b);
        }
    } else {
        l.m->nrules = 0;
        if (l.m->removed) { /* by a command that nobody waits for; or it failed so */
            assert_err(gpunvme_ctrl_check(l.ctrl), GPUNVME_ERR_REMOVED);
        } else {
            assert_ok(gpunvme_ctrl_check(l.ctrl));
            assert_works(l.ctrl, l.a);
        }
    }
    take_down(l.m, l.ctrl);
    return all_done;
}

static void a_reset_that_fails_at_any_command_ends_everything(void **state)
{
    (void)state;
    for (unsigned nth = 0; !try_reset(nth, MOCK_STATUS, GPUNVME_ERR_NVME(GPUNVME_SC_INTERNAL));
         nth++)
        ;
    for (unsigned nth = 0; !try_reset(nth, MOCK_LOST, GPUNVME_ERR_TIMEOUT); nth++)
        ;
    for (unsigned nth = 0; !try_reset(nth, MOCK_CFS, GPUNVME_ERR_FATAL); nth++)
        ;
    for (unsigned nth = 0; !try_reset(nth, MOCK_REMOVED, GPUNVME_ERR_REMOVED); nth++)
        ;
}

static void a_reset_that_cannot_disable_or_enable_ends_everything(void **state)
{
    (void)state;
    for (unsigned way = 0; way < 2; way++) {
        struct line l = line_open();
        struct gpunvme_token token, more;

        mock_on_io(l.m, -1, -1, MOCK_LOST, 0);
        token = flush_of(&l, l.a);
        if (way)
            l.m->enable_ns = MOCK_NEVER;
        else
            l.m->disable_ns = MOCK_NEVER;
        assert_err(gpunvme_ctrl_reset(l.ctrl), GPUNVME_ERR_TIMEOUT);
        assert_detail(way ? "enabling" : "disabling");
        assert_err(gpunvme_token_wait(&token, 0), GPUNVME_ERR_ABORTED);
        assert_err(gpunvme_submit_flush(l.b, first_ns(l.ctrl), &more), GPUNVME_ERR_CLOSED);
        assert_err(gpunvme_ioq_create(l.ctrl, 4, &l.b), GPUNVME_ERR_CLOSED);
        assert_ok(gpunvme_ctrl_close(l.ctrl));
        assert_int_equal(mock_nbytes(l.m), 0);
        mock_done(l.m);
    }
}

/* A controller that does not stop, with a command that may still write to its buffer. */
static struct line line_with_a_lost_log_page(void)
{
    struct line l = line_open();
    uint8_t page[4096];

    l.m->disable_ns = MOCK_NEVER;
    mock_on_admin(l.m, GPUNVME_ADMIN_GET_LOG_PAGE, 0, MOCK_LOST, 0);
    assert_err(gpunvme_ctrl_get_log(l.ctrl, 2, 0, 0, page, sizeof(page)), GPUNVME_ERR_TIMEOUT);
    assert_true(l.m->csts & (uint32_t)GPUNVME_SET(1, CSTS_RDY));
    return l;
}

/* The mock says what is freed too early. */
static void a_controller_that_does_not_stop_loses_its_access_before_memory_is_freed(void **state)
{
    struct line l = line_with_a_lost_log_page();

    (void)state;
    assert_true(l.m->is_cut_off);
    l.m->disable_ns = 0;
    l.m->csts = l.m->nrules = 0; /* now it has */
    assert_ok(gpunvme_ctrl_reset(l.ctrl));
    assert_false(l.m->is_cut_off);
    assert_works(l.ctrl, l.a);
    take_down(l.m, l.ctrl);
}

/* By a transport that can't take its access away: the memory stays until the transport is closed.
 */
static void memory_of_a_controller_that_nothing_stops_is_left_to_the_transport(void **state)
{
    struct line l = {.m = mock_open()};
    struct gpunvme_buf mine;
    size_t before;

    (void)state;
    l.m->ops.bus_master = NULL;
    l.ctrl = bring_up(l.m);
    assert_ok(gpunvme_ctrl_alloc(l.ctrl, 4096, GPUNVME_MEM_HOST, &mine));
    l.m->disable_ns = MOCK_NEVER;
    assert_err(gpunvme_ctrl_reset(l.ctrl), GPUNVME_ERR_TIMEOUT);
    before = mock_nbytes(l.m);
    gpunvme_ctrl_free(l.ctrl, &mine); /* as the program does, when its tokens have ended */
    assert_ok(gpunvme_ctrl_close(l.ctrl));
    assert_int_equal(mock_nbytes(l.m), before);
    mock_done(l.m);
}

/* A place in the queue that a thread has taken and not filled: it stands still in between. */
static uint64_t stand_still(struct gpunvme_qpair *q)
{
    uint64_t pos = 0;

    assert_int_equal(gpunvme_qpair_reserve(q, 1, &pos), 1);
    return pos;
}

/* … and goes on. */
static void go_on(struct gpunvme_ioq *ioq, uint64_t pos, struct gpunvme_token *token)
{
    struct gpunvme_qpair *q = gpunvme_ioq_qpair(ioq);
    struct gpunvme_sqe flush = {.opc = GPUNVME_CMD_FLUSH, .nsid = 1};

    *token = (struct gpunvme_token){.ioq = ioq, .ticket = gpunvme_qpair_claim_slot(q, pos)};
    gpunvme_qpair_fill(q, pos, token->ticket, &flush);
    gpunvme_qpair_publish(q);
}

/* The controller is stopped, what is in flight ends, and the reset ends when the thread goes on. */
static void a_thread_that_stands_still_delays_a_reset_and_no_more(void **state)
{
    struct line l = line_open();
    struct gpunvme_token lost[2], token;
    uint64_t pos;

    (void)state;
    mock_on_io(l.m, -1, -1, MOCK_LOST, 0);
    lost[0] = flush_of(&l, l.a);
    lost[1] = flush_of(&l, l.b);
    l.m->nrules = 0;
    pos = stand_still(gpunvme_ioq_qpair(l.a));
    assert_err(gpunvme_ctrl_reset(l.ctrl), GPUNVME_ERR_TIMEOUT);
    assert_detail("did not leave submit");
    assert_false(GPUNVME_GET(l.m->cc, CC_EN));
    for (unsigned i = 0; i < 2; i++)
        assert_err(gpunvme_token_wait(&lost[i], 0), GPUNVME_ERR_ABORTED);
    assert_err(gpunvme_submit_flush(l.b, first_ns(l.ctrl), &token), GPUNVME_ERR_CLOSED);
    assert_err(gpunvme_ctrl_check(l.ctrl), GPUNVME_ERR_TIMEOUT);
    go_on(l.a, pos, &token);
    assert_works(l.ctrl, l.b); /* whoever comes first ends the reset */
    assert_err(gpunvme_token_wait(&token, 0), GPUNVME_ERR_ABORTED);
    assert_works(l.ctrl, l.a);
    assert_int_equal(info_of(l.ctrl).resets, 1);
    take_down(l.m, l.ctrl);
}

/* The same of the admin queue, and of a thread that reaps. */
static void a_thread_that_stands_still_anywhere_costs_no_controller(void **state)
{
    struct line l = line_open();
    struct gpunvme_token token;
    struct gpunvme_qpair *q = &l.ctrl->admin->qpair;
    uint32_t value;

    (void)state;
    gpunvme_exchange32(&q->sq_lock, 1);
    assert_err(gpunvme_ctrl_reset(l.ctrl), GPUNVME_ERR_TIMEOUT);
    gpunvme_exchange32(&q->sq_lock, 0);
    assert_ok(gpunvme_ctrl_get_feature(l.ctrl, 7, 0, &value));

    mock_on_io(l.m, -1, -1, MOCK_LOST, 0);
    token = flush_of(&l, l.a);
    l.m->nrules = 0;
    q = gpunvme_ioq_qpair(l.a);
    gpunvme_exchange32(&q->cq_lock, 1);
    assert_err(gpunvme_ctrl_reset(l.ctrl), GPUNVME_ERR_TIMEOUT);
    assert_err(gpunvme_token_test(&token), GPUNVME_ERR_AGAIN); /* its thread may be ending it */
    gpunvme_exchange32(&q->cq_lock, 0);
    assert_ok(gpunvme_ctrl_check(l.ctrl));
    assert_err(gpunvme_token_wait(&token, 0), GPUNVME_ERR_ABORTED);
    assert_works(l.ctrl, l.a);
    assert_int_equal(info_of(l.ctrl).resets, 2);
    take_down(l.m, l.ctrl);
}

/* A queue that the controller no longer grants. */
static void a_reset_after_which_fewer_queues_are_granted_says_so(void **state)
{
    struct line l = line_open();

    (void)state;
    l.m->granted = 0x10000000; /* one SQ */
    assert_err(gpunvme_ctrl_reset(l.ctrl), GPUNVME_ERR_LIMIT);
    assert_detail("queues");
    take_down(l.m, l.ctrl);
}

static void a_failed_controller_is_reset_by_whoever_waits(void **state)
{
    struct line l = line_open();
    struct gpunvme_token tokens[2];
    uint64_t start = l.m->now_ns;

    (void)state;
    mock_on_io(l.m, -1, 1, MOCK_CFS, 0);
    l.m->latency_ns = MOCK_MS;
    tokens[0] = flush_of(&l, l.a);
    tokens[1] = flush_of(&l, l.a);
    assert_err(gpunvme_token_wait(&tokens[0], 0), GPUNVME_ERR_ABORTED);
    assert_err(gpunvme_token_wait(&tokens[1], 0), GPUNVME_ERR_ABORTED);
    assert_int_equal(info_of(l.ctrl).resets, 1);
    assert_true(l.m->now_ns - start < 50 * MOCK_MS); /* long before the deadline of 200 */
    assert_works(l.ctrl, l.a);
    take_down(l.m, l.ctrl);
}

static void check_resets_a_failed_controller(void **state)
{
    struct line l = line_open();

    (void)state;
    assert_ok(gpunvme_ctrl_check(l.ctrl));
    assert_int_equal(info_of(l.ctrl).resets, 0);
    l.m->csts |= CFS;
    assert_ok(gpunvme_ctrl_check(l.ctrl));
    assert_int_equal(info_of(l.ctrl).resets, 1);
    assert_works(l.ctrl, l.b);
    assert_err(gpunvme_ctrl_check(NULL), GPUNVME_ERR_INVALID);
    take_down(l.m, l.ctrl);
}

static void check_resets_a_controller_that_somebody_else_reset(void **state)
{
    struct line l = line_open();

    (void)state;
    mock_function_reset(&l.m->base);
    assert_ok(gpunvme_ctrl_check(l.ctrl));
    assert_int_equal(info_of(l.ctrl).resets, 1);
    assert_works(l.ctrl, l.a);
    take_down(l.m, l.ctrl);
}

static void without_recovery_a_failed_controller_stays_failed(void **state)
{
    struct gpunvme_ctrl_opts opts;
    struct gpunvme_token token;
    struct line l;

    (void)state;
    gpunvme_ctrl_opts_init(&opts);
    opts.no_recovery = true;
    l = line_open_with(&opts);
    mock_on_io(l.m, -1, 0, MOCK_CFS, 0);
    token = flush_of(&l, l.a);
    assert_err(gpunvme_token_wait(&token, 0), GPUNVME_ERR_ABORTED);
    assert_err(gpunvme_ctrl_check(l.ctrl), GPUNVME_ERR_FATAL);
    assert_int_equal(info_of(l.ctrl).resets, 0);
    take_down(l.m, l.ctrl);
}

/* --- removal ---------------------------------------------------------------------------------- */

static void removal_while_waiting_ends_everything(void **state)
{
    struct line l = line_open();
    struct gpunvme_token tokens[3], more;
    uint64_t start = l.m->now_ns;
    struct gpunvme_ioq *ioq;
    uint32_t value;

    (void)state;
    l.m->latency_ns = MOCK_MS;
    mock_on_io(l.m, -1, 2, MOCK_REMOVED, 0);
    tokens[0] = flush_of(&l, l.a);
    tokens[1] = flush_of(&l, l.b);
    tokens[2] = flush_of(&l, l.b);
    assert_err(gpunvme_token_wait(&tokens[0], 0), GPUNVME_ERR_REMOVED);
    assert_err(gpunvme_token_wait(&tokens[1], 0), GPUNVME_ERR_REMOVED);
    assert_err(gpunvme_token_test(&tokens[2]), GPUNVME_ERR_REMOVED);
    assert_true(l.m->now_ns - start < 50 * MOCK_MS);
    assert_err(gpunvme_submit_flush(l.a, first_ns(l.ctrl), &more), GPUNVME_ERR_REMOVED);
    assert_err(gpunvme_flush(l.a, first_ns(l.ctrl)), GPUNVME_ERR_REMOVED);
    assert_err(gpunvme_ioq_create(l.ctrl, 4, &ioq), GPUNVME_ERR_REMOVED);
    assert_err(gpunvme_ctrl_get_feature(l.ctrl, 1, 0, &value), GPUNVME_ERR_REMOVED);
    assert_err(gpunvme_ctrl_reset(l.ctrl), GPUNVME_ERR_REMOVED);
    assert_err(gpunvme_ctrl_check(l.ctrl), GPUNVME_ERR_REMOVED);
    assert_ok(gpunvme_ioq_delete(l.b));
    take_down(l.m, l.ctrl);
}

static gpunvme_err_t read_ones(struct gpunvme_transport *t, uint32_t offset, uint32_t *value)
{
    (void)t;
    (void)offset;
    *value = UINT32_MAX;
    return GPUNVME_OK;
}

/* As a transport does whose function the kernel wants back. */
static void removal_is_noticed_though_all_commands_end_at_once(void **state)
{
    struct line l = line_open();
    uint64_t start;

    (void)state;
    assert_works(l.ctrl, l.a);
    l.m->tick_ns = MOCK_MS / 4;
    l.m->ops.read32 = read_ones;
    start = l.m->now_ns;
    while (!gpunvme_flush(l.a, first_ns(l.ctrl)))
        assert_true(l.m->now_ns - start < 200 * MOCK_MS);
    assert_err(gpunvme_flush(l.b, first_ns(l.ctrl)), GPUNVME_ERR_REMOVED);
    l.m->removed = true;
    take_down(l.m, l.ctrl);
}

static void removal_during_an_admin_command_ends_it(void **state)
{
    struct line l = line_open();
    size_t before = mock_nbytes(l.m);
    uint8_t page[512];

    (void)state;
    mock_on_admin(l.m, GPUNVME_ADMIN_GET_LOG_PAGE, -1, MOCK_REMOVED, 0);
    assert_err(gpunvme_ctrl_get_log(l.ctrl, 2, 0, 0, page, sizeof(page)), GPUNVME_ERR_REMOVED);
    assert_int_equal(mock_nbytes(l.m), before);
    take_down(l.m, l.ctrl);
}

static void removal_during_abort_and_reset_ends_everything(void **state)
{
    struct line l = line_open();
    struct gpunvme_token token, other;

    (void)state;
    mock_on_io(l.m, -1, -1, MOCK_LOST, 0);
    mock_on_admin(l.m, GPUNVME_ADMIN_ABORT, -1, MOCK_REMOVED, 0);
    token = flush_of(&l, l.a);
    other = flush_of(&l, l.b);
    assert_err(gpunvme_token_wait(&token, 0), GPUNVME_ERR_REMOVED);
    assert_err(gpunvme_token_wait(&other, 0), GPUNVME_ERR_REMOVED);
    take_down(l.m, l.ctrl);
}

static void a_controller_out_of_reach_ends_everything(void **state)
{
    struct line l = line_open();
    struct gpunvme_token token;

    (void)state;
    mock_on_io(l.m, -1, -1, MOCK_LOST, 0);
    token = flush_of(&l, l.a);
    l.m->unreachable = true;
    assert_err(gpunvme_token_wait(&token, 0), GPUNVME_ERR_ABORTED);
    assert_err(gpunvme_ctrl_check(l.ctrl), GPUNVME_ERR_FATAL);
    take_down(l.m, l.ctrl);
}

/* --- opening by URI --------------------------------------------------------------------------- */

static void a_uri_of_no_transport_is_refused(void **state)
{
    struct gpunvme_ctrl *ctrl = NULL;

    (void)state;
    assert_true(gpunvme_ctrl_open_uri("nonsense:", NULL, &ctrl) < 0);
    assert_null(ctrl);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_status_at_any_command_of_bring_up_is_told_or_does_no_harm),
        cmocka_unit_test(a_lost_command_of_bring_up_is_a_timeout),
        cmocka_unit_test(a_lost_command_is_named),
        cmocka_unit_test(a_controller_that_fails_at_any_command_of_bring_up_is_fatal),
        cmocka_unit_test(a_controller_that_goes_away_at_any_command_of_bring_up_is_removed),
        cmocka_unit_test(a_completion_of_something_else_is_not_taken_for_the_commands),
        cmocka_unit_test(a_command_that_completes_twice_does_no_harm),
        cmocka_unit_test(entry_sizes_other_than_ours_are_not_supported),
        cmocka_unit_test(an_sgl_that_is_demanded_and_not_there_is_not_supported),
        cmocka_unit_test(info_tells_what_was_found),
        cmocka_unit_test(no_mdts_is_our_own_limit),
        cmocka_unit_test(any_mdts_gives_a_limit_that_is_not_above_ours),
        cmocka_unit_test(the_number_of_queues_is_what_is_granted),
        cmocka_unit_test(one_queue_may_be_granted),
        cmocka_unit_test(a_log_page_is_asked_for_by_dwords_and_offset),
        cmocka_unit_test(a_log_page_of_odd_bytes_is_refused),
        cmocka_unit_test(features_are_got_and_set),
        cmocka_unit_test(an_admin_status_reaches_the_caller_whole),
        cmocka_unit_test(data_goes_to_the_controller_and_back),
        cmocka_unit_test(an_admin_command_in_pieces_has_its_list_where_prp2_says),
        cmocka_unit_test(an_admin_command_longer_than_mdts_is_refused),
        cmocka_unit_test(a_queue_pair_is_made_completion_queue_first),
        cmocka_unit_test(the_lowest_free_queue_id_is_taken),
        cmocka_unit_test(queue_sizes_that_cannot_be_are_refused),
        cmocka_unit_test(a_queue_that_the_controller_refuses_leaves_nothing_behind),
        cmocka_unit_test(a_queue_whose_creation_is_lost_is_not_freed_under_the_controller),
        cmocka_unit_test(a_queue_that_cannot_be_deleted_goes_with_a_reset),
        cmocka_unit_test(closing_waits_for_one_lost_deletion_and_no_more),
        cmocka_unit_test(no_memory_for_a_queue_is_told_and_leaves_nothing_behind),
        cmocka_unit_test(buffers_are_mapped_and_allocated_by_the_transport),
        cmocka_unit_test(io_queues_ring_their_shadows),
        cmocka_unit_test(shadows_can_be_declined),
        cmocka_unit_test(shadows_that_are_refused_are_done_without),
        cmocka_unit_test(more_doorbells_than_fit_a_page_have_no_shadows),
        cmocka_unit_test(as_many_event_requests_wait_as_are_allowed),
        cmocka_unit_test(health_and_the_notices_that_there_are_are_asked_for),
        cmocka_unit_test(an_event_is_taken_apart_and_its_log_page_read),
        cmocka_unit_test(events_that_came_together_are_all_told),
        cmocka_unit_test(an_event_stands_whatever_becomes_of_its_log_page),
        cmocka_unit_test(a_reset_while_an_events_log_page_is_read_leaves_as_many_requests),
        cmocka_unit_test(a_request_that_finds_no_room_is_sent_when_there_is),
        cmocka_unit_test(an_event_request_that_fails_is_told),
        cmocka_unit_test(a_late_command_is_aborted_by_its_id_and_queue),
        cmocka_unit_test(the_time_given_to_a_wait_is_its_deadline),
        cmocka_unit_test(a_command_that_ends_by_itself_after_all_keeps_its_status),
        cmocka_unit_test(a_command_that_stays_lost_is_ended_by_a_reset),
        cmocka_unit_test(a_lost_admin_command_is_ended_by_a_reset),
        cmocka_unit_test(a_hundred_lost_aborts_leave_the_admin_queue_empty),
        cmocka_unit_test(without_recovery_a_timeout_ends_everything),
        cmocka_unit_test(without_recovery_a_lost_queue_command_ends_everything_too),
        cmocka_unit_test(a_reset_ends_what_is_in_flight_and_keeps_the_queues),
        cmocka_unit_test(a_reset_that_fails_at_any_command_ends_everything),
        cmocka_unit_test(a_reset_that_cannot_disable_or_enable_ends_everything),
        cmocka_unit_test(a_controller_that_does_not_stop_loses_its_access_before_memory_is_freed),
        cmocka_unit_test(memory_of_a_controller_that_nothing_stops_is_left_to_the_transport),
        cmocka_unit_test(a_thread_that_stands_still_delays_a_reset_and_no_more),
        cmocka_unit_test(a_thread_that_stands_still_anywhere_costs_no_controller),
        cmocka_unit_test(a_reset_after_which_fewer_queues_are_granted_says_so),
        cmocka_unit_test(a_failed_controller_is_reset_by_whoever_waits),
        cmocka_unit_test(check_resets_a_failed_controller),
        cmocka_unit_test(check_resets_a_controller_that_somebody_else_reset),
        cmocka_unit_test(without_recovery_a_failed_controller_stays_failed),
        cmocka_unit_test(removal_while_waiting_ends_everything),
        cmocka_unit_test(removal_is_noticed_though_all_commands_end_at_once),
        cmocka_unit_test(removal_during_an_admin_command_ends_it),
        cmocka_unit_test(removal_during_abort_and_reset_ends_everything),
        cmocka_unit_test(a_controller_out_of_reach_ends_everything),
        cmocka_unit_test(a_uri_of_no_transport_is_refused),
    };

    return cmocka_run_group_tests_name("controller", tests, NULL, NULL);
}
