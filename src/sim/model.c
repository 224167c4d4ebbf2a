/* SPDX-License-Identifier: BSD-3-Clause
 *
 * When a real device would have finished. Knows no clock and no commands: only kinds, sizes and
 * the times that it is given.
 *
 * A device is modelled as three stages that a command passes at once; it is due when the last of
 * them lets it go:
 *
 *   channels   c equal servers take commands first come, first served; each keeps a command for
 *              its latency L. At most c commands are worked on, so the rate is at most c / L
 *              (Little's law), and the latency seen grows beyond L when more are in flight.
 *   IOPS       commands start at least 1 / iops apart; the latency follows.
 *   bandwidth  the bytes pass one command after the other; the last byte ends the command, so
 *              a large transfer takes at least nbytes / bandwidth.
 *
 * Reads and writes have meters (IOPS, bandwidth) of their own and share the channels. A flush
 * takes its latency and nothing else; other commands are due at once. With channels = 0 there are
 * as many as commands. A command that waits for a meter does not keep a channel: a backlog of
 * writes must not stop the reads.
 *
 * The latency is L, or L * exp(sigma * z) with z normally distributed: L is the median. z comes
 * from a table of the distribution's quantiles, at most 3.7 to either side.
 */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/fail.h"
#include "base/random.h"
#include "sim/engine/engine.h"
#include "sim/model.h"

#define NQUANTILES   4096
#define NS_A_SECOND  1000000000ULL
#define MAX_CHANNELS (1U << 20)

/* Lets `rate` units a second pass, one customer after the other. */
struct meter {
    uint64_t rate;      /* 0: any number */
    uint64_t free_ns;   /* when the last customer has passed */
    uint64_t remainder; /* and how much later, in 1 / rate ns */
};

struct sim_model {
    pthread_mutex_t lock; /* guards all that follows but config, which does not change */
    struct gpunvme_sim_model config;
    struct base_random random;
    struct meter iops[2], bytes[2]; /* by SIM_MODEL_READ, SIM_MODEL_WRITE */
    float *spread;                  /* NQUANTILES factors of the latency, NULL: all 1 */
    uint64_t *channels;             /* a heap: when each is free, the earliest first */
};

/* The share of a normal distribution below z. */
static double normal_cdf(double z)
{
    return 0.5 * erfc(-z * M_SQRT1_2);
}

/* Fills the quantiles of exp(sigma * z), by Newton's method outwards from the middle. */
static void fill_spread(float *spread, double sigma)
{
    double z = 0;

    for (unsigned i = NQUANTILES / 2; i < NQUANTILES; i++) {
        double p = (i + 0.5) / NQUANTILES;

        for (unsigned step = 0; step < 8; step++)
            z -= (normal_cdf(z) - p) / (exp(-z * z / 2) * M_2_SQRTPI * M_SQRT1_2 / 2);
        spread[i] = (float)exp(sigma * z);
        spread[NQUANTILES - 1 - i] = (float)exp(-sigma * z);
    }
}

gpunvme_err_t sim_model_create(const struct gpunvme_sim_model *config, uint64_t seed,
                               struct sim_model **out)
{
    struct sim_model *model;

    if (config->channels > MAX_CHANNELS)
        return base_fail(GPUNVME_ERR_INVALID, "channels is %u: at most %u", config->channels,
                         MAX_CHANNELS);
    model = calloc(1, sizeof(*model));
    if (!model)
        return base_fail(GPUNVME_ERR_NOMEM, "a device model");
    pthread_mutex_init(&model->lock, NULL);
    model->config = *config;
    model->random.state = seed;
    model->iops[SIM_MODEL_READ].rate = config->read_iops;
    model->iops[SIM_MODEL_WRITE].rate = config->write_iops;
    model->bytes[SIM_MODEL_READ].rate = config->read_bytes_per_s;
    model->bytes[SIM_MODEL_WRITE].rate = config->write_bytes_per_s;
    if (config->channels)
        model->channels = calloc(config->channels, sizeof(*model->channels));
    if (config->latency_sigma > 0)
        model->spread = malloc(NQUANTILES * sizeof(*model->spread));
    if ((config->channels && !model->channels) || (config->latency_sigma > 0 && !model->spread)) {
        sim_model_destroy(model);
        return base_fail(GPUNVME_ERR_NOMEM, "a device model");
    }
    if (model->spread)
        fill_spread(model->spread, config->latency_sigma);
    *out = model;
    return GPUNVME_OK;
}

void sim_model_destroy(struct sim_model *model)
{
    if (!model)
        return;
    pthread_mutex_destroy(&model->lock);
    free(model->channels);
    free(model->spread);
    free(model);
}

bool sim_model_is_unlimited(const struct sim_model *model)
{
    const struct gpunvme_sim_model *c = &model->config;

    return !(c->read_latency_ns | c->write_latency_ns | c->flush_latency_ns | c->read_iops |
             c->write_iops | c->read_bytes_per_s | c->write_bytes_per_s);
}

/* Books `amount` units from now_ns on; *start_ns and *end_ns are when they pass. */
static void meter_pass(struct meter *meter, uint64_t amount, uint64_t now_ns, uint64_t *start_ns,
                       uint64_t *end_ns)
{
    unsigned __int128 cost;

    *start_ns = *end_ns = now_ns;
    if (!meter->rate)
        return;
    if (meter->free_ns < now_ns) {
        meter->free_ns = now_ns;
        meter->remainder = 0;
    }
    *start_ns = meter->free_ns;
    cost = (unsigned __int128)amount * NS_A_SECOND + meter->remainder;
    meter->free_ns += (uint64_t)(cost / meter->rate);
    meter->remainder = (uint64_t)(cost % meter->rate);
    *end_ns = meter->free_ns;
}

/* Gives the earliest free channel the time at which it is free again. */
static void heap_replace_first(uint64_t *heap, uint32_t count, uint64_t value)
{
    uint32_t i = 0;

    for (;;) {
        uint32_t child = 2 * i + 1;

        if (child >= count)
            break;
        if (child + 1 < count && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= value)
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = value;
}

/* When a channel begins with a command that takes latency_ns. */
static uint64_t channel_begin(struct sim_model *model, uint64_t now_ns, uint64_t latency_ns)
{
    uint64_t begin_ns = now_ns;

    if (!model->channels)
        return now_ns;
    if (model->channels[0] > now_ns)
        begin_ns = model->channels[0];
    heap_replace_first(model->channels, model->config.channels, begin_ns + latency_ns);
    return begin_ns;
}

static uint64_t latency(struct sim_model *model, uint64_t median_ns)
{
    if (!model->spread || !median_ns)
        return median_ns;
    return (uint64_t)((double)median_ns *
                      (double)model->spread[base_random_u64(&model->random) % NQUANTILES]);
}

/* A read or a write, under the lock. */
static uint64_t transfer_due(struct sim_model *model, enum sim_model_op op, uint64_t nbytes,
                             uint64_t now_ns)
{
    uint64_t latency_ns = latency(model, op == SIM_MODEL_READ ? model->config.read_latency_ns
                                                              : model->config.write_latency_ns);
    uint64_t begin_ns = channel_begin(model, now_ns, latency_ns), due_ns;
    uint64_t iops_ns, passed_ns, bytes_ns, last_byte_ns;

    meter_pass(&model->iops[op], 1, now_ns, &iops_ns, &passed_ns);
    meter_pass(&model->bytes[op], nbytes, now_ns, &bytes_ns, &last_byte_ns);
    if (begin_ns < iops_ns)
        begin_ns = iops_ns;
    if (begin_ns < bytes_ns)
        begin_ns = bytes_ns;
    due_ns = begin_ns + latency_ns;
    return due_ns > last_byte_ns ? due_ns : last_byte_ns;
}

uint64_t sim_model_due_ns(struct sim_model *model, enum sim_model_op op, uint64_t nbytes,
                          uint64_t now_ns)
{
    uint64_t due_ns = now_ns;

    if (op == SIM_MODEL_OTHER)
        return now_ns;
    pthread_mutex_lock(&model->lock);
    if (op == SIM_MODEL_FLUSH)
        due_ns += latency(model, model->config.flush_latency_ns);
    else
        due_ns = transfer_due(model, op, nbytes, now_ns);
    pthread_mutex_unlock(&model->lock);
    return due_ns;
}

/* What one of `rate` a second takes, in 1/2^shift ns; 0 where there is no limit. */
static uint64_t cost(uint64_t rate, unsigned shift)
{
    uint64_t second = NS_A_SECOND << shift;

    if (!rate)
        return 0;
    return second / rate ? second / rate : 1;
}

const float *sim_model_export(const struct sim_model *model, struct sim_engine_model *out)
{
    const struct gpunvme_sim_model *c = &model->config;

    _Static_assert(NQUANTILES == SIM_ENGINE_SPREAD, "the engine's table is this one");
    *out = (struct sim_engine_model){
        .enabled = !sim_model_is_unlimited(model),
        .nchannels = c->channels,
        .latency_ns = {c->read_latency_ns, c->write_latency_ns},
        .flush_latency_ns = c->flush_latency_ns,
        .command_cost = {cost(c->read_iops, 12), cost(c->write_iops, 12)},
        .byte_cost = {cost(c->read_bytes_per_s, 24), cost(c->write_bytes_per_s, 24)},
    };
    return model->spread;
}
