/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Sets of tiers: settings, directories that are missing, moved, full or not to be written, and the
 * sessions of processes.
 */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

#include "children.h"
#include "tiers_fixture.h"

#define KIB 1024u

static void skip_unless_root(void)
{
    if (!geteuid())
        return;
    print_message("SKIP: who is not root can't become another user\n");
    skip();
}

/* ---- Sets ------------------------------------------------------------------------------------ */

static void settings_are_kept_and_are_those_of_all(void **state)
{
    const struct gpunvme_tiers_settings settings = {.capacity_nbytes = {0, 5000, 0},
                                                    .hot_at = 33.25,
                                                    .half_life_s = 90.5,
                                                    .migrate_bytes_per_s = 7};
    struct gpunvme_tiers_info info;
    struct gpunvme_tiers *other;

    (void)state;
    ok(gpunvme_tiers_open(rig_dir[COLD], NULL, &other));
    ok(gpunvme_tiers_configure(other, &settings));
    ok(gpunvme_tiers_close(other));
    for (int i = 0; i < 2; i++) {
        ok(gpunvme_tiers_get_info(t, &info));
        assert_int_equal(info.tier[WARM].capacity_nbytes, 5000);
        assert_int_equal(info.tier[HOT].capacity_nbytes, 0);
        assert_true(info.settings.hot_at == 33.25);
        assert_true(info.settings.warm_at == 10);
        assert_true(fabs(info.settings.half_life_s - 90.5) < 1e-9);
        assert_int_equal(info.settings.migrate_bytes_per_s, 7);
        assert_string_equal(info.settings.dir[COLD], rig_dir[COLD]);
        open_again();
    }
}

static void settings_that_make_no_sense_are_refused(void **state)
{
    static const struct gpunvme_tiers_settings bad[] = {
        {.hot_at = 5},        {.warm_at = 101},    {.warm_at = -1},      {.hot_at = NAN},
        {.hot_at = INFINITY}, {.half_life_s = -1}, {.half_life_s = NAN},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        fails(INVALID, gpunvme_tiers_configure(t, &bad[i]));
}

static gpunvme_err_t create(const char *hot, const char *warm, const char *cold)
{
    return gpunvme_tiers_create(&(struct gpunvme_tiers_settings){.dir = {hot, warm, cold}});
}

static void directories_that_can_make_no_set_are_refused_and_stay_as_they_are(void **state)
{
    char a[128], b[128], inner[160], none[128], file[128];

    (void)state;
    snprintf(a, sizeof(a), "%s/x", rig_root);
    snprintf(b, sizeof(b), "%s/y", rig_root);
    snprintf(inner, sizeof(inner), "%s/inner", a);
    snprintf(none, sizeof(none), "%s/none", rig_root);
    snprintf(file, sizeof(file), "%s/file", rig_root);
    assert_int_equal(mkdir(a, 0777) | mkdir(b, 0777) | mkdir(inner, 0777), 0);
    rig_write_file(rig_root, "file", 100, 1);
    fails(EXISTS, create(a, b, rig_dir[WARM]));
    fails(INVALID, create(a, b, inner));
    fails(INVALID, create(a, b, a));
    fails(INVALID, create(a, b, file));
    fails(NOT_FOUND, create(a, b, none));
    assert_int_equal(rmdir(inner), 0);
    assert_int_equal(rmdir(a), 0); /* it is empty */
    assert_int_equal(rmdir(b), 0);
}

static void a_set_opens_by_any_of_its_directories_and_no_other(void **state)
{
    struct gpunvme_tiers *other;

    (void)state;
    put("a", HOT, 100, 1);
    for (int tier = 0; tier < GPUNVME_NTIERS; tier++) {
        ok(gpunvme_tiers_open(rig_dir[tier], NULL, &other));
        rig_has(other, "a", 1);
        ok(gpunvme_tiers_close(other));
    }
    fails(NOT_FOUND, gpunvme_tiers_open(rig_root, NULL, &other));
    fails(NOT_FOUND, gpunvme_tiers_open("/nonexistent", NULL, &other));
}

static void a_directory_that_is_missing_or_empty_is_told(void **state)
{
    struct gpunvme_tiers *other;
    char away[128];

    (void)state;
    snprintf(away, sizeof(away), "%s/away", rig_root);
    assert_int_equal(rename(rig_dir[COLD], away), 0);
    fails(NOT_FOUND, gpunvme_tiers_open(rig_dir[HOT], NULL, &other));
    assert_non_null(strstr(gpunvme_err_detail(), rig_dir[COLD]));
    assert_int_equal(mkdir(rig_dir[COLD], 0777), 0);
    fails(NOT_FOUND, gpunvme_tiers_open(rig_dir[HOT], NULL, &other));
    assert_non_null(strstr(gpunvme_err_detail(), "mounted"));
}

static void a_directory_may_have_moved(void **state)
{
    char away[128];

    (void)state;
    put("a", COLD, 100, 1);
    ok(gpunvme_tiers_close(t));
    snprintf(away, sizeof(away), "%s/a way, 50%%\n", rig_root);
    assert_int_equal(rename(rig_dir[COLD], away), 0);
    ok(gpunvme_tiers_open(away, NULL, &t));
    rig_has(t, "a", 1);
    ok(gpunvme_tiers_configure(t, &(struct gpunvme_tiers_settings){.dir = {[COLD] = away}}));
    fails(INVALID,
          gpunvme_tiers_configure(t, &(struct gpunvme_tiers_settings){.dir = {[HOT] = away}}));
    open_again();
    rig_has(t, "a", 1);
    assert_string_equal(info_of(COLD).dir, away);
}

static void a_lost_or_damaged_catalogue_is_told(void **state)
{
    struct gpunvme_tiers *other;
    char path[256];

    (void)state;
    ok(gpunvme_tiers_close(t));
    path_of(HOT, TIERS_FOLDER "/catalogue", path);
    assert_int_equal(truncate(path, 100), 0);
    fails(VERIFY, gpunvme_tiers_open(rig_dir[HOT], NULL, &other));
    assert_int_equal(unlink(path), 0);
    fails(VERIFY, gpunvme_tiers_open(rig_dir[HOT], NULL, &other));
    t = NULL;
}

static void a_set_of_a_newer_version_is_not_supported(void **state)
{
    struct gpunvme_tiers *other;
    char path[256];
    int fd;

    (void)state;
    path_of(WARM, TIERS_FOLDER "/set", path);
    fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, "version=2", 9, 0), 9);
    close(fd);
    fails(UNSUPPORTED, gpunvme_tiers_open(rig_dir[WARM], NULL, &other));
}

static int count_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)path, (void)st, (void)at;
    rig_nfiles += type == FTW_F;
    return 0;
}

static unsigned count_sessions(void)
{
    char path[256];

    path_of(HOT, TIERS_FOLDER "/sessions", path);
    rig_nfiles = 0;
    nftw(path, count_one, 4, FTW_PHYS);
    return (unsigned)rig_nfiles;
}

static void the_session_of_a_process_that_died_is_cleaned_up(void **state)
{
    int status;
    pid_t pid;

    (void)state;
    skip_where_children_can_not_work();
    pid = fork();
    if (!pid) {
        struct gpunvme_tiers *own;

        _exit(gpunvme_tiers_open(rig_dir[HOT], NULL, &own) ? 1 : 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(count_sessions(), 2);
    open_again();
    assert_int_equal(count_sessions(), 1);
}

static void a_child_after_fork_is_refused_and_opens_the_set_again(void **state)
{
    int status;
    pid_t pid;

    (void)state;
    skip_where_children_can_not_work();
    put("a", HOT, 100, 1);
    pid = fork();
    if (!pid) {
        struct gpunvme_tiers *own;
        uint64_t version = 0;

        if (rig_read(t, "a", &version) != GPUNVME_ERR_UNSUPPORTED ||
            rig_put(t, "a", HOT, 100, 2) != GPUNVME_ERR_UNSUPPORTED ||
            gpunvme_tiers_close(t) != GPUNVME_ERR_UNSUPPORTED)
            _exit(1);
        if (gpunvme_tiers_open(rig_dir[HOT], NULL, &own) || rig_read(own, "a", &version) ||
            rig_put(own, "a", COLD, 100, 2) || gpunvme_tiers_close(own))
            _exit(2);
        _exit(version == 1 ? 0 : 3);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    rig_has(t, "a", 2);
}

/* Who is killed leaves children that have its descriptors; they must not keep its session alive. */
static void a_session_ends_with_its_process_though_a_child_lives_on(void **state)
{
    int out[2], status;
    pid_t pid, child = 0;

    (void)state;
    skip_where_children_can_not_work();
    assert_int_equal(pipe(out), 0);
    pid = fork();
    if (!pid) {
        struct gpunvme_tiers *own;
        pid_t its;

        if (gpunvme_tiers_open(rig_dir[HOT], NULL, &own))
            _exit(1);
        if (fork())
            _exit(0);
        its = getpid();
        if (write(out[1], &its, sizeof(its)) != sizeof(its))
            _exit(1);
        for (;;)
            pause();
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(read(out[0], &child, sizeof(child)), sizeof(child));
    open_again();
    assert_int_equal(count_sessions(), 1);
    kill(child, SIGKILL);
    close(out[0]);
    close(out[1]);
}

/* ---- Directories that can't be written ------------------------------------------------------- */

/* Root may write everywhere: the calls are made by a child that is nobody. */
static void as_nobody(int (*call)(void))
{
    int status;
    pid_t pid;

    skip_unless_root();
    skip_where_children_can_not_work();
    pid = fork();
    if (!pid) {
        if (setgid(65534) || setuid(65534))
            _exit(100);
        _exit(call());
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static int put_where_it_may_not(void)
{
    struct gpunvme_tiers *own;
    uint64_t version = 0;

    if (gpunvme_tiers_open(rig_dir[HOT], NULL, &own))
        return 1;
    if (rig_put(own, "a", COLD, 100, 2) != GPUNVME_ERR_PERMISSION ||
        gpunvme_tiers_move(own, "a", COLD, false, NULL) != GPUNVME_ERR_PERMISSION)
        return 2;
    if (rig_read(own, "a", &version) || version != 1)
        return 3;
    return gpunvme_tiers_close(own) ? 4 : 0;
}

static int open_what_it_may_not(void)
{
    struct gpunvme_tiers *own;

    return gpunvme_tiers_open(rig_dir[HOT], NULL, &own) == GPUNVME_ERR_PERMISSION ? 0 : 1;
}

static int give_away(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)type, (void)at;
    return lchown(path, 65534, 65534);
}

static int take_back(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)type, (void)at;
    return lchown(path, 0, 0);
}

static void a_tier_that_may_not_be_written_leaves_the_file_where_it_was(void **state)
{
    (void)state;
    put("a", HOT, 100, 1);
    skip_unless_root();
    skip_where_children_can_not_work();
    assert_int_equal(nftw(rig_root, give_away, 16, FTW_PHYS), 0);
    assert_int_equal(nftw(rig_dir[COLD], take_back, 16, FTW_PHYS), 0);
    as_nobody(put_where_it_may_not);
    rig_has(t, "a", 1);
    assert_int_equal(rig_du(COLD), 0);
    assert_int_equal(info_of(COLD).nbytes, 0);
}

static void a_set_that_may_not_be_written_is_not_opened(void **state)
{
    (void)state;
    assert_int_equal(chmod(rig_root, 0755), 0);
    as_nobody(open_what_it_may_not);
}

/* A small file system in a tier's place; false: this process may not mount one. */
static bool mount_small(int tier, unsigned kib)
{
    char options[32];

    snprintf(options, sizeof(options), "size=%uk", kib);
    return !mount("tmpfs", rig_dir[tier], "tmpfs", 0, options);
}

static void start_with_small_tier(int tier, unsigned kib)
{
    ok(gpunvme_tiers_close(t));
    t = NULL;
    assert_int_equal(rig_remove(), 0);
    rig_make_folders();
    if (!mount_small(tier, kib)) {
        print_message("SKIP: no file system can be mounted: %s\n", strerror(errno));
        skip();
    }
    rig_create((struct gpunvme_tiers_settings){0});
    ok(gpunvme_tiers_open(rig_dir[HOT], NULL, &t));
}

static void a_tier_that_is_full_leaves_the_file_where_it_was(void **state)
{
    (void)state;
    start_with_small_tier(COLD, 64);
    put("a", HOT, 200 * KIB, 1);
    fails(NOSPC, gpunvme_tiers_move(t, "a", COLD, false, NULL));
    fails(NOSPC, rig_put(t, "a", COLD, 100 * KIB, 2));
    rig_has(t, "a", 1);
    assert_int_equal(rig_tier(t, "a"), HOT);
    assert_int_equal(rig_du(COLD), 0);
    put("b", COLD, 30 * KIB, 3);
    fails(NOSPC, rig_put(t, "b", COLD, 40 * KIB, 4));
    rig_has(t, "b", 3);
    /* Between two file systems as between two folders of one. */
    move_to("b", HOT);
    rig_has(t, "b", 3);
    ok(tiers_files_flush(t)); /* what was moved is no longer open */
    if (mount(NULL, rig_dir[COLD], NULL, MS_REMOUNT | MS_RDONLY, NULL))
        fail_msg("remount: %s", strerror(errno));
    fails(READONLY, gpunvme_tiers_move(t, "b", COLD, false, NULL));
    fails(READONLY, rig_put(t, "c", COLD, 100, 1));
    rig_has(t, "b", 3);
}

/* The detail says that a tier has no room, where it is, and how much is needed. Returns what is
 * free. */
static unsigned long long told_full(int tier, unsigned long long nbytes)
{
    unsigned long long left = 0;
    char place[160];
    const char *at;

    snprintf(place, sizeof(place), "the %s tier (%s) has no room for %llu bytes, ",
             gpunvme_tier_name(tier), rig_dir[tier], nbytes);
    at = strstr(gpunvme_err_detail(), place);
    if (!at || sscanf(at + strlen(place), "%llu are free: ", &left) != 1)
        fail_msg("%s", gpunvme_err_detail());
    return left;
}

static void a_capacity_that_is_reached_is_told_with_its_tier_and_what_is_free(void **state)
{
    (void)state;
    ok(gpunvme_tiers_configure(
        t, &(struct gpunvme_tiers_settings){.capacity_nbytes = {1000, 0, 1000}}));
    put("a", COLD, 600, 1);
    fails(NOSPC, rig_put(t, "b", COLD, 500, 1));
    assert_int_equal(told_full(COLD, 500), 400);
    fails(NOSPC, rig_put(t, "b", COLD, 1001, 1));
    assert_int_equal(told_full(COLD, 1001), 400);
    put("c", HOT, 500, 1);
    fails(NOSPC, gpunvme_tiers_move(t, "c", COLD, false, NULL));
    assert_int_equal(told_full(COLD, 500), 400);
    fails(NOSPC, gpunvme_tiers_write(t, "a", 900, "12345678", GPUNVME_MEM_HOST, 200, NULL));
    assert_int_equal(told_full(COLD, 500), 400); /* bytes 600 to 1100 */
}

static void a_file_system_that_is_full_is_told_with_its_tier_and_what_is_free(void **state)
{
    static const char bytes[100 * KIB];
    struct gpunvme_tiers_io io = {.name = "b", .ptr = (char *)(uintptr_t)bytes, .nbytes = 90 * KIB};
    unsigned long long left;
    struct statvfs fs;
    size_t done;

    (void)state;
    start_with_small_tier(COLD, 64);
    put("a", HOT, 200 * KIB, 1);
    put("b", COLD, 20 * KIB, 1);
    assert_int_equal(statvfs(rig_dir[COLD], &fs), 0);
    left = fs.f_bavail * fs.f_frsize;
    fails(NOSPC, gpunvme_tiers_move(t, "a", COLD, false, NULL));
    assert_int_equal(told_full(COLD, 200 * KIB), left);
    fails(NOSPC, rig_put(t, "c", COLD, 100 * KIB, 2));
    assert_int_equal(told_full(COLD, 100 * KIB), left);
    fails(NOSPC, gpunvme_tiers_write(t, "b", 0, bytes, GPUNVME_MEM_HOST, sizeof(bytes), &done));
    assert_true(told_full(COLD, sizeof(bytes) - done) <= left);
    fails(NOSPC, gpunvme_tiers_write_many(t, &io, 1));
    assert_true(told_full(COLD, io.nbytes - io.done) <= left);
}

/* Writes a file until nothing more goes into its file system. */
static void fill(const char *path)
{
    static const char bytes[KIB];
    int fd = open(path, O_WRONLY | O_CREAT, 0666);

    assert_true(fd >= 0);
    while (write(fd, bytes, sizeof(bytes)) > 0)
        ;
    assert_int_equal(errno, ENOSPC);
    close(fd);
}

/* The catalogue is on the same file system: it has what it needs to move files away. */
static void a_hot_tier_that_is_full_opens_and_files_move_away(void **state)
{
    char path[200];

    (void)state;
    start_with_small_tier(HOT, 64 * KIB);
    put("a", HOT, 200 * KIB, 1);
    put("b", HOT, 200 * KIB, 2);
    ok(gpunvme_tiers_move(t, "a", HOT, true, NULL));
    ok(gpunvme_tiers_move(t, "b", HOT, true, NULL));
    put("c", COLD, 100 * KIB, 3);
    snprintf(path, sizeof(path), "%s/" TIERS_FOLDER "/filler", rig_dir[HOT]);
    ok(gpunvme_tiers_close(t));
    t = NULL;
    fill(path);
    ok(gpunvme_tiers_open(rig_dir[HOT], NULL, &t));
    rig_has(t, "a", 1);
    rig_has(t, "c", 3);
    fails(NOSPC, rig_put(t, "d", HOT, 100, 4));
    told_full(HOT, 100);
    fails(NOSPC, gpunvme_tiers_move(t, "c", HOT, false, NULL));
    fails(NOSPC, gpunvme_tiers_write(t, "a", 200 * KIB, path, GPUNVME_MEM_HOST, 100, NULL));
    open_again();
    move_to("a", COLD);
    ok(gpunvme_tiers_remove(t, "b"));
    put("d", HOT, 100, 4); /* there is room again, for the catalogue as well */
    rig_has(t, "a", 1);
    rig_has(t, "d", 4);
    unlink(path);
}

/* Files alone do not take what the catalogue needs. */
static void files_leave_the_catalogue_its_space(void **state)
{
    gpunvme_err_t err = GPUNVME_OK;
    char name[16];
    unsigned n = 0;

    (void)state;
    start_with_small_tier(HOT, 64 * KIB);
    while (!err && n < 4096) {
        snprintf(name, sizeof(name), "f%u", n++);
        err = rig_put(t, name, HOT, 64 * KIB, 1);
        if (!err)
            err = gpunvme_tiers_move(t, name, HOT, true, NULL);
    }
    assert_int_equal(err, GPUNVME_ERR_NOSPC);
    open_again();
    for (unsigned i = 0; i + 1 < n; i++) {
        snprintf(name, sizeof(name), "f%u", i);
        move_to(name, COLD);
    }
    ok(rig_put(t, name, HOT, 64 * KIB, 2));
}

/* ---- File systems that are full make room by scores ------------------------------------------ */

static void use(const char *name, unsigned naccesses)
{
    struct gpunvme_store *store;

    ok(gpunvme_tiers_open_store(t, name, naccesses, &store));
    ok(gpunvme_close(store));
    ok(tiers_files_flush(t));
}

/* The warm tier, without a capacity, has four files in a file system that has no room for a fifth
 * one of that size: "w0" has the lowest score. "c" in the cold tier has a score between them. */
static void fill_warm_tier(void)
{
    char name[8];

    start_with_small_tier(WARM, 1000);
    for (unsigned i = 0; i < 4; i++) {
        snprintf(name, sizeof(name), "w%u", i);
        put(name, WARM, 200 * KIB, i);
        use(name, 10 * (i + 1));
    }
    put("c", COLD, 200 * KIB, 9);
    use("c", 15);
}

static void has_warm_files(unsigned tier0, unsigned tier1)
{
    assert_int_equal(rig_tier(t, "w0"), tier0);
    assert_int_equal(rig_tier(t, "w1"), tier1);
    assert_int_equal(rig_tier(t, "w2"), WARM);
    assert_int_equal(rig_tier(t, "w3"), WARM);
    rig_has(t, "w0", 0);
    rig_has(t, "w1", 1);
}

static void a_move_into_a_full_file_system_moves_the_lowest_score_away(void **state)
{
    (void)state;
    fill_warm_tier();
    move_to("c", WARM);
    rig_has(t, "c", 9);
    has_warm_files(COLD, WARM);
}

static void a_put_into_a_full_file_system_moves_the_lowest_score_away(void **state)
{
    (void)state;
    fill_warm_tier();
    put("d", WARM, 200 * KIB, 3);
    rig_has(t, "d", 3);
    has_warm_files(COLD, WARM);
}

static void a_write_into_a_full_file_system_moves_the_lowest_score_away(void **state)
{
    static const char bytes[200 * KIB];
    size_t done;

    (void)state;
    fill_warm_tier();
    ok(gpunvme_tiers_write(t, "w3", 200 * KIB, bytes, GPUNVME_MEM_HOST, sizeof(bytes), &done));
    assert_int_equal(done, sizeof(bytes));
    assert_int_equal(facts("w3").nbytes, 400 * KIB);
    has_warm_files(COLD, WARM);
}

/* The reserve was used, and what is not a file of the set has taken its space. */
static void a_write_that_finds_the_reserve_used_moves_the_lowest_score_away(void **state)
{
    struct statvfs fs;
    char path[256];
    int fd;

    (void)state;
    start_with_small_tier(HOT, 16 * KIB);
    put("h0", HOT, 4096 * KIB, 0);
    put("h1", HOT, 4096 * KIB, 1);
    use("h0", 10);
    use("h1", 20);
    path_of(HOT, TIERS_FOLDER "/" TIERS_RESERVE, path);
    assert_int_equal(unlink(path), 0);
    path_of(HOT, TIERS_FOLDER "/other", path);
    fd = open(path, O_RDWR | O_CREAT, 0666);
    assert_true(fd >= 0);
    assert_int_equal(statvfs(rig_dir[HOT], &fs), 0);
    assert_int_equal(fallocate(fd, 0, 0, (off_t)(fs.f_bavail * fs.f_frsize) - 1024 * KIB), 0);
    close(fd);
    ok(gpunvme_tiers_write(t, "h1", 4096 * KIB, "1234", GPUNVME_MEM_HOST, 4, NULL));
    assert_int_equal(facts("h1").nbytes, 4096 * KIB + 4);
    assert_int_equal(rig_tier(t, "h0"), WARM);
    assert_int_equal(rig_tier(t, "h1"), HOT);
}

static void a_pass_makes_room_in_a_full_file_system(void **state)
{
    struct gpunvme_tiers_moves moves;

    (void)state;
    fill_warm_tier();
    ok(gpunvme_tiers_migrate(t, 0, &moves));
    assert_int_equal(moves.up, 1);
    assert_int_equal(moves.down, 1);
    assert_int_equal(rig_tier(t, "c"), WARM);
    has_warm_files(COLD, WARM);
}

static void files_with_higher_scores_stay_in_a_full_file_system(void **state)
{
    (void)state;
    fill_warm_tier();
    put("d", COLD, 200 * KIB, 3);
    fails(NOSPC, gpunvme_tiers_move(t, "d", WARM, false, NULL));
    told_full(WARM, 200 * KIB);
    has_warm_files(WARM, WARM);
    put("d", COLD, 190 * KIB, 3);
    use("d", 12);
    fails(NOSPC, rig_put(t, "d", WARM, 2000 * KIB, 4)); /* all of them would not suffice */
    has_warm_files(WARM, WARM);
    rig_has(t, "d", 3);
}

/* A reader keeps the space of what was moved away: no more is moved for that. */
static void space_that_does_not_become_free_does_not_empty_the_tier(void **state)
{
    char path[256];
    int fd;

    (void)state;
    fill_warm_tier();
    path_of(WARM, "w0", path);
    fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    fails(NOSPC, gpunvme_tiers_move(t, "c", WARM, false, NULL));
    has_warm_files(COLD, WARM);
    close(fd);
    move_to("c", WARM);
    has_warm_files(COLD, WARM);
}

static void tiers_on_one_full_file_system_do_not_move_files_for_nothing(void **state)
{
    (void)state;
    ok(gpunvme_tiers_close(t));
    t = NULL;
    assert_int_equal(rig_remove(), 0);
    rig_make_folders();
    if (mount("tmpfs", rig_root, "tmpfs", 0, "size=1200k")) {
        print_message("SKIP: no file system can be mounted: %s\n", strerror(errno));
        skip();
    }
    for (int tier = 0; tier < GPUNVME_NTIERS; tier++)
        assert_int_equal(mkdir(rig_dir[tier], 0777), 0);
    rig_create((struct gpunvme_tiers_settings){0});
    ok(gpunvme_tiers_open(rig_dir[HOT], NULL, &t));
    put("a", HOT, 40 * KIB, 1);
    put("b", HOT, 40 * KIB, 2);
    fails(NOSPC, rig_put(t, "c", HOT, 2000 * KIB, 3));
    assert_int_equal(rig_tier(t, "a"), HOT);
    assert_int_equal(rig_tier(t, "b"), HOT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(settings_are_kept_and_are_those_of_all),
        TEST(settings_that_make_no_sense_are_refused),
        TEST(directories_that_can_make_no_set_are_refused_and_stay_as_they_are),
        TEST(a_set_opens_by_any_of_its_directories_and_no_other),
        TEST(a_directory_that_is_missing_or_empty_is_told),
        TEST(a_directory_may_have_moved),
        TEST(a_lost_or_damaged_catalogue_is_told),
        TEST(a_set_of_a_newer_version_is_not_supported),
        TEST(the_session_of_a_process_that_died_is_cleaned_up),
        TEST(a_child_after_fork_is_refused_and_opens_the_set_again),
        TEST(a_session_ends_with_its_process_though_a_child_lives_on),
        TEST(a_tier_that_may_not_be_written_leaves_the_file_where_it_was),
        TEST(a_set_that_may_not_be_written_is_not_opened),
        TEST(a_tier_that_is_full_leaves_the_file_where_it_was),
        TEST(a_capacity_that_is_reached_is_told_with_its_tier_and_what_is_free),
        TEST(a_file_system_that_is_full_is_told_with_its_tier_and_what_is_free),
        TEST(a_hot_tier_that_is_full_opens_and_files_move_away),
        TEST(files_leave_the_catalogue_its_space),
        TEST(a_move_into_a_full_file_system_moves_the_lowest_score_away),
        TEST(a_put_into_a_full_file_system_moves_the_lowest_score_away),
        TEST(a_write_into_a_full_file_system_moves_the_lowest_score_away),
        TEST(a_write_that_finds_the_reserve_used_moves_the_lowest_score_away),
        TEST(a_pass_makes_room_in_a_full_file_system),
        TEST(files_with_higher_scores_stay_in_a_full_file_system),
        TEST(space_that_does_not_become_free_does_not_empty_the_tier),
        TEST(tiers_on_one_full_file_system_do_not_move_files_for_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
