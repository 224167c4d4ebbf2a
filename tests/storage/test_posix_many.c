/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Many files open at once: one engine serves them all. What a file costs beside its descriptors,
 * and that one in trouble, busy, closed or inherited does not disturb another.
 */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "gpunvme/memory.h"
#include "gpunvme/storage.h"
#include "patience.h"
#include "storage/posix/posix.h"
#include "transfer_util.h"

#define MIB         ((size_t)1 << 20)
#define NFILES      8u /* that the stores are opened on in turn */
#define NSTORES     9000u
#define MAX_THREADS 20u
#define MORE_FDS    40u /* of the engine: rings, and the file that slots lie in */

static char folder[64];
static struct gpunvme_store *stores[NSTORES];
static uint8_t *bytes;
static struct gpunvme_buf gpu;

static const char *path_of(unsigned i)
{
    static char path[128];

    snprintf(path, sizeof(path), "%s/%u", folder, i % NFILES);
    return path;
}

/* File i holds these from byte i on. */
static const uint8_t *bytes_of(unsigned i)
{
    return bytes + i % NFILES;
}

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/gpunvme-many-XXXXXX");
    bytes = malloc(2 * MIB);
    if (!mkdtemp(folder) || !bytes || gpunvme_mem_alloc(MIB, GPUNVME_MEM_GPU, &gpu))
        return 1;
    for (size_t i = 0; i < 2 * MIB; i++)
        bytes[i] = (uint8_t)(i * 13 + i / 255);
    for (unsigned i = 0; i < NFILES; i++) {
        int fd = open(path_of(i), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);

        if (fd < 0 || write(fd, bytes_of(i), MIB) != (ssize_t)MIB || close(fd))
            return 1;
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (unsigned i = 0; i < NFILES; i++)
        unlink(path_of(i));
    rmdir(folder);
    gpunvme_mem_free(&gpu);
    free(bytes);
    return 0;
}

static struct gpunvme_store *opened(const char *uri)
{
    struct gpunvme_store *store;

    if (gpunvme_open(uri, 0, &store))
        fail_msg("%s", gpunvme_err_detail());
    return store;
}

static void reads(struct gpunvme_store *store, unsigned i)
{
    static uint8_t got[MIB];

    if (gpunvme_store_read(store, 0, gpu.gpu, GPUNVME_MEM_GPU, MIB, NULL) ||
        gpunvme_mem_copy(got, GPUNVME_MEM_HOST, gpu.gpu, GPUNVME_MEM_GPU, MIB))
        fail_msg("store %u: %s", i, gpunvme_err_detail());
    assert_memory_equal(got, bytes_of(i), MIB);
}

/* ---- What the process has ----------------------------------------------------------------------
 */

static size_t nfds(void)
{
    DIR *folder_of_fds = opendir("/proc/self/fd");
    size_t n = 0;

    assert_non_null(folder_of_fds);
    while (readdir(folder_of_fds))
        n++;
    closedir(folder_of_fds);
    return n;
}

static size_t rss_nbytes(void)
{
    FILE *file = fopen("/proc/self/statm", "re");
    size_t npages = 0;

    assert_non_null(file);
    assert_int_equal(fscanf(file, "%*u %zu", &npages), 1);
    fclose(file);
    return npages * (size_t)sysconf(_SC_PAGESIZE);
}

/* Of one thread; false for those that io_uring has in the kernel, which come and go. */
static bool switches_of(const char *thread, size_t *nswitches)
{
    char name[300], line[256];
    bool ours = true;
    FILE *status;

    snprintf(name, sizeof(name), "/proc/self/task/%s/status", thread);
    status = fopen(name, "re");
    while (status && fgets(line, sizeof(line), status)) {
        if (!strncmp(line, "Name:\tiou-", 10))
            ours = false;
        sscanf(line, "voluntary_ctxt_switches: %zu", nswitches);
    }
    if (status)
        fclose(status);
    return status && ours;
}

/* How many there are, and how often they have gone to sleep. */
static size_t nthreads(size_t *nswitches)
{
    DIR *tasks = opendir("/proc/self/task");
    const struct dirent *entry;
    size_t n = 0;

    assert_non_null(tasks);
    *nswitches = 0;
    while ((entry = readdir(tasks))) {
        size_t more = 0;

        if (entry->d_name[0] == '.' || !switches_of(entry->d_name, &more))
            continue;
        *nswitches += more;
        n++;
    }
    closedir(tasks);
    return n;
}

static bool is_instrumented(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return true;
#else
    return false;
#endif
}

static void allow_descriptors(void)
{
    struct rlimit limit;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    if (limit.rlim_cur < 2 * NSTORES + 100) {
        print_message("SKIP: only %llu descriptors are allowed here\n",
                      (unsigned long long)limit.rlim_cur);
        skip();
    }
}

/* ---- Tests -------------------------------------------------------------------------------------
 */

static size_t npinned(void)
{
    struct gpunvme_engine_info info;

    gpunvme_engine_get_info(NULL, &info);
    return info.pinned_nbytes;
}

static void nine_thousand_files_cost_their_descriptors_alone(void **state)
{
    size_t fds, rss = 0, nswitches, before;
    const struct timespec second = {.tv_sec = 1};

    (void)state;
    allow_descriptors();
    fds = nfds();
    for (unsigned i = 0; i < NSTORES; i++) {
        stores[i] = opened(path_of(i));
        if (i == 100)
            for (unsigned k = 0; k < 100; k++)
                reads(stores[k], k); /* the engine has what it needs */
        if (i == 200)
            rss = rss_nbytes();
    }
    rss = rss_nbytes() - rss;
    fds = nfds() - fds;
    for (unsigned i = 0; i < NSTORES; i += is_instrumented() ? 250 : 5)
        reads(stores[i], i);
    assert_in_range(npinned(), 1, 64 * MIB);
    assert_in_range(nthreads(&before), 3, MAX_THREADS + 1 * is_instrumented());
    assert_in_range(fds, 1, 2 * NSTORES + MORE_FDS);
    if (!is_instrumented())
        assert_in_range(rss, 0, (NSTORES - 200) * 4096);
    nthreads(&before);
    nanosleep(&second, NULL);
    nthreads(&nswitches);
    if (!is_instrumented())
        assert_in_range(nswitches - before, 0, 19);
    for (unsigned i = 0; i < NSTORES; i++)
        assert_int_equal(gpunvme_close(stores[i]), GPUNVME_OK);
}

#define NBUSY 64u

static void pins_at_most(size_t nbytes, const struct gpunvme_engine_config *config)
{
    static struct gpunvme_io ios[NBUSY];
    static uint8_t got[MIB];
    struct gpunvme_engine_info info;
    struct gpunvme_engine *engine;
    struct gpunvme_store *store;
    struct gpunvme_buf many;

    assert_int_equal(gpunvme_engine_create(config, &engine), GPUNVME_OK);
    assert_int_equal(gpunvme_open_on(engine, path_of(3), 0, &store), GPUNVME_OK);
    assert_int_equal(gpunvme_mem_alloc(NBUSY * MIB, GPUNVME_MEM_GPU, &many), GPUNVME_OK);
    for (unsigned i = 0; i < NBUSY; i++)
        ios[i] = (struct gpunvme_io){.store = store,
                                     .op = GPUNVME_OP_READ,
                                     .mem = GPUNVME_MEM_GPU,
                                     .ptr = (uint8_t *)many.gpu + i * MIB,
                                     .nbytes = MIB};
    assert_int_equal(gpunvme_io_run(ios, NBUSY), GPUNVME_OK);
    gpunvme_engine_get_info(engine, &info);
    assert_in_range(info.pinned_nbytes, 1, nbytes);
    for (unsigned i = 0; i < NBUSY; i++) {
        assert_int_equal(gpunvme_mem_copy(got, GPUNVME_MEM_HOST, ios[i].ptr, GPUNVME_MEM_GPU, MIB),
                         GPUNVME_OK);
        assert_memory_equal(got, bytes_of(3), MIB);
    }
    gpunvme_mem_free(&many);
    assert_int_equal(gpunvme_close(store), GPUNVME_OK);
    assert_int_equal(gpunvme_engine_destroy(engine), GPUNVME_OK);
}

static void an_engine_pins_no_more_than_its_limit(void **state)
{
    const struct gpunvme_engine_config config = {
        .gpu = GPUNVME_ANY_GPU, .threads = 4, .pinned_nbytes = 10 * MIB - 1};

    (void)state;
    pins_at_most(10 * MIB - 1, &config);
}

static void twelve_threads_pin_no_more_than_72_mib(void **state)
{
    const struct gpunvme_engine_config config = {.gpu = GPUNVME_ANY_GPU, .threads = 12};

    (void)state;
    pins_at_most(72 * MIB, &config);
}

static void options_of_a_store_limit_it_and_make_no_threads(void **state)
{
    struct gpunvme_store *shared = opened(path_of(0)), *own;
    struct gpunvme_store_info info;
    struct gpunvme_path how;
    size_t before, nswitches;
    char uri[160];

    (void)state;
    reads(shared, 0);
    before = nthreads(&nswitches);
    snprintf(uri, sizeof(uri), "file:%s?threads=1,depth=3", path_of(1));
    own = opened(uri);
    gpunvme_store_get_info(own, &info);
    assert_int_equal(info.threads, 1);
    gpunvme_store_path(own, &how);
    assert_non_null(strstr(how.how, "at most 3 at a time"));
    reads(own, 1);
    assert_int_equal(nthreads(&nswitches), before);
    assert_int_equal(gpunvme_close(own), GPUNVME_OK);
    reads(shared, 0);
    assert_int_equal(gpunvme_close(shared), GPUNVME_OK);
}

static _Atomic bool quiet;
static _Atomic unsigned nbusy, nwrong;

static void reads_on(struct gpunvme_io *io)
{
    nwrong += io->err || io->done != io->nbytes;
    if (quiet || submit_to(io->user, io, 1, NULL))
        nbusy--;
}

/* The busy ones share slots with those that are opened, read and closed meanwhile. */
static void stores_are_closed_while_others_are_busy(void **state)
{
    static struct gpunvme_io ios[NBUSY];
    struct gpunvme_store *busy[NFILES];
    struct gpunvme_buf many;

    (void)state;
    assert_int_equal(gpunvme_mem_alloc(NBUSY * 64 * 1024, GPUNVME_MEM_GPU, &many), GPUNVME_OK);
    quiet = false;
    nbusy = NBUSY;
    nwrong = 0;
    for (unsigned i = 0; i < NFILES; i++)
        busy[i] = opened(path_of(i));
    for (unsigned i = 0; i < NBUSY; i++) {
        ios[i] = (struct gpunvme_io){.op = GPUNVME_OP_READ,
                                     .mem = GPUNVME_MEM_GPU,
                                     .ptr = (uint8_t *)many.gpu + i * 64 * (size_t)1024,
                                     .offset = i * 4096u,
                                     .nbytes = 64 * 1024,
                                     .callback = reads_on,
                                     .user = busy[i % NFILES]};
        assert_int_equal(submit_to(busy[i % NFILES], &ios[i], 1, NULL), GPUNVME_OK);
    }
    for (unsigned i = 0; i < 100; i++) {
        struct gpunvme_store *store = opened(path_of(i));

        reads(store, i);
        assert_int_equal(gpunvme_close(store), GPUNVME_OK);
    }
    quiet = true;
    for (unsigned i = 0; nbusy && i < PATIENCE_S * 1000; i++)
        usleep(1000);
    assert_int_equal(nbusy, 0);
    assert_int_equal(nwrong, 0);
    for (unsigned i = 0; i < NFILES; i++)
        assert_int_equal(gpunvme_close(busy[i]), GPUNVME_OK);
    gpunvme_mem_free(&many);
}

/* Calls that read from this descriptor or above hang, as if its file system did not answer. */
static _Atomic int hung = INT_MAX;
static _Atomic unsigned nhanging;

ssize_t __real_store_fd_move(int fd, enum gpunvme_op op, uint8_t *cpu, size_t nbytes,
                             uint64_t offset);
ssize_t __wrap_store_fd_move(int fd, enum gpunvme_op op, uint8_t *cpu, size_t nbytes,
                             uint64_t offset);
ssize_t __wrap_store_fd_move(int fd, enum gpunvme_op op, uint8_t *cpu, size_t nbytes,
                             uint64_t offset)
{
    nhanging += fd >= hung;
    while (fd >= hung)
        usleep(1000);
    return __real_store_fd_move(fd, op, cpu, nbytes, offset);
}

/* Whose bytes are never found in the page cache. */
static struct posix_file *_Atomic uncached[4];

bool __real_posix_file_is_warm(struct posix_file *file, uint64_t offset);
bool __wrap_posix_file_is_warm(struct posix_file *file, uint64_t offset);
bool __wrap_posix_file_is_warm(struct posix_file *file, uint64_t offset)
{
    for (unsigned i = 0; i < 4; i++)
        if (file == uncached[i])
            return false;
    return __real_posix_file_is_warm(file, offset);
}

#define NHUNG 64u

/* On a device of its own. */
static struct gpunvme_store *opened_to_hang(unsigned i)
{
    struct gpunvme_store *store;
    struct posix *posix;
    char uri[160];
    int fd;

    snprintf(uri, sizeof(uri), "file:%s?uring=off,direct=off", path_of(i));
    store = opened(uri);
    store->dev = i + 1;
    posix = store->priv;
    uncached[i] = &posix->file;
    fd = posix->file.fd;
    posix->file.fd = dup3(fd, 1000 + (int)i, O_CLOEXEC);
    assert_true(posix->file.fd >= 0);
    close(fd);
    return store;
}

static void others_are_read(void)
{
    for (unsigned i = 0; i < 50; i++) {
        struct gpunvme_store *store = opened(path_of(i));

        reads(store, i);
        assert_int_equal(gpunvme_close(store), GPUNVME_OK);
    }
}

static void stores_that_hang_do_not_stop_others(void **state)
{
    enum { NSTUCK = 3 };
    static struct gpunvme_io ios[NSTUCK][NHUNG];
    static uint8_t got[NSTUCK][NHUNG][4096];
    struct gpunvme_store *stuck[NSTUCK], *slow;
    struct gpunvme_engine_info info;
    struct gpunvme_buf many;

    (void)state;
    assert_int_equal(gpunvme_mem_alloc(2 * NHUNG * MIB / 4, GPUNVME_MEM_GPU, &many), GPUNVME_OK);
    nhanging = 0;
    for (unsigned k = 0; k < NSTUCK; k++)
        stuck[k] = opened_to_hang(k);
    hung = 1000;
    for (unsigned k = 0; k < NSTUCK; k++)
        for (unsigned i = 0; i < NHUNG; i++) {
            ios[k][i] =
                (struct gpunvme_io){.op = GPUNVME_OP_READ, .ptr = got[k][i], .nbytes = 4096};
            if (k < 2) { /* they have all slots that they can have, and want more */
                ios[k][i].mem = GPUNVME_MEM_GPU;
                ios[k][i].ptr = (uint8_t *)many.gpu + (k * NHUNG + i) * MIB / 4;
                ios[k][i].nbytes = MIB / 4;
            }
            assert_int_equal(submit_to(stuck[k], &ios[k][i], 1, NULL), GPUNVME_OK);
        }
    for (unsigned i = 0; nhanging < 16 && i < PATIENCE_S * 1000; i++)
        usleep(1000);
    others_are_read();
    slow = opened(path_of(NSTUCK));
    slow->dev = 99;
    uncached[NSTUCK] = &((struct posix *)slow->priv)->file; /* not cached, but answered */
    reads(slow, NSTUCK);
    assert_int_equal(gpunvme_close(slow), GPUNVME_OK);
    gpunvme_engine_get_info(NULL, &info);
    assert_in_range(info.blocked, 16, 28);
    assert_in_range(nhanging, 16, 28); /* of 32 threads */
    hung = INT_MAX;
    for (unsigned k = 0; k < NSTUCK; k++) {
        for (unsigned i = 0; i < NHUNG; i++) {
            assert_int_equal(gpunvme_io_wait(&ios[k][i], PATIENCE_NS), GPUNVME_OK);
            if (k < 2)
                gpunvme_mem_copy(got[k][i], GPUNVME_MEM_HOST, ios[k][i].ptr, GPUNVME_MEM_GPU, 4096);
            assert_memory_equal(got[k][i], bytes_of(k), 4096);
        }
        assert_int_equal(gpunvme_close(stuck[k]), GPUNVME_OK);
    }
    gpunvme_mem_free(&many);
    memset(uncached, 0, sizeof(uncached));
}

/* In the child: 0, or the step that went wrong. */
static int use_after_fork(struct gpunvme_store *parents)
{
    uint8_t *got = malloc(MIB);
    struct gpunvme_store *own;

    if (!got ||
        gpunvme_store_read(parents, 0, got, GPUNVME_MEM_HOST, MIB, NULL) != GPUNVME_ERR_UNSUPPORTED)
        return 1;
    if (!strstr(gpunvme_err_detail(), "before fork(2)"))
        return 2;
    if (gpunvme_store_read(parents, 0, got, GPUNVME_MEM_HOST, 512, NULL) != GPUNVME_ERR_UNSUPPORTED)
        return 3;
    if (gpunvme_close(parents) != GPUNVME_ERR_UNSUPPORTED)
        return 4;
    if (gpunvme_open(path_of(3), 0, &own))
        return 5;
    if (gpunvme_store_read(own, 0, got, GPUNVME_MEM_HOST, MIB, NULL) ||
        memcmp(got, bytes_of(3), MIB) != 0)
        return 6;
    free(got);
    return gpunvme_close(own) ? 7 : 0;
}

static void a_child_is_told_to_open_files_again(void **state)
{
    struct gpunvme_store *store = opened(path_of(2));
    int status = 1;
    pid_t pid;

    (void)state;
#ifdef __SANITIZE_THREAD__
    gpunvme_close(store); /* its runtime starts no threads in a child of many */
    print_message("SKIP: ThreadSanitizer starts no threads after fork(2)\n");
    skip();
#endif
    reads(store, 2);
    fflush(NULL);
    pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        alarm(PATIENCE_S);
        _exit(use_after_fork(store));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    reads(store, 2);
    assert_int_equal(gpunvme_close(store), GPUNVME_OK);
}

/* Files on disk and in memory at once, read and written through the same slots. */
static void files_of_all_kinds_are_written_and_read_at_once(void **state)
{
    enum { N = 32 };
    static struct gpunvme_io ios[N];
    struct gpunvme_store *own[N];
    struct gpunvme_buf from, to;
    uint8_t *got = malloc(N * 128 * 1024);

    (void)state;
    assert_non_null(got);
    assert_int_equal(gpunvme_mem_alloc(N * 128 * 1024, GPUNVME_MEM_GPU, &from), GPUNVME_OK);
    assert_int_equal(gpunvme_mem_alloc(N * 128 * 1024, GPUNVME_MEM_GPU, &to), GPUNVME_OK);
    for (size_t i = 0; i < N; i++)
        assert_int_equal(gpunvme_mem_copy((uint8_t *)from.gpu + i * 128 * 1024, GPUNVME_MEM_GPU,
                                          bytes + i * 1000, GPUNVME_MEM_HOST, 128 * 1024),
                         GPUNVME_OK);
    for (unsigned i = 0; i < N; i++) {
        char path[160];

        snprintf(path, sizeof(path), "%s/gpunvme-many-%d-%u", i % 2 ? "/dev/shm" : folder,
                 (int)getpid(), i);
        if (gpunvme_open(path, GPUNVME_OPEN_WRITE | GPUNVME_OPEN_CREATE, &own[i]))
            fail_msg("%s", gpunvme_err_detail());
        unlink(path);
    }
    for (unsigned write = 2; write-- > 0;) {
        for (size_t i = 0; i < N; i++) {
            size_t nbytes = 128 * 1024 - i * 777;

            ios[i] = (struct gpunvme_io){.op = write ? GPUNVME_OP_WRITE : GPUNVME_OP_READ,
                                         .mem = GPUNVME_MEM_GPU,
                                         .offset = i * 100,
                                         .nbytes = nbytes};
            ios[i].ptr = (uint8_t *)(write ? from.gpu : to.gpu) + i * 128 * 1024;
            assert_int_equal(submit_to(own[i], &ios[i], 1, NULL), GPUNVME_OK);
        }
        for (unsigned i = 0; i < N; i++)
            if (gpunvme_io_wait(&ios[i], PATIENCE_NS))
                fail_msg("%u: %s", i, gpunvme_err_detail());
    }
    assert_int_equal(
        gpunvme_mem_copy(got, GPUNVME_MEM_HOST, to.gpu, GPUNVME_MEM_GPU, N * 128 * 1024),
        GPUNVME_OK);
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(ios[i].done, 128 * 1024 - i * 777);
        assert_memory_equal(got + i * 128 * 1024, bytes + i * 1000, ios[i].done);
        assert_int_equal(gpunvme_close(own[i]), GPUNVME_OK);
    }
    gpunvme_mem_free(&from);
    gpunvme_mem_free(&to);
    free(got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nine_thousand_files_cost_their_descriptors_alone),
        cmocka_unit_test(an_engine_pins_no_more_than_its_limit),
        cmocka_unit_test(twelve_threads_pin_no_more_than_72_mib),
        cmocka_unit_test(options_of_a_store_limit_it_and_make_no_threads),
        cmocka_unit_test(stores_are_closed_while_others_are_busy),
        cmocka_unit_test(files_of_all_kinds_are_written_and_read_at_once),
        cmocka_unit_test(stores_that_hang_do_not_stop_others),
        cmocka_unit_test(a_child_is_told_to_open_files_again),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
