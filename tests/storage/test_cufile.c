/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Stores with backend=cufile, over a stand-in for libcufile that moves bytes in host memory. Where
 * there is a GPU its memory is out of the stand-in's reach: then the program is skipped, and
 * test_gpu_cufile has the real library.
 */
#include "cufile_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gpunvme/memory.h"
#include "gpunvme/storage.h"

#define GPU    GPUNVME_MEM_GPU
#define HOST   GPUNVME_MEM_HOST
#define NBYTES (3u << 20) /* of the file, and 77 */
#define RAGGED (NBYTES + 77u)

static char path[64];
static uint8_t *content, *memory;

static uint8_t byte_at(uint64_t i)
{
    return (uint8_t)(i * 2654435761u >> 13 ^ i >> 9);
}

static int set_up(void **state)
{
    int fd;

    (void)state;
    fake_clear();
    strcpy(path, "/tmp/gpunvme_cufile_XXXXXX");
    fd = mkstemp(path);
    if (fd < 0 || pwrite(fd, content, RAGGED, 0) != (ssize_t)RAGGED)
        return -1;
    memset(memory, 0xee, RAGGED + 4096);
    return close(fd);
}

static int tear_down(void **state)
{
    (void)state;
    unlink(path);
    return (int)fake_held(); /* nothing stays registered */
}

/* The file's URI with options, "" or ",key=value…". */
static gpunvme_err_t open_with(const char *options, unsigned flags, struct gpunvme_store **store)
{
    char uri[256];

    snprintf(uri, sizeof(uri), "file:%s?backend=cufile%s", path, options);
    return gpunvme_open(uri, flags, store);
}

static struct gpunvme_store *opened(const char *options)
{
    struct gpunvme_store *store;

    if (open_with(options, GPUNVME_OPEN_WRITE, &store))
        fail_msg("%s", gpunvme_err_detail());
    return store;
}

static void closed(struct gpunvme_store *store)
{
    assert_int_equal(gpunvme_close(store), GPUNVME_OK);
}

/* Reads and compares, and finds nothing else touched. */
static void assert_reads(struct gpunvme_store *store, uint64_t offset, size_t nbytes, size_t there,
                         enum gpunvme_mem mem)
{
    size_t done = 99;

    memset(memory, 0xee, nbytes + 64);
    if (gpunvme_store_read(store, offset, memory, mem, nbytes, &done))
        fail_msg("%s", gpunvme_err_detail());
    assert_int_equal(done, there);
    assert_memory_equal(memory, content + offset, there);
    for (size_t i = there; i < nbytes + 64; i++)
        assert_int_equal(memory[i], 0xee);
}

static void assert_file_is(const uint8_t *expected, size_t nbytes)
{
    uint8_t *found = malloc(nbytes + 1);
    int fd = open(path, O_RDONLY);

    assert_int_equal(pread(fd, found, nbytes + 1, 0), nbytes);
    assert_memory_equal(found, expected, nbytes);
    close(fd);
    free(found);
}

/* --- bytes --- */

static void reads_of_any_offset_and_length_give_the_files_bytes(void **state)
{
    static const struct {
        uint64_t offset;
        size_t nbytes;
    } cases[] = {{0, 1},      {0, 4096},    {1, 4096},          {4095, 2},       {511, 100000},
                 {0, NBYTES}, {1048575, 2}, {1048576, 1048576}, {12345, 2500000}};
    struct gpunvme_store *store = opened("");

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_reads(store, cases[i].offset, cases[i].nbytes, cases[i].nbytes, GPU);
        assert_reads(store, cases[i].offset, cases[i].nbytes, cases[i].nbytes, HOST);
    }
    closed(store);
}

static void a_read_over_the_end_is_short_as_that_of_pread(void **state)
{
    struct gpunvme_store *store = opened("");

    (void)state;
    assert_reads(store, RAGGED - 100, 4096, 100, GPU);
    assert_reads(store, NBYTES, 4096, 77, HOST);
    assert_reads(store, RAGGED, 10, 0, GPU);
    assert_reads(store, 1u << 20, NBYTES, RAGGED - (1u << 20), GPU);
    closed(store);
}

static void a_read_far_behind_the_end_is_empty_and_does_not_bother_cufile(void **state)
{
    struct gpunvme_store *store = opened("");
    size_t done = 1;

    (void)state;
    assert_int_equal(gpunvme_store_read(store, 1ull << 40, memory, GPU, 4096, &done), GPUNVME_OK);
    assert_int_equal(done, 0);
    assert_int_equal(fake_calls("cuFileRead"), 0);
    closed(store);
}

static void what_is_written_from_gpu_memory_is_in_the_file(void **state)
{
    struct gpunvme_store *store = opened("");

    (void)state;
    memset(memory, 0x5a, 100001);
    assert_int_equal(gpunvme_store_write(store, 4097, memory, GPU, 100001, NULL), GPUNVME_OK);
    assert_int_equal(gpunvme_store_flush(store), GPUNVME_OK);
    closed(store);
    memset(content + 4097, 0x5a, 100001);
    assert_file_is(content, RAGGED);
    for (size_t i = 0; i < 100001; i++)
        content[4097 + i] = byte_at(4097 + i);
}

static void a_write_behind_the_end_makes_the_file_longer(void **state)
{
    struct gpunvme_store *store = opened("");
    uint64_t nbytes;

    (void)state;
    assert_int_equal(gpunvme_store_write(store, RAGGED + 5, memory, GPU, 10, NULL), GPUNVME_OK);
    assert_int_equal(gpunvme_store_size(store, &nbytes), GPUNVME_OK);
    assert_int_equal(nbytes, RAGGED + 15);
    closed(store);
}

static void a_resized_file_has_its_new_size_for_reads(void **state)
{
    struct gpunvme_store *store = opened("");

    (void)state;
    assert_int_equal(gpunvme_store_resize(store, 5000), GPUNVME_OK);
    assert_reads(store, 4096, 4096, 904, GPU);
    closed(store);
}

static void transfers_that_cufile_does_in_parts_are_whole(void **state)
{
    struct gpunvme_store *store = opened("");

    (void)state;
    fake_set("SHORT", "1000");
    assert_reads(store, 3, 100000, 100000, GPU);
    assert_reads(store, RAGGED - 2500, 4096, 2500, GPU);
    memcpy(memory, content, 50000);
    assert_int_equal(gpunvme_store_write(store, 0, memory, GPU, 50000, NULL), GPUNVME_OK);
    closed(store);
    assert_file_is(content, RAGGED);
}

static void host_memory_does_not_go_through_cufile(void **state)
{
    struct gpunvme_store *store = opened("");

    (void)state;
    assert_reads(store, 0, 100000, 100000, HOST);
    assert_int_equal(fake_calls("cuFileRead"), 0);
    closed(store);
}

/* Random transfers of several threads, each in a part of the file of its own. */
struct thread {
    struct gpunvme_store *store;
    unsigned index;
    bool bad;
};

static void *hammer(void *arg)
{
    struct thread *t = arg;
    size_t part = NBYTES / 4, base = t->index * part;
    uint8_t *own = malloc(part), *buffer = malloc(part);
    unsigned random = t->index + 1;

    memcpy(own, content + base, part);
    for (int i = 0; i < 300 && !t->bad; i++) {
        size_t offset, nbytes;
        enum gpunvme_mem mem;

        random = random * 1103515245u + 12345u;
        offset = (random >> 8) % part;
        nbytes = 1 + (random >> 4) % 9000;
        nbytes = nbytes < part - offset ? nbytes : part - offset;
        mem = random & 0x10000 ? GPU : HOST;
        if (random & 0x20000) {
            memset(own + offset, i, nbytes);
            t->bad = gpunvme_store_write(t->store, base + offset, own + offset, mem, nbytes, NULL);
        } else {
            t->bad = gpunvme_store_read(t->store, base + offset, buffer, mem, nbytes, NULL) ||
                     memcmp(buffer, own + offset, nbytes);
        }
    }
    t->bad |=
        gpunvme_store_read(t->store, base, buffer, GPU, part, NULL) || memcmp(buffer, own, part);
    free(own);
    free(buffer);
    return NULL;
}

static void hammered(const char *options)
{
    struct gpunvme_store *store = opened(options);
    struct thread threads[4];
    pthread_t ids[4];

    for (unsigned i = 0; i < 4; i++) {
        threads[i] = (struct thread){store, i, false};
        assert_int_equal(pthread_create(&ids[i], NULL, hammer, &threads[i]), 0);
    }
    for (unsigned i = 0; i < 4; i++) {
        pthread_join(ids[i], NULL);
        assert_false(threads[i].bad);
    }
    closed(store);
}

static void threads_at_once_find_their_own_bytes(void **state)
{
    (void)state;
    hammered(",chunk=4096");
}

/* --- registered memory --- */

static void registered_memory_is_registered_once_and_addressed_by_its_base(void **state)
{
    struct gpunvme_store *store = opened("");
    size_t done;

    (void)state;
    assert_int_equal(gpunvme_register(NULL, memory, NBYTES, GPU), GPUNVME_OK);
    for (size_t i = 0; i < 10; i++) {
        assert_int_equal(
            gpunvme_store_read(store, i * 5000, memory + 64 + i * 9000, GPU, 9000, &done), 0);
        assert_memory_equal(memory + 64 + i * 9000, content + i * 5000, 5000);
    }
    assert_int_equal(fake_calls("cuFileBufRegister"), 1);
    assert_int_equal(gpunvme_unregister(NULL, memory), GPUNVME_OK);
    assert_int_equal(fake_calls("cuFileBufDeregister"), 1);
    closed(store);
}

static void two_stores_share_the_registration_of_the_same_memory(void **state)
{
    struct gpunvme_store *one = opened(""), *two = opened("");

    (void)state;
    assert_int_equal(gpunvme_register(NULL, memory, NBYTES, GPU), GPUNVME_OK);
    assert_int_equal(gpunvme_register(NULL, memory, NBYTES, GPU), GPUNVME_OK);
    assert_int_equal(gpunvme_unregister(NULL, memory), GPUNVME_OK);
    assert_int_equal(fake_calls("cuFileBufDeregister"), 0);
    assert_reads(two, 0, 100000, 100000, GPU);
    closed(two);
    closed(one);
    assert_int_equal(gpunvme_unregister(NULL, memory), GPUNVME_OK);
    assert_int_equal(fake_calls("cuFileBufRegister"), 1);
    assert_int_equal(fake_calls("cuFileBufDeregister"), 1);
}

static void a_part_of_memory_that_another_store_registered_is_addressed_from_its_base(void **state)
{
    struct gpunvme_store *one = opened(""), *two = opened("");
    size_t done;

    (void)state;
    assert_int_equal(gpunvme_register(NULL, memory, NBYTES, GPU), GPUNVME_OK);
    assert_int_equal(gpunvme_register(NULL, memory + 4096, 8192, GPU), GPUNVME_OK);
    assert_int_equal(gpunvme_store_read(two, 9, memory + 4096, GPU, 8192, &done), GPUNVME_OK);
    assert_memory_equal(memory + 4096, content + 9, 8192);
    assert_int_equal(fake_calls("cuFileBufRegister"), 1);
    closed(one);
    closed(two);
    assert_int_equal(gpunvme_unregister(NULL, memory), GPUNVME_OK);
    assert_int_equal(gpunvme_unregister(NULL, memory + 4096), GPUNVME_OK);
}

/* They begin in front of what is registered, in it, or in what another store registered. */
static void transfers_over_the_edges_of_registered_memory_are_whole(void **state)
{
    struct gpunvme_store *stores[] = {opened(""), opened(",threads=1")};
    const size_t begins[] = {0, 4096, 5000, 69999, 70001, 78191};

    (void)state;
    assert_int_equal(gpunvme_register(NULL, memory + 4096, 8192, GPU), GPUNVME_OK);
    assert_int_equal(gpunvme_register(NULL, memory + 70000, 8192, GPU), GPUNVME_OK);
    for (size_t i = 0; i < 12; i++) {
        uint8_t *at = memory + begins[i / 2];
        size_t done;

        memset(memory, 0xee, RAGGED);
        if (gpunvme_store_read(stores[i % 2], 77, at, GPU, 100000, &done))
            fail_msg("from %zu: %s", begins[i / 2], gpunvme_err_detail());
        assert_int_equal(done, 100000);
        assert_memory_equal(at, content + 77, 100000);
        assert_int_equal(at[100000], 0xee);
        assert_int_equal(gpunvme_store_write(stores[i % 2], 77, at, GPU, 100000, NULL), 0);
    }
    assert_file_is(content, RAGGED);
    closed(stores[1]);
    closed(stores[0]);
    assert_int_equal(gpunvme_unregister(NULL, memory + 4096), GPUNVME_OK);
    assert_int_equal(gpunvme_unregister(NULL, memory + 70000), GPUNVME_OK);
}

static void registrations_that_cufile_refuses_fail_with_the_remedy(void **state)
{
    static const struct {
        const char *fail;
        gpunvme_err_t err;
        const char *detail;
    } cases[] = {{"cuFileBufRegister=5036", GPUNVME_ERR_NOMEM, "BAR1"},
                 {"cuFileBufRegister=5045", GPUNVME_ERR_LIMIT, "unregister some"},
                 {"cuFileBufRegister=5016", GPUNVME_ERR_LIMIT, "max_device_pinned_mem_size_kb"},
                 {"cuFileBufRegister=5011", GPUNVME_ERR_GPU, "CUresult 999"}};
    struct gpunvme_store *store = opened("");

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        fake_set("FAIL", cases[i].fail);
        assert_int_equal(gpunvme_register(NULL, memory, NBYTES, GPU), cases[i].err);
        assert_detail_has(cases[i].detail);
    }
    closed(store);
}

static void host_memory_is_registered_without_cufile(void **state)
{
    struct gpunvme_store *store = opened("");

    (void)state;
    assert_int_equal(gpunvme_register(NULL, memory, NBYTES, HOST), GPUNVME_OK);
    assert_int_equal(fake_calls("cuFileBufRegister"), 0);
    assert_reads(store, 5, 100000, 100000, HOST);
    closed(store);
    assert_int_equal(gpunvme_unregister(NULL, memory), GPUNVME_OK);
}

static void memory_that_is_registered_is_let_go_by_the_last_close_and_taken_again(void **state)
{
    struct gpunvme_store *store = opened("");

    (void)state;
    assert_int_equal(gpunvme_register(NULL, memory, NBYTES, GPU), GPUNVME_OK);
    closed(store);
    assert_int_equal(fake_held(), 0);
    store = opened("");
    assert_int_equal(fake_calls("cuFileBufRegister"), 2);
    closed(store);
    assert_int_equal(gpunvme_unregister(NULL, memory), GPUNVME_OK);
}

/* --- errors --- */

static void every_error_of_a_read_is_told_and_no_bytes_are_claimed(void **state)
{
    struct gpunvme_store *store = opened("");
    char fail[40];

    (void)state;
    for (int number = 5001; number <= 5050; number++) {
        size_t done = 99;

        if (number == 5032)
            continue;
        snprintf(fail, sizeof(fail), "cuFileRead=%d", number);
        fake_set("FAIL", fail);
        assert_true(gpunvme_store_read(store, 0, memory, GPU, 4096, &done) < 0);
        assert_detail_has("cuFileRead: CU_FILE_");
        assert_int_equal(done, 0);
    }
    closed(store);
}

static void an_errno_of_a_write_is_the_error_of_the_transfer(void **state)
{
    struct gpunvme_store *store = opened("");
    size_t done = 99;

    (void)state;
    fake_set("FAIL", "cuFileWrite=28");
    assert_int_equal(gpunvme_store_write(store, 0, memory, GPU, 4096, &done), GPUNVME_ERR_NOSPC);
    assert_int_equal(done, 0);
    closed(store);
}

static void a_write_that_moves_nothing_is_no_success(void **state)
{
    struct gpunvme_store *store = opened("");
    size_t done = 99;

    (void)state;
    fake_set("SHORT", "0");
    assert_int_equal(gpunvme_store_write(store, 0, memory, GPU, 4096, &done), GPUNVME_ERR_NOSPC);
    assert_int_equal(done, 0);
    closed(store);
}

static void an_interrupted_call_is_made_again(void **state)
{
    struct gpunvme_store *store = opened("");

    (void)state;
    fake_set("FAIL", "cuFileRead=4@1");
    assert_reads(store, 0, 4096, 4096, GPU);
    assert_int_equal(fake_calls("cuFileRead"), 2);
    closed(store);
}

static void an_error_in_the_middle_leaves_the_bytes_before_it(void **state)
{
    struct gpunvme_store *store = opened(",threads=1,chunk=64K");
    size_t done = 99;

    (void)state;
    fake_set("FAIL", "cuFileRead=5@3");
    assert_int_equal(gpunvme_store_read(store, 0, memory, GPU, 1u << 20, &done), GPUNVME_ERR_IO);
    assert_int_equal(done, 2 * 65536);
    assert_memory_equal(memory, content, done);
    closed(store);
}

/* A limit on the size of files makes a write fail half-way, without privileges. */
static void a_write_without_room_tells_how_much_was_written(void **state)
{
    struct gpunvme_store *store = opened("");
    struct rlimit before, limit;
    size_t done = 0;

    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before);
    limit = before;
    limit.rlim_cur = RAGGED + 1000;
    setrlimit(RLIMIT_FSIZE, &limit);
    assert_int_equal(gpunvme_store_write(store, RAGGED, memory, GPU, 4000, &done),
                     GPUNVME_ERR_NOSPC);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(done, 1000);
    closed(store);
}

static void opening_what_is_not_there_is_not_found(void **state)
{
    struct gpunvme_store *store;

    (void)state;
    assert_int_equal(gpunvme_open("file:/nowhere/x?backend=cufile", 0, &store),
                     GPUNVME_ERR_NOT_FOUND);
}

static void where_cufile_does_not_work_no_file_is_created(void **state)
{
    struct gpunvme_store *store;

    (void)state;
    unlink(path);
    fake_set("FAIL", "cuFileDriverOpen=5033");
    assert_int_equal(open_with("", GPUNVME_OPEN_WRITE | GPUNVME_OPEN_CREATE, &store),
                     GPUNVME_ERR_UNSUPPORTED);
    assert_int_equal(access(path, F_OK), -1);
}

static void a_fifo_is_refused_without_waiting_for_its_other_end(void **state)
{
    char fifo[64], uri[128];
    struct gpunvme_store *store;

    (void)state;
    snprintf(fifo, sizeof(fifo), "/tmp/gpunvme-fifo-%d", getpid());
    snprintf(uri, sizeof(uri), "file:%s?backend=cufile", fifo);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(gpunvme_open(uri, 0, &store), GPUNVME_ERR_INVALID);
    unlink(fifo);
}

static void a_folder_is_refused(void **state)
{
    struct gpunvme_store *store;

    (void)state;
    assert_int_equal(gpunvme_open("file:/tmp?backend=cufile", 0, &store), GPUNVME_ERR_INVALID);
}

static void a_file_that_cufile_refuses_is_told_and_nothing_is_left(void **state)
{
    struct gpunvme_store *store;

    (void)state;
    fake_set("FAIL", "cuFileHandleRegister=5008");
    assert_int_equal(open_with("", 0, &store), GPUNVME_ERR_UNSUPPORTED);
    assert_detail_has("no direct path to this file system");
    assert_int_equal(fake_calls("cuFileDriverClose_v2"), 1);
}

static void a_file_that_udev_does_not_know_is_refused_with_the_remedies(void **state)
{
    static const char *const numbers[] = {"cuFileHandleRegister=5027", "cuFileHandleRegister=5030"};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct gpunvme_store *store;

        fake_set("FAIL", numbers[i]);
        assert_int_equal(open_with("", 0, &store), GPUNVME_ERR_UNSUPPORTED);
        assert_detail_has("/run/udev");
        assert_detail_has("cufile.log");
        assert_detail_has("backend=posix");
    }
}

static void a_library_that_wants_o_direct_gets_it(void **state)
{
    struct gpunvme_store *store;
    struct gpunvme_path p;
    int fd = open(path, O_RDONLY | O_DIRECT);

    (void)state;
    if (fd < 0)
        skip();
    close(fd);
    fake_set("FAIL", "cuFileHandleRegister=5020@1");
    assert_int_equal(open_with("", 0, &store), GPUNVME_OK);
    gpunvme_store_path(store, &p);
    assert_non_null(strstr(p.how, "O_DIRECT"));
    closed(store);
}

static void direct_off_gives_cufile_no_o_direct(void **state)
{
    struct gpunvme_store *store;

    (void)state;
    fake_set("FAIL", "cuFileHandleRegister=5020@1");
    assert_int_equal(open_with(",direct=off", 0, &store), GPUNVME_ERR_UNSUPPORTED);
    assert_int_equal(fake_calls("cuFileHandleRegister"), 1);
}

/* --- the way taken --- */

static void bytes_are_counted_as_compat_without_nvidia_fs_and_it_says_why(void **state)
{
    struct gpunvme_store *store = opened("");
    struct gpunvme_path p;

    (void)state;
    assert_reads(store, 0, 100000, 100000, GPU);
    assert_reads(store, 0, 5000, 5000, HOST);
    gpunvme_store_path(store, &p);
    assert_string_equal(p.backend, "cufile");
    assert_int_equal(p.gpu_route, GPUNVME_ROUTE_COMPAT);
    assert_int_equal(p.bytes_read[GPUNVME_ROUTE_COMPAT], 100000);
    assert_int_equal(p.bytes_read[GPUNVME_ROUTE_HOST], 5000);
    assert_int_equal(p.bytes_read[GPUNVME_ROUTE_P2P], 0);
    assert_non_null(strstr(p.how, "libcufile 1.14, compat mode"));
    assert_non_null(strstr(p.why_not, "p2p: compat mode: nvidia-fs"));
    closed(store);
}

/* Whatever file system /tmp has: with compat mode off what cuFile takes is direct. */
static void bytes_are_counted_as_p2p_where_nothing_else_is_allowed(void **state)
{
    struct gpunvme_store *store;
    struct gpunvme_path p;
    int fd = open(path, O_RDONLY | O_DIRECT);

    (void)state;
    if (fd < 0)
        skip();
    close(fd);
    fake_set("NVFS", "2.17");
    fake_set("COMPAT", "0");
    store = opened(",require=p2p");
    assert_reads(store, 0, 100000, 100000, GPU);
    gpunvme_store_path(store, &p);
    assert_int_equal(p.gpu_route, GPUNVME_ROUTE_P2P);
    assert_int_equal(p.bytes_read[GPUNVME_ROUTE_P2P], 100000);
    assert_string_equal(p.why_not, "");
    assert_non_null(strstr(p.how, "nvidia-fs 2.17, compat mode not allowed"));
    closed(store);
}

static void require_p2p_fails_without_nvidia_fs_and_says_why(void **state)
{
    struct gpunvme_store *store;

    (void)state;
    assert_int_equal(open_with(",require=p2p", 0, &store), GPUNVME_ERR_UNSUPPORTED);
    assert_detail_has("nvidia-fs is not loaded");
}

static void require_p2p_fails_where_compat_mode_is_allowed_and_says_what_to_do(void **state)
{
    struct gpunvme_store *store;

    (void)state;
    fake_set("NVFS", "2.17");
    assert_int_equal(open_with(",require=p2p", 0, &store), GPUNVME_ERR_UNSUPPORTED);
    assert_detail_has("allow_compat_mode: false");
    unlink(path);
    assert_int_equal(open_with(",require=p2p", GPUNVME_OPEN_WRITE | GPUNVME_OPEN_CREATE, &store),
                     GPUNVME_ERR_UNSUPPORTED);
    assert_int_equal(access(path, F_OK), -1);
}

static void require_compat_takes_what_cufile_does(void **state)
{
    struct gpunvme_store *store;

    (void)state;
    fake_set("NVFS", "2.17");
    store = opened(",require=compat");
    assert_reads(store, 0, 4096, 4096, GPU);
    closed(store);
}

static void the_backend_tells_the_library_that_it_works_with(void **state)
{
    struct gpunvme_backend_info info;
    unsigned i = 0;

    (void)state;
    while (gpunvme_backend_at(i, &info) && strcmp(info.name, "cufile"))
        i++;
    assert_string_equal(info.name, "cufile");
    assert_true(info.works);
    assert_non_null(strstr(info.why, "version 1.14"));
}

static void cufile_serves_only_files(void **state)
{
    struct gpunvme_store *store;

    (void)state;
    assert_int_equal(gpunvme_open("sim:?backend=cufile", 0, &store), GPUNVME_ERR_URI);
}

/* --- a path that comes to name another file --- */

static bool is_replaced; /* right after it was opened */

gpunvme_err_t __real_store_open_fd(struct gpunvme_store *store, int *fd);
gpunvme_err_t __wrap_store_open_fd(struct gpunvme_store *store, int *fd);
gpunvme_err_t __wrap_store_open_fd(struct gpunvme_store *store, int *fd)
{
    gpunvme_err_t err = __real_store_open_fd(store, fd);
    char other[80];
    int made;

    if (!is_replaced)
        return err;
    snprintf(other, sizeof(other), "%s.other", path);
    made = open(other, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    if (made < 0 || pwrite(made, memory, NBYTES, 0) != NBYTES || rename(other, path))
        return GPUNVME_ERR_IO;
    close(made);
    return err;
}

static void both_descriptors_are_of_the_file_that_was_opened(void **state)
{
    struct gpunvme_store *store;

    (void)state;
    is_replaced = true;
    store = opened(",direct=on");
    is_replaced = false;
    assert_reads(store, 4096, 100000, 100000, GPU);
    assert_reads(store, 4096, 100000, 100000, HOST);
    closed(store);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

static const struct CMUnitTest tests[] = {
    TEST(reads_of_any_offset_and_length_give_the_files_bytes),
    TEST(a_read_over_the_end_is_short_as_that_of_pread),
    TEST(a_read_far_behind_the_end_is_empty_and_does_not_bother_cufile),
    TEST(what_is_written_from_gpu_memory_is_in_the_file),
    TEST(a_write_behind_the_end_makes_the_file_longer),
    TEST(a_resized_file_has_its_new_size_for_reads),
    TEST(transfers_that_cufile_does_in_parts_are_whole),
    TEST(host_memory_does_not_go_through_cufile),
    TEST(threads_at_once_find_their_own_bytes),
    TEST(registered_memory_is_registered_once_and_addressed_by_its_base),
    TEST(two_stores_share_the_registration_of_the_same_memory),
    TEST(transfers_over_the_edges_of_registered_memory_are_whole),
    TEST(a_part_of_memory_that_another_store_registered_is_addressed_from_its_base),
    TEST(registrations_that_cufile_refuses_fail_with_the_remedy),
    TEST(host_memory_is_registered_without_cufile),
    TEST(memory_that_is_registered_is_let_go_by_the_last_close_and_taken_again),
    TEST(every_error_of_a_read_is_told_and_no_bytes_are_claimed),
    TEST(an_errno_of_a_write_is_the_error_of_the_transfer),
    TEST(a_write_that_moves_nothing_is_no_success),
    TEST(an_interrupted_call_is_made_again),
    TEST(an_error_in_the_middle_leaves_the_bytes_before_it),
    TEST(a_write_without_room_tells_how_much_was_written),
    TEST(both_descriptors_are_of_the_file_that_was_opened),
    TEST(opening_what_is_not_there_is_not_found),
    TEST(where_cufile_does_not_work_no_file_is_created),
    TEST(a_fifo_is_refused_without_waiting_for_its_other_end),
    TEST(a_folder_is_refused),
    TEST(a_file_that_cufile_refuses_is_told_and_nothing_is_left),
    TEST(a_file_that_udev_does_not_know_is_refused_with_the_remedies),
    TEST(a_library_that_wants_o_direct_gets_it),
    TEST(direct_off_gives_cufile_no_o_direct),
    TEST(bytes_are_counted_as_compat_without_nvidia_fs_and_it_says_why),
    TEST(bytes_are_counted_as_p2p_where_nothing_else_is_allowed),
    TEST(require_p2p_fails_without_nvidia_fs_and_says_why),
    TEST(require_p2p_fails_where_compat_mode_is_allowed_and_says_what_to_do),
    TEST(require_compat_takes_what_cufile_does),
    TEST(the_backend_tells_the_library_that_it_works_with),
    TEST(cufile_serves_only_files),
};

int main(void)
{
    int failed;

    use_fake();
    if (!gpunvme_mem_gpu_is_host()) {
        printf("SKIP: there is a GPU, whose memory the stand-in for libcufile can't reach\n");
        return 77;
    }
    content = malloc(RAGGED + 4096);
    memory = aligned_alloc(4096, NBYTES + 2 * 4096);
    for (size_t i = 0; i < RAGGED; i++)
        content[i] = byte_at(i);
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(content);
    free(memory);
    return failed;
}
