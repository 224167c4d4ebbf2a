/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which files should move, room for them, and the threads that move them. Files are found by their
 * ranks in the catalogue's index, so a pass costs what must move, not what there is. A policy of
 * the caller's has no index: then a pass looks at every file.
 *
 * Files do not go to and fro. Room for a file is made of files with lower ranks alone, and nothing
 * is moved before it is known that those suffice. None of them would fit beside the file that they
 * made room for, and none moves up in the pass that moved it down.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cond.h"
#include "base/fail.h"
#include "base/log.h"
#include "data/tiers/internal.h"
#include "data/tiers/score.h"
#include "storage/futex.h"

#define NS_PER_S    UINT64_C(1000000000)
#define FLUSH_NS    (2 * NS_PER_S)
#define INTERVAL_NS (10 * NS_PER_S)
#define RETRY_NS    (NS_PER_S / 200) /* while others move files away */
#define NPAGE       64u              /* rows that are read at once */
#define NSTUCK      64u              /* files that could not be moved to make room */
#define NTRIES      3u               /* of a move whose room others took */
#define JOB         "migrator"       /* the process that has the lock of this file migrates */

/* ---- Policy -----------------------------------------------------------------------------------
 */

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

/* ---- Room -------------------------------------------------------------------------------------
 */

/* Names by their hashes. A file that has the hash of another one's name misses a move, no more. */
struct names {
    uint64_t *hashes;
    size_t n;
};

static bool has(const struct names *names, const char *name)
{
    const uint64_t h = tiers_hash(name);

    for (size_t i = 0; i < names->n; i++)
        if (names->hashes[i] == h)
            return true;
    return false;
}

static gpunvme_err_t add(struct names *names, const char *name)
{
    uint64_t *hashes = realloc(names->hashes, (names->n + 1) * sizeof(*hashes));

    if (!hashes)
        return base_fail(GPUNVME_ERR_NOMEM, "a list of %zu names", names->n + 1);
    names->hashes = hashes;
    hashes[names->n++] = tiers_hash(name);
    return GPUNVME_OK;
}

/* What moves files: a pass, or a call that needs room. */
struct mover {
    struct gpunvme_tiers *t;
    struct tiers_rate *limit;
    const atomic_bool *stop;
    uint64_t wait_until_ns; /* for room that changes of others are about to leave */
    struct gpunvme_tiers_moves moves;
    struct names evicted; /* moved to make room */
    bool tells;           /* options.moved of files: a pass does */
    bool ended;           /* by options.moved */
};

/* Files in the order of their ranks. */
struct cursor {
    struct tiers_catalogue *catalogue;
    int tier;
    double rank;
    bool rising;
    size_t n, at;
    struct tiers_row rows[NPAGE], last;
};

static struct cursor *cursor_open(const struct mover *m, int tier, double rank, bool rising)
{
    struct cursor *c = malloc(sizeof(*c));

    if (c) {
        c->catalogue = m->t->catalogue;
        c->tier = tier;
        c->rank = rank;
        c->rising = rising;
        c->n = c->at = NPAGE;
        c->last.name[0] = '\0';
    } else {
        base_fail(GPUNVME_ERR_NOMEM, "%zu rows", (size_t)NPAGE);
    }
    return c;
}

/* The row where the cursor is; NULL at the end. */
static gpunvme_err_t cursor_row(struct cursor *c, const struct tiers_row **row)
{
    gpunvme_err_t err = GPUNVME_OK;

    if (c->at == c->n && c->n == NPAGE) {
        err = tiers_catalogue_by_rank(c->catalogue, c->tier, c->rank, c->rising,
                                      c->last.name[0] ? &c->last : NULL, c->rows, NPAGE, &c->n);
        c->at = 0;
        if (!err && c->n)
            c->last = c->rows[c->n - 1];
    }
    *row = !err && c->at < c->n ? &c->rows[c->at] : NULL;
    return err;
}

/* How many bytes more than its capacity a tier would have with `nbytes` more. */
static gpunvme_err_t excess(struct gpunvme_tiers *t, int tier, uint64_t nbytes, uint64_t *over)
{
    struct gpunvme_tiers_settings s;
    struct tiers_sums sums = {0};
    gpunvme_err_t err = tiers_settings(t, &s);
    uint64_t capacity;

    *over = 0;
    if (err || !s.capacity_nbytes[tier])
        return err;
    capacity = s.capacity_nbytes[tier];
    if (nbytes > capacity)
        return base_fail(GPUNVME_ERR_NOSPC, "%llu bytes; the capacity of the %s tier is %llu",
                         (unsigned long long)nbytes, gpunvme_tier_name(tier),
                         (unsigned long long)capacity);
    err = tiers_catalogue_sums(t->catalogue, tier, &sums);
    nbytes += sums.nbytes + sums.reserved;
    if (nbytes > capacity)
        *over = nbytes - capacity;
    return err;
}

/* How many bytes fit into the tiers below one. */
static gpunvme_err_t free_below(struct gpunvme_tiers *t, int tier, uint64_t *nbytes)
{
    struct gpunvme_tiers_settings s;
    struct tiers_sums sums;
    gpunvme_err_t err = tiers_settings(t, &s);

    *nbytes = 0;
    while (!err && ++tier < GPUNVME_NTIERS) {
        const uint64_t capacity = s.capacity_nbytes[tier];

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
static gpunvme_err_t find_victims(const struct mover *m, int tier, uint64_t over, double rank,
                                  const struct names *except, struct victims *v)
{
    struct cursor *c = cursor_open(m, tier, rank, true);
    const struct tiers_row *row;
    gpunvme_err_t err = c ? GPUNVME_OK : GPUNVME_ERR_NOMEM;
    uint64_t below = 0;

    while (!err && v->nbytes < over && !(err = cursor_row(c, &row)) && row) {
        if (row->nbytes && !has(except, row->name))
            err = add_victim(v, row);
        c->at++;
    }
    free(c);
    for (size_t i = v->n; v->nbytes >= over && i-- > 0;)
        if (v->nbytes - v->all[i].nbytes >= over)
            drop_victim(v, i);
    if (!err)
        err = free_below(m->t, tier, &below);
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

static void tell(struct mover *m, const char *name, int from, int to, uint64_t nbytes,
                 gpunvme_err_t err)
{
    const struct gpunvme_tiers_options *o = &m->t->options;

    if (m->tells && o->moved && o->moved(o->moved_user, name, from, to, nbytes, err))
        m->ended = true;
}

static void count(struct mover *m, const char *name, int from, int to, uint64_t nbytes)
{
    *(to < from ? &m->moves.up : &m->moves.down) += 1;
    m->moves.nbytes += nbytes;
    tell(m, name, from, to, nbytes, GPUNVME_OK);
}

static gpunvme_err_t make_room(struct mover *m, int tier, uint64_t nbytes, double rank);

/* Moves one to the next slower tier that has room or can make it. */
static gpunvme_err_t evict(struct mover *m, const struct victim *v, int from)
{
    gpunvme_err_t err = GPUNVME_ERR_NOSPC;

    for (int to = from + 1; to < GPUNVME_NTIERS && err == GPUNVME_ERR_NOSPC; to++) {
        err = make_room(m, to, v->nbytes, v->rank);
        if (!err)
            err = tiers_change_move(m->t, v->name, to, m->limit, m->stop);
        if (!err) {
            count(m, v->name, from, to, v->nbytes);
            err = add(&m->evicted, v->name);
        }
    }
    return err;
}

/* Whether an error is not of one file alone: then there is no point in trying others. */
static bool is_final(gpunvme_err_t err)
{
    return err == GPUNVME_ERR_CANCELED || err == GPUNVME_ERR_TIMEOUT || err == GPUNVME_ERR_NOMEM;
}

static gpunvme_err_t make_room(struct mover *m, int tier, uint64_t nbytes, double rank)
{
    struct names stuck = {0};
    uint64_t over;
    gpunvme_err_t err = excess(m->t, tier, nbytes, &over);

    while (!err && over) {
        struct victims v = {0};

        err = find_victims(m, tier, over, rank, &stuck, &v);
        for (size_t i = 0; i < v.n && !err; i++) {
            err = evict(m, &v.all[i], tier);
            if (err && !is_final(err) && stuck.n < NSTUCK) { /* look for another one */
                err = add(&stuck, v.all[i].name);
                break;
            }
        }
        if (!err && !v.n) {
            if (futex_now() < m->wait_until_ns && others_leave(m->t, tier))
                nanosleep(&(struct timespec){.tv_nsec = RETRY_NS}, NULL);
            else
                err = base_fail(GPUNVME_ERR_NOSPC,
                                "the %s tier has no room for %llu bytes, and nothing with a lower "
                                "score that can be moved away",
                                gpunvme_tier_name(tier), (unsigned long long)nbytes);
        }
        drop_victims(&v);
        if (!err)
            err = excess(m->t, tier, nbytes, &over);
    }
    free(stuck.hashes);
    return err;
}

gpunvme_err_t tiers_make_room(struct gpunvme_tiers *t, int tier, uint64_t nbytes, double rank)
{
    struct mover m = {.t = t, .wait_until_ns = futex_deadline(t->timeout_ns)};
    const gpunvme_err_t err = make_room(&m, tier, nbytes, rank);

    free(m.evicted.hashes);
    return err;
}

/* ---- Moves ------------------------------------------------------------------------------------
 */

static gpunvme_err_t move(struct mover *m, const struct tiers_row *row, int to)
{
    gpunvme_err_t err;

    for (unsigned i = 0; i < NTRIES; i++) {
        err = make_room(m, to, row->nbytes, row->rank);
        if (err)
            break;
        err = tiers_change_move(m->t, row->name, to, m->limit, m->stop);
        if (err != GPUNVME_ERR_NOSPC)
            break;
    }
    if (!err)
        count(m, row->name, row->tier, to, row->nbytes);
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

/* ---- A pass -----------------------------------------------------------------------------------
 */

struct pass {
    struct mover m;
    struct view view;
    uint64_t deadline_ns;
    uint64_t too_large[GPUNVME_NTIERS]; /* what found no room there; what comes after has a lower
                                           rank and finds none either */
    struct base_failure first;          /* of what failed */
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
        p->m.moves.busy++;
        return false;
    case GPUNVME_ERR_NOSPC:
        p->m.moves.no_room++;
        return false;
    default:
        if (!p->m.moves.failed++)
            base_keep(&p->first, err);
        tell(&p->m, row->name, row->tier, goal, row->nbytes, err);
        return false;
    }
}

/* Moves one file, upwards at least part of the way. */
static gpunvme_err_t move_one(struct pass *p, const struct tiers_row *row)
{
    gpunvme_err_t err = GPUNVME_ERR_NOSPC;
    const int goal = choose(&p->view, row);

    if (goal == row->tier || has(&p->m.evicted, row->name))
        return GPUNVME_OK;
    if (futex_now() >= p->deadline_ns)
        return base_fail(GPUNVME_ERR_TIMEOUT, "not all files could be moved in this time");
    if (p->m.stop && atomic_load(p->m.stop))
        return GPUNVME_ERR_CANCELED;
    if (goal > row->tier)
        err = move(&p->m, row, goal);
    for (int to = goal; to < row->tier && err == GPUNVME_ERR_NOSPC; to++)
        if (row->nbytes < p->too_large[to]) {
            err = move(&p->m, row, to);
            if (err == GPUNVME_ERR_NOSPC)
                p->too_large[to] = row->nbytes;
        }
    if (ends(p, row, goal, err))
        return err;
    return p->m.ended ? base_fail(GPUNVME_ERR_CANCELED, "the pass was ended after %.80s", row->name)
                      : GPUNVME_OK;
}

/* Files that have lost their rank go down, the lowest first. */
static gpunvme_err_t sweep_down(struct pass *p, int tier)
{
    struct cursor *c = cursor_open(&p->m, tier, p->view.from[tier], true);
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
    struct cursor *cold = cursor_open(&p->m, GPUNVME_TIER_COLD, p->view.from[GPUNVME_TIER_WARM], 0);
    struct cursor *warm = cursor_open(&p->m, GPUNVME_TIER_WARM, p->view.from[GPUNVME_TIER_HOT], 0);
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
    struct tiers_row *rows = malloc(NPAGE * sizeof(*rows));
    char after[GPUNVME_TIERS_NAME_MAX + 1] = "";
    gpunvme_err_t err = rows ? GPUNVME_OK : base_fail(GPUNVME_ERR_NOMEM, "%u rows", NPAGE);

    for (size_t n = NPAGE; !err && n == NPAGE;) {
        err = tiers_catalogue_list(p->m.t->catalogue, "", after, rows, NPAGE, &n);
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
    gpunvme_err_t err = tiers_files_flush(p->m.t);

    if (!err)
        err = keep_clock(p->m.t);
    if (!err)
        err = look(p->m.t, &p->view);
    /* A capacity may have become smaller. */
    for (int tier = 0; tier < GPUNVME_TIER_COLD && !err; tier++) {
        err = make_room(&p->m, tier, 0, INFINITY);
        if (err == GPUNVME_ERR_NOSPC)
            err = GPUNVME_OK;
    }
    if (!err && p->m.t->options.policy)
        return sweep_all(p);
    for (int tier = GPUNVME_TIER_COLD; tier-- > 0 && !err;)
        err = sweep_down(p, tier);
    return err ? err : sweep_up(p);
}

/* ---- Who migrates, and when -------------------------------------------------------------------
 */

/* What a thread does again and again. */
struct duty {
    struct tiers_migrator *m;
    void (*call)(struct gpunvme_tiers *t);
    uint64_t interval_ns;
    pthread_t thread;
};

struct tiers_migrator {
    struct gpunvme_tiers *t;
    struct duty duties[2];
    size_t nduties;
    struct tiers_rate limit;
    atomic_bool stop;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* of `stop` and `passing` */
    bool passing;           /* a thread is in a pass */
    int job_fd;             /* locked while this process migrates; else -1 */
};

/* An open file description's lock: unlike that of flock(2) it can be looked for. */
static int job_lock(int fd, int command)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

    if (fcntl(fd, command, &lock))
        return -1;
    return lock.l_type != F_UNLCK;
}

static int job_open(struct gpunvme_tiers *t)
{
    return openat(t->folder_fd[GPUNVME_TIER_HOT], JOB, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
}

bool tiers_migrating(struct gpunvme_tiers *t)
{
    const int fd = job_open(t);
    const bool locked = fd >= 0 && job_lock(fd, F_OFD_GETLK) == 1;

    if (fd >= 0)
        close(fd);
    return locked;
}

/* BUSY: another process has the job. The caller has passing set. */
static gpunvme_err_t job_take(struct tiers_migrator *g)
{
    if (g->job_fd >= 0)
        return GPUNVME_OK;
    g->job_fd = job_open(g->t);
    if (g->job_fd < 0)
        return base_fail_errno(errno, "%s/%s", TIERS_FOLDER, JOB);
    if (job_lock(g->job_fd, F_OFD_SETLK) < 0) {
        const int error = errno;

        close(g->job_fd);
        g->job_fd = -1;
        if (error == EAGAIN || error == EACCES)
            return base_fail(GPUNVME_ERR_BUSY, "another process migrates");
        return base_fail_errno(error, "lock of %s/%s", TIERS_FOLDER, JOB);
    }
    return GPUNVME_OK;
}

static void job_leave(struct tiers_migrator *g)
{
    if (g->job_fd >= 0)
        close(g->job_fd);
    g->job_fd = -1;
}

/* One pass of this process at a time. */
static bool enter(struct tiers_migrator *g, uint64_t deadline_ns)
{
    bool in_time = true;

    pthread_mutex_lock(&g->lock);
    while (g->passing && in_time)
        in_time = base_cond_wait(&g->changed, &g->lock, deadline_ns);
    if (in_time)
        g->passing = true;
    pthread_mutex_unlock(&g->lock);
    return in_time;
}

static void leave(struct tiers_migrator *g)
{
    pthread_mutex_lock(&g->lock);
    g->passing = false;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

static gpunvme_err_t migrate(struct tiers_migrator *g, uint64_t timeout_ns, bool keep_job,
                             struct gpunvme_tiers_moves *moves)
{
    struct pass p = {.m = {.t = g->t, .limit = &g->limit, .stop = &g->stop, .tells = true},
                     .deadline_ns = timeout_ns ? futex_deadline(timeout_ns) : INT64_MAX};
    struct gpunvme_tiers_settings s;
    gpunvme_err_t err;

    if (!enter(g, p.deadline_ns))
        return base_fail(GPUNVME_ERR_TIMEOUT, "a pass of this process has not ended");
    err = job_take(g);
    if (!err)
        err = tiers_settings(g->t, &s);
    if (!err) {
        atomic_store(&g->limit.bytes_per_s, s.migrate_bytes_per_s);
        err = pass(&p);
    }
    if (!keep_job)
        job_leave(g);
    leave(g);
    free(p.m.evicted.hashes);
    *moves = p.m.moves;
    if (!err && moves->failed)
        base_restore(&p.first);
    return err;
}

gpunvme_err_t gpunvme_tiers_migrate(struct gpunvme_tiers *t, uint64_t timeout_ns,
                                    struct gpunvme_tiers_moves *moves)
{
    struct gpunvme_tiers_moves unused;
    const gpunvme_err_t err = tiers_check_process(t);

    if (err)
        return err;
    return migrate(t->migrator, timeout_ns, t->options.flags & GPUNVME_TIERS_MIGRATE,
                   moves ? moves : &unused);
}

static void flush(struct gpunvme_tiers *t)
{
    if (tiers_files_flush(t))
        base_log(BASE_LOG_WARN, "tiers of %s: scores: %s", t->dir[0], gpunvme_err_detail());
}

static void migrate_again(struct gpunvme_tiers *t)
{
    struct gpunvme_tiers_moves moves;
    const gpunvme_err_t err = migrate(t->migrator, 0, true, &moves);

    if ((err || moves.failed) && err != GPUNVME_ERR_BUSY && err != GPUNVME_ERR_CANCELED)
        base_log(BASE_LOG_WARN, "tiers of %s: migration: %s", t->dir[0], gpunvme_err_detail());
}

static void *run(void *arg)
{
    struct duty *d = arg;
    struct tiers_migrator *g = d->m;

    pthread_mutex_lock(&g->lock);
    while (!atomic_load(&g->stop)) {
        const uint64_t next_ns = futex_deadline(d->interval_ns);

        while (!atomic_load(&g->stop) && base_cond_wait(&g->changed, &g->lock, next_ns))
            ;
        pthread_mutex_unlock(&g->lock);
        if (!atomic_load(&g->stop))
            d->call(g->t);
        pthread_mutex_lock(&g->lock);
    }
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

static gpunvme_err_t start(struct tiers_migrator *g, void (*call)(struct gpunvme_tiers *t),
                           uint64_t interval_ns)
{
    struct duty *d = &g->duties[g->nduties];
    int error;

    *d = (struct duty){.m = g, .call = call, .interval_ns = interval_ns};
    error = pthread_create(&d->thread, NULL, run, d);
    if (error)
        return base_fail_errno(error, "a thread");
    g->nduties++;
    return GPUNVME_OK;
}

gpunvme_err_t tiers_migrator_start(struct gpunvme_tiers *t)
{
    struct tiers_migrator *g = calloc(1, sizeof(*g));
    const uint64_t interval_ns = t->options.interval_ns;
    gpunvme_err_t err;

    if (!g)
        return base_fail(GPUNVME_ERR_NOMEM, "a migrator");
    g->t = t;
    g->job_fd = -1;
    pthread_mutex_init(&g->lock, NULL);
    base_cond_init(&g->changed);
    t->migrator = g;
    err = start(g, flush, FLUSH_NS);
    if (!err && t->options.flags & GPUNVME_TIERS_MIGRATE)
        err = start(g, migrate_again, interval_ns ? interval_ns : INTERVAL_NS);
    if (err)
        tiers_migrator_stop(t);
    return err;
}

void tiers_migrator_stop(struct gpunvme_tiers *t)
{
    struct tiers_migrator *g = t->migrator;

    if (!g)
        return;
    pthread_mutex_lock(&g->lock);
    atomic_store(&g->stop, true);
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
    while (g->nduties)
        pthread_join(g->duties[--g->nduties].thread, NULL);
    job_leave(g);
    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->lock);
    free(g);
    t->migrator = NULL;
}
