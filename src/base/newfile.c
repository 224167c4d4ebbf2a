/* SPDX-License-Identifier: BSD-3-Clause */
#include "base/newfile.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fail.h"

/*
 * A name that no other has: each thread has numbers of its own, and a crash may have left some. It
 * is short, since the path's own may be as long as names can be.
 */
static int open_new(struct base_newfile *file)
{
    static atomic_uint numbers;
    const char *slash = strrchr(file->path, '/');
    int folder = slash ? (int)(slash - file->path) + 1 : 0, fd, tries = 0;

    do {
        free(file->temporary);
        if (asprintf(&file->temporary, "%.*s.new-%d-%u.tmp", folder, file->path, (int)getpid(),
                     atomic_fetch_add(&numbers, 1)) < 0) {
            file->temporary = NULL;
            errno = ENOMEM;
            return -1;
        }
        fd = open(file->temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (fd < 0 && errno == EEXIST && ++tries < 1000);
    return fd;
}

/* May what is at `path` be replaced by a file of this kind? */
static gpunvme_err_t check_kind(const char *path, const char *kind)
{
    size_t length = strlen(kind);
    char found[32];
    ssize_t n;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return base_fail_errno(errno, "%.150s", path);
    do
        n = read(fd, found, length);
    while (n < 0 && errno == EINTR);
    close(fd);
    if (n < 0)
        return base_fail_errno(errno, "%.150s", path);
    if (n && ((size_t)n < length || memcmp(found, kind, length)))
        return base_fail(GPUNVME_ERR_INVALID,
                         "%.150s: is there already, and a file of another kind: it is not replaced",
                         path);
    return GPUNVME_OK;
}

gpunvme_err_t base_newfile_begin(struct base_newfile *file, const char *path, const char *kind)
{
    struct stat st;
    gpunvme_err_t err;

    *file = (struct base_newfile){.fd = -1, .path = realpath(path, NULL)};
    if (!file->path && !lstat(path, &st) && S_ISLNK(st.st_mode))
        return base_fail(GPUNVME_ERR_INVALID, "%.150s: a link to nothing", path);
    if (file->path) {
        if (!stat(file->path, &st) && !S_ISREG(st.st_mode))
            err = base_fail(GPUNVME_ERR_INVALID, "%.150s: not a regular file", path);
        else
            err = check_kind(path, kind);
        if (err) {
            free(file->path);
            return err;
        }
    }
    if (!file->path) /* it is not there yet */
        file->path = strdup(path);
    if (!file->path)
        return base_fail(GPUNVME_ERR_NOMEM, "%.150s", path);
    file->fd = open_new(file);
    if (file->fd >= 0)
        return GPUNVME_OK;
    err = base_fail_errno(errno, "%.150s", path);
    free(file->temporary);
    free(file->path);
    return err;
}

/* The new name is in its folder for good. Some file systems can't flush a folder: then it is. */
static void flush_folder(char *path)
{
    int fd = open(dirname(path), O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        return;
    (void)fsync(fd);
    close(fd);
}

gpunvme_err_t base_newfile_end(struct base_newfile *file, gpunvme_err_t err)
{
    if (!err && (fsync(file->fd) || rename(file->temporary, file->path)))
        err = base_fail_errno(errno, "%.150s", file->path);
    if (err)
        unlink(file->temporary);
    close(file->fd);
    if (!err)
        flush_folder(file->path);
    free(file->temporary);
    free(file->path);
    return err;
}
