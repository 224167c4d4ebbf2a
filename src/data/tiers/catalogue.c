/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The catalogue of a set of tiers: see catalogue.h.
 */
#include "data/tiers/catalogue.h"

#include <math.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"

#define FORMAT 1 /* PRAGMA user_version */

/* In a change's last stage it is the old tier that holds the room, for the old version. */
#define RESERVED_IN(row) "CASE " row ".stage WHEN 2 THEN " row ".from_tier ELSE " row ".to_tier END"

static const char schema[] =
    "CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE tier(tier INTEGER PRIMARY KEY, nbytes INTEGER NOT NULL DEFAULT 0,"
    " nfiles INTEGER NOT NULL DEFAULT 0, reserved INTEGER NOT NULL DEFAULT 0,"
    " accesses INTEGER NOT NULL DEFAULT 0, moved_in_nbytes INTEGER NOT NULL DEFAULT 0,"
    " moved_in INTEGER NOT NULL DEFAULT 0);"
    "INSERT INTO tier(tier) VALUES(0), (1), (2);"
    "CREATE TABLE file(name TEXT PRIMARY KEY, tier INTEGER NOT NULL, pinned INTEGER NOT NULL,"
    " nbytes INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, rank REAL NOT NULL,"
    " has_checksum INTEGER NOT NULL, checksum INTEGER NOT NULL, dirty INTEGER NOT NULL)"
    " WITHOUT ROWID;"
    "CREATE INDEX file_by_rank ON file(tier, rank) WHERE pinned < 0;"
    "CREATE TABLE change(name TEXT PRIMARY KEY, kind INTEGER NOT NULL, stage INTEGER NOT NULL,"
    " from_tier INTEGER NOT NULL, to_tier INTEGER NOT NULL, id INTEGER NOT NULL,"
    " nbytes INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, checksum INTEGER NOT NULL,"
    " session TEXT NOT NULL) WITHOUT ROWID;"
    "CREATE TRIGGER file_new AFTER INSERT ON file BEGIN"
    " UPDATE tier SET nbytes = nbytes + new.nbytes, nfiles = nfiles + 1 WHERE tier = new.tier;"
    " END;"
    "CREATE TRIGGER file_gone AFTER DELETE ON file BEGIN"
    " UPDATE tier SET nbytes = nbytes - old.nbytes, nfiles = nfiles - 1 WHERE tier = old.tier;"
    " END;"
    "CREATE TRIGGER file_other AFTER UPDATE OF tier, nbytes ON file"
    " WHEN old.tier <> new.tier OR old.nbytes <> new.nbytes BEGIN"
    " UPDATE tier SET nbytes = nbytes - old.nbytes, nfiles = nfiles - 1 WHERE tier = old.tier;"
    " UPDATE tier SET nbytes = nbytes + new.nbytes, nfiles = nfiles + 1 WHERE tier = new.tier;"
    " END;"
    "CREATE TRIGGER change_new AFTER INSERT ON change BEGIN"
    " UPDATE tier SET reserved = reserved + new.nbytes WHERE tier = " RESERVED_IN(
        "new") ";"
               " END;"
               "CREATE TRIGGER change_gone AFTER DELETE ON change BEGIN"
               " UPDATE tier SET reserved = reserved - old.nbytes WHERE tier = " RESERVED_IN(
                   "old") ";"
                          " END;"
                          "CREATE TRIGGER change_other AFTER UPDATE ON change BEGIN"
                          " UPDATE tier SET reserved = reserved - old.nbytes WHERE tier "
                          "= " RESERVED_IN("old") ";"
                                                  " UPDATE tier SET reserved = reserved + "
                                                  "new.nbytes WHERE tier = " RESERVED_IN(
                                                      "new") ";"
                                                             " END;";

#define FILE_COLUMNS "name, tier, pinned, nbytes, mtime_ns, rank, has_checksum, checksum, dirty"
#define CHANGE_COLUMNS                                                                             \
    "name, kind, stage, from_tier, to_tier, id, nbytes, mtime_ns, checksum, session"
#define OF_TIER                                                                                    \
    "SELECT " FILE_COLUMNS " FROM file WHERE tier = ? AND pinned < 0"                              \
    " AND name NOT IN (SELECT name FROM change)"

/* X(statement, text) */
#define STATEMENTS(X)                                                                              \
    X(BEGIN, "BEGIN IMMEDIATE")                                                                    \
    X(COMMIT, "COMMIT")                                                                            \
    X(ROLLBACK, "ROLLBACK")                                                                        \
    X(GET, "SELECT value FROM meta WHERE key = ?")                                                 \
    X(SET, "INSERT OR REPLACE INTO meta(key, value) VALUES(?, ?)")                                 \
    X(FIND, "SELECT " FILE_COLUMNS " FROM file WHERE name = ?")                                    \
    X(PUT, "INSERT INTO file(" FILE_COLUMNS ") VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)"         \
           " ON CONFLICT(name) DO UPDATE SET tier = ?2, pinned = ?3, nbytes = ?4, mtime_ns = ?5,"  \
           " rank = ?6, has_checksum = ?7, checksum = ?8, dirty = ?9")                             \
    X(REMOVE, "DELETE FROM file WHERE name = ?")                                                   \
    X(LIST, "SELECT " FILE_COLUMNS " FROM file WHERE name > ? AND name >= ?"                       \
            " ORDER BY name LIMIT ?")                                                              \
    X(COLDEST, OF_TIER " AND rank < ? AND (rank, name) > (?, ?) ORDER BY rank, name LIMIT ?")      \
    X(HOTTEST, OF_TIER " AND rank >= ? AND (rank, name) < (?, ?)"                                  \
                       " ORDER BY rank DESC, name DESC LIMIT ?")                                   \
    X(CHANGE_ADD, "INSERT INTO change(" CHANGE_COLUMNS ") VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")   \
    X(CHANGE_FIND, "SELECT " CHANGE_COLUMNS " FROM change WHERE name = ?")                         \
    X(CHANGE_UPDATE, "UPDATE change SET kind = ?2, stage = ?3, from_tier = ?4, to_tier = ?5,"      \
                     " id = ?6, nbytes = ?7, mtime_ns = ?8, checksum = ?9, session = ?10"          \
                     " WHERE name = ?1")                                                           \
    X(CHANGE_REMOVE, "DELETE FROM change WHERE name = ?")                                          \
    X(CHANGE_NEXT, "SELECT " CHANGE_COLUMNS " FROM change WHERE name > ? ORDER BY name LIMIT 1")   \
    X(SUMS, "SELECT nbytes, nfiles, reserved, accesses, moved_in_nbytes, moved_in"                 \
            " FROM tier WHERE tier = ?")                                                           \
    X(COUNT, "UPDATE tier SET accesses = accesses + ?2, moved_in = moved_in + ?3,"                 \
             " moved_in_nbytes = moved_in_nbytes + ?4 WHERE tier = ?1")                            \
    X(RERANK, "UPDATE file SET rank = rank * ?1 + ?2 WHERE rank > -9e999")

enum statement {
#define X(name, text) SQL_##name,
    STATEMENTS(X)
#undef X
        NSTATEMENTS
};

static const char *const texts[NSTATEMENTS] = {
#define X(name, text) [SQL_##name] = text,
    STATEMENTS(X)
#undef X
};

struct tiers_catalogue {
    sqlite3 *db;
    pthread_mutex_t lock; /* recursive: of the connection; held by a transaction's thread */
    sqlite3_stmt *statements[NSTATEMENTS];
};

static gpunvme_err_t error_of(sqlite3 *db, int code)
{
    int error = sqlite3_system_errno(db);

    switch (code & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return GPUNVME_ERR_TIMEOUT;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_ERROR: /* a table that should be there is not */
        return GPUNVME_ERR_VERIFY;
    case SQLITE_FULL:
        return GPUNVME_ERR_NOSPC;
    case SQLITE_READONLY:
        return GPUNVME_ERR_READONLY;
    case SQLITE_NOMEM:
        return GPUNVME_ERR_NOMEM;
    default:
        if (code == SQLITE_CONSTRAINT_PRIMARYKEY)
            return GPUNVME_ERR_BUSY; /* the name has a change */
        return error ? base_err_from_errno(error) : GPUNVME_ERR_IO;
    }
}

static gpunvme_err_t fail(sqlite3 *db, int code)
{
    const gpunvme_err_t err = error_of(db, code);
    const char *path = err == GPUNVME_ERR_NOSPC ? sqlite3_db_filename(db, "main") : NULL;

    if (path && *path) {
        tiers_reserve_use(path);
        return base_fail(err, "the catalogue %.120s: %.100s", path, sqlite3_errmsg(db));
    }
    return base_fail(err, "the catalogue: %.150s", sqlite3_errmsg(db));
}

static gpunvme_err_t damaged(const char *what)
{
    return base_fail(GPUNVME_ERR_VERIFY, "the catalogue is damaged: %s", what);
}

/* ---- Statements ------------------------------------------------------------------------------ */

/*
 * Binds a statement's parameters, by a letter each: t text, i uint64_t, s int, d double. Locks the
 * connection; finish() follows, whatever this returns.
 */
static gpunvme_err_t start(struct tiers_catalogue *c, enum statement which, const char *types, ...)
{
    sqlite3_stmt **s = &c->statements[which];
    int code = SQLITE_OK;
    va_list args;

    pthread_mutex_lock(&c->lock);
    if (!*s)
        code = sqlite3_prepare_v3(c->db, texts[which], -1, SQLITE_PREPARE_PERSISTENT, s, NULL);
    va_start(args, types);
    for (int i = 1; !code && *types; i++)
        switch (*types++) {
        case 't':
            code = sqlite3_bind_text(*s, i, va_arg(args, const char *), -1, SQLITE_STATIC);
            break;
        case 'i':
            code = sqlite3_bind_int64(*s, i, (sqlite3_int64)va_arg(args, uint64_t));
            break;
        case 's':
            code = sqlite3_bind_int(*s, i, va_arg(args, int));
            break;
        default:
            code = sqlite3_bind_double(*s, i, va_arg(args, double));
        }
    va_end(args);
    return code ? fail(c->db, code) : GPUNVME_OK;
}

/* Whether there is a row (more); NOT_FOUND where there is not. */
static gpunvme_err_t next_row(struct tiers_catalogue *c, enum statement which)
{
    int code = sqlite3_step(c->statements[which]);

    if (code == SQLITE_ROW)
        return GPUNVME_OK;
    return code == SQLITE_DONE ? GPUNVME_ERR_NOT_FOUND : fail(c->db, code);
}

static gpunvme_err_t finish(struct tiers_catalogue *c, enum statement which, gpunvme_err_t err)
{
    sqlite3_reset(c->statements[which]);
    pthread_mutex_unlock(&c->lock);
    return err;
}

/* A statement that gives no rows, behind its start(). */
static gpunvme_err_t run(struct tiers_catalogue *c, enum statement which, gpunvme_err_t err)
{
    if (!err)
        err = next_row(c, which);
    return finish(c, which, err == GPUNVME_ERR_NOT_FOUND ? GPUNVME_OK : err);
}

/* ---- Opening --------------------------------------------------------------------------------- */

static gpunvme_err_t execute(sqlite3 *db, const char *sql)
{
    int code = sqlite3_exec(db, sql, NULL, NULL, NULL);

    return code ? fail(db, code) : GPUNVME_OK;
}

static gpunvme_err_t format_of(sqlite3 *db, int *format)
{
    sqlite3_stmt *s = NULL;
    int code = sqlite3_prepare_v2(db, "PRAGMA user_version", -1, &s, NULL);

    if (!code)
        code = sqlite3_step(s);
    *format = code == SQLITE_ROW ? sqlite3_column_int(s, 0) : 0;
    sqlite3_finalize(s);
    return code == SQLITE_ROW ? GPUNVME_OK : fail(db, code);
}

static gpunvme_err_t make_tables(sqlite3 *db)
{
    char version[32];
    gpunvme_err_t err = execute(db, "PRAGMA journal_mode = WAL; BEGIN IMMEDIATE");

    snprintf(version, sizeof(version), "PRAGMA user_version = %d", FORMAT);
    if (!err)
        err = execute(db, schema);
    if (!err)
        err = execute(db, version);
    return err ? err : execute(db, "COMMIT");
}

static gpunvme_err_t set_up(struct tiers_catalogue *c, const char *path, bool create,
                            uint64_t timeout_ns)
{
    const uint64_t ms = timeout_ns / 1000000 + 1;
    int how = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | (create ? SQLITE_OPEN_CREATE : 0);
    int code = sqlite3_open_v2(path, &c->db, how, NULL), format;
    gpunvme_err_t err;

    if (!c->db)
        return base_fail(GPUNVME_ERR_NOMEM, "the catalogue");
    if (code)
        return fail(c->db, code);
    sqlite3_extended_result_codes(c->db, 1);
    sqlite3_busy_timeout(c->db, ms < INT32_MAX ? (int)ms : INT32_MAX);
    err = execute(c->db, "PRAGMA synchronous = FULL");
    if (!err)
        err = format_of(c->db, &format);
    if (!err && !format && create)
        return make_tables(c->db);
    if (!err && format > FORMAT)
        err = base_fail(GPUNVME_ERR_UNSUPPORTED,
                        "the catalogue has format %d, and this build knows %d: use a newer one",
                        format, FORMAT);
    return !err && format < 1 ? damaged("it has no tables") : err;
}

gpunvme_err_t tiers_catalogue_open(const char *path, bool create, uint64_t timeout_ns,
                                   struct tiers_catalogue **out)
{
    struct tiers_catalogue *c = calloc(1, sizeof(*c));
    pthread_mutexattr_t attr;
    struct base_failure why;
    gpunvme_err_t err;

    *out = NULL;
    if (!c)
        return base_fail(GPUNVME_ERR_NOMEM, "the catalogue");
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&c->lock, &attr);
    pthread_mutexattr_destroy(&attr);
    err = set_up(c, path, create, timeout_ns);
    if (!err)
        *out = c;
    else {
        base_keep(&why, err);
        tiers_catalogue_close(c);
        err = base_restore(&why);
    }
    return err;
}

void tiers_catalogue_close(struct tiers_catalogue *c)
{
    if (!c)
        return;
    for (int i = 0; i < NSTATEMENTS; i++)
        sqlite3_finalize(c->statements[i]);
    sqlite3_close(c->db);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* ---- Transactions ---------------------------------------------------------------------------- */

gpunvme_err_t tiers_catalogue_begin(struct tiers_catalogue *c)
{
    gpunvme_err_t err;

    pthread_mutex_lock(&c->lock);
    err = run(c, SQL_BEGIN, start(c, SQL_BEGIN, ""));
    if (err)
        pthread_mutex_unlock(&c->lock);
    return err;
}

gpunvme_err_t tiers_catalogue_end(struct tiers_catalogue *c, gpunvme_err_t err)
{
    struct base_failure why;

    if (!err)
        err = run(c, SQL_COMMIT, start(c, SQL_COMMIT, ""));
    base_keep(&why, err);
    if (!sqlite3_get_autocommit(c->db)) /* some errors have rolled it back already */
        run(c, SQL_ROLLBACK, start(c, SQL_ROLLBACK, ""));
    pthread_mutex_unlock(&c->lock);
    return base_restore(&why);
}

/* ---- Texts by key ---------------------------------------------------------------------------- */

gpunvme_err_t tiers_catalogue_get(struct tiers_catalogue *c, const char *key, char *value,
                                  size_t room)
{
    gpunvme_err_t err = start(c, SQL_GET, "t", key);

    if (!err)
        err = next_row(c, SQL_GET);
    if (!err) {
        const char *text = (const char *)sqlite3_column_text(c->statements[SQL_GET], 0);

        if (!text || strlen(text) >= room)
            err = damaged(key);
        else
            strcpy(value, text);
    }
    return finish(c, SQL_GET, err);
}

gpunvme_err_t tiers_catalogue_set(struct tiers_catalogue *c, const char *key, const char *value)
{
    return run(c, SQL_SET, start(c, SQL_SET, "tt", key, value));
}

/* ---- Files ----------------------------------------------------------------------------------- */

static bool is_tier(int tier, int least)
{
    return tier >= least && tier < GPUNVME_NTIERS;
}

/* Texts are copied, and cut where they are too long: then they are not what was asked for. */
static gpunvme_err_t read_row(sqlite3_stmt *s, struct tiers_row *row)
{
    const char *name = (const char *)sqlite3_column_text(s, 0);

    snprintf(row->name, sizeof(row->name), "%s", name ? name : "");
    row->tier = sqlite3_column_int(s, 1);
    row->pinned = sqlite3_column_int(s, 2);
    row->nbytes = (uint64_t)sqlite3_column_int64(s, 3);
    row->mtime_ns = sqlite3_column_int64(s, 4);
    row->rank = sqlite3_column_double(s, 5);
    row->has_checksum = sqlite3_column_int(s, 6);
    row->checksum = (uint64_t)sqlite3_column_int64(s, 7);
    row->dirty = sqlite3_column_int(s, 8);
    if (!is_tier(row->tier, 0) || !is_tier(row->pinned, -1) || row->nbytes > INT64_MAX)
        return damaged("a file's row");
    return GPUNVME_OK;
}

static gpunvme_err_t one_row(struct tiers_catalogue *c, enum statement which, struct tiers_row *row,
                             gpunvme_err_t err)
{
    if (!err)
        err = next_row(c, which);
    return err ? err : read_row(c->statements[which], row);
}

gpunvme_err_t tiers_catalogue_find(struct tiers_catalogue *c, const char *name,
                                   struct tiers_row *row)
{
    return finish(c, SQL_FIND, one_row(c, SQL_FIND, row, start(c, SQL_FIND, "t", name)));
}

gpunvme_err_t tiers_catalogue_put(struct tiers_catalogue *c, const struct tiers_row *row)
{
    return run(c, SQL_PUT,
               start(c, SQL_PUT, "tssiidsis", row->name, row->tier, row->pinned, row->nbytes,
                     (uint64_t)row->mtime_ns, row->rank, (int)row->has_checksum, row->checksum,
                     (int)row->dirty));
}

gpunvme_err_t tiers_catalogue_remove(struct tiers_catalogue *c, const char *name)
{
    return run(c, SQL_REMOVE, start(c, SQL_REMOVE, "t", name));
}

/* Behind its start(): as many rows as there are and have room. */
static gpunvme_err_t rows_of(struct tiers_catalogue *c, enum statement which, const char *prefix,
                             struct tiers_row *rows, size_t room, size_t *n, gpunvme_err_t err)
{
    const size_t length = strlen(prefix);

    *n = 0;
    while (!err && *n < room) {
        err = one_row(c, which, &rows[*n], GPUNVME_OK);
        if (!err && strncmp(rows[*n].name, prefix, length) != 0)
            err = GPUNVME_ERR_NOT_FOUND;
        if (!err)
            ++*n;
    }
    return finish(c, which, err == GPUNVME_ERR_NOT_FOUND ? GPUNVME_OK : err);
}

gpunvme_err_t tiers_catalogue_list(struct tiers_catalogue *c, const char *prefix, const char *after,
                                   struct tiers_row *rows, size_t room, size_t *n)
{
    return rows_of(c, SQL_LIST, prefix, rows, room, n,
                   start(c, SQL_LIST, "tti", after, prefix, (uint64_t)room));
}

gpunvme_err_t tiers_catalogue_by_rank(struct tiers_catalogue *c, int tier, double rank, bool rising,
                                      const struct tiers_row *after, struct tiers_row *rows,
                                      size_t room, size_t *n)
{
    const enum statement which = rising ? SQL_COLDEST : SQL_HOTTEST;
    const double from = after ? after->rank : rising ? -INFINITY : INFINITY;
    const char *name = after ? after->name : "";

    return rows_of(c, which, "", rows, room, n,
                   start(c, which, "sddti", tier, rank, from, name, (uint64_t)room));
}

/* ---- Changes --------------------------------------------------------------------------------- */

static gpunvme_err_t read_change(sqlite3_stmt *s, struct tiers_change *change)
{
    const char *name = (const char *)sqlite3_column_text(s, 0);
    const char *session = (const char *)sqlite3_column_text(s, 9);
    int kind = sqlite3_column_int(s, 1), stage = sqlite3_column_int(s, 2);

    snprintf(change->name, sizeof(change->name), "%s", name ? name : "");
    change->kind = (enum tiers_kind)kind;
    change->stage = (enum tiers_stage)stage;
    change->from = sqlite3_column_int(s, 3);
    change->to = sqlite3_column_int(s, 4);
    change->id = (uint64_t)sqlite3_column_int64(s, 5);
    change->nbytes = (uint64_t)sqlite3_column_int64(s, 6);
    change->mtime_ns = sqlite3_column_int64(s, 7);
    change->checksum = (uint64_t)sqlite3_column_int64(s, 8);
    snprintf(change->session, sizeof(change->session), "%s", session ? session : "");
    if (kind < TIERS_MOVE || kind > TIERS_REMOVE || stage < TIERS_COPYING ||
        stage > TIERS_COMMITTED || !is_tier(change->from, -1) || !is_tier(change->to, -1) ||
        change->nbytes > INT64_MAX)
        return damaged("a change's row");
    return GPUNVME_OK;
}

static gpunvme_err_t write_change(struct tiers_catalogue *c, enum statement which,
                                  const struct tiers_change *change)
{
    return run(c, which,
               start(c, which, "tssssiiiit", change->name, (int)change->kind, (int)change->stage,
                     change->from, change->to, change->id, change->nbytes,
                     (uint64_t)change->mtime_ns, change->checksum, change->session));
}

static gpunvme_err_t one_change(struct tiers_catalogue *c, enum statement which, const char *name,
                                struct tiers_change *change)
{
    gpunvme_err_t err = start(c, which, "t", name);

    if (!err)
        err = next_row(c, which);
    if (!err)
        err = read_change(c->statements[which], change);
    return finish(c, which, err);
}

gpunvme_err_t tiers_catalogue_change_add(struct tiers_catalogue *c,
                                         const struct tiers_change *change)
{
    return write_change(c, SQL_CHANGE_ADD, change);
}

gpunvme_err_t tiers_catalogue_change_find(struct tiers_catalogue *c, const char *name,
                                          struct tiers_change *change)
{
    return one_change(c, SQL_CHANGE_FIND, name, change);
}

gpunvme_err_t tiers_catalogue_change_update(struct tiers_catalogue *c,
                                            const struct tiers_change *change)
{
    return write_change(c, SQL_CHANGE_UPDATE, change);
}

gpunvme_err_t tiers_catalogue_change_remove(struct tiers_catalogue *c, const char *name)
{
    return run(c, SQL_CHANGE_REMOVE, start(c, SQL_CHANGE_REMOVE, "t", name));
}

gpunvme_err_t tiers_catalogue_change_next(struct tiers_catalogue *c, const char *after,
                                          struct tiers_change *change)
{
    return one_change(c, SQL_CHANGE_NEXT, after, change);
}

/* ---- Sums ------------------------------------------------------------------------------------ */

gpunvme_err_t tiers_catalogue_sums(struct tiers_catalogue *c, int tier, struct tiers_sums *sums)
{
    uint64_t *const fields[] = {&sums->nbytes,   &sums->nfiles,          &sums->reserved,
                                &sums->accesses, &sums->moved_in_nbytes, &sums->moved_in};
    gpunvme_err_t err = start(c, SQL_SUMS, "s", tier);

    if (!err)
        err = next_row(c, SQL_SUMS);
    if (err == GPUNVME_ERR_NOT_FOUND)
        err = damaged("a tier's row is not there");
    for (int i = 0; !err && i < 6; i++)
        *fields[i] = (uint64_t)sqlite3_column_int64(c->statements[SQL_SUMS], i);
    return finish(c, SQL_SUMS, err);
}

gpunvme_err_t tiers_catalogue_count(struct tiers_catalogue *c, int tier, uint64_t accesses,
                                    uint64_t moved_in, uint64_t moved_in_nbytes)
{
    return run(c, SQL_COUNT,
               start(c, SQL_COUNT, "siii", tier, accesses, moved_in, moved_in_nbytes));
}

gpunvme_err_t tiers_catalogue_rerank(struct tiers_catalogue *c, double factor, double add)
{
    return run(c, SQL_RERANK, start(c, SQL_RERANK, "dd", factor, add));
}
