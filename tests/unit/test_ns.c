/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Namespaces on the mock: which ones are found, what is read out of Identify Namespace, and which
 * formats are refused.
 */
#include "mock_test.h"

/* A controller without namespaces, to add some to. */
static struct mock *open_empty(void)
{
    struct mock *m = mock_open();

    mock_remove_namespaces(m);
    m->id.nn = 0;
    return m;
}

static unsigned identified(const struct mock *m)
{
    unsigned n = 0;

    for (unsigned i = 0; i < m->nadmin; i++)
        n += m->admin[i] == GPUNVME_ADMIN_IDENTIFY;
    return n;
}

/* --- which there are -------------------------------------------------------------------------- */

static void a_controller_may_have_no_namespaces(void **state)
{
    struct mock *m = open_empty();
    struct gpunvme_ctrl *ctrl = bring_up(m);
    const struct gpunvme_ns *ns;

    (void)state;
    assert_null(gpunvme_ctrl_ns_at(ctrl, 0));
    assert_err(gpunvme_ctrl_ns(ctrl, 1, &ns), GPUNVME_ERR_NO_NAMESPACE);
    assert_ok(gpunvme_ctrl_reset(ctrl));
    take_down(m, ctrl);
}

static void namespaces_with_gaps_are_found_in_order(void **state)
{
    static const uint32_t nsids[] = {2, 3, 7, 1000, 0x10000, 0xfffffffe};
    struct mock *m = open_empty();
    struct gpunvme_ctrl *ctrl;
    const struct gpunvme_ns *ns;

    (void)state;
    for (unsigned i = 0; i < 6; i++)
        mock_add_ns(m, nsids[i], 10 + i, 9, false);
    ctrl = bring_up(m);
    for (unsigned i = 0; i < 6; i++) {
        ns = gpunvme_ctrl_ns_at(ctrl, i);
        assert_non_null(ns);
        assert_int_equal(ns->nsid, nsids[i]);
        assert_true(ns->nblocks == 10 + i);
        assert_ptr_equal(ns->ctrl, ctrl);
        assert_ok(gpunvme_ctrl_ns(ctrl, nsids[i], &ns));
        assert_ptr_equal(ns, gpunvme_ctrl_ns_at(ctrl, i));
    }
    assert_null(gpunvme_ctrl_ns_at(ctrl, 6));
    assert_null(gpunvme_ctrl_ns_at(ctrl, UINT32_MAX));
    take_down(m, ctrl);
}

static void a_namespace_that_is_not_active_is_told(void **state)
{
    static const uint32_t nsids[] = {0, 2, 0xffffffff};
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl = bring_up(m);
    const struct gpunvme_ns *ns;

    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        assert_err(gpunvme_ctrl_ns(ctrl, nsids[i], &ns), GPUNVME_ERR_NO_NAMESPACE);
        assert_detail("mock:");
    }
    assert_err(gpunvme_ctrl_ns(NULL, 1, &ns), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_ctrl_ns(ctrl, 1, NULL), GPUNVME_ERR_INVALID);
    take_down(m, ctrl);
}

static void check_many(unsigned n)
{
    struct mock *m = open_empty();
    struct gpunvme_ctrl *ctrl;

    for (unsigned i = 0; i < n; i++)
        mock_add_ns(m, 3 * i + 1, i + 1, 9, false);
    ctrl = bring_up(m);
    for (unsigned i = 0; i < n; i++) {
        const struct gpunvme_ns *ns = gpunvme_ctrl_ns_at(ctrl, i);

        assert_non_null(ns);
        assert_int_equal(ns->nsid, 3 * i + 1);
        assert_true(ns->nblocks == i + 1);
    }
    assert_null(gpunvme_ctrl_ns_at(ctrl, n));
    take_down(m, ctrl);
}

static void a_list_of_more_than_one_page_is_read_to_its_end(void **state)
{
    (void)state;
    check_many(1023);
    check_many(1024); /* a full page: the next one is empty */
    check_many(1025);
    check_many(2500);
}

static void more_namespaces_than_we_keep_are_refused(void **state)
{
    struct mock *m = open_empty();

    (void)state;
    for (unsigned i = 0; i < 4097; i++)
        mock_add_ns(m, i + 1, 1, 9, false);
    assert_open_fails(m, GPUNVME_ERR_LIMIT);
    assert_detail("namespaces");
    mock_done(m);
}

static void forge_list(struct mock *m, const struct gpunvme_sqe *sqe, void *data, size_t nbytes)
{
    (void)nbytes;
    if (sqe->opc == GPUNVME_ADMIN_IDENTIFY && (sqe->cdw10 & 0xff) == GPUNVME_CNS_ACTIVE_NS_LIST)
        memcpy(data, m->forge_arg, 5 * sizeof(uint32_t));
}

static void a_list_out_of_order_is_against_the_specification(void **state)
{
    static const uint32_t lists[][5] = {
        {1, 3, 2, 0}, {1, 1, 0}, {5, 4, 3, 2, 1}, {2, 0xffffffff, 1, 0}};

    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        struct mock *m = mock_open();

        m->id.nn = 0xffffffff;
        m->forge = forge_list;
        m->forge_arg = (void *)(uintptr_t)lists[i];
        assert_open_fails(m, GPUNVME_ERR_PROTOCOL);
        assert_detail("order");
        mock_done(m);
    }
}

/* It has no list: every identifier up to NN is tried, and those of 0 blocks are not active. */
static void a_controller_of_version_1_0_is_asked_for_each(void **state)
{
    struct mock *m = open_empty();
    struct gpunvme_ctrl *ctrl;

    (void)state;
    m->vs = GPUNVME_VS_MAKE(1, 0, 0);
    mock_add_ns(m, 2, 20, 9, false);
    mock_add_ns(m, 4, 40, 12, false);
    m->id.nn = 6;
    ctrl = bring_up(m);
    assert_int_equal(identified(m), 1 + 6);
    assert_int_equal(gpunvme_ctrl_ns_at(ctrl, 0)->nsid, 2);
    assert_int_equal(gpunvme_ctrl_ns_at(ctrl, 1)->nsid, 4);
    assert_null(gpunvme_ctrl_ns_at(ctrl, 2));
    take_down(m, ctrl);
}

static void from_version_1_1_on_the_list_is_read(void **state)
{
    struct mock *m = open_empty();
    struct gpunvme_ctrl *ctrl;

    (void)state;
    m->vs = GPUNVME_VS_MAKE(1, 1, 0);
    mock_add_ns(m, 50, 20, 9, false);
    ctrl = bring_up(m);
    assert_int_equal(identified(m), 1 + 1 + 1);
    take_down(m, ctrl);
}

static void a_version_1_0_controller_with_endless_namespaces_is_refused(void **state)
{
    struct mock *m = mock_open();

    (void)state;
    m->vs = GPUNVME_VS_MAKE(1, 0, 0);
    m->id.nn = UINT32_MAX;
    assert_open_fails(m, GPUNVME_ERR_LIMIT);
    assert_in_range(identified(m), 1, 10);
    mock_done(m);
}

static void namespaces_stay_as_they_were_over_a_reset(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl = bring_up(m);
    const struct gpunvme_ns *ns = gpunvme_ctrl_ns_at(ctrl, 0);

    (void)state;
    mock_add_ns(m, 2, 99, 9, false);
    assert_ok(gpunvme_ctrl_reset(ctrl));
    assert_ptr_equal(gpunvme_ctrl_ns_at(ctrl, 0), ns);
    assert_true(ns->nblocks == 2048);
    assert_null(gpunvme_ctrl_ns_at(ctrl, 1));
    take_down(m, ctrl);
}

/* --- what they are ---------------------------------------------------------------------------- */

static void the_facts_of_a_namespace_are_read_out(void **state)
{
    struct mock *m = open_empty();
    struct gpunvme_ctrl *ctrl;
    const struct gpunvme_ns *ns;
    struct mock_ns *made;

    (void)state;
    made = mock_add_ns(m, 1, 0x123456789a, 12, false);
    made->id.noiob = 77;
    made->id.nsattr = GPUNVME_NSATTR_WRITE_PROTECTED;
    made->id.nguid[3] = 9;
    ctrl = bring_up(m);
    assert_ok(gpunvme_ctrl_ns(ctrl, 1, &ns));
    assert_int_equal(ns->block_size, 4096);
    assert_int_equal(ns->block_shift, 12);
    assert_true(ns->nblocks == 0x123456789a);
    assert_true(ns->nbytes == UINT64_C(0x123456789a000));
    assert_int_equal(ns->max_blocks, 32); /* MDTS: 128 KiB */
    assert_int_equal(ns->boundary_blocks, 77);
    assert_true(ns->readonly);
    assert_memory_equal(&ns->id, &m->ns[0].id, sizeof(ns->id));
    take_down(m, ctrl);
}

static void the_longest_command_is_mdts_or_what_nlb_can_say(void **state)
{
    static const struct {
        uint8_t mdts, shift;
        uint32_t blocks;
    } cases[] = {{1, 9, 16},    {1, 12, 2},      {5, 9, 256},   {12, 9, 32768},
                 {0, 9, 65536}, {255, 9, 65536}, {0, 12, 8192}, {13, 12, 8192}};

    (void)state;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mock *m = open_empty();
        struct gpunvme_ctrl *ctrl;

        m->id.mdts = cases[i].mdts;
        mock_add_ns(m, 1, 1000000, cases[i].shift, false);
        ctrl = bring_up(m);
        assert_int_equal(gpunvme_ctrl_ns_at(ctrl, 0)->max_blocks, cases[i].blocks);
        take_down(m, ctrl);
    }
}

static void the_format_in_use_is_found_by_flbas(void **state)
{
    static const struct {
        uint8_t nlbaf, flbas;
        unsigned format;
    } cases[] = {
        {0, 0, 0},      {3, 2, 2},      {15, 0x0f, 15}, {15, 0x6f, 15}, /* 16 formats: bits 3:0 */
        {16, 0x20, 16}, {40, 0x45, 37}, {63, 0x6f, 63}, {20, 0x10, 0}};

    (void)state;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mock *m = open_empty();
        struct mock_ns *made = mock_add_ns(m, 1, 100, 9, false);
        struct gpunvme_ctrl *ctrl;

        made->id.nlbaf = cases[i].nlbaf;
        made->id.flbas = cases[i].flbas;
        for (unsigned k = 0; k < 64; k++)
            made->id.lbaf[k].lbads = k == cases[i].format ? 12 : 9;
        ctrl = bring_up(m);
        assert_int_equal(gpunvme_ctrl_ns_at(ctrl, 0)->block_size, 4096);
        take_down(m, ctrl);
    }
}

/* Everything that does I/O says so, and nothing reaches the controller. */
static void assert_no_io(struct mock *m, struct gpunvme_ctrl *ctrl)
{
    const struct gpunvme_ns *ns = NULL, *at = gpunvme_ctrl_ns_at(ctrl, 0);
    struct gpunvme_token token;
    struct gpunvme_buf buf;
    struct gpunvme_ioq *ioq;

    assert_err(gpunvme_ctrl_ns(ctrl, 1, &ns), GPUNVME_ERR_FORMAT);
    assert_ptr_equal(ns, at);
    assert_ok(gpunvme_ioq_create(ctrl, 8, &ioq));
    assert_ok(gpunvme_ctrl_alloc(ctrl, 8192, GPUNVME_MEM_HOST, &buf));
    assert_err(gpunvme_submit_read(ioq, at, 0, 1, &buf, 0, &token), GPUNVME_ERR_FORMAT);
    assert_err(gpunvme_submit_write(ioq, at, 0, 1, &buf, 0, 0, &token), GPUNVME_ERR_FORMAT);
    assert_err(gpunvme_read(ioq, at, 0, 512, &buf, 0), GPUNVME_ERR_FORMAT);
    assert_err(gpunvme_write(ioq, at, 0, 512, &buf, 0, 0), GPUNVME_ERR_FORMAT);
    assert_err(gpunvme_compare(ioq, at, 0, 1, &buf, 0), GPUNVME_ERR_FORMAT);
    assert_err(gpunvme_write_zeroes(ioq, at, 0, 1, false), GPUNVME_ERR_FORMAT);
    assert_err(gpunvme_deallocate(ioq, at, 0, 1), GPUNVME_ERR_FORMAT);
    assert_err(gpunvme_verify(ioq, at, 0, 1), GPUNVME_ERR_FORMAT);
    assert_int_equal(m->nio, 0);
    gpunvme_ctrl_free(ctrl, &buf);
}

static void metadata_is_refused(void **state)
{
    (void)state;
    for (unsigned way = 0; way < 3; way++) {
        struct mock *m = open_empty();
        struct mock_ns *made = mock_add_ns(m, 1, 100, way == 2 ? 12 : 9, false);
        struct gpunvme_ctrl *ctrl;

        made->id.lbaf[0].ms = way ? 64 : 8;
        made->id.flbas = way == 1 ? GPUNVME_FLBAS_EXTENDED : 0;
        ctrl = bring_up(m);
        assert_int_equal(gpunvme_ctrl_ns_at(ctrl, 0)->block_size, way == 2 ? 4096 : 512);
        assert_no_io(m, ctrl);
        assert_err(gpunvme_ctrl_ns(ctrl, 1, &(const struct gpunvme_ns *){NULL}),
                   GPUNVME_ERR_FORMAT);
        assert_detail("metadata");
        take_down(m, ctrl);
    }
}

static void odd_block_sizes_are_refused(void **state)
{
    static const uint8_t shifts[] = {0, 1, 8, 10, 11, 13, 16, 31, 32, 63, 64, 65, 128, 255};

    (void)state;
    for (unsigned i = 0; i < sizeof(shifts); i++) {
        struct mock *m = open_empty();
        struct gpunvme_ctrl *ctrl;

        mock_add_ns(m, 1, 100, 9, false)->id.lbaf[0].lbads = shifts[i];
        ctrl = bring_up(m);
        assert_no_io(m, ctrl);
        assert_err(gpunvme_ctrl_ns(ctrl, 1, &(const struct gpunvme_ns *){NULL}),
                   GPUNVME_ERR_FORMAT);
        assert_detail("2^");
        take_down(m, ctrl);
    }
}

static void a_namespace_beyond_64_bits_is_against_the_specification(void **state)
{
    struct mock *m = open_empty();
    struct gpunvme_ctrl *ctrl;

    (void)state;
    mock_add_ns(m, 1, UINT64_MAX >> 9, 9, false);
    ctrl = bring_up(m);
    assert_true(gpunvme_ctrl_ns_at(ctrl, 0)->nbytes == UINT64_MAX - 511);
    assert_ok(gpunvme_ctrl_close(ctrl));
    mock_done(m);
    m = open_empty();
    mock_add_ns(m, 1, (UINT64_MAX >> 9) + 1, 9, false);
    assert_open_fails(m, GPUNVME_ERR_PROTOCOL);
    mock_done(m);
}

/* Identify Namespace is refused, and the mock has no descriptors that tell the set. */
static void a_namespace_of_another_command_set_is_shown_and_refused(void **state)
{
    struct mock *m = open_empty();
    struct gpunvme_ctrl *ctrl;
    const struct gpunvme_ns *ns;

    (void)state;
    mock_add_ns(m, 1, 20, 9, false);
    mock_add_ns(m, 2, 40, 9, false);
    mock_on_admin(m, GPUNVME_ADMIN_IDENTIFY, 2, MOCK_STATUS, GPUNVME_SC_INVALID_IOCS);
    ctrl = bring_up(m);
    assert_err(gpunvme_ctrl_ns(ctrl, 1, &ns), GPUNVME_ERR_FORMAT);
    assert_ptr_equal(ns, gpunvme_ctrl_ns_at(ctrl, 0));
    assert_int_not_equal(ns->csi, GPUNVME_CSI_NVM);
    assert_int_equal(ns->max_blocks, 0);
    assert_ok(gpunvme_ctrl_ns(ctrl, 2, &ns));
    assert_true(ns->nblocks == 40);
    take_down(m, ctrl);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_controller_may_have_no_namespaces),
        cmocka_unit_test(namespaces_with_gaps_are_found_in_order),
        cmocka_unit_test(a_namespace_that_is_not_active_is_told),
        cmocka_unit_test(a_list_of_more_than_one_page_is_read_to_its_end),
        cmocka_unit_test(more_namespaces_than_we_keep_are_refused),
        cmocka_unit_test(a_list_out_of_order_is_against_the_specification),
        cmocka_unit_test(a_controller_of_version_1_0_is_asked_for_each),
        cmocka_unit_test(from_version_1_1_on_the_list_is_read),
        cmocka_unit_test(a_version_1_0_controller_with_endless_namespaces_is_refused),
        cmocka_unit_test(namespaces_stay_as_they_were_over_a_reset),
        cmocka_unit_test(the_facts_of_a_namespace_are_read_out),
        cmocka_unit_test(the_longest_command_is_mdts_or_what_nlb_can_say),
        cmocka_unit_test(the_format_in_use_is_found_by_flbas),
        cmocka_unit_test(metadata_is_refused),
        cmocka_unit_test(odd_block_sizes_are_refused),
        cmocka_unit_test(a_namespace_beyond_64_bits_is_against_the_specification),
        cmocka_unit_test(a_namespace_of_another_command_set_is_shown_and_refused),
    };

    return cmocka_run_group_tests_name("namespaces", tests, NULL, NULL);
}
