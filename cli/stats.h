/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How the results of transfers are told, in tables and in JSON.
 */
#ifndef CLI_STATS_H
#define CLI_STATS_H

#include "hist.h"
#include "json.h"

/* What commands of one kind did. */
struct cli_stats {
    const char *name; /* "read" */
    const struct cli_hist *hist;
    uint64_t nbytes;
    uint64_t elapsed_ns;
};

/* Two tables, of rates and of latencies; rows without commands are left out. */
void cli_stats_print(const struct cli_stats *stats, unsigned count, FILE *out);

/* An object by the name of the row. */
void cli_stats_json(const struct cli_stats *stats, struct cli_json *json);

double cli_stats_bytes_per_s(const struct cli_stats *stats);

#endif
