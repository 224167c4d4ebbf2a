/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The order of samples: each sample once an epoch, whatever the ranks; the same order after a
 * resume with other ranks; shuffles without a pattern; mixtures with their shares.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "data/loader/permute.h"
#include "gpunvme/sampler.h"
#include "unit/rng.h"

/* Chance is no matter of sanitizers: their builds take a part of the epochs. */
#ifdef __SANITIZE_ADDRESS__
#define PART 10
#else
#define PART 1
#endif

static struct gpunvme_sampler *make(const struct gpunvme_sampler_source *sources, size_t n,
                                    const struct gpunvme_sampler_options *options)
{
    struct gpunvme_sampler *s;

    if (gpunvme_sampler_create(sources, n, options, &s))
        fail_msg("%s", gpunvme_err_detail());
    return s;
}

static struct gpunvme_sampler *make_one(uint64_t nsamples, struct gpunvme_sampler_options options)
{
    struct gpunvme_sampler_source source = {.nsamples = nsamples};

    return make(&source, 1, &options);
}

static uint64_t sample_at(const struct gpunvme_sampler *s, uint64_t epoch, uint64_t position)
{
    struct gpunvme_sample sample;

    gpunvme_sampler_list(s, epoch, position, 1, &sample);
    return sample.index;
}

/* The options of case `i` of all shuffles, with blocks and windows that fit badly. */
static struct gpunvme_sampler_options shuffles(unsigned i)
{
    static const struct gpunvme_sampler_options all[] = {
        {.seed = 1, .batch = 64, .shuffle = GPUNVME_SHUFFLE_EPOCH},
        {.seed = 2, .batch = 64, .shuffle = GPUNVME_SHUFFLE_NONE},
        {.seed = 3, .batch = 64, .shuffle = GPUNVME_SHUFFLE_BLOCKS, .block = 16, .window = 64},
        {.seed = 4, .batch = 64, .shuffle = GPUNVME_SHUFFLE_BLOCKS, .block = 7, .window = 50},
        {.seed = 5, .batch = 64, .shuffle = GPUNVME_SHUFFLE_BLOCKS, .block = 5000, .window = 3},
        {.seed = 6, .batch = 64, .shuffle = GPUNVME_SHUFFLE_BLOCKS, .block = 1, .window = 1},
    };

    return all[i];
}

#define NSHUFFLES 6u

/* ---- Each sample once --------------------------------------------------------------------------
 */

/* Counts what all ranks get in an epoch, and compares the numbers of their batches. */
static void count_epoch(uint64_t nsamples, struct gpunvme_sampler_options options, uint32_t world,
                        unsigned *counts, uint64_t *npadded)
{
    struct gpunvme_sample samples[256];
    uint64_t batches = 0;

    *npadded = 0;
    options.world = world;
    for (uint32_t rank = 0; rank < world; rank++) {
        struct gpunvme_sampler *s;
        struct gpunvme_slice slice;
        uint64_t n = 0;

        options.rank = rank;
        s = make_one(nsamples, options);
        while (gpunvme_sampler_next(s, &slice)) {
            assert_true(slice.n <= 256);
            assert_int_equal(slice.batch, n++);
            gpunvme_sampler_list(s, slice.epoch, slice.first, (size_t)slice.n, samples);
            for (size_t i = 0; i < slice.n - slice.npadded; i++)
                counts[samples[i].index]++;
            *npadded += slice.npadded;
        }
        assert_true(!rank || n == batches); /* ranks must not wait for each other */
        batches = n;
        gpunvme_sampler_destroy(s);
    }
}

static void every_sample_is_there_once_an_epoch_for_1_to_17_ranks(void **state)
{
    static const uint64_t sizes[] = {1, 2, 3, 10, 63, 64, 65, 997, 1024};
    unsigned counts[1024];
    uint64_t npadded;

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        for (unsigned shuffle = 0; shuffle < NSHUFFLES; shuffle++)
            for (uint32_t world = 1; world <= 17; world++) {
                memset(counts, 0, sizeof(counts));
                count_epoch(sizes[i], shuffles(shuffle), world, counts, &npadded);
                assert_int_equal(npadded, 0);
                for (uint64_t k = 0; k < sizes[i]; k++)
                    assert_int_equal(counts[k], 1);
            }
}

static void a_padded_epoch_has_every_sample_and_whole_batches(void **state)
{
    struct gpunvme_sampler_options options = shuffles(0);
    unsigned counts[1000] = {0};
    uint64_t npadded;

    (void)state;
    options.last = GPUNVME_LAST_PAD;
    count_epoch(1000, options, 7, counts, &npadded);
    assert_int_equal(npadded, 1024 - 1000);
    for (unsigned k = 0; k < 1000; k++)
        assert_int_equal(counts[k], 1);
}

static void padding_repeats_the_samples_of_the_epoch_from_its_beginning(void **state)
{
    struct gpunvme_sampler_options options = {.batch = 10, .last = GPUNVME_LAST_PAD};
    struct gpunvme_sampler *s = make_one(3, options);
    struct gpunvme_slice slice;

    (void)state;
    assert_true(gpunvme_sampler_next(s, &slice));
    assert_int_equal(slice.n, 10);
    assert_int_equal(slice.npadded, 7);
    for (unsigned i = 0; i < 10; i++)
        assert_int_equal(sample_at(s, 0, i), sample_at(s, 0, i % 3));
    assert_false(gpunvme_sampler_next(s, &slice));
    gpunvme_sampler_destroy(s);
}

static void a_dropped_rest_is_another_one_in_the_next_epoch(void **state)
{
    struct gpunvme_sampler_options options = {.batch = 64, .last = GPUNVME_LAST_DROP};
    struct gpunvme_sampler *s = make_one(100, options);
    struct gpunvme_sampler_info info;
    struct gpunvme_slice slice;
    uint64_t a = 0, b = 0;

    (void)state;
    gpunvme_sampler_get_info(s, &info);
    assert_int_equal(info.batches, 1);
    assert_true(gpunvme_sampler_next(s, &slice));
    assert_int_equal(slice.n, 64);
    assert_false(gpunvme_sampler_next(s, &slice));
    assert_true(gpunvme_sampler_next(s, &slice));
    assert_int_equal(slice.epoch, 1);
    for (uint64_t i = 64; i < 100; i++) {
        a ^= rng_hash(sample_at(s, 0, i));
        b ^= rng_hash(sample_at(s, 1, i));
    }
    assert_true(a != b);
    gpunvme_sampler_destroy(s);
}

static void more_ranks_than_samples_get_empty_parts_of_as_many_batches(void **state)
{
    unsigned counts[3] = {0};
    uint64_t npadded;

    (void)state;
    count_epoch(3, (struct gpunvme_sampler_options){.batch = 2}, 17, counts, &npadded);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(counts[i], 1);
}

static void epochs_and_seeds_have_orders_of_their_own(void **state)
{
    struct gpunvme_sampler *a = make_one(1000, (struct gpunvme_sampler_options){.batch = 1}),
                           *b = make_one(1000,
                                         (struct gpunvme_sampler_options){.batch = 1, .seed = 1});
    unsigned epochs = 0, seeds = 0;

    (void)state;
    for (uint64_t i = 0; i < 1000; i++) {
        epochs += sample_at(a, 0, i) == sample_at(a, 1, i);
        seeds += sample_at(a, 0, i) == sample_at(b, 0, i);
    }
    assert_true(epochs < 10); /* one is expected by chance */
    assert_true(seeds < 10);
    gpunvme_sampler_destroy(a);
    gpunvme_sampler_destroy(b);
}

static void an_order_is_the_same_on_every_machine_and_in_every_version(void **state)
{
    static const uint64_t expected[] = {466411, 146751, 1881, 700478};
    struct gpunvme_sampler *s =
        make_one(1000000, (struct gpunvme_sampler_options){.seed = 42, .batch = 1});

    (void)state;
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(sample_at(s, 5, i), expected[i]);
    gpunvme_sampler_destroy(s);
}

/* ---- Large numbers -----------------------------------------------------------------------------
 */

static int compare(const void *a_, const void *b_)
{
    uint64_t a = *(const uint64_t *)a_, b = *(const uint64_t *)b_;

    return a < b ? -1 : a > b;
}

static void try_large(uint64_t nsamples, unsigned shuffle)
{
    enum { N = 200000 };
    struct gpunvme_sampler_options options = shuffles(shuffle);
    struct gpunvme_sampler *s;
    struct gpunvme_sample *samples = calloc(N, sizeof(*samples));
    uint64_t *at = calloc(N, sizeof(*at));

    assert_true(samples && at);
    options.block = options.window = 0;
    s = make_one(nsamples, options);
    gpunvme_sampler_list(s, 3, nsamples - N, N, samples);
    for (size_t i = 0; i < N; i++) {
        assert_true(samples[i].index < nsamples);
        at[i] = samples[i].index;
    }
    qsort(at, N, sizeof(at[0]), compare);
    for (size_t i = 1; i < N; i++)
        assert_true(at[i] != at[i - 1]);
    gpunvme_sampler_destroy(s);
    free(samples);
    free(at);
}

static void positions_of_a_thousand_million_and_2_to_the_40_samples_differ(void **state)
{
    (void)state;
    for (unsigned shuffle = 0; shuffle < 3; shuffle++) {
        try_large(1000000000, shuffle);
        try_large((uint64_t)1 << 40, shuffle);
        try_large(GPUNVME_SAMPLER_MAX, shuffle);
    }
}

static void a_permutation_of_every_small_size_has_each_number_once(void **state)
{
    uint8_t seen[2000];

    (void)state;
    for (uint64_t n = 1; n < 2000; n++) {
        struct permute_domain domain;
        struct permute_key key;

        permute_domain_set(&domain, n);
        permute_key_set(&key, n, 0);
        memset(seen, 0, sizeof(seen));
        for (uint64_t i = 0; i < n; i++) {
            uint64_t x = permute(&domain, &key, rng_hash(n), i);

            assert_true(x < n && !seen[x]);
            seen[x] = 1;
        }
    }
}

/* ---- Chance ------------------------------------------------------------------------------------
 *
 * Chi-square, as a distance from its mean in standard deviations: z = (x - df) / sqrt(2 df). All
 * seeds are fixed, so the tests give the same result always; the bounds are those of chance.
 */

static double chi_square_z(const unsigned *counts, size_t n, double expected, double df)
{
    double x = 0;

    for (size_t i = 0; i < n; i++)
        x += (counts[i] - expected) * (counts[i] - expected) / expected;
    return (x - df) / sqrt(2 * df);
}

/* Over `epochs`: which sample is at which position, and which one is behind which. */
static void try_positions(uint64_t n, unsigned shuffle, unsigned epochs)
{
    struct gpunvme_sampler_options options = shuffles(shuffle);
    unsigned *place = calloc(n * n, sizeof(*place)), *step = calloc(n, sizeof(*step));
    struct gpunvme_sampler *s = make_one(n, options);
    double z;

    assert_true(place && step);
    for (unsigned epoch = 0; epoch < epochs; epoch++) {
        uint64_t last = sample_at(s, epoch, n - 1);

        for (uint64_t i = 0; i < n; i++) {
            uint64_t x = sample_at(s, epoch, i);

            place[i * n + x]++;
            step[(x + n - last) % n]++;
            last = x;
        }
    }
    z = chi_square_z(place, n * n, epochs / (double)n, (double)(n - 1) * (double)(n - 1));
    if (!(fabs(z) < 4))
        fail_msg("n %llu: chi-square over positions is %.1f sigma off", (unsigned long long)n, z);
    assert_int_equal(step[0], n == 1 ? epochs : 0);
    z = chi_square_z(step + 1, n - 1, epochs * (double)n / (double)(n - 1), (double)n - 2);
    if (n > 3 && !(z < 5)) /* steps are not independent of each other, nor far from it */
        fail_msg("n %llu: chi-square over steps is %.1f sigma off", (unsigned long long)n, z);
    gpunvme_sampler_destroy(s);
    free(place);
    free(step);
}

static void every_sample_is_as_often_at_every_position(void **state)
{
    static const uint64_t sizes[] = {2, 3, 4, 5, 7, 10, 31, 97, 256};

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        try_positions(sizes[i], 0, 20000 / PART);
}

static void blocks_put_every_sample_at_every_position_too(void **state)
{
    enum { N = 40, EPOCHS = 40000 / PART };
    struct gpunvme_sampler_options options = {
        .batch = 1, .shuffle = GPUNVME_SHUFFLE_BLOCKS, .block = 4, .window = 10};
    struct gpunvme_sampler *s = make_one(N, options);
    static unsigned place[N * N];
    double z;

    (void)state;
    for (unsigned epoch = 0; epoch < EPOCHS; epoch++)
        for (uint64_t i = 0; i < N; i++)
            place[i * N + sample_at(s, epoch, i)]++;
    z = chi_square_z(place, N * N, EPOCHS / (double)N, (N - 1) * (N - 1));
    if (!(fabs(z) < 6)) /* blocks move as one, so counts are not independent */
        fail_msg("chi-square over positions is %.1f sigma off", z);
    gpunvme_sampler_destroy(s);
}

/* All orders of four samples are as frequent. */
static void all_orders_of_few_samples_occur_equally_often(void **state)
{
    enum { EPOCHS = 240000 };
    struct gpunvme_sampler *s = make_one(4, (struct gpunvme_sampler_options){.batch = 1});
    unsigned counts[256] = {0}, used[24], n = 0;

    (void)state;
    for (unsigned epoch = 0; epoch < EPOCHS; epoch++) {
        unsigned order = 0;

        for (uint64_t i = 0; i < 4; i++)
            order = order * 4 + (unsigned)sample_at(s, epoch, i);
        counts[order]++;
    }
    for (unsigned i = 0; i < 256; i++)
        if (counts[i]) {
            assert_true(n < 24);
            used[n++] = counts[i];
        }
    assert_int_equal(n, 24);
    assert_true(fabs(chi_square_z(used, 24, EPOCHS / 24.0, 23)) < 4);
    gpunvme_sampler_destroy(s);
}

static void a_large_shuffle_spreads_neighbours_evenly(void **state)
{
    enum { BINS = 1000, N = 1000000 };
    struct gpunvme_sampler *s = make_one(1000000000, (struct gpunvme_sampler_options){.batch = 1});
    static unsigned place[BINS], step[BINS];
    uint64_t last = 0;

    (void)state;
    for (uint64_t i = 0; i < N; i++) {
        uint64_t x = sample_at(s, 0, i);

        place[x / (1000000000 / BINS)]++;
        step[(x + 1000000000 - last) % 1000000000 / (1000000000 / BINS)]++;
        last = x;
    }
    assert_true(fabs(chi_square_z(place, BINS, N / (double)BINS, BINS - 1)) < 4);
    assert_true(fabs(chi_square_z(step, BINS, N / (double)BINS, BINS - 1)) < 4);
    gpunvme_sampler_destroy(s);
}

static void a_block_shuffle_stays_within_the_blocks_of_a_window(void **state)
{
    struct gpunvme_sampler_options options = {
        .batch = 1, .shuffle = GPUNVME_SHUFFLE_BLOCKS, .block = 100, .window = 1000};
    struct gpunvme_sampler *s = make_one(100000, options);

    (void)state;
    for (uint64_t first = 0; first < 100000; first += 1000) {
        uint8_t blocks[1000] = {0};
        unsigned n = 0, neighbours = 0;

        for (uint64_t i = first; i < first + 1000; i++) {
            uint64_t x = sample_at(s, 0, i);

            n += !blocks[x / 100];
            blocks[x / 100] = 1;
            neighbours += i > first && x == sample_at(s, 0, i - 1) + 1;
        }
        assert_int_equal(n, 10);
        assert_true(neighbours < 20);
    }
    gpunvme_sampler_destroy(s);
}

/* ---- Mixtures ----------------------------------------------------------------------------------
 */

static const struct gpunvme_sampler_source mixture[] = {{.nsamples = 1000, .weight = 0.7},
                                                        {.nsamples = 77, .weight = 0.25},
                                                        {.nsamples = 5000, .weight = 0.049},
                                                        {.nsamples = 3, .weight = 0.001}};

static void sources_have_their_shares_at_every_point_within_3_sigma(void **state)
{
    enum { N = 300000 };
    struct gpunvme_sampler *s =
        make(mixture, 4, &(struct gpunvme_sampler_options){.batch = 64, .epoch = N, .seed = 9});
    struct gpunvme_sample *samples = calloc(N, sizeof(*samples));
    uint64_t counts[4] = {0};

    (void)state;
    assert_non_null(samples);
    gpunvme_sampler_list(s, 0, 0, N, samples);
    for (size_t i = 0; i < N; i++) {
        counts[samples[i].source]++;
        for (unsigned k = 0; k < 4; k++) {
            double p = mixture[k].weight, n = (double)(i + 1);

            assert_true(fabs((double)counts[k] - n * p) <= 3 * sqrt(n * p * (1 - p)) + 1);
        }
    }
    free(samples);
    gpunvme_sampler_destroy(s);
}

static void shares_are_exact_after_whole_periods_and_near_within_one(void **state)
{
    struct gpunvme_sampler *s =
        make(mixture, 4, &(struct gpunvme_sampler_options){.batch = 64, .epoch = 1 << 20});
    struct gpunvme_sampler_info info;
    struct gpunvme_sample sample;
    uint64_t counts[4] = {0}, before[4] = {0};

    (void)state;
    gpunvme_sampler_get_info(s, &info);
    assert_int_equal(info.period, 1024);
    for (uint64_t i = 0; i < 1 << 18; i++) {
        gpunvme_sampler_list(s, 0, i, 1, &sample);
        counts[sample.source]++;
        for (unsigned k = 0; k < 4 && (i + 1) % info.period == 0; k++) {
            double all = (double)(i + 1) * mixture[k].weight;
            double one = (double)info.period * mixture[k].weight;

            assert_true(fabs((double)counts[k] - all) < 1 + 1e-9);
            assert_true(fabs((double)(counts[k] - before[k]) - one) < 2 + 1e-9);
            before[k] = counts[k];
        }
    }
    gpunvme_sampler_destroy(s);
}

static void sources_of_a_mixture_give_each_sample_once_in_each_of_their_epochs(void **state)
{
    enum { N = 40000 };
    struct gpunvme_sampler *s =
        make(mixture, 4, &(struct gpunvme_sampler_options){.batch = 64, .epoch = N});
    static unsigned counts[4][5000];
    struct gpunvme_sampler_info info;
    struct gpunvme_sample sample;
    uint64_t taken[4] = {0};

    (void)state;
    gpunvme_sampler_get_info(s, &info);
    for (uint64_t i = 0; i < 5 * N; i++) { /* through epochs of the mixture */
        gpunvme_sampler_list(s, i / N, i % N, 1, &sample);
        counts[sample.source][sample.index]++;
        taken[sample.source]++;
        if ((i + 1) % info.period)
            continue;
        for (unsigned k = 0; k < 4; k++)
            for (uint64_t x = 0; x < mixture[k].nsamples; x++) {
                uint64_t whole = taken[k] / mixture[k].nsamples;

                assert_true(counts[k][x] == whole || counts[k][x] == whole + 1);
            }
    }
    gpunvme_sampler_destroy(s);
}

static void without_weights_a_mixture_takes_sources_by_their_size(void **state)
{
    struct gpunvme_sampler_source sources[] = {{.nsamples = 300}, {.nsamples = 100}};
    struct gpunvme_sampler *s = make(sources, 2, &(struct gpunvme_sampler_options){.batch = 8});
    unsigned counts[2][300] = {{0}};
    struct gpunvme_sample samples[400];

    (void)state;
    gpunvme_sampler_list(s, 0, 0, 400, samples);
    for (unsigned i = 0; i < 400; i++)
        counts[samples[i].source][samples[i].index]++;
    for (unsigned i = 0; i < 400; i++)
        assert_int_equal(i < 300 ? counts[0][i] : counts[1][i - 300], 1);
    gpunvme_sampler_destroy(s);
}

/* ---- Resuming ----------------------------------------------------------------------------------
 */

/* The next batches of all ranks, put together as the global stream. */
static size_t gather(struct gpunvme_sampler **ranks, uint32_t world, struct gpunvme_sample *stream,
                     size_t room)
{
    struct gpunvme_slice slice;
    size_t n = 0;

    for (;;) {
        bool more = false;

        for (uint32_t rank = 0; rank < world; rank++) {
            more = gpunvme_sampler_next(ranks[rank], &slice);
            assert_true(n + slice.n <= room);
            gpunvme_sampler_list(ranks[rank], slice.epoch, slice.first, (size_t)slice.n,
                                 stream + n);
            n += slice.n;
        }
        if (!more)
            return n;
    }
}

static void make_ranks(const struct gpunvme_sampler_source *sources, size_t n, uint32_t world,
                       unsigned shuffle, struct gpunvme_sampler **ranks)
{
    for (uint32_t rank = 0; rank < world; rank++) {
        struct gpunvme_sampler_options options = shuffles(shuffle);

        options.rank = rank;
        options.world = world;
        ranks[rank] = make(sources, n, &options);
    }
}

static void destroy_ranks(struct gpunvme_sampler **ranks, uint32_t world)
{
    for (uint32_t rank = 0; rank < world; rank++)
        gpunvme_sampler_destroy(ranks[rank]);
}

/* 8 ranks stop anywhere, 3 go on: the rest of the epoch and the next one are what 8 would have. */
static void try_resume(const struct gpunvme_sampler_source *sources, size_t n, unsigned shuffle,
                       uint64_t stop)
{
    enum { ROOM = 20000 };
    static struct gpunvme_sample expected[ROOM], got[ROOM];
    struct gpunvme_sampler *eight[8], *three[3];
    struct gpunvme_sampler_state state;
    struct gpunvme_slice slice;
    size_t nexpected, ngot;

    make_ranks(sources, n, 8, shuffle, eight);
    make_ranks(sources, n, 3, shuffle, three);
    for (uint64_t i = 0; i < stop; i++)
        for (unsigned rank = 0; rank < 8; rank++)
            (void)gpunvme_sampler_next(eight[rank], &slice);
    for (unsigned rank = 0; rank < 3; rank++) {
        gpunvme_sampler_get_state(eight[rank + 2], &state);
        assert_int_equal(gpunvme_sampler_set_state(three[rank], &state), GPUNVME_OK);
    }
    nexpected = gather(eight, 8, expected, ROOM / 2);
    nexpected += gather(eight, 8, expected + nexpected, ROOM / 2);
    ngot = gather(three, 3, got, ROOM / 2);
    ngot += gather(three, 3, got + ngot, ROOM / 2);
    assert_int_equal(ngot, nexpected);
    assert_memory_equal(got, expected, ngot * sizeof(got[0]));
    destroy_ranks(eight, 8);
    destroy_ranks(three, 3);
}

static void a_resume_with_3_ranks_instead_of_8_goes_on_with_the_same_stream(void **state)
{
    static const struct gpunvme_sampler_source one = {.nsamples = 5000};
    struct base_random random = {.state = 21};

    (void)state;
    for (unsigned i = 0; i < 200 / PART; i++) {
        uint64_t stop = rng_between(&random, 0, 300); /* an epoch has 79 batches, and its end */

        try_resume(&one, 1, i % NSHUFFLES, stop);
        if (i % 4 == 0)
            try_resume(mixture, 4, i % NSHUFFLES, stop);
    }
}

static void a_resume_takes_the_seed_of_the_state_and_any_size_of_batch(void **state)
{
    struct gpunvme_sampler *a =
        make_one(1000, (struct gpunvme_sampler_options){.seed = 3, .batch = 64});
    struct gpunvme_sampler *b =
        make_one(1000, (struct gpunvme_sampler_options){.seed = 4, .batch = 100});
    struct gpunvme_sampler_state s;
    struct gpunvme_slice slice;

    (void)state;
    assert_true(gpunvme_sampler_next(a, &slice));
    gpunvme_sampler_get_state(a, &s);
    assert_int_equal(gpunvme_sampler_set_state(b, &s), GPUNVME_OK);
    assert_true(gpunvme_sampler_next(b, &slice));
    assert_int_equal(slice.first, 64);
    assert_int_equal(slice.n, 100);
    for (uint64_t i = 0; i < 1000; i++)
        assert_int_equal(sample_at(a, 0, i), sample_at(b, 0, i));
    gpunvme_sampler_destroy(a);
    gpunvme_sampler_destroy(b);
}

static void a_state_of_other_data_or_of_another_order_is_refused(void **state)
{
    const struct gpunvme_sampler_options good = {.batch = 4, .fingerprint = 5};
    struct gpunvme_sampler_options others[] = {good, good, good, good};
    struct gpunvme_sampler *a = make_one(1000, good), *b;
    struct gpunvme_sampler_state s, after;

    (void)state;
    gpunvme_sampler_get_state(a, &s);
    others[0].fingerprint = 6;
    others[1].shuffle = GPUNVME_SHUFFLE_NONE;
    others[2].shuffle = GPUNVME_SHUFFLE_BLOCKS;
    others[3].epoch = 900;
    for (unsigned i = 0; i < 5; i++) {
        b = make_one(i < 4 ? 1000 : 999, i < 4 ? others[i] : good);
        assert_int_equal(gpunvme_sampler_set_state(b, &s), GPUNVME_ERR_INVALID);
        assert_non_null(strstr(gpunvme_err_detail(), "fingerprint"));
        gpunvme_sampler_get_state(b, &after);
        assert_int_equal(after.taken, 0);
        gpunvme_sampler_destroy(b);
    }
    s.taken = 1001;
    assert_int_equal(gpunvme_sampler_set_state(a, &s), GPUNVME_ERR_INVALID);
    s.taken = 0;
    s.epoch = UINT64_MAX;
    assert_int_equal(gpunvme_sampler_set_state(a, &s), GPUNVME_ERR_LIMIT);
    gpunvme_sampler_destroy(a);
}

/* ---- What is refused ---------------------------------------------------------------------------
 */

static void refused(const struct gpunvme_sampler_source *sources, size_t n,
                    struct gpunvme_sampler_options options, gpunvme_err_t expected,
                    const char *text)
{
    struct gpunvme_sampler *s = (void *)1;

    assert_int_equal(gpunvme_sampler_create(sources, n, &options, &s), expected);
    assert_null(s);
    if (!strstr(gpunvme_err_detail(), text))
        fail_msg("\"%s\" has no \"%s\"", gpunvme_err_detail(), text);
}

static void options_that_make_no_sense_are_refused(void **state)
{
    const struct gpunvme_sampler_options good = {.batch = 1};
    struct gpunvme_sampler_options o;
    struct gpunvme_sampler_source s[2] = {{.nsamples = 10, .weight = 1}, {.nsamples = 10}};

    (void)state;
    refused(s, 0, good, GPUNVME_ERR_INVALID, "0 sources");
    refused(s, 2, good, GPUNVME_ERR_INVALID, "weight of source 1 is 0");
    s[1].weight = NAN;
    refused(s, 2, good, GPUNVME_ERR_INVALID, "weight of source 1 is nan");
    s[1].weight = 1e-9;
    refused(s, 2, good, GPUNVME_ERR_LIMIT, "source 1 has less than one");
    s[0].weight = s[1].weight = 1e308;
    refused(s, 2, good, GPUNVME_ERR_LIMIT, "less than one");
    o = (struct gpunvme_sampler_options){.batch = 0};
    refused(s, 1, o, GPUNVME_ERR_INVALID, "a batch of 0");
    o = (struct gpunvme_sampler_options){.batch = 1, .rank = 8, .world = 8};
    refused(s, 1, o, GPUNVME_ERR_INVALID, "rank 8 of 8");
    o = (struct gpunvme_sampler_options){.batch = 11, .last = GPUNVME_LAST_DROP};
    refused(s, 1, o, GPUNVME_ERR_INVALID, "no whole batch");
    s[0].nsamples = 0;
    refused(s, 1, good, GPUNVME_ERR_INVALID, "source 0 has 0 samples");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_permutation_of_every_small_size_has_each_number_once),
        cmocka_unit_test(every_sample_is_there_once_an_epoch_for_1_to_17_ranks),
        cmocka_unit_test(a_padded_epoch_has_every_sample_and_whole_batches),
        cmocka_unit_test(padding_repeats_the_samples_of_the_epoch_from_its_beginning),
        cmocka_unit_test(a_dropped_rest_is_another_one_in_the_next_epoch),
        cmocka_unit_test(more_ranks_than_samples_get_empty_parts_of_as_many_batches),
        cmocka_unit_test(epochs_and_seeds_have_orders_of_their_own),
        cmocka_unit_test(an_order_is_the_same_on_every_machine_and_in_every_version),
        cmocka_unit_test(positions_of_a_thousand_million_and_2_to_the_40_samples_differ),
        cmocka_unit_test(every_sample_is_as_often_at_every_position),
        cmocka_unit_test(blocks_put_every_sample_at_every_position_too),
        cmocka_unit_test(all_orders_of_few_samples_occur_equally_often),
        cmocka_unit_test(a_large_shuffle_spreads_neighbours_evenly),
        cmocka_unit_test(a_block_shuffle_stays_within_the_blocks_of_a_window),
        cmocka_unit_test(sources_have_their_shares_at_every_point_within_3_sigma),
        cmocka_unit_test(shares_are_exact_after_whole_periods_and_near_within_one),
        cmocka_unit_test(sources_of_a_mixture_give_each_sample_once_in_each_of_their_epochs),
        cmocka_unit_test(without_weights_a_mixture_takes_sources_by_their_size),
        cmocka_unit_test(a_resume_with_3_ranks_instead_of_8_goes_on_with_the_same_stream),
        cmocka_unit_test(a_resume_takes_the_seed_of_the_state_and_any_size_of_batch),
        cmocka_unit_test(a_state_of_other_data_or_of_another_order_is_refused),
        cmocka_unit_test(options_that_make_no_sense_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
