/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Transfers of a file whose file system stops to answer in the middle of it: they time out, tell
 * how far they came, and hold up nobody.
 */
#include "fuse_file.h"
#include "store_files.h"
#include "thread_stream.h"

#define HALF (NBYTES / 2) /* what lies behind is not read while it is mute */

static struct fuse_file file = {.nbytes = NBYTES,
                                .bytes = bytes,
                                .open_flags = FOPEN_DIRECT_IO,
                                .valid_s = 1000,
                                .mute_from = HALF};
/* The kernel asks it for the file's size whenever somebody wants to know that. */
static struct fuse_file asked = {.nbytes = NBYTES, .bytes = bytes, .open_flags = FOPEN_DIRECT_IO};
static uint8_t memory[NBYTES];

/* ---- Tests -------------------------------------------------------------------------------------
 */

/* A request at a time, so that it is known where the file system stops. */
#define ONE_BY_ONE "timeout=500ms,threads=1,depth=1,chunk=64K,uring=off"

static struct gpunvme_store *open_hanging(const char *options)
{
    char uri[192];

    snprintf(uri, sizeof(uri), "file:%s?%s", file.path, options);
    file.shared->is_mute = true;
    memset(memory, POISON, sizeof(memory));
    return opened(uri, 0);
}

/* The file system answers again: it can be closed when all has ended. */
static void close_at_last(struct gpunvme_store *store)
{
    gpunvme_err_t err = GPUNVME_ERR_TIMEOUT;

    file.shared->is_mute = false;
    for (unsigned i = 0; err == GPUNVME_ERR_TIMEOUT && i < PATIENCE_S; i++)
        err = gpunvme_close(store);
    ok(err);
}

static int answer_again(void **state)
{
    (void)state;
    file.shared->is_mute = false;
    return 0;
}

static void a_read_that_stops_times_out_behind_its_valid_prefix(void **state)
{
    /* Long enough for the first half on a busy machine. */
    struct gpunvme_store *store = open_hanging("timeout=2s,threads=1,depth=1,chunk=64K,uring=off");
    size_t done = 1;

    (void)state;
    is_err(gpunvme_store_read(store, 0, memory, GPUNVME_MEM_HOST, NBYTES, &done),
           GPUNVME_ERR_TIMEOUT, "nothing has moved for 2000 ms");
    assert_int_equal(done, HALF);
    assert_memory_equal(memory, bytes, HALF);
    close_at_last(store);
}

static void with_all_threads_of_the_engine_at_work_the_prefix_is_valid_too(void **state)
{
    struct gpunvme_store *store = open_hanging("timeout=500ms");
    size_t done = 1;

    (void)state;
    is_err(gpunvme_store_read(store, 0, memory, GPUNVME_MEM_HOST, NBYTES, &done),
           GPUNVME_ERR_TIMEOUT, "nothing has moved");
    assert_in_range(done, 0, HALF);
    assert_memory_equal(memory, bytes, done);
    close_at_last(store);
}

static void a_gather_that_stops_times_out_behind_its_valid_prefix(void **state)
{
    const uint64_t offsets[3] = {1000, NBYTES - 5000, 0};
    struct gpunvme_store *store = open_hanging(ONE_BY_ONE);
    size_t done = 1;

    (void)state;
    is_err(gpunvme_store_gather(store, offsets, 3, 5000, memory, 5000, GPUNVME_MEM_HOST, &done),
           GPUNVME_ERR_TIMEOUT, "nothing has moved");
    assert_int_equal(done, 5000);
    assert_memory_equal(memory, bytes + 1000, 5000);
    close_at_last(store);
}

/* What had not begun when it timed out is not begun later. */
static void a_read_that_timed_out_is_canceled(void **state)
{
    struct gpunvme_store *store = open_hanging(ONE_BY_ONE);

    (void)state;
    is_err(gpunvme_store_read(store, 0, memory, GPUNVME_MEM_HOST, NBYTES, NULL),
           GPUNVME_ERR_TIMEOUT, "");
    close_at_last(store);
    for (size_t i = HALF + 65536; i < NBYTES; i++)
        assert_int_equal(memory[i], POISON);
}

static void a_store_is_closed_when_its_last_transfer_has_ended(void **state)
{
    struct gpunvme_store *store = open_hanging(ONE_BY_ONE);
    size_t done;

    (void)state;
    is_err(gpunvme_store_read(store, HALF, memory, GPUNVME_MEM_HOST, 4096, &done),
           GPUNVME_ERR_TIMEOUT, "");
    assert_int_equal(done, 0);
    is_err(gpunvme_close(store), GPUNVME_ERR_TIMEOUT, "1 transfers have not ended");
    file.shared->is_mute = false;
    ok(gpunvme_store_read(store, 0, memory + 4096, GPUNVME_MEM_HOST, 4096, &done)); /* as it was */
    assert_memory_equal(memory + 4096, bytes, 4096);
    close_at_last(store);
}

static void a_wait_that_times_out_leaves_the_transfer_in_flight(void **state)
{
    struct gpunvme_store *store = open_hanging(ONE_BY_ONE);
    struct gpunvme_io io = {.store = store, .ptr = memory, .nbytes = NBYTES};

    (void)state;
    ok(gpunvme_io_submit(&io, 1, NULL));
    is_err(gpunvme_io_wait(&io, 0), GPUNVME_ERR_TIMEOUT, "still in flight");
    assert_int_equal(gpunvme_io_moved(&io), HALF);
    assert_memory_equal(memory, bytes, HALF);
    file.shared->is_mute = false;
    ok(gpunvme_io_wait(&io, PATIENCE_NS));
    assert_int_equal(io.done, NBYTES);
    assert_memory_equal(memory, bytes, NBYTES);
    ok(gpunvme_close(store));
}

static void a_canceled_transfer_ends_when_what_had_begun_has(void **state)
{
    struct gpunvme_store *store = open_hanging(ONE_BY_ONE);
    struct gpunvme_io io = {.store = store, .ptr = memory, .nbytes = NBYTES};

    (void)state;
    ok(gpunvme_io_submit(&io, 1, NULL));
    is_err(gpunvme_io_wait(&io, 0), GPUNVME_ERR_TIMEOUT, "");
    gpunvme_io_cancel(&io);
    assert_int_equal(gpunvme_io_test(&io), GPUNVME_ERR_AGAIN);
    file.shared->is_mute = false;
    assert_int_equal(gpunvme_io_wait(&io, PATIENCE_NS), GPUNVME_ERR_CANCELED);
    assert_in_range(io.done, HALF + 1, NBYTES - 1);
    assert_memory_equal(memory, bytes, io.done);
    for (size_t i = io.done; i < NBYTES; i++)
        assert_int_equal(memory[i], POISON);
    ok(gpunvme_close(store));
}

/* As many as it likes, in the way that it would have it, from the first byte on. */
static void others_go_on_beside_a_file_system_that_hangs(void **state)
{
    static struct gpunvme_io ios[64];
    static uint8_t other[NBYTES];
    struct gpunvme_store *store = open_hanging("timeout=60s"), *good;
    const size_t each = HALF / 64;

    (void)state;
    good = opened(file_of(true, "good", bytes, NBYTES), 0);
    for (unsigned i = 0; i < 64; i++)
        ios[i] = (struct gpunvme_io){.store = store,
                                     .offset = HALF + i * each,
                                     .ptr = memory + HALF + i * each,
                                     .nbytes = each};
    ok(gpunvme_io_submit(ios, 64, NULL));
    for (unsigned i = 0; i < 20; i++)
        ok(gpunvme_store_read(good, 0, other, GPUNVME_MEM_HOST, NBYTES, NULL));
    assert_memory_equal(other, bytes, NBYTES);
    for (unsigned i = 0; i < 64; i++)
        assert_int_equal(gpunvme_io_test(&ios[i]), GPUNVME_ERR_AGAIN);
    file.shared->is_mute = false;
    for (unsigned i = 0; i < 64; i++)
        ok(gpunvme_io_wait(&ios[i], PATIENCE_NS));
    assert_memory_equal(memory + HALF, bytes + HALF, HALF);
    ok(gpunvme_close(good));
    close_at_last(store);
}

/* Nor those that reach behind the end of its file, the size of which it does not tell either. */
static void others_go_on_beside_a_file_system_that_tells_no_size(void **state)
{
    static struct gpunvme_io ios[64];
    static uint8_t tail[2 * 4096] __attribute__((aligned(4096))), other[NBYTES];
    struct gpunvme_io of_good = {.ptr = other, .nbytes = NBYTES};
    struct gpunvme_store *store;
    char uri[192];

    (void)state;
    snprintf(uri, sizeof(uri), "file:%s?direct=on,timeout=60s", asked.path);
    store = opened(uri, 0);
    of_good.store = opened(file_of(true, "good", bytes, NBYTES), 0);
    asked.shared->is_mute = true;
    for (unsigned i = 0; i < 64; i++)
        ios[i] = (struct gpunvme_io){
            .store = store, .offset = NBYTES - 4096, .ptr = tail, .nbytes = sizeof(tail)};
    ok(gpunvme_io_submit(ios, 64, NULL));
    ok(gpunvme_io_submit(&of_good, 1, NULL));
    ok(gpunvme_io_wait(&of_good, PATIENCE_NS));
    assert_memory_equal(other, bytes, NBYTES);
    fuse_unmount(&asked); /* ends them */
    for (unsigned i = 0; i < 64; i++)
        assert_int_not_equal(gpunvme_io_wait(&ios[i], PATIENCE_NS), GPUNVME_ERR_TIMEOUT);
    ok(gpunvme_close(of_good.store));
    (void)gpunvme_close(store); /* the kernel has lost the file system */
}

/* Each has what came of it, whatever the call as a whole says. */
static void of_several_only_those_that_stopped_have_timed_out(void **state)
{
    static uint8_t other[NBYTES];
    const char *path_of_good = file_of(true, "good", bytes, NBYTES);
    struct gpunvme_store *store = open_hanging(ONE_BY_ONE), *good;
    struct gpunvme_io ios[3] = {
        {.ptr = other, .nbytes = NBYTES},
        {.store = store, .ptr = memory, .nbytes = NBYTES},
        {.offset = NBYTES - 10, .ptr = other, .nbytes = 10},
    };
    char text[256], uri[192];

    (void)state;
    snprintf(uri, sizeof(uri), "file:%s?timeout=500ms", path_of_good);
    ios[0].store = ios[2].store = good = opened(uri, 0);
    ios[2].ptr = other + NBYTES - 10;
    is_err(gpunvme_io_run(ios, 3), GPUNVME_ERR_TIMEOUT, "nothing has moved");
    assert_int_equal(ios[0].err, GPUNVME_OK);
    assert_int_equal(ios[0].done, NBYTES);
    assert_memory_equal(other, bytes, NBYTES);
    assert_int_equal(ios[1].err, GPUNVME_ERR_TIMEOUT);
    assert_int_equal(ios[1].done, HALF);
    assert_non_null(strstr(gpunvme_io_detail(&ios[1], text, sizeof(text)), "nothing has moved"));
    assert_int_equal(ios[2].err, GPUNVME_OK);
    assert_int_equal(ios[2].done, 10);
    ok(gpunvme_close(good));
    close_at_last(store);
}

static void note(void *flag)
{
    *(_Atomic bool *)flag = true;
}

/* … and tells how far it came. */
static void a_transfer_that_stops_lets_its_stream_go(void **state)
{
    static _Atomic bool has_gone;
    struct gpunvme_store *store = open_hanging(ONE_BY_ONE);
    struct gpunvme_io io = {.store = store, .ptr = memory, .nbytes = NBYTES};
    struct stream stream;

    (void)state;
    stream_open(&stream);
    ok(submit_on_stream(store, &io, &stream));
    has_gone = false;
    stream_call(&stream, note, (void *)(uintptr_t)&has_gone);
    wait_for(&has_gone);
    is_err(gpunvme_io_test(&io), GPUNVME_ERR_TIMEOUT, "nothing has moved");
    assert_int_equal(io.done, HALF);
    assert_memory_equal(memory, bytes, HALF);
    is_err(gpunvme_close(store), GPUNVME_ERR_TIMEOUT, "");
    stream_close(&stream);
    close_at_last(store);
}

#define TEST(name) cmocka_unit_test_teardown(name, answer_again)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_read_that_stops_times_out_behind_its_valid_prefix),
        TEST(with_all_threads_of_the_engine_at_work_the_prefix_is_valid_too),
        TEST(a_gather_that_stops_times_out_behind_its_valid_prefix),
        TEST(a_read_that_timed_out_is_canceled),
        TEST(a_store_is_closed_when_its_last_transfer_has_ended),
        TEST(a_wait_that_times_out_leaves_the_transfer_in_flight),
        TEST(a_canceled_transfer_ends_when_what_had_begun_has),
        TEST(others_go_on_beside_a_file_system_that_hangs),
        TEST(of_several_only_those_that_stopped_have_timed_out),
        TEST(a_transfer_that_stops_lets_its_stream_go),
        TEST(others_go_on_beside_a_file_system_that_tells_no_size), /* last: it unmounts that */
    };
    int failed;

    if (make_files(NULL))
        return 1;
    if (!fuse_mount(&file) || !fuse_mount(&asked)) {
        remove_files(NULL);
        return 77;
    }
    streams_are_threads = true;
    failed = cmocka_run_group_tests(tests, NULL, remove_files);
    fuse_unmount(&file);
    return failed ? 1 : 0;
}
