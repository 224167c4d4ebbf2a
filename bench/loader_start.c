/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What it takes to begin, and to resume, with very many samples of one size. Prints a line of JSON.
 *
 *   loader_start FOLDER [SAMPLES [RUNS]]        (1000000000 samples of 4 KiB, 5 runs)
 *
 * Makes a sparse file of so many samples in the folder, which takes no room, and removes it. A
 * start is from nothing to the first batch of 512 in host memory: the data set, the loader, the
 * reads. A resume is from a state in the middle of the epoch to the first batch there, by a loader
 * that is open. Times are medians. Memory is what the process has grown by in the first run,
 * batches included, and what the list of samples takes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"
#include "gpunvme/loader.h"

#define SAMPLE 4096u
#define BATCH  512u

static void check(const char *what, gpunvme_err_t err)
{
    if (err) {
        fprintf(stderr, "loader_start: %s: %s: %s\n", what, gpunvme_err_text(err),
                gpunvme_err_detail());
        exit(1);
    }
}

/* Bytes of memory that are the process's own now. */
static double own_nbytes(void)
{
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    double total = 0, kib;
    char line[256];

    while (f && fgets(line, sizeof(line), f))
        if (sscanf(line, "Private_Dirty: %lf", &kib) == 1)
            total += kib * 1024;
    if (f)
        fclose(f);
    return total;
}

static void take_one(struct gpunvme_loader *l)
{
    const struct gpunvme_loader_batch *batch;

    check("next", gpunvme_loader_next(l, &batch, 0));
    check("release", batch ? gpunvme_loader_release(l, batch, NULL) : GPUNVME_ERR_RANGE);
}

int main(int argc, char **argv)
{
    const struct gpunvme_dataset_options records = {.record_nbytes = SAMPLE};
    const struct gpunvme_loader_options options = {.order = {.seed = 1, .batch = BATCH}};
    const uint64_t n = argc > 2 ? strtoull(argv[2], NULL, 10) : 1000000000;
    const size_t runs = argc > 3 ? strtoull(argv[3], NULL, 10) : 5;
    double starts[64], resumes[64], before, grown = 0;
    struct gpunvme_loader_source source = {0};
    struct gpunvme_dataset_info info = {0};
    struct gpunvme_sampler_state state;
    struct gpunvme_loader *l;
    const char *uri;
    char path[4096];
    int fd;

    if (argc < 2 || !n || !runs || runs > 64) {
        fprintf(stderr, "usage: loader_start FOLDER [SAMPLES [RUNS]]\n");
        return 2;
    }
    snprintf(path, sizeof(path), "%s/loader-start-XXXXXX", argv[1]);
    fd = mkstemp(path);
    if (fd < 0 || ftruncate(fd, (off_t)(n * SAMPLE))) {
        perror(path);
        return 1;
    }
    uri = path;
    before = own_nbytes();
    for (size_t i = 0; i < runs; i++) {
        double began = bench_now_s();

        check("data set", gpunvme_dataset_open(NULL, &uri, 1, &records, &source.dataset));
        check("loader", gpunvme_loader_open(&source, 1, &options, &l));
        take_one(l);
        starts[i] = bench_now_s() - began;
        gpunvme_loader_get_state(l, &state);
        state.taken = n / (runs + 1) * (i + 1) / BATCH * BATCH;
        began = bench_now_s();
        check("state", gpunvme_loader_set_state(l, &state));
        take_one(l);
        resumes[i] = bench_now_s() - began;
        if (own_nbytes() - before > grown)
            grown = own_nbytes() - before;
        gpunvme_dataset_get_info(source.dataset, &info);
        check("close", gpunvme_loader_close(l));
        check("close", gpunvme_dataset_close(source.dataset));
    }
    close(fd);
    unlink(path);
    printf("{\"samples\": %llu, \"sample_bytes\": %u, \"batch\": %u, \"runs\": %zu, "
           "\"start_s\": %.6f, \"resume_s\": %.6f, \"memory_bytes\": %.0f, "
           "\"index_bytes\": %llu}\n",
           (unsigned long long)n, SAMPLE, BATCH, runs, bench_stat(starts, (unsigned)runs).median,
           bench_stat(resumes, (unsigned)runs).median, grown,
           (unsigned long long)info.index_nbytes);
    return 0;
}
