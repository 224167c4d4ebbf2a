/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A file system with one file, /file, that can stop to answer. It is a child of the test (FUSE),
 * which ends with it: threads that wait for its answers could not be killed otherwise. It is
 * mounted in a mount namespace of its own, which root may make.
 */
#ifndef FUSE_FILE_H
#define FUSE_FILE_H

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

struct fuse_file {
    uint64_t nbytes;
    const uint8_t *bytes; /* NULL: it is not read */
    uint32_t open_flags;  /* FOPEN_… */
    uint64_t valid_s;     /* for how long the kernel may keep attributes */
    uint64_t mute_from;   /* while it is mute: the first byte whose reads wait. 0: no answer at all,
                             to any question */

    struct {
        _Atomic bool is_mute;
        _Atomic unsigned nignored; /* questions */
        _Atomic unsigned nheld;    /* reads that came while it was mute, and wait */
    } * shared;                    /* with the child */
    char folder[32], path[40];
    pid_t server;
    int fd; /* of the child */
};

static inline void fuse_reply(const struct fuse_file *f, uint64_t unique, int error,
                              const void *body, size_t nbytes)
{
    struct fuse_out_header head = {
        .len = (uint32_t)(sizeof(head) + nbytes), .error = -error, .unique = unique};
    struct iovec parts[2] = {{.iov_base = &head, .iov_len = sizeof(head)},
                             {.iov_base = (void *)(uintptr_t)body, .iov_len = nbytes}};

    (void)!writev(f->fd, parts, 2);
}

static inline struct fuse_attr fuse_attributes(const struct fuse_file *f, uint64_t node)
{
    return (struct fuse_attr){.ino = node,
                              .mode = node == 1 ? S_IFDIR | 0755 : S_IFREG | 0666,
                              .nlink = 1,
                              .size = node == 1 ? 0 : f->nbytes,
                              .blksize = 4096};
}

static inline void fuse_answer_read(const struct fuse_file *f, const struct fuse_in_header *in)
{
    const struct fuse_read_in *read = (const struct fuse_read_in *)(in + 1);
    size_t nbytes = read->offset > f->nbytes ? 0 : (size_t)(f->nbytes - read->offset);

    if (f->shared->is_mute && read->offset + read->size > f->mute_from)
        f->shared->nheld++;
    while (f->shared->is_mute && read->offset + read->size > f->mute_from)
        usleep(1000);
    fuse_reply(f, in->unique, 0, f->bytes + read->offset,
               nbytes < read->size ? nbytes : read->size);
}

static inline void fuse_answer(const struct fuse_file *f, const struct fuse_in_header *in)
{
    struct fuse_init_out init = {.major = 7, .minor = 31, .max_write = 65536};
    struct fuse_entry_out entry = {
        .nodeid = 2, .entry_valid = 1000, .attr_valid = f->valid_s, .attr = fuse_attributes(f, 2)};
    struct fuse_attr_out attr = {.attr_valid = f->valid_s, .attr = fuse_attributes(f, in->nodeid)};
    struct fuse_open_out opened = {.fh = 1, .open_flags = f->open_flags};

    if (in->opcode == FUSE_INIT)
        fuse_reply(f, in->unique, 0, &init, sizeof(init));
    else if (in->opcode == FUSE_LOOKUP)
        fuse_reply(f, in->unique, 0, &entry, sizeof(entry));
    else if (in->opcode == FUSE_GETATTR)
        fuse_reply(f, in->unique, 0, &attr, sizeof(attr));
    else if (in->opcode == FUSE_OPEN)
        fuse_reply(f, in->unique, 0, &opened, sizeof(opened));
    else if (in->opcode == FUSE_READ && f->bytes)
        fuse_answer_read(f, in);
    else if (in->opcode == FUSE_RELEASE)
        fuse_reply(f, in->unique, 0, NULL, 0);
    else if (in->opcode != FUSE_FORGET)
        fuse_reply(f, in->unique, ENOSYS, NULL, 0);
}

static inline void fuse_serve(const struct fuse_file *f)
{
    static union {
        struct fuse_in_header in;
        char bytes[1 << 18];
    } request;

    while (read(f->fd, &request, sizeof(request)) > 0 || errno == EINTR || errno == ENOENT) {
        if (f->shared->is_mute && !f->mute_from)
            f->shared->nignored++;
        else
            fuse_answer(f, &request.in);
    }
}

/* Mounts it; false, with a reason: it can't be had here. Before there are threads. */
static inline bool fuse_mount(struct fuse_file *f)
{
    pid_t parent = getpid();
    char text[96];

    strcpy(f->folder, "/tmp/gpunvme-fuse-XXXXXX");
    f->shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    f->fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    snprintf(text, sizeof(text), "fd=%d,rootmode=40000,user_id=0,group_id=0", f->fd);
    if (f->shared == MAP_FAILED || f->fd < 0 || unshare(CLONE_NEWNS) ||
        mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) || !mkdtemp(f->folder) ||
        mount("test", f->folder, "fuse", MS_NODEV | MS_NOSUID, text) || (f->server = fork()) < 0) {
        printf("SKIP: no file system by FUSE here (/dev/fuse, root): %s\n", strerror(errno));
        return false;
    }
    if (!f->server) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() == parent)
            fuse_serve(f);
        _exit(0);
    }
    close(f->fd);
    snprintf(f->path, sizeof(f->path), "%s/file", f->folder);
    return true;
}

/* Ends what waits for an answer, closing included. */
static inline void fuse_unmount(struct fuse_file *f)
{
    umount2(f->folder, MNT_FORCE | MNT_DETACH);
    kill(f->server, SIGKILL);
    waitpid(f->server, NULL, 0);
    rmdir(f->folder);
}

#endif
