/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Scores and their clock: see score.h.
 */
#include "data/tiers/score.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define SLACK 0.995 /* of a threshold */

double tiers_score_of_rank(double rank, double t_s, double half_life_s)
{
    return exp2(rank - t_s / half_life_s);
}

double tiers_rank_of_score(double score, double t_s, double half_life_s)
{
    return log2(score) + t_s / half_life_s;
}

double tiers_rank_of_threshold(double at, double t_s, double half_life_s)
{
    return tiers_rank_of_score(at * SLACK, t_s, half_life_s);
}

/* log2(2^a + 2^b) without the powers, which may be too large or too small for a double. */
double tiers_rank_add(double rank, double n, double t_s, double half_life_s)
{
    const double more = tiers_rank_of_score(n, t_s, half_life_s);
    const double larger = fmax(rank, more), smaller = fmin(rank, more);

    if (isinf(smaller) || isinf(larger))
        return larger;
    return larger + log2(1 + exp2(smaller - larger));
}

void tiers_clock_advance(struct tiers_clock *clock, double wall_s, double boot_s,
                         const char *boot_id, double half_life_s)
{
    const bool same_boot = *boot_id && !strcmp(boot_id, clock->boot_id);
    const double most = same_boot ? boot_s - clock->boot_s : half_life_s;

    clock->t_s += fmax(0, fmin(wall_s - clock->wall_s, most));
    clock->wall_s = wall_s;
    clock->boot_s = boot_s;
    snprintf(clock->boot_id, sizeof(clock->boot_id), "%s", boot_id);
}
