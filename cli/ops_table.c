/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme ops bench: tells a table, for people and for programs. A rate is that of the median run,
 * a peak that of the best: nothing that was measured here was faster.
 */
#include <math.h>
#include <string.h>

#include "base/units.h"
#include "cli.h"
#include "ops_bench.h"

/* What a row did, and what the machine can do at most; NaN: not measured. */
struct figures {
    double gflops, peak_gflops, of_peak;
    double gb_per_s, peak_gb_per_s, of_bandwidth;
    double to_before, to_peer;
};

/* The row of a kind with as many threads that was measured; NULL: there is none. */
static const struct ops_row *row_of(const struct ops_table *t, enum ops_row_kind kind, int threads)
{
    for (unsigned i = 0; i < t->nrows; i++)
        if (t->rows[i].kind == kind && t->rows[i].threads == threads &&
            ops_row_measured(&t->rows[i]))
            return &t->rows[i];
    return NULL;
}

/* Billions a second. */
static double peak_of(const struct ops_table *t, enum ops_row_kind kind, int threads)
{
    const struct ops_row *row = row_of(t, kind, threads);

    return row ? row->work / row->seconds[0] * 1e-9 : NAN;
}

/* The variant before it that was measured. */
static const struct ops_row *row_before(const struct ops_table *t, const struct ops_row *row)
{
    for (const struct ops_row *r = row; r-- > t->rows;)
        if (r->kind == OPS_ROW_VARIANT && ops_row_measured(r))
            return r;
    return NULL;
}

static struct figures figures_of(const struct ops_table *t, const struct ops_row *row)
{
    bool variant = row->kind == OPS_ROW_VARIANT;
    const struct ops_row *peer = variant ? row_of(t, OPS_ROW_PEER, row->threads) : NULL;
    const struct ops_row *before = variant ? row_before(t, row) : NULL;
    struct figures x = {
        .gflops = ops_case_flops(&t->data) / row->median * 1e-9,
        .peak_gflops = peak_of(t, OPS_ROW_ARITHMETIC, row->threads),
        .gb_per_s = ops_case_traffic(&t->data) / row->median * 1e-9,
        .peak_gb_per_s = peak_of(t, OPS_ROW_MEMORY, row->threads),
        .to_before = before ? before->median / row->median : NAN,
        .to_peer = peer ? peer->median / row->median : NAN,
    };

    x.of_peak = x.gflops / x.peak_gflops;
    x.of_bandwidth = x.gb_per_s / x.peak_gb_per_s;
    return x;
}

static bool on_gpu(const struct ops_table *t)
{
    return t->data.device == GPUNVME_OPS_CUDA;
}

/* GFLOP/s of a processor, TFLOP/s of a GPU. */
static double in_unit(const struct ops_table *t, double gflops)
{
    return on_gpu(t) ? gflops * 1e-3 : gflops;
}

static const char *unit(const struct ops_table *t)
{
    return on_gpu(t) ? "TFLOP/s" : "GFLOP/s";
}

/* Memory limits it: its rates are GB/s alone. */
static bool passes_over_memory(const struct ops_table *t)
{
    const struct ops_memory_op *op = ops_memory_op(t->data.op);

    return (op && !op->flops) || t->data.op == GPUNVME_OPS_KV_APPEND;
}

/* A column that has nothing to say has "-". */
static void print_share(double share, int width)
{
    if (isnan(share))
        printf("%*s", width, "-");
    else
        printf("%*.1f%%", width - 1, share * 100);
}

static void print_ratio(double ratio, int width)
{
    if (isnan(ratio))
        printf("%*s", width, "-");
    else
        printf("%*.2f x", width - 2, ratio);
}

/* A rate of the median run, of the best, how far runs lie apart, and the share of a peak. */
static void print_rate(const struct ops_row *row, double rate, double share)
{
    printf("%11.2f%11.2f%7.1f%%", rate, rate * row->median / row->seconds[0], row->spread * 100);
    print_share(share, 9);
}

static void print_figures(const struct ops_table *t, const struct ops_row *row)
{
    struct figures x = figures_of(t, row);
    char time[BASE_UNITS_TEXT];

    base_format_time((uint64_t)(row->median * 1e9), time, sizeof(time));
    printf("  %-12s", row->runs[0] ? row->runs : row->name);
    if (!on_gpu(t))
        printf("%8d", row->threads);
    if (passes_over_memory(t)) {
        print_rate(row, x.gb_per_s, x.of_bandwidth);
    } else {
        print_rate(row, in_unit(t, x.gflops), x.of_peak);
        printf("%10.2f", x.gb_per_s);
        print_share(x.of_bandwidth, 9);
    }
    print_ratio(x.to_before, 11);
    print_ratio(x.to_peer, 12);
    printf("%10s%5u", time, row->nruns);
    if (on_gpu(t) && row->clock > 0)
        printf("%6.0f", row->clock);
    else if (on_gpu(t))
        printf("%6s", "-");
    if (on_gpu(t)) {
        base_format_time((uint64_t)(row->host * 1e9), time, sizeof(time));
        printf("%10s", time);
    }
    putchar('\n');
}

static void print_row(const struct ops_table *t, const struct ops_row *row)
{
    if (ops_row_is_peak(row))
        return;
    if (ops_row_measured(row))
        print_figures(t, row);
    else
        printf("  %-12snot measured: %s\n", row->name,
               row->failed[0] ? row->failed : "there was no run");
    if (!row->failed[0] && !(row->error <= 1))
        printf("  %-12sWRONG: its error is %.3g times what sums in f32 may lose\n", "", row->error);
}

static void print_peaks(const struct ops_table *t, int threads)
{
    const struct ops_row *arithmetic =
        passes_over_memory(t) ? NULL : row_of(t, OPS_ROW_ARITHMETIC, threads);
    const struct ops_row *memory = row_of(t, OPS_ROW_MEMORY, threads);

    if (!arithmetic && !memory)
        return;
    if (on_gpu(t))
        printf("peaks:");
    else
        printf("peaks of %d thread%s:", threads, threads == 1 ? "" : "s");
    if (arithmetic)
        printf(" %.1f %s (%s)%s", in_unit(t, peak_of(t, OPS_ROW_ARITHMETIC, threads)), unit(t),
               arithmetic->name, memory ? "," : "");
    if (memory)
        printf(" %.1f GB/s (%s)", peak_of(t, OPS_ROW_MEMORY, threads), memory->name);
    putchar('\n');
}

/* Each number of threads once: peaks stand in pairs. */
static void print_all_peaks(const struct ops_table *t)
{
    int told = 0;

    for (unsigned i = 0; i < t->nrows; i++)
        if (ops_row_is_peak(&t->rows[i]) && t->rows[i].threads != told)
            print_peaks(t, told = t->rows[i].threads);
}

static bool has_pages(const struct ops_table *t)
{
    return t->data.op == GPUNVME_OPS_ATTENTION_PAGED || t->data.op == GPUNVME_OPS_KV_APPEND;
}

static void print_heads(const struct ops_table *t)
{
    const struct ops_heads *h = &t->data.heads;

    printf(", batch %lld, heads %lld", (long long)h->batch, (long long)h->heads);
    if (h->kv_heads != h->heads)
        printf("/%lld", (long long)h->kv_heads);
    if (h->causal)
        printf(", causal");
    if (h->window)
        printf(", window of %lld keys before and %lld after", (long long)h->left,
               (long long)h->right);
    if (h->softcap > 0)
        printf(", softcap %g", h->softcap);
    if (has_pages(t))
        printf(", pages of %lld%s", (long long)h->page, h->fp8_cache ? " in e4m3" : "");
    if (ops_attention_is_latent(&t->data))
        printf(", values of %lld channels of the keys", (long long)h->values);
    if (h->shortest && t->data.op == GPUNVME_OPS_ATTENTION_PAGED)
        printf(", lengths from %lld", (long long)h->shortest);
}

static void print_head(const struct ops_table *t)
{
    const struct ops_shape *s = &t->data.shape;

    printf("%s %s, %lld x %lld x %lld", cli_ops_name(t->data.op),
           cli_ops_dtype_name(t->data.dtype, t->data.compute), (long long)s->m, (long long)s->n,
           (long long)s->k);
    if (ops_is_attention(t->data.op))
        print_heads(t);
    else if (t->data.op == GPUNVME_OPS_NORM_FORWARD || t->data.op == GPUNVME_OPS_NORM_BACKWARD)
        printf(", %s", t->data.kind == GPUNVME_NORM_LAYER ? "LayerNorm" : "RMSNorm");
    else if (ops_is_product(t->data.op) && t->data.op != GPUNVME_OPS_MATMUL)
        printf(", activation %s", gpunvme_ops_activation_name(t->data.activation));
    if (t->data.op == GPUNVME_OPS_LINEAR_FORWARD && t->data.no_preact)
        printf(", pre-activation not kept");
    if (t->args->cpu_time)
        printf(", by processor time");
    printf("\n%s (%s)\n", t->machine.name, t->machine.features);
    if (t->blas)
        printf("%s\n", t->blas->config);
    if (t->cublas)
        printf("%s%s%s\n", t->cublas->config, *t->cublas->does ? ", given " : "", t->cublas->does);
    if (t->no_peer)
        printf("%s\n", t->no_peer);
}

double ops_table_ratio(const struct ops_table *t)
{
    const struct ops_row *best = NULL;

    for (unsigned i = 0; i < t->nrows; i++)
        if (t->rows[i].kind == OPS_ROW_VARIANT && ops_row_measured(&t->rows[i]) &&
            (!best || !strcmp(t->rows[i].name, "auto")))
            best = &t->rows[i];
    return best ? figures_of(t, best).to_peer : NAN;
}

/* Did NVML tell the clock of any run? */
static bool has_clock(const struct ops_table *t)
{
    for (unsigned i = 0; i < t->nrows; i++)
        if (ops_row_measured(&t->rows[i]) && t->rows[i].clock > 0)
            return true;
    return false;
}

static void print_clock(const struct ops_table *t)
{
    if (on_gpu(t) && has_clock(t))
        printf("MHz: clock of the multiprocessors in the timed runs, by NVML\n");
    else if (on_gpu(t))
        printf("clock of the multiprocessors: %.0f MHz at most, by cudaDeviceGetAttribute (without "
               "NVML, libnvidia-ml.so.1, that of the runs is not known)\n",
               ops_gpu_clock_most());
}

void ops_table_print(const struct ops_table *t)
{
    bool memory = passes_over_memory(t);

    print_head(t);
    print_all_peaks(t);
    print_clock(t);
    printf("\n  %-12s%s%11s%11s%8s%9s", "variant", on_gpu(t) ? "" : " threads",
           memory ? "GB/s" : unit(t), "best", "spread", "of peak");
    if (!memory)
        printf("%10s%9s", "GB/s", "of peak");
    printf("%11s%12s%10s%5s%s\n", "x before", on_gpu(t) ? "x cuBLASLt" : "x OpenBLAS", "time",
           "runs", on_gpu(t) ? "   MHz      host" : "");
    for (unsigned i = 0; i < t->nrows; i++)
        print_row(t, &t->rows[i]);
}

static void json_metrics(const struct ops_table *t, const struct ops_row *row,
                         struct cli_json *json)
{
    struct gpunvme_matmul_metrics x;

    if (row->kind != OPS_ROW_VARIANT || !ops_case_analyze(&t->data, row->name, &x))
        return;
    cli_json_object(json, "metrics");
    cli_json_real(json, "global_load_bytes", x.global_load_nbytes);
    cli_json_real(json, "global_store_bytes", x.global_store_nbytes);
    cli_json_real(json, "shared_load_bytes", x.shared_load_nbytes);
    cli_json_real(json, "shared_store_bytes", x.shared_store_nbytes);
    cli_json_real(json, "arithmetic_intensity", x.arithmetic_intensity);
    cli_json_real(json, "memory_efficiency", x.memory_efficiency);
    cli_json_u64(json, "registers", (uint64_t)x.registers);
    cli_json_u64(json, "threads_per_block", (uint64_t)x.threads_per_block);
    cli_json_u64(json, "blocks", (uint64_t)x.blocks);
    cli_json_u64(json, "shared_bytes", (uint64_t)x.shared_nbytes);
    cli_json_real(json, "occupancy", x.occupancy);
    cli_json_close(json);
}

static void json_times(const struct ops_row *row, struct cli_json *json)
{
    cli_json_u64(json, "runs", row->nruns);
    cli_json_u64(json, "batch", row->batch);
    cli_json_real(json, "seconds", row->median);
    cli_json_real(json, "seconds_min", row->seconds[0]);
    cli_json_real(json, "seconds_max", row->seconds[row->nruns - 1]);
    cli_json_real(json, "spread", row->spread);
    if (row->clock > 0) {
        cli_json_real(json, "sm_clock_mhz", row->clock);
        cli_json_real(json, "sm_clock_mhz_min", row->clocks[0]);
        cli_json_real(json, "sm_clock_mhz_max", row->clocks[row->nruns - 1]);
    }
}

static void json_figures(const struct ops_table *t, const struct ops_row *row,
                         struct cli_json *json)
{
    struct figures x = figures_of(t, row);

    json_times(row, json);
    if (on_gpu(t))
        cli_json_real(json, "host_seconds", row->host);
    cli_json_real(json, "gflops", x.gflops);
    cli_json_real(json, "peak_gflops", x.peak_gflops);
    cli_json_real(json, "of_peak", x.of_peak);
    cli_json_real(json, "gb_per_s", x.gb_per_s);
    cli_json_real(json, "peak_gb_per_s", x.peak_gb_per_s);
    cli_json_real(json, "of_bandwidth", x.of_bandwidth);
    if (row->kind == OPS_ROW_PEER)
        return;
    cli_json_real(json, "to_variant_before", x.to_before);
    cli_json_real(json, on_gpu(t) ? "to_cublaslt" : "to_openblas", x.to_peer);
}

static void json_row(const struct ops_table *t, const struct ops_row *row, struct cli_json *json)
{
    if (ops_row_is_peak(row))
        return;
    cli_json_object(json, NULL);
    cli_json_text(json, "variant", row->name);
    if (row->runs[0])
        cli_json_text(json, "chose", row->runs);
    cli_json_bool(json, "peer", row->kind == OPS_ROW_PEER);
    cli_json_u64(json, "threads", (uint64_t)row->threads);
    if (row->failed[0]) {
        cli_json_text(json, "failed", row->failed);
    } else {
        cli_json_real(json, "error", row->error);
        cli_json_bool(json, "right", row->error <= 1);
    }
    if (ops_row_measured(row))
        json_figures(t, row, json);
    json_metrics(t, row, json);
    cli_json_close(json);
}

static void json_peak(const struct ops_row *row, struct cli_json *json)
{
    const char *rate = row->kind == OPS_ROW_ARITHMETIC ? "gflops" : "gb_per_s";

    if (!ops_row_is_peak(row))
        return;
    cli_json_object(json, NULL);
    cli_json_text(json, "by", row->name);
    cli_json_u64(json, "threads", (uint64_t)row->threads);
    if (row->failed[0])
        cli_json_text(json, "failed", row->failed);
    if (ops_row_measured(row)) {
        json_times(row, json);
        cli_json_real(json, rate, row->work / row->seconds[0] * 1e-9);
        cli_json_real(json, "median", row->work / row->median * 1e-9);
    } else {
        cli_json_real(json, rate, NAN);
    }
    cli_json_close(json);
}

static void json_head(const struct ops_table *t, struct cli_json *json)
{
    const struct ops_shape *s = &t->data.shape;

    cli_json_text(json, "operator", cli_ops_name(t->data.op));
    cli_json_text(json, "device", cli_ops_device_name(t->data.device));
    cli_json_text(json, "dtype", cli_ops_dtype_name(t->data.dtype, t->data.compute));
    if (ops_is_attention(t->data.op)) {
        cli_json_u64(json, "batch", (uint64_t)t->data.heads.batch);
        cli_json_u64(json, "heads", (uint64_t)t->data.heads.heads);
        cli_json_u64(json, "kv_heads", (uint64_t)t->data.heads.kv_heads);
        cli_json_bool(json, "causal", t->data.heads.causal);
        if (t->data.heads.window) {
            cli_json_u64(json, "window_left", (uint64_t)t->data.heads.left);
            cli_json_u64(json, "window_right", (uint64_t)t->data.heads.right);
        }
        if (t->data.heads.softcap > 0)
            cli_json_real(json, "softcap", t->data.heads.softcap);
        if (t->data.heads.shortest && t->data.op == GPUNVME_OPS_ATTENTION_PAGED)
            cli_json_u64(json, "shortest", (uint64_t)t->data.heads.shortest);
        if (has_pages(t)) {
            cli_json_u64(json, "page", (uint64_t)t->data.heads.page);
            cli_json_text(json, "cache_dtype",
                          t->data.heads.fp8_cache
                              ? "e4m3"
                              : cli_ops_dtype_name(t->data.dtype, t->data.compute));
        }
        if (ops_attention_is_latent(&t->data))
            cli_json_u64(json, "values", (uint64_t)t->data.heads.values);
    } else if (t->data.op == GPUNVME_OPS_NORM_FORWARD || t->data.op == GPUNVME_OPS_NORM_BACKWARD)
        cli_json_text(json, "kind", t->data.kind == GPUNVME_NORM_LAYER ? "layer" : "rms");
    else if (ops_is_product(t->data.op) && t->data.op != GPUNVME_OPS_MATMUL)
        cli_json_text(json, "activation", gpunvme_ops_activation_name(t->data.activation));
    if (t->data.op == GPUNVME_OPS_LINEAR_FORWARD)
        cli_json_bool(json, "preact", !t->data.no_preact);
    cli_json_u64(json, "m", (uint64_t)s->m);
    cli_json_u64(json, "n", (uint64_t)s->n);
    cli_json_u64(json, "k", (uint64_t)s->k);
    cli_json_real(json, "flops", ops_case_flops(&t->data));
    cli_json_real(json, "bytes", ops_case_traffic(&t->data));
    cli_json_text(json, on_gpu(t) ? "gpu" : "cpu", t->machine.name);
    cli_json_text(json, "features", t->machine.features);
    cli_json_text(json, "auto", ops_case_choice(&t->data));
}

void ops_table_json(const struct ops_table *t, struct cli_json *json)
{
    cli_json_object(json, NULL);
    json_head(t, json);
    if (on_gpu(t)) {
        cli_json_u64(json, "sets", t->data.nsets);
        cli_json_text(json, "cublaslt", t->cublas ? t->cublas->config : NULL);
        cli_json_text(json, "sm_clock_by", has_clock(t) ? "NVML" : "cudaDeviceGetAttribute");
        cli_json_real(json, "sm_clock_mhz_most", ops_gpu_clock_most());
    } else {
        cli_json_text(json, "openblas", t->blas ? t->blas->config : NULL);
    }
    if (t->no_peer)
        cli_json_text(json, "no_peer", t->no_peer);
    if (t->cublas && *t->cublas->does)
        cli_json_text(json, "cublaslt_does", t->cublas->does);
    cli_json_bool(json, "cpu_time", t->args->cpu_time);
    cli_json_array(json, "peaks");
    for (unsigned i = 0; i < t->nrows; i++)
        json_peak(&t->rows[i], json);
    cli_json_close(json);
    cli_json_array(json, "variants");
    for (unsigned i = 0; i < t->nrows; i++)
        json_row(t, &t->rows[i], json);
    cli_json_close(json);
    cli_json_close(json);
}
