/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Names of files, and their paths below a tier's directory. A path is walked folder by folder, each
 * opened without following links, so no link that appears meanwhile leads out of the tier.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fail.h"
#include "data/tiers/internal.h"

#define PART_MAX 255 /* bytes of a name between two '/' */

const char *gpunvme_tier_name(int tier)
{
    static const char *const names[GPUNVME_NTIERS] = {"hot", "warm", "cold"};

    return tier >= 0 && tier < GPUNVME_NTIERS ? names[tier] : "none";
}

/* The bytes that the UTF-8 character at `s` has; 0: it is none, or a control character. */
static size_t character(const char *s)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *bytes = (const unsigned char *)s;
    size_t n = bytes[0] < 0x80 ? 1 : bytes[0] >> 5 == 6 ? 2 : bytes[0] >> 4 == 14 ? 3 : 4;
    uint32_t c = n == 1 ? bytes[0] : bytes[0] & (0x7fu >> n);

    if (n == 4 && bytes[0] >> 3 != 30)
        return 0;
    for (size_t i = 1; i < n; i++) {
        if (bytes[i] >> 6 != 2)
            return 0;
        c = c << 6 | (bytes[i] & 0x3f);
    }
    if (c < least[n] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
        return 0;
    return c < 0x20 || (c >= 0x7f && c < 0xa0) ? 0 : n;
}

static bool is_part(const char *part, size_t n)
{
    return n && n <= PART_MAX && !(n == 1 && part[0] == '.') && !(n == 2 && !memcmp(part, "..", 2));
}

gpunvme_err_t tiers_name_check(const char *name)
{
    size_t n;

    if (!name || !*name || strnlen(name, GPUNVME_TIERS_NAME_MAX + 1) > GPUNVME_TIERS_NAME_MAX)
        return base_fail(GPUNVME_ERR_INVALID, "a name has 1 to %u bytes", GPUNVME_TIERS_NAME_MAX);
    for (const char *s = name; *s; s += n)
        if (!(n = character(s)))
            return base_fail(GPUNVME_ERR_INVALID,
                             "byte %zu of a name is not UTF-8, or a control character",
                             (size_t)(s - name));
    if (!strncmp(name, TIERS_FOLDER, strlen(TIERS_FOLDER)))
        return base_fail(GPUNVME_ERR_INVALID, "'%.150s': %s is the set's own", name, TIERS_FOLDER);
    for (const char *part = name;; part += n + 1) {
        n = strcspn(part, "/");
        if (!is_part(part, n))
            return base_fail(GPUNVME_ERR_INVALID,
                             "'%.150s': between two '/' of a name are 1 to %d bytes, and neither "
                             "'.' nor '..'",
                             name, PART_MAX);
        if (!part[n])
            return GPUNVME_OK;
    }
}

/* ---- Walking --------------------------------------------------------------------------------- */

/* What a failed step says: a link is refused, whatever the kernel called it. */
static gpunvme_err_t refuse(int fd, const char *part, const char *name, int error)
{
    struct stat st;

    if ((error == ELOOP || error == ENOTDIR) && !fstatat(fd, part, &st, AT_SYMLINK_NOFOLLOW)) {
        if (S_ISLNK(st.st_mode))
            return base_fail(GPUNVME_ERR_PERMISSION, "%.150s: '%.60s' is a symbolic link", name,
                             part);
        return base_fail(GPUNVME_ERR_INVALID, "%.150s: '%.60s' is a file", name, part);
    }
    return base_fail_errno(error, "%.150s", name);
}

/* The folder is on the medium. Some file systems can't flush one: then it is. */
static gpunvme_err_t flush_folder(int fd, const char *name)
{
    if (fsync(fd) && errno != EINVAL && errno != ENOTSUP)
        return base_fail_errno(errno, "%.150s: to flush its folder", name);
    return GPUNVME_OK;
}

/* Opens a folder in `fd`, which is closed; with `make`, makes it if it is not there. */
static gpunvme_err_t enter(int *fd, const char *part, const char *name, bool make)
{
    const int how = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    int next = openat(*fd, part, how);
    gpunvme_err_t err = GPUNVME_OK;

    if (next < 0 && errno == ENOENT && make) {
        if (mkdirat(*fd, part, 0777) && errno != EEXIST)
            return base_fail_errno(errno, "%.150s: to make the folder '%.60s'", name, part);
        err = flush_folder(*fd, name);
        next = err ? -1 : openat(*fd, part, how);
    }
    if (!err && next < 0)
        err = refuse(*fd, part, name, errno);
    close(*fd);
    *fd = next;
    return err;
}

/*
 * Opens the folder that the file `name` is in, below dir_fd; `part` gets the file's own name. At
 * most `depth` folders are entered.
 */
static gpunvme_err_t walk(int dir_fd, const char *name, unsigned depth, bool make, int *fd,
                          char part[PART_MAX + 1])
{
    gpunvme_err_t err = tiers_name_check(name);

    *fd = -1;
    if (err)
        return err;
    *fd = fcntl(dir_fd, F_DUPFD_CLOEXEC, 3);
    if (*fd < 0)
        return base_fail_errno(errno, "%.150s", name);
    for (const char *at = name; !err;) {
        const size_t n = strcspn(at, "/");

        memcpy(part, at, n);
        part[n] = 0;
        if (!at[n] || !depth--)
            break;
        err = enter(fd, part, name, make);
        at += n + 1;
    }
    if (err && *fd >= 0) {
        close(*fd);
        *fd = -1;
    }
    return err;
}

static unsigned depth_of(const char *name)
{
    unsigned n = 0;

    for (; *name; name++)
        n += *name == '/';
    return n;
}

/* ---- Files ----------------------------------------------------------------------------------- */

gpunvme_err_t tiers_name_open(int dir_fd, const char *name, int flags, int *out)
{
    char part[PART_MAX + 1];
    struct stat st;
    int folder, fd;
    gpunvme_err_t err = walk(dir_fd, name, UINT32_MAX, false, &folder, part);

    *out = -1;
    if (err)
        return err;
    fd = openat(folder, part, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        err = refuse(folder, part, name, errno);
    else if (fstat(fd, &st) || !S_ISREG(st.st_mode))
        err = base_fail(GPUNVME_ERR_INVALID, "%.150s is not a regular file", name);
    close(folder);
    if (!err)
        *out = fd;
    else if (fd >= 0)
        close(fd);
    return err;
}

/* rename(2); without `replace` only where nothing is. */
static int rename_to(int from_fd, const char *from, int fd, const char *to, bool replace)
{
    struct stat st;

    if (replace || !renameat2(from_fd, from, fd, to, RENAME_NOREPLACE))
        return replace ? renameat(from_fd, from, fd, to) : 0;
    if (errno != EINVAL && errno != ENOSYS)
        return -1;
    if (!fstatat(fd, to, &st, AT_SYMLINK_NOFOLLOW)) { /* the file system can't do that */
        errno = EEXIST;
        return -1;
    }
    return renameat(from_fd, from, fd, to);
}

gpunvme_err_t tiers_name_publish(int folder_fd, const char *temporary, int dir_fd, const char *name,
                                 bool replace)
{
    char part[PART_MAX + 1];
    gpunvme_err_t err = GPUNVME_ERR_NOT_FOUND;
    int folder;

    for (int tries = 0; tries < 8 && err == GPUNVME_ERR_NOT_FOUND; tries++) {
        err = walk(dir_fd, name, UINT32_MAX, true, &folder, part);
        if (err) /* NOT_FOUND: another process has removed a folder that was empty */
            continue;
        if (!rename_to(folder_fd, temporary, folder, part, replace))
            err = flush_folder(folder, name);
        else if (errno == EEXIST)
            err = base_fail(GPUNVME_ERR_EXISTS,
                            "%.150s: something that is not in the catalogue is there", name);
        else
            err = base_fail_errno(errno, "%.150s: to give it its place", name);
        close(folder);
    }
    return err;
}

gpunvme_err_t tiers_name_flush(int dir_fd, const char *name)
{
    char part[PART_MAX + 1];
    int folder;
    gpunvme_err_t err = walk(dir_fd, name, UINT32_MAX, false, &folder, part);

    if (err)
        return err;
    err = flush_folder(folder, name);
    close(folder);
    return err;
}

gpunvme_err_t tiers_name_unlink(int dir_fd, const char *name)
{
    char part[PART_MAX + 1];
    int folder;
    gpunvme_err_t err = walk(dir_fd, name, UINT32_MAX, false, &folder, part);

    if (err)
        return err == GPUNVME_ERR_NOT_FOUND ? GPUNVME_OK : err;
    if (unlinkat(folder, part, 0) && errno != ENOENT)
        err = base_fail_errno(errno, "%.150s: to remove it", name);
    else
        err = flush_folder(folder, name);
    close(folder);
    for (unsigned depth = depth_of(name); !err && depth--;) { /* the folders, from within */
        if (walk(dir_fd, name, depth, false, &folder, part))
            break;
        if (unlinkat(folder, part, AT_REMOVEDIR))
            depth = 0;
        close(folder);
    }
    return err;
}
