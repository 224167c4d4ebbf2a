/* SPDX-License-Identifier: BSD-3-Clause
 *
 * An image file: found or made, checked, locked. Knows nothing of transfers.
 */
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/units.h"
#include "gpunvme/sim.h"
#include "sim/store/image_file.h"

#define BLANK_NBYTES (1u << 20) /* zero in all of these: nobody's data */
#define PIECE_NBYTES (64u << 10)

#define LOCK_NAPS   100u     /* before an image is BUSY */
#define LOCK_NAP_NS 1000000u /* each */

struct mark {
    char magic[16];
    uint64_t version; /* little-endian, as the next */
    uint64_t nbytes;  /* of the namespace: a file that was made longer or shorter has lost it */
};

static struct mark mark_of(uint64_t nbytes)
{
    return (struct mark){
        .magic = "gpunvme image\r\n", .version = htole64(1), .nbytes = htole64(nbytes)};
}

/* Writes the mark behind the namespace. The memory suits O_DIRECT, which may be on. */
static int write_mark(int fd, uint64_t nbytes)
{
    _Alignas(SIM_IMAGE_MARK_NBYTES) char block[SIM_IMAGE_MARK_NBYTES] = {0};
    struct mark mark = mark_of(nbytes);
    ssize_t n;

    memcpy(block, &mark, sizeof(mark));
    do {
        n = pwrite(fd, block, sizeof(block), (off_t)nbytes);
    } while (n < 0 && errno == EINTR);
    return n < 0 ? errno : n == (ssize_t)sizeof(block) ? 0 : ENOSPC;
}

static bool has_mark(int fd, uint64_t file_nbytes)
{
    struct mark found, wanted;

    if (file_nbytes <= SIM_IMAGE_MARK_NBYTES)
        return false;
    wanted = mark_of(file_nbytes - SIM_IMAGE_MARK_NBYTES);
    return pread(fd, &found, sizeof(found), (off_t)(file_nbytes - SIM_IMAGE_MARK_NBYTES)) ==
               (ssize_t)sizeof(found) &&
           !memcmp(&found, &wanted, sizeof(found));
}

/* Whether the first MiB is zero; false when it can't be read. */
static bool is_blank(int fd, uint64_t file_nbytes)
{
    uint64_t end = file_nbytes < BLANK_NBYTES ? file_nbytes : BLANK_NBYTES;
    char *piece = malloc(PIECE_NBYTES);
    bool blank = piece;

    for (uint64_t at = 0; blank && at < end;) {
        ssize_t n = pread(fd, piece, PIECE_NBYTES, (off_t)at);

        if (n < 0 && errno == EINTR)
            continue;
        blank = n > 0 && !piece[0] && !memcmp(piece, piece + 1, (size_t)n - 1);
        at += (uint64_t)n;
    }
    free(piece);
    return blank;
}

int sim_image_file_mark(struct sim_image_file *file)
{
    int error_number;

    if (atomic_load_explicit(&file->is_marked, memory_order_relaxed) ||
        atomic_exchange(&file->is_marked, true))
        return 0;
    error_number = write_mark(file->fd, file->nbytes);
    if (error_number)
        atomic_store(&file->is_marked, false);
    return error_number;
}

/* Says what is wrong with a path that exists but can't be an image; GPUNVME_OK for a file. */
static gpunvme_err_t check_kind(const char *path, mode_t mode)
{
    if (S_ISREG(mode))
        return GPUNVME_OK;
    if (S_ISDIR(mode))
        return base_fail(GPUNVME_ERR_INVALID, "image %s is a directory: name a file in it", path);
    if (S_ISBLK(mode) || S_ISCHR(mode))
        return base_fail(GPUNVME_ERR_UNSUPPORTED, "image %s is a device: only files are used",
                         path);
    return base_fail(GPUNVME_ERR_INVALID, "image %s is not a file", path);
}

static gpunvme_err_t fail_to_open(const char *path, bool readonly, int error_number)
{
    if (error_number == EROFS && !readonly)
        return base_fail(GPUNVME_ERR_READONLY,
                         "image %s is on a read-only file system: add readonly, or copy it", path);
    return base_fail_errno(error_number, "image %s", path);
}

/* Makes the file, with its mark; nothing is left behind on failure. */
static gpunvme_err_t make(const char *path, uint64_t nbytes, int *out)
{
    char size[BASE_UNITS_TEXT];
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666), error_number;

    if (fd < 0)
        return fail_to_open(path, false, errno);
    if (flock(fd, LOCK_EX | LOCK_NB) || ftruncate(fd, (off_t)nbytes))
        error_number = errno;
    else
        error_number = write_mark(fd, nbytes);
    if (!error_number) {
        *out = fd;
        return GPUNVME_OK;
    }
    unlink(path);
    close(fd);
    return base_fail_errno(error_number, "image %s: making it %s large", path,
                           base_format_size(nbytes, size, sizeof(size)));
}

/*
 * flock(2) without waiting for a process that uses the image. It does wait a moment for one that
 * was killed: the kernel ends its io_uring, and with it the lock, some milliseconds after the
 * process.
 */
static int lock(int fd, int operation)
{
    for (unsigned i = 0; flock(fd, operation | LOCK_NB); i++) {
        if (errno != EWOULDBLOCK || i == LOCK_NAPS)
            return errno;
        nanosleep(&(struct timespec){.tv_nsec = LOCK_NAP_NS}, NULL);
    }
    return 0;
}

/*
 * Opens what exists. The kind is looked at first: opening some devices does things. Write
 * permission is looked at because root would be granted it regardless of what the owner wants.
 */
static gpunvme_err_t open_existing(const char *path, const struct stat *st, bool readonly, int *out)
{
    gpunvme_err_t err = check_kind(path, st->st_mode);
    int fd, error_number;

    if (err)
        return err;
    if (!readonly && !(st->st_mode & (S_IWUSR | S_IWGRP | S_IWOTH)))
        return base_fail(GPUNVME_ERR_READONLY,
                         "image %s has no write permission: add readonly, or chmod u+w it", path);
    fd = open(path, (readonly ? O_RDONLY : O_RDWR) | O_CLOEXEC);
    if (fd < 0)
        return fail_to_open(path, readonly, errno);
    error_number = lock(fd, readonly ? LOCK_SH : LOCK_EX);
    if (error_number) {
        close(fd);
        return base_fail_errno(error_number, "image %s is open elsewhere", path);
    }
    *out = fd;
    return GPUNVME_OK;
}

static gpunvme_err_t check_size(const char *path, uint64_t has, uint64_t wanted,
                                uint32_t block_size)
{
    if (!has)
        return base_fail(GPUNVME_ERR_IMAGE_SIZE, "image %s is empty: remove it first", path);
    if (wanted && has != wanted)
        return base_fail(GPUNVME_ERR_IMAGE_SIZE, "image %s: has %llu bytes, asked for %llu", path,
                         (unsigned long long)has, (unsigned long long)wanted);
    if (has % block_size)
        return base_fail(GPUNVME_ERR_IMAGE_SIZE,
                         "image %s: its %llu bytes are not a multiple of the block size %u", path,
                         (unsigned long long)has, block_size);
    return GPUNVME_OK;
}

/* Tries what O_DIRECT takes, for kernels that do not tell. */
static void probe_direct(struct sim_image_file *file)
{
    void *buffer = NULL;

    if (!sim_image_file_set_direct(file))
        return;
    if (!posix_memalign(&buffer, 4096, 8192))
        for (uint32_t align = 512; align <= 4096 && !file->direct_offset; align *= 2)
            if (pread(file->fd, (char *)buffer + align % 4096, align, 0) == (ssize_t)align)
                file->direct_memory = file->direct_offset = align;
    free(buffer);
    fcntl(file->fd, F_SETFL, fcntl(file->fd, F_GETFL) & ~O_DIRECT);
}

static void find_direct(struct sim_image_file *file, uint32_t block_size)
{
    file->direct_memory = file->direct_offset = 0;
#ifdef STATX_DIOALIGN
    struct statx stx;

    if (!statx(file->fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &stx) &&
        stx.stx_mask & STATX_DIOALIGN) {
        file->direct_memory = stx.stx_dio_mem_align;
        file->direct_offset = stx.stx_dio_offset_align;
    } else
#endif
        probe_direct(file);
    if (file->direct_offset > block_size || !file->direct_memory)
        file->direct_memory = file->direct_offset = 0;
}

bool sim_image_file_set_direct(const struct sim_image_file *file)
{
    int flags = fcntl(file->fd, F_GETFL);

    return flags >= 0 && !fcntl(file->fd, F_SETFL, flags | O_DIRECT);
}

/* Takes what is known of an open file; decides whether it may be written to. */
static gpunvme_err_t look_at(const struct sim_image_request *request, int fd,
                             struct sim_image_file *out)
{
    bool marked;
    struct stat st;

    if (fstat(fd, &st))
        return base_fail_errno(errno, "image %s", request->path);
    marked = has_mark(fd, (uint64_t)st.st_size);
    out->fd = fd;
    out->nbytes = (uint64_t)st.st_size - (marked ? SIM_IMAGE_MARK_NBYTES : 0);
    atomic_init(&out->is_marked, marked);
    out->is_foreign =
        !marked && !request->readonly && !request->force && !is_blank(fd, out->nbytes);
    return check_size(request->path, out->nbytes, request->nbytes, request->block_size);
}

gpunvme_err_t sim_image_file_open(const struct sim_image_request *request,
                                  struct sim_image_file *out)
{
    const char *path = request->path;
    struct stat st;
    gpunvme_err_t err;
    int fd = -1;

    if (!path[0])
        return base_fail(GPUNVME_ERR_INVALID, "an image needs a path");
    if (!stat(path, &st))
        err = open_existing(path, &st, request->readonly, &fd);
    else if (errno != ENOENT)
        err = base_fail_errno(errno, "image %s", path);
    else if (request->readonly || !request->nbytes)
        err = base_fail(GPUNVME_ERR_NOT_FOUND, "image %s does not exist%s", path,
                        request->readonly ? "" : ": to make it, say size=");
    else
        err = make(path, request->nbytes, &fd);
    if (err)
        return err;
    err = look_at(request, fd, out);
    if (err) {
        close(fd);
        return err;
    }
    if (out->is_foreign)
        flock(fd, LOCK_SH | LOCK_NB);
    find_direct(out, request->block_size);
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_sim_image_size(const char *path, uint64_t *nbytes)
{
    struct stat st;
    gpunvme_err_t err;
    int fd;

    if (!path || !nbytes)
        return base_fail(GPUNVME_ERR_INVALID, "%s is NULL", path ? "nbytes" : "path");
    if (stat(path, &st))
        return base_fail_errno(errno, "image %s", path);
    err = check_kind(path, st.st_mode);
    if (err)
        return err;
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return fail_to_open(path, true, errno);
    *nbytes = (uint64_t)st.st_size;
    if (has_mark(fd, *nbytes))
        *nbytes -= SIM_IMAGE_MARK_NBYTES;
    close(fd);
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_sim_image_create(const char *path, uint64_t nbytes)
{
    gpunvme_err_t err;
    uint64_t has;
    int fd;

    if (!path || !path[0])
        return base_fail(GPUNVME_ERR_INVALID, "an image needs a path");
    if (!nbytes || nbytes % 512 || nbytes > INT64_MAX - SIM_IMAGE_MARK_NBYTES)
        return base_fail(GPUNVME_ERR_INVALID, "an image of %llu bytes: use a multiple of 512",
                         (unsigned long long)nbytes);
    if (!access(path, F_OK)) {
        err = gpunvme_sim_image_size(path, &has);
        return err ? err : check_size(path, has, nbytes, 512);
    }
    if (errno != ENOENT)
        return base_fail_errno(errno, "image %s", path);
    err = make(path, nbytes, &fd);
    if (!err)
        close(fd);
    return err;
}
