/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme topology in a build without hwloc: says so.
 */
#include "base/fail.h"
#include "cli.h"

static const struct argp_option options[] = {
    {"svg", 's', "FILE", OPTION_HIDDEN, NULL, 0},
    {"xml", 'x', "FILE", OPTION_HIDDEN, NULL, 0},
    CLI_OPTION_JSON,
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    (void)arg;
    (void)state;
    return key == 's' || key == 'x' || key == CLI_KEY_JSON ? 0 : ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {
    options, parse,
    NULL,    "Shows which drives and GPUs are near each other. This build can't: it has no hwloc.",
    NULL,    NULL,
    NULL};

int cli_topology(int argc, char **argv)
{
    if (!cli_parse(&argp, argc, argv, NULL))
        return CLI_USAGE;
    return cli_fail(base_fail(GPUNVME_ERR_UNSUPPORTED,
                              "built without hwloc: install libhwloc-dev and build anew; "
                              "'lspci -tv' and 'gpunvme info' show some of it"));
}
