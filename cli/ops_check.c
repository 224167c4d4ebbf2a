/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme ops check: every variant of every operator on this machine, against sums in f64. The
 * shapes are few and odd; tests/ops has more of them.
 */
#include <math.h>
#include <string.h>

#include "cli.h"
#include "json.h"
#include "ops.h"
#include "ops_gpu.h"
#include "stop.h"

struct args {
    bool json;
    const char *variant;
    int device; /* -1: all */
    uint64_t seed;
    bool some, ops[GPUNVME_OPS_NOPS]; /* which operators; not `some`: all */
};

enum { KEY_VARIANT = CLI_KEY_OWN, KEY_DEVICE, KEY_SEED };

static const struct argp_option options[] = {
    {"variant", KEY_VARIANT, "all|NAME", 0, "Which variant (all that this machine has)", 1},
    {"device", KEY_DEVICE, "all|cpu|cuda", 0, "Where to run (all)", 1},
    {"seed", KEY_SEED, "N", 0, "Seed of the random data (1)", 1},
    CLI_OPTION_JSON,
    {0},
};

static const char doc[] =
    "Compares each variant of each operator that this machine has with sums in f64, with each type "
    "and on several shapes; attention in 32 queries and keys of four heads, where bf16/e4m3 is "
    "bf16 over a cache in e4m3. OPERATOR is a name that 'gpunvme ops list' has, or linear (both "
    "directions); without one all are checked. The error is shown as a share of what sums in f32 "
    "may lose: up to 1 is right. With a GPU, its variants are checked, too."
    "\vExamples:\n"
    "  gpunvme ops check\n"
    "  gpunvme ops check attention attention-backward --device cuda\n"
    "  gpunvme ops check --device cuda --variant hopper\n"
    "  gpunvme ops check --variant avx512 --seed 7\n\n"
    "Exit codes: 0 all are right, 1 something failed, 2 usage, 3 a result is wrong.";

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct args *args = state->input;

    switch (key) {
    case KEY_VARIANT:
        args->variant = strcmp(arg, "all") != 0 ? arg : NULL;
        return 0;
    case KEY_DEVICE:
        args->device = cli_ops_device_by_name(arg);
        if (args->device < 0 && strcmp(arg, "all") != 0)
            argp_error(state, "--device=%s: must be all, cpu or cuda", arg);
        return 0;
    case KEY_SEED:
        args->seed = cli_parse_count(state, "seed", arg, 0, UINT64_MAX);
        return 0;
    case CLI_KEY_JSON:
        args->json = true;
        return 0;
    case ARGP_KEY_ARG:
        args->some = true;
        cli_ops_add(state, arg, args->ops);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {options, parse, "[OPERATOR...]", doc, NULL, NULL, NULL};

static const struct ops_shape shapes[] = {
    {1, 1, 1},
    {67, 131, 97},
    {13, 33, 1000},
    {128, 96, 64},
    {485, 9, 31},
    {3, 257, 389},
    {136, 264, 200},
    {2, 333, 576}, /* attention over a cache: of latent vectors */
    {3, 517, 128}, /* and of few queries */
    /* For GPUs alone: few rows; a long sum of few results; several tiles for each block. */
    {5, 264, 4104},
    {72, 136, 6152},
    {4360, 4104, 72},
};
#define NSHAPES     (sizeof(shapes) / sizeof(shapes[0]))
#define NCPU_SHAPES (NSHAPES - 3)

/* Shapes with three large factors are for products. */
#define MOST_TRAFFIC 1e9

struct result {
    int op, device, dtype, compute;
    bool fp8_cache;
    const char *variant;
    double error; /* the worst of all shapes; the first that is wrong stays, it may be NaN */
    unsigned ncases;
};

/* A kernel that fails says so to who asks next. */
static gpunvme_ops_status_t fetch_failed(const struct result *r)
{
    cli_say("%s %s: %s", cli_ops_name(r->op), r->variant, ops_gpu_error());
    return GPUNVME_OPS_ERR_CUDA;
}

/* So many lines of a result are compared; 0: all. Attention's sums in f64 take the longest. */
static int64_t lines_of(const struct ops_case *c)
{
    if (ops_is_attention(c->op) || ops_memory_op(c->op))
        return 32;
    return c->shape.m * c->shape.n > 1 << 20 ? 64 : 0;
}

/*
 * One variant and type on all shapes, linear layers with an activation of each kind in turn,
 * attention with every other shape causal, and of the others some with a window, a softcap or
 * sequences of two lengths.
 */
static gpunvme_ops_status_t check(const struct args *args, struct result *r)
{
    size_t count = r->device == GPUNVME_OPS_CPU ? NCPU_SHAPES : NSHAPES;

    for (size_t i = 0; i < count && !cli_stopped(); i++) {
        struct ops_case c = {.op = r->op,
                             .device = r->device,
                             .dtype = r->dtype,
                             .compute = r->compute,
                             .activation = (int)(i % GPUNVME_OPS_NACTS),
                             .shape = shapes[i],
                             .heads = {.batch = 2,
                                       .heads = 4,
                                       .kv_heads = 2,
                                       .page = 16,
                                       .causal = i % 2,
                                       .values = shapes[i].k == 576 ? 512 : 0,
                                       .fp8_cache = r->fp8_cache,
                                       .window = i % 4 == 2,
                                       .left = 24,
                                       .right = 8,
                                       .softcap = i % 4 == 3 ? 1 : 0,
                                       .shortest = i % 3 ? 0 : shapes[i].n / 2 + 1},
                             .kind = (int)(i / 2 % 2),
                             .seed = args->seed + i};
        gpunvme_ops_status_t status = GPUNVME_OPS_OK;
        double error = NAN; /* out of memory is told as wrong */

        if (ops_memory_op(c.op) && ops_case_traffic(&c) > MOST_TRAFFIC)
            continue;
        if (ops_case_make(&c) && ops_case_poison(&c)) {
            struct ops_done done = ops_case_does(&c);

            status = ops_case_run(&c, r->variant);
            if (!status && ops_case_fetch(&c))
                error = ops_case_error(&c, &done, lines_of(&c));
            else if (!status)
                status = fetch_failed(r);
        }
        ops_case_drop(&c);
        if (status == GPUNVME_OPS_ERR_UNSUPPORTED || status == GPUNVME_OPS_ERR_ALIGN)
            continue; /* a shape that is not the variant's, or whose rows begin in odd places */
        if (status)
            return status;
        if (r->error <= 1 && !(error <= r->error))
            r->error = error;
        r->ncases++;
    }
    return GPUNVME_OPS_OK;
}

/* "bf16", or over a cache of another type "bf16/e4m3". */
static const char *types_of(const struct result *r, char text[32])
{
    snprintf(text, 32, "%s%s", cli_ops_dtype_name(r->dtype, r->compute),
             r->fp8_cache ? "/e4m3" : "");
    return text;
}

static void tell(const struct result *r, struct cli_json *json)
{
    bool right = r->error <= 1;
    char types[32];

    if (!json) {
        printf("  %-20s%-13s%-10s%6u cases%10.3f  %s\n", cli_ops_name(r->op), r->variant,
               types_of(r, types), r->ncases, r->error, right ? "right" : "WRONG");
        return;
    }
    cli_json_object(json, NULL);
    cli_json_text(json, "operator", cli_ops_name(r->op));
    cli_json_text(json, "device", cli_ops_device_name(r->device));
    cli_json_text(json, "variant", r->variant);
    cli_json_text(json, "dtype", types_of(r, types));
    cli_json_u64(json, "cases", r->ncases);
    cli_json_real(json, "error", r->error);
    cli_json_bool(json, "right", right);
    cli_json_close(json);
}

struct count {
    unsigned checked, wrong;
    bool found;
    int code;
};

/* Nothing of what was asked for is here: the device says why, or the variant what it needs. */
static int check_nothing(const struct args *args)
{
    struct gpunvme_ops_capability x;
    gpunvme_ops_status_t status =
        gpunvme_ops_capability(args->device < 0 ? GPUNVME_OPS_CUDA : args->device, 0, &x);

    if (status)
        return cli_ops_fail(status);
    cli_say("nothing was checked: this machine has none of the variants");
    return CLI_FAILED;
}

static void check_type(const struct args *args, const struct gpunvme_ops_variant *v, int dtype,
                       int compute, bool fp8_cache, struct cli_json *json, struct count *count)
{
    struct result r = {v->op, v->device, dtype, compute, fp8_cache, v->name, 0, 0};
    gpunvme_ops_status_t status = check(args, &r);
    char types[32];

    if (status)
        count->code = cli_ops_fail(status);
    else if (cli_stopped())
        count->code = cli_fail(cli_stop_check());
    if (count->code)
        return;
    if (!r.ncases) {
        cli_say("%s %s: not checked in %s, for which it takes none of the shapes",
                cli_ops_name(r.op), r.variant, types_of(&r, types));
        return;
    }
    tell(&r, json);
    count->checked++;
    count->wrong += !(r.error <= 1);
}

/* One that may be E4M3. */
static bool has_cache(const struct gpunvme_ops_variant *v)
{
    static const char *const without[] = {"mla", "flash2", "hopper"};

    for (size_t i = 0; i < sizeof(without) / sizeof(without[0]); i++)
        if (!strcmp(v->name, without[i]))
            return false;
    return v->op == GPUNVME_OPS_ATTENTION_PAGED || v->op == GPUNVME_OPS_KV_APPEND;
}

/*
 * Every type; tf32 and fast sums of fp8 are some of their own on the GPU, while the CPU computes in
 * f32.
 */
static void check_variant(const struct args *args, const struct gpunvme_ops_variant *v,
                          struct cli_json *json, struct count *count)
{
    for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES && !count->code; dtype++) {
        bool by_tf32 = dtype == GPUNVME_OPS_F32 && v->device == GPUNVME_OPS_CUDA &&
                       v->computes & 1u << GPUNVME_OPS_COMPUTE_TF32;

        if (!(v->dtypes & 1u << dtype))
            continue;
        if (dtype != GPUNVME_OPS_F32 || v->computes & 1u << GPUNVME_OPS_COMPUTE_F32)
            check_type(args, v, dtype, GPUNVME_OPS_COMPUTE_F32, false, json, count);
        if (by_tf32 && !count->code)
            check_type(args, v, dtype, GPUNVME_OPS_COMPUTE_TF32, false, json, count);
        if (has_cache(v) && !count->code)
            check_type(args, v, dtype, GPUNVME_OPS_COMPUTE_F32, true, json, count);
    }
    for (int dtype = GPUNVME_OPS_E4M3; dtype < GPUNVME_OPS_NALLDTYPES; dtype++)
        for (int way = 0; way < (ops_is_attention(v->op) ? 1 : OPS_FP8_WAYS) &&
                          v->dtypes & 1u << dtype && !count->code;
             way++)
            if (way != OPS_FP8_FAST || v->device == GPUNVME_OPS_CUDA)
                check_type(args, v, dtype, way, false, json, count);
}

static void check_ladder(const struct args *args, int op, int device, struct cli_json *json,
                         struct count *count)
{
    struct gpunvme_ops_variant v;

    for (unsigned i = 0; !gpunvme_ops_variant(op, device, i, &v) && !count->code; i++) {
        if (args->variant && strcmp(args->variant, v.name) != 0)
            continue;
        count->found = true;
        /* What was named and is not here, is told so; but a name may be on both devices. */
        if (v.available || (args->variant && args->device >= 0))
            check_variant(args, &v, json, count);
    }
}

static void check_all(const struct args *args, struct cli_json *json, struct count *count)
{
    for (int device = 0; device < GPUNVME_OPS_NDEVICES; device++) {
        if (args->device >= 0 && args->device != device)
            continue;
        if (!json && device == GPUNVME_OPS_CUDA && ops_gpu_present())
            puts("on the GPU:");
        for (int op = 0; op < GPUNVME_OPS_NOPS && !count->code; op++)
            if (!args->some || args->ops[op])
                check_ladder(args, op, device, json, count);
    }
    if (!count->found && args->variant)
        count->code =
            args->some
                ? cli_usage("these operators have no variant '%s': 'gpunvme ops list' has them",
                            args->variant)
                : cli_usage("there is no variant '%s': 'gpunvme ops list' has them", args->variant);
    else if (!count->checked && !count->code)
        count->code = check_nothing(args);
}

int cli_ops_check(int argc, char **argv)
{
    struct args args = {.device = -1, .seed = 1};
    struct count count = {0};
    struct cli_json json;

    if (!cli_parse(&argp, argc, argv, &args))
        return CLI_USAGE;
    if (args.json) {
        cli_json_begin(&json, stdout);
        cli_json_array(&json, "checks");
    } else {
        puts("  operator            variant      type                   error");
    }
    check_all(&args, args.json ? &json : NULL, &count);
    if (args.json)
        cli_json_end(&json);
    if (count.code)
        return count.code;
    if (!args.json)
        printf("%u checked, %u wrong\n", count.checked, count.wrong);
    return count.wrong ? CLI_VERIFY : CLI_OK;
}
