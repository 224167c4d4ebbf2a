/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Comparing the catalogue with the directories, and mending it. First each directory is walked,
 * then each row of the catalogue is looked for. What is as the catalogue says costs a look-up. All
 * else is judged in a transaction that writes: no change of the name can begin meanwhile, and one
 * that has begun has its row.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fail.h"
#include "data/tiers/internal.h"
#include "data/tiers/score.h"
#include "storage/futex.h"

#define NPAGE     256u               /* rows that are read at once */
#define HOLD_NS   UINT64_C(20000000) /* of a transaction: others wait for it */
#define SCORE_MAX 1e12
#define KEPT      "kept" /* the folder of files that had to give way, in TIERS_FOLDER */

struct told {
    enum gpunvme_tiers_finding finding;
    char *name, *detail;
};

struct scrub {
    struct gpunvme_tiers *t;
    unsigned flags;
    void (*each)(void *user, enum gpunvme_tiers_finding finding, const char *name,
                 const char *detail);
    void *user;
    struct gpunvme_tiers_scrub *sums;
    struct tiers_catalogue *old; /* what a new catalogue knows scores and pins from; may be NULL */
    double rank_max;             /* that makes sense in it */
    bool holding;                /* a transaction, so that many new files cost one flush */
    uint64_t hold_until_ns;
    struct told *told; /* when it has ended */
    size_t ntold;
    struct base_failure unended; /* why a change could not be ended: the first */
};

const char *gpunvme_tiers_finding_name(enum gpunvme_tiers_finding finding)
{
    static const char *const names[GPUNVME_TIERS_NFINDINGS] = {
        [GPUNVME_TIERS_NEW] = "new",           [GPUNVME_TIERS_CHANGED] = "changed",
        [GPUNVME_TIERS_MISSING] = "missing",   [GPUNVME_TIERS_ELSEWHERE] = "elsewhere",
        [GPUNVME_TIERS_TWICE] = "twice",       [GPUNVME_TIERS_BAD] = "bad",
        [GPUNVME_TIERS_LEFTOVER] = "leftover", [GPUNVME_TIERS_SKIPPED] = "skipped",
    };

    return (unsigned)finding < GPUNVME_TIERS_NFINDINGS ? names[finding] : "unknown";
}

/* ---- Transactions ---------------------------------------------------------------------------- */

static gpunvme_err_t tell(struct scrub *s, enum gpunvme_tiers_finding finding, const char *name,
                          const char *detail)
{
    struct told *told;

    s->sums->findings[finding]++;
    if (!s->holding) {
        if (s->each)
            s->each(s->user, finding, name, detail);
        return GPUNVME_OK;
    }
    told = realloc(s->told, (s->ntold + 1) * sizeof(*told));
    if (!told)
        return base_fail(GPUNVME_ERR_NOMEM, "%zu findings", s->ntold);
    s->told = told;
    told += s->ntold++;
    *told = (struct told){finding, strdup(name), strdup(detail)};
    return told->name && told->detail ? GPUNVME_OK
                                      : base_fail(GPUNVME_ERR_NOMEM, "%zu findings", s->ntold);
}

static gpunvme_err_t hold(struct scrub *s)
{
    gpunvme_err_t err;

    if (s->holding)
        return GPUNVME_OK;
    err = tiers_catalogue_begin(s->t->catalogue);
    s->holding = !err;
    s->hold_until_ns = futex_deadline(HOLD_NS);
    return err;
}

/* Ends the transaction, if there is one, and tells what it found. */
static gpunvme_err_t let_go(struct scrub *s, gpunvme_err_t err)
{
    if (!s->holding)
        return err;
    tiers_step(TIERS_STEP_PART, "");
    err = tiers_catalogue_end(s->t->catalogue, err);
    s->holding = false;
    tiers_step(TIERS_STEP_PART, "");
    for (size_t i = 0; i < s->ntold; i++) {
        if (!err)
            tiers_changed(s->t, s->told[i].name); /* who has it open looks the name up again */
        if (!err && s->each)
            s->each(s->user, s->told[i].finding, s->told[i].name, s->told[i].detail);
        free(s->told[i].name);
        free(s->told[i].detail);
    }
    free(s->told);
    s->told = NULL;
    s->ntold = 0;
    return err;
}

static gpunvme_err_t let_go_in_time(struct scrub *s)
{
    return s->holding && futex_now() > s->hold_until_ns ? let_go(s, GPUNVME_OK) : GPUNVME_OK;
}

/* ---- Files and rows -------------------------------------------------------------------------- */

static int64_t mtime_of(const struct stat *st)
{
    return st->st_mtim.tv_sec * INT64_C(1000000000) + st->st_mtim.tv_nsec;
}

static bool is_as(const struct tiers_row *row, const struct stat *st)
{
    return row->nbytes == (uint64_t)st->st_size && row->mtime_ns == mtime_of(st);
}

/* NOT_FOUND; INVALID: it is no regular file. */
static gpunvme_err_t stat_name(int dir_fd, const char *name, struct stat *st)
{
    int fd;
    gpunvme_err_t err = tiers_name_open(dir_fd, name, O_PATH, &fd);

    if (err)
        return err;
    if (fstat(fd, st))
        err = base_fail_errno(errno, "%.150s", name);
    close(fd);
    return err;
}

/* ---- Checksums ------------------------------------------------------------------------------- */

static bool same_version(const struct tiers_row *a, const struct tiers_row *b)
{
    return a->tier == b->tier && a->nbytes == b->nbytes && a->mtime_ns == b->mtime_ns &&
           a->dirty == b->dirty && a->has_checksum == b->has_checksum && a->checksum == b->checksum;
}

/* Compares or sets the checksum of what was read, unless the file has changed meanwhile. */
static gpunvme_err_t conclude(struct scrub *s, struct tiers_row *row, uint64_t checksum)
{
    struct tiers_catalogue *c = s->t->catalogue;
    struct tiers_row now;
    gpunvme_err_t err = tiers_catalogue_begin(c);
    bool bad = false;

    if (err)
        return err;
    err = tiers_catalogue_find(c, row->name, &now);
    if (!err && same_version(row, &now)) {
        bad = now.has_checksum && now.checksum != checksum;
        if (!now.has_checksum) {
            now.has_checksum = true;
            now.checksum = checksum;
            err = tiers_catalogue_put(c, &now);
        }
    }
    err = tiers_catalogue_end(c, err);
    if (!err && bad)
        err = tell(s, GPUNVME_TIERS_BAD, row->name, "its bytes do not have their checksum");
    return err == GPUNVME_ERR_NOT_FOUND ? GPUNVME_OK : err;
}

/* Reads the file of a row. What is written, moved or removed meanwhile is left alone. */
static gpunvme_err_t read_all(struct scrub *s, struct tiers_row *row)
{
    struct stat before, after;
    uint64_t nbytes, checksum;
    int fd;
    gpunvme_err_t err = tiers_name_open(s->t->dir_fd[row->tier], row->name, O_RDONLY, &fd);

    if (err)
        return err == GPUNVME_ERR_NOT_FOUND ? GPUNVME_OK : err;
    if (fstat(fd, &before) || row->dirty || !is_as(row, &before)) {
        close(fd);
        return GPUNVME_OK;
    }
    err = tiers_checksum(s->t, fd, row->name, NULL, NULL, &nbytes, &checksum);
    if (err == GPUNVME_ERR_IO)
        err = tell(s, GPUNVME_TIERS_BAD, row->name, gpunvme_err_detail());
    else if (!err && !fstat(fd, &after) && is_as(row, &after))
        err = conclude(s, row, checksum);
    close(fd);
    return err;
}

/* ---- One name -------------------------------------------------------------------------------- */

/* Where a name has files. */
struct places {
    bool is[GPUNVME_NTIERS];
    struct stat st[GPUNVME_NTIERS];
};

static gpunvme_err_t find(struct scrub *s, enum gpunvme_tiers_finding finding, const char *name,
                          const char *format, ...) __attribute__((format(printf, 4, 5)));

static gpunvme_err_t find(struct scrub *s, enum gpunvme_tiers_finding finding, const char *name,
                          const char *format, ...)
{
    char detail[256];
    va_list args;

    va_start(args, format);
    vsnprintf(detail, sizeof(detail), format, args);
    va_end(args);
    return tell(s, finding, name, detail);
}

/* PERMISSION: a link leads there, or this process may not look. */
static gpunvme_err_t look_for(struct gpunvme_tiers *t, const char *name, struct places *p)
{
    gpunvme_err_t err = GPUNVME_OK;

    for (int tier = 0; tier < GPUNVME_NTIERS && !err; tier++) {
        err = stat_name(t->dir_fd[tier], name, &p->st[tier]);
        p->is[tier] = !err;
        if (err == GPUNVME_ERR_NOT_FOUND || err == GPUNVME_ERR_INVALID)
            err = GPUNVME_OK;
    }
    return err;
}

/* The newest file, of several the fastest; -1: there is none. */
static int newest(const struct places *p)
{
    int best = -1;

    for (int tier = 0; tier < GPUNVME_NTIERS; tier++)
        if (p->is[tier] && (best < 0 || mtime_of(&p->st[tier]) > mtime_of(&p->st[best])))
            best = tier;
    return best;
}

/* Moves what is not the file of this name any longer to where it is in nobody's way. */
static gpunvme_err_t keep(struct scrub *s, int tier, const char *name)
{
    const struct gpunvme_tiers *t = s->t;
    char place[GPUNVME_TIERS_NAME_MAX + 16];
    gpunvme_err_t err = GPUNVME_ERR_EXISTS;
    int fd;

    if (mkdirat(t->folder_fd[tier], KEPT, 0777) && errno != EEXIST)
        return base_fail_errno(errno, "%.80s/%s/%s", t->dir[tier], TIERS_FOLDER, KEPT);
    fd = openat(t->folder_fd[tier], KEPT, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return base_fail_errno(errno, "%.80s/%s/%s", t->dir[tier], TIERS_FOLDER, KEPT);
    for (unsigned i = 0; i < 1000 && err == GPUNVME_ERR_EXISTS; i++) {
        snprintf(place, sizeof(place), i ? "%s.%u" : "%s", name, i);
        err = tiers_name_publish(t->dir_fd[tier], name, fd, place, false);
    }
    close(fd);
    if (!err)
        err = tiers_name_flush(t->dir_fd[tier], name);
    return err ? err
               : find(s, GPUNVME_TIERS_TWICE, name, "%.80s/%s/%s/%.100s", t->dir[tier],
                      TIERS_FOLDER, KEPT, place);
}

/* A directory whose file system is gone has no files either: then nothing is missing. */
static gpunvme_err_t check_tiers(struct gpunvme_tiers *t)
{
    struct stat st;

    for (int tier = 0; tier < GPUNVME_NTIERS; tier++)
        if (fstatat(t->folder_fd[tier], "set", &st, 0))
            return base_fail_errno(errno, "%.120s: the %s tier is not there", t->dir[tier],
                                   gpunvme_tier_name(tier));
    return GPUNVME_OK;
}

/* A file that the catalogue had not got. An older catalogue may have had it. */
static gpunvme_err_t take_in(struct scrub *s, struct tiers_row *row, int tier,
                             const struct stat *st)
{
    struct tiers_row old;

    row->tier = tier;
    row->nbytes = (uint64_t)st->st_size;
    row->mtime_ns = mtime_of(st);
    if (s->old && !tiers_catalogue_find(s->old, row->name, &old)) {
        row->pinned = old.pinned == GPUNVME_TIER_AUTO ? GPUNVME_TIER_AUTO : tier;
        if (old.rank <= s->rank_max)
            row->rank = old.rank;
        row->has_checksum = old.has_checksum && !old.dirty && is_as(&old, st);
        row->checksum = old.checksum;
    }
    return find(s, GPUNVME_TIERS_NEW, row->name, "in the %s tier", gpunvme_tier_name(tier));
}

/* The row of a file that lies in `tier`, and may be another one, or elsewhere, than it says. */
static gpunvme_err_t correct(struct scrub *s, struct tiers_row *row, int tier,
                             const struct stat *st, bool *changed)
{
    gpunvme_err_t err = GPUNVME_OK;

    *changed = !is_as(row, st) && !row->dirty;
    if (row->tier != tier)
        err = find(s, GPUNVME_TIERS_ELSEWHERE, row->name, "in the %s tier, not in the %s one",
                   gpunvme_tier_name(tier), gpunvme_tier_name(row->tier));
    else if (*changed)
        err = find(s, GPUNVME_TIERS_CHANGED, row->name, "%llu bytes, not %llu, or another time",
                   (unsigned long long)st->st_size, (unsigned long long)row->nbytes);
    row->tier = tier;
    if (row->pinned != GPUNVME_TIER_AUTO)
        row->pinned = tier;
    if (*changed) {
        row->nbytes = (uint64_t)st->st_size;
        row->mtime_ns = mtime_of(st);
        row->has_checksum = false;
    }
    return err;
}

/*
 * What is wrong with a name, and mends it, within a transaction. BUSY: it has a change. *changed:
 * the file is another one than in the row.
 */
static gpunvme_err_t judge_now(struct scrub *s, const char *name, struct tiers_row *row,
                               bool *changed)
{
    struct tiers_catalogue *c = s->t->catalogue;
    struct tiers_change change;
    struct places p;
    bool is_new = false;
    gpunvme_err_t err = tiers_catalogue_change_find(c, name, &change);
    int tier;

    *changed = false;
    if (err != GPUNVME_ERR_NOT_FOUND)
        return err ? err : GPUNVME_ERR_BUSY;
    err = tiers_catalogue_find(c, name, row);
    if (err == GPUNVME_ERR_NOT_FOUND) {
        is_new = true;
        *row = (struct tiers_row){.pinned = GPUNVME_TIER_AUTO, .rank = -INFINITY};
        snprintf(row->name, sizeof(row->name), "%s", name);
        err = GPUNVME_OK;
    }
    if (!err)
        err = look_for(s->t, name, &p);
    if (err)
        return err;
    tier = newest(&p);
    if (tier < 0) {
        err = is_new ? GPUNVME_OK : check_tiers(s->t);
        if (err || is_new)
            return err;
        err = tiers_catalogue_remove(c, name);
        return err ? err
                   : find(s, GPUNVME_TIERS_MISSING, name, "it was in the %s tier",
                          gpunvme_tier_name(row->tier));
    }
    for (int other = 0; other < GPUNVME_NTIERS && !err; other++)
        if (p.is[other] && other != tier)
            err = keep(s, other, name);
    tiers_step(TIERS_STEP_PART, name);
    if (!err)
        err = is_new ? take_in(s, row, tier, &p.st[tier])
                     : correct(s, row, tier, &p.st[tier], changed);
    return err ? err : tiers_catalogue_put(c, row);
}

/* Ends the change of a process that died. *stays: its process lives, or it can't be ended, which is
 * an error of the scrub as a whole. */
static gpunvme_err_t recover(struct scrub *s, const char *name, bool *stays)
{
    gpunvme_err_t err = let_go(s, GPUNVME_OK);

    *stays = false;
    if (err)
        return err;
    err = tiers_change_recover(s->t, name);
    if (!err)
        return tell(s, GPUNVME_TIERS_LEFTOVER, name, "a change of a process that died");
    *stays = err != GPUNVME_ERR_NOT_FOUND;
    if (*stays && err != GPUNVME_ERR_BUSY && !s->unended.err)
        base_keep(&s->unended, err);
    return GPUNVME_OK;
}

static gpunvme_err_t judge(struct scrub *s, const char *name)
{
    struct tiers_row row;
    bool changed, stays = false;
    gpunvme_err_t err;

    do {
        err = hold(s);
        if (err)
            return err;
        err = judge_now(s, name, &row, &changed);
        if (err == GPUNVME_ERR_PERMISSION)
            return tell(s, GPUNVME_TIERS_SKIPPED, name, gpunvme_err_detail());
        if (err == GPUNVME_ERR_BUSY) {
            err = recover(s, name, &stays);
            if (err || stays)
                return err;
            err = GPUNVME_ERR_BUSY;
        }
    } while (err == GPUNVME_ERR_BUSY);
    if (err || !changed)
        return err;
    err = let_go(s, GPUNVME_OK);
    return err ? err : read_all(s, &row);
}

/* ---- Files that were written in place -------------------------------------------------------- */

/* The row has the facts of the file again. */
static gpunvme_err_t clean_now(struct scrub *s, const char *name, int tier, int fd)
{
    struct tiers_change change;
    struct tiers_row row;
    struct stat st;
    gpunvme_err_t err = tiers_catalogue_change_find(s->t->catalogue, name, &change);

    if (err == GPUNVME_ERR_NOT_FOUND)
        err = tiers_catalogue_find(s->t->catalogue, name, &row);
    else
        return err;
    if (!err && fstat(fd, &st))
        err = base_fail_errno(errno, "%.150s", name);
    if (err || !row.dirty || row.tier != tier || !st.st_nlink)
        return err == GPUNVME_ERR_NOT_FOUND ? GPUNVME_OK : err;
    row.nbytes = (uint64_t)st.st_size;
    row.mtime_ns = mtime_of(&st);
    row.dirty = false;
    return tiers_catalogue_put(s->t->catalogue, &row);
}

/* A writer holds a lock of the file while it writes, and looks at the row each time. */
static gpunvme_err_t clean(struct scrub *s, const char *name, int tier)
{
    int fd;
    gpunvme_err_t err = tiers_name_open(s->t->dir_fd[tier], name, O_RDONLY, &fd);

    if (err)
        return err == GPUNVME_ERR_NOT_FOUND ? GPUNVME_OK : err;
    err = let_go(s, err);
    if (!err && !flock(fd, LOCK_EX | LOCK_NB)) {
        if (fsync(fd))
            err = base_fail_errno(errno, "%.150s: to flush it", name);
        if (!err)
            err = tiers_catalogue_begin(s->t->catalogue);
        if (!err) {
            err = clean_now(s, name, tier, fd);
            tiers_step(TIERS_STEP_PART, name);
            err = tiers_catalogue_end(s->t->catalogue, err);
        }
    }
    close(fd);
    return err;
}

/* ---- All names ------------------------------------------------------------------------------- */

static gpunvme_err_t file(struct scrub *s, int tier, const char *name, const struct stat *st)
{
    struct tiers_row row;
    gpunvme_err_t err = let_go_in_time(s);

    s->sums->files++;
    s->sums->nbytes += (uint64_t)st->st_size;
    if (err)
        return err;
    err = tiers_catalogue_find(s->t->catalogue, name, &row);
    if (err == GPUNVME_ERR_NOT_FOUND ||
        (!err && (row.tier != tier || (!is_as(&row, st) && !row.dirty))))
        err = judge(s, name);
    else if (!err && row.dirty)
        err = clean(s, name, tier);
    if (err || !(s->flags & GPUNVME_TIERS_READ_ALL))
        return err;
    err = let_go(s, err);
    if (err)
        return err;
    err = tiers_catalogue_find(s->t->catalogue, name, &row);
    if (err)
        return err == GPUNVME_ERR_NOT_FOUND ? GPUNVME_OK : err;
    return row.tier == tier ? read_all(s, &row) : GPUNVME_OK;
}

static gpunvme_err_t folder(struct scrub *s, int tier, int fd, char *path, size_t length);

/* `path` has the folder's path and a '/' behind it, or nothing. */
static gpunvme_err_t entry(struct scrub *s, int tier, int fd, const char *part, char *path,
                           size_t length)
{
    const size_t end = length + strlen(part);
    struct stat st;

    if (!strcmp(part, ".") || !strcmp(part, "..") || (!length && !strcmp(part, TIERS_FOLDER)))
        return GPUNVME_OK;
    if (fstatat(fd, part, &st, AT_SYMLINK_NOFOLLOW))
        return errno == ENOENT ? GPUNVME_OK : base_fail_errno(errno, "%.150s%.100s", path, part);
    if (end > GPUNVME_TIERS_NAME_MAX)
        return tell(s, GPUNVME_TIERS_SKIPPED, part, "its path is too long");
    strcpy(path + length, part);
    if (S_ISDIR(st.st_mode)) {
        const int next = openat(fd, part, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

        if (next < 0)
            return errno == ENOENT ? GPUNVME_OK : base_fail_errno(errno, "%.150s", path);
        strcpy(path + end, "/");
        return folder(s, tier, next, path, end + 1);
    }
    if (S_ISREG(st.st_mode) && !tiers_name_check(path))
        return file(s, tier, path, &st);
    return tell(s, GPUNVME_TIERS_SKIPPED, path,
                S_ISREG(st.st_mode) ? gpunvme_err_detail() : "no regular file");
}

static gpunvme_err_t folder(struct scrub *s, int tier, int fd, char *path, size_t length)
{
    DIR *dir = fdopendir(fd);
    gpunvme_err_t err = GPUNVME_OK;

    if (!dir) {
        err = base_fail_errno(errno, "%.150s", path);
        close(fd);
        return err;
    }
    while (!err) {
        const struct dirent *e;

        errno = 0;
        path[length] = '\0';
        e = readdir(dir);
        if (!e) {
            if (errno)
                err = base_fail_errno(errno, "%.80s/%.150s", s->t->dir[tier], path);
            break;
        }
        err = entry(s, tier, fd, e->d_name, path, length);
    }
    closedir(dir);
    return err;
}

static gpunvme_err_t all_files(struct scrub *s, int tier)
{
    char path[GPUNVME_TIERS_NAME_MAX + 2] = "";
    const int fd = openat(s->t->dir_fd[tier], ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        return base_fail_errno(errno, "%.150s", s->t->dir[tier]);
    return folder(s, tier, fd, path, 0);
}

/* Rows that have no file, or another one: the walk has met all others. */
static gpunvme_err_t all_rows(struct scrub *s)
{
    struct tiers_row *rows = malloc(NPAGE * sizeof(*rows));
    char after[GPUNVME_TIERS_NAME_MAX + 1] = "";
    gpunvme_err_t err = rows ? GPUNVME_OK : base_fail(GPUNVME_ERR_NOMEM, "%u rows", NPAGE);

    for (size_t n = NPAGE; !err && n == NPAGE;) {
        err = tiers_catalogue_list(s->t->catalogue, "", after, rows, NPAGE, &n);
        for (size_t i = 0; !err && i < n; i++) {
            struct stat st;

            err = let_go_in_time(s);
            if (!err && (stat_name(s->t->dir_fd[rows[i].tier], rows[i].name, &st) ||
                         (!is_as(&rows[i], &st) && !rows[i].dirty)))
                err = judge(s, rows[i].name);
        }
        if (!err && n)
            memcpy(after, rows[n - 1].name, sizeof(after));
    }
    free(rows);
    return err;
}

static gpunvme_err_t all_changes(struct scrub *s)
{
    struct tiers_change change = {.name = ""};
    gpunvme_err_t err;
    bool stays;

    while (!(err = tiers_catalogue_change_next(s->t->catalogue, change.name, &change)))
        if ((err = recover(s, change.name, &stays)))
            break;
    return err == GPUNVME_ERR_NOT_FOUND ? GPUNVME_OK : err;
}

static gpunvme_err_t has_change(struct scrub *s, uint64_t id, bool *has)
{
    struct tiers_change change = {.name = ""};
    gpunvme_err_t err;

    do
        err = tiers_catalogue_change_next(s->t->catalogue, change.name, &change);
    while (!err && change.id != id);
    *has = !err;
    return err == GPUNVME_ERR_NOT_FOUND ? GPUNVME_OK : err;
}

/* Temporary files of no change. One that is listed had its row before, so that is gone for good. */
static gpunvme_err_t clean_folder(struct scrub *s, int tier)
{
    const int fd = openat(s->t->folder_fd[tier], "tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    const struct dirent *e;
    gpunvme_err_t err = GPUNVME_OK;

    if (!dir) {
        err = base_fail_errno(errno, "%.120s/%s/tmp", s->t->dir[tier], TIERS_FOLDER);
        if (fd >= 0)
            close(fd);
        return err;
    }
    while (!err && (e = readdir(dir))) {
        bool in_use;

        if (e->d_name[0] == '.')
            continue;
        err = has_change(s, strtoull(e->d_name, NULL, 16), &in_use);
        if (err || in_use)
            continue;
        if (!unlinkat(fd, e->d_name, 0))
            err = tell(s, GPUNVME_TIERS_LEFTOVER, e->d_name, s->t->dir[tier]);
        else if (errno != ENOENT)
            err = base_fail_errno(errno, "%.120s/%s/tmp/%.50s", s->t->dir[tier], TIERS_FOLDER,
                                  e->d_name);
    }
    closedir(dir);
    return err;
}

static gpunvme_err_t all(struct scrub *s)
{
    gpunvme_err_t err = check_tiers(s->t);

    if (!err)
        err = all_changes(s);
    for (int tier = 0; tier < GPUNVME_NTIERS && !err; tier++)
        err = clean_folder(s, tier);
    for (int tier = 0; tier < GPUNVME_NTIERS && !err; tier++)
        err = let_go(s, all_files(s, tier));
    return err ? err : let_go(s, all_rows(s));
}

gpunvme_err_t gpunvme_tiers_scrub(struct gpunvme_tiers *t, unsigned flags,
                                  void (*each)(void *user, enum gpunvme_tiers_finding finding,
                                               const char *name, const char *detail),
                                  void *user, struct gpunvme_tiers_scrub *scrub)
{
    struct gpunvme_tiers_scrub sums = {0};
    struct scrub s = {.t = t, .flags = flags, .each = each, .user = user, .sums = &sums};
    gpunvme_err_t err = tiers_check_process(t);

    if (!err && flags & ~GPUNVME_TIERS_READ_ALL)
        err = base_fail(GPUNVME_ERR_INVALID, "flags %xh", flags);
    if (!err)
        err = all(&s);
    if (scrub)
        *scrub = sums;
    return !err && s.unended.err ? base_restore(&s.unended) : err;
}

gpunvme_err_t tiers_take_in(struct gpunvme_tiers *t, struct tiers_catalogue *old)
{
    struct gpunvme_tiers_scrub sums = {0};
    struct scrub s = {.t = t, .sums = &sums, .old = old};
    struct gpunvme_tiers_settings settings;
    double t_s;
    gpunvme_err_t err = tiers_settings(t, &settings);

    if (!err)
        err = tiers_now(t, &t_s);
    if (err)
        return err;
    s.rank_max = tiers_rank_of_score(SCORE_MAX, t_s, settings.half_life_s);
    return all(&s);
}
