/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the subcommands share: their table, exit codes, messages and options. A subcommand is one
 * file; it knows the public headers, src/base for units, and nothing of another subcommand.
 */
#ifndef CLI_H
#define CLI_H

#include <argp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "gpunvme/buf.h"
#include "gpunvme/error.h"

/* Exit codes, as gpunvme.1 documents them. */
enum {
    CLI_OK = 0,
    CLI_FAILED = 1,        /* an operation failed */
    CLI_USAGE = 2,         /* the command line makes no sense */
    CLI_VERIFY = 3,        /* wrong bytes, or the driver broke the specification */
    CLI_INTERRUPTED = 130, /* SIGINT, SIGTERM or SIGHUP */
};

struct cli_command {
    const char *name;
    const char *text; /* one line for `gpunvme help` */
    int (*run)(int argc, char **argv);
};

int cli_quickstart(int argc, char **argv);
int cli_info(int argc, char **argv);
int cli_identify(int argc, char **argv);
int cli_dump_bar0(int argc, char **argv);
int cli_read(int argc, char **argv);
int cli_write(int argc, char **argv);
int cli_bench(int argc, char **argv);
int cli_check_p2p(int argc, char **argv);
int cli_topology(int argc, char **argv);
int cli_store(int argc, char **argv);
int cli_sim(int argc, char **argv);
int cli_stripe(int argc, char **argv);
int cli_data(int argc, char **argv);
int cli_tier(int argc, char **argv);
int cli_weights(int argc, char **argv);
int cli_ops(int argc, char **argv);

/* "gpunvme read": stands before every message. */
extern const char *cli_name;

/* What failed, in words: this thread's detail of its last failure, and what `err` adds to it. */
void cli_describe(gpunvme_err_t err, char *text, size_t room);

/*
 * Says on stderr what failed, "NAME: TEXT (GPUNVME_ERR_…)", with the text of cli_describe(), and
 * returns the exit code that goes with the error. An interruption is answered by its exit code
 * alone.
 */
int cli_fail(gpunvme_err_t err);

/* The exit code that goes with an error, without a word. */
int cli_exit_code(gpunvme_err_t err);

/* A line on stderr, "NAME: …". */
void cli_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The same for a command line that makes no sense; returns CLI_USAGE. */
int cli_usage(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Prints `text` wrapped at words to 79 columns, from column `indent` on, behind a label. */
void cli_print_wrapped(FILE *out, int indent, const char *label, const char *text);

/* Options that several subcommands have. Keys beyond characters, so that they have no short form.
 */
enum {
    CLI_KEY_JSON = 0x1000,
    CLI_KEY_FORCE,
    CLI_KEY_INTERRUPTS,
    CLI_KEY_OWN, /* a subcommand's own keys begin here */
};

#define CLI_OPTION_JSON                                                                            \
    {                                                                                              \
        "json", CLI_KEY_JSON, NULL, 0, "Print JSON for programs", 90                               \
    }
#define CLI_OPTION_QUIET                                                                           \
    {                                                                                              \
        "quiet", 'q', NULL, 0, "No progress bar, no notes", 91                                     \
    }
#define CLI_OPTION_NSID                                                                            \
    {                                                                                              \
        "nsid", 'n', "NSID", 0, "Namespace (default: the first)", 0                                \
    }

#define CLI_OPTION_INTERRUPTS                                                                      \
    {                                                                                              \
        "interrupts", CLI_KEY_INTERRUPTS, NULL, 0,                                                 \
            "Sleep until the controller interrupts, instead of polling", 5                         \
    }

struct cli_common {
    const char *uri;
    uint32_t nsid; /* 0: the first one */
    bool json;
    bool quiet;
    bool interrupts;
};

/* Takes one of the options above, and one argument as the URI. ARGP_ERR_UNKNOWN if it is neither.
 */
error_t cli_parse_common(int key, char *arg, struct argp_state *state, struct cli_common *common);

/* Values with units; argp_error() with the option's name if they are malformed or out of range. */
uint64_t cli_parse_size(struct argp_state *state, const char *option, const char *arg);
uint64_t cli_parse_count(struct argp_state *state, const char *option, const char *arg,
                         uint64_t min, uint64_t max);
enum gpunvme_mem cli_parse_memory(struct argp_state *state, const char *arg);
uint64_t cli_parse_time(struct argp_state *state, const char *option, const char *arg);

/* Runs argp with the settings that all subcommands share: order, exit code 2. False: CLI_USAGE. */
bool cli_parse(const struct argp *argp, int argc, char **argv, void *input);

/*
 * The device to use: `uri` if it is not NULL, else $GPUNVME_URI, else the build's default, else
 * NULL after a message that says what to do.
 */
const char *cli_uri(const char *uri);

#endif
