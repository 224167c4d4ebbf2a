/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Stores where processes begin and end: what a program that is executed inherits, and what one that
 * is killed leaves behind.
 */
#include <dirent.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

#include "store_files.h"

extern char **environ;

#define NIOS   32u
#define BLOCK  (NBYTES / NIOS)
#define ENOUGH 2000u /* transfers that the program has done when it is killed */

/* ---- Executed ----------------------------------------------------------------------------------
 */

/* How many descriptors a program that this one executes would have. */
static unsigned ninherited(void)
{
    DIR *dir = opendir("/proc/self/fd");
    const struct dirent *entry;
    unsigned n = 0;

    assert_non_null(dir);
    while ((entry = readdir(dir)))
        n += entry->d_name[0] != '.' && !(fcntl(atoi(entry->d_name), F_GETFD) & FD_CLOEXEC);
    closedir(dir);
    return n;
}

static void a_program_that_is_executed_inherits_no_descriptor(void **state)
{
    struct gpunvme_store *stores[NKINDS];
    struct gpunvme_batch *batch;
    struct gpunvme_buf gpu;
    unsigned before;

    (void)state;
    ok(gpunvme_mem_alloc(NBYTES, GPUNVME_MEM_GPU, &gpu));
    before = ninherited(); /* CUDA's are its own */
    ok(gpunvme_batch_create(&batch));
    assert_true(gpunvme_batch_fd(batch) >= 0);
    for (unsigned kind = 0; kind < NKINDS; kind++) {
        stores[kind] = open_kind(kind);
        ok(gpunvme_store_read(stores[kind], 0, gpu.gpu, GPUNVME_MEM_GPU, NBYTES, NULL));
        ok(gpunvme_store_write(stores[kind], 0, gpu.gpu, GPUNVME_MEM_GPU, NBYTES, NULL));
        ok(gpunvme_store_flush(stores[kind]));
    }
    assert_int_equal(ninherited(), before);
    for (unsigned kind = 0; kind < NKINDS; kind++)
        ok(gpunvme_close(stores[kind]));
    ok(gpunvme_batch_destroy(batch));
    ok(gpunvme_mem_free(&gpu));
}

/* ---- Killed ------------------------------------------------------------------------------------
 */

/*
 * The program that is killed: reads and writes again what three stores have, which so stays the
 * same, and says when it has done enough.
 */
static int work(char **uris)
{
    struct gpunvme_io ios[3 * NIOS], *ended[3 * NIOS];
    struct gpunvme_store *store;
    struct gpunvme_batch *batch;
    struct gpunvme_buf gpu;
    size_t n, total = 0;

    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails ends it, too */
    if (gpunvme_mem_alloc(3 * NBYTES, GPUNVME_MEM_GPU, &gpu) || gpunvme_batch_create(&batch))
        return 1;
    memset(ios, 0, sizeof(ios));
    for (unsigned i = 0; i < 3; i++) {
        uint8_t *place = (uint8_t *)gpu.gpu + i * NBYTES;

        if (gpunvme_open(uris[i], GPUNVME_OPEN_WRITE, &store) ||
            gpunvme_store_read(store, 0, place, GPUNVME_MEM_GPU, NBYTES, NULL))
            return 2;
        for (unsigned k = 0; k < NIOS; k++)
            ios[i * NIOS + k] = (struct gpunvme_io){.store = store,
                                                    .op = GPUNVME_OP_WRITE,
                                                    .mem = GPUNVME_MEM_GPU,
                                                    .offset = k * BLOCK,
                                                    .ptr = place + k * BLOCK,
                                                    .nbytes = BLOCK};
    }
    for (unsigned i = 0; i < 3 * NIOS; i++)
        if (gpunvme_io_submit(&ios[i], 1, batch))
            return 3;
    for (;; total += n) {
        if (gpunvme_batch_poll(batch, 1, 3 * NIOS, ended, &n, PATIENCE_NS))
            return 4;
        for (size_t i = 0; i < n; i++) {
            if (ended[i]->err || ended[i]->done != BLOCK)
                return 5;
            ended[i]->op = ended[i]->op == GPUNVME_OP_READ ? GPUNVME_OP_WRITE : GPUNVME_OP_READ;
            if (gpunvme_io_submit(ended[i], 1, batch))
                return 6;
        }
        if (total < ENOUGH && total + n >= ENOUGH && write(STDOUT_FILENO, "", 1) != 1)
            return 7;
    }
}

/* Whether a path is that of a file which is gone with the last process that has it. */
static bool leaves_nothing(const char *path)
{
    static const char *const where[] = {"/dev/shm/", "/tmp/", "/run/", "/var/"};

    for (unsigned i = 0; i < 2; i++)
        if (!strncmp(path, folders[i], strlen(folders[i])))
            return true; /* the test's own */
    for (unsigned i = 0; i < 4; i++)
        if (!strncmp(path, where[i], strlen(where[i])))
            return strstr(path, " (deleted)");
    return true;
}

/* What a process's descriptor refers to; "" if there is none. */
static void read_fd(pid_t pid, const char *fd, char path[512])
{
    char name[300];
    ssize_t n;

    snprintf(name, sizeof(name), "/proc/%d/fd/%s", (int)pid, fd);
    n = readlink(name, path, 511);
    path[n > 0 ? n : 0] = 0;
}

static void has_no_files_elsewhere(pid_t pid)
{
    char name[64], its[512], ours[512];
    const struct dirent *entry;
    DIR *dir;

    snprintf(name, sizeof(name), "/proc/%d/fd", (int)pid);
    dir = opendir(name);
    assert_non_null(dir);
    while ((entry = readdir(dir))) {
        read_fd(pid, entry->d_name, its);
        read_fd(getpid(), entry->d_name, ours); /* which it may have inherited */
        if (!leaves_nothing(its) && strcmp(its, ours) != 0)
            fail_msg("it has %s", its);
    }
    closedir(dir);
}

static unsigned nfiles(const char *folder)
{
    DIR *dir = opendir(folder);
    unsigned n = 0;

    assert_non_null(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

static pid_t started(char **args)
{
    posix_spawn_file_actions_t actions;
    int ends[2];
    pid_t pid;
    char byte;

    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    assert_int_equal(posix_spawn(&pid, "/proc/self/exe", &actions, NULL, args, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (read(ends[0], &byte, 1) != 1) { /* the end of it is the end of the program */
        int status = 0;

        waitpid(pid, &status, 0);
        fail_msg("it has ended with %d", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    }
    close(ends[0]);
    return pid;
}

/* A lock may last until the kernel has ended the transfers of a program that is gone. */
static struct gpunvme_store *opened_when_free(const char *uri)
{
    const struct timespec moment = {.tv_nsec = 10 * 1000 * 1000};
    struct gpunvme_store *store;
    gpunvme_err_t err;

    for (unsigned i = 0;
         (err = gpunvme_open(uri, GPUNVME_OPEN_WRITE, &store)) == GPUNVME_ERR_BUSY && i < 1000; i++)
        nanosleep(&moment, NULL);
    ok(err);
    return store;
}

static void what_a_killed_program_had_is_gone(void **state)
{
    char image[192], program[] = "test_store_process";
    char *args[5] = {program};
    unsigned before[2];
    struct gpunvme_store *store;
    int status;
    pid_t pid;

    (void)state;
    snprintf(image, sizeof(image), "sim:image=%s/image,size=%u", folders[1], NBYTES);
    store = opened(image, GPUNVME_OPEN_WRITE);
    ok(gpunvme_store_write(store, 0, bytes, GPUNVME_MEM_HOST, NBYTES, NULL));
    ok(gpunvme_close(store));
    args[1] = (char *)(uintptr_t)file_of(false, "killed", bytes, NBYTES);
    args[2] = (char *)(uintptr_t)file_of(true, "killed", bytes, NBYTES);
    args[3] = image;
    for (unsigned i = 0; i < 2; i++)
        before[i] = nfiles(folders[i]);
    pid = started(args);
    has_no_files_elsewhere(pid);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(nfiles(folders[i]), before[i]);
    for (unsigned i = 3; i > 0; i--) {
        store = opened_when_free(args[i]);
        is_stored(store, bytes);
        ok(gpunvme_store_write(store, 0, bytes, GPUNVME_MEM_HOST, NBYTES, NULL));
        ok(gpunvme_close(store));
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_program_that_is_executed_inherits_no_descriptor),
        cmocka_unit_test(what_a_killed_program_had_is_gone),
    };

    if (argc == 4)
        return work(argv + 1);
    return cmocka_run_group_tests(tests, make_files, remove_files);
}
