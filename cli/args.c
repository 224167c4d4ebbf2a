/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Messages and options that the subcommands share: see cli.h.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/units.h"
#include "cli.h"
#include "json.h"

#define WIDTH 79

const char *cli_name = "gpunvme";

/* Prints `text` from `column` on, wrapped at words, further lines at `indent`. */
static void put_words(FILE *out, int column, int indent, const char *text)
{
    bool at_start = true;

    while (*text) {
        int length = (int)strcspn(text, " ");

        if (!at_start && column + 1 + length > WIDTH) {
            fprintf(out, "\n%*s", indent, "");
            column = indent;
            at_start = true;
        }
        column += fprintf(out, "%s%.*s", at_start ? "" : " ", length, text);
        at_start = false;
        text += length + (text[length] != 0);
    }
    fputc('\n', out);
}

/* On a terminal words stay whole; elsewhere a message is one line, as programs want it. */
static void say(const char *format, va_list args)
{
    char text[2048];

    vsnprintf(text, sizeof(text), format, args);
    if (isatty(STDERR_FILENO))
        put_words(stderr, fprintf(stderr, "%s: ", cli_name), 2, text);
    else
        fprintf(stderr, "%s: %s\n", cli_name, text);
}

void cli_say(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    say(format, args);
    va_end(args);
}

int cli_usage(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    say(format, args);
    va_end(args);
    fprintf(stderr, "Try '%s --help'.\n", cli_name);
    return CLI_USAGE;
}

void cli_print_wrapped(FILE *out, int indent, const char *label, const char *text)
{
    int left = indent < 2 ? indent : 2;

    fprintf(out, "%*s%-*s", left, "", indent - left, label);
    put_words(out, indent, indent, text);
}

int cli_exit_code(gpunvme_err_t err)
{
    switch (err) {
    case GPUNVME_OK:
        return CLI_OK;
    case GPUNVME_ERR_INTERRUPTED:
        return CLI_INTERRUPTED;
    case GPUNVME_ERR_VERIFY:
    case GPUNVME_ERR_PROTOCOL:
        return CLI_VERIFY;
    case GPUNVME_ERR_URI:
    case GPUNVME_ERR_URI_PARAM:
        return CLI_USAGE;
    default:
        return CLI_FAILED;
    }
}

/*
 * Whether an error's own text belongs behind a detail. It does where the detail tells what it is
 * about, and the error what happened. Details of all other errors say both; a general text behind
 * them could only repeat or contradict them.
 */
static bool completes(gpunvme_err_t err)
{
    switch (err) {
    case GPUNVME_ERR_NOMEM:
    case GPUNVME_ERR_ABORTED:
    case GPUNVME_ERR_REMOVED:
    case GPUNVME_ERR_FATAL:
    case GPUNVME_ERR_STALE:
        return true;
    default:
        return gpunvme_err_nvme_status(err);
    }
}

void cli_describe(gpunvme_err_t err, char *text, size_t room)
{
    const char *detail = gpunvme_err_detail();

    if (!*detail)
        snprintf(text, room, "%s", gpunvme_err_text(err));
    else if (completes(err))
        snprintf(text, room, "%s: %s", detail, gpunvme_err_text(err));
    else
        snprintf(text, room, "%s", detail);
}

int cli_fail(gpunvme_err_t err)
{
    char text[1024];

    cli_describe(err, text, sizeof(text));
    if (err == GPUNVME_ERR_INTERRUPTED)
        snprintf(text, sizeof(text), "interrupted");
    cli_json_note_failure(gpunvme_err_name(err), err, text);
    if (err == GPUNVME_ERR_INTERRUPTED)
        cli_say("interrupted");
    else
        cli_say("%s (%s)", text, gpunvme_err_name(err));
    return cli_exit_code(err);
}

error_t cli_parse_common(int key, char *arg, struct argp_state *state, struct cli_common *common)
{
    switch (key) {
    case CLI_KEY_JSON:
        common->json = true;
        return 0;
    case 'q':
        common->quiet = true;
        return 0;
    case CLI_KEY_INTERRUPTS:
        common->interrupts = true;
        return 0;
    case 'n':
        common->nsid = (uint32_t)cli_parse_count(state, "nsid", arg, 1, UINT32_MAX - 1);
        return 0;
    case ARGP_KEY_ARG:
        if (common->uri)
            argp_error(state, "more than one URI: '%s' and '%s'", common->uri, arg);
        common->uri = arg;
        cli_json_set_uri(arg);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

uint64_t cli_parse_size(struct argp_state *state, const char *option, const char *arg)
{
    uint64_t value = 0;

    if (base_parse_size(arg, &value))
        argp_error(state, "--%s: %s", option, gpunvme_err_detail());
    return value;
}

enum gpunvme_mem cli_parse_memory(struct argp_state *state, const char *arg)
{
    static const char *const names[] = {"host", "pinned", "gpu"}; /* as enum gpunvme_mem */

    for (unsigned i = 0; i < 3; i++)
        if (!strcmp(arg, names[i]))
            return (enum gpunvme_mem)i;
    argp_error(state, "--memory=%s: host, pinned or gpu", arg);
    return GPUNVME_MEM_HOST;
}

uint64_t cli_parse_count(struct argp_state *state, const char *option, const char *arg,
                         uint64_t min, uint64_t max)
{
    uint64_t value = 0;

    if (base_parse_count(arg, &value))
        argp_error(state, "--%s: %s", option, gpunvme_err_detail());
    else if (value < min || value > max)
        argp_error(state, "--%s=%s: must be from %" PRIu64 " to %" PRIu64, option, arg, min, max);
    return value;
}

uint64_t cli_parse_time(struct argp_state *state, const char *option, const char *arg)
{
    uint64_t value = 0;

    if (base_parse_time(arg, &value))
        argp_error(state, "--%s: %s", option, gpunvme_err_detail());
    return value;
}

bool cli_parse(const struct argp *argp, int argc, char **argv, void *input)
{
    return argp_parse(argp, argc, argv, 0, NULL, input) == 0;
}

const char *cli_uri(const char *uri)
{
    if (uri)
        return uri;
    uri = getenv("GPUNVME_URI");
    if (uri && *uri)
        return uri;
#ifdef GPUNVME_DEFAULT_URI
    return GPUNVME_DEFAULT_URI;
#else
    cli_usage("no device: name one, such as sim:size=1G (the software controller), or set "
              "GPUNVME_URI; 'gpunvme info' shows what this machine has");
    return NULL;
#endif
}
