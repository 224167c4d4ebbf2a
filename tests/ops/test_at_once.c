/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Several threads call operators at once, on shapes, operands and workspaces of their own: each
 * gets the bits that the same call has alone, and details of its own failures.
 */
#include <pthread.h>

#include "ops_test.h"

enum { OPERANDS = 4, ROOM = 1 << 15, ROUNDS = FEWER_CASES ? 5 : 100 };

struct job;

struct work {
    gpunvme_ops_status_t (*call)(const struct job *job, const struct gpunvme_ops_exec *exec,
                                 size_t *nbytes);
    int64_t m, n, k;
    const char *variant;
    int threads, dtype;
};

struct job {
    struct work w;
    float *in[OPERANDS]; /* random, m x k and others at most ROOM elements */
    float *out;
    float *alone; /* what `out` was when nothing else ran */
    int wrong;
    gpunvme_ops_status_t status;
};

/* Asks for the workspace, or runs it. */
#define DO(function, p) (nbytes ? function##_workspace(p, exec, nbytes) : function(p, exec))

static gpunvme_ops_status_t multiply(const struct job *j, const struct gpunvme_ops_exec *exec,
                                     size_t *nbytes)
{
    struct gpunvme_matmul p = {.m = j->w.m,
                               .n = j->w.n,
                               .k = j->w.k,
                               .batch = 1,
                               .a = j->in[0],
                               .b = j->in[1],
                               .c = j->out,
                               .lda = j->w.k,
                               .ldb = j->w.n,
                               .ldc = j->w.n,
                               .alpha = 1,
                               .dtype = j->w.dtype,
                               .out_dtype = j->w.dtype};

    return DO(gpunvme_matmul, &p);
}

static gpunvme_ops_status_t layer(const struct job *j, const struct gpunvme_ops_exec *exec,
                                  size_t *nbytes)
{
    struct gpunvme_linear p = {.rows = j->w.m,
                               .in = j->w.k,
                               .out = j->w.n,
                               .x = j->in[0],
                               .weight = j->in[1],
                               .bias = j->in[2],
                               .y = j->out,
                               .ldx = j->w.k,
                               .ldw = j->w.k,
                               .ldy = j->w.n,
                               .activation = GPUNVME_OPS_ACT_GELU,
                               .dtype = j->w.dtype};

    return DO(gpunvme_linear_forward, &p);
}

/* m queries of n keys, two heads of k channels. */
static gpunvme_ops_status_t attend(const struct job *j, const struct gpunvme_ops_exec *exec,
                                   size_t *nbytes)
{
    struct gpunvme_attention_strides q = {2 * j->w.m * j->w.k, 2 * j->w.k, j->w.k};
    struct gpunvme_attention_strides k = {2 * j->w.n * j->w.k, 2 * j->w.k, j->w.k};
    struct gpunvme_attention p = {.batch = 1,
                                  .heads = 2,
                                  .kv_heads = 2,
                                  .dim = j->w.k,
                                  .dim_v = j->w.k,
                                  .q_len = j->w.m,
                                  .k_len = j->w.n,
                                  .q = j->in[0],
                                  .k = j->in[1],
                                  .v = j->in[2],
                                  .out = j->out,
                                  .q_strides = q,
                                  .k_strides = k,
                                  .v_strides = k,
                                  .out_strides = q,
                                  .causal = 1,
                                  .dtype = j->w.dtype,
                                  .out_dtype = j->w.dtype};

    return DO(gpunvme_attention, &p);
}

static gpunvme_ops_status_t normalize(const struct job *j, const struct gpunvme_ops_exec *exec,
                                      size_t *nbytes)
{
    struct gpunvme_norm p = {.rows = j->w.m,
                             .cols = j->w.n,
                             .x = j->in[0],
                             .weight = j->in[1],
                             .y = j->out,
                             .ldx = j->w.n,
                             .ldy = j->w.n,
                             .eps = 1e-5f,
                             .dtype = j->w.dtype,
                             .weight_dtype = j->w.dtype};

    return DO(gpunvme_norm_forward, &p);
}

static gpunvme_ops_status_t rotate(const struct job *j, const struct gpunvme_ops_exec *exec,
                                   size_t *nbytes)
{
    struct gpunvme_rotate p = {.rows = j->w.m,
                               .heads = j->w.n,
                               .dim = j->w.k,
                               .x = j->in[0],
                               .y = j->out,
                               .ldx = j->w.n * j->w.k,
                               .ldy = j->w.n * j->w.k,
                               .rope = {.dim = (int32_t)j->w.k},
                               .dtype = j->w.dtype};

    return DO(gpunvme_rotate, &p);
}

static gpunvme_ops_status_t gate(const struct job *j, const struct gpunvme_ops_exec *exec,
                                 size_t *nbytes)
{
    struct gpunvme_swiglu p = {.rows = j->w.m,
                               .cols = j->w.n,
                               .gate = j->in[0],
                               .up = j->in[1],
                               .y = j->out,
                               .ld_gate = j->w.n,
                               .ld_up = j->w.n,
                               .ldy = j->w.n,
                               .dtype = j->w.dtype};

    return DO(gpunvme_swiglu_forward, &p);
}

static gpunvme_ops_status_t norm_of_gradients(const struct job *j,
                                              const struct gpunvme_ops_exec *exec, size_t *nbytes)
{
    const struct gpunvme_grad_tensor tensors[] = {{j->w.m * j->w.n, j->in[0]}, {j->w.k, j->in[1]}};
    struct gpunvme_grad_norm p = {
        .tensors = tensors, .ntensors = 2, .norm = j->out, .dtype = j->w.dtype};

    return DO(gpunvme_grad_norm, &p);
}

/* What a workspace holds is of no matter: NaNs. */
static gpunvme_ops_status_t run(const struct job *j)
{
    struct gpunvme_ops_exec exec = {.variant = j->w.variant, .threads = j->w.threads};
    size_t nbytes = 0;
    gpunvme_ops_status_t status = j->w.call(j, &exec, &nbytes);

    if (!status && nbytes) {
        nbytes = (nbytes + 255) / 256 * 256;
        exec.workspace = aligned_alloc(256, nbytes);
        exec.workspace_nbytes = nbytes;
        if (exec.workspace)
            memset(exec.workspace, 0xff, nbytes);
    }
    if (!status)
        status = j->w.call(j, &exec, NULL);
    free(exec.workspace);
    return status;
}

static pthread_barrier_t start;

static void *repeat(void *arg)
{
    struct job *j = arg;

    pthread_barrier_wait(&start);
    for (int round = 0; round < ROUNDS && !j->status; round++) {
        memset(j->out, 0xff, ROOM * sizeof(float));
        j->status = run(j);
        j->wrong += memcmp(j->out, j->alone, ROOM * sizeof(float)) != 0;
    }
    return NULL;
}

static void prepare(struct job *j, struct base_random *r)
{
    for (int i = 0; i < OPERANDS; i++) {
        j->in[i] = malloc(ROOM * sizeof(float));
        assert_non_null(j->in[i]);
        for (int64_t x = 0; x < ROOM; x++)
            cpu_store(j->in[i], x, j->w.dtype, (float)(2 * base_random_real(r) - 1));
    }
    j->out = malloc(ROOM * sizeof(float));
    j->alone = malloc(ROOM * sizeof(float));
    assert_true(j->out && j->alone);
    memset(j->out, 0xff, ROOM * sizeof(float));
    expect_ok(run(j));
    memcpy(j->alone, j->out, ROOM * sizeof(float));
}

static void drop(struct job *j)
{
    for (int i = 0; i < OPERANDS; i++)
        free(j->in[i]);
    free(j->out);
    free(j->alone);
}

static void calls_at_once_have_the_bits_that_they_have_alone(void **state)
{
    static const struct work works[] = {
        {multiply, 67, 131, 97, NULL, 1, GPUNVME_OPS_F32},
        {multiply, 24, 40, 300, NULL, 2, GPUNVME_OPS_BF16},
        {multiply, 9, 200, 120, "packed", 1, GPUNVME_OPS_F16},
        {layer, 33, 65, 80, NULL, 2, GPUNVME_OPS_F32},
        {attend, 40, 70, 32, NULL, 2, GPUNVME_OPS_F32},
        {attend, 70, 70, 64, NULL, 1, GPUNVME_OPS_BF16},
        {normalize, 50, 300, 0, NULL, 2, GPUNVME_OPS_F32},
        {rotate, 30, 4, 64, NULL, 1, GPUNVME_OPS_BF16},
        {gate, 60, 200, 0, NULL, 2, GPUNVME_OPS_F16},
        {norm_of_gradients, 100, 300, 77, NULL, 2, GPUNVME_OPS_F32},
    };
    enum { COUNT = sizeof(works) / sizeof(works[0]) };
    struct job jobs[COUNT] = {0};
    struct base_random r = {.state = 3};
    pthread_t threads[COUNT];

    (void)state;
    for (int i = 0; i < COUNT; i++) {
        jobs[i].w = works[i];
        prepare(&jobs[i], &r);
    }
    assert_int_equal(pthread_barrier_init(&start, NULL, COUNT), 0);
    for (int i = 0; i < COUNT; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, repeat, &jobs[i]), 0);
    for (int i = 0; i < COUNT; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    pthread_barrier_destroy(&start);
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(jobs[i].status, GPUNVME_OPS_OK);
        if (jobs[i].wrong)
            fail_msg("job %d: %d of %d results were others", i, jobs[i].wrong, ROUNDS);
        drop(&jobs[i]);
    }
}

/* A thread whose calls fail for a reason of its own: the rows' stride, which is `arg`. */
static void *fail_often(void *arg)
{
    int64_t ld = (int64_t)(intptr_t)arg, wrong = 0;
    float memory[64] = {0};
    char wanted[32];

    snprintf(wanted, sizeof(wanted), "%lld", (long long)ld);
    pthread_barrier_wait(&start);
    for (int round = 0; round < 50 * ROUNDS; round++) {
        struct gpunvme_ops_exec exec = {0};
        struct gpunvme_swiglu p = {.rows = 4,
                                   .cols = 8000,
                                   .gate = memory,
                                   .up = memory,
                                   .y = memory,
                                   .ld_gate = ld,
                                   .ld_up = 8000,
                                   .ldy = 8000};

        wrong += gpunvme_swiglu_forward(&p, &exec) != GPUNVME_OPS_ERR_SHAPE ||
                 !strstr(gpunvme_ops_detail(), wanted);
    }
    return (void *)(intptr_t)wrong;
}

static void details_are_those_of_the_thread_that_asks(void **state)
{
    pthread_t threads[4];

    (void)state;
    assert_int_equal(pthread_barrier_init(&start, NULL, 4), 0);
    for (intptr_t i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, fail_often, (void *)(7001 + 11 * i)), 0);
    for (int i = 0; i < 4; i++) {
        void *wrong;

        assert_int_equal(pthread_join(threads[i], &wrong), 0);
        assert_null(wrong);
    }
    pthread_barrier_destroy(&start);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_at_once_have_the_bits_that_they_have_alone),
        cmocka_unit_test(details_are_those_of_the_thread_that_asks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
