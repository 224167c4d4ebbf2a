/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Image files: making, checking, locking, keeping; and what goes wrong with them.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "gpunvme/sim.h"
#include "sim/store/image_file.h"
#include "store_util.h"

static uint8_t *a, *b; /* 64 KiB each */

static int setup(void **state)
{
    (void)state;
    a = aligned(64 << 10);
    b = aligned(64 << 10);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    chmod(scratch_path("image"), 0600);
    unlink(scratch_path("image"));
    free(a);
    free(b);
    return 0;
}

static gpunvme_err_t open_image(const char *path, uint64_t nbytes, bool readonly,
                                enum sim_store_engine engine, struct sim_store **store)
{
    struct sim_store_config config = {.image = path,
                                      .nbytes = nbytes,
                                      .block_size = 512,
                                      .readonly = readonly,
                                      .nlanes = 1,
                                      .engine = engine};

    return sim_store_open(&config, store);
}

/* The scratch image, which must open. */
static struct sim_store *open_ok(uint64_t nbytes, bool readonly)
{
    struct sim_store *store;

    if (open_image(scratch_path("image"), nbytes, readonly, SIM_STORE_ENGINE_AUTO, &store))
        fail_msg("%s", gpunvme_err_detail());
    return store;
}

static void expect_refused(const char *path, uint64_t nbytes, bool readonly, gpunvme_err_t err,
                           const char *reason)
{
    struct sim_store *store;
    gpunvme_err_t got = open_image(path, nbytes, readonly, SIM_STORE_ENGINE_AUTO, &store);

    if (got != err || !strstr(gpunvme_err_detail(), reason))
        fail_msg("%s: %s, %s", path, gpunvme_err_name(got), gpunvme_err_detail());
    if (!got)
        sim_store_close(store);
}

static void an_image_keeps_its_data_over_restarts(void **state)
{
    struct sim_store *store = open_ok(1 << 20, false);

    (void)state;
    fill(a, 0, 65536, 1);
    assert_int_equal(store_write(store, 4096, a, 65536), GPUNVME_OK);
    sim_store_close(store);
    store = open_ok(0, false);
    assert_int_equal(sim_store_nbytes(store), 1 << 20);
    assert_int_equal(store_read(store, 4096, b, 65536), GPUNVME_OK);
    assert_memory_equal(a, b, 65536);
    sim_store_close(store);
    store = open_ok(1 << 20, true);
    assert_int_equal(store_read(store, 4096, b, 65536), GPUNVME_OK);
    assert_memory_equal(a, b, 65536);
    sim_store_close(store);
}

static void an_image_is_opened_once(void **state)
{
    struct sim_store *store = open_ok(1 << 20, false);

    (void)state;
    expect_refused(scratch_path("image"), 0, false, GPUNVME_ERR_BUSY, "open elsewhere");
    expect_refused(scratch_path("image"), 0, true, GPUNVME_ERR_BUSY, "open elsewhere");
    sim_store_close(store);
    sim_store_close(open_ok(0, false));
}

/* Real calls of flock(2) are refused as often as this says. */
static unsigned nrefused;

int __real_flock(int fd, int operation);
int __wrap_flock(int fd, int operation);

int __wrap_flock(int fd, int operation)
{
    if (!nrefused)
        return __real_flock(fd, operation);
    nrefused--;
    errno = EWOULDBLOCK;
    return -1;
}

/* As after a process that was killed, whose io_uring the kernel has not ended yet. */
static void an_image_whose_lock_is_about_to_end_opens(void **state)
{
    (void)state;
    sim_store_close(open_ok(1 << 20, false));
    nrefused = 20;
    sim_store_close(open_ok(0, false));
    assert_int_equal(nrefused, 0);
    nrefused = 20;
    sim_store_close(open_ok(0, true));
    assert_int_equal(nrefused, 0);
}

static void readers_share_an_image(void **state)
{
    struct sim_store *first, *second;

    (void)state;
    sim_store_close(open_ok(1 << 20, false));
    first = open_ok(0, true);
    second = open_ok(0, true);
    expect_refused(scratch_path("image"), 0, false, GPUNVME_ERR_BUSY, "open elsewhere");
    sim_store_close(first);
    sim_store_close(second);
}

static void a_size_that_differs_is_refused(void **state)
{
    (void)state;
    sim_store_close(open_ok(1 << 20, false));
    expect_refused(scratch_path("image"), 2 << 20, false, GPUNVME_ERR_IMAGE_SIZE,
                   "has 1048576 bytes, asked for 2097152");
    assert_int_equal(truncate(scratch_path("image"), 1000), 0);
    expect_refused(scratch_path("image"), 0, false, GPUNVME_ERR_IMAGE_SIZE, "not a multiple");
    assert_int_equal(truncate(scratch_path("image"), 0), 0);
    expect_refused(scratch_path("image"), 0, false, GPUNVME_ERR_IMAGE_SIZE, "is empty");
}

static void a_missing_image_needs_a_size(void **state)
{
    (void)state;
    expect_refused(scratch_path("image"), 0, false, GPUNVME_ERR_NOT_FOUND, "say size=");
    expect_refused(scratch_path("image"), 1 << 20, true, GPUNVME_ERR_NOT_FOUND, "does not exist");
    expect_refused(scratch_path("none/image"), 1 << 20, false, GPUNVME_ERR_NOT_FOUND, "none/image");
}

static void what_is_no_file_is_refused(void **state)
{
    (void)state;
    expect_refused(scratch, 1 << 20, false, GPUNVME_ERR_INVALID, "is a directory");
    expect_refused("/dev/zero", 1 << 20, false, GPUNVME_ERR_UNSUPPORTED, "is a device");
    assert_int_equal(mkfifo(scratch_path("image"), 0600), 0);
    expect_refused(scratch_path("image"), 1 << 20, false, GPUNVME_ERR_INVALID, "is not a file");
    expect_refused(scratch_path("image"), 1 << 20, true, GPUNVME_ERR_INVALID, "is not a file");
    unlink(scratch_path("image"));
    assert_int_equal(close(creat(scratch_path("image"), 0600)), 0);
    expect_refused(scratch_path("image/below"), 1 << 20, false, GPUNVME_ERR_IO, "image/below");
}

static void a_write_protected_image_is_opened_for_reading_only(void **state)
{
    struct sim_store *store;

    (void)state;
    sim_store_close(open_ok(1 << 20, false));
    assert_int_equal(chmod(scratch_path("image"), 0444), 0);
    expect_refused(scratch_path("image"), 0, false, GPUNVME_ERR_READONLY, "add readonly");
    store = open_ok(0, true);
    assert_int_equal(store_read(store, 0, b, 512), GPUNVME_OK);
    assert_int_equal(store_write(store, 0, a, 512), GPUNVME_ERR_READONLY);
    assert_int_equal(store_do(store, SIM_STORE_ZERO, 0, NULL, 512), GPUNVME_ERR_READONLY);
    assert_int_equal(store_flush(store), GPUNVME_OK);
    sim_store_close(store);
}

/* A file of `nbytes` bytes that are none of gpunvme's. */
static void make_file(size_t nbytes)
{
    int fd = creat(scratch_path("image"), 0600);

    fill(a, 0, 65536, 7);
    for (size_t at = 0; at < nbytes; at += 65536)
        assert_int_equal(pwrite(fd, a, 65536, (off_t)at), 65536);
    close(fd);
}

static void a_file_of_others_is_read_and_not_written(void **state)
{
    struct sim_store *store;

    (void)state;
    make_file(1 << 20);
    store = open_ok(0, false);
    assert_true(sim_store_is_foreign(store));
    assert_int_equal(store_read(store, 0, b, 65536), GPUNVME_OK);
    assert_memory_equal(a, b, 65536);
    assert_int_equal(store_write(store, 0, a, 512), GPUNVME_ERR_READONLY);
    assert_int_equal(store_do(store, SIM_STORE_ZERO, 0, NULL, 512), GPUNVME_ERR_READONLY);
    sim_store_close(store);
}

static void a_file_that_is_forced_becomes_an_image(void **state)
{
    struct sim_store_config config = {
        .image = scratch_path("image"), .block_size = 512, .force = true, .nlanes = 1};
    struct sim_store *store;

    (void)state;
    make_file(1 << 20);
    assert_int_equal(sim_store_open(&config, &store), GPUNVME_OK);
    assert_false(sim_store_is_foreign(store));
    assert_int_equal(store_write(store, 512, a, 512), GPUNVME_OK);
    sim_store_close(store);
    store = open_ok(1 << 20, false);
    assert_false(sim_store_is_foreign(store));
    sim_store_close(store);
}

static void a_mark_that_is_not_at_the_end_is_none(void **state)
{
    struct sim_store *store = open_ok(1 << 20, false);

    (void)state;
    assert_int_equal(store_write(store, 0, a, 512), GPUNVME_OK);
    sim_store_close(store);
    assert_int_equal(truncate(scratch_path("image"), 2 << 20), 0);
    store = open_ok(2 << 20, false);
    assert_true(sim_store_is_foreign(store));
    sim_store_close(store);
}

static void create_makes_a_sparse_image(void **state)
{
    struct stat st;

    (void)state;
    assert_int_equal(gpunvme_sim_image_create(scratch_path("image"), 1ULL << 36), GPUNVME_OK);
    assert_int_equal(stat(scratch_path("image"), &st), 0);
    assert_int_equal(st.st_size, (1ULL << 36) + SIM_IMAGE_MARK_NBYTES);
    assert_true(st.st_blocks < 100);
}

static void create_checks_an_image_that_exists(void **state)
{
    (void)state;
    assert_int_equal(gpunvme_sim_image_create(scratch_path("image"), 1 << 20), GPUNVME_OK);
    assert_int_equal(gpunvme_sim_image_create(scratch_path("image"), 1 << 20), GPUNVME_OK);
    assert_int_equal(gpunvme_sim_image_create(scratch_path("image"), 2 << 20),
                     GPUNVME_ERR_IMAGE_SIZE);
}

static void create_refuses_what_can_be_no_image(void **state)
{
    (void)state;
    assert_int_equal(gpunvme_sim_image_create(NULL, 1 << 20), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_sim_image_create("", 1 << 20), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_sim_image_create(scratch_path("image"), 0), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_sim_image_create(scratch_path("image"), 1000), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_sim_image_create(scratch, 1 << 20), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_sim_image_create(scratch_path("none/image"), 1 << 20),
                     GPUNVME_ERR_NOT_FOUND);
    assert_int_equal(access(scratch_path("image"), F_OK), -1);
}

static void an_image_too_large_for_the_file_system_leaves_nothing(void **state)
{
    gpunvme_err_t err;

    (void)state;
    err = gpunvme_sim_image_create(scratch_path("image"), (INT64_MAX - 4096) & ~511ULL);
    if (!err) {
        print_message("SKIP: this file system takes a file of 8 EiB\n");
        skip();
    }
    assert_int_equal(err, GPUNVME_ERR_NOSPC);
    assert_int_equal(access(scratch_path("image"), F_OK), -1);
}

static void an_image_that_shrinks_gives_an_error(void **state)
{
    static const enum sim_store_engine engines[] = {SIM_STORE_ENGINE_AUTO, SIM_STORE_ENGINE_SYNC};

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct sim_store *store;

        assert_int_equal(open_image(scratch_path("image"), 1 << 20, false, engines[i], &store),
                         GPUNVME_OK);
        assert_int_equal(truncate(scratch_path("image"), 8192), 0);
        assert_int_equal(store_read(store, 4096, b, 4096), GPUNVME_OK);
        assert_int_equal(store_read(store, 4096, b, 8192), GPUNVME_ERR_IO);
        assert_int_equal(store_read(store, 65536, b, 4096), GPUNVME_ERR_IO);
        sim_store_close(store);
        unlink(scratch_path("image"));
    }
}

/*
 * Some promises change the process for good (mounts, limits, system call filters): they are kept
 * in a child, which answers with its exit status. CHILD_SKIPS says that this machine can't try.
 */
#define CHILD_SKIPS 77
#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return __LINE__ % 64 + 1; /* which check failed */                                     \
    } while (0)

static void run_in_child(int (*promise)(void), const char *needs)
{
    pid_t child;
    int status;

    fflush(NULL); /* the child must not print it again */
    child = fork();
    assert_true(child >= 0);
    if (!child)
        exit(promise());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == CHILD_SKIPS) {
        print_message("SKIP: this needs %s\n", needs);
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* Fills a store of 8 MiB on a disk of 1 MiB; what was written before it was full is still there. */
static int fill_small_disk(enum sim_store_engine engine)
{
    struct sim_store *store;
    gpunvme_err_t err = GPUNVME_OK;
    unsigned nwritten = 0;

    CHECK(!open_image(scratch_path("disk/image"), 8 << 20, false, engine, &store));
    while (!err && nwritten < 128) {
        fill(a, nwritten * 65536, 65536, 1);
        err = store_write(store, nwritten * 65536, a, 65536);
        nwritten += !err;
    }
    CHECK(err == GPUNVME_ERR_NOSPC);
    CHECK(nwritten > 0 && nwritten <= 16);
    for (unsigned i = 0; i < nwritten; i++) {
        fill(a, i * 65536, 65536, 1);
        CHECK(!store_read(store, i * 65536, b, 65536) && !memcmp(a, b, 65536));
    }
    /* Zeroes give space back: then there is room again. */
    CHECK(!store_do(store, SIM_STORE_ZERO, 0, NULL, nwritten * 65536));
    CHECK(!store_write(store, 1 << 20, a, 65536));
    sim_store_close(store);
    return unlink(scratch_path("disk/image"));
}

static int fill_small_disks(void)
{
    int failed;

    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mkdir(scratch_path("disk"), 0700))
        return CHILD_SKIPS;
    if (mount("tmpfs", scratch_path("disk"), "tmpfs", 0, "size=1M")) {
        rmdir(scratch_path("disk"));
        return CHILD_SKIPS;
    }
    failed = fill_small_disk(SIM_STORE_ENGINE_AUTO);
    if (!failed)
        failed = fill_small_disk(SIM_STORE_ENGINE_SYNC);
    umount(scratch_path("disk"));
    rmdir(scratch_path("disk"));
    return failed;
}

static void a_full_disk_gives_an_error_and_loses_nothing(void **state)
{
    (void)state;
    run_in_child(fill_small_disks, "root, and a mount namespace of its own");
}

static int meet_file_limit(void)
{
    const struct rlimit limit = {.rlim_cur = 256 << 10, .rlim_max = 256 << 10};
    struct sim_store *store = open_ok(1 << 20, false);

    signal(SIGXFSZ, SIG_IGN);
    CHECK(!setrlimit(RLIMIT_FSIZE, &limit));
    CHECK(store_write(store, 512 << 10, a, 4096) == GPUNVME_ERR_NOSPC);
    CHECK(store_write(store, 0, a, 4096) == GPUNVME_OK);
    sim_store_close(store);
    return 0;
}

static void a_file_size_limit_is_told_as_no_space(void **state)
{
    (void)state;
    run_in_child(meet_file_limit, "a file size limit");
}

/* Makes a system call fail with EPERM from now on. */
static int forbid(unsigned number)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {.len = sizeof(filter) / sizeof(filter[0]), .filter = filter};

    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static int work_without_io_uring(void)
{
    struct sim_store *store;

    if (forbid(SYS_io_uring_setup))
        return CHILD_SKIPS;
    CHECK(open_image(scratch_path("image"), 1 << 20, false, SIM_STORE_ENGINE_URING, &store) ==
          GPUNVME_ERR_PERMISSION);
    store = open_ok(1 << 20, false);
    CHECK(strstr(sim_store_path(store), "no io_uring"));
    fill(a, 0, 4096, 1);
    CHECK(!store_write(store, 8192, a, 4096));
    CHECK(!store_flush(store));
    CHECK(!store_read(store, 8192, b, 4096) && !memcmp(a, b, 4096));
    sim_store_close(store);
    return 0;
}

static void where_io_uring_is_forbidden_the_image_still_works(void **state)
{
    (void)state;
    run_in_child(work_without_io_uring, "seccomp");
}

static int work_without_holes(void)
{
    struct sim_store *store;

    store = open_ok(1 << 20, false);
    sim_store_close(store);
    if (forbid(SYS_fallocate))
        return CHILD_SKIPS;
    CHECK(!open_image(scratch_path("image"), 0, false, SIM_STORE_ENGINE_SYNC, &store));
    fill(a, 0, 65536, 1);
    CHECK(!store_write(store, 0, a, 65536));
    CHECK(!store_do(store, SIM_STORE_ZERO, 512, NULL, 65536 - 1024));
    CHECK(!store_read(store, 0, b, 65536));
    memset(a + 512, 0, 65536 - 1024);
    CHECK(!memcmp(a, b, 65536));
    sim_store_close(store);
    return 0;
}

static void where_no_holes_can_be_made_zeroes_are_written(void **state)
{
    (void)state;
    run_in_child(work_without_holes, "seccomp");
}

static int work_without_dioalign(void)
{
    struct sim_store *store;

    if (forbid(SYS_statx))
        return CHILD_SKIPS;
    store = open_ok(1 << 20, false);
    fill(a, 0, 4096, 1);
    CHECK(!store_write(store, 512, a + 512, 1024));
    CHECK(!store_read(store, 512, b + 3, 1024) && !memcmp(a + 512, b + 3, 1024));
    sim_store_close(store);
    return 0;
}

static void alignments_are_found_out_where_the_kernel_does_not_tell(void **state)
{
    (void)state;
    run_in_child(work_without_dioalign, "seccomp");
}

static int be_refused_as_another_user(void)
{
    struct sim_store *store;
    gpunvme_err_t err;

    sim_store_close(open_ok(1 << 20, false));
    if (geteuid() || setgid(65534) || setuid(65534))
        return CHILD_SKIPS;
    err = open_image(scratch_path("image"), 0, false, SIM_STORE_ENGINE_AUTO, &store);
    _exit(err != GPUNVME_ERR_PERMISSION); /* such a user can't write coverage files */
}

static void anothers_image_is_refused(void **state)
{
    (void)state;
    run_in_child(be_refused_as_another_user, "root");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(an_image_keeps_its_data_over_restarts),
        TEST(an_image_is_opened_once),
        TEST(an_image_whose_lock_is_about_to_end_opens),
        TEST(readers_share_an_image),
        TEST(a_size_that_differs_is_refused),
        TEST(a_missing_image_needs_a_size),
        TEST(what_is_no_file_is_refused),
        TEST(a_write_protected_image_is_opened_for_reading_only),
        TEST(a_file_of_others_is_read_and_not_written),
        TEST(a_file_that_is_forced_becomes_an_image),
        TEST(a_mark_that_is_not_at_the_end_is_none),
        TEST(create_makes_a_sparse_image),
        TEST(create_checks_an_image_that_exists),
        TEST(create_refuses_what_can_be_no_image),
        TEST(an_image_too_large_for_the_file_system_leaves_nothing),
        TEST(an_image_that_shrinks_gives_an_error),
        TEST(a_full_disk_gives_an_error_and_loses_nothing),
        TEST(a_file_size_limit_is_told_as_no_space),
        TEST(where_io_uring_is_forbidden_the_image_still_works),
        TEST(where_no_holes_can_be_made_zeroes_are_written),
        TEST(alignments_are_found_out_where_the_kernel_does_not_tell),
        TEST(anothers_image_is_refused),
    };
    int failed;

    if (scratch_make())
        return 1;
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(scratch);
    return failed;
}
