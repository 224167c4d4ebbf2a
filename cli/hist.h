/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A histogram of latencies: 64 buckets for each power of two, so that a percentile is told to
 * within 1.6 %, over all of 64 bits, in 30 KiB. Not for several threads at once; merge instead.
 */
#ifndef CLI_HIST_H
#define CLI_HIST_H

#include <stdint.h>

#define CLI_HIST_SUB_SHIFT 6
#define CLI_HIST_BUCKETS   ((65 - CLI_HIST_SUB_SHIFT) << CLI_HIST_SUB_SHIFT)

struct cli_hist {
    uint64_t count;
    uint64_t min, max; /* exact; valid while count is not 0 */
    uint64_t buckets[CLI_HIST_BUCKETS];
};

/* A histogram of zeroes is empty and ready. */
void cli_hist_add(struct cli_hist *hist, uint64_t value);
void cli_hist_merge(struct cli_hist *into, const struct cli_hist *from);

/*
 * The smallest value that at least `fraction` (0 … 1) of all values do not exceed, rounded up to
 * its bucket's end, but never beyond the largest value seen. 0 for an empty histogram.
 */
uint64_t cli_hist_at(const struct cli_hist *hist, double fraction);

#endif
