/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Scores: how often a file was used, each access counting half after every half-life h. Of a score
 * s at time t the *rank* is log2(s) + t / h, which stays the same while the score decays; a score
 * of 0 has the rank -INFINITY. So files of one set are always in the order of their ranks, an index
 * of the database keeps that order, and a threshold of the score is one of the rank at any time.
 *
 * Knows nothing of files and databases.
 */
#ifndef DATA_TIERS_SCORE_H
#define DATA_TIERS_SCORE_H

#include <stdint.h>

/* `t_s` is the set's time, in seconds; `half_life_s` may be INFINITY. */
double tiers_score_of_rank(double rank, double t_s, double half_life_s);
double tiers_rank_of_score(double score, double t_s, double half_life_s);

/* The rank after n more accesses at t_s. */
double tiers_rank_add(double rank, double n, double t_s, double half_life_s);

/*
 * The rank from which on a file belongs into the tier that begins at a score of `at`: that of a
 * score half a percent below. So 100 accesses within an hour reach a threshold of 100, although the
 * first have begun to decay, and 99 do not.
 */
double tiers_rank_of_threshold(double at, double t_s, double half_life_s);

/*
 * The set's time: it goes on with the wall clock, never back, and not faster than the machine's
 * time since boot while that is known; across a boot by at most a half-life. So a clock that was
 * set wrong, or right again, neither keeps scores from decaying nor forgets them.
 */
struct tiers_clock {
    double t_s;       /* the set's time */
    double wall_s;    /* at that moment, since 1970 */
    double boot_s;    /* since boot */
    char boot_id[37]; /* of which boot; "": not known */
};

/* The clock now, of what it was and the readings of now. */
void tiers_clock_advance(struct tiers_clock *clock, double wall_s, double boot_s,
                         const char *boot_id, double half_life_s);

#endif
