/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Stores with backend=cufile, with the real libcufile and a real GPU. The library is
 * GPUNVME_CUFILE_LIBRARY, or found in the usual places or among Python's packages; where there is
 * none, or no GPU, the program is skipped. It has a cufile.json of its own, which allows compat
 * mode, so it runs where nvidia-fs is not loaded. Files are in TMPDIR (/tmp) and in /dev/shm; a
 * folder that cuFile refuses is left out, with the reason (older versions take no tmpfs, and none
 * takes a disk that udev's database, /run/udev/data, does not know, as in most containers).
 *
 * With the tests' stand-in for libcufile it also runs without a GPU: that is how it is tried.
 */
#include "memory_util.h"

#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "gpunvme/storage.h"
#include "storage/cufile/api.h"
#include "transfer_util.h"

#ifdef GPUNVME_HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

#define MIB    ((size_t)1 << 20)
#define RAGGED (4 * MIB + 77)
#define POISON 0xee

static char folder[64];  /* of cufile.json and cufile.log */
static char path[128];   /* of the file */
static uint8_t *content; /* what is in it */

static void make_path(const char *in)
{
    snprintf(path, sizeof(path), "%s/gpunvme_cufile.%d", in, (int)getpid());
}

/* Makes the file of this test, on a disk as the machine has it. */
static int on_disk(void **state)
{
    const char *tmp = getenv("TMPDIR");
    int fd;

    (void)state;
    if (strncmp(path, "/dev/shm", 8))
        make_path(tmp ? tmp : "/tmp");
    fd = open(path, O_CREAT | O_TRUNC | O_RDWR, 0600);
    if (fd < 0 || pwrite(fd, content, RAGGED, 0) != (ssize_t)RAGGED || fsync(fd))
        return -1;
    return close(fd);
}

static int in_memory(void **state)
{
    make_path("/dev/shm");
    return on_disk(state);
}

static int gone(void **state)
{
    (void)state;
    unlink(path);
    path[0] = '\0';
    return 0;
}

static struct gpunvme_store *opened(const char *options)
{
    struct gpunvme_store *store;
    char uri[256];

    snprintf(uri, sizeof(uri), "file:%s?backend=cufile%s", path, options);
    if (gpunvme_open(uri, GPUNVME_OPEN_WRITE, &store))
        fail_msg("%s", gpunvme_err_detail());
    return store;
}

static void closed(struct gpunvme_store *store)
{
    if (gpunvme_close(store))
        fail_msg("%s", gpunvme_err_detail());
}

/* Reads into the middle of poisoned GPU memory: `there` bytes come, and nothing else changes. */
static void assert_reads(struct gpunvme_store *store, const struct gpunvme_buf *buf, size_t at,
                         uint64_t offset, size_t nbytes, size_t there)
{
    size_t done = 0;

    assert_int_equal(gpunvme_mem_fill(buf->gpu, buf->mem, POISON, buf->nbytes), GPUNVME_OK);
    if (gpunvme_store_read(store, offset, (uint8_t *)buf->gpu + at, buf->mem, nbytes, &done))
        fail_msg("%zu bytes at %llu: %s", nbytes, (unsigned long long)offset, gpunvme_err_detail());
    assert_int_equal(done, there);
    assert_only_range_is(buf, POISON, at, content + offset, there);
}

static void write_gpu(struct gpunvme_store *store, struct gpunvme_buf *buf, uint64_t offset,
                      size_t nbytes)
{
    size_t done = 0;

    buf_write(buf, 0, content + offset, nbytes);
    if (gpunvme_store_write(store, offset, buf->gpu, buf->mem, nbytes, &done))
        fail_msg("%zu bytes at %llu: %s", nbytes, (unsigned long long)offset, gpunvme_err_detail());
    assert_int_equal(done, nbytes);
}

/* By plain POSIX, the oracle. */
static void assert_file_is(size_t nbytes)
{
    uint8_t *found = checked_malloc(nbytes + 1);
    int fd = open(path, O_RDONLY);

    assert_int_equal(pread(fd, found, nbytes + 1, 0), nbytes);
    assert_memory_equal(found, content, nbytes);
    close(fd);
    free(found);
}

/* --- one test for each promise; each runs on a disk and in memory --- */

static void the_way_is_told(void **state)
{
    struct gpunvme_store *store = opened("");
    struct gpunvme_path p;

    (void)state;
    gpunvme_store_path(store, &p);
    print_message("%s\n  route %s: %s\n  why not: %s\n", path, gpunvme_route_name(p.gpu_route),
                  p.how, p.why_not);
    assert_true(p.gpu_route == GPUNVME_ROUTE_COMPAT || p.gpu_route == GPUNVME_ROUTE_P2P);
    assert_true(p.gpu_route == GPUNVME_ROUTE_P2P || p.why_not[0]);
    closed(store);
}

static const struct {
    uint64_t offset;
    size_t nbytes;
} ranges[] = {
    {0, 4096},     {0, 1},       {1, 1},     {4095, 2},    {511, 513},       {4096, 65536},
    {100, 100000}, {MIB - 1, 2}, {MIB, MIB}, {0, 4 * MIB}, {12345, 3000001}, {8192, 12289},
};
#define NRANGES (sizeof(ranges) / sizeof(ranges[0]))

static void reads_of_any_offset_and_length_give_the_files_bytes(void **state)
{
    struct gpunvme_store *store = opened("");
    struct gpunvme_buf buf = new_buf(RAGGED + 8192, GPUNVME_MEM_GPU);

    (void)state;
    for (size_t i = 0; i < NRANGES; i++) {
        assert_reads(store, &buf, 0, ranges[i].offset, ranges[i].nbytes, ranges[i].nbytes);
        assert_reads(store, &buf, 4096, ranges[i].offset, ranges[i].nbytes, ranges[i].nbytes);
        assert_reads(store, &buf, 13, ranges[i].offset, ranges[i].nbytes, ranges[i].nbytes);
    }
    free_buf(&buf);
    closed(store);
}

static void a_read_over_the_end_is_short(void **state)
{
    struct gpunvme_store *store = opened("");
    struct gpunvme_buf buf = new_buf(64 * 1024, GPUNVME_MEM_GPU);

    (void)state;
    assert_reads(store, &buf, 0, RAGGED - 1000, 4096, 1000);
    assert_reads(store, &buf, 0, 4 * MIB, 4096, 77);
    assert_reads(store, &buf, 0, RAGGED, 4096, 0);
    free_buf(&buf);
    closed(store);
}

static void registered_memory_is_reached_at_any_offset_of_it(void **state)
{
    struct gpunvme_store *store = opened("");
    struct gpunvme_buf buf = new_buf(4 * MIB, GPUNVME_MEM_GPU);

    (void)state;
    if (gpunvme_register(NULL, buf.gpu, buf.nbytes, buf.mem))
        fail_msg("%s", gpunvme_err_detail());
    assert_reads(store, &buf, 0, 4096, MIB, MIB);
    assert_reads(store, &buf, 2 * MIB, 0, MIB, MIB);
    assert_reads(store, &buf, 65536, 4097, 100001, 100001);
    assert_reads(store, &buf, 4 * MIB - 4096, 0, 4096, 4096);
    assert_int_equal(gpunvme_unregister(NULL, buf.gpu), GPUNVME_OK);
    free_buf(&buf);
    closed(store);
}

static void two_stores_use_the_same_registered_memory(void **state)
{
    struct gpunvme_store *one = opened(""), *two = opened("");
    struct gpunvme_buf buf = new_buf(MIB, GPUNVME_MEM_GPU);

    (void)state;
    assert_int_equal(gpunvme_register(NULL, buf.gpu, buf.nbytes, buf.mem), GPUNVME_OK);
    assert_int_equal(gpunvme_register(NULL, buf.gpu, buf.nbytes, buf.mem), GPUNVME_OK);
    assert_reads(one, &buf, 0, 0, 65536, 65536);
    closed(one);
    assert_reads(two, &buf, 4096, 65536, 65536, 65536);
    closed(two);
    assert_int_equal(gpunvme_unregister(NULL, buf.gpu), GPUNVME_OK);
    assert_int_equal(gpunvme_unregister(NULL, buf.gpu), GPUNVME_OK);
    free_buf(&buf);
}

static void writes_of_any_offset_and_length_are_in_the_file(void **state)
{
    struct gpunvme_store *store = opened("");
    struct gpunvme_buf buf = new_buf(4 * MIB, GPUNVME_MEM_GPU);

    (void)state;
    for (size_t i = 0; i < NRANGES; i++) {
        random_bytes(content + ranges[i].offset, ranges[i].nbytes, i + 100);
        write_gpu(store, &buf, ranges[i].offset, ranges[i].nbytes);
        assert_file_is(RAGGED);
    }
    assert_int_equal(gpunvme_store_flush(store), GPUNVME_OK);
    closed(store);
    free_buf(&buf);
}

static void a_write_over_the_end_makes_the_file_as_long_as_it_reaches(void **state)
{
    struct gpunvme_store *store = opened("");
    struct gpunvme_buf buf = new_buf(MIB, GPUNVME_MEM_GPU);
    uint64_t nbytes;

    (void)state;
    write_gpu(store, &buf, RAGGED - 10, 5000); /* `content` has room for it */
    assert_int_equal(gpunvme_store_size(store, &nbytes), GPUNVME_OK);
    assert_int_equal(nbytes, RAGGED + 4990);
    assert_file_is(RAGGED + 4990);
    closed(store);
    free_buf(&buf);
}

static void neighbours_in_one_block_written_at_once_are_both_there(void **state)
{
    enum { N = 64, EACH = 100 };
    struct gpunvme_store *store = opened("");
    struct gpunvme_buf buf = new_buf(N * EACH, GPUNVME_MEM_GPU);
    struct gpunvme_io ios[N];

    (void)state;
    random_bytes(content + 4096, N * EACH, 7);
    buf_write(&buf, 0, content + 4096, N * EACH);
    for (size_t i = 0; i < N; i++)
        ios[i] = (struct gpunvme_io){.op = GPUNVME_OP_WRITE,
                                     .mem = buf.mem,
                                     .offset = 4096 + i * EACH,
                                     .ptr = (uint8_t *)buf.gpu + i * EACH,
                                     .nbytes = EACH};
    assert_int_equal(submit_to(store, ios, N, NULL), GPUNVME_OK);
    for (size_t i = 0; i < N; i++)
        assert_int_equal(gpunvme_io_wait(&ios[i], 0), GPUNVME_OK);
    assert_file_is(RAGGED);
    closed(store);
    free_buf(&buf);
}

/* Reads of a hundred places by one submission. */
static void many_reads(const char *options, bool registered)
{
    enum { N = 100, EACH = 16384 };
    struct gpunvme_store *store = opened(options);
    struct gpunvme_buf buf = new_buf(N * EACH, GPUNVME_MEM_GPU);
    uint8_t *expected = checked_malloc(N * EACH);
    struct gpunvme_io ios[N];

    for (size_t i = 0; i < N; i++) {
        uint64_t offset = i * 37 % 200 * 20480 + (i % 3 == 2);

        memcpy(expected + i * EACH, content + offset, EACH);
        ios[i] = (struct gpunvme_io){.op = GPUNVME_OP_READ,
                                     .mem = buf.mem,
                                     .offset = offset,
                                     .ptr = (uint8_t *)buf.gpu + i * EACH,
                                     .nbytes = EACH};
    }
    if (registered)
        assert_int_equal(gpunvme_register(NULL, buf.gpu, buf.nbytes, buf.mem), GPUNVME_OK);
    assert_int_equal(submit_to(store, ios, N, NULL), GPUNVME_OK);
    for (size_t i = 0; i < N; i++)
        if (gpunvme_io_wait(&ios[i], 0))
            fail_msg("transfer %zu: %s: %s", i, gpunvme_err_name(ios[i].err), gpunvme_err_detail());
    assert_only_range_is(&buf, 0, 0, expected, N * EACH);
    free(expected);
    closed(store);
    assert_int_equal(gpunvme_unregister(NULL, buf.gpu), GPUNVME_OK);
    free_buf(&buf);
}

static void many_reads_at_once_give_the_files_bytes(void **state)
{
    (void)state;
    many_reads("", true);
}

/* Two thousand random transfers of one thread, with what was written as the oracle. */
static void hammered(const char *options)
{
    struct gpunvme_store *store = opened(options);
    struct gpunvme_buf buf = new_buf(256 * 1024, GPUNVME_MEM_GPU);
    uint8_t *found = checked_malloc(buf.nbytes);
    uint64_t seed = 11;

    for (int i = 0; i < 2000; i++) {
        uint64_t word = random_word(&seed);
        size_t offset = word % RAGGED, nbytes = 1 + (word >> 32) % buf.nbytes;

        nbytes = nbytes < RAGGED - offset ? nbytes : RAGGED - offset;
        if (word >> 63) {
            random_bytes(content + offset, nbytes, word);
            write_gpu(store, &buf, offset, nbytes);
        } else {
            assert_int_equal(gpunvme_store_read(store, offset, buf.gpu, buf.mem, nbytes, NULL),
                             GPUNVME_OK);
            buf_read(&buf, 0, found, nbytes);
            assert_memory_equal(found, content + offset, nbytes);
        }
    }
    closed(store);
    assert_file_is(RAGGED);
    free(found);
    free_buf(&buf);
}

static void random_transfers_agree_with_posix(void **state)
{
    (void)state;
    hammered("");
}

static void need_o_direct(void)
{
    int fd = open(path, O_RDONLY | O_DIRECT);

    if (fd < 0)
        skip();
    close(fd);
}

static void random_transfers_by_o_direct_agree_with_posix(void **state)
{
    (void)state;
    need_o_direct();
    hammered(",direct=on");
}

static void pinned_and_host_memory_are_read_too(void **state)
{
    struct gpunvme_store *store = opened("");
    struct gpunvme_buf buf = new_buf(100000, GPUNVME_MEM_PINNED);

    (void)state;
    assert_int_equal(gpunvme_store_read(store, 777, buf.cpu, GPUNVME_MEM_PINNED, 100000, NULL),
                     GPUNVME_OK);
    assert_memory_equal(buf.cpu, content + 777, 100000);
    free_buf(&buf);
    closed(store);
}

/* Either it is P2P, or it is refused with the reason: nothing in between. */
static void require_p2p_is_kept_or_refused(void **state)
{
    struct gpunvme_store *store;
    struct gpunvme_path p;
    char uri[256];
    gpunvme_err_t err;

    (void)state;
    snprintf(uri, sizeof(uri), "file:%s?backend=cufile,require=p2p", path);
    err = gpunvme_open(uri, 0, &store);
    print_message("%s: %s\n", gpunvme_err_name(err), err ? gpunvme_err_detail() : "P2P");
    if (err) {
        assert_true(gpunvme_err_detail()[0] != '\0');
        return;
    }
    gpunvme_store_path(store, &p);
    assert_int_equal(p.gpu_route, GPUNVME_ROUTE_P2P);
    closed(store);
}

#ifdef GPUNVME_HAVE_CUDA

/* --- transfers of a store in the order of a stream --- */

struct rig {
    struct gpunvme_store *store;
    struct gpunvme_buf buf, copy; /* registered GPU memory, pinned memory */
    cudaStream_t stream;
};

static struct rig new_rig(void)
{
    struct rig r = {.store = opened(""),
                    .buf = new_buf(4 * MIB, GPUNVME_MEM_GPU),
                    .copy = new_buf(4 * MIB, GPUNVME_MEM_PINNED)};

    assert_int_equal(gpunvme_register(NULL, r.buf.gpu, r.buf.nbytes, r.buf.mem), 0);
    assert_int_equal(cudaStreamCreateWithFlags(&r.stream, cudaStreamNonBlocking), cudaSuccess);
    return r;
}

static void free_rig(struct rig *r)
{
    struct gpunvme_path p;

    gpunvme_store_path(r->store, &p);
    print_message("%s\n", p.how);
    closed(r->store);
    assert_int_equal(gpunvme_unregister(NULL, r->buf.gpu), GPUNVME_OK);
    cudaStreamDestroy(r->stream);
    free_buf(&r->copy);
    free_buf(&r->buf);
}

static struct gpunvme_io io_of(const struct rig *r, enum gpunvme_op op, uint64_t offset, size_t at,
                               size_t nbytes)
{
    return (struct gpunvme_io){.op = op,
                               .mem = GPUNVME_MEM_GPU,
                               .offset = offset,
                               .ptr = (uint8_t *)r->buf.gpu + at,
                               .nbytes = nbytes};
}

static void submitted(const struct rig *r, struct gpunvme_io *io)
{
    if (submit_on_stream(r->store, io, r->stream))
        fail_msg("%s", gpunvme_err_detail());
}

static void synchronised(const struct rig *r, struct gpunvme_io *io, size_t there)
{
    assert_int_equal(cudaStreamSynchronize(r->stream), cudaSuccess);
    if (gpunvme_io_test(io))
        fail_msg("%s", gpunvme_err_detail());
    assert_int_equal(io->done, there);
}

/* A fill before it, a copy behind it: the copy has the file's bytes, and nothing but them. */
static void reads_between(struct rig *r, uint64_t offset, size_t at, size_t nbytes, size_t there)
{
    struct gpunvme_io io = io_of(r, GPUNVME_OP_READ, offset, at, nbytes);

    assert_int_equal(cudaMemsetAsync(r->buf.gpu, POISON, r->buf.nbytes, r->stream), cudaSuccess);
    submitted(r, &io);
    assert_int_equal(
        cudaMemcpyAsync(r->copy.cpu, r->buf.gpu, r->buf.nbytes, cudaMemcpyDeviceToHost, r->stream),
        cudaSuccess);
    synchronised(r, &io, there);
    assert_only_range_is(&r->copy, POISON, at, content + offset, there);
}

/* What a copy before it brings is in the file. */
static void writes_behind(struct rig *r, uint64_t offset, size_t nbytes)
{
    struct gpunvme_io io = io_of(r, GPUNVME_OP_WRITE, offset, 8192, nbytes);
    uint8_t *to = (uint8_t *)r->buf.gpu + 8192;

    for (size_t i = 0; i < nbytes; i++)
        content[offset + i] ^= 0x5a;
    memcpy(r->copy.cpu, content + offset, nbytes);
    assert_int_equal(cudaMemcpyAsync(to, r->copy.cpu, nbytes, cudaMemcpyHostToDevice, r->stream),
                     cudaSuccess);
    submitted(r, &io);
    synchronised(r, &io, nbytes);
    assert_file_is(RAGGED);
}

static void CUDART_CB cut_file(void *failed)
{
    *(int *)failed = truncate(path, 5000);
}

static void in_their_turn(void)
{
    struct rig r = new_rig();
    int failed = 1;

    reads_between(&r, 0, 0, MIB, MIB);
    reads_between(&r, 4097, 12345, 100000, 100000);
    reads_between(&r, RAGGED - 100, 4096, 8192, 100);
    reads_between(&r, RAGGED + 4096, 4096, 8192, 0);
    writes_behind(&r, 65536, MIB);
    writes_behind(&r, 77, 5000);
    assert_int_equal(cudaLaunchHostFunc(r.stream, cut_file, &failed), cudaSuccess);
    reads_between(&r, 4096, 0, 8192, 5000 - 4096);
    assert_int_equal(failed, 0);
    free_rig(&r);
}

static void transfers_on_a_stream_come_in_their_turn(void **state)
{
    (void)state;
    if (gpunvme_mem_gpu_is_host())
        skip();
    in_their_turn();
}

/* Reads of one memory's parts by two streams, and by threads at the same time. */
static void streams_and_threads_give_the_files_bytes(void **state)
{
    enum { N = 64, ROUNDS = 16, PART = 65536 };
    static struct gpunvme_io ios[N];
    cudaStream_t other;
    struct rig r;

    (void)state;
    if (gpunvme_mem_gpu_is_host())
        skip();
    r = new_rig();
    assert_int_equal(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
    for (unsigned round = 1; round <= ROUNDS; round++) {
        assert_int_equal(cudaMemset(r.buf.gpu, POISON, r.buf.nbytes), cudaSuccess);
        assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
        for (unsigned i = 0; i < N; i++) {
            cudaStream_t streams[] = {r.stream, other};
            gpunvme_err_t err;

            ios[i] = io_of(&r, GPUNVME_OP_READ, i * PART, i * PART, PART);
            err = i % 4 < 2 ? submit_on_stream(r.store, &ios[i], streams[i % 2])
                            : submit_to(r.store, &ios[i], 1, NULL);
            if (err)
                fail_msg("%u: %s", i, gpunvme_err_detail());
        }
        assert_int_equal(cudaStreamSynchronize(other), cudaSuccess);
        assert_int_equal(cudaStreamSynchronize(r.stream), cudaSuccess);
        for (unsigned i = 0; i < N; i++) {
            if (gpunvme_io_wait(&ios[i], UINT64_C(10000000000)))
                fail_msg("%u: %s", i, gpunvme_err_detail());
            assert_int_equal(ios[i].done, PART);
        }
        assert_only_range_is(&r.buf, POISON, 0, content, N * PART);
    }
    cudaStreamDestroy(other);
    free_rig(&r);
}

#endif

static void fill(size_t nbytes)
{
    int fd = open(path, O_WRONLY);

    for (size_t at = 0; at < nbytes; at += 4 * MIB)
        assert_int_equal(pwrite(fd, content, 4 * MIB, (off_t)at), 4 * MIB);
    assert_int_equal(fsync(fd), 0);
    close(fd);
}

/* How fast it is, for the eye: nothing is asserted of it. */
static void how_fast_it_reads_is_told(void **state)
{
    static const char *const ways[] = {"", ",threads=16", ",chunk=4M", ",chunk=4M,threads=16"};
    const size_t nbytes = gpunvme_mem_gpu_is_host() ? 16 * MIB : 1024 * MIB;
    struct gpunvme_buf buf = new_buf(nbytes, GPUNVME_MEM_GPU);

    (void)state;
    fill(nbytes);
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        struct gpunvme_store *store = opened(ways[i]);
        struct timespec a, b;

        for (int round = 0; round < 2; round++) {
            clock_gettime(CLOCK_MONOTONIC, &a);
            assert_int_equal(gpunvme_store_read(store, 0, buf.gpu, buf.mem, nbytes, NULL),
                             GPUNVME_OK);
            clock_gettime(CLOCK_MONOTONIC, &b);
        }
        print_message("%s read %s: %.2f GB/s\n", path, ways[i],
                      (double)nbytes / 1e9 /
                          ((double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec)));
        closed(store);
    }
    free_buf(&buf);
}

/* --- set-up --- */

static bool loads(const char *library)
{
    struct cufile_api api;

    return cufile_api_load(library, &api) == GPUNVME_OK &&
           (api.needs_no_gpu || !gpunvme_mem_gpu_is_host());
}

/* Names the library for the process; false when there is none. */
static bool find_library(void)
{
    static const char *const patterns[] = {
        "/usr/lib/python3*/*-packages/nvidia/*/lib/libcufile.so.0",
        "/usr/local/lib/python3*/*-packages/nvidia/*/lib/libcufile.so.0",
        "/opt/*/lib/python3*/site-packages/nvidia/*/lib/libcufile.so.0",
    };
    const char *named = getenv(CUFILE_LIBRARY_VARIABLE);
    bool found = loads(named);

    for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]) && !found && !named; i++) {
        glob_t paths;

        if (glob(patterns[i], 0, NULL, &paths))
            continue;
        for (size_t j = 0; j < paths.gl_pathc && !found; j++) {
            found = loads(paths.gl_pathv[j]);
            if (found)
                setenv(CUFILE_LIBRARY_VARIABLE, paths.gl_pathv[j], 1);
        }
        globfree(&paths);
    }
    return found;
}

/* A configuration that allows compat mode and logs into its own folder. */
static bool configure(void)
{
    char name[96];
    FILE *file;

    strcpy(folder, "/tmp/gpunvme_cufile_XXXXXX");
    if (!mkdtemp(folder))
        return false;
    snprintf(name, sizeof(name), "%s/cufile.json", folder);
    setenv("CUFILE_ENV_PATH_JSON", name, 1);
    file = fopen(name, "w");
    if (!file)
        return false;
    fprintf(file,
            "{\n  \"logging\": {\"dir\": \"%s\", \"level\": \"ERROR\"},\n"
            "  \"properties\": {\"allow_compat_mode\": true}\n}\n",
            folder);
    return fclose(file) == 0;
}

static void clean_up(void)
{
    char name[96];

    snprintf(name, sizeof(name), "%s/cufile.json", folder);
    unlink(name);
    rmdir(folder); /* a log with errors in it keeps it */
}

#define DISK(name) cmocka_unit_test_setup_teardown(name, on_disk, gone)
#define MEMORY(name)                                                                               \
    {                                                                                              \
        "in memory: " #name, name, in_memory, gone, NULL                                           \
    }
#define BOTH(name) DISK(name), MEMORY(name)

static const struct CMUnitTest all_tests[] = {
    BOTH(the_way_is_told),
    BOTH(reads_of_any_offset_and_length_give_the_files_bytes),
    BOTH(a_read_over_the_end_is_short),
    BOTH(registered_memory_is_reached_at_any_offset_of_it),
    DISK(two_stores_use_the_same_registered_memory),
    BOTH(writes_of_any_offset_and_length_are_in_the_file),
    BOTH(a_write_over_the_end_makes_the_file_as_long_as_it_reaches),
    BOTH(neighbours_in_one_block_written_at_once_are_both_there),
    BOTH(many_reads_at_once_give_the_files_bytes),
    BOTH(random_transfers_agree_with_posix),
    BOTH(random_transfers_by_o_direct_agree_with_posix),
    DISK(pinned_and_host_memory_are_read_too),
    DISK(require_p2p_is_kept_or_refused),
#ifdef GPUNVME_HAVE_CUDA
    BOTH(transfers_on_a_stream_come_in_their_turn),
    BOTH(streams_and_threads_give_the_files_bytes),
#endif
    BOTH(how_fast_it_reads_is_told),
};

#define NTESTS (sizeof(all_tests) / sizeof(all_tests[0]))

/* Whether cuFile takes files where this set-up makes them; tells why not. */
static bool takes(CMFixtureFunction make)
{
    struct gpunvme_store *store;
    gpunvme_err_t err;
    char uri[256];

    if (make(NULL))
        return false;
    snprintf(uri, sizeof(uri), "file:%s?backend=cufile", path);
    err = gpunvme_open(uri, 0, &store);
    if (err)
        print_message("left out: %s: %s\n", path, gpunvme_err_detail());
    else
        gpunvme_close(store);
    gone(NULL);
    return err == GPUNVME_OK;
}

int main(void)
{
    struct CMUnitTest tests[NTESTS];
    bool disk, memory;
    size_t n = 0;
    int failed;

    if (!find_library()) {
        printf("SKIP: %s\n",
               gpunvme_mem_gpu_is_host() ? gpunvme_mem_gpu_why_not() : gpunvme_err_detail());
        return 77;
    }
    if (!configure())
        return 1;
    content = malloc(RAGGED + 65536);
    random_bytes(content, RAGGED + 65536, 1);
    disk = takes(on_disk);
    memory = takes(in_memory);
    for (size_t i = 0; i < NTESTS; i++)
        if (all_tests[i].setup_func == in_memory ? memory : disk)
            tests[n++] = all_tests[i];
    failed = n ? _cmocka_run_group_tests("cufile", tests, n, NULL, NULL) : 77;
    if (!n)
        printf("SKIP: %s\n", gpunvme_err_detail());
    free(content);
    clean_up();
    return failed;
}
