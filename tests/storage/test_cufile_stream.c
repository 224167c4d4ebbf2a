/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cuFile's own transfers in streams (backend=cufile,async=1), over a stand-in for libcufile and
 * streams that are threads: what is promised of streams holds, and what can't go that way goes as
 * without async. With the argument "old": a libcufile that has no such calls.
 */
#include "cufile_rig.h"

#include <fcntl.h>

#include "gpunvme/memory.h"
#include "storage/internal.h"
#include "thread_stream.h"

#define BLOCK  4096u
#define NBYTES (32u * BLOCK)
#define RAGGED (NBYTES + 77u) /* of the file */
#define PINNED GPUNVME_MEM_PINNED
#define GPU    GPUNVME_MEM_GPU

static char path[64];
static uint8_t *content, *memory, *spare;
static struct gpunvme_store *store;
static struct stream stream;
static _Atomic bool entered; /* in each call that put something on a stream */
static _Atomic bool goes_on;
static _Atomic unsigned stalls; /* turns that wait for goes_on */

static void wait_to_go_on(void *unused)
{
    (void)unused;
    while (!goes_on)
        usleep(100);
}

/* Where libcufile puts its work on a stream. */
static void put_turn(void *s, void (*fn)(void *), void *arg)
{
    entered = entered && nentered == 1;
    if (stalls) {
        stalls--;
        fake_call(s, wait_to_go_on, NULL);
    }
    fake_call(s, fn, arg);
}

static void open_with(const char *options)
{
    char uri[128];

    if (store)
        assert_int_equal(gpunvme_close(store), GPUNVME_OK);
    store = NULL;
    snprintf(uri, sizeof(uri), "file:%s?backend=cufile%s", path, options);
    if (gpunvme_open(uri, GPUNVME_OPEN_WRITE, &store) ||
        gpunvme_store_register(store, memory, NBYTES, GPU))
        fail_msg("%s", gpunvme_err_detail());
}

static int set_up_with(const char *options)
{
    int fd;

    strcpy(path, "/tmp/gpunvme_turns_XXXXXX");
    fd = mkstemp(path);
    if (fd < 0 || pwrite(fd, content, RAGGED, 0) != (ssize_t)RAGGED || close(fd))
        return -1;
    memset(memory, 0xee, NBYTES);
    memset(spare, 0xee, NBYTES);
    entered = true;
    goes_on = false;
    stalls = 0;
    stream_open(&stream);
    default_stream = &stream;
    open_with(options);
    return 0;
}

static int set_up(void **state)
{
    (void)state;
    fake_clear();
    fake_set("NVFS", "2.17");
    return set_up_with(",async=1,require=p2p");
}

static int set_up_compat(void **state)
{
    (void)state;
    fake_clear();
    return set_up_with(",async=1");
}

static int tear_down(void **state)
{
    gpunvme_err_t err;

    (void)state;
    goes_on = true;
    stream_close(&stream);
    err = gpunvme_close(store);
    store = NULL;
    unlink(path);
    return err || !entered || fake_held();
}

static struct gpunvme_io read_of(uint64_t offset, void *ptr, size_t nbytes)
{
    return (struct gpunvme_io){
        .op = GPUNVME_OP_READ, .mem = GPU, .offset = offset, .ptr = ptr, .nbytes = nbytes};
}

static struct gpunvme_io write_of(uint64_t offset, void *ptr, size_t nbytes)
{
    struct gpunvme_io io = read_of(offset, ptr, nbytes);

    io.op = GPUNVME_OP_WRITE;
    return io;
}

static void submitted(struct gpunvme_io *io, void *to)
{
    if (gpunvme_store_submit_on_stream(store, io, to))
        fail_msg("%s", gpunvme_err_detail());
}

/* Its bytes come, `there` of them, when the stream is through. */
static void assert_comes(struct gpunvme_io *io, size_t there)
{
    stream_sync(&stream);
    if (gpunvme_io_test(io))
        fail_msg("%s", gpunvme_err_detail());
    assert_int_equal(io->done, there);
    assert_memory_equal(io->ptr, content + io->offset, there);
    for (size_t i = there; i < io->nbytes; i++)
        assert_int_equal(((uint8_t *)io->ptr)[i], 0xee);
}

static void assert_turns(unsigned turns, unsigned cut)
{
    struct gpunvme_path p;
    char text[64];

    gpunvme_store_path(store, &p);
    snprintf(text, sizeof(text), "async in streams: %u, cut short %u", turns, cut);
    if (!strstr(p.how, text))
        fail_msg("'%s' is not in '%s'", text, p.how);
    assert_int_equal(fake_calls("cuFileReadAsync") + fake_calls("cuFileWriteAsync"), turns);
}

/* ---- Order ------------------------------------------------------------------------------------
 */

static bool right;

static void compare(void *unused)
{
    (void)unused;
    right = !memcmp(memory + 10, content + 100, 50000);
}

static void what_comes_after_a_read_by_cufile_sees_its_bytes(void **state)
{
    struct gpunvme_io io = read_of(100, memory + 10, 50000);
    struct gpunvme_path p;

    (void)state;
    right = false;
    submitted(&io, &stream);
    fake_call(&stream, compare, NULL);
    assert_comes(&io, 50000);
    assert_true(right);
    assert_turns(1, 0);
    assert_int_equal(fake_calls("cuFileRead"), 0);
    gpunvme_store_path(store, &p);
    assert_int_equal(p.bytes_read[GPUNVME_ROUTE_P2P], 50000);
}

static void change(void *unused)
{
    (void)unused;
    usleep(20000);
    memcpy(memory, content + 5, 3 * BLOCK);
}

static void what_comes_before_a_write_by_cufile_is_written(void **state)
{
    struct gpunvme_io io = write_of(BLOCK, memory, 3 * BLOCK);
    struct gpunvme_path p;

    (void)state;
    fake_call(&stream, change, NULL);
    submitted(&io, &stream);
    assert_int_equal(gpunvme_io_test(&io), GPUNVME_ERR_AGAIN);
    stream_sync(&stream);
    assert_int_equal(gpunvme_io_test(&io), GPUNVME_OK);
    assert_int_equal(io.done, 3 * BLOCK);
    assert_turns(1, 0);
    assert_int_equal(gpunvme_store_read(store, BLOCK, spare, PINNED, 3 * BLOCK, NULL), GPUNVME_OK);
    assert_memory_equal(spare, content + 5, 3 * BLOCK);
    gpunvme_store_path(store, &p);
    assert_int_equal(p.bytes_written[GPUNVME_ROUTE_P2P], 3 * BLOCK);
}

static void many_on_many_streams_keep_their_order(void **state)
{
    (void)state;
    check_order_on_many_streams(store, memory, GPUNVME_MEM_GPU, content);
    assert_turns(STREAMS * EACH, 0);
}

static void streams_and_threads_give_the_files_bytes(void **state)
{
    enum { N = 64, ROUNDS = 200, PART = 2048 };
    static struct gpunvme_io ios[N];
    struct stream other;

    (void)state;
    stream_open(&other);
    for (unsigned round = 0; round < ROUNDS; round++) {
        memset(memory, 0xee, NBYTES);
        for (unsigned i = 0; i < N; i++) {
            ios[i] = read_of(i * PART, memory + i * PART, PART);
            if (i % 4 < 2)
                submitted(&ios[i], i % 2 ? &other : &stream);
            else
                assert_int_equal(gpunvme_store_submit(store, &ios[i], 1, NULL), GPUNVME_OK);
        }
        stream_sync(&other);
        stream_sync(&stream);
        for (unsigned i = 0; i < N; i++)
            assert_int_equal(gpunvme_io_wait(&ios[i], 10000000000u), GPUNVME_OK);
        assert_memory_equal(memory, content, NBYTES);
    }
    assert_turns(ROUNDS * N / 2, 0);
    stream_close(&other);
}

/* ---- Short reads and errors -------------------------------------------------------------------
 */

static void a_read_over_the_end_is_short(void **state)
{
    struct gpunvme_io io = read_of(RAGGED - 100, memory, BLOCK);
    struct gpunvme_io behind = read_of(RAGGED + 5, memory + 2 * BLOCK, BLOCK);

    (void)state;
    submitted(&io, &stream);
    assert_comes(&io, 100);
    submitted(&behind, &stream);
    assert_comes(&behind, 0);
    assert_turns(2, 0);
}

static void cut_file(void *unused)
{
    (void)unused;
    right = !truncate(path, 5000);
}

static void the_end_is_where_it_is_when_the_stream_comes_to_the_read(void **state)
{
    struct gpunvme_io io = read_of(BLOCK, memory, 2 * BLOCK);
    struct gpunvme_io behind = read_of(2 * BLOCK, memory + 2 * BLOCK, BLOCK);

    (void)state;
    fake_call(&stream, wait_to_go_on, NULL);
    fake_call(&stream, cut_file, NULL);
    submitted(&io, &stream);
    submitted(&behind, &stream);
    goes_on = true;
    assert_comes(&io, 5000 - BLOCK);
    assert_comes(&behind, 0);
    assert_true(right);
}

static void what_cufile_leaves_is_done_by_threads(void **state)
{
    struct gpunvme_io io = read_of(3, memory, 50000);

    (void)state;
    fake_set("SHORT", "1000");
    submitted(&io, &stream);
    assert_comes(&io, 50000);
    assert_turns(1, 1);
    assert_int_equal(fake_calls("cuFileRead"), 49);
}

static void a_turn_that_fails_is_tried_by_threads(void **state)
{
    static const char *const fails[] = {"async=5", "async=5044", "cuFileReadAsync=5038"};

    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        struct gpunvme_io io = read_of(3 + i, memory + i * BLOCK, 1000);

        fake_set("FAIL", fails[i]);
        submitted(&io, &stream);
        assert_comes(&io, 1000);
    }
    assert_turns(3, 3);
}

static void an_error_that_threads_meet_too_is_the_transfers(void **state)
{
    struct gpunvme_io io = read_of(0, memory, 1000), after = read_of(5, memory + BLOCK, 1000);
    struct gpunvme_io write = write_of(0, memory, BLOCK);

    (void)state;
    fake_set("FAIL", "async=5@1,async=28@3,cuFileRead=5@1,cuFileWrite=28");
    submitted(&io, &stream);
    submitted(&after, &stream);
    submitted(&write, &stream);
    stream_sync(&stream);
    assert_int_equal(gpunvme_io_test(&io), GPUNVME_ERR_IO);
    assert_detail_has("cuFileRead");
    assert_int_equal(io.done, 0);
    assert_int_equal(gpunvme_io_test(&write), GPUNVME_ERR_NOSPC);
    assert_comes(&after, 1000);
    assert_turns(3, 2);
}

/* ---- What goes another way --------------------------------------------------------------------
 */

static void without_async_threads_do_it(void **state)
{
    struct gpunvme_io io = read_of(100, memory, 50000);
    struct gpunvme_path p;

    (void)state;
    open_with("");
    submitted(&io, &stream);
    assert_comes(&io, 50000);
    assert_int_equal(fake_calls("cuFileReadAsync"), 0);
    gpunvme_store_path(store, &p);
    assert_null(strstr(p.how, "async"));
}

static void where_compat_mode_is_allowed_threads_do_it_and_that_is_told(void **state)
{
    struct gpunvme_io io = read_of(100, memory, 50000);
    struct gpunvme_path p;

    (void)state;
    for (unsigned nvfs = 0; nvfs < 2; nvfs++) {
        submitted(&io, &stream);
        assert_comes(&io, 50000);
        assert_int_equal(fake_calls("cuFileReadAsync"), 0);
        gpunvme_store_path(store, &p);
        assert_non_null(strstr(p.how, "no async where compat mode is allowed"));
        fake_set("NVFS", "2.17"); /* each transfer still may go by host memory */
        open_with(",async=1");
    }
}

static void memory_that_is_not_registered_goes_by_threads(void **state)
{
    struct gpunvme_io io = read_of(100, spare, 50000), over = read_of(1, memory + NBYTES - 10, 20);

    (void)state;
    submitted(&io, &stream);
    assert_comes(&io, 50000);
    submitted(&over, &stream); /* begins in what is registered; all of it is one array */
    assert_comes(&over, 20);
    assert_turns(0, 0);
}

static void host_memory_goes_by_threads(void **state)
{
    struct gpunvme_io io = read_of(100, spare, 50000);

    (void)state;
    io.mem = PINNED;
    submitted(&io, &stream);
    assert_comes(&io, 50000);
    assert_turns(0, 0);
}

static void ragged_writes_go_by_threads(void **state)
{
    struct gpunvme_io io = write_of(BLOCK, memory, 100), flush = {.op = GPUNVME_OP_FLUSH};

    (void)state;
    submitted(&io, &stream);
    submitted(&flush, &stream);
    stream_sync(&stream);
    assert_int_equal(gpunvme_io_test(&io), GPUNVME_OK);
    assert_int_equal(gpunvme_io_test(&flush), GPUNVME_OK);
    assert_int_equal(io.done, 100);
    assert_turns(0, 0);
}

/* cuFile takes NULL for no stream, and the call would not return before its end. */
static void the_default_streams_go_by_threads(void **state)
{
    (void)state;
    for (uintptr_t s = 0; s <= 2; s++) {
        struct gpunvme_io io = read_of(100 + s, memory, 5000);

        submitted(&io, (void *)s);
        assert_comes(&io, 5000);
    }
    assert_turns(0, 0);
}

static void a_capture_is_refused_and_cufile_not_asked(void **state)
{
    struct gpunvme_io io = read_of(0, memory, 100);

    (void)state;
    stream.capturing = true;
    assert_int_equal(gpunvme_store_submit_on_stream(store, &io, &stream), GPUNVME_ERR_UNSUPPORTED);
    assert_detail_has("captured");
    assert_turns(0, 0);
}

static void an_old_library_does_it_by_threads_and_that_is_told(void **state)
{
    struct gpunvme_io io = read_of(100, memory, 50000);
    struct gpunvme_path p;

    (void)state;
    submitted(&io, &stream);
    assert_comes(&io, 50000);
    gpunvme_store_path(store, &p);
    assert_non_null(strstr(p.how, "no async: an older libcufile"));
}

/* ---- The store's life -------------------------------------------------------------------------
 */

static void go_on_when_closing(void *unused)
{
    (void)unused;
    for (unsigned looks = 0; looks < 10000 && !atomic_load(&store->closing); looks++)
        usleep(1000);
    goes_on = true;
}

static void close_waits_for_a_turn_under_way(void **state)
{
    struct gpunvme_io io = read_of(0, memory, NBYTES);
    struct stream other;

    (void)state;
    stream_open(&other);
    stalls = 1;
    submitted(&io, &stream);
    fake_call(&other, go_on_when_closing, NULL);
    assert_int_equal(gpunvme_close(store), GPUNVME_OK);
    store = NULL;
    assert_int_equal(gpunvme_io_test(&io), GPUNVME_OK);
    assert_memory_equal(memory, content, NBYTES);
    stream_close(&other);
}

static void a_turn_that_does_not_end_is_told_and_keeps_what_it_uses(void **state)
{
    struct gpunvme_io io = read_of(0, memory, BLOCK), after = read_of(7, memory + BLOCK, 100);
    struct gpunvme_io others[3];
    struct stream other;

    (void)state;
    store->uri.options.timeout_ns = 30000000;
    stream_open(&other);
    stalls = 1;
    submitted(&io, &stream);
    assert_int_equal(gpunvme_io_wait(&io, 10000000000u), GPUNVME_ERR_TIMEOUT);
    assert_int_equal(gpunvme_store_unregister(store, memory), GPUNVME_ERR_BUSY);
    assert_int_equal(gpunvme_close(store), GPUNVME_ERR_TIMEOUT);
    store->uri.options.timeout_ns = 30000000000u;
    for (unsigned i = 0; i < 3; i++) {
        others[i] = read_of(i, memory + (2 + i) * BLOCK, 100);
        submitted(&others[i], &other);
    }
    stream_sync(&other);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(gpunvme_io_test(&others[i]), GPUNVME_OK);
    submitted(&after, &stream);
    goes_on = true; /* the stream goes on behind it, as after any other */
    assert_comes(&after, 100);
    assert_memory_equal(memory, content, BLOCK); /* what it was to do was not written over */
    assert_int_equal(gpunvme_store_unregister(store, memory), GPUNVME_OK);
    stream_close(&other);
}

/* ---- main() -----------------------------------------------------------------------------------
 */

#define TEST(name)   cmocka_unit_test_setup_teardown(name, set_up, tear_down)
#define COMPAT(name) cmocka_unit_test_setup_teardown(name, set_up_compat, tear_down)

static const struct CMUnitTest tests[] = {
    TEST(what_comes_after_a_read_by_cufile_sees_its_bytes),
    TEST(what_comes_before_a_write_by_cufile_is_written),
    TEST(many_on_many_streams_keep_their_order),
    TEST(streams_and_threads_give_the_files_bytes),
    TEST(a_read_over_the_end_is_short),
    TEST(the_end_is_where_it_is_when_the_stream_comes_to_the_read),
    TEST(what_cufile_leaves_is_done_by_threads),
    TEST(a_turn_that_fails_is_tried_by_threads),
    TEST(an_error_that_threads_meet_too_is_the_transfers),
    TEST(without_async_threads_do_it),
    COMPAT(where_compat_mode_is_allowed_threads_do_it_and_that_is_told),
    TEST(memory_that_is_not_registered_goes_by_threads),
    TEST(host_memory_goes_by_threads),
    TEST(ragged_writes_go_by_threads),
    TEST(the_default_streams_go_by_threads),
    TEST(a_capture_is_refused_and_cufile_not_asked),
    TEST(close_waits_for_a_turn_under_way),
    TEST(a_turn_that_does_not_end_is_told_and_keeps_what_it_uses),
};

static const struct CMUnitTest old_tests[] = {
    COMPAT(an_old_library_does_it_by_threads_and_that_is_told),
};

static void use_streams(void *lib)
{
    fake_cufile_streams_fn *use;

    *(void **)&use = dlsym(lib, "fake_cufile_streams");
    if (!use)
        exit(1);
    use(put_turn);
}

int main(int argc, char **argv)
{
    bool old = argc > 1 && !strcmp(argv[1], "old");
    void *lib = use_fake_library(old ? FAKE_CUFILE_OLD : FAKE_CUFILE);
    int failed;

    if (!gpunvme_mem_gpu_is_host()) {
        printf("SKIP: there is a GPU, whose memory the stand-in for libcufile can't reach\n");
        return 77;
    }
    store_stream_ops = &fake;
    content = malloc(RAGGED);
    memory = aligned_alloc(BLOCK, 2 * NBYTES);
    spare = aligned_alloc(BLOCK, NBYTES);
    for (size_t i = 0; i < RAGGED; i++)
        content[i] = (uint8_t)((i * 2654435761u) >> 13);
    if (!old)
        use_streams(lib);
    failed = old ? cmocka_run_group_tests(old_tests, NULL, NULL)
                 : cmocka_run_group_tests(tests, NULL, NULL);
    free(content);
    free(memory);
    free(spare);
    return failed;
}
