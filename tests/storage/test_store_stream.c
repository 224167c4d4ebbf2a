/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Transfers in the order of streams, with streams that are threads: what comes before them has
 * ended when they begin, and they have ended when what comes after begins.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fail.h"
#include "gpunvme/memory.h"
#include "storage/internal.h"
#include "thread_stream.h"
#include "transfer_util.h"

/* ---- A store ----------------------------------------------------------------------------------
 */

#define NBYTES 65536u

static char path[] = "/tmp/gpunvme-stream-XXXXXX";
static uint8_t bytes[NBYTES], memory[NBYTES];
static struct gpunvme_store *store;
static struct stream stream;

static int setup(void **state)
{
    (void)state;
    memset(memory, 0xee, sizeof(memory));
    stream_open(&stream);
    if (gpunvme_open(path, GPUNVME_OPEN_WRITE, &store))
        fail_msg("%s", gpunvme_err_detail());
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    stream_close(&stream);
    return gpunvme_close(store);
}

static struct gpunvme_io read_of(uint64_t offset, void *ptr, size_t nbytes)
{
    return (struct gpunvme_io){
        .op = GPUNVME_OP_READ, .offset = offset, .ptr = ptr, .nbytes = nbytes};
}

static void submitted(struct gpunvme_io *io)
{
    if (submit_on_stream(store, io, &stream))
        fail_msg("%s", gpunvme_err_detail());
}

static void change_bytes(void *unused)
{
    (void)unused;
    usleep(20000);
    for (size_t i = 0; i < NBYTES; i++)
        memory[i] = (uint8_t)(bytes[i] ^ 0x55);
}

static bool right;

static void compare_bytes(void *unused)
{
    (void)unused;
    right = !memcmp(memory, bytes + 100, 5000);
}

static void what_comes_after_a_read_sees_its_bytes(void **state)
{
    struct gpunvme_io io = read_of(100, memory, 5000);

    (void)state;
    right = false;
    submitted(&io);
    fake_call(&stream, compare_bytes, NULL);
    stream_sync(&stream);
    assert_true(right);
    assert_int_equal(gpunvme_io_test(&io), GPUNVME_OK);
    assert_int_equal(io.done, 5000);
}

static void what_comes_before_a_write_is_written(void **state)
{
    struct gpunvme_io io = read_of(0, memory, NBYTES);
    uint8_t *copy = malloc(NBYTES);
    size_t done;

    (void)state;
    io.op = GPUNVME_OP_WRITE;
    fake_call(&stream, change_bytes, NULL);
    submitted(&io);
    assert_int_equal(gpunvme_io_test(&io), GPUNVME_ERR_AGAIN);
    stream_sync(&stream);
    assert_int_equal(gpunvme_io_test(&io), GPUNVME_OK);
    assert_int_equal(gpunvme_store_read(store, 0, copy, GPUNVME_MEM_HOST, NBYTES, &done), 0);
    for (size_t i = 0; i < NBYTES; i++)
        assert_int_equal(copy[i], bytes[i] ^ 0x55);
    assert_int_equal(gpunvme_store_write(store, 0, bytes, GPUNVME_MEM_HOST, NBYTES, NULL), 0);
    free(copy);
}

static void errors_reach_the_transfer_and_the_stream_goes_on(void **state)
{
    struct gpunvme_io io = read_of(NBYTES - 7, memory, 100), bad = read_of(0, NULL, 100);

    (void)state;
    assert_int_equal(submit_on_stream(store, &bad, &stream), GPUNVME_ERR_INVALID);
    submitted(&io);
    stream_sync(&stream);
    assert_int_equal(gpunvme_io_wait(&io, 0), GPUNVME_OK);
    assert_int_equal(io.done, 7);
}

static void a_wait_of_the_cpu_ends_too(void **state)
{
    struct gpunvme_io io = read_of(0, memory, 100);

    (void)state;
    fake_call(&stream, change_bytes, NULL);
    submitted(&io);
    assert_int_equal(gpunvme_io_wait(&io, 10000000000u), GPUNVME_OK);
    assert_memory_equal(memory, bytes, 100);
}

static void a_capture_is_refused(void **state)
{
    struct gpunvme_io io = read_of(0, memory, 100);

    (void)state;
    stream.capturing = true;
    assert_int_equal(submit_on_stream(store, &io, &stream), GPUNVME_ERR_UNSUPPORTED);
    assert_non_null(strstr(gpunvme_err_detail(), "captured"));
}

static void without_waits_for_memory_nothing_is_submitted(void **state)
{
    struct gpunvme_io io = read_of(0, memory, 100);

    (void)state;
    stream.no_waits = true;
    for (unsigned i = 0; i < 2000; i++) /* more often than there are words */
        assert_int_equal(submit_on_stream(store, &io, &stream), GPUNVME_ERR_UNSUPPORTED);
    assert_int_equal(gpunvme_io_test(&io), GPUNVME_ERR_STALE);
    assert_int_equal(memory[0], 0xee);
}

static void a_callback_is_refused(void **state)
{
    struct gpunvme_io io = read_of(0, memory, 100);

    (void)state;
    io.callback = (void (*)(struct gpunvme_io *))(uintptr_t)1;
    assert_int_equal(submit_on_stream(store, &io, &stream), GPUNVME_ERR_INVALID);
}

static void many_transfers_on_many_streams_keep_their_order(void **state)
{
    (void)state;
    check_order_on_many_streams(store, memory, GPUNVME_MEM_HOST, bytes);
}

/* ---- CUDA calls that want a context for themselves ---------------------------------------------
 */

static _Atomic unsigned ncalls; /* that wait for streams */

gpunvme_err_t __real_gpunvme_mem_register(void *ptr, size_t nbytes, enum gpunvme_mem mem,
                                          struct gpunvme_buf *out);
gpunvme_err_t __wrap_gpunvme_mem_register(void *ptr, size_t nbytes, enum gpunvme_mem mem,
                                          struct gpunvme_buf *out);
gpunvme_err_t __wrap_gpunvme_mem_register(void *ptr, size_t nbytes, enum gpunvme_mem mem,
                                          struct gpunvme_buf *out)
{
    ncalls++;
    return __real_gpunvme_mem_register(ptr, nbytes, mem, out);
}

gpunvme_err_t __real_gpunvme_mem_unregister(struct gpunvme_buf *buf);
gpunvme_err_t __wrap_gpunvme_mem_unregister(struct gpunvme_buf *buf);
gpunvme_err_t __wrap_gpunvme_mem_unregister(struct gpunvme_buf *buf)
{
    ncalls++;
    return __real_gpunvme_mem_unregister(buf);
}

gpunvme_err_t __real_gpunvme_mem_stream_create(const struct gpunvme_buf *near,
                                               struct gpunvme_mem_stream **out);
gpunvme_err_t __wrap_gpunvme_mem_stream_create(const struct gpunvme_buf *near,
                                               struct gpunvme_mem_stream **out);
gpunvme_err_t __wrap_gpunvme_mem_stream_create(const struct gpunvme_buf *near,
                                               struct gpunvme_mem_stream **out)
{
    ncalls++;
    return __real_gpunvme_mem_stream_create(near, out);
}

static struct gpunvme_buf gpu;

static void open_with(const char *options)
{
    char uri[128];

    assert_int_equal(gpunvme_close(store), GPUNVME_OK);
    store = NULL;
    snprintf(uri, sizeof(uri), "file:%s?%s", path, options);
    if (gpunvme_open(uri, 0, &store))
        fail_msg("%s", gpunvme_err_detail());
}

static int setup_gpu(void **state)
{
    return setup(state) || gpunvme_mem_alloc(NBYTES, GPUNVME_MEM_GPU, &gpu);
}

static int teardown_gpu(void **state)
{
    return teardown(state) || gpunvme_mem_free(&gpu);
}

static struct gpunvme_io gpu_read(size_t nbytes)
{
    struct gpunvme_io io = read_of(0, gpu.gpu, nbytes);

    io.mem = GPUNVME_MEM_GPU;
    return io;
}

static void is_read(size_t nbytes)
{
    static uint8_t copy[NBYTES];

    assert_int_equal(gpunvme_mem_copy(copy, GPUNVME_MEM_HOST, gpu.gpu, GPUNVME_MEM_GPU, nbytes), 0);
    assert_memory_equal(copy, bytes, nbytes);
}

static _Atomic bool goes_on;

static void wait_to_go_on(void *unused)
{
    (void)unused;
    while (!goes_on)
        usleep(100);
}

static void while_its_stream_waits_a_read_pins_nothing_and_makes_no_stream(void **state)
{
    struct gpunvme_io io = gpu_read(NBYTES);

    (void)state;
    open_with("threads=2");
    goes_on = false;
    fake_call(&stream, wait_to_go_on, NULL);
    submitted(&io);
    ncalls = 0;
    goes_on = true;
    stream_sync(&stream);
    assert_int_equal(gpunvme_io_test(&io), GPUNVME_OK);
    assert_int_equal(ncalls, 0);
    is_read(NBYTES);
}

/* Its worker would wait for the stream, which waits for that worker. */
static void nor_does_another_read_meanwhile(void **state)
{
    struct gpunvme_io io = read_of(0, memory, 100), other = gpu_read(NBYTES);

    (void)state;
    open_with("threads=2");
    goes_on = false;
    fake_call(&stream, wait_to_go_on, NULL);
    submitted(&io);
    ncalls = 0;
    assert_int_equal(submit_to(store, &other, 1, NULL), GPUNVME_OK);
    assert_int_equal(gpunvme_io_wait(&other, 0), GPUNVME_OK);
    assert_int_equal(ncalls, 0);
    goes_on = true;
    stream_sync(&stream);
    assert_int_equal(gpunvme_io_test(&io), GPUNVME_OK);
}

/* ---- A store that does not answer --------------------------------------------------------------
 */

static struct gpunvme_io *held;

static void hold(struct gpunvme_store *s, struct gpunvme_io *first, size_t n)
{
    (void)s;
    (void)n;
    held = first;
}

static void do_not_cancel(struct gpunvme_store *s, struct gpunvme_io *io)
{
    (void)s;
    (void)io;
}

static size_t none_is_there(struct gpunvme_store *s, const struct gpunvme_io *io)
{
    (void)s;
    (void)io;
    return 0;
}

static void a_transfer_that_does_not_end_lets_the_stream_go(void **state)
{
    struct store_backend silent = *store->backend;
    const struct store_backend *backend = store->backend;
    struct crew *crew = store->crew;
    struct gpunvme_io io = read_of(0, memory, 100);

    (void)state;
    silent.submit = hold;
    silent.cancel = do_not_cancel;
    silent.prefix = none_is_there;
    store->crew = NULL;
    store->backend = &silent;
    store->uri.options.timeout_ns = 30000000;
    submitted(&io);
    stream_sync(&stream);
    assert_int_equal(gpunvme_io_test(&io), GPUNVME_ERR_TIMEOUT);
    assert_int_equal(gpunvme_close(store), GPUNVME_ERR_TIMEOUT); /* it is still in flight */
    atomic_store(&store->closing, false);
    store_io_end(held, GPUNVME_OK, 100);
    store->backend = backend;
    store->crew = crew;
}

static void a_store_may_be_closed_before_the_stream_has_seen_the_end(void **state)
{
    struct gpunvme_io io = read_of(100, memory, 5000);

    (void)state;
    stream.late_waits = true;
    submitted(&io);
    assert_int_equal(gpunvme_io_wait(&io, 0), GPUNVME_OK);
    assert_int_equal(gpunvme_close(store), GPUNVME_OK);
    store = NULL;
    stream_sync(&stream);
}

static void wait_for_closing(void *unused)
{
    (void)unused;
    for (unsigned looks = 0; looks < 10000 && !atomic_load(&store->closing); looks++)
        usleep(1000);
}

static void close_waits_for_a_transfer_that_the_stream_has_not_come_to(void **state)
{
    struct gpunvme_io io = read_of(100, memory, 5000);

    (void)state;
    fake_call(&stream, wait_for_closing, NULL);
    submitted(&io);
    assert_int_equal(gpunvme_close(store), GPUNVME_OK);
    store = NULL;
    assert_int_equal(gpunvme_io_test(&io), GPUNVME_OK);
    assert_int_equal(io.done, 5000);
    assert_memory_equal(memory, bytes + 100, 5000);
}

#define GPU_TEST(name) cmocka_unit_test_setup_teardown(name, setup_gpu, teardown_gpu)
#define TEST(name)     cmocka_unit_test_setup_teardown(name, setup, teardown)

static int make_file(void **state)
{
    int fd = mkstemp(path);

    (void)state;
    for (size_t i = 0; i < NBYTES; i++)
        bytes[i] = (uint8_t)((i * 2654435761u) >> 13);
    if (fd < 0 || write(fd, bytes, NBYTES) != NBYTES)
        return 1;
    store_stream_ops = &fake;
    return close(fd);
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_comes_after_a_read_sees_its_bytes),
        TEST(what_comes_before_a_write_is_written),
        TEST(errors_reach_the_transfer_and_the_stream_goes_on),
        TEST(a_wait_of_the_cpu_ends_too),
        TEST(a_capture_is_refused),
        TEST(without_waits_for_memory_nothing_is_submitted),
        TEST(a_callback_is_refused),
        TEST(many_transfers_on_many_streams_keep_their_order),
        GPU_TEST(while_its_stream_waits_a_read_pins_nothing_and_makes_no_stream),
        GPU_TEST(nor_does_another_read_meanwhile),
        TEST(a_transfer_that_does_not_end_lets_the_stream_go),
        TEST(a_store_may_be_closed_before_the_stream_has_seen_the_end),
        TEST(close_waits_for_a_transfer_that_the_stream_has_not_come_to),
    };

    return cmocka_run_group_tests(tests, make_file, remove_file);
}
