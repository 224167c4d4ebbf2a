/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Processes that are killed while they put, move, remove and write files of a set, configure, scrub
 * and rebuild it, at every step and at random instants. Whoever opens the set next finds each name
 * once, with all of its old or its new bytes and their checksum, no leftovers, and sums that are
 * those of the rows.
 *
 *     test_tiers_crash [--kills N] [--seed S]
 *
 * The processes are this program, run with --child. In memory that they share with the parent
 * stands for each file which version was begun last and which has ended.
 */
#include <dirent.h>
#include <getopt.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "base/random.h"
#include "data/tiers/internal.h"
#include "gpunvme/memory.h"
#include "patience.h"
#include "tiers_rig.h"

#define NFILES   10u
#define NINPLACE 2u /* of them, written in place: a version is 8 bytes */

enum op {
    PUT_SAME,
    PUT_OTHER,
    PUT_NEW,
    MOVE_UP,
    MOVE_DOWN,
    REMOVE,
    OPEN,
    RANDOM,
    WRITE, /* from here on, steps are TIERS_STEP_PART, and counted */
    CONFIGURE,
    SCRUB,
    REBUILD,
    NOPS
};

static const char *const op_names[NOPS] = {"put in its tier", "put in another tier",
                                           "put a new file",  "move up",
                                           "move down",       "remove",
                                           "open the set",    "at random",
                                           "write in place",  "configure",
                                           "scrub",           "rebuild"};

struct version {
    _Atomic uint64_t begun, ended;
};

struct shared {
    struct version versions[NFILES];
    _Atomic uint64_t calls; /* of tiers_step() by the child */
};

static struct shared *shared;
static uint64_t nkills = 60, seed = 1; /* of kills at random instants */
static char *self;

/* ---- The child ------------------------------------------------------------------------------- */

static int kill_at = -1;   /* a step */
static int kill_part = -1; /* a number of TIERS_STEP_PART */

void __wrap_tiers_step(enum tiers_step step, const char *name);

void __wrap_tiers_step(enum tiers_step step, const char *name)
{
    (void)name;
    atomic_fetch_add(&shared->calls, 1);
    if ((int)step == kill_at || (step == TIERS_STEP_PART && kill_part-- == 0))
        kill(getpid(), SIGKILL);
}

static void name_of(unsigned file, char name[24])
{
    snprintf(name, 24, "%sfile-%u", file % 2 ? "d/e/" : "", file);
}

static bool is_inplace(unsigned file)
{
    return file >= NFILES - NINPLACE;
}

/* Version 0 is that there is no file. */
static bool is_removal(unsigned file, uint64_t version)
{
    return !version || (!is_inplace(file) && version % 7 == 0);
}

static size_t nbytes_of(uint64_t version)
{
    return RIG_NBYTES_MIN + rng_hash(version) % (RIG_NBYTES_MAX - RIG_NBYTES_MIN);
}

static gpunvme_err_t next_version(struct gpunvme_tiers *t, unsigned file, int tier)
{
    struct version *v = &shared->versions[file];
    const uint64_t version = atomic_load(&v->begun) + 1;
    char name[24];
    gpunvme_err_t err;

    name_of(file, name);
    atomic_store(&v->begun, version);
    if (is_inplace(file))
        err = gpunvme_tiers_write(t, name, 0, &version, GPUNVME_MEM_HOST, sizeof(version), NULL);
    else if (is_removal(file, version))
        err = gpunvme_tiers_remove(t, name);
    else
        err = rig_put(t, name, tier, nbytes_of(version), version);
    if (!err || err == GPUNVME_ERR_NOT_FOUND)
        atomic_store(&v->ended, version);
    return err == GPUNVME_ERR_NOT_FOUND ? GPUNVME_OK : err;
}

static gpunvme_err_t at_random(struct gpunvme_tiers *t, struct base_random *r)
{
    for (;;) {
        const unsigned file = (unsigned)base_random_below(r, NFILES);
        const int tier = (int)base_random_below(r, GPUNVME_NTIERS);
        char name[24];
        gpunvme_err_t err;

        name_of(file, name);
        if (base_random_below(r, 2))
            err = next_version(t, file, tier);
        else if (base_random_below(r, 4))
            err = gpunvme_tiers_move(t, name, tier, false, NULL);
        else
            err = gpunvme_tiers_migrate(t, 0, NULL);
        if (err && err != GPUNVME_ERR_NOT_FOUND && err != GPUNVME_ERR_NOSPC)
            return err;
    }
}

static gpunvme_err_t run_op(struct gpunvme_tiers *t, enum op op, struct base_random *r)
{
    switch (op) {
    case PUT_SAME:
        return next_version(t, 0, WARM);
    case PUT_OTHER:
        return next_version(t, 0, COLD);
    case PUT_NEW:
        return next_version(t, 1, HOT);
    case MOVE_UP:
        return gpunvme_tiers_move(t, "file-0", HOT, false, NULL);
    case MOVE_DOWN:
        return gpunvme_tiers_move(t, "file-0", COLD, false, NULL);
    case REMOVE:
        atomic_store(&shared->versions[0].begun, 7);
        return gpunvme_tiers_remove(t, "file-0");
    case RANDOM:
        return at_random(t, r);
    case WRITE:
        return next_version(t, NFILES - 1, WARM);
    case CONFIGURE:
        return gpunvme_tiers_configure(t, &(struct gpunvme_tiers_settings){.warm_at = 20});
    case SCRUB:
        return gpunvme_tiers_scrub(t, GPUNVME_TIERS_READ_ALL, NULL, NULL, NULL);
    default:
        return GPUNVME_OK;
    }
}

static void share(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT, 0666);

    if (fd < 0 || ftruncate(fd, sizeof(*shared)))
        abort();
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (shared == MAP_FAILED)
        abort();
}

/* The folder of the rig, and what it has in it. */
static void use_root(const char *root)
{
    char path[128];

    if (root != rig_root)
        snprintf(rig_root, sizeof(rig_root), "%s", root);
    for (int tier = 0; tier < GPUNVME_NTIERS; tier++)
        snprintf(rig_dir[tier], sizeof(rig_dir[tier]), "%s/%s", root, gpunvme_tier_name(tier));
    snprintf(path, sizeof(path), "%s/shared", root);
    share(path);
}

/* ROOT OP STEP SEED; ends with 0 where nothing killed it. */
static int child(char **args)
{
    struct base_random r = {strtoull(args[3], NULL, 10)};
    const enum op op = (enum op)atoi(args[1]);
    struct gpunvme_tiers *t;
    gpunvme_err_t err;

    use_root(args[0]);
    if (op == OPEN)
        kill_at = atoi(args[2]);
    if (op == REBUILD) {
        kill_part = atoi(args[2]);
        err = gpunvme_tiers_rebuild(rig_dir[COLD]);
        return err ? 1 : 0;
    }
    err = gpunvme_tiers_open(rig_dir[COLD], NULL, &t);
    if (op > RANDOM)
        kill_part = atoi(args[2]);
    else
        kill_at = atoi(args[2]);
    if (!err)
        err = run_op(t, op, &r);
    if (!err)
        err = gpunvme_tiers_close(t);
    if (err)
        fprintf(stderr, "child, %s: %s: %s\n", op_names[op], gpunvme_err_name(err),
                gpunvme_err_detail());
    return err ? 1 : 0;
}

/* ---- The parent ------------------------------------------------------------------------------ */

static pid_t start(enum op op, int step, uint64_t child_seed)
{
    char ops[12], steps[12], seeds[24];
    pid_t pid;

    snprintf(ops, sizeof(ops), "%d", (int)op);
    snprintf(steps, sizeof(steps), "%d", step);
    snprintf(seeds, sizeof(seeds), "%llu", (unsigned long long)child_seed);
    pid = fork();
    if (!pid) {
        execl("/proc/self/exe", self, "--child", rig_root, ops, steps, seeds, NULL);
        _exit(127);
    }
    assert_true(pid > 0);
    return pid;
}

/* Whether it was killed; else it has done all. */
static bool was_killed(pid_t pid)
{
    int status;

    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        return true;
    assert_int_equal(status, 0);
    return false;
}

static void check_no_leftovers(int tier)
{
    char path[256];
    struct dirent *entry;
    DIR *dir;

    snprintf(path, sizeof(path), "%s/" TIERS_FOLDER "/tmp", rig_dir[tier]);
    dir = opendir(path);
    assert_non_null(dir);
    while ((entry = readdir(dir)))
        if (entry->d_name[0] != '.')
            fail_msg("%s/%s was left behind", path, entry->d_name);
    closedir(dir);
}

/* The version that a file has; 0: there is none. Its bytes are whole, with their checksum. */
static uint64_t version_of(struct gpunvme_tiers *t, unsigned file, const char *name)
{
    static uint64_t bytes[RIG_NBYTES_MAX / 8];
    struct gpunvme_tiers_file facts;
    gpunvme_err_t err = gpunvme_tiers_stat(t, name, &facts);
    uint64_t version = 0;
    size_t done;

    for (int tier = 0; tier < GPUNVME_NTIERS; tier++)
        if (rig_is_file(tier, name) != (!err && facts.tier == tier))
            fail_msg("%s: the catalogue has it in tier %d, but see tier %d", name,
                     err ? -1 : facts.tier, tier);
    if (err == GPUNVME_ERR_NOT_FOUND)
        return 0;
    ok(err);
    ok(gpunvme_tiers_read(t, name, 0, bytes, GPUNVME_MEM_HOST, sizeof(bytes), &done));
    assert_int_equal(done, facts.nbytes);
    if (facts.has_checksum)
        assert_int_equal(gpunvme_mem_checksum_host(bytes, done), facts.checksum);
    if (is_inplace(file))
        return done ? bytes[0] : 0;
    assert_true(facts.has_checksum);
    if (!rig_is_whole(bytes, done, name, &version))
        fail_msg("%s: %zu bytes are not a whole version", name, done);
    return version;
}

static void check_file(struct gpunvme_tiers *t, unsigned file)
{
    struct version *v = &shared->versions[file];
    uint64_t is, low = atomic_load(&v->ended);
    const uint64_t high = atomic_load(&v->begun);
    char name[24];

    name_of(file, name);
    is = version_of(t, file, name);
    while (!is && low < high && !is_removal(file, low))
        low++;
    if (is ? is < low || is > high || is_removal(file, is) : !is_removal(file, low))
        fail_msg("%s has version %llu; %llu had ended, %llu begun", name, (unsigned long long)is,
                 (unsigned long long)atomic_load(&v->ended), (unsigned long long)high);
    /* The next process begins here. What it begins has a number of its own. */
    atomic_store(&v->ended, is ? is : low);
}

/* Sums of the catalogue and of the directories. */
static void check_sums(void)
{
    struct tiers_row rows[NFILES + 1];
    uint64_t nbytes[GPUNVME_NTIERS] = {0}, nfiles[GPUNVME_NTIERS] = {0};
    bool has_dirty[GPUNVME_NTIERS] = {false};
    struct tiers_catalogue *c;
    struct tiers_change change;
    char path[256];
    size_t n;

    snprintf(path, sizeof(path), "%s/" TIERS_FOLDER "/catalogue", rig_dir[HOT]);
    ok(tiers_catalogue_open(path, false, PATIENCE_NS, &c));
    fails(NOT_FOUND, tiers_catalogue_change_next(c, "", &change));
    ok(tiers_catalogue_list(c, "", "", rows, NFILES + 1, &n));
    for (size_t i = 0; i < n; i++) {
        nbytes[rows[i].tier] += rows[i].nbytes;
        nfiles[rows[i].tier]++;
        has_dirty[rows[i].tier] |= rows[i].dirty;
    }
    for (int tier = 0; tier < GPUNVME_NTIERS; tier++) {
        struct tiers_sums sums;

        ok(tiers_catalogue_sums(c, tier, &sums));
        assert_int_equal(sums.nbytes, nbytes[tier]);
        assert_int_equal(sums.nfiles, nfiles[tier]);
        assert_int_equal(sums.reserved, 0);
        if (!has_dirty[tier])
            assert_int_equal(rig_du(tier), nbytes[tier]);
    }
    tiers_catalogue_close(c);
}

/* What a process that was killed left is mended by opening the set, without any other work. */
static void check_all(void)
{
    struct gpunvme_tiers *t;

    ok(gpunvme_tiers_open(rig_dir[HOT], NULL, &t));
    for (unsigned i = 0; i < NFILES; i++)
        check_file(t, i);
    for (int tier = 0; tier < GPUNVME_NTIERS; tier++)
        check_no_leftovers(tier);
    ok(gpunvme_tiers_close(t));
    check_sums();
}

/* file-0 is in the warm tier, and there is no other one. */
static void begin_again(void)
{
    struct gpunvme_tiers *t;
    char name[24];

    ok(gpunvme_tiers_open(rig_dir[HOT], NULL, &t));
    for (unsigned i = 0; i < NFILES; i++) {
        gpunvme_err_t err;

        name_of(i, name);
        err = gpunvme_tiers_remove(t, name);
        assert_true(!err || err == GPUNVME_ERR_NOT_FOUND);
        atomic_store(&shared->versions[i].begun, 0);
        atomic_store(&shared->versions[i].ended, 0);
    }
    atomic_store(&shared->versions[0].begun, 1);
    ok(rig_put(t, "file-0", WARM, nbytes_of(1), 1));
    atomic_store(&shared->versions[0].ended, 1);
    ok(gpunvme_tiers_close(t));
}

/* Which steps an operation has. */
static bool has_step(enum op op, int step)
{
    if (op == REMOVE)
        return step == TIERS_STEP_PREPARE || step >= TIERS_STEP_UNLINK;
    if (op == PUT_SAME || op == PUT_NEW)
        return step != TIERS_STEP_UNLINK && step != TIERS_STEP_END;
    return true;
}

/* ---- Tests ----------------------------------------------------------------------------------- */

static void one_that_is_killed_at_any_step_leaves_a_whole_set(void **state)
{
    (void)state;
    for (enum op op = 0; op < OPEN; op++)
        for (int step = 0; step < TIERS_NSTEPS; step++) {
            if (!has_step(op, step))
                continue;
            begin_again();
            if (!was_killed(start(op, step, 0)))
                fail_msg("%s has no step %d", op_names[op], step);
            check_all();
        }
}

/* Whether who ends a change that was left before `step` comes to the step `next`. */
static bool mends_by(enum op op, int step, int next)
{
    if (step == TIERS_STEP_PREPARE || step == TIERS_STEP_ENDED)
        return false;
    if (step < TIERS_STEP_COMMIT) /* it goes back */
        return next == TIERS_STEP_UNLINK || next == TIERS_STEP_END;
    return next >= step && next < TIERS_STEP_ENDED && has_step(op, next);
}

static void one_that_is_killed_while_it_mends_leaves_the_rest_to_the_next(void **state)
{
    (void)state;
    for (enum op op = 0; op < OPEN; op++)
        for (int step = 0; step < TIERS_NSTEPS; step++)
            for (int next = 0; next < TIERS_NSTEPS; next++) {
                if (!has_step(op, step) || !mends_by(op, step, next))
                    continue;
                begin_again();
                assert_true(was_killed(start(op, step, 0)));
                assert_true(was_killed(start(OPEN, next, 0)));
                check_all();
            }
}

/* The threshold is the old or the new one, whichever directory the set is opened by. */
static void check_settings(void)
{
    struct gpunvme_tiers_info info;
    struct gpunvme_tiers *t;

    for (int tier = 0; tier < GPUNVME_NTIERS; tier++) {
        ok(gpunvme_tiers_open(rig_dir[tier], NULL, &t));
        ok(gpunvme_tiers_get_info(t, &info));
        if (info.settings.warm_at != 10 && info.settings.warm_at != 20)
            fail_msg("warm_at is %g", info.settings.warm_at);
        ok(gpunvme_tiers_configure(t, &(struct gpunvme_tiers_settings){.warm_at = 10}));
        ok(gpunvme_tiers_close(t));
    }
}

/* Work for a scrub: a file that something else moved, one of which there are two, and a new one. */
static void confuse(void)
{
    char from[128], to[128];

    snprintf(from, sizeof(from), "%s/file-0", rig_dir[WARM]);
    snprintf(to, sizeof(to), "%s/file-0", rig_dir[COLD]);
    assert_int_equal(rename(from, to), 0);
    rig_write_file(rig_dir[HOT], "twice", 100, 1);
    rig_write_file(rig_dir[COLD], "twice", 100, 1);
    rig_write_file(rig_dir[WARM], "file-2", nbytes_of(1), 1);
    atomic_store(&shared->versions[2].begun, 1);
    atomic_store(&shared->versions[2].ended, 1);
}

/* All that scrub had to do is done, by whoever came to it; no other file than "twice" is new. */
static void check_scrubbed(void)
{
    struct gpunvme_tiers *t;
    uint64_t bytes[100 / 8];

    ok(gpunvme_tiers_open(rig_dir[HOT], NULL, &t));
    ok(gpunvme_tiers_scrub(t, 0, NULL, NULL, NULL));
    ok(gpunvme_tiers_read(t, "twice", 0, bytes, GPUNVME_MEM_HOST, sizeof(bytes), NULL));
    assert_int_equal(rig_is_file(HOT, "twice") + rig_is_file(COLD, "twice"), 1);
    ok(gpunvme_tiers_scrub(t, GPUNVME_TIERS_READ_ALL, NULL, NULL, NULL)); /* all have checksums */
    ok(gpunvme_tiers_remove(t, "twice"));
    ok(gpunvme_tiers_close(t));
}

static void prepare(enum op op)
{
    begin_again();
    if (op == SCRUB || op == REBUILD)
        confuse();
}

static void one_that_is_killed_before_any_part_leaves_a_whole_set(void **state)
{
    static const int least[NOPS] = {[WRITE] = 2, [CONFIGURE] = 4, [SCRUB] = 4, [REBUILD] = 8};

    (void)state;
    for (enum op op = WRITE; op < NOPS; op++) {
        int part = 0;

        for (prepare(op); was_killed(start(op, part, 0)); prepare(op), part++) {
            if (op == REBUILD) /* the next one goes on, or makes it once more */
                ok(gpunvme_tiers_rebuild(rig_dir[HOT]));
            if (op == CONFIGURE)
                check_settings();
            if (op >= SCRUB)
                check_scrubbed();
            check_all();
        }
        if (part < least[op])
            fail_msg("%s has %d parts", op_names[op], part);
        if (op >= SCRUB)
            check_scrubbed();
        check_all();
    }
}

static void what_was_put_when_the_call_had_ended_is_there(void **state)
{
    (void)state;
    begin_again();
    assert_false(was_killed(start(PUT_OTHER, -1, 0)));
    assert_int_equal(shared->versions[0].ended, 2);
    check_all();
}

/* Capacities of the hot and the warm tier: files are moved away for others. */
static void limit(uint64_t hot, uint64_t warm)
{
    struct gpunvme_tiers *t;

    ok(gpunvme_tiers_open(rig_dir[HOT], NULL, &t));
    ok(gpunvme_tiers_configure(t,
                               &(struct gpunvme_tiers_settings){.capacity_nbytes = {hot, warm}}));
    ok(gpunvme_tiers_close(t));
}

/* At the beginning of its n-th step, or some time after it. */
static void kill_after(pid_t pid, uint64_t calls, useconds_t us)
{
    const uint64_t from = atomic_load(&shared->calls);
    int status;

    while (atomic_load(&shared->calls) < from + calls) {
        if (waitpid(pid, &status, WNOHANG)) /* ctest has the deadline */
            fail_msg("the child has ended by itself");
        usleep(50);
    }
    usleep(us);
    kill(pid, SIGKILL);
    assert_true(was_killed(pid));
}

static void one_that_is_killed_at_any_instant_leaves_a_whole_set(void **state)
{
    struct base_random r = {seed};

    (void)state;
    begin_again();
    limit(600 << 10, 800 << 10);
    for (uint64_t i = 0; i < nkills; i++) {
        const pid_t pid = start(RANDOM, -1, base_random_u64(&r));

        kill_after(pid, base_random_below(&r, 60), (useconds_t)base_random_below(&r, 3000));
        check_all();
    }
    limit(GPUNVME_TIERS_NO_LIMIT, GPUNVME_TIERS_NO_LIMIT);
}

static int setup(void **state)
{
    (void)state;
    rig_make_folders();
    use_root(rig_root);
    rig_create((struct gpunvme_tiers_settings){0});
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    munmap(shared, sizeof(*shared));
    return rig_remove();
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"kills", required_argument, NULL, 'k'}, {"seed", required_argument, NULL, 's'}, {0}};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_that_is_killed_at_any_step_leaves_a_whole_set),
        cmocka_unit_test(one_that_is_killed_while_it_mends_leaves_the_rest_to_the_next),
        cmocka_unit_test(one_that_is_killed_before_any_part_leaves_a_whole_set),
        cmocka_unit_test(what_was_put_when_the_call_had_ended_is_there),
        cmocka_unit_test(one_that_is_killed_at_any_instant_leaves_a_whole_set),
    };
    int option;

    self = argv[0];
    if (argc == 6 && !strcmp(argv[1], "--child"))
        return child(&argv[2]);
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1)
        if (option == 'k')
            nkills = strtoull(optarg, NULL, 10);
        else if (option == 's')
            seed = strtoull(optarg, NULL, 10);
        else
            return 2;
    printf("seed %llu\n", (unsigned long long)seed);
    return cmocka_run_group_tests(tests, setup, teardown);
}
