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
 * as an ordinary file. The set's own files are in the folder ".gpunvme-tiers" of each directory.
 * The hot tier's has the catalogue, an SQLite database of each file's tier, size, time, checksum
 * and score.
 *
 * Scores. Each call that reads or writes a file counts as one access. A file's score is the number
 * of its accesses, and an access counts half as much after each half-life. A file belongs in the
 * hot tier from a score of `hot_at` on, in the warm tier from `warm_at` on, else in the cold one.
 * Half a percent below counts as reached, so that 100 accesses within an hour count as 100. Scores
 * are written every few seconds, so a process that is killed loses the last accesses.
 *
 * Names are relative paths in UTF-8 without control characters, at most GPUNVME_TIERS_NAME_MAX
 * bytes. INVALID: an empty name, one that begins with '/' or ".gpunvme-tiers", or that has "." or
 * ".." or nothing between two '/'. PERMISSION: a part of the path is a symbolic link.
 *
 * Processes. Any number of processes of one machine may use a set at once; they share its locks and
 * need no daemon. One of them migrates at a time.
 *
 * Crashes. gpunvme_tiers_put() and migration replace files as a whole: at every instant a name
 * has one whole version, the old one or the new one. The next process that opens the set removes
 * what a process that died left behind. gpunvme_tiers_write() changes bytes in place, as pwrite(2)
 * does.
 *
 * Built without libsqlite3, all calls return UNSUPPORTED.
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
#define GPUNVME_TIERS_NO_LIMIT UINT64_MAX /* a capacity or rate: removes the limit */

/* "hot", "warm", "cold"; static. */
const char *gpunvme_tier_name(int tier);

/* ---- Sets -------------------------------------------------------------------------------------
 */

/* A set's settings, which are stored in it. 0 or NULL: the default. */
struct gpunvme_tiers_settings {
    const char *dir[GPUNVME_NTIERS];          /* "/nvme", "/ssd", "/hdd" */
    uint64_t capacity_nbytes[GPUNVME_NTIERS]; /* of all files of a tier, unfinished copies
                                                 included; default: no limit */
    double hot_at, warm_at;                   /* scores; 100 and 10 */
    double half_life_s;                       /* 604,800 (a week); INFINITY: scores stay */
    uint64_t migrate_bytes_per_s;             /* at most; default: no limit */
};

/*
 * Makes a set of three directories, which must exist, and may lie on one file system. Files that
 * are in them become files of the set. If the process is killed meanwhile, opening the set fails
 * (NOT_FOUND), and the next call with these directories makes it. After an error nothing was made.
 * EXISTS: one of them belongs to a set. BUSY: another process is making a set in one of them.
 * INVALID: one directory lies in another, or the thresholds are not 0 < warm_at <= hot_at. Also
 * NOT_FOUND, PERMISSION, READONLY, NOSPC and IO.
 */
gpunvme_err_t gpunvme_tiers_create(const struct gpunvme_tiers_settings *settings);

/* A file's entry in the catalogue. */
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

/* A policy of the caller's: returns the tier that a file should be in. */
typedef int gpunvme_tiers_policy(void *user, const struct gpunvme_tiers_file *file);

/*
 * Called for each file that this process's migration moved, or failed to move: `err` is the error,
 * and gpunvme_err_detail() has its detail. It is not called for files that are in use or find no
 * room. Returning another value than 0 ends the pass. `name` is valid until it returns.
 */
typedef int gpunvme_tiers_moved(void *user, const char *name, int from, int to, uint64_t nbytes,
                                gpunvme_err_t err);

#define GPUNVME_TIERS_MIGRATE 0x1u /* a thread of this process migrates, if no other one does */

/* How this process uses a set; all zeroes is the default. */
struct gpunvme_tiers_options {
    unsigned flags;
    struct gpunvme_engine *engine; /* NULL: the process's */
    const char *store_options;     /* of the files' stores, as in a URI: "require=p2p"; may be
                                      NULL */
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

/* Changes the settings that are not 0 or NULL, for all processes. If a directory has moved, pass
 * its new place: processes that open the set later use it. */
gpunvme_err_t gpunvme_tiers_configure(struct gpunvme_tiers *tiers,
                                      const struct gpunvme_tiers_settings *settings);

struct gpunvme_tier_info {
    const char *dir;          /* valid while the set is open */
    uint64_t capacity_nbytes; /* 0: no limit */
    uint64_t nbytes, nfiles;  /* of files */
    uint64_t free_nbytes;     /* of the file system */
    uint64_t accesses;        /* to files in this tier, by all processes, since the set was made */
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
 * gpunvme_store_read() and gpunvme_store_write() on a file by name: `ptr` is the address that goes
 * with `mem`, *done is the length of the valid prefix. A read returns bytes of one version of the
 * file. A write changes the file in place, extends it if necessary, and creates it if there is
 * none. Its bytes are on the medium after gpunvme_tiers_flush(). Errors beside those of stores:
 * INVALID and PERMISSION (names), NOT_FOUND, NOSPC (the tier's capacity or file system, if nothing
 * can be moved away from it), VERIFY (something else changed the file: gpunvme_tiers_scrub()
 * accepts it as it is), TIMEOUT.
 */
gpunvme_err_t gpunvme_tiers_read(struct gpunvme_tiers *tiers, const char *name, uint64_t offset,
                                 void *ptr, enum gpunvme_mem mem, size_t nbytes, size_t *done);
gpunvme_err_t gpunvme_tiers_write(struct gpunvme_tiers *tiers, const char *name, uint64_t offset,
                                  const void *ptr, enum gpunvme_mem mem, size_t nbytes,
                                  size_t *done);
gpunvme_err_t gpunvme_tiers_flush(struct gpunvme_tiers *tiers, const char *name);

/*
 * Opens a file for transfers of all kinds (transfer.h) that write in place, up to byte `end`, and
 * reserves room for them in its tier. *store is valid, and the file stays where it is, until
 * gpunvme_tiers_end_write(). All transfers must have ended before that call. Do not write behind
 * `end`: no capacity is reserved there. Errors as gpunvme_tiers_write().
 */
struct gpunvme_tiers_writer;
gpunvme_err_t gpunvme_tiers_begin_write(struct gpunvme_tiers *tiers, const char *name, uint64_t end,
                                        struct gpunvme_tiers_writer **out,
                                        struct gpunvme_store **store);
/* NULL is fine. */
gpunvme_err_t gpunvme_tiers_end_write(struct gpunvme_tiers *tiers,
                                      struct gpunvme_tiers_writer *writer);

/*
 * Replaces a file as a whole, or creates it. At every instant, also after a crash, the name has all
 * of the old bytes or all of the new ones. The new ones are on the medium when the call returns.
 * The file goes to `tier`; with AUTO to the tier that the policy chooses, or to another one if that
 * has no room. BUSY: another call was replacing or moving the file for all of `timeout_ns`. EXISTS:
 * a file that the set does not know is there; gpunvme_tiers_scrub() adds it.
 */
gpunvme_err_t gpunvme_tiers_put(struct gpunvme_tiers *tiers, const char *name, int tier,
                                const void *ptr, enum gpunvme_mem mem, size_t nbytes);

/* The same with all bytes of a store. */
gpunvme_err_t gpunvme_tiers_put_store(struct gpunvme_tiers *tiers, const char *name, int tier,
                                      struct gpunvme_store *from);

/* Removes a file. Processes that have it open can still read it. BUSY as put. */
gpunvme_err_t gpunvme_tiers_remove(struct gpunvme_tiers *tiers, const char *name);

/* A file's entry; file->name is `name`. */
gpunvme_err_t gpunvme_tiers_stat(struct gpunvme_tiers *tiers, const char *name,
                                 struct gpunvme_tiers_file *file);

/* `file` is valid until it returns. */
typedef int gpunvme_tiers_each(void *user, const struct gpunvme_tiers_file *file);

/*
 * Calls `each` for every file whose name begins with `prefix` (NULL: all), sorted by name, until it
 * returns another value than 0, and returns that value. `each` may call functions of the set. Each
 * 1,000 names are read at one moment.
 */
int gpunvme_tiers_list(struct gpunvme_tiers *tiers, const char *prefix, gpunvme_tiers_each *each,
                       void *user);

/*
 * Opens a file as a store, for transfers of all kinds (transfer.h): asynchronous, in batches, in
 * CUDA's order. The store has the version that the name has now, also after the file is moved,
 * replaced or removed. It is read-only. `accesses` accesses are counted. The caller closes it with
 * gpunvme_close().
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
    /* The result. */
    gpunvme_err_t err;
    size_t done;     /* length of the valid prefix */
    int tier;        /* where the bytes came from, or went to */
    uint32_t routes; /* as gpunvme_io.routes */
};

/*
 * Reads `n` ranges of files at once, and waits until all have ended. Returns the first error of a
 * range, or the reason why none was begun.
 */
gpunvme_err_t gpunvme_tiers_read_many(struct gpunvme_tiers *tiers, struct gpunvme_tiers_io *ios,
                                      size_t n);

/*
 * Writes them, in place as gpunvme_tiers_write() does. Ranges of one file may not overlap. NOSPC:
 * also if a file system is full, from which files could be moved away.
 */
gpunvme_err_t gpunvme_tiers_write_many(struct gpunvme_tiers *tiers, struct gpunvme_tiers_io *ios,
                                       size_t n);

/* The route of a file's bytes: its tier, and the path report of its store (storage.h). */
gpunvme_err_t gpunvme_tiers_path(struct gpunvme_tiers *tiers, const char *name, int *tier,
                                 struct gpunvme_path *path);

/* ---- Migration --------------------------------------------------------------------------------
 */

/*
 * Moves a file to a tier, whatever its score. With `pin` it stays there. AUTO moves it to the tier
 * that the policy chooses, and ends a pin. *to, which may be NULL, gets the tier that it is in
 * afterwards. Reads go on meanwhile. NOSPC: the tier is full, and nothing in it has a lower score.
 * BUSY: the file is being replaced, moved or written. VERIFY: the bytes do not match the checksum.
 * The file then stays where it is, and the detail names the copy, which is kept.
 */
gpunvme_err_t gpunvme_tiers_move(struct gpunvme_tiers *tiers, const char *name, int tier, bool pin,
                                 int *to);

struct gpunvme_tiers_moves {
    uint64_t up, down;      /* files moved to a faster, a slower tier */
    uint64_t nbytes;        /* of these files */
    uint64_t busy, no_room; /* files that should have moved, but were in use or found no room */
    uint64_t failed;        /* … or failed; gpunvme_err_detail() has the first one's detail */
};

/*
 * Moves all files that are in the wrong tier: one pass of what MIGRATE does in the background.
 * TIMEOUT: the pass reached timeout_ns (0: no limit). CANCELED: options.moved ended it. In both
 * cases *moves counts what was moved. BUSY: another process migrates.
 */
gpunvme_err_t gpunvme_tiers_migrate(struct gpunvme_tiers *tiers, uint64_t timeout_ns,
                                    struct gpunvme_tiers_moves *moves);

/* ---- Scrub ------------------------------------------------------------------------------------
 */

enum gpunvme_tiers_finding {
    GPUNVME_TIERS_NEW,       /* it was not in the catalogue: added */
    GPUNVME_TIERS_CHANGED,   /* something else changed it: its entry was updated */
    GPUNVME_TIERS_MISSING,   /* it is in no tier: removed from the catalogue */
    GPUNVME_TIERS_ELSEWHERE, /* it is in another tier than the catalogue said: corrected */
    GPUNVME_TIERS_TWICE,     /* it is in two tiers: the older or slower one was moved to `kept` */
    GPUNVME_TIERS_BAD,       /* its bytes do not match its checksum: nothing was changed */
    GPUNVME_TIERS_LEFTOVER,  /* of a process that died: removed */
    GPUNVME_TIERS_SKIPPED,   /* not a regular file, or a name that is not allowed: not changed */
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
 * Compares the catalogue with the directories and repairs it. Calls `each`, which may be NULL, for
 * every finding; `detail` says where a kept file is. Other processes may use the set meanwhile.
 */
gpunvme_err_t gpunvme_tiers_scrub(struct gpunvme_tiers *tiers, unsigned flags,
                                  gpunvme_tiers_found *each, void *user,
                                  struct gpunvme_tiers_scrub *scrub);

/* "new", "changed", …; static. */
const char *gpunvme_tiers_finding_name(enum gpunvme_tiers_finding finding);

/*
 * Rebuilds a catalogue that is damaged or gone from the directories; `dir` is that of any tier. The
 * old catalogue is kept beside the new one, with ".damaged" added to its name. Scores and pins are
 * recovered from it as far as possible. BUSY: a process has the set open.
 */
gpunvme_err_t gpunvme_tiers_rebuild(const char *dir);

#ifdef __cplusplus
}
#endif
#endif
