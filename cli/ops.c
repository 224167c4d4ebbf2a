/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme ops: finds the verb; lists the variants of the operators.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "json.h"
#include "ops.h"
#include "verbs.h"

static const char *const op_names[GPUNVME_OPS_NOPS] = {"matmul",
                                                       "linear-forward",
                                                       "linear-backward",
                                                       "attention",
                                                       "attention-backward",
                                                       "attention-paged",
                                                       "kv-append",
                                                       "norm-forward",
                                                       "norm-backward",
                                                       "cross-entropy",
                                                       "adamw",
                                                       "grad-norm",
                                                       "embedding-forward",
                                                       "embedding-backward",
                                                       "swiglu-forward",
                                                       "swiglu-backward",
                                                       "rope",
                                                       "moe-forward",
                                                       "moe-backward"};

const char *cli_ops_name(int op)
{
    return op_names[op];
}

int cli_ops_by_name(const char *name)
{
    for (int op = 0; op < GPUNVME_OPS_NOPS; op++)
        if (!strcmp(op_names[op], name))
            return op;
    return -1;
}

void cli_ops_add(struct argp_state *state, const char *arg, bool ops[GPUNVME_OPS_NOPS])
{
    int op = cli_ops_by_name(arg);

    if (op >= 0)
        ops[op] = true;
    else if (!strcmp(arg, "linear"))
        ops[GPUNVME_OPS_LINEAR_FORWARD] = ops[GPUNVME_OPS_LINEAR_BACKWARD] = true;
    else
        argp_error(
            state,
            "there is no operator '%s': matmul, linear, or another that 'gpunvme ops list' has",
            arg);
}

/* By type, and how it is multiplied: enum gpunvme_ops_compute, or of fp8 enum ops_fp8. */
static const char *const dtype_names[GPUNVME_OPS_NALLDTYPES][OPS_FP8_WAYS] = {
    [GPUNVME_OPS_F32] = {"f32", "tf32"},
    [GPUNVME_OPS_F16] = {"f16"},
    [GPUNVME_OPS_BF16] = {"bf16"},
    [GPUNVME_OPS_E4M3] = {"e4m3", "e4m3-row", "e4m3-block", "e4m3-fast", "e4m3-e5m2"},
    [GPUNVME_OPS_E5M2] = {"e5m2", "e5m2-row", "e5m2-block", "e5m2-fast", "e5m2-e4m3"},
};

int cli_ops_dtype_by_name(const char *name, int *compute)
{
    for (int dtype = 0; dtype < GPUNVME_OPS_NALLDTYPES; dtype++)
        for (*compute = 0; *compute < OPS_FP8_WAYS; ++*compute)
            if (dtype_names[dtype][*compute] && !strcmp(dtype_names[dtype][*compute], name))
                return dtype;
    *compute = 0;
    return -1;
}

const char *cli_ops_dtype_name(int dtype, int compute)
{
    const char *name = dtype_names[dtype][compute];

    return name ? name : gpunvme_ops_dtype_name(dtype);
}

static const char *const device_names[GPUNVME_OPS_NDEVICES] = {"cpu", "cuda"};

int cli_ops_device_by_name(const char *name)
{
    for (int device = 0; device < GPUNVME_OPS_NDEVICES; device++)
        if (!strcmp(device_names[device], name))
            return device;
    return -1;
}

const char *cli_ops_device_name(int device)
{
    return device_names[device];
}

int cli_ops_activation_by_name(const char *name)
{
    for (int activation = 0; activation < GPUNVME_OPS_NACTS; activation++)
        if (!strcmp(gpunvme_ops_activation_name(activation), name))
            return activation;
    return -1;
}

/* A positive number of at most 6 digits; `end` is behind it. */
static bool parse_number(const char *text, const char **end, int64_t *value)
{
    *value = 0;
    for (*end = text; **end >= '0' && **end <= '9' && *end - text < 6; (*end)++)
        *value = *value * 10 + (**end - '0');
    return *value > 0;
}

bool cli_ops_parse_shape(const char *text, struct ops_shape *shape)
{
    if (!parse_number(text, &text, &shape->m))
        return false;
    if (!*text) {
        shape->n = shape->k = shape->m;
        return true;
    }
    return *text == 'x' && parse_number(text + 1, &text, &shape->n) && *text == 'x' &&
           parse_number(text + 1, &text, &shape->k) && !*text;
}

int cli_ops_fail(gpunvme_ops_status_t status)
{
    const char *detail = gpunvme_ops_detail();

    cli_say("%s%s%s (%s)", detail, *detail ? ": " : "", gpunvme_ops_status_text(status),
            gpunvme_ops_status_name(status));
    return status == GPUNVME_OPS_ERR_VARIANT ? CLI_USAGE : CLI_FAILED;
}

/* The name of a type that a variant takes, or NULL. It may take f32 as tf32 alone. */
static const char *type_of(const struct gpunvme_ops_variant *v, int dtype)
{
    int only_tf32 = dtype == GPUNVME_OPS_F32 && !(v->computes & 1u << GPUNVME_OPS_COMPUTE_F32);

    return v->dtypes & 1u << dtype ? cli_ops_dtype_name(dtype, only_tf32) : NULL;
}

static void print_variant(const struct gpunvme_ops_variant *v)
{
    printf("  %-13s", v->name);
    for (int dtype = 0; dtype < GPUNVME_OPS_NALLDTYPES; dtype++)
        if (type_of(v, dtype))
            printf(" %s", type_of(v, dtype));
    if (v->available)
        putchar('\n');
    else
        printf(" (not here: needs %s)\n", v->needs);
    cli_print_wrapped(stdout, 16, "", v->changes);
}

static void list_variant(const struct gpunvme_ops_variant *v, struct cli_json *json)
{
    if (!json) {
        print_variant(v);
        return;
    }
    cli_json_object(json, NULL);
    cli_json_text(json, "name", v->name);
    cli_json_text(json, "device", cli_ops_device_name(v->device));
    cli_json_array(json, "dtypes");
    for (int dtype = 0; dtype < GPUNVME_OPS_NALLDTYPES; dtype++)
        if (type_of(v, dtype))
            cli_json_text(json, NULL, type_of(v, dtype));
    cli_json_close(json);
    cli_json_text(json, "needs", v->needs);
    cli_json_text(json, "changes", v->changes);
    cli_json_bool(json, "available", v->available);
    cli_json_bool(json, "deterministic", v->deterministic);
    cli_json_close(json);
}

static void list_op(int op, struct cli_json *json)
{
    static const char *const devices[] = {"CPU", "GPU"};
    struct gpunvme_ops_variant v;

    if (json)
        cli_json_array(json, gpunvme_ops_op_name(op));
    for (int device = 0; device < GPUNVME_OPS_NDEVICES; device++)
        for (unsigned i = 0; !gpunvme_ops_variant(op, device, i, &v); i++) {
            if (!json && !i)
                printf("%s on the %s\n", cli_ops_name(op), devices[device]);
            list_variant(&v, json);
        }
    if (json)
        cli_json_close(json);
}

struct list_args {
    bool some, ops[GPUNVME_OPS_NOPS]; /* some are named: those */
    bool json;
};

static error_t parse_list(int key, char *arg, struct argp_state *state)
{
    struct list_args *args = state->input;

    switch (key) {
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

static const struct argp_option list_options[] = {CLI_OPTION_JSON, {0}};
static const struct argp list_argp = {
    list_options,
    parse_list,
    "[OPERATOR...]",
    "Lists the variants of each operator, or of those that are named: from the plainest to the "
    "fastest, with the types of their operands, and what each changes."
    "\vExamples:\n"
    "  gpunvme ops list\n"
    "  gpunvme ops list matmul linear",
    NULL,
    NULL,
    NULL};

static int list(int argc, char **argv)
{
    struct list_args args = {0};
    struct cli_json writer;
    bool more = false;

    if (!cli_parse(&list_argp, argc, argv, &args))
        return CLI_USAGE;
    if (args.json) {
        cli_json_begin(&writer, stdout);
        cli_json_object(&writer, "operators");
    }
    for (int op = 0; op < GPUNVME_OPS_NOPS; op++) {
        if (args.some && !args.ops[op])
            continue;
        if (!args.json && more)
            putchar('\n');
        more = true;
        list_op(op, args.json ? &writer : NULL);
    }
    if (args.json)
        cli_json_end(&writer);
    return CLI_OK;
}

static const struct cli_command commands[] = {
    {"list", "lists the variants of each operator, and what each changes", list},
    {"bench", "measures each variant, beside OpenBLAS or cuBLASLt", cli_ops_bench},
    {"check", "compares the results of each variant with sums in f64", cli_ops_check},
};

static const struct cli_verbs verbs = {
    .verbs = commands,
    .nverbs = sizeof(commands) / sizeof(commands[0]),
    .names = "list, bench or check",
    .head = "Usage: gpunvme ops VERB [OPTION...] [ARGUMENT...]\n"
            "Compute operators: matrix multiplication, the linear layer, attention and the\n"
            "rest of a training step. Each has variants, from the plainest to the fastest.\n\n",
    .tail = "\nExamples:\n"
            "  gpunvme ops list\n"
            "  gpunvme ops bench matmul --shape 2048x2048x2048\n"
            "  gpunvme ops check\n\n"
            "Each verb has --help and --json.\n",
};

int cli_ops(int argc, char **argv)
{
    return cli_verbs_run(&verbs, argc, argv);
}
