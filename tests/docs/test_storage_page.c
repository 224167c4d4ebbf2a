/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The code of docs/STORAGE.md, which storage_page.h is made of, does what the page says. Streams
 * and events are those of tests/storage/thread_stream.h.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cmocka.h>

#include "gpunvme/memory.h"
#include "gpunvme/onecall.h"
#include "gpunvme/request.h"
#include "gpunvme/storage.h"
#include "patience.h"
#include "storage/thread_stream.h"

#include "storage_page.h"

#define NBYTES 65536u
#define N      16u

static char path[] = "/tmp/gpunvme-page-XXXXXX";
static uint8_t bytes[NBYTES], got[NBYTES];
static struct gpunvme_store *store;
static struct gpunvme_buf gpu;

static int setup(void **state)
{
    int fd = mkstemp(path);

    (void)state;
    for (size_t i = 0; i < NBYTES; i++)
        bytes[i] = (uint8_t)((i * 2654435761u) >> 13);
    streams_are_threads = true;
    return fd < 0 || write(fd, bytes, NBYTES) != NBYTES || close(fd) ||
           gpunvme_open(path, 0, &store) || make_buffer(NBYTES, &gpu);
}

static int teardown(void **state)
{
    (void)state;
    return gpunvme_close(store) || gpunvme_file_close_all() || free_buffer(&gpu) || unlink(path);
}

/* The buffer holds so many bytes from `at` on, which are those of the file from `offset` on. */
static void holds(size_t at, uint64_t offset, size_t nbytes)
{
    assert_int_equal(
        gpunvme_mem_copy(got, GPUNVME_MEM_HOST, (uint8_t *)gpu.gpu + at, GPUNVME_MEM_GPU, nbytes),
        GPUNVME_OK);
    assert_memory_equal(got, bytes + offset, nbytes);
}

static int empty(void **state)
{
    (void)state;
    return gpunvme_mem_fill(gpu.gpu, GPUNVME_MEM_GPU, 0xee, NBYTES);
}

static void one_call_reads_a_file(void **state)
{
    size_t done;

    (void)state;
    assert_int_equal(load_file(path, gpu.gpu, NBYTES, &done), GPUNVME_OK);
    assert_int_equal(done, NBYTES);
    holds(0, 0, NBYTES);
}

static void a_store_reads_a_layer(void **state)
{
    (void)state;
    assert_int_equal(load_layer(path, 5000, gpu.gpu, 10000), GPUNVME_OK);
    holds(0, 5000, 10000);
    assert_int_equal(load_layer("/no/such/file", 0, gpu.gpu, 1), GPUNVME_ERR_NOT_FOUND);
}

static void a_gather_reads_samples(void **state)
{
    const uint64_t indices[5] = {7, 0, 63, 7, 30};

    (void)state;
    assert_int_equal(load_samples(store, indices, 5, 1000, gpu.gpu), GPUNVME_OK);
    for (unsigned i = 0; i < 5; i++)
        holds(i * 1000, indices[i] * 1000, 1000);
}

static void a_vector_reads_a_header_and_a_tensor(void **state)
{
    uint8_t header[100];

    (void)state;
    assert_int_equal(load_tensor(store, header, sizeof(header), gpu.gpu, 20000), GPUNVME_OK);
    assert_memory_equal(header, bytes, sizeof(header));
    holds(0, sizeof(header), 20000);
}

static void a_batch_reads_shards_and_counts_failures(void **state)
{
    struct gpunvme_store *shards[N];

    (void)state;
    for (unsigned i = 0; i < N; i++)
        assert_int_equal(gpunvme_open(path, 0, &shards[i]), GPUNVME_OK);
    assert_int_equal(load_shards(shards, N, gpu.gpu, 4000), 0);
    for (unsigned i = 0; i < N; i++)
        holds(i * 4000, 0, 4000);
    assert_int_equal(gpunvme_close(shards[3]), GPUNVME_OK);
    assert_int_equal(gpunvme_open("sim:size=1M,fault=status=2/81:read", 0, &shards[3]), GPUNVME_OK);
    assert_int_equal(load_shards(shards, N, gpu.gpu, 4000), 1);
    for (unsigned i = 0; i < N; i++)
        assert_int_equal(gpunvme_close(shards[i]), GPUNVME_OK);
}

static void make_ios(struct gpunvme_io ios[N])
{
    for (unsigned i = 0; i < N; i++)
        ios[i] = (struct gpunvme_io){.store = store,
                                     .mem = GPUNVME_MEM_GPU,
                                     .offset = i * 100,
                                     .ptr = (uint8_t *)gpu.gpu + i * 4000,
                                     .nbytes = 4000};
}

static unsigned nhandled;

static void count(struct gpunvme_io *io)
{
    assert_int_equal(io->err, GPUNVME_OK);
    nhandled++;
}

static void a_loop_handles_all_ends(void **state)
{
    struct gpunvme_io ios[N];
    struct gpunvme_batch *batch;
    int loop = epoll_create1(EPOLL_CLOEXEC);

    (void)state;
    make_ios(ios);
    nhandled = 0;
    assert_int_equal(gpunvme_batch_create(&batch), GPUNVME_OK);
    assert_int_equal(gpunvme_io_submit(ios, N, batch), GPUNVME_OK);
    assert_int_equal(run_loop(loop, batch, count), 0);
    assert_int_equal(nhandled, N);
    assert_int_equal(gpunvme_batch_destroy(batch), GPUNVME_OK);
    close(loop);
}

static void what_is_behind_the_transfers_sees_their_bytes(void **state)
{
    static uint32_t event;
    struct gpunvme_io ios[N];
    struct stream stream;

    (void)state;
    make_ios(ios);
    stream_open(&stream);
    assert_int_equal(load_behind(ios, N, &stream), GPUNVME_OK);
    stream_sync(&stream);
    stream_close(&stream);
    for (unsigned i = 0; i < N; i++)
        holds(i * 4000, i * 100, 4000);
    empty(NULL);
    assert_int_equal(prefetch(ios, N, &event), GPUNVME_OK);
    for (unsigned i = 0; !__atomic_load_n(&event, __ATOMIC_ACQUIRE); i++) {
        assert_true(i < PATIENCE_S * 1000);
        usleep(1000);
    }
    for (unsigned i = 0; i < N; i++)
        holds(i * 4000, i * 100, 4000);
}

static void an_engine_near_a_gpu_serves_a_store(void **state)
{
    struct gpunvme_engine *engine;
    struct gpunvme_store *own;

    (void)state;
    assert_int_equal(open_near(GPUNVME_ANY_GPU, path, &engine, &own), GPUNVME_OK);
    assert_int_equal(gpunvme_store_read(own, 0, gpu.gpu, GPUNVME_MEM_GPU, NBYTES, NULL), 0);
    holds(0, 0, NBYTES);
    assert_int_equal(gpunvme_close(own), GPUNVME_OK);
    assert_int_equal(gpunvme_engine_destroy(engine), GPUNVME_OK);
}

static void records_are_read_to_their_places(void **state)
{
    struct gpunvme_requests *table;
    gpunvme_request_t id;

    (void)state;
    assert_int_equal(gpunvme_requests_create(store, &table), GPUNVME_OK);
    assert_int_equal(gpunvme_request_create(table, gpu.gpu, NBYTES, GPUNVME_MEM_GPU, &id),
                     GPUNVME_OK);
    assert_int_equal(gpunvme_request_add_kind(table, id, "users", 0, 20, 512), GPUNVME_OK);
    assert_int_equal(gpunvme_request_add_kind(table, id, "items", 20, 30, 512), GPUNVME_OK);
    assert_int_equal(load_records(table, id), GPUNVME_OK);
    holds(0, 0, 20 * 512);
    holds(27 * 512, 27 * 512, 3 * 512);
    assert_int_equal(gpunvme_request_release(table, id), GPUNVME_OK);
    assert_int_equal(gpunvme_requests_destroy(table), GPUNVME_OK);
}

#define TEST(name) cmocka_unit_test_setup(name, empty)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(one_call_reads_a_file),
        TEST(a_store_reads_a_layer),
        TEST(a_gather_reads_samples),
        TEST(a_vector_reads_a_header_and_a_tensor),
        TEST(a_batch_reads_shards_and_counts_failures),
        TEST(a_loop_handles_all_ends),
        TEST(what_is_behind_the_transfers_sees_their_bytes),
        TEST(an_engine_near_a_gpu_serves_a_store),
        TEST(records_are_read_to_their_places),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
