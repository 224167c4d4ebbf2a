/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How files are opened: by a descriptor, anew, emptied, or only if there is none; what other stores
 * say to that; and hints of what will be read.
 */
#include <sys/fsuid.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "store_files.h"

static int open_again(const char *path, int how)
{
    int fd = open(path, how | O_CLOEXEC);

    assert_true(fd >= 0);
    return fd;
}

static struct gpunvme_store *opened_fd(int fd, unsigned flags)
{
    struct gpunvme_store *store;

    ok(gpunvme_open_fd(NULL, fd, NULL, NULL, flags, &store));
    return store;
}

static void fd_refused(int fd, unsigned flags, gpunvme_err_t expected, const char *words)
{
    struct gpunvme_store *store = (void *)bytes;

    is_err(gpunvme_open_fd(NULL, fd, NULL, NULL, flags, &store), expected, words);
    assert_null(store);
}

static void refused(const char *uri, unsigned flags, gpunvme_err_t expected, const char *words)
{
    struct gpunvme_store *store = (void *)bytes;

    is_err(gpunvme_open(uri, flags, &store), expected, words);
    assert_null(store);
}

/* ---- Descriptors -------------------------------------------------------------------------------
 */

static void a_store_of_a_descriptor_needs_it_no_more(void **state)
{
    (void)state;
    for (unsigned on_disk = 0; on_disk < 2; on_disk++) {
        int fd = open_again(file_of(on_disk, "fd", bytes, NBYTES), O_RDWR);
        struct gpunvme_store *store = opened_fd(fd, GPUNVME_OPEN_WRITE);

        assert_int_equal(close(fd), 0);
        is_stored(store, bytes);
        ok(gpunvme_store_write(store, 100, bytes, GPUNVME_MEM_HOST, 100, NULL));
        ok(gpunvme_close(store));
    }
}

static void the_descriptor_stays_the_callers(void **state)
{
    int fd = open_again(file_of(false, "fd", bytes, NBYTES), O_RDWR);
    uint8_t byte;

    (void)state;
    assert_int_equal(lseek(fd, 17, SEEK_SET), 17);
    ok(gpunvme_close(opened_fd(fd, GPUNVME_OPEN_WRITE)));
    assert_int_equal(read(fd, &byte, 1), 1);
    assert_int_equal(byte, bytes[17]);
    close(fd);
}

static void its_flags_stay_as_they_were(void **state)
{
    static const int flags[] = {0, O_NONBLOCK, O_APPEND, O_APPEND | O_NONBLOCK};

    (void)state;
    for (unsigned i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
        int fd = open_again(file_of(true, "fd", bytes, NBYTES), O_RDWR | flags[i]);
        int before = fcntl(fd, F_GETFL);
        struct gpunvme_store *store = opened_fd(fd, GPUNVME_OPEN_WRITE);

        is_stored(store, bytes);
        assert_int_equal(fcntl(fd, F_GETFL), before);
        ok(gpunvme_close(store));
        assert_int_equal(fcntl(fd, F_GETFL), before);
        close(fd);
    }
}

static void writes_by_a_descriptor_that_appends_go_where_they_belong(void **state)
{
    int fd = open_again(file_of(true, "fd", bytes, NBYTES), O_RDWR | O_APPEND);
    struct gpunvme_store *store = opened_fd(fd, GPUNVME_OPEN_WRITE);
    uint8_t expected[NBYTES];

    (void)state;
    memcpy(expected, bytes, NBYTES);
    memcpy(expected + 1000, bytes + 5, 500);
    ok(gpunvme_store_write(store, 1000, bytes + 5, GPUNVME_MEM_HOST, 500, NULL));
    assert_int_equal(lseek(fd, 0, SEEK_END), NBYTES);
    is_stored(store, expected);
    ok(gpunvme_close(store));
    close(fd);
}

/* Its own description, which appends, is the only one that there can be. */
static void one_that_appends_and_cannot_be_opened_again_is_refused(void **state)
{
    int fd = open_again(file_of(true, "fd", bytes, NBYTES), O_RDWR | O_APPEND);
    int plain = open_again(file_of(true, "other", bytes, NBYTES), O_RDWR);
    struct gpunvme_store *store;

    (void)state;
    if (geteuid()) {
        print_message("SKIP: only root can be somebody else\n");
        skip();
    }
    setfsuid(65534);
    fd_refused(fd, GPUNVME_OPEN_WRITE, GPUNVME_ERR_PERMISSION, "fd:");
    store = opened_fd(plain, GPUNVME_OPEN_WRITE);
    setfsuid(0);
    is_stored(store, bytes);
    ok(gpunvme_close(store));
    close(plain);
    close(fd);
}

static void a_descriptor_for_reading_is_not_written(void **state)
{
    const char *path = file_of(false, "fd", bytes, NBYTES);
    int fd = open_again(path, O_RDONLY), only_written = open_again(path, O_WRONLY);
    int named = open_again(path, O_PATH);
    struct gpunvme_store *store = opened_fd(fd, 0);

    (void)state;
    is_stored(store, bytes);
    ok(gpunvme_close(store));
    fd_refused(fd, GPUNVME_OPEN_WRITE, GPUNVME_ERR_READONLY, "for reading alone");
    fd_refused(only_written, 0, GPUNVME_ERR_PERMISSION, "not open for reading");
    fd_refused(only_written, GPUNVME_OPEN_WRITE, GPUNVME_ERR_PERMISSION, "not open for reading");
    fd_refused(named, 0, GPUNVME_ERR_PERMISSION, "not open for reading");
    close(named);
    close(only_written);
    close(fd);
}

static void what_is_no_file_is_refused(void **state)
{
    static const char words[] = "neither a file nor a block device";
    int ends[2], sockets[2], folder = open_again("/tmp", O_RDONLY | O_DIRECTORY);
    int null = open_again("/dev/null", O_RDWR);

    (void)state;
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
    fd_refused(ends[0], 0, GPUNVME_ERR_INVALID, words);
    fd_refused(sockets[0], 0, GPUNVME_ERR_INVALID, words);
    fd_refused(sockets[0], GPUNVME_OPEN_WRITE, GPUNVME_ERR_INVALID, words);
    fd_refused(folder, 0, GPUNVME_ERR_INVALID, words);
    fd_refused(null, GPUNVME_OPEN_WRITE, GPUNVME_ERR_INVALID, words);
    for (unsigned i = 0; i < 2; i++) {
        close(ends[i]);
        close(sockets[i]);
    }
    close(folder);
    fd_refused(folder, 0, GPUNVME_ERR_INVALID, "is not open");
    fd_refused(-1, 0, GPUNVME_ERR_INVALID, "-1");
    close(null);
}

static void a_file_without_a_name_is_opened_by_its_descriptor(void **state)
{
    const char *path = file_of(true, "fd", bytes, NBYTES);
    int unlinked = open_again(path, O_RDWR), in_memory = memfd_create("test", MFD_CLOEXEC);

    (void)state;
    assert_int_equal(unlink(path), 0);
    assert_int_equal(write(in_memory, bytes, NBYTES), NBYTES);
    for (unsigned i = 0; i < 2; i++) {
        struct gpunvme_store *store = opened_fd(i ? in_memory : unlinked, GPUNVME_OPEN_WRITE);

        is_stored(store, bytes);
        ok(gpunvme_store_write(store, NBYTES, bytes, GPUNVME_MEM_HOST, 10, NULL));
        ok(gpunvme_close(store));
        assert_int_equal(lseek(i ? in_memory : unlinked, 0, SEEK_END), NBYTES + 10);
    }
    close(unlinked);
    close(in_memory);
}

static void another_file_of_the_same_name_is_not_taken(void **state)
{
    const char *path = file_of(true, "fd", bytes, NBYTES);
    int fd = open_again(path, O_RDWR);
    struct gpunvme_store *store;

    (void)state;
    assert_int_equal(unlink(path), 0);
    file_of(true, "fd", "other", 5);
    ok(gpunvme_open_fd(NULL, fd, path, "direct=on", GPUNVME_OPEN_WRITE, &store));
    is_stored(store, bytes);
    ok(gpunvme_close(store));
    close(fd);
}

static void a_store_of_a_descriptor_has_a_name_and_options(void **state)
{
    int fd = open_again(file_of(false, "fd", bytes, NBYTES), O_RDWR);
    struct gpunvme_store_info info;
    struct gpunvme_store *store;

    (void)state;
    ok(gpunvme_open_fd(NULL, fd, "shard 7", "threads=1,timeout=7s", 0, &store));
    gpunvme_store_get_info(store, &info);
    assert_non_null(strstr(info.uri, "shard 7"));
    assert_int_equal(info.threads, 1);
    assert_int_equal(info.timeout_ns, UINT64_C(7000000000));
    ok(gpunvme_close(store));
    is_err(gpunvme_open_fd(NULL, fd, NULL, "depths=3", 0, &store), GPUNVME_ERR_URI_PARAM, "depth");
    is_err(gpunvme_open_fd(NULL, fd, NULL, "nsid=3", 0, &store), GPUNVME_ERR_URI_PARAM, "nsid");
    fd_refused(fd, GPUNVME_OPEN_WRITE | GPUNVME_OPEN_CREATE, GPUNVME_ERR_INVALID, "0 or WRITE");
    close(fd);
}

static void still_holds(const char *path)
{
    struct gpunvme_store *store = opened(path, 0);

    is_stored(store, bytes);
    ok(gpunvme_close(store));
}

/* ---- Flags -------------------------------------------------------------------------------------
 */

static void truncate_makes_a_file_empty(void **state)
{
    const char *path = file_of(true, "flags", bytes, NBYTES);
    struct gpunvme_store *store = opened(path, GPUNVME_OPEN_WRITE | GPUNVME_OPEN_TRUNCATE);
    uint64_t nbytes = 1;

    (void)state;
    ok(gpunvme_store_size(store, &nbytes));
    assert_int_equal(nbytes, 0);
    ok(gpunvme_close(store));
    assert_int_equal(unlink(path), 0);
    refused(path, GPUNVME_OPEN_WRITE | GPUNVME_OPEN_TRUNCATE, GPUNVME_ERR_NOT_FOUND, path);
}

static void excl_makes_a_file_or_says_that_it_exists(void **state)
{
    const unsigned flags = GPUNVME_OPEN_WRITE | GPUNVME_OPEN_CREATE | GPUNVME_OPEN_EXCL;
    const char *path = file_of(true, "flags", bytes, NBYTES);
    char link[160];

    (void)state;
    snprintf(link, sizeof(link), "%s-link", path);
    assert_int_equal(symlink(path, link), 0);
    refused(path, flags, GPUNVME_ERR_EXISTS, path);
    refused(path, flags | GPUNVME_OPEN_TRUNCATE, GPUNVME_ERR_EXISTS, path);
    refused(link, flags, GPUNVME_ERR_EXISTS, link);
    still_holds(path); /* nobody has emptied it */
    assert_int_equal(unlink(path), 0);
    refused(link, flags, GPUNVME_ERR_EXISTS, link);
    ok(gpunvme_close(opened(path, flags)));
    refused(path, flags, GPUNVME_ERR_EXISTS, path);
}

static void flags_that_make_no_sense_are_refused(void **state)
{
    const char *path = file_of(true, "flags", bytes, NBYTES);

    (void)state;
    refused(path, GPUNVME_OPEN_WRITE | GPUNVME_OPEN_EXCL, GPUNVME_ERR_INVALID,
            "EXCL without CREATE");
    refused(path, GPUNVME_OPEN_TRUNCATE, GPUNVME_ERR_INVALID, "WRITE");
    refused(path, GPUNVME_OPEN_CREATE, GPUNVME_ERR_INVALID, "WRITE");
    refused(path, GPUNVME_OPEN_WRITE | 0x4000, GPUNVME_ERR_INVALID, "flags");
    still_holds(path);
}

/* A namespace is there, or is not: CREATE asks for nothing. */
static void only_files_are_truncated_or_made(void **state)
{
    static const unsigned flags[] = {GPUNVME_OPEN_TRUNCATE, GPUNVME_OPEN_CREATE | GPUNVME_OPEN_EXCL,
                                     GPUNVME_OPEN_CREATE | GPUNVME_OPEN_TRUNCATE};
    char uri[512] = "stripe:";

    (void)state;
    ok(gpunvme_close(open_stripe("", "", "")));
    for (unsigned i = 0; i < NMEMBERS; i++)
        snprintf(uri + strlen(uri), sizeof(uri) - strlen(uri), "%s%s/member%u", i ? ";" : "",
                 folders[0], i);
    for (unsigned i = 0; i < 3; i++) {
        refused("sim:size=1M", GPUNVME_OPEN_WRITE | flags[i], GPUNVME_ERR_INVALID, "is no file");
        refused(uri, GPUNVME_OPEN_WRITE | flags[i], GPUNVME_ERR_INVALID, "is no file");
    }
    ok(gpunvme_close(opened("sim:size=1M", GPUNVME_OPEN_WRITE | GPUNVME_OPEN_CREATE)));
    ok(gpunvme_close(opened(uri, GPUNVME_OPEN_WRITE | GPUNVME_OPEN_CREATE)));
}

/* ---- Hints -------------------------------------------------------------------------------------
 */

static void hints_change_no_byte_of_any_store(void **state)
{
    (void)state;
    for (unsigned k = 0; k < NKINDS; k++) {
        struct gpunvme_store *store = open_kind(k);

        for (enum gpunvme_advice a = GPUNVME_ADVICE_NORMAL; a <= GPUNVME_ADVICE_DONT_NEED; a++) {
            ok(gpunvme_store_advise(store, 0, 0, a));
            ok(gpunvme_store_advise(store, 12345, 99999, a));
            ok(gpunvme_store_advise(store, NBYTES + 5, 1 << 20, a));
            is_stored(store, bytes);
        }
        ok(gpunvme_close(store));
    }
}

static void hints_that_make_no_sense_are_refused(void **state)
{
    (void)state;
    for (unsigned k = 0; k < NKINDS; k++) {
        struct gpunvme_store *store = open_kind(k);

        is_err(gpunvme_store_advise(store, 0, 0, (enum gpunvme_advice)7), GPUNVME_ERR_INVALID,
               "advice 7");
        is_err(gpunvme_store_advise(store, UINT64_MAX, 1, GPUNVME_ADVICE_RANDOM), GPUNVME_ERR_RANGE,
               "offset");
        is_err(gpunvme_store_advise(store, 5, INT64_MAX, GPUNVME_ADVICE_RANDOM), GPUNVME_ERR_RANGE,
               "offset");
        ok(gpunvme_close(store));
    }
    is_err(gpunvme_store_advise(NULL, 0, 0, GPUNVME_ADVICE_RANDOM), GPUNVME_ERR_INVALID, "NULL");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_store_of_a_descriptor_needs_it_no_more),
        cmocka_unit_test(the_descriptor_stays_the_callers),
        cmocka_unit_test(its_flags_stay_as_they_were),
        cmocka_unit_test(writes_by_a_descriptor_that_appends_go_where_they_belong),
        cmocka_unit_test(one_that_appends_and_cannot_be_opened_again_is_refused),
        cmocka_unit_test(a_descriptor_for_reading_is_not_written),
        cmocka_unit_test(what_is_no_file_is_refused),
        cmocka_unit_test(a_file_without_a_name_is_opened_by_its_descriptor),
        cmocka_unit_test(another_file_of_the_same_name_is_not_taken),
        cmocka_unit_test(a_store_of_a_descriptor_has_a_name_and_options),
        cmocka_unit_test(truncate_makes_a_file_empty),
        cmocka_unit_test(excl_makes_a_file_or_says_that_it_exists),
        cmocka_unit_test(flags_that_make_no_sense_are_refused),
        cmocka_unit_test(only_files_are_truncated_or_made),
        cmocka_unit_test(hints_change_no_byte_of_any_store),
        cmocka_unit_test(hints_that_make_no_sense_are_refused),
    };

    return cmocka_run_group_tests(tests, make_files, remove_files);
}
