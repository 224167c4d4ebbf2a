/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Files by one call: right bytes, whatever happened to the path between two calls.
 */
#include <dirent.h>
#include <pthread.h>
#include <sys/wait.h>

#include "data_file.h"
#include "gpunvme/onecall.h"
#include "patience.h"

static int close_all(void **state)
{
    (void)state;
    return gpunvme_file_close_all();
}

static int64_t bring(const char *uri, uint64_t offset, size_t nbytes)
{
    size_t done;
    gpunvme_err_t err = gpunvme_file_read(uri, offset, gpu.gpu, GPUNVME_MEM_GPU, nbytes, &done);

    return err ? err : (int64_t)done;
}

static void a_file_is_read_by_one_call(void **state)
{
    (void)state;
    clear_gpu();
    assert_int_equal(bring(data_path, 777, 5000), 5000);
    assert_bytes(0, 777, 5000);
    assert_untouched(5000, 100);
}

static void a_read_at_the_end_is_short(void **state)
{
    (void)state;
    assert_int_equal(bring(data_path, FILE_NBYTES - 10, 100), 10);
    assert_int_equal(bring(data_path, FILE_NBYTES + 10, 100), 0);
}

static void a_file_is_made_and_written_by_one_call(void **state)
{
    char other[80];
    size_t done;

    (void)state;
    snprintf(other, sizeof(other), "%s.new", data_path);
    assert_int_equal(bring(data_path, 0, 10000), 10000);
    assert_int_equal(gpunvme_file_write(other, 100, gpu.gpu, GPUNVME_MEM_GPU, 10000, &done),
                     GPUNVME_OK);
    assert_int_equal(done, 10000);
    clear_gpu();
    assert_int_equal(bring(other, 100, 20000), 10000);
    assert_bytes(0, 0, 10000);
    unlink(other);
}

static void a_path_that_names_another_file_now_is_opened_again(void **state)
{
    char other[80];
    FILE *f;

    (void)state;
    assert_int_equal(bring(data_path, 0, 100), 100);
    snprintf(other, sizeof(other), "%s.new", data_path);
    f = fopen(other, "w");
    assert_non_null(f);
    fputs("another", f);
    fclose(f);
    assert_int_equal(rename(other, data_path), 0);
    assert_int_equal(bring(data_path, 0, 100), 7);
    unlink(data_path);
    make_file();
}

static void a_path_that_names_nothing_any_more_is_not_what_it_was(void **state)
{
    char other[80];
    size_t done;

    (void)state;
    snprintf(other, sizeof(other), "%s.new", data_path);
    assert_int_equal(bring(data_path, 0, 10000), 10000);
    assert_int_equal(gpunvme_file_write(other, 0, gpu.gpu, GPUNVME_MEM_GPU, 10000, NULL),
                     GPUNVME_OK);
    assert_int_equal(unlink(other), 0);
    assert_int_equal(bring(other, 0, 10000), GPUNVME_ERR_NOT_FOUND);
    assert_int_equal(gpunvme_file_write(other, 0, gpu.gpu, GPUNVME_MEM_GPU, 100, &done),
                     GPUNVME_OK);
    assert_int_equal(access(other, F_OK), 0);
    assert_int_equal(bring(other, 0, 10000), 100);
    unlink(other);
}

/* Descriptors of a file without a name, as the kernel tells them. */
static unsigned count_open_deleted(const char *path)
{
    char link[64], to[200], wanted[100];
    unsigned n = 0;

    snprintf(wanted, sizeof(wanted), "%s (deleted)", path);
    for (int fd = 0; fd < 256; fd++) {
        snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
        memset(to, 0, sizeof(to));
        n += readlink(link, to, sizeof(to) - 1) > 0 && !strcmp(to, wanted);
    }
    return n;
}

static void a_file_without_a_name_is_closed_when_its_path_is_used_again(void **state)
{
    char other[80];

    (void)state;
    snprintf(other, sizeof(other), "%s.new", data_path);
    assert_int_equal(gpunvme_file_write(other, 0, gpu.gpu, GPUNVME_MEM_GPU, 100, NULL), GPUNVME_OK);
    assert_int_equal(bring(other, 0, 100), 100);
    assert_int_equal(unlink(other), 0);
    assert_in_range(count_open_deleted(other), 1, 10);
    assert_int_equal(bring(other, 0, 100), GPUNVME_ERR_NOT_FOUND);
    assert_int_equal(count_open_deleted(other), 0);
}

static void a_coded_path_that_names_another_file_now_is_opened_again(void **state)
{
    char other[80], path[80], uri[100];
    FILE *f;

    (void)state;
    snprintf(path, sizeof(path), "%s x", data_path);
    snprintf(other, sizeof(other), "%s.new", data_path);
    snprintf(uri, sizeof(uri), "file:%s%%20x", data_path);
    f = fopen(path, "w");
    assert_non_null(f);
    fputs("one", f);
    fclose(f);
    assert_int_equal(bring(uri, 0, 100), 3);
    f = fopen(other, "w");
    assert_non_null(f);
    fputs("another", f);
    fclose(f);
    assert_int_equal(rename(other, path), 0);
    assert_int_equal(bring(uri, 0, 100), 7);
    unlink(path);
}

static const char *replaced; /* a path: right after it was opened another file gets its name */
static _Atomic bool is_slow, other_done, waited_in_vain;

gpunvme_err_t __real_gpunvme_open(const char *uri, unsigned flags, struct gpunvme_store **out);
gpunvme_err_t __wrap_gpunvme_open(const char *uri, unsigned flags, struct gpunvme_store **out);
gpunvme_err_t __wrap_gpunvme_open(const char *uri, unsigned flags, struct gpunvme_store **out)
{
    gpunvme_err_t err = __real_gpunvme_open(uri, flags, out);
    char other[100];

    if (replaced && !strcmp(uri, replaced)) {
        snprintf(other, sizeof(other), "%s.other", replaced);
        rename(other, replaced);
        replaced = NULL;
    }
    if (is_slow && strstr(uri, ".slow")) {
        for (unsigned i = 0; i < 2000 && !other_done; i++)
            usleep(10000);
        waited_in_vain = !other_done;
    }
    return err;
}

static void make_small(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void a_path_that_is_replaced_while_it_is_opened_is_not_the_old_file_for_ever(void **state)
{
    char path[80], other[100];

    (void)state;
    snprintf(path, sizeof(path), "%s.latest", data_path);
    snprintf(other, sizeof(other), "%s.other", path);
    make_small(path, "old");
    make_small(other, "newer");
    replaced = path;
    assert_int_equal(bring(path, 0, 100), 3); /* it was, when the call began */
    assert_int_equal(bring(path, 0, 100), 5);
    unlink(path);
}

static void *bring_slowly(void *path)
{
    return (void *)(intptr_t)bring(path, 0, 100);
}

static void a_store_that_takes_long_to_open_holds_up_no_other(void **state)
{
    char slow[80];
    pthread_t thread;
    void *n;

    (void)state;
    snprintf(slow, sizeof(slow), "%s.slow", data_path);
    make_small(slow, "slow");
    is_slow = true;
    assert_int_equal(pthread_create(&thread, NULL, bring_slowly, slow), 0);
    usleep(100000);
    assert_int_equal(bring(data_path, 0, 100), 100);
    other_done = true;
    pthread_join(thread, &n);
    is_slow = false;
    assert_int_equal((intptr_t)n, 4);
    assert_false(waited_in_vain);
    unlink(slow);
}

static void a_path_that_is_not_there_is_an_error_each_time(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(bring("/nowhere/at/all", 0, 1), GPUNVME_ERR_NOT_FOUND);
    assert_int_equal(bring("file:/a?no=1", 0, 1), GPUNVME_ERR_URI_PARAM);
}

static unsigned count_open_files(void)
{
    DIR *dir = opendir("/proc/self/fd");
    unsigned n = 0;

    assert_non_null(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

static void not_more_than_a_few_stay_open(void **state)
{
    char uri[100];
    unsigned first = 0, few = 12; /* descriptors for O_DIRECT, and for io_uring, come later */

    (void)state;
    for (unsigned i = 0; i < 40; i++) {
        snprintf(uri, sizeof(uri), "file:%s?threads=1,depth=%u", data_path, i + 1);
        assert_int_equal(bring(uri, i, 10), 10);
        if (i == 10)
            first = count_open_files();
    }
    assert_in_range(count_open_files(), 0, first + few);
}

static unsigned count_threads(void)
{
    DIR *dir = opendir("/proc/self/task");
    unsigned n = 0;

    assert_non_null(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

/* 20 commands of 50 ms each, one after the other */
static void *read_slowly(void *err)
{
    static const char uri[] = "sim:size=1M,fault=delay=50ms:read?chunk=4096,depth=1,threads=1";
    static uint8_t memory[20 * 4096];

    *(gpunvme_err_t *)err =
        gpunvme_file_read(uri, 0, memory, GPUNVME_MEM_HOST, sizeof(memory), NULL);
    return NULL;
}

static void a_store_that_is_in_use_is_closed_when_it_no_longer_is(void **state)
{
    gpunvme_err_t err = GPUNVME_ERR_AGAIN;
    unsigned before;
    pthread_t reader;

    (void)state;
    assert_int_equal(gpunvme_file_close_all(), GPUNVME_OK);
    before = count_threads();
    assert_int_equal(pthread_create(&reader, NULL, read_slowly, &err), 0);
    while (count_threads() < before + 2) /* the reader, and the controller's or the store's */
        usleep(1000);
    assert_int_equal(gpunvme_file_close_all(), GPUNVME_OK);
    pthread_join(reader, NULL);
    assert_int_equal(err, GPUNVME_OK);
    for (unsigned i = 0; count_threads() > before && i < PATIENCE_S * 100; i++)
        usleep(10000); /* those for calls that block stay some seconds */
    assert_int_equal(count_threads(), before);
}

static void many_transfers_are_one_call(void **state)
{
    struct gpunvme_io ios[50];

    (void)state;
    memset(ios, 0, sizeof(ios));
    clear_gpu();
    for (unsigned i = 0; i < 50; i++) {
        ios[i].mem = GPUNVME_MEM_GPU;
        ios[i].offset = i * 5000;
        ios[i].ptr = (uint8_t *)gpu.gpu + i * 3000;
        ios[i].nbytes = 3000;
    }
    assert_int_equal(gpunvme_file_transfer(data_path, ios, 50), GPUNVME_OK);
    for (unsigned i = 0; i < 50; i++) {
        assert_int_equal(ios[i].done, 3000);
        assert_bytes(i * 3000, i * 5000, 3000);
    }
}

static void a_child_opens_files_of_its_own(void **state)
{
    static uint8_t byte;
    int status = 1;
    pid_t pid;

    (void)state;
#ifdef __SANITIZE_THREAD__
    print_message("SKIP: ThreadSanitizer starts no threads after fork(2)\n");
    skip();
#endif
    assert_int_equal(bring(data_path, 777, 5000), 5000);
    fflush(NULL);
    pid = fork();
    assert_true(pid >= 0);
    if (!pid) { /* a GPU's memory does not survive it */
        alarm(PATIENCE_S);
        _exit(gpunvme_file_read(data_path, 777, &byte, GPUNVME_MEM_HOST, 1, NULL) ? 1 : 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(bring(data_path, 777, 5000), 5000);
    assert_bytes(0, 777, 5000);
}

#define TEST(name) cmocka_unit_test_teardown(name, close_all)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_file_is_read_by_one_call),
        TEST(a_read_at_the_end_is_short),
        TEST(a_file_is_made_and_written_by_one_call),
        TEST(a_path_that_names_another_file_now_is_opened_again),
        TEST(a_path_that_names_nothing_any_more_is_not_what_it_was),
        TEST(a_file_without_a_name_is_closed_when_its_path_is_used_again),
        TEST(a_coded_path_that_names_another_file_now_is_opened_again),
        TEST(a_path_that_is_replaced_while_it_is_opened_is_not_the_old_file_for_ever),
        TEST(a_store_that_takes_long_to_open_holds_up_no_other),
        TEST(a_path_that_is_not_there_is_an_error_each_time),
        TEST(not_more_than_a_few_stay_open),
        TEST(a_store_that_is_in_use_is_closed_when_it_no_longer_is),
        TEST(many_transfers_are_one_call),
        TEST(a_child_opens_files_of_its_own),
    };

    return cmocka_run_group_tests(tests, make_all, free_all);
}
