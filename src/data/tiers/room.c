/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Room in a tier, made by moving files to slower ones.
 *
 * Files do not go to and fro: those that must go have lower ranks than the one that comes, nothing
 * is moved before it is known that they suffice, and no more go than must, so that none of them
 * would fit beside the one that came.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>

#include "data/tiers/mover.h"
#include "storage/futex.h"

#define RETRY_NS 5000000 /* while others move files away */
#define NSTUCK   64u     /* files that could not be moved */
#define SLACK    65536u  /* that a file system may need beside a file's bytes */

/* ---- Lists ----------------------------------------------------------------------------------- */

bool names_have(const struct names *names, const char *name)
{
    const uint64_t h = tiers_hash(name);

    for (size_t i = 0; i < names->n; i++)
        if (names->hashes[i] == h)
            return true;
    return false;
}

gpunvme_err_t names_add(struct names *names, const char *name)
{
    uint64_t *hashes = realloc(names->hashes, (names->n + 1) * sizeof(*hashes));

    if (!hashes)
        return base_fail(GPUNVME_ERR_NOMEM, "a list of %zu names", names->n + 1);
    names->hashes = hashes;
    hashes[names->n++] = tiers_hash(name);
    return GPUNVME_OK;
}

struct cursor *cursor_open(struct tiers_catalogue *catalogue, int tier, double rank, bool rising)
{
    struct cursor *c = malloc(sizeof(*c));

    if (c) {
        c->catalogue = catalogue;
        c->tier = tier;
        c->rank = rank;
        c->rising = rising;
        c->n = c->at = CURSOR_NROWS;
        c->last.name[0] = '\0';
    } else {
        base_fail(GPUNVME_ERR_NOMEM, "%zu rows", (size_t)CURSOR_NROWS);
    }
    return c;
}

gpunvme_err_t cursor_row(struct cursor *c, const struct tiers_row **row)
{
    gpunvme_err_t err = GPUNVME_OK;

    if (c->at == c->n && c->n == CURSOR_NROWS) {
        err = tiers_catalogue_by_rank(c->catalogue, c->tier, c->rank, c->rising,
                                      c->last.name[0] ? &c->last : NULL, c->rows, CURSOR_NROWS,
                                      &c->n);
        c->at = 0;
        if (!err && c->n)
            c->last = c->rows[c->n - 1];
    }
    *row = !err && c->at < c->n ? &c->rows[c->at] : NULL;
    return err;
}

/* ---- What must go ---------------------------------------------------------------------------- */

gpunvme_err_t tiers_no_room(struct gpunvme_tiers *t, int tier, uint64_t nbytes, uint64_t left,
                            const char *why)
{
    return base_fail(GPUNVME_ERR_NOSPC,
                     "the %s tier (%.100s) has no room for %llu bytes, %llu are free: %s",
                     gpunvme_tier_name(tier), t->dir[tier], (unsigned long long)nbytes,
                     (unsigned long long)left, why);
}

/* What the file system of a tier has left. */
static uint64_t disk_free(const struct gpunvme_tiers *t, int tier)
{
    struct statvfs fs;

    return fstatvfs(t->dir_fd[tier], &fs) ? 0 : (uint64_t)fs.f_bavail * fs.f_frsize;
}

gpunvme_err_t tiers_disk_full(struct gpunvme_tiers *t, int tier, uint64_t nbytes, int copy_fd)
{
    uint64_t left = disk_free(t, tier);
    struct stat st;

    if (copy_fd >= 0 && !fstat(copy_fd, &st))
        left += (uint64_t)st.st_blocks * 512;
    return tiers_no_room(t, tier, nbytes, left, gpunvme_err_detail());
}

/* How many bytes more than its capacity a tier would have with `nbytes` more. NOSPC: it can't have
 * them at all. */
static gpunvme_err_t excess(struct gpunvme_tiers *t, int tier, uint64_t nbytes, uint64_t *over)
{
    struct gpunvme_tiers_settings s;
    struct tiers_sums sums = {0};
    gpunvme_err_t err = tiers_settings(t, &s);
    uint64_t capacity, used;

    *over = 0;
    if (err || !s.capacity_nbytes[tier])
        return err;
    capacity = s.capacity_nbytes[tier];
    err = tiers_catalogue_sums(t->catalogue, tier, &sums);
    if (err)
        return err;
    used = sums.nbytes + sums.reserved;
    if (nbytes > capacity)
        return tiers_no_room(t, tier, nbytes, capacity > used ? capacity - used : 0,
                             "its capacity is smaller");
    if (nbytes + used > capacity)
        *over = nbytes + used - capacity;
    return GPUNVME_OK;
}

gpunvme_err_t tiers_fits(struct gpunvme_tiers *t, int tier, uint64_t nbytes)
{
    uint64_t over;
    const gpunvme_err_t err = excess(t, tier, nbytes, &over);

    return err || !over ? err
                        : tiers_no_room(t, tier, nbytes, nbytes > over ? nbytes - over : 0,
                                        "its capacity is reached");
}

/* How many bytes the file system of a tier, which was found full, lacks for `nbytes` more. */
static uint64_t disk_lacks(struct gpunvme_tiers *t, int tier, uint64_t nbytes)
{
    const uint64_t need = nbytes + SLACK + tiers_reserve_lacks(t, tier), left = disk_free(t, tier);

    return need > left ? need - left : 0;
}

bool tiers_on_one_disk(const struct gpunvme_tiers *t, int a, int b)
{
    struct stat x, y;

    return !fstat(t->dir_fd[a], &x) && !fstat(t->dir_fd[b], &y) && x.st_dev == y.st_dev;
}

/* How many bytes fit into the tiers below one; `elsewhere`: into those on other file systems. */
static gpunvme_err_t free_below(struct gpunvme_tiers *t, int from, bool elsewhere, uint64_t *nbytes)
{
    struct gpunvme_tiers_settings s;
    struct tiers_sums sums;
    gpunvme_err_t err = tiers_settings(t, &s);

    *nbytes = 0;
    for (int tier = from + 1; tier < GPUNVME_NTIERS && !err; tier++) {
        const uint64_t capacity = s.capacity_nbytes[tier];

        if (elsewhere && tiers_on_one_disk(t, from, tier))
            continue;
        if (!capacity) {
            *nbytes = UINT64_MAX;
            break;
        }
        err = tiers_catalogue_sums(t->catalogue, tier, &sums);
        if (!err && capacity > sums.nbytes + sums.reserved)
            *nbytes += capacity - sums.nbytes - sums.reserved;
    }
    return err;
}

struct victim {
    char *name;
    uint64_t nbytes;
    double rank;
};

struct victims {
    struct victim *all;
    size_t n, room;
    uint64_t nbytes;
};

static void drop_victim(struct victims *v, size_t i)
{
    v->nbytes -= v->all[i].nbytes;
    free(v->all[i].name);
    v->all[i] = v->all[--v->n];
}

static void drop_victims(struct victims *v)
{
    while (v->n)
        drop_victim(v, v->n - 1);
    free(v->all);
}

static gpunvme_err_t add_victim(struct victims *v, const struct tiers_row *row)
{
    if (v->n == v->room) {
        const size_t room = 2 * v->room + 16;
        struct victim *all = realloc(v->all, room * sizeof(*all));

        if (!all)
            return base_fail(GPUNVME_ERR_NOMEM, "%zu files to move", room);
        v->all = all;
        v->room = room;
    }
    v->all[v->n] = (struct victim){strdup(row->name), row->nbytes, row->rank};
    if (!v->all[v->n].name)
        return base_fail(GPUNVME_ERR_NOMEM, "%zu files to move", v->n);
    v->n++;
    v->nbytes += row->nbytes;
    return GPUNVME_OK;
}

/*
 * The files of a tier that must go so that `over` bytes less are there: those with the lowest ranks
 * below `rank` without `except`, and of them only those that are needed. None: they do not suffice.
 */
static gpunvme_err_t find_victims(const struct mover *m, int tier, uint64_t over, bool elsewhere,
                                  double rank, const struct names *except, struct victims *v)
{
    struct cursor *c = cursor_open(m->t->catalogue, tier, rank, true);
    const struct tiers_row *row;
    gpunvme_err_t err = c ? GPUNVME_OK : GPUNVME_ERR_NOMEM;
    uint64_t below = 0;

    while (!err && v->nbytes < over && !(err = cursor_row(c, &row)) && row) {
        if (row->nbytes && !names_have(except, row->name))
            err = add_victim(v, row);
        c->at++;
    }
    free(c);
    for (size_t i = v->n; v->nbytes >= over && i-- > 0;)
        if (v->nbytes - v->all[i].nbytes >= over)
            drop_victim(v, i);
    if (!err)
        err = free_below(m->t, tier, elsewhere, &below);
    while (!err && v->n && (v->nbytes < over || v->nbytes > below))
        drop_victim(v, v->n - 1);
    return err;
}

/* Whether changes of others leave room in a tier soon. Ends those of processes that died. */
static bool others_leave(struct gpunvme_tiers *t, int tier)
{
    struct tiers_change change = {.name = ""};

    while (!tiers_catalogue_change_next(t->catalogue, change.name, &change))
        if (change.from == tier && change.to != tier) {
            const gpunvme_err_t err = tiers_change_recover(t, change.name);

            if (!err || err == GPUNVME_ERR_BUSY || err == GPUNVME_ERR_NOT_FOUND)
                return true;
        }
    return false;
}

void mover_tell(struct mover *m, const char *name, int from, int to, uint64_t nbytes,
                gpunvme_err_t err)
{
    const struct gpunvme_tiers_options *o = &m->t->options;

    if (m->tells && o->moved && o->moved(o->moved_user, name, from, to, nbytes, err))
        m->ended = true;
}

void mover_moved(struct mover *m, const char *name, int from, int to, uint64_t nbytes)
{
    *(to < from ? &m->moves.up : &m->moves.down) += 1;
    m->moves.nbytes += nbytes;
    mover_tell(m, name, from, to, nbytes, GPUNVME_OK);
}

gpunvme_err_t mover_move(struct mover *m, const char *name, int to)
{
    struct gpunvme_tiers_settings s;
    gpunvme_err_t err = GPUNVME_OK;

    if (m->limit) {
        err = tiers_settings(m->t, &s);
        if (!err)
            atomic_store(&m->limit->bytes_per_s, s.migrate_bytes_per_s);
    }
    return err ? err : tiers_change_move(m->t, name, to, m->limit, m->stop);
}

/* Moves one to the next slower tier that has room or can make it, and is `elsewhere`. */
static gpunvme_err_t evict(struct mover *m, const struct victim *v, int from, bool elsewhere)
{
    struct tiers_row row;
    gpunvme_err_t err = tiers_catalogue_find(m->t->catalogue, v->name, &row);

    if (!err)
        err = row.tier == from ? GPUNVME_ERR_NOSPC : GPUNVME_ERR_BUSY; /* others moved it */
    for (int to = from + 1; to < GPUNVME_NTIERS && err == GPUNVME_ERR_NOSPC; to++) {
        if (elsewhere && tiers_on_one_disk(m->t, from, to))
            continue;
        err = mover_make_room(m, to, v->nbytes, v->rank, false);
        if (!err)
            err = mover_move(m, v->name, to);
        if (!err) {
            mover_moved(m, v->name, from, to, v->nbytes);
            err = names_add(&m->evicted, v->name);
        }
    }
    return err;
}

/* Whether an error is not of one file alone: then there is no point in trying others. */
static bool is_final(gpunvme_err_t err)
{
    return err == GPUNVME_ERR_CANCELED || err == GPUNVME_ERR_TIMEOUT || err == GPUNVME_ERR_NOMEM;
}

/*
 * What the file system lacks is reckoned once, and no more is moved away than that: space that does
 * not become free, because others still read the files or fill it, must not empty the tier.
 */
gpunvme_err_t mover_make_room(struct mover *m, int tier, uint64_t nbytes, double rank,
                              bool disk_is_full)
{
    struct names stuck = {0};
    uint64_t over, lacks = disk_is_full ? disk_lacks(m->t, tier, nbytes) : 0;
    gpunvme_err_t err = excess(m->t, tier, nbytes, &over);

    while (!err && (over || lacks)) {
        const bool elsewhere = lacks > 0;
        struct victims v = {0};

        over = over > lacks ? over : lacks;
        err = find_victims(m, tier, over, elsewhere, rank, &stuck, &v);
        for (size_t i = 0; i < v.n && !err; i++) {
            err = evict(m, &v.all[i], tier, elsewhere);
            if (!err)
                lacks -= lacks < v.all[i].nbytes ? lacks : v.all[i].nbytes;
            if (err && !is_final(err) && stuck.n < NSTUCK) { /* look for another one */
                err = names_add(&stuck, v.all[i].name);
                break;
            }
        }
        if (!err && !v.n) {
            if (futex_now() < m->wait_until_ns && others_leave(m->t, tier)) {
                nanosleep(&(struct timespec){.tv_nsec = RETRY_NS}, NULL);
                lacks = lacks ? disk_lacks(m->t, tier, nbytes) : 0;
            } else {
                err = tiers_no_room(m->t, tier, nbytes,
                                    lacks ? disk_free(m->t, tier)
                                          : nbytes - (over < nbytes ? over : nbytes),
                                    "nothing with a lower score can be moved away");
            }
        }
        drop_victims(&v);
        if (!err)
            err = excess(m->t, tier, nbytes, &over);
    }
    free(stuck.hashes);
    return err || !disk_is_full ? err : tiers_files_flush(m->t); /* closes what was moved away */
}

gpunvme_err_t tiers_make_room(struct gpunvme_tiers *t, int tier, uint64_t nbytes, double rank,
                              bool disk_is_full)
{
    struct mover m = {.t = t, .wait_until_ns = futex_deadline(t->timeout_ns)};
    const gpunvme_err_t err = mover_make_room(&m, tier, nbytes, rank, disk_is_full);

    free(m.evicted.hashes);
    return err;
}
