/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What moves files, shared by making room (room.c), a pass of migration (migrate.c) and the threads
 * and processes that migrate (migrator.c).
 */
#ifndef DATA_TIERS_MOVER_H
#define DATA_TIERS_MOVER_H

#include "base/fail.h"
#include "data/tiers/internal.h"

/* Names by their hashes. A file that has the hash of another one's name misses a move, no more. */
struct names {
    uint64_t *hashes;
    size_t n;
};

bool names_have(const struct names *names, const char *name);
gpunvme_err_t names_add(struct names *names, const char *name);

/* A pass, or a call that needs room. */
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

/* Counts and tells that a file was moved. */
void mover_moved(struct mover *m, const char *name, int from, int to, uint64_t nbytes);

/* Tells of a file, moved or not. */
void mover_tell(struct mover *m, const char *name, int from, int to, uint64_t nbytes,
                gpunvme_err_t err);

/* Moves a file, at the rate that the set has now if there is a limit. */
gpunvme_err_t mover_move(struct mover *m, const char *name, int to);

/* tiers_make_room() by this mover. */
gpunvme_err_t mover_make_room(struct mover *m, int tier, uint64_t nbytes, double rank,
                              bool disk_is_full);

/* Files in the order of their ranks, as tiers_catalogue_by_rank() has them. */
#define CURSOR_NROWS 64u /* that are read at once */
struct cursor {
    struct tiers_catalogue *catalogue;
    int tier;
    double rank;
    bool rising;
    size_t n, at;
    struct tiers_row rows[CURSOR_NROWS], last;
};

/* NULL: NOMEM. free() frees it. */
struct cursor *cursor_open(struct tiers_catalogue *catalogue, int tier, double rank, bool rising);

/* The row where the cursor is, NULL at the end. `at` + 1 is the next one. */
gpunvme_err_t cursor_row(struct cursor *c, const struct tiers_row **row);

/* One pass of migration, until the deadline; *first is the first failure of a file. */
gpunvme_err_t mover_pass(struct mover *m, uint64_t deadline_ns, struct base_failure *first);

#endif
