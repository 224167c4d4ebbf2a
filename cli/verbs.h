/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Subcommands that have verbs (`gpunvme sim check`): their help, and finding the verb.
 */
#ifndef CLI_VERBS_H
#define CLI_VERBS_H

#include <stddef.h>

#include "cli.h"

struct cli_verbs {
    const struct cli_command *verbs;
    size_t nverbs;
    const char *names; /* "list, bench or check" */
    const char *head;  /* of the help, before the verbs */
    const char *tail;  /* and behind them */
};

/* Runs the verb that argv[1] names, or tells what there is: an exit code. */
int cli_verbs_run(const struct cli_verbs *set, int argc, char **argv);

#endif
