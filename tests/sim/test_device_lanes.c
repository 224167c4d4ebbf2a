/* SPDX-License-Identifier: BSD-3-Clause
 *
 * device.cuh by a warp of several lanes, each a thread (lanes.h), in queues with fewer slots than
 * lanes: all get on, whoever waits for a slot, a command or the others.
 */
#include "sim/lanes.h"

#include "sim/device_fixture.h"

#include <unistd.h>

#define LANES    8u
#define ALL      ((UINT32_C(1) << LANES) - 1)
#define HANG_S   60
#define PER_LANE 8192u /* bytes of the buffer */

struct warp {
    struct fixture f;
    unsigned rounds;
    int (*work)(struct warp *w, uint32_t lane, unsigned round);
    uint32_t group_of[LANES];
    unsigned results[LANES]; /* that were not GPUNVME_OK */
    int last[LANES];         /* the last of them */
    uint64_t timeout_ns[LANES];
    uint64_t written; /* where write_bytes() begins */
};

struct lane_of {
    struct warp *warp;
    uint32_t lane;
};

static void *lane_main(void *arg)
{
    struct lane_of *l = arg;
    struct warp *w = l->warp;

    lanes_me = l->lane;
    for (unsigned round = 0; round < w->rounds; round++) {
        int err;

        lanes_beside = w->group_of[l->lane];
        err = w->work(w, l->lane, round);
        if (err) {
            w->results[l->lane]++;
            w->last[l->lane] = err;
        }
    }
    return NULL;
}

static void warp_open(struct warp *w, const char *uri, uint32_t entries, uint64_t seed)
{
    struct dev_rig_opts opts;

    memset(w, 0, sizeof(*w));
    dev_rig_opts_init(&opts);
    opts.entries = entries;
    fixture_open(&w->f, uri, &opts);
    image_fill(&w->f, seed);
    for (uint32_t i = 0; i < LANES; i++)
        w->group_of[i] = ALL;
}

static void warp_run(struct warp *w, int (*work)(struct warp *, uint32_t, unsigned),
                     unsigned rounds)
{
    struct lane_of lanes[LANES];
    pthread_t threads[LANES];
    struct timespec until;

    lanes_init();
    w->work = work;
    w->rounds = rounds;
    for (uint32_t i = 0; i < LANES; i++) {
        lanes[i] = (struct lane_of){w, i};
        assert_int_equal(pthread_create(&threads[i], NULL, lane_main, &lanes[i]), 0);
    }
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += HANG_S;
    for (uint32_t i = 0; i < LANES; i++)
        assert_int_equal(pthread_timedjoin_np(threads[i], NULL, &until), 0);
}

static void warp_close(struct warp *w)
{
    for (uint32_t i = 0; i < LANES; i++)
        if (w->results[i])
            print_error("lane %u: %s\n", i, gpunvme_err_name(w->last[i]));
    for (uint32_t i = 0; i < LANES; i++)
        assert_int_equal(w->results[i], 0);
    assert_false(dev_rig_alarmed(&w->f.rig));
    assert_int_equal(dev_rig_taken(&w->f.rig, 0), 0);
    assert_int_equal(w->f.ns.queues[0].holders, 0);
    fixture_close(&w->f);
}

/* --- what a lane does ------------------------------------------------------------------------- */

static int read_blocks(struct warp *w, uint32_t lane, unsigned round)
{
    uint64_t lba = (lane * 131 + round * 17) % 2000;
    uint32_t nlb = 1 + lane % 3;
    int err = gpunvme_dev_read(&w->f.ns, lba, nlb, &w->f.buf, lane * PER_LANE, w->timeout_ns[lane]);

    if (!err && memcmp(w->f.bytes + lane * PER_LANE, w->f.image + lba * 512, nlb * 512) != 0)
        err = GPUNVME_ERR_VERIFY;
    return err;
}

static int read_a_block(struct warp *w, uint32_t lane, unsigned round)
{
    return gpunvme_dev_read(&w->f.ns, round, 1, &w->f.buf, lane * PER_LANE, w->timeout_ns[lane]);
}

static int read_bytes(struct warp *w, uint32_t lane, unsigned round)
{
    uint64_t offset = lane * 3001 + round * 517;
    int err = gpunvme_dev_read_bytes(&w->f.ns, offset, 700, &w->f.buf, lane * PER_LANE + 1,
                                     w->timeout_ns[lane]);

    if (!err && memcmp(w->f.bytes + lane * PER_LANE + 1, w->f.image + offset, 700) != 0)
        err = GPUNVME_ERR_VERIFY;
    return err;
}

/* Each lane in blocks of its own. */
static int write_bytes(struct warp *w, uint32_t lane, unsigned round)
{
    uint64_t offset = w->written + lane * 16384 + round * 100;

    memset(w->f.bytes + lane * PER_LANE, (int)(lane + round), 700);
    memset(w->f.image + offset, (int)(lane + round), 700);
    return gpunvme_dev_write_bytes(&w->f.ns, offset, 700, &w->f.buf, lane * PER_LANE, 0,
                                   w->timeout_ns[lane]);
}

static int mixed(struct warp *w, uint32_t lane, unsigned round)
{
    if (lane < 3)
        return read_blocks(w, lane, round);
    if (lane < 5) /* not where others write */
        return gpunvme_dev_read_bytes(&w->f.ns, 900000 + round * 31, 900, &w->f.buf,
                                      lane * PER_LANE, 0);
    return write_bytes(w, lane, round);
}

static int share(struct warp *w, uint32_t lane, unsigned round)
{
    struct gpunvme_dev_group g = {.mask = ALL, .unit = lane, .units = LANES};
    uint32_t nlb = 100 + round * 37;
    int err =
        gpunvme_dev_group_range(&w->f.ns, g, GPUNVME_CMD_READ, round, nlb, &w->f.buf, round * 4, 0);

    if (!err && memcmp(w->f.bytes + round * 4, w->f.image + round * 512, nlb * 512) != 0)
        err = GPUNVME_ERR_VERIFY;
    gpunvme_warp_sync(ALL); /* all have looked before the next one reads into it */
    return err;
}

/* Some tokens, and a test of each now and then. */
static int split(struct warp *w, uint32_t lane, unsigned round)
{
    struct gpunvme_dev_token t;
    int err = gpunvme_dev_submit_read(&w->f.ns, lane + round, 1, &w->f.buf, lane * PER_LANE, &t);

    if (err)
        return err == GPUNVME_ERR_AGAIN ? (int)GPUNVME_OK : err;
    if (round % 2)
        return gpunvme_dev_wait(&w->f.ns, &t, 0);
    do
        err = gpunvme_dev_test(&t);
    while (err == GPUNVME_ERR_AGAIN);
    return err;
}

/* As many commands of each lane as there is room for, at most 1 to 4. */
static int several(struct warp *w, uint32_t lane, unsigned round)
{
    struct gpunvme_dev_token tokens[4];
    struct gpunvme_dev_vec vec[4];
    uint32_t n;
    int err;

    for (uint32_t i = 0; i < 4; i++)
        vec[i] = (struct gpunvme_dev_vec){
            .slba = lane * 131 + round * 4 + i, .off = lane * PER_LANE + 512 * i, .nlb = 1};
    err = gpunvme_dev_submit_readv(&w->f.ns, vec, 1 + (lane + round) % 4, &w->f.buf, tokens, &n);
    for (uint32_t i = 0; i < n && !err; i++) {
        err = gpunvme_dev_wait(&w->f.ns, &tokens[i], 0);
        if (!err && memcmp(w->f.bytes + vec[i].off, w->f.image + vec[i].slba * 512, 512) != 0)
            err = GPUNVME_ERR_VERIFY;
    }
    return err == GPUNVME_ERR_AGAIN ? (int)GPUNVME_OK : err;
}

/* --- all get on ------------------------------------------------------------------------------- */

static void lanes_share_three_slots(void **state)
{
    struct warp w;

    (void)state;
    warp_open(&w, "sim:size=1M", 4, 1);
    warp_run(&w, read_blocks, 60);
    warp_run(&w, read_bytes, 40);
    warp_run(&w, split, 60);
    warp_run(&w, several, 60);
    warp_run(&w, share, 20);
    warp_close(&w);
}

static void lanes_submit_several_commands_each(void **state)
{
    struct warp w;

    (void)state;
    warp_open(&w, "sim:size=1M", 64, 3);
    warp_run(&w, several, 200);
    warp_close(&w);
}

/* Two slots are free, here and there; none of the lanes that wait may want more for ever. */
static void lanes_get_on_with_two_slots_of_many(void **state)
{
    uint64_t tickets[64];
    struct warp w;

    (void)state;
    warp_open(&w, "sim:size=1M", 64, 6);
    for (uint32_t i = 1; i < 64; i++)
        if (i != 20 && i != 41)
            assert_true(gpunvme_dev_slot_take(w.f.ns.queues, i, &tickets[i]));
    warp_run(&w, read_blocks, 10);
    for (uint32_t i = 1; i < 64; i++)
        if (i != 20 && i != 41)
            gpunvme_dev_slot_unclaim(w.f.ns.queues, tickets[i]);
    warp_run(&w, read_blocks, 10);
    warp_close(&w);
}

/* Claims slots for a group, and gives them back. `written` counts the slots that were found. */
static int claim_together(struct warp *w, uint32_t lane, unsigned round)
{
    struct gpunvme_dev_want want = {(uint32_t)w->timeout_ns[lane], round != 0};
    struct gpunvme_dev_queue *q = w->f.ns.queues;
    uint64_t ticket;
    int got = gpunvme_dev_slot_claim(q, ALL, lane, want, &ticket);
    uint32_t found = gpunvme_popcount(gpunvme_warp_ballot(ALL, got));

    if (got) /* before the others look again */
        gpunvme_dev_slot_unclaim(q, ticket);
    gpunvme_warp_sync(ALL);
    if (lane == 0)
        w->written += found;
    return !found || found >= want.least ? (int)GPUNVME_OK : (int)GPUNVME_ERR_VERIFY;
}

static uint64_t found_together(struct warp *w, uint32_t least, unsigned rounds)
{
    for (uint32_t i = 0; i < LANES; i++)
        w->timeout_ns[i] = least;
    w->written = 0;
    warp_run(w, claim_together, rounds);
    return w->written;
}

/* Three slots are free, of three lanes, and in runs that a lane may look at at once. */
static void a_group_takes_as_many_slots_as_it_wants_or_none(void **state)
{
    uint64_t tickets[64];
    struct warp w;

    (void)state;
    warp_open(&w, "sim:size=1M", 64, 9);
    for (uint32_t i = 1; i < 64; i++)
        if (i != 4 && i != 17 && i != 42)
            assert_true(gpunvme_dev_slot_take(w.f.ns.queues, i, &tickets[i]));
    assert_int_equal(found_together(&w, 4, 200), 0);
    assert_true(found_together(&w, 3, 2000) >= 3);
    assert_true(found_together(&w, 1, 200) >= 1);
    for (uint32_t i = 1; i < 64; i++)
        if (i != 4 && i != 17 && i != 42)
            gpunvme_dev_slot_unclaim(w.f.ns.queues, tickets[i]);
    assert_int_equal(found_together(&w, 8, 100), 800);
    warp_close(&w);
}

static void lanes_that_change_blocks_share_three_slots(void **state)
{
    struct warp w;

    (void)state;
    warp_open(&w, "sim:size=1M", 4, 2);
    warp_run(&w, write_bytes, 40);
    image_assert(&w.f);
    warp_close(&w);
}

static void parts_of_a_warp_do_different_things(void **state)
{
    struct warp w;

    (void)state;
    for (uint32_t entries = 4; entries <= 64; entries *= 4) {
        warp_open(&w, "sim:size=1M", entries, 3);
        for (uint32_t i = 0; i < LANES; i++)
            w.group_of[i] = i < 3 ? 0x07 : i < 5 ? 0x18 : 0xe0;
        w.written = 500000; /* which nobody reads */
        warp_run(&w, mixed, 30);
        warp_close(&w);
    }
}

/*
 * One slot: odd lanes, whose hint it is, have it first, and wait for the others when their own
 * deadline is over.
 */
static void a_lane_that_is_through_raises_no_alarm(void **state)
{
    int is_slow = 0;
    struct warp w;

    (void)state;
    warp_open(&w, "sim:size=1M,latency=50ms", 2, 4);
    for (uint32_t i = 0; i < LANES; i++)
        w.timeout_ns[i] = i % 2 ? 300 * MS : 20000 * MS;
    warp_run(&w, read_a_block, 1);
    for (uint32_t i = 0; i < LANES; i++)
        is_slow |= w.last[i] == GPUNVME_ERR_TIMEOUT;
    if (is_slow) { /* this machine is: nothing is said then, but what was given up must end */
        usleep(200000);
        gpunvme_dev_queue_reap(w.f.ns.queues, 1, 1);
        memset(w.results, 0, sizeof(w.results));
    } else {
        assert_false(dev_rig_alarmed(&w.f.rig));
    }
    gpunvme_store_release32(w.f.ns.alarm, 0);
    warp_close(&w);
}

/* --- a controller that answers no more ---------------------------------------------------------
 */

/* On a device whose queues resets know, and that has somebody who looks at alarms. */
static void warp_open_device(struct warp *w, const char *uri, uint32_t entries, uint64_t seed,
                             struct gpunvme_device **dev)
{
    struct gpunvme_device_opts opts;

    warp_open(w, uri, entries, seed);
    assert_ok(dev_rig_close(&w->f.rig));
    memset(&w->f.rig, 0, sizeof(w->f.rig));
    gpunvme_device_opts_init(&opts);
    opts.queues = 1;
    opts.entries = entries;
    assert_ok(gpunvme_device_open(w->f.d.ctrl, &opts, dev));
    assert_ok(gpunvme_device_ns(*dev, w->f.d.ns, &w->f.ns));
}

static int read_first_block(struct warp *w, uint32_t lane, unsigned round)
{
    int err = gpunvme_dev_read(&w->f.ns, 0, 1, &w->f.buf, lane * PER_LANE, w->timeout_ns[lane]);

    (void)round;
    return err == GPUNVME_ERR_TIMEOUT || err == GPUNVME_ERR_ABORTED ? (int)GPUNVME_OK : err;
}

/* The first lane alone has a deadline: what it raises ends the waits of all. */
static void one_lane_with_a_deadline_frees_those_without(void **state)
{
    struct gpunvme_device *dev;
    struct warp w;

    (void)state;
    warp_open_device(&w, "sim:size=1M,fault=lose:read:lba=0", 16, 7, &dev);
    for (uint32_t i = 0; i < LANES; i++)
        w.timeout_ns[i] = i ? UINT64_MAX : 50 * MS;
    warp_run(&w, read_first_block, 1);
    for (uint32_t i = 0; i < LANES; i++)
        assert_int_equal(w.last[i], 0);
    assert_ok(gpunvme_device_recover(dev));
    assert_ok(gpunvme_device_close(dev));
    fixture_close(&w.f);
}

static int change_first_block(struct warp *w, uint32_t lane, unsigned round)
{
    int err;

    (void)round;
    memset(w->f.bytes + lane * PER_LANE, 1, 8);
    err = gpunvme_dev_write_bytes(&w->f.ns, 100, 8, &w->f.buf, lane * PER_LANE, 0,
                                  w->timeout_ns[lane]);
    return err == GPUNVME_ERR_TIMEOUT ? (int)GPUNVME_OK : err;
}

/* There is one place. Who waited for it until its own deadline does not try for another one. */
static void lanes_do_not_wait_for_each_others_deadlines(void **state)
{
    struct gpunvme_dev_queue *q;
    struct warp w;

    (void)state;
    warp_open(&w, "sim:size=1M,fault=lose:read:lba=0", 16, 8);
    q = w.f.ns.queues;
    q->holders = q->mask / 2 - 1;
    for (uint32_t i = 0; i < LANES; i++)
        w.timeout_ns[i] = 200 * MS;
    warp_run(&w, change_first_block, 1);
    for (uint32_t i = 0; i < LANES; i++)
        assert_int_equal(w.last[i], 0);
    assert_int_equal(q->reserved, 1);
    assert_int_equal(q->holders, q->mask / 2 - 1);
    fixture_close(&w.f);
}

/* --- resets ----------------------------------------------------------------------------------- */

/* Bytes or blocks, by lanes of two groups; errors are those of a reset. */
static int anything(struct warp *w, uint32_t lane, unsigned round)
{
    int err = round % 3 == 0   ? write_bytes(w, lane, round % 40)
              : round % 3 == 1 ? read_blocks(w, lane, 1)
                               : read_bytes(w, lane, 1);

    return err == GPUNVME_ERR_ABORTED || err == GPUNVME_ERR_CLOSED || err == GPUNVME_ERR_VERIFY
               ? (int)GPUNVME_OK
               : err;
}

static void *reset_now_and_then(void *w_)
{
    struct warp *w = w_;

    for (unsigned i = 0; i < 20; i++) {
        usleep(5000);
        if (gpunvme_ctrl_reset(w->f.d.ctrl) != GPUNVME_OK)
            w->last[0] = GPUNVME_ERR_FATAL;
    }
    return NULL;
}

static void lanes_get_on_through_resets(void **state)
{
    struct gpunvme_device *dev;
    pthread_t resetter;
    struct warp w;

    (void)state;
    warp_open_device(&w, "sim:size=1M,latency=200us", 8, 5, &dev);
    for (uint32_t i = 0; i < LANES; i++)
        w.group_of[i] = i < 3 ? 0x07 : 0xf8;
    assert_int_equal(pthread_create(&resetter, NULL, reset_now_and_then, &w), 0);
    warp_run(&w, anything, 200);
    pthread_join(resetter, NULL);
    for (uint32_t i = 0; i < LANES; i++)
        assert_int_equal(w.last[i], 0);
    assert_int_equal(w.f.ns.queues[0].holders, 0);
    /* All was given back: nothing is left for recovery to do, and all lanes work. */
    for (uint32_t slot = 1; slot < 8; slot++)
        assert_false(w.f.ns.queues[0].slots[slot].word & GPUNVME_DEV_SLOT_TAKEN);
    warp_run(&w, read_a_block, 20);
    for (uint32_t i = 0; i < LANES; i++)
        assert_int_equal(w.last[i], 0);
    assert_ok(gpunvme_device_close(dev));
    fixture_close(&w.f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lanes_share_three_slots),
        cmocka_unit_test(lanes_submit_several_commands_each),
        cmocka_unit_test(lanes_get_on_with_two_slots_of_many),
        cmocka_unit_test(a_group_takes_as_many_slots_as_it_wants_or_none),
        cmocka_unit_test(lanes_that_change_blocks_share_three_slots),
        cmocka_unit_test(parts_of_a_warp_do_different_things),
        cmocka_unit_test(a_lane_that_is_through_raises_no_alarm),
        cmocka_unit_test(one_lane_with_a_deadline_frees_those_without),
        cmocka_unit_test(lanes_do_not_wait_for_each_others_deadlines),
        cmocka_unit_test(lanes_get_on_through_resets),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
