/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme bench: its options, its threads, and how the result is told. What one thread does with
 * its queue is in bench_worker.c.
 */
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/units.h"
#include "bench.h"
#include "cli.h"
#include "gpunvme/memory.h"
#include "guard.h"
#include "path.h"
#include "progress.h"
#include "stats.h"
#include "stop.h"

#define MAX_QUEUES           1024u
#define DEFAULT_TIME_NS      UINT64_C(5000000000)
#define DEFAULT_VERIFY_BYTES (UINT64_C(256) << 20)
#define TICK_MS              50
#define STORE_BLOCK_SHIFT    9 /* a store has bytes; blocks are for the stamps of --verify */

struct args {
    struct cli_common common;
    struct bench_plan plan;
    uint64_t offset, length;
    uint64_t block_nbytes;
    uint64_t time_ns, timeout_ns;
    uint32_t queues;
    bool force;
};

struct bench {
    struct args args;
    struct cli_device device;
    const struct gpunvme_ns *ns;
    struct bench_shared shared;
    struct bench_worker **workers; /* `queues` of them, or as many as could be made */
    uint32_t nworkers;
    struct cli_path path;
    uint64_t elapsed_ns;
    uint64_t nfilled; /* bytes written beforehand */
    struct cli_hist hist[2];
    uint64_t nbytes[2];
    struct bench_errors errors;
    char profile[32];
};

enum {
    KEY_OFFSET = CLI_KEY_OWN,
    KEY_LENGTH,
    KEY_READ_SHARE,
    KEY_VERIFY,
    KEY_SEED,
    KEY_MEMORY,
    KEY_TIMEOUT,
};

static const struct argp_option options[] = {
    {"pattern", 'p', "random|sequential", 0, "Order of the blocks (random)", 1},
    {"block-size", 'b', "SIZE", 0, "Bytes of one command (4K)", 1},
    {"read-share", KEY_READ_SHARE, "PERCENT", 0, "Share of reads among the commands (100)", 1},
    {"depth", 'd', "N", 0, "Commands in flight on a queue (32)", 2},
    {"queues", 'Q', "N", 0, "Queues, each with a thread (1)", 2},
    {"memory", KEY_MEMORY, "host|pinned|gpu", 0, "Where the data is (host)", 2},
    {"time", 't', "TIME", 0, "How long to run (5s)", 3},
    {"count", 'c', "N", 0, "Commands to run, instead of a time", 3},
    {"offset", KEY_OFFSET, "BYTES", 0, "First byte of the region (0)", 4},
    {"length", KEY_LENGTH, "BYTES", 0,
     "Bytes of the region (to the end; with --verify 256M at most)", 4},
    CLI_OPTION_NSID,
    CLI_OPTION_INTERRUPTS,
    {"verify", KEY_VERIFY, NULL, 0, "Fill the region first, then check every block that is read",
     5},
    {"seed", KEY_SEED, "N", 0, "Seed of all random choices (1)", 5},
    {"timeout", KEY_TIMEOUT, "TIME", 0, "Deadline of a command (30s)", 5},
    {"force", CLI_KEY_FORCE, NULL, 0, "Write to a drive or to an image: the region's data is lost",
     6},
    CLI_OPTION_JSON,
    CLI_OPTION_QUIET,
    {0},
};

static const char doc[] =
    "Measures a device: commands a second, bytes a second, and the latency of each command."
    "\vEach block that --verify writes holds its address and the seed, so that a block from "
    "another place is detected. Writes destroy what is in the region; on a drive, or on an image "
    "file, they take --force.\n\n"
    "Examples:\n"
    "  gpunvme bench sim:size=1G\n"
    "  gpunvme bench sim:profile=p5800x --block-size 512 --depth 128\n"
    "  gpunvme bench sim:size=4G -p sequential -b 1M -d 8 --memory gpu\n"
    "  gpunvme bench sim:size=1G --read-share 70 --queues 4 --time 10s\n"
    "  gpunvme bench sim:size=64M,fault=status=2/81:p=0.001:read -c 100k --verify\n"
    "  gpunvme bench sim:size=1G --json --quiet | jq .read.iops\n\n"
    "Commands that fail are counted, and the measurement goes on. The exit code is then 1.\n\n"
    "Exit codes: 0 done, 1 failed, 2 usage, 3 wrong bytes, 130 interrupted.";

static void parse_pattern(struct argp_state *state, const char *arg, struct bench_plan *plan)
{
    if (strcmp(arg, "random") != 0 && strcmp(arg, "sequential") != 0)
        argp_error(state, "--pattern=%s: random or sequential", arg);
    plan->sequential = arg[0] == 's';
}

static void parse_read_share(struct argp_state *state, const char *arg, struct bench_plan *plan)
{
    char digits[8];
    size_t length = strlen(arg);

    if (length && arg[length - 1] == '%')
        length--;
    if (length >= sizeof(digits))
        length = sizeof(digits) - 1;
    memcpy(digits, arg, length);
    digits[length] = 0;
    plan->read_percent = (unsigned)cli_parse_count(state, "read-share", digits, 0, 100);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct args *args = state->input;

    switch (key) {
    case 'p':
        parse_pattern(state, arg, &args->plan);
        return 0;
    case 'b':
        args->block_nbytes = cli_parse_size(state, "block-size", arg);
        if (!args->block_nbytes || args->block_nbytes > 64 << 20)
            argp_error(state, "--block-size: from 512 to 64M");
        return 0;
    case KEY_READ_SHARE:
        parse_read_share(state, arg, &args->plan);
        return 0;
    case 'd':
        args->plan.depth = (uint32_t)cli_parse_count(state, "depth", arg, 1, 32767);
        return 0;
    case 'Q':
        args->queues = (uint32_t)cli_parse_count(state, "queues", arg, 1, MAX_QUEUES);
        return 0;
    case KEY_MEMORY:
        args->plan.mem = cli_parse_memory(state, arg);
        return 0;
    case 't':
        args->time_ns = cli_parse_time(state, "time", arg);
        return 0;
    case 'c':
        args->plan.count = cli_parse_count(state, "count", arg, 1, UINT64_MAX);
        return 0;
    case KEY_OFFSET:
        args->offset = cli_parse_size(state, "offset", arg);
        return 0;
    case KEY_LENGTH:
        args->length = cli_parse_size(state, "length", arg);
        return 0;
    case KEY_VERIFY:
        args->plan.verify = true;
        return 0;
    case KEY_SEED:
        args->plan.seed = cli_parse_count(state, "seed", arg, 0, UINT64_MAX);
        return 0;
    case KEY_TIMEOUT:
        args->timeout_ns = cli_parse_time(state, "timeout", arg);
        if (args->timeout_ns < 1000000 || args->timeout_ns / 1000000 > UINT32_MAX)
            argp_error(state, "--timeout: from 1ms to 1000h");
        return 0;
    case CLI_KEY_FORCE:
        args->force = true;
        return 0;
    default:
        return cli_parse_common(key, arg, state, &args->common);
    }
}

static const struct argp argp = {options, parse, "[URI]", doc, NULL, NULL, NULL};

/* Data that somebody may want is not overwritten unasked. */
static gpunvme_err_t check_writes(struct bench *bench)
{
    const struct args *args = &bench->args;

    if (args->plan.read_percent == 100 && !args->plan.verify)
        return GPUNVME_OK;
    return cli_guard_destroy(&bench->device, bench->ns, args->force,
                             args->plan.verify ? "--verify" : "writing");
}

/* The region in blocks of the namespace, checked against it and against the commands. */
static gpunvme_err_t plan_region(struct bench *bench)
{
    struct args *args = &bench->args;
    struct bench_plan *plan = &args->plan;
    const struct gpunvme_ns *ns = bench->ns;
    uint64_t left = ns->nbytes > args->offset ? ns->nbytes - args->offset : 0;
    uint64_t length = args->length ? args->length : left;

    if (!args->length && plan->verify && length > DEFAULT_VERIFY_BYTES)
        length = DEFAULT_VERIFY_BYTES;
    plan->command_blocks = (uint32_t)(args->block_nbytes >> ns->block_shift);
    if (args->block_nbytes % ns->block_size || args->offset % ns->block_size)
        return base_fail(GPUNVME_ERR_ALIGN, "--block-size and --offset: %s has blocks of %u bytes",
                         bench->device.what, ns->block_size);
    if (plan->command_blocks > ns->max_blocks)
        return base_fail(GPUNVME_ERR_LIMIT,
                         "--block-size: a command of this controller moves %u "
                         "blocks of %u bytes at most",
                         ns->max_blocks, ns->block_size);
    plan->slba = args->offset >> ns->block_shift;
    if (ns->boundary_blocks &&
        (ns->boundary_blocks % plan->command_blocks || plan->slba % plan->command_blocks))
        return base_fail(GPUNVME_ERR_ALIGN,
                         "--block-size and --offset: commands would cross the controller's "
                         "boundary of %u blocks",
                         ns->boundary_blocks);
    plan->ncommands = length / args->block_nbytes;
    if (length > left || plan->ncommands < args->queues)
        return base_fail(GPUNVME_ERR_RANGE,
                         "the region of %" PRIu64 " bytes at %" PRIu64 ": %s has %" PRIu64
                         ", and each queue needs room for a command",
                         length, args->offset, bench->device.what, ns->nbytes);
    return GPUNVME_OK;
}

static gpunvme_err_t open_store(struct bench *bench)
{
    const struct args *args = &bench->args;
    bool writes = args->plan.read_percent < 100 || args->plan.verify;
    unsigned flags = writes ? GPUNVME_OPEN_WRITE | (args->force ? GPUNVME_OPEN_FORCE : 0) : 0;
    gpunvme_err_t err;

    if (args->common.nsid || args->common.interrupts)
        return base_fail(
            GPUNVME_ERR_UNSUPPORTED,
            "%s is a store: --nsid and --interrupts are for controllers; a store's URI "
            "names the namespace (?nsid=)",
            args->common.uri);
    err = cli_device_open_store(&bench->device, args->common.uri, flags, STORE_BLOCK_SHIFT);
    if (!err)
        err = cli_device_ns(&bench->device, 0, &bench->ns);
    if (!err)
        err = plan_region(bench);
    return err ? err : check_writes(bench);
}

static gpunvme_err_t open_device(struct bench *bench)
{
    struct args *args = &bench->args;
    struct gpunvme_ctrl_opts opts;
    struct gpunvme_ctrl_info info;
    gpunvme_err_t err;

    if (cli_is_store(args->common.uri))
        return open_store(bench);
    gpunvme_ctrl_opts_init(&opts);
    opts.io_timeout_ms = (uint32_t)(args->timeout_ns / 1000000);
    opts.interrupts = args->common.interrupts;
    if (args->queues > opts.io_queues)
        opts.io_queues = args->queues;
    err = cli_device_open(&bench->device, args->common.uri, args->force, &opts);
    if (!err)
        err = cli_device_ns(&bench->device, args->common.nsid, &bench->ns);
    if (err)
        return err;
    gpunvme_ctrl_get_info(bench->device.ctrl, &info);
    if (args->queues > info.max_io_queues)
        return base_fail(GPUNVME_ERR_LIMIT, "--queues=%u: the controller granted %u", args->queues,
                         info.max_io_queues);
    if (bench->device.is_sim)
        memcpy(bench->profile, gpunvme_sim_config_of(bench->device.sim)->profile,
               sizeof(bench->profile));
    err = plan_region(bench);
    return err ? err : check_writes(bench);
}

static gpunvme_err_t make_workers(struct bench *bench)
{
    struct bench_plan *plan = &bench->args.plan;
    uint32_t queues = bench->args.queues;
    gpunvme_err_t err = GPUNVME_OK;

    bench->workers = calloc(queues, sizeof(struct bench_worker *));
    if (!bench->workers)
        return base_fail(GPUNVME_ERR_NOMEM, "%u threads", queues);
    plan->timeout_ns = bench->args.timeout_ns;
    while (!err && bench->nworkers < queues) {
        err = bench_worker_create(&bench->device, bench->ns, plan, bench->nworkers, queues,
                                  &bench->shared, &bench->workers[bench->nworkers]);
        if (!err)
            bench->nworkers++;
    }
    return err;
}

static uint64_t commands_done(struct bench *bench)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < bench->nworkers; i++)
        sum += bench_worker_done(bench->workers[i]);
    return sum;
}

static gpunvme_err_t fill(struct bench *bench)
{
    uint64_t total = bench->args.plan.ncommands * bench->args.block_nbytes;
    struct cli_progress progress;
    gpunvme_err_t err;

    if (!bench->args.plan.verify)
        return GPUNVME_OK;
    cli_progress_begin(&progress, "fill the region", CLI_PROGRESS_BYTES, total,
                       bench->args.common.quiet);
    err = bench_worker_fill(bench->workers[0], &progress);
    cli_progress_end(&progress);
    if (!err)
        bench->nfilled = total;
    return err;
}

static bool all_ended(struct bench *bench)
{
    return atomic_load(&bench->shared.nended) == bench->nworkers;
}

/* Watches over the running threads: shows progress and ends them when it is time. */
static void watch(struct bench *bench, uint64_t start)
{
    struct pollfd stop = {.fd = cli_stop_fd(), .events = POLLIN};
    bool by_count = bench->args.plan.count;
    struct cli_progress progress;

    cli_progress_begin(&progress, "bench", by_count ? CLI_PROGRESS_COUNT : CLI_PROGRESS_TIME,
                       by_count ? bench->args.plan.count : bench->args.time_ns,
                       bench->args.common.quiet);
    while (!all_ended(bench) && !cli_stopped()) {
        uint64_t elapsed = cli_now_ns() - start;
        uint64_t left_ms = by_count ? TICK_MS
                           : elapsed < bench->args.time_ns
                               ? (bench->args.time_ns - elapsed + 999999) / 1000000
                               : 0;

        if (!left_ms)
            break;
        cli_progress_update(&progress, by_count ? commands_done(bench) : elapsed);
        poll(&stop, 1, left_ms < TICK_MS ? (int)left_ms : TICK_MS);
    }
    cli_progress_end(&progress);
    atomic_store(&bench->shared.finish, true);
}

static gpunvme_err_t run_workers(struct bench *bench)
{
    uint64_t start = cli_now_ns();
    uint32_t nstarted = 0;
    gpunvme_err_t err = GPUNVME_OK;

    while (!err && nstarted < bench->nworkers) {
        err = bench_worker_start(bench->workers[nstarted]);
        if (!err)
            nstarted++;
    }
    if (err)
        atomic_store(&bench->shared.finish, true);
    else
        watch(bench, start);
    for (uint32_t i = 0; i < nstarted; i++) {
        gpunvme_err_t ended = bench_worker_join(bench->workers[i]);

        err = err ? err : ended;
    }
    bench->elapsed_ns = cli_now_ns() - start;
    return err ? err : cli_stop_check(); /* threads that saw `finish` first know of no signal */
}

static void gather(struct bench *bench)
{
    struct cli_path_use use = {.depth = bench->args.plan.depth,
                               .command_nbytes = bench->args.block_nbytes,
                               .mem = bench->args.plan.mem};

    for (uint32_t i = 0; i < bench->nworkers; i++) {
        const struct bench_errors *errors = bench_worker_errors(bench->workers[i]);

        if (errors->count && !bench->errors.count)
            bench->errors.first = errors->first;
        bench->errors.count += errors->count;
        for (unsigned write = 0; write < 2; write++) {
            const struct cli_pump *pump = bench_worker_pump(bench->workers[i]);

            cli_hist_merge(&bench->hist[write], &pump->hist[write]);
            bench->nbytes[write] += pump->nbytes[write];
        }
    }
    cli_path_describe(&bench->device, bench->ns, &use, &bench->path);
}

static void print_result(const struct bench *bench)
{
    const struct args *args = &bench->args;
    const struct cli_stats stats[] = {
        {"read", &bench->hist[0], bench->nbytes[0], bench->elapsed_ns},
        {"write", &bench->hist[1], bench->nbytes[1], bench->elapsed_ns},
    };
    char size[BASE_UNITS_TEXT];

    printf("%s: %s %s commands, %u%% reads, %u queue%s, depth %u\n\n", args->common.uri,
           base_format_size(args->block_nbytes, size, sizeof(size)),
           args->plan.sequential ? "sequential" : "random", args->plan.read_percent, args->queues,
           args->queues == 1 ? "" : "s", args->plan.depth);
    cli_stats_print(stats, 2, stdout);
    if (args->plan.verify)
        printf("\nVerified: every block of %" PRIu64 " reads is the one that was asked for.\n",
               bench->hist[0].count);
    if (bench->errors.count)
        printf("\nErrors: %" PRIu64 " command%s failed; no rate and no latency includes them.\n",
               bench->errors.count, bench->errors.count == 1 ? "" : "s");
    putchar('\n');
    cli_path_print(&bench->path, stdout);
}

static void json_result(const struct bench *bench)
{
    static const char *const memory[] = {"host", "pinned", "gpu"};
    const struct args *args = &bench->args;
    struct cli_stats read = {"read", &bench->hist[0], bench->nbytes[0], bench->elapsed_ns};
    struct cli_stats write = {"write", &bench->hist[1], bench->nbytes[1], bench->elapsed_ns};
    struct cli_json json;

    cli_json_begin(&json, stdout);
    cli_json_text(&json, "uri", args->common.uri);
    if (bench->profile[0])
        cli_json_text(&json, "profile", bench->profile);
    cli_json_text(&json, "pattern", args->plan.sequential ? "sequential" : "random");
    cli_json_u64(&json, "block_size", args->block_nbytes);
    cli_json_u64(&json, "read_percent", args->plan.read_percent);
    cli_json_u64(&json, "queues", args->queues);
    cli_json_u64(&json, "depth", args->plan.depth);
    cli_json_text(&json, "memory", memory[args->plan.mem]);
    cli_json_bool(&json, "memory_is_host",
                  args->plan.mem != GPUNVME_MEM_GPU || gpunvme_mem_gpu_is_host());
    cli_json_u64(&json, "seed", args->plan.seed);
    cli_json_bool(&json, "verified", args->plan.verify);
    cli_json_real(&json, "seconds", (double)bench->elapsed_ns / 1e9);
    cli_stats_json(&read, &json);
    cli_stats_json(&write, &json);
    cli_json_u64(&json, "errors", bench->errors.count);
    cli_path_json(&bench->path, &json);
    cli_json_end(&json);
}

/* The exit code of a measurement that went on although commands failed. */
static int tell_errors(const struct bench *bench)
{
    if (!bench->errors.count)
        return CLI_OK;
    cli_say("%" PRIu64 " command%s failed; the first:", bench->errors.count,
            bench->errors.count == 1 ? "" : "s");
    return cli_device_tell(&bench->device, base_restore(&bench->errors.first));
}

static int run(struct bench *bench)
{
    gpunvme_err_t err = open_device(bench);
    int code;

    if (!err)
        err = make_workers(bench);
    if (!err)
        err = fill(bench);
    if (!err)
        err = run_workers(bench);
    if (!err)
        gather(bench);
    code = cli_device_tell(&bench->device, err);
    for (uint32_t i = 0; i < bench->nworkers; i++) {
        err = bench_worker_destroy(bench->workers[i]);
        if (code == CLI_OK)
            code = cli_device_tell(&bench->device, err);
    }
    free(bench->workers);
    code = cli_device_finish(&bench->device, code);
    if (code != CLI_OK)
        return code;
    code = tell_errors(bench);
    if (bench->args.common.json)
        json_result(bench);
    else
        print_result(bench);
    return code;
}

int cli_bench(int argc, char **argv)
{
    struct bench *bench = calloc(1, sizeof(*bench));
    int code = CLI_USAGE;

    if (!bench)
        return cli_fail(base_fail(GPUNVME_ERR_NOMEM, "bench"));
    bench->args = (struct args){
        .plan = {.read_percent = 100, .depth = 32, .seed = 1},
        .block_nbytes = 4096,
        .time_ns = DEFAULT_TIME_NS,
        .timeout_ns = UINT64_C(30000000000),
        .queues = 1,
    };
    if (cli_parse(&argp, argc, argv, &bench->args) &&
        (bench->args.common.uri = cli_uri(bench->args.common.uri)))
        code = run(bench);
    free(bench);
    return code;
}
