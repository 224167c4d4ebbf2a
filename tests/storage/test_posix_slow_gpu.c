/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The posix backend with a GPU that takes its time, fails, or never ends: what the linker puts in
 * place of the copies' calls (--wrap) plays it, so that this needs no GPU.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fail.h"
#include "gpunvme/memory.h"
#include "gpunvme/storage.h"
#include "memory/ranges.h"
#include "memory/stream.h"
#include "storage/posix/posix.h"
#include "transfer_util.h"

#define KIB    ((size_t)1 << 10)
#define MIB    ((size_t)1 << 20)
#define NBYTES (4 * MIB)

static char path[64], uri[160];
static int fd;
static uint8_t *bytes;
static struct gpunvme_buf gpu;
static struct gpunvme_engine *engine;
static struct gpunvme_store *store;

/* ---- The GPU -----------------------------------------------------------------------------------
 */

static _Atomic unsigned not_yet; /* so many looks say that a copy is not done */
static _Atomic unsigned hangs;   /* so many waits come to nothing */
static _Atomic bool fails, stuck;
static _Atomic size_t largest; /* copy */
static const void *_Atomic last_src;

static _Atomic uint64_t read_to;      /* the end of what was copied from the page cache last */
static _Atomic bool looked_in_pieces; /* at copies, when a piece had been read in part */

static gpunvme_err_t look(gpunvme_err_t err, bool *done)
{
    if (read_to % (2 * MIB))
        looked_in_pieces = true;
    if (not_yet) {
        not_yet--;
        *done = false;
    }
    return err;
}

gpunvme_err_t __real_gpunvme_mem_stream_query(struct gpunvme_mem_stream *stream, bool *done);
gpunvme_err_t __wrap_gpunvme_mem_stream_query(struct gpunvme_mem_stream *stream, bool *done);
gpunvme_err_t __wrap_gpunvme_mem_stream_query(struct gpunvme_mem_stream *stream, bool *done)
{
    return look(__real_gpunvme_mem_stream_query(stream, done), done);
}

gpunvme_err_t __real_mem_stream_passed(struct gpunvme_mem_stream *stream, uint32_t mark,
                                       bool *passed);
gpunvme_err_t __wrap_mem_stream_passed(struct gpunvme_mem_stream *stream, uint32_t mark,
                                       bool *passed);
gpunvme_err_t __wrap_mem_stream_passed(struct gpunvme_mem_stream *stream, uint32_t mark,
                                       bool *passed)
{
    return look(__real_mem_stream_passed(stream, mark, passed), passed);
}

gpunvme_err_t __real_gpunvme_mem_stream_destroy(struct gpunvme_mem_stream *stream);
gpunvme_err_t __wrap_gpunvme_mem_stream_destroy(struct gpunvme_mem_stream *stream);
gpunvme_err_t __wrap_gpunvme_mem_stream_destroy(struct gpunvme_mem_stream *stream)
{
    gpunvme_err_t err = __real_gpunvme_mem_stream_destroy(stream);

    return stream && stuck ? GPUNVME_ERR_TIMEOUT : err;
}

static gpunvme_err_t copied(const void *src, size_t nbytes)
{
    last_src = src;
    if (largest < nbytes)
        largest = nbytes;
    return fails ? base_fail(GPUNVME_ERR_GPU, "the GPU of this test fails") : GPUNVME_OK;
}

gpunvme_err_t __real_gpunvme_mem_copy_async(void *dst, enum gpunvme_mem dst_mem, const void *src,
                                            enum gpunvme_mem src_mem, size_t nbytes,
                                            struct gpunvme_mem_stream *stream);
gpunvme_err_t __wrap_gpunvme_mem_copy_async(void *dst, enum gpunvme_mem dst_mem, const void *src,
                                            enum gpunvme_mem src_mem, size_t nbytes,
                                            struct gpunvme_mem_stream *stream);
gpunvme_err_t __wrap_gpunvme_mem_copy_async(void *dst, enum gpunvme_mem dst_mem, const void *src,
                                            enum gpunvme_mem src_mem, size_t nbytes,
                                            struct gpunvme_mem_stream *stream)
{
    gpunvme_err_t err = copied(src, nbytes);

    return err ? err : __real_gpunvme_mem_copy_async(dst, dst_mem, src, src_mem, nbytes, stream);
}

gpunvme_err_t __real_mem_copy_batch_checked(const struct gpunvme_mem_piece *pieces, size_t n,
                                            struct gpunvme_mem_stream *stream);
gpunvme_err_t __wrap_mem_copy_batch_checked(const struct gpunvme_mem_piece *pieces, size_t n,
                                            struct gpunvme_mem_stream *stream);
gpunvme_err_t __wrap_mem_copy_batch_checked(const struct gpunvme_mem_piece *pieces, size_t n,
                                            struct gpunvme_mem_stream *stream)
{
    gpunvme_err_t err = GPUNVME_OK;

    for (size_t i = 0; i < n && !err; i++)
        err = copied(pieces[i].src, pieces[i].nbytes);
    return err ? err : __real_mem_copy_batch_checked(pieces, n, stream);
}

gpunvme_err_t __real_gpunvme_mem_stream_sync(struct gpunvme_mem_stream *stream, uint64_t ns);
gpunvme_err_t __wrap_gpunvme_mem_stream_sync(struct gpunvme_mem_stream *stream, uint64_t ns);
gpunvme_err_t __wrap_gpunvme_mem_stream_sync(struct gpunvme_mem_stream *stream, uint64_t ns)
{
    if (hangs) {
        hangs--;
        not_yet = 0;
        return base_fail(GPUNVME_ERR_TIMEOUT, "the GPU of this test hangs");
    }
    return __real_gpunvme_mem_stream_sync(stream, ns);
}

/* GPU memory is host memory here; this address is none of the GPU. */
static const void *_Atomic no_memory;

gpunvme_err_t __real_mem_ranges_check(struct mem_ranges *ranges, const void *ptr, size_t nbytes,
                                      int *on);
gpunvme_err_t __wrap_mem_ranges_check(struct mem_ranges *ranges, const void *ptr, size_t nbytes,
                                      int *on);
gpunvme_err_t __wrap_mem_ranges_check(struct mem_ranges *ranges, const void *ptr, size_t nbytes,
                                      int *on)
{
    if (ptr == no_memory)
        return base_fail(GPUNVME_ERR_INVALID, "%p is no address of this test's GPU", ptr);
    return __real_mem_ranges_check(ranges, ptr, nbytes, on);
}

bool __real_posix_file_look(struct posix_file *file, uint8_t *cpu, size_t nbytes, uint64_t offset,
                            size_t *done, bool *end);
bool __wrap_posix_file_look(struct posix_file *file, uint8_t *cpu, size_t nbytes, uint64_t offset,
                            size_t *done, bool *end);
bool __wrap_posix_file_look(struct posix_file *file, uint8_t *cpu, size_t nbytes, uint64_t offset,
                            size_t *done, bool *end)
{
    bool has_all = __real_posix_file_look(file, cpu, nbytes, offset, done, end);

    read_to = offset + *done;
    return has_all;
}

static pthread_t pinned_by;
static _Atomic unsigned npinned;

gpunvme_err_t __real_gpunvme_mem_register(void *ptr, size_t nbytes, enum gpunvme_mem mem,
                                          struct gpunvme_buf *out);
gpunvme_err_t __wrap_gpunvme_mem_register(void *ptr, size_t nbytes, enum gpunvme_mem mem,
                                          struct gpunvme_buf *out);
gpunvme_err_t __wrap_gpunvme_mem_register(void *ptr, size_t nbytes, enum gpunvme_mem mem,
                                          struct gpunvme_buf *out)
{
    pinned_by = pthread_self();
    npinned++;
    return __real_gpunvme_mem_register(ptr, nbytes, mem, out);
}

/* ---- Tests -------------------------------------------------------------------------------------
 */

static int setup(void **state)
{
    (void)state;
    not_yet = 0;
    fails = stuck = false;
    hangs = 0;
    largest = 0;
    no_memory = NULL;
    looked_in_pieces = false;
    snprintf(path, sizeof(path), "/tmp/gpunvme-slow-XXXXXX");
    fd = mkstemp(path);
    bytes = malloc(NBYTES);
    if (fd < 0 || !bytes || gpunvme_mem_alloc(NBYTES + 16, GPUNVME_MEM_GPU, &gpu))
        return 1;
    for (size_t i = 0; i < NBYTES; i++)
        bytes[i] = (uint8_t)(i * 13 + i / 255);
    return pwrite(fd, bytes, NBYTES, 0) != (ssize_t)NBYTES;
}

static int teardown(void **state)
{
    (void)state;
    gpunvme_close(store);
    store = NULL;
    gpunvme_engine_destroy(engine);
    engine = NULL;
    gpunvme_mem_free(&gpu);
    free(bytes);
    close(fd);
    unlink(path);
    return 0;
}

static void open_with(const char *options)
{
    snprintf(uri, sizeof(uri), "file:%s?%s", path, options);
    if (gpunvme_engine_create(NULL, &engine) || gpunvme_open_on(engine, uri, 0, &store))
        fail_msg("%s", gpunvme_err_detail());
}

static gpunvme_err_t reads(size_t nbytes)
{
    return gpunvme_store_read(store, 0, gpu.gpu, GPUNVME_MEM_GPU, nbytes, NULL);
}

static void is_right(size_t nbytes)
{
    uint8_t *got = malloc(nbytes);

    assert_int_equal(gpunvme_mem_copy(got, GPUNVME_MEM_HOST, gpu.gpu, GPUNVME_MEM_GPU, nbytes), 0);
    assert_memory_equal(got, bytes, nbytes);
    free(got);
}

static void no_copy_goes_from_one_transfers_memory_into_anothers(void **state)
{
    struct gpunvme_io ios[2];

    (void)state;
    open_with("threads=1,chunk=1M");
    memset(ios, 0, sizeof(ios));
    for (size_t i = 0; i < 2; i++) {
        ios[i].op = GPUNVME_OP_READ;
        ios[i].mem = GPUNVME_MEM_GPU;
        ios[i].offset = i * 128 * KIB;
        ios[i].ptr = (uint8_t *)gpu.gpu + i * 128 * KIB;
        ios[i].nbytes = 128 * KIB;
    }
    assert_int_equal(submit_to(store, ios, 2, NULL), GPUNVME_OK);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(gpunvme_io_wait(&ios[i], 0), GPUNVME_OK);
    assert_int_equal(largest, 128 * KIB);
    is_right(256 * KIB);
}

/* A copy that was started before another one failed may go on for ever. */
static void a_slot_whose_copies_go_on_after_an_error_is_left_alone(void **state)
{
    const void *slot;

    (void)state;
    open_with("threads=1,direct=off");
    fails = stuck = true;
    hangs = 1;
    assert_int_equal(reads(64 * KIB), GPUNVME_ERR_GPU);
    assert_non_null(strstr(gpunvme_err_detail(), "fails"));
    slot = last_src;
    fails = false;
    assert_int_equal(reads(64 * KIB), GPUNVME_OK);
    assert_ptr_not_equal(last_src, slot);
    is_right(64 * KIB);
    assert_int_equal(gpunvme_close(store), GPUNVME_OK);
    store = NULL;
    assert_int_equal(gpunvme_engine_destroy(engine), GPUNVME_OK);
    engine = NULL;
    assert_int_equal(msync((void *)((uintptr_t)slot & ~(uintptr_t)4095), 4096, MS_ASYNC), 0);
}

/* Who submits may be CUDA itself, when a stream has come to a transfer: it must not be called. */
static void nothing_is_pinned_by_who_submits(void **state)
{
    (void)state;
    open_with("");
    npinned = 0;
    assert_int_equal(reads(64 * KIB), GPUNVME_OK);
    assert_int_equal(npinned, 1);
    assert_false(pthread_equal(pinned_by, pthread_self()));
}

#define NBUSY 8u

static _Atomic bool quiet;
static _Atomic unsigned nbusy;

static void reads_on(struct gpunvme_io *io)
{
    if (quiet || submit_to(store, io, 1, NULL))
        nbusy--;
}

static void a_copy_that_does_not_end_is_a_timeout_however_busy_the_worker_is(void **state)
{
    struct gpunvme_io ios[NBUSY],
        stuck_one = {
            .op = GPUNVME_OP_READ, .mem = GPUNVME_MEM_GPU, .ptr = gpu.gpu, .nbytes = 64 * KIB};
    static uint8_t host[NBUSY][4096];
    gpunvme_err_t err;

    (void)state;
    open_with("direct=off,threads=1,timeout=200ms");
    quiet = false;
    nbusy = NBUSY;
    memset(ios, 0, sizeof(ios));
    for (size_t i = 0; i < NBUSY; i++) {
        ios[i].ptr = host[i];
        ios[i].nbytes = 4096;
        ios[i].callback = reads_on;
    }
    not_yet = UINT32_MAX;
    assert_int_equal(submit_to(store, ios, NBUSY, NULL), GPUNVME_OK);
    assert_int_equal(submit_to(store, &stuck_one, 1, NULL), GPUNVME_OK);
    err = gpunvme_io_wait(&stuck_one, 60000000000u);
    quiet = true;
    not_yet = 0;
    while (nbusy)
        usleep(1000);
    assert_int_equal(err, GPUNVME_ERR_TIMEOUT);
    assert_non_null(strstr(detail_of(&stuck_one), "a copy by the GPU is not done"));
}

#define NIOS 64u

/* The kernel that copies for all of them would fail, and with it the GPU for this process. */
static void of_many_small_reads_only_the_one_to_a_wrong_address_fails(void **state)
{
    struct gpunvme_io ios[NIOS], *ended[NIOS];
    struct gpunvme_batch *batch;
    size_t n;

    (void)state;
    open_with("threads=1");
    memset(ios, 0, sizeof(ios));
    for (size_t i = 0; i < NIOS; i++) {
        ios[i].op = GPUNVME_OP_READ;
        ios[i].mem = GPUNVME_MEM_GPU;
        ios[i].offset = i * 4 * KIB;
        ios[i].ptr = (uint8_t *)gpu.gpu + i * 4 * KIB;
        ios[i].nbytes = 4 * KIB;
    }
    no_memory = ios[9].ptr;
    assert_int_equal(gpunvme_batch_create(&batch), GPUNVME_OK);
    assert_int_equal(submit_to(store, ios, NIOS, batch), GPUNVME_OK);
    assert_int_equal(gpunvme_batch_poll(batch, NIOS, NIOS, ended, &n, 20000000000u), GPUNVME_OK);
    assert_int_equal(gpunvme_batch_destroy(batch), GPUNVME_OK);
    for (size_t i = 0; i < NIOS; i++)
        assert_int_equal(ios[i].err, i == 9 ? GPUNVME_ERR_INVALID : GPUNVME_OK);
    is_right(9 * 4 * KIB);
    assert_int_equal(gpunvme_store_read(store, 0, (void *)(uintptr_t)no_memory, GPUNVME_MEM_GPU,
                                        128 * KIB, NULL),
                     GPUNVME_ERR_INVALID);
    assert_non_null(strstr(gpunvme_err_detail(), "no address of this test's GPU"));
}

/* A lane that reads a large piece gives back slots whose copies end meanwhile. */
static void a_lane_looks_for_the_end_of_copies_while_it_reads(void **state)
{
    (void)state;
    open_with("threads=1,chunk=2M");
    not_yet = 1;
    assert_int_equal(reads(4 * MIB), GPUNVME_OK);
    assert_true(looked_in_pieces);
    is_right(4 * MIB);
}

static void a_piece_as_large_as_a_slot_lands_wherever_its_memory_begins(void **state)
{
    (void)state;
    open_with("threads=1,direct=off");
    for (size_t at = 0; at < 16; at += 5) {
        memset(gpu.cpu, 0, NBYTES + 16);
        assert_int_equal(
            gpunvme_store_read(store, 0, (uint8_t *)gpu.gpu + at, GPUNVME_MEM_GPU, NBYTES, NULL),
            GPUNVME_OK);
        assert_int_equal(largest, NBYTES);
        assert_memory_equal((uint8_t *)gpu.cpu + at, bytes, NBYTES);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(no_copy_goes_from_one_transfers_memory_into_anothers),
        TEST(a_copy_that_does_not_end_is_a_timeout_however_busy_the_worker_is),
        TEST(nothing_is_pinned_by_who_submits),
        TEST(of_many_small_reads_only_the_one_to_a_wrong_address_fails),
        TEST(a_slot_whose_copies_go_on_after_an_error_is_left_alone),
        TEST(a_lane_looks_for_the_end_of_copies_while_it_reads),
        TEST(a_piece_as_large_as_a_slot_lands_wherever_its_memory_begins),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
