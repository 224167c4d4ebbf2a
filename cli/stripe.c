/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme stripe: sets of stores that are used as one.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/units.h"
#include "cli.h"
#include "gpunvme/storage.h"
#include "json.h"
#include "verbs.h"

#define MAX_MEMBERS 128

struct args {
    const char *uris[MAX_MEMBERS];
    size_t n;
    uint64_t unit;
    bool force;
    bool json;
};

enum { KEY_UNIT = CLI_KEY_OWN };

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct args *args = state->input;

    switch (key) {
    case KEY_UNIT:
        args->unit = cli_parse_size(state, "unit", arg);
        if (args->unit < 4096 || args->unit > 1u << 30 || args->unit & (args->unit - 1))
            argp_error(state, "--unit: a power of two from 4K to 1G");
        return 0;
    case CLI_KEY_FORCE:
        args->force = true;
        return 0;
    case CLI_KEY_JSON:
        args->json = true;
        return 0;
    case ARGP_KEY_ARG:
        if (args->n == MAX_MEMBERS)
            argp_error(state, "more than %d members", MAX_MEMBERS);
        args->uris[args->n++] = arg;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option create_options[] = {
    {"unit", KEY_UNIT, "SIZE", 0, "Contiguous bytes on a member, a power of two (128K)", 0},
    {"force", CLI_KEY_FORCE, NULL, 0, "Overwrite what the members hold", 0},
    CLI_OPTION_JSON,
    {0},
};
static const struct argp_option show_options[] = {CLI_OPTION_JSON, {0}};

static const struct argp create_argp = {
    create_options,
    parse,
    "URI URI...",
    "Makes a stripe set (RAID 0) of several drives, namespaces or files. Their data is lost. The "
    "first MiB of each gets a header, which names the set and the member's place in it. Each "
    "member contributes as much as the smallest one has."
    "\vThere is no redundancy: if a member is lost, so is the set. Members whose first MiB is not "
    "zero, or that hold a file system, a partition table or another set, are refused without "
    "--force.\n\nExamples:\n"
    "  gpunvme stripe create nvme:0000:3b:00.0/1 nvme:0000:5e:00.0/1\n"
    "  gpunvme stripe create --unit 512K sim:image=a.img sim:image=b.img",
    NULL,
    NULL,
    NULL};
static const struct argp show_argp = {
    show_options,
    parse,
    "URI...",
    "Shows the headers of members, and whether they are a whole set."
    "\vExamples:\n"
    "  gpunvme stripe show nvme:0000:3b:00.0/1 nvme:0000:5e:00.0/1\n"
    "  gpunvme stripe show a.img b.img --json",
    NULL,
    NULL,
    NULL};

/* "stripe:URI;URI", as it is to be opened; the caller frees it. */
static char *set_uri(const struct args *args)
{
    size_t room = sizeof("stripe:");
    char *text, *at;

    for (size_t i = 0; i < args->n; i++)
        room += 3 * strlen(args->uris[i]) + 1;
    text = malloc(room);
    if (!text)
        return NULL;
    at = stpcpy(text, "stripe:");
    for (size_t i = 0; i < args->n; i++) {
        if (i)
            *at++ = ';';
        for (const char *from = args->uris[i]; *from; from++) {
            if (*from == ';')
                at = stpcpy(at, "%3B");
            else
                *at++ = *from;
        }
    }
    *at = 0;
    return text;
}

/* Whether the members are a whole set; its size. The detail says what is wrong. */
static gpunvme_err_t try_set(const char *uri, uint64_t *nbytes)
{
    struct gpunvme_store *store;
    struct base_failure failure;
    gpunvme_err_t err = gpunvme_open(uri, 0, &store);

    if (err)
        return err;
    err = gpunvme_store_size(store, nbytes);
    if (!err)
        return gpunvme_close(store);
    base_keep(&failure, err);
    gpunvme_close(store);
    return base_restore(&failure);
}

static void print_member(const char *uri, const struct gpunvme_stripe_info *info)
{
    char size[BASE_UNITS_TEXT], unit[BASE_UNITS_TEXT], used[BASE_UNITS_TEXT];

    printf("%s\n", uri);
    printf("  %-10s%u of %u\n", "member", info->index, info->count);
    printf("  %-10s%s\n", "set", info->uuid);
    printf("  %-10s%s\n", "unit", base_format_size(info->unit, unit, sizeof(unit)));
    printf("  %-10s%s, the set uses %s\n", "size",
           base_format_size(info->member_nbytes, size, sizeof(size)),
           base_format_size(info->used, used, sizeof(used)));
}

static void json_member(struct cli_json *json, const char *uri,
                        const struct gpunvme_stripe_info *info)
{
    cli_json_object(json, NULL);
    cli_json_text(json, "uri", uri);
    cli_json_text(json, "set", info->uuid);
    cli_json_u64(json, "index", info->index);
    cli_json_u64(json, "count", info->count);
    cli_json_u64(json, "unit", info->unit);
    cli_json_u64(json, "used", info->used);
    cli_json_u64(json, "bytes", info->member_nbytes);
    cli_json_close(json);
}

static gpunvme_err_t show_members(const struct args *args, struct cli_json *json)
{
    for (size_t i = 0; i < args->n; i++) {
        struct gpunvme_stripe_info info;
        gpunvme_err_t err = gpunvme_stripe_inspect(args->uris[i], &info);

        if (err)
            return err;
        if (args->json)
            json_member(json, args->uris[i], &info);
        else
            print_member(args->uris[i], &info);
    }
    return GPUNVME_OK;
}

/* The set as a whole: an exit code. */
static int show_set(const struct args *args, struct cli_json *json)
{
    char *uri = set_uri(args), size[BASE_UNITS_TEXT];
    uint64_t nbytes = 0;
    gpunvme_err_t err =
        uri ? try_set(uri, &nbytes) : base_fail(GPUNVME_ERR_NOMEM, "the members' names");
    int code = err ? cli_fail(err) : CLI_OK;

    if (args->json) {
        cli_json_bool(json, "whole", !err);
        cli_json_text(json, "uri", err ? NULL : uri);
        cli_json_u64(json, "bytes", nbytes);
    } else if (!err) {
        printf("%s\n  a whole set of %s (%" PRIu64 " bytes)\n", uri,
               base_format_size(nbytes, size, sizeof(size)), nbytes);
    }
    free(uri);
    return code;
}

static int show_all(const struct args *args)
{
    struct cli_json json;
    gpunvme_err_t err;
    int code;

    if (args->json) {
        cli_json_begin(&json, stdout);
        cli_json_array(&json, "members");
    }
    err = show_members(args, &json);
    code = err ? cli_fail(err) : CLI_OK;
    if (args->json)
        cli_json_close(&json);
    if (!err)
        code = show_set(args, &json);
    if (args->json)
        cli_json_end(&json);
    return code;
}

static int show(int argc, char **argv)
{
    struct args args = {0};

    if (!cli_parse(&show_argp, argc, argv, &args))
        return CLI_USAGE;
    if (!args.n)
        return cli_usage("name the members: %s URI...", cli_name);
    return show_all(&args);
}

static int create(int argc, char **argv)
{
    struct args args = {0};
    gpunvme_err_t err;

    if (!cli_parse(&create_argp, argc, argv, &args))
        return CLI_USAGE;
    if (!args.n)
        return cli_usage("name the members: %s URI URI...", cli_name);
    err =
        gpunvme_stripe_create(args.uris, args.n, args.unit, args.force ? GPUNVME_STRIPE_FORCE : 0);
    return err ? cli_fail(err) : show_all(&args);
}

static const struct cli_command commands[] = {
    {"create", "makes a set; its members' data is lost", create},
    {"show", "shows the headers of members", show},
};

static const struct cli_verbs verbs = {
    .verbs = commands,
    .nverbs = sizeof(commands) / sizeof(commands[0]),
    .names = "create or show",
    .head = "Usage: gpunvme stripe VERB [OPTION...] URI...\n"
            "Stripe sets: several drives, namespaces or files used as one.\n\n",
    .tail = "\nExamples:\n"
            "  gpunvme stripe create sim:image=a.img sim:image=b.img --unit 256K\n"
            "  gpunvme stripe show sim:image=a.img sim:image=b.img\n\n"
            "Programs open the set as \"stripe:URI;URI\". Each verb has --help and --json.\n",
};

int cli_stripe(int argc, char **argv)
{
    return cli_verbs_run(&verbs, argc, argv);
}
