/* SPDX-License-Identifier: BSD-3-Clause
 *
 * In place of migrate.c and scrub.c: the tier by the thresholds, moves that are asked for, and
 * nothing else.
 */
#include <string.h>

#include "base/fail.h"
#include "data/tiers/internal.h"
#include "data/tiers/score.h"

gpunvme_err_t tiers_migrator_start(struct gpunvme_tiers *t)
{
    (void)t;
    return GPUNVME_OK;
}

void tiers_migrator_stop(struct gpunvme_tiers *t)
{
    (void)t;
}

bool tiers_migrating(struct gpunvme_tiers *t)
{
    (void)t;
    return false;
}

gpunvme_err_t tiers_make_room(struct gpunvme_tiers *t, int tier, uint64_t nbytes, double rank)
{
    (void)t, (void)rank;
    return base_fail(GPUNVME_ERR_NOSPC, "the %s tier has no room for %llu bytes",
                     gpunvme_tier_name(tier), (unsigned long long)nbytes);
}

int tiers_policy(struct gpunvme_tiers *t, const struct tiers_row *row)
{
    struct gpunvme_tiers_settings s;
    double t_s, score;

    if (tiers_settings(t, &s) || tiers_now(t, &t_s))
        return row->tier;
    score = tiers_score_of_rank(row->rank, t_s, s.half_life_s);
    return score >= s.hot_at    ? GPUNVME_TIER_HOT
           : score >= s.warm_at ? GPUNVME_TIER_WARM
                                : GPUNVME_TIER_COLD;
}

gpunvme_err_t gpunvme_tiers_move(struct gpunvme_tiers *t, const char *name, int tier, bool pin,
                                 int *to)
{
    gpunvme_err_t err = tiers_check_process(t);

    if (!err && (tier < 0 || pin))
        err = base_fail(GPUNVME_ERR_UNSUPPORTED, "not yet");
    if (!err)
        err = tiers_change_move(t, name, tier, NULL, NULL);
    if (!err && to)
        *to = tier;
    return err;
}

gpunvme_err_t gpunvme_tiers_migrate(struct gpunvme_tiers *t, uint64_t timeout_ns,
                                    struct gpunvme_tiers_moves *moves)
{
    (void)t, (void)timeout_ns, (void)moves;
    return base_fail(GPUNVME_ERR_UNSUPPORTED, "not yet");
}

gpunvme_err_t gpunvme_tiers_scrub(struct gpunvme_tiers *t, unsigned flags,
                                  void (*each)(void *user, enum gpunvme_tiers_finding finding,
                                               const char *name, const char *detail),
                                  void *user, struct gpunvme_tiers_scrub *scrub)
{
    (void)flags, (void)each, (void)user;
    memset(scrub, 0, sizeof(*scrub));
    return tiers_check_process(t);
}

const char *gpunvme_tiers_finding_name(enum gpunvme_tiers_finding finding)
{
    (void)finding;
    return "";
}

gpunvme_err_t gpunvme_tiers_rebuild(const char *dir)
{
    (void)dir;
    return base_fail(GPUNVME_ERR_UNSUPPORTED, "not yet");
}
