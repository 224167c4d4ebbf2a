/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Changes of files as a whole: put, move and remove. A change has a row in the catalogue, which is
 * the lock of its name between processes and says how far the change is. So after a crash whoever
 * meets the row goes on or goes back: tiers_stage in catalogue.h says which, and settle() does it.
 * An error in the middle of a change is dealt with by the same function.
 *
 *   row COPYING → temporary file → its bytes are on the medium → row PUBLISHING → rename →
 *   file's row, row COMMITTED → the old version is unlinked → no row
 *
 * Where the new version is in the tier of the old one, the rename has replaced that.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/log.h"
#include "data/tiers/internal.h"
#include "gpunvme/memory.h"
#include "storage/futex.h"

#define PAUSE_NS 1000000 /* between looks whether a change of others has ended */

struct job {
    struct gpunvme_tiers *t;
    struct tiers_change change; /* its row */
    struct tiers_row row;       /* of the file before; `name` is empty where there was none */
    double rank;                /* room is made of files below it */
    bool no_room;               /* the tier's capacity is the error */
    bool only_new;              /* a put that replaces nothing */
    int fd;                     /* of the temporary file, or -1 */
    char temporary[32];         /* its name in TIERS_FOLDER */
};

static void name_temporary(struct job *j)
{
    snprintf(j->temporary, sizeof(j->temporary), "tmp/%016llx", (unsigned long long)j->change.id);
}

static int64_t mtime_of(const struct stat *st)
{
    return st->st_mtim.tv_sec * INT64_C(1000000000) + st->st_mtim.tv_nsec;
}

static gpunvme_err_t sync_file(int fd, const char *name)
{
    return fsync(fd) ? base_fail_errno(errno, "%.150s: to flush it", name) : GPUNVME_OK;
}

/* ---- The rows -------------------------------------------------------------------------------- */

/* Of the row of a change that there is. */
static gpunvme_err_t set_stage(struct job *j, enum tiers_stage stage)
{
    j->change.stage = stage;
    return tiers_catalogue_change_update(j->t->catalogue, &j->change);
}

/* What of the change is known once the catalogue is locked. */
static gpunvme_err_t look(struct job *j)
{
    gpunvme_err_t err = tiers_catalogue_find(j->t->catalogue, j->change.name, &j->row);

    if (err == GPUNVME_ERR_NOT_FOUND && j->change.kind == TIERS_PUT) {
        j->row = (struct tiers_row){.rank = -INFINITY, .pinned = GPUNVME_TIER_AUTO};
        j->change.from = -1;
        return GPUNVME_OK;
    }
    if (err)
        return err == GPUNVME_ERR_NOT_FOUND ? base_fail(err, "%.150s", j->change.name) : err;
    if (j->only_new)
        return base_fail(GPUNVME_ERR_AGAIN, "%.150s is there by now", j->change.name);
    if (j->change.kind == TIERS_MOVE && j->row.tier != j->change.from)
        return base_fail(GPUNVME_ERR_AGAIN, "%.150s was moved just now", j->change.name);
    j->change.from = j->row.tier;
    return GPUNVME_OK;
}

/* Adds the change's row, with the room that it needs. */
static gpunvme_err_t add_row(struct job *j)
{
    struct tiers_catalogue *c = j->t->catalogue;
    gpunvme_err_t err;

    tiers_step(TIERS_STEP_PREPARE, j->change.name);
    j->no_room = false;
    err = j->change.to >= 0 ? tiers_reserve_keep(j->t, j->change.to) : GPUNVME_OK;
    if (!err)
        err = tiers_catalogue_begin(c);
    if (err)
        return err;
    err = look(j);
    if (!err && j->change.to >= 0) {
        err = tiers_fits(j->t, j->change.to, j->change.nbytes);
        j->no_room = err == GPUNVME_ERR_NOSPC;
    }
    if (!err)
        err = tiers_catalogue_change_add(c, &j->change);
    if (!err && j->change.kind == TIERS_REMOVE)
        err = tiers_catalogue_remove(c, j->change.name);
    if (!err && j->change.kind == TIERS_REMOVE) {
        j->change.nbytes = j->row.nbytes;
        err = set_stage(j, TIERS_COMMITTED);
    }
    return tiers_catalogue_end(c, err);
}

/* The same, when others' changes of the name have ended and there is room. */
static gpunvme_err_t begin(struct job *j, uint64_t deadline_ns)
{
    gpunvme_err_t err = add_row(j);

    while (err == GPUNVME_ERR_BUSY || (err == GPUNVME_ERR_NOSPC && j->no_room)) {
        const bool in_time = futex_now() < deadline_ns;

        if (err == GPUNVME_ERR_BUSY)
            err = tiers_change_wait(j->t, j->change.name, deadline_ns);
        else if (in_time)
            err = tiers_make_room(j->t, j->change.to, j->change.nbytes, j->rank, false);
        if (err && err != GPUNVME_ERR_NOT_FOUND)
            return err;
        err = add_row(j);
        if (!in_time)
            break;
    }
    return err;
}

/* The file's row is of the new version. In the same transaction the change is COMMITTED, or ends
 * where the new version has replaced the old one. */
static gpunvme_err_t write_rows(struct job *j)
{
    struct tiers_catalogue *c = j->t->catalogue;
    const struct tiers_change *change = &j->change;
    struct tiers_row row;
    uint64_t old_nbytes;
    gpunvme_err_t err = tiers_catalogue_find(c, change->name, &row);

    if (err == GPUNVME_ERR_NOT_FOUND) {
        row = (struct tiers_row){.rank = -INFINITY, .pinned = GPUNVME_TIER_AUTO};
        memcpy(row.name, change->name, sizeof(row.name));
    } else if (err) {
        return err;
    }
    old_nbytes = row.nbytes;
    row.tier = change->to;
    row.nbytes = change->nbytes;
    row.mtime_ns = change->mtime_ns;
    row.checksum = change->checksum;
    row.has_checksum = true;
    row.dirty = false;
    err = tiers_catalogue_put(c, &row);
    if (!err && change->kind == TIERS_MOVE)
        err = tiers_catalogue_count(c, change->to, 0, 1, change->nbytes);
    if (err)
        return err;
    if (change->from < 0 || change->from == change->to)
        return tiers_catalogue_change_remove(c, change->name);
    j->change.nbytes = old_nbytes;
    return set_stage(j, TIERS_COMMITTED);
}

/* ---- The end of a change --------------------------------------------------------------------- */

/* COMMITTED: nothing but the file in `from` is left of the old version. */
static gpunvme_err_t end_committed(struct job *j)
{
    const char *name = j->change.name;
    gpunvme_err_t err;

    tiers_step(TIERS_STEP_UNLINK, name);
    err = tiers_name_unlink(j->t->dir_fd[j->change.from], name);
    tiers_changed(j->t, name);
    tiers_step(TIERS_STEP_END, name);
    if (!err)
        err = tiers_catalogue_change_remove(j->t->catalogue, name);
    tiers_step(TIERS_STEP_ENDED, name);
    return err;
}

/* PUBLISHING, and the new version has its place. */
static gpunvme_err_t end_published(struct job *j)
{
    struct tiers_catalogue *c = j->t->catalogue;
    const struct tiers_change before = j->change;
    gpunvme_err_t err;

    /* Who looks the name up from here on waits for the row, which does not fit the file yet. */
    tiers_changed(j->t, j->change.name);
    tiers_step(TIERS_STEP_COMMIT, j->change.name);
    err = tiers_catalogue_begin(c);
    if (err)
        return err;
    err = tiers_catalogue_end(c, write_rows(j));
    if (err) {
        j->change = before;
        return err;
    }
    if (j->change.stage == TIERS_COMMITTED)
        return end_committed(j);
    tiers_step(TIERS_STEP_ENDED, j->change.name);
    return GPUNVME_OK;
}

/* The old version stands. The stage goes back first: that the temporary file is gone means nothing
 * then. */
static gpunvme_err_t go_back(struct job *j)
{
    const int folder = j->t->folder_fd[j->change.to];
    gpunvme_err_t err = GPUNVME_OK;

    if (j->change.stage != TIERS_COPYING)
        err = set_stage(j, TIERS_COPYING);
    tiers_step(TIERS_STEP_UNLINK, j->change.name);
    /* A file system that is read-only refuses to unlink what is not there. */
    if (!err && unlinkat(folder, j->temporary, 0) && errno != ENOENT &&
        !faccessat(folder, j->temporary, F_OK, AT_SYMLINK_NOFOLLOW))
        err = base_fail_errno(errno, "%.150s: to remove its copy", j->change.name);
    tiers_step(TIERS_STEP_END, j->change.name);
    return err ? err : tiers_catalogue_change_remove(j->t->catalogue, j->change.name);
}

/* PUBLISHING. */
static gpunvme_err_t go_on_or_back(struct job *j)
{
    struct stat st;
    gpunvme_err_t err;

    if (!fstatat(j->t->folder_fd[j->change.to], j->temporary, &st, AT_SYMLINK_NOFOLLOW))
        return go_back(j);
    if (errno != ENOENT)
        return base_fail_errno(errno, "%.150s: its copy", j->change.name);
    err = tiers_name_flush(j->t->dir_fd[j->change.to], j->change.name);
    return err ? err : end_published(j);
}

/* Ends a change that is this process's, by its stage. What can't be ended is left to whoever meets
 * it next: no session has it. */
static gpunvme_err_t settle(struct job *j)
{
    struct base_failure why;
    gpunvme_err_t err;

    if (j->change.stage == TIERS_COMMITTED)
        err = end_committed(j);
    else
        err = j->change.stage == TIERS_COPYING ? go_back(j) : go_on_or_back(j);
    if (!err)
        return err;
    base_keep(&why, err);
    base_log(BASE_LOG_WARN, "%s: its change could not be ended: %s", j->change.name, why.detail);
    j->change.session[0] = 0;
    tiers_catalogue_change_update(j->t->catalogue, &j->change);
    return base_restore(&why);
}

/* After an error in the middle. */
static gpunvme_err_t give_up(struct job *j, gpunvme_err_t err)
{
    struct base_failure why;

    base_keep(&why, err);
    settle(j);
    return base_restore(&why);
}

/* ---- The new version ------------------------------------------------------------------------- */

/* An error of the new version's file system: NOSPC says which tier is full. */
static gpunvme_err_t tell_full(const struct job *j, gpunvme_err_t err)
{
    return err == GPUNVME_ERR_NOSPC ? tiers_disk_full(j->t, j->change.to, j->change.nbytes, j->fd)
                                    : err;
}

static gpunvme_err_t make_temporary(struct job *j)
{
    const char *name = j->change.name;

    tiers_step(TIERS_STEP_CREATE, name);
    j->fd = openat(j->t->folder_fd[j->change.to], j->temporary,
                   O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    return j->fd < 0 ? base_fail_errno(errno, "%.150s: in the %s tier", name,
                                       gpunvme_tier_name(j->change.to))
                     : GPUNVME_OK;
}

/* What is in the temporary file takes its place. */
static gpunvme_err_t publish(struct job *j)
{
    const char *name = j->change.name;
    struct stat st;
    gpunvme_err_t err;

    tiers_step(TIERS_STEP_FLUSH, name);
    err = tell_full(j, sync_file(j->fd, name));
    if (!err && fstat(j->fd, &st))
        err = base_fail_errno(errno, "%.150s", name);
    if (err)
        return err;
    j->change.mtime_ns = mtime_of(&st);
    err = set_stage(j, TIERS_PUBLISHING);
    if (err)
        return err;
    tiers_step(TIERS_STEP_PUBLISH, name);
    return tell_full(j, tiers_name_publish(j->t->folder_fd[j->change.to], j->temporary,
                                           j->t->dir_fd[j->change.to], name,
                                           j->change.from == j->change.to));
}

/* From the temporary file on: `fill` writes it. */
static gpunvme_err_t replace(struct job *j, gpunvme_err_t (*fill)(struct job *j, void *with),
                             void *with)
{
    gpunvme_err_t err = make_temporary(j);

    if (!err)
        err = fill(j, with);
    err = tell_full(j, err);
    if (!err)
        err = publish(j);
    if (j->fd >= 0)
        close(j->fd);
    if (err)
        return give_up(j, err);
    err = end_published(j);
    return err ? give_up(j, err) : err;
}

static gpunvme_err_t job_init(struct job *j, struct gpunvme_tiers *t, const char *name,
                              enum tiers_kind kind, int from, int to, uint64_t nbytes)
{
    *j = (struct job){.t = t, .fd = -1};
    j->change.kind = kind;
    j->change.from = from;
    j->change.to = to;
    j->change.nbytes = nbytes;
    snprintf(j->change.name, sizeof(j->change.name), "%s", name);
    memcpy(j->change.session, t->session, sizeof(t->session));
    if (getrandom(&j->change.id, sizeof(j->change.id), 0) != sizeof(j->change.id))
        return base_fail_errno(errno, "getrandom");
    name_temporary(j);
    return GPUNVME_OK;
}

/* ---- Put ------------------------------------------------------------------------------------- */

static gpunvme_err_t fill_from_memory(struct job *j, const struct tiers_source *from)
{
    void *ptr = (void *)(uintptr_t)from->ptr;
    const struct gpunvme_buf buf = {
        .cpu = ptr, .gpu = ptr, .nbytes = from->nbytes, .mem = from->mem};
    struct gpunvme_store *to;
    size_t done = 0;
    gpunvme_err_t err;

    err = gpunvme_open_fd(j->t->options.engine, j->fd, j->change.name, j->t->copy_options,
                          GPUNVME_OPEN_WRITE, &to);
    if (err)
        return err;
    j->change.checksum = gpunvme_mem_checksum_host(NULL, 0);
    if (from->nbytes)
        err = gpunvme_store_write(to, 0, ptr, from->mem, from->nbytes, &done);
    if (from->nbytes && !err)
        err = gpunvme_mem_checksum(&buf, 0, from->nbytes, &j->change.checksum, NULL);
    tiers_step(TIERS_STEP_COPY, j->change.name);
    if (err) {
        struct base_failure why;

        base_keep(&why, err);
        gpunvme_close(to);
        return base_restore(&why);
    }
    return gpunvme_close(to);
}

static gpunvme_err_t fill_from(struct job *j, void *with)
{
    const struct tiers_source *from = with;

    if (!from->store)
        return fill_from_memory(j, from);
    return tiers_copy(j->t, from->store, from->nbytes, j->fd, j->change.name, NULL, NULL,
                      &j->change.checksum);
}

gpunvme_err_t tiers_change_put(struct gpunvme_tiers *t, const char *name, int tier, double rank,
                               const struct tiers_source *source, uint64_t deadline_ns)
{
    struct job j;
    bool again = false; /* once: the file system was full */
    gpunvme_err_t err;

    do {
        err = job_init(&j, t, name, TIERS_PUT, -1, tier, source->nbytes);
        j.rank = rank;
        j.only_new = source->only_new;
        if (!err)
            err = begin(&j, deadline_ns);
        if (!err)
            err = replace(&j, fill_from, (void *)(uintptr_t)source);
        again = err == GPUNVME_ERR_NOSPC && !j.no_room && !again;
        if (again)
            err = tiers_make_room(t, tier, source->nbytes, rank, true);
    } while (again && !err);
    return err;
}

/* ---- Remove ---------------------------------------------------------------------------------- */

gpunvme_err_t tiers_change_remove(struct gpunvme_tiers *t, const char *name, uint64_t deadline_ns)
{
    struct job j;
    gpunvme_err_t err = job_init(&j, t, name, TIERS_REMOVE, -1, -1, 0);

    if (!err)
        err = begin(&j, deadline_ns);
    return err ? err : settle(&j);
}

/* ---- Move ------------------------------------------------------------------------------------ */

struct move {
    int fd; /* the old version, locked */
    struct tiers_rate *limit;
    const atomic_bool *stop;
};

/* Time, mode and owner; who may not give the file to its owner keeps it. */
static gpunvme_err_t copy_facts(struct job *j, const struct stat *st)
{
    const struct timespec times[2] = {st->st_atim, st->st_mtim};

    if (fchown(j->fd, st->st_uid, st->st_gid) && errno != EPERM)
        return base_fail_errno(errno, "%.150s: owner of its copy", j->change.name);
    if (fchmod(j->fd, st->st_mode & 07777) || futimens(j->fd, times))
        return base_fail_errno(errno, "%.150s: mode and time of its copy", j->change.name);
    return GPUNVME_OK;
}

/* Where the copy of a file whose bytes do not have their checksum stays, for who wants to look. */
static void name_bad(const struct job *j, char kept[32])
{
    snprintf(kept, 32, "kept/%016llx.bad", (unsigned long long)tiers_hash(j->change.name));
}

static gpunvme_err_t is_bad(const struct job *j, const char *kept)
{
    return base_fail(GPUNVME_ERR_VERIFY,
                     "%.80s does not have its checksum; it stays in the %s tier, its copy is "
                     "%.80s/" TIERS_FOLDER "/%s",
                     j->change.name, gpunvme_tier_name(j->change.from), j->t->dir[j->change.to],
                     kept);
}

/* Keeps the copy; `st` is of the file. */
static gpunvme_err_t keep_bad(struct job *j, const struct stat *st)
{
    const int folder = j->t->folder_fd[j->change.to];
    char kept[32];
    gpunvme_err_t err = copy_facts(j, st);

    if (err)
        return err;
    name_bad(j, kept);
    if ((mkdirat(folder, "kept", 0777) && errno != EEXIST) ||
        renameat(folder, j->temporary, folder, kept))
        return base_fail_errno(errno, "%.150s: to keep its copy", j->change.name);
    return is_bad(j, kept);
}

/* VERIFY: there is such a copy of this version already, so it need not be copied again and again.
 */
static gpunvme_err_t check_bad(const struct job *j, const struct stat *st)
{
    struct stat copy;
    char kept[32];

    name_bad(j, kept);
    if (fstatat(j->t->folder_fd[j->change.to], kept, &copy, AT_SYMLINK_NOFOLLOW) ||
        copy.st_size != st->st_size || mtime_of(&copy) != mtime_of(st))
        return GPUNVME_OK;
    return is_bad(j, kept);
}

static gpunvme_err_t fill_by_move(struct job *j, void *with)
{
    const struct move *m = with;
    struct gpunvme_store *from;
    struct stat before, after;
    gpunvme_err_t err;

    if (fstat(m->fd, &before))
        return base_fail_errno(errno, "%.150s", j->change.name);
    err = j->row.has_checksum ? check_bad(j, &before) : GPUNVME_OK;
    if (err)
        return err;
    err =
        gpunvme_open_fd(j->t->options.engine, m->fd, j->change.name, j->t->copy_options, 0, &from);
    if (err)
        return err;
    err = tiers_copy(j->t, from, j->change.nbytes, j->fd, j->change.name, m->limit, m->stop,
                     &j->change.checksum);
    if (err) {
        struct base_failure why;

        base_keep(&why, err);
        gpunvme_close(from);
        return base_restore(&why);
    }
    err = gpunvme_close(from);
    if (!err && (fstat(m->fd, &after) || mtime_of(&after) != mtime_of(&before) ||
                 after.st_size != before.st_size))
        err = base_fail(GPUNVME_ERR_BUSY, "%.150s was written while it was moved", j->change.name);
    if (!err && j->row.has_checksum && j->row.checksum != j->change.checksum)
        err = keep_bad(j, &before);
    return err ? err : copy_facts(j, &before);
}

gpunvme_err_t tiers_change_move(struct gpunvme_tiers *t, const char *name, int to,
                                struct tiers_rate *limit, const atomic_bool *stop)
{
    const uint64_t hash = tiers_hash(name);
    struct move m = {.limit = limit, .stop = stop};
    struct tiers_row row;
    struct job j;
    struct stat st;
    uint32_t nchanges;
    gpunvme_err_t err = tiers_change_wait(t, name, 0);

    if (err && err != GPUNVME_ERR_NOT_FOUND)
        return err;
    nchanges = tiers_nchanges(t, hash);
    err = tiers_open_file(t, name, O_RDONLY, 0, &row, &m.fd);
    if (err)
        return err;
    if (row.tier == to) {
        close(m.fd);
        return GPUNVME_OK;
    }
    if (flock(m.fd, LOCK_EX | LOCK_NB))
        err = base_fail_errno(errno, "%.150s is being written", name);
    else if (fstat(m.fd, &st))
        err = base_fail_errno(errno, "%.150s", name);
    if (!err)
        err = job_init(&j, t, name, TIERS_MOVE, row.tier, to, (uint64_t)st.st_size);
    if (!err)
        err = add_row(&j);
    /* Since it was opened somebody may have replaced or written it. */
    if (!err && (tiers_nchanges(t, hash) != nchanges || !tiers_is_as(&j.row, m.fd)))
        err = give_up(&j, base_fail(GPUNVME_ERR_BUSY, "%.150s was changed just now", name));
    else if (!err)
        err = replace(&j, fill_by_move, &m);
    close(m.fd); /* and the lock: the old version is gone */
    return err == GPUNVME_ERR_AGAIN ? base_fail(GPUNVME_ERR_BUSY, "%s", gpunvme_err_detail()) : err;
}

/* ---- Changes of others ----------------------------------------------------------------------- */

/* Takes over the change of a process that died. */
static gpunvme_err_t take_over(struct job *j, const char *name)
{
    struct tiers_catalogue *c = j->t->catalogue;
    gpunvme_err_t err = tiers_catalogue_change_find(c, name, &j->change);

    if (err)
        return err;
    if (tiers_session_lives(j->t, j->change.session))
        return base_fail(GPUNVME_ERR_BUSY, "%.150s is being changed", name);
    memcpy(j->change.session, j->t->session, sizeof(j->change.session));
    return tiers_catalogue_change_update(c, &j->change);
}

gpunvme_err_t tiers_change_recover(struct gpunvme_tiers *t, const char *name)
{
    struct job j = {.t = t, .fd = -1};
    gpunvme_err_t err = tiers_catalogue_change_find(t->catalogue, name, &j.change);

    if (err)
        return err;
    if (tiers_session_lives(t, j.change.session)) /* this needs no transaction */
        return base_fail(GPUNVME_ERR_BUSY, "%.150s is being changed", name);
    err = tiers_catalogue_begin(t->catalogue);
    if (!err)
        err = tiers_catalogue_end(t->catalogue, take_over(&j, name));
    if (err)
        return err;
    base_log(BASE_LOG_WARN, "%s: a process died while it changed it", name);
    name_temporary(&j);
    return settle(&j);
}

gpunvme_err_t tiers_change_recover_all(struct gpunvme_tiers *t, uint64_t *n)
{
    struct tiers_change change = {.name = ""};
    struct base_failure first = {0};
    gpunvme_err_t err;

    *n = 0;
    while (!(err = tiers_catalogue_change_next(t->catalogue, change.name, &change))) {
        err = tiers_change_recover(t, change.name);
        if (!err)
            ++*n;
        else if (err != GPUNVME_ERR_BUSY && err != GPUNVME_ERR_NOT_FOUND && !first.err)
            base_keep(&first, err);
    }
    return err == GPUNVME_ERR_NOT_FOUND ? base_restore(&first) : err;
}

gpunvme_err_t tiers_change_wait(struct gpunvme_tiers *t, const char *name, uint64_t deadline_ns)
{
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    bool waited = false;

    for (;;) {
        gpunvme_err_t err = tiers_change_recover(t, name);

        if (err != GPUNVME_ERR_BUSY)
            return waited && err == GPUNVME_ERR_NOT_FOUND ? GPUNVME_OK : err;
        if (futex_now() >= deadline_ns)
            return err;
        waited = true;
        nanosleep(&pause, NULL);
    }
}
