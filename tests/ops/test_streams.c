/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Operators in captured graphs, in two streams at once and on two devices in turn: results have the
 * bits that plain calls give. Under the emulation, which has no graphs, a replay is a call.
 */
#include "jobs.h"

#ifdef OPS_TEST_EMULATED
enum { ROOM = 1 << 18, REPLAYS = 2, TURNS = 2 };
#else
enum { ROOM = 1 << 18, REPLAYS = 3, TURNS = 20 };
#endif

/* By "auto": tiles, few rows, a long sum; f32 and fp8 likewise; what passes over memory. */
static const struct work works[] = {
    {multiply, 320, 384, 512, NULL, 0, GPUNVME_OPS_F32, 0},
    {multiply, 3, 384, 512, NULL, 0, GPUNVME_OPS_F32, 0},
    {multiply, 24, 40, 6000, NULL, 0, GPUNVME_OPS_F32, 0},
    {multiply, 320, 384, 512, NULL, 0, GPUNVME_OPS_BF16, 0},
    {multiply, 3, 384, 512, NULL, 0, GPUNVME_OPS_BF16, 0},
    {multiply, 24, 40, 6000, NULL, 0, GPUNVME_OPS_F16, 0},
    {multiply, 320, 384, 512, NULL, 0, GPUNVME_OPS_E4M3, 0},
    {multiply, 3, 384, 512, NULL, 0, GPUNVME_OPS_E4M3, 0},
    {layer, 320, 384, 512, NULL, 0, GPUNVME_OPS_BF16, 0},
    {attend, 200, 300, 64, NULL, 0, GPUNVME_OPS_BF16, 0},
    {normalize, 100, 512, 0, NULL, 0, GPUNVME_OPS_BF16, 0},
    {normalize_back, 100, 512, 0, NULL, 0, GPUNVME_OPS_F32, 0},
    {rotate, 100, 8, 64, NULL, 0, GPUNVME_OPS_BF16, 0},
    {gate, 100, 512, 0, NULL, 0, GPUNVME_OPS_BF16, 0},
    {norm_of_gradients, 300, 300, 5000, NULL, 0, GPUNVME_OPS_BF16, 0},
    {update, 200, 300, 0, NULL, 0, GPUNVME_OPS_BF16, 0},
    {entropy, 6, 40008, 0, NULL, 0, GPUNVME_OPS_BF16, 40008},
    {scatter, 300, 500, 512, NULL, 0, GPUNVME_OPS_BF16, 500},
};
enum { NWORKS = sizeof(works) / sizeof(works[0]) };

/* A job on the device, and what its memory is filled with. */
struct on_stream {
    struct job job;
    struct gpunvme_ops_exec exec;
    struct workspace workspace;
    cudaStream_t stream;
    float *host; /* ROOM floats */
};

static struct base_random rng = {.state = 5};

static void fill(struct on_stream *x, void *device, int dtype, bool positive)
{
    for (int64_t i = 0; i < ROOM; i++) {
        float value = (float)(2 * base_random_real(&rng) - 1);

        cpu_store(x->host, i, dtype, positive ? fabsf(value) : value);
    }
    assert_int_equal(cudaMemcpy(device, x->host, ROOM * sizeof(float), cudaMemcpyHostToDevice), 0);
}

/* The same data for the same seed; a job's second moments are not negative. */
static void fill_all(struct on_stream *x, uint64_t seed)
{
    rng.state = seed;
    for (int i = 0; i < JOB_OPERANDS; i++) {
        job_fill(&x->job, i, x->host, ROOM, &rng);
        assert_int_equal(
            cudaMemcpy(x->job.in[i], x->host, ROOM * sizeof(float), cudaMemcpyHostToDevice), 0);
    }
    fill(x, x->job.out, GPUNVME_OPS_F32, true);
}

static void make(struct on_stream *x, const struct work *work)
{
    size_t nbytes = 0;

    *x = (struct on_stream){.job.w = *work, .host = calloc(ROOM, sizeof(float))};
    assert_non_null(x->host);
    assert_int_equal(cudaStreamCreate(&x->stream), 0);
    for (int i = 0; i < JOB_OPERANDS; i++)
        assert_int_equal(cudaMalloc(&x->job.in[i], ROOM * sizeof(float)), 0);
    assert_int_equal(cudaMalloc((void **)&x->job.out, ROOM * sizeof(float)), 0);
    x->exec = (struct gpunvme_ops_exec){
        .device = TEST_DEVICE, .stream = x->stream, .variant = work->variant};
    expect_ok(work->call(&x->job, &x->exec, &nbytes));
    x->workspace = workspace_new(nbytes);
    x->exec.workspace = x->workspace.data;
    x->exec.workspace_nbytes = nbytes;
}

static void drop(struct on_stream *x)
{
    workspace_free(&x->workspace);
    for (int i = 0; i < JOB_OPERANDS; i++)
        assert_int_equal(cudaFree(x->job.in[i]), 0);
    assert_int_equal(cudaFree(x->job.out), 0);
    assert_int_equal(cudaStreamDestroy(x->stream), 0);
    free(x->host);
}

static void call(struct on_stream *x)
{
    expect_ok(x->job.w.call(&x->job, &x->exec, NULL));
}

/* What is in `out` when the stream has ended. */
static float *results(struct on_stream *x)
{
    float *out = malloc(ROOM * sizeof(float));

    assert_non_null(out);
    assert_int_equal(cudaStreamSynchronize(x->stream), 0);
    assert_int_equal(cudaMemcpy(out, x->job.out, ROOM * sizeof(float), cudaMemcpyDeviceToHost), 0);
    return out;
}

static void expect_same(struct on_stream *x, float *wanted, const char *what)
{
    float *got = results(x);

    if (memcmp(got, wanted, ROOM * sizeof(float)))
        fail_msg("%s: not the bits of plain calls: work %lld x %lld x %lld of %s", what,
                 (long long)x->job.w.m, (long long)x->job.w.n, (long long)x->job.w.k,
                 gpunvme_ops_dtype_name(x->job.w.dtype));
    free(got);
    free(wanted);
}

#ifdef OPS_TEST_EMULATED
typedef struct on_stream *captured;

static captured capture(struct on_stream *x)
{
    return x;
}

static void launch(captured step, struct on_stream *x)
{
    (void)step;
    call(x);
}

static void forget(captured step)
{
    (void)step;
}
#else
typedef cudaGraphExec_t captured;

static captured capture(struct on_stream *x)
{
    cudaGraph_t graph;
    captured step;

    assert_int_equal(cudaStreamBeginCapture(x->stream, cudaStreamCaptureModeThreadLocal), 0);
    call(x);
    assert_int_equal(cudaStreamEndCapture(x->stream, &graph), 0);
    assert_int_equal(cudaGraphInstantiate(&step, graph, 0), 0);
    assert_int_equal(cudaGraphDestroy(graph), 0);
    return step;
}

static void launch(captured step, struct on_stream *x)
{
    assert_int_equal(cudaGraphLaunch(step, x->stream), 0);
}

static void forget(captured step)
{
    assert_int_equal(cudaGraphExecDestroy(step), 0);
}
#endif

/* The first operand is another one in each of the replays; what is updated goes on. */
static void replays_of_a_captured_call_have_the_bits_of_calls(void **state)
{
    (void)state;
    for (int w = 0; w < NWORKS; w++) {
        struct on_stream x;
        float *wanted[REPLAYS];
        captured step;

        make(&x, &works[w]);
        for (int graph = 0; graph < 2; graph++) {
            fill_all(&x, 11);
            if (graph)
                step = capture(&x);
            for (int i = 0; i < REPLAYS; i++) {
                fill(&x, x.job.in[0], x.job.w.dtype, false);
                if (graph)
                    launch(step, &x);
                else
                    call(&x);
                if (graph)
                    expect_same(&x, wanted[i], "in a graph");
                else
                    wanted[i] = results(&x);
            }
        }
        forget(step);
        drop(&x);
    }
}

static void use_device(int device)
{
#ifdef OPS_TEST_EMULATED
    assert_int_equal(device, 0); /* it has one */
#else
    assert_int_equal(cudaSetDevice(device), 0);
#endif
}

/*
 * Two streams, of one device or of one each, have the same work on other data, each with its own
 * workspace: first each alone, then in turn.
 */
static void expect_bits_of_each_alone(int devices)
{
    for (int w = 0; w < NWORKS; w++) {
        struct on_stream x[2];
        float *wanted[2];

        for (int i = 0; i < 2; i++) {
            use_device(i % devices);
            make(&x[i], &works[w]);
            fill_all(&x[i], 21 + (uint64_t)i);
            for (int turn = 0; turn < TURNS; turn++)
                call(&x[i]);
            wanted[i] = results(&x[i]);
            fill_all(&x[i], 21 + (uint64_t)i);
        }
        for (int turn = 0; turn < TURNS; turn++)
            for (int i = 0; i < 2; i++) {
                use_device(i % devices);
                call(&x[i]);
            }
        for (int i = 0; i < 2; i++) {
            use_device(i % devices);
            expect_same(&x[i], wanted[i], devices > 1 ? "on two devices" : "in two streams");
            drop(&x[i]);
        }
    }
    use_device(0);
}

static void two_streams_at_once_have_the_bits_that_each_has_alone(void **state)
{
    (void)state;
    expect_bits_of_each_alone(1);
}

#ifndef OPS_TEST_EMULATED
static void two_devices_in_turn_have_the_bits_that_each_has_alone(void **state)
{
    int count = 0;

    (void)state;
    assert_int_equal(cudaGetDeviceCount(&count), 0);
    if (count < 2) {
        printf("SKIP: one GPU\n");
        skip();
    }
    expect_bits_of_each_alone(2);
}
#endif

/* Appending to a cache in pages: rows of bf16, 64 at most in each of three sequences. */
enum {
    SEQUENCES = 3,
    HEADS = 2,
    CHANNELS = 32,
    ROW = HEADS * CHANNELS,
    PAGE = 16,
    PAGES_EACH = 4,
    CACHE = SEQUENCES * PAGES_EACH * PAGE * ROW,
    MOST_NEW = 8
};

/* What lies in the third operand, and is read on the device. */
struct numbers {
    int32_t offsets[SEQUENCES + 1], counts[SEQUENCES], lengths[SEQUENCES];
    int32_t table[SEQUENCES * PAGES_EACH];
};

static gpunvme_ops_status_t append(const struct job *j, const struct gpunvme_ops_exec *exec,
                                   size_t *nbytes)
{
    const struct numbers *numbers = j->in[2]; /* on the device: only addresses are taken */
    const struct gpunvme_attention_strides pages = {PAGE * ROW, ROW, CHANNELS};
    const struct gpunvme_attention_strides rows = {0, ROW, CHANNELS};
    struct gpunvme_kv_append p = {.batch = SEQUENCES,
                                  .kv_heads = HEADS,
                                  .dim = CHANNELS,
                                  .dim_v = CHANNELS,
                                  .new_len = MOST_NEW,
                                  .new_rows = SEQUENCES * MOST_NEW,
                                  .k_len = PAGES_EACH * PAGE,
                                  .k = j->in[0],
                                  .v = j->in[1],
                                  .k_pages = j->out,
                                  .v_pages = (uint16_t *)j->out + CACHE,
                                  .k_strides = rows,
                                  .v_strides = rows,
                                  .k_pages_strides = pages,
                                  .v_pages_strides = pages,
                                  .new_offsets = numbers->offsets,
                                  .new_lengths = numbers->counts,
                                  .k_lengths = numbers->lengths,
                                  .block_table = numbers->table,
                                  .ld_table = PAGES_EACH,
                                  .pages = SEQUENCES * PAGES_EACH,
                                  .page_size = PAGE,
                                  .dtype = GPUNVME_OPS_BF16,
                                  .cache_dtype = GPUNVME_OPS_BF16};

    return nbytes ? gpunvme_kv_append_workspace(&p, exec, nbytes) : gpunvme_kv_append(&p, exec);
}

/* The next step's numbers, and new rows of the sequences where they belong in the cache. */
static void expect_appended(struct numbers *n, const int32_t counts[SEQUENCES], const uint16_t *k,
                            const uint16_t *v, uint16_t *cache)
{
    for (int b = 0; b < SEQUENCES; b++) {
        n->counts[b] = counts[b];
        n->offsets[b + 1] = n->offsets[b] + counts[b];
        for (int i = 0; i < counts[b]; i++) {
            int at = n->lengths[b] + i;
            int row = n->table[b * PAGES_EACH + at / PAGE] * PAGE + at % PAGE;

            memcpy(cache + row * ROW, k + (n->offsets[b] + i) * ROW, ROW * sizeof(*k));
            memcpy(cache + CACHE + row * ROW, v + (n->offsets[b] + i) * ROW, ROW * sizeof(*v));
        }
        n->lengths[b] += counts[b];
    }
}

static void append_in_a_graph(const char *variant, void *arg)
{
    static const int32_t counts[][SEQUENCES] = {{8, 0, 1}, {3, 8, 8}, {0, 5, 8}, {1, 1, 1}};
    const struct work work = {append, 0, 0, 0, variant, 0, GPUNVME_OPS_BF16, 0};
    struct numbers n = {.table = {7, 2, 11, 0, 5, 9, 1, 3, 10, 4, 8, 6}};
    uint16_t *cache = malloc(ROOM * sizeof(float)), *k = malloc(ROOM * sizeof(float));
    struct on_stream x;
    captured step;

    (void)arg;
    assert_true(cache && k);
    make(&x, &work);
    rng.state = 31;
    memset(cache, 0xff, ROOM * sizeof(float));
    assert_int_equal(cudaMemset(x.job.out, 0xff, ROOM * sizeof(float)), 0);
    step = capture(&x);
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        fill(&x, x.job.in[0], GPUNVME_OPS_BF16, false);
        memcpy(k, x.host, ROOM * sizeof(float));
        fill(&x, x.job.in[1], GPUNVME_OPS_BF16, false);
        expect_appended(&n, counts[i], k, (uint16_t *)x.host, cache);
        assert_int_equal(cudaMemcpy(x.job.in[2], &n, sizeof(n), cudaMemcpyHostToDevice), 0);
        launch(step, &x);
        assert_int_equal(cudaStreamSynchronize(x.stream), 0);
    }
    forget(step);
    expect_same(&x, (float *)cache, "appending in a graph");
    free(k);
    drop(&x);
}

static void a_captured_append_follows_the_lengths(void **state)
{
    (void)state;
    for_each_variant(GPUNVME_OPS_KV_APPEND, append_in_a_graph, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replays_of_a_captured_call_have_the_bits_of_calls),
        cmocka_unit_test(two_streams_at_once_have_the_bits_that_each_has_alone),
#ifndef OPS_TEST_EMULATED
        cmocka_unit_test(two_devices_in_turn_have_the_bits_that_each_has_alone),
#endif
        cmocka_unit_test(a_captured_append_follows_the_lengths),
    };

    return no_gpu() ? 77 : cmocka_run_group_tests(tests, NULL, NULL);
}
