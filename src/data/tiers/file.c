/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Files that are open, by name, and how often they were used.
 *
 * The table of open files is made for reads that take a microsecond: a file that is in it is found
 * without a lock and without a system call. A name has its place in one of NSETS sets of NWAYS
 * entries, whose `state` counts the calls that use it, and has CLOSED while it is empty, or while
 * its file is exchanged for another one, which happens only when nobody uses it. Fields of an entry
 * do not change while it is in use, but for counters. In the same word are accesses, so that a read
 * costs two atomic additions.
 *
 * An entry is stale when the name's count of changes (internal.h) is no longer what it was before
 * the file was looked up. Then the name is looked up again.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/log.h"
#include "data/tiers/internal.h"
#include "data/tiers/score.h"
#include "storage/futex.h"

#define NSETS 64u
#define NWAYS 4u
/* The parts of an entry's state. */
#define PINS   UINT64_C(0x7fffffff)
#define CLOSED UINT64_C(0x80000000)
#define ACCESS UINT64_C(0x100000000) /* one */
#define NTRIES 100u                  /* to open a file that others change, at least */
#define NUSES  1024u /* uses of files that are no longer open; more are written at once */

/* A file that is open. */
struct file {
    struct tiers_open open; /* the first field */
    uint32_t changes;       /* of the name, before it was looked up */
    bool writing;           /* the store is for writing */
    bool in_table;
    int fd; /* of the store's file, to lock it; -1 where it is for reading */
    size_t length;
    char name[GPUNVME_TIERS_NAME_MAX + 1];
};

struct entry {
    struct file file;       /* the first field */
    _Atomic uint64_t state; /* PINS, CLOSED, accesses */
    _Atomic uint64_t hash;  /* of the name; a hint */
    _Atomic uint64_t used;  /* when: counted in look-ups that did not find their file here */
    bool is_open;
    pthread_mutex_t lock; /* of `writers` */
    unsigned writers;     /* calls that keep the file where it is: flock(2) is one for all */
    struct entry *next;   /* of those that could not be closed */
};

/* Uses of a file that the catalogue has not got yet. */
struct use {
    char *name;
    int tier;
    uint64_t n;
};

struct tiers_files {
    struct entry entries[NSETS * NWAYS]; /* sets of NWAYS */
    _Atomic uint64_t misses;
    pthread_mutex_t lock; /* of what follows, and of exchanging entries */
    struct use *uses;
    size_t nuses, room;
    struct entry *stuck; /* not in the table; their transfers did not end */
};

/* ---- Hashes ---------------------------------------------------------------------------------- */

static uint64_t load(const char *bytes)
{
    uint64_t word;

    memcpy(&word, bytes, sizeof(word));
    return word;
}

/* Both halves of the product, so that each bit of either reaches all of them. */
static uint64_t fold(uint64_t a, uint64_t b)
{
    const unsigned __int128 product = (unsigned __int128)a * b;

    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* Of eight bytes at a time; the last ones may overlap those before. */
static uint64_t hash_of(const char *name, size_t length)
{
    const uint64_t odd = 0x9e3779b97f4a7c15u;
    const char *end = name + length;
    uint64_t hash = length;

    if (length < 8) {
        uint64_t word = 0;

        while (name < end)
            word = word << 8 | (unsigned char)*name++;
        return fold(word ^ odd, hash ^ 0xbb67ae8584caa73bu);
    }
    for (; end - name > 16; name += 16)
        hash = fold(load(name) ^ hash, load(name + 8) ^ odd);
    if (end - name > 8)
        hash = fold(load(name) ^ hash, odd);
    return fold(load(end - 8) ^ hash, 0xbb67ae8584caa73bu);
}

uint64_t tiers_hash(const char *name)
{
    return hash_of(name, strlen(name));
}

static struct entry *set_of(struct tiers_files *f, uint64_t hash)
{
    return &f->entries[hash % NSETS * NWAYS];
}

/* ---- Opening by name ------------------------------------------------------------------------- */

bool tiers_is_as(const struct tiers_row *row, int fd)
{
    struct stat st;

    return row->dirty ||
           (!fstat(fd, &st) && (uint64_t)st.st_size == row->nbytes &&
            st.st_mtim.tv_sec * INT64_C(1000000000) + st.st_mtim.tv_nsec == row->mtime_ns);
}

static bool is_same(const struct tiers_row *a, const struct tiers_row *b)
{
    return a->tier == b->tier && a->nbytes == b->nbytes && a->mtime_ns == b->mtime_ns &&
           a->dirty == b->dirty;
}

static gpunvme_err_t find(struct gpunvme_tiers *t, const char *name, struct tiers_row *row)
{
    gpunvme_err_t err = tiers_catalogue_find(t->catalogue, name, row);

    return err == GPUNVME_ERR_NOT_FOUND ? base_fail(err, "%.150s: the set has no such file", name)
                                        : err;
}

/*
 * Row and file are not of one moment. So a file that does not fit its row was changed by others of
 * the set meanwhile, or is being changed by them; if twice neither can be seen, by something else.
 */
gpunvme_err_t tiers_open_file(struct gpunvme_tiers *t, const char *name, int flags,
                              uint64_t deadline_ns, struct tiers_row *row, int *fd)
{
    const uint64_t hash = tiers_hash(name);
    struct tiers_row now;
    bool same, again = false;

    for (unsigned tries = 0; tries < NTRIES || futex_now() < deadline_ns; tries++) {
        const uint32_t nchanges = tiers_nchanges(t, hash);
        gpunvme_err_t why, err = find(t, name, row);

        if (err)
            return err;
        why = tiers_name_open(t->dir_fd[row->tier], name, flags, fd);
        if (!why && tiers_is_as(row, *fd))
            return GPUNVME_OK;
        if (!why)
            close(*fd);
        *fd = -1;
        if (why && why != GPUNVME_ERR_NOT_FOUND)
            return why;
        err = tiers_change_wait(t, name, deadline_ns);
        if (err && err != GPUNVME_ERR_NOT_FOUND)
            return err;
        if (!err)
            continue;
        err = find(t, name, &now);
        if (err)
            return err;
        /* It may have gone to another tier and come back. */
        same = is_same(row, &now) && tiers_nchanges(t, hash) == nchanges;
        if (same && again)
            return base_fail(GPUNVME_ERR_VERIFY,
                             "%.150s in %.80s: something else has %s it; 'scrub' takes it as it is",
                             name, t->dir[row->tier], why ? "removed" : "changed");
        again = same;
    }
    return base_fail(GPUNVME_ERR_BUSY, "%.150s is changed again and again", name);
}

/* ---- Uses ------------------------------------------------------------------------------------ */

static bool add_use(struct tiers_files *f, const char *name, int tier, uint64_t n)
{
    if (f->nuses == f->room) {
        const size_t room = 2 * f->room + 64;
        struct use *uses = realloc(f->uses, room * sizeof(*uses));

        if (!uses)
            return false;
        f->uses = uses;
        f->room = room;
    }
    f->uses[f->nuses] = (struct use){strdup(name), tier, n};
    return f->uses[f->nuses].name && ++f->nuses;
}

static bool pin(struct entry *e)
{
    if (!(atomic_fetch_add_explicit(&e->state, 1, memory_order_acquire) & CLOSED))
        return true;
    atomic_fetch_sub_explicit(&e->state, 1, memory_order_relaxed);
    return false;
}

static void unpin(struct entry *e, unsigned accesses)
{
    atomic_fetch_add_explicit(&e->state, accesses * ACCESS - 1, memory_order_release);
}

/* Takes the uses that the catalogue has not got. */
static void take_uses(struct tiers_files *f, struct use **uses, size_t *n)
{
    pthread_mutex_lock(&f->lock);
    for (size_t i = 0; i < NSETS * NWAYS; i++) {
        struct entry *e = &f->entries[i];
        uint64_t accesses;

        if (!pin(e))
            continue;
        accesses = atomic_fetch_and(&e->state, ACCESS - 1) / ACCESS;
        if (accesses)
            add_use(f, e->file.name, e->file.open.tier, accesses);
        unpin(e, 0);
    }
    *uses = f->uses;
    *n = f->nuses;
    f->uses = NULL;
    f->nuses = f->room = 0;
    pthread_mutex_unlock(&f->lock);
}

static gpunvme_err_t write_uses(struct gpunvme_tiers *t, const struct use *uses, size_t n)
{
    struct gpunvme_tiers_settings s;
    uint64_t of_tier[GPUNVME_NTIERS] = {0};
    struct tiers_row row;
    double t_s = 0;
    gpunvme_err_t err = tiers_settings(t, &s);

    if (!err)
        err = tiers_clock_keep(t, &t_s);
    for (size_t i = 0; i < n && !err; i++) {
        of_tier[uses[i].tier] += uses[i].n;
        err = tiers_catalogue_find(t->catalogue, uses[i].name, &row);
        if (!err) {
            row.rank = tiers_rank_add(row.rank, (double)uses[i].n, t_s, s.half_life_s);
            err = tiers_catalogue_put(t->catalogue, &row);
        } else if (err == GPUNVME_ERR_NOT_FOUND) {
            err = GPUNVME_OK; /* it was removed */
        }
    }
    for (int i = 0; i < GPUNVME_NTIERS && !err; i++)
        if (of_tier[i])
            err = tiers_catalogue_count(t->catalogue, i, of_tier[i], 0, 0);
    return err;
}

/* What a failure could not write stays, and is tried again. */
static void flush_if_full(struct gpunvme_tiers *t)
{
    bool full;

    pthread_mutex_lock(&t->files->lock);
    full = t->files->nuses >= NUSES;
    pthread_mutex_unlock(&t->files->lock);
    if (full && tiers_files_flush(t))
        base_log(BASE_LOG_WARN, "%s: scores: %s", t->dir[0], gpunvme_err_detail());
}

void tiers_files_count_name(struct gpunvme_tiers *t, const char *name, int tier, uint64_t accesses)
{
    pthread_mutex_lock(&t->files->lock);
    if (accesses)
        add_use(t->files, name, tier, accesses);
    pthread_mutex_unlock(&t->files->lock);
    flush_if_full(t);
}

uint64_t tiers_files_unwritten(struct gpunvme_tiers *t, const char *name)
{
    struct tiers_files *f = t->files;
    struct entry *set = set_of(f, tiers_hash(name));
    uint64_t n = 0;

    pthread_mutex_lock(&f->lock);
    for (size_t i = 0; i < f->nuses; i++)
        if (!strcmp(f->uses[i].name, name))
            n += f->uses[i].n;
    for (unsigned i = 0; i < NWAYS; i++)
        if (pin(&set[i])) {
            if (!strcmp(set[i].file.name, name))
                n += atomic_load(&set[i].state) / ACCESS;
            unpin(&set[i], 0);
        }
    pthread_mutex_unlock(&f->lock);
    return n;
}

/* ---- Files that were written in place -------------------------------------------------------- */

/* Whether the name has, or may have, another file than this one by now. */
static bool is_stale(struct gpunvme_tiers *t, const struct file *f, uint64_t hash)
{
    return f->changes != tiers_nchanges(t, hash);
}

/* The row has the facts of the file again, if the name still has it. */
static gpunvme_err_t clean_row(struct gpunvme_tiers *t, const struct file *f)
{
    struct tiers_change change;
    struct tiers_row row;
    struct stat st;
    gpunvme_err_t err = tiers_catalogue_find(t->catalogue, f->name, &row);

    if (!err && row.dirty)
        err = tiers_catalogue_change_find(t->catalogue, f->name, &change);
    if (err != GPUNVME_ERR_NOT_FOUND)
        return err;
    if (!row.dirty || is_stale(t, f, hash_of(f->name, f->length)) || fstat(f->fd, &st))
        return GPUNVME_OK;
    row.nbytes = (uint64_t)st.st_size;
    row.mtime_ns = st.st_mtim.tv_sec * INT64_C(1000000000) + st.st_mtim.tv_nsec;
    row.dirty = false;
    return tiers_catalogue_put(t->catalogue, &row);
}

static void settle(struct gpunvme_tiers *t, const struct file *f)
{
    gpunvme_err_t err;

    if (flock(f->fd, LOCK_EX | LOCK_NB)) /* who writes it settles it later */
        return;
    if (fsync(f->fd))
        err = base_fail_errno(errno, "%.150s", f->name);
    else
        err = tiers_catalogue_begin(t->catalogue);
    if (!err)
        err = tiers_catalogue_end(t->catalogue, clean_row(t, f));
    if (err)
        base_log(BASE_LOG_WARN, "%s: %s", f->name, gpunvme_err_detail());
    flock(f->fd, LOCK_UN);
}

/* ---- Files ----------------------------------------------------------------------------------- */

/*
 * Whether a change of the name comes into effect now. What was opened may be the old version, and
 * the count of changes that says so have been read: so it is for one call, lest that version is
 * read again after the new one.
 */
static bool is_taking_effect(struct gpunvme_tiers *t, const char *name)
{
    struct tiers_change change;

    return !tiers_catalogue_change_find(t->catalogue, name, &change) &&
           change.stage != TIERS_COPYING;
}

/* Opens the file that the name has now. */
static gpunvme_err_t open_now(struct gpunvme_tiers *t, const char *name, bool write, struct file *f)
{
    char path[1024];
    struct tiers_row row;
    gpunvme_err_t err = tiers_name_check(name);

    *f = (struct file){.fd = -1, .writing = write};
    if (err)
        return err;
    f->length = strlen(name);
    memcpy(f->name, name, f->length + 1);
    f->changes = tiers_nchanges(t, hash_of(name, f->length));
    err = tiers_open_file(t, name, write ? O_RDWR : O_RDONLY, futex_deadline(t->timeout_ns), &row,
                          &f->fd);
    if (err)
        return err;
    f->open.tier = row.tier;
    if (!write && is_taking_effect(t, name))
        f->changes--;
    snprintf(path, sizeof(path), "%.500s/%.500s", t->dir[row.tier], name);
    err = gpunvme_open_fd(t->options.engine, f->fd, path, t->file_options,
                          write ? GPUNVME_OPEN_WRITE : 0, &f->open.store);
    if (err || !write) {
        close(f->fd);
        f->fd = -1;
    }
    return err;
}

/* TIMEOUT: a transfer did not end, and it stays as it was. */
static gpunvme_err_t close_file(struct gpunvme_tiers *t, struct file *f)
{
    gpunvme_err_t err;

    if (f->writing)
        settle(t, f);
    err = gpunvme_close(f->open.store);
    if (err != GPUNVME_ERR_TIMEOUT && f->fd >= 0)
        close(f->fd);
    return err;
}

/* ---- The table ------------------------------------------------------------------------------- */

static bool matches(const struct file *f, const char *name, size_t length, bool write)
{
    return f->length == length && f->writing == write && !memcmp(f->name, name, length);
}

static struct entry *find_open(struct gpunvme_tiers *t, const char *name, size_t length,
                               uint64_t hash, bool write)
{
    struct tiers_files *f = t->files;
    struct entry *set = set_of(f, hash);

    for (unsigned i = 0; i < NWAYS; i++) {
        struct entry *e = &set[i];

        if (atomic_load_explicit(&e->hash, memory_order_relaxed) != hash || !pin(e))
            continue;
        if (matches(&e->file, name, length, write) && !is_stale(t, &e->file, hash)) {
            const uint64_t now = atomic_load_explicit(&f->misses, memory_order_relaxed);

            if (atomic_load_explicit(&e->used, memory_order_relaxed) != now)
                atomic_store_explicit(&e->used, now, memory_order_relaxed);
            return e;
        }
        unpin(e, 0);
    }
    return NULL;
}

/* Nobody uses the entry, nor can anybody from here on. */
static bool claim(struct entry *e)
{
    uint64_t state = atomic_load(&e->state);

    return !(state & (PINS | CLOSED)) &&
           atomic_compare_exchange_strong(&e->state, &state, state | CLOSED);
}

/* An entry that nobody uses, and nobody can use now: an empty one, a stale one, or the one that was
 * not used for the longest time. NULL: all are in use. */
static struct entry *make_place(struct gpunvme_tiers *t, struct entry *set)
{
    struct entry *best = NULL;
    uint64_t oldest = UINT64_MAX;

    for (unsigned i = 0; i < NWAYS; i++) {
        struct entry *e = &set[i];
        uint64_t age;

        if (!e->is_open)
            return e;
        age = is_stale(t, &e->file, atomic_load(&e->hash)) ? 0 : 1 + atomic_load(&e->used);
        if (!(atomic_load(&e->state) & PINS) && age < oldest) {
            oldest = age;
            best = e;
        }
    }
    return best && claim(best) ? best : NULL;
}

/* The file of an entry that was claimed, with its uses noted. */
static struct file take_out(struct tiers_files *f, struct entry *e)
{
    const uint64_t accesses = atomic_fetch_and(&e->state, ACCESS - 1) / ACCESS;

    if (accesses)
        add_use(f, e->file.name, e->file.open.tier, accesses);
    e->is_open = false;
    return e->file;
}

/* Puts a file into the table, pinned. What has to give way is in `e` then; NULL: nothing has. */
static struct entry *exchange(struct gpunvme_tiers *t, struct entry **e, uint64_t hash)
{
    struct tiers_files *f = t->files;
    struct entry *place;
    struct file out = {0};
    bool had_file;

    pthread_mutex_lock(&f->lock);
    atomic_fetch_add(&f->misses, 1);
    place = make_place(t, set_of(f, hash));
    if (!place) {
        pthread_mutex_unlock(&f->lock);
        return NULL;
    }
    had_file = place->is_open;
    if (had_file)
        out = take_out(f, place);
    place->file = (*e)->file;
    place->file.in_table = true;
    place->is_open = true;
    atomic_store(&place->hash, hash);
    atomic_store(&place->used, atomic_load(&f->misses));
    atomic_fetch_sub_explicit(&place->state, CLOSED - 1, memory_order_release);
    pthread_mutex_unlock(&f->lock);
    (*e)->file = out;
    if (!had_file) {
        free(*e);
        *e = NULL;
    }
    return place;
}

/* Closes one that is not in the table, and frees it. */
static void discard(struct gpunvme_tiers *t, struct entry *e)
{
    struct tiers_files *f = t->files;

    if (close_file(t, &e->file) != GPUNVME_ERR_TIMEOUT) {
        pthread_mutex_destroy(&e->lock);
        free(e);
        return;
    }
    pthread_mutex_lock(&f->lock);
    e->next = f->stuck;
    f->stuck = e;
    pthread_mutex_unlock(&f->lock);
}

/* What a name no longer has takes up room in a tier while it is open. */
static void close_stale(struct gpunvme_tiers *t)
{
    struct tiers_files *f = t->files;
    struct entry *stale = NULL;

    pthread_mutex_lock(&f->lock);
    for (size_t i = 0; i < NSETS * NWAYS; i++) {
        struct entry *e = &f->entries[i], *out;

        if (!e->is_open || !is_stale(t, &e->file, atomic_load(&e->hash)))
            continue;
        out = calloc(1, sizeof(*out));
        if (out && claim(e)) {
            pthread_mutex_init(&out->lock, NULL);
            out->file = take_out(f, e);
            out->next = stale;
            stale = out;
        } else {
            free(out);
        }
    }
    pthread_mutex_unlock(&f->lock);
    while (stale) {
        struct entry *next = stale->next;

        discard(t, stale);
        stale = next;
    }
}

gpunvme_err_t tiers_files_flush(struct gpunvme_tiers *t)
{
    struct tiers_files *f = t->files;
    gpunvme_err_t err = GPUNVME_OK;
    struct use *uses;
    size_t n;

    close_stale(t);
    take_uses(f, &uses, &n);
    if (n)
        err = tiers_catalogue_begin(t->catalogue);
    if (n && !err)
        err = tiers_catalogue_end(t->catalogue, write_uses(t, uses, n));
    pthread_mutex_lock(&f->lock);
    for (size_t i = 0; i < n; i++) { /* they are written the next time, unless there are too many */
        if (err && f->nuses < NUSES)
            add_use(f, uses[i].name, uses[i].tier, uses[i].n);
        free(uses[i].name);
    }
    pthread_mutex_unlock(&f->lock);
    free(uses);
    return err;
}

gpunvme_err_t tiers_files_get(struct gpunvme_tiers *t, const char *name, bool write,
                              struct tiers_open **out)
{
    const size_t length = strlen(name);
    const uint64_t hash = hash_of(name, length);
    struct entry *e = find_open(t, name, length, hash, write), *place;
    gpunvme_err_t err;

    *out = NULL;
    if (e) {
        *out = &e->file.open;
        return GPUNVME_OK;
    }
    e = calloc(1, sizeof(*e));
    if (!e)
        return base_fail(GPUNVME_ERR_NOMEM, "an open file");
    err = open_now(t, name, write, &e->file);
    if (err) {
        free(e);
        return err;
    }
    pthread_mutex_init(&e->lock, NULL);
    place = exchange(t, &e, hash);
    if (place && e)
        discard(t, e);
    *out = place ? &place->file.open : &e->file.open;
    flush_if_full(t);
    return GPUNVME_OK;
}

void tiers_files_put(struct gpunvme_tiers *t, struct tiers_open *open, unsigned accesses)
{
    struct entry *e = (struct entry *)open;

    if (e->file.in_table) {
        unpin(e, accesses);
        return;
    }
    tiers_files_count_name(t, e->file.name, e->file.open.tier, accesses);
    discard(t, e);
}

bool tiers_files_is_loose(const struct tiers_open *open)
{
    return !((const struct entry *)open)->file.in_table;
}

gpunvme_err_t tiers_files_open(struct gpunvme_tiers *t, const char *name,
                               struct gpunvme_store **out, int *tier)
{
    struct file f;
    gpunvme_err_t err = open_now(t, name, false, &f);

    *out = f.open.store;
    *tier = f.open.tier;
    return err;
}

gpunvme_err_t tiers_files_begin_write(struct gpunvme_tiers *t, struct tiers_open *open)
{
    struct entry *e = (struct entry *)open;
    gpunvme_err_t err = GPUNVME_OK;

    pthread_mutex_lock(&e->lock);
    if (!e->writers && flock(e->file.fd, LOCK_SH | LOCK_NB))
        err = base_fail_errno(errno, "%.150s is being moved", e->file.name);
    else
        e->writers++;
    pthread_mutex_unlock(&e->lock);
    if (err || !is_stale(t, &e->file, hash_of(e->file.name, e->file.length)))
        return err;
    tiers_files_end_write(open);
    return GPUNVME_ERR_AGAIN;
}

void tiers_files_end_write(struct tiers_open *open)
{
    struct entry *e = (struct entry *)open;

    pthread_mutex_lock(&e->lock);
    if (!--e->writers)
        flock(e->file.fd, LOCK_UN);
    pthread_mutex_unlock(&e->lock);
}

/* ---- All of them ----------------------------------------------------------------------------- */

gpunvme_err_t tiers_files_create(struct tiers_files **out)
{
    struct tiers_files *f = calloc(1, sizeof(*f));

    *out = f;
    if (!f)
        return base_fail(GPUNVME_ERR_NOMEM, "a table of open files");
    pthread_mutex_init(&f->lock, NULL);
    for (size_t i = 0; i < NSETS * NWAYS; i++) {
        atomic_init(&f->entries[i].state, CLOSED);
        pthread_mutex_init(&f->entries[i].lock, NULL);
    }
    return GPUNVME_OK;
}

/* The first error, but that nothing may be freed goes first. */
static void note(struct base_failure *first, gpunvme_err_t err)
{
    if (err && (!first->err || err == GPUNVME_ERR_TIMEOUT))
        base_keep(first, err);
}

gpunvme_err_t tiers_files_close(struct gpunvme_tiers *t)
{
    struct tiers_files *f = t->files;
    struct base_failure first = {0};
    struct entry *stuck = f->stuck;

    note(&first, tiers_files_flush(t));
    if (first.err == GPUNVME_ERR_TIMEOUT)
        first.err = GPUNVME_ERR_IO; /* the catalogue's lock: nothing is in flight */
    for (size_t i = 0; i < NSETS * NWAYS; i++) {
        struct entry *e = &f->entries[i];
        gpunvme_err_t err;

        if (!e->is_open)
            continue;
        atomic_fetch_or(&e->state, CLOSED);
        err = close_file(t, &e->file);
        e->is_open = err == GPUNVME_ERR_TIMEOUT;
        if (e->is_open)
            atomic_fetch_and(&e->state, ~CLOSED);
        note(&first, err);
    }
    f->stuck = NULL;
    while (stuck) {
        struct entry *next = stuck->next;

        discard(t, stuck);
        stuck = next;
    }
    if (f->stuck)
        note(&first, base_fail(GPUNVME_ERR_TIMEOUT, "a transfer has not ended"));
    if (first.err == GPUNVME_ERR_TIMEOUT)
        return base_restore(&first);
    for (size_t i = 0; i < NSETS * NWAYS; i++)
        pthread_mutex_destroy(&f->entries[i].lock);
    pthread_mutex_destroy(&f->lock);
    for (size_t i = 0; i < f->nuses; i++)
        free(f->uses[i].name);
    free(f->uses);
    free(f);
    t->files = NULL;
    return base_restore(&first);
}
