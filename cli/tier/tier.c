/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme tier: files by name over a fast, a warm and a cold directory. This file has the command
 * line; what the verbs do is in files beside it.
 */
#include "tier.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/units.h"
#include "verbs.h"

enum {
    KEY_SET = CLI_KEY_OWN,
    KEY_HOT, /* these three in the order of the tiers */
    KEY_WARM,
    KEY_COLD,
    KEY_HOT_AT,
    KEY_WARM_AT,
    KEY_HALF_LIFE,
    KEY_RATE,
    KEY_TIER,
    KEY_PIN,
    KEY_READ_ALL,
    KEY_WATCH,
    KEY_INTERVAL,
};

#define OPTION_SET                                                                                 \
    {                                                                                              \
        "set", KEY_SET, "DIR", 0, "Directory of any tier of the set (/nvme)", 80                   \
    }
/* Each in a group of its own: options of a group are sorted by name. */
#define OPTIONS_SETTINGS                                                                           \
    {"hot", KEY_HOT, "DIR[:CAPACITY]", 0, "Directory and capacity of the hot tier", 1},            \
        {"warm", KEY_WARM, "DIR[:CAPACITY]", 0, "The same for the warm tier", 2},                  \
        {"cold", KEY_COLD, "DIR[:CAPACITY]", 0, "The same for the cold tier", 3},                  \
        {"hot-at", KEY_HOT_AT, "SCORE", 0, "Files are hot from this score on", 4},                 \
        {"warm-at", KEY_WARM_AT, "SCORE", 0, "Files are warm from this score on", 5},              \
        {"half-life", KEY_HALF_LIFE, "TIME", 0, "Half-life of scores; none: no decay", 6},         \
    {                                                                                              \
        "rate", KEY_RATE, "SIZE", 0, "Most bytes a second that migration moves; none: no limit", 7 \
    }
#define OPTION_VERBOSE                                                                             \
    {                                                                                              \
        "verbose", 'v', NULL, 0, "Print each move", 0                                              \
    }
#define OPTION_INTERVAL(what)                                                                      \
    {                                                                                              \
        "interval", KEY_INTERVAL, "TIME", 0, what, 0                                               \
    }

static const struct argp_option create_options[] = {OPTIONS_SETTINGS, CLI_OPTION_JSON, {0}};
static const struct argp_option configure_options[] = {
    OPTIONS_SETTINGS, OPTION_SET, CLI_OPTION_JSON, {0}};
static const struct argp_option status_options[] = {
    {"watch", KEY_WATCH, NULL, 0, "Show it again and again until interrupted, with rates", 0},
    OPTION_INTERVAL("How often, with --watch (1s)"),
    OPTION_SET,
    CLI_OPTION_JSON,
    {0},
};
static const struct argp_option plain_options[] = {OPTION_SET, CLI_OPTION_JSON, {0}};
static const struct argp_option get_options[] = {
    {"output", 'o', "FILE", 0, "Where the bytes go; - is standard output, the default", 0},
    OPTION_SET,
    CLI_OPTION_QUIET,
    CLI_OPTION_JSON,
    {0},
};
static const struct argp_option put_options[] = {
    {"tier", KEY_TIER, "hot|warm|cold", 0, "The tier to put it in (default: the policy decides)",
     0},
    OPTION_SET,
    CLI_OPTION_JSON,
    {0},
};
static const struct argp_option migrate_options[] = {
    {"to", KEY_TIER, "hot|warm|cold", 0,
     "The tier to move the named files to, whatever their scores", 1},
    {"pin", KEY_PIN, NULL, 0, "Keep them there", 2},
    OPTION_VERBOSE,
    OPTION_SET,
    CLI_OPTION_JSON,
    {0},
};
static const struct argp_option scrub_options[] = {
    {"read-all", KEY_READ_ALL, NULL, 0,
     "Read every file, and compare its checksum, or set it if there is none", 0},
    OPTION_SET,
    CLI_OPTION_JSON,
    {0},
};
static const struct argp_option serve_options[] = {
    OPTION_INTERVAL("Time between passes (10s)"), OPTION_VERBOSE, OPTION_SET, CLI_OPTION_JSON, {0},
};

/* ---- Values ------------------------------------------------------------------------------------
 */

static double parse_score(struct argp_state *state, const char *option, const char *arg)
{
    double score = 0;

    if (base_parse_real(arg, &score) || !(score > 0))
        argp_error(state, "--%s=%s: a score is a number greater than 0", option, arg);
    return score;
}

/* "none" is no limit. */
static uint64_t parse_limit(struct argp_state *state, const char *option, const char *arg)
{
    const uint64_t nbytes =
        strcmp(arg, "none") ? cli_parse_size(state, option, arg) : GPUNVME_TIERS_NO_LIMIT;

    if (!nbytes)
        argp_error(state, "--%s=%s: more than 0, or none", option, arg);
    return nbytes;
}

static double parse_half_life(struct argp_state *state, const char *arg)
{
    const uint64_t ns = strcmp(arg, "none") ? cli_parse_time(state, "half-life", arg) : 0;

    if (!strcmp(arg, "none"))
        return INFINITY;
    if (!ns)
        argp_error(state, "--half-life=%s: longer than 0, or none", arg);
    return (double)ns / 1e9;
}

/* DIR, DIR:CAPACITY or :CAPACITY. A ':' that no size follows belongs to the directory. */
static void parse_tier(struct argp_state *state, struct gpunvme_tiers_settings *settings, int tier,
                       char *arg)
{
    char *colon = strrchr(arg, ':');
    uint64_t nbytes;

    if (colon && (!strcmp(colon + 1, "none") || !base_parse_size(colon + 1, &nbytes))) {
        settings->capacity_nbytes[tier] = parse_limit(state, gpunvme_tier_name(tier), colon + 1);
        *colon = 0;
    }
    if (*arg)
        settings->dir[tier] = arg;
}

static int parse_tier_name(struct argp_state *state, const char *arg)
{
    for (int tier = 0; tier < GPUNVME_NTIERS; tier++)
        if (!strcmp(arg, gpunvme_tier_name(tier)))
            return tier;
    argp_error(state, "there is no tier '%s': hot, warm and cold", arg);
    return GPUNVME_TIER_AUTO;
}

static error_t parse_setting(int key, char *arg, struct argp_state *state,
                             struct gpunvme_tiers_settings *settings)
{
    switch (key) {
    case KEY_HOT:
    case KEY_WARM:
    case KEY_COLD:
        parse_tier(state, settings, key - KEY_HOT, arg);
        return 0;
    case KEY_HOT_AT:
        settings->hot_at = parse_score(state, "hot-at", arg);
        return 0;
    case KEY_WARM_AT:
        settings->warm_at = parse_score(state, "warm-at", arg);
        return 0;
    case KEY_HALF_LIFE:
        settings->half_life_s = parse_half_life(state, arg);
        return 0;
    case KEY_RATE:
        settings->migrate_bytes_per_s = parse_limit(state, "rate", arg);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct tier_args *args = state->input;

    switch (key) {
    case KEY_SET:
        args->set = arg;
        return 0;
    case KEY_TIER:
        args->tier = parse_tier_name(state, arg);
        return 0;
    case KEY_PIN:
        args->pin = true;
        return 0;
    case KEY_READ_ALL:
        args->read_all = true;
        return 0;
    case KEY_WATCH:
        args->watch = true;
        return 0;
    case KEY_INTERVAL:
        args->interval_ns = cli_parse_time(state, "interval", arg);
        if (!args->interval_ns)
            argp_error(state, "--interval=%s: longer than 0", arg);
        return 0;
    case 'o':
        args->output = arg;
        return 0;
    case 'v':
        args->verbose = true;
        return 0;
    case 'q':
        args->quiet = true;
        return 0;
    case CLI_KEY_JSON:
        args->json = true;
        return 0;
    case ARGP_KEY_ARG:
        args->words[args->n++] = arg; /* there is room for all of argv */
        return 0;
    default:
        return parse_setting(key, arg, state, &args->settings);
    }
}

/* ---- Help --------------------------------------------------------------------------------------
 */

#define ARGP(options, words, text)                                                                 \
    {                                                                                              \
        options, parse, words, text, NULL, NULL, NULL                                              \
    }

static const struct argp create_argp =
    ARGP(create_options, NULL,
         "Makes a set of three directories, which must exist. Files that are in them become files "
         "of the set."
         "\vThe defaults are /nvme, /ssd and /hdd without limits. Files are hot from a score of "
         "100 on and warm from 10 on, and an access counts half as much after a week.\n\n"
         "Examples:\n"
         "  gpunvme tier create --hot /nvme:2T --warm /ssd:8T --cold /hdd\n"
         "  gpunvme tier create --hot a:1G --warm b --cold c --half-life 1d --rate 200M");
static const struct argp configure_argp =
    ARGP(configure_options, NULL,
         "Changes the given settings, for all processes that use the set."
         "\vDIR is the new place of a tier's directory. :CAPACITY without a directory changes the "
         "capacity alone; :none takes the limit away.\n\n"
         "Examples:\n"
         "  gpunvme tier configure --hot :1500G --rate 200M\n"
         "  gpunvme tier configure --half-life 1d --hot-at 50\n"
         "  gpunvme tier configure --warm /mnt/ssd2");
static const struct argp status_argp =
    ARGP(status_options, NULL,
         "Shows each tier: its files, how full it is, its share of all accesses (the hit rate), "
         "and the bytes that migration moved in."
         "\vWith --watch, accesses, hit rates and moves are those since the last look. With --json "
         "as well, each look is one line of JSON, with sums since the set was made and the seconds "
         "since the watch began.\n\n"
         "Examples:\n"
         "  gpunvme tier status\n"
         "  gpunvme tier status --set /mnt/fast --watch --interval 5s\n"
         "  gpunvme tier status --json | jq .tiers[0].hit_rate\n"
         "  gpunvme tier status --watch --json | jq .tiers[0].accesses");
static const struct argp ls_argp =
    ARGP(plain_options, "[PREFIX]",
         "Lists the files whose names begin with PREFIX, sorted by name."
         "\vExamples:\n"
         "  gpunvme tier ls\n"
         "  gpunvme tier ls train/shard- --json | jq '.files[] | select(.tier == \"hot\")'");
static const struct argp stat_argp =
    ARGP(plain_options, "NAME...",
         "Shows a file's tier, size, score and checksum, and the route of its bytes."
         "\vExample:\n"
         "  gpunvme tier stat train/shard-000.tar");
static const struct argp get_argp = ARGP(get_options, "NAME",
                                         "Copies a file out of the set. Counts as one access."
                                         "\vExamples:\n"
                                         "  gpunvme tier get train/shard-000.tar -o shard.tar\n"
                                         "  gpunvme tier get notes.txt | less");
static const struct argp put_argp =
    ARGP(put_options, "SOURCE NAME",
         "Puts a file into the set, or replaces it as a whole: readers of NAME get the old bytes "
         "or the new ones."
         "\vSOURCE is a path, the URI of any store, or - for standard input.\n\n"
         "Examples:\n"
         "  gpunvme tier put shard-000.tar train/shard-000.tar\n"
         "  gpunvme tier put --tier cold nvme:0000:01:00.0/1 backup/drive.img\n"
         "  tar c folder | gpunvme tier put - folder.tar");
static const struct argp rm_argp =
    ARGP(plain_options, "NAME...",
         "Removes files. Processes that have them open can still read them."
         "\vExample:\n"
         "  gpunvme tier rm train/shard-000.tar");
static const struct argp migrate_argp =
    ARGP(migrate_options, "[NAME...]",
         "Moves all files that are in the wrong tier by their scores. With names, it moves these "
         "files to the tier of --to, or to the one that the policy chooses, which ends a pin."
         "\vExamples:\n"
         "  gpunvme tier migrate\n"
         "  gpunvme tier migrate --to hot --pin model.safetensors\n"
         "  gpunvme tier migrate model.safetensors");
static const struct argp scrub_argp =
    ARGP(scrub_options, NULL,
         "Compares the catalogue with the directories and repairs it: files that are new, changed, "
         "missing or in another tier."
         "\vExamples:\n"
         "  gpunvme tier scrub\n"
         "  gpunvme tier scrub --read-all --json\n\n"
         "Exit codes: 0 done, 1 failed, 2 usage, 3 a file's bytes do not match its checksum, 130 "
         "interrupted.");
static const struct argp rebuild_argp = ARGP(
    plain_options, NULL,
    "Makes a damaged or lost catalogue anew from the directories. No process may have the set open."
    "\vExample:\n"
    "  gpunvme tier rebuild --set /nvme");
static const struct argp serve_argp = ARGP(
    serve_options, NULL,
    "Migrates, pass after pass, until SIGINT or SIGTERM, and then prints what was moved. Only sets "
    "whose programs do not migrate themselves need it. While another process migrates, it waits."
    "\vExample:\n"
    "  gpunvme tier serve -v --interval 30s");

/* ---- Opening -----------------------------------------------------------------------------------
 */

gpunvme_err_t cli_tier_open(const struct tier_args *args, struct gpunvme_tiers **tiers)
{
    return gpunvme_tiers_open(args->set, NULL, tiers);
}

gpunvme_err_t cli_tier_close(struct gpunvme_tiers *tiers, gpunvme_err_t err)
{
    struct base_failure failure;

    base_keep(&failure, err);
    err = gpunvme_tiers_close(tiers);
    return failure.err ? base_restore(&failure) : err;
}

void cli_tier_json_end(struct cli_json *json, gpunvme_err_t err)
{
    char text[1024];

    if (err) {
        cli_describe(err, text, sizeof(text));
        cli_json_note_failure(gpunvme_err_name(err), err, text);
    }
    cli_json_end(json);
}

/* ---- Verbs -------------------------------------------------------------------------------------
 */

struct verb {
    const struct argp *argp;
    gpunvme_err_t (*run)(const struct tier_args *args);
    size_t least, most; /* arguments */
};

/* What is wrong with the arguments; NULL: nothing. */
static const char *complaint(const struct verb *verb, const struct tier_args *args)
{
    if (args->n < verb->least || args->n > verb->most)
        return verb->most ? "name what to work on" : "there are no arguments here";
    if (verb->run == cli_tier_migrate && args->tier != GPUNVME_TIER_AUTO && !args->n)
        return "--to moves files that are named";
    if (args->pin && args->tier == GPUNVME_TIER_AUTO)
        return "--pin wants a tier: --to";
    return NULL;
}

static int run(const struct verb *verb, int argc, char **argv)
{
    struct tier_args args = {.tier = GPUNVME_TIER_AUTO};
    int code = CLI_USAGE;

    args.words = calloc((size_t)argc + 1, sizeof(*args.words));
    if (!args.words)
        return cli_fail(base_fail(GPUNVME_ERR_NOMEM, "the command line"));
    if (cli_parse(verb->argp, argc, argv, &args)) {
        const char *wrong = complaint(verb, &args);

        if (wrong) {
            code = cli_usage("%s: %s %s", wrong, cli_name,
                             verb->argp->args_doc ? verb->argp->args_doc : "[OPTION...]");
        } else {
            gpunvme_err_t err = verb->run(&args);

            code = err ? cli_fail(err) : CLI_OK;
        }
    }
    free(args.words);
    return code;
}

#define VERB(name, least, most)                                                                    \
    static int run_##name(int argc, char **argv)                                                   \
    {                                                                                              \
        static const struct verb verb = {&name##_argp, cli_tier_##name, least, most};              \
                                                                                                   \
        return run(&verb, argc, argv);                                                             \
    }

VERB(create, 0, 0)
VERB(status, 0, 0)
VERB(ls, 0, 1)
VERB(stat, 1, SIZE_MAX)
VERB(get, 1, 1)
VERB(put, 2, 2)
VERB(rm, 1, SIZE_MAX)
VERB(migrate, 0, SIZE_MAX)
VERB(scrub, 0, 0)
VERB(rebuild, 0, 0)
VERB(configure, 0, 0)
VERB(serve, 0, 0)

static const struct cli_command commands[] = {
    {"create", "makes a set of three directories", run_create},
    {"status", "shows what is in each tier, and how much it is used", run_status},
    {"ls", "lists files", run_ls},
    {"stat", "shows a file's tier, score and checksum", run_stat},
    {"get", "copies a file out of the set", run_get},
    {"put", "puts a file into the set, or replaces it", run_put},
    {"rm", "removes files", run_rm},
    {"migrate", "moves files to the tiers where they belong", run_migrate},
    {"scrub", "compares the catalogue with the directories, and repairs it", run_scrub},
    {"rebuild", "makes a damaged or lost catalogue anew", run_rebuild},
    {"configure", "changes capacities, thresholds, rates, directories", run_configure},
    {"serve", "migrates until SIGINT or SIGTERM", run_serve},
};

static const struct cli_verbs verbs = {
    .verbs = commands,
    .nverbs = sizeof(commands) / sizeof(commands[0]),
    .names = "create, status, ls, stat, get, put, rm, migrate, scrub, rebuild, configure or serve",
    .head = "Usage: gpunvme tier VERB [OPTION...] [ARGUMENT...]\n"
            "Storage tiers: a fast (hot), a warm and a cold directory. Files move between\n"
            "them by how often they are used.\n\n",
    .tail = "\nExamples:\n"
            "  gpunvme tier create --hot /nvme:2T --warm /ssd:8T --cold /hdd\n"
            "  gpunvme tier put shard-000.tar train/shard-000.tar\n"
            "  gpunvme tier status --watch\n"
            "  gpunvme tier serve -v\n\n"
            "--set DIR names a set by the directory of any of its tiers (default: /nvme).\n"
            "Each verb has --help and --json.\n",
};

int cli_tier(int argc, char **argv)
{
    return cli_verbs_run(&verbs, argc, argv);
}
