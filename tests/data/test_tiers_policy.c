/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which files migration moves, and which it moves to make room: by simulated accesses, with a
 * clock of the test's.
 */
#include <math.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include "data/tiers/internal.h"
#include "patience.h"
#include "tiers_rig.h"

#define KIB    1024u
#define HOUR   INT64_C(3600000000000)
#define DAY    (24 * HOUR)
#define WEEK_S (7 * 24 * 3600)
#define YEAR   (365 * DAY)

static int64_t now;
static struct gpunvme_tiers *t;
static uint64_t limits[GPUNVME_NTIERS]; /* that hold at every step; 0: none */
static unsigned steps;

static int64_t clock_ns(void *user)
{
    (void)user;
    return now;
}

void __wrap_tiers_step(enum tiers_step step, const char *name);

void __wrap_tiers_step(enum tiers_step step, const char *name)
{
    (void)step, (void)name;
    steps++;
    for (int tier = 0; tier < GPUNVME_NTIERS; tier++)
        if (limits[tier] && rig_du(tier) > limits[tier])
            fail_msg("%s: step %d: the %s tier has %llu bytes, of %llu", name, (int)step,
                     gpunvme_tier_name(tier), (unsigned long long)rig_nbytes,
                     (unsigned long long)limits[tier]);
}

static void open_set(struct gpunvme_tiers_options options)
{
    options.clock_ns = clock_ns;
    ok(gpunvme_tiers_open(rig_dir[HOT], &options, &t));
}

static void make_set(struct gpunvme_tiers_settings settings)
{
    rig_create(settings);
    open_set((struct gpunvme_tiers_options){0});
}

static void make_limited_set(uint64_t hot, uint64_t warm, uint64_t cold)
{
    make_set((struct gpunvme_tiers_settings){.capacity_nbytes = {hot, warm, cold},
                                             .half_life_s = INFINITY});
    limits[HOT] = hot;
    limits[WARM] = warm;
    limits[COLD] = cold;
}

static int set_up(void **state)
{
    (void)state;
    now = 56 * YEAR;
    t = NULL;
    steps = 0;
    memset(limits, 0, sizeof(limits));
    rig_make_folders();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    ok(gpunvme_tiers_close(t));
    return rig_remove();
}

static void access_file(const char *name, unsigned n)
{
    uint64_t word;

    while (n--)
        ok(gpunvme_tiers_read(t, name, 0, &word, GPUNVME_MEM_HOST, 8, NULL));
}

/* A file of this tier and so many accesses, of which the first makes it. */
static void make_file(const char *name, int tier, size_t nbytes, unsigned accesses)
{
    ok(rig_put(t, name, tier, nbytes, 1));
    access_file(name, accesses - 1);
}

static struct gpunvme_tiers_moves migrate(void)
{
    struct gpunvme_tiers_moves moves;

    ok(gpunvme_tiers_migrate(t, 0, &moves));
    if (moves.failed)
        fail_msg("%s", gpunvme_err_detail());
    return moves;
}

static double score_of(const char *name)
{
    struct gpunvme_tiers_file file;

    ok(gpunvme_tiers_stat(t, name, &file));
    return file.score;
}

/* The tiers of files named a, b, c, …, a letter each. */
static void lie(const char *tiers)
{
    for (char name[] = "a"; *tiers; name[0]++, tiers++) {
        const char is = *gpunvme_tier_name(rig_tier(t, name));

        if (is != *tiers)
            fail_msg("%s is in %c, not in %c", name, is, *tiers);
        rig_has(t, name, 1);
    }
}

/* ---- Thresholds ------------------------------------------------------------------------------ */

static void the_default_thresholds_place_files(void **state)
{
    struct gpunvme_tiers_moves moves;

    (void)state;
    make_set((struct gpunvme_tiers_settings){0});
    make_file("a", WARM, 100, 9);
    make_file("b", COLD, 100, 10);
    make_file("c", HOT, 100, 99);
    make_file("d", COLD, 100, 100);
    make_file("e", WARM, 100, 500);
    make_file("f", HOT, 100, 1);
    moves = migrate();
    assert_int_equal(moves.up, 3);
    assert_int_equal(moves.down, 3);
    assert_int_equal(moves.nbytes, 600);
    lie("cwwhhc");
}

static void accesses_within_an_hour_count_as_one_burst(void **state)
{
    (void)state;
    make_set((struct gpunvme_tiers_settings){0});
    make_file("a", COLD, 100, 1);
    for (unsigned i = 1; i < 100; i++) {
        now += HOUR / 100;
        access_file("a", 1);
    }
    migrate();
    lie("h");
}

static void thresholds_can_be_changed(void **state)
{
    const struct gpunvme_tiers_settings settings = {.hot_at = 20, .warm_at = 3};

    (void)state;
    make_set((struct gpunvme_tiers_settings){.hot_at = 5, .warm_at = 2});
    make_file("a", COLD, 100, 5);
    make_file("b", COLD, 100, 2);
    make_file("c", COLD, 100, 1);
    migrate();
    lie("hwc"); /* and counts an access of each */
    ok(gpunvme_tiers_configure(t, &settings));
    migrate();
    lie("wwc");
}

static void scores_decay_and_files_go_down(void **state)
{
    (void)state;
    make_set((struct gpunvme_tiers_settings){0});
    make_file("a", COLD, 100, 300);
    migrate();
    assert_int_equal(rig_tier(t, "a"), HOT);
    for (int day = 1; day <= 40; day++) {
        now += DAY;
        migrate();
        /* 300 * 2^(-day / 7): below 99.5 on day 12, below 9.95 on day 35 */
        assert_int_equal(rig_tier(t, "a"), day < 12 ? HOT : day < 35 ? WARM : COLD);
    }
}

static void without_decay_files_stay(void **state)
{
    (void)state;
    make_set((struct gpunvme_tiers_settings){.half_life_s = INFINITY});
    make_file("a", HOT, 100, 100);
    now += 10 * YEAR;
    migrate();
    assert_int_equal(rig_tier(t, "a"), HOT);
}

static void scores_outlive_the_process(void **state)
{
    (void)state;
    make_set((struct gpunvme_tiers_settings){0});
    make_file("a", COLD, 100, 60);
    ok(gpunvme_tiers_close(t));
    open_set((struct gpunvme_tiers_options){0});
    access_file("a", 40);
    migrate();
    assert_int_equal(rig_tier(t, "a"), HOT);
}

static void a_clock_that_goes_back_does_no_harm(void **state)
{
    double score;

    (void)state;
    make_set((struct gpunvme_tiers_settings){0});
    make_file("a", COLD, 100, 300);
    migrate();
    now -= 20 * YEAR;
    migrate();
    score = score_of("a");
    assert_true(score > 299 && score < 301);
    now += 7 * DAY;
    migrate();
    score = score_of("a");
    assert_true(score > 149 && score < 151);
    assert_int_equal(rig_tier(t, "a"), HOT);
}

/* ---- Room ------------------------------------------------------------------------------------ */

static void the_file_with_the_lowest_rank_makes_room(void **state)
{
    (void)state;
    make_limited_set(3 * KIB, 100 * KIB, 0);
    make_file("a", HOT, KIB, 120);
    make_file("b", HOT, KIB, 110);
    make_file("c", HOT, KIB, 130);
    make_file("d", COLD, KIB, 140);
    migrate();
    lie("hwhh");
}

static void room_cascades_to_the_cold_tier(void **state)
{
    (void)state;
    make_limited_set(2 * KIB, 2 * KIB, 0);
    make_file("a", HOT, KIB, 150);
    make_file("b", HOT, KIB, 160);
    make_file("c", WARM, KIB, 20);
    make_file("d", WARM, KIB, 30);
    make_file("e", COLD, KIB, 170);
    migrate();
    lie("whcwh");
}

static void a_put_makes_room(void **state)
{
    (void)state;
    make_limited_set(3 * KIB, 3 * KIB, 0);
    make_file("a", HOT, KIB, 120);
    make_file("b", COLD, KIB, 130);
    ok(gpunvme_tiers_close(t)); /* writes the scores */
    open_set((struct gpunvme_tiers_options){0});
    ok(rig_put(t, "b", HOT, 3 * KIB, 2));
    assert_int_equal(rig_tier(t, "a"), WARM);
    assert_int_equal(rig_tier(t, "b"), HOT);
    rig_has(t, "a", 1);
    rig_has(t, "b", 2);
}

static void files_with_equal_ranks_do_not_swap(void **state)
{
    struct gpunvme_tiers_moves moves;

    (void)state;
    make_limited_set(KIB, 0, 0);
    make_file("a", HOT, KIB, 150);
    make_file("b", COLD, KIB, 150);
    moves = migrate();
    assert_int_equal(moves.up, 1); /* b, up to warm */
    moves = migrate();
    assert_int_equal(moves.up + moves.down, 0);
    assert_int_equal(moves.no_room, 1);
    lie("hw");
}

static void nothing_moves_when_it_does_not_suffice(void **state)
{
    (void)state;
    make_limited_set(4 * KIB, 0, 0);
    make_file("a", HOT, KIB, 101);
    make_file("b", HOT, 3 * KIB, 300);
    make_file("c", WARM, 2 * KIB, 200);
    migrate();
    lie("hhw");
    fails(NOSPC, gpunvme_tiers_move(t, "c", HOT, false, NULL));
    lie("hhw");
}

static void no_more_files_go_than_must(void **state)
{
    (void)state;
    make_limited_set(10 * KIB, 0, 0);
    make_file("a", HOT, KIB, 101);
    make_file("b", HOT, 9 * KIB, 102);
    make_file("c", WARM, 9 * KIB, 200);
    migrate();
    lie("hwh");
}

/* v goes for c, and then w for d, beside which v would fit again: that is for the next pass. */
static void a_file_that_made_room_does_not_come_back_in_the_pass(void **state)
{
    struct gpunvme_tiers_moves moves;
    char name[8];

    (void)state;
    make_set((struct gpunvme_tiers_settings){
        .capacity_nbytes = {12 * KIB}, .hot_at = 10, .warm_at = 2, .half_life_s = INFINITY});
    make_file("v", HOT, KIB, 11);
    make_file("w", HOT, 11 * KIB, 12);
    make_file("c", WARM, KIB, 20);
    make_file("d", WARM, 9 * KIB, 15);
    for (unsigned i = 0; i < 100; i++) { /* so that the catalogue is asked for more behind them */
        snprintf(name, sizeof(name), "x%u", i);
        make_file(name, WARM, 13 * KIB, 14);
    }
    moves = migrate();
    assert_int_equal(moves.up, 2);
    assert_int_equal(moves.down, 2);
    assert_int_equal(rig_tier(t, "v"), WARM);
    moves = migrate();
    assert_int_equal(moves.up, 1);
    assert_int_equal(rig_tier(t, "v"), HOT);
}

static void of_files_that_cannot_be_moved_another_one_goes(void **state)
{
    (void)state;
    make_limited_set(3 * KIB, 0, 0);
    make_file("a", HOT, KIB, 101);
    make_file("b", HOT, KIB, 102);
    make_file("c", HOT, KIB, 103);
    make_file("d", WARM, KIB, 200);
    rig_write_file(rig_dir[HOT], "a", KIB, 7); /* behind its back */
    ok(gpunvme_tiers_move(t, "d", HOT, false, NULL));
    assert_int_equal(rig_tier(t, "a"), HOT);
    assert_int_equal(rig_tier(t, "b"), WARM);
    assert_int_equal(rig_tier(t, "c"), HOT);
}

/* The warm tier has room for one of both. */
static void not_one_file_goes_where_all_find_no_room(void **state)
{
    (void)state;
    make_limited_set(2 * KIB, KIB, 2 * KIB);
    make_file("a", HOT, KIB, 110);
    make_file("b", HOT, KIB, 120);
    make_file("c", COLD, 2 * KIB, 200);
    fails(NOSPC, gpunvme_tiers_move(t, "c", HOT, false, NULL));
    lie("hhc");
}

static void what_no_tier_below_can_hold_stays(void **state)
{
    (void)state;
    make_limited_set(2 * KIB, KIB, KIB);
    make_file("a", HOT, 2 * KIB, 110);
    make_file("b", WARM, KIB, 200);
    fails(NOSPC, gpunvme_tiers_move(t, "b", HOT, false, NULL));
    lie("hw");
}

static void a_smaller_capacity_is_obeyed(void **state)
{
    const struct gpunvme_tiers_settings settings = {.capacity_nbytes = {2 * KIB}};

    (void)state;
    make_set((struct gpunvme_tiers_settings){0});
    make_file("a", HOT, KIB, 103);
    make_file("b", HOT, KIB, 101);
    make_file("c", HOT, KIB, 102);
    ok(gpunvme_tiers_configure(t, &settings));
    migrate();
    lie("hwh");
}

/* Files of random sizes, ranks and places: whatever comes, moves end. */
static void files_come_to_rest(void **state)
{
    struct base_random r = {42};

    (void)state;
    make_limited_set(40 * KIB, 60 * KIB, 0);
    for (unsigned round = 0; round < 4; round++) {
        struct gpunvme_tiers_moves moves;
        unsigned passes = 0;

        for (unsigned i = 0; i < 30; i++) {
            char name[8];

            snprintf(name, sizeof(name), "f%u", i);
            if (!round)
                ok(rig_put(t, name, AUTO, rng_between(&r, 24, 9 * KIB), 1));
            access_file(name, (unsigned)base_random_below(&r, 100));
        }
        do {
            moves = migrate();
            assert_true(++passes <= 4);
        } while (moves.up + moves.down);
    }
    assert_true(steps > 100);
}

/* Puts, moves and passes at random: no step has more in a tier than its capacity. */
static void capacities_hold_at_every_step(void **state)
{
    struct base_random r = {43};

    (void)state;
    make_limited_set(30 * KIB, 50 * KIB, 90 * KIB);
    for (unsigned i = 0; i < 400; i++) {
        const int tier = (int)base_random_below(&r, 4) - 1;
        gpunvme_err_t err = GPUNVME_OK;
        char name[8];

        snprintf(name, sizeof(name), "f%u", (unsigned)base_random_below(&r, 20));
        switch (base_random_below(&r, 5)) {
        case 0:
        case 1:
            err = rig_put(t, name, tier, rng_between(&r, 24, 12 * KIB), i);
            break;
        case 2:
            err = gpunvme_tiers_move(t, name, tier, false, NULL);
            break;
        case 3:
            migrate();
            break;
        default:
            if (!gpunvme_tiers_stat(t, name, &(struct gpunvme_tiers_file){0}))
                access_file(name, (unsigned)base_random_below(&r, 60));
        }
        if (err && err != GPUNVME_ERR_NOSPC && err != GPUNVME_ERR_NOT_FOUND)
            fail_msg("%s: %s", gpunvme_err_name(err), gpunvme_err_detail());
    }
    assert_true(steps > 1000);
}

/* ---- Pins and moves -------------------------------------------------------------------------- */

static void a_pinned_file_stays(void **state)
{
    int tier;

    (void)state;
    make_limited_set(2 * KIB, 0, 0);
    make_file("a", COLD, KIB, 500);
    make_file("b", HOT, KIB, 1);
    make_file("c", HOT, KIB, 150);
    make_file("d", COLD, KIB, 200);
    ok(gpunvme_tiers_move(t, "a", COLD, true, NULL));
    ok(gpunvme_tiers_move(t, "b", HOT, true, NULL));
    migrate();
    lie("chwh");
    ok(gpunvme_tiers_move(t, "a", AUTO, false, &tier));
    assert_int_equal(tier, HOT);
    ok(gpunvme_tiers_move(t, "b", AUTO, false, &tier));
    assert_int_equal(tier, COLD);
    migrate();
    lie("hcwh");
}

static void a_move_without_pin_ends_a_pin(void **state)
{
    struct gpunvme_tiers_file file;

    (void)state;
    make_set((struct gpunvme_tiers_settings){0});
    make_file("a", COLD, KIB, 1);
    ok(gpunvme_tiers_move(t, "a", HOT, true, NULL));
    ok(gpunvme_tiers_stat(t, "a", &file));
    assert_int_equal(file.pinned, HOT);
    ok(gpunvme_tiers_move(t, "a", WARM, false, NULL));
    ok(gpunvme_tiers_stat(t, "a", &file));
    assert_int_equal(file.pinned, AUTO);
    assert_int_equal(file.tier, WARM);
}

static void a_move_whose_arguments_are_wrong_is_refused(void **state)
{
    (void)state;
    make_set((struct gpunvme_tiers_settings){0});
    make_file("a", COLD, KIB, 1);
    fails(INVALID, gpunvme_tiers_move(t, "a", 3, false, NULL));
    fails(INVALID, gpunvme_tiers_move(t, "a", -2, false, NULL));
    fails(INVALID, gpunvme_tiers_move(t, "a", AUTO, true, NULL));
    fails(INVALID, gpunvme_tiers_move(t, "../a", HOT, false, NULL));
    fails(NOT_FOUND, gpunvme_tiers_move(t, "b", HOT, false, NULL));
}

static void a_move_keeps_mode_and_time(void **state)
{
    struct stat before, after;
    char path[100];

    (void)state;
    make_set((struct gpunvme_tiers_settings){0});
    make_file("a", COLD, KIB, 1);
    snprintf(path, sizeof(path), "%s/a", rig_dir[COLD]);
    assert_int_equal(chmod(path, 0640), 0);
    assert_int_equal(stat(path, &before), 0);
    ok(gpunvme_tiers_move(t, "a", HOT, false, NULL));
    snprintf(path, sizeof(path), "%s/a", rig_dir[HOT]);
    assert_int_equal(stat(path, &after), 0);
    assert_int_equal(after.st_mode, before.st_mode);
    assert_memory_equal(&after.st_mtim, &before.st_mtim, sizeof(after.st_mtim));
}

/* ---- Other policies -------------------------------------------------------------------------- */

static unsigned asked;

/* By the name's first letter; what has another one goes nowhere. */
static int by_letter(void *user, const struct gpunvme_tiers_file *file)
{
    asked++;
    assert_ptr_equal(user, &asked);
    return file->name[0] == 'h'   ? HOT
           : file->name[0] == 'w' ? WARM
           : file->name[0] == 'c' ? COLD
                                  : 7;
}

static void a_policy_of_the_caller_is_asked_for_every_file(void **state)
{
    struct gpunvme_tiers_moves moves;
    char name[16];

    (void)state;
    rig_create((struct gpunvme_tiers_settings){0});
    open_set((struct gpunvme_tiers_options){.policy = by_letter, .policy_user = &asked});
    for (unsigned i = 0; i < 150; i++) {
        snprintf(name, sizeof(name), "%c%u", "hwcx"[i % 4], i);
        ok(rig_put(t, name, (int)(i % 3), 24, 1));
    }
    asked = 0;
    moves = migrate();
    assert_int_equal(asked, 150);
    assert_int_equal(moves.up + moves.down, 74); /* of 38, 38 and 37 13 are right */
    for (unsigned i = 0; i < 150; i++) {
        snprintf(name, sizeof(name), "%c%u", "hwcx"[i % 4], i);
        assert_int_equal(rig_tier(t, name), i % 4 < 3 ? i % 4 : i % 3);
    }
    moves = migrate();
    assert_int_equal(moves.up + moves.down, 0);
}

/* ---- Passes and processes -------------------------------------------------------------------- */

static void a_pass_ends_at_its_deadline(void **state)
{
    struct gpunvme_tiers_moves moves;

    (void)state;
    make_set((struct gpunvme_tiers_settings){0});
    make_file("a", HOT, 100, 1);
    fails(TIMEOUT, gpunvme_tiers_migrate(t, 1, &moves));
    assert_int_equal(moves.down, 0);
    migrate();
    lie("c");
}

static void a_file_that_fails_is_counted_and_the_others_move(void **state)
{
    struct gpunvme_tiers_moves moves;

    (void)state;
    make_set((struct gpunvme_tiers_settings){0});
    make_file("a", HOT, 100, 2);
    make_file("b", HOT, 100, 3);
    rig_write_file(rig_dir[HOT], "a", 200, 7); /* behind its back */
    ok(gpunvme_tiers_migrate(t, 0, &moves));
    assert_int_equal(moves.failed, 1);
    assert_non_null(strstr(gpunvme_err_detail(), "a"));
    assert_int_equal(moves.down, 1);
    assert_int_equal(rig_tier(t, "b"), COLD);
}

/* What another process, this program with an argument, finds when it migrates. */
static gpunvme_err_t migrate_elsewhere(void)
{
    char program[] = "/proc/self/exe", *argv[] = {program, rig_dir[COLD], NULL};
    pid_t pid;
    int status;

    assert_int_equal(posix_spawn(&pid, program, NULL, NULL, argv, environ), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return -WEXITSTATUS(status);
}

static int run_elsewhere(const char *dir)
{
    gpunvme_err_t err = gpunvme_tiers_open(dir, NULL, &t);

    if (!err)
        err = gpunvme_tiers_migrate(t, 0, NULL);
    gpunvme_tiers_close(t);
    return -err;
}

static bool waits_for(bool (*done)(void))
{
    for (unsigned i = 0; i < PATIENCE_S * 100 && !done(); i++)
        usleep(10000);
    return done();
}

static bool is_cold(void)
{
    return rig_tier(t, "a") == COLD;
}

static void a_thread_migrates_and_no_other_process_does(void **state)
{
    struct gpunvme_tiers_info info;

    (void)state;
    rig_create((struct gpunvme_tiers_settings){0});
    assert_int_equal(migrate_elsewhere(), GPUNVME_OK);
    open_set(
        (struct gpunvme_tiers_options){.flags = GPUNVME_TIERS_MIGRATE, .interval_ns = 10000000});
    make_file("a", HOT, 100, 1);
    assert_true(waits_for(is_cold));
    ok(gpunvme_tiers_get_info(t, &info));
    assert_true(info.migrating);
    assert_int_equal(info.tier[COLD].moved_in, 1);
    assert_int_equal(migrate_elsewhere(), GPUNVME_ERR_BUSY);
    migrate(); /* by the process that has the job */
    assert_int_equal(migrate_elsewhere(), GPUNVME_ERR_BUSY);
    ok(gpunvme_tiers_close(t));
    assert_int_equal(migrate_elsewhere(), GPUNVME_OK);
    open_set((struct gpunvme_tiers_options){0});
    ok(gpunvme_tiers_get_info(t, &info));
    assert_false(info.migrating);
}

static void a_child_does_not_keep_the_job_of_its_parent(void **state)
{
    gpunvme_err_t before, after;
    pid_t pid;

    (void)state;
    rig_create((struct gpunvme_tiers_settings){0});
    open_set((struct gpunvme_tiers_options){.flags = GPUNVME_TIERS_MIGRATE});
    migrate();
    pid = fork();
    if (!pid)
        for (;;)
            pause();
    before = migrate_elsewhere();
    ok(gpunvme_tiers_close(t));
    t = NULL;
    after = migrate_elsewhere();
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(before, GPUNVME_ERR_BUSY);
    assert_int_equal(after, GPUNVME_OK);
}

/* At 64 KiB/s the copy would take two hours. */
static void closing_ends_a_copy(void **state)
{
    static uint64_t bytes[RIG_NBYTES_MAX / 8];
    struct gpunvme_tiers_info info = {0};

    (void)state;
    rig_create((struct gpunvme_tiers_settings){.migrate_bytes_per_s = 64 * KIB});
    open_set((struct gpunvme_tiers_options){0});
    ok(gpunvme_tiers_put(t, "a", HOT, bytes, GPUNVME_MEM_HOST, sizeof(bytes)));
    ok(gpunvme_tiers_write(t, "a", 512 * 1024 * KIB, bytes, GPUNVME_MEM_HOST, 8, NULL));
    ok(gpunvme_tiers_close(t));
    open_set(
        (struct gpunvme_tiers_options){.flags = GPUNVME_TIERS_MIGRATE, .interval_ns = 10000000});
    for (unsigned i = 0; i < PATIENCE_S * 100 && !info.moving; i++) {
        usleep(10000);
        ok(gpunvme_tiers_get_info(t, &info));
    }
    assert_int_equal(info.moving, 1);
    ok(gpunvme_tiers_close(t));
    open_set((struct gpunvme_tiers_options){0});
    assert_int_equal(rig_tier(t, "a"), HOT);
    ok(gpunvme_tiers_get_info(t, &info));
    assert_int_equal(info.moving, 0);
    rig_du(COLD);
    assert_int_equal(rig_nfiles, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(the_default_thresholds_place_files),
        TEST(accesses_within_an_hour_count_as_one_burst),
        TEST(thresholds_can_be_changed),
        TEST(scores_decay_and_files_go_down),
        TEST(without_decay_files_stay),
        TEST(scores_outlive_the_process),
        TEST(a_clock_that_goes_back_does_no_harm),
        TEST(the_file_with_the_lowest_rank_makes_room),
        TEST(room_cascades_to_the_cold_tier),
        TEST(a_put_makes_room),
        TEST(files_with_equal_ranks_do_not_swap),
        TEST(nothing_moves_when_it_does_not_suffice),
        TEST(no_more_files_go_than_must),
        TEST(a_file_that_made_room_does_not_come_back_in_the_pass),
        TEST(of_files_that_cannot_be_moved_another_one_goes),
        TEST(not_one_file_goes_where_all_find_no_room),
        TEST(what_no_tier_below_can_hold_stays),
        TEST(a_smaller_capacity_is_obeyed),
        TEST(files_come_to_rest),
        TEST(capacities_hold_at_every_step),
        TEST(a_pinned_file_stays),
        TEST(a_move_without_pin_ends_a_pin),
        TEST(a_move_whose_arguments_are_wrong_is_refused),
        TEST(a_move_keeps_mode_and_time),
        TEST(a_policy_of_the_caller_is_asked_for_every_file),
        TEST(a_pass_ends_at_its_deadline),
        TEST(a_file_that_fails_is_counted_and_the_others_move),
        TEST(a_thread_migrates_and_no_other_process_does),
        TEST(a_child_does_not_keep_the_job_of_its_parent),
        TEST(closing_ends_a_copy),
    };

    return argc == 2 ? run_elsewhere(argv[1]) : cmocka_run_group_tests(tests, NULL, NULL);
}
