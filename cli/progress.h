/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A progress bar on stderr, where stderr is a terminal; nothing at all elsewhere. One at a time,
 * by one thread.
 */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

enum cli_progress_unit { CLI_PROGRESS_BYTES, CLI_PROGRESS_COUNT, CLI_PROGRESS_TIME };

struct cli_progress {
    const char *what; /* "write" */
    enum cli_progress_unit unit;
    uint64_t total; /* 0: not known */
    uint64_t start_ns, drawn_ns;
    bool on;
};

void cli_progress_begin(struct cli_progress *progress, const char *what,
                        enum cli_progress_unit unit, uint64_t total, bool quiet);

/* So much is done. Draws ten times a second at most; cheap to call often. */
void cli_progress_update(struct cli_progress *progress, uint64_t done);

/* Wipes the bar away. */
void cli_progress_end(struct cli_progress *progress);

/* CLOCK_MONOTONIC. */
uint64_t cli_now_ns(void);

#endif
