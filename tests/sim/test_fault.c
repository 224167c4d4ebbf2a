/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Fault rules: what they say, which commands they meet, and how often.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "sim/fault.h"

static struct sim_faults *faults;

static int setup(void **state)
{
    (void)state;
    return sim_faults_create(1, &faults);
}

static int teardown(void **state)
{
    (void)state;
    sim_faults_destroy(faults);
    return 0;
}

static void add(const char *rule)
{
    if (sim_faults_add(faults, rule))
        fail_msg("%s: %s", rule, gpunvme_err_detail());
}

static void expect_refused(const char *rule, const char *reason)
{
    gpunvme_err_t err = sim_faults_add(faults, rule);

    if (err != GPUNVME_ERR_INVALID || !strstr(gpunvme_err_detail(), reason))
        fail_msg("%s: %d, %s", rule, err, gpunvme_err_detail());
    assert_false(sim_faults_any(faults));
}

/* What the rules say to a command on submission queue `sq`. */
static struct sim_fault ask(uint16_t sq, uint8_t opc, uint32_t nsid, uint64_t slba,
                            uint32_t nblocks)
{
    struct gpunvme_sqe sqe = {.opc = opc, .nsid = nsid};

    sqe.cdw10 = (uint32_t)slba;
    sqe.cdw11 = (uint32_t)(slba >> 32);
    sqe.cdw12 = nblocks - 1;
    return sim_faults_match(faults, sq, &sqe);
}

static bool hits(uint16_t sq, uint8_t opc)
{
    return ask(sq, opc, 1, 0, 1).kind != SIM_FAULT_NONE;
}

static bool hits_lba(uint8_t opc, uint64_t slba, uint32_t nblocks)
{
    return ask(1, opc, 1, slba, nblocks).kind != SIM_FAULT_NONE;
}

static void without_rules_nothing_happens(void **state)
{
    (void)state;
    assert_false(sim_faults_any(faults));
    assert_false(hits(1, GPUNVME_CMD_READ));
}

static void each_fault_is_understood(void **state)
{
    static const struct {
        const char *rule;
        struct sim_fault fault;
    } rules[] = {
        {"status=2/81", {.kind = SIM_FAULT_STATUS, .status = 0x281}},
        {"status=0/4/dnr", {.kind = SIM_FAULT_STATUS, .status = 0x4004}},
        {"status=7/fF", {.kind = SIM_FAULT_STATUS, .status = 0x7ff}},
        {"delay=3ms", {.kind = SIM_FAULT_DELAY, .delay_ns = 3000000}},
        {"lose", {.kind = SIM_FAULT_LOSE}},
        {"shuffle=16", {.kind = SIM_FAULT_SHUFFLE, .count = 16}},
        {"cfs", {.kind = SIM_FAULT_CFS}},
        {"remove", {.kind = SIM_FAULT_REMOVE}},
        {"powerloss", {.kind = SIM_FAULT_POWER_LOSS}},
    };

    (void)state;
    for (unsigned i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        struct sim_fault fault;

        add(rules[i].rule);
        fault = ask(1, GPUNVME_CMD_READ, 1, 0, 1);
        assert_int_equal(fault.kind, rules[i].fault.kind);
        assert_int_equal(fault.status, rules[i].fault.status);
        assert_int_equal(fault.delay_ns, rules[i].fault.delay_ns);
        assert_int_equal(fault.count, rules[i].fault.count);
        sim_faults_clear(faults);
    }
}

static void a_rule_without_a_target_meets_every_command(void **state)
{
    (void)state;
    add("lose");
    assert_true(hits(0, GPUNVME_ADMIN_IDENTIFY));
    assert_true(hits(1, GPUNVME_CMD_READ));
    assert_true(hits(9, 0xff));
}

static void commands_are_named(void **state)
{
    (void)state;
    add("lose:read:Flush");
    assert_true(hits(1, GPUNVME_CMD_READ));
    assert_true(hits(1, GPUNVME_CMD_FLUSH));
    assert_false(hits(1, GPUNVME_CMD_WRITE));
    assert_false(hits(0, GPUNVME_CMD_READ)); /* there it is Get Log Page */
}

static void admin_commands_are_named(void **state)
{
    (void)state;
    add("lose:identify:get_log_page");
    assert_true(hits(0, GPUNVME_ADMIN_IDENTIFY));
    assert_true(hits(0, GPUNVME_ADMIN_GET_LOG_PAGE));
    assert_false(hits(0, GPUNVME_ADMIN_CREATE_CQ));
    assert_false(hits(1, GPUNVME_ADMIN_IDENTIFY));
}

static void admin_and_io_name_all_of_a_kind(void **state)
{
    (void)state;
    add("lose:admin:write");
    assert_true(hits(0, GPUNVME_ADMIN_IDENTIFY));
    assert_true(hits(1, GPUNVME_CMD_WRITE));
    assert_false(hits(1, GPUNVME_CMD_READ));
    sim_faults_clear(faults);
    add("lose:io");
    assert_false(hits(0, GPUNVME_ADMIN_IDENTIFY));
    assert_true(hits(1, GPUNVME_CMD_READ));
}

static void blocks_overlap_at_either_end(void **state)
{
    (void)state;
    add("lose:lba=100-107");
    assert_false(hits_lba(GPUNVME_CMD_READ, 92, 8));
    assert_true(hits_lba(GPUNVME_CMD_READ, 92, 9));
    assert_true(hits_lba(GPUNVME_CMD_WRITE, 103, 1));
    assert_true(hits_lba(GPUNVME_CMD_COMPARE, 0, 65536));
    assert_true(hits_lba(GPUNVME_CMD_WRITE_ZEROES, 107, 100));
    assert_true(hits_lba(GPUNVME_CMD_VERIFY, 107, 1));
    assert_true(hits_lba(GPUNVME_CMD_WRITE_UNCORRECTABLE, 100, 1));
    assert_false(hits_lba(GPUNVME_CMD_READ, 108, 8));
}

static void one_block_is_a_range_too(void **state)
{
    (void)state;
    add("lose:lba=0x100000000");
    assert_true(hits_lba(GPUNVME_CMD_READ, 0x100000000, 1));
    assert_false(hits_lba(GPUNVME_CMD_READ, 0, 1));
}

static void a_range_at_the_end_of_all_blocks_does_not_wrap(void **state)
{
    (void)state;
    add("lose:lba=0-5");
    assert_false(hits_lba(GPUNVME_CMD_READ, UINT64_MAX - 3, 65536));
    sim_faults_clear(faults);
    add("lose:lba=0xffffffffffffffff");
    assert_true(hits_lba(GPUNVME_CMD_READ, UINT64_MAX - 3, 4));
}

static void commands_without_blocks_are_in_no_range(void **state)
{
    (void)state;
    add("lose:lba=0-0xffffffffffffffff");
    assert_false(hits(1, GPUNVME_CMD_FLUSH));
    assert_false(hits(1, GPUNVME_CMD_DSM));
    assert_false(hits(0, GPUNVME_ADMIN_GET_LOG_PAGE));
}

static void dataset_management_is_met_by_its_ranges(void **state)
{
    const struct gpunvme_sqe sqe = {.opc = GPUNVME_CMD_DSM, .nsid = 1, .cdw10 = 1};
    struct gpunvme_dsm_range ranges[2] = {{.slba = 0, .nlb = 100}, {.slba = 108, .nlb = 1}};

    (void)state;
    assert_int_equal(sim_faults_match_dsm(faults, 1, &sqe, ranges, 2).kind, SIM_FAULT_NONE);
    add("lose:dsm:lba=100-107");
    assert_int_equal(sim_faults_match_dsm(faults, 1, &sqe, ranges, 2).kind, SIM_FAULT_NONE);
    ranges[1].slba = 107;
    assert_int_equal(sim_faults_match_dsm(faults, 1, &sqe, ranges, 2).kind, SIM_FAULT_LOSE);
    ranges[1].nlb = 0;
    assert_int_equal(sim_faults_match_dsm(faults, 1, &sqe, ranges, 2).kind, SIM_FAULT_NONE);
}

static void queues_and_namespaces_narrow_a_rule(void **state)
{
    (void)state;
    add("lose:sq=2:nsid=3");
    assert_int_equal(ask(2, GPUNVME_CMD_READ, 3, 0, 1).kind, SIM_FAULT_LOSE);
    assert_int_equal(ask(1, GPUNVME_CMD_READ, 3, 0, 1).kind, SIM_FAULT_NONE);
    assert_int_equal(ask(2, GPUNVME_CMD_READ, 4, 0, 1).kind, SIM_FAULT_NONE);
}

static void nth_fires_once_at_the_nth_match(void **state)
{
    (void)state;
    add("lose:nth=3:read");
    for (unsigned i = 1; i <= 10; i++) {
        assert_false(hits(1, GPUNVME_CMD_WRITE));
        assert_int_equal(hits(1, GPUNVME_CMD_READ), i == 3);
    }
}

static void every_fires_at_each_multiple(void **state)
{
    (void)state;
    add("lose:every=4");
    for (unsigned i = 1; i <= 20; i++)
        assert_int_equal(hits(1, GPUNVME_CMD_READ), i % 4 == 0);
}

static void once_fires_at_the_first_match_only(void **state)
{
    (void)state;
    add("once:lose");
    assert_true(hits(1, GPUNVME_CMD_READ));
    assert_false(hits(1, GPUNVME_CMD_READ));
}

static unsigned count_hits(unsigned n)
{
    unsigned count = 0;

    while (n--)
        count += hits(1, GPUNVME_CMD_READ);
    return count;
}

static void a_probability_is_met_and_repeats_with_its_seed(void **state)
{
    unsigned count;

    (void)state;
    add("lose:p=0.25");
    count = count_hits(10000);
    assert_in_range(count, 2300, 2700);
    teardown(NULL);
    setup(NULL);
    add("lose:p=25%");
    assert_int_equal(count_hits(10000), count);
    sim_faults_clear(faults);
    add("lose:p=0");
    assert_int_equal(count_hits(1000), 0);
    sim_faults_clear(faults);
    add("lose:p=1");
    assert_int_equal(count_hits(1000), 1000);
}

static void the_first_rule_that_fires_wins(void **state)
{
    (void)state;
    add("lose:nth=2");
    add("cfs");
    assert_int_equal(ask(1, GPUNVME_CMD_READ, 1, 0, 1).kind, SIM_FAULT_CFS);
    assert_int_equal(ask(1, GPUNVME_CMD_READ, 1, 0, 1).kind, SIM_FAULT_LOSE);
    assert_int_equal(ask(1, GPUNVME_CMD_READ, 1, 0, 1).kind, SIM_FAULT_CFS);
}

static void clear_forgets_all_rules(void **state)
{
    (void)state;
    add("lose");
    add("cfs");
    assert_true(sim_faults_any(faults));
    sim_faults_clear(faults);
    assert_false(sim_faults_any(faults));
    assert_false(hits(1, GPUNVME_CMD_READ));
}

static void typos_are_told_with_the_nearest_word(void **state)
{
    (void)state;
    expect_refused("staus=2/81", "did you mean 'status'?");
    expect_refused("lose:raed", "did you mean 'read'?");
    expect_refused("lose:write_zeros", "did you mean 'write_zeroes'?");
    expect_refused("lose:idetnify", "did you mean 'identify'?");
    expect_refused("lose:evry=3", "did you mean 'every'?");
    expect_refused("lose:qqqqqqqq", "none is like it");
    expect_refused("lose:", "unknown word ''");
}

static void malformed_rules_are_refused(void **state)
{
    char rule[200];

    (void)state;
    expect_refused("", "unknown word ''");
    expect_refused("read", "does not say what happens");
    expect_refused("lose:cfs", "has a fault already");
    expect_refused("lose=1", "takes no value");
    expect_refused("status", "needs a value");
    expect_refused("status=281", "write status=SCT/SC");
    expect_refused("status=8/81", "write status=SCT/SC");
    expect_refused("status=2/", "write status=SCT/SC");
    expect_refused("status=2/181", "write status=SCT/SC");
    expect_refused("status=2/81/x", "write status=SCT/SC");
    expect_refused("status=0/0", "success");
    expect_refused("delay=3x", "unknown unit");
    expect_refused("shuffle=1", "2 to 65535");
    expect_refused("shuffle=x", "not a number");
    expect_refused("lose:nth=0", "counts from 1");
    expect_refused("lose:nth=x", "not a number");
    expect_refused("lose:nth=1:nth=2", "given twice");
    expect_refused("lose:nth=1:every=2", "exclude each other");
    expect_refused("lose:p=2", "at most 1");
    expect_refused("lose:lba=7-5", "ends before it begins");
    expect_refused("lose:lba=5-", "not a number");
    expect_refused("lose:lba=-5", "not a number");
    expect_refused("lose:lba=1:lba=2", "given twice");
    expect_refused("lose:sq=65536", "too large");
    expect_refused("lose:sq=1:sq=2", "given twice");
    expect_refused("lose:sq=x", "not a number");
    expect_refused("lose:nsid=0x100000000", "too large");
    memset(rule, 'x', sizeof(rule));
    rule[sizeof(rule) - 1] = 0;
    expect_refused(rule, "longer than 127");
}

/* --- for the engine ----------------------------------------------------------------------------
 */

static void lbahash_names_the_same_blocks_each_time(void **state)
{
    unsigned n = 0;

    (void)state;
    add("lose:read:lbahash=10");
    for (uint64_t lba = 0; lba < 10000; lba++) {
        bool named = sim_engine_lba_fails(1, lba, 10);

        assert_int_equal(ask(1, GPUNVME_CMD_READ, 1, lba, 1).kind,
                         named ? SIM_FAULT_LOSE : SIM_FAULT_NONE);
        n += named;
    }
    assert_in_range(n, 800, 1200);
    assert_int_equal(ask(1, GPUNVME_CMD_READ, 1, 0, 1000).kind, SIM_FAULT_LOSE);
    assert_int_equal(ask(1, GPUNVME_CMD_FLUSH, 1, 0, 1).kind, SIM_FAULT_NONE);
}

static void rules_for_io_are_exported_and_those_for_admin_are_not(void **state)
{
    struct sim_engine_rule rules[SIM_ENGINE_MAX_RULES];

    (void)state;
    add("lose:identify");
    add("status=2/81/dnr:read:lba=5-7:nsid=3:sq=9:every=4:p=50%:lbahash=6");
    add("delay=3us:once");
    assert_int_equal(sim_faults_export(faults, rules), 2);
    assert_int_equal(rules[0].kind, SIM_ENGINE_FAULT_STATUS);
    assert_int_equal(rules[0].status, GPUNVME_SC_UNRECOVERED_READ | GPUNVME_STATUS_DNR);
    assert_int_equal(rules[0].opcodes[0], 1u << GPUNVME_CMD_READ);
    assert_true(rules[0].has_lba && rules[0].has_nsid && rules[0].has_sq && !rules[0].once);
    assert_int_equal(rules[0].first_lba, 5);
    assert_int_equal(rules[0].last_lba, 7);
    assert_int_equal(rules[0].nsid, 3);
    assert_int_equal(rules[0].sq, 9);
    assert_int_equal(rules[0].every, 4);
    assert_int_equal(rules[0].lba_one_in, 6);
    assert_true(rules[0].p_of_2_to64 == UINT64_C(1) << 63);
    assert_int_equal(rules[1].kind, SIM_ENGINE_FAULT_DELAY);
    assert_int_equal(rules[1].delay_ns, 3000);
    assert_true(rules[1].p_of_2_to64 == UINT64_MAX);
    assert_true(rules[1].once);
    for (unsigned i = 0; i < 8; i++)
        assert_int_equal(rules[1].opcodes[i], UINT32_MAX);
}

static void what_the_engine_counted_is_added_once(void **state)
{
    struct sim_engine_rule rules[SIM_ENGINE_MAX_RULES];

    (void)state;
    add("lose:write:once");
    add("lose:read:nth=5");
    assert_false(hits(1, GPUNVME_CMD_READ));
    assert_int_equal(sim_faults_export(faults, rules), 2);
    assert_int_equal(rules[1].nmatches, 1);
    rules[1].nmatches += 2;
    rules[0].spent = 1;
    assert_false(hits(1, GPUNVME_CMD_READ)); /* meanwhile */
    sim_faults_absorb(faults, rules, 2);
    sim_faults_absorb(faults, rules, 2);
    assert_true(hits(1, GPUNVME_CMD_READ));
    assert_false(hits(1, GPUNVME_CMD_WRITE));
}

static void rules_that_were_cleared_meanwhile_absorb_nothing(void **state)
{
    struct sim_engine_rule rules[SIM_ENGINE_MAX_RULES];

    (void)state;
    add("lose:read:nth=2");
    assert_int_equal(sim_faults_export(faults, rules), 1);
    sim_faults_clear(faults);
    add("lose:read:nth=2");
    rules[0].nmatches = 1;
    sim_faults_absorb(faults, rules, 1);
    assert_false(hits(1, GPUNVME_CMD_READ));
    assert_true(hits(1, GPUNVME_CMD_READ));
}

static void the_engine_takes_no_more_rules_than_it_has_room_for(void **state)
{
    (void)state;
    sim_faults_for_engine(faults);
    assert_int_equal(sim_faults_add(faults, "shuffle=4"), GPUNVME_ERR_UNSUPPORTED);
    assert_int_equal(sim_faults_add(faults, "powerloss:io"), GPUNVME_ERR_UNSUPPORTED);
    for (unsigned i = 0; i < SIM_ENGINE_MAX_RULES; i++)
        add("lose:read");
    assert_int_equal(sim_faults_add(faults, "lose:read"), GPUNVME_ERR_LIMIT);
    add("powerloss:identify");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(without_rules_nothing_happens),
        TEST(each_fault_is_understood),
        TEST(a_rule_without_a_target_meets_every_command),
        TEST(commands_are_named),
        TEST(admin_commands_are_named),
        TEST(admin_and_io_name_all_of_a_kind),
        TEST(blocks_overlap_at_either_end),
        TEST(one_block_is_a_range_too),
        TEST(a_range_at_the_end_of_all_blocks_does_not_wrap),
        TEST(commands_without_blocks_are_in_no_range),
        TEST(dataset_management_is_met_by_its_ranges),
        TEST(queues_and_namespaces_narrow_a_rule),
        TEST(nth_fires_once_at_the_nth_match),
        TEST(every_fires_at_each_multiple),
        TEST(once_fires_at_the_first_match_only),
        TEST(a_probability_is_met_and_repeats_with_its_seed),
        TEST(the_first_rule_that_fires_wins),
        TEST(clear_forgets_all_rules),
        TEST(lbahash_names_the_same_blocks_each_time),
        TEST(rules_for_io_are_exported_and_those_for_admin_are_not),
        TEST(what_the_engine_counted_is_added_once),
        TEST(rules_that_were_cleared_meanwhile_absorb_nothing),
        TEST(the_engine_takes_no_more_rules_than_it_has_room_for),
        TEST(typos_are_told_with_the_nearest_word),
        TEST(malformed_rules_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
