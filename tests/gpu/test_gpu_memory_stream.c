/* SPDX-License-Identifier: BSD-3-Clause
 *
 * I/O that takes its place in a caller's stream: a kernel, then a call of the host, then bytes that
 * a CPU thread brings by another stream, then a kernel that finds them. Nothing here hangs: what
 * waits has a deadline, and a stream that is held up is released before a test can fail.
 */
#include "memory_util.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <time.h>

#include "memory/cuda.h"
#include "stream_kernels.h"

#define NWORDS  ((size_t)65536)
#define NBYTES  (NWORDS * sizeof(uint32_t))
#define WAIT_NS 10000000000u

/* What a test works with. The flag and the word are in pinned memory. */
struct rig {
    cudaStream_t stream;
    struct gpunvme_buf flag, word; /* what a kernel stores; what the stream waits for */
    struct gpunvme_buf data, sum;  /* GPU memory */
    struct gpunvme_buf bytes;      /* what is brought, pinned */
    uint64_t expected;
    bool refused; /* this machine lets no stream wait */
};

static volatile uint32_t *flag_of(const struct rig *rig)
{
    return rig->flag.cpu;
}

static gpunvme_err_t hold_up(const struct rig *rig, uint32_t value)
{
    return mem_cuda_user_stream_wait(rig->stream, rig->word.gpu, value);
}

static void release(const struct rig *rig, uint32_t value)
{
    mem_cuda_user_stream_release(rig->word.cpu, value);
}

/* True when all that is on the stream is done before the deadline. */
static bool ends_within(cudaStream_t stream, double seconds)
{
    const struct timespec nap = {.tv_nsec = 1000000};

    for (int i = 0; i < (int)(seconds * 1000); i++) {
        if (cudaStreamQuery(stream) == cudaSuccess)
            return true;
        nanosleep(&nap, NULL);
    }
    return false;
}

static int set_up(void **state)
{
    struct rig *rig = calloc(1, sizeof(*rig));
    const uint32_t *words;

    assert_non_null(rig);
    assert_int_equal(cudaStreamCreateWithFlags(&rig->stream, cudaStreamNonBlocking), cudaSuccess);
    rig->flag = new_buf(4096, GPUNVME_MEM_PINNED);
    rig->word = new_buf(4096, GPUNVME_MEM_PINNED);
    rig->bytes = new_buf(NBYTES, GPUNVME_MEM_PINNED);
    rig->data = new_buf(NBYTES, GPUNVME_MEM_GPU);
    rig->sum = new_buf(sizeof(uint64_t), GPUNVME_MEM_GPU);
    random_bytes(rig->bytes.cpu, NBYTES, 51);
    words = rig->bytes.cpu;
    for (size_t i = 0; i < NWORDS; i++)
        rig->expected += words[i];
    /* First launches load the kernels, which may wait for the device: not while it is held up. */
    assert_int_equal(stream_store(rig->flag.gpu, 0, rig->stream), cudaSuccess);
    assert_int_equal(stream_add_up(rig->data.gpu, 0, rig->sum.gpu, rig->stream), cudaSuccess);
    assert_true(ends_within(rig->stream, 10));
    rig->refused = hold_up(rig, 0) == GPUNVME_ERR_UNSUPPORTED;
    assert_true(ends_within(rig->stream, 10));
    *state = rig;
    return 0;
}

static int tear_down(void **state)
{
    struct rig *rig = *state;

    assert_true(ends_within(rig->stream, 10));
    assert_int_equal(cudaStreamDestroy(rig->stream), cudaSuccess);
    free_buf(&rig->flag);
    free_buf(&rig->word);
    free_buf(&rig->bytes);
    free_buf(&rig->data);
    free_buf(&rig->sum);
    free(rig);
    return 0;
}

static void need_wait(const struct rig *rig)
{
    if (!rig->refused)
        return;
    print_message("not tried: %s\n", gpunvme_err_detail());
    skip();
}

static uint64_t sum_of(const struct rig *rig)
{
    uint64_t sum = 0;

    buf_read(&rig->sum, 0, &sum, sizeof(sum));
    return sum;
}

/* --- one thing at a time ---------------------------------------------------------------------- */

static void the_gpu_of_a_stream_is_told(void **state)
{
    const struct rig *rig = *state;
    const cudaStream_t streams[] = {rig->stream, NULL, cudaStreamLegacy, cudaStreamPerThread};
    unsigned current, device;

    assert_int_equal(gpunvme_mem_gpu_current(&current), GPUNVME_OK);
    for (int i = 0; i < 4; i++) {
        device = 77;
        assert_int_equal(mem_cuda_user_stream_device(streams[i], &device), GPUNVME_OK);
        assert_int_equal(device, current);
    }
}

static void the_gpu_of_a_stream_is_not_the_threads_current_one(void **state)
{
    int last = (int)gpunvme_mem_gpu_count() - 1, now = -1;
    struct gpunvme_buf flag;
    cudaStream_t stream;
    unsigned device = 0;

    (void)state;
    if (last == 0)
        skip();
    assert_int_equal(cudaSetDevice(last), cudaSuccess);
    assert_int_equal(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    flag = new_buf(4096, GPUNVME_MEM_PINNED);
    assert_int_equal(cudaSetDevice(0), cudaSuccess);
    assert_int_equal(mem_cuda_user_stream_device(stream, &device), GPUNVME_OK);
    assert_int_equal(device, last);
    assert_int_equal(mem_cuda_user_stream_wait(stream, flag.gpu, 0), GPUNVME_OK);
    assert_true(ends_within(stream, 10));
    assert_int_equal(cudaGetDevice(&now), cudaSuccess);
    assert_int_equal(now, 0);
    assert_int_equal(cudaStreamDestroy(stream), cudaSuccess);
    free_buf(&flag);
}

static void a_capture_is_told(void **state)
{
    const struct rig *rig = *state;
    cudaGraph_t graph = NULL;
    bool before = true, during = false, of_another = true, after = true;
    gpunvme_err_t err[4];

    err[0] = mem_cuda_user_stream_capturing(rig->stream, &before);
    assert_int_equal(cudaStreamBeginCapture(rig->stream, cudaStreamCaptureModeRelaxed),
                     cudaSuccess);
    err[1] = mem_cuda_user_stream_capturing(rig->stream, &during);
    err[2] = mem_cuda_user_stream_capturing(cudaStreamPerThread, &of_another);
    assert_int_equal(cudaStreamEndCapture(rig->stream, &graph), cudaSuccess);
    err[3] = mem_cuda_user_stream_capturing(rig->stream, &after);
    assert_int_equal(cudaGraphDestroy(graph), cudaSuccess);
    for (int i = 0; i < 4; i++)
        assert_int_equal(err[i], GPUNVME_OK);
    assert_false(before);
    assert_true(during);
    assert_false(of_another);
    assert_false(after);
}

/* A blocking stream is captured, so that work on the legacy one would break the capture. */
static void a_capture_that_the_legacy_stream_would_break_is_told(void **state)
{
    cudaStream_t stream;
    cudaGraph_t graph = NULL;
    bool capturing = false;
    gpunvme_err_t err;

    (void)state;
    assert_int_equal(cudaStreamCreate(&stream), cudaSuccess);
    assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), cudaSuccess);
    err = mem_cuda_user_stream_capturing(NULL, &capturing);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    assert_int_equal(err, GPUNVME_OK);
    assert_true(capturing);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    assert_int_equal(cudaGraphDestroy(graph), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(stream), cudaSuccess);
}

/* What a worker does with GPU memory: CUDA takes exception to most of it while others capture. */
static void *allocate_and_copy(void *err_)
{
    struct gpunvme_buf host = {0}, gpu = {0};
    struct gpunvme_mem_stream *stream = NULL;
    gpunvme_err_t *err = err_;

    *err = gpunvme_mem_alloc(4096, GPUNVME_MEM_PINNED, &host);
    if (!*err)
        *err = gpunvme_mem_alloc(4096, GPUNVME_MEM_GPU, &gpu);
    if (!*err)
        *err = gpunvme_mem_stream_create(&gpu, &stream);
    for (int i = 0; i < 2 && !*err; i++) {
        const struct gpunvme_mem_piece piece = {gpu.gpu, host.gpu, 4096};

        *err = i ? gpunvme_mem_copy_batch(&piece, 1, stream)
                 : gpunvme_mem_copy_async(gpu.gpu, GPUNVME_MEM_GPU, host.cpu, GPUNVME_MEM_PINNED,
                                          4096, stream);
        if (!*err)
            *err = gpunvme_mem_stream_sync(stream, 10000000000u);
    }
    gpunvme_mem_stream_destroy(stream);
    gpunvme_mem_free(&gpu);
    gpunvme_mem_free(&host);
    return NULL;
}

static void a_capture_of_all_threads_bears_our_work(void **state)
{
    const struct rig *rig = *state;
    gpunvme_err_t by_another = GPUNVME_ERR_IO, by_this = GPUNVME_ERR_IO;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal;
    cudaGraph_t graph = NULL;
    pthread_t thread;
    cudaError_t ended;

    assert_int_equal(cudaStreamBeginCapture(rig->stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    if (!pthread_create(&thread, NULL, allocate_and_copy, &by_another))
        pthread_join(thread, NULL);
    allocate_and_copy(&by_this);
    ended = cudaStreamEndCapture(rig->stream, &graph);
    assert_int_equal(by_another, GPUNVME_OK);
    assert_int_equal(by_this, GPUNVME_OK);
    assert_int_equal(ended, cudaSuccess);
    assert_int_equal(cudaGraphDestroy(graph), cudaSuccess);
    assert_int_equal(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
    assert_int_equal(mode, cudaStreamCaptureModeGlobal); /* as it was */
    assert_int_equal(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
}

/* What the host's call saw of the kernel before it. */
struct seen {
    volatile uint32_t *flag;
    uint32_t value;
    sem_t called;
};

static void look(void *arg)
{
    struct seen *seen = arg;

    seen->value = *seen->flag;
    sem_post(&seen->called);
}

static bool is_called_within(sem_t *called, time_t seconds)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += seconds;
    return sem_timedwait(called, &until) == 0;
}

static void the_host_is_called_after_the_kernel_before_it(void **state)
{
    const struct rig *rig = *state;
    struct seen seen = {.flag = flag_of(rig)};

    sem_init(&seen.called, 0, 0);
    for (uint32_t i = 1; i <= 100; i++) {
        assert_int_equal(stream_store(rig->flag.gpu, i, rig->stream), cudaSuccess);
        assert_int_equal(mem_cuda_user_stream_call(rig->stream, look, &seen), GPUNVME_OK);
        assert_true(is_called_within(&seen.called, 10));
        assert_int_equal(seen.value, i);
    }
    sem_destroy(&seen.called);
}

static void a_word_that_has_its_value_holds_nobody_up(void **state)
{
    const struct rig *rig = *state;

    need_wait(rig);
    release(rig, 100);
    assert_int_equal(hold_up(rig, 100), GPUNVME_OK);
    assert_int_equal(hold_up(rig, 99), GPUNVME_OK);
    assert_true(ends_within(rig->stream, 10));
}

static void a_word_holds_the_stream_up_until_it_is_released(void **state)
{
    const struct rig *rig = *state;
    bool is_early;
    gpunvme_err_t err;

    need_wait(rig);
    /* the comparison goes round with the word */
    release(rig, 0xfffffff0u);
    err = hold_up(rig, 5);
    stream_store(rig->flag.gpu, 1, rig->stream);
    is_early = ends_within(rig->stream, 0.2) || *flag_of(rig);
    release(rig, 4);
    is_early |= ends_within(rig->stream, 0.05);
    release(rig, 5);
    assert_int_equal(err, GPUNVME_OK);
    assert_false(is_early);
    assert_true(ends_within(rig->stream, 10));
    assert_int_equal(*flag_of(rig), 1);
}

/* --- all of it -------------------------------------------------------------------------------- */

/* A CPU thread's part: brings the bytes, or fails to, and releases the stream in any case. */
struct bringer {
    const struct rig *rig;
    struct seen seen;
    bool fails;
    bool was_called;
    gpunvme_err_t err;
};

static gpunvme_err_t bring(const struct rig *rig)
{
    struct gpunvme_mem_stream *own;
    gpunvme_err_t err = gpunvme_mem_stream_create(&rig->data, &own), end;

    if (err)
        return err;
    err = gpunvme_mem_copy_async(rig->data.gpu, GPUNVME_MEM_GPU, rig->bytes.cpu, GPUNVME_MEM_PINNED,
                                 NBYTES, own);
    if (!err)
        err = gpunvme_mem_stream_sync(own, WAIT_NS);
    end = gpunvme_mem_stream_destroy(own);
    return err ? err : end;
}

static void *bring_when_called(void *arg)
{
    struct bringer *b = arg;

    b->was_called = is_called_within(&b->seen.called, 10);
    b->err = !b->was_called ? GPUNVME_ERR_TIMEOUT : b->fails ? GPUNVME_ERR_IO : bring(b->rig);
    release(b->rig, 1);
    return NULL;
}

/* Kernel, call, bytes by another stream, kernel: all on the stream before any of it can be done. */
static void run_chain(const struct rig *rig, bool fails, struct bringer *b)
{
    pthread_t thread;
    gpunvme_err_t err[2];
    cudaError_t cuda[2];

    *b = (struct bringer){.rig = rig, .fails = fails, .seen.flag = flag_of(rig)};
    sem_init(&b->seen.called, 0, 0);
    assert_int_equal(pthread_create(&thread, NULL, bring_when_called, b), 0);
    cuda[0] = stream_store(rig->flag.gpu, 42, rig->stream);
    err[0] = mem_cuda_user_stream_call(rig->stream, look, &b->seen);
    err[1] = hold_up(rig, 1);
    cuda[1] = stream_add_up(rig->data.gpu, NWORDS, rig->sum.gpu, rig->stream);
    pthread_join(thread, NULL);
    assert_true(ends_within(rig->stream, 10));
    sem_destroy(&b->seen.called);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(err[i], GPUNVME_OK);
        assert_int_equal(cuda[i], cudaSuccess);
    }
}

static void a_kernel_finds_what_the_host_brought_by_another_stream(void **state)
{
    const struct rig *rig = *state;
    struct bringer b;

    need_wait(rig);
    run_chain(rig, false, &b);
    assert_true(b.was_called);
    assert_int_equal(b.seen.value, 42);
    assert_int_equal(b.err, GPUNVME_OK);
    assert_true(sum_of(rig) == rig->expected);
}

static void an_error_of_the_host_does_not_hang_the_stream(void **state)
{
    const struct rig *rig = *state;
    struct bringer b;

    need_wait(rig);
    run_chain(rig, true, &b);
    assert_int_equal(b.err, GPUNVME_ERR_IO);
    assert_true(sum_of(rig) == 0);
}

/* --- beside others ---------------------------------------------------------------------------- */

#define NSTREAMS 32

/* Copies and batches that the release of a stream may depend on must not queue up behind it. */
static void copies_by_other_streams_go_on_while_one_is_held_up(void **state)
{
    const struct rig *rig = *state;
    struct gpunvme_mem_stream *streams[NSTREAMS];
    const struct gpunvme_mem_piece piece = {rig->data.gpu, rig->bytes.gpu, 4096};
    gpunvme_err_t held, err[NSTREAMS] = {0};
    int nlate = 0;

    need_wait(rig);
    for (int i = 0; i < NSTREAMS; i++) { /* first uses allocate, which may wait for the device */
        assert_int_equal(gpunvme_mem_stream_create(&rig->data, &streams[i]), GPUNVME_OK);
        assert_int_equal(gpunvme_mem_copy_batch(&piece, 1, streams[i]), GPUNVME_OK);
        assert_int_equal(gpunvme_mem_stream_sync(streams[i], WAIT_NS), GPUNVME_OK);
    }
    held = hold_up(rig, 1);
    for (int i = 0; i < NSTREAMS; i++) {
        err[i] = gpunvme_mem_copy_async(rig->data.gpu, GPUNVME_MEM_GPU, rig->bytes.cpu,
                                        GPUNVME_MEM_PINNED, NBYTES, streams[i]);
        if (!err[i])
            err[i] = gpunvme_mem_copy_batch(&piece, 1, streams[i]);
        if (!err[i])
            err[i] = gpunvme_mem_stream_sync(streams[i], 1000000000u);
        nlate += err[i] == GPUNVME_ERR_TIMEOUT;
    }
    release(rig, 1);
    if (nlate)
        print_message("%d of %d streams were held up, too\n", nlate, NSTREAMS);
    for (int i = 0; i < NSTREAMS; i++)
        assert_int_equal(gpunvme_mem_stream_destroy(streams[i]), GPUNVME_OK);
    assert_int_equal(held, GPUNVME_OK);
    for (int i = 0; i < NSTREAMS; i++)
        assert_int_equal(err[i], GPUNVME_OK);
}

#define CROWD 20000 /* blocks, many times what a GPU has room for at once */

/* Blocks of a kernel that has the GPU end, one after the other: the next to begin is of our copy.
 */
static void a_batch_comes_before_the_blocks_of_a_kernel_that_wait(void **state)
{
    const struct rig *rig = *state;
    const struct gpunvme_mem_piece piece = {rig->data.gpu, rig->bytes.gpu, 4096};
    struct gpunvme_mem_stream *stream;
    cudaError_t crowded, other;
    gpunvme_err_t err;

    assert_int_equal(gpunvme_mem_stream_create(&rig->data, &stream), GPUNVME_OK);
    assert_int_equal(gpunvme_mem_copy_batch(&piece, 1, stream), GPUNVME_OK); /* sets things up */
    assert_int_equal(gpunvme_mem_stream_sync(stream, WAIT_NS), GPUNVME_OK);
    assert_int_equal(stream_crowd(1, 0, rig->stream), cudaSuccess);
    assert_true(ends_within(rig->stream, 10));
    crowded = stream_crowd(CROWD, 2000000, rig->stream);
    err = gpunvme_mem_copy_batch(&piece, 1, stream);
    if (!err)
        err = gpunvme_mem_stream_sync(stream, WAIT_NS);
    other = cudaStreamQuery(rig->stream);
    assert_true(ends_within(rig->stream, 30));
    assert_int_equal(gpunvme_mem_stream_destroy(stream), GPUNVME_OK);
    assert_int_equal(crowded, cudaSuccess);
    assert_int_equal(err, GPUNVME_OK);
    assert_int_equal(other, cudaErrorNotReady);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(the_gpu_of_a_stream_is_told),
        TEST(the_gpu_of_a_stream_is_not_the_threads_current_one),
        TEST(a_capture_is_told),
        TEST(a_capture_of_all_threads_bears_our_work),
        TEST(a_capture_that_the_legacy_stream_would_break_is_told),
        TEST(the_host_is_called_after_the_kernel_before_it),
        TEST(a_word_that_has_its_value_holds_nobody_up),
        TEST(a_word_holds_the_stream_up_until_it_is_released),
        TEST(a_kernel_finds_what_the_host_brought_by_another_stream),
        TEST(an_error_of_the_host_does_not_hang_the_stream),
        TEST(copies_by_other_streams_go_on_while_one_is_held_up),
        TEST(a_batch_comes_before_the_blocks_of_a_kernel_that_wait),
    };
#undef TEST

    if (gpunvme_mem_gpu_is_host()) {
        printf("SKIP: no GPU: %s\n", gpunvme_mem_gpu_why_not());
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
