/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Space that is kept for the catalogue: a file beside it, which is removed when the file system is
 * full. Without it a set whose hot tier is full could not be opened, so nothing could be read,
 * removed or moved away.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/fail.h"
#include "data/tiers/internal.h"

#define NBYTES ((uint64_t)8 << 20) /* twice what SQLite's log has before it is used again */
#define SHARE  8u                  /* of a small file system: this part */

static bool is_on_catalogue_disk(const struct gpunvme_tiers *t, int tier)
{
    struct stat a, b;

    return tier == GPUNVME_TIER_HOT ||
           (!fstat(t->dir_fd[tier], &a) && !fstat(t->folder_fd[GPUNVME_TIER_HOT], &b) &&
            a.st_dev == b.st_dev);
}

static gpunvme_err_t is_full(struct gpunvme_tiers *t, uint64_t nbytes)
{
    base_fail(GPUNVME_ERR_NOSPC, "the catalogue needs what is left");
    return tiers_disk_full(t, GPUNVME_TIER_HOT, nbytes, -1);
}

gpunvme_err_t tiers_reserve_keep(struct gpunvme_tiers *t, int tier)
{
    const int folder = t->folder_fd[GPUNVME_TIER_HOT];
    uint64_t nbytes = NBYTES;
    struct statvfs fs;
    struct stat st;
    int fd, error = 0;

    if (!is_on_catalogue_disk(t, tier) ||
        (!fstatat(folder, TIERS_RESERVE, &st, AT_SYMLINK_NOFOLLOW) && st.st_size))
        return GPUNVME_OK;
    fd = openat(folder, TIERS_RESERVE, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0)
        return errno == ENOSPC ? is_full(t, nbytes) : GPUNVME_OK;
    if (!fstatvfs(fd, &fs) && (uint64_t)fs.f_blocks * fs.f_frsize / SHARE < nbytes)
        nbytes = (uint64_t)fs.f_blocks * fs.f_frsize / SHARE;
    if (nbytes && fallocate(fd, 0, 0, (off_t)nbytes))
        error = errno;
    close(fd);
    if (error != ENOSPC && error != EDQUOT)
        return GPUNVME_OK; /* a file system that can't reserve any has none */
    unlinkat(folder, TIERS_RESERVE, 0);
    return is_full(t, nbytes);
}

bool tiers_reserve_use(const char *path)
{
    char reserve[1200];

    snprintf(reserve, sizeof(reserve), "%s" TIERS_RESERVE_SUFFIX, path);
    return !unlink(reserve);
}
