/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The catalogue of a set of tiers, an SQLite database in WAL mode. The only file that knows SQL.
 * Knows nothing of directories and of how files are copied.
 *
 *   file    one row a name: where it is, and its facts
 *   change  one row a name that is on its way: who does it and how far it is. A row is the lock of
 *           its name between processes
 *   tier    three rows: sums over files (kept by triggers) and counters
 *   meta    the set's UUID, the clock of scores, settings that are numbers
 *
 * PRAGMA user_version is the version of the format; PRAGMA synchronous = FULL, so what was
 * committed stays. All functions may be called by several threads; begin holds the connection until
 * commit or rollback. Errors: TIMEOUT (the database is locked for the timeout), VERIFY (it is
 * damaged), UNSUPPORTED (its format is newer), NOSPC, READONLY, IO, NOMEM.
 */
#ifndef DATA_TIERS_CATALOGUE_H
#define DATA_TIERS_CATALOGUE_H

#include "gpunvme/tiers.h"

#define TIERS_SESSION_ROOM 33 /* 32 hexadecimal digits and the 0 */

/* Behind the catalogue's path: a file that keeps space for it. A call that finds the file system
 * full removes it, so the next one succeeds. */
#define TIERS_RESERVE_SUFFIX ".reserve"
#define TIERS_RESERVE        "catalogue" TIERS_RESERVE_SUFFIX

/* Removes that file, where `path` is the catalogue's. Whether there was one. (reserve.c) */
bool tiers_reserve_use(const char *path);

struct tiers_catalogue;

/* A row of `file`. `rank` is its score in a form that time does not change: score.h. */
struct tiers_row {
    char name[GPUNVME_TIERS_NAME_MAX + 1];
    int tier, pinned;
    uint64_t nbytes;
    int64_t mtime_ns;
    double rank;
    bool has_checksum;
    uint64_t checksum;
    bool dirty; /* written in place: its time and size may be others than here */
};

enum tiers_kind { TIERS_MOVE = 0, TIERS_PUT = 1, TIERS_REMOVE = 2 };

/*
 * How far a change is. What to do with one whose process died:
 *
 *   COPYING     the copy has its temporary name: remove it; the old version stands
 *   PUBLISHING  as COPYING while the temporary name is there. If it is gone, the copy has its place
 *               in `to`, and all of it is on the medium: the new version stands, take its facts
 *               into the file's row, and go on as COMMITTED
 *   COMMITTED   the file's row has the new version (or is gone): remove the file in `from`, where
 *               that is another tier than `to`
 */
enum tiers_stage { TIERS_COPYING = 0, TIERS_PUBLISHING = 1, TIERS_COMMITTED = 2 };

/* A row of `change`. */
struct tiers_change {
    char name[GPUNVME_TIERS_NAME_MAX + 1];
    enum tiers_kind kind;
    enum tiers_stage stage;
    int from;        /* tier of the old version; -1: there is none */
    int to;          /* tier of the new version; -1: none (REMOVE) */
    uint64_t id;     /* of the temporary name, unique in the set */
    uint64_t nbytes; /* that `to` has reserved; from COMMITTED on, `from` */
    int64_t mtime_ns;
    uint64_t checksum;                /* from PUBLISHING on, with mtime_ns */
    char session[TIERS_SESSION_ROOM]; /* whose */
};

/* Opens or, with `create`, makes it; waits for locks at most timeout_ns a call. */
gpunvme_err_t tiers_catalogue_open(const char *path, bool create, uint64_t timeout_ns,
                                   struct tiers_catalogue **out);
void tiers_catalogue_close(struct tiers_catalogue *c);

/* A transaction that writes. What is called between these two by this thread belongs to it. */
gpunvme_err_t tiers_catalogue_begin(struct tiers_catalogue *c);
gpunvme_err_t tiers_catalogue_end(struct tiers_catalogue *c, gpunvme_err_t err); /* commit if OK */

/* Texts and numbers by key; NOT_FOUND. */
gpunvme_err_t tiers_catalogue_get(struct tiers_catalogue *c, const char *key, char *value,
                                  size_t room);
gpunvme_err_t tiers_catalogue_set(struct tiers_catalogue *c, const char *key, const char *value);

/* Files. find: NOT_FOUND. put inserts or replaces. */
gpunvme_err_t tiers_catalogue_find(struct tiers_catalogue *c, const char *name,
                                   struct tiers_row *row);
gpunvme_err_t tiers_catalogue_put(struct tiers_catalogue *c, const struct tiers_row *row);
gpunvme_err_t tiers_catalogue_remove(struct tiers_catalogue *c, const char *name);

/* The first names greater than `after` that begin with `prefix`, by name: at most `room`, *n. */
gpunvme_err_t tiers_catalogue_list(struct tiers_catalogue *c, const char *prefix, const char *after,
                                   struct tiers_row *rows, size_t room, size_t *n);

/*
 * Files of `tier` that are not pinned and have no change, in the order of their ranks: with
 * `rising` those below `rank`, lowest first; else those from `rank` on, highest first. The first
 * ones behind `after`, a row that this gave before; NULL: from the beginning.
 */
gpunvme_err_t tiers_catalogue_by_rank(struct tiers_catalogue *c, int tier, double rank, bool rising,
                                      const struct tiers_row *after, struct tiers_row *rows,
                                      size_t room, size_t *n);

/* Changes. add: BUSY: the name has one. next: the first with a name greater than `after`. */
gpunvme_err_t tiers_catalogue_change_add(struct tiers_catalogue *c,
                                         const struct tiers_change *change);
gpunvme_err_t tiers_catalogue_change_find(struct tiers_catalogue *c, const char *name,
                                          struct tiers_change *change);
gpunvme_err_t tiers_catalogue_change_update(struct tiers_catalogue *c,
                                            const struct tiers_change *change);
gpunvme_err_t tiers_catalogue_change_remove(struct tiers_catalogue *c, const char *name);
gpunvme_err_t tiers_catalogue_change_next(struct tiers_catalogue *c, const char *after,
                                          struct tiers_change *change);

/* Sums of a tier: of its files, and what changes have reserved in it. */
struct tiers_sums {
    uint64_t nbytes, nfiles, reserved;
    uint64_t accesses, moved_in_nbytes, moved_in;
};
gpunvme_err_t tiers_catalogue_sums(struct tiers_catalogue *c, int tier, struct tiers_sums *sums);
gpunvme_err_t tiers_catalogue_count(struct tiers_catalogue *c, int tier, uint64_t accesses,
                                    uint64_t moved_in, uint64_t moved_in_nbytes);

/* Changes the rank of each file: rank = rank * factor + add; where the half-life changes. */
gpunvme_err_t tiers_catalogue_rerank(struct tiers_catalogue *c, double factor, double add);

#endif
