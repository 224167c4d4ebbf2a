/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme ops bench: the ladder of an operator, timed. The variants, the BLAS that they are
 * compared with and what shows the machine's peaks take turns (a machine that slows down does so
 * for all), on the same random data; before that the result of each is compared with sums in f64.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "ops_bench.h"
#include "stop.h"

enum {
    KEY_VARIANT = CLI_KEY_OWN,
    KEY_SHAPE,
    KEY_DEVICE,
    KEY_DTYPE,
    KEY_ACTIVATION,
    KEY_THREADS,
    KEY_ROUNDS,
    KEY_TIME,
    KEY_BURST,
    KEY_CPU_TIME,
    KEY_NO_PREACT,
    KEY_NO_PEAKS,
    KEY_WITHOUT,
    KEY_SHAPES,
    KEY_BATCH,
    KEY_HEADS,
    KEY_CAUSAL,
    KEY_PAGE,
    KEY_VALUES,
    KEY_WINDOW,
    KEY_SOFTCAP,
    KEY_LENGTHS,
    KEY_CACHE_DTYPE,
    KEY_KIND,
};

static const struct argp_option options[] = {
    {"variant", KEY_VARIANT, "all|NAME", 0,
     "Which variant (all that this machine has); auto is the one that programs get", 1},
    {"without", KEY_WITHOUT, "NAME,...", 0, "All variants but these", 1},
    {"shape", KEY_SHAPE, "MxNxK", 0,
     "Rows and columns of the result, and the length of the sums; for linear layers rows, outputs "
     "and inputs; for attention queries (or new rows), keys and channels of a head; for "
     "normalization rows, columns and 1, or 2 with a residual; for cross entropy rows and "
     "vocabulary; for adamw and grad-norm tensors, and two factors of their elements; for "
     "embedding rows, vocabulary and columns; for SwiGLU rows and columns; for rope rows, heads "
     "and channels; for a mixture of experts tokens, hidden size and size of a token. One number "
     "is a cube. May be given several times (1024; attention 1024x1024x64; "
     "others are large enough for a GPU)",
     1},
    {"shapes", KEY_SHAPES, "FILE", 0,
     "A line for each case: operator, type, MxNxK; text after # is ignored. Compares auto (with "
     "--without the other variants) with OpenBLAS or cuBLASLt, and shows the geometric mean of the "
     "ratios and the worst ten",
     1},
    {"device", KEY_DEVICE, "cpu|cuda", 0, "Where to run (cpu)", 1},
    {"dtype", KEY_DTYPE, "TYPE", 0,
     "Type of the matrices: f32, f16 or bf16; tf32, f32 of which tensor cores use the upper bits; "
     "for attention and matmul e4m3, for matmul also e5m2, with -row, -block or -fast behind it, "
     "e4m3-e5m2 and e5m2-e4m3 (f32)",
     2},
    {"activation", KEY_ACTIVATION, "NAME", 0,
     "Linear layers: none, relu, gelu, gelu_tanh or silu (gelu)", 2},
    {"no-preact", KEY_NO_PREACT, NULL, 0,
     "Linear layers forward: do not keep the pre-activation, as for inference", 2},
    {"batch", KEY_BATCH, "N", 0, "Attention: sequences (1)", 2},
    {"heads", KEY_HEADS, "N[/M]", 0,
     "Attention: heads of the queries, and of keys and values if they are fewer (8)", 2},
    {"causal", KEY_CAUSAL, NULL, 0, "Attention: a query does not see later keys", 2},
    {"page", KEY_PAGE, "N", 0, "Attention over a cache: rows of its pages (16)", 2},
    {"cache-dtype", KEY_CACHE_DTYPE, "e4m3", 0,
     "Attention over a cache: its type, with a scale for each sequence and head (that of --dtype)",
     2},
    {"values", KEY_VALUES, "N", 0,
     "Attention over a cache: a value is the first N channels of its key (MLA)", 2},
    {"window", KEY_WINDOW, "N[/M]", 0,
     "Attention: a query sees N keys before its own position, and M after it (0)", 2},
    {"softcap", KEY_SOFTCAP, "X", 0, "Attention: a score s becomes X tanh(s / X)", 2},
    {"lengths", KEY_LENGTHS, "N", 0,
     "Attention over a cache: lengths from N to those of the shape, each longer than the one "
     "before by the same factor",
     2},
    {"kind", KEY_KIND, "rms|layer", 0, "Normalization: RMSNorm or LayerNorm (rms)", 2},
    {"threads", KEY_THREADS, "N", 0, "Threads of variants that have them (all processors)", 2},
    {"rounds", KEY_ROUNDS, "N", 0, "Runs of each variant, at most (9)", 3},
    {"time", KEY_TIME, "TIME", 0, "A variant that has run for this long is not run again (3s)", 3},
    {"burst", KEY_BURST, "TIME", 0,
     "On the GPU, how long the runs that are timed together last: 1s shows what a GPU holds that "
     "gets warm (2ms)",
     3},
    {"no-peaks", KEY_NO_PEAKS, NULL, 0, "Do not measure the machine's peaks", 3},
    {"cpu-time", KEY_CPU_TIME, NULL, 0,
     "Count CPU time instead of wall-clock time, for a machine that is shared with others. Threads "
     "that wait by spinning count, too",
     3},
    CLI_OPTION_JSON,
    {0},
};

static const char doc[] =
    "Times each variant of operators on random data. It shows the median and the spread, "
    "operations and bytes a second, both also as shares of the machine's measured peaks, and the "
    "ratios to the previous variant and to OpenBLAS (on the GPU cuBLASLt) if that can be loaded. "
    "OPERATOR is matmul (the default), linear-forward, linear-backward, linear (both of them), "
    "attention, attention-backward, attention-paged (over a cache in pages), kv-append (of new "
    "rows to it), norm-forward, norm-backward, cross-entropy, adamw, grad-norm, embedding-forward, "
    "embedding-backward, swiglu-forward, swiglu-backward, rope, moe-forward or moe-backward (eight "
    "experts, two for each token)."
    "\vOpenBLAS computes the product alone, without bias and activation, in f32, with as many "
    "threads as the variant has; OPENBLAS_CORETYPE chooses its code. cuBLASLt computes as much of "
    "a linear layer as it can in one call; GPUNVME_CUBLASLT names another library. On the GPU, "
    "time is the GPU's own, of as many runs in a row as fill --burst, on matrices that are not in "
    "its cache. MHz is the multiprocessors' clock, which NVML tells while they run; host is the "
    "time in which the host enqueues a run.\n\n"
    "Peaks are measured in the same rounds: multiply-adds in registers (on the GPU's tensor cores "
    "products of the type, from registers or shared memory), and a copy of memory. GB/s count each "
    "matrix once. Before it is timed, each result is compared with sums in f64 in some rows and "
    "columns; 'gpunvme ops check' compares more.\n\n"
    "Examples:\n"
    "  gpunvme ops bench\n"
    "  gpunvme ops bench matmul --shape 2048x2048x2048 --variant avx512\n"
    "  gpunvme ops bench --device cuda --dtype bf16 --shape 4096\n"
    "  gpunvme ops bench --device cuda --dtype bf16 --burst 1s --time 9s\n"
    "  gpunvme ops bench linear --shape 512x4096x1024 --activation gelu --json\n"
    "  gpunvme ops bench attention --shape 2048x2048x128 --heads 32/8 --causal\n\n"
    "Exit codes: 0 all variants were measured, 1 something failed, 2 usage, 3 a result is wrong.";

static int parse_name(struct argp_state *state, const char *option, const char *arg,
                      int (*by_name)(const char *), const char *names)
{
    int value = by_name(arg);

    if (value < 0)
        argp_error(state, "--%s=%s: must be %s", option, arg, names);
    return value;
}

/* "32" or "32/8". */
static void parse_heads(struct argp_state *state, const char *arg, struct ops_heads *heads)
{
    unsigned all = 0, shared = 0;
    char more;
    int n = sscanf(arg, "%5u/%5u%c", &all, &shared, &more);

    if (n == 1 && strspn(arg, "0123456789") == strlen(arg))
        shared = all;
    else if (n != 2)
        shared = 0;
    if (!shared || all % shared)
        argp_error(state, "--heads=%s: must be like 32, or 32/8, where 8 divides 32", arg);
    heads->heads = all;
    heads->kv_heads = shared;
}

/* "4096" or "4096/128". */
static void parse_window(struct argp_state *state, const char *arg, struct ops_heads *heads)
{
    unsigned left = 0, right = 0;
    char more;
    int n = sscanf(arg, "%9u/%9u%c", &left, &right, &more);

    if (arg[0] < '0' || arg[0] > '9' || !(n == 2 || strspn(arg, "0123456789") == strlen(arg)))
        argp_error(state, "--window=%s: must be like 4096, or 4096/128", arg);
    heads->window = true;
    heads->left = left;
    heads->right = right;
}

static double parse_softcap(struct argp_state *state, const char *arg)
{
    char *end;
    double value = strtod(arg, &end);

    if (*end || !(value > 0) || !(value <= 1e6))
        argp_error(state, "--softcap=%s: must be a number above 0, up to 1e6", arg);
    return value;
}

static error_t parse_attention(int key, char *arg, struct argp_state *state)
{
    struct ops_bench_args *args = state->input;

    switch (key) {
    case KEY_BATCH:
        args->heads.batch = (int64_t)cli_parse_count(state, "batch", arg, 1, 65536);
        return 0;
    case KEY_HEADS:
        parse_heads(state, arg, &args->heads);
        return 0;
    case KEY_PAGE:
        args->heads.page = (int64_t)cli_parse_count(state, "page", arg, 1, 256);
        return 0;
    case KEY_VALUES:
        args->heads.values = (int64_t)cli_parse_count(state, "values", arg, 1, 65536);
        return 0;
    case KEY_WINDOW:
        parse_window(state, arg, &args->heads);
        return 0;
    case KEY_SOFTCAP:
        args->heads.softcap = parse_softcap(state, arg);
        return 0;
    case KEY_LENGTHS:
        args->heads.shortest = (int64_t)cli_parse_count(state, "lengths", arg, 1, 999999);
        return 0;
    case KEY_CACHE_DTYPE:
        args->heads.fp8_cache = !strcmp(arg, "e4m3");
        if (!args->heads.fp8_cache)
            argp_error(state,
                       "--cache-dtype=%s: must be e4m3; else a cache has the type of --dtype", arg);
        return 0;
    case KEY_CAUSAL:
        args->heads.causal = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static int kind_by_name(const char *name)
{
    return !strcmp(name, "rms")     ? GPUNVME_NORM_RMS
           : !strcmp(name, "layer") ? GPUNVME_NORM_LAYER
                                    : -1;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct ops_bench_args *args = state->input;

    switch (key) {
    case KEY_VARIANT:
        args->variant = strcmp(arg, "all") != 0 ? arg : NULL;
        return 0;
    case KEY_WITHOUT:
        args->without = arg;
        return 0;
    case KEY_SHAPE:
        if (args->nshapes == OPS_MAX_SHAPES)
            argp_error(state, "at most %d shapes", OPS_MAX_SHAPES);
        else if (!cli_ops_parse_shape(arg, &args->shapes[args->nshapes++]))
            argp_error(state, "--shape=%s: must be like 4096x4096x1024, or one number", arg);
        return 0;
    case KEY_SHAPES:
        args->list = arg;
        return 0;
    case KEY_DEVICE:
        args->device = parse_name(state, "device", arg, cli_ops_device_by_name, "cpu or cuda");
        return 0;
    case KEY_DTYPE:
        args->dtype = cli_ops_dtype_by_name(arg, &args->compute);
        if (args->dtype < 0)
            argp_error(state,
                       "--dtype=%s: must be f32, tf32, f16, bf16 or e4m3; for matmul also e5m2, "
                       "either with -row, -block or -fast, e4m3-e5m2 and e5m2-e4m3",
                       arg);
        return 0;
    case KEY_ACTIVATION:
        args->activation = parse_name(state, "activation", arg, cli_ops_activation_by_name,
                                      "none, relu, gelu, gelu_tanh or silu");
        return 0;
    case KEY_THREADS:
        args->threads = (int)cli_parse_count(state, "threads", arg, 1, 1024);
        return 0;
    case KEY_ROUNDS:
        args->rounds = (unsigned)cli_parse_count(state, "rounds", arg, 1, OPS_MAX_ROUNDS);
        return 0;
    case KEY_TIME:
        args->time_ns = cli_parse_time(state, "time", arg);
        return 0;
    case KEY_BURST:
        args->burst_ns = cli_parse_time(state, "burst", arg);
        if (!args->burst_ns || args->burst_ns > OPS_MAX_BURST_NS)
            argp_error(state, "--burst=%s: must be up to 10s", arg);
        return 0;
    case KEY_CPU_TIME:
        args->cpu_time = true;
        return 0;
    case KEY_NO_PEAKS:
        args->no_peaks = true;
        return 0;
    case KEY_NO_PREACT:
        args->no_preact = true;
        return 0;
    case CLI_KEY_JSON:
        args->json = true;
        return 0;
    case ARGP_KEY_ARG:
        cli_ops_add(state, arg, args->ops);
        return 0;
    case KEY_KIND:
        args->kind = parse_name(state, "kind", arg, kind_by_name, "rms or layer");
        return 0;
    default:
        return parse_attention(key, arg, state);
    }
}

static const struct argp argp = {options, parse, "[OPERATOR...]", doc, NULL, NULL, NULL};

static struct ops_row *add_row(struct ops_table *t, enum ops_row_kind kind, const char *name,
                               int threads)
{
    struct ops_row *row = &t->rows[t->nrows];

    if (t->nrows == OPS_MAX_ROWS)
        return NULL;
    t->nrows++;
    snprintf(row->name, sizeof(row->name), "%s", name);
    row->kind = kind;
    row->threads = threads;
    row->batch = 1;
    return row;
}

static int threads_of(const struct ops_table *t, const char *variant)
{
    if (strcmp(variant, "openmp") != 0)
        return 1;
    return t->args->threads ? t->args->threads : t->machine.units;
}

static bool takes(const struct ops_table *t, const struct gpunvme_ops_variant *v)
{
    return v->available && v->dtypes & 1u << t->data.dtype &&
           (t->data.dtype != GPUNVME_OPS_F32 || v->computes & 1u << t->data.compute) &&
           !(ops_is_attention(t->data.op) && ops_is_fp8(t->data.dtype) && t->data.compute);
}

/* Is the name in "one,another"? */
static bool listed(const char *list, const char *name)
{
    size_t n = strlen(name);

    while (list) {
        if (!strncmp(list, name, n) && (!list[n] || list[n] == ','))
            return true;
        list = strchr(list, ',');
        list += list != NULL;
    }
    return false;
}

/* A name that nothing has would leave nothing out, and nobody would see it: exit code, or 0. */
static int check_names(const struct ops_bench_args *args)
{
    struct gpunvme_ops_variant v;
    bool found = true;

    for (const char *at = args->without; at && found; at = strchr(at, ',')) {
        size_t n;

        at += *at == ',';
        n = strcspn(at, ",");
        found = false;
        for (int op = 0; op < GPUNVME_OPS_NOPS; op++)
            for (unsigned i = 0; !gpunvme_ops_variant(op, args->device, i, &v); i++)
                found |= strlen(v.name) == n && !strncmp(v.name, at, n);
        if (!found)
            return cli_usage("--without: there is no variant '%.*s': 'gpunvme ops list' has them",
                             (int)n, at);
    }
    return args->without && args->variant ? cli_usage("--variant or --without: not both") : 0;
}

/* A row for each variant. */
static void add_variants(struct ops_table *t)
{
    struct gpunvme_ops_variant v;

    if (t->args->variant) {
        struct ops_row *row =
            add_row(t, OPS_ROW_VARIANT, t->args->variant, threads_of(t, t->args->variant));

        if (!strcmp(t->args->variant, "auto"))
            snprintf(row->runs, sizeof(row->runs), "%s", ops_case_choice(&t->data));
    }
    for (unsigned i = 0;
         !t->args->variant && !gpunvme_ops_variant(t->data.op, t->data.device, i, &v); i++)
        if (takes(t, &v) && !listed(t->args->without, v.name))
            add_row(t, OPS_ROW_VARIANT, v.name, threads_of(t, v.name));
}

/* One that is named is run, and says itself why it can't. */
static bool has_variants(const struct ops_table *t)
{
    struct gpunvme_ops_variant v;
    bool any = t->args->variant != NULL;

    for (unsigned i = 0; !any && !gpunvme_ops_variant(t->data.op, t->data.device, i, &v); i++)
        any = takes(t, &v) && !listed(t->args->without, v.name);
    return any;
}

/* What can't be measured has no row: its column says "-". */
static void add_cpu_peaks(struct ops_table *t, int threads)
{
    struct ops_peak arithmetic, copy;
    struct ops_row *row;

    if (ops_peak_arithmetic(&arithmetic, threads)) {
        row = add_row(t, OPS_ROW_ARITHMETIC, arithmetic.by, threads);
        if (row)
            row->cpu_peak = arithmetic, row->work = arithmetic.work;
    }
    if (t->memory && ops_peak_copy(&copy, t->memory, threads)) {
        row = add_row(t, OPS_ROW_MEMORY, copy.by, threads);
        if (row)
            row->cpu_peak = copy, row->work = copy.work;
    }
}

static void add_gpu_peaks(struct ops_table *t)
{
    struct ops_gpu_peak arithmetic, memory;
    struct ops_row *row;

    if (ops_gpu_peak_arithmetic(&arithmetic, t->data.dtype, t->data.compute)) {
        row = add_row(t, OPS_ROW_ARITHMETIC, arithmetic.by, 1);
        if (row)
            row->gpu_peak = arithmetic, row->work = arithmetic.work;
    }
    /* Of a cache in pages and of gradients all is read, and almost nothing written. */
    if (ops_gpu_peak_memory(&memory,
                            t->data.op == GPUNVME_OPS_ATTENTION_PAGED ||
                                t->data.op == GPUNVME_OPS_GRAD_NORM,
                            ops_memory_op(t->data.op) ? ops_case_traffic(&t->data) / 2 : 0)) {
        row = add_row(t, OPS_ROW_MEMORY, memory.by, 1);
        if (row)
            row->gpu_peak = memory, row->work = memory.work;
        else
            ops_gpu_peak_drop(&memory);
    }
}

static void drop_gpu_peaks(struct ops_table *t)
{
    for (unsigned i = 0; i < t->nrows; i++)
        if (t->rows[i].gpu_peak.memory)
            ops_gpu_peak_drop(&t->rows[i].gpu_peak);
}

/*
 * The variants, then OpenBLAS and the peaks with each number of threads among them, or cuBLASLt and
 * the GPU's peaks.
 */
static void make_rows(struct ops_table *t)
{
    bool one = false;
    int many = 0;

    add_variants(t);
    for (unsigned i = 0; i < t->nrows; i++)
        if (t->rows[i].threads == 1)
            one = true;
        else
            many = t->rows[i].threads;
    if (t->cublas)
        add_row(t, OPS_ROW_PEER, "cuBLASLt", 1);
    if (t->blas && one)
        add_row(t, OPS_ROW_PEER, "OpenBLAS", 1);
    if (t->blas && many)
        add_row(t, OPS_ROW_PEER, "OpenBLAS", many);
    if (t->args->no_peaks)
        return;
    if (t->data.device == GPUNVME_OPS_CUDA)
        add_gpu_peaks(t);
    if (t->data.device == GPUNVME_OPS_CPU && one)
        add_cpu_peaks(t, 1);
    if (t->data.device == GPUNVME_OPS_CPU && many)
        add_cpu_peaks(t, many);
}

/* A run on the GPU is enqueued, each on the next set of matrices. */
struct enqueued {
    struct ops_table *table;
    struct ops_row *row;
    gpunvme_ops_status_t status;
};

static bool enqueue(void *arg)
{
    struct enqueued *e = arg;
    struct ops_case *data = &e->table->data;

    if (ops_row_is_peak(e->row))
        return ops_gpu_peak_run(&e->row->gpu_peak);
    data->set = (data->set + 1) % data->nsets;
    if (e->row->kind == OPS_ROW_PEER)
        return ops_cublas_run(e->table->cublas);
    e->status = ops_case_run(data, e->row->name);
    return !e->status;
}

/* Says in the row why it has no figures. */
static gpunvme_ops_status_t failed(struct ops_row *row, gpunvme_ops_status_t status)
{
    const char *detail = gpunvme_ops_detail();

    if (status == GPUNVME_OPS_OK)
        return status;
    if (status == GPUNVME_OPS_ERR_CUDA && ops_gpu_failed())
        detail = ops_gpu_error();
    else if (row->kind != OPS_ROW_VARIANT)
        detail = "it refused the work";
    snprintf(row->failed, sizeof(row->failed), "%s%s%s", detail, *detail ? ": " : "",
             gpunvme_ops_status_text(status));
    return status;
}

static gpunvme_ops_status_t run_on_gpu(struct ops_table *t, struct ops_row *row, double *seconds)
{
    struct enqueued e = {t, row, GPUNVME_OPS_OK};

    *seconds = ops_gpu_time(enqueue, &e, row->batch, &row->lead) / row->batch;
    if (!e.status && !(*seconds > 0))
        e.status = GPUNVME_OPS_ERR_CUDA;
    return failed(row, e.status);
}

static gpunvme_ops_status_t run_row(struct ops_table *t, struct ops_row *row, double *seconds)
{
    double start = t->args->cpu_time ? ops_cpu_now() : ops_now();
    gpunvme_ops_status_t status = GPUNVME_OPS_OK;

    if (t->data.device == GPUNVME_OPS_CUDA)
        return run_on_gpu(t, row, seconds);
    if (ops_row_is_peak(row)) {
        *seconds = ops_peak_run(&row->cpu_peak, t->args->cpu_time);
        return failed(row, *seconds > 0 ? GPUNVME_OPS_OK : GPUNVME_OPS_ERR_DEVICE);
    }
    if (row->kind == OPS_ROW_PEER)
        ops_blas_run(t->blas, &t->data, row->threads);
    else
        status = ops_case_run(&t->data, row->name);
    *seconds = (t->args->cpu_time ? (ops_cpu_now() - start) / row->threads : ops_now() - start);
    return failed(row, status);
}

/* Of each result so many rows and columns are compared with sums in f64. */
#define CHECKED_LINES 12

static gpunvme_ops_status_t check_row(struct ops_table *t, struct ops_row *row)
{
    struct ops_done product = {.activation = GPUNVME_OPS_ACT_NONE};
    struct ops_done done = row->kind == OPS_ROW_VARIANT ? ops_case_does(&t->data)
                           : t->cublas                  ? t->cublas->done
                                                        : product;

    if (!ops_case_fetch(&t->data))
        return failed(row, GPUNVME_OPS_ERR_CUDA);
    row->error = ops_case_error(&t->data, &done, CHECKED_LINES);
    return GPUNVME_OPS_OK;
}

#define BATCH_SECONDS 2e-3
#define MAX_BATCH     1000
#define MAX_LONG      1000000 /* of a long burst */

/* Runs on the GPU until so many in a row as fill a batch; a long burst is so many times that. */
static gpunvme_ops_status_t fill_batch(struct ops_table *t, struct ops_row *row)
{
    double burst = (double)t->args->burst_ns * 1e-9, seconds = 0;
    double fill = burst < BATCH_SECONDS ? burst : BATCH_SECONDS;
    gpunvme_ops_status_t status;

    for (;;) {
        status = run_on_gpu(t, row, &seconds);
        if (status || seconds * row->batch >= fill || row->batch * 2 > MAX_BATCH)
            break;
        row->batch *= 2;
    }
    if (!status && burst > BATCH_SECONDS && seconds * row->batch < burst)
        row->batch = burst / seconds < MAX_LONG ? (unsigned)ceil(burst / seconds) : MAX_LONG;
    return status;
}

static void add_run(struct ops_row *row, double seconds)
{
    row->clocks[row->nruns] = ops_gpu_clock();
    row->hosts[row->nruns] = row->lead / row->batch;
    row->seconds[row->nruns++] = seconds;
    row->spent += seconds * row->batch;
}

/*
 * The first run, which loads code, brings memory and is checked. On the CPU one that is long
 * counts; on the GPU more follow, until a batch is long enough.
 */
static gpunvme_ops_status_t warm_up(struct ops_table *t, struct ops_row *row)
{
    bool gpu = t->data.device == GPUNVME_OPS_CUDA, peak = ops_row_is_peak(row);
    gpunvme_ops_status_t status;
    double seconds = 0;

    if (!peak && !ops_case_poison(&t->data))
        return failed(row, GPUNVME_OPS_ERR_CUDA);
    /* A run on the GPU goes on to the next set first: that shall be the one that was poisoned. */
    t->data.set = (t->data.set + t->data.nsets - 1) % t->data.nsets;
    status = run_row(t, row, &seconds);
    if (!status && !peak)
        status = check_row(t, row);
    /* The GPU's time has that in which the host loaded code: what is left is the run's. */
    if (!status && gpu && seconds - row->lead < 0.1)
        status = fill_batch(t, row);
    if (!status && !gpu && seconds * 4e9 >= (double)t->args->time_ns)
        add_run(row, seconds);
    return status;
}

static bool tired(const struct ops_table *t, const struct ops_row *row)
{
    return row->failed[0] || row->nruns >= t->args->rounds ||
           (row->nruns && row->spent * 1e9 >= (double)t->args->time_ns);
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

static void evaluate(struct ops_row *row)
{
    double *s = row->seconds;

    if (!row->nruns)
        return;
    qsort(s, row->nruns, sizeof(*s), compare);
    row->median = quantile(s, row->nruns, 0.5);
    qsort(row->clocks, row->nruns, sizeof(*row->clocks), compare);
    row->clock = quantile(row->clocks, row->nruns, 0.5);
    qsort(row->hosts, row->nruns, sizeof(*row->hosts), compare);
    row->host = quantile(row->hosts, row->nruns, 0.5);
    row->spread = (quantile(s, row->nruns, 0.75) - quantile(s, row->nruns, 0.25)) / row->median;
}

/* After a kernel's fault CUDA refuses all further work of the process. */
static bool gpu_is_lost(const struct ops_table *t)
{
    return t->data.device == GPUNVME_OPS_CUDA && !ops_gpu_wait();
}

static int lost(const struct ops_row *row)
{
    cli_say("%s: %s: the GPU takes no more work of this process", row->name, row->failed);
    return CLI_FAILED;
}

/* A variant that was asked for by its name and can't is an error; one of all has a reason. */
static int warm_all_up(struct ops_table *t)
{
    unsigned good = 0;

    for (unsigned i = 0; i < t->nrows && !cli_stopped(); i++) {
        gpunvme_ops_status_t status = warm_up(t, &t->rows[i]);
        bool variant = t->rows[i].kind == OPS_ROW_VARIANT;

        if (status && gpu_is_lost(t))
            return lost(&t->rows[i]);
        if (status && variant && t->args->variant && status != GPUNVME_OPS_ERR_CUDA)
            return cli_ops_fail(status);
        good += variant && !status;
    }
    if (!good && t->nrows && t->rows[0].failed[0]) {
        cli_say("%s: %s", t->rows[0].name, t->rows[0].failed);
        return CLI_FAILED;
    }
    return CLI_OK;
}

static int run_once(struct ops_table *t, struct ops_row *row)
{
    double seconds;

    if (tired(t, row))
        return CLI_OK;
    if (!run_row(t, row, &seconds))
        add_run(row, seconds);
    else if (gpu_is_lost(t))
        return lost(row);
    return CLI_OK;
}

/* All rounds of one table; each begins with another row, for what is measured first is cooler. */
static int measure(struct ops_table *t)
{
    int code = warm_all_up(t);

    for (unsigned round = 0; round < t->args->rounds && !code; round++)
        for (unsigned i = 0; i < t->nrows && !code && !cli_stopped(); i++)
            code = run_once(t, &t->rows[(i + round) % t->nrows]);
    if (cli_stopped())
        return cli_fail(cli_stop_check());
    for (unsigned i = 0; i < t->nrows; i++)
        evaluate(&t->rows[i]);
    return code;
}

/* What was told with reasons, as an exit code: wrong before failed. */
static int code_of(const struct ops_table *t)
{
    int code = CLI_OK;

    for (unsigned i = 0; i < t->nrows; i++) {
        const struct ops_row *row = &t->rows[i];

        if (!ops_row_is_peak(row) && !row->failed[0] && !(row->error <= 1))
            return CLI_VERIFY;
        if (row->kind == OPS_ROW_VARIANT && row->failed[0])
            code = CLI_FAILED;
    }
    return code;
}

struct peers {
    const struct ops_blas *blas;
    struct ops_cublas *cublas;
    const char *none; /* why there is none */
    struct gpunvme_ops_capability machine;
    struct ops_peak_memory memory; /* of the CPU, to be copied */
};

static int measure_case(struct ops_table *t, const struct peers *peers)
{
    struct ops_shape *s = &t->data.shape;
    int code;

    if (!has_variants(t)) {
        cli_say("%s has no variant for this device and type that is not left out",
                cli_ops_name(t->data.op));
        return CLI_FAILED;
    }
    if (ops_attention_values(&t->data) > s->k)
        return cli_usage("--values=%lld: keys have %lld channels", (long long)t->data.heads.values,
                         (long long)s->k);
    if (t->data.heads.shortest > s->n)
        return cli_usage("--lengths=%lld: the shape has %lld keys",
                         (long long)t->data.heads.shortest, (long long)s->n);
    if (!ops_case_make(&t->data)) {
        cli_say("out of memory: matrices of %lld x %lld x %lld are too large for this machine",
                (long long)s->m, (long long)s->n, (long long)s->k);
        return CLI_FAILED;
    }
    t->no_peer = peers->none;
    if (peers->cublas && ops_is_product(t->data.op) && ops_cublas_prepare(peers->cublas, &t->data))
        t->cublas = peers->cublas;
    else if (peers->cublas)
        t->no_peer = "cuBLASLt has no way to do this";
    if (peers->blas && !t->blas)
        t->no_peer = ops_is_attention(t->data.op)  ? "OpenBLAS has no attention"
                     : !ops_is_product(t->data.op) ? "OpenBLAS does not do this"
                                                   : "OpenBLAS is only compared with in f32";
    if (t->cublas)
        ops_cublas_choose(t->cublas, &t->data);
    make_rows(t);
    code = measure(t);
    drop_gpu_peaks(t);
    ops_case_drop(&t->data);
    return code;
}

static int bench(const struct ops_bench_args *args, const struct peers *peers, int op,
                 const struct ops_shape *shape, struct cli_json *json, double *ratio)
{
    struct ops_table t = {
        .args = args,
        .blas = args->dtype == GPUNVME_OPS_F32 && ops_is_product(op) ? peers->blas : NULL,
        .machine = peers->machine,
        .memory = peers->memory.from ? &peers->memory : NULL,
        .data = {.op = op,
                 .device = args->device,
                 .dtype = args->dtype,
                 .compute = args->compute,
                 .activation = args->activation,
                 .shape = *shape,
                 .heads = args->heads,
                 .kind = args->kind,
                 .threads = args->threads,
                 .seed = 1,
                 .no_preact = args->no_preact,
                 .cache_nbytes = (size_t)peers->machine.cache_nbytes},
    };
    int code = measure_case(&t, peers);

    *ratio = NAN;
    if (code)
        return code;
    *ratio = ops_table_ratio(&t);
    if (json)
        ops_table_json(&t, json);
    else
        ops_table_print(&t);
    return code_of(&t);
}

/* A wrong result or a variant that failed does not keep others from being measured. */
static int bench_shapes(const struct ops_bench_args *args, const struct peers *peers,
                        struct cli_json *json)
{
    const struct ops_shape product = {1024, 1024, 1024}, attention = {1024, 1024, 64};
    unsigned count = args->nshapes ? args->nshapes : 1;
    bool first = true;
    int worst = CLI_OK;

    for (int op = 0; op < GPUNVME_OPS_NOPS; op++)
        for (unsigned i = 0; args->ops[op] && i < count; i++) {
            const struct ops_memory_op *memory = ops_memory_op(op);
            const struct ops_shape *shape = args->nshapes          ? &args->shapes[i]
                                            : ops_is_attention(op) ? &attention
                                            : memory               ? &memory->shape
                                                                   : &product;
            double ratio;
            int code;

            if (!json && !first)
                putchar('\n');
            first = false;
            code = bench(args, peers, op, shape, json, &ratio);
            fflush(stdout);
            if (code == CLI_USAGE || cli_stopped() ||
                (code && args->device == GPUNVME_OPS_CUDA && !ops_gpu_wait()))
                return code;
            worst = code > worst ? code : worst;
        }
    return worst;
}

/* A case of a list, and what came of it. */
struct listed_case {
    char text[96];
    int op, dtype, compute;
    struct ops_shape shape;
    double ratio;
};

static bool parse_case(struct listed_case *x, char *line)
{
    char op[32], dtype[16], shape[64], more[2];

    line[strcspn(line, "#\n")] = 0;
    if (sscanf(line, "%31s %15s %63s %1s", op, dtype, shape, more) != 3)
        return false;
    snprintf(x->text, sizeof(x->text), "%.31s %.15s %.40s", op, dtype, shape);
    x->op = cli_ops_by_name(op);
    x->dtype = cli_ops_dtype_by_name(dtype, &x->compute);
    return x->op >= 0 && x->dtype >= 0 && cli_ops_parse_shape(shape, &x->shape);
}

/* The lines of a file; NULL with `*line` > 0: that one makes no sense; 0: it can't be read. */
static struct listed_case *read_list(const char *path, unsigned *count, unsigned *line)
{
    struct listed_case *all = calloc(OPS_MAX_CASES, sizeof(*all));
    FILE *file = fopen(path, "r");
    bool good = all && file;
    char text[256];

    *count = *line = 0;
    while (good && fgets(text, sizeof(text), file)) {
        ++*line;
        if (strchr("#\n", text[strspn(text, " \t")]))
            continue;
        good = *count < OPS_MAX_CASES && parse_case(&all[(*count)++], text);
    }
    if (file)
        fclose(file);
    if (good && *count)
        return all;
    if (good)
        *line = 0;
    free(all);
    return NULL;
}

static int by_ratio(const void *a, const void *b)
{
    const struct listed_case *x = a, *y = b;

    return x->ratio < y->ratio ? -1 : x->ratio > y->ratio;
}

/* The geometric mean, and the ten cases that are slowest beside the peer. */
static void summarize(struct listed_case *cases, unsigned count, struct cli_json *json)
{
    unsigned n = 0;
    double sum = 0;

    for (unsigned i = 0; i < count; i++)
        if (cases[i].ratio > 0) {
            sum += log(cases[i].ratio);
            cases[n++] = cases[i];
        }
    qsort(cases, n, sizeof(*cases), by_ratio);
    if (json) {
        cli_json_object(json, "summary");
        cli_json_u64(json, "cases", n);
        cli_json_real(json, "geometric_mean", n ? exp(sum / n) : NAN);
        cli_json_array(json, "worst");
    } else {
        printf("\n%u cases of %u were compared: geometric mean %.3f; the worst:\n", n, count,
               n ? exp(sum / n) : NAN);
    }
    for (unsigned i = 0; i < n && i < 10; i++)
        if (json) {
            cli_json_object(json, NULL);
            cli_json_text(json, "case", cases[i].text);
            cli_json_real(json, "ratio", cases[i].ratio);
            cli_json_close(json);
        } else {
            printf("  %6.3f  %s\n", cases[i].ratio, cases[i].text);
        }
    if (json) {
        cli_json_close(json);
        cli_json_close(json);
    }
}

static int bench_list(const struct ops_bench_args *args, const struct peers *peers,
                      struct cli_json *json)
{
    struct ops_bench_args own = *args;
    unsigned count, line;
    struct listed_case *cases = read_list(args->list, &count, &line);
    int worst = CLI_OK;

    if (!cases)
        return line ? cli_usage("--shapes: %s, line %u: must be like 'matmul bf16 64x4096x4096'",
                                args->list, line)
                    : cli_usage("--shapes: %s can't be read, or is empty", args->list);
    if (!own.variant && !own.without)
        own.variant = "auto";
    own.no_peaks = true;
    for (unsigned i = 0; i < count && !cli_stopped(); i++) {
        int code;

        own.dtype = cases[i].dtype;
        own.compute = cases[i].compute;
        if (!json && i)
            putchar('\n');
        code = bench(&own, peers, cases[i].op, &cases[i].shape, json, &cases[i].ratio);
        fflush(stdout);
        if (code && args->device == GPUNVME_OPS_CUDA && !ops_gpu_wait()) {
            worst = code;
            break;
        }
        worst = code > worst ? code : worst;
    }
    if (json)
        cli_json_close(json); /* the tables */
    summarize(cases, count, json);
    free(cases);
    return worst;
}

static int bench_all(const struct ops_bench_args *args, struct cli_json *json)
{
    bool gpu = args->device == GPUNVME_OPS_CUDA;
    struct ops_cublas cublas = {.config = "there is no GPU"};
    struct ops_blas blas;
    struct peers peers = {0};
    gpunvme_ops_status_t status = gpunvme_ops_capability(args->device, 0, &peers.machine);
    char none[256];
    int code;

    if (status)
        return cli_ops_fail(status);
    if (!gpu && ops_blas_open(&blas))
        peers.blas = &blas;
    if (gpu && ops_gpu_present() && ops_cublas_open(&cublas))
        peers.cublas = &cublas;
    if (gpu)
        snprintf(none, sizeof(none),
                 "cuBLASLt was not found (libcublasLt.so.13 or .12, or what GPUNVME_CUBLASLT "
                 "names): %.150s",
                 cublas.config);
    else
        snprintf(none, sizeof(none),
                 "OpenBLAS was not found: libopenblas.so.0 (Debian: libopenblas0-pthread)");
    peers.none = peers.blas || peers.cublas ? NULL : none;
    if (!gpu && !args->no_peaks)
        ops_peak_memory_new(&peers.memory);
    code = args->list ? bench_list(args, &peers, json) : bench_shapes(args, &peers, json);
    ops_peak_memory_drop(&peers.memory);
    if (peers.cublas)
        ops_cublas_close(peers.cublas);
    return code;
}

int cli_ops_bench(int argc, char **argv)
{
    struct ops_bench_args args = {.activation = GPUNVME_OPS_ACT_GELU,
                                  .heads = {.batch = 1, .heads = 8, .kv_heads = 8, .page = 16},
                                  .rounds = 9,
                                  .time_ns = 3000000000u,
                                  .burst_ns = 2000000u};
    struct cli_json json;
    bool any = false;
    int code;

    if (!cli_parse(&argp, argc, argv, &args))
        return CLI_USAGE;
    code = check_names(&args);
    if (code)
        return code;
    for (int op = 0; op < GPUNVME_OPS_NOPS; op++)
        any |= args.ops[op];
    args.ops[GPUNVME_OPS_MATMUL] |= !any;
    if (!args.json)
        return bench_all(&args, NULL);
    cli_json_begin(&json, stdout);
    cli_json_array(&json, "tables");
    code = bench_all(&args, &json);
    cli_json_end(&json);
    return code;
}
