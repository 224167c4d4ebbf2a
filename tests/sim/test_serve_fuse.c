/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The vfio-user server and descriptors of a file system that is a program and has stopped to answer
 * (FUSE). The file system is a thread of this program; it is mounted in a mount namespace of its
 * own, which root may make.
 */
#include "sim/vfu.h"

#include <linux/fuse.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>

static char folder[] = "/tmp/gpunvme-fuse-XXXXXX";
static int fuse_fd, file_fd;
static atomic_bool mute;
static atomic_uint ignored;

static void reply(uint64_t unique, int error, const void *body, size_t nbytes)
{
    struct fuse_out_header head = {
        .len = (uint32_t)(sizeof(head) + nbytes), .error = -error, .unique = unique};
    struct iovec parts[2] = {{.iov_base = &head, .iov_len = sizeof(head)},
                             {.iov_base = (void *)(uintptr_t)body, .iov_len = nbytes}};

    (void)!writev(fuse_fd, parts, 2);
}

static struct fuse_attr attributes(uint64_t node)
{
    return (struct fuse_attr){.ino = node,
                              .mode = node == 1 ? S_IFDIR | 0755 : S_IFREG | 0666,
                              .nlink = 1,
                              .size = node == 1 ? 0 : VFU_NBYTES,
                              .blksize = 4096};
}

static void answer(const struct fuse_in_header *in)
{
    struct fuse_init_out init = {.major = 7, .minor = 31, .max_write = 65536};
    struct fuse_entry_out entry = {.nodeid = 2, .entry_valid = 1000, .attr = attributes(2)};
    struct fuse_attr_out attr = {.attr = attributes(in->nodeid)};
    struct fuse_open_out opened = {.fh = 1};

    switch (in->opcode) {
    case FUSE_INIT:
        reply(in->unique, 0, &init, sizeof(init));
        break;
    case FUSE_LOOKUP:
        reply(in->unique, 0, &entry, sizeof(entry));
        break;
    case FUSE_GETATTR:
        reply(in->unique, 0, &attr, sizeof(attr));
        break;
    case FUSE_OPEN:
        reply(in->unique, 0, &opened, sizeof(opened));
        break;
    case FUSE_FORGET:
        break;
    default:
        reply(in->unique, ENOSYS, NULL, 0);
    }
}

static void *file_system(void *arg)
{
    static union {
        struct fuse_in_header in;
        char bytes[1 << 18];
    } request;

    while (read(fuse_fd, &request, sizeof(request)) > 0 || errno == EINTR || errno == ENOENT) {
        if (atomic_load(&mute))
            atomic_fetch_add(&ignored, 1);
        else
            answer(&request.in);
    }
    return arg;
}

/* Mounts it and opens its one file; false, with a reason: it can't be had here. */
static bool mount_file_system(void)
{
    char text[96];
    pthread_t thread;

    fuse_fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    snprintf(text, sizeof(text), "fd=%d,rootmode=40000,user_id=0,group_id=0", fuse_fd);
    if (fuse_fd < 0 || unshare(CLONE_NEWNS) || mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        !mkdtemp(folder) || mount("test", folder, "fuse", MS_NODEV | MS_NOSUID, text) ||
        pthread_create(&thread, NULL, file_system, NULL)) {
        printf("SKIP: no file system by FUSE here (/dev/fuse, root): %s\n", strerror(errno));
        return false;
    }
    pthread_detach(thread);
    snprintf(text, sizeof(text), "%s/file", folder);
    file_fd = open(text, O_RDWR | O_CLOEXEC);
    atomic_store(&mute, true);
    return file_fd >= 0;
}

static void the_next_client_is_served(void)
{
    vfu_close(v);
    v = vfu_connect(s.path);
    assert_int_equal(vfu_csts(v), 0);
}

static void memory_in_a_file_that_never_answers_is_reached_by_messages(void **state)
{
    struct gpunvme_sim_report report;

    (void)state;
    assert_int_equal(vfu_map(v, VFU_BUS, VFU_NBYTES, 0, 3, file_fd), 0);
    gpunvme_sim_report(s.sim, &report);
    assert_int_equal(report.warnings[GPUNVME_SIM_WARNING_UNSEALED], 1);
    the_next_client_is_served();
}

static void an_interrupt_by_a_file_that_never_answers_is_refused(void **state)
{
    (void)state;
    assert_int_equal(vfu_set_irqs(v, VFIO_PCI_MSIX_IRQ_INDEX, 0x24, 0, 1, &file_fd, 1), EINVAL);
    the_next_client_is_served();
}

/* Their number is limited; memory without a descriptor goes on. */
static void files_that_never_close_are_not_taken_for_ever(void **state)
{
    int fds[16], fd;
    int error = 0;

    (void)state;
    for (unsigned i = 0; i < 16; i++)
        fds[i] = file_fd;
    for (unsigned i = 0; i < 10 && !error; i++)
        error = vfu_call(v, RESET, NULL, 0, fds, 16);
    assert_int_equal(error, EINVAL);
    fd = vfu_memfd(VFU_NBYTES, F_SEAL_SHRINK);
    assert_int_equal(vfu_map(v, VFU_BUS, VFU_NBYTES, 0, 3, fd), EINVAL);
    assert_int_equal(vfu_map(v, VFU_BUS, VFU_NBYTES, 0, 3, -1), 0);
    close(fd);
    the_next_client_is_served();
}

#define T(name) cmocka_unit_test_setup_teardown(name, vfu_setup, vfu_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(memory_in_a_file_that_never_answers_is_reached_by_messages),
        T(an_interrupt_by_a_file_that_never_answers_is_refused),
        T(files_that_never_close_are_not_taken_for_ever),
    };
    int failed;

    if (!mount_file_system())
        return 77;
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    printf("%u questions were not answered\n", atomic_load(&ignored));
    umount2(folder, MNT_FORCE | MNT_DETACH); /* ends what waits for an answer, closing included */
    rmdir(folder);
    return failed ? 1 : 0;
}
