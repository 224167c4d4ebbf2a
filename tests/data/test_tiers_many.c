/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Many processes use one set at once, and some of them are killed: each has threads that read, put,
 * move, remove, migrate and scrub at random. Every read is of one whole version.
 *
 * Each file has an owner, which alone makes and removes it, so its versions have an order. In
 * memory that all share stands which version was begun last, and which has ended: a read that
 * begins after the end of version d, and ends before the beginning of version b, is of one of d … b
 * - 1. A version that is a removal has no bytes. Some files have no owner: they have whole
 * versions, in any order.
 *
 *     test_tiers_many [--seconds N] [--seed S] [--processes P]
 */
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#include "tiers_rig.h"

#define KIB        1024u
#define NFILES     48u
#define NSHARED    8u /* of them, without an owner */
#define NTHREADS   2u
#define NPROCESSES 64u

/* Of a file: what a process that was killed has begun stays without an end. */
struct versions {
    _Atomic uint64_t begun, ended;
};

struct shared {
    atomic_bool stop;
    struct versions versions[NFILES];
    _Atomic uint64_t reads, puts, removes, moves, passes, scrubs, busy, kills;
};

static struct shared *shared;
static uint64_t seed = 1, seconds = 15, processes = 8;

static void name_of(unsigned file, char name[24])
{
    static const char *const folders[] = {"", "d/", "d/e/", "f/"};

    snprintf(name, 24, "%sfile-%u", folders[file % 4], file);
}

static bool is_shared(unsigned file)
{
    return file < NSHARED;
}

/* One version in eight is a removal; that before the first is one as well. */
static bool is_removal(unsigned file, uint64_t version)
{
    return !version || rng_hash(seed ^ version * NFILES ^ file) % 8 == 0;
}

static size_t nbytes_of(unsigned file, uint64_t version)
{
    const uint64_t h = rng_hash(rng_hash(seed + file) + version);

    return RIG_NBYTES_MIN + h % (h >> 32 & 7 ? 24 * KIB : RIG_NBYTES_MAX - RIG_NBYTES_MIN);
}

/* ---- One thread ------------------------------------------------------------------------------ */

struct worker {
    struct gpunvme_tiers *t;
    unsigned process, index;
    struct base_random r;
    uint64_t seen[NFILES]; /* the newest version that was read */
};

_Noreturn static void complain(const char *what, const char *name, gpunvme_err_t err)
{
    fprintf(stderr, "process %d: %s of %s: %s: %s\n", (int)getpid(), what, name,
            gpunvme_err_name(err), gpunvme_err_detail());
    _exit(2);
}

/* Reads by one of the ways that there are. */
static gpunvme_err_t read_one(struct worker *w, const char *name, uint64_t *version)
{
    uint64_t *bytes;
    struct gpunvme_store *store;
    size_t done = 0;
    gpunvme_err_t err, end;

    if (!rng_one_in(&w->r, 3))
        return rig_read(w->t, name, version);
    err = gpunvme_tiers_open_store(w->t, name, 1, &store);
    if (err)
        return err;
    bytes = malloc(RIG_NBYTES_MAX);
    if (rng_one_in(&w->r, 4))
        usleep(1000); /* it may move, or be replaced, meanwhile */
    err = gpunvme_store_read(store, 0, bytes, GPUNVME_MEM_HOST, RIG_NBYTES_MAX, &done);
    if (!err && !rig_is_whole(bytes, done, name, version))
        err = gpunvme_err_set(GPUNVME_ERR_VERIFY, "%zu bytes are not a whole version", done);
    free(bytes);
    end = gpunvme_close(store);
    return err ? err : end;
}

static void check_read(struct worker *w, unsigned file)
{
    struct versions *v = &shared->versions[file];
    const uint64_t ended = atomic_load(&v->ended);
    uint64_t version = 0, begun;
    char name[24];
    gpunvme_err_t err;

    name_of(file, name);
    err = read_one(w, name, &version);
    begun = atomic_load(&v->begun);
    atomic_fetch_add(&shared->reads, 1);
    if (err == GPUNVME_ERR_NOT_FOUND) {
        bool may = is_shared(file);

        for (uint64_t i = ended; i <= begun && !may; i++)
            may = is_removal(file, i);
        if (!may)
            complain("read", name, err);
        return;
    }
    if (err)
        complain("read", name, err);
    if (is_shared(file))
        return;
    if (version < ended || version > begun || is_removal(file, version) ||
        version < w->seen[file]) {
        gpunvme_err_set(GPUNVME_ERR_VERIFY, "version %llu, of %llu to %llu; before it was %llu",
                        (unsigned long long)version, (unsigned long long)ended,
                        (unsigned long long)begun, (unsigned long long)w->seen[file]);
        complain("read", name, GPUNVME_ERR_VERIFY);
    }
    w->seen[file] = version;
}

/* Puts or removes the next version of a file that is this thread's alone, or of any shared one. */
static void make_version(struct worker *w, unsigned file)
{
    struct versions *v = &shared->versions[file];
    const uint64_t version = atomic_fetch_add(&v->begun, 1) + 1;
    const int tier = (int)base_random_below(&w->r, 4) - 1;
    char name[24];
    gpunvme_err_t err;

    name_of(file, name);
    for (;;) {
        err = is_removal(file, version)
                  ? gpunvme_tiers_remove(w->t, name)
                  : rig_put(w->t, name, tier, nbytes_of(file, version), version);
        if (err == GPUNVME_ERR_NOSPC && tier != COLD)
            err = is_removal(file, version)
                      ? err
                      : rig_put(w->t, name, COLD, nbytes_of(file, version), version);
        if (err != GPUNVME_ERR_BUSY)
            break;
        atomic_fetch_add(&shared->busy, 1);
        if (is_shared(file))
            return;
    }
    if (err && !(err == GPUNVME_ERR_NOT_FOUND && is_removal(file, version)))
        complain(is_removal(file, version) ? "remove" : "put", name, err);
    atomic_fetch_add(is_removal(file, version) ? &shared->removes : &shared->puts, 1);
    if (!is_shared(file))
        atomic_store(&v->ended, version);
}

static void move_one(struct worker *w, unsigned file)
{
    const int tier = (int)base_random_below(&w->r, 4) - 1;
    char name[24];
    gpunvme_err_t err;

    name_of(file, name);
    err = gpunvme_tiers_move(w->t, name, tier, tier != AUTO && rng_one_in(&w->r, 5), NULL);
    if (err == GPUNVME_ERR_BUSY)
        atomic_fetch_add(&shared->busy, 1);
    else if (err && err != GPUNVME_ERR_NOT_FOUND && err != GPUNVME_ERR_NOSPC)
        complain("move", name, err);
    else
        atomic_fetch_add(&shared->moves, !err);
}

static void migrate(struct worker *w)
{
    struct gpunvme_tiers_moves moves;
    const gpunvme_err_t err = gpunvme_tiers_migrate(w->t, 0, &moves);

    if (!err && moves.failed)
        complain("migration", "some files", GPUNVME_ERR_VERIFY);
    if (err && err != GPUNVME_ERR_BUSY)
        complain("migration", "all files", err);
    atomic_fetch_add(&shared->passes, !err);
}

static void found(void *user, enum gpunvme_tiers_finding finding, const char *name,
                  const char *detail)
{
    if (user && finding == GPUNVME_TIERS_LEFTOVER) /* of those that were killed just now */
        return;
    gpunvme_err_set(GPUNVME_ERR_VERIFY, "%s: %s", gpunvme_tiers_finding_name(finding), detail);
    complain("scrub", name, GPUNVME_ERR_VERIFY);
}

static void scrub(struct worker *w)
{
    const gpunvme_err_t err = gpunvme_tiers_scrub(w->t, GPUNVME_TIERS_READ_ALL, found, w,
                                                  &(struct gpunvme_tiers_scrub){0});

    if (err)
        complain("scrub", "all files", err);
    atomic_fetch_add(&shared->scrubs, 1);
}

static void *work(void *arg)
{
    struct worker *w = arg;
    const uint64_t nowners = processes * NTHREADS, me = w->process * NTHREADS + w->index;

    while (!atomic_load(&shared->stop)) {
        const unsigned file = (unsigned)base_random_below(&w->r, NFILES);

        switch (base_random_below(&w->r, 16)) {
        case 0:
        case 1:
        case 2:
            if (is_shared(file) || file % nowners == me)
                make_version(w, file);
            break;
        case 3:
            move_one(w, file);
            break;
        case 4:
            if (rng_one_in(&w->r, 8))
                migrate(w);
            else if (rng_one_in(&w->r, 20))
                scrub(w);
            break;
        default:
            check_read(w, file);
        }
    }
    return NULL;
}

/* ---- One process ----------------------------------------------------------------------------- */

static void run(unsigned process, unsigned turn)
{
    const struct gpunvme_tiers_options options = {.flags = process % 2 ? GPUNVME_TIERS_MIGRATE : 0,
                                                  .interval_ns = 200000000};
    struct worker workers[NTHREADS];
    pthread_t threads[NTHREADS];
    struct gpunvme_tiers *t;
    gpunvme_err_t err = gpunvme_tiers_open(rig_dir[process % 3], &options, &t);

    if (err)
        complain("opening", "the set", err);
    for (unsigned i = 0; i < NTHREADS; i++) {
        workers[i] = (struct worker){.t = t, .process = process, .index = i};
        workers[i].r.state = rng_hash(seed ^ (uint64_t)turn << 32 ^ (process * NTHREADS + i));
        if (pthread_create(&threads[i], NULL, work, &workers[i]))
            _exit(3);
    }
    for (unsigned i = 0; i < NTHREADS; i++)
        pthread_join(threads[i], NULL);
    err = gpunvme_tiers_close(t);
    if (err)
        complain("closing", "the set", err);
    exit(0);
}

static pid_t start(unsigned process, unsigned turn)
{
    const pid_t pid = fork();

    assert_true(pid >= 0);
    if (!pid)
        run(process, turn);
    return pid;
}

/* A process that was killed begins anew; one that has complained ends the test. */
static void reap(pid_t *pids, unsigned process, unsigned turn, bool again)
{
    int status;

    assert_int_equal(waitpid(pids[process], &status, 0), pids[process]);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) {
        atomic_store(&shared->stop, true);
        assert_true(WIFEXITED(status) && !WEXITSTATUS(status));
    }
    if (again)
        pids[process] = start(process, turn);
}

static void none_has_complained(pid_t *pids)
{
    for (unsigned i = 0; i < processes; i++) {
        siginfo_t info = {0};

        assert_int_equal(waitid(P_PID, (id_t)pids[i], &info, WEXITED | WNOHANG | WNOWAIT), 0);
        if (info.si_pid)
            fail_msg("process %d has ended: %d", (int)info.si_pid, info.si_status);
    }
}

/* ---- The end --------------------------------------------------------------------------------- */

static void check_end(void)
{
    struct gpunvme_tiers_info info;
    struct worker w = {.r.state = seed};

    ok(gpunvme_tiers_open(rig_dir[WARM], NULL, &w.t));
    for (unsigned file = 0; file < NFILES; file++)
        check_read(&w, file);
    ok(gpunvme_tiers_scrub(w.t, GPUNVME_TIERS_READ_ALL, found, NULL, NULL));
    ok(gpunvme_tiers_get_info(w.t, &info));
    for (int tier = 0; tier < GPUNVME_NTIERS; tier++) {
        assert_int_equal(rig_du(tier), info.tier[tier].nbytes);
        assert_int_equal(rig_nfiles, info.tier[tier].nfiles);
        if (info.tier[tier].capacity_nbytes)
            assert_true(info.tier[tier].nbytes <= info.tier[tier].capacity_nbytes);
    }
    ok(gpunvme_tiers_close(w.t));
}

static void every_read_is_of_one_whole_version(void **state)
{
    struct base_random r = {seed};
    pid_t pids[NPROCESSES];
    const time_t end = time(NULL) + (time_t)seconds;
    unsigned turn = 0;

    (void)state;
    for (unsigned i = 0; i < processes; i++)
        pids[i] = start(i, turn);
    while (time(NULL) < end) {
        const unsigned process = (unsigned)base_random_below(&r, processes);

        usleep((useconds_t)rng_between(&r, 10000, 500000));
        none_has_complained(pids);
        kill(pids[process], SIGKILL);
        atomic_fetch_add(&shared->kills, 1);
        reap(pids, process, ++turn, true);
    }
    atomic_store(&shared->stop, true);
    for (unsigned i = 0; i < processes; i++)
        reap(pids, i, 0, false);
    check_end();
    printf("%llu reads, %llu puts, %llu removes, %llu moves, %llu passes, %llu scrubs, %llu busy, "
           "%llu kills\n",
           (unsigned long long)shared->reads, (unsigned long long)shared->puts,
           (unsigned long long)shared->removes, (unsigned long long)shared->moves,
           (unsigned long long)shared->passes, (unsigned long long)shared->scrubs,
           (unsigned long long)shared->busy, (unsigned long long)shared->kills);
    assert_true(shared->reads > 100 && shared->puts > 10 && shared->moves > 10 && shared->passes);
}

static int set_up(void **state)
{
    (void)state;
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return -1;
    rig_make_folders();
    /* The set is made in a process of its own, for those to come are forked. */
    if (!fork()) {
        rig_create((struct gpunvme_tiers_settings){
            .capacity_nbytes = {400 * KIB, 500 * KIB, 0},
            .hot_at = 20,
            .warm_at = 5,
            .half_life_s = 2,
        });
        _exit(0);
    }
    return wait(&(int){0}) < 0;
}

static int tear_down(void **state)
{
    (void)state;
    return rig_remove();
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"seconds", 1, NULL, 's'}, {"seed", 1, NULL, 'r'}, {"processes", 1, NULL, 'p'}, {0}};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_read_is_of_one_whole_version, set_up, tear_down),
    };

    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == '?')
            return 2;
        *(c == 's' ? &seconds : c == 'r' ? &seed : &processes) = strtoull(optarg, NULL, 0);
    }
    if (!processes || processes > NPROCESSES)
        return 2;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
