/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Talks to the kernel module's device directly, inside a guest: what it must refuse, dma-bufs,
 * and what an open file sees when the function is unbound. One check a run:
 *
 *   kmod_check /dev/gpunvme/BDF refusals|second|dmabuf|reset|limit|threads|info|hold
 *
 * "hold" opens the device, says "held", waits for a line, and then checks that the function is
 * gone; "info" tells whether the IOMMU protects memory. Prints what failed and ends with 1; 77
 * where the kernel can't do it.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/udmabuf.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kmod_check.h"

/* Of the kernel's drm.h and drm_mode.h, which Debian's C library headers leave out. */
struct dumb_create {
    uint32_t height, width, bpp, flags, handle, pitch;
    uint64_t size;
};
struct dumb_map {
    uint32_t handle, pad;
    uint64_t offset;
};
struct prime_handle {
    uint32_t handle, flags;
    int32_t fd;
};
#define CREATE_DUMB  _IOWR('d', 0xb2, struct dumb_create)
#define MAP_DUMB     _IOWR('d', 0xb3, struct dumb_map)
#define HANDLE_TO_FD _IOWR('d', 0x2d, struct prime_handle)

static int fd;
static char page[4 * PAGE] __attribute__((aligned(PAGE)));
static uint64_t pages[8];

/* The call fails with this error. */
#define REFUSED(request, argument, error)                                                          \
    CHECK(ioctl(fd, (request), (argument)) == -1 && errno == (error))

static struct gpunvme_ioc_map_user good(void)
{
    return (struct gpunvme_ioc_map_user){
        .addr = (uintptr_t)page, .len = PAGE, .pages = (uintptr_t)pages, .capacity = 8};
}

static void map_refusals(void)
{
    struct gpunvme_ioc_map_user a;
    struct gpunvme_ioc_unmap u = {.handle = 12345};

#define MAP_REFUSED(change, error)                                                                 \
    do {                                                                                           \
        a = good();                                                                                \
        change;                                                                                    \
        REFUSED(GPUNVME_IOC_MAP_USER, &a, error);                                                  \
    } while (0)
    MAP_REFUSED(a.len = 0, EINVAL);
    MAP_REFUSED(a.len = 100, EINVAL);
    MAP_REFUSED(a.addr += 8, EINVAL);
    MAP_REFUSED(a.len = UINT64_MAX - PAGE + 1, EINVAL);
    MAP_REFUSED(a.addr = UINT64_MAX - PAGE + 1; a.len = 2 * PAGE, EINVAL);
    MAP_REFUSED(a.len = GPUNVME_IOC_MAX_LEN + PAGE, EINVAL);
    MAP_REFUSED(a.reserved = 1, EINVAL);
    MAP_REFUSED(a.handle = 1, EINVAL);
    MAP_REFUSED(a.len = 4 * PAGE; a.capacity = 3, ENOSPC);
    MAP_REFUSED(a.addr = 0xffff800000000000u, EFAULT);
    MAP_REFUSED(a.addr = PAGE, EFAULT);
    MAP_REFUSED(a.pages = 8, EFAULT);
    REFUSED(GPUNVME_IOC_MAP_USER, NULL, EFAULT);
    REFUSED(GPUNVME_IOC_UNMAP, &u, ENOENT);
    u.handle = 0;
    REFUSED(GPUNVME_IOC_UNMAP, &u, ENOENT);
    a = good();
    CHECK(ioctl(fd, GPUNVME_IOC_MAP_USER, &a) == 0 && a.npages == 1 && pages[0] % PAGE == 0);
    u.handle = a.handle;
    u.reserved = 1;
    REFUSED(GPUNVME_IOC_UNMAP, &u, EINVAL);
    u.reserved = 0;
    CHECK(ioctl(fd, GPUNVME_IOC_UNMAP, &u) == 0);
    REFUSED(GPUNVME_IOC_UNMAP, &u, ENOENT);
}

static void other_refusals(void)
{
    struct gpunvme_ioc_map_dmabuf b = {
        .fd = fd, .len = PAGE, .pages = (uintptr_t)pages, .capacity = 8};
    struct gpunvme_ioc_info info;
    struct gpunvme_ioc_reset r = {.flags = 1};
    int32_t fds[1] = {fd};
    struct gpunvme_ioc_irq irq = {.wanted = UINT32_MAX, .fds = (uintptr_t)fds};
    struct gpunvme_ioc_event e = {.fd = fd};
    char *all;

    REFUSED(_IO('N', 0xff), NULL, ENOTTY);
    REFUSED(GPUNVME_IOC_INFO, NULL, EFAULT);
    CHECK(ioctl(fd, GPUNVME_IOC_INFO, &info) == 0 && info.version == GPUNVME_IOC_VERSION);
    CHECK(info.nrevoked == 0 && info.mmap_len <= info.bar0_len && info.nvectors > 0);
    REFUSED(GPUNVME_IOC_MAP_DMABUF, &b, EINVAL); /* a file, but no dma-buf */
    b.fd = -1;
    REFUSED(GPUNVME_IOC_MAP_DMABUF, &b, EBADF);
    REFUSED(GPUNVME_IOC_RESET, &r, EINVAL);
    REFUSED(GPUNVME_IOC_IRQ, &irq, EINVAL);
    irq.wanted = 1;
    REFUSED(GPUNVME_IOC_IRQ, &irq, EINVAL); /* no eventfd */
    REFUSED(GPUNVME_IOC_EVENT, &e, EINVAL);
    CHECK(mmap(NULL, info.mmap_len + PAGE, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED);
    CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, (off_t)info.mmap_len) == MAP_FAILED);
    CHECK(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED);
    all = mmap(NULL, info.mmap_len, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(all != MAP_FAILED);
    CHECK(mremap(all, info.mmap_len, 2 * info.mmap_len, MREMAP_MAYMOVE) == MAP_FAILED);
}

/* Maps `len` bytes in a child that ends at once; its handle, or 0 and the child's errno. */
static uint32_t map_in_child(uint64_t len)
{
    uint32_t *shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct gpunvme_ioc_map_user a = good();
    uint32_t handle;
    pid_t pid = fork();

    if (pid == 0) {
        a.len = len;
        if (ioctl(fd, GPUNVME_IOC_MAP_USER, &a))
            shared[1] = (uint32_t)errno;
        shared[0] = a.handle;
        _exit(0);
    }
    CHECK(pid > 0 && waitpid(pid, NULL, 0) == pid);
    errno = (int)shared[1];
    handle = shared[0];
    munmap(shared, PAGE);
    return handle;
}

/* Locked memory counts, whichever child of the process maps it, and is given back. */
static void limit(void)
{
    struct rlimit small = {.rlim_cur = 2 * PAGE, .rlim_max = 2 * PAGE};
    struct gpunvme_ioc_map_user a = good(), *constant;
    struct gpunvme_ioc_unmap u = {0};

    CHECK(setrlimit(RLIMIT_MEMLOCK, &small) == 0 && setuid(1000) == 0);
    a.len = 4 * PAGE;
    REFUSED(GPUNVME_IOC_MAP_USER, &a, ENOMEM);
    u.handle = map_in_child(2 * PAGE);
    CHECK(u.handle);
    CHECK(!map_in_child(PAGE) && errno == ENOMEM);
    CHECK(ioctl(fd, GPUNVME_IOC_UNMAP, &u) == 0);

    /* An answer that can't be written leaves nothing mapped. */
    constant = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(constant != MAP_FAILED);
    *constant = good();
    constant->len = 2 * PAGE;
    CHECK(mprotect(constant, PAGE, PROT_READ) == 0);
    REFUSED(GPUNVME_IOC_MAP_USER, constant, EFAULT);
    for (int i = 0; i < 3; i++) {
        a = good();
        a.len = 2 * PAGE;
        CHECK(ioctl(fd, GPUNVME_IOC_MAP_USER, &a) == 0);
        u = (struct gpunvme_ioc_unmap){.handle = a.handle};
        a = good();
        REFUSED(GPUNVME_IOC_MAP_USER, &a, ENOMEM);
        CHECK(ioctl(fd, GPUNVME_IOC_UNMAP, &u) == 0);
    }
}

static void *call_at_random(void *arg)
{
    unsigned int seed = (unsigned int)(uintptr_t)arg;
    int32_t event = eventfd(0, 0);
    uint64_t list[4];

    for (int i = 0; i < 300; i++) {
        struct gpunvme_ioc_map_user a = good();
        struct gpunvme_ioc_unmap u = {.handle = 1 + (uint32_t)rand_r(&seed) % 4};
        struct gpunvme_ioc_irq irq = {.wanted = (uint32_t)i & 1, .fds = (uintptr_t)&event};
        struct gpunvme_ioc_event e = {.fd = i & 1 ? event : -1};

        a.len = 4 * PAGE;
        a.pages = (uintptr_t)list;
        CHECK(ioctl(fd, GPUNVME_IOC_MAP_USER, &a) == 0);
        CHECK(ioctl(fd, GPUNVME_IOC_UNMAP, &u) == 0 || errno == ENOENT);
        CHECK(ioctl(fd, GPUNVME_IOC_EVENT, &e) == 0);
        CHECK(i % 10 || ioctl(fd, GPUNVME_IOC_IRQ, &irq) == 0);
    }
    close(event);
    return NULL;
}

/* Threads that end each other's mappings. What they leave goes with the file. */
static void threads(void)
{
    pthread_t ids[4];

    for (uintptr_t i = 0; i < 4; i++)
        CHECK(pthread_create(&ids[i], NULL, call_at_random, (void *)(i + 1)) == 0);
    for (int i = 0; i < 4; i++)
        CHECK(pthread_join(ids[i], NULL) == 0);
}

static void wait_for_bit(volatile uint32_t *csts, uint32_t value)
{
    for (int i = 0; i < 5000 && (*csts & 1) != value; i++)
        usleep(1000);
    CHECK((*csts & 1) == value);
}

/*
 * The controller writes its Identify data into a dma-buf: with the admin submission queue in
 * piece 0, the completion queue in piece 1 and the data in piece 2 of it.
 */
static void identify_into(const uint64_t *bus, volatile uint32_t *memory)
{
    volatile uint32_t *regs = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    volatile uint32_t *cqe = memory + PAGE / 4;

    CHECK(regs != MAP_FAILED);
    wait_for_bit(&regs[7], 0);
    regs[9] = 1u << 16 | 1; /* AQA: two entries each */
    *(volatile uint64_t *)&regs[10] = bus[0];
    *(volatile uint64_t *)&regs[12] = bus[1];
    regs[5] = 4u << 20 | 6u << 16 | 1;
    wait_for_bit(&regs[7], 1);
    memory[0] = 6; /* Identify, controller */
    *(volatile uint64_t *)&memory[6] = bus[2];
    memory[10] = 1;
    __sync_synchronize();
    regs[PAGE / 4] = 1;
    for (int i = 0; i < 5000 && !(cqe[3] & 1u << 16); i++)
        usleep(1000);
    CHECK(cqe[3] >> 16 == 1); /* phase, and status 0 */
    CHECK(!memcmp((const char *)memory + 2 * PAGE + 4, "GUEST0001", 9));
    munmap((void *)regs, 2 * PAGE);
}

static int make_udmabuf(void **memory)
{
    struct udmabuf_create create = {.size = 4 * PAGE};
    int dev = open("/dev/udmabuf", O_RDWR);

    if (dev < 0)
        return -1;
    create.memfd = (uint32_t)memfd_create("check", MFD_ALLOW_SEALING);
    CHECK(ftruncate((int)create.memfd, 4 * PAGE) == 0);
    CHECK(fcntl((int)create.memfd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    *memory = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, (int)create.memfd, 0);
    CHECK(*memory != MAP_FAILED);
    return ioctl(dev, UDMABUF_CREATE, &create);
}

/* The same by the kernel's virtual graphics device, vgem. */
static int make_vgem(void **memory)
{
    struct dumb_create create = {.width = PAGE, .height = 4, .bpp = 8};
    struct prime_handle prime = {.flags = O_CLOEXEC | O_RDWR};
    struct dumb_map map = {0};
    int dev = open("/dev/dri/card0", O_RDWR);

    if (dev < 0)
        return -1;
    CHECK(ioctl(dev, CREATE_DUMB, &create) == 0 && create.size == 4 * PAGE);
    prime.handle = map.handle = create.handle;
    CHECK(ioctl(dev, HANDLE_TO_FD, &prime) == 0);
    CHECK(ioctl(dev, MAP_DUMB, &map) == 0);
    *memory = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, dev, (off_t)map.offset);
    CHECK(*memory != MAP_FAILED);
    return prime.fd;
}

static void dmabuf(void)
{
    void *memory;
    struct gpunvme_ioc_map_dmabuf b = {.len = 4 * PAGE, .pages = (uintptr_t)pages, .capacity = 8};
    struct gpunvme_ioc_unmap u;

    b.fd = make_udmabuf(&memory);
    if (b.fd < 0)
        b.fd = make_vgem(&memory);
    if (b.fd < 0) {
        puts("SKIP: neither /dev/udmabuf nor vgem");
        exit(77);
    }
    b.len = 5 * PAGE;
    REFUSED(GPUNVME_IOC_MAP_DMABUF, &b, EINVAL);
    b.len = PAGE;
    b.offset = UINT64_MAX - PAGE + 1;
    REFUSED(GPUNVME_IOC_MAP_DMABUF, &b, EINVAL);
    b.offset = 4 * PAGE;
    REFUSED(GPUNVME_IOC_MAP_DMABUF, &b, EINVAL);
    b.offset = 0;
    b.len = 4 * PAGE;
    CHECK(ioctl(fd, GPUNVME_IOC_MAP_DMABUF, &b) == 0 && b.npages == 4);
    close(b.fd); /* the mapping has its own hold of it */
    identify_into(pages, memory);
    u = (struct gpunvme_ioc_unmap){.handle = b.handle};
    CHECK(ioctl(fd, GPUNVME_IOC_UNMAP, &u) == 0);
}

/* The function reset ends what the controller did, and leaves it ready for more. */
static void reset(void)
{
    volatile uint32_t *regs = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    struct gpunvme_ioc_reset r = {0};

    CHECK(regs != MAP_FAILED);
    regs[9] = 0x10001;
    regs[5] = 4u << 20 | 6u << 16 | 1;
    wait_for_bit(&regs[7], 1);
    CHECK(ioctl(fd, GPUNVME_IOC_RESET, &r) == 0);
    CHECK(!(regs[5] & 1) && !(regs[7] & 1));
    dmabuf(); /* DMA works again */
}

/* What an open file is left with when the function goes. */
static void hold(void)
{
    volatile uint32_t *regs = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    struct gpunvme_ioc_map_user a = good();
    int event = eventfd(0, EFD_NONBLOCK);
    struct gpunvme_ioc_event e = {.fd = event};
    struct pollfd p = {.fd = event, .events = POLLIN};
    struct gpunvme_ioc_info info;

    CHECK(regs != MAP_FAILED && regs[2] != UINT32_MAX);
    CHECK(ioctl(fd, GPUNVME_IOC_MAP_USER, &a) == 0);
    CHECK(ioctl(fd, GPUNVME_IOC_EVENT, &e) == 0);
    CHECK(poll(&p, 1, 0) == 0);
    puts("held");
    fflush(stdout);
    CHECK(poll(&p, 1, 20000) == 1);
    for (int i = 0; i < 2000 && regs[7] != UINT32_MAX; i++)
        usleep(1000);
    CHECK(regs[7] == UINT32_MAX);
    regs[PAGE / 4] = 5; /* a doorbell: goes nowhere, and changes no register */
    regs[PAGE / 4 + 7] = 0;
    CHECK(regs[7] == UINT32_MAX && regs[0] == UINT32_MAX);
    REFUSED(GPUNVME_IOC_INFO, &info, ENODEV);
    REFUSED(GPUNVME_IOC_MAP_USER, &a, ENODEV);
    CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED && errno == ENODEV);
}

int main(int argc, char **argv)
{
    const char *what = argc == 3 ? argv[2] : "";

    if (argc != 3)
        return 2;
    fd = open(argv[1], O_RDWR);
    CHECK(fd >= 0);
    if (!strcmp(what, "refusals")) {
        map_refusals();
        other_refusals();
    } else if (!strcmp(what, "second")) {
        CHECK(open(argv[1], O_RDWR) == -1 && errno == EBUSY);
        CHECK(open(argv[1], O_RDONLY) == -1 && errno == EACCES);
    } else if (!strcmp(what, "limit")) {
        limit();
    } else if (!strcmp(what, "dmabuf")) {
        dmabuf();
    } else if (!strcmp(what, "reset")) {
        reset();
    } else if (!strcmp(what, "threads")) {
        threads();
    } else if (!strcmp(what, "info")) {
        struct gpunvme_ioc_info i = {0};

        CHECK(ioctl(fd, GPUNVME_IOC_INFO, &i) == 0);
        puts(i.flags & GPUNVME_IOC_IOMMU ? "behind an IOMMU" : "no IOMMU");
    } else if (!strcmp(what, "hold")) {
        hold();
    } else {
        return 2;
    }
    printf("%s: %d failures\n", what, failures);
    return failures ? 1 : 0;
}
