/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The nvme backend with a GPU that does not end what it was given, or fails: what the linker puts
 * in place of the calls for copies and kernels (--wrap) plays it, so that this needs no GPU.
 */
#include "nvme_fixture.h"

#include <pthread.h>
#include <sys/mman.h>

#include "base/fail.h"
#include "storage/nvme_gpu_kernel.h"

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

/* ---- The GPU: kernels --------------------------------------------------------------------------
 */

/*
 * Where a test plays kernels, threads of it stand in for them; a queue of the device is what they
 * share. In the other tests a GPU that is there has its own.
 */
struct nvme_kernels {
    pthread_t thread;
    struct gpunvme_dev_ns ns;
    struct nvme_job *jobs;
    unsigned n;
    bool runs;
    _Atomic bool done, failed, held;
};

static _Atomic bool plays_kernels, fails_kernel;
static _Atomic bool holds_kernels, holds_no_more; /* than it does */
static _Atomic unsigned nrunning, nkernels;
static struct nvme_kernels *last_kernel;

void __real_gpunvme_device_get_info(struct gpunvme_device *dev, struct gpunvme_device_info *info);
void __wrap_gpunvme_device_get_info(struct gpunvme_device *dev, struct gpunvme_device_info *info);
void __wrap_gpunvme_device_get_info(struct gpunvme_device *dev, struct gpunvme_device_info *info)
{
    __real_gpunvme_device_get_info(dev, info);
    if (plays_kernels)
        info->gpu = 0;
}

gpunvme_err_t __real_nvme_kernels_open(int number, struct nvme_kernels **out);
gpunvme_err_t __wrap_nvme_kernels_open(int number, struct nvme_kernels **out);
gpunvme_err_t __wrap_nvme_kernels_open(int number, struct nvme_kernels **out)
{
    if (!plays_kernels)
        return __real_nvme_kernels_open(number, out);
    *out = calloc(1, sizeof(**out));
    return *out ? GPUNVME_OK : GPUNVME_ERR_NOMEM;
}

void __real_nvme_kernels_close(struct nvme_kernels *k);
void __wrap_nvme_kernels_close(struct nvme_kernels *k);
void __wrap_nvme_kernels_close(struct nvme_kernels *k)
{
    if (plays_kernels)
        free(k);
    else
        __real_nvme_kernels_close(k);
}

/* What threads of a kernel that dies leave behind: all slots of the queues taken. */
static void die(const struct nvme_kernels *k)
{
    struct gpunvme_dev_token token;

    for (uint32_t queue = 0; queue < k->ns.nqueues; queue++) {
        struct gpunvme_dev_ns ns = gpunvme_dev_on_queue(&k->ns, queue);

        for (unsigned refused = 0; refused < 20;)
            if (gpunvme_dev_submit_read(&ns, 0, 1, &k->jobs[0].buf, k->jobs[0].off, &token)) {
                usleep(1000); /* the drive takes those that were submitted */
                refused++;
            }
    }
}

static void *run_kernel(void *k_)
{
    struct nvme_kernels *k = k_;

    while (k->held && holds_kernels)
        usleep(1000);
    if (k->failed)
        die(k);
    for (unsigned i = 0; i < k->n && !k->failed; i++)
        nvme_job_do(&k->ns, &k->jobs[i]);
    k->done = true;
    return NULL;
}

gpunvme_err_t __real_nvme_kernels_start(struct nvme_kernels *k, const struct gpunvme_dev_ns *ns,
                                        struct nvme_job *jobs, unsigned n);
gpunvme_err_t __wrap_nvme_kernels_start(struct nvme_kernels *k, const struct gpunvme_dev_ns *ns,
                                        struct nvme_job *jobs, unsigned n);
gpunvme_err_t __wrap_nvme_kernels_start(struct nvme_kernels *k, const struct gpunvme_dev_ns *ns,
                                        struct nvme_job *jobs, unsigned n)
{
    if (!plays_kernels)
        return __real_nvme_kernels_start(k, ns, jobs, n);
    assert_false(k->runs); /* its jobs' memory would be written over */
    k->ns = *ns;
    k->jobs = jobs;
    k->n = n;
    k->done = false;
    k->held = !holds_no_more;
    k->failed = atomic_exchange(&fails_kernel, false);
    k->runs = true;
    last_kernel = k;
    nrunning++;
    nkernels++;
    return pthread_create(&k->thread, NULL, run_kernel, k) ? GPUNVME_ERR_GPU : GPUNVME_OK;
}

gpunvme_err_t __real_nvme_kernels_query(struct nvme_kernels *k, bool *done);
gpunvme_err_t __wrap_nvme_kernels_query(struct nvme_kernels *k, bool *done);
gpunvme_err_t __wrap_nvme_kernels_query(struct nvme_kernels *k, bool *done)
{
    if (!plays_kernels)
        return __real_nvme_kernels_query(k, done);
    *done = k->done;
    if (!k->done || !k->runs)
        return GPUNVME_OK;
    pthread_join(k->thread, NULL);
    k->runs = false;
    nrunning--;
    return k->failed ? base_fail(GPUNVME_ERR_GPU, "the kernel of this test fails") : GPUNVME_OK;
}

/* ---- Tests -------------------------------------------------------------------------------------
 */

static int setup(void **state)
{
    (void)state;
    hangs = is_full = plays_kernels = holds_kernels = fails_kernel = false;
    holds_no_more = false;
    nhung = nslow = nkernels = 0;
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
 * How long copies, or kernels, that begin now are waited for: commands, and all that is to end
 * well, keep the time of the store, so that a slow machine is no slow GPU.
 */
static uint64_t patience(bool yes)
{
    return yes ? LONG_NS : 1000000;
}

static void be_patient(bool yes)
{
    struct nvme_store *s = store->priv;

    s->kernel_timeout_ns = patience(yes);
}

static void hang(bool yes)
{
    struct nvme_store *s = store->priv;

    s->copy_timeout_ns = patience(!yes);
    hangs = yes;
}

static void hold_kernels(bool yes)
{
    be_patient(!yes);
    holds_kernels = yes;
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

    assert_ok(gpunvme_store_submit(store, &io, 1, NULL));
    return gpunvme_io_wait(&io, LONG_NS);
}

static void is_right(size_t offset, size_t nbytes)
{
    assert_ok(gpunvme_mem_copy(back, GPUNVME_MEM_HOST, gpu.gpu, GPUNVME_MEM_GPU, nbytes));
    assert_memory_equal(back, bytes + offset, nbytes);
}

static void need_stand_in(void)
{
    if (!gpunvme_mem_gpu_is_host())
        skip(); /* kernels of this test are threads, which reach no memory of a GPU */
    plays_kernels = true;
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

/* Two of the worker, and one of each thread that does its own transfer. */
static void a_gpu_that_has_all_memory_is_told_at_once(void **state)
{
    (void)state;
    open_store("sim:size=1M?threads=1,depth=2");
    hang(true);
    for (unsigned i = 0; i < 2 + NVME_CALLERS; i++)
        assert_err(i < 2 ? reads_in_background(0, 4096) : reads(0, 4096), GPUNVME_ERR_TIMEOUT);
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
    assert_ok(gpunvme_store_submit(store, ios, NBYTES / 4096, NULL));
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

static void the_last_stream_lost_is_an_error_until_there_are_more(void **state)
{
    (void)state;
    open_store("sim:size=1M?threads=1");
    is_full = true;
    hang(true);
    assert_err(reads_in_background(0, 4096), GPUNVME_ERR_TIMEOUT);
    hang(false);
    assert_err(reads_in_background(0, 4096), GPUNVME_ERR_GPU);
    assert_non_null(strstr(gpunvme_err_detail(), "has no memory"));
    is_full = false;
    assert_ok(reads_in_background(0, 4096));
    is_right(0, 4096);
    nhung = 0;
    closed(store);
}

static void a_staging_copy_that_does_not_end_is_a_timeout(void **state)
{
    const uint8_t *lost;

    (void)state;
    open_store("sim:size=1M?issue=gpu,threads=1");
    hang(true);
    assert_err(reads_in_background(0, 4096), GPUNVME_ERR_TIMEOUT);
    lost = last_ours;
    hang(false);
    for (unsigned i = 0; i < 10; i++) {
        assert_ok(reads(512, 4096));
        assert_ptr_not_equal(last_ours, lost);
        is_right(512, 4096);
    }
    nhung = 0;
    closed(store);
}

static void wait_for_kernels(unsigned n)
{
    for (unsigned i = 0; i < 20000 && nrunning != n; i++)
        usleep(1000);
    assert_int_equal(nrunning, n);
}

static void a_kernel_that_does_not_end_is_a_timeout_and_keeps_what_it_has(void **state)
{
    (void)state;
    need_stand_in();
    open_store("sim:size=1M?issue=gpu,threads=2");
    hold_kernels(true);
    for (unsigned i = 0; i < 2; i++)
        assert_err(reads_in_background(0, 4096), GPUNVME_ERR_TIMEOUT);
    assert_int_equal(nrunning, 2); /* the other worker had the second */
    nkernels = 0;
    assert_err(reads_in_background(0, 4096), GPUNVME_ERR_TIMEOUT);
    assert_int_equal(nkernels, 0);
    hold_kernels(false);
    wait_for_kernels(0);
    for (unsigned i = 0; i < 10; i++) {
        assert_ok(reads_in_background(512, 8192));
        is_right(512, 8192);
    }
    closed(store);
}

static gpunvme_err_t writes_in_background(size_t offset, size_t nbytes)
{
    struct gpunvme_io io = {
        .op = GPUNVME_OP_WRITE, .offset = offset, .ptr = bytes + offset, .nbytes = nbytes};

    assert_ok(gpunvme_store_submit(store, &io, 1, NULL));
    return gpunvme_io_wait(&io, LONG_NS);
}

/* It would put the rest of the block back to what that was before. */
static void a_block_of_which_a_kernel_may_write_a_part_is_kept_from_others(void **state)
{
    (void)state;
    need_stand_in();
    open_store("sim:size=1M?issue=gpu,threads=2");
    hold_kernels(true);
    assert_err(writes_in_background(0, 100), GPUNVME_ERR_TIMEOUT);
    assert_int_equal(nrunning, 1);
    nkernels = 0;
    assert_err(writes_in_background(300, 100), GPUNVME_ERR_TIMEOUT);
    assert_non_null(strstr(gpunvme_err_detail(), "blocks 0 to 0"));
    assert_err(writes_in_background(0, 8192), GPUNVME_ERR_TIMEOUT);
    assert_int_equal(nkernels, 0);
    hold_kernels(false);
    for (unsigned i = 0; i < 20000 && writes_in_background(300, 100); i++)
        usleep(1000); /* until it is over */
    assert_ok(writes_in_background(300, 100));
    assert_ok(writes_in_background(0, 8192));
    closed(store);
}

static struct gpunvme_io next_read;

static void reads_next(struct gpunvme_io *io)
{
    (void)io;
    be_patient(true);
    holds_no_more = true;
    if (gpunvme_store_submit(store, &next_read, 1, NULL))
        next_read.nbytes = 0;
}

/* Of two that write to one block it has one in the kernel, and the other in hand. */
static void a_worker_whose_kernel_does_not_end_takes_nothing_that_another_can_do(void **state)
{
    struct gpunvme_io ios[2] = {{.op = GPUNVME_OP_WRITE, .ptr = bytes, .nbytes = 100},
                                {.op = GPUNVME_OP_WRITE, .ptr = bytes, .nbytes = 100}};

    (void)state;
    need_stand_in();
    open_store("sim:size=1M?issue=gpu,threads=2");
    next_read = (struct gpunvme_io){
        .op = GPUNVME_OP_READ, .mem = GPUNVME_MEM_GPU, .ptr = gpu.gpu, .nbytes = 8192};
    ios[0].callback = reads_next;
    hold_kernels(true);
    assert_ok(gpunvme_store_submit(store, ios, 2, NULL));
    assert_err(gpunvme_io_wait(&ios[1], LONG_NS), GPUNVME_ERR_TIMEOUT);
    assert_ok(gpunvme_io_wait(&next_read, LONG_NS));
    is_right(0, 8192);
    holds_kernels = false;
    closed(store);
}

/* Its threads had slots of the queues, and commands in flight. */
static void after_a_kernel_that_failed_the_next_transfer_works(void **state)
{
    (void)state;
    need_stand_in();
    open_store("sim:size=1M?issue=gpu,threads=2");
    fails_kernel = true;
    assert_err(reads_in_background(0, 4096), GPUNVME_ERR_GPU);
    for (unsigned i = 0; i < 10; i++) {
        assert_ok(reads_in_background(512, 8192));
        is_right(512, 8192);
    }
    closed(store);
}

static void a_store_whose_kernel_goes_on_is_closed_around_it(void **state)
{
    (void)state;
    need_stand_in();
    open_store("sim:size=1M?issue=gpu,threads=2,timeout=6s");
    hold_kernels(true);
    assert_ok(gpunvme_store_register(store, gpu.gpu, NBYTES, GPUNVME_MEM_GPU));
    assert_err(reads_in_background(0, 4096), GPUNVME_ERR_TIMEOUT);
    assert_err(gpunvme_close(store), GPUNVME_ERR_IO);
    assert_non_null(strstr(gpunvme_err_detail(), "does not end"));
    holds_kernels = false; /* and it still finds what it needs */
    pthread_join(last_kernel->thread, NULL);
    assert_true(last_kernel->done);
    assert_int_not_equal(last_kernel->jobs[0].err, GPUNVME_OK); /* the drive has let go */
    assert_ok(gpunvme_mem_copy(back, GPUNVME_MEM_HOST, gpu.gpu, GPUNVME_MEM_GPU, 4096));
    for (unsigned i = 0; i < 4096; i++)
        assert_int_equal(back[i], 0);
    free(last_kernel);
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
        TEST(the_last_stream_lost_is_an_error_until_there_are_more),
        TEST(a_staging_copy_that_does_not_end_is_a_timeout),
        TEST(a_kernel_that_does_not_end_is_a_timeout_and_keeps_what_it_has),
        TEST(a_block_of_which_a_kernel_may_write_a_part_is_kept_from_others),
        TEST(a_worker_whose_kernel_does_not_end_takes_nothing_that_another_can_do),
        TEST(after_a_kernel_that_failed_the_next_transfer_works),
        TEST(a_store_whose_kernel_goes_on_is_closed_around_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
