/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A slot on a controller, and with a clock, that the linker puts in place of the real ones
 * (--wrap).
 */
#include "sim/driver.h"
#include "storage/nvme/store.h"

#define TIMEOUT_NS 1000u
#define RESET_NS   UINT64_C(3600000000000)

static uint64_t now_ns;
static unsigned nsubmitted, nlate;

uint64_t __wrap_nvme_rough_now(void);
uint64_t __wrap_nvme_rough_now(void)
{
    return now_ns;
}

gpunvme_err_t __wrap_gpunvme_submit_flush(struct gpunvme_ioq *ioq, const struct gpunvme_ns *ns,
                                          struct gpunvme_token *token);
gpunvme_err_t __wrap_gpunvme_submit_flush(struct gpunvme_ioq *ioq, const struct gpunvme_ns *ns,
                                          struct gpunvme_token *token)
{
    (void)ioq;
    (void)ns;
    (void)token;
    nsubmitted++;
    return GPUNVME_OK;
}

gpunvme_err_t __wrap_gpunvme_token_test(struct gpunvme_token *token);
gpunvme_err_t __wrap_gpunvme_token_test(struct gpunvme_token *token)
{
    (void)token;
    return GPUNVME_ERR_AGAIN;
}

/* Of a late command: the controller is reset, which takes long. */
gpunvme_err_t __wrap_gpunvme_token_wait(struct gpunvme_token *token, uint64_t timeout_ns);
gpunvme_err_t __wrap_gpunvme_token_wait(struct gpunvme_token *token, uint64_t timeout_ns)
{
    (void)token;
    (void)timeout_ns;
    nlate++;
    now_ns += RESET_NS;
    return GPUNVME_ERR_ABORTED;
}

gpunvme_err_t __wrap_gpunvme_ctrl_check(struct gpunvme_ctrl *ctrl);
gpunvme_err_t __wrap_gpunvme_ctrl_check(struct gpunvme_ctrl *ctrl)
{
    (void)ctrl;
    now_ns += RESET_NS;
    return GPUNVME_OK;
}

static void turn(struct nvme_slot *slots, unsigned n)
{
    uint64_t now = now_ns;

    for (unsigned i = 0; i < n; i++) {
        nvme_slot_turn(&slots[i], &now);
        while (nvme_slot_must_block(&slots[i])) {
            nvme_slot_block(&slots[i]);
            nvme_slot_turn(&slots[i], &now);
        }
    }
}

static void a_command_that_is_sent_after_a_long_reset_is_not_late(void **state)
{
    static struct nvme_store s = {.command_timeout_ns = TIMEOUT_NS};
    static struct gpunvme_ns ns = {.block_size = 512, .block_shift = 9};
    static struct nvme_share share;
    static struct gpunvme_store store = {.priv = &s};
    struct gpunvme_io io = {.op = GPUNVME_OP_FLUSH};
    const struct crew_piece piece = {.io = &io, .store = &store, .op = GPUNVME_OP_FLUSH};
    struct nvme_slot slots[2] = {0};

    (void)state;
    s.ns = &ns;
    s.share = &share;
    now_ns = 1;
    nvme_slot_begin(&slots[0], &piece);
    turn(slots, 1);
    assert_int_equal(nsubmitted, 1);
    now_ns += TIMEOUT_NS;
    nvme_slot_begin(&slots[1], &piece);
    turn(slots, 2); /* the first is late; then both are sent */
    assert_int_equal(nlate, 1);
    assert_int_equal(nsubmitted, 3);
    turn(slots, 2);
    assert_int_equal(nlate, 1);
    now_ns += TIMEOUT_NS;
    turn(slots, 1); /* but now it is */
    assert_int_equal(nlate, 2);
}

static void a_write_waits_for_who_writes_a_part_of_its_block(void **state)
{
    static struct nvme_store s = {.chunk = 4096};
    static struct gpunvme_store store = {.priv = &s};
    static struct gpunvme_ns ns = {.block_size = 512, .block_shift = 9, .nbytes = 8192};
    static uint8_t bytes[512];
    static struct nvme_share share = {.claimed.lock = PTHREAD_MUTEX_INITIALIZER};
    struct nvme_claim claim = {0};
    struct gpunvme_io io = {.op = GPUNVME_OP_WRITE, .ptr = bytes, .offset = 512, .nbytes = 512};
    const struct crew_piece piece = {.io = &io,
                                     .store = &store,
                                     .op = GPUNVME_OP_WRITE,
                                     .offset = 512,
                                     .ptr = bytes,
                                     .nbytes = 512};
    struct nvme_slot slot = {0};

    (void)state;
    s.ns = &ns;
    s.share = &share;
    assert_true(nvme_claim_take(&share.claimed, &claim, 1, 1, true));
    nvme_slot_begin(&slot, &piece);
    turn(&slot, 1);
    assert_int_equal(slot.state, SLOT_CLAIM); /* waits for who has it */
    nvme_claim_drop(&share.claimed, &claim);
    assert_true(nvme_claim_take(&share.claimed, &slot.claim, 1, 1, false));
    nvme_claim_drop(&share.claimed, &slot.claim);
    assert_null(share.claimed.parts);
    assert_null(share.claimed.wholes);
}

static void only_writes_of_parts_exclude_others_and_only_of_their_blocks(void **state)
{
    struct nvme_claimed claimed = {.lock = PTHREAD_MUTEX_INITIALIZER};
    struct nvme_claim whole = {0}, same = {0}, part = {0}, next = {0};

    (void)state;
    assert_true(nvme_claim_take(&claimed, &whole, 8, 8, false));
    assert_true(nvme_claim_take(&claimed, &same, 8, 8, false));
    assert_false(nvme_claim_take(&claimed, &part, 15, 1, true));
    assert_true(nvme_claim_take(&claimed, &part, 16, 1, true));
    assert_false(nvme_claim_take(&claimed, &next, 16, 1, true));
    assert_false(nvme_claim_take(&claimed, &next, 0, 17, false));
    assert_true(nvme_claim_take(&claimed, &next, 17, 1, true));
    nvme_claim_drop(&claimed, &whole); /* the first, the middle and the last of a list */
    nvme_claim_drop(&claimed, &same);
    nvme_claim_drop(&claimed, &part);
    assert_true(nvme_claim_take(&claimed, &part, 15, 2, true));
    nvme_claim_drop(&claimed, &next);
    nvme_claim_drop(&claimed, &part);
    assert_null(claimed.parts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_command_that_is_sent_after_a_long_reset_is_not_late),
        cmocka_unit_test(a_write_waits_for_who_writes_a_part_of_its_block),
        cmocka_unit_test(only_writes_of_parts_exclude_others_and_only_of_their_blocks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
