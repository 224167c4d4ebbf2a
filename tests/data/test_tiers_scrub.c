/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the scrub finds and mends when files or the catalogue were changed behind the set's back,
 * and that a damaged catalogue is made anew from the files.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/wait.h>

#include <sqlite3.h>

#include "data/tiers/internal.h"
#include "tiers_rig.h"

#define KIB 1024u

static struct gpunvme_tiers *t;
static struct gpunvme_tiers_scrub result;
static char told[2000]; /* "finding name; …" */
static char detail_of_last[300];
static void (*hook)(enum tiers_step step);

void __wrap_tiers_step(enum tiers_step step, const char *name);

void __wrap_tiers_step(enum tiers_step step, const char *name)
{
    (void)name;
    if (hook)
        hook(step);
}

static void open_set(void)
{
    ok(gpunvme_tiers_open(rig_dir[HOT], NULL, &t));
}

static void close_set(void)
{
    ok(gpunvme_tiers_close(t));
    t = NULL;
}

static int set_up(void **state)
{
    (void)state;
    t = NULL;
    hook = NULL;
    rig_make_folders();
    rig_create((struct gpunvme_tiers_settings){.hot_at = 7, .warm_at = 3});
    open_set();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    hook = NULL;
    ok(gpunvme_tiers_close(t));
    return rig_remove();
}

static void take_note(void *user, enum gpunvme_tiers_finding finding, const char *name,
                      const char *detail)
{
    const size_t n = strlen(told);

    (void)user;
    snprintf(told + n, sizeof(told) - n, "%s%s %s", n ? "; " : "",
             gpunvme_tiers_finding_name(finding), name);
    snprintf(detail_of_last, sizeof(detail_of_last), "%s", detail);
}

/* The scrub tells this. */
static void scrub(unsigned flags, const char *expected)
{
    told[0] = 0;
    ok(gpunvme_tiers_scrub(t, flags, take_note, NULL, &result));
    assert_string_equal(told, expected);
}

/* … and then nothing more is wrong. */
static void mends(unsigned flags, const char *expected)
{
    scrub(flags, expected);
    scrub(flags, "");
}

static void path_of(int tier, const char *name, char path[200])
{
    snprintf(path, 200, "%s/%s", rig_dir[tier], name);
}

/* Sets a file's time back or forth by so many seconds. */
static void shift_time(int tier, const char *name, long seconds)
{
    struct timespec times[2];
    char path[200];
    struct stat st;

    path_of(tier, name, path);
    assert_int_equal(stat(path, &st), 0);
    times[0] = st.st_atim;
    times[1] = st.st_mtim;
    times[1].tv_sec += seconds;
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static void move_file(int from, const char *name, int to, const char *new_name)
{
    char a[200], b[200];

    path_of(from, name, a);
    path_of(to, new_name, b);
    assert_int_equal(rename(a, b), 0);
}

/* Changes a byte and nothing else. */
static void flip(int tier, const char *name, long offset)
{
    char path[200];
    struct timespec times[2];
    struct stat st;
    FILE *f;
    int c;

    path_of(tier, name, path);
    assert_int_equal(stat(path, &st), 0);
    f = fopen(path, "r+");
    fseek(f, offset, SEEK_SET);
    c = fgetc(f);
    fseek(f, offset, SEEK_SET);
    fputc(c ^ 0x40, f);
    assert_int_equal(fclose(f), 0);
    times[0] = st.st_atim;
    times[1] = st.st_mtim;
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static struct gpunvme_tiers_file stat_of(const char *name)
{
    struct gpunvme_tiers_file file;

    ok(gpunvme_tiers_stat(t, name, &file));
    return file;
}

/* ---- Findings -------------------------------------------------------------------------------- */

static void a_sound_set_has_no_findings(void **state)
{
    (void)state;
    ok(rig_put(t, "a", HOT, KIB, 1));
    ok(rig_put(t, "d/b", WARM, 2 * KIB, 1));
    ok(rig_put(t, "d/e/c", COLD, 3 * KIB, 1));
    scrub(0, "");
    assert_int_equal(result.files, 3);
    assert_int_equal(result.nbytes, 6 * KIB);
    scrub(GPUNVME_TIERS_READ_ALL, "");
}

static void a_new_file_is_taken_in(void **state)
{
    char path[200];

    (void)state;
    path_of(WARM, "d", path);
    assert_int_equal(mkdir(path, 0777), 0);
    rig_write_file(rig_dir[WARM], "d/a", KIB, 5);
    fails(NOT_FOUND, rig_read(t, "d/a", &(uint64_t){0}));
    mends(0, "new d/a");
    rig_has(t, "d/a", 5);
    assert_int_equal(rig_tier(t, "d/a"), WARM);
    assert_false(stat_of("d/a").has_checksum);
    scrub(GPUNVME_TIERS_READ_ALL, "");
    assert_true(stat_of("d/a").has_checksum);
}

static void files_that_were_there_become_files_of_the_set(void **state)
{
    char name[16];

    (void)state;
    close_set();
    assert_int_equal(rig_remove(), 0);
    rig_make_folders();
    for (unsigned i = 0; i < 1000; i++) {
        snprintf(name, sizeof(name), "f%u", i);
        rig_write_file(rig_dir[i % 3], name, 24 + i, i);
    }
    rig_create((struct gpunvme_tiers_settings){0});
    open_set();
    for (unsigned i = 0; i < 1000; i += 37) {
        snprintf(name, sizeof(name), "f%u", i);
        rig_has(t, name, i);
        assert_int_equal(rig_tier(t, name), i % 3);
    }
    scrub(0, "");
    assert_int_equal(result.files, 1000);
}

static void a_changed_file_is_told_and_taken_as_it_is(void **state)
{
    (void)state;
    ok(rig_put(t, "a", HOT, KIB, 1));
    rig_write_file(rig_dir[HOT], "a", 2 * KIB, 2);
    fails(VERIFY, gpunvme_tiers_move(t, "a", COLD, false, NULL));
    mends(0, "changed a");
    rig_has(t, "a", 2);
    assert_int_equal(stat_of("a").nbytes, 2 * KIB);
    assert_true(stat_of("a").has_checksum);
    ok(gpunvme_tiers_move(t, "a", COLD, false, NULL));
}

static void a_changed_time_is_a_changed_file(void **state)
{
    (void)state;
    ok(rig_put(t, "a", HOT, KIB, 1));
    shift_time(HOT, "a", -100);
    mends(0, "changed a");
}

static void a_missing_file_leaves_the_catalogue(void **state)
{
    char path[200];

    (void)state;
    ok(rig_put(t, "a", HOT, KIB, 1));
    ok(rig_put(t, "b", HOT, KIB, 1));
    path_of(HOT, "a", path);
    assert_int_equal(unlink(path), 0);
    mends(0, "missing a");
    fails(NOT_FOUND, rig_read(t, "a", &(uint64_t){0}));
    rig_has(t, "b", 1);
}

static void a_file_that_was_moved_by_hand_is_found(void **state)
{
    (void)state;
    ok(rig_put(t, "a", HOT, KIB, 1));
    ok(gpunvme_tiers_move(t, "a", HOT, true, NULL));
    move_file(HOT, "a", COLD, "a");
    mends(0, "elsewhere a");
    rig_has(t, "a", 1);
    assert_int_equal(rig_tier(t, "a"), COLD);
    assert_int_equal(stat_of("a").pinned, COLD);
    assert_true(stat_of("a").has_checksum);
}

static void of_two_files_the_older_one_is_kept_aside(void **state)
{
    (void)state;
    ok(rig_put(t, "a", HOT, KIB, 1));
    rig_has(t, "a", 1); /* which opens it */
    rig_write_file(rig_dir[COLD], "a", KIB, 2);
    shift_time(COLD, "a", 100);
    mends(0, "twice a; elsewhere a");
    rig_has(t, "a", 2);
    assert_int_equal(rig_tier(t, "a"), COLD);
    assert_true(rig_is_file(HOT, ".gpunvme-tiers/kept/a"));
    assert_false(rig_is_file(HOT, "a"));

    rig_write_file(rig_dir[HOT], "a", KIB, 3);
    shift_time(HOT, "a", -100);
    mends(0, "twice a");
    rig_has(t, "a", 2);
    assert_non_null(strstr(detail_of_last, "kept/a.1"));
    assert_true(rig_is_file(HOT, ".gpunvme-tiers/kept/a.1"));
}

static void of_two_files_of_one_time_the_slower_one_is_kept_aside(void **state)
{
    char path[200];
    struct timespec times[2] = {{1000, 0}, {1000, 0}};

    (void)state;
    for (int tier = WARM; tier <= COLD; tier++) {
        rig_write_file(rig_dir[tier], "a", KIB, (uint64_t)tier);
        path_of(tier, "a", path);
        assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    }
    mends(0, "twice a; new a");
    rig_has(t, "a", WARM);
    assert_true(rig_is_file(COLD, ".gpunvme-tiers/kept/a"));
}

static void bytes_without_their_checksum_are_told_and_stay(void **state)
{
    (void)state;
    ok(rig_put(t, "a", HOT, KIB, 1));
    ok(rig_put(t, "b", HOT, KIB, 1));
    flip(HOT, "a", 700);
    scrub(0, "");
    scrub(GPUNVME_TIERS_READ_ALL, "bad a");
    scrub(GPUNVME_TIERS_READ_ALL, "bad a");
    assert_true(rig_is_file(HOT, "a"));
}

static unsigned copies;

static void count_copies(enum tiers_step step)
{
    copies += step == TIERS_STEP_COPY;
}

/* … and another move need not copy them again, unless there is another version. */
static void a_move_of_such_bytes_keeps_both(void **state)
{
    const char *copy;
    char path[256];

    (void)state;
    ok(rig_put(t, "a", HOT, KIB, 1));
    flip(HOT, "a", 700);
    fails(VERIFY, gpunvme_tiers_move(t, "a", COLD, false, NULL));
    copy = strstr(gpunvme_err_detail(), rig_dir[COLD]);
    assert_non_null(copy);
    snprintf(path, sizeof(path), "%s", copy);
    assert_int_equal(access(path, R_OK), 0);
    assert_true(rig_is_file(HOT, "a"));
    assert_int_equal(rig_tier(t, "a"), HOT);
    scrub(0, "");

    copies = 0;
    hook = count_copies;
    fails(VERIFY, gpunvme_tiers_move(t, "a", COLD, false, NULL));
    assert_int_equal(copies, 0);
    ok(rig_put(t, "a", HOT, KIB, 2));
    copies = 0;
    ok(gpunvme_tiers_move(t, "a", COLD, false, NULL));
    assert_true(copies > 0);
    rig_has(t, "a", 2);
}

static void leftovers_are_removed(void **state)
{
    (void)state;
    rig_write_file(rig_dir[WARM], ".gpunvme-tiers/tmp/0123456789abcdef", KIB, 1);
    mends(0, "leftover 0123456789abcdef");
    assert_false(rig_is_file(WARM, ".gpunvme-tiers/tmp/0123456789abcdef"));
}

static void die_while_copying(enum tiers_step step)
{
    if (step == TIERS_STEP_COPY)
        kill(getpid(), SIGKILL);
}

/* What another process, this program with an argument, does. */
static int be_killed_in_a_put(const char *dir)
{
    hook = die_while_copying;
    ok(gpunvme_tiers_open(dir, NULL, &t));
    ok(rig_put(t, "a", COLD, KIB, 2));
    return 1;
}

static void what_a_killed_process_left_is_removed(void **state)
{
    char program[] = "/proc/self/exe", *argv[] = {program, rig_dir[COLD], NULL};
    pid_t pid;
    int status;

    (void)state;
    ok(rig_put(t, "a", HOT, KIB, 1));
    assert_int_equal(posix_spawn(&pid, program, NULL, NULL, argv, environ), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    mends(0, "leftover a");
    rig_has(t, "a", 1);
    rig_du(COLD);
    assert_int_equal(rig_nfiles, 0);
}

static void what_is_no_file_of_the_set_is_left_alone(void **state)
{
    char path[200], link[200];

    (void)state;
    path_of(HOT, "pipe", path);
    assert_int_equal(mkfifo(path, 0600), 0);
    scrub(0, "skipped pipe");
    assert_int_equal(unlink(path), 0);

    rig_write_file(rig_dir[HOT], "tab\there", KIB, 1);
    scrub(0, "skipped tab\there");
    path_of(HOT, "tab\there", path);
    assert_int_equal(unlink(path), 0);

    rig_write_file(rig_root, "outside", KIB, 1);
    path_of(HOT, "link", link);
    snprintf(path, sizeof(path), "%s/outside", rig_root);
    assert_int_equal(symlink(path, link), 0);
    scrub(0, "skipped link");
    fails(NOT_FOUND, rig_read(t, "link", &(uint64_t){0}));
    assert_int_equal(unlink(link), 0);
    scrub(0, "");
}

/* A folder that became a link to another place: its files are not missing, and not read. */
static void files_behind_a_link_are_left_alone(void **state)
{
    char folder[200], elsewhere[200];

    (void)state;
    ok(rig_put(t, "d/a", HOT, KIB, 1));
    path_of(HOT, "d", folder);
    snprintf(elsewhere, sizeof(elsewhere), "%s/elsewhere", rig_root);
    assert_int_equal(rename(folder, elsewhere), 0);
    assert_int_equal(symlink(elsewhere, folder), 0);
    scrub(0, "skipped d; skipped d/a");
    assert_int_equal(unlink(folder), 0);
    assert_int_equal(rename(elsewhere, folder), 0);
    scrub(0, "");
    rig_has(t, "d/a", 1);
}

static void a_file_written_in_place_is_no_finding(void **state)
{
    static const char more[] = "and so on";

    (void)state;
    ok(rig_put(t, "a", HOT, KIB, 1));
    ok(gpunvme_tiers_write(t, "a", 5000, more, GPUNVME_MEM_HOST, sizeof(more), NULL));
    scrub(0, "");
    scrub(GPUNVME_TIERS_READ_ALL, "");
    assert_int_equal(stat_of("a").nbytes, 5000 + sizeof(more));
    assert_true(stat_of("a").has_checksum);
    ok(gpunvme_tiers_write(t, "a", 0, more, GPUNVME_MEM_HOST, sizeof(more), NULL));
    close_set();
    open_set();
    scrub(GPUNVME_TIERS_READ_ALL, "");
}

/* ---- Beside others --------------------------------------------------------------------------- */

static struct gpunvme_tiers *other;
static unsigned scrubs;

static void scrub_now(enum tiers_step step)
{
    struct gpunvme_tiers_scrub s;

    hook = NULL; /* what it does itself has steps as well */
    if (step != TIERS_STEP_PREPARE && step != TIERS_STEP_ENDED) {
        ok(gpunvme_tiers_scrub(other, GPUNVME_TIERS_READ_ALL, take_note, NULL, &s));
        scrubs++;
    }
    hook = scrub_now;
}

static void a_scrub_beside_a_change_finds_nothing(void **state)
{
    (void)state;
    ok(gpunvme_tiers_open(rig_dir[COLD], NULL, &other));
    told[0] = 0;
    scrubs = 0;
    hook = scrub_now;
    ok(rig_put(t, "a", HOT, KIB, 1));
    ok(rig_put(t, "a", HOT, KIB, 2));
    ok(rig_put(t, "a", WARM, KIB, 3));
    ok(gpunvme_tiers_move(t, "a", COLD, false, NULL));
    rig_has(t, "a", 3);
    ok(gpunvme_tiers_remove(t, "a"));
    hook = NULL;
    assert_string_equal(told, "");
    assert_true(scrubs > 20);
    ok(gpunvme_tiers_close(other));
}

/* ---- Tiers that are not there ---------------------------------------------------------------- */

static void a_tier_that_is_not_mounted_is_no_missing_files(void **state)
{
    char folder[200];

    (void)state;
    ok(rig_put(t, "a", WARM, KIB, 1));
    close_set();
    snprintf(folder, sizeof(folder), "%s/unmounted", rig_root);
    assert_int_equal(rename(rig_dir[WARM], folder), 0);
    fails(NOT_FOUND, gpunvme_tiers_open(rig_dir[HOT], NULL, &t));
    fails(NOT_FOUND, gpunvme_tiers_rebuild(rig_dir[HOT]));
    assert_int_equal(mkdir(rig_dir[WARM], 0777), 0);
    fails(NOT_FOUND, gpunvme_tiers_open(rig_dir[HOT], NULL, &t));
    fails(NOT_FOUND, gpunvme_tiers_rebuild(rig_dir[HOT]));
    assert_int_equal(rmdir(rig_dir[WARM]), 0);
    assert_int_equal(rename(folder, rig_dir[WARM]), 0);
    open_set();
    scrub(0, "");
    rig_has(t, "a", 1);
}

static void a_tier_that_goes_while_the_set_is_open_is_no_missing_files(void **state)
{
    char command[300];

    (void)state;
    ok(rig_put(t, "a", WARM, KIB, 1));
    ok(rig_put(t, "b", HOT, KIB, 1));
    snprintf(command, sizeof(command), "cp -a %s %s.copy && rm -r %s", rig_dir[WARM], rig_dir[WARM],
             rig_dir[WARM]);
    assert_int_equal(system(command), 0);
    fails(NOT_FOUND, gpunvme_tiers_scrub(t, 0, NULL, NULL, NULL));
    close_set();
    snprintf(command, sizeof(command), "mv %s.copy %s", rig_dir[WARM], rig_dir[WARM]);
    assert_int_equal(system(command), 0);
    open_set();
    scrub(0, "");
    rig_has(t, "a", 1);
}

static void empty_the_warm_tier(void *user, enum gpunvme_tiers_finding finding, const char *name,
                                const char *detail)
{
    char command[300];

    snprintf(command, sizeof(command), "find %s -mindepth 1 -delete", rig_dir[WARM]);
    if (finding == GPUNVME_TIERS_NEW)
        assert_int_equal(system(command), 0);
    take_note(user, finding, name, detail);
}

static void a_tier_that_goes_amid_a_scrub_is_no_missing_files(void **state)
{
    char command[300];

    (void)state;
    ok(rig_put(t, "a", WARM, KIB, 1));
    rig_write_file(rig_dir[HOT], "new", KIB, 1);
    snprintf(command, sizeof(command), "cp -a %s %s.copy", rig_dir[WARM], rig_dir[WARM]);
    assert_int_equal(system(command), 0);
    told[0] = 0;
    fails(NOT_FOUND, gpunvme_tiers_scrub(t, 0, empty_the_warm_tier, NULL, NULL));
    assert_string_equal(told, "new new");
    close_set();
    snprintf(command, sizeof(command), "cp -a %s.copy/. %s/", rig_dir[WARM], rig_dir[WARM]);
    assert_int_equal(system(command), 0);
    open_set();
    scrub(0, "");
    rig_has(t, "a", 1);
}

/* The cold tier becomes a tmpfs that only this process sees; its set's folder is in it. */
static bool mount_cold(const char *options)
{
    char aside[200], command[500];

    snprintf(aside, sizeof(aside), "%s/aside", rig_root);
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
        return false;
    assert_int_equal(rename(rig_dir[COLD], aside), 0);
    assert_int_equal(mkdir(rig_dir[COLD], 0777), 0);
    if (mount("none", rig_dir[COLD], "tmpfs", 0, options)) {
        rmdir(rig_dir[COLD]);
        assert_int_equal(rename(aside, rig_dir[COLD]), 0);
        return false;
    }
    snprintf(command, sizeof(command), "cp -a %s/. %s/ && rm -r %s", aside, rig_dir[COLD], aside);
    assert_int_equal(system(command), 0);
    return true;
}

static void a_full_tier_loses_nothing(void **state)
{
    static uint64_t bytes[RIG_NBYTES_MAX / 8];

    (void)state;
    close_set();
    if (!mount_cold("size=200k")) {
        print_message("SKIP: mounting a tmpfs: %s\n", strerror(errno));
        open_set();
        return;
    }
    open_set();
    ok(rig_put(t, "a", COLD, 64 * KIB, 1));
    ok(gpunvme_tiers_put(t, "b", HOT, bytes, GPUNVME_MEM_HOST, sizeof(bytes)));
    fails(NOSPC, rig_put(t, "a", COLD, 160 * KIB, 2));
    rig_has(t, "a", 1);
    fails(NOSPC, gpunvme_tiers_move(t, "b", COLD, false, NULL));
    assert_int_equal(rig_tier(t, "b"), HOT);
    scrub(GPUNVME_TIERS_READ_ALL, "");
    close_set();
    assert_int_equal(umount(rig_dir[COLD]), 0);
    fails(NOT_FOUND, gpunvme_tiers_open(rig_dir[HOT], NULL, &t));
    t = NULL;
}

static void a_tier_that_is_read_only_is_scrubbed_and_read(void **state)
{
    (void)state;
    ok(rig_put(t, "a", COLD, KIB, 1));
    close_set();
    if (!mount_cold("size=1M")) {
        print_message("SKIP: mounting a tmpfs: %s\n", strerror(errno));
        open_set();
        return;
    }
    assert_int_equal(mount(NULL, rig_dir[COLD], NULL, MS_REMOUNT | MS_RDONLY, NULL), 0);
    open_set();
    rig_has(t, "a", 1);
    scrub(GPUNVME_TIERS_READ_ALL, "");
    fails(READONLY, rig_put(t, "a", COLD, KIB, 2));
    rig_has(t, "a", 1);
    fails(READONLY, rig_put(t, "b", COLD, KIB, 1));
    ok(rig_put(t, "b", HOT, KIB, 1));
    fails(READONLY, gpunvme_tiers_move(t, "b", COLD, false, NULL));
    rig_has(t, "b", 1);
    scrub(0, "");
    close_set();
    assert_int_equal(umount(rig_dir[COLD]), 0);
}

static void a_change_that_can_not_be_ended_is_told_and_the_rest_is_scrubbed(void **state)
{
    struct gpunvme_tiers_scrub sums;

    (void)state;
    ok(rig_put(t, "a", COLD, KIB, 1));
    close_set();
    if (!mount_cold("size=1M")) {
        print_message("SKIP: mounting a tmpfs: %s\n", strerror(errno));
        open_set();
        return;
    }
    assert_int_equal(mount(NULL, rig_dir[COLD], NULL, MS_REMOUNT | MS_RDONLY, NULL), 0);
    open_set();
    fails(READONLY, gpunvme_tiers_remove(t, "a"));
    rig_write_file(rig_dir[HOT], "b", KIB, 1);
    fails(READONLY, gpunvme_tiers_scrub(t, 0, NULL, NULL, &sums));
    assert_int_equal(sums.findings[GPUNVME_TIERS_NEW], 1);
    rig_has(t, "b", 1);
    assert_int_equal(mount(NULL, rig_dir[COLD], NULL, MS_REMOUNT, NULL), 0);
    scrub(0, "leftover a");
    fails(NOT_FOUND, gpunvme_tiers_stat(t, "a", &(struct gpunvme_tiers_file){0}));
    close_set();
    assert_int_equal(umount(rig_dir[COLD]), 0);
}

/* ---- The catalogue made anew ----------------------------------------------------------------- */

static char catalogue[200];

/* Files in all tiers, one of them pinned, with scores; and the set closed. */
static void make_files(void)
{
    char name[16];
    uint64_t is;

    snprintf(catalogue, sizeof(catalogue), "%s/.gpunvme-tiers/catalogue", rig_dir[HOT]);
    for (unsigned i = 0; i < 120; i++) {
        snprintf(name, sizeof(name), "d%u/f%u", i % 4, i);
        ok(rig_put(t, name, (int)(i % 3), 24 + 8 * i, i));
        for (unsigned k = 0; k < i % 5; k++)
            ok(rig_read(t, name, &is));
    }
    ok(gpunvme_tiers_move(t, "d1/f1", WARM, true, NULL));
    close_set();
}

/* All files are there with their bytes; how many have their scores. */
static unsigned check_files(void)
{
    unsigned nscores = 0;
    char name[16];

    for (unsigned i = 0; i < 120; i++) {
        snprintf(name, sizeof(name), "d%u/f%u", i % 4, i);
        if (stat_of(name).score > 0.9 + i % 5)
            nscores++;
        rig_has(t, name, i);
        assert_int_equal(rig_tier(t, name), i % 3);
    }
    return nscores;
}

static void a_catalogue_that_is_gone_is_made_from_the_files(void **state)
{
    struct gpunvme_tiers_info info;

    (void)state;
    make_files();
    assert_int_equal(unlink(catalogue), 0);
    fails(VERIFY, gpunvme_tiers_open(rig_dir[WARM], NULL, &t));
    ok(gpunvme_tiers_rebuild(rig_dir[WARM]));
    open_set();
    assert_int_equal(check_files(), 0);
    ok(gpunvme_tiers_get_info(t, &info));
    assert_true(info.settings.hot_at == 7 && info.settings.warm_at == 3);
    scrub(GPUNVME_TIERS_READ_ALL, "");
}

static void a_rebuilt_catalogue_has_its_space_in_reserve(void **state)
{
    struct stat st;
    char path[250];

    (void)state;
    make_files();
    snprintf(path, sizeof(path), "%s" TIERS_RESERVE_SUFFIX, catalogue);
    assert_int_equal(unlink(catalogue), 0);
    assert_int_equal(unlink(path), 0);
    ok(gpunvme_tiers_rebuild(rig_dir[HOT]));
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size > 0);
    open_set();
}

static void scores_pins_and_checksums_come_from_the_old_one(void **state)
{
    struct stat st;
    char path[250];

    (void)state;
    make_files();
    ok(gpunvme_tiers_rebuild(rig_dir[COLD]));
    open_set();
    assert_int_equal(check_files(), 120);
    assert_int_equal(stat_of("d1/f1").pinned, WARM);
    assert_int_equal(stat_of("d2/f2").pinned, AUTO);
    assert_true(stat_of("d2/f2").has_checksum);
    snprintf(path, sizeof(path), "%s.damaged", catalogue);
    assert_int_equal(stat(path, &st), 0);
    scrub(GPUNVME_TIERS_READ_ALL, "");
}

static void execute(const char *sql)
{
    sqlite3 *db;

    assert_int_equal(sqlite3_open(catalogue, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

static void what_makes_no_sense_in_the_old_one_is_not_taken(void **state)
{
    (void)state;
    make_files();
    execute("UPDATE file SET rank = 1e300 WHERE name = 'd0/f0';"
            "UPDATE file SET rank = 9e999 WHERE name = 'd1/f1'");
    rig_write_file(rig_dir[COLD], "d2/f2", KIB, 7);
    ok(gpunvme_tiers_rebuild(rig_dir[HOT]));
    open_set();
    assert_true(stat_of("d0/f0").score < 1);
    assert_true(stat_of("d1/f1").score < 1);
    assert_true(stat_of("d3/f3").score > 3.9);
    assert_true(stat_of("d3/f3").has_checksum);
    assert_false(stat_of("d2/f2").has_checksum);
    scrub(GPUNVME_TIERS_READ_ALL, "");
}

static void an_open_set_is_not_rebuilt(void **state)
{
    (void)state;
    ok(rig_put(t, "a", HOT, KIB, 1));
    fails(BUSY, gpunvme_tiers_rebuild(rig_dir[HOT]));
    rig_has(t, "a", 1);
    ok(rig_put(t, "a", HOT, KIB, 2));
    scrub(0, "");
}

static void where_there_is_no_set_there_is_nothing_to_rebuild(void **state)
{
    (void)state;
    fails(NOT_FOUND, gpunvme_tiers_rebuild(rig_root));
    fails(NOT_FOUND, gpunvme_tiers_rebuild("/nowhere"));
}

static void a_newer_catalogue_is_neither_opened_nor_rebuilt(void **state)
{
    (void)state;
    make_files();
    execute("PRAGMA user_version = 99");
    fails(UNSUPPORTED, gpunvme_tiers_open(rig_dir[HOT], NULL, &t));
    fails(UNSUPPORTED, gpunvme_tiers_rebuild(rig_dir[HOT]));
    execute("PRAGMA user_version = 1");
    open_set();
    assert_int_equal(check_files(), 120);
}

static uint8_t sound[1u << 20];
static size_t sound_nbytes;

static void write_catalogue(const uint8_t *bytes, size_t nbytes)
{
    FILE *f = fopen(catalogue, "w");

    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, nbytes, f), nbytes);
    assert_int_equal(fclose(f), 0);
}

static void read_catalogue(void)
{
    FILE *f = fopen(catalogue, "r");

    assert_non_null(f);
    sound_nbytes = fread(sound, 1, sizeof(sound), f);
    assert_true(sound_nbytes > 20 * KIB && sound_nbytes < sizeof(sound));
    fclose(f);
}

/* Damage at random: whatever it does, after a rebuild all files are there and the set is sound. */
static void damage_anywhere_loses_no_file(void **state)
{
    static uint8_t bytes[sizeof(sound)];
    struct base_random r = {3};
    unsigned most = 0, least = 120;

    (void)state;
    make_files();
    read_catalogue();
    for (unsigned i = 0; i < 60; i++) {
        const size_t at = base_random_below(&r, sound_nbytes);
        const size_t n = rng_between(&r, 1, rng_one_in(&r, 2) ? 64 : 8 * KIB);
        unsigned nscores;

        memcpy(bytes, sound, sound_nbytes);
        for (size_t k = at; k < at + n && k < sound_nbytes; k++)
            bytes[k] = (uint8_t)base_random_u64(&r);
        write_catalogue(bytes, sound_nbytes);
        ok(gpunvme_tiers_rebuild(rig_dir[i % 3]));
        open_set();
        nscores = check_files();
        scrub(0, "");
        close_set();
        most = nscores > most ? nscores : most;
        least = nscores < least ? nscores : least;
    }
    assert_true(most >= 119);
    assert_true(least < 120);
    t = NULL;
}

static void a_catalogue_cut_short_loses_no_file(void **state)
{
    (void)state;
    make_files();
    read_catalogue();
    for (size_t n = 0; n < sound_nbytes; n += sound_nbytes / 10) {
        write_catalogue(sound, n);
        ok(gpunvme_tiers_rebuild(rig_dir[HOT]));
        open_set();
        check_files();
        close_set();
    }
    t = NULL;
}

/* After one that was killed: the place is empty, and half of the new one is there. */
static void a_rebuild_can_be_begun_again(void **state)
{
    char path[250];

    (void)state;
    make_files();
    read_catalogue();
    snprintf(path, sizeof(path), "%s.damaged", catalogue);
    assert_int_equal(rename(catalogue, path), 0);
    snprintf(catalogue + strlen(catalogue), 5, ".new");
    write_catalogue(sound, sound_nbytes / 2);
    ok(gpunvme_tiers_rebuild(rig_dir[HOT]));
    open_set();
    assert_int_equal(check_files(), 120);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(a_sound_set_has_no_findings),
        TEST(a_new_file_is_taken_in),
        TEST(files_that_were_there_become_files_of_the_set),
        TEST(a_changed_file_is_told_and_taken_as_it_is),
        TEST(a_changed_time_is_a_changed_file),
        TEST(a_missing_file_leaves_the_catalogue),
        TEST(a_file_that_was_moved_by_hand_is_found),
        TEST(of_two_files_the_older_one_is_kept_aside),
        TEST(of_two_files_of_one_time_the_slower_one_is_kept_aside),
        TEST(bytes_without_their_checksum_are_told_and_stay),
        TEST(a_move_of_such_bytes_keeps_both),
        TEST(leftovers_are_removed),
        TEST(what_a_killed_process_left_is_removed),
        TEST(what_is_no_file_of_the_set_is_left_alone),
        TEST(files_behind_a_link_are_left_alone),
        TEST(a_file_written_in_place_is_no_finding),
        TEST(a_scrub_beside_a_change_finds_nothing),
        TEST(a_tier_that_is_not_mounted_is_no_missing_files),
        TEST(a_tier_that_goes_while_the_set_is_open_is_no_missing_files),
        TEST(a_tier_that_goes_amid_a_scrub_is_no_missing_files),
        TEST(a_catalogue_that_is_gone_is_made_from_the_files),
        TEST(a_rebuilt_catalogue_has_its_space_in_reserve),
        TEST(scores_pins_and_checksums_come_from_the_old_one),
        TEST(what_makes_no_sense_in_the_old_one_is_not_taken),
        TEST(an_open_set_is_not_rebuilt),
        TEST(where_there_is_no_set_there_is_nothing_to_rebuild),
        TEST(a_newer_catalogue_is_neither_opened_nor_rebuilt),
        TEST(damage_anywhere_loses_no_file),
        TEST(a_catalogue_cut_short_loses_no_file),
        TEST(a_rebuild_can_be_begun_again),
        TEST(a_full_tier_loses_nothing),
        TEST(a_tier_that_is_read_only_is_scrubbed_and_read),
        TEST(a_change_that_can_not_be_ended_is_told_and_the_rest_is_scrubbed),
    };

    return argc == 2 ? be_killed_in_a_put(argv[1]) : cmocka_run_group_tests(tests, NULL, NULL);
}
