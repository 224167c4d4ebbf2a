/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Making the catalogue anew, where it is damaged or gone. The new one takes the place when it is
 * whole; until then the set can't be opened. A row of the damaged one that can still be read gives
 * its file back score, pin and checksum.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "data/tiers/internal.h"

#define PLACE   "catalogue"
#define DAMAGED "catalogue.damaged"
#define MAKING  "catalogue.new"

static const char *const suffixes[] = {"", "-wal", "-shm"}; /* of an SQLite database */
#define NSUFFIXES (sizeof(suffixes) / sizeof(suffixes[0]))

/* Nothing where there is nothing. The database is last: no log of another one may be beside it. */
static gpunvme_err_t rename_catalogue(struct gpunvme_tiers *t, const char *from, const char *to)
{
    const int fd = t->folder_fd[GPUNVME_TIER_HOT];

    if (faccessat(fd, from, F_OK, 0))
        return GPUNVME_OK;
    for (size_t i = NSUFFIXES; i-- > 0;) {
        char a[32], b[32];

        snprintf(a, sizeof(a), "%s%s", from, suffixes[i]);
        snprintf(b, sizeof(b), "%s%s", to, suffixes[i]);
        unlinkat(fd, b, 0);
        tiers_step(TIERS_STEP_PART, "");
        if (renameat(fd, a, fd, b) && errno != ENOENT)
            return base_fail_errno(errno, "%.150s/%s/%s", t->dir[0], TIERS_FOLDER, a);
    }
    return fsync(fd) ? base_fail_errno(errno, "%.150s/%s", t->dir[0], TIERS_FOLDER) : GPUNVME_OK;
}

static void remove_catalogue(struct gpunvme_tiers *t, const char *file)
{
    for (size_t i = 0; i < NSUFFIXES; i++) {
        char name[32];

        snprintf(name, sizeof(name), "%s%s", file, suffixes[i]);
        unlinkat(t->folder_fd[GPUNVME_TIER_HOT], name, 0);
    }
}

static gpunvme_err_t open_catalogue(struct gpunvme_tiers *t, const char *file,
                                    struct tiers_catalogue **out)
{
    char path[1024];

    snprintf(path, sizeof(path), "%s/%s/%s", t->dir[GPUNVME_TIER_HOT], TIERS_FOLDER, file);
    return tiers_catalogue_open(path, false, t->timeout_ns, out);
}

/* What there is goes out of the way. One of a newer version is not damaged. */
static gpunvme_err_t put_away(struct gpunvme_tiers *t)
{
    struct tiers_catalogue *c;
    gpunvme_err_t err = tiers_set_alone(t);

    if (err)
        return err;
    err = open_catalogue(t, PLACE, &c);
    tiers_catalogue_close(c);
    if (err == GPUNVME_ERR_UNSUPPORTED || err == GPUNVME_ERR_PERMISSION)
        return err;
    err = rename_catalogue(t, PLACE, DAMAGED);
    if (err)
        return err;
    err = tiers_set_alone(t);
    if (err) {
        struct base_failure why;

        base_keep(&why, err);
        rename_catalogue(t, DAMAGED, PLACE);
        return base_restore(&why);
    }
    return GPUNVME_OK;
}

static gpunvme_err_t make(struct gpunvme_tiers *t, struct tiers_catalogue *old)
{
    char clock[128];
    gpunvme_err_t err = tiers_set_catalogue(t, MAKING, &t->catalogue);

    if (!err && old && !tiers_catalogue_get(old, "clock", clock, sizeof(clock)))
        err = tiers_catalogue_set(t->catalogue, "clock", clock);
    return err ? err : tiers_take_in(t, old);
}

static gpunvme_err_t rebuild(struct gpunvme_tiers *t)
{
    struct tiers_catalogue *old;
    gpunvme_err_t err = put_away(t);

    if (err)
        return err;
    tiers_step(TIERS_STEP_PART, "");
    remove_catalogue(t, MAKING);
    if (open_catalogue(t, DAMAGED, &old))
        old = NULL;
    err = make(t, old);
    tiers_catalogue_close(old);
    tiers_catalogue_close(t->catalogue); /* all of it is in its file then */
    t->catalogue = NULL;
    tiers_step(TIERS_STEP_PART, "");
    if (!err)
        err = rename_catalogue(t, MAKING, PLACE);
    if (!err)
        tiers_reserve_keep(t, GPUNVME_TIER_HOT); /* who needs more of a full tier is told then */
    return err;
}

gpunvme_err_t gpunvme_tiers_rebuild(const char *dir)
{
    struct gpunvme_tiers *t;
    struct base_failure why;
    gpunvme_err_t err = tiers_set_open(dir, NULL, false, &t);

    if (err)
        return err;
    err = rebuild(t);
    base_keep(&why, err);
    tiers_set_release(t);
    return base_restore(&why);
}
