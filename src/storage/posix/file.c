/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Files and block devices: descriptors, what their file system can do, and calls that move bytes
 * at once. Knows nothing of transfers.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/fail.h"
#include "storage/posix/posix.h"

#define LIES      8u  /* looks in a row that were wrong, before most are left out */
#define LIES_STEP 64u /* … and of how many one is not */

/* Past the page cache smaller writes cost more than they gain: the drive is waited for. */
#define DIRECT_WRITE_NBYTES (256u << 10)

#ifndef HUGETLBFS_MAGIC
#define HUGETLBFS_MAGIC 0x958458f6
#endif
#ifndef SYS_cachestat
#define SYS_cachestat 451 /* Linux 6.5, the same number everywhere */
#endif

/*
 * O_EXCL for a block device that is opened for writing: the kernel grants it only if nobody else
 * has claimed the device, by a mount, as swap, or for a RAID or volume group. (For files O_EXCL
 * means something else.) The claim lasts until the descriptor is closed.
 */
static int claim(const char *path, bool writing)
{
    struct stat st;

    return writing && !stat(path, &st) && S_ISBLK(st.st_mode) ? O_EXCL : 0;
}

static gpunvme_err_t fail_to_open(const char *path, int how, int error)
{
    const char *nearest = store_uri_nearest_scheme(path);

    if (error == EBUSY && how & O_EXCL)
        return base_fail(
            GPUNVME_ERR_BUSY,
            "%s is mounted, or is in use as swap or by a RAID, a volume group or another "
            "program: it is not opened for writing",
            path);
    if (error == EEXIST)
        return base_fail(GPUNVME_ERR_EXISTS, "%s", path);
    if (error == ENOENT && nearest)
        return base_fail(GPUNVME_ERR_NOT_FOUND, "%s: there is no such file: did you mean '%s:'?",
                         path, nearest);
    if (error == ENOENT && path[strcspn(path, ":/")] == ':')
        return base_fail_errno(error, "%s: there is no such file, nor a scheme of this name", path);
    return base_fail_errno(error, "%s", path);
}

static int how_to_open(const struct gpunvme_store *store)
{
    unsigned flags = store->flags;
    int how = O_CLOEXEC | (flags & GPUNVME_OPEN_WRITE ? O_RDWR : O_RDONLY);
    int claims;

    if (flags & GPUNVME_OPEN_EXCL)
        return how | O_CREAT | O_EXCL;
    claims = claim(store->uri.target, flags & GPUNVME_OPEN_WRITE);
    return how | claims | (flags & GPUNVME_OPEN_CREATE && !claims ? O_CREAT : 0);
}

#define FD_NAME_ROOM 32

/* A path by which what a descriptor refers to is opened once more. */
static const char *name_of(int fd, char name[FD_NAME_ROOM])
{
    snprintf(name, FD_NAME_ROOM, "/proc/self/fd/%d", fd);
    return name;
}

/*
 * A descriptor of the caller's, opened once more: the copy has flags and a lock of its own. Where
 * that is refused, a duplicate, unless its flags, which are the caller's, would make writes go to
 * the end of the file, or would have all transfers aligned.
 */
static int open_given(int fd, int how)
{
    char name[FD_NAME_ROOM];
    int again, error;

    name_of(fd, name);
    again = open(name, how | O_NONBLOCK | claim(name, how & O_RDWR));
    if (again >= 0)
        fcntl(again, F_SETFL, 0);
    if (again >= 0 || errno == EBUSY || errno == EBADF)
        return again;
    error = errno;
    if (fcntl(fd, F_GETFL) & (O_DIRECT | (how & O_RDWR ? O_APPEND : 0))) {
        errno = error;
        return -1;
    }
    return fcntl(fd, F_DUPFD_CLOEXEC, 3);
}

/* A descriptor that was given must allow what the store is opened for. */
static gpunvme_err_t check_given(const struct gpunvme_store *store)
{
    bool writing = store->flags & GPUNVME_OPEN_WRITE;
    int mode = fcntl(store->given_fd, F_GETFL);

    if (mode < 0)
        return base_fail(GPUNVME_ERR_INVALID, "descriptor %d is not open", store->given_fd);
    if (mode & O_PATH || (mode & O_ACCMODE) == O_WRONLY)
        return base_fail(GPUNVME_ERR_PERMISSION, "descriptor %d is not open for reading",
                         store->given_fd);
    if (writing && (mode & O_ACCMODE) != O_RDWR)
        return base_fail(GPUNVME_ERR_READONLY, "descriptor %d is open for reading alone",
                         store->given_fd);
    return GPUNVME_OK;
}

/* What it is, and what is to be known of it; TRUNCATE. */
static gpunvme_err_t examine(struct gpunvme_store *store, int fd, int how)
{
    bool writing = store->flags & GPUNVME_OPEN_WRITE;
    const char *path = store->uri.target;
    struct stat st;

    if (fstat(fd, &st))
        return base_fail_errno(errno, "%s", path);
    if (!S_ISBLK(st.st_mode) && !S_ISREG(st.st_mode))
        return base_fail(GPUNVME_ERR_INVALID, "%s is neither a file nor a block device", path);
    if (writing && S_ISBLK(st.st_mode) && !(how & O_EXCL))
        return base_fail(GPUNVME_ERR_BUSY, "%s has become a block device meanwhile", path);
    if (store->flags & GPUNVME_OPEN_TRUNCATE && S_ISBLK(st.st_mode))
        return base_fail(GPUNVME_ERR_INVALID, "%s is a block device: nothing can truncate it",
                         path);
    if (store->flags & GPUNVME_OPEN_TRUNCATE && ftruncate(fd, 0))
        return base_fail_errno(errno, "%s: to truncate it", path);
    store->dev = st.st_dev;
    store->ino = st.st_ino;
    store->resizable = !S_ISBLK(st.st_mode);
    store->block_size = st.st_blksize > 0 ? (uint32_t)st.st_blksize : POSIX_PAGE;
    return GPUNVME_OK;
}

gpunvme_err_t store_open_fd(struct gpunvme_store *store, int *fd)
{
    bool given = store->given_fd >= 0;
    int how = given ? O_CLOEXEC | (store->flags & GPUNVME_OPEN_WRITE ? O_RDWR : O_RDONLY)
                    : how_to_open(store);
    gpunvme_err_t err = given ? check_given(store) : GPUNVME_OK;

    *fd = -1;
    if (err)
        return err;
    /* A FIFO would hold us up until somebody opens its other end. For the rest it means nothing,
     * but io_uring asks for it: it would not wait for some file systems. */
    *fd =
        given ? open_given(store->given_fd, how) : open(store->uri.target, how | O_NONBLOCK, 0666);
    if (*fd < 0)
        return fail_to_open(store->uri.target, given ? how | O_EXCL : how, errno);
    if (!given)
        fcntl(*fd, F_SETFL, 0);
    return examine(store, *fd, given ? how | O_EXCL : how);
}

/*
 * Whether a program or another machine answers for the file system: it may stop to, and then even
 * what should not wait does, RWF_NOWAIT and submission to io_uring. The numbers that the kernel's
 * linux/magic.h lacks are those of the file systems' own sources.
 */
static bool is_served(uint32_t type)
{
    static const uint32_t served[] = {
        FUSE_SUPER_MAGIC, NFS_SUPER_MAGIC,  SMB_SUPER_MAGIC,  SMB2_SUPER_MAGIC,
        CIFS_SUPER_MAGIC, V9FS_MAGIC,       CEPH_SUPER_MAGIC, AFS_SUPER_MAGIC,
        AFS_FS_MAGIC,     CODA_SUPER_MAGIC, 0x0bd00bd0, /* Lustre */
        0x47504653,                                     /* GPFS */
        0x19830326,                                     /* BeeGFS */
        0x01161970,                                     /* GFS2 */
        0x7461636f,                                     /* OCFS2 */
    };

    for (size_t i = 0; i < sizeof(served) / sizeof(served[0]); i++)
        if (type == served[i])
            return true;
    return false;
}

static void ask_file_system(struct posix_file *file, bool own)
{
    struct statfs fs;
    uint32_t type;

    if (fstatfs(file->fd, &fs)) {
        file->is_served = !file->block_device; /* those of drives know this call */
        return;
    }
    type = (uint32_t)fs.f_type;
    /* Of a device it is that of its name's folder, /dev. */
    file->in_memory = own && !file->block_device &&
                      (type == TMPFS_MAGIC || type == RAMFS_MAGIC || type == HUGETLBFS_MAGIC);
    file->is_served = is_served(type);
}

static bool power_of_two(uint32_t x)
{
    return x && !(x & (x - 1));
}

/* What O_DIRECT wants: as the kernel says it, else the device's sector, else a page. */
static void ask_alignment(struct posix_file *file)
{
    int sector = 0;

    file->align = file->memory_align = POSIX_PAGE;
    if (file->block_device && !ioctl(file->fd, BLKSSZGET, &sector) && sector > 0)
        file->align = file->memory_align = (uint32_t)sector;
#ifdef STATX_DIOALIGN
    struct statx stx;

    if (!statx(file->fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &stx) &&
        stx.stx_mask & STATX_DIOALIGN && stx.stx_dio_offset_align) {
        file->align = stx.stx_dio_offset_align;
        file->memory_align = stx.stx_dio_mem_align;
    }
#endif
    if (!power_of_two(file->align) || file->align > POSIX_PAGE)
        file->align = POSIX_PAGE;
    if (!power_of_two(file->memory_align) || file->memory_align > POSIX_PAGE)
        file->memory_align = POSIX_PAGE;
}

/* A second descriptor past the page cache, if there can be one and it is wanted. */
static gpunvme_err_t open_direct(struct gpunvme_store *store, struct posix_file *file)
{
    enum store_switch wanted = store->uri.options.direct;
    int how = O_DIRECT | O_CLOEXEC | (store->flags & GPUNVME_OPEN_WRITE ? O_RDWR : O_RDONLY);
    char name[FD_NAME_ROOM];
    uint64_t size;

    if (wanted == STORE_OFF) {
        snprintf(file->why_not, sizeof(file->why_not), "direct=off");
        return GPUNVME_OK;
    }
    if (wanted == STORE_AUTO && file->in_memory) {
        snprintf(file->why_not, sizeof(file->why_not), "the file is in memory");
        return GPUNVME_OK;
    }
    /* The file's path may name another one by now. */
    file->direct_fd = open(name_of(file->fd, name), how);
    if (file->direct_fd < 0) {
        int error = errno;

        snprintf(file->why_not, sizeof(file->why_not), "open: %s", strerror(error));
        if (wanted == STORE_ON)
            return base_fail_errno(error, "%s with O_DIRECT; direct=auto does without",
                                   store->uri.target);
        return GPUNVME_OK;
    }
    ask_alignment(file);
    if (!store_fd_size(file->fd, file->block_device, &size))
        atomic_store(&file->seen_nbytes, size);
    file->wanted = wanted == STORE_ON;
    return GPUNVME_OK;
}

gpunvme_err_t posix_file_open(struct gpunvme_store *store, struct posix_file *file, bool own)
{
    gpunvme_err_t err;

    file->fd = file->direct_fd = -1;
    err = store_open_fd(store, &file->fd);
    if (err)
        return err;
    file->block_device = !store->resizable;
    ask_file_system(file, own);
    atomic_store(&file->cold, 1);
    return open_direct(store, file);
}

gpunvme_err_t posix_file_close(struct posix_file *file)
{
    gpunvme_err_t err = GPUNVME_OK;

    if (file->direct_fd >= 0)
        close(file->direct_fd);
    if (file->fd >= 0 && close(file->fd) && errno != EINTR)
        err = base_fail_errno(errno, "close");
    file->fd = file->direct_fd = -1;
    return err;
}

gpunvme_err_t store_fd_size(int fd, bool block_device, uint64_t *nbytes)
{
    struct stat st;

    if (block_device ? ioctl(fd, BLKGETSIZE64, nbytes) : fstat(fd, &st))
        return base_fail_errno(errno, "its size");
    if (!block_device)
        *nbytes = (uint64_t)st.st_size;
    return GPUNVME_OK;
}

int store_fd_flush(int fd)
{
    int error;

    do {
        error = fdatasync(fd) ? errno : 0;
    } while (error == EINTR);
    return error;
}

ssize_t store_fd_move(int fd, enum gpunvme_op op, uint8_t *cpu, size_t nbytes, uint64_t offset)
{
    ssize_t n;

    do {
        n = op == GPUNVME_OP_READ ? pread(fd, cpu, nbytes, (off_t)offset)
                                  : pwrite(fd, cpu, nbytes, (off_t)offset);
    } while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : n;
}

static ssize_t read_nowait(int fd, uint8_t *cpu, size_t nbytes, uint64_t offset)
{
    const struct iovec iov = {.iov_base = cpu, .iov_len = nbytes};
    ssize_t n;

    do {
        n = preadv2(fd, &iov, 1, (off_t)offset, RWF_NOWAIT);
    } while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : n;
}

bool posix_file_look(struct posix_file *file, uint8_t *cpu, size_t nbytes, uint64_t offset,
                     size_t *done, bool *end)
{
    *done = 0;
    *end = false;
    while (*done < nbytes) {
        ssize_t n = file->in_memory
                        ? store_fd_move(file->fd, GPUNVME_OP_READ, cpu + *done, nbytes - *done,
                                        offset + *done)
                        : read_nowait(file->fd, cpu + *done, nbytes - *done, offset + *done);

        if (n == 0) {
            *end = true;
            break;
        }
        if (n == -EOPNOTSUPP || n == -ENOSYS)
            atomic_store(&file->no_nowait, true);
        if (n < 0) { /* EAGAIN: a drive is needed. An error is met again by who asks it */
            atomic_fetch_add_explicit(&file->cold, 1, memory_order_relaxed);
            if (!*done)
                atomic_fetch_add_explicit(&file->lies, 1, memory_order_relaxed);
            return false;
        }
        *done += (size_t)n;
    }
    if (atomic_load_explicit(&file->cold, memory_order_relaxed)) {
        atomic_store_explicit(&file->cold, 0, memory_order_relaxed);
        atomic_store_explicit(&file->lies, 0, memory_order_relaxed);
    }
    return true;
}

/* By mincore(2), through a mapping that nobody touches. */
static bool page_is_mapped_in(int fd, uint64_t offset)
{
    unsigned char in = 0;
    void *page = mmap(NULL, POSIX_PAGE, PROT_READ, MAP_SHARED, fd,
                      (off_t)(offset & ~(uint64_t)(POSIX_PAGE - 1)));

    if (page == MAP_FAILED)
        return false;
    if (mincore(page, POSIX_PAGE, &in))
        in = 0;
    munmap(page, POSIX_PAGE);
    return in & 1;
}

static bool page_is_cached(int fd, uint64_t offset)
{
    struct {
        uint64_t offset, nbytes;
    } range = {offset, 1};
    struct {
        uint64_t ncached, ndirty, nwriteback, nevicted, nrecently_evicted;
    } found = {0};

    if (!syscall(SYS_cachestat, fd, &range, &found, 0u))
        return found.ncached;
    return page_is_mapped_in(fd, offset);
}

bool posix_file_seems_cached(const struct posix_file *file)
{
    uint64_t middle = atomic_load(&file->seen_nbytes) / 2;

    return file->in_memory || (!file->is_served && !file->wanted && page_is_cached(file->fd, 0) &&
                               page_is_cached(file->fd, middle));
}

bool posix_file_is_warm(struct posix_file *file, uint64_t offset)
{
    uint32_t lies;

    if (file->in_memory)
        return true;
    if (file->is_served || atomic_load_explicit(&file->no_nowait, memory_order_relaxed) ||
        (file->wanted && posix_file_direct(file, GPUNVME_OP_READ, 0)))
        return false;
    if (!atomic_load_explicit(&file->cold, memory_order_relaxed))
        return true;
    /* Who may not know what is cached is told that all is (mincore(2)). */
    lies = atomic_load_explicit(&file->lies, memory_order_relaxed);
    if (lies > LIES && atomic_fetch_add_explicit(&file->lies, 1, memory_order_relaxed) % LIES_STEP)
        return false;
    return page_is_cached(file->fd, offset);
}

bool posix_file_direct(const struct posix_file *file, enum gpunvme_op op, size_t nbytes)
{
    if (file->direct_fd < 0 || atomic_load_explicit(&file->no_direct, memory_order_relaxed))
        return false;
    return op == GPUNVME_OP_READ || file->block_device || file->wanted ||
           nbytes >= DIRECT_WRITE_NBYTES;
}
