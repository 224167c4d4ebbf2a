/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Storage tiers: one name space over a fast, a warm and a cold directory. Files are read and
 * written by name, wherever they lie. They move between the directories by how often they are used.
 *
 *     gpunvme_tiers_create(&(struct gpunvme_tiers_settings){0});     // once: /nvme, /ssd, /hdd
 *
 *     gpunvme_tiers_open(NULL, NULL, &tiers);
 *     gpunvme_tiers_read(tiers, "shard-000.tar", 0, gpu_ptr, GPUNVME_MEM_GPU, nbytes, &done);
 *     gpunvme_tiers_close(tiers);
 *
 * A *set* is three directories, one for each tier. A file named "a/b" lies at "a/b" of one of them,
 * as an ordinary file. What belongs to the set itself is in the folder ".gpunvme-tiers" of each
 * directory; in that of the hot tier there is the catalogue, an SQLite database. It has each file's
 * tier, size, time, checksum and score.
 *
 * Scores. Each call that reads or writes a file counts as one access. A score is the number of
 * accesses, each of which counts half after every half-life. A file belongs into the hot tier from
 * a score of `hot_at` on, into the warm tier from `warm_at` on, else into the cold one; half a
 * percent below counts as reached, so that 100 accesses within an hour count as 100. Scores that
 * are due are written every few seconds, so a process that is killed loses those.
 *
 * Names are relative paths in UTF-8 without control characters, at most GPUNVME_TIERS_NAME_MAX
 * bytes. INVALID: an empty name, one that begins with '/' or ".gpunvme-tiers", or that has "." or
 * ".." or nothing between two '/'. PERMISSION: a part of the path is a symbolic link.
 *
 * Processes. Any number of processes of one machine may use a set at once; they share its locks and
 * need no daemon. One of them migrates at a time.
 *
 * Crashes. gpunvme_tiers_put() and migration replace files as a whole: at every instant a name
 * has one whole version, the old one or the new one. Who opens a set next cleans up what a
 * process that died left behind. gpunvme_tiers_write() changes bytes in place, as pwrite(2) does.
 *
 * The set is in the build if libsqlite3 was there; UNSUPPORTED else.
 *
 * Threads: all functions may be called from several threads at once, except close. After fork(2)
 * the child's calls return UNSUPPORTED; it opens the set again.
 */
#ifndef GPUNVME_TIERS_H
#define GPUNVME_TIERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpunvme/buf.h"
#include "gpunvme/error.h"
#include "gpunvme/storage.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gpunvme_tiers;

enum gpunvme_tier {
    GPUNVME_TIER_HOT = 0,
    GPUNVME_TIER_WARM = 1,
    GPUNVME_TIER_COLD = 2,
};
#define GPUNVME_NTIERS    3
#define GPUNVME_TIER_AUTO (-1) /* the tier that the policy chooses */

#define GPUNVME_TIERS_NAME_MAX 1024u
#define GPUNVME_TIERS_NO_LIMIT UINT64_MAX /* of capacities and rates: takes a limit away again */

/* "hot", "warm", "cold"; static. */
const char *gpunvme_tier_name(int tier);

/* ---- Sets -------------------------------------------------------------------------------------
 */

/* What a set is; it is kept in the set. 0 or NULL: the default. */
struct gpunvme_tiers_settings {
    const char *dir[GPUNVME_NTIERS];          /* "/nvme", "/ssd", "/hdd" */
    uint64_t capacity_nbytes[GPUNVME_NTIERS]; /* of all files of a tier, copies in the making
                                                 among them; default: no limit */
    double hot_at, warm_at;                   /* scores; 100 and 10 */
    double half_life_s;                       /* 604,800 (a week); INFINITY: scores stay */
    uint64_t migrate_bytes_per_s;             /* at most; default: no limit */
};

/*
 * Makes a set of three directories, which must exist, and may lie on one file system. Files that
 * are in them become files of the set. If the process is killed meanwhile, opening the set fails
 * (NOT_FOUND), and the next call with these directories makes it. EXISTS: one of them belongs to a
 * set. BUSY: another process makes a set in one of them. INVALID: directories that lie in one
 * another, thresholds that are not 0 < warm_at <= hot_at. NOT_FOUND, PERMISSION, READONLY, NOSPC
 * and IO, with nothing made.
 */
gpunvme_err_t gpunvme_tiers_create(const struct gpunvme_tiers_settings *settings);

/* A file as the catalogue has it. */
struct gpunvme_tiers_file {
    const char *name;
    int tier;
    int pinned; /* to that tier; else GPUNVME_TIER_AUTO */
    uint64_t nbytes;
    int64_t mtime_ns;  /* since 1970 */
    double score;      /* now */
    bool has_checksum; /* false while it is written in place, and until it is moved or scrubbed */
    uint64_t checksum; /* as gpunvme_mem_checksum() has it */
};

/* A policy of the caller's: the tier that a file should be in, by its facts. */
typedef int gpunvme_tiers_policy(void *user, const struct gpunvme_tiers_file *file);

/*
 * Told of each file that migration of this process moved, or could not move: `err` says why, and
 * the calling thread's detail. Not of files that are in use or find no room. Another value than 0
 * ends the pass. `name` is valid until it returns.
 */
typedef int gpunvme_tiers_moved(void *user, const char *name, int from, int to, uint64_t nbytes,
                                gpunvme_err_t err);

#define GPUNVME_TIERS_MIGRATE 0x1u /* a thread of this process migrates, if no other one does */

/* How this process uses a set; all zeroes is the default. */
struct gpunvme_tiers_options {
    unsigned flags;
    struct gpunvme_engine *engine; /* NULL: the process's */
    const char *store_options;     /* of the stores that files are opened by, as a URI has them:
                                      "require=p2p"; may be NULL */
    uint64_t interval_ns;          /* between passes of migration; 0: 10 s */
    uint64_t timeout_ns;           /* of calls; 0: 30 s */
    gpunvme_tiers_policy *policy;  /* instead of the thresholds; NULL: those */
    void *policy_user;
    gpunvme_tiers_moved *moved; /* may be NULL */
    void *moved_user;
    int64_t (*clock_ns)(void *user); /* of scores, since 1970; NULL: the system's */
    void *clock_user;
};

/*
 * Opens a set by the directory of any of its tiers; NULL: "/nvme". `options` may be NULL. Cleans
 * up after processes that died. Errors: NOT_FOUND (no set is there; a tier's directory is missing,
 * or nothing is mounted there), UNSUPPORTED (a catalogue of a newer version), VERIFY (the catalogue
 * is damaged, or gone: gpunvme_tiers_rebuild()), TIMEOUT, PERMISSION, READONLY, IO.
 */
gpunvme_err_t gpunvme_tiers_open(const char *dir, const struct gpunvme_tiers_options *options,
                                 struct gpunvme_tiers **out);

/*
 * Ends the migration of this process, writes scores, and frees the set. TIMEOUT: a transfer did
 * not end; nothing was freed. NULL is fine.
 */
gpunvme_err_t gpunvme_tiers_close(struct gpunvme_tiers *tiers);

/* Changes what is not 0 or NULL of the settings, for all processes. A directory may have moved:
 * its new place is for those who open the set from then on. */
gpunvme_err_t gpunvme_tiers_configure(struct gpunvme_tiers *tiers,
                                      const struct gpunvme_tiers_settings *settings);

struct gpunvme_tier_info {
    const char *dir;          /* valid while the set is open */
    uint64_t capacity_nbytes; /* 0: no limit */
    uint64_t nbytes, nfiles;  /* of files */
    uint64_t free_nbytes;     /* of the file system */
    uint64_t accesses; /* of files while they were here, of all processes, since it was made */
    uint64_t moved_in_nbytes, moved_in; /* by migration, likewise */
};

struct gpunvme_tiers_info {
    struct gpunvme_tier_info tier[GPUNVME_NTIERS];
    struct gpunvme_tiers_settings settings; /* texts valid while the set is open */
    uint64_t moving;                        /* files on their way now */
    bool migrating;                         /* a process has the job of migration */
};

gpunvme_err_t gpunvme_tiers_get_info(struct gpunvme_tiers *tiers, struct gpunvme_tiers_info *info);

/* ---- Files ------------------------------------------------------------------------------------
 */

/*
 * Reads and writes of a file by name, as gpunvme_store_read() and gpunvme_store_write() do them:
 * `ptr` is the address that goes with `mem`, *done is the length of the valid prefix. A read is of
 * one version of the file. A write goes to the file in place, makes it longer where it must, and
 * creates it where there is none; its bytes are on the medium after gpunvme_tiers_flush(). Errors
 * beside those of stores: INVALID and PERMISSION (names), NOT_FOUND, NOSPC (the tier's capacity, if
 * nothing can be moved away from it), VERIFY (something else changed the file:
 * gpunvme_tiers_scrub() takes it as it is), TIMEOUT.
 */
gpunvme_err_t gpunvme_tiers_read(struct gpunvme_tiers *tiers, const char *name, uint64_t offset,
                                 void *ptr, enum gpunvme_mem mem, size_t nbytes, size_t *done);
gpunvme_err_t gpunvme_tiers_write(struct gpunvme_tiers *tiers, const char *name, uint64_t offset,
                                  const void *ptr, enum gpunvme_mem mem, size_t nbytes,
                                  size_t *done);
gpunvme_err_t gpunvme_tiers_flush(struct gpunvme_tiers *tiers, const char *name);

/*
 * The same for transfers of all kinds (transfer.h): opens a file for writing in place up to byte
 * `end`, and takes its tier's room for as much. *store is valid, and the file stays where it is,
 * until gpunvme_tiers_end_write(), before which all transfers must have ended. Bytes behind `end`
 * are not to be written: no capacity is kept for them. Errors as gpunvme_tiers_write().
 */
struct gpunvme_tiers_writer;
gpunvme_err_t gpunvme_tiers_begin_write(struct gpunvme_tiers *tiers, const char *name, uint64_t end,
                                        struct gpunvme_tiers_writer **out,
                                        struct gpunvme_store **store);
/* NULL is fine. */
gpunvme_err_t gpunvme_tiers_end_write(struct gpunvme_tiers *tiers,
                                      struct gpunvme_tiers_writer *writer);

/*
 * Replaces a file as a whole, or makes it: at every instant, a crash included, the name has the old
 * bytes or all of the new ones, and those are on the medium when the call returns. `tier` is where
 * it goes, or AUTO: then another one where that has no room. BUSY: the file is being replaced or
 * moved by another call, for `timeout_ns`. EXISTS: a file that the set does not know is there:
 * gpunvme_tiers_scrub() takes it in.
 */
gpunvme_err_t gpunvme_tiers_put(struct gpunvme_tiers *tiers, const char *name, int tier,
                                const void *ptr, enum gpunvme_mem mem, size_t nbytes);

/* The same with the bytes of a store, from its beginning to its end: any URI. */
gpunvme_err_t gpunvme_tiers_put_store(struct gpunvme_tiers *tiers, const char *name, int tier,
                                      struct gpunvme_store *from);

/* Removes a file. Those that have it open read on. BUSY as put. */
gpunvme_err_t gpunvme_tiers_remove(struct gpunvme_tiers *tiers, const char *name);

/* A file's facts; file->name is `name`. */
gpunvme_err_t gpunvme_tiers_stat(struct gpunvme_tiers *tiers, const char *name,
                                 struct gpunvme_tiers_file *file);

/* `file` is valid until it returns. */
typedef int gpunvme_tiers_each(void *user, const struct gpunvme_tiers_file *file);

/*
 * Calls `each` for every file whose name begins with `prefix` (NULL: all), by name, until it
 * returns something else than 0, which is returned. It may call functions of the set. The list is
 * of one moment for every 1,000 names.
 */
int gpunvme_tiers_list(struct gpunvme_tiers *tiers, const char *prefix, gpunvme_tiers_each *each,
                       void *user);

/*
 * Opens a file as a store, for transfers of all kinds (transfer.h): asynchronous, in batches, in
 * CUDA's order. The store is of the version that the name has now, and stays so when the file is
 * moved, replaced or removed; it is for reading only. `accesses` are counted. It is the caller's,
 * to be given to gpunvme_close().
 */
gpunvme_err_t gpunvme_tiers_open_store(struct gpunvme_tiers *tiers, const char *name,
                                       unsigned accesses, struct gpunvme_store **out);

/* One of many transfers by name. */
struct gpunvme_tiers_io {
    const char *name;
    uint64_t offset;
    void *ptr;
    size_t nbytes;
    enum gpunvme_mem mem;
    /* What came of it. */
    gpunvme_err_t err;
    size_t done;     /* length of the valid prefix */
    int tier;        /* where the bytes came from, or went to */
    uint32_t routes; /* as gpunvme_io.routes */
};

/*
 * Reads `n` ranges of files at once, and returns when all have ended: the first error of theirs, or
 * that none was begun.
 */
gpunvme_err_t gpunvme_tiers_read_many(struct gpunvme_tiers *tiers, struct gpunvme_tiers_io *ios,
                                      size_t n);

/* Writes them, in place as gpunvme_tiers_write() does. Ranges of one file may not overlap. */
gpunvme_err_t gpunvme_tiers_write_many(struct gpunvme_tiers *tiers, struct gpunvme_tiers_io *ios,
                                       size_t n);

/* Which way a file's bytes take: its tier, and the path report of its store (storage.h). */
gpunvme_err_t gpunvme_tiers_path(struct gpunvme_tiers *tiers, const char *name, int *tier,
                                 struct gpunvme_path *path);

/* ---- Migration --------------------------------------------------------------------------------
 */

/*
 * Moves a file to a tier, whatever its score. With `pin` it stays there. AUTO: to the tier that the
 * policy chooses, and a pin ends. *to gets the tier that it is in then; may be NULL. Readers do not
 * notice. NOSPC: the tier is full, and nothing in it has a lower score. BUSY: it is being replaced,
 * moved or written. VERIFY: the bytes do not have their checksum; the file stays where it is, and
 * the detail names the copy, which stays as well.
 */
gpunvme_err_t gpunvme_tiers_move(struct gpunvme_tiers *tiers, const char *name, int tier, bool pin,
                                 int *to);

struct gpunvme_tiers_moves {
    uint64_t up, down;      /* files moved to a faster, a slower tier */
    uint64_t nbytes;        /* of them */
    uint64_t busy, no_room; /* files that should have moved and did not */
    uint64_t failed;        /* likewise; the detail of the first is this thread's */
};

/*
 * Moves all files that are not where they belong: one pass of what MIGRATE does in the background.
 * TIMEOUT: there were more than timeout_ns allows (0: no limit). CANCELED: options.moved ended it.
 * What was moved is moved, and *moves has it. BUSY: another process migrates.
 */
gpunvme_err_t gpunvme_tiers_migrate(struct gpunvme_tiers *tiers, uint64_t timeout_ns,
                                    struct gpunvme_tiers_moves *moves);

/* ---- Scrub ------------------------------------------------------------------------------------
 */

enum gpunvme_tiers_finding {
    GPUNVME_TIERS_NEW,       /* a file that was not in the catalogue: it is now */
    GPUNVME_TIERS_CHANGED,   /* something else changed it: its facts and checksum are taken anew */
    GPUNVME_TIERS_MISSING,   /* it is in no tier: it is no longer in the catalogue */
    GPUNVME_TIERS_ELSEWHERE, /* it is in another tier than the catalogue said: corrected */
    GPUNVME_TIERS_TWICE,     /* it is in two tiers: the older or slower one is in `kept` now */
    GPUNVME_TIERS_BAD,       /* its bytes do not have their checksum: nothing was changed */
    GPUNVME_TIERS_LEFTOVER,  /* of a process that died: removed */
    GPUNVME_TIERS_SKIPPED, /* no regular file, a link, or a name that is not allowed: left alone */
};
#define GPUNVME_TIERS_NFINDINGS 8

struct gpunvme_tiers_scrub {
    uint64_t files, nbytes; /* looked at */
    uint64_t findings[GPUNVME_TIERS_NFINDINGS];
};

#define GPUNVME_TIERS_READ_ALL 0x1u /* reads every file, and compares or sets its checksum */

/* The texts are valid until it returns. */
typedef void gpunvme_tiers_found(void *user, enum gpunvme_tiers_finding finding, const char *name,
                                 const char *detail);

/*
 * Compares the catalogue with the directories and mends it. `each` is told every finding; may be
 * NULL. `detail` says where a file lies that was kept. Others may use the set meanwhile.
 */
gpunvme_err_t gpunvme_tiers_scrub(struct gpunvme_tiers *tiers, unsigned flags,
                                  gpunvme_tiers_found *each, void *user,
                                  struct gpunvme_tiers_scrub *scrub);

/* "new", "changed", …; static. */
const char *gpunvme_tiers_finding_name(enum gpunvme_tiers_finding finding);

/*
 * Makes the catalogue anew from the directories, where it is damaged or gone: `dir` is that of any
 * tier. What there was of it is kept beside it, with ".damaged" behind its name. Scores and pins
 * are read from it as far as that is possible. BUSY: a process has the set open.
 */
gpunvme_err_t gpunvme_tiers_rebuild(const char *dir);

#ifdef __cplusplus
}
#endif
#endif
