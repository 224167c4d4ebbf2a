/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme weights: the tensors of .safetensors files, listed, loaded, verified, and what else there
 * is in files of its own.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/fail.h"
#include "base/units.h"
#include "cli.h"
#include "json.h"
#include "stop.h"
#include "verbs.h"
#include "weights.h"

enum {
    KEY_GLOB = CLI_KEY_OWN,
    KEY_MEMORY,
    KEY_SLICE,
    KEY_MANIFEST,
    KEY_WRITE,
    KEY_CHECKSUM,
    KEY_DTYPE,
    KEY_ROUNDS
};

#define OPTION_GLOB                                                                                \
    {                                                                                              \
        "glob", KEY_GLOB, "PATTERN", 0,                                                            \
            "Tensors whose names match, such as 'model.layers.*' (all)", 0                         \
    }
#define OPTION_DTYPE                                                                               \
    {                                                                                              \
        "dtype", KEY_DTYPE, "DTYPE", 0, "Convert numbers to f32, f16, bf16 or f8_e4m3", 0          \
    }
#define OPTION_MEMORY                                                                              \
    {                                                                                              \
        "memory", KEY_MEMORY, "host|pinned|gpu", 0, "The memory to load into (gpu)", 0             \
    }

static const struct argp_option ls_options[] = {OPTION_GLOB, CLI_OPTION_JSON, {0}};
static const struct argp_option load_options[] = {
    OPTION_GLOB,
    OPTION_MEMORY,
    {"slice", KEY_SLICE, "DIM:BEGIN:END", 0,
     "Load only elements BEGIN to END - 1 of dimension DIM (0 is the first) of each tensor that "
     "has it",
     0},
    {"checksum", KEY_CHECKSUM, NULL, 0, "Compute the checksum of each tensor", 0},
    OPTION_DTYPE,
    CLI_OPTION_QUIET,
    CLI_OPTION_JSON,
    {0},
};
static const struct argp_option verify_options[] = {
    {"manifest", KEY_MANIFEST, "FILE", 0, "The manifest of checksums, a JSON file", 0},
    {"write", KEY_WRITE, NULL, 0, "Write the manifest instead of comparing with it", 0},
    OPTION_GLOB,
    OPTION_MEMORY,
    CLI_OPTION_QUIET,
    CLI_OPTION_JSON,
    {0},
};

static const struct argp_option bench_options[] = {
    OPTION_GLOB,
    {"memory", KEY_MEMORY, "host|pinned|gpu|all", 0, "The memory to load into (all)", 0},
    {"rounds", KEY_ROUNDS, "N", 0, "Loads of each URI into each kind of memory (5)", 0},
    {"checksum", KEY_CHECKSUM, NULL, 0, "Compute the checksum of each tensor", 0},
    OPTION_DTYPE,
    CLI_OPTION_JSON,
    {0},
};
static const struct argp_option convert_options[] = {
    OPTION_DTYPE,
    {"glob", KEY_GLOB, "PATTERN", 0, "Convert only tensors whose names match", 0},
    CLI_OPTION_QUIET,
    CLI_OPTION_JSON,
    {0},
};

static enum gpunvme_dtype parse_dtype(struct argp_state *state, const char *arg)
{
    static const enum gpunvme_dtype dtypes[] = {GPUNVME_DTYPE_F32, GPUNVME_DTYPE_F16,
                                                GPUNVME_DTYPE_BF16, GPUNVME_DTYPE_F8_E4M3};

    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++)
        if (!strcasecmp(arg, gpunvme_dtype_name(dtypes[i])))
            return dtypes[i];
    argp_error(state, "--dtype=%s: f32, f16, bf16 or f8_e4m3", arg);
    return GPUNVME_DTYPE_UNKNOWN;
}

static unsigned parse_rounds(struct argp_state *state, const char *arg)
{
    char *end;
    unsigned long n = strtoul(arg, &end, 10);

    if (*end || arg[0] < '0' || arg[0] > '9' || !n || n > 1000)
        argp_error(state, "--rounds=%s: 1 to 1000", arg);
    return (unsigned)n;
}

static bool parse_number(char **at, char separator, uint64_t *value)
{
    errno = 0;
    if (**at < '0' || **at > '9')
        return false;
    *value = strtoull(*at, at, 10);
    if (errno || **at != separator)
        return false;
    *at += separator != 0;
    return true;
}

static void parse_slice(struct weights_args *args, char *arg, struct argp_state *state)
{
    char *at = arg;

    args->sliced = true;
    if (!parse_number(&at, ':', &args->dim) || !parse_number(&at, ':', &args->range.begin) ||
        !parse_number(&at, 0, &args->range.end) || args->range.begin > args->range.end)
        argp_error(state, "--slice=%s: DIM:BEGIN:END, as 0:0:1024", arg);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct weights_args *args = state->input;

    switch (key) {
    case KEY_GLOB:
        args->glob = arg;
        return 0;
    case KEY_MEMORY:
        args->all_memory = args->all_memory && !strcmp(arg, "all");
        if (!args->all_memory)
            args->mem = cli_parse_memory(state, arg);
        return 0;
    case KEY_DTYPE:
        args->dtype = parse_dtype(state, arg);
        return 0;
    case KEY_ROUNDS:
        args->rounds = parse_rounds(state, arg);
        return 0;
    case KEY_SLICE:
        parse_slice(args, arg, state);
        return 0;
    case KEY_MANIFEST:
        args->manifest = arg;
        return 0;
    case KEY_WRITE:
        args->write = true;
        return 0;
    case KEY_CHECKSUM:
        args->checksum = true;
        return 0;
    case CLI_KEY_JSON:
        args->json = true;
        return 0;
    case 'q':
        args->quiet = true;
        return 0;
    case ARGP_KEY_ARG:
        args->uris[args->n++] = arg; /* there is room for all of argv */
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp ls_argp = {
    ls_options,
    parse,
    "URI...",
    "Lists the tensors of .safetensors files, or of those that an index "
    "(model.safetensors.index.json) names."
    "\vExamples:\n"
    "  gpunvme weights ls model.safetensors\n"
    "  gpunvme weights ls model.safetensors.index.json --glob '*.mlp.*'\n"
    "  gpunvme weights ls --json nvme:0000:01:00.0/1 | jq .tensors",
    NULL,
    NULL,
    NULL};
static const struct argp load_argp = {
    load_options,
    parse,
    "URI...",
    "Loads tensors into memory, and shows the rate and the route of the bytes."
    "\vWithout a GPU, host memory stands in for GPU memory, and the output says so. A URI's option "
    "require=p2p or require=bounce makes any slower route to GPU memory an error.\n\nExamples:\n"
    "  gpunvme weights load model.safetensors.index.json\n"
    "  gpunvme weights load 'file:model.safetensors?require=bounce'\n"
    "  gpunvme weights load model.safetensors --memory host \\\n"
    "      --glob 'model.layers.0.*'\n"
    "  gpunvme weights load model.safetensors --slice 0:0:1024",
    NULL,
    NULL,
    NULL};
static const struct argp verify_argp = {
    verify_options,
    parse,
    "URI...",
    "Loads tensors and compares their checksums with a manifest, or writes the manifest."
    "\vExamples:\n"
    "  gpunvme weights verify model.safetensors --manifest model.sums --write\n"
    "  gpunvme weights verify model.safetensors --manifest model.sums\n\n"
    "Exit codes: 0 done, 1 failed, 2 usage, 3 a tensor differs, 130 interrupted.",
    NULL,
    NULL,
    NULL};

static const struct argp bench_argp = {
    bench_options,
    parse,
    "URI...",
    "Measures how fast tensors are loaded, from each URI into each kind of memory. Loads take "
    "turns, and medians are shown."
    "\vName a model of several files by its index. Pages of host memory are allocated before a "
    "load is timed. Without a GPU, host memory stands in for GPU memory, and the output says "
    "so.\n\nExamples:\n"
    "  gpunvme weights bench model.safetensors\n"
    "  gpunvme weights bench model.safetensors 'file:model.safetensors?direct=on'\n"
    "  gpunvme weights bench --json --memory gpu model.safetensors.index.json",
    NULL,
    NULL,
    NULL};
static const struct argp convert_argp = {
    convert_options,
    parse,
    "IN... OUT",
    "Writes the tensors of .safetensors files to a new one, OUT, as another type."
    "\vFloating-point tensors of 16 and 32 bits are converted; others stay as they are. With "
    "f8_e4m3, each tensor NAME gets a tensor NAME_scale: a number times this scale is the value. "
    "OUT appears when it is complete, and replaces an existing file.\n\nExamples:\n"
    "  gpunvme weights convert model.safetensors small.safetensors --dtype bf16\n"
    "  gpunvme weights convert model.safetensors.index.json one.safetensors \\\n"
    "      --dtype f8_e4m3 --glob '*_proj.weight'",
    NULL,
    NULL,
    NULL};

/* ---- Opening -----------------------------------------------------------------------------------
 */

gpunvme_err_t cli_weights_open(const struct weights_args *args, struct weights_work *work)
{
    uint64_t begin = cli_now_ns();
    gpunvme_err_t err = gpunvme_weights_open(NULL, args->uris, args->n, &work->weights);

    work->open_ns = cli_now_ns() - begin;
    if (err)
        return err;
    work->tensors = calloc(gpunvme_weights_count(work->weights) + 1, sizeof(work->tensors[0]));
    if (!work->tensors)
        return base_fail(GPUNVME_ERR_NOMEM, "the list of tensors");
    err = gpunvme_weights_match(work->weights, args->glob, work->tensors,
                                gpunvme_weights_count(work->weights), &work->n);
    if (!err && !work->n && args->glob)
        return base_fail(GPUNVME_ERR_NOT_FOUND, "no tensor matches \"%.100s\"", args->glob);
    return err;
}

gpunvme_err_t cli_weights_close(struct weights_work *work, gpunvme_err_t err)
{
    struct base_failure failure;

    base_keep(&failure, err);
    err = gpunvme_weights_close(work->weights);
    if (err != GPUNVME_ERR_TIMEOUT)
        gpunvme_mem_free(&work->arena);
    free(work->tensors);
    free(work->parts);
    free(work->scales);
    free(work->ranges);
    return failure.err ? base_restore(&failure) : err;
}

/* ---- ls ----------------------------------------------------------------------------------------
 */

/* A name as a terminal may see it. */
static void print_name(const char *name)
{
    for (; *name; name++)
        putchar((unsigned char)*name < ' ' || *name == 0x7f ? '?' : *name);
}

static void shape_text(const struct gpunvme_tensor *t, char *text, size_t room)
{
    size_t used = (size_t)snprintf(text, room, "[");

    for (size_t d = 0; d < t->rank && used < room; d++)
        used +=
            (size_t)snprintf(text + used, room - used, "%s%" PRIu64, d ? ", " : "", t->shape[d]);
    if (used < room - 1)
        strcpy(text + used, "]");
    else
        strcpy(text + room - 5, "...]");
}

static void print_list(const struct weights_work *work)
{
    char shape[80], size[BASE_UNITS_TEXT];
    uint64_t sum = 0;

    printf("%-12s%10s  %-20s%s\n", "dtype", "size", "shape", "name");
    for (size_t i = 0; i < work->n; i++) {
        const struct gpunvme_tensor *t = work->tensors[i];

        shape_text(t, shape, sizeof(shape));
        printf("%-12.12s%10s  %-20s", t->dtype ? t->dtype_name : "unknown",
               base_format_size(t->nbytes, size, sizeof(size)), shape);
        print_name(t->name);
        putchar('\n');
        sum += t->nbytes;
    }
    printf("%zu tensors, %s, %zu files\n", work->n, base_format_size(sum, size, sizeof(size)),
           gpunvme_weights_nfiles(work->weights));
}

static void json_files(struct cli_json *json, const struct weights_work *work)
{
    const char *key, *value;

    cli_json_array(json, "files");
    for (size_t f = 0; f < gpunvme_weights_nfiles(work->weights); f++) {
        cli_json_object(json, NULL);
        cli_json_text(json, "uri", gpunvme_weights_uri(work->weights, f));
        cli_json_array(json, "metadata");
        for (size_t i = 0; gpunvme_weights_metadata(work->weights, f, i, &key, &value); i++) {
            cli_json_object(json, NULL);
            cli_json_text(json, "key", key);
            cli_json_text(json, "value", value);
            cli_json_close(json);
        }
        cli_json_close(json);
        cli_json_close(json);
    }
    cli_json_close(json);
}

static void print_json_list(const struct weights_work *work)
{
    struct cli_json json;

    cli_json_begin(&json, stdout);
    json_files(&json, work);
    cli_json_array(&json, "tensors");
    for (size_t i = 0; i < work->n; i++) {
        const struct gpunvme_tensor *t = work->tensors[i];

        cli_json_object(&json, NULL);
        cli_json_text(&json, "name", t->name);
        cli_json_text(&json, "dtype", t->dtype_name);
        cli_json_array(&json, "shape");
        for (size_t d = 0; d < t->rank; d++)
            cli_json_u64(&json, NULL, t->shape[d]);
        cli_json_close(&json);
        cli_json_u64(&json, "bytes", t->nbytes);
        cli_json_u64(&json, "file", t->file);
        cli_json_u64(&json, "offset", t->offset);
        cli_json_close(&json);
    }
    cli_json_close(&json);
    cli_json_end(&json);
}

static gpunvme_err_t ls(const struct weights_args *args)
{
    struct weights_work work = {.n = 0};
    gpunvme_err_t err = cli_weights_open(args, &work);

    if (!err && args->json)
        print_json_list(&work);
    else if (!err)
        print_list(&work);
    return cli_weights_close(&work, err);
}

/* ---- Loading -----------------------------------------------------------------------------------
 */

/* The ranges of a part that is sliced; NULL: it does not have that dimension. */
static const struct gpunvme_range *
slice(const struct weights_args *args, const struct gpunvme_tensor *t, struct gpunvme_range *ranges)
{
    if (!args->sliced || t->rank <= args->dim)
        return NULL;
    for (size_t d = 0; d < t->rank; d++)
        ranges[d] = (struct gpunvme_range){0, t->shape[d]};
    ranges[args->dim] = args->range;
    return ranges;
}

static bool is_number(enum gpunvme_dtype dtype)
{
    return dtype == GPUNVME_DTYPE_F32 || dtype == GPUNVME_DTYPE_F16 || dtype == GPUNVME_DTYPE_BF16;
}

gpunvme_err_t cli_weights_list_parts(const struct weights_args *args, struct weights_work *work)
{
    work->parts = calloc(work->n + 1, sizeof(work->parts[0]));
    work->scales = calloc(work->n + 1, sizeof(work->scales[0]));
    if (!work->parts || !work->scales)
        return base_fail(GPUNVME_ERR_NOMEM, "%zu parts", work->n);
    for (size_t i = 0; i < work->n; i++) {
        work->parts[i].tensor = work->tensors[i];
        if (is_number(work->tensors[i]->dtype) && work->tensors[i]->dtype != args->dtype)
            work->parts[i].dtype = args->dtype;
    }
    return GPUNVME_OK;
}

gpunvme_err_t cli_weights_make_parts(const struct weights_args *args, struct weights_work *work)
{
    size_t nranges = 0, nbytes;
    struct gpunvme_range *ranges;
    void *base;
    gpunvme_err_t err = cli_weights_list_parts(args, work);

    if (err)
        return err;
    for (size_t i = 0; i < work->n; i++)
        nranges += work->tensors[i]->rank;
    work->ranges = ranges = calloc(nranges + 1, sizeof(ranges[0]));
    if (!ranges)
        return base_fail(GPUNVME_ERR_NOMEM, "%zu parts", work->n);
    for (size_t i = 0; i < work->n; i++) {
        work->parts[i].ranges = slice(args, work->tensors[i], ranges);
        ranges += work->tensors[i]->rank;
    }
    err = gpunvme_weights_place(work->parts, work->n, CLI_WEIGHTS_ALIGN, NULL, args->mem, &nbytes);
    if (!err)
        err = gpunvme_mem_alloc(nbytes ? nbytes : 1, args->mem, &work->arena);
    base = args->mem == GPUNVME_MEM_GPU ? work->arena.gpu : work->arena.cpu;
    if (!err && work->arena.cpu) /* host memory gets its pages now: the time is the load's alone */
        err = gpunvme_mem_fill(base, args->mem, 0, work->arena.nbytes);
    if (err)
        return err;
    return gpunvme_weights_place(work->parts, work->n, CLI_WEIGHTS_ALIGN, base, args->mem, NULL);
}

static bool show_progress(void *work_, uint64_t done, uint64_t total)
{
    struct weights_work *work = work_;

    work->nbytes = total;
    cli_progress_update(&work->progress, done);
    return !cli_stopped();
}

gpunvme_err_t cli_weights_load(const struct weights_args *args, struct weights_work *work,
                               const char *what)
{
    const struct gpunvme_weights_options options = {.checksum = args->checksum,
                                                    .progress = show_progress,
                                                    .user = work,
                                                    .scales = work->scales};
    uint64_t begin;
    gpunvme_err_t err;

    cli_progress_begin(&work->progress, what, CLI_PROGRESS_BYTES, work->arena.nbytes,
                       args->quiet || args->json);
    begin = cli_now_ns();
    err = gpunvme_weights_load(work->weights, work->parts, work->n, &options);
    work->load_ns = cli_now_ns() - begin;
    cli_progress_end(&work->progress);
    return err == GPUNVME_ERR_CANCELED && cli_stopped() ? cli_stop_check() : err;
}

static gpunvme_err_t load_parts(const struct weights_args *args, struct weights_work *work)
{
    gpunvme_err_t err = cli_weights_make_parts(args, work);

    return err ? err : cli_weights_load(args, work, "load");
}

/* Bytes by route, of all files; the first one's path tells how. */
static void sum_routes(const struct weights_work *work, struct gpunvme_path *path)
{
    gpunvme_store_path(gpunvme_weights_store(work->weights, 0), path);
    for (size_t f = 1; f < gpunvme_weights_nfiles(work->weights); f++) {
        struct gpunvme_path other;

        gpunvme_store_path(gpunvme_weights_store(work->weights, f), &other);
        for (unsigned i = 0; i < GPUNVME_NROUTES; i++)
            path->bytes_read[i] += other.bytes_read[i];
    }
}

static void print_load(const struct weights_args *args, const struct weights_work *work)
{
    char size[BASE_UNITS_TEXT];
    struct gpunvme_path path;

    sum_routes(work, &path);
    printf("  %-12s%zu tensors, %zu files, opened in %.3f s\n", "weights", work->n,
           gpunvme_weights_nfiles(work->weights), (double)work->open_ns / 1e9);
    printf("  %-12s%s in %.3f s, %.2f GB/s\n", "loaded",
           base_format_size(work->nbytes, size, sizeof(size)), (double)work->load_ns / 1e9,
           work->load_ns ? (double)work->nbytes / (double)work->load_ns : 0.0);
    cli_print_wrapped(stdout, 14, "how", path.how);
    if (args->mem == GPUNVME_MEM_GPU)
        printf("  %-12s%s\n", "to the GPU",
               gpunvme_mem_gpu_is_host() ? "simulated: host memory stands in for the GPU's"
                                         : gpunvme_route_name(path.gpu_route));
    for (unsigned i = 0; i < GPUNVME_NROUTES; i++)
        if (path.bytes_read[i])
            printf("  %-12s%s by the way \"%s\"\n", "",
                   base_format_size(path.bytes_read[i], size, sizeof(size)),
                   gpunvme_route_name((enum gpunvme_route)i));
}

static void json_load(struct cli_json *json, const struct weights_args *args,
                      const struct weights_work *work)
{
    struct gpunvme_path path;

    sum_routes(work, &path);
    cli_json_u64(json, "files", gpunvme_weights_nfiles(work->weights));
    cli_json_u64(json, "tensors", work->n);
    cli_json_u64(json, "bytes", work->nbytes);
    cli_json_real(json, "open_seconds", (double)work->open_ns / 1e9);
    cli_json_real(json, "seconds", (double)work->load_ns / 1e9);
    cli_json_real(json, "bytes_per_second",
                  (double)work->nbytes * 1e9 / (double)(work->load_ns ? work->load_ns : 1));
    cli_json_text(json, "how", path.how);
    cli_json_bool(json, "memory_is_host",
                  args->mem == GPUNVME_MEM_GPU && gpunvme_mem_gpu_is_host());
    cli_json_object(json, "routes");
    for (unsigned i = 0; i < GPUNVME_NROUTES; i++)
        cli_json_u64(json, gpunvme_route_name((enum gpunvme_route)i), path.bytes_read[i]);
    cli_json_close(json);
}

static void json_checksums(struct cli_json *json, const struct weights_work *work)
{
    cli_json_array(json, "checksums");
    for (size_t i = 0; i < work->n; i++) {
        cli_json_object(json, NULL);
        cli_json_text(json, "name", work->parts[i].tensor->name);
        cli_json_hex(json, "checksum", work->parts[i].checksum);
        cli_json_close(json);
    }
    cli_json_close(json);
}

static gpunvme_err_t load(const struct weights_args *args)
{
    struct weights_work work = {.n = 0};
    struct cli_json json;
    gpunvme_err_t err = cli_weights_open(args, &work);

    if (!err)
        err = load_parts(args, &work);
    if (!err && args->json) {
        cli_json_begin(&json, stdout);
        json_load(&json, args, &work);
        if (args->checksum)
            json_checksums(&json, &work);
        cli_json_end(&json);
    } else if (!err) {
        print_load(args, &work);
        for (size_t i = 0; i < work.n && args->checksum; i++) {
            printf("  0x%016" PRIx64 "  ", work.parts[i].checksum);
            print_name(work.parts[i].tensor->name);
            putchar('\n');
        }
    }
    return cli_weights_close(&work, err);
}

/* ---- verify ------------------------------------------------------------------------------------
 */

static gpunvme_err_t compare(const struct weights_args *args, const struct weights_work *work)
{
    struct cli_json json;
    gpunvme_err_t err;

    if (args->write)
        err = gpunvme_weights_manifest_write(args->manifest, work->parts, work->n);
    else
        err = gpunvme_weights_manifest_check(args->manifest, work->parts, work->n, NULL);
    if (err)
        return err;
    if (args->json) {
        cli_json_begin(&json, stdout);
        cli_json_text(&json, "manifest", args->manifest);
        cli_json_bool(&json, "written", args->write);
        json_load(&json, args, work);
        cli_json_end(&json);
        return GPUNVME_OK;
    }
    print_load(args, work);
    if (args->write)
        printf("  %-12s%s: %zu checksums\n", "written", args->manifest, work->n);
    else
        printf("  %-12sall %zu tensors are as %s has them\n", "verified", work->n, args->manifest);
    return GPUNVME_OK;
}

static gpunvme_err_t verify(const struct weights_args *args)
{
    struct weights_work work = {.n = 0};
    gpunvme_err_t err = cli_weights_open(args, &work);

    if (!err)
        err = load_parts(args, &work);
    if (!err)
        err = compare(args, &work);
    return cli_weights_close(&work, err);
}

/* ---- Verbs -------------------------------------------------------------------------------------
 */

static int run(const struct argp *argp, int argc, char **argv, struct weights_args *args,
               gpunvme_err_t (*verb)(const struct weights_args *))
{
    const char **uris = calloc((size_t)argc + 1, sizeof(*uris));
    int code = CLI_USAGE;

    args->uris = uris;
    if (!uris)
        return cli_fail(base_fail(GPUNVME_ERR_NOMEM, "the command line"));
    if (cli_parse(argp, argc, argv, args)) {
        if (!args->n) {
            code = cli_usage("name the files: %s URI...", cli_name);
        } else if (verb == cli_weights_convert && (args->n < 2 || !args->dtype)) {
            code = cli_usage("name the files and the type: %s IN... OUT --dtype DTYPE", cli_name);
        } else if (verb == verify && !args->manifest) {
            code = cli_usage("name the manifest: %s URI... --manifest FILE", cli_name);
        } else {
            gpunvme_err_t err = verb(args);

            code = err ? cli_fail(err) : CLI_OK;
        }
    }
    free(uris);
    return code;
}

static int run_ls(int argc, char **argv)
{
    struct weights_args args = {.n = 0};

    return run(&ls_argp, argc, argv, &args, ls);
}

static int run_load(int argc, char **argv)
{
    struct weights_args args = {.mem = GPUNVME_MEM_GPU};

    return run(&load_argp, argc, argv, &args, load);
}

static int run_verify(int argc, char **argv)
{
    struct weights_args args = {.mem = GPUNVME_MEM_GPU, .checksum = true};

    return run(&verify_argp, argc, argv, &args, verify);
}

static int run_bench(int argc, char **argv)
{
    struct weights_args args = {.mem = GPUNVME_MEM_GPU, .all_memory = true, .rounds = 5};

    return run(&bench_argp, argc, argv, &args, cli_weights_bench);
}

static int run_convert(int argc, char **argv)
{
    struct weights_args args = {.n = 0};

    return run(&convert_argp, argc, argv, &args, cli_weights_convert);
}

static const struct cli_command commands[] = {
    {"ls", "lists the tensors", run_ls},
    {"load", "loads tensors, and shows how fast", run_load},
    {"verify", "compares checksums with a manifest, or writes one", run_verify},
    {"bench", "measures how fast tensors are loaded", run_bench},
    {"convert", "writes tensors to a file as another type", run_convert},
};

static const struct cli_verbs verbs = {
    .verbs = commands,
    .nverbs = sizeof(commands) / sizeof(commands[0]),
    .names = "ls, load, verify, bench or convert",
    .head = "Usage: gpunvme weights VERB [OPTION...] URI...\n"
            "Model weights: .safetensors files, or an index of them.\n\n",
    .tail = "\nExamples:\n"
            "  gpunvme weights ls model.safetensors.index.json\n"
            "  gpunvme weights load model-00001-of-00002.safetensors --glob '*.weight'\n"
            "  gpunvme weights verify model.safetensors --manifest model.sums\n"
            "  gpunvme weights convert model.safetensors small.safetensors --dtype bf16\n\n"
            "Each verb has --help and --json.\n",
};

int cli_weights(int argc, char **argv)
{
    return cli_verbs_run(&verbs, argc, argv);
}
