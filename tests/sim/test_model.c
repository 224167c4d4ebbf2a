/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The device model, by values: times are given, times come out, no clock is asked.
 */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "sim/engine/engine.h"
#include "sim/model.h"

#define SECOND 1000000000ULL

static struct sim_model *make(struct gpunvme_sim_model config, uint64_t seed)
{
    struct sim_model *model;

    assert_int_equal(sim_model_create(&config, seed, &model), GPUNVME_OK);
    return model;
}

#define MODEL(...) make((struct gpunvme_sim_model){__VA_ARGS__}, 1)

static uint64_t due(struct sim_model *model, enum sim_model_op op, uint64_t nbytes, uint64_t now)
{
    return sim_model_due_ns(model, op, nbytes, now);
}

static void an_unlimited_device_is_done_at_once(void **state)
{
    struct sim_model *model = MODEL(.channels = 4);

    (void)state;
    assert_true(sim_model_is_unlimited(model));
    for (unsigned i = 0; i < 100; i++)
        assert_int_equal(due(model, SIM_MODEL_READ, 1 << 20, 1000), 1000);
    sim_model_destroy(model);
}

static void any_limit_makes_it_limited(void **state)
{
    const struct gpunvme_sim_model limits[] = {
        {.read_latency_ns = 1}, {.write_latency_ns = 1}, {.flush_latency_ns = 1}, {.read_iops = 1},
        {.write_iops = 1},      {.read_bytes_per_s = 1}, {.write_bytes_per_s = 1}};

    (void)state;
    for (unsigned i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
        struct sim_model *model = make(limits[i], 1);

        assert_false(sim_model_is_unlimited(model));
        sim_model_destroy(model);
    }
}

static void each_kind_has_its_own_latency(void **state)
{
    struct sim_model *model =
        MODEL(.read_latency_ns = 50, .write_latency_ns = 20, .flush_latency_ns = 700);

    (void)state;
    assert_int_equal(due(model, SIM_MODEL_READ, 4096, 1000), 1050);
    assert_int_equal(due(model, SIM_MODEL_WRITE, 4096, 1000), 1020);
    assert_int_equal(due(model, SIM_MODEL_FLUSH, 0, 1000), 1700);
    assert_int_equal(due(model, SIM_MODEL_OTHER, 4096, 1000), 1000);
    sim_model_destroy(model);
}

static void without_channels_all_commands_overlap(void **state)
{
    struct sim_model *model = MODEL(.read_latency_ns = 50);

    (void)state;
    for (unsigned i = 0; i < 1000; i++)
        assert_int_equal(due(model, SIM_MODEL_READ, 4096, 7), 57);
    sim_model_destroy(model);
}

static void a_command_waits_for_a_free_channel(void **state)
{
    struct sim_model *model = MODEL(.read_latency_ns = 50, .write_latency_ns = 10, .channels = 2);

    (void)state;
    assert_int_equal(due(model, SIM_MODEL_READ, 1, 0), 50);
    assert_int_equal(due(model, SIM_MODEL_WRITE, 1, 0), 10);
    assert_int_equal(due(model, SIM_MODEL_WRITE, 1, 0), 20); /* behind the write */
    assert_int_equal(due(model, SIM_MODEL_READ, 1, 5), 70);
    assert_int_equal(due(model, SIM_MODEL_READ, 1, 5), 100); /* behind the first read */
    assert_int_equal(due(model, SIM_MODEL_READ, 1, 500), 550);
    sim_model_destroy(model);
}

/* Keeps `depth` commands in flight for `count` commands; returns when the last is due. */
static uint64_t run(struct sim_model *model, enum sim_model_op op, uint64_t nbytes, unsigned depth,
                    unsigned count)
{
    uint64_t *slots = calloc(depth, sizeof(*slots)), last = 0;

    for (unsigned i = 0; i < count; i++) {
        unsigned first = 0; /* the command that ends first makes room */

        for (unsigned j = 1; j < depth; j++)
            if (slots[j] < slots[first])
                first = j;
        slots[first] = due(model, op, nbytes, slots[first]);
        if (slots[first] > last)
            last = slots[first];
    }
    free(slots);
    return last;
}

static void littles_law_comes_out(void **state)
{
    (void)state;
    for (unsigned channels = 1; channels <= 64; channels *= 4)
        for (unsigned depth = 1; depth <= 128; depth *= 2) {
            struct sim_model *model = MODEL(.read_latency_ns = 1000, .channels = channels);
            unsigned servers = depth < channels ? depth : channels;

            assert_int_equal(run(model, SIM_MODEL_READ, 4096, depth, 6400),
                             (6400 + servers - 1) / servers * 1000);
            sim_model_destroy(model);
        }
}

static void the_iops_limit_is_exact_over_time(void **state)
{
    struct sim_model *model = MODEL(.read_iops = 3000000, .write_iops = 700);

    (void)state;
    /* The n-th command starts n / iops after the first, to the nanosecond. */
    assert_int_equal(run(model, SIM_MODEL_READ, 512, 64, 3000001), SECOND);
    assert_int_equal(run(model, SIM_MODEL_WRITE, 512, 64, 701), SECOND);
    sim_model_destroy(model);
}

static void the_bandwidth_limit_is_exact_over_time(void **state)
{
    struct sim_model *model = MODEL(.read_bytes_per_s = 7000000001, .write_bytes_per_s = 1000);

    (void)state;
    assert_int_equal(due(model, SIM_MODEL_READ, 7000000001, 0), SECOND);
    assert_int_equal(due(model, SIM_MODEL_READ, 7000000001, SECOND), 2 * SECOND);
    assert_int_equal(run(model, SIM_MODEL_WRITE, 1, 8, 1000), SECOND);
    sim_model_destroy(model);
}

static void a_large_transfer_takes_its_time_on_the_bus(void **state)
{
    struct sim_model *model = MODEL(.read_latency_ns = 1000, .read_bytes_per_s = SECOND);

    (void)state;
    assert_int_equal(due(model, SIM_MODEL_READ, 10, 0), 1000);
    assert_int_equal(due(model, SIM_MODEL_READ, 5000, 10000), 15000);
    assert_int_equal(due(model, SIM_MODEL_READ, 10, 10000),
                     16000); /* the bus is busy until 15000 */
    sim_model_destroy(model);
}

static void an_idle_time_is_not_saved_up(void **state)
{
    struct sim_model *model = MODEL(.read_iops = 1000);

    (void)state;
    assert_int_equal(due(model, SIM_MODEL_READ, 1, 10 * SECOND), 10 * SECOND);
    assert_int_equal(due(model, SIM_MODEL_READ, 1, 10 * SECOND), 10 * SECOND + 1000000);
    sim_model_destroy(model);
}

static void a_backlog_of_writes_does_not_stop_reads(void **state)
{
    struct sim_model *model =
        MODEL(.read_latency_ns = 100, .write_latency_ns = 100, .write_iops = 1000, .channels = 4);

    (void)state;
    for (unsigned i = 0; i < 100; i++)
        due(model, SIM_MODEL_WRITE, 512, i * 100);
    assert_int_equal(due(model, SIM_MODEL_READ, 512, 10000), 10100);
    sim_model_destroy(model);
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

static void latencies_are_lognormal_about_their_median(void **state)
{
    enum { N = 40000 };
    struct sim_model *model = MODEL(.read_latency_ns = 1000000, .latency_sigma = 0.5);
    uint64_t *times = malloc(N * sizeof(*times));
    double sum = 0, squares = 0;

    (void)state;
    for (unsigned i = 0; i < N; i++) {
        double x;

        times[i] = due(model, SIM_MODEL_READ, 512, 0);
        x = log((double)times[i] / 1e6);
        sum += x;
        squares += x * x;
    }
    qsort(times, N, sizeof(*times), compare);
    assert_true(fabs((double)times[N / 2] / 1e6 - 1) < 0.02);
    assert_true(fabs(sum / N) < 0.02);
    assert_true(fabs(sqrt(squares / N) - 0.5) < 0.02);
    assert_true(fabs(log((double)times[N * 99 / 100] / 1e6) / 0.5 - 2.326) < 0.1);
    free(times);
    sim_model_destroy(model);
}

static void the_same_seed_gives_the_same_times(void **state)
{
    const struct gpunvme_sim_model config = {.read_latency_ns = 1000000, .latency_sigma = 1};
    struct sim_model *a = make(config, 7), *b = make(config, 7), *c = make(config, 8);
    unsigned ndifferent = 0;

    (void)state;
    for (unsigned i = 0; i < 100; i++) {
        uint64_t time = due(a, SIM_MODEL_READ, 512, 0);

        assert_int_equal(time, due(b, SIM_MODEL_READ, 512, 0));
        ndifferent += time != due(c, SIM_MODEL_READ, 512, 0);
    }
    assert_true(ndifferent > 90);
    sim_model_destroy(a);
    sim_model_destroy(b);
    sim_model_destroy(c);
}

static void *book_1000_reads(void *model)
{
    for (unsigned i = 0; i < 1000; i++)
        due(model, SIM_MODEL_READ, 512, 0);
    return NULL;
}

static void threads_share_one_device(void **state)
{
    struct sim_model *model = MODEL(.read_iops = 1000, .read_latency_ns = 10, .channels = 3);
    pthread_t threads[4];

    (void)state;
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, book_1000_reads, model), 0);
    for (unsigned i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(due(model, SIM_MODEL_READ, 512, 0), 4 * SECOND + 10);
    sim_model_destroy(model);
}

static void too_many_channels_are_refused(void **state)
{
    const struct gpunvme_sim_model config = {.channels = UINT32_MAX};
    struct sim_model *model;

    (void)state;
    assert_int_equal(sim_model_create(&config, 1, &model), GPUNVME_ERR_INVALID);
    sim_model_destroy(NULL);
}

static void the_engine_gets_the_same_device(void **state)
{
    struct sim_model *model =
        MODEL(.read_latency_ns = 5000, .write_latency_ns = 6000, .flush_latency_ns = 7000,
              .latency_sigma = 0.1, .read_iops = 1000000, .write_bytes_per_s = 1000000000,
              .channels = 32);
    struct sim_engine_model out;
    const float *spread = sim_model_export(model, &out);

    (void)state;
    assert_true(out.enabled);
    assert_int_equal(out.nchannels, 32);
    assert_int_equal(out.latency_ns[0], 5000);
    assert_int_equal(out.latency_ns[1], 6000);
    assert_int_equal(out.flush_latency_ns, 7000);
    assert_int_equal(out.command_cost[0], 1000 << 12); /* a microsecond */
    assert_int_equal(out.command_cost[1], 0);
    assert_int_equal(out.byte_cost[0], 0);
    assert_int_equal(out.byte_cost[1], 1 << 24); /* a nanosecond */
    assert_non_null(spread);
    for (unsigned i = 1; i < SIM_ENGINE_SPREAD; i++)
        assert_true(spread[i] > spread[i - 1]);
    sim_model_destroy(model);
    model = MODEL(.channels = 1);
    assert_null(sim_model_export(model, &out));
    assert_false(out.enabled);
    sim_model_destroy(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_unlimited_device_is_done_at_once),
        cmocka_unit_test(any_limit_makes_it_limited),
        cmocka_unit_test(each_kind_has_its_own_latency),
        cmocka_unit_test(without_channels_all_commands_overlap),
        cmocka_unit_test(a_command_waits_for_a_free_channel),
        cmocka_unit_test(littles_law_comes_out),
        cmocka_unit_test(the_iops_limit_is_exact_over_time),
        cmocka_unit_test(the_bandwidth_limit_is_exact_over_time),
        cmocka_unit_test(a_large_transfer_takes_its_time_on_the_bus),
        cmocka_unit_test(an_idle_time_is_not_saved_up),
        cmocka_unit_test(a_backlog_of_writes_does_not_stop_reads),
        cmocka_unit_test(latencies_are_lognormal_about_their_median),
        cmocka_unit_test(the_same_seed_gives_the_same_times),
        cmocka_unit_test(threads_share_one_device),
        cmocka_unit_test(too_many_channels_are_refused),
        cmocka_unit_test(the_engine_gets_the_same_device),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
