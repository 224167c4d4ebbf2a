/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Batches of samples: each sample once an epoch and in the sampler's order, whatever is read ahead;
 * states that go on exactly there; layouts; samples that can't be read.
 */
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "gpunvme/loader.h"
#include "gpunvme/memory.h"
#include "memory/cuda.h"

#define RECORD   ((size_t)64)
#define NRECORDS ((uint64_t)1000) /* in three files */

/* ---- What tests let fail -----------------------------------------------------------------------
 */

static unsigned fills_fail;                  /* the next ones */
static unsigned sums_differ;                 /* of the record that begins with: */
static uint64_t differs;                     /* … this word */
static _Atomic gpunvme_err_t gpu_sums_error; /* that checksums of GPU memory end with */

gpunvme_err_t __real_gpunvme_mem_fill(void *ptr, enum gpunvme_mem mem, uint8_t byte, size_t nbytes);
gpunvme_err_t __wrap_gpunvme_mem_fill(void *ptr, enum gpunvme_mem mem, uint8_t byte, size_t nbytes);
gpunvme_err_t __wrap_gpunvme_mem_fill(void *ptr, enum gpunvme_mem mem, uint8_t byte, size_t nbytes)
{
    if (!fills_fail)
        return __real_gpunvme_mem_fill(ptr, mem, byte, nbytes);
    fills_fail--;
    return GPUNVME_ERR_TIMEOUT;
}

uint64_t __real_gpunvme_mem_checksum_host(const void *ptr, size_t nbytes);
uint64_t __wrap_gpunvme_mem_checksum_host(const void *ptr, size_t nbytes);
uint64_t __wrap_gpunvme_mem_checksum_host(const void *ptr, size_t nbytes)
{
    const uint64_t sum = __real_gpunvme_mem_checksum_host(ptr, nbytes);

    if (!sums_differ || nbytes < 8 || memcmp(ptr, &differs, 8) != 0)
        return sum;
    sums_differ--;
    return ~sum;
}

bool __real_gpunvme_mem_gpu_is_host(void);
bool __wrap_gpunvme_mem_gpu_is_host(void);
bool __wrap_gpunvme_mem_gpu_is_host(void)
{
    return !gpu_sums_error && __real_gpunvme_mem_gpu_is_host();
}

gpunvme_err_t __real_mem_cuda_checksums(const struct mem_checksum_range *ranges, size_t n,
                                        uint64_t *sums);
gpunvme_err_t __wrap_mem_cuda_checksums(const struct mem_checksum_range *ranges, size_t n,
                                        uint64_t *sums);
gpunvme_err_t __wrap_mem_cuda_checksums(const struct mem_checksum_range *ranges, size_t n,
                                        uint64_t *sums)
{
    const gpunvme_err_t err = gpu_sums_error;

    return err ? err : __real_mem_cuda_checksums(ranges, n, sums);
}

/* ---- Files and loaders -------------------------------------------------------------------------
 */

static char dir[64];
static const uint64_t in_file[] = {300, 1, 699};

static const char *in_dir(const char *name)
{
    static char paths[8][256];
    static unsigned next;
    char *path = paths[next++ % 8];

    snprintf(path, sizeof(paths[0]), "%s/%s", dir, name);
    return path;
}

/* Every word of a record is its number. */
static void write_records(const char *name, uint64_t first, uint64_t n)
{
    FILE *f = fopen(in_dir(name), "w");

    assert_non_null(f);
    for (uint64_t i = 0; i < n; i++)
        for (size_t k = 0; k < RECORD / 8; k++) {
            uint64_t value = first + i;

            assert_int_equal(fwrite(&value, 1, 8, f), 8);
        }
    assert_int_equal(fclose(f), 0);
}

static int setup(void **state)
{
    uint64_t first = 0;

    (void)state;
    strcpy(dir, "/tmp/gpunvme-loader-XXXXXX");
    assert_non_null(mkdtemp(dir));
    for (unsigned i = 0; i < 3; i++) {
        write_records((const char *[]){"a", "b", "c"}[i], first, in_file[i]);
        first += in_file[i];
    }
    return 0;
}

static int remove_one(const char *path, const struct stat *s, int type, struct FTW *ftw)
{
    (void)s, (void)type, (void)ftw;
    return remove(path);
}

static int teardown(void **state)
{
    (void)state;
    return nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static struct gpunvme_dataset *open_set(const char *const *names, size_t n,
                                        const struct gpunvme_dataset_options *options)
{
    const char *uris[8];
    struct gpunvme_dataset *d;

    for (size_t i = 0; i < n; i++)
        uris[i] = in_dir(names[i]);
    if (gpunvme_dataset_open(NULL, uris, n, options, &d))
        fail_msg("%s", gpunvme_err_detail());
    return d;
}

static struct gpunvme_dataset *open_records(void)
{
    static const char *const names[] = {"a", "b", "c"};

    return open_set(names, 3, &(struct gpunvme_dataset_options){.record_nbytes = RECORD});
}

static struct gpunvme_loader *open_loader(struct gpunvme_dataset *d,
                                          const struct gpunvme_loader_options *options)
{
    struct gpunvme_loader *l;

    if (gpunvme_loader_open(&(struct gpunvme_loader_source){.dataset = d}, 1, options, &l))
        fail_msg("%s", gpunvme_err_detail());
    return l;
}

static const struct gpunvme_loader_batch *next(struct gpunvme_loader *l)
{
    const struct gpunvme_loader_batch *batch;

    if (gpunvme_loader_next(l, &batch, 0))
        fail_msg("%s", gpunvme_err_detail());
    return batch;
}

static void give_back(struct gpunvme_loader *l, const struct gpunvme_loader_batch *batch)
{
    assert_int_equal(gpunvme_loader_release(l, batch, NULL), GPUNVME_OK);
}

static void close_all(struct gpunvme_loader *l, struct gpunvme_dataset *d)
{
    assert_int_equal(gpunvme_loader_close(l), GPUNVME_OK);
    assert_int_equal(gpunvme_dataset_close(d), GPUNVME_OK);
}

/* Host bytes of a batch; the caller frees them. */
static uint8_t *bytes_of(const struct gpunvme_loader_batch *b)
{
    uint8_t *bytes = malloc(b->nbytes + 1);

    assert_non_null(bytes);
    if (b->nbytes)
        assert_int_equal(
            gpunvme_mem_copy(bytes, GPUNVME_MEM_HOST, b->ptr, (enum gpunvme_mem)b->mem, b->nbytes),
            GPUNVME_OK);
    return bytes;
}

/* All of its samples are where the batch says, with their own bytes. */
static void check_records(const struct gpunvme_loader_batch *b)
{
    uint8_t *bytes = bytes_of(b);

    for (uint64_t i = 0; i < b->n; i++) {
        uint64_t word;

        assert_int_equal(b->lengths[i], RECORD);
        for (size_t k = 0; k < RECORD; k += 8) {
            memcpy(&word, bytes + b->offsets[i] + k, 8);
            assert_int_equal(word, b->samples[i].index);
        }
    }
    free(bytes);
}

/* ---- The order ---------------------------------------------------------------------------------
 */

static void every_rank_gets_its_samples_and_all_get_each_once(void **state)
{
    static const uint32_t kinds[] = {GPUNVME_SHUFFLE_EPOCH, GPUNVME_SHUFFLE_BLOCKS,
                                     GPUNVME_SHUFFLE_NONE};

    (void)state;
    for (uint32_t world = 1; world <= 17; world++) {
        uint8_t seen[NRECORDS] = {0};
        uint64_t batches = 0;

        for (uint32_t rank = 0; rank < world; rank++) {
            struct gpunvme_dataset *d = open_records();
            struct gpunvme_loader *l = open_loader(
                d, &(struct gpunvme_loader_options){.order = {.seed = 3,
                                                              .batch = 96,
                                                              .rank = rank,
                                                              .world = world,
                                                              .shuffle = kinds[world % 3],
                                                              .block = 16},
                                                    .mem = GPUNVME_MEM_GPU,
                                                    .depth = 1 + world % 5});
            const struct gpunvme_loader_batch *b;
            uint64_t n = 0;

            while ((b = next(l))) {
                check_records(b);
                for (uint64_t i = 0; i < b->n; i++)
                    seen[b->samples[i].index]++;
                assert_int_equal(b->index, n++);
                give_back(l, b);
            }
            assert_true(!rank || n == batches); /* as many on all */
            batches = n;
            close_all(l, d);
        }
        for (uint64_t i = 0; i < NRECORDS; i++)
            assert_int_equal(seen[i], 1);
    }
}

static void the_order_is_the_samplers(void **state)
{
    const struct gpunvme_loader_options options = {
        .order = {.seed = 11, .batch = 70, .rank = 1, .world = 2}, .depth = 3};
    struct gpunvme_sampler_source source = {.nsamples = NRECORDS};
    struct gpunvme_dataset *d = open_records();
    struct gpunvme_loader *l = open_loader(d, &options);
    struct gpunvme_sampler_options order = options.order;
    struct gpunvme_sample samples[70];
    struct gpunvme_sampler *sampler;
    struct gpunvme_slice slice;

    (void)state;
    assert_int_equal(gpunvme_sampler_create(&source, 1, &order, &sampler), GPUNVME_OK);
    for (unsigned epoch = 0; epoch < 3; epoch++) {
        const struct gpunvme_loader_batch *b;

        while ((b = next(l))) {
            assert_true(gpunvme_sampler_next(sampler, &slice));
            gpunvme_sampler_list(sampler, slice.epoch, slice.first, slice.n, samples);
            assert_int_equal(b->n, slice.n);
            assert_int_equal(b->epoch, epoch);
            assert_memory_equal(b->samples, samples, slice.n * sizeof(samples[0]));
            give_back(l, b);
        }
        assert_false(gpunvme_sampler_next(sampler, &slice));
    }
    gpunvme_sampler_destroy(sampler);
    close_all(l, d);
}

/* Goes on for up to `limit` samples of all ranks; what each position of the stream held. */
static uint64_t run_ranks(struct gpunvme_dataset *d, uint32_t world,
                          struct gpunvme_sampler_state *at, uint64_t limit, uint64_t *stream)
{
    struct gpunvme_sampler_state after = *at;
    uint64_t taken = 0;

    for (uint32_t rank = 0; rank < world; rank++) {
        struct gpunvme_loader *l = open_loader(
            d, &(struct gpunvme_loader_options){
                   .order = {.seed = 5, .batch = 48, .rank = rank, .world = world}, .depth = 7});
        const struct gpunvme_loader_batch *b;
        uint64_t n = 0, per = 48 / world, rest = 48 % world;

        if (at->fingerprint)
            assert_int_equal(gpunvme_loader_set_state(l, at), GPUNVME_OK);
        while (n < limit && (b = next(l))) {
            uint64_t first = n + rank * per + (rank < rest ? rank : rest);

            for (uint64_t i = 0; i < b->n && n + 48 <= limit; i++)
                stream[first + i] = b->samples[i].index;
            n += 48;
            give_back(l, b);
            gpunvme_loader_get_state(l, &after);
        }
        taken = n;
        assert_int_equal(gpunvme_loader_close(l), GPUNVME_OK);
    }
    *at = after;
    return taken;
}

static void three_ranks_go_on_where_eight_stopped(void **state)
{
    static uint64_t whole[NRECORDS], parts[NRECORDS];
    struct gpunvme_dataset *d = open_records();
    struct gpunvme_sampler_state at = {0};

    (void)state;
    assert_int_equal(run_ranks(d, 1, &at, 960, whole), 960);
    for (unsigned stop = 48; stop < 960; stop += 48) {
        at = (struct gpunvme_sampler_state){0};
        memset(parts, 0xff, sizeof(parts));
        assert_int_equal(run_ranks(d, 8, &at, stop, parts), stop);
        assert_int_equal(at.taken, stop); /* whatever was read ahead */
        assert_int_equal(run_ranks(d, 3, &at, 960 - stop, parts + stop), 960 - stop);
        assert_memory_equal(parts, whole, 960 * sizeof(whole[0]));
    }
    assert_int_equal(gpunvme_dataset_close(d), GPUNVME_OK);
}

static void a_state_of_any_point_goes_on_there(void **state)
{
    const struct gpunvme_loader_options options = {.order = {.seed = 5, .batch = 9}, .depth = 4};
    struct gpunvme_dataset *d = open_records();
    struct gpunvme_loader *l = open_loader(d, &options), *other = open_loader(d, &options);
    struct gpunvme_sampler_state states[200];
    uint64_t firsts[200];

    (void)state;
    for (unsigned i = 0; i < 200; i++) { /* past the end of an epoch */
        const struct gpunvme_loader_batch *b;

        gpunvme_loader_get_state(l, &states[i]);
        do
            b = next(l);
        while (!b);
        firsts[i] = b->samples[0].index;
        give_back(l, b);
    }
    for (unsigned k = 0; k < 200; k++) {
        const unsigned i = k * 77 % 200;
        const struct gpunvme_loader_batch *b;

        assert_int_equal(gpunvme_loader_set_state(other, &states[i]), GPUNVME_OK);
        do
            b = next(other);
        while (!b);
        assert_int_equal(b->samples[0].index, firsts[i]);
        check_records(b);
        give_back(other, b);
    }
    assert_int_equal(gpunvme_loader_close(other), GPUNVME_OK);
    close_all(l, d);
}

static void an_epoch_that_is_set_begins_with_its_first_batch(void **state)
{
    struct gpunvme_dataset *d = open_records();
    struct gpunvme_loader *l = open_loader(
        d, &(struct gpunvme_loader_options){.order = {.seed = 5, .batch = 100}, .depth = 2});
    const struct gpunvme_loader_batch *kept = next(l), *b;

    (void)state;
    assert_int_equal(gpunvme_loader_set_epoch(l, 4), GPUNVME_OK);
    b = next(l);
    assert_int_equal(b->epoch, 4);
    assert_int_equal(b->index, 0);
    check_records(b);
    check_records(kept); /* still the caller's */
    give_back(l, kept);
    give_back(l, b);
    close_all(l, d);
}

static void a_state_of_other_data_is_refused(void **state)
{
    static const char *const names[] = {"c", "b", "a"};
    const struct gpunvme_loader_options options = {.order = {.seed = 5, .batch = 10}};
    struct gpunvme_dataset *d = open_records(),
                           *e =
                               open_set(names, 3,
                                        &(struct gpunvme_dataset_options){.record_nbytes = RECORD});
    struct gpunvme_loader *l = open_loader(d, &options), *m = open_loader(e, &options);
    struct gpunvme_sampler_state at;
    const struct gpunvme_loader_batch *b;

    (void)state;
    gpunvme_loader_get_state(l, &at);
    assert_int_equal(gpunvme_loader_set_state(m, &at), GPUNVME_ERR_INVALID);
    b = next(m); /* as it was */
    assert_int_equal(b->index, 0);
    give_back(m, b);
    close_all(l, d);
    close_all(m, e);
}

static void ranks_without_samples_get_empty_batches(void **state)
{
    struct gpunvme_dataset *d = open_set(
        (const char *const[]){"b"}, 1, &(struct gpunvme_dataset_options){.record_nbytes = RECORD});
    uint64_t n = 0;

    (void)state;
    for (uint32_t rank = 0; rank < 4; rank++) {
        struct gpunvme_loader *l = open_loader(
            d, &(struct gpunvme_loader_options){.order = {.batch = 8, .rank = rank, .world = 4}});
        const struct gpunvme_loader_batch *b = next(l);

        assert_non_null(b);
        n += b->n;
        assert_true(b->n || (!b->ptr && !b->nbytes));
        give_back(l, b);
        assert_null(next(l));
        assert_int_equal(gpunvme_loader_close(l), GPUNVME_OK);
    }
    assert_int_equal(n, 1);
    assert_int_equal(gpunvme_dataset_close(d), GPUNVME_OK);
}

/* ---- Reading -----------------------------------------------------------------------------------
 */

static void neighbours_are_read_together(void **state)
{
    struct gpunvme_dataset *d = open_records();
    struct gpunvme_loader *l =
        open_loader(d, &(struct gpunvme_loader_options){
                           .order = {.batch = 250, .shuffle = GPUNVME_SHUFFLE_NONE}, .depth = 1});
    const struct gpunvme_loader_batch *b;
    struct gpunvme_loader_stats stats;

    (void)state;
    while ((b = next(l))) {
        check_records(b);
        give_back(l, b);
    }
    assert_int_equal(gpunvme_loader_set_epoch(l, 9), GPUNVME_OK); /* nothing more is ahead */
    gpunvme_loader_get_stats(l, &stats);
    assert_int_equal(stats.batches, 4);
    assert_int_equal(stats.samples, 1000);
    assert_int_equal(stats.nbytes, 1000 * RECORD);
    assert_true(stats.transfers <= 4 + 2 + 3); /* three files, and what was begun of epochs 1, 9 */
    close_all(l, d);
}

static void a_caller_may_keep_all_batches(void **state)
{
    struct gpunvme_dataset *d = open_records();
    struct gpunvme_loader *l =
        open_loader(d, &(struct gpunvme_loader_options){.order = {.batch = 50}, .depth = 2});
    const struct gpunvme_loader_batch *kept[20];

    (void)state;
    for (unsigned i = 0; i < 20; i++)
        kept[i] = next(l);
    for (unsigned i = 0; i < 20; i++)
        check_records(kept[i]);
    for (unsigned i = 0; i < 20; i++)
        give_back(l, kept[i]);
    assert_int_equal(gpunvme_loader_release(l, kept[0], NULL), GPUNVME_ERR_INVALID);
    assert_null(next(l));
    close_all(l, d);
}

static void buffers_are_used_again(void **state)
{
    struct gpunvme_dataset *d = open_records();
    struct gpunvme_loader *l =
        open_loader(d, &(struct gpunvme_loader_options){.order = {.batch = 10}, .depth = 2});
    const void *seen[8] = {NULL};
    unsigned n = 0;

    (void)state;
    for (unsigned i = 0; i < 300; i++) {
        const struct gpunvme_loader_batch *b = next(l);
        unsigned k = 0;

        if (!b)
            continue;
        while (k < n && seen[k] != b->ptr)
            k++;
        assert_true(k < 8);
        seen[k] = b->ptr;
        n += k == n;
        give_back(l, b);
    }
    assert_true(n <= 4);
    close_all(l, d);
}

static void waits_of_batches_are_those_of_the_loader(void **state)
{
    struct gpunvme_dataset *d = open_records();
    struct gpunvme_loader *l =
        open_loader(d, &(struct gpunvme_loader_options){.order = {.batch = 10}, .depth = 1});
    const struct gpunvme_loader_batch *b;
    struct gpunvme_loader_stats stats;
    uint64_t waited = 0;

    (void)state;
    while ((b = next(l))) {
        waited += b->stall_ns;
        give_back(l, b);
    }
    gpunvme_loader_get_stats(l, &stats);
    assert_int_equal(waited, stats.stall_ns);
    close_all(l, d);
}

/* ---- Layouts -----------------------------------------------------------------------------------
 */

/* Two data sets of samples of 64 and of 24 bytes, in turn. */
static struct gpunvme_loader *open_ragged(struct gpunvme_dataset **d,
                                          const struct gpunvme_loader_options *options)
{
    struct gpunvme_loader_source sources[2];
    struct gpunvme_loader *l;

    d[0] = open_records();
    d[1] = open_set((const char *const[]){"a"}, 1,
                    &(struct gpunvme_dataset_options){.record_nbytes = 24});
    for (unsigned i = 0; i < 2; i++)
        sources[i] = (struct gpunvme_loader_source){.dataset = d[i], .weight = 1};
    if (gpunvme_loader_open(sources, 2, options, &l))
        fail_msg("%s", gpunvme_err_detail());
    return l;
}

static void close_ragged(struct gpunvme_loader *l, struct gpunvme_dataset **d)
{
    assert_int_equal(gpunvme_loader_close(l), GPUNVME_OK);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(gpunvme_dataset_close(d[i]), GPUNVME_OK);
}

/* The valid bytes of a sample at `bytes`. */
static void check_sample(const struct gpunvme_sample *s, const uint8_t *bytes, int64_t nbytes)
{
    for (int64_t at = 0; at < nbytes; at += 8) {
        uint64_t word, expected = s->source ? (s->index * 24 + (uint64_t)at) / RECORD : s->index;

        memcpy(&word, bytes + at, 8);
        assert_int_equal(word, expected);
    }
}

static void ragged_samples_lie_one_behind_the_other(void **state)
{
    struct gpunvme_dataset *d[2];
    struct gpunvme_loader *l =
        open_ragged(d, &(struct gpunvme_loader_options){.order = {.seed = 1, .batch = 64}});
    const struct gpunvme_loader_batch *b;

    (void)state;
    while ((b = next(l))) {
        uint8_t *bytes = bytes_of(b);
        int64_t at = 0;

        assert_int_equal(b->layout, GPUNVME_LAYOUT_RAGGED);
        for (uint64_t i = 0; i < b->n; i++) {
            assert_int_equal(b->offsets[i], at);
            assert_int_equal(b->lengths[i], b->samples[i].source ? 24 : 64);
            check_sample(&b->samples[i], bytes + at, b->lengths[i]);
            at += b->lengths[i];
        }
        assert_int_equal(b->offsets[b->n], at);
        assert_int_equal(b->nbytes, at);
        free(bytes);
        give_back(l, b);
    }
    close_ragged(l, d);
}

static void padded_samples_have_rows_of_one_size(void **state)
{
    struct gpunvme_dataset *d[2];
    struct gpunvme_loader *l =
        open_ragged(d, &(struct gpunvme_loader_options){.order = {.seed = 1, .batch = 64},
                                                        .layout = GPUNVME_LAYOUT_PADDED,
                                                        .row_nbytes = 40,
                                                        .pad = 0xee});
    const struct gpunvme_loader_batch *b;

    (void)state;
    while ((b = next(l))) {
        uint8_t *bytes = bytes_of(b);
        uint64_t ncut = 0;

        assert_int_equal(b->nrows, b->n);
        assert_int_equal(b->nbytes, b->n * 40);
        for (uint64_t i = 0; i < b->n; i++) {
            assert_int_equal(b->offsets[i], i * 40);
            assert_int_equal(b->lengths[i], b->samples[i].source ? 24 : 40);
            check_sample(&b->samples[i], bytes + i * 40, b->lengths[i]);
            for (int64_t k = b->lengths[i]; k < 40; k++)
                assert_int_equal(bytes[i * 40 + (uint64_t)k], 0xee);
            ncut += !b->samples[i].source;
        }
        assert_int_equal(b->ncut, ncut);
        free(bytes);
        give_back(l, b);
    }
    close_ragged(l, d);
}

static void a_batch_whose_padding_cannot_be_filled_is_an_error(void **state)
{
    struct gpunvme_dataset *d[2];
    struct gpunvme_loader *l =
        open_ragged(d, &(struct gpunvme_loader_options){.order = {.batch = 10},
                                                        .layout = GPUNVME_LAYOUT_PADDED,
                                                        .row_nbytes = 80,
                                                        .pad = 0xa5,
                                                        .depth = 1});
    const struct gpunvme_loader_batch *b;

    (void)state;
    give_back(l, next(l));
    fills_fail = 1; /* of a batch whose lists have been used before */
    give_back(l, next(l));
    assert_int_equal(fills_fail, 0);
    assert_int_equal(gpunvme_loader_next(l, &b, 0), GPUNVME_ERR_TIMEOUT);
    b = next(l);
    assert_int_equal(b->index, 2);
    for (uint64_t i = 0; i < b->n; i++) {
        const uint8_t *row = (const uint8_t *)b->ptr + b->offsets[i];

        check_sample(&b->samples[i], row, b->lengths[i]);
        for (int64_t k = b->lengths[i]; k < 80; k++)
            assert_int_equal(row[k], 0xa5);
    }
    give_back(l, b);
    close_ragged(l, d);
}

static void packed_samples_fill_whole_rows(void **state)
{
    struct gpunvme_dataset *d[2];
    struct gpunvme_loader *l =
        open_ragged(d, &(struct gpunvme_loader_options){.order = {.seed = 1, .batch = 64},
                                                        .layout = GPUNVME_LAYOUT_PACKED,
                                                        .row_nbytes = 1000,
                                                        .pad = 0xee});
    const struct gpunvme_loader_batch *b;

    (void)state;
    while ((b = next(l))) {
        uint8_t *bytes = bytes_of(b);

        assert_int_equal(b->nbytes, b->nrows * 1000);
        assert_true(b->nbytes - (uint64_t)b->offsets[b->n] < 1000);
        for (uint64_t i = 0; i < b->n; i++)
            check_sample(&b->samples[i], bytes + b->offsets[i], b->lengths[i]);
        for (uint64_t k = (uint64_t)b->offsets[b->n]; k < b->nbytes; k++)
            assert_int_equal(bytes[k], 0xee);
        free(bytes);
        give_back(l, b);
    }
    close_ragged(l, d);
}

/* A batch of three documents of 5, 0 and 9 tokens of 2 bytes, in rows of 8 tokens. */
static const int64_t document_offsets[] = {0, 10, 10, 28};
static const struct gpunvme_loader_batch documents = {.layout = GPUNVME_LAYOUT_PACKED,
                                                      .nbytes = 32,
                                                      .n = 3,
                                                      .row_nbytes = 16,
                                                      .nrows = 2,
                                                      .offsets = document_offsets};

static void boundaries_are_the_ends_of_documents_and_of_padding(void **state)
{
    int32_t out[8], longest;
    size_t n;

    (void)state;
    assert_int_equal(gpunvme_loader_cu_seqlens(&documents, 2, false, out, 8, &n, &longest),
                     GPUNVME_OK);
    assert_int_equal(n, 4);
    assert_memory_equal(out, ((const int32_t[]){0, 5, 14, 16}), 4 * sizeof(out[0]));
    assert_int_equal(longest, 9);
}

static void boundaries_are_also_those_of_rows_if_they_are_asked_for(void **state)
{
    int32_t out[7], longest;
    size_t n;

    (void)state;
    assert_int_equal(gpunvme_loader_cu_seqlens(&documents, 2, true, out, 7, &n, &longest),
                     GPUNVME_OK);
    assert_int_equal(n, 5);
    assert_memory_equal(out, ((const int32_t[]){0, 5, 8, 14, 16}), 5 * sizeof(out[0]));
    assert_int_equal(longest, 6);
}

static void boundaries_of_a_batch_are_those_of_its_samples(void **state)
{
    struct gpunvme_dataset *d[2];
    struct gpunvme_loader *l =
        open_ragged(d, &(struct gpunvme_loader_options){.order = {.seed = 1, .batch = 64},
                                                        .layout = GPUNVME_LAYOUT_PACKED,
                                                        .row_nbytes = 1000});
    const struct gpunvme_loader_batch *b;

    (void)state;
    while ((b = next(l))) {
        int32_t out[70], longest;
        size_t n;

        assert_int_equal(gpunvme_loader_cu_seqlens(b, 8, false, out, 70, &n, &longest), GPUNVME_OK);
        assert_int_equal(n, b->n + 1 + ((uint64_t)b->offsets[b->n] < b->nbytes));
        for (uint64_t i = 0; i < b->n; i++)
            assert_int_equal(out[i + 1] - out[i], b->samples[i].source ? 3 : 8);
        assert_int_equal(out[n - 1], b->nbytes / 8);
        give_back(l, b);
    }
    close_ragged(l, d);
}

static void boundaries_that_are_no_whole_tokens_are_refused(void **state)
{
    struct gpunvme_loader_batch bad = documents;
    int32_t out[8];
    size_t n;

    (void)state;
    assert_int_equal(gpunvme_loader_cu_seqlens(&bad, 4, false, out, 8, &n, NULL),
                     GPUNVME_ERR_INVALID);
    assert_non_null(strstr(gpunvme_err_detail(), "at byte 10"));
    assert_int_equal(gpunvme_loader_cu_seqlens(&bad, 2, false, out, 3, &n, NULL),
                     GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_loader_cu_seqlens(&bad, 0, false, out, 8, &n, NULL),
                     GPUNVME_ERR_INVALID);
    bad.nbytes = (uint64_t)1 << 32;
    assert_int_equal(gpunvme_loader_cu_seqlens(&bad, 2, false, out, 8, &n, NULL),
                     GPUNVME_ERR_LIMIT);
    bad.layout = GPUNVME_LAYOUT_ROWS;
    assert_int_equal(gpunvme_loader_cu_seqlens(&bad, 2, false, out, 8, &n, NULL),
                     GPUNVME_ERR_INVALID);
}

/* ---- Samples that can't be read ----------------------------------------------------------------
 */

/* A set of its own whose last ten records of 100 are cut off after it was opened. */
static struct gpunvme_dataset *open_damaged(void)
{
    struct gpunvme_dataset *d;

    write_records("damaged", 0, 100);
    d = open_set((const char *const[]){"damaged"}, 1,
                 &(struct gpunvme_dataset_options){.record_nbytes = RECORD});
    assert_int_equal(truncate(in_dir("damaged"), 90 * (off_t)RECORD), 0);
    return d;
}

static void a_sample_that_cannot_be_read_is_named(void **state)
{
    struct gpunvme_dataset *d = open_damaged();
    struct gpunvme_loader *l =
        open_loader(d, &(struct gpunvme_loader_options){
                           .order = {.batch = 20, .shuffle = GPUNVME_SHUFFLE_NONE}, .depth = 3});
    const struct gpunvme_loader_batch *b;
    struct gpunvme_sampler_state at;

    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        b = next(l);
        check_records(b);
        give_back(l, b);
    }
    for (unsigned i = 0; i < 2; i++) { /* and the batch is not lost */
        assert_int_equal(gpunvme_loader_next(l, &b, 0), GPUNVME_ERR_RANGE);
        assert_non_null(strstr(gpunvme_err_detail(), "sample 90: "));
        assert_non_null(strstr(gpunvme_err_detail(), "/damaged: byte 5760: "));
        gpunvme_loader_get_state(l, &at);
        assert_int_equal(at.taken, 80);
    }
    write_records("damaged", 0, 100);
    /* What was read ahead for the next call has failed already, or fell into the writing. */
    while (gpunvme_loader_next(l, &b, 0))
        assert_non_null(strstr(gpunvme_err_detail(), "/damaged: byte "));
    assert_int_equal(b->n, 20);
    check_records(b);
    give_back(l, b);
    assert_null(next(l));
    close_all(l, d);
}

static void samples_that_cannot_be_read_are_skipped_and_counted(void **state)
{
    for (unsigned shuffle = 0; shuffle < 3; shuffle++) {
        struct gpunvme_dataset *d = open_damaged();
        struct gpunvme_loader *l = open_loader(
            d, &(struct gpunvme_loader_options){
                   .order = {.batch = 30, .shuffle = shuffle, .block = 8, .last = GPUNVME_LAST_PAD},
                   .on_error = GPUNVME_ON_ERROR_SKIP,
                   .depth = 2});
        const struct gpunvme_loader_batch *b;
        struct gpunvme_loader_stats stats;
        uint8_t seen[100] = {0};
        uint64_t npadded = 0, n = 0;

        (void)state;
        while ((b = next(l))) {
            check_records(b);
            for (uint64_t i = 0; i < b->n - b->npadded; i++)
                seen[b->samples[i].index]++;
            npadded += b->npadded;
            n += b->n;
            give_back(l, b);
        }
        for (unsigned i = 0; i < 100; i++)
            assert_int_equal(seen[i], i < 90);
        assert_int_equal(n, 90 + npadded);
        gpunvme_loader_get_stats(l, &stats);
        assert_true(stats.nskipped >= 10 && stats.nskipped <= 30);
        assert_int_equal(stats.nskipped + n, 120);
        close_all(l, d);
    }
}

static void bytes_ahead_are_those_of_batches_ahead(void **state)
{
    struct gpunvme_dataset *d = open_damaged();
    struct gpunvme_loader *l =
        open_loader(d, &(struct gpunvme_loader_options){.order = {.batch = 10},
                                                        .on_error = GPUNVME_ON_ERROR_SKIP,
                                                        .depth = 8,
                                                        .depth_nbytes = 30 * (uint64_t)RECORD});
    struct gpunvme_loader_stats stats;

    (void)state;
    for (unsigned i = 0; i < 60; i++) {
        const struct gpunvme_loader_batch *b;

        do { /* so that batches lose samples before next looks at them */
            gpunvme_loader_prefetch(l);
            gpunvme_loader_get_stats(l, &stats);
        } while (stats.ready < stats.ahead);
        assert_in_range(stats.ahead, 3, 5);
        b = next(l);
        if (b)
            give_back(l, b);
    }
    close_all(l, d);
}

static void others_take_the_places_of_samples_that_cannot_be_read(void **state)
{
    struct gpunvme_dataset *d = open_damaged();
    struct gpunvme_loader *l =
        open_loader(d, &(struct gpunvme_loader_options){.order = {.seed = 2, .batch = 25},
                                                        .on_error = GPUNVME_ON_ERROR_SUBSTITUTE});
    const struct gpunvme_loader_batch *b;
    struct gpunvme_loader_stats stats;
    uint64_t zeroes = 0;

    (void)state;
    while ((b = next(l))) {
        assert_int_equal(b->n, 25);
        check_records(b);
        for (uint64_t i = 0; i < b->n; i++)
            zeroes += !b->samples[i].index;
        give_back(l, b);
    }
    assert_int_equal(zeroes, 11); /* the next one of the last that can be read is the first */
    gpunvme_loader_get_stats(l, &stats);
    assert_int_equal(stats.nsubstituted, 10);
    close_all(l, d);
}

static void a_shard_that_is_missing_is_named(void **state)
{
    const char *uris[3] = {in_dir("shard-0"), in_dir("shard-1"), in_dir("shard-2")};
    const struct gpunvme_dataset_options records = {.record_nbytes = RECORD};
    struct gpunvme_dataset *d = (void *)1;

    (void)state;
    write_records("shard-0", 0, 100);
    write_records("shard-2", 200, 100);
    assert_int_equal(gpunvme_dataset_open(NULL, uris, 3, &records, &d), GPUNVME_ERR_NOT_FOUND);
    assert_null(d);
    assert_non_null(strstr(gpunvme_err_detail(), "shard-1"));
}

static void shards_that_are_removed_or_replaced_are_read_as_they_were(void **state)
{
    struct gpunvme_dataset *d;
    struct gpunvme_loader *l;
    const struct gpunvme_loader_batch *b;
    uint64_t n = 0;

    (void)state;
    write_records("shard-0", 0, 100);
    write_records("shard-1", 100, 100);
    write_records("other", 5000, 100);
    d = open_set((const char *const[]){"shard-0", "shard-1"}, 2,
                 &(struct gpunvme_dataset_options){.record_nbytes = RECORD});
    l = open_loader(d, &(struct gpunvme_loader_options){.order = {.batch = 10}, .depth = 1});
    assert_int_equal(unlink(in_dir("shard-0")), 0);
    assert_int_equal(rename(in_dir("other"), in_dir("shard-1")), 0);
    while ((b = next(l))) {
        check_records(b);
        n += b->n;
        give_back(l, b);
    }
    assert_int_equal(n, 200);
    close_all(l, d);
}

/* ---- Checksums ---------------------------------------------------------------------------------
 */

static void change_summed(unsigned sample)
{
    FILE *f = fopen(in_dir("summed"), "r+");

    assert_non_null(f);
    assert_int_equal(fseek(f, (long)(4 * RECORD * sample + 100), SEEK_SET), 0);
    fputc(0xff, f);
    assert_int_equal(fclose(f), 0);
}

/* Records of "summed", 100 of them, by an index with checksums, two of which changed afterwards. */
static struct gpunvme_dataset *open_changed(void)
{
    const struct gpunvme_dataset_index_options checksums = {.checksums = true};
    const struct gpunvme_dataset_options records = {.record_nbytes = 4 * RECORD};
    struct gpunvme_dataset *d;

    write_records("summed", 0, 400);
    d = open_set((const char *const[]){"summed"}, 1, &records);
    if (gpunvme_dataset_write_index(d, in_dir("summed.gnvidx"), &checksums))
        fail_msg("%s", gpunvme_err_detail());
    assert_int_equal(gpunvme_dataset_close(d), GPUNVME_OK);
    d = open_set((const char *const[]){"summed.gnvidx"}, 1, NULL);
    change_summed(33);
    change_summed(60);
    return d;
}

static void a_sample_with_another_checksum_is_named(void **state)
{
    for (unsigned mem = 0; mem <= GPUNVME_MEM_GPU; mem++) {
        struct gpunvme_dataset *d = open_changed();
        struct gpunvme_loader *l =
            open_loader(d, &(struct gpunvme_loader_options){
                               .order = {.batch = 30, .shuffle = GPUNVME_SHUFFLE_NONE},
                               .mem = mem,
                               .verify = true});
        const struct gpunvme_loader_batch *b = next(l);

        (void)state;
        assert_int_equal(b->n, 30);
        give_back(l, b);
        for (unsigned i = 0; i < 2; i++) {
            assert_int_equal(gpunvme_loader_next(l, &b, 0), GPUNVME_ERR_VERIFY);
            assert_non_null(strstr(gpunvme_err_detail(), "sample 33: "));
            assert_non_null(strstr(gpunvme_err_detail(), "/summed: byte 8448: its checksum is "));
        }
        close_all(l, d);
    }
}

static void samples_with_another_checksum_are_skipped_and_counted(void **state)
{
    struct gpunvme_dataset *d = open_changed();
    struct gpunvme_loader *l =
        open_loader(d, &(struct gpunvme_loader_options){.order = {.seed = 3, .batch = 16},
                                                        .on_error = GPUNVME_ON_ERROR_SKIP,
                                                        .mem = GPUNVME_MEM_GPU,
                                                        .verify = true});
    const struct gpunvme_loader_batch *b;
    struct gpunvme_loader_stats stats;
    uint8_t seen[100] = {0};

    (void)state;
    while ((b = next(l))) {
        for (uint64_t i = 0; i < b->n; i++)
            seen[b->samples[i].index]++;
        give_back(l, b);
    }
    for (unsigned i = 0; i < 100; i++)
        assert_int_equal(seen[i], i != 33 && i != 60);
    gpunvme_loader_get_stats(l, &stats);
    assert_int_equal(stats.nskipped, 2);
    close_all(l, d);
}

static void others_take_the_places_of_samples_with_another_checksum(void **state)
{
    for (unsigned shuffle = 0; shuffle < 3; shuffle++) {
        struct gpunvme_dataset *d = open_changed();
        struct gpunvme_loader *l = open_loader(
            d, &(struct gpunvme_loader_options){
                   .order = {.seed = 3, .batch = 20, .shuffle = shuffle, .block = 8, .window = 40},
                   .on_error = GPUNVME_ON_ERROR_SUBSTITUTE,
                   .verify = true});
        const struct gpunvme_loader_batch *b;
        struct gpunvme_loader_stats stats;
        uint8_t seen[100] = {0};

        (void)state;
        while ((b = next(l))) {
            assert_int_equal(b->n, 20);
            for (uint64_t i = 0; i < b->n; i++)
                seen[b->samples[i].index]++;
            give_back(l, b);
        }
        for (unsigned i = 0; i < 100; i++)
            assert_int_equal(seen[i], i == 33 || i == 60 ? 0 : i == 34 || i == 61 ? 2 : 1);
        gpunvme_loader_get_stats(l, &stats);
        assert_int_equal(stats.nsubstituted, 2);
        close_all(l, d);
    }
}

static void the_first_sample_takes_the_place_of_a_last_one_with_another_checksum(void **state)
{
    struct gpunvme_dataset *d = open_changed();
    struct gpunvme_loader *l;
    const struct gpunvme_loader_batch *b;

    (void)state;
    change_summed(99);
    l = open_loader(
        d, &(struct gpunvme_loader_options){.order = {.batch = 30, .shuffle = GPUNVME_SHUFFLE_NONE},
                                            .on_error = GPUNVME_ON_ERROR_SUBSTITUTE,
                                            .verify = true});
    for (unsigned epoch = 0; epoch < 2; epoch++) {
        for (unsigned i = 0; i < 4; i++) {
            b = next(l);
            assert_int_equal(b->nsubstituted, i > 0); /* 33, 60 and 99 */
            if (i < 3)
                give_back(l, b);
        }
        assert_int_equal(b->n, 10);
        assert_int_equal(b->samples[9].index, 0);
        assert_int_equal(*(const uint64_t *)((const uint8_t *)b->ptr + b->offsets[9]), 0);
        give_back(l, b);
        assert_null(next(l));
    }
    close_all(l, d);
}

static void a_substitute_whose_checksum_differs_once_is_read_again(void **state)
{
    struct gpunvme_dataset *d = open_changed();
    struct gpunvme_loader *l = open_loader(
        d, &(struct gpunvme_loader_options){.order = {.batch = 34, .shuffle = GPUNVME_SHUFFLE_NONE},
                                            .on_error = GPUNVME_ON_ERROR_SUBSTITUTE,
                                            .depth = 1,
                                            .verify = true});
    const struct gpunvme_loader_batch *b;

    (void)state;
    differs = 34 * 4; /* the first word of sample 34, which takes the place of 33 */
    sums_differ = 1;
    b = next(l);
    assert_int_equal(sums_differ, 0);
    assert_int_equal(b->samples[33].index, 34);
    assert_int_equal(b->nsubstituted, 1);
    give_back(l, b);
    close_all(l, d);
}

static void a_batch_whose_checksums_cannot_be_computed_is_an_error(void **state)
{
    for (unsigned policy = 0; policy <= GPUNVME_ON_ERROR_SUBSTITUTE; policy++) {
        struct gpunvme_dataset *d = open_changed();
        struct gpunvme_loader *l =
            open_loader(d, &(struct gpunvme_loader_options){
                               .order = {.batch = 20, .shuffle = GPUNVME_SHUFFLE_NONE},
                               .on_error = policy,
                               .mem = GPUNVME_MEM_GPU,
                               .depth = 1,
                               .verify = true});
        const struct gpunvme_loader_batch *b;

        (void)state;
        gpu_sums_error = GPUNVME_ERR_TIMEOUT;
        assert_int_equal(gpunvme_loader_next(l, &b, 0), GPUNVME_ERR_TIMEOUT);
        assert_null(b);
        gpu_sums_error = GPUNVME_OK;
        while (gpunvme_loader_next(l, &b, 0)) /* what was read for it may have been compared */
            continue;
        assert_int_equal(b->n, 20);
        assert_int_equal(b->samples[0].index, 0);
        give_back(l, b);
        close_all(l, d);
    }
}

static void a_changed_sample_is_given_where_nobody_verifies(void **state)
{
    struct gpunvme_dataset *d = open_changed();
    struct gpunvme_loader *l =
        open_loader(d, &(struct gpunvme_loader_options){.order = {.batch = 100}});
    const struct gpunvme_loader_batch *b = next(l);

    (void)state;
    assert_int_equal(b->n, 100);
    give_back(l, b);
    close_all(l, d);
}

static void samples_that_are_cut_off_are_not_compared(void **state)
{
    struct gpunvme_dataset *d = open_changed();
    struct gpunvme_loader *l =
        open_loader(d, &(struct gpunvme_loader_options){.order = {.batch = 100},
                                                        .layout = GPUNVME_LAYOUT_PADDED,
                                                        .row_nbytes = 128,
                                                        .verify = true});
    const struct gpunvme_loader_batch *b = next(l);

    (void)state;
    assert_int_equal(b->n, 100);
    assert_int_equal(b->ncut, 100);
    give_back(l, b);
    close_all(l, d);
}

static void a_sample_that_was_mended_is_given_by_the_next_call(void **state)
{
    struct gpunvme_dataset *d = open_changed();
    struct gpunvme_loader *l = open_loader(
        d,
        &(struct gpunvme_loader_options){
            .order = {.batch = 100, .shuffle = GPUNVME_SHUFFLE_NONE}, .depth = 1, .verify = true});
    const struct gpunvme_loader_batch *b;

    (void)state;
    assert_int_equal(gpunvme_loader_next(l, &b, 0), GPUNVME_ERR_VERIFY);
    write_records("summed", 0, 400);
    /* What was read ahead for the next call may have fallen into the writing. */
    while (gpunvme_loader_next(l, &b, 0))
        assert_non_null(strstr(gpunvme_err_detail(), "/summed: byte "));
    assert_int_equal(b->n, 100);
    give_back(l, b);
    close_all(l, d);
}

/* ---- Bad input ---------------------------------------------------------------------------------
 */

static void refused(struct gpunvme_dataset *d, const struct gpunvme_loader_options *options,
                    gpunvme_err_t expected, const char *text)
{
    struct gpunvme_loader *l = (void *)1;
    gpunvme_err_t err =
        gpunvme_loader_open(&(struct gpunvme_loader_source){.dataset = d}, 1, options, &l);

    assert_null(l);
    if (err != expected || !strstr(gpunvme_err_detail(), text))
        fail_msg("%s: \"%s\" has no \"%s\"", gpunvme_err_name(err), gpunvme_err_detail(), text);
}

static void a_batch_larger_than_any_memory_is_an_error(void **state)
{
    struct gpunvme_dataset *d;
    struct gpunvme_loader *l;
    const struct gpunvme_loader_batch *b;

    (void)state;
    write_records("bytes", 0, 65536 / RECORD);
    d = open_set((const char *const[]){"bytes"}, 1,
                 &(struct gpunvme_dataset_options){.record_nbytes = 1});
    l = open_loader(d, &(struct gpunvme_loader_options){.order = {.batch = 65536},
                                                        .layout = GPUNVME_LAYOUT_PADDED,
                                                        .row_nbytes = (uint64_t)1 << 48});
    assert_int_equal(gpunvme_loader_next(l, &b, 0), GPUNVME_ERR_LIMIT);
    assert_null(b);
    close_all(l, d);
}

static void bad_options_are_refused(void **state)
{
    const struct gpunvme_loader_options good = {.order = {.batch = 10}};
    struct gpunvme_loader_options bad[8];
    struct gpunvme_dataset *d = open_records(), *empty;
    struct gpunvme_loader *l;

    (void)state;
    for (unsigned i = 0; i < 8; i++)
        bad[i] = good;
    bad[0].order.batch = 0;
    bad[1].layout = 99;
    bad[2].on_error = 99;
    bad[3].mem = 99;
    bad[4].depth = GPUNVME_LOADER_MAX_DEPTH + 1;
    bad[5].layout = GPUNVME_LAYOUT_PADDED;
    bad[6].row_nbytes = 7;
    bad[7].pad = 256;
    for (unsigned i = 0; i < 8; i++)
        refused(d, &bad[i], GPUNVME_ERR_INVALID,
                (const char *[]){"batch", "layout", "on_error", "mem", "depth", "row_nbytes",
                                 "row_nbytes", "pad"}[i]);
    refused(d, &(struct gpunvme_loader_options){.order = {.batch = 10}, .verify = true},
            GPUNVME_ERR_INVALID, "data set 0 has no checksums");
    refused(NULL, &good, GPUNVME_ERR_INVALID, "data set 0 is NULL");
    write_records("empty", 0, 0);
    empty = open_set((const char *const[]){"empty"}, 1,
                     &(struct gpunvme_dataset_options){.record_nbytes = RECORD});
    refused(empty, &good, GPUNVME_ERR_INVALID, "no samples");
    assert_int_equal(gpunvme_loader_open(NULL, 0, &good, &l), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_loader_close(NULL), GPUNVME_OK);
    l = open_loader(d, &good);
    assert_int_equal(gpunvme_loader_set_depth(l, 0), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_loader_set_depth(l, 65), GPUNVME_ERR_INVALID);
    close_all(l, d);
    assert_int_equal(gpunvme_dataset_close(empty), GPUNVME_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rank_gets_its_samples_and_all_get_each_once),
        cmocka_unit_test(the_order_is_the_samplers),
        cmocka_unit_test(three_ranks_go_on_where_eight_stopped),
        cmocka_unit_test(a_state_of_any_point_goes_on_there),
        cmocka_unit_test(an_epoch_that_is_set_begins_with_its_first_batch),
        cmocka_unit_test(a_state_of_other_data_is_refused),
        cmocka_unit_test(ranks_without_samples_get_empty_batches),
        cmocka_unit_test(neighbours_are_read_together),
        cmocka_unit_test(a_caller_may_keep_all_batches),
        cmocka_unit_test(buffers_are_used_again),
        cmocka_unit_test(waits_of_batches_are_those_of_the_loader),
        cmocka_unit_test(ragged_samples_lie_one_behind_the_other),
        cmocka_unit_test(padded_samples_have_rows_of_one_size),
        cmocka_unit_test(a_batch_whose_padding_cannot_be_filled_is_an_error),
        cmocka_unit_test(packed_samples_fill_whole_rows),
        cmocka_unit_test(boundaries_are_the_ends_of_documents_and_of_padding),
        cmocka_unit_test(boundaries_are_also_those_of_rows_if_they_are_asked_for),
        cmocka_unit_test(boundaries_of_a_batch_are_those_of_its_samples),
        cmocka_unit_test(boundaries_that_are_no_whole_tokens_are_refused),
        cmocka_unit_test(a_sample_that_cannot_be_read_is_named),
        cmocka_unit_test(samples_that_cannot_be_read_are_skipped_and_counted),
        cmocka_unit_test(bytes_ahead_are_those_of_batches_ahead),
        cmocka_unit_test(others_take_the_places_of_samples_that_cannot_be_read),
        cmocka_unit_test(a_shard_that_is_missing_is_named),
        cmocka_unit_test(shards_that_are_removed_or_replaced_are_read_as_they_were),
        cmocka_unit_test(a_sample_with_another_checksum_is_named),
        cmocka_unit_test(samples_with_another_checksum_are_skipped_and_counted),
        cmocka_unit_test(others_take_the_places_of_samples_with_another_checksum),
        cmocka_unit_test(the_first_sample_takes_the_place_of_a_last_one_with_another_checksum),
        cmocka_unit_test(a_substitute_whose_checksum_differs_once_is_read_again),
        cmocka_unit_test(a_batch_whose_checksums_cannot_be_computed_is_an_error),
        cmocka_unit_test(a_changed_sample_is_given_where_nobody_verifies),
        cmocka_unit_test(samples_that_are_cut_off_are_not_compared),
        cmocka_unit_test(a_sample_that_was_mended_is_given_by_the_next_call),
        cmocka_unit_test(a_batch_larger_than_any_memory_is_an_error),
        cmocka_unit_test(bad_options_are_refused),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
