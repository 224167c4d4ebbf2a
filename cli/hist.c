/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A log-linear histogram: see hist.h.
 */
#include "hist.h"

#include <math.h>

#define SUB (1u << CLI_HIST_SUB_SHIFT)

/* Values below 64 have a bucket each; above, the 6 bits behind the leading one choose it. */
static unsigned bucket_of(uint64_t value)
{
    unsigned shift;

    if (value < SUB)
        return (unsigned)value;
    shift = 63 - (unsigned)__builtin_clzll(value) - CLI_HIST_SUB_SHIFT;
    return (shift << CLI_HIST_SUB_SHIFT) + (unsigned)(value >> shift);
}

static uint64_t bucket_last(unsigned bucket)
{
    unsigned shift = bucket < SUB ? 0 : (bucket >> CLI_HIST_SUB_SHIFT) - 1;
    uint64_t top = bucket < SUB ? bucket : (bucket & (SUB - 1)) + SUB;

    return (top << shift) + ((UINT64_C(1) << shift) - 1);
}

void cli_hist_add(struct cli_hist *hist, uint64_t value)
{
    if (!hist->count || value < hist->min)
        hist->min = value;
    if (!hist->count || value > hist->max)
        hist->max = value;
    hist->count++;
    hist->buckets[bucket_of(value)]++;
}

void cli_hist_merge(struct cli_hist *into, const struct cli_hist *from)
{
    if (!from->count)
        return;
    if (!into->count || from->min < into->min)
        into->min = from->min;
    if (!into->count || from->max > into->max)
        into->max = from->max;
    into->count += from->count;
    for (unsigned i = 0; i < CLI_HIST_BUCKETS; i++)
        into->buckets[i] += from->buckets[i];
}

uint64_t cli_hist_at(const struct cli_hist *hist, double fraction)
{
    uint64_t rank = (uint64_t)ceil(fraction * (double)hist->count), seen = 0;

    for (unsigned i = 0; i < CLI_HIST_BUCKETS; i++) {
        seen += hist->buckets[i];
        if (seen && seen >= rank)
            return bucket_last(i) < hist->max ? bucket_last(i) : hist->max;
    }
    return hist->count ? hist->max : 0;
}
