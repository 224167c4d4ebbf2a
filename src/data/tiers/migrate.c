/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which files should move, and a pass that moves them. They are found by their ranks in the
 * catalogue's index, so a pass costs what must move, not what there is. A policy of the caller's
 * has no index: then a pass looks at every file.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/tiers/mover.h"
#include "data/tiers/score.h"
#include "storage/futex.h"

#define NTRIES 3u /* of a move whose room others took, or whose tier's file system is full */

/* ---- Policy ---------------------------------------------------------------------------------- */

/* What decisions need of the set: taken once for many files. */
struct view {
    struct gpunvme_tiers *t;
    double t_s, half_life_s;
    double from[GPUNVME_NTIERS]; /* the rank from which on a file belongs here or further up */
};

static gpunvme_err_t look(struct gpunvme_tiers *t, struct view *v)
{
    struct gpunvme_tiers_settings s;
    gpunvme_err_t err = tiers_settings(t, &s);

    *v = (struct view){.t = t};
    if (!err)
        err = tiers_now(t, &v->t_s);
    if (err)
        return err;
    v->half_life_s = s.half_life_s;
    v->from[GPUNVME_TIER_HOT] = tiers_rank_of_threshold(s.hot_at, v->t_s, s.half_life_s);
    v->from[GPUNVME_TIER_WARM] = tiers_rank_of_threshold(s.warm_at, v->t_s, s.half_life_s);
    v->from[GPUNVME_TIER_COLD] = -INFINITY;
    return GPUNVME_OK;
}

static int choose(const struct view *v, const struct tiers_row *row)
{
    const struct gpunvme_tiers_options *o = &v->t->options;
    struct gpunvme_tiers_file file;
    int tier = GPUNVME_TIER_HOT;

    if (!o->policy) {
        while (row->rank < v->from[tier])
            tier++;
        return tier;
    }
    tiers_file_of_row(row, v->t_s, v->half_life_s, &file);
    tier = o->policy(o->policy_user, &file);
    return tier >= 0 && tier < GPUNVME_NTIERS ? tier : row->tier;
}

int tiers_policy(struct gpunvme_tiers *t, const struct tiers_row *row)
{
    struct view v;

    return look(t, &v) ? row->tier : choose(&v, row);
}

/* ---- Moves ----------------------------------------------------------------------------------- */

static gpunvme_err_t move(struct mover *m, const struct tiers_row *row, int to)
{
    gpunvme_err_t err;

    for (unsigned i = 0; i < NTRIES; i++) {
        err = mover_make_room(m, to, row->nbytes, row->rank, i == 1);
        if (err)
            break;
        err = mover_move(m, row->name, to);
        if (err != GPUNVME_ERR_NOSPC)
            break;
    }
    if (!err)
        mover_moved(m, row->name, row->tier, to, row->nbytes);
    return err;
}

/* Sets or ends the pin of a file. AGAIN: it is not in that tier, for somebody has moved it. */
static gpunvme_err_t set_pin(struct gpunvme_tiers *t, const char *name, int tier, bool pin)
{
    const int pinned = pin ? tier : GPUNVME_TIER_AUTO;
    struct tiers_row row;
    gpunvme_err_t err = tiers_catalogue_begin(t->catalogue);

    if (err)
        return err;
    err = tiers_catalogue_find(t->catalogue, name, &row);
    if (!err && row.tier != tier)
        err = GPUNVME_ERR_AGAIN;
    if (!err && row.pinned != pinned) {
        row.pinned = pinned;
        err = tiers_catalogue_put(t->catalogue, &row);
    }
    return tiers_catalogue_end(t->catalogue, err);
}

static gpunvme_err_t move_and_pin(struct mover *m, const char *name, int tier, bool pin, int *to)
{
    struct tiers_row row;
    gpunvme_err_t err = tiers_catalogue_find(m->t->catalogue, name, &row);

    if (err)
        return err == GPUNVME_ERR_NOT_FOUND ? base_fail(err, "%.150s", name) : err;
    *to = row.tier;
    if (tier == GPUNVME_TIER_AUTO)
        tier = tiers_policy(m->t, &row);
    if (tier != row.tier)
        err = move(m, &row, tier);
    if (!err)
        *to = tier;
    return err ? err : set_pin(m->t, name, tier, pin);
}

gpunvme_err_t gpunvme_tiers_move(struct gpunvme_tiers *t, const char *name, int tier, bool pin,
                                 int *to)
{
    struct mover m = {.t = t, .wait_until_ns = futex_deadline(t->timeout_ns)};
    gpunvme_err_t err = tiers_check_process(t);
    int unused;

    if (!err && (tier < GPUNVME_TIER_AUTO || tier >= GPUNVME_NTIERS))
        err = base_fail(GPUNVME_ERR_INVALID, "tier is %d", tier);
    if (!err && pin && tier == GPUNVME_TIER_AUTO)
        err = base_fail(GPUNVME_ERR_INVALID, "a pin needs a tier");
    if (!err)
        err = tiers_name_check(name);
    if (!err)
        err = tiers_files_flush(t); /* the policy's score has all accesses of this process */
    if (!err)
        do
            err = move_and_pin(&m, name, tier, pin, to ? to : &unused);
        while (err == GPUNVME_ERR_AGAIN && futex_now() < m.wait_until_ns);
    free(m.evicted.hashes);
    return err == GPUNVME_ERR_AGAIN
               ? base_fail(GPUNVME_ERR_BUSY, "%.80s: others move it to and fro", name)
               : err;
}

/* ---- A pass ---------------------------------------------------------------------------------- */

struct pass {
    struct mover *m;
    struct view view;
    uint64_t deadline_ns;
    uint64_t too_large[GPUNVME_NTIERS]; /* what found no room there; what comes after has a lower
                                           rank and finds none either */
    struct base_failure *first;         /* of what failed */
};

/* Whether the error of a file, which should be in `goal`, ends the pass; else it is counted. */
static bool ends(struct pass *p, const struct tiers_row *row, int goal, gpunvme_err_t err)
{
    switch (err) {
    case GPUNVME_OK:
        return false;
    case GPUNVME_ERR_CANCELED:
        return true;
    case GPUNVME_ERR_BUSY:
    case GPUNVME_ERR_NOT_FOUND:
        p->m->moves.busy++;
        return false;
    case GPUNVME_ERR_NOSPC:
        p->m->moves.no_room++;
        return false;
    default:
        if (!p->m->moves.failed++)
            base_keep(p->first, err);
        mover_tell(p->m, row->name, row->tier, goal, row->nbytes, err);
        return false;
    }
}

/* Moves one file, upwards at least part of the way. */
static gpunvme_err_t move_one(struct pass *p, const struct tiers_row *row)
{
    gpunvme_err_t err = GPUNVME_ERR_NOSPC;
    int goal;

    if (p->m->stop && atomic_load(p->m->stop))
        return GPUNVME_ERR_CANCELED;
    goal = choose(&p->view, row);
    if (goal == row->tier || names_have(&p->m->evicted, row->name))
        return GPUNVME_OK;
    if (futex_now() >= p->deadline_ns)
        return base_fail(GPUNVME_ERR_TIMEOUT, "not all files could be moved in this time");
    if (goal > row->tier)
        err = move(p->m, row, goal);
    for (int to = goal; to < row->tier && err == GPUNVME_ERR_NOSPC; to++)
        if (row->nbytes < p->too_large[to]) {
            err = move(p->m, row, to);
            if (err == GPUNVME_ERR_NOSPC)
                p->too_large[to] = row->nbytes;
        }
    if (ends(p, row, goal, err))
        return err;
    return p->m->ended
               ? base_fail(GPUNVME_ERR_CANCELED, "the pass was ended after %.80s", row->name)
               : GPUNVME_OK;
}

/* Files that have lost their rank go down, the lowest first. */
static gpunvme_err_t sweep_down(struct pass *p, int tier)
{
    struct cursor *c = cursor_open(p->m->t->catalogue, tier, p->view.from[tier], true);
    const struct tiers_row *row;
    gpunvme_err_t err = c ? GPUNVME_OK : GPUNVME_ERR_NOMEM;

    while (!err && !(err = cursor_row(c, &row)) && row) {
        err = move_one(p, row);
        c->at++;
    }
    free(c);
    return err;
}

/* Files of both slower tiers go up, the highest first. */
static gpunvme_err_t sweep_up(struct pass *p)
{
    struct cursor *cold =
        cursor_open(p->m->t->catalogue, GPUNVME_TIER_COLD, p->view.from[GPUNVME_TIER_WARM], 0);
    struct cursor *warm =
        cursor_open(p->m->t->catalogue, GPUNVME_TIER_WARM, p->view.from[GPUNVME_TIER_HOT], 0);
    gpunvme_err_t err = cold && warm ? GPUNVME_OK : GPUNVME_ERR_NOMEM;

    for (int tier = 0; tier < GPUNVME_NTIERS; tier++)
        p->too_large[tier] = UINT64_MAX;
    while (!err) {
        const struct tiers_row *a = NULL, *b = NULL;
        bool from_cold;

        err = cursor_row(cold, &a);
        if (!err)
            err = cursor_row(warm, &b);
        if (err || (!a && !b))
            break;
        from_cold = a && (!b || a->rank > b->rank);
        err = move_one(p, from_cold ? a : b);
        (from_cold ? cold : warm)->at++;
    }
    free(cold);
    free(warm);
    return err;
}

/* All files by name, where the policy is the caller's. */
static gpunvme_err_t sweep_all(struct pass *p)
{
    struct tiers_row *rows = malloc(CURSOR_NROWS * sizeof(*rows));
    char after[GPUNVME_TIERS_NAME_MAX + 1] = "";
    gpunvme_err_t err = rows ? GPUNVME_OK : base_fail(GPUNVME_ERR_NOMEM, "%u rows", CURSOR_NROWS);

    for (size_t n = CURSOR_NROWS; !err && n == CURSOR_NROWS;) {
        err = tiers_catalogue_list(p->m->t->catalogue, "", after, rows, CURSOR_NROWS, &n);
        for (size_t i = 0; !err && i < n; i++) {
            for (int tier = 0; tier < GPUNVME_NTIERS; tier++)
                p->too_large[tier] = UINT64_MAX;
            if (rows[i].pinned == GPUNVME_TIER_AUTO)
                err = move_one(p, &rows[i]);
        }
        if (!err && n)
            memcpy(after, rows[n - 1].name, sizeof(after));
    }
    free(rows);
    return err;
}

/* Now and then the clock must be kept: what it shows is reckoned from then on. */
static gpunvme_err_t keep_clock(struct gpunvme_tiers *t)
{
    double t_s;
    const gpunvme_err_t err = tiers_catalogue_begin(t->catalogue);

    return err ? err : tiers_catalogue_end(t->catalogue, tiers_clock_keep(t, &t_s));
}

static gpunvme_err_t pass(struct pass *p)
{
    struct mover *m = p->m;
    gpunvme_err_t err = tiers_files_flush(m->t);

    if (!err)
        err = keep_clock(m->t);
    if (!err)
        err = look(m->t, &p->view);
    /* A capacity may have become smaller. */
    for (int tier = 0; tier < GPUNVME_TIER_COLD && !err; tier++) {
        err = mover_make_room(m, tier, 0, INFINITY, false);
        if (err == GPUNVME_ERR_NOSPC)
            err = GPUNVME_OK;
    }
    if (!err && m->t->options.policy)
        return sweep_all(p);
    for (int tier = GPUNVME_TIER_COLD; tier-- > 0 && !err;)
        err = sweep_down(p, tier);
    return err ? err : sweep_up(p);
}

gpunvme_err_t mover_pass(struct mover *m, uint64_t deadline_ns, struct base_failure *first)
{
    struct pass p = {.m = m, .deadline_ns = deadline_ns, .first = first};
    const gpunvme_err_t err = pass(&p);

    free(m->evicted.hashes);
    return err;
}
