/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Processes whose memory is a FUSE file's that nobody ever reads from call the kernel module, and
 * never come back. Everybody else must go on: other calls of the same file, opening the device or
 * any other misc device, unbinding the function.
 *
 *   kmod_stuck /dev/gpunvme/BDF
 *
 * Unbinds the function. Prints what failed and ends with 1.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kmod_check.h"

#define MOUNT   "/tmp/stuck"
#define SECONDS 20 /* after which something counts as stuck */

static int device, fuse;
static const char *path;
static char page[PAGE] __attribute__((aligned(PAGE)));
static uint64_t pages[1];

/* --- a file system whose files can be opened, and never read --------------------------------- */

static void reply(uint64_t unique, int error, const void *data, size_t nbytes)
{
    char message[256] = {0};
    struct fuse_out_header h = {
        .len = (uint32_t)(sizeof(h) + nbytes), .error = -error, .unique = unique};

    memcpy(message, &h, sizeof(h));
    memcpy(message + sizeof(h), data, nbytes);
    CHECK(write(fuse, message, h.len) == (ssize_t)h.len);
}

/* Node 1 is the root folder; the file "c" is node 'c'. */
static struct fuse_attr attributes(uint64_t node)
{
    return (struct fuse_attr){.ino = node,
                              .mode = node == 1 ? S_IFDIR | 0755 : S_IFREG | 0644,
                              .nlink = 1,
                              .size = PAGE,
                              .blksize = PAGE};
}

/* Answers one request; true if it is a read, which gets no answer. */
static int serve(void)
{
    static char message[1 << 18];
    const struct fuse_in_header *h = (void *)message;
    struct fuse_init_out init = {.major = 7, .minor = 31, .max_write = PAGE, .max_readahead = PAGE};
    struct fuse_entry_out entry = {.attr_valid = 1000, .entry_valid = 1000};
    struct fuse_attr_out attr = {.attr_valid = 1000};
    struct fuse_open_out open = {.fh = 1};

    if (read(fuse, message, sizeof(message)) < 0)
        return 0;
    switch (h->opcode) {
    case FUSE_INIT:
        reply(h->unique, 0, &init, sizeof(init));
        break;
    case FUSE_LOOKUP:
        entry.nodeid = (uint64_t)message[sizeof(*h)];
        entry.attr = attributes(entry.nodeid);
        reply(h->unique, 0, &entry, sizeof(entry));
        break;
    case FUSE_GETATTR:
        attr.attr = attributes(h->nodeid);
        reply(h->unique, 0, &attr, sizeof(attr));
        break;
    case FUSE_OPEN:
        reply(h->unique, 0, &open, sizeof(open));
        break;
    case FUSE_READ:
        return 1;
    case FUSE_FORGET:
        break;
    default:
        reply(h->unique, ENOSYS, NULL, 0);
    }
    return 0;
}

static void mount_it(void)
{
    char options[64];

    mkdir(MOUNT, 0755);
    fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    CHECK(fuse >= 0);
    snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0", fuse);
    CHECK(mount("stuck", MOUNT, "fuse", 0, options) == 0);
}

/* A page of the file with this name, of one character. */
static void *endless(char name)
{
    char file[] = MOUNT "/x";
    void *memory;

    file[sizeof(file) - 2] = name;
    memory = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, open(file, O_RDONLY), 0);
    if (memory == MAP_FAILED)
        _exit(2);
    return memory;
}

/* --- calls that never come back --------------------------------------------------------------- */

static int writes_answer(void)
{
    return ioctl(device, GPUNVME_IOC_INFO, endless('a'));
}

static int reads_argument(void)
{
    return ioctl(device, GPUNVME_IOC_EVENT, endless('b'));
}

static int pins(void)
{
    struct gpunvme_ioc_map_user a = {
        .addr = (uintptr_t)endless('c'), .len = PAGE, .pages = (uintptr_t)pages, .capacity = 1};

    return ioctl(device, GPUNVME_IOC_MAP_USER, &a);
}

static int writes_list(void)
{
    struct gpunvme_ioc_map_user a = {
        .addr = (uintptr_t)page, .len = PAGE, .pages = (uintptr_t)endless('d'), .capacity = 1};

    return ioctl(device, GPUNVME_IOC_MAP_USER, &a);
}

static int reads_eventfds(void)
{
    struct gpunvme_ioc_irq a = {.wanted = 1, .fds = (uintptr_t)endless('e')};

    return ioctl(device, GPUNVME_IOC_IRQ, &a);
}

/* --- calls that must come back ---------------------------------------------------------------- */

static int asks(void)
{
    struct gpunvme_ioc_info info;

    return ioctl(device, GPUNVME_IOC_INFO, &info);
}

static int opens_again(void)
{
    return open(path, O_RDWR) == -1 && errno == EBUSY ? 0 : -1;
}

static int opens_misc(void)
{
    return open("/dev/fuse", O_RDWR);
}

static int unbinds(void)
{
    int fd = open("/sys/bus/pci/drivers/gpunvme/unbind", O_WRONLY);
    const char *bdf = strrchr(path, '/') + 1;

    return fd >= 0 && write(fd, bdf, strlen(bdf)) == (ssize_t)strlen(bdf) ? 0 : -1;
}

static int asks_in_vain(void)
{
    return asks() == -1 && errno == ENODEV ? 0 : -1;
}

/* --- processes -------------------------------------------------------------------------------- */

/* Runs `call` in a process, which ends with 1 if it fails. */
static pid_t start(int (*call)(void))
{
    pid_t pid = fork();

    if (pid == 0) {
        close(fuse); /* else the file system lives as long as this process */
        _exit(call() < 0 ? 1 : 0);
    }
    return pid;
}

/* How the process ended; -1 if it didn't. */
static int end_of(pid_t pid)
{
    int status;

    for (int i = 0; i < SECONDS * 100; i++) {
        if (waitpid(pid, &status, WNOHANG) == pid)
            return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
        usleep(10000);
    }
    return -1;
}

int main(int argc, char **argv)
{
    static int (*const stuck[])(void) = {writes_answer, reads_argument, pins, writes_list,
                                         reads_eventfds};
    const int n = sizeof(stuck) / sizeof(stuck[0]);
    pid_t pids[sizeof(stuck) / sizeof(stuck[0])];
    int reads = 0;

    if (argc != 2)
        return 2;
    path = argv[1];
    device = open(path, O_RDWR);
    CHECK(device >= 0 && asks() == 0);
    mount_it();
    for (int i = 0; i < n; i++)
        pids[i] = start(stuck[i]);
    while (reads < n && poll(&(struct pollfd){.fd = fuse, .events = POLLIN}, 1, SECONDS * 1000) > 0)
        reads += serve();
    printf("%d of %d calls are stuck\n", reads, n);
    CHECK(reads == n); /* none waits for another */

    CHECK(end_of(start(asks)) == 0);
    CHECK(end_of(start(opens_again)) == 0);
    CHECK(end_of(start(opens_misc)) == 0);
    CHECK(end_of(start(unbinds)) == 0);
    CHECK(end_of(start(asks_in_vain)) == 0);
    for (int i = 0; i < n; i++)
        CHECK(waitpid(pids[i], NULL, WNOHANG) == 0);

    umount2(MOUNT, MNT_DETACH);
    close(fuse); /* ends every read with an error */
    for (int i = 0; i < n; i++)
        CHECK(end_of(pids[i]) == 1);
    printf("stuck: %d failures\n", failures);
    return failures ? 1 : 0;
}
