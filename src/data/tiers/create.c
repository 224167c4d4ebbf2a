/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Making a set of tiers. Its texts say "making" from the first to the last step, and the hot tier's
 * longest. A process that is killed meanwhile leaves a set that nobody opens, and that the next
 * one to create it in these directories makes anew. Two at a time keep each other out by locks on
 * the directories.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fail.h"
#include "data/tiers/description.h"

#define TIMEOUT_NS UINT64_C(30000000000)

static bool lies_in(const char *path, const char *dir)
{
    const size_t n = strlen(dir);

    return !strncmp(path, dir, n) && (path[n] == '/' || !path[n] || dir[n - 1] == '/');
}

/* The directories without links. */
static gpunvme_err_t find_dirs(const struct gpunvme_tiers_settings *s, struct tiers_description *d)
{
    struct stat st[GPUNVME_NTIERS];

    for (int i = 0; i < GPUNVME_NTIERS; i++) {
        char *path = realpath(s->dir[i], NULL);

        if (!path)
            return base_fail_errno(errno, "%.150s", s->dir[i]);
        if (strlen(path) >= TIERS_DIR_ROOM) {
            free(path);
            return base_fail(GPUNVME_ERR_INVALID, "%.100s…: a path of %u bytes or more", s->dir[i],
                             TIERS_DIR_ROOM);
        }
        strcpy(d->dir[i], path);
        free(path);
        if (stat(d->dir[i], &st[i]))
            return base_fail_errno(errno, "%.150s", d->dir[i]);
        if (!S_ISDIR(st[i].st_mode))
            return base_fail(GPUNVME_ERR_INVALID, "%.150s is not a directory", d->dir[i]);
        for (int k = 0; k < i; k++)
            if (lies_in(d->dir[i], d->dir[k]) || lies_in(d->dir[k], d->dir[i]) ||
                (st[i].st_dev == st[k].st_dev && st[i].st_ino == st[k].st_ino))
                return base_fail(GPUNVME_ERR_INVALID, "%.100s and %.100s lie in one another",
                                 d->dir[k], d->dir[i]);
    }
    return GPUNVME_OK;
}

static gpunvme_err_t make_uuid(char uuid[37])
{
    uint8_t b[16];

    if (getrandom(b, sizeof(b), 0) != sizeof(b))
        return base_fail_errno(errno, "getrandom");
    b[6] = (uint8_t)((b[6] & 0x0f) | 0x40);
    b[8] = (uint8_t)((b[8] & 0x3f) | 0x80);
    snprintf(uuid, 37, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
             b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
             b[14], b[15]);
    return GPUNVME_OK;
}

/* What a set has in TIERS_FOLDER when it has just been made; folders end with '/'. */
static const char *const parts[] = {
    "set",       "catalogue", "catalogue-wal", "catalogue-shm", "migrator", "changes",
    "sessions/", "tmp/",      "kept/",         TIERS_RESERVE,   ""};
#define NPARTS (sizeof(parts) / sizeof(parts[0]))

static void remove_set(const struct tiers_description *d)
{
    for (int i = 0; i < GPUNVME_NTIERS; i++)
        for (size_t k = 0; k < NPARTS; k++) {
            char path[TIERS_DIR_ROOM + 48];

            snprintf(path, sizeof(path), "%s/" TIERS_FOLDER "/%s", d->dir[i], parts[k]);
            if (!*parts[k] || path[strlen(path) - 1] == '/')
                rmdir(path);
            else
                unlink(path);
        }
}

static gpunvme_err_t make_folder(const char *dir, const char *part)
{
    char path[TIERS_DIR_ROOM + 48];

    snprintf(path, sizeof(path), "%s/" TIERS_FOLDER "%s", dir, part);
    return mkdir(path, 0777) && errno != EEXIST ? base_fail_errno(errno, "%.150s", path)
                                                : GPUNVME_OK;
}

gpunvme_err_t tiers_catalogue_make(const struct tiers_description *d, const char *file,
                                   struct tiers_catalogue **out)
{
    char path[TIERS_DIR_ROOM + 48];
    gpunvme_err_t err;

    snprintf(path, sizeof(path), "%s/" TIERS_FOLDER "/%s", d->dir[0], file);
    err = tiers_catalogue_open(path, true, TIMEOUT_NS, out);
    if (!err)
        err = tiers_catalogue_begin(*out);
    if (!err) {
        err = tiers_catalogue_set(*out, "uuid", d->uuid);
        if (!err)
            err = tiers_settings_keep(*out, &d->settings);
        err = tiers_catalogue_end(*out, err);
    }
    return err;
}

/* Each of its directories says what it is of. */
static gpunvme_err_t describe(const struct tiers_description *d)
{
    gpunvme_err_t err = GPUNVME_OK;

    for (int i = GPUNVME_NTIERS - 1; i >= 0 && !err; i--) {
        tiers_step(TIERS_STEP_PART, "");
        err = tiers_description_write(d, d->dir[i], i);
    }
    return err;
}

static gpunvme_err_t make_folders(const struct tiers_description *d)
{
    gpunvme_err_t err = GPUNVME_OK;

    for (int i = 0; i < GPUNVME_NTIERS && !err; i++) {
        tiers_step(TIERS_STEP_PART, "");
        err = make_folder(d->dir[i], "");
        if (!err)
            err = make_folder(d->dir[i], "/tmp");
    }
    return err ? err : make_folder(d->dir[0], "/sessions");
}

/* Takes in the files that are in the directories already. */
static gpunvme_err_t take_in(const struct tiers_description *d)
{
    struct gpunvme_tiers_scrub scrub;
    struct gpunvme_tiers *t;
    struct base_failure why;
    gpunvme_err_t err = tiers_open(d->dir[0], NULL, true, &t);

    if (err)
        return err;
    err = gpunvme_tiers_scrub(t, 0, NULL, NULL, &scrub);
    base_keep(&why, err);
    err = gpunvme_tiers_close(t);
    return why.err ? base_restore(&why) : err;
}

static gpunvme_err_t make_set(struct tiers_description *d)
{
    struct tiers_catalogue *c = NULL;
    gpunvme_err_t err = make_folders(d);

    d->making = 1;
    if (!err)
        err = describe(d);
    tiers_step(TIERS_STEP_PART, "");
    if (!err)
        err = tiers_catalogue_make(d, "catalogue", &c);
    tiers_catalogue_close(c);
    tiers_step(TIERS_STEP_PART, "");
    if (!err)
        err = take_in(d);
    d->making = 0;
    return err ? err : describe(d); /* the hot tier's last */
}

/*
 * Whether a set can be made here: the directories belong to none, or to one that was not made to
 * its end. One whose hot tier has no text is a whole one that lacks its hot tier, unless its texts
 * say that it was being made.
 */
static gpunvme_err_t check_free(const struct tiers_description *d)
{
    struct tiers_description hot = {.making = 0}, other;

    for (int i = 0; i < GPUNVME_NTIERS; i++) {
        const gpunvme_err_t err = tiers_description_read(d->dir[i], &other);

        if (err == GPUNVME_ERR_NOT_FOUND)
            continue;
        if (i == 0 && !err)
            hot = other;
        if (err || !(other.making || (hot.making && !strcmp(hot.uuid, other.uuid))))
            return base_fail(err && err != GPUNVME_ERR_VERIFY ? err : GPUNVME_ERR_EXISTS,
                             "%.150s/" TIERS_FOLDER "/set: the directory belongs to a set",
                             d->dir[i]);
    }
    return GPUNVME_OK;
}

/* Makes it alone, in directories that are locked. */
static gpunvme_err_t make_alone(struct tiers_description *d)
{
    struct base_failure why;
    gpunvme_err_t err = check_free(d);

    if (err)
        return err;
    remove_set(d); /* what is left of one that was not made to its end */
    err = make_set(d);
    if (!err)
        return err;
    base_keep(&why, err);
    remove_set(d);
    return base_restore(&why);
}

gpunvme_err_t gpunvme_tiers_create(const struct gpunvme_tiers_settings *settings)
{
    struct gpunvme_tiers_settings s = {.hot_at = 100, .warm_at = 10, .half_life_s = 604800};
    struct tiers_description d = {.version = TIERS_VERSION};
    int locks[GPUNVME_NTIERS], n = 0;
    gpunvme_err_t err;

    for (int i = 0; i < GPUNVME_NTIERS; i++)
        s.dir[i] = tiers_default_dirs[i];
    err = settings ? tiers_settings_merge(settings, &s, &d.settings)
                   : base_fail(GPUNVME_ERR_INVALID, "NULL");
    if (!err)
        err = find_dirs(&d.settings, &d);
    if (!err)
        err = make_uuid(d.uuid);
    for (; n < GPUNVME_NTIERS && !err; n++) {
        locks[n] = open(d.dir[n], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (locks[n] < 0 || flock(locks[n], LOCK_EX | LOCK_NB))
            err = errno == EWOULDBLOCK
                      ? base_fail(GPUNVME_ERR_BUSY, "%.150s: another process makes a set there",
                                  d.dir[n])
                      : base_fail_errno(errno, "%.150s", d.dir[n]);
    }
    if (!err)
        err = make_alone(&d);
    while (n--)
        if (locks[n] >= 0)
            close(locks[n]);
    return err;
}
