/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Several threads call operators at once, on shapes, operands and workspaces of their own: each
 * gets the bits that the same call has alone, and details of its own failures.
 */
#include <pthread.h>

#include "jobs.h"

enum { ROOM = 1 << 15, ROUNDS = FEWER_CASES ? 5 : 100 };

/* A job of one thread. */
struct worker {
    struct job job;
    float *alone; /* what `out` was when nothing else ran */
    int wrong;
    gpunvme_ops_status_t status;
};

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
    struct worker *x = arg;

    pthread_barrier_wait(&start);
    for (int round = 0; round < ROUNDS && !x->status; round++) {
        memset(x->job.out, 0xff, ROOM * sizeof(float));
        x->status = run(&x->job);
        x->wrong += memcmp(x->job.out, x->alone, ROOM * sizeof(float)) != 0;
    }
    return NULL;
}

static void prepare(struct worker *x, struct base_random *r)
{
    for (int i = 0; i < JOB_OPERANDS; i++) {
        x->job.in[i] = malloc(ROOM * sizeof(float));
        assert_non_null(x->job.in[i]);
        job_fill(&x->job, i, x->job.in[i], ROOM, r);
    }
    x->job.out = malloc(ROOM * sizeof(float));
    x->alone = malloc(ROOM * sizeof(float));
    assert_true(x->job.out && x->alone);
    memset(x->job.out, 0xff, ROOM * sizeof(float));
    expect_ok(run(&x->job));
    memcpy(x->alone, x->job.out, ROOM * sizeof(float));
}

static void drop(struct worker *x)
{
    for (int i = 0; i < JOB_OPERANDS; i++)
        free(x->job.in[i]);
    free(x->job.out);
    free(x->alone);
}

static void calls_at_once_have_the_bits_that_they_have_alone(void **state)
{
    static const struct work works[] = {
        {multiply, 67, 131, 97, NULL, 1, GPUNVME_OPS_F32, 0},
        {multiply, 24, 40, 300, NULL, 2, GPUNVME_OPS_BF16, 0},
        {multiply, 9, 200, 120, "packed", 1, GPUNVME_OPS_F16, 0},
        {layer, 33, 65, 80, NULL, 2, GPUNVME_OPS_F32, 0},
        {attend, 40, 70, 32, NULL, 2, GPUNVME_OPS_F32, 0},
        {attend, 70, 70, 64, NULL, 1, GPUNVME_OPS_BF16, 0},
        {normalize, 50, 300, 0, NULL, 2, GPUNVME_OPS_F32, 0},
        {rotate, 30, 4, 64, NULL, 1, GPUNVME_OPS_BF16, 0},
        {gate, 60, 200, 0, NULL, 2, GPUNVME_OPS_F16, 0},
        {norm_of_gradients, 100, 300, 77, NULL, 2, GPUNVME_OPS_F32, 0},
        {normalize_back, 50, 300, 0, NULL, 2, GPUNVME_OPS_F32, 0},
        {entropy, 20, 1000, 0, NULL, 2, GPUNVME_OPS_BF16, 1000},
        {scatter, 100, 60, 300, NULL, 2, GPUNVME_OPS_F32, 60},
    };
    enum { COUNT = sizeof(works) / sizeof(works[0]) };
    struct worker workers[COUNT] = {0};
    struct base_random r = {.state = 3};
    pthread_t threads[COUNT];

    (void)state;
    for (int i = 0; i < COUNT; i++) {
        workers[i].job.w = works[i];
        prepare(&workers[i], &r);
    }
    assert_int_equal(pthread_barrier_init(&start, NULL, COUNT), 0);
    for (int i = 0; i < COUNT; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, repeat, &workers[i]), 0);
    for (int i = 0; i < COUNT; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    pthread_barrier_destroy(&start);
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(workers[i].status, GPUNVME_OPS_OK);
        if (workers[i].wrong)
            fail_msg("job %d: %d of %d results were others", i, workers[i].wrong, ROUNDS);
        drop(&workers[i]);
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
