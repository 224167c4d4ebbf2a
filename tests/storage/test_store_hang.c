/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Transfers of a file whose file system stops to answer in the middle of it: they time out, tell
 * how far they came, and hold up nobody. The file system is a child of this program (FUSE), which
 * ends with it: threads that wait for its answers could not be killed otherwise. It is mounted in a
 * mount namespace of its own, which root may make.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "store_files.h"
#include "thread_stream.h"

#define HALF (NBYTES / 2) /* what lies behind is not read while is_mute */

static char folder[] = "/tmp/gpunvme-hang-XXXXXX";
static char path[64];
static int fuse_fd;
static pid_t server;
static _Atomic bool *is_mute; /* shared with the file system */
static uint8_t memory[NBYTES];

/* ---- The file system ---------------------------------------------------------------------------
 */

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
                              .size = node == 1 ? 0 : NBYTES,
                              .blksize = 4096};
}

static void answer_read(const struct fuse_in_header *in)
{
    const struct fuse_read_in *read = (const struct fuse_read_in *)(in + 1);
    size_t nbytes = read->offset > NBYTES ? 0 : NBYTES - (size_t)read->offset;

    while (*is_mute && read->offset + read->size > HALF)
        usleep(1000);
    reply(in->unique, 0, bytes + read->offset, nbytes < read->size ? nbytes : read->size);
}

static void answer(const struct fuse_in_header *in)
{
    struct fuse_init_out init = {.major = 7, .minor = 31, .max_write = 65536};
    struct fuse_entry_out entry = {
        .nodeid = 2, .entry_valid = 1000, .attr_valid = 1000, .attr = attributes(2)};
    struct fuse_attr_out attr = {.attr_valid = 1000, .attr = attributes(in->nodeid)};
    struct fuse_open_out opened = {.fh = 1, .open_flags = FOPEN_DIRECT_IO};

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
    case FUSE_READ:
        answer_read(in);
        break;
    case FUSE_RELEASE:
        reply(in->unique, 0, NULL, 0);
        break;
    case FUSE_FORGET:
        break;
    default:
        reply(in->unique, ENOSYS, NULL, 0);
    }
}

static void file_system(void)
{
    static union {
        struct fuse_in_header in;
        char bytes[1 << 18];
    } request;

    while (read(fuse_fd, &request, sizeof(request)) > 0 || errno == EINTR || errno == ENOENT)
        answer(&request.in);
}

/* Mounts it; false, with a reason: it can't be had here. */
static bool mount_file_system(void)
{
    pid_t parent = getpid();
    char text[96];

    is_mute = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    fuse_fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    snprintf(text, sizeof(text), "fd=%d,rootmode=40000,user_id=0,group_id=0", fuse_fd);
    if (is_mute == MAP_FAILED || fuse_fd < 0 || unshare(CLONE_NEWNS) ||
        mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) || !mkdtemp(folder) ||
        mount("test", folder, "fuse", MS_NODEV | MS_NOSUID, text) || (server = fork()) < 0) {
        printf("SKIP: no file system by FUSE here (/dev/fuse, root): %s\n", strerror(errno));
        return false;
    }
    if (!server) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() == parent)
            file_system();
        _exit(0);
    }
    close(fuse_fd);
    snprintf(path, sizeof(path), "%s/file", folder);
    return true;
}

/* ---- Tests -------------------------------------------------------------------------------------
 */

/* A request at a time, so that it is known where the file system stops. */
#define ONE_BY_ONE "timeout=500ms,threads=1,depth=1,chunk=64K,uring=off"

static struct gpunvme_store *open_hanging(const char *options)
{
    char uri[192];

    snprintf(uri, sizeof(uri), "file:%s?%s", path, options);
    *is_mute = true;
    memset(memory, POISON, sizeof(memory));
    return opened(uri, 0);
}

/* The file system answers again: it can be closed when all has ended. */
static void close_at_last(struct gpunvme_store *store)
{
    gpunvme_err_t err = GPUNVME_ERR_TIMEOUT;

    *is_mute = false;
    for (unsigned i = 0; err == GPUNVME_ERR_TIMEOUT && i < PATIENCE_S; i++)
        err = gpunvme_close(store);
    ok(err);
}

static int answer_again(void **state)
{
    (void)state;
    *is_mute = false;
    return 0;
}

static void a_read_that_stops_times_out_behind_its_valid_prefix(void **state)
{
    struct gpunvme_store *store = open_hanging(ONE_BY_ONE);
    size_t done = 1;

    (void)state;
    is_err(gpunvme_store_read(store, 0, memory, GPUNVME_MEM_HOST, NBYTES, &done),
           GPUNVME_ERR_TIMEOUT, "nothing has moved for 500 ms");
    assert_int_equal(done, HALF);
    assert_memory_equal(memory, bytes, HALF);
    close_at_last(store);
}

static void with_all_threads_of_the_engine_at_work_the_prefix_is_valid_too(void **state)
{
    struct gpunvme_store *store = open_hanging("timeout=500ms");
    size_t done = 1;

    (void)state;
    is_err(gpunvme_store_read(store, 0, memory, GPUNVME_MEM_HOST, NBYTES, &done),
           GPUNVME_ERR_TIMEOUT, "nothing has moved");
    assert_in_range(done, 0, HALF);
    assert_memory_equal(memory, bytes, done);
    close_at_last(store);
}

static void a_gather_that_stops_times_out_behind_its_valid_prefix(void **state)
{
    const uint64_t offsets[3] = {1000, NBYTES - 5000, 0};
    struct gpunvme_store *store = open_hanging(ONE_BY_ONE);
    size_t done = 1;

    (void)state;
    is_err(gpunvme_store_gather(store, offsets, 3, 5000, memory, 5000, GPUNVME_MEM_HOST, &done),
           GPUNVME_ERR_TIMEOUT, "nothing has moved");
    assert_int_equal(done, 5000);
    assert_memory_equal(memory, bytes + 1000, 5000);
    close_at_last(store);
}

/* What had not begun when it timed out is not begun later. */
static void a_read_that_timed_out_is_canceled(void **state)
{
    struct gpunvme_store *store = open_hanging(ONE_BY_ONE);

    (void)state;
    is_err(gpunvme_store_read(store, 0, memory, GPUNVME_MEM_HOST, NBYTES, NULL),
           GPUNVME_ERR_TIMEOUT, "");
    close_at_last(store);
    for (size_t i = HALF + 65536; i < NBYTES; i++)
        assert_int_equal(memory[i], POISON);
}

static void a_store_is_closed_when_its_last_transfer_has_ended(void **state)
{
    struct gpunvme_store *store = open_hanging(ONE_BY_ONE);
    size_t done;

    (void)state;
    is_err(gpunvme_store_read(store, HALF, memory, GPUNVME_MEM_HOST, 4096, &done),
           GPUNVME_ERR_TIMEOUT, "");
    assert_int_equal(done, 0);
    is_err(gpunvme_close(store), GPUNVME_ERR_TIMEOUT, "1 transfers have not ended");
    *is_mute = false;
    ok(gpunvme_store_read(store, 0, memory + 4096, GPUNVME_MEM_HOST, 4096, &done)); /* as it was */
    assert_memory_equal(memory + 4096, bytes, 4096);
    close_at_last(store);
}

static void a_wait_that_times_out_leaves_the_transfer_in_flight(void **state)
{
    struct gpunvme_store *store = open_hanging(ONE_BY_ONE);
    struct gpunvme_io io = {.store = store, .ptr = memory, .nbytes = NBYTES};

    (void)state;
    ok(gpunvme_io_submit(&io, 1, NULL));
    is_err(gpunvme_io_wait(&io, 0), GPUNVME_ERR_TIMEOUT, "still in flight");
    assert_int_equal(gpunvme_io_moved(&io), HALF);
    assert_memory_equal(memory, bytes, HALF);
    *is_mute = false;
    ok(gpunvme_io_wait(&io, PATIENCE_NS));
    assert_int_equal(io.done, NBYTES);
    assert_memory_equal(memory, bytes, NBYTES);
    ok(gpunvme_close(store));
}

static void a_canceled_transfer_ends_when_what_had_begun_has(void **state)
{
    struct gpunvme_store *store = open_hanging(ONE_BY_ONE);
    struct gpunvme_io io = {.store = store, .ptr = memory, .nbytes = NBYTES};

    (void)state;
    ok(gpunvme_io_submit(&io, 1, NULL));
    is_err(gpunvme_io_wait(&io, 0), GPUNVME_ERR_TIMEOUT, "");
    gpunvme_io_cancel(&io);
    assert_int_equal(gpunvme_io_test(&io), GPUNVME_ERR_AGAIN);
    *is_mute = false;
    assert_int_equal(gpunvme_io_wait(&io, PATIENCE_NS), GPUNVME_ERR_CANCELED);
    assert_in_range(io.done, HALF + 1, NBYTES - 1);
    assert_memory_equal(memory, bytes, io.done);
    for (size_t i = io.done; i < NBYTES; i++)
        assert_int_equal(memory[i], POISON);
    ok(gpunvme_close(store));
}

/* Each has what came of it, whatever the call as a whole says. */
static void of_several_only_those_that_stopped_have_timed_out(void **state)
{
    static uint8_t other[NBYTES];
    const char *path_of_good = file_of(true, "good", bytes, NBYTES);
    struct gpunvme_store *store = open_hanging(ONE_BY_ONE), *good;
    struct gpunvme_io ios[3] = {
        {.ptr = other, .nbytes = NBYTES},
        {.store = store, .ptr = memory, .nbytes = NBYTES},
        {.offset = NBYTES - 10, .ptr = other, .nbytes = 10},
    };
    char text[256], uri[192];

    (void)state;
    snprintf(uri, sizeof(uri), "file:%s?timeout=500ms", path_of_good);
    ios[0].store = ios[2].store = good = opened(uri, 0);
    ios[2].ptr = other + NBYTES - 10;
    is_err(gpunvme_io_run(ios, 3), GPUNVME_ERR_TIMEOUT, "nothing has moved");
    assert_int_equal(ios[0].err, GPUNVME_OK);
    assert_int_equal(ios[0].done, NBYTES);
    assert_memory_equal(other, bytes, NBYTES);
    assert_int_equal(ios[1].err, GPUNVME_ERR_TIMEOUT);
    assert_int_equal(ios[1].done, HALF);
    assert_non_null(strstr(gpunvme_io_detail(&ios[1], text, sizeof(text)), "nothing has moved"));
    assert_int_equal(ios[2].err, GPUNVME_OK);
    assert_int_equal(ios[2].done, 10);
    ok(gpunvme_close(good));
    close_at_last(store);
}

static void note(void *flag)
{
    *(_Atomic bool *)flag = true;
}

/* … and tells how far it came. */
static void a_transfer_that_stops_lets_its_stream_go(void **state)
{
    static _Atomic bool has_gone;
    struct gpunvme_store *store = open_hanging(ONE_BY_ONE);
    struct gpunvme_io io = {.store = store, .ptr = memory, .nbytes = NBYTES};
    struct stream stream;

    (void)state;
    stream_open(&stream);
    ok(submit_on_stream(store, &io, &stream));
    has_gone = false;
    fake_call(&stream, note, (void *)(uintptr_t)&has_gone);
    wait_for(&has_gone);
    is_err(gpunvme_io_test(&io), GPUNVME_ERR_TIMEOUT, "nothing has moved");
    assert_int_equal(io.done, HALF);
    assert_memory_equal(memory, bytes, HALF);
    is_err(gpunvme_close(store), GPUNVME_ERR_TIMEOUT, "");
    stream_close(&stream);
    close_at_last(store);
}

#define TEST(name) cmocka_unit_test_teardown(name, answer_again)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_read_that_stops_times_out_behind_its_valid_prefix),
        TEST(with_all_threads_of_the_engine_at_work_the_prefix_is_valid_too),
        TEST(a_gather_that_stops_times_out_behind_its_valid_prefix),
        TEST(a_read_that_timed_out_is_canceled),
        TEST(a_store_is_closed_when_its_last_transfer_has_ended),
        TEST(a_wait_that_times_out_leaves_the_transfer_in_flight),
        TEST(a_canceled_transfer_ends_when_what_had_begun_has),
        TEST(of_several_only_those_that_stopped_have_timed_out),
        TEST(a_transfer_that_stops_lets_its_stream_go),
    };
    int failed;

    if (make_files(NULL))
        return 1;
    if (!mount_file_system()) {
        remove_files(NULL);
        return 77;
    }
    store_stream_ops = &fake;
    failed = cmocka_run_group_tests(tests, NULL, remove_files);
    umount2(folder, MNT_FORCE | MNT_DETACH);
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    rmdir(folder);
    return failed ? 1 : 0;
}
