/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The posix backend on files and devices of all sorts: what it says of itself is true, it does
 * without what the kernel refuses, and no byte goes where it does not belong.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/loop.h>
#include <linux/magic.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <setjmp.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "gpunvme/memory.h"
#include "gpunvme/storage.h"
#include "storage/posix/posix.h"
#include "transfer_util.h"

#define KIB  ((size_t)1 << 10)
#define MIB  ((size_t)1 << 20)
#define ROOM (8 * MIB)

static char path[64], uri[160];
static int fd;
static uint8_t *bytes;
static struct gpunvme_buf host, gpu;
static struct gpunvme_store *store;

static void make_bytes(uint8_t *to, size_t nbytes, unsigned seed)
{
    for (size_t i = 0; i < nbytes; i++)
        to[i] = (uint8_t)(seed + i * 13 + i / 255);
}

static int setup_in(const char *folder)
{
    snprintf(path, sizeof(path), "%s/gpunvme-posix-XXXXXX", folder);
    fd = mkstemp(path);
    bytes = malloc(ROOM);
    if (fd < 0 || !bytes || gpunvme_mem_alloc(ROOM, GPUNVME_MEM_HOST, &host) ||
        gpunvme_mem_alloc(ROOM, GPUNVME_MEM_GPU, &gpu))
        return 1;
    make_bytes(bytes, ROOM, 1);
    return 0;
}

static int setup(void **state)
{
    (void)state;
    return setup_in("/tmp");
}

static int setup_in_memory(void **state)
{
    (void)state;
    return setup_in("/dev/shm");
}

static int teardown(void **state)
{
    (void)state;
    gpunvme_close(store);
    store = NULL;
    gpunvme_mem_free(&host);
    gpunvme_mem_free(&gpu);
    free(bytes);
    close(fd);
    unlink(path);
    return 0;
}

static void contains(size_t nbytes)
{
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(pwrite(fd, bytes, nbytes, 0), nbytes);
    assert_int_equal(fsync(fd), 0);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
}

static void open_as(const char *options, unsigned flags)
{
    snprintf(uri, sizeof(uri), "file:%s%s%s", path, *options ? "?" : "", options);
    if (gpunvme_open(uri, flags, &store))
        fail_msg("%s: %s", uri, gpunvme_err_detail());
}

static struct gpunvme_path path_of_store(void)
{
    struct gpunvme_path p;

    gpunvme_store_path(store, &p);
    return p;
}

static void says(const char *text, const char *what)
{
    if (!strstr(text, what))
        fail_msg("\"%s\" is not in \"%s\"", what, text);
}

static void *at(enum gpunvme_mem mem, size_t offset)
{
    return (uint8_t *)(mem == GPUNVME_MEM_GPU ? gpu.gpu : host.cpu) + offset;
}

/* Each byte is as its neighbour: faster under sanitizers than a loop. */
static bool are_all(const uint8_t *x, size_t n, uint8_t value)
{
    return !n || (x[0] == value && !memcmp(x, x + 1, n - 1));
}

/* Reads to byte `place` of the memory, and finds the bytes there, and no others. */
static void reads(enum gpunvme_mem mem, uint64_t offset, size_t nbytes, size_t place,
                  size_t expected)
{
    uint8_t *got = malloc(ROOM);
    size_t done = 0;

    assert_int_equal(gpunvme_mem_fill(at(mem, 0), mem, 0xee, ROOM), GPUNVME_OK);
    if (gpunvme_store_read(store, offset, at(mem, place), mem, nbytes, &done))
        fail_msg("%s", gpunvme_err_detail());
    assert_int_equal(done, expected);
    assert_int_equal(gpunvme_mem_copy(got, GPUNVME_MEM_HOST, at(mem, 0), mem, ROOM), GPUNVME_OK);
    assert_memory_equal(got + place, bytes + offset, expected);
    if (!are_all(got, place, 0xee) ||
        !are_all(got + place + expected, ROOM - place - expected, 0xee))
        fail_msg("bytes beside %zu from %zu on were touched", expected, place);
    free(got);
}

/* ---- Reads -------------------------------------------------------------------------------------
 */

static void no_byte_behind_the_end_is_touched(void **state)
{
    static const size_t ends[] = {1, 511, 512, 513, 4095, 4096, 4097, 3 * MIB + 100};
    static const char *const options[] = {"", "direct=on", "direct=off", "uring=off",
                                          "direct=on,uring=off"};

    (void)state;
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
        for (size_t k = 0; k < sizeof(options) / sizeof(options[0]); k++) {
            contains(ends[i]);
            open_as(options[k], 0);
            reads(GPUNVME_MEM_HOST, 0, 4 * MIB, 4096, ends[i]);
            contains(ends[i]);
            reads(GPUNVME_MEM_GPU, 0, 4 * MIB, 4096, ends[i]);
            assert_int_equal(gpunvme_close(store), GPUNVME_OK);
            store = NULL;
        }
}

static void crooked_places_are_filled_exactly(void **state)
{
    static const struct {
        uint64_t offset;
        size_t nbytes, place;
    } cases[] = {
        {1, 1, 3},           {511, 2, 4095},         {4095, 4098, 1},
        {0, 2 * MIB, 4},     {7, 2 * MIB + 9, 4096}, {512, 3 * 512, 512},
        {512, MIB, 16},      {MIB - 1, MIB + 2, 7},  {3 * MIB - 5, 5, 0},
        {4096, 64 * KIB, 8},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (int gpu_too = 0; gpu_too < 2; gpu_too++) {
            contains(3 * MIB);
            open_as("direct=on", 0);
            reads(gpu_too ? GPUNVME_MEM_GPU : GPUNVME_MEM_HOST, cases[i].offset, cases[i].nbytes,
                  cases[i].place, cases[i].nbytes);
            assert_int_equal(gpunvme_close(store), GPUNVME_OK);
            store = NULL;
        }
}

static void holes_are_zeroes(void **state)
{
    (void)state;
    assert_int_equal(ftruncate(fd, (off_t)(4 * MIB)), 0);
    memset(bytes, 0, ROOM);
    memset(bytes + MIB, 7, 100);
    assert_int_equal(pwrite(fd, bytes + MIB, 100, (off_t)MIB), 100);
    open_as("", 0);
    reads(GPUNVME_MEM_HOST, 0, 4 * MIB, 0, 4 * MIB);
    reads(GPUNVME_MEM_GPU, 5, 4 * MIB, 0, 4 * MIB - 5);
}

static void thousands_of_small_reads_land_each_in_its_place(void **state)
{
    /* The second half are neighbours where they pass through, but not in memory. */
    enum { N = 4000, STEP = 720, SIZE = 704 };
    struct gpunvme_io *ios = calloc(N, sizeof(*ios)), *ended[64];
    struct gpunvme_batch *batch;
    uint8_t *got = malloc(ROOM);

    (void)state;
    contains(4 * MIB);
    open_as("", 0);
    assert_int_equal(gpunvme_batch_create(&batch), GPUNVME_OK);
    for (size_t i = 0; i < N; i++)
        ios[i] = (struct gpunvme_io){.mem = GPUNVME_MEM_GPU,
                                     .offset = (i * 7919 * 131) % (4 * MIB - SIZE),
                                     .ptr = at(GPUNVME_MEM_GPU, i * STEP + (i < N / 2 ? i % 3 : 0)),
                                     .nbytes = SIZE};
    assert_int_equal(submit_to(store, ios, N, batch), GPUNVME_OK);
    for (size_t n, left = N; left; left -= n)
        assert_int_equal(gpunvme_batch_poll(batch, 1, 64, ended, &n, 20000000000u), GPUNVME_OK);
    assert_int_equal(gpunvme_batch_destroy(batch), GPUNVME_OK);
    gpunvme_mem_copy(got, GPUNVME_MEM_HOST, gpu.gpu, GPUNVME_MEM_GPU, ROOM);
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(ios[i].err, GPUNVME_OK);
        assert_memory_equal(got + ((uint8_t *)ios[i].ptr - (uint8_t *)gpu.gpu),
                            bytes + ios[i].offset, SIZE);
    }
    free(got);
    free(ios);
}

/* Reads `n` ranges of `nbytes` bytes from memory's byte 5 on; *done gets the valid prefix. */
static void gathers(enum gpunvme_mem mem, const uint64_t *offsets, size_t n, size_t nbytes,
                    size_t expected)
{
    uint8_t *got = malloc(ROOM);
    size_t done = 0, whole = expected / nbytes;

    assert_int_equal(gpunvme_mem_fill(at(mem, 0), mem, 0xee, ROOM), GPUNVME_OK);
    if (gpunvme_store_gather(store, offsets, n, nbytes, at(mem, 5), nbytes, mem, &done))
        fail_msg("%s", gpunvme_err_detail());
    assert_int_equal(done, expected);
    assert_int_equal(gpunvme_mem_copy(got, GPUNVME_MEM_HOST, at(mem, 0), mem, ROOM), GPUNVME_OK);
    for (size_t i = 0; i < whole; i++)
        assert_memory_equal(got + 5 + i * nbytes, bytes + offsets[i], nbytes);
    assert_memory_equal(got + 5 + whole * nbytes, bytes + offsets[whole], expected % nbytes);
    assert_true(are_all(got, 5, 0xee));
    assert_true(are_all(got + 5 + n * nbytes, ROOM - 5 - n * nbytes, 0xee));
    free(got);
}

/* Cached or not, or half of each: then ranges that share a piece come from both. */
static void ranges_of_a_gather_land_each_in_its_place(void **state)
{
    enum { N = 3000, SIZE = 1111 };
    static const char *const options[] = {"", "direct=on", "direct=off,uring=off"};
    uint64_t *offsets = calloc(N + 1, sizeof(*offsets));

    (void)state;
    for (size_t i = 0; i < N; i++)
        offsets[i] = (i * 7919 * 131) % (4 * MIB - SIZE);
    for (size_t k = 0; k < sizeof(options) / sizeof(options[0]); k++)
        for (int gpu_too = 0; gpu_too < 2; gpu_too++) {
            enum gpunvme_mem mem = gpu_too ? GPUNVME_MEM_GPU : GPUNVME_MEM_HOST;

            contains(4 * MIB);
            open_as(options[k], 0);
            gathers(mem, offsets, N, SIZE, N * SIZE);
            reads(GPUNVME_MEM_HOST, 0, 4 * MIB, 0, 4 * MIB);
            gathers(mem, offsets, N, SIZE, N * SIZE);
            posix_fadvise(fd, 2 * MIB, 2 * MIB, POSIX_FADV_DONTNEED);
            gathers(mem, offsets, N, SIZE, N * SIZE);
            assert_int_equal(gpunvme_close(store), GPUNVME_OK);
            store = NULL;
        }
    free(offsets);
}

static void a_gather_ends_where_its_first_short_range_does(void **state)
{
    uint64_t offsets[101];

    (void)state;
    for (size_t i = 0; i < 101; i++)
        offsets[i] = i * 3000;
    offsets[60] = MIB - 77;
    contains(MIB);
    open_as("", 0);
    for (int again = 0; again < 2; again++) { /* then it is cached */
        gathers(GPUNVME_MEM_HOST, offsets, 100, 500, 60 * 500 + 77);
        gathers(GPUNVME_MEM_GPU, offsets, 100, 500, 60 * 500 + 77);
    }
}

/* ---- Writes ------------------------------------------------------------------------------------
 */

static void writes(enum gpunvme_mem mem, uint64_t offset, size_t nbytes, size_t place)
{
    uint8_t *was = calloc(1, ROOM), *is = calloc(1, ROOM);
    ssize_t before, after;
    size_t done = 0;

    before = pread(fd, was, ROOM, 0);
    assert_int_equal(gpunvme_mem_copy(at(mem, place), mem, bytes, GPUNVME_MEM_HOST, nbytes),
                     GPUNVME_OK);
    if (gpunvme_store_write(store, offset, at(mem, place), mem, nbytes, &done))
        fail_msg("%s", gpunvme_err_detail());
    assert_int_equal(done, nbytes);
    after = pread(fd, is, ROOM, 0);
    assert_int_equal(after,
                     before > (ssize_t)(offset + nbytes) ? before : (ssize_t)(offset + nbytes));
    memcpy(was + offset, bytes, nbytes);
    assert_memory_equal(was, is, ROOM);
    free(was);
    free(is);
}

static void writes_change_what_they_should_and_nothing_else(void **state)
{
    static const struct {
        uint64_t offset;
        size_t nbytes, place;
    } cases[] = {
        {0, 1, 0},          {4095, 2, 1},        {1, 2 * MIB, 4096},      {MIB, MIB, 0},
        {300, MIB + 77, 5}, {2 * MIB + 1, 1, 9}, {3 * MIB, 300 * KIB, 0}, {5 * MIB + 3, MIB, 64},
    };
    static const char *const options[] = {"", "direct=on", "uring=off", "direct=off"};

    (void)state;
    for (size_t k = 0; k < sizeof(options) / sizeof(options[0]); k++) {
        assert_int_equal(ftruncate(fd, (off_t)MIB), 0);
        open_as(options[k], GPUNVME_OPEN_WRITE);
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            make_bytes(bytes, cases[i].nbytes, (unsigned)(i + 10 * k));
            writes(GPUNVME_MEM_HOST, cases[i].offset, cases[i].nbytes, cases[i].place);
            make_bytes(bytes, cases[i].nbytes, (unsigned)(i + 10 * k + 100));
            writes(GPUNVME_MEM_GPU, cases[i].offset, cases[i].nbytes, cases[i].place);
        }
        assert_int_equal(gpunvme_store_flush(store), GPUNVME_OK);
        assert_int_equal(gpunvme_close(store), GPUNVME_OK);
        store = NULL;
    }
}

/* Each piece is of one granule, or of more, so all or nothing of it is mapped. */
static void holes_of_a_file_in_memory_are_not_mapped(void **state)
{
    struct posix *posix;

    (void)state;
    assert_int_equal(ftruncate(fd, (off_t)2 * MIB), 0);
    open_as("threads=1,chunk=1M", GPUNVME_OPEN_WRITE);
    posix = store->priv;
    assert_true(posix->file.in_memory);
    writes(GPUNVME_MEM_GPU, MIB + 5, 600 * KIB, 0);
    assert_non_null(posix->fill.there);
    assert_false(posix->fill.there[4] || posix->fill.there[5]);
    writes(GPUNVME_MEM_GPU, 600 * KIB, MIB, 0); /* partly a hole */
    assert_false(posix->fill.there[2] || posix->fill.there[3]);
    writes(GPUNVME_MEM_GPU, MIB + 5, 600 * KIB, 0);
    assert_true(posix->fill.there[4] && posix->fill.there[5]);
}

static void reads_and_writes_of_a_batch_do_not_mix(void **state)
{
    enum { N = 2000, SIZE = 704, STEP = 720 }; /* neighbours in a slot, but not in memory */
    struct gpunvme_io *ios = calloc(N, sizeof(*ios)), *ended[64];
    uint8_t *got = malloc(ROOM), *file = malloc(ROOM);
    struct gpunvme_batch *batch;

    (void)state;
    contains(4 * MIB);
    open_as("", GPUNVME_OPEN_WRITE);
    for (size_t i = 0; i < ROOM; i++)
        got[i] = (uint8_t)(i * 31 + i / 720);
    gpunvme_mem_copy(gpu.gpu, GPUNVME_MEM_GPU, got, GPUNVME_MEM_HOST, ROOM);
    assert_int_equal(gpunvme_batch_create(&batch), GPUNVME_OK);
    for (size_t i = 0; i < N; i++)
        ios[i] = (struct gpunvme_io){.op = i % 2 ? GPUNVME_OP_WRITE : GPUNVME_OP_READ,
                                     .mem = GPUNVME_MEM_GPU,
                                     .offset = (N - i) * STEP,
                                     .ptr = at(GPUNVME_MEM_GPU, i * STEP),
                                     .nbytes = SIZE};
    assert_int_equal(submit_to(store, ios, N, batch), GPUNVME_OK);
    for (size_t n, left = N; left; left -= n)
        assert_int_equal(gpunvme_batch_poll(batch, 1, 64, ended, &n, 20000000000u), GPUNVME_OK);
    assert_int_equal(gpunvme_batch_destroy(batch), GPUNVME_OK);
    assert_int_equal(pread(fd, file, 4 * MIB, 0), 4 * MIB);
    for (size_t i = 0; i < N; i += 2) {
        memcpy(got + i * STEP, bytes + ios[i].offset, SIZE);           /* read */
        memcpy(bytes + ios[i + 1].offset, got + (i + 1) * STEP, SIZE); /* written */
    }
    assert_memory_equal(file, bytes, 4 * MIB);
    gpunvme_mem_copy(file, GPUNVME_MEM_HOST, gpu.gpu, GPUNVME_MEM_GPU, ROOM);
    assert_memory_equal(file, got, ROOM);
    free(got);
    free(file);
    free(ios);
}

/* A tmpfs of 4 MiB, which only this process sees. */
static bool mount_small(const char *folder)
{
    return !unshare(CLONE_NEWNS) && !mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) &&
           !mkdir(folder, 0700) && !mount("none", folder, "tmpfs", 0, "size=3500k");
}

static void a_full_file_system_in_memory_is_nospc_and_the_store_goes_on(void **state)
{
    char folder[] = "/tmp/gpunvme-full", file[64];
    uint64_t size = 0;
    size_t done = 0;
    gpunvme_err_t err;

    (void)state;
    if (!mount_small(folder)) {
        rmdir(folder);
        print_message("SKIP: mounting a tmpfs: %s\n", strerror(errno));
        skip();
    }
    snprintf(file, sizeof(file), "file:%s/x?threads=1,chunk=1M", folder);
    assert_int_equal(gpunvme_open(file, GPUNVME_OPEN_WRITE | GPUNVME_OPEN_CREATE, &store), 0);
    gpunvme_mem_copy(gpu.gpu, GPUNVME_MEM_GPU, bytes, GPUNVME_MEM_HOST, ROOM);
    err = gpunvme_store_write(store, 0, gpu.gpu, GPUNVME_MEM_GPU, 6 * MIB, &done);
    assert_int_equal(err, GPUNVME_ERR_NOSPC);
    assert_in_range(done, MIB, 4 * MIB);
    assert_int_equal(gpunvme_store_size(store, &size), GPUNVME_OK);
    assert_int_equal(size, done); /* nothing behind what was written, as with pwrite(2) */
    reads(GPUNVME_MEM_HOST, 0, done, 0, done);
    assert_int_equal(gpunvme_store_resize(store, 0), GPUNVME_OK);
    make_bytes(bytes, ROOM, 9);
    gpunvme_mem_copy(gpu.gpu, GPUNVME_MEM_GPU, bytes, GPUNVME_MEM_HOST, ROOM);
    assert_int_equal(gpunvme_store_write(store, 0, gpu.gpu, GPUNVME_MEM_GPU, 2 * MIB, &done), 0);
    reads(GPUNVME_MEM_HOST, 0, 2 * MIB, 0, 2 * MIB);
    assert_int_equal(gpunvme_close(store), GPUNVME_OK);
    store = NULL;
    umount2(folder, MNT_DETACH);
    rmdir(folder);
}

/* ---- A kernel that puts reads off --------------------------------------------------------------
 */

static _Atomic bool puts_off;
static _Atomic unsigned nput_off;
static _Atomic size_t nwritten_directly; /* bytes, or tried to */

ssize_t __real_store_fd_move(int file, enum gpunvme_op op, uint8_t *cpu, size_t nbytes,
                             uint64_t offset);
ssize_t __wrap_store_fd_move(int file, enum gpunvme_op op, uint8_t *cpu, size_t nbytes,
                             uint64_t offset);
ssize_t __wrap_store_fd_move(int file, enum gpunvme_op op, uint8_t *cpu, size_t nbytes,
                             uint64_t offset)
{
    if (op == GPUNVME_OP_WRITE && fcntl(file, F_GETFL) & O_DIRECT)
        nwritten_directly += nbytes;
    if (!puts_off)
        return __real_store_fd_move(file, op, cpu, nbytes, offset);
    nput_off++;
    return -EAGAIN;
}

bool __real_posix_file_is_warm(struct posix_file *file, uint64_t offset);
bool __wrap_posix_file_is_warm(struct posix_file *file, uint64_t offset);
bool __wrap_posix_file_is_warm(struct posix_file *file, uint64_t offset)
{
    return !puts_off && __real_posix_file_is_warm(file, offset);
}

/* Its length is that of its pieces. */
static void a_long_vector_is_written_past_the_page_cache(void **state)
{
    struct gpunvme_vec vecs[2] = {{.nbytes = MIB, .mem = GPUNVME_MEM_HOST},
                                  {.nbytes = MIB, .mem = GPUNVME_MEM_HOST}};

    (void)state;
    open_as("uring=off,threads=1", GPUNVME_OPEN_WRITE);
    if (!strstr(path_of_store().how, "O_DIRECT")) {
        print_message("SKIP: the file system of /tmp has no O_DIRECT\n");
        skip();
    }
    vecs[0].ptr = at(GPUNVME_MEM_HOST, 0);
    vecs[1].ptr = at(GPUNVME_MEM_HOST, MIB);
    nwritten_directly = 0;
    assert_int_equal(gpunvme_store_writev(store, 0, vecs, 2, NULL), GPUNVME_OK);
    assert_int_equal(nwritten_directly, 2 * MIB);
}

static void a_read_that_is_put_off_again_and_again_is_an_error(void **state)
{
    gpunvme_err_t err;
    size_t done = 1;

    (void)state;
    contains(MIB);
    open_as("uring=off,direct=off,threads=1,timeout=5s", 0);
    nput_off = 0;
    puts_off = true;
    err = gpunvme_store_read(store, 0, host.cpu, GPUNVME_MEM_HOST, MIB, &done);
    puts_off = false;
    assert_int_equal(err, GPUNVME_ERR_BUSY);
    assert_int_equal(done, 0);
    assert_in_range(nput_off, 1, 64);
    reads(GPUNVME_MEM_HOST, 0, MIB, 0, MIB);
}

/* The set of signals that a thread of this process blocks. */
static unsigned long long blocked_by(const char *thread)
{
    char name[300], line[256];
    unsigned long long set = 0;
    FILE *status;

    snprintf(name, sizeof(name), "/proc/self/task/%s/status", thread);
    status = fopen(name, "re");
    while (status && fgets(line, sizeof(line), status))
        if (sscanf(line, "SigBlk: %llx", &set) == 1)
            break;
    if (status)
        fclose(status);
    return set;
}

static bool is_in(unsigned long long set, int signal)
{
    return set >> (signal - 1) & 1;
}

static void threads_of_an_engine_block_all_signals_but_those_of_faults(void **state)
{
    const struct gpunvme_engine_config config = {.gpu = GPUNVME_ANY_GPU, .threads = 3};
    struct gpunvme_engine *engine;
    struct gpunvme_store *own = NULL;
    char before[1024] = " ", name[300];
    const struct dirent *entry;
    unsigned nnew = 0;
    DIR *tasks;

    (void)state;
    contains(MIB);
    assert_int_equal(gpunvme_engine_create(&config, &engine), GPUNVME_OK);
    for (int round = 0; round < 2; round++) { /* a sanitizer may have a thread, too */
        tasks = opendir("/proc/self/task");
        assert_non_null(tasks);
        while ((entry = readdir(tasks))) {
            unsigned long long set = 0;

            snprintf(name, sizeof(name), " %s ", entry->d_name);
            if (!round)
                strncat(before, name, sizeof(before) - strlen(before) - 1);
            if (!round || strstr(before, name))
                continue;
            nnew++;
            /* A thread blocks all until it has begun. */
            for (unsigned looks = 0; looks < 2000; looks++, usleep(10000))
                if (!is_in(set = blocked_by(entry->d_name), SIGSEGV))
                    break;
            assert_true(is_in(set, SIGTERM) && is_in(set, SIGXFSZ));
            assert_false(is_in(set, SIGSEGV) || is_in(set, SIGBUS));
        }
        closedir(tasks);
        if (!round)
            assert_int_equal(gpunvme_open_on(engine, path, 0, &own), GPUNVME_OK);
    }
    assert_int_equal(nnew, 3);
    assert_int_equal(gpunvme_close(own), GPUNVME_OK);
    assert_int_equal(gpunvme_engine_destroy(engine), GPUNVME_OK);
}

static void a_limit_of_file_sizes_is_an_error_and_no_signal(void **state)
{
    const struct rlimit tight = {.rlim_cur = 2 * MIB, .rlim_max = RLIM_INFINITY};
    struct rlimit was;
    size_t done = 0;
    gpunvme_err_t err;

    (void)state;
    open_as("", GPUNVME_OPEN_WRITE);
    getrlimit(RLIMIT_FSIZE, &was);
    setrlimit(RLIMIT_FSIZE, &tight);
    err = gpunvme_store_write(store, MIB, gpu.gpu, GPUNVME_MEM_GPU, 2 * MIB, &done);
    assert_int_equal(gpunvme_store_write(store, 2 * MIB, host.cpu, GPUNVME_MEM_HOST, 10, NULL),
                     GPUNVME_ERR_NOSPC);
    setrlimit(RLIMIT_FSIZE, &was);
    assert_int_equal(err, GPUNVME_ERR_NOSPC);
    assert_int_equal(done, MIB);
}

/* ---- What it works with, and says --------------------------------------------------------------
 */

static void routes_are_counted_to_the_byte(void **state)
{
    struct gpunvme_path p;

    (void)state;
    contains(2 * MIB + 10);
    open_as("", GPUNVME_OPEN_WRITE);
    reads(GPUNVME_MEM_HOST, 0, 4 * MIB, 0, 2 * MIB + 10);
    reads(GPUNVME_MEM_GPU, 5, MIB, 0, MIB);
    reads(GPUNVME_MEM_GPU, 5, 100, 0, 100);
    assert_int_equal(gpunvme_store_write(store, 0, gpu.gpu, GPUNVME_MEM_GPU, 12345, NULL), 0);
    p = path_of_store();
    assert_int_equal(p.bytes_read[GPUNVME_ROUTE_HOST], 2 * MIB + 10);
    assert_int_equal(p.bytes_read[GPUNVME_ROUTE_BOUNCE], MIB + 100);
    assert_int_equal(p.bytes_written[GPUNVME_ROUTE_BOUNCE], 12345);
    assert_int_equal(p.bytes_written[GPUNVME_ROUTE_HOST], 0);
    assert_int_equal(p.gpu_route, GPUNVME_ROUTE_BOUNCE);
}

static void what_was_switched_off_is_told(void **state)
{
    struct gpunvme_path p;

    (void)state;
    contains(4096);
    open_as("direct=off,uring=off,threads=1,chunk=128K,depth=5", 0);
    p = path_of_store();
    says(p.how, "pread");
    says(p.how, "1 thread shared by all stores, pieces of 128 KiB, at most 5 at a time");
    assert_null(strstr(p.how, "O_DIRECT"));
    says(p.why_not, "O_DIRECT: direct=off");
    says(p.why_not, "io_uring: uring=off");
}

static void pieces_of_a_cached_file_are_larger(void **state)
{
    struct statfs fs;

    (void)state;
    contains(4 * MIB);
    assert_int_equal(fstatfs(fd, &fs), 0);
    if (fs.f_type == TMPFS_MAGIC || fs.f_type == OVERLAYFS_SUPER_MAGIC) {
        puts("SKIP: /tmp is in memory, or its file system does not tell what is cached");
        skip();
    }
    open_as("", 0);
    says(path_of_store().how, "pieces of 2048 KiB");
    reads(GPUNVME_MEM_HOST, 0, 4 * MIB, 0, 4 * MIB);
    assert_int_equal(gpunvme_close(store), GPUNVME_OK);
    assert_int_equal(pread(fd, bytes, 4 * MIB, 0), 4 * MIB);
    open_as("", 0);
    says(path_of_store().how, "pieces of 4096 KiB");
}

static void a_file_in_memory_is_said_to_be_one(void **state)
{
    struct gpunvme_path p;

    (void)state;
    contains(4096);
    open_as("", 0);
    p = path_of_store();
    says(p.how, "in memory");
    says(p.why_not, "O_DIRECT");
}

/* This system call is EPERM from now on, as where containers forbid it. */
static bool forbid(uint32_t call)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof(filter) / sizeof(filter[0]), .filter = filter};

    return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) &&
           !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

/*
 * In a process of its own, which this program begins anew: CUDA does not survive a fork(), and what
 * it has mapped already would count as the child's. 0 is good, 77 to skip.
 */
static int in_a_process(const char *child)
{
    char *const args[] = {(char *)"test_posix", (char *)(uintptr_t)child, path, NULL};
    int status = 1;
    pid_t pid;

    fflush(NULL);
    assert_int_equal(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, args, environ), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* Of a child: that step failed, and why. */
static int failed(int step, const char *what)
{
    fprintf(stderr, "%s: %s\n", what, gpunvme_err_detail());
    return step;
}

/* What the parent's setup has made, and wrote to the file. */
static bool have_memory(void)
{
    bytes = malloc(ROOM);
    if (!bytes || gpunvme_mem_alloc(ROOM, GPUNVME_MEM_HOST, &host) ||
        gpunvme_mem_alloc(ROOM, GPUNVME_MEM_GPU, &gpu))
        return false;
    make_bytes(bytes, ROOM, 1);
    return true;
}

/* Reads all of the file but its first byte to the GPU. */
static bool reads_to_gpu(void)
{
    static uint8_t got[3 * MIB];
    size_t done = 0;

    return !gpunvme_store_read(store, 1, gpu.gpu, GPUNVME_MEM_GPU, 3 * MIB, &done) &&
           done == 3 * MIB - 1 &&
           !gpunvme_mem_copy(got, GPUNVME_MEM_HOST, gpu.gpu, GPUNVME_MEM_GPU, done) &&
           !memcmp(got, bytes + 1, done);
}

static int work_without_uring(void)
{
    struct gpunvme_store *other;
    size_t done = 0;

    if (!forbid(SYS_io_uring_setup))
        return 77;
    if (!have_memory())
        return failed(1, "memory");
    snprintf(uri, sizeof(uri), "file:%s?uring=on", path);
    if (gpunvme_open(uri, 0, &other) != GPUNVME_ERR_UNSUPPORTED)
        return failed(2, "uring=on");
    snprintf(uri, sizeof(uri), "file:%s", path);
    if (gpunvme_open(uri, 0, &store))
        return failed(3, "open");
    if (gpunvme_store_read(store, 0, host.cpu, GPUNVME_MEM_HOST, 3 * MIB, &done) ||
        done != 3 * MIB || memcmp(host.cpu, bytes, done))
        return failed(4, "to host memory");
    if (!reads_to_gpu())
        return failed(5, "to GPU memory");
    if (!strstr(path_of_store().how, "pread") ||
        !strstr(path_of_store().why_not, "io_uring: Operation not permitted"))
        return failed(6, path_of_store().why_not);
    return gpunvme_close(store) ? failed(7, "close") : 0;
}

static void where_io_uring_is_forbidden_it_does_without_and_says_so(void **state)
{
    int result;

    (void)state;
    contains(3 * MIB);
    result = in_a_process("without_uring");
    if (result == 77) {
        print_message("SKIP: no seccomp filters here\n");
        skip();
    }
    assert_int_equal(result, 0);
}

static int work_without_readv(void)
{
    static uint8_t got[3 * MIB];

    if (!forbid(SYS_process_vm_readv))
        return 77;
    if (!have_memory())
        return failed(1, "memory");
    snprintf(uri, sizeof(uri), "file:%s", path);
    if (gpunvme_open(uri, GPUNVME_OPEN_WRITE, &store))
        return failed(2, "open");
    make_bytes(bytes, ROOM, 2);
    if (gpunvme_mem_copy(gpu.gpu, GPUNVME_MEM_GPU, bytes, GPUNVME_MEM_HOST, MIB) ||
        gpunvme_store_write(store, 0, gpu.gpu, GPUNVME_MEM_GPU, MIB, NULL) ||
        gpunvme_store_write(store, MIB, bytes + MIB, GPUNVME_MEM_HOST, 2 * MIB, NULL))
        return failed(3, "write");
    if (gpunvme_store_read(store, 0, got, GPUNVME_MEM_HOST, 3 * MIB, NULL) ||
        memcmp(got, bytes, 3 * MIB))
        return failed(4, "read");
    return gpunvme_close(store) ? failed(5, "close") : 0;
}

static void where_process_vm_readv_is_forbidden_files_in_memory_are_written(void **state)
{
    int result;

    (void)state;
    contains(3 * MIB);
    result = in_a_process("without_readv");
    if (result == 77) {
        print_message("SKIP: no seccomp filters here\n");
        skip();
    }
    assert_int_equal(result, 0);
}

/* Locked memory is what io_uring's registered buffers, and on old kernels its rings, count as. */
static int work_without_locked_memory(void)
{
    const struct rlimit none = {0, 0};

    if (setrlimit(RLIMIT_MEMLOCK, &none) || (geteuid() == 0 && setuid(65534)))
        return 77;
    prctl(PR_SET_DUMPABLE, 1, 0, 0,
          0); /* its own /proc is open to it, as to who began as that user */
    if (!have_memory())
        return failed(1, "memory");
    snprintf(uri, sizeof(uri), "file:%s?direct=on", path);
    if (gpunvme_open(uri, 0, &store))
        return failed(2, "open");
    if (!reads_to_gpu())
        return failed(3, "to GPU memory");
    return gpunvme_close(store) ? failed(4, "close") : 0;
}

static void without_locked_memory_it_works_all_the_same(void **state)
{
    int result;

    (void)state;
    contains(3 * MIB);
    assert_int_equal(fchmod(fd, 0644), 0);
    result = in_a_process("without_locked_memory");
    if (result == 77) {
        print_message("SKIP: this process cannot become another user\n");
        skip();
    }
    assert_int_equal(result, 0);
}

/* No more addresses than the process has now, and 256 MiB: CUDA's library alone has many. */
static bool limit_address_space(void)
{
    FILE *statm = fopen("/proc/self/statm", "re");
    unsigned long pages = 0;
    struct rlimit tight;

    if (!statm || fscanf(statm, "%lu", &pages) != 1)
        return false;
    fclose(statm);
    tight.rlim_cur = tight.rlim_max = pages * (rlim_t)sysconf(_SC_PAGESIZE) + 256 * MIB;
    return !setrlimit(RLIMIT_AS, &tight);
}

/* On an engine of so many threads, each of which has slots. */
static gpunvme_err_t open_and_close(unsigned threads)
{
    const struct gpunvme_engine_config config = {.gpu = -1, .threads = threads};
    struct gpunvme_engine *engine;
    gpunvme_err_t err = gpunvme_engine_create(&config, &engine);

    if (err)
        return err;
    snprintf(uri, sizeof(uri), "file:%s", path);
    err = gpunvme_open_on(engine, uri, 0, &store);
    if (!err)
        gpunvme_close(store);
    gpunvme_engine_destroy(engine);
    return err;
}

static int work_without_address_space(void)
{
    gpunvme_err_t err;

    /* A GPU's context takes more addresses than there is memory. */
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    if (!gpunvme_mem_gpu_is_host() || !limit_address_space())
        return 77;
    err = open_and_close(256);
    if (err != GPUNVME_ERR_NOMEM && err != GPUNVME_ERR_BUSY)
        return failed(1, "256 threads");
    if (!gpunvme_err_detail()[0])
        return failed(2, "no detail");
    return open_and_close(1) ? failed(3, "one thread") : 0;
}

static void without_memory_for_its_slots_it_is_not_opened_but_a_smaller_one_is(void **state)
{
    int result;

    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    print_message("SKIP: sanitizers need all of the address space\n");
    skip();
#endif
    contains(4096);
    result = in_a_process("without_address_space");
    if (result == 77) {
        print_message("SKIP: RLIMIT_AS cannot be set\n");
        skip();
    }
    assert_int_equal(result, 0);
}

/* ---- What is no ordinary file ------------------------------------------------------------------
 */

static void a_misspelt_scheme_is_told_the_nearest(void **state)
{
    struct gpunvme_store *other;

    (void)state;
    assert_int_equal(gpunvme_open("nmve:0000:01:00.0", 0, &other), GPUNVME_ERR_NOT_FOUND);
    says(gpunvme_err_detail(), "did you mean 'nvme:'");
    assert_int_equal(gpunvme_open("whatever:0000:01:00.0", 0, &other), GPUNVME_ERR_NOT_FOUND);
    says(gpunvme_err_detail(), "nor a scheme of this name");
}

static void what_is_no_file_is_refused_at_once(void **state)
{
    (void)state;
    assert_int_equal(gpunvme_open("/dev/full", GPUNVME_OPEN_WRITE, &store), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_open("/tmp", 0, &store), GPUNVME_ERR_INVALID);
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(gpunvme_open(path, 0, &store), GPUNVME_ERR_INVALID);
}

/* A block device whose bytes are this file's; its name, or false. */
static bool make_loop(int *device, char *name, size_t room)
{
    int control = open("/dev/loop-control", O_RDWR), number;

    number = control < 0 ? -1 : ioctl(control, LOOP_CTL_GET_FREE);
    if (control >= 0)
        close(control);
    if (number < 0)
        return false;
    snprintf(name, room, "/dev/loop%d", number);
    *device = open(name, O_RDWR);
    if (*device < 0)
        return false;
    if (!ioctl(*device, LOOP_SET_FD, fd)) {
        const struct loop_info64 info = {.lo_flags = LO_FLAGS_AUTOCLEAR};

        ioctl(*device, LOOP_SET_STATUS64, &info); /* it goes when nobody has it open */
        return true;
    }
    close(*device);
    return false;
}

static void a_block_device_is_read_and_written_up_to_its_end(void **state)
{
    struct gpunvme_store_info info;
    uint64_t size = 0;
    char name[32];
    int device = -1;

    (void)state;
    contains(4 * MIB);
    if (!make_loop(&device, name, sizeof(name))) {
        print_message("SKIP: a loop device: %s\n", strerror(errno));
        skip();
    }
    if (gpunvme_open(name, GPUNVME_OPEN_WRITE, &store))
        fail_msg("%s", gpunvme_err_detail());
    gpunvme_store_get_info(store, &info);
    assert_false(info.resizable);
    assert_int_equal(gpunvme_store_size(store, &size), GPUNVME_OK);
    assert_int_equal(size, 4 * MIB);
    reads(GPUNVME_MEM_HOST, 3 * MIB + 5, 2 * MIB, 4096, MIB - 5);
    reads(GPUNVME_MEM_GPU, 513, 2 * MIB, 0, 2 * MIB);
    assert_int_equal(gpunvme_store_write(store, 4 * MIB - 1, host.cpu, GPUNVME_MEM_HOST, 2, NULL),
                     GPUNVME_ERR_RANGE);
    assert_int_equal(gpunvme_store_resize(store, MIB), GPUNVME_ERR_UNSUPPORTED);
    make_bytes(bytes + 1000, MIB, 99);
    memcpy(host.cpu, bytes, 2 * MIB);
    assert_int_equal(
        gpunvme_store_write(store, 1000, (uint8_t *)host.cpu + 1000, GPUNVME_MEM_HOST, MIB, NULL),
        GPUNVME_OK);
    reads(GPUNVME_MEM_HOST, 0, 2 * MIB, 0, 2 * MIB);
    assert_int_equal(gpunvme_close(store), GPUNVME_OK);
    store = NULL;
    ioctl(device, LOOP_CLR_FD, 0);
    close(device);
}

/* Though its name is in one of the kernel's file systems in memory. */
static void a_block_device_is_no_file_in_memory(void **state)
{
    struct gpunvme_path way;
    char name[32];
    int device = -1;

    (void)state;
    contains(MIB);
    if (!make_loop(&device, name, sizeof(name))) {
        print_message("SKIP: a loop device: %s\n", strerror(errno));
        skip();
    }
    assert_int_equal(gpunvme_open(name, 0, &store), GPUNVME_OK);
    gpunvme_store_path(store, &way);
    assert_null(strstr(way.how, "in memory"));
    assert_null(strstr(way.why_not, "in memory"));
    assert_int_equal(gpunvme_close(store), GPUNVME_OK);
    store = NULL;
    ioctl(device, LOOP_CLR_FD, 0);
    close(device);
}

static void an_error_of_a_device_ends_a_read_there(void **state)
{
    static const char *const options[] = {"", "?direct=off", "?uring=off", "?direct=off,uring=off"};
    char name[32], loop[64];
    size_t done = 0;
    int device = -1;

    (void)state;
    contains(4 * MIB);
    if (!make_loop(&device, name, sizeof(name))) {
        print_message("SKIP: a loop device: %s\n", strerror(errno));
        skip();
    }
    assert_int_equal(ftruncate(fd, (off_t)(2 * MIB)), 0); /* the rest of the device is EIO */
    for (size_t i = 0; i < 4; i++)
        for (int gpu_too = 0; gpu_too < 2; gpu_too++) {
            enum gpunvme_mem mem = gpu_too ? GPUNVME_MEM_GPU : GPUNVME_MEM_HOST;

            snprintf(loop, sizeof(loop), "file:%s%s", name, options[i]);
            assert_int_equal(gpunvme_open(loop, 0, &store), GPUNVME_OK);
            gpunvme_mem_fill(at(mem, 0), mem, 0, 4 * MIB);
            assert_int_equal(gpunvme_store_read(store, 0, at(mem, 0), mem, 4 * MIB, &done),
                             GPUNVME_ERR_IO);
            assert_in_range(done, MIB, 2 * MIB); /* pieces are moved or not */
            gpunvme_mem_copy(host.cpu, GPUNVME_MEM_HOST, at(mem, 0), mem, mem ? done : 0);
            assert_memory_equal(host.cpu, bytes, done);
            reads(mem, 5, MIB, 0, MIB); /* … and the store goes on */
            assert_int_equal(gpunvme_close(store), GPUNVME_OK);
            store = NULL;
        }
    ioctl(device, LOOP_CLR_FD, 0);
    close(device);
}

static void the_file_is_the_one_that_was_opened_whatever_its_name_is_now(void **state)
{
    char other[80];

    (void)state;
    contains(MIB);
    open_as("direct=on", 0);
    snprintf(other, sizeof(other), "%s-other", path);
    assert_int_equal(rename(path, other), 0);
    reads(GPUNVME_MEM_GPU, 0, MIB, 0, MIB);
    unlink(other);
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
#define BOTH(test)                                                                                 \
    TEST(test),                                                                                    \
    {                                                                                              \
#test " (in memory)", test, setup_in_memory, teardown, NULL                                \
    }

static const struct {
    const char *name;
    int (*work)(void);
} children[] = {
    {"without_uring", work_without_uring},
    {"without_readv", work_without_readv},
    {"without_locked_memory", work_without_locked_memory},
    {"without_address_space", work_without_address_space},
};

/* test_posix CHILD FILE: in_a_process() */
static int work_as(const char *child, const char *file)
{
    snprintf(path, sizeof(path), "%s", file);
    for (size_t i = 0; i < sizeof(children) / sizeof(children[0]); i++)
        if (!strcmp(child, children[i].name))
            return children[i].work();
    return 1;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(where_io_uring_is_forbidden_it_does_without_and_says_so),
        {"where_process_vm_readv_is_forbidden_files_in_memory_are_written",
         where_process_vm_readv_is_forbidden_files_in_memory_are_written, setup_in_memory, teardown,
         NULL},
        TEST(without_locked_memory_it_works_all_the_same),
        TEST(without_memory_for_its_slots_it_is_not_opened_but_a_smaller_one_is),
        TEST(no_byte_behind_the_end_is_touched),
        TEST(crooked_places_are_filled_exactly),
        BOTH(holes_are_zeroes),
        BOTH(thousands_of_small_reads_land_each_in_its_place),
        BOTH(ranges_of_a_gather_land_each_in_its_place),
        BOTH(a_gather_ends_where_its_first_short_range_does),
        {"holes_of_a_file_in_memory_are_not_mapped", holes_of_a_file_in_memory_are_not_mapped,
         setup_in_memory, teardown, NULL},
        BOTH(reads_and_writes_of_a_batch_do_not_mix),
        BOTH(writes_change_what_they_should_and_nothing_else),
        TEST(a_full_file_system_in_memory_is_nospc_and_the_store_goes_on),
        TEST(a_read_that_is_put_off_again_and_again_is_an_error),
        TEST(a_long_vector_is_written_past_the_page_cache),
        TEST(threads_of_an_engine_block_all_signals_but_those_of_faults),
        BOTH(a_limit_of_file_sizes_is_an_error_and_no_signal),
        BOTH(routes_are_counted_to_the_byte),
        TEST(what_was_switched_off_is_told),
        TEST(pieces_of_a_cached_file_are_larger),
        {"a_file_in_memory_is_said_to_be_one", a_file_in_memory_is_said_to_be_one, setup_in_memory,
         teardown, NULL},
        TEST(what_is_no_file_is_refused_at_once),
        TEST(a_misspelt_scheme_is_told_the_nearest),
        TEST(a_block_device_is_read_and_written_up_to_its_end),
        TEST(a_block_device_is_no_file_in_memory),
        TEST(an_error_of_a_device_ends_a_read_there),
        TEST(the_file_is_the_one_that_was_opened_whatever_its_name_is_now),
    };

    if (argc > 2)
        return work_as(argv[1], argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
