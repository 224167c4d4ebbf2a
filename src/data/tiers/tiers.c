/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Files of a set by name: the calls of tiers.h that join the parts of internal.h.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/fail.h"
#include "data/tiers/internal.h"
#include "data/tiers/score.h"
#include "storage/futex.h"

#define PAGE     1000u                /* rows of a list that are read at once */
#define AT_ONCE  1024u                /* transfers of read_many, write_many */
#define LOOSE    128u                 /* … files of which at most: each has descriptors */
#define PAUSE_NS 1000000              /* between tries */
#define AHEAD    (UINT64_C(16) << 20) /* bytes that a growing file takes of a tier, at most */

static gpunvme_err_t check(const struct gpunvme_tiers *t, const char *name)
{
    gpunvme_err_t err = tiers_check_process(t);

    return err ? err : tiers_name_check(name);
}

static void pause_a_little(void)
{
    const struct timespec pause = {.tv_nsec = PAUSE_NS};

    nanosleep(&pause, NULL);
}

/* ---- Reading --------------------------------------------------------------------------------- */

gpunvme_err_t gpunvme_tiers_read(struct gpunvme_tiers *t, const char *name, uint64_t offset,
                                 void *ptr, enum gpunvme_mem mem, size_t nbytes, size_t *done)
{
    struct tiers_open *open;
    gpunvme_err_t err = tiers_check_process(t);

    if (done)
        *done = 0;
    if (!err && !name)
        err = tiers_name_check(name);
    if (!err)
        err = tiers_files_get(t, name, false, &open);
    if (err)
        return err;
    err = gpunvme_store_read(open->store, offset, ptr, mem, nbytes, done);
    tiers_files_put(t, open, 1);
    return err;
}

gpunvme_err_t gpunvme_tiers_open_store(struct gpunvme_tiers *t, const char *name, unsigned accesses,
                                       struct gpunvme_store **out)
{
    gpunvme_err_t err = check(t, name);
    struct gpunvme_store *store;
    int tier;

    if (out)
        *out = NULL;
    if (!err && !out)
        err = base_fail(GPUNVME_ERR_INVALID, "out is NULL");
    if (!err)
        err = tiers_files_open(t, name, &store, &tier);
    if (err)
        return err;
    *out = store;
    tiers_files_count_name(t, name, tier, accesses);
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_tiers_path(struct gpunvme_tiers *t, const char *name, int *tier,
                                 struct gpunvme_path *path)
{
    gpunvme_err_t err = check(t, name);
    struct tiers_open *open;

    if (!err)
        err = tiers_files_get(t, name, false, &open);
    if (err)
        return err;
    if (tier)
        *tier = open->tier;
    if (path)
        gpunvme_store_path(open->store, path);
    tiers_files_put(t, open, 0);
    return GPUNVME_OK;
}

/* ---- Replacing ------------------------------------------------------------------------------- */

/* Where a file belongs, or is pinned to; the row is that of a new one where there is none. */
static gpunvme_err_t find_place(struct gpunvme_tiers *t, const char *name, struct tiers_row *row,
                                int *tier)
{
    gpunvme_err_t err = tiers_catalogue_find(t->catalogue, name, row);

    if (err == GPUNVME_ERR_NOT_FOUND) {
        *row = (struct tiers_row){
            .tier = GPUNVME_TIER_COLD, .pinned = GPUNVME_TIER_AUTO, .rank = -INFINITY};
        memcpy(row->name, name, strlen(name) + 1);
    } else if (err) {
        return err;
    }
    *tier = row->pinned >= 0 ? row->pinned : tiers_policy(t, row);
    return GPUNVME_OK;
}

/* AUTO: the tier where it belongs, and then those that have room, slower ones first. */
static gpunvme_err_t put_anywhere(struct gpunvme_tiers *t, const char *name,
                                  const struct tiers_source *from, uint64_t deadline_ns, int *tier)
{
    struct tiers_row row;
    int place, order[2 * GPUNVME_NTIERS], n = 0;
    gpunvme_err_t err = find_place(t, name, &row, &place);

    if (err)
        return err;
    for (int i = place; i < GPUNVME_NTIERS; i++)
        order[n++] = i;
    for (int i = place - 1; i >= 0; i--)
        order[n++] = i;
    if (row.pinned >= 0)
        n = 1;
    err = GPUNVME_ERR_NOSPC;
    for (int i = 0; i < n && err == GPUNVME_ERR_NOSPC; i++) {
        *tier = order[i];
        err = tiers_change_put(t, name, *tier, row.rank, from, deadline_ns);
    }
    return err;
}

static gpunvme_err_t put(struct gpunvme_tiers *t, const char *name, int tier,
                         const struct tiers_source *from)
{
    const uint64_t deadline_ns = futex_deadline(t->timeout_ns);
    gpunvme_err_t err;

    if (tier < GPUNVME_TIER_AUTO || tier >= GPUNVME_NTIERS)
        return base_fail(GPUNVME_ERR_INVALID, "tier is %d", tier);
    if (tier == GPUNVME_TIER_AUTO)
        err = put_anywhere(t, name, from, deadline_ns, &tier);
    else
        err = tiers_change_put(t, name, tier, INFINITY, from, deadline_ns);
    if (!err)
        tiers_files_count_name(t, name, tier, 1);
    return err;
}

gpunvme_err_t gpunvme_tiers_put(struct gpunvme_tiers *t, const char *name, int tier,
                                const void *ptr, enum gpunvme_mem mem, size_t nbytes)
{
    const struct tiers_source from = {.ptr = ptr, .mem = mem, .nbytes = nbytes};
    gpunvme_err_t err = check(t, name);

    if (!err && ((nbytes && !ptr) || nbytes > INT64_MAX))
        err = base_fail(GPUNVME_ERR_INVALID, "%zu bytes at %p", nbytes, ptr);
    return err ? err : put(t, name, tier, &from);
}

gpunvme_err_t gpunvme_tiers_put_store(struct gpunvme_tiers *t, const char *name, int tier,
                                      struct gpunvme_store *store)
{
    struct tiers_source from = {.store = store};
    gpunvme_err_t err = check(t, name);

    if (!err)
        err = gpunvme_store_size(store, &from.nbytes);
    return err ? err : put(t, name, tier, &from);
}

gpunvme_err_t gpunvme_tiers_remove(struct gpunvme_tiers *t, const char *name)
{
    gpunvme_err_t err = check(t, name);

    return err ? err : tiers_change_remove(t, name, futex_deadline(t->timeout_ns));
}

/* ---- Writing in place ------------------------------------------------------------------------ */

/* Room for `end` bytes of a file, and some ahead, so that not each write that makes it longer costs
 * a transaction. */
static gpunvme_err_t take_room(struct gpunvme_tiers *t, struct tiers_row *row, uint64_t end)
{
    const uint64_t ahead = end / 4 < AHEAD ? end / 4 : AHEAD;
    gpunvme_err_t err = tiers_fits(t, row->tier, end + ahead - row->nbytes);

    if (!err && end + ahead <= INT64_MAX) {
        row->nbytes = end + ahead;
        return GPUNVME_OK;
    }
    err = tiers_fits(t, row->tier, end - row->nbytes);
    row->nbytes = end;
    return err;
}

/* The row says that the file is written, and has its tier's room for `end` bytes. */
static gpunvme_err_t make_dirty(struct gpunvme_tiers *t, const char *name, uint64_t end)
{
    struct tiers_row row;
    gpunvme_err_t err = tiers_catalogue_begin(t->catalogue);

    if (err)
        return err;
    err = tiers_catalogue_find(t->catalogue, name, &row);
    if (!err && end > row.nbytes)
        err = take_room(t, &row, end);
    if (!err) {
        row.dirty = true;
        row.has_checksum = false;
        err = tiers_catalogue_put(t->catalogue, &row);
    }
    return tiers_catalogue_end(t->catalogue, err);
}

/*
 * The file stays where it is until end_write(). AGAIN: others have changed the name, or the tier
 * had no room and has some now. `was_full`: its file system had none for the catalogue's reserve,
 * for which files are moved away once.
 */
static gpunvme_err_t begin_write(struct gpunvme_tiers *t, struct tiers_open *open, const char *name,
                                 uint64_t end, uint64_t deadline_ns, bool *was_full)
{
    struct tiers_change change;
    struct tiers_row row;
    gpunvme_err_t err = tiers_files_begin_write(t, open);

    if (err)
        return err;
    /* A change that is there may have given the name another file, and its process have died. */
    err = tiers_catalogue_change_find(t->catalogue, name, &change);
    if (err == GPUNVME_ERR_NOT_FOUND)
        err = tiers_catalogue_find(t->catalogue, name, &row);
    else if (!err)
        err = GPUNVME_ERR_BUSY;
    if (!err && end > row.nbytes && tiers_reserve_keep(t, row.tier)) {
        tiers_files_end_write(open);
        if (*was_full)
            return GPUNVME_ERR_NOSPC;
        *was_full = true;
        err = tiers_make_room(t, row.tier, end - row.nbytes, INFINITY, true);
        return err ? err : GPUNVME_ERR_AGAIN;
    }
    if (!err && (!row.dirty || end > row.nbytes))
        err = make_dirty(t, name, end);
    if (!err)
        return GPUNVME_OK;
    tiers_files_end_write(open);
    if (err == GPUNVME_ERR_BUSY)
        err = tiers_change_wait(t, name, deadline_ns);
    else if (err == GPUNVME_ERR_NOSPC)
        err = tiers_make_room(t, row.tier, end - row.nbytes, INFINITY, false);
    return err && err != GPUNVME_ERR_NOT_FOUND ? err : GPUNVME_ERR_AGAIN;
}

/* An open file that may be written up to `end`; made where there is none. */
static gpunvme_err_t open_to_write(struct gpunvme_tiers *t, const char *name, uint64_t end,
                                   uint64_t deadline_ns, struct tiers_open **open)
{
    const struct tiers_source nothing = {.only_new = true};
    bool was_full = false;

    for (;;) {
        gpunvme_err_t err = tiers_files_get(t, name, true, open);
        int tier;

        if (!err) {
            err = begin_write(t, *open, name, end, deadline_ns, &was_full);
            if (!err)
                return err;
            tiers_files_put(t, *open, 0);
        } else if (err == GPUNVME_ERR_NOT_FOUND) {
            err = put_anywhere(t, name, &nothing, deadline_ns, &tier);
            if (!err)
                continue;
        }
        if ((err != GPUNVME_ERR_BUSY && err != GPUNVME_ERR_AGAIN) || futex_now() >= deadline_ns)
            return err == GPUNVME_ERR_AGAIN
                       ? base_fail(GPUNVME_ERR_BUSY, "%.150s is changed again and again", name)
                       : err;
        pause_a_little();
    }
}

/* The same for `nbytes` bytes at `offset`. */
static gpunvme_err_t get_to_write(struct gpunvme_tiers *t, const char *name, uint64_t offset,
                                  size_t nbytes, struct tiers_open **open)
{
    gpunvme_err_t err = check(t, name);

    if (!err && (offset > INT64_MAX || nbytes > INT64_MAX - offset))
        err = base_fail(GPUNVME_ERR_RANGE, "%zu bytes at offset %llu", nbytes,
                        (unsigned long long)offset);
    return err ? err : open_to_write(t, name, offset + nbytes, futex_deadline(t->timeout_ns), open);
}

gpunvme_err_t gpunvme_tiers_write(struct gpunvme_tiers *t, const char *name, uint64_t offset,
                                  const void *ptr, enum gpunvme_mem mem, size_t nbytes,
                                  size_t *done)
{
    struct tiers_open *open;
    bool again = false; /* once: the file system was full */
    size_t unused;
    gpunvme_err_t err;

    if (!done)
        done = &unused;
    do {
        int tier;

        *done = 0;
        err = get_to_write(t, name, offset, nbytes, &open);
        if (err)
            return err;
        tier = open->tier;
        tiers_step(TIERS_STEP_PART, name);
        err = gpunvme_store_write(open->store, offset, ptr, mem, nbytes, done);
        if (err == GPUNVME_ERR_NOSPC)
            err = tiers_disk_full(t, tier, nbytes - *done, -1);
        tiers_step(TIERS_STEP_PART, name);
        tiers_files_end_write(open);
        again = err == GPUNVME_ERR_NOSPC && !again;
        tiers_files_put(t, open, !again);
        if (again)
            err = tiers_make_room(t, tier, nbytes - *done, INFINITY, true);
    } while (again && !err);
    return err;
}

gpunvme_err_t gpunvme_tiers_begin_write(struct gpunvme_tiers *t, const char *name, uint64_t end,
                                        struct gpunvme_tiers_writer **out,
                                        struct gpunvme_store **store)
{
    struct tiers_open *open;
    gpunvme_err_t err;

    if (!out || !store)
        return base_fail(GPUNVME_ERR_INVALID, "%s is NULL", out ? "store" : "out");
    *out = NULL;
    *store = NULL;
    err = get_to_write(t, name, 0, end, &open);
    if (err)
        return err;
    *out = (struct gpunvme_tiers_writer *)open;
    *store = open->store;
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_tiers_end_write(struct gpunvme_tiers *t, struct gpunvme_tiers_writer *writer)
{
    struct tiers_open *open = (struct tiers_open *)writer;
    gpunvme_err_t err = tiers_check_process(t);

    if (err || !open)
        return err;
    tiers_files_end_write(open);
    tiers_files_put(t, open, 1);
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_tiers_flush(struct gpunvme_tiers *t, const char *name)
{
    gpunvme_err_t err = check(t, name);
    struct tiers_open *open;

    if (!err)
        err = tiers_files_get(t, name, false, &open);
    if (err)
        return err;
    err = gpunvme_store_flush(open->store);
    tiers_files_put(t, open, 0);
    return err;
}

/* ---- Many at once ---------------------------------------------------------------------------- */

/* Ranges ios[0 … n), whose files are in `files`. */
static gpunvme_err_t run_some(struct gpunvme_tiers_io *ios, enum gpunvme_op op,
                              struct tiers_open **files, struct gpunvme_io *transfers, size_t n)
{
    size_t running = 0;
    gpunvme_err_t err;

    for (size_t i = 0; i < n; i++)
        if (files[i])
            transfers[running++] = (struct gpunvme_io){.store = files[i]->store,
                                                       .op = op,
                                                       .mem = ios[i].mem,
                                                       .offset = ios[i].offset,
                                                       .ptr = ios[i].ptr,
                                                       .nbytes = ios[i].nbytes};
    err = gpunvme_io_run(transfers, running);
    for (size_t i = 0, k = 0; i < n; i++)
        if (files[i]) {
            ios[i].err = transfers[k].err;
            ios[i].done = transfers[k].done;
            ios[i].routes = transfers[k++].routes;
        }
    return err;
}

static gpunvme_err_t get_file(struct gpunvme_tiers *t, const struct gpunvme_tiers_io *io,
                              enum gpunvme_op op, struct tiers_open **file)
{
    if (!io->name)
        return tiers_name_check(NULL);
    return op == GPUNVME_OP_READ ? tiers_files_get(t, io->name, false, file)
                                 : get_to_write(t, io->name, io->offset, io->nbytes, file);
}

/* Begins at ios[0], and does as many as there are files to be had at once; *n says how many. */
static gpunvme_err_t do_some(struct gpunvme_tiers *t, struct gpunvme_tiers_io *ios,
                             enum gpunvme_op op, size_t *n, struct tiers_open **files,
                             struct gpunvme_io *transfers)
{
    struct base_failure first = {0};
    const size_t room = *n < AT_ONCE ? *n : AT_ONCE;
    size_t nloose = 0;
    gpunvme_err_t err;

    for (*n = 0; *n < room && nloose < LOOSE; ++*n) {
        struct gpunvme_tiers_io *io = &ios[*n];

        io->done = 0;
        io->routes = 0;
        files[*n] = NULL;
        io->err = get_file(t, io, op, &files[*n]);
        if (io->err) {
            files[*n] = NULL;
            if (!first.err)
                base_keep(&first, io->err);
            continue;
        }
        io->tier = files[*n]->tier;
        nloose += tiers_files_is_loose(files[*n]);
    }
    err = run_some(ios, op, files, transfers, *n);
    for (size_t i = 0; i < *n && err == GPUNVME_ERR_NOSPC; i++)
        if (files[i] && ios[i].err == err) {
            tiers_disk_full(t, files[i]->tier, ios[i].nbytes - ios[i].done, -1);
            break;
        }
    if (err && !first.err)
        base_keep(&first, err);
    for (size_t i = 0; i < *n; i++) {
        if (files[i] && op == GPUNVME_OP_WRITE)
            tiers_files_end_write(files[i]);
        if (files[i])
            tiers_files_put(t, files[i], 1);
    }
    return base_restore(&first);
}

static gpunvme_err_t do_many(struct gpunvme_tiers *t, struct gpunvme_tiers_io *ios,
                             enum gpunvme_op op, size_t n)
{
    const size_t room = n < AT_ONCE ? n : AT_ONCE;
    gpunvme_err_t err = tiers_check_process(t);
    struct base_failure first = {0};
    struct gpunvme_io *transfers;
    struct tiers_open **files;

    if (!err && n && !ios)
        err = base_fail(GPUNVME_ERR_INVALID, "ios is NULL");
    if (err || !n)
        return err;
    transfers = calloc(room, sizeof(*transfers));
    files = calloc(room, sizeof(*files));
    if (!transfers || !files)
        base_keep(&first, base_fail(GPUNVME_ERR_NOMEM, "%zu transfers", n));
    for (size_t at = 0; at < n && transfers && files;) {
        size_t some = n - at;

        err = do_some(t, &ios[at], op, &some, files, transfers);
        if (err && !first.err)
            base_keep(&first, err);
        at += some;
    }
    free(files);
    free(transfers);
    return first.err ? base_restore(&first) : GPUNVME_OK;
}

gpunvme_err_t gpunvme_tiers_read_many(struct gpunvme_tiers *t, struct gpunvme_tiers_io *ios,
                                      size_t n)
{
    return do_many(t, ios, GPUNVME_OP_READ, n);
}

gpunvme_err_t gpunvme_tiers_write_many(struct gpunvme_tiers *t, struct gpunvme_tiers_io *ios,
                                       size_t n)
{
    return do_many(t, ios, GPUNVME_OP_WRITE, n);
}

/* ---- Facts ----------------------------------------------------------------------------------- */

void tiers_file_of_row(const struct tiers_row *row, double t_s, double half_life_s,
                       struct gpunvme_tiers_file *file)
{
    *file = (struct gpunvme_tiers_file){
        .name = row->name,
        .tier = row->tier,
        .pinned = row->pinned,
        .nbytes = row->nbytes,
        .mtime_ns = row->mtime_ns,
        .score = tiers_score_of_rank(row->rank, t_s, half_life_s),
        .has_checksum = row->has_checksum,
        .checksum = row->checksum,
    };
}

/* Of a file that is written in place the row has not got size and time. */
static void look_at_file(const struct gpunvme_tiers *t, const struct tiers_row *row,
                         struct gpunvme_tiers_file *file)
{
    struct stat st;
    int fd;

    if (!row->dirty || tiers_name_open(t->dir_fd[row->tier], row->name, O_PATH, &fd))
        return;
    if (!fstat(fd, &st)) {
        file->nbytes = (uint64_t)st.st_size;
        file->mtime_ns = st.st_mtim.tv_sec * INT64_C(1000000000) + st.st_mtim.tv_nsec;
    }
    close(fd);
}

/* The facts of a row now, with accesses that are not in the catalogue yet. */
static void file_now(struct gpunvme_tiers *t, struct tiers_row *row, double t_s, double half_life_s,
                     struct gpunvme_tiers_file *file)
{
    const uint64_t unwritten = tiers_files_unwritten(t, row->name);

    if (unwritten)
        row->rank = tiers_rank_add(row->rank, (double)unwritten, t_s, half_life_s);
    tiers_file_of_row(row, t_s, half_life_s, file);
    look_at_file(t, row, file);
}

gpunvme_err_t gpunvme_tiers_stat(struct gpunvme_tiers *t, const char *name,
                                 struct gpunvme_tiers_file *file)
{
    struct gpunvme_tiers_settings s;
    struct tiers_row row;
    double t_s;
    gpunvme_err_t err = check(t, name);

    if (!err && !file)
        err = base_fail(GPUNVME_ERR_INVALID, "file is NULL");
    if (!err)
        err = tiers_settings(t, &s);
    if (!err)
        err = tiers_now(t, &t_s);
    if (err)
        return err;
    err = tiers_catalogue_find(t->catalogue, name, &row);
    if (err)
        return err == GPUNVME_ERR_NOT_FOUND
                   ? base_fail(err, "%.150s: the set has no such file", name)
                   : err;
    file_now(t, &row, t_s, s.half_life_s, file);
    file->name = name;
    return GPUNVME_OK;
}

int gpunvme_tiers_list(struct gpunvme_tiers *t, const char *prefix,
                       int (*each)(void *user, const struct gpunvme_tiers_file *file), void *user)
{
    struct gpunvme_tiers_settings s;
    char after[GPUNVME_TIERS_NAME_MAX + 1] = "";
    struct tiers_row *rows;
    size_t n = PAGE;
    double t_s;
    int err = tiers_check_process(t);

    if (!err && !each)
        err = base_fail(GPUNVME_ERR_INVALID, "each is NULL");
    if (!err)
        err = tiers_settings(t, &s);
    if (err)
        return err;
    rows = malloc(PAGE * sizeof(*rows));
    if (!rows)
        return base_fail(GPUNVME_ERR_NOMEM, "a list of %u names", PAGE);
    while (!err && n == PAGE) {
        err = tiers_now(t, &t_s);
        if (!err)
            err = tiers_catalogue_list(t->catalogue, prefix ? prefix : "", after, rows, PAGE, &n);
        for (size_t i = 0; i < n && !err; i++) {
            struct gpunvme_tiers_file file;

            file_now(t, &rows[i], t_s, s.half_life_s, &file);
            err = each(user, &file);
        }
        if (n)
            memcpy(after, rows[n - 1].name, sizeof(after));
    }
    free(rows);
    return err;
}
