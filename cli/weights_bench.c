/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme weights bench: how fast tensors are loaded, by store and by memory.
 */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/units.h"
#include "cli.h"
#include "json.h"
#include "stop.h"
#include "weights.h"

/* Loads from one URI into one kind of memory. */
struct row {
    const char *uri;
    enum gpunvme_mem mem;
    size_t ntensors, nfiles;
    uint64_t nbytes;
    double *open_s, *load_s; /* of each round */
};

static const char *const memories[] = {
    [GPUNVME_MEM_HOST] = "host", [GPUNVME_MEM_PINNED] = "pinned", [GPUNVME_MEM_GPU] = "gpu"};

static gpunvme_err_t load_once(const struct weights_args *args, struct row *row, unsigned round)
{
    struct weights_args one = *args;
    struct weights_work work = {.n = 0};
    gpunvme_err_t err;

    one.uris = &row->uri;
    one.n = 1;
    one.mem = row->mem;
    one.quiet = true;
    err = cli_weights_open(&one, &work);
    if (!err)
        err = cli_weights_make_parts(&one, &work);
    if (!err)
        err = cli_weights_load(&one, &work, "load");
    if (!err) {
        row->ntensors = work.n;
        row->nfiles = gpunvme_weights_nfiles(work.weights);
        row->nbytes = work.nbytes;
        row->open_s[round] = (double)work.open_ns / 1e9;
        row->load_s[round] = (double)work.load_ns / 1e9;
    }
    return cli_weights_close(&work, err);
}

static int by_value(const void *a_, const void *b_)
{
    double a = *(const double *)a_, b = *(const double *)b_;

    return a < b ? -1 : a > b;
}

static double rate(const struct row *row, double seconds)
{
    return seconds > 0 ? (double)row->nbytes / seconds : 0;
}

static void print_rows(const struct weights_args *args, const struct row *rows, size_t n)
{
    char size[BASE_UNITS_TEXT];
    bool simulated = false;

    printf("%-8s%10s%10s%12s%12s%12s  %s\n", "memory", "tensors", "size", "opened", "GB/s", "best",
           "from");
    for (size_t i = 0; i < n; i++) {
        simulated |= rows[i].mem == GPUNVME_MEM_GPU && gpunvme_mem_gpu_is_host();
        printf("%-8s%10zu%10s%10.4f s%12.2f%12.2f  %s\n", memories[rows[i].mem], rows[i].ntensors,
               base_format_size(rows[i].nbytes, size, sizeof(size)),
               rows[i].open_s[args->rounds / 2],
               rate(&rows[i], rows[i].load_s[args->rounds / 2]) / 1e9,
               rate(&rows[i], rows[i].load_s[0]) / 1e9, rows[i].uri);
    }
    printf("Medians of %u loads.%s\n", args->rounds,
           simulated ? " Simulated: host memory stands in for a GPU's." : "");
}

static void print_json(const struct weights_args *args, const struct row *rows, size_t n)
{
    struct cli_json json;

    cli_json_begin(&json, stdout);
    cli_json_u64(&json, "rounds", args->rounds);
    cli_json_bool(&json, "checksum", args->checksum);
    cli_json_text(&json, "dtype", args->dtype ? gpunvme_dtype_name(args->dtype) : NULL);
    cli_json_array(&json, "loads");
    for (size_t i = 0; i < n; i++) {
        double seconds = rows[i].load_s[args->rounds / 2];

        cli_json_object(&json, NULL);
        cli_json_text(&json, "uri", rows[i].uri);
        cli_json_text(&json, "memory", memories[rows[i].mem]);
        cli_json_bool(&json, "memory_is_host",
                      rows[i].mem == GPUNVME_MEM_GPU && gpunvme_mem_gpu_is_host());
        cli_json_u64(&json, "files", rows[i].nfiles);
        cli_json_u64(&json, "tensors", rows[i].ntensors);
        cli_json_u64(&json, "bytes", rows[i].nbytes);
        cli_json_real(&json, "open_seconds", rows[i].open_s[args->rounds / 2]);
        cli_json_real(&json, "seconds", seconds);
        cli_json_real(&json, "least_seconds", rows[i].load_s[0]);
        cli_json_real(&json, "greatest_seconds", rows[i].load_s[args->rounds - 1]);
        cli_json_real(&json, "bytes_per_second", rate(&rows[i], seconds));
        cli_json_close(&json);
    }
    cli_json_close(&json);
    cli_json_end(&json);
}

static gpunvme_err_t measure(const struct weights_args *args, struct row *rows, size_t n)
{
    gpunvme_err_t err = GPUNVME_OK;

    for (unsigned round = 0; round < args->rounds; round++)
        for (size_t i = 0; i < n && !err; i++)
            err = load_once(args, &rows[i], round);
    for (size_t i = 0; i < n && !err; i++) {
        qsort(rows[i].open_s, args->rounds, sizeof(double), by_value);
        qsort(rows[i].load_s, args->rounds, sizeof(double), by_value);
    }
    return err;
}

gpunvme_err_t cli_weights_bench(const struct weights_args *args)
{
    const size_t nmem = args->all_memory ? 3 : 1, n = args->n * nmem;
    struct row *rows = calloc(n, sizeof(*rows));
    double *seconds = calloc(2 * n * args->rounds, sizeof(*seconds));
    gpunvme_err_t err = GPUNVME_OK;

    if (!rows || !seconds)
        err = base_fail(GPUNVME_ERR_NOMEM, "the rows of a table");
    for (size_t i = 0; i < n && !err; i++)
        rows[i] = (struct row){.uri = args->uris[i / nmem],
                               .mem = args->all_memory ? (enum gpunvme_mem)(i % nmem) : args->mem,
                               .open_s = seconds + 2 * i * args->rounds,
                               .load_s = seconds + (2 * i + 1) * args->rounds};
    if (!err)
        err = measure(args, rows, n);
    if (!err && args->json)
        print_json(args, rows, n);
    else if (!err)
        print_rows(args, rows, n);
    free(rows);
    free(seconds);
    return err;
}
