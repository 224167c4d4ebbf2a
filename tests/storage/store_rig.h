/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Every backend of stores against the same oracle: an ordinary file, moved by pread(2), pwrite(2)
 * and ftruncate(2). A row says how a backend's store is made and what it can do; a walk does
 * random transfers with it, in all the ways that there are, and compares.
 *
 * What goes wrong is written down, not asserted: walks run in threads of their own.
 */
#ifndef TESTS_STORE_RIG_H
#define TESTS_STORE_RIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/random.h"
#include "gpunvme/memory.h"
#include "gpunvme/storage.h"
#include "patience.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RIG_SLOW 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define RIG_SLOW 1
#endif
#endif
#ifndef RIG_SLOW
#define RIG_SLOW 0
#endif

#define RIG_NBYTES (24u << 20) /* of a store of fixed size; files grow to as much */

enum rig_kind { RIG_FILE, RIG_SIM, RIG_IMAGE, RIG_VFIO_USER, RIG_STRIPE, RIG_CUFILE, RIG_SPDK };

struct rig_row {
    const char *name;
    enum rig_kind kind;
    const char *folder;  /* RIG_FILE: where the file is */
    const char *options; /* what follows '?'; RIG_SIM: the controller's own;
                            RIG_STRIPE: how the last member is opened */
};

extern const struct rig_row rig_rows[];
extern const size_t rig_nrows;
const struct rig_row *rig_row_named(const char *name);

struct rig {
    const struct rig_row *row;
    struct gpunvme_store *store;
    struct gpunvme_store_info info;
    char path[256]; /* of the file, the image or the socket; "" */
    char uri[1024];
    int oracle; /* what the store must be like */
    pid_t server;
    uint64_t seed;
    bool skip;     /* this build, or machine, has no such store; `why` says so */
    char why[512]; /* … or why it could not be opened */
};

/*
 * An empty store (a file: of 0 bytes; others: of RIG_NBYTES zeroes) and its oracle. `options` are
 * added to the row's, NULL: none; those of a controller begin with ','.
 */
bool rig_open(struct rig *rig, const struct rig_row *row, const char *options);
/* Opens it again as it is. */
bool rig_reopen(struct rig *rig);
/* Closes it, says what went wrong if something did, and deletes all. */
bool rig_close(struct rig *rig);
/* Whether all of the store is as the oracle is; `why` says where not. */
bool rig_same(struct rig *rig);
/* The same, of what any program sees in the store's file. */
bool rig_file_same(struct rig *rig);
uint64_t rig_oracle_size(const struct rig *rig);
/* Puts random bytes into the first `nbytes` of both. */
bool rig_fill(struct rig *rig, uint64_t nbytes);

/* A number from the environment, or its default. */
uint64_t rig_number(const char *name, uint64_t otherwise);

/* ---- Walks -------------------------------------------------------------------------------------
 */

#define RIG_NARENAS 6 /* two of each kind of memory; one of the two gets registered at times */
#define RIG_ARENA   (6u << 20)
#define RIG_MARGIN  64u

struct rig_arena {
    struct gpunvme_buf buf;
    enum gpunvme_mem mem;
    uint8_t *ptr;
    size_t used;    /* by the current transfers */
    uint8_t *begin; /* of the part that is registered */
    bool registered;
};

/* A planned transfer, and what must come of it. */
struct rig_plan {
    struct gpunvme_io io;    /* first: an io is its plan */
    struct rig_arena *arena; /* NULL: a flush, or nothing at NULL */
    size_t at;               /* in the arena */
    size_t expected;         /* bytes */
    const uint8_t *source;   /* of a write */
    uint8_t poison;          /* of the margins, and of what a read has not filled */
    char detail[256];        /* of its error, where the transfer itself does not know */
};

/* A write, or a change of the size (source: NULL), that has been done. */
#define RIG_HISTORY 16384u
struct rig_past {
    uint64_t group, offset, nbytes;
    enum gpunvme_mem mem;
    const uint8_t *source;
};

struct rig_walk {
    struct rig *rig;
    struct base_random random;
    uint64_t begin, end; /* its range of the store */
    bool alone;          /* nobody else uses the store: ends are crossed, sizes changed */
    bool forgiving;      /* NOMEM is taken for an answer, and nothing compared then */
    struct rig_arena arenas[RIG_NARENAS];
    struct rig_plan *plans;
    size_t n;
    struct gpunvme_io *ios;      /* of a batch */
    uint8_t *pool, *back, *want; /* random bytes; what is copied back; what the oracle has */
    struct gpunvme_batch *batch;
    uint64_t nops, ngroups, nbytes; /* done so far */
    uint64_t nforgiven;
    struct rig_past *history; /* the last RIG_HISTORY of them */
    uint64_t nhistory;
    char why[640];
};

bool rig_walk_init(struct rig_walk *walk, struct rig *rig, uint64_t seed);
void rig_walk_free(struct rig_walk *walk);
/* One group of transfers: false when something is wrong, which `why` says. */
bool rig_step(struct rig_walk *walk);
/*
 * Steps until there have been `nops` transfers, however long they take, and as many groups as asked
 * for, or as there is time for. Transfers that are not done by RIG_DEADLINE_NS are an error.
 */
#define RIG_DEADLINE_NS (2 * PATIENCE_NS)
bool rig_walk(struct rig_walk *walk, uint64_t nops, uint64_t ngroups, uint64_t time_ns);

#endif
