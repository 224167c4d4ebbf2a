/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Subcommands that have verbs.
 */
#include "verbs.h"

#include <string.h>

#include "base/params.h"
#include "json.h"

static void print_help(const struct cli_verbs *set, FILE *out)
{
    fputs(set->head, out);
    for (size_t i = 0; i < set->nverbs; i++)
        fprintf(out, "  %-12s%s\n", set->verbs[i].name, set->verbs[i].text);
    fputs(set->tail, out);
}

static int unknown(const struct cli_verbs *set, const char *verb)
{
    const char *nearest = base_nearest(verb, set->verbs, sizeof(set->verbs[0]), set->nverbs);

    if (nearest)
        return cli_usage("unknown verb '%s': did you mean '%s'?", verb, nearest);
    return cli_usage("unknown verb '%s': %s", verb, set->names);
}

static int is_help(const char *word)
{
    return !strcmp(word, "--help") || !strcmp(word, "-?") || !strcmp(word, "-h") ||
           !strcmp(word, "help");
}

int cli_verbs_run(const struct cli_verbs *set, int argc, char **argv)
{
    static char name[64];

    if (argc < 2) {
        print_help(set, stderr);
        return CLI_USAGE;
    }
    if (is_help(argv[1])) {
        print_help(set, stdout);
        return CLI_OK;
    }
    for (size_t i = 0; i < set->nverbs; i++) {
        if (strcmp(set->verbs[i].name, argv[1]) != 0)
            continue;
        snprintf(name, sizeof(name), "%s %s", cli_name, argv[1]);
        cli_name = name;
        argv[1] = name;
        cli_json_set_command(name + sizeof("gpunvme ") - 1);
        return set->verbs[i].run(argc - 1, argv + 1);
    }
    return unknown(set, argv[1]);
}
