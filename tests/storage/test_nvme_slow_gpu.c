/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The nvme backend with a GPU that does not end what it was given, or fails: what the linker puts
 * in place of the calls for copies (--wrap) plays it, so that this needs no GPU.
 */
#include "nvme_fixture.h"

#include <pthread.h>
#include <sys/mman.h>

#include "base/fail.h"
#include "transfer_util.h"

#define NBYTES  ((size_t)64 << 10)
#define LONG_NS UINT64_C(20000000000)

static uint8_t bytes[NBYTES], back[NBYTES];
static struct gpunvme_buf gpu;
static struct gpunvme_store *store;

/* ---- The GPU: copies ---------------------------------------------------------------------------
 */

static _Atomic bool hangs;                  /* copies that begin now do not end … */
static struct gpunvme_mem_stream *hung[64]; /* … nor do these streams */
static _Atomic unsigned nhung;
static const uint8_t *_Atomic last_ours; /* the store's memory of the last copy */

static _Atomic bool is_full;   /* no memory for streams */
static _Atomic unsigned nslow; /* looks at copies that find them under way */

gpunvme_err_t __real_gpunvme_mem_stream_create(const struct gpunvme_buf *near,
                                               struct gpunvme_mem_stream **out);
gpunvme_err_t __wrap_gpunvme_mem_stream_create(const struct gpunvme_buf *near,
                                               struct gpunvme_mem_stream **out);
gpunvme_err_t __wrap_gpunvme_mem_stream_create(const struct gpunvme_buf *near,
                                               struct gpunvme_mem_stream **out)
{
    *out = NULL;
    if (is_full)
        return base_fail(GPUNVME_ERR_GPU, "the GPU of this test has no memory");
    return __real_gpunvme_mem_stream_create(near, out);
}

static bool is_hung(const struct gpunvme_mem_stream *stream)
{
    for (unsigned i = 0; i < nhung; i++)
        if (hung[i] == stream)
            return true;
    return false;
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
    /* The store's may be the GPU's, too. */
    last_ours = (uintptr_t)dst - (uintptr_t)gpu.gpu < NBYTES ? src : dst;
    if (hangs) {
        hung[nhung] = stream;
        nhung++;
        return GPUNVME_OK;
    }
    return __real_gpunvme_mem_copy_async(dst, dst_mem, src, src_mem, nbytes, stream);
}

gpunvme_err_t __real_gpunvme_mem_stream_query(struct gpunvme_mem_stream *stream, bool *done);
gpunvme_err_t __wrap_gpunvme_mem_stream_query(struct gpunvme_mem_stream *stream, bool *done);
gpunvme_err_t __wrap_gpunvme_mem_stream_query(struct gpunvme_mem_stream *stream, bool *done)
{
    gpunvme_err_t err = __real_gpunvme_mem_stream_query(stream, done);

    *done = *done && !is_hung(stream);
    if (nslow) {
        nslow--;
        *done = false;
    }
    return err;
}

gpunvme_err_t __real_gpunvme_mem_stream_sync(struct gpunvme_mem_stream *stream, uint64_t ns);
gpunvme_err_t __wrap_gpunvme_mem_stream_sync(struct gpunvme_mem_stream *stream, uint64_t ns);
gpunvme_err_t __wrap_gpunvme_mem_stream_sync(struct gpunvme_mem_stream *stream, uint64_t ns)
{
    if (is_hung(stream))
        return base_fail(GPUNVME_ERR_TIMEOUT, "the GPU of this test hangs");
    return __real_gpunvme_mem_stream_sync(stream, ns);
}

/* ---- Tests -------------------------------------------------------------------------------------
 */

static int setup(void **state)
{
    (void)state;
    hangs = is_full = false;
    nhung = nslow = 0;
    fill_random(bytes, NBYTES, 11);
    memset(back, 0, NBYTES);
    return gpunvme_mem_alloc(NBYTES, GPUNVME_MEM_GPU, &gpu);
}

static int teardown(void **state)
{
    (void)state;
    gpunvme_mem_free(&gpu);
    return 0;
}

/*
 * Copies that begin now are waited for a short time: commands, and all that is to end well, keep
 * the time of the store, so that a slow machine is no slow GPU.
 */
static void hang(bool yes)
{
    struct nvme_store *s = store->priv;

    s->copy_timeout_ns = yes ? 1000000 : LONG_NS;
    hangs = yes;
}

/* With bytes on it. */
static void open_store(const char *uri)
{
    store = opened(uri);
    assert_ok(gpunvme_store_write(store, 0, bytes, GPUNVME_MEM_HOST, NBYTES, NULL));
}

static gpunvme_err_t reads(size_t offset, size_t nbytes)
{
    return gpunvme_store_read(store, offset, gpu.gpu, GPUNVME_MEM_GPU, nbytes, NULL);
}

/* By a thread of the store. */
static gpunvme_err_t reads_in_background(size_t offset, size_t nbytes)
{
    struct gpunvme_io io = {.op = GPUNVME_OP_READ,
                            .mem = GPUNVME_MEM_GPU,
                            .offset = offset,
                            .ptr = gpu.gpu,
                            .nbytes = nbytes};

    assert_ok(submit_to(store, &io, 1, NULL));
    return gpunvme_io_wait(&io, LONG_NS);
}

static void is_right(size_t offset, size_t nbytes)
{
    assert_ok(gpunvme_mem_copy(back, GPUNVME_MEM_HOST, gpu.gpu, GPUNVME_MEM_GPU, nbytes));
    assert_memory_equal(back, bytes + offset, nbytes);
}

static void a_copy_that_does_not_end_is_a_timeout(void **state)
{
    (void)state;
    open_store("sim:size=1M");
    hang(true);
    assert_err(reads(0, 4096), GPUNVME_ERR_TIMEOUT);
    assert_non_null(strstr(gpunvme_err_detail(), "copy of 4096 bytes by the GPU"));
    assert_err(reads_in_background(0, 4096), GPUNVME_ERR_TIMEOUT);
    assert_err(gpunvme_store_write(store, 0, gpu.gpu, GPUNVME_MEM_GPU, 4096, NULL),
               GPUNVME_ERR_TIMEOUT);
    nhung = 0;
    hang(false);
    assert_ok(reads(512, 4096));
    is_right(512, 4096);
    closed(store);
}

static void memory_of_a_copy_that_goes_on_is_left_alone(void **state)
{
    const uint8_t *lost;

    (void)state;
    open_store("sim:size=1M?threads=1,depth=2");
    hang(true);
    assert_err(reads(0, 4096), GPUNVME_ERR_TIMEOUT);
    lost = last_ours;
    hang(false);
    for (unsigned i = 0; i < 40; i++) {
        assert_ok(i % 2 ? reads(512, 4096) : reads_in_background(512, 4096));
        assert_ptr_not_equal(last_ours, lost);
        is_right(512, 4096);
    }
    nhung = 0; /* it has ended after all */
    assert_ok(reads(512, 4096));
    assert_ptr_equal(last_ours, lost);
    closed(store);
}

#define NBOUNCES 32u /* of a lane */

/* Those of the lane, and one of each thread that does its own transfer. */
static void a_gpu_that_has_all_memory_is_told_at_once(void **state)
{
    (void)state;
    open_store("sim:size=1M?threads=1");
    hang(true);
    for (unsigned i = 0; i < NBOUNCES + NVME_CALLERS; i++)
        assert_err(i < NBOUNCES ? reads_in_background(0, 4096) : reads(0, 4096),
                   GPUNVME_ERR_TIMEOUT);
    hang(false);
    assert_err(reads(0, 4096), GPUNVME_ERR_GPU);
    assert_err(gpunvme_store_read(store, 3, back, GPUNVME_MEM_HOST, 9, NULL), GPUNVME_ERR_GPU);
    nhung = 0;
    assert_ok(reads(0, 4096));
    is_right(0, 4096);
    assert_ok(reads_in_background(0, 4096));
    closed(store);
}

static void a_store_whose_copies_go_on_is_closed_around_them(void **state)
{
    const uint8_t *lost;

    (void)state;
    open_store("sim:size=1M");
    hang(true);
    assert_err(reads(0, 4096), GPUNVME_ERR_TIMEOUT);
    lost = last_ours;
    hang(false);
    assert_err(gpunvme_close(store), GPUNVME_ERR_IO);
    assert_non_null(strstr(gpunvme_err_detail(), "does not end"));
    assert_int_equal(msync((void *)((uintptr_t)lost & ~(uintptr_t)4095), 4096, MS_ASYNC), 0);
}

static void transfers_of_all_memory_are_right(enum gpunvme_op op)
{
    static struct gpunvme_io ios[NBYTES / 4096];

    for (unsigned i = 0; i < NBYTES / 4096; i++)
        ios[i] = (struct gpunvme_io){.op = op,
                                     .mem = GPUNVME_MEM_GPU,
                                     .offset = 4096 * i,
                                     .ptr = (uint8_t *)gpu.gpu + 4096 * i,
                                     .nbytes = 4096};
    assert_ok(submit_to(store, ios, NBYTES / 4096, NULL));
    for (unsigned i = 0; i < NBYTES / 4096; i++)
        assert_ok(gpunvme_io_wait(&ios[i], LONG_NS));
}

/* Other programs have it all. */
static void a_gpu_without_memory_for_streams_still_copies(void **state)
{
    (void)state;
    open_store("sim:size=1M?threads=1");
    is_full = true;
    nslow = 100;
    assert_ok(reads(512, 4096));
    is_right(512, 4096);
    nslow = 1000;
    transfers_of_all_memory_are_right(GPUNVME_OP_READ);
    is_right(0, NBYTES);
    fill_random(bytes, NBYTES, 12);
    assert_ok(gpunvme_mem_copy(gpu.gpu, GPUNVME_MEM_GPU, bytes, GPUNVME_MEM_HOST, NBYTES));
    nslow = 1000;
    transfers_of_all_memory_are_right(GPUNVME_OP_WRITE);
    assert_ok(gpunvme_store_read(store, 0, back, GPUNVME_MEM_HOST, NBYTES, NULL));
    assert_memory_equal(back, bytes, NBYTES);
    closed(store);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_copy_that_does_not_end_is_a_timeout),
        TEST(memory_of_a_copy_that_goes_on_is_left_alone),
        TEST(a_gpu_that_has_all_memory_is_told_at_once),
        TEST(a_store_whose_copies_go_on_is_closed_around_them),
        TEST(a_gpu_without_memory_for_streams_still_copies),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
