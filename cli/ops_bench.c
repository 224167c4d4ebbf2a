/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme ops bench: the ladder of an operator, timed. The variants take turns (a machine that
 * slows down does so for all), on the same random data; medians are told, and how far runs lie
 * apart.
 */
#include <stdlib.h>
#include <string.h>

#include "base/units.h"
#include "cli.h"
#include "json.h"
#include "ops.h"
#include "ops_gpu.h"
#include "stop.h"

#define MAX_ROUNDS 99
#define MAX_ROWS   16
#define MAX_SHAPES 16

struct args {
    bool json;
    bool cpu_time;
    bool ops[GPUNVME_OPS_NOPS];
    const char *variant;
    struct ops_shape shapes[MAX_SHAPES];
    unsigned nshapes;
    int device, dtype, compute, activation, threads;
    unsigned rounds;
    uint64_t time_ns;
};

struct row {
    char name[24];
    int threads;
    bool blas;      /* the peer: OpenBLAS or cuBLASLt */
    unsigned batch; /* runs that are timed together, for they are short */
    unsigned nruns;
    double spent; /* seconds */
    double seconds[MAX_ROUNDS];

    double median, spread; /* seconds; (third - first quartile) / median */
};

struct table {
    const struct args *args;
    struct ops_case data;
    struct gpunvme_ops_capability machine;
    const struct ops_blas *blas; /* NULL: none, or not for these types */
    struct ops_cublas *cublas;   /* likewise */
    struct row rows[MAX_ROWS];
    unsigned nrows;
    double peak; /* GFLOP/s of one thread; 0: not measured */
};

enum {
    KEY_VARIANT = CLI_KEY_OWN,
    KEY_SHAPE,
    KEY_DEVICE,
    KEY_DTYPE,
    KEY_ACTIVATION,
    KEY_THREADS,
    KEY_ROUNDS,
    KEY_TIME,
    KEY_CPU_TIME,
};

static const struct argp_option options[] = {
    {"variant", KEY_VARIANT, "all|NAME", 0, "Which variant (all that this machine has)", 1},
    {"shape", KEY_SHAPE, "MxNxK", 0,
     "Rows and columns of the result, and the sum's length; for linear layers rows, outputs and "
     "inputs. One number is a cube. May be given several times (1024)",
     1},
    {"device", KEY_DEVICE, "cpu|cuda", 0, "Where (cpu)", 1},
    {"dtype", KEY_DTYPE, "f32|tf32|f16|bf16", 0,
     "Type of the matrices; tf32 is f32 of which tensor cores use the upper bits (f32)", 2},
    {"activation", KEY_ACTIVATION, "NAME", 0, "none, relu, gelu, gelu_tanh or silu (gelu)", 2},
    {"threads", KEY_THREADS, "N", 0, "Of variants that have threads (all processors)", 2},
    {"rounds", KEY_ROUNDS, "N", 0, "Runs of each variant, at most (9)", 3},
    {"time", KEY_TIME, "TIME", 0, "A variant that has run so long is not run again (3s)", 3},
    {"cpu-time", KEY_CPU_TIME, NULL, 0,
     "Count the processors' time instead of the clock's: for a machine shared with others. Threads "
     "that wait by spinning count, too",
     3},
    CLI_OPTION_JSON,
    {0},
};

static const char doc[] =
    "Times each variant of an operator on random data: median and spread, the share of the "
    "processor's measured peak, the ratio to the variant before and to OpenBLAS (on the GPU "
    "cuBLASLt) where that can be loaded. OPERATOR is matmul, linear-forward, linear-backward or "
    "linear, which is both; "
    "without one it is matmul."
    "\vOpenBLAS is given the product alone, without bias and activation, in f32, and as many "
    "threads as the variant has. OPENBLAS_CORETYPE chooses its code. cuBLASLt is given as much of "
    "a linear layer as it can do at once; GPUNVME_CUBLASLT names another library file. On the GPU "
    "time is the GPU's own, of as many runs in a row as fill 2 ms.\n\n"
    "Examples:\n"
    "  gpunvme ops bench\n"
    "  gpunvme ops bench matmul --shape 2048x2048x2048 --variant avx512\n"
    "  gpunvme ops bench --device cuda --dtype bf16 --shape 4096\n"
    "  gpunvme ops bench linear --shape 512x4096x1024 --activation gelu --json";

static int parse_name(struct argp_state *state, const char *option, const char *arg,
                      int (*by_name)(const char *), const char *names)
{
    int value = by_name(arg);

    if (value < 0)
        argp_error(state, "--%s=%s: must be %s", option, arg, names);
    return value;
}

static void parse_operator(struct argp_state *state, const char *arg, struct args *args)
{
    int op = cli_ops_by_name(arg);

    if (op >= 0)
        args->ops[op] = true;
    else if (!strcmp(arg, "linear"))
        args->ops[GPUNVME_OPS_LINEAR_FORWARD] = args->ops[GPUNVME_OPS_LINEAR_BACKWARD] = true;
    else
        argp_error(state,
                   "there is no operator '%s': matmul, linear, linear-forward or linear-backward",
                   arg);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct args *args = state->input;

    switch (key) {
    case KEY_VARIANT:
        args->variant = strcmp(arg, "all") != 0 ? arg : NULL;
        return 0;
    case KEY_SHAPE:
        if (args->nshapes == MAX_SHAPES)
            argp_error(state, "at most %d shapes", MAX_SHAPES);
        else if (!cli_ops_parse_shape(arg, &args->shapes[args->nshapes++]))
            argp_error(state, "--shape=%s: must be like 4096x4096x1024, or one number", arg);
        return 0;
    case KEY_DEVICE:
        args->device = parse_name(state, "device", arg, cli_ops_device_by_name, "cpu or cuda");
        return 0;
    case KEY_DTYPE:
        args->dtype = cli_ops_dtype_by_name(arg, &args->compute);
        if (args->dtype < 0)
            argp_error(state, "--dtype=%s: must be f32, tf32, f16 or bf16", arg);
        return 0;
    case KEY_ACTIVATION:
        args->activation = parse_name(state, "activation", arg, cli_ops_activation_by_name,
                                      "none, relu, gelu, gelu_tanh or silu");
        return 0;
    case KEY_THREADS:
        args->threads = (int)cli_parse_count(state, "threads", arg, 1, 1024);
        return 0;
    case KEY_ROUNDS:
        args->rounds = (unsigned)cli_parse_count(state, "rounds", arg, 1, MAX_ROUNDS);
        return 0;
    case KEY_TIME:
        args->time_ns = cli_parse_time(state, "time", arg);
        return 0;
    case KEY_CPU_TIME:
        args->cpu_time = true;
        return 0;
    case CLI_KEY_JSON:
        args->json = true;
        return 0;
    case ARGP_KEY_ARG:
        parse_operator(state, arg, args);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {options, parse, "[OPERATOR]", doc, NULL, NULL, NULL};

static void add_row(struct table *t, const char *name, int threads, bool blas)
{
    struct row *row = &t->rows[t->nrows];

    if (t->nrows == MAX_ROWS)
        return;
    t->nrows++;
    snprintf(row->name, sizeof(row->name), "%s", name);
    row->threads = threads;
    row->blas = blas;
    row->batch = 1;
}

static int threads_of(const struct table *t, const char *variant)
{
    if (strcmp(variant, "openmp") != 0)
        return 1;
    return t->args->threads ? t->args->threads : t->machine.units;
}

static bool takes(const struct table *t, const struct gpunvme_ops_variant *v)
{
    return v->available && v->dtypes & 1u << t->data.dtype &&
           (t->data.dtype != GPUNVME_OPS_F32 || v->computes & 1u << t->data.compute);
}

/* A row for each variant. */
static void add_variants(struct table *t)
{
    struct gpunvme_ops_variant v;

    if (t->args->variant)
        add_row(t, t->args->variant, threads_of(t, t->args->variant), false);
    for (unsigned i = 0;
         !t->args->variant && !gpunvme_ops_variant(t->data.op, t->data.device, i, &v); i++)
        if (takes(t, &v))
            add_row(t, v.name, threads_of(t, v.name), false);
}

/* Then for OpenBLAS with each number of threads among them, or for cuBLASLt. */
static void make_rows(struct table *t)
{
    bool one = false;
    int many = 0;

    add_variants(t);
    for (unsigned i = 0; i < t->nrows; i++)
        if (t->rows[i].threads == 1)
            one = true;
        else
            many = t->rows[i].threads;
    if (t->blas && one)
        add_row(t, "OpenBLAS", 1, true);
    if (t->blas && many)
        add_row(t, "OpenBLAS", many, true);
    if (t->cublas)
        add_row(t, "cuBLASLt", 1, true);
}

/* A run on the GPU is enqueued. */
struct enqueued {
    struct table *table;
    const struct row *row;
    gpunvme_ops_status_t status;
};

static bool enqueue(void *arg)
{
    struct enqueued *e = arg;

    if (e->row->blas)
        return ops_cublas_run(e->table->cublas);
    e->status = ops_case_run(&e->table->data, e->row->name);
    return !e->status;
}

#define BATCH_SECONDS 2e-3

static gpunvme_ops_status_t run_on_gpu(struct table *t, struct row *row, double *seconds)
{
    struct enqueued e = {t, row, GPUNVME_OPS_OK};

    *seconds = ops_gpu_time(enqueue, &e, row->batch) / row->batch;
    if (e.status)
        return e.status;
    if (*seconds < 0) {
        cli_say("%s: %s", row->name, ops_gpu_error());
        return GPUNVME_OPS_ERR_CUDA;
    }
    if (!row->nruns && *seconds * row->batch < BATCH_SECONDS && row->batch < 1000)
        row->batch *= 2;
    return GPUNVME_OPS_OK;
}

static gpunvme_ops_status_t run_row(struct table *t, struct row *row, double *seconds)
{
    double start = t->args->cpu_time ? ops_cpu_now() : ops_now();
    gpunvme_ops_status_t status = GPUNVME_OPS_OK;

    if (t->data.device == GPUNVME_OPS_CUDA)
        return run_on_gpu(t, row, seconds);
    if (row->blas)
        ops_blas_run(t->blas, &t->data, row->threads);
    else
        status = ops_case_run(&t->data, row->name);
    *seconds = (t->args->cpu_time ? (ops_cpu_now() - start) / row->threads : ops_now() - start);
    return status;
}

/* Runs until as many fill a batch as are to. */
static gpunvme_ops_status_t warm_up(struct table *t)
{
    for (unsigned i = 0; i < t->nrows && !cli_stopped(); i++) {
        unsigned batch;

        do {
            gpunvme_ops_status_t status;
            double seconds;

            batch = t->rows[i].batch;
            status = run_on_gpu(t, &t->rows[i], &seconds);
            if (status)
                return status;
        } while (batch != t->rows[i].batch);
    }
    return GPUNVME_OPS_OK;
}

static bool tired(const struct table *t, const struct row *row)
{
    return row->nruns && row->spent * 1e9 >= (double)t->args->time_ns;
}

/* One run of every row that has time left. A first run that is short only warms up. */
static gpunvme_ops_status_t run_round(struct table *t, unsigned round)
{
    bool gpu = t->data.device == GPUNVME_OPS_CUDA;
    double peak = gpu ? 0 : ops_peak();

    t->peak = peak > t->peak ? peak : t->peak;
    for (unsigned i = 0; i < t->nrows && !cli_stopped(); i++) {
        struct row *row = &t->rows[i];
        gpunvme_ops_status_t status;
        double seconds;

        if (tired(t, row))
            continue;
        status = run_row(t, row, &seconds);
        if (status)
            return status;
        if (!round && !gpu && seconds * 4e9 < (double)t->args->time_ns)
            continue;
        row->seconds[row->nruns++] = seconds;
        row->spent += seconds * row->batch;
    }
    return GPUNVME_OPS_OK;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* The value at a share of the way through sorted ones, between neighbours. */
static double quantile(const double *sorted, unsigned n, double share)
{
    double at = share * (n - 1);
    unsigned low = (unsigned)at;

    return low + 1 < n ? sorted[low] + (at - low) * (sorted[low + 1] - sorted[low]) : sorted[low];
}

static void evaluate(struct row *row)
{
    double *s = row->seconds;

    qsort(s, row->nruns, sizeof(*s), compare);
    row->median = quantile(s, row->nruns, 0.5);
    row->spread = (quantile(s, row->nruns, 0.75) - quantile(s, row->nruns, 0.25)) / row->median;
}

/* OpenBLAS with as many threads; NULL: none. */
static const struct row *peer_of(const struct table *t, const struct row *row)
{
    for (unsigned i = 0; i < t->nrows; i++)
        if (t->rows[i].blas && t->rows[i].threads == row->threads)
            return &t->rows[i];
    return NULL;
}

static double gflops(const struct table *t, const struct row *row)
{
    return ops_case_flops(&t->data) / row->median * 1e-9;
}

static void ratio(char *text, size_t capacity, bool there, double value)
{
    if (there)
        snprintf(text, capacity, "%.2f x", value);
    else
        snprintf(text, capacity, "-");
}

static void print_row(const struct table *t, const struct row *row)
{
    const struct row *peer = peer_of(t, row);
    bool follows = row > t->rows && !row->blas;
    char before[24], blas[24], share[24] = "-", time[BASE_UNITS_TEXT];

    ratio(before, sizeof(before), follows, follows ? row[-1].median / row->median : 0);
    ratio(blas, sizeof(blas), peer && !row->blas, peer ? peer->median / row->median : 0);
    base_format_time((uint64_t)(row->median * 1e9), time, sizeof(time));
    if (t->peak > 0)
        snprintf(share, sizeof(share), "%.1f%%", gflops(t, row) / (t->peak * row->threads) * 100);
    printf("  %-12s%8d%11.2f%11.2f%7.1f%%%9s%9s%11s%9s%5u\n", row->name, row->threads,
           gflops(t, row), ops_case_flops(&t->data) / row->seconds[0] * 1e-9, row->spread * 100,
           share, before, blas, time, row->nruns);
}

static void print_table(const struct table *t)
{
    const struct ops_shape *s = &t->data.shape;

    printf("%s %s, %lld x %lld x %lld", cli_ops_name(t->data.op),
           cli_ops_dtype_name(t->data.dtype, t->data.compute), (long long)s->m, (long long)s->n,
           (long long)s->k);
    if (t->data.op != GPUNVME_OPS_MATMUL)
        printf(", activation %s", gpunvme_ops_activation_name(t->data.activation));
    if (t->args->cpu_time)
        printf(", by processor time");
    printf("\n%s (%s)", t->machine.name, t->machine.features);
    if (t->peak > 0)
        printf("; one thread's peak: %.1f GFLOP/s", t->peak);
    putchar('\n');
    if (t->blas)
        printf("%s\n", t->blas->config);
    if (t->cublas)
        printf("%s%s%s\n", t->cublas->config, *t->cublas->does ? ", given " : "", t->cublas->does);
    printf("\n  %-12s%8s%11s%11s%8s%9s%9s%11s%9s%5s\n", "variant", "threads", "GFLOP/s", "best",
           "spread", "of peak", "x before",
           t->data.device == GPUNVME_OPS_CUDA ? "x cuBLASLt" : "x OpenBLAS", "time", "runs");
    for (unsigned i = 0; i < t->nrows; i++)
        print_row(t, &t->rows[i]);
}

static void json_metrics(const struct table *t, const struct row *row, struct cli_json *json)
{
    struct gpunvme_matmul_metrics x;

    if (row->blas || !ops_case_analyze(&t->data, row->name, &x))
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

static void json_row(const struct table *t, const struct row *row, struct cli_json *json)
{
    const struct row *peer = row->blas ? NULL : peer_of(t, row);

    cli_json_object(json, NULL);
    cli_json_text(json, "variant", row->name);
    cli_json_u64(json, "threads", (uint64_t)row->threads);
    cli_json_u64(json, "runs", row->nruns);
    cli_json_real(json, "seconds", row->median);
    cli_json_real(json, "seconds_min", row->seconds[0]);
    cli_json_real(json, "seconds_max", row->seconds[row->nruns - 1]);
    cli_json_real(json, "spread", row->spread);
    cli_json_real(json, "gflops", gflops(t, row));
    if (t->peak > 0)
        cli_json_real(json, "of_peak", gflops(t, row) / (t->peak * row->threads));
    if (row > t->rows && !row->blas)
        cli_json_real(json, "to_variant_before", row[-1].median / row->median);
    if (peer)
        cli_json_real(json, t->cublas ? "to_cublaslt" : "to_openblas", peer->median / row->median);
    json_metrics(t, row, json);
    cli_json_close(json);
}

static void json_table(const struct table *t, struct cli_json *json)
{
    const struct ops_shape *s = &t->data.shape;

    cli_json_object(json, NULL);
    cli_json_text(json, "operator", cli_ops_name(t->data.op));
    cli_json_text(json, "device", cli_ops_device_name(t->data.device));
    cli_json_text(json, "dtype", cli_ops_dtype_name(t->data.dtype, t->data.compute));
    if (t->data.op != GPUNVME_OPS_MATMUL)
        cli_json_text(json, "activation", gpunvme_ops_activation_name(t->data.activation));
    cli_json_u64(json, "m", (uint64_t)s->m);
    cli_json_u64(json, "n", (uint64_t)s->n);
    cli_json_u64(json, "k", (uint64_t)s->k);
    cli_json_text(json, t->data.device == GPUNVME_OPS_CUDA ? "gpu" : "cpu", t->machine.name);
    cli_json_text(json, "features", t->machine.features);
    if (t->peak > 0)
        cli_json_real(json, "peak_gflops", t->peak);
    if (t->data.device == GPUNVME_OPS_CPU)
        cli_json_text(json, "openblas", t->blas ? t->blas->config : NULL);
    else
        cli_json_text(json, "cublaslt", t->cublas ? t->cublas->config : NULL);
    if (t->cublas && *t->cublas->does)
        cli_json_text(json, "cublaslt_does", t->cublas->does);
    cli_json_bool(json, "cpu_time", t->args->cpu_time);
    cli_json_array(json, "variants");
    for (unsigned i = 0; i < t->nrows; i++)
        json_row(t, &t->rows[i], json);
    cli_json_close(json);
    cli_json_close(json);
}

/* All rounds of one table. */
static int measure(struct table *t)
{
    gpunvme_ops_status_t status = t->data.device == GPUNVME_OPS_CUDA ? warm_up(t) : GPUNVME_OPS_OK;

    for (unsigned round = 0; round <= t->args->rounds && !status && !cli_stopped(); round++)
        status = run_round(t, round);
    if (status)
        return cli_ops_fail(status);
    if (cli_stopped())
        return cli_fail(cli_stop_check());
    for (unsigned i = 0; i < t->nrows; i++)
        evaluate(&t->rows[i]);
    return CLI_OK;
}

struct peers {
    const struct ops_blas *blas;
    struct ops_cublas *cublas;
};

static int measure_case(struct table *t, const struct peers *peers)
{
    struct ops_shape *s = &t->data.shape;
    int code;

    if (!ops_case_make(&t->data)) {
        cli_say("out of memory: matrices of %lld x %lld x %lld are too large for this machine",
                (long long)s->m, (long long)s->n, (long long)s->k);
        return CLI_FAILED;
    }
    if (peers->cublas && ops_cublas_prepare(peers->cublas, &t->data))
        t->cublas = peers->cublas;
    make_rows(t);
    code = measure(t);
    ops_case_drop(&t->data);
    return code;
}

static int bench(const struct args *args, const struct peers *peers, int op,
                 const struct ops_shape *shape, struct cli_json *json)
{
    struct table t = {
        .args = args,
        .blas = args->dtype == GPUNVME_OPS_F32 ? peers->blas : NULL,
        .data = {.op = op,
                 .device = args->device,
                 .dtype = args->dtype,
                 .compute = args->compute,
                 .activation = args->activation,
                 .shape = *shape,
                 .threads = args->threads,
                 .seed = 1},
    };
    gpunvme_ops_status_t status = gpunvme_ops_capability(args->device, 0, &t.machine);
    int code;

    if (status)
        return cli_ops_fail(status);
    code = measure_case(&t, peers);
    if (code)
        return code;
    if (json)
        json_table(&t, json);
    else
        print_table(&t);
    return CLI_OK;
}

static int bench_shapes(const struct args *args, const struct peers *peers, struct cli_json *json)
{
    bool first = true;

    for (int op = 0; op < GPUNVME_OPS_NOPS; op++)
        for (unsigned i = 0; args->ops[op] && i < args->nshapes; i++) {
            int code;

            if (!json && !first)
                putchar('\n');
            first = false;
            code = bench(args, peers, op, &args->shapes[i], json);
            fflush(stdout);
            if (code)
                return code;
        }
    return CLI_OK;
}

static int bench_all(const struct args *args, struct cli_json *json)
{
    bool gpu = args->device == GPUNVME_OPS_CUDA;
    struct ops_cublas cublas;
    struct ops_blas blas;
    struct peers peers = {!gpu && ops_blas_open(&blas) ? &blas : NULL,
                          gpu && ops_gpu_present() && ops_cublas_open(&cublas) ? &cublas : NULL};
    int code = bench_shapes(args, &peers, json);

    if (!code && !json && !gpu && !peers.blas)
        puts("\nOpenBLAS was not found: libopenblas.so.0 (Debian: libopenblas0-pthread).");
    if (!code && !json && gpu && !peers.cublas)
        puts(
            "\ncuBLASLt was not found: libcublasLt.so.13 or .12 (or what GPUNVME_CUBLASLT names).");
    if (peers.cublas)
        ops_cublas_close(peers.cublas);
    return code;
}

int cli_ops_bench(int argc, char **argv)
{
    struct args args = {.activation = GPUNVME_OPS_ACT_GELU, .rounds = 9, .time_ns = 3000000000u};
    struct cli_json json;
    bool any = false;
    int code;

    if (!cli_parse(&argp, argc, argv, &args))
        return CLI_USAGE;
    for (int op = 0; op < GPUNVME_OPS_NOPS; op++)
        any |= args.ops[op];
    args.ops[GPUNVME_OPS_MATMUL] |= !any;
    if (!args.nshapes)
        args.shapes[args.nshapes++] = (struct ops_shape){1024, 1024, 1024};
    if (!args.json)
        return bench_all(&args, NULL);
    cli_json_begin(&json, stdout);
    cli_json_array(&json, "tables");
    code = bench_all(&args, &json);
    cli_json_end(&json);
    return code;
}
