/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What a set of tiers is inside, and what its parts call of one another:
 *
 *   set.c        directories, settings, opening and closing
 *   catalogue.c  the database
 *   name.c       names, and paths below a directory that no link leads out of
 *   change.c     replacing, moving and removing files, step by step; recovery from each step
 *   copy.c       bytes of one file into another, with their checksum, at a limited rate
 *   file.c       open files by name, and the accesses that were not written yet
 *   score.c      scores, and the clock that they have
 *   room.c       room in a tier, made by moving files away
 *   migrate.c    which files should move, and a pass that moves them
 *   migrator.c   which process migrates, and the threads of a set
 *   scrub.c      comparing catalogue and directories
 *   rebuild.c    making the catalogue anew
 *   tiers.c      the calls of tiers.h that join these
 */
#ifndef DATA_TIERS_INTERNAL_H
#define DATA_TIERS_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "data/tiers/catalogue.h"
#include "gpunvme/tiers.h"

#define TIERS_FOLDER   ".gpunvme-tiers" /* in each tier's directory */
#define TIERS_NCHANGES 4096u

struct tiers_files;
struct tiers_migrator;

struct gpunvme_tiers {
    struct gpunvme_tiers *next; /* open in this process */
    unsigned nforks;            /* before it was opened: store_nforks() */
    struct gpunvme_tiers_options options;
    char *file_options; /* of stores, as a URI has them: the caller's and the timeout */
    char copy_options[40];
    uint64_t timeout_ns;
    int dir_fd[GPUNVME_NTIERS];    /* of the directories */
    int folder_fd[GPUNVME_NTIERS]; /* of TIERS_FOLDER in them */
    char *dir[GPUNVME_NTIERS];     /* absolute */
    char uuid[37];
    char session[TIERS_SESSION_ROOM]; /* this opening of the set; it holds a lock on a file of this
                                         name while the process lives */
    int session_fd;
    /*
     * Memory that all processes share: how many changes of names with this hash, mod
     * TIERS_NCHANGES, have come into effect. So who has a file open learns without a system call
     * that the name may have another version.
     */
    _Atomic uint32_t *changes;
    struct tiers_catalogue *catalogue;
    struct tiers_files *files;
    struct tiers_migrator *migrator;
};

/* UNSUPPORTED in a child of the process that opened the set. */
gpunvme_err_t tiers_check_process(const struct gpunvme_tiers *t);

/* The settings now, other processes' changes included; `dir` is not set. */
gpunvme_err_t tiers_settings(struct gpunvme_tiers *t, struct gpunvme_tiers_settings *settings);

/* The set's time now (score.h), in seconds: of the clock that the catalogue keeps. */
gpunvme_err_t tiers_now(struct gpunvme_tiers *t, double *t_s);

/* The same, in a transaction, and keeps the clock. */
gpunvme_err_t tiers_clock_keep(struct gpunvme_tiers *t, double *t_s);

/* The facts of a row at that time, as tiers.h has them; its name is the row's. */
void tiers_file_of_row(const struct tiers_row *row, double t_s, double half_life_s,
                       struct gpunvme_tiers_file *file);

/* Whether the process that opened the set as `session` lives and has it open. */
bool tiers_session_lives(struct gpunvme_tiers *t, const char *session);

/*
 * Opens a set but for its catalogue: directories and a session. NOT_FOUND: it has not been made to
 * its end, unless the caller is `making` it.
 */
gpunvme_err_t tiers_set_open(const char *dir, const struct gpunvme_tiers_options *options,
                             bool making, struct gpunvme_tiers **out);
/* gpunvme_tiers_open(), likewise. */
gpunvme_err_t tiers_open(const char *dir, const struct gpunvme_tiers_options *options, bool making,
                         struct gpunvme_tiers **out);

void tiers_set_release(struct gpunvme_tiers *t); /* closes the catalogue as well, if there is one */

/* BUSY: there is another session. */
gpunvme_err_t tiers_set_alone(struct gpunvme_tiers *t);

/* Makes a catalogue without files, as that file of the hot tier's TIERS_FOLDER. */
gpunvme_err_t tiers_set_catalogue(struct gpunvme_tiers *t, const char *file,
                                  struct tiers_catalogue **out);

uint64_t tiers_hash(const char *name);

/* How many changes of the name, and of some others, have come into effect. */
static inline uint32_t tiers_nchanges(const struct gpunvme_tiers *t, uint64_t hash)
{
    return atomic_load_explicit(&t->changes[hash % TIERS_NCHANGES], memory_order_acquire);
}

/* Says that a name has another version, or another place, than before: all look it up again. */
static inline void tiers_changed(struct gpunvme_tiers *t, const char *name)
{
    atomic_fetch_add(&t->changes[tiers_hash(name) % TIERS_NCHANGES], 1);
}

/* ---- name.c: INVALID and PERMISSION as tiers.h has them ---- */

gpunvme_err_t tiers_name_check(const char *name);

/* Opens the regular file `name` below a directory; `flags` as open(2). NOT_FOUND. */
gpunvme_err_t tiers_name_open(int dir_fd, const char *name, int flags, int *fd);

/*
 * Gives the file `temporary` of `folder_fd` the place `name`, whose folders are made. What is there
 * is replaced, or, without `replace`, is an error: EXISTS. The place is on the medium afterwards.
 */
gpunvme_err_t tiers_name_publish(int folder_fd, const char *temporary, int dir_fd, const char *name,
                                 bool replace);

/* The place that a name has is on the medium. */
gpunvme_err_t tiers_name_flush(int dir_fd, const char *name);

/* Removes it, and then folders that are empty; nothing there is fine. On the medium afterwards. */
gpunvme_err_t tiers_name_unlink(int dir_fd, const char *name);

/* ---- change.c ---- */

/*
 * The steps of a change. tiers_step() is called before each, does nothing, and is where tests end
 * the process.
 */
enum tiers_step {
    TIERS_STEP_PREPARE, /* the change's row is not there */
    TIERS_STEP_CREATE,  /* the row is; the temporary file is not */
    TIERS_STEP_COPY,    /* called again after each piece */
    TIERS_STEP_FLUSH,   /* all bytes are written */
    TIERS_STEP_PUBLISH, /* they are on the medium; the row says PUBLISHING */
    TIERS_STEP_COMMIT,  /* the new version has its place */
    TIERS_STEP_UNLINK,  /* the catalogue has it; or the change goes back, and its copy is there */
    TIERS_STEP_END,     /* the old version, or that copy, is gone; the row is there */
    TIERS_STEP_ENDED,
    TIERS_NSTEPS,
    /* Not of a change: before each part of making a set, of configuring, scrubbing and rebuilding
     * it, and of a write in place. */
    TIERS_STEP_PART = TIERS_NSTEPS
};
void tiers_step(enum tiers_step step, const char *name);

/*
 * Moves a file to another tier. `limit` (may be NULL) is the rate, `stop` (may be NULL) ends it:
 * CANCELED. Room must have been made. Errors as gpunvme_tiers_move() has them.
 */
struct tiers_rate;
gpunvme_err_t tiers_change_move(struct gpunvme_tiers *t, const char *name, int to,
                                struct tiers_rate *limit, const atomic_bool *stop);

/* What a file is made of: memory, or a store from its beginning on. */
struct tiers_source {
    const void *ptr;
    enum gpunvme_mem mem;
    struct gpunvme_store *store; /* NULL: the memory */
    uint64_t nbytes;
    bool only_new; /* AGAIN where there is a file */
};

/* Replaces or makes a file in a tier, for which it makes room of files below `rank`. */
gpunvme_err_t tiers_change_put(struct gpunvme_tiers *t, const char *name, int tier, double rank,
                               const struct tiers_source *source, uint64_t deadline_ns);
gpunvme_err_t tiers_change_remove(struct gpunvme_tiers *t, const char *name, uint64_t deadline_ns);

/*
 * Waits until a name has no change, and ends that of a process that died. NOT_FOUND: it had none.
 * BUSY: it still has one.
 */
gpunvme_err_t tiers_change_wait(struct gpunvme_tiers *t, const char *name, uint64_t deadline_ns);

/*
 * Ends the change of a process that died, by its stage. BUSY: its process lives. NOT_FOUND: there
 * is none.
 */
gpunvme_err_t tiers_change_recover(struct gpunvme_tiers *t, const char *name);

/* The same for all; *n counts them. */
gpunvme_err_t tiers_change_recover_all(struct gpunvme_tiers *t, uint64_t *n);

/* ---- reserve.c ---- */

/*
 * Keeps some space for the catalogue before a tier gets more bytes. NOSPC: the tier is on the
 * catalogue's file system, which has no more than that left.
 */
gpunvme_err_t tiers_reserve_keep(struct gpunvme_tiers *t, int tier);

/* How much space that would take. */
uint64_t tiers_reserve_lacks(const struct gpunvme_tiers *t, int tier);

/* ---- copy.c ---- */

/* At most so many bytes a second, over all copies that share it. */
struct tiers_rate {
    _Atomic uint64_t bytes_per_s; /* 0: no limit; may be changed at any time */
    _Atomic uint64_t free_at_ns;  /* the monotonic time when the bytes so far are paid for */
};

/*
 * Copies `nbytes` bytes of a store into a descriptor, which it extends before; *checksum is of what
 * was copied. `stop` (may be NULL) ends it: CANCELED. NOSPC.
 */
gpunvme_err_t tiers_copy(struct gpunvme_tiers *t, struct gpunvme_store *from, uint64_t nbytes,
                         int to_fd, const char *name, struct tiers_rate *limit,
                         const atomic_bool *stop, uint64_t *checksum);

/* The checksum of a file's bytes. */
gpunvme_err_t tiers_checksum(struct gpunvme_tiers *t, int fd, const char *name,
                             struct tiers_rate *limit, const atomic_bool *stop, uint64_t *nbytes,
                             uint64_t *checksum);

/* ---- file.c ---- */

/* Size and time are those of the row, unless it is dirty. */
bool tiers_is_as(const struct tiers_row *row, int fd);

/*
 * Opens the file that a name has now, as its row says: the row goes to *row. NOT_FOUND: there is no
 * row. VERIFY: something else changed or removed the file.
 */
gpunvme_err_t tiers_open_file(struct gpunvme_tiers *t, const char *name, int flags,
                              uint64_t deadline_ns, struct tiers_row *row, int *fd);

/* A file that is open, and in use by a call. */
struct tiers_open {
    struct gpunvme_store *store;
    int tier;
};

gpunvme_err_t tiers_files_create(struct tiers_files **out);

/* Closes all files. TIMEOUT: a transfer did not end; what is open stays. */
gpunvme_err_t tiers_files_close(struct gpunvme_tiers *t);

/*
 * The file that a name has now, for reading, or for writing as well. It is the caller's until put,
 * which counts accesses. get takes it from the table of open files, or opens it. begin_write takes
 * the lock that keeps it where it is: BUSY: it is being moved; AGAIN: the name has another file by
 * now.
 */
gpunvme_err_t tiers_files_get(struct gpunvme_tiers *t, const char *name, bool write,
                              struct tiers_open **out);
gpunvme_err_t tiers_files_begin_write(struct gpunvme_tiers *t, struct tiers_open *open);
void tiers_files_end_write(struct tiers_open *open);
void tiers_files_put(struct gpunvme_tiers *t, struct tiers_open *open, unsigned accesses);

/* Whether the table had no place for it, so that it is open for this call alone. */
bool tiers_files_is_loose(const struct tiers_open *open);

/* Opens it as a store of the caller's. */
gpunvme_err_t tiers_files_open(struct gpunvme_tiers *t, const char *name,
                               struct gpunvme_store **out, int *tier);

/* Counts accesses of any file, without writing them to the catalogue. */
void tiers_files_count_name(struct gpunvme_tiers *t, const char *name, int tier, uint64_t accesses);

/* Accesses that are not in the catalogue yet. */
uint64_t tiers_files_unwritten(struct gpunvme_tiers *t, const char *name);

/* Adds accesses that were not written yet to the catalogue, and closes files that their names no
 * longer have. Called now and then, and at close. */
gpunvme_err_t tiers_files_flush(struct gpunvme_tiers *t);

/* ---- room.c, migrate.c, migrator.c ---- */

/* NOSPC, with a detail that says which tier, its directory, what was needed, what is free, and
 * why. */
gpunvme_err_t tiers_no_room(struct gpunvme_tiers *t, int tier, uint64_t nbytes, uint64_t left,
                            const char *why);

/*
 * The same for the file system of a tier; `why` is the detail that there is. The space of an
 * unfinished copy (or -1), which its caller gives up, counts as free.
 */
gpunvme_err_t tiers_disk_full(struct gpunvme_tiers *t, int tier, uint64_t nbytes, int copy_fd);

/* Whether the capacity of a tier has room for so many bytes more: NOSPC. In the transaction that
 * takes the room. */
gpunvme_err_t tiers_fits(struct gpunvme_tiers *t, int tier, uint64_t nbytes);

/*
 * Makes room: while `tier` has not got `nbytes` left under its capacity, moves files whose rank is
 * lower than `rank` to slower tiers, lowest first. NOSPC. The caller adds its change at once in the
 * same transaction as a check of the sums, and calls again if others were faster. `disk_is_full`:
 * the tier's file system refused the bytes, so files move to other file systems until it has space.
 */
gpunvme_err_t tiers_make_room(struct gpunvme_tiers *t, int tier, uint64_t nbytes, double rank,
                              bool disk_is_full);

bool tiers_on_one_disk(const struct gpunvme_tiers *t, int a, int b);

/* The tier that a file belongs into, by the policy. */
int tiers_policy(struct gpunvme_tiers *t, const struct tiers_row *row);

gpunvme_err_t tiers_migrator_start(struct gpunvme_tiers *t); /* a thread: flushes; MIGRATE: moves */
void tiers_migrator_stop(struct gpunvme_tiers *t);           /* cancels a copy */

void tiers_migrator_in_child(struct gpunvme_tiers *t); /* of fork(2) */

/* Whether a process has the job of migration. */
bool tiers_migrating(struct gpunvme_tiers *t);

/* ---- scrub.c ---- */

/* Takes all files into a catalogue that has none yet; scores and pins from an `old` one, which may
 * be damaged, or NULL. */
gpunvme_err_t tiers_take_in(struct gpunvme_tiers *t, struct tiers_catalogue *old);

#endif
