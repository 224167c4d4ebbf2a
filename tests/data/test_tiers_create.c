/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Processes that are killed while they make a set of tiers, before each of its parts and at random
 * instants. What they leave is told, is not opened, and does not keep the next one from making the
 * set, with all files that were there.
 *
 * The processes are this program, run with --child.
 */
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>

#include "data/tiers/internal.h"
#include "tiers_rig.h"

#define NFILES   5
#define NINSTANT 40u
#define NSTEPS   11 /* folders, texts, the catalogue, what is taken in, texts */

static int kill_at = -1; /* the number of a step */
static char *self;

void __wrap_tiers_step(enum tiers_step step, const char *name);

void __wrap_tiers_step(enum tiers_step step, const char *name)
{
    (void)step, (void)name;
    if (kill_at-- == 0)
        kill(getpid(), SIGKILL);
}

static struct gpunvme_tiers_settings settings(void)
{
    return (struct gpunvme_tiers_settings){.dir = {rig_dir[HOT], rig_dir[WARM], rig_dir[COLD]}};
}

/* HOT WARM COLD STEP */
static int child(char **args)
{
    const struct gpunvme_tiers_settings s = {.dir = {args[0], args[1], args[2]}};
    gpunvme_err_t err;

    kill_at = atoi(args[3]);
    err = gpunvme_tiers_create(&s);
    if (err)
        fprintf(stderr, "child: %s: %s\n", gpunvme_err_name(err), gpunvme_err_detail());
    return err ? 1 : 0;
}

static pid_t start(int step)
{
    char steps[12];
    pid_t pid;

    snprintf(steps, sizeof(steps), "%d", step);
    pid = fork();
    if (!pid) {
        execl("/proc/self/exe", self, "--child", rig_dir[HOT], rig_dir[WARM], rig_dir[COLD], steps,
              NULL);
        _exit(127);
    }
    assert_true(pid > 0);
    return pid;
}

static bool was_killed(pid_t pid)
{
    int status;

    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        return true;
    assert_int_equal(status, 0);
    return false;
}

/* Some files in each tier's directory, which are there before the set. */
static int setup(void **state)
{
    (void)state;
    rig_make_folders();
    for (int i = 0; i < NFILES; i++) {
        char path[128];
        FILE *f;

        snprintf(path, sizeof(path), "%s/file-%d", rig_dir[i % GPUNVME_NTIERS], i);
        f = fopen(path, "w");
        assert_non_null(f);
        assert_int_equal(fwrite("0123456789", 1, 10, f), 10);
        assert_int_equal(fclose(f), 0);
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return rig_remove();
}

/* All files are in the set, once. */
static void has_all(struct gpunvme_tiers *t)
{
    struct gpunvme_tiers_info info;
    uint64_t nfiles = 0;

    ok(gpunvme_tiers_get_info(t, &info));
    for (int tier = 0; tier < GPUNVME_NTIERS; tier++)
        nfiles += info.tier[tier].nfiles;
    assert_int_equal(nfiles, NFILES);
    for (int i = 0; i < NFILES; i++) {
        char name[24], bytes[10];

        snprintf(name, sizeof(name), "file-%d", i);
        ok(gpunvme_tiers_read(t, name, 0, bytes, GPUNVME_MEM_HOST, sizeof(bytes), NULL));
        assert_memory_equal(bytes, "0123456789", sizeof(bytes));
    }
}

/* Opens by each directory alike; where there is no set, one can be made. Then all is there. */
static void is_whole_or_made_again(void)
{
    const struct gpunvme_tiers_settings s = settings();
    struct gpunvme_tiers *t;
    gpunvme_err_t err = gpunvme_tiers_open(rig_dir[HOT], NULL, &t);

    if (err == GPUNVME_ERR_NOT_FOUND) {
        fails(NOT_FOUND, gpunvme_tiers_open(rig_dir[WARM], NULL, &t));
        fails(NOT_FOUND, gpunvme_tiers_open(rig_dir[COLD], NULL, &t));
        ok(gpunvme_tiers_create(&s));
        err = gpunvme_tiers_open(rig_dir[HOT], NULL, &t);
    }
    ok(err);
    has_all(t);
    ok(gpunvme_tiers_close(t));
    fails(EXISTS, gpunvme_tiers_create(&s));
}

static void one_that_is_killed_before_any_part_leaves_no_set_or_a_whole_one(void **state)
{
    int step = 0;

    while (was_killed(start(step))) {
        is_whole_or_made_again();
        teardown(state);
        setup(state);
        step++;
    }
    assert_true(step >= NSTEPS);
    is_whole_or_made_again();
}

static void one_that_is_killed_twice_leaves_no_less(void **state)
{
    for (int step = 0; step < NSTEPS; step++) {
        assert_true(was_killed(start(step)));
        was_killed(start(step / 2 + 5));
        is_whole_or_made_again();
        teardown(state);
        setup(state);
    }
}

static void one_that_is_killed_at_any_instant_leaves_no_set_or_a_whole_one(void **state)
{
    struct base_random r = {7};

    for (unsigned i = 0; i < NINSTANT; i++) {
        const pid_t pid = start(-1);

        usleep((useconds_t)base_random_below(&r, 20000));
        kill(pid, SIGKILL);
        was_killed(pid);
        is_whole_or_made_again();
        teardown(state);
        setup(state);
    }
}

static void what_one_that_was_killed_left_is_told(void **state)
{
    struct gpunvme_tiers *t;

    (void)state;
    assert_true(was_killed(start(8)));
    fails(NOT_FOUND, gpunvme_tiers_open(rig_dir[COLD], NULL, &t));
    assert_non_null(strstr(gpunvme_err_detail(), "create it again"));
    fails(NOT_FOUND, gpunvme_tiers_rebuild(rig_dir[COLD]));
}

static void a_set_whose_hot_tier_is_not_mounted_is_not_made_anew(void **state)
{
    const struct gpunvme_tiers_settings s = settings();
    char away[96];

    (void)state;
    ok(gpunvme_tiers_create(&s));
    snprintf(away, sizeof(away), "%s/away", rig_root);
    assert_int_equal(rename(rig_dir[HOT], away), 0);
    assert_int_equal(mkdir(rig_dir[HOT], 0777), 0);
    fails(EXISTS, gpunvme_tiers_create(&s));
}

/* Half of a set here, whose warm directory then became another set's. */
static void what_was_left_does_not_take_the_directory_of_another_set(void **state)
{
    const struct gpunvme_tiers_settings s = settings();
    struct gpunvme_tiers_settings other = s;
    char hot[96];

    (void)state;
    assert_true(was_killed(start(8)));
    snprintf(hot, sizeof(hot), "%s/other", rig_root);
    assert_int_equal(mkdir(hot, 0777), 0);
    other.dir[HOT] = hot;
    ok(gpunvme_tiers_create(&other));
    fails(EXISTS, gpunvme_tiers_create(&s));
}

static void two_do_not_make_a_set_at_a_time(void **state)
{
    const struct gpunvme_tiers_settings s = settings();
    int fd = open(rig_dir[COLD], O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    (void)state;
    assert_int_equal(flock(fd, LOCK_EX), 0); /* as another process does */
    fails(BUSY, gpunvme_tiers_create(&s));
    close(fd);
    ok(gpunvme_tiers_create(&s));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(one_that_is_killed_before_any_part_leaves_no_set_or_a_whole_one),
        TEST(one_that_is_killed_twice_leaves_no_less),
        TEST(one_that_is_killed_at_any_instant_leaves_no_set_or_a_whole_one),
        TEST(what_one_that_was_killed_left_is_told),
        TEST(a_set_whose_hot_tier_is_not_mounted_is_not_made_anew),
        TEST(what_was_left_does_not_take_the_directory_of_another_set),
        TEST(two_do_not_make_a_set_at_a_time),
    };

    self = argv[0];
    if (argc == 6 && !strcmp(argv[1], "--child"))
        return child(&argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
