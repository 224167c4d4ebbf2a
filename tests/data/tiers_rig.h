/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A set of tiers in a folder of its own, with files whose bytes tell their names and versions.
 */
#ifndef TESTS_TIERS_RIG_H
#define TESTS_TIERS_RIG_H

#include <fcntl.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "gpunvme/tiers.h"
#include "unit/rng.h"

#define HOT  GPUNVME_TIER_HOT
#define WARM GPUNVME_TIER_WARM
#define COLD GPUNVME_TIER_COLD
#define AUTO GPUNVME_TIER_AUTO

#define RIG_NBYTES_MAX (256u << 10)
#define RIG_NBYTES_MIN 24u

static char rig_dir[GPUNVME_NTIERS][64], rig_root[48];

#define ok(call)                                                                                   \
    do {                                                                                           \
        const gpunvme_err_t err_ = (call);                                                         \
        if (err_)                                                                                  \
            fail_msg("%s: %s: %s", #call, gpunvme_err_name(err_), gpunvme_err_detail());           \
    } while (0)

#define fails(error, call) assert_string_equal(gpunvme_err_name(call), "GPUNVME_ERR_" #error)

/* ---- The set --------------------------------------------------------------------------------- */

static inline void rig_make_folders(void)
{
    const char *root = access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm"; /* where fsync() is fast */

    snprintf(rig_root, sizeof(rig_root), "%s/gpunvme-tiers-XXXXXX", root);
    assert_non_null(mkdtemp(rig_root));
    for (int tier = 0; tier < GPUNVME_NTIERS; tier++) {
        snprintf(rig_dir[tier], sizeof(rig_dir[tier]), "%s/%s", rig_root, gpunvme_tier_name(tier));
        assert_int_equal(mkdir(rig_dir[tier], 0777), 0);
    }
}

/* `settings` without directories. */
static inline void rig_create(struct gpunvme_tiers_settings settings)
{
    for (int tier = 0; tier < GPUNVME_NTIERS; tier++)
        settings.dir[tier] = rig_dir[tier];
    ok(gpunvme_tiers_create(&settings));
}

static inline int rig_remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)type, (void)at;
    return remove(path);
}

static inline int rig_remove(void)
{
    return nftw(rig_root, rig_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* ---- Files ----------------------------------------------------------------------------------- */

static inline uint64_t rig_hash_of(const char *name)
{
    uint64_t h = 0;

    while (*name)
        h = rng_hash(h ^ (uint8_t)*name++);
    return h;
}

/* The bytes of a version: words, and zeroes where there is no room for one. */
static inline void rig_fill(void *ptr, size_t nbytes, const char *name, uint64_t version)
{
    struct base_random r = {rig_hash_of(name) ^ version};
    uint64_t *words = ptr;

    memset((char *)ptr + nbytes / 8 * 8, 0, nbytes % 8);
    words[0] = version;
    words[1] = rig_hash_of(name);
    words[2] = nbytes;
    for (size_t i = 3; i < nbytes / 8; i++)
        words[i] = base_random_u64(&r);
}

/* Whether these bytes are one whole version of a file; which. */
static inline bool rig_is_whole(const void *ptr, size_t nbytes, const char *name, uint64_t *version)
{
    const uint64_t *words = ptr;
    struct base_random r;

    if (nbytes < RIG_NBYTES_MIN || words[1] != rig_hash_of(name) || words[2] != nbytes)
        return false;
    *version = words[0];
    r.state = rig_hash_of(name) ^ *version;
    for (size_t i = 3; i < nbytes / 8; i++)
        if (words[i] != base_random_u64(&r))
            return false;
    return true;
}

static inline gpunvme_err_t rig_put(struct gpunvme_tiers *t, const char *name, int tier,
                                    size_t nbytes, uint64_t version)
{
    uint64_t *bytes = malloc(nbytes);
    gpunvme_err_t err;

    rig_fill(bytes, nbytes, name, version);
    err = gpunvme_tiers_put(t, name, tier, bytes, GPUNVME_MEM_HOST, nbytes);
    free(bytes);
    return err;
}

/* Reads a whole file. VERIFY: it is not one version. */
static inline gpunvme_err_t rig_read(struct gpunvme_tiers *t, const char *name, uint64_t *version)
{
    uint64_t *bytes = malloc(RIG_NBYTES_MAX);
    size_t done = 0;
    gpunvme_err_t err =
        gpunvme_tiers_read(t, name, 0, bytes, GPUNVME_MEM_HOST, RIG_NBYTES_MAX, &done);

    if (!err && !rig_is_whole(bytes, done, name, version))
        err = gpunvme_err_set(GPUNVME_ERR_VERIFY, "%s: %zu bytes are not a whole version", name,
                              done);
    free(bytes);
    return err;
}

static inline void rig_has(struct gpunvme_tiers *t, const char *name, uint64_t version)
{
    uint64_t is;

    ok(rig_read(t, name, &is));
    assert_int_equal(is, version);
}

static inline int rig_tier(struct gpunvme_tiers *t, const char *name)
{
    struct gpunvme_tiers_file file;

    ok(gpunvme_tiers_stat(t, name, &file));
    return file.tier;
}

/* ---- Directories ----------------------------------------------------------------------------- */

static uint64_t rig_nbytes, rig_nfiles; /* of the walk */

/* Files of tiers, and copies in the making; not what else is of the set. */
static inline int rig_count_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    const char *own = strstr(path, "/.gpunvme-tiers/");

    (void)at;
    if (type == FTW_F && (!own || !strncmp(own, "/.gpunvme-tiers/tmp/", 20))) {
        rig_nbytes += (uint64_t)st->st_size;
        rig_nfiles++;
    }
    return 0;
}

/* The bytes of a tier's files, by its directory. */
static inline uint64_t rig_du(int tier)
{
    rig_nbytes = rig_nfiles = 0;
    assert_int_equal(nftw(rig_dir[tier], rig_count_one, 16, FTW_PHYS), 0);
    return rig_nbytes;
}

/* Writes a file behind the set's back. */
static inline void rig_write_file(const char *dir, const char *name, size_t nbytes,
                                  uint64_t version)
{
    uint64_t *bytes = malloc(nbytes);
    char path[200];
    FILE *f;

    rig_fill(bytes, nbytes, name, version);
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, nbytes, f), nbytes);
    assert_int_equal(fclose(f), 0);
    free(bytes);
}

static inline bool rig_is_file(int tier, const char *name)
{
    char path[256];
    struct stat st;

    snprintf(path, sizeof(path), "%s/%s", rig_dir[tier], name);
    return !lstat(path, &st);
}

#endif
