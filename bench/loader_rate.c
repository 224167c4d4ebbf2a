/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How fast the loader brings batches of samples of one size, to a consumer that takes each and
 * gives it back at once. Prints a line of JSON.
 *
 *   loader_rate FOLDER [option=value …]
 *
 *   make=BYTES      makes `shards` files of so many bytes in the folder, and ends
 *   shards=100      files shard-N.bin of the folder
 *   sample=4096     bytes of a sample
 *   batch=512  depth=4  mem=host|pinned|gpu  shuffle=epoch|blocks|none
 *   seconds=3       measured, after one second to warm up
 *   on=0|1          1: batches are given back behind CUDA's default stream
 *   plan=0|1        1: counts what the order and the places cost, and reads nothing
 *   pace=0          bytes a second that the consumer takes at most; 0: as many as there are
 *   verify=0|1      1: opens an index with checksums, which it makes; the loader compares them
 *
 * Each word of a file is made of the file's number and its place: the first and the last word of
 * each sample of the last batch are compared. GB are 10^9 bytes; CPU seconds are the process's.
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/units.h"
#include "bench.h"
#include "gpunvme/loader.h"
#include "gpunvme/memory.h"

struct job {
    const char *folder;
    uint64_t make, shards, sample, batch, depth, seconds, on, plan, pace, verify;
    const char *mem, *shuffle;
    char **paths;
};

static void check(const char *what, gpunvme_err_t err)
{
    if (err) {
        fprintf(stderr, "loader_rate: %s: %s: %s\n", what, gpunvme_err_text(err),
                gpunvme_err_detail());
        exit(1);
    }
}

static bool parse(struct job *j, const char *arg)
{
    const struct {
        const char *name;
        uint64_t *number;
        const char **text;
    } options[] = {
        {"make=", &j->make, NULL},     {"shards=", &j->shards, NULL},
        {"sample=", &j->sample, NULL}, {"batch=", &j->batch, NULL},
        {"depth=", &j->depth, NULL},   {"seconds=", &j->seconds, NULL},
        {"on=", &j->on, NULL},         {"plan=", &j->plan, NULL},
        {"pace=", &j->pace, NULL},     {"verify=", &j->verify, NULL},
        {"mem=", NULL, &j->mem},       {"shuffle=", NULL, &j->shuffle},
    };

    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
        size_t n = strlen(options[i].name);

        if (strncmp(arg, options[i].name, n))
            continue;
        if (options[i].text)
            *options[i].text = arg + n;
        return options[i].text || !base_parse_size(arg + n, options[i].number);
    }
    return false;
}

static uint64_t word_of(uint64_t file, uint64_t offset)
{
    return (file << 40 | offset / 8) * UINT64_C(0x9e3779b97f4a7c15);
}

static void make(const struct job *j)
{
    static uint64_t words[1 << 17];

    for (uint64_t i = 0; i < j->shards; i++) {
        FILE *file = fopen(j->paths[i], "w");

        for (uint64_t at = 0; file && at < j->make; at += sizeof(words)) {
            size_t some = j->make - at < sizeof(words) ? (size_t)(j->make - at) : sizeof(words);

            for (size_t k = 0; k < some / 8; k++)
                words[k] = word_of(i, at + k * 8);
            fwrite(words, 1, some, file);
        }
        if (!file || ferror(file) || fclose(file)) {
            perror(j->paths[i]);
            exit(1);
        }
    }
}

static void verify(const struct gpunvme_dataset *d, const struct gpunvme_loader_batch *batch)
{
    for (uint64_t i = 0; i < 2 * batch->n; i++) {
        const uint64_t in = i % 2 ? (uint64_t)batch->lengths[i / 2] - 8 : 0;
        struct gpunvme_data_range where;
        uint64_t word = 0;

        check("place", gpunvme_dataset_at(d, batch->samples[i / 2].index, &where));
        check("compare", gpunvme_mem_copy(&word, GPUNVME_MEM_HOST,
                                          (uint8_t *)batch->ptr + batch->offsets[i / 2] + in,
                                          (enum gpunvme_mem)batch->mem, 8));
        if (word != word_of(where.file, where.offset + in)) {
            fprintf(stderr, "loader_rate: wrong bytes in sample %llu\n",
                    (unsigned long long)batch->samples[i / 2].index);
            exit(1);
        }
    }
}

/* One batch, of an endless number. */
static const struct gpunvme_loader_batch *take(struct gpunvme_loader *l)
{
    const struct gpunvme_loader_batch *batch = NULL;

    while (!batch)
        check("next", gpunvme_loader_next(l, &batch, 0));
    return batch;
}

static void give_back(const struct job *j, struct gpunvme_loader *l,
                      const struct gpunvme_loader_batch *batch)
{
    const struct gpunvme_order order = {.flags = GPUNVME_AFTER_STREAM};

    check("release", gpunvme_loader_release(l, batch, j->on ? &order : NULL));
}

/* Takes batches until `end`, no faster than the pace. */
static void take_until(const struct job *j, struct gpunvme_loader *l, double end)
{
    const double began = bench_now_s();
    double nbytes = 0;

    while (bench_now_s() < end) {
        const struct gpunvme_loader_batch *batch = take(l);
        double early;

        nbytes += (double)batch->nbytes;
        give_back(j, l, batch);
        early = j->pace ? began + nbytes / (double)j->pace - bench_now_s() : 0;
        if (early > 0)
            usleep((useconds_t)(early * 1e6));
    }
}

static void measure(const struct job *j, struct gpunvme_dataset *d, struct gpunvme_loader *l)
{
    const struct gpunvme_loader_batch *batch;
    struct gpunvme_loader_stats begin, end;
    double began, cpu, wall;
    struct gpunvme_path path;

    take_until(j, l, bench_now_s() + 1);
    gpunvme_loader_get_stats(l, &begin);
    began = bench_now_s();
    cpu = bench_cpu_s();
    take_until(j, l, began + (double)j->seconds);
    wall = bench_now_s() - began;
    cpu = bench_cpu_s() - cpu;
    gpunvme_loader_get_stats(l, &end);
    batch = take(l);
    verify(d, batch);
    gpunvme_store_path(gpunvme_dataset_store(d, 0), &path);
    {
        const double nbytes = (double)(end.nbytes - begin.nbytes);
        const double samples = (double)(end.samples - begin.samples);

        printf(
            "{\"mem\": \"%s\", \"shuffle\": \"%s\", \"shards\": %llu, \"sample_bytes\": %llu, "
            "\"batch\": %llu, \"depth\": %llu, \"on_stream\": %llu, \"verify\": %llu, "
            "\"pace_bytes_per_s\": %llu, "
            "\"samples_per_s\": %.0f, "
            "\"gb_per_s\": %.4f, \"cpu_s_per_gb\": %.4f, \"cores\": %.2f, \"stall_share\": %.4f, "
            "\"stalls_per_batch\": %.3f, \"samples_per_transfer\": %.2f, \"how\": \"%s\"}\n",
            j->mem, j->shuffle, (unsigned long long)j->shards, (unsigned long long)j->sample,
            (unsigned long long)j->batch, (unsigned long long)j->depth, (unsigned long long)j->on,
            (unsigned long long)j->verify, (unsigned long long)j->pace, samples / wall,
            nbytes / wall * 1e-9, cpu / nbytes * 1e9, cpu / wall,
            (double)(end.stall_ns - begin.stall_ns) * 1e-9 / wall,
            (double)(end.stalls - begin.stalls) / (double)(end.batches - begin.batches),
            samples / (double)(end.transfers - begin.transfers), path.how);
    }
}

/* The order and the places alone. */
static void measure_plan(const struct job *j, const struct gpunvme_dataset *d,
                         const struct gpunvme_sampler_options *order)
{
    struct gpunvme_sample *samples = calloc(j->batch, sizeof(*samples));
    struct gpunvme_dataset_info info;
    struct gpunvme_sampler *s;
    double began, listed = 0, placed = 0;
    uint64_t n = 0, sum = 0;

    gpunvme_dataset_get_info(d, &info);
    check("sampler",
          samples ? gpunvme_sampler_create(
                        &(struct gpunvme_sampler_source){.nsamples = info.nsamples}, 1, order, &s)
                  : GPUNVME_ERR_NOMEM);
    while (listed + placed < (double)j->seconds) {
        struct gpunvme_slice slice;

        if (!gpunvme_sampler_next(s, &slice))
            continue;
        began = bench_now_s();
        gpunvme_sampler_list(s, slice.epoch, slice.first, (size_t)slice.n, samples);
        listed += bench_now_s() - began;
        began = bench_now_s();
        for (uint64_t i = 0; i < slice.n; i++) {
            struct gpunvme_data_range where;

            check("place", gpunvme_dataset_at(d, samples[i].index, &where));
            sum += where.offset;
        }
        placed += bench_now_s() - began;
        n += slice.n;
    }
    printf("{\"samples\": %llu, \"order_ns\": %.1f, \"place_ns\": %.1f, \"sum\": %llu}\n",
           (unsigned long long)info.nsamples, listed / (double)n * 1e9, placed / (double)n * 1e9,
           (unsigned long long)sum);
    gpunvme_sampler_destroy(s);
    free(samples);
}

static void open_data(const struct job *j, struct gpunvme_dataset **out)
{
    const struct gpunvme_dataset_index_options checksums = {.checksums = true};
    const char *uri;
    char *index;

    check("data set",
          gpunvme_dataset_open(NULL, (const char *const *)j->paths, j->shards,
                               &(struct gpunvme_dataset_options){.record_nbytes = j->sample}, out));
    if (!j->verify)
        return;
    if (asprintf(&index, "%s/rate.gnvidx", j->folder) < 0)
        check("memory", GPUNVME_ERR_NOMEM);
    uri = index;
    check("index", gpunvme_dataset_write_index(*out, index, &checksums));
    check("close", gpunvme_dataset_close(*out));
    check("data set", gpunvme_dataset_open(NULL, &uri, 1, NULL, out));
    free(index);
}

int main(int argc, char **argv)
{
    struct job j = {.shards = 100,
                    .sample = 4096,
                    .batch = 512,
                    .depth = 4,
                    .seconds = 3,
                    .mem = "host",
                    .shuffle = "epoch"};
    struct gpunvme_loader_options options = {0};
    struct gpunvme_loader_source source = {0};
    struct gpunvme_loader *l;

    for (int i = 2; i < argc; i++)
        if (!parse(&j, argv[i])) {
            fprintf(stderr, "loader_rate: %s: no such option\n", argv[i]);
            return 2;
        }
    if (argc < 2 || !j.shards || !j.sample || !j.batch) {
        fprintf(stderr, "usage: loader_rate FOLDER [option=value ...]\n");
        return 2;
    }
    j.folder = argv[1];
    j.paths = calloc(j.shards, sizeof(char *));
    for (uint64_t i = 0; j.paths && i < j.shards; i++)
        if (asprintf(&j.paths[i], "%s/shard-%llu.bin", j.folder, (unsigned long long)i) < 0)
            check("memory", GPUNVME_ERR_NOMEM);
    if (!j.paths)
        check("memory", GPUNVME_ERR_NOMEM);
    if (j.make) {
        make(&j);
        return 0;
    }
    open_data(&j, &source.dataset);
    options.order = (struct gpunvme_sampler_options){
        .seed = 1,
        .batch = j.batch,
        .shuffle = !strcmp(j.shuffle, "blocks") ? GPUNVME_SHUFFLE_BLOCKS
                   : !strcmp(j.shuffle, "none") ? GPUNVME_SHUFFLE_NONE
                                                : GPUNVME_SHUFFLE_EPOCH,
        .last = GPUNVME_LAST_DROP,
    };
    options.depth = (uint32_t)j.depth;
    options.verify = j.verify;
    options.mem = !strcmp(j.mem, "gpu")      ? GPUNVME_MEM_GPU
                  : !strcmp(j.mem, "pinned") ? GPUNVME_MEM_PINNED
                                             : GPUNVME_MEM_HOST;
    if (j.plan) {
        measure_plan(&j, source.dataset, &options.order);
    } else {
        check("loader", gpunvme_loader_open(&source, 1, &options, &l));
        measure(&j, source.dataset, l);
        check("close", gpunvme_loader_close(l));
    }
    check("close", gpunvme_dataset_close(source.dataset));
    for (uint64_t i = 0; i < j.shards; i++)
        free(j.paths[i]);
    free(j.paths);
    return 0;
}
