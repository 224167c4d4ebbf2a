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
#include "gate.h"
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
    stream_call(&stream, compare_bytes, NULL);
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
    stream_call(&stream, change_bytes, NULL);
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
    stream_call(&stream, change_bytes, NULL);
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

static struct gpunvme_io *_Atomic waits_for; /* to unregister memory takes until it has ended */
static _Atomic bool goes_on;

gpunvme_err_t __real_gpunvme_mem_unregister(struct gpunvme_buf *buf);
gpunvme_err_t __wrap_gpunvme_mem_unregister(struct gpunvme_buf *buf);
gpunvme_err_t __wrap_gpunvme_mem_unregister(struct gpunvme_buf *buf)
{
    ncalls++;
    goes_on = waits_for || goes_on;
    for (unsigned looks = 0; looks < 20000 && waits_for; looks++) {
        if (gpunvme_io_test(waits_for) == GPUNVME_OK)
            waits_for = NULL;
        usleep(1000);
    }
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
    stream_call(&stream, wait_to_go_on, NULL);
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
    stream_call(&stream, wait_to_go_on, NULL);
    submitted(&io);
    ncalls = 0;
    assert_int_equal(submit_to(store, &other, 1, NULL), GPUNVME_OK);
    assert_int_equal(gpunvme_io_wait(&other, 0), GPUNVME_OK);
    assert_int_equal(ncalls, 0);
    goes_on = true;
    stream_sync(&stream);
    assert_int_equal(gpunvme_io_test(&io), GPUNVME_OK);
}

/* A worker has lanes of several backends. */
static void nor_does_a_read_of_a_file_while_a_drives_transfer_waits(void **state)
{
    struct gpunvme_io io = read_of(0, memory, 512), other = gpu_read(NBYTES);
    struct gpunvme_engine *engine;
    struct gpunvme_store *drive, *file;
    unsigned ncalls_of_other;

    (void)state;
    assert_int_equal(gpunvme_engine_create(NULL, &engine), GPUNVME_OK);
    assert_int_equal(gpunvme_open_on(engine, "sim:size=1M", 0, &drive), GPUNVME_OK);
    goes_on = false;
    stream_call(&stream, wait_to_go_on, NULL);
    assert_int_equal(submit_on_stream(drive, &io, &stream), GPUNVME_OK);
    assert_int_equal(gpunvme_open_on(engine, path, 0, &file), GPUNVME_OK);
    ncalls = 0;
    assert_int_equal(submit_to(file, &other, 1, NULL), GPUNVME_OK);
    assert_int_equal(gpunvme_io_wait(&other, 0), GPUNVME_OK);
    ncalls_of_other = ncalls;
    goes_on = true;
    stream_sync(&stream);
    assert_int_equal(ncalls_of_other, 0);
    assert_int_equal(gpunvme_io_test(&io), GPUNVME_OK);
    assert_int_equal(gpunvme_close(file), GPUNVME_OK);
    assert_int_equal(gpunvme_close(drive), GPUNVME_OK);
    assert_int_equal(gpunvme_engine_destroy(engine), GPUNVME_OK);
}

/* CUDA may wait for all streams to give pinned memory free, as for one that a transfer waits for.
 */
static void a_transfer_goes_on_while_other_memory_is_unregistered(void **state)
{
    static uint8_t other[4096];
    struct gpunvme_io io = read_of(0, memory, NBYTES);

    (void)state;
    assert_int_equal(gpunvme_register(NULL, other, sizeof(other), GPUNVME_MEM_HOST), GPUNVME_OK);
    goes_on = false;
    stream_call(&stream, wait_to_go_on, NULL);
    submitted(&io);
    waits_for = &io;
    assert_int_equal(gpunvme_unregister(NULL, other), GPUNVME_OK);
    assert_null(waits_for);
    assert_memory_equal(memory, bytes, NBYTES);
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
    stream_call(&stream, wait_for_closing, NULL);
    submitted(&io);
    assert_int_equal(gpunvme_close(store), GPUNVME_OK);
    store = NULL;
    assert_int_equal(gpunvme_io_test(&io), GPUNVME_OK);
    assert_int_equal(io.done, 5000);
    assert_memory_equal(memory, bytes + 100, 5000);
}

/* ---- Transfers of several stores, and events ---------------------------------------------------
 */

#define NGROUP 12u

static struct gpunvme_store *stores[3];

/* Has one thread, which a test may hold up without others being held up, too. */
static struct gpunvme_engine *engine;

/* The file, a controller's namespace of the same bytes, and the file by another engine. */
static int setup_group(void **state)
{
    const struct gpunvme_engine_config config = {.gpu = GPUNVME_ANY_GPU, .threads = 1};

    setup(state);
    stores[0] = store;
    store = NULL;
    assert_int_equal(gpunvme_engine_create(&config, &engine), GPUNVME_OK);
    assert_int_equal(gpunvme_open("sim:size=64K", GPUNVME_OPEN_WRITE, &stores[1]), 0);
    assert_int_equal(gpunvme_store_write(stores[1], 0, bytes, GPUNVME_MEM_HOST, NBYTES, NULL), 0);
    return gpunvme_open_on(engine, path, GPUNVME_OPEN_WRITE, &stores[2]);
}

static int teardown_group(void **state)
{
    (void)state;
    stream_close(&stream);
    for (unsigned i = 0; i < 3; i++)
        if (gpunvme_close(stores[i]))
            return 1;
    return gpunvme_engine_destroy(engine);
}

static void make_group(struct gpunvme_io *ios)
{
    for (unsigned i = 0; i < NGROUP; i++) {
        ios[i] = read_of(i * 100, memory + i * 5000, 5000);
        ios[i].store = stores[i % 3];
    }
}

static bool group_is_there(void)
{
    for (unsigned i = 0; i < NGROUP; i++)
        if (memcmp(memory + i * 5000, bytes + i * 100, 5000) != 0)
            return false;
    return true;
}

static bool group_is_not_there(void)
{
    for (unsigned i = 0; i < NGROUP * 5000; i++)
        if (memory[i] != 0xee)
            return false;
    return true;
}

static void look_for_group(void *unused)
{
    (void)unused;
    right = group_is_there();
}

static void ordered(struct gpunvme_io *ios, size_t n, struct gpunvme_batch *batch,
                    struct gpunvme_order order)
{
    if (gpunvme_io_submit_ordered(ios, n, batch, &order))
        fail_msg("%s", gpunvme_err_detail());
}

static void all_have_ended_well(struct gpunvme_io *ios)
{
    for (unsigned i = 0; i < NGROUP; i++)
        assert_int_equal(gpunvme_io_wait(&ios[i], PATIENCE_NS), GPUNVME_OK);
    assert_true(group_is_there());
}

static void transfers_of_several_stores_are_behind_a_stream_and_before_it(void **state)
{
    struct gpunvme_io ios[NGROUP];

    (void)state;
    make_group(ios);
    goes_on = right = false;
    stream_call(&stream, wait_to_go_on, NULL);
    ordered(ios, NGROUP, NULL,
            (struct gpunvme_order){.flags = GPUNVME_AFTER_STREAM | GPUNVME_BEFORE_STREAM,
                                   .stream = &stream});
    stream_call(&stream, look_for_group, NULL);
    assert_true(group_is_not_there());
    goes_on = true;
    stream_sync(&stream);
    assert_true(right);
    all_have_ended_well(ios);
}

/* They begin at once, though the stream is busy. */
static void before_a_stream_alone_they_do_not_wait_for_it(void **state)
{
    struct gpunvme_io ios[NGROUP];

    (void)state;
    make_group(ios);
    goes_on = right = false;
    stream_call(&stream, wait_to_go_on, NULL);
    ordered(ios, NGROUP, NULL,
            (struct gpunvme_order){.flags = GPUNVME_BEFORE_STREAM, .stream = &stream});
    stream_call(&stream, look_for_group, NULL);
    all_have_ended_well(ios);
    goes_on = true;
    stream_sync(&stream);
    assert_true(right);
}

/* The stream goes on while they are held up. */
static void behind_a_stream_alone_it_does_not_wait_for_them(void **state)
{
    struct gpunvme_io io = read_of(0, memory, 5000);
    struct gate gate;

    (void)state;
    io.store = stores[2]; /* of one thread */
    shut(&gate, stores[2], 0);
    ordered(&io, 1, NULL, (struct gpunvme_order){.flags = GPUNVME_AFTER_STREAM, .stream = &stream});
    stream_sync(&stream);
    assert_int_equal(gpunvme_io_test(&io), GPUNVME_ERR_AGAIN);
    gate.is_open = true;
    assert_int_equal(gpunvme_io_wait(&io, PATIENCE_NS), GPUNVME_OK);
}

static void they_begin_after_an_event(void **state)
{
    static uint32_t event;
    struct gpunvme_io ios[NGROUP];

    (void)state;
    event = 0;
    make_group(ios);
    ordered(ios, NGROUP, NULL, (struct gpunvme_order){.after = &event});
    usleep(20000); /* they would have come */
    assert_true(group_is_not_there());
    for (unsigned i = 0; i < NGROUP; i++)
        assert_int_equal(gpunvme_io_test(&ios[i]), GPUNVME_ERR_AGAIN);
    happen(&event);
    all_have_ended_well(ios);
}

static void event_happens(uint32_t *event)
{
    for (unsigned i = 0; !__atomic_load_n(event, __ATOMIC_ACQUIRE); i++) {
        assert_true(i < PATIENCE_S * 1000);
        usleep(1000);
    }
}

/* Without a stream of the caller's: they begin at once. */
static void an_event_happens_when_all_have_ended(void **state)
{
    static uint32_t done;
    struct gpunvme_io ios[NGROUP];
    struct gate gate;

    (void)state;
    done = 0;
    make_group(ios);
    shut(&gate, stores[2], 0);
    ordered(ios, NGROUP, NULL, (struct gpunvme_order){.done = &done});
    for (unsigned i = 0; i < NGROUP; i++)
        if (i % 3 != 2)
            assert_int_equal(gpunvme_io_wait(&ios[i], PATIENCE_NS), GPUNVME_OK);
    assert_int_equal(__atomic_load_n(&done, __ATOMIC_ACQUIRE), 0);
    gate.is_open = true;
    event_happens(&done);
    assert_true(group_is_there());
}

static void streams_and_events_may_be_joined(void **state)
{
    static uint32_t after, done;
    struct gpunvme_io ios[NGROUP];

    (void)state;
    after = done = 0;
    make_group(ios);
    goes_on = right = false;
    stream_call(&stream, wait_to_go_on, NULL);
    ordered(ios, NGROUP, NULL,
            (struct gpunvme_order){.flags = GPUNVME_AFTER_STREAM | GPUNVME_BEFORE_STREAM,
                                   .stream = &stream,
                                   .after = &after,
                                   .done = &done});
    stream_call(&stream, look_for_group, NULL);
    happen(&after);
    assert_true(group_is_not_there());
    goes_on = true;
    stream_sync(&stream);
    assert_true(right);
    event_happens(&done);
    all_have_ended_well(ios);
}

static void a_batch_tells_the_ends_of_ordered_transfers(void **state)
{
    struct gpunvme_io ios[NGROUP], *ended[NGROUP];
    struct gpunvme_batch *batch;
    bool seen[NGROUP] = {0};
    size_t n;

    (void)state;
    assert_int_equal(gpunvme_batch_create(&batch), GPUNVME_OK);
    make_group(ios);
    goes_on = false;
    stream_call(&stream, wait_to_go_on, NULL);
    ordered(ios, NGROUP, batch,
            (struct gpunvme_order){.flags = GPUNVME_AFTER_STREAM, .stream = &stream});
    assert_int_equal(gpunvme_batch_pending(batch), NGROUP);
    assert_int_equal(gpunvme_batch_poll(batch, 0, NGROUP, ended, &n, 0), GPUNVME_OK);
    assert_int_equal(n, 0);
    goes_on = true;
    assert_int_equal(gpunvme_batch_poll(batch, NGROUP, NGROUP, ended, &n, PATIENCE_NS), GPUNVME_OK);
    assert_int_equal(n, NGROUP);
    for (unsigned i = 0; i < NGROUP; i++) {
        assert_int_equal(ended[i]->err, GPUNVME_OK);
        assert_false(seen[ended[i] - ios]);
        seen[ended[i] - ios] = true;
    }
    assert_true(group_is_there());
    assert_int_equal(gpunvme_batch_destroy(batch), GPUNVME_OK);
}

static void one_that_fails_lets_the_stream_go_when_all_have_ended(void **state)
{
    static uint32_t done;
    struct gpunvme_io ios[NGROUP];
    struct gpunvme_store *bad;
    char text[256];

    (void)state;
    assert_int_equal(gpunvme_open("sim:size=1M,fault=status=2/81:read", 0, &bad), GPUNVME_OK);
    done = 0;
    make_group(ios);
    ios[4].store = bad;
    ordered(ios, NGROUP, NULL,
            (struct gpunvme_order){.flags = GPUNVME_AFTER_STREAM | GPUNVME_BEFORE_STREAM,
                                   .stream = &stream,
                                   .done = &done});
    stream_sync(&stream);
    event_happens(&done);
    for (unsigned i = 0; i < NGROUP; i++)
        assert_int_equal(gpunvme_io_test(&ios[i]), i == 4 ? GPUNVME_ERR_NVME(0x281) : GPUNVME_OK);
    assert_string_not_equal(gpunvme_io_detail(&ios[4], text, sizeof(text)), "");
    assert_int_equal(ios[4].done, 0);
    assert_int_equal(gpunvme_close(bad), GPUNVME_OK);
}

static void a_group_of_none_keeps_the_order_of_what_is_around_it(void **state)
{
    static uint32_t done;

    (void)state;
    done = 0;
    goes_on = false;
    stream_call(&stream, wait_to_go_on, NULL);
    ordered(NULL, 0, NULL,
            (struct gpunvme_order){.flags = GPUNVME_AFTER_STREAM | GPUNVME_BEFORE_STREAM,
                                   .stream = &stream,
                                   .done = &done});
    assert_int_equal(__atomic_load_n(&done, __ATOMIC_ACQUIRE), 0);
    goes_on = true;
    stream_sync(&stream);
    event_happens(&done);
}

static void an_order_that_says_nothing_is_refused(void **state)
{
    struct gpunvme_io io = read_of(0, memory, 100);
    struct gpunvme_order order = {.stream = &stream};

    (void)state;
    io.store = stores[0];
    assert_int_equal(gpunvme_io_submit_ordered(&io, 1, NULL, &order), GPUNVME_ERR_INVALID);
    assert_non_null(strstr(gpunvme_err_detail(), "no order"));
    order.flags = 4;
    assert_int_equal(gpunvme_io_submit_ordered(&io, 1, NULL, &order), GPUNVME_ERR_INVALID);
    assert_non_null(strstr(gpunvme_err_detail(), "flags 4h"));
    assert_int_equal(gpunvme_io_submit_ordered(&io, 1, NULL, NULL), GPUNVME_ERR_INVALID);
    order.flags = GPUNVME_AFTER_STREAM;
    assert_int_equal(gpunvme_io_submit_ordered(NULL, 1, NULL, &order), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_io_test(&io), GPUNVME_ERR_STALE);
}

/* Nothing of them ever begins, and the stream goes through. */
static void ordered_transfers_are_canceled_before_their_stream_comes_to_them(void **state)
{
    struct gpunvme_io ios[NGROUP], *ended[NGROUP];
    struct gpunvme_batch *batch;
    char text[256];
    size_t n;

    (void)state;
    assert_int_equal(gpunvme_batch_create(&batch), GPUNVME_OK);
    make_group(ios);
    goes_on = false;
    stream_call(&stream, wait_to_go_on, NULL);
    ordered(ios, NGROUP, batch,
            (struct gpunvme_order){.flags = GPUNVME_AFTER_STREAM | GPUNVME_BEFORE_STREAM,
                                   .stream = &stream});
    gpunvme_io_cancel(&ios[5]);
    assert_int_equal(gpunvme_batch_poll(batch, 1, NGROUP, ended, &n, PATIENCE_NS), GPUNVME_OK);
    assert_int_equal(n, 1);
    assert_ptr_equal(ended[0], &ios[5]);
    assert_int_equal(ios[5].err, GPUNVME_ERR_CANCELED);
    assert_string_equal(gpunvme_io_detail(&ios[5], text, sizeof(text)),
                        "before its stream came to it");
    assert_int_equal(gpunvme_batch_cancel(batch), GPUNVME_OK);
    assert_int_equal(gpunvme_batch_poll(batch, NGROUP, NGROUP, ended, &n, PATIENCE_NS), GPUNVME_OK);
    assert_int_equal(n, NGROUP - 1);
    for (unsigned i = 0; i < NGROUP; i++)
        assert_int_equal(ios[i].err, GPUNVME_ERR_CANCELED);
    goes_on = true;
    stream_sync(&stream);
    assert_true(group_is_not_there());
    assert_int_equal(gpunvme_batch_destroy(batch), GPUNVME_OK);
}

static void of_a_group_one_is_canceled_and_the_others_go_on(void **state)
{
    struct gpunvme_io ios[NGROUP];
    struct gate gate;

    (void)state;
    make_group(ios);
    goes_on = false;
    stream_call(&stream, wait_to_go_on, NULL);
    ordered(ios, NGROUP, NULL,
            (struct gpunvme_order){.flags = GPUNVME_AFTER_STREAM | GPUNVME_BEFORE_STREAM,
                                   .stream = &stream});
    gpunvme_io_cancel(&ios[4]); /* before the stream has come to it */
    assert_int_equal(gpunvme_io_moved(&ios[1]), 0);
    shut(&gate, stores[2], 0);
    goes_on = true;
    for (unsigned i = 0; i < NGROUP; i++)
        if (i % 3 != 2 && i != 4)
            assert_int_equal(gpunvme_io_wait(&ios[i], PATIENCE_NS), GPUNVME_OK);
    assert_int_equal(gpunvme_io_moved(&ios[8]), 0);
    gpunvme_io_cancel(&ios[8]); /* the stream has, its store has not */
    gate.is_open = true;
    stream_sync(&stream);
    for (unsigned i = 2; i < NGROUP; i += 3)
        assert_int_equal(gpunvme_io_wait(&ios[i], PATIENCE_NS),
                         i == 8 ? GPUNVME_ERR_CANCELED : GPUNVME_OK);
    assert_int_equal(gpunvme_io_test(&ios[4]), GPUNVME_ERR_CANCELED);
    for (unsigned i = 0; i < NGROUP; i++)
        assert_int_equal(memory[i * 5000 + 4999], i == 4 || i == 8 ? 0xee : bytes[i * 100 + 4999]);
}

/* Whoever looks after late ones must not touch that store. */
static void one_that_is_late_tells_so_though_the_store_of_another_was_closed(void **state)
{
    struct gpunvme_io ios[2] = {read_of(0, memory, 5000), read_of(0, memory + 5000, 5000)};
    struct gpunvme_store *late;
    struct gate gate;
    char uri[128];

    (void)state;
    snprintf(uri, sizeof(uri), "file:%s?timeout=300ms", path);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(gpunvme_open_on(i ? engine : NULL, uri, 0, &ios[i].store), GPUNVME_OK);
    late = ios[1].store;
    shut(&gate, late, 0);
    ordered(ios, 2, NULL,
            (struct gpunvme_order){.flags = GPUNVME_BEFORE_STREAM, .stream = &stream});
    assert_int_equal(gpunvme_io_wait(&ios[0], PATIENCE_NS), GPUNVME_OK);
    assert_int_equal(gpunvme_close(ios[0].store), GPUNVME_OK);
    assert_int_equal(gpunvme_io_wait(&ios[1], PATIENCE_NS), GPUNVME_ERR_TIMEOUT);
    stream_sync(&stream);
    gate.is_open = true;
    while (gpunvme_close(late) == GPUNVME_ERR_TIMEOUT)
        ;
}

#define GPU_TEST(name)   cmocka_unit_test_setup_teardown(name, setup_gpu, teardown_gpu)
#define TEST(name)       cmocka_unit_test_setup_teardown(name, setup, teardown)
#define GROUP_TEST(name) cmocka_unit_test_setup_teardown(name, setup_group, teardown_group)

static int make_file(void **state)
{
    int fd = mkstemp(path);

    (void)state;
    for (size_t i = 0; i < NBYTES; i++)
        bytes[i] = (uint8_t)((i * 2654435761u) >> 13);
    if (fd < 0 || write(fd, bytes, NBYTES) != NBYTES)
        return 1;
    streams_are_threads = true;
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
        GPU_TEST(nor_does_a_read_of_a_file_while_a_drives_transfer_waits),
        TEST(a_transfer_goes_on_while_other_memory_is_unregistered),
        TEST(a_transfer_that_does_not_end_lets_the_stream_go),
        TEST(a_store_may_be_closed_before_the_stream_has_seen_the_end),
        TEST(close_waits_for_a_transfer_that_the_stream_has_not_come_to),
        GROUP_TEST(transfers_of_several_stores_are_behind_a_stream_and_before_it),
        GROUP_TEST(before_a_stream_alone_they_do_not_wait_for_it),
        GROUP_TEST(behind_a_stream_alone_it_does_not_wait_for_them),
        GROUP_TEST(they_begin_after_an_event),
        GROUP_TEST(an_event_happens_when_all_have_ended),
        GROUP_TEST(streams_and_events_may_be_joined),
        GROUP_TEST(a_batch_tells_the_ends_of_ordered_transfers),
        GROUP_TEST(one_that_fails_lets_the_stream_go_when_all_have_ended),
        GROUP_TEST(a_group_of_none_keeps_the_order_of_what_is_around_it),
        GROUP_TEST(an_order_that_says_nothing_is_refused),
        GROUP_TEST(ordered_transfers_are_canceled_before_their_stream_comes_to_them),
        GROUP_TEST(of_a_group_one_is_canceled_and_the_others_go_on),
        GROUP_TEST(one_that_is_late_tells_so_though_the_store_of_another_was_closed),
    };

    return cmocka_run_group_tests(tests, make_file, remove_file);
}
