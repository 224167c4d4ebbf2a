/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme data: samples for training. What a data set has, an index of it, whether all samples can
 * be read, and how fast they are loaded.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/units.h"
#include "cli.h"
#include "data_cast.h"
#include "gpunvme/loader.h"
#include "gpunvme/memory.h"
#include "json.h"
#include "progress.h"
#include "stop.h"
#include "verbs.h"

#define VERIFY_BATCH  1024u
#define VERIFY_NBYTES ((uint64_t)16 << 20) /* of a batch, but one sample at least */

enum {
    KEY_FORMAT = CLI_KEY_OWN,
    KEY_RECORD,
    KEY_HEADER,
    KEY_SEQUENCE,
    KEY_OVERLAP,
    KEY_TOKEN,
    KEY_MEMBER,
    KEY_MEMORY,
    KEY_BATCH,
    KEY_DEPTH,
    KEY_SHUFFLE,
    KEY_SEED,
    KEY_TIME,
    KEY_CHECKSUMS,
    KEY_VERIFY,
    KEY_LIST,
    KEY_CAST,
};

struct data_args {
    const char **uris;
    size_t n;
    struct gpunvme_dataset_options options;
    const char *output;
    enum gpunvme_mem mem;
    uint64_t batch, depth, seed, time_ns;
    uint32_t shuffle;
    bool checksums, verify, cast, json, quiet;
    uint32_t cast_to; /* enum gpunvme_number, where `cast` is set */
};

/* What a verb works with. */
struct data_work {
    struct gpunvme_dataset *dataset;
    struct gpunvme_loader *loader;
    struct gpunvme_dataset_info info;
    struct data_cast cast;
    uint64_t open_ns;
};

/* Each in a group of its own: options of a group are sorted by name. */
#define OPTIONS_FORMAT                                                                             \
    {"format",                                                                                     \
     KEY_FORMAT,                                                                                   \
     "FORMAT",                                                                                     \
     0,                                                                                            \
     "records, tokens, npy, safetensors, tar, mds, index or list (by the files' names)",           \
     1},                                                                                           \
        {"record", KEY_RECORD, "SIZE", 0, "Size of a record", 2},                                  \
        {"header", KEY_HEADER, "SIZE", 0, "Bytes before the first record of a file (0)", 3},       \
        {"sequence", KEY_SEQUENCE, "N", 0, "Tokens of a sample", 4},                               \
        {"overlap", KEY_OVERLAP, "N", 0, "Tokens that a sample shares with the next one (0)", 5},  \
        {"token", KEY_TOKEN, "2|4", 0, "Bytes of a token, in files without a header (2)", 6},      \
    {                                                                                              \
        "member", KEY_MEMBER, "NAME", 0,                                                           \
            "A tensor of safetensors files, a suffix of files in tar archives, or a column of "    \
            "MDS",                                                                                 \
            7                                                                                      \
    }

static const struct argp_option stat_options[] = {OPTIONS_FORMAT, CLI_OPTION_JSON, {0}};
static const struct argp_option index_options[] = {
    OPTIONS_FORMAT,
    {"output", 'o', "FILE", 0, "The index; its name should end with .gnvidx", 8},
    {"list", KEY_LIST, "FILE", 0,
     "In place of URIs: a text file with a sample's URI, offset and length on each line", 8},
    {"checksums", KEY_CHECKSUMS, NULL, 0, "Read all samples, and store their checksums", 8},
    CLI_OPTION_QUIET,
    CLI_OPTION_JSON,
    {0},
};
static const struct argp_option verify_options[] = {
    OPTIONS_FORMAT, CLI_OPTION_QUIET, CLI_OPTION_JSON, {0}};
static const struct argp_option bench_options[] = {
    OPTIONS_FORMAT,
    {"memory", KEY_MEMORY, "host|pinned|gpu", 0, "The memory to load into (gpu)", 8},
    {"batch", KEY_BATCH, "N", 0, "Samples of a batch (512)", 8},
    {"depth", KEY_DEPTH, "N", 0, "Batches that are read ahead (8)", 8},
    {"shuffle", KEY_SHUFFLE, "epoch|blocks|none", 0, "Order of the samples (epoch)", 8},
    {"seed", KEY_SEED, "N", 0, "Seed of the order (1)", 8},
    {"time", KEY_TIME, "TIME", 0, "How long to run (5s)", 8},
    {"verify", KEY_VERIFY, NULL, 0, "Compare samples with the checksums of the index", 8},
    {"cast", KEY_CAST, "i32|i64|f16|bf16|f32", 0,
     "Cast each batch to this type, in the memory that it was loaded into", 8},
    CLI_OPTION_JSON,
    {0},
};

static uint32_t parse_name(struct argp_state *state, const char *option, const char *arg,
                           const char *(*name)(unsigned), unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        if (!strcmp(arg, name(i)))
            return i;
    argp_error(state, "--%s=%s: there is no such one", option, arg);
    return 0;
}

static const char *shuffle_name(unsigned shuffle)
{
    static const char *const names[] = {"epoch", "blocks", "none"};

    return names[shuffle];
}

static error_t parse_format(int key, char *arg, struct argp_state *state,
                            struct gpunvme_dataset_options *o)
{
    switch (key) {
    case KEY_FORMAT:
        o->format =
            parse_name(state, "format", arg, gpunvme_dataset_format_name, GPUNVME_DATASET_NFORMATS);
        return 0;
    case KEY_RECORD:
        o->record_nbytes = cli_parse_size(state, "record", arg);
        return 0;
    case KEY_HEADER:
        o->header_nbytes = cli_parse_size(state, "header", arg);
        return 0;
    case KEY_SEQUENCE:
        o->seq_tokens = cli_parse_count(state, "sequence", arg, 1, UINT32_MAX);
        return 0;
    case KEY_OVERLAP:
        o->overlap_tokens = cli_parse_count(state, "overlap", arg, 0, UINT32_MAX);
        return 0;
    case KEY_TOKEN:
        o->token_nbytes = (uint32_t)cli_parse_count(state, "token", arg, 2, 4);
        return 0;
    case KEY_MEMBER:
        o->member = arg;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct data_args *args = state->input;

    switch (key) {
    case 'o':
        args->output = arg;
        return 0;
    case KEY_MEMORY:
        args->mem = cli_parse_memory(state, arg);
        return 0;
    case KEY_BATCH:
        args->batch = cli_parse_count(state, "batch", arg, 1, 1u << 24);
        return 0;
    case KEY_DEPTH:
        args->depth = cli_parse_count(state, "depth", arg, 1, GPUNVME_LOADER_MAX_DEPTH);
        return 0;
    case KEY_SHUFFLE:
        args->shuffle = parse_name(state, "shuffle", arg, shuffle_name, 3);
        return 0;
    case KEY_SEED:
        args->seed = cli_parse_count(state, "seed", arg, 0, UINT64_MAX);
        return 0;
    case KEY_TIME:
        args->time_ns = cli_parse_time(state, "time", arg);
        return 0;
    case KEY_CHECKSUMS:
        args->checksums = true;
        return 0;
    case KEY_VERIFY:
        args->verify = true;
        return 0;
    case KEY_CAST: {
        const int number = data_cast_number(arg);

        if (number < 0)
            argp_error(state, "--cast=%s: there are i32, i64, f16, bf16 and f32", arg);
        args->cast = true;
        args->cast_to = (uint32_t)number;
        return 0;
    }
    case KEY_LIST:
        args->options.format = GPUNVME_DATASET_LIST;
        args->uris[args->n++] = arg;
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
        return parse_format(key, arg, state, &args->options);
    }
}

#define ARGP(options, text)                                                                        \
    {                                                                                              \
        options, parse, "URI...", text, NULL, NULL, NULL                                           \
    }

static const struct argp stat_argp = ARGP(
    stat_options, "Shows a data set: how many samples it has, their sizes and shape, and its files."
                  "\vExamples:\n"
                  "  gpunvme data stat train-*.bin --sequence 1024 --overlap 1\n"
                  "  gpunvme data stat shard-*.tar --member jpg --json");
static const struct argp index_argp = ARGP(
    index_options, "Writes an index of where the samples are, so that opening it reads no headers."
                   "\vExamples:\n"
                   "  gpunvme data index shard-*.tar --member jpg -o train.gnvidx\n"
                   "  gpunvme data index train-*.bin --sequence 1024 --checksums -o train.gnvidx\n"
                   "  gpunvme data index --list samples.tsv -o train.gnvidx");
static const struct argp verify_argp = ARGP(
    verify_options, "Reads all samples once, and compares them with the checksums of an index that "
                    "has them. Prints a checksum of all samples, and names the first bad ones."
                    "\vExample:\n"
                    "  gpunvme data verify train.gnvidx\n\n"
                    "Exit codes: 0 done, 1 failed, 2 usage, 3 samples that can't be read or have "
                    "another checksum, or a file that is not the one indexed, 130 interrupted.");
static const struct argp bench_argp =
    ARGP(bench_options,
         "Measures how fast batches of samples are loaded."
         "\vWithout a GPU, host memory stands in for GPU memory, and the output says so.\n\n"
         "Example:\n"
         "  gpunvme data bench train-*.bin --sequence 2048 --batch 512 --cast i64");

/* ---- Opening -----------------------------------------------------------------------------------
 */

static gpunvme_err_t open_data(const struct data_args *args, struct data_work *work)
{
    const uint64_t begin = cli_now_ns();
    gpunvme_err_t err =
        gpunvme_dataset_open(NULL, args->uris, args->n, &args->options, &work->dataset);

    work->open_ns = cli_now_ns() - begin;
    if (!err)
        gpunvme_dataset_get_info(work->dataset, &work->info);
    return err;
}

static gpunvme_err_t close_data(struct data_work *work, gpunvme_err_t err)
{
    struct base_failure failure;

    base_keep(&failure, err);
    err = gpunvme_loader_close(work->loader);
    if (!err)
        err = gpunvme_dataset_close(work->dataset);
    return failure.err ? base_restore(&failure) : err;
}

static gpunvme_err_t open_loader(struct data_work *work, const struct gpunvme_loader_options *o)
{
    const struct gpunvme_loader_source source = {.dataset = work->dataset};

    return gpunvme_loader_open(&source, 1, o, &work->loader);
}

/* ---- stat and index ----------------------------------------------------------------------------
 */

static void json_info(struct cli_json *json, const struct data_work *work)
{
    const struct gpunvme_dataset_info *info = &work->info;

    cli_json_text(json, "format", gpunvme_dataset_format_name(info->format));
    cli_json_u64(json, "files", info->nfiles);
    cli_json_u64(json, "samples", info->nsamples);
    cli_json_u64(json, "bytes", info->nbytes);
    cli_json_u64(json, "sample_bytes", info->sample_nbytes);
    cli_json_u64(json, "greatest_bytes", info->max_nbytes);
    cli_json_text(json, "dtype", info->dtype ? gpunvme_dtype_name(info->dtype) : NULL);
    cli_json_array(json, "shape");
    for (size_t d = 0; d < info->rank; d++)
        cli_json_u64(json, NULL, info->shape[d]);
    cli_json_close(json);
    cli_json_hex(json, "fingerprint", info->fingerprint);
    cli_json_bool(json, "has_checksums", info->has_checksums);
    cli_json_u64(json, "index_bytes", info->index_nbytes);
    cli_json_real(json, "open_seconds", (double)work->open_ns / 1e9);
}

static void print_info(const struct data_work *work)
{
    const struct gpunvme_dataset_info *info = &work->info;
    char size[BASE_UNITS_TEXT], greatest[BASE_UNITS_TEXT];

    printf("  %-12s%s, %" PRIu64 " files, opened in %.3f s\n", "data set",
           gpunvme_dataset_format_name(info->format), info->nfiles, (double)work->open_ns / 1e9);
    base_format_size(info->max_nbytes, greatest, sizeof(greatest));
    printf("  %-12s%" PRIu64 ", %s; %s %s\n", "samples", info->nsamples,
           base_format_size(info->nbytes, size, sizeof(size)),
           info->sample_nbytes ? "each has" : "the longest has", greatest);
    if (info->rank) {
        printf("  %-12s%s [", "shape", gpunvme_dtype_name(info->dtype));
        for (size_t d = 0; d < info->rank; d++)
            printf("%s%" PRIu64, d ? ", " : "", info->shape[d]);
        printf("]\n");
    }
    printf("  %-12s%s in memory%s\n", "index",
           base_format_size(info->index_nbytes, size, sizeof(size)),
           info->has_checksums ? ", with checksums" : "");
    printf("  %-12s%016" PRIx64 "\n", "fingerprint", info->fingerprint);
}

static bool draw(void *progress, uint64_t done, uint64_t total)
{
    (void)total;
    cli_progress_update(progress, done);
    return !cli_stopped();
}

static gpunvme_err_t write_index(const struct data_args *args, const struct data_work *work)
{
    struct cli_progress progress;
    const struct gpunvme_dataset_index_options options = {
        .checksums = args->checksums, .progress = draw, .user = &progress};
    gpunvme_err_t err;

    cli_progress_begin(&progress, "index", CLI_PROGRESS_BYTES, work->info.nbytes,
                       args->quiet || args->json);
    err = gpunvme_dataset_write_index(work->dataset, args->output, &options);
    cli_progress_end(&progress);
    return cli_stopped() ? cli_stop_check() : err;
}

static gpunvme_err_t stat_or_index(const struct data_args *args)
{
    struct data_work work = {0};
    struct cli_json json;
    gpunvme_err_t err = open_data(args, &work);

    if (!err && args->output)
        err = write_index(args, &work);
    if (!err && args->json) {
        cli_json_begin(&json, stdout);
        if (args->output)
            cli_json_text(&json, "output", args->output);
        json_info(&json, &work);
        cli_json_end(&json);
    } else if (!err) {
        print_info(&work);
        if (args->output)
            printf("  %-12s%s\n", "written", args->output);
    }
    return close_data(&work, err);
}

/* ---- verify ------------------------------------------------------------------------------------
 */

#define NAMED 10u /* bad samples that are named; the others are counted */

struct verified {
    uint64_t samples, nbytes, unreadable, different, checksum;
    uint64_t next; /* the sample that follows those that were read */
};

static void name_sample(const struct data_work *work, const struct verified *v, uint64_t i,
                        const char *what)
{
    struct gpunvme_data_range where;

    if (v->unreadable + v->different > NAMED || gpunvme_dataset_at(work->dataset, i, &where))
        return;
    cli_say("sample %" PRIu64 ": %s: byte %" PRIu64 ": %s", i,
            gpunvme_dataset_uri(work->dataset, where.file), where.offset, what);
}

/* Samples come in their order: those that are left out can't be read. */
static void miss_until(const struct data_work *work, struct verified *v, uint64_t sample)
{
    for (; v->next < sample; v->next++) {
        v->unreadable++;
        name_sample(work, v, v->next, "it can't be read");
    }
}

static void add_sample(const struct data_work *work, struct verified *v, uint64_t i, uint64_t sum)
{
    uint64_t expected;
    char text[80];

    miss_until(work, v, i);
    v->next = i + 1;
    /* Each sample's checksum and number count, whatever batches are. */
    v->checksum += (sum ^ i) * UINT64_C(0x9e3779b97f4a7c15);
    if (!work->info.has_checksums || gpunvme_dataset_checksum(work->dataset, i, &expected) ||
        sum == expected)
        return;
    v->different++;
    snprintf(text, sizeof(text), "its checksum is %016" PRIx64 ", the index has %016" PRIx64, sum,
             expected);
    name_sample(work, v, i, text);
}

static void add_batch(const struct data_work *work, struct verified *v,
                      const struct gpunvme_loader_batch *batch)
{
    for (uint64_t i = 0; i < batch->n; i++)
        add_sample(work, v, batch->samples[i].index,
                   gpunvme_mem_checksum_host((const uint8_t *)batch->ptr + batch->offsets[i],
                                             (size_t)batch->lengths[i]));
    v->samples += batch->n;
    v->nbytes += batch->nbytes;
}

static gpunvme_err_t read_all(const struct data_args *args, struct data_work *work,
                              struct verified *v)
{
    const uint64_t fit =
        work->info.max_nbytes ? VERIFY_NBYTES / work->info.max_nbytes : VERIFY_BATCH;
    const uint64_t batch_size = fit > VERIFY_BATCH ? VERIFY_BATCH : fit ? fit : 1;
    const struct gpunvme_loader_options options = {
        .order = {.batch = batch_size, .shuffle = GPUNVME_SHUFFLE_NONE},
        .on_error = GPUNVME_ON_ERROR_SKIP};
    const struct gpunvme_loader_batch *batch = NULL;
    struct cli_progress progress;
    gpunvme_err_t err = open_loader(work, &options);

    if (err)
        return err;
    cli_progress_begin(&progress, "verify", CLI_PROGRESS_BYTES, work->info.nbytes,
                       args->quiet || args->json);
    while (!err && !(err = cli_stop_check()) &&
           !(err = gpunvme_loader_next(work->loader, &batch, 0)) && batch) {
        add_batch(work, v, batch);
        err = gpunvme_loader_release(work->loader, batch, NULL);
        cli_progress_update(&progress, v->nbytes);
    }
    cli_progress_end(&progress);
    if (!err)
        miss_until(work, v, work->info.nsamples);
    return err;
}

static gpunvme_err_t judge(const struct data_work *work, const struct verified *v)
{
    if (!v->unreadable && !v->different)
        return GPUNVME_OK;
    return base_fail(GPUNVME_ERR_VERIFY,
                     "of %" PRIu64 " samples %" PRIu64 " can't be read, and %" PRIu64
                     " have another checksum than the index says",
                     work->info.nsamples, v->unreadable, v->different);
}

static gpunvme_err_t verify(const struct data_args *args)
{
    struct data_work work = {0};
    struct verified v = {0};
    char size[BASE_UNITS_TEXT];
    struct cli_json json;
    uint64_t begin, ns;
    gpunvme_err_t err = open_data(args, &work);

    begin = cli_now_ns();
    if (!err && work.info.nsamples)
        err = read_all(args, &work, &v);
    ns = cli_now_ns() - begin;
    if (!err)
        err = judge(&work, &v);
    if (!err && args->json) {
        cli_json_begin(&json, stdout);
        cli_json_u64(&json, "files", work.info.nfiles);
        cli_json_u64(&json, "samples", v.samples);
        cli_json_u64(&json, "bytes", v.nbytes);
        cli_json_hex(&json, "checksum", v.checksum);
        cli_json_bool(&json, "compared", work.info.has_checksums);
        cli_json_real(&json, "seconds", (double)ns / 1e9);
        cli_json_end(&json);
    } else if (!err) {
        printf("  %-12sall %" PRIu64 " samples can be read%s: %s in %.3f s\n", "verified",
               v.samples, work.info.has_checksums ? ", and have the checksums of the index" : "",
               base_format_size(v.nbytes, size, sizeof(size)), (double)ns / 1e9);
        printf("  %-12s%016" PRIx64 "\n", "checksum", v.checksum);
    }
    return close_data(&work, err);
}

/* ---- bench -------------------------------------------------------------------------------------
 */

/* Casts a batch, if that was asked for, and gives it back. */
static gpunvme_err_t use(const struct data_args *args, struct data_work *work,
                         const struct gpunvme_loader_batch *batch)
{
    static const struct gpunvme_order behind = {.flags = GPUNVME_AFTER_STREAM};
    const bool on_gpu = args->mem == GPUNVME_MEM_GPU && !gpunvme_mem_gpu_is_host();
    gpunvme_err_t err = GPUNVME_OK;

    if (args->cast && batch->nbytes)
        err = data_cast_batch(&work->cast, batch);
    return err ? err
               : gpunvme_loader_release(work->loader, batch, args->cast && on_gpu ? &behind : NULL);
}

static gpunvme_err_t take_for(const struct data_args *args, struct data_work *work)
{
    const uint64_t end = cli_now_ns() + args->time_ns;
    const struct gpunvme_loader_batch *batch;
    struct base_failure failure;
    gpunvme_err_t err = GPUNVME_OK;

    while (!err && cli_now_ns() < end) {
        err = cli_stop_check();
        if (!err)
            err = gpunvme_loader_next(work->loader, &batch, 0);
        if (!err && batch)
            err = use(args, work, batch);
    }
    base_keep(&failure, err);
    err = data_cast_end(&work->cast);
    return failure.err ? base_restore(&failure) : err;
}

static void json_bench(const struct data_args *args, const struct data_work *work,
                       const struct gpunvme_loader_stats *s, double seconds)
{
    struct gpunvme_path path;
    struct cli_json json;

    gpunvme_store_path(gpunvme_dataset_store(work->dataset, 0), &path);
    cli_json_begin(&json, stdout);
    cli_json_u64(&json, "files", work->info.nfiles);
    cli_json_text(&json, "memory",
                  args->mem == GPUNVME_MEM_GPU      ? "gpu"
                  : args->mem == GPUNVME_MEM_PINNED ? "pinned"
                                                    : "host");
    cli_json_bool(&json, "memory_is_host",
                  args->mem == GPUNVME_MEM_GPU && gpunvme_mem_gpu_is_host());
    cli_json_text(&json, "shuffle", shuffle_name(args->shuffle));
    cli_json_u64(&json, "seed", args->seed);
    cli_json_u64(&json, "batch", args->batch);
    cli_json_u64(&json, "depth", args->depth);
    cli_json_bool(&json, "verify", args->verify);
    cli_json_text(&json, "cast", args->cast ? data_cast_name(args->cast_to) : NULL);
    cli_json_u64(&json, "cast_bytes", work->cast.nbytes);
    cli_json_u64(&json, "samples", s->samples);
    cli_json_u64(&json, "bytes", s->nbytes);
    cli_json_real(&json, "seconds", seconds);
    cli_json_real(&json, "samples_per_second", (double)s->samples / seconds);
    cli_json_real(&json, "bytes_per_second", (double)s->nbytes / seconds);
    cli_json_u64(&json, "transfers", s->transfers);
    cli_json_real(&json, "stall_seconds", (double)s->stall_ns / 1e9);
    cli_json_object(&json, "routes");
    for (unsigned i = 0; i < GPUNVME_NROUTES; i++)
        cli_json_u64(&json, gpunvme_route_name((enum gpunvme_route)i), s->routes[i]);
    cli_json_close(&json);
    cli_json_text(&json, "how", path.how);
    cli_json_text(&json, "not_faster", path.why_not);
    cli_json_end(&json);
}

static void print_bench(const struct data_args *args, const struct data_work *work,
                        const struct gpunvme_loader_stats *s, double seconds)
{
    char size[BASE_UNITS_TEXT];
    struct gpunvme_path path;

    gpunvme_store_path(gpunvme_dataset_store(work->dataset, 0), &path);
    printf("  %-12s%" PRIu64 ", %s in %.3f s\n", "samples", s->samples,
           base_format_size(s->nbytes, size, sizeof(size)), seconds);
    printf("  %-12s%.0f samples/s, %.2f GB/s\n", "rate", (double)s->samples / seconds,
           (double)s->nbytes / seconds / 1e9);
    if (args->cast)
        printf("  %-12s%s to %s: %s made\n", "cast", data_cast_name(work->cast.from),
               data_cast_name(work->cast.to),
               base_format_size(work->cast.nbytes, size, sizeof(size)));
    cli_print_wrapped(stdout, 14, "how", path.how);
    if (args->mem == GPUNVME_MEM_GPU && gpunvme_mem_gpu_is_host())
        printf("  %-12ssimulated: host memory stands in for the GPU's\n", "to the GPU");
    for (unsigned i = 0; i < GPUNVME_NROUTES; i++)
        if (s->routes[i])
            printf("  %-12s%s by the way \"%s\"\n", "",
                   base_format_size(s->routes[i], size, sizeof(size)),
                   gpunvme_route_name((enum gpunvme_route)i));
}

static gpunvme_err_t bench(const struct data_args *args)
{
    const struct gpunvme_loader_options options = {
        .order = {.seed = args->seed, .batch = args->batch, .shuffle = args->shuffle},
        .mem = args->mem,
        .depth = (uint32_t)args->depth,
        .verify = args->verify};
    struct gpunvme_loader_stats stats;
    struct data_work work = {0};
    gpunvme_err_t err = open_data(args, &work);
    uint64_t begin = 0;
    double seconds;

    if (!err && args->cast)
        err = data_cast_begin(&work.cast, &work.info, args->cast_to);
    if (!err)
        err = open_loader(&work, &options);
    if (!err) {
        begin = cli_now_ns();
        err = take_for(args, &work);
    }
    if (err)
        return close_data(&work, err);
    seconds = (double)(cli_now_ns() - begin) / 1e9;
    gpunvme_loader_get_stats(work.loader, &stats);
    if (args->json)
        json_bench(args, &work, &stats, seconds);
    else
        print_bench(args, &work, &stats, seconds);
    return close_data(&work, err);
}

/* ---- Verbs -------------------------------------------------------------------------------------
 */

static int run(const struct argp *argp, int argc, char **argv,
               gpunvme_err_t (*verb)(const struct data_args *))
{
    struct data_args args = {
        .mem = GPUNVME_MEM_GPU, .batch = 512, .depth = 8, .seed = 1, .time_ns = 5000000000u};
    int code = CLI_USAGE;

    args.uris = calloc((size_t)argc + 1, sizeof(*args.uris));
    if (!args.uris)
        return cli_fail(base_fail(GPUNVME_ERR_NOMEM, "the command line"));
    if (cli_parse(argp, argc, argv, &args)) {
        if (!args.n) {
            code = cli_usage("name the files: %s URI...", cli_name);
        } else if (argp == &index_argp && !args.output) {
            code = cli_usage("name the index: %s URI... -o FILE", cli_name);
        } else {
            gpunvme_err_t err = verb(&args);

            code = err ? cli_fail(err) : CLI_OK;
        }
    }
    free(args.uris);
    return code;
}

static int run_stat(int argc, char **argv)
{
    return run(&stat_argp, argc, argv, stat_or_index);
}

static int run_index(int argc, char **argv)
{
    return run(&index_argp, argc, argv, stat_or_index);
}

static int run_verify(int argc, char **argv)
{
    return run(&verify_argp, argc, argv, verify);
}

static int run_bench(int argc, char **argv)
{
    return run(&bench_argp, argc, argv, bench);
}

static const struct cli_command commands[] = {
    {"stat", "shows the samples and files of a data set", run_stat},
    {"index", "writes an index of where the samples are", run_index},
    {"verify", "reads all samples, and compares their checksums", run_verify},
    {"bench", "measures how fast batches of samples are loaded", run_bench},
};

static const struct cli_verbs verbs = {
    .verbs = commands,
    .nverbs = sizeof(commands) / sizeof(commands[0]),
    .names = "stat, index, verify or bench",
    .head = "Usage: gpunvme data VERB [OPTION...] URI...\n"
            "Samples for training: records, tokens, .npy, .safetensors, tar, MDS, a list or\n"
            "an index.\n\n",
    .tail = "\nExamples:\n"
            "  gpunvme data stat train-*.bin --sequence 1024\n"
            "  gpunvme data index shard-*.tar --member jpg -o train.gnvidx\n"
            "  gpunvme data verify train.gnvidx\n"
            "  gpunvme data bench train.gnvidx --memory host\n\n"
            "Each verb has --help and --json.\n",
};

int cli_data(int argc, char **argv)
{
    return cli_verbs_run(&verbs, argc, argv);
}
