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

uint64_t tiers_reserve_lacks(const struct gpunvme_tiers *t, int tier)
{
    const int folder = t->folder_fd[GPUNVME_TIER_HOT];
    struct statvfs fs;
    struct stat st;
    uint64_t share = NBYTES;

    if (!tiers_on_one_disk(t, tier, GPUNVME_TIER_HOT) ||
        (!fstatat(folder, TIERS_RESERVE, &st, AT_SYMLINK_NOFOLLOW) && st.st_size))
        return 0;
    if (!fstatvfs(folder, &fs))
        share = (uint64_t)fs.f_blocks * fs.f_frsize / SHARE;
    return share < NBYTES ? share : NBYTES;
}

static gpunvme_err_t is_full(struct gpunvme_tiers *t, uint64_t nbytes)
{
    base_fail(GPUNVME_ERR_NOSPC, "the catalogue needs what is left");
    return tiers_disk_full(t, GPUNVME_TIER_HOT, nbytes, -1);
}

gpunvme_err_t tiers_reserve_keep(struct gpunvme_tiers *t, int tier)
{
    const int folder = t->folder_fd[GPUNVME_TIER_HOT];
    const uint64_t nbytes = tiers_reserve_lacks(t, tier);
    int fd, error = 0;

    if (!nbytes)
        return GPUNVME_OK;
    fd = openat(folder, TIERS_RESERVE, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0)
        return errno == ENOSPC ? is_full(t, nbytes) : GPUNVME_OK;
    if (fallocate(fd, 0, 0, (off_t)nbytes))
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
