/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What every store promises, asked of each backend, with an ordinary file as the oracle.
 *
 *     test_store_conformance ROW          one row of store_rig.c
 *     test_store_conformance              all of them, one after the other
 *     test_store_conformance ROW CHILD    what needs a process of its own (run by the above)
 *     test_store_conformance ROW nogpumem what needs all memory of the GPU, so no other program may
 *                                         use it meanwhile: a store then fails at most
 *
 * Environment: GPUNVME_TEST_SEED, GPUNVME_TEST_OPS (random transfers of the long walk, at least:
 * 12,000, under sanitizers 2,000; valgrind wants few as well), GPUNVME_TEST_CLI (the program that
 * serves controllers), GPUNVME_TEST_CUFILE (what stands in for libcufile where there is no GPU).
 * Where there is a GPU, GPU memory is on it.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "storage/store_rig.h"
#include "transfer_util.h"

#define SECOND    1000000000u
#define WALK_OPS  (RIG_SLOW ? 2000u : 12000u) /* no fewer; sanitizers are slow */
#define WALK_NS   (8ull * SECOND)             /* for more groups of them */
#define NTHREADS  4u
#define MAX_CHAIN 6u

extern char **environ;

static const struct rig_row *row;
static struct rig rig;

static int setup_with(const char *options)
{
    if (!rig_open(&rig, row, options)) {
        fprintf(stderr, "%s\n", rig.why);
        return -1;
    }
    return 0;
}

static int setup(void **state)
{
    (void)state;
    return setup_with(NULL);
}

static int teardown(void **state)
{
    (void)state;
    if (rig_close(&rig))
        return 0;
    fprintf(stderr, "%s\n", rig.why);
    return -1;
}

static bool is_file(void)
{
    return row->kind == RIG_FILE || row->kind == RIG_CUFILE;
}

static uint64_t size_to_begin_with(void)
{
    return rig.info.resizable ? RIG_NBYTES / 2 : RIG_NBYTES;
}

static void filled(void)
{
    if (!rig_fill(&rig, size_to_begin_with()))
        fail_msg("%s", rig.why);
}

static void same(void)
{
    if (!rig_same(&rig))
        fail_msg("%s", rig.why);
    if (is_file() && !rig_file_same(&rig))
        fail_msg("%s", rig.why);
}

static void works(gpunvme_err_t err)
{
    if (err)
        fail_msg("%s: %s", gpunvme_err_name(err), gpunvme_err_detail());
}

/* ---- Random transfers -------------------------------------------------------------------------
 */

static void random_transfers_agree_with_posix(void **state)
{
    uint64_t nops = rig_number("GPUNVME_TEST_OPS", WALK_OPS);
    struct rig_walk walk;
    bool ok;

    (void)state;
    filled();
    ok = rig_walk_init(&walk, &rig, rig.seed);
    walk.alone = true;
    ok = ok && rig_walk(&walk, nops, nops / 12, WALK_NS);
    print_message("%s: seed %llu, %llu transfers in %llu groups, %.0f MB\n", row->name,
                  (unsigned long long)rig.seed, (unsigned long long)walk.nops,
                  (unsigned long long)walk.ngroups, (double)walk.nbytes / 1e6);
    rig_walk_free(&walk);
    if (!ok)
        fail_msg("%s", walk.why);
    assert_true(walk.nops && walk.nops >= nops);
    same();
    works(gpunvme_store_flush(rig.store));
    if (row->kind != RIG_SIM) {
        assert_true(rig_reopen(&rig));
        same();
    }
}

struct walker {
    struct rig_walk walk;
    pthread_t thread;
    bool ok;
};

static void *walk_apart(void *walker_)
{
    struct walker *walker = walker_;

    walker->ok = rig_walk(&walker->walk, RIG_SLOW ? 200 : 1200, RIG_SLOW ? 20 : 99, WALK_NS / 4);
    return NULL;
}

/* NULL, or what went wrong. */
static const char *walk_in_threads(unsigned n)
{
    struct walker *walkers = calloc(n, sizeof(*walkers));
    uint64_t size = rig_oracle_size(&rig);
    static char why[sizeof(walkers->walk.why)];
    bool ok = true;

    assert_non_null(walkers);
    for (unsigned i = 0; i < n; i++) {
        assert_true(rig_walk_init(&walkers[i].walk, &rig, rig.seed + i + 1));
        walkers[i].walk.begin = size / n * i;
        walkers[i].walk.end = size / n * (i + 1);
        pthread_create(&walkers[i].thread, NULL, walk_apart, &walkers[i]);
    }
    for (unsigned i = 0; i < n; i++)
        pthread_join(walkers[i].thread, NULL);
    for (unsigned i = 0; i < n; i++) {
        rig_walk_free(&walkers[i].walk);
        if (!walkers[i].ok && ok)
            memcpy(why, walkers[i].walk.why, sizeof(why));
        ok = ok && walkers[i].ok;
    }
    free(walkers);
    return ok ? NULL : why;
}

static void threads_on_ranges_of_their_own_do_not_meet(void **state)
{
    const char *why;

    (void)state;
    filled();
    why = walk_in_threads(NTHREADS);
    if (why)
        fail_msg("%s", why);
    same();
}

static _Atomic bool stop_signals;

static void nothing(int number)
{
    (void)number;
}

/* A signal to every thread of this process but its own. */
static void signal_others(DIR *threads)
{
    struct dirent *entry;

    rewinddir(threads);
    while ((entry = readdir(threads))) {
        int tid = atoi(entry->d_name);

        if (tid > 0 && tid != (int)syscall(SYS_gettid))
            syscall(SYS_tgkill, getpid(), tid, SIGUSR1);
    }
}

static void *signal_again(void *unused)
{
    const struct timespec nap = {.tv_nsec = 200000};
    DIR *threads = opendir("/proc/self/task");

    (void)unused;
    while (threads && !stop_signals) {
        signal_others(threads);
        nanosleep(&nap, NULL);
    }
    if (threads)
        closedir(threads);
    return NULL;
}

static void signals_interrupt_nothing(void **state)
{
    struct sigaction action = {.sa_handler = nothing}; /* without SA_RESTART */
    const char *why;
    pthread_t thread;

    (void)state;
    filled();
    sigaction(SIGUSR1, &action, NULL);
    stop_signals = false;
    pthread_create(&thread, NULL, signal_again, NULL);
    why = walk_in_threads(2);
    stop_signals = true;
    pthread_join(thread, NULL);
    signal(SIGUSR1, SIG_IGN);
    if (why)
        fail_msg("%s", why);
    same();
}

/* ---- The end of a store -----------------------------------------------------------------------
 */

static void a_read_across_the_end_is_short(void **state)
{
    uint64_t size = size_to_begin_with();
    uint8_t bytes[3000];
    size_t done = 7;

    (void)state;
    filled();
    works(gpunvme_store_read(rig.store, size - 1001, bytes, GPUNVME_MEM_HOST, 3000, &done));
    assert_int_equal(done, 1001);
    works(gpunvme_store_read(rig.store, size, bytes, GPUNVME_MEM_HOST, 3000, &done));
    assert_int_equal(done, 0);
    works(gpunvme_store_read(rig.store, size + 12345678, bytes, GPUNVME_MEM_HOST, 1, &done));
    assert_int_equal(done, 0);
    assert_int_equal(
        gpunvme_store_read(rig.store, size - 1001, bytes, GPUNVME_MEM_HOST, 3000, NULL),
        GPUNVME_ERR_RANGE);
}

static void a_write_behind_the_end_lengthens_a_file_and_nothing_else(void **state)
{
    uint64_t size = size_to_begin_with();
    uint8_t bytes[3000] = {1, 2, 3};
    size_t done = 7;
    gpunvme_err_t err;

    (void)state;
    filled();
    err = gpunvme_store_write(rig.store, size + 4999, bytes, GPUNVME_MEM_HOST, 3000, &done);
    if (rig.info.resizable) {
        works(err);
        assert_int_equal(done, 3000);
        assert_int_equal(pwrite(rig.oracle, bytes, 3000, (off_t)size + 4999), 3000);
    } else {
        assert_int_equal(err, GPUNVME_ERR_RANGE);
        assert_int_equal(done, 0);
    }
    same();
}

/* ---- Files that change meanwhile --------------------------------------------------------------
 */

#define SMALLEST (1u << 20)
#define LARGEST  (6u << 20)

/* What a file of the changing kind has at `at`, or a zero; never zero. */
static uint8_t byte_at(uint64_t at)
{
    uint64_t x = (at >> 3) * 0x9e3779b97f4a7c15u;

    return (uint8_t)((x >> 32 ^ at) | 1);
}

static void put_bytes(uint8_t *bytes, uint64_t at, size_t n)
{
    for (size_t i = 0; i < n; i++)
        bytes[i] = byte_at(at + i);
}

static _Atomic bool stop_changing;

static void *change_size(void *store)
{
    struct base_random random = {.state = rig.seed};
    uint8_t *bytes = malloc(LARGEST);
    const struct timespec nap = {.tv_nsec = 100000};
    int fd = open(rig.path, O_RDWR | O_CLOEXEC);

    put_bytes(bytes, 0, LARGEST);
    while (!stop_changing) {
        uint64_t to = SMALLEST + base_random_below(&random, LARGEST - SMALLEST + 1);

        if (base_random_below(&random, 2))
            gpunvme_store_resize(store, to);
        else if (ftruncate(fd, (off_t)to) ||
                 pwrite(fd, bytes + to / 2, to - to / 2, (off_t)to / 2) < 0)
            break;
        nanosleep(&nap, NULL);
    }
    close(fd);
    free(bytes);
    return NULL;
}

/* Between the smallest and the largest size; bytes that were ever there, or zeroes. */
static const char *impossible(const struct gpunvme_io *io, const uint8_t *bytes)
{
    uint64_t least = io->offset < SMALLEST ? SMALLEST - io->offset : 0;
    uint64_t most = io->offset < LARGEST ? LARGEST - io->offset : 0;

    if (io->err)
        return gpunvme_err_name(io->err);
    if (io->done < (least < io->nbytes ? least : io->nbytes))
        return "fewer bytes than there ever were";
    if (io->done > (most < io->nbytes ? most : io->nbytes))
        return "more bytes than there ever were";
    for (size_t i = 0; i < io->done; i++)
        if (bytes[i] != byte_at(io->offset + i) && (bytes[i] || io->offset + i < SMALLEST))
            return "bytes that were never there";
    return NULL;
}

#define NCHANGING 8u

static const char *read_changing(struct gpunvme_buf *bufs, struct base_random *random)
{
    struct gpunvme_io ios[NCHANGING] = {{.op = GPUNVME_OP_READ}};
    static uint8_t back[1u << 20];
    const char *what = NULL;

    for (unsigned i = 0; i < NCHANGING; i++) {
        struct gpunvme_buf *buf = &bufs[i];

        ios[i].mem = buf->mem;
        ios[i].ptr = buf->mem == GPUNVME_MEM_GPU ? buf->gpu : buf->cpu;
        ios[i].offset = base_random_below(random, LARGEST + 5000);
        ios[i].nbytes = base_random_below(random, sizeof(back) + 1);
        works(submit_to(rig.store, &ios[i], 1, NULL));
    }
    for (unsigned i = 0; i < NCHANGING; i++) {
        gpunvme_io_wait(&ios[i], 60ull * SECOND);
        works(gpunvme_mem_copy(back, GPUNVME_MEM_HOST, ios[i].ptr, ios[i].mem, ios[i].nbytes));
        what = what ? what : impossible(&ios[i], back);
    }
    return what;
}

static void a_file_may_grow_and_shrink_under_reads(void **state)
{
    struct base_random random = {.state = rig.seed + 1};
    struct gpunvme_buf bufs[NCHANGING];
    const char *what = NULL;
    pthread_t thread;
    uint8_t *bytes;

    (void)state;
    if (!is_file())
        skip();
    bytes = malloc(LARGEST);
    put_bytes(bytes, 0, LARGEST);
    works(gpunvme_store_write(rig.store, 0, bytes, GPUNVME_MEM_HOST, LARGEST, NULL));
    free(bytes);
    for (unsigned i = 0; i < NCHANGING; i++)
        works(gpunvme_mem_alloc(1u << 20, (enum gpunvme_mem)(i % 3), &bufs[i]));
    stop_changing = false;
    pthread_create(&thread, NULL, change_size, rig.store);
    for (unsigned i = 0; !what && i < (RIG_SLOW ? 30 : 300); i++)
        what = read_changing(bufs, &random);
    stop_changing = true;
    pthread_join(thread, NULL);
    for (unsigned i = 0; i < NCHANGING; i++)
        gpunvme_mem_free(&bufs[i]);
    if (what)
        fail_msg("%s", what);
}

/* ---- Many at once, and the end ----------------------------------------------------------------
 */

/* Transfers that submit the next from their callback, up to MAX_CHAIN, or until it is closed. */
struct link {
    struct gpunvme_io io;
    struct gpunvme_store *store;
    unsigned depth;
    uint8_t bytes[700];
};

static _Atomic unsigned nstarted, nended, nwrong;

static void next_link(struct gpunvme_io *io)
{
    struct link *link = io->user;

    if (io->err || io->done != io->nbytes)
        nwrong++;
    if (link->depth++ < MAX_CHAIN) {
        gpunvme_err_t err = submit_to(link->store, io, 1, NULL);

        nstarted += !err;
        nwrong += err && err != GPUNVME_ERR_CLOSED;
    }
    nended++;
}

static void begin_chains(struct link *links, size_t n, struct gpunvme_store *store)
{
    for (size_t i = 0; i < n; i++) {
        links[i] = (struct link){.store = store};
        links[i].io = (struct gpunvme_io){.op = GPUNVME_OP_READ,
                                          .offset = 1000 * i,
                                          .ptr = links[i].bytes,
                                          .nbytes = sizeof(links[i].bytes),
                                          .callback = next_link,
                                          .user = &links[i]};
        nstarted++;
        works(submit_to(store, &links[i].io, 1, NULL));
    }
}

static void closing_waits_for_the_last_callback(void **state)
{
    static struct link links[64];

    (void)state;
    filled();
    for (unsigned i = 0; i < (row->kind == RIG_SIM ? 1 : 20); i++) {
        nstarted = nended = nwrong = 0;
        begin_chains(links, 64, rig.store);
        works(gpunvme_close(rig.store));
        assert_int_equal(nended, nstarted);
        assert_int_equal(nwrong, 0);
        rig.store = NULL;
        assert_true(rig_reopen(&rig));
    }
}

/* Two stores of the same file, or one twice, that share a batch. */
struct stress {
    struct gpunvme_store *stores[2];
    struct gpunvme_batch *batch;
    struct gpunvme_buf memory; /* registered and unregistered meanwhile */
    _Atomic bool stop;
    _Atomic size_t submitted, wrong;
};

#define STRESS_IOS 32u
#define PIECE      4096u

static void *register_again(void *stress_)
{
    struct stress *s = stress_;
    bool known[2] = {false, false};

    for (unsigned i = 0; !s->stop; i++) {
        unsigned k = i % 2;
        gpunvme_err_t err =
            known[k] ? gpunvme_unregister(NULL, s->memory.cpu)
                     : gpunvme_register(NULL, s->memory.cpu, s->memory.nbytes, GPUNVME_MEM_PINNED);

        if (err != GPUNVME_OK && err != GPUNVME_ERR_BUSY && err != GPUNVME_ERR_INVALID)
            s->wrong++;
        known[k] ^= !err;
        sched_yield();
    }
    return NULL;
}

static void submit_one(struct stress *s, struct gpunvme_io *io, unsigned slot)
{
    *io = (struct gpunvme_io){.op = GPUNVME_OP_READ,
                              .mem = GPUNVME_MEM_PINNED,
                              .offset = PIECE * slot + 13,
                              .ptr = (uint8_t *)s->memory.cpu + PIECE * slot,
                              .nbytes = PIECE};
    if (submit_to(s->stores[slot % 2], io, 1, s->batch))
        s->wrong++;
}

static void *wait_for_tokens(void *stress_)
{
    struct stress *s = stress_;
    struct gpunvme_io io;
    uint8_t bytes[PIECE];

    while (!s->stop) {
        io = (struct gpunvme_io){
            .op = GPUNVME_OP_READ, .offset = 77, .ptr = bytes, .nbytes = sizeof(bytes)};
        s->wrong += submit_to(s->stores[1], &io, 1, NULL) != 0;
        s->wrong += gpunvme_io_wait(&io, 0) || io.done != sizeof(bytes);
    }
    return NULL;
}

static void poll_for_a_while(struct stress *s, struct gpunvme_io *ios, unsigned nrounds)
{
    struct gpunvme_io *ended[STRESS_IOS];
    size_t n;

    for (unsigned i = 0; i < STRESS_IOS; i++)
        submit_one(s, &ios[i], i);
    for (unsigned i = 0; i < nrounds; i++) {
        works(gpunvme_batch_poll(s->batch, 1, STRESS_IOS, ended, &n, 60ull * SECOND));
        for (size_t j = 0; j < n; j++) {
            s->wrong += ended[j]->err || ended[j]->done != PIECE;
            submit_one(s, ended[j], (unsigned)(ended[j] - ios));
        }
    }
    while (gpunvme_batch_pending(s->batch)) {
        works(gpunvme_batch_poll(s->batch, 1, STRESS_IOS, ended, &n, 60ull * SECOND));
        for (size_t j = 0; j < n; j++)
            s->wrong += ended[j]->err || ended[j]->done != PIECE;
    }
}

static void stores_share_a_batch_while_memory_comes_and_goes(void **state)
{
    static struct gpunvme_io ios[STRESS_IOS];
    struct stress s = {.stores = {rig.store, rig.store}};
    pthread_t threads[3];

    (void)state;
    filled();
    if (is_file())
        works(gpunvme_open(rig.uri, 0, &s.stores[1]));
    works(gpunvme_batch_create(&s.batch));
    works(gpunvme_mem_alloc(STRESS_IOS * PIECE, GPUNVME_MEM_PINNED, &s.memory));
    pthread_create(&threads[0], NULL, register_again, &s);
    pthread_create(&threads[1], NULL, wait_for_tokens, &s);
    pthread_create(&threads[2], NULL, wait_for_tokens, &s);
    poll_for_a_while(&s, ios, RIG_SLOW ? 300 : 3000);
    s.stop = true;
    for (unsigned i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    works(gpunvme_batch_destroy(s.batch));
    if (s.stores[1] != rig.store)
        works(gpunvme_close(s.stores[1]));
    while (!gpunvme_unregister(NULL, s.memory.cpu))
        ; /* each of its registrations */
    assert_int_equal(s.wrong, 0);
    works(gpunvme_mem_free(&s.memory));
}

/* ---- Errors of files --------------------------------------------------------------------------
 */

static void a_read_only_store_is_not_written(void **state)
{
    uint8_t byte = 1;

    (void)state;
    if (!is_file())
        skip();
    filled();
    works(gpunvme_close(rig.store));
    works(gpunvme_open(rig.uri, 0, &rig.store));
    assert_int_equal(gpunvme_store_write(rig.store, 0, &byte, GPUNVME_MEM_HOST, 1, NULL),
                     GPUNVME_ERR_READONLY);
    assert_int_equal(gpunvme_store_resize(rig.store, 0), GPUNVME_ERR_READONLY);
    works(gpunvme_store_read(rig.store, 0, &byte, GPUNVME_MEM_HOST, 1, NULL));
    same();
}

/* Memory of this process as a file: mapped behind the end of what it maps, it is EIO. */
static void an_error_in_the_middle_tells_how_far_it_came(void **state)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), good = 41 * page, all = 64 * page;
    char uri[128] = "file:/proc/self/mem";
    struct gpunvme_store *store;
    uint8_t *there, *bytes;
    size_t done = 1;
    int fd;

    (void)state;
    if (row->kind != RIG_FILE || (row->options && strstr(row->options, "=on")))
        skip();
    if (row->options)
        snprintf(uri, sizeof(uri), "file:/proc/self/mem?%s", row->options);
    fd = memfd_create("short", MFD_CLOEXEC);
    assert_int_equal(ftruncate(fd, (off_t)good), 0);
    there = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    bytes = malloc(all);
    put_bytes(there, 0, good);
    works(gpunvme_open(uri, 0, &store));
    assert_int_equal(gpunvme_store_read(store, (uint64_t)(uintptr_t)there + 5, bytes,
                                        GPUNVME_MEM_HOST, all - 5, &done),
                     GPUNVME_ERR_IO);
    assert_int_equal(done, good - 5);
    assert_memory_equal(bytes, there + 5, done);
    works(gpunvme_close(store));
    munmap(there, all);
    close(fd);
    free(bytes);
}

/* ---- Errors of controllers --------------------------------------------------------------------
 */

#define BAD_LBA   3000u
#define BAD_BEGIN (512u * BAD_LBA)

static int setup_bad_blocks(void **state)
{
    (void)state;
    return setup_with(",fault=status=2/81:lba=3000-3001:read,fault=status=2/80:lba=9000:write");
}

static void a_bad_block_ends_a_read_there(void **state)
{
    uint8_t *bytes = malloc(4u << 20), *expected = malloc(4u << 20);
    uint64_t begins[] = {0,
                         BAD_BEGIN - 512,
                         BAD_BEGIN - 511,
                         BAD_BEGIN - 1,
                         BAD_BEGIN - 4096,
                         BAD_BEGIN - (1u << 20)};

    (void)state;
    for (unsigned i = 0; i < sizeof(begins) / sizeof(begins[0]); i++) {
        uint64_t before = BAD_BEGIN - begins[i];
        size_t done = 0;

        assert_int_equal(
            gpunvme_store_read(rig.store, begins[i], bytes, GPUNVME_MEM_HOST, 4u << 20, &done),
            GPUNVME_ERR_NVME(0x281));
        if (done > before || done + (1u << 20) < before)
            fail_msg("from %llu on: %zu done, %llu before the bad block",
                     (unsigned long long)begins[i], done, (unsigned long long)before);
        assert_true(pread(rig.oracle, expected, done, (off_t)begins[i]) == (ssize_t)done);
        assert_memory_equal(bytes, expected, done);
    }
    free(bytes);
    free(expected);
}

static void only_what_meets_a_bad_block_of_a_batch_fails(void **state)
{
    static struct gpunvme_io ios[200];
    static uint8_t bytes[200][512];
    struct gpunvme_io *ended[200];
    struct gpunvme_batch *batch;
    size_t n;

    (void)state;
    works(gpunvme_batch_create(&batch));
    for (unsigned i = 0; i < 200; i++)
        ios[i] = (struct gpunvme_io){.op = GPUNVME_OP_READ,
                                     .offset = BAD_BEGIN - 100 * 512 + 512 * i,
                                     .ptr = bytes[i],
                                     .nbytes = 512};
    works(submit_to(rig.store, ios, 200, batch));
    works(gpunvme_batch_poll(batch, 200, 200, ended, &n, 60ull * SECOND));
    assert_int_equal(n, 200);
    for (unsigned i = 0; i < 200; i++) {
        assert_int_equal(ios[i].err, i == 100 || i == 101 ? GPUNVME_ERR_NVME(0x281) : GPUNVME_OK);
        assert_int_equal(ios[i].done, i == 100 || i == 101 ? 0 : 512);
    }
    works(gpunvme_batch_destroy(batch));
}

static void a_write_fault_is_an_error(void **state)
{
    static uint8_t bytes[8192];
    size_t done = 1;

    (void)state;
    assert_int_equal(
        gpunvme_store_write(rig.store, 512u * 9000, bytes, GPUNVME_MEM_HOST, 8192, &done),
        GPUNVME_ERR_NVME(0x280));
    assert_int_equal(done, 0);
    works(gpunvme_store_write(rig.store, 512u * 9001, bytes, GPUNVME_MEM_HOST, 8192, &done));
    assert_int_equal(done, 8192);
}

static int setup_lost(void **state)
{
    (void)state;
    return setup_with(",fault=lose:lba=3000:read:once?timeout=300ms");
}

static void a_lost_command_is_a_timeout(void **state)
{
    static uint8_t bytes[512]; /* until it is closed */
    gpunvme_err_t err;

    (void)state;
    err = gpunvme_store_read(rig.store, BAD_BEGIN, bytes, GPUNVME_MEM_HOST, 512, NULL);
    assert_int_equal(err, GPUNVME_ERR_TIMEOUT);
}

static int close_sometime(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 40 && rig.store; i++)
        if (gpunvme_close(rig.store) != GPUNVME_ERR_TIMEOUT)
            rig.store = NULL;
    return rig_close(&rig) ? 0 : -1;
}

static int setup_late(void **state)
{
    (void)state;
    return setup_with(",fault=delay=50ms:every=20:read");
}

static void late_commands_are_waited_for(void **state)
{
    struct rig_walk walk;
    bool ok;

    (void)state;
    ok = rig_walk_init(&walk, &rig, rig.seed);
    walk.alone = true;
    ok = ok && rig_walk(&walk, 200, 20, SECOND);
    rig_walk_free(&walk);
    if (!ok)
        fail_msg("%s", walk.why);
    same();
}

static int setup_removed(void **state)
{
    (void)state;
    return setup_with(",fault=remove:read:nth=20?timeout=500ms");
}

static void a_drive_that_is_gone_ends_all_with_errors(void **state)
{
    static uint8_t bytes[64][512];
    gpunvme_err_t last = GPUNVME_OK;

    (void)state;
    for (unsigned i = 0; i < 64; i++)
        last = gpunvme_store_read(rig.store, 512 * i, bytes[i], GPUNVME_MEM_HOST, 512, NULL);
    assert_int_not_equal(last, GPUNVME_OK);
}

/* ---- What needs a process of its own ----------------------------------------------------------
 */

static bool said(const char *what)
{
    fprintf(stderr, "%s: %s\n", row->name, what);
    return false;
}

/* Fills a file until there is no room: whole bytes, then an error; then it shrinks and works. */
static bool fill_up(uint64_t room)
{
    static uint8_t bytes[1u << 20], back[1u << 20];
    uint64_t at = 0, nbytes = 0;
    gpunvme_err_t err = GPUNVME_OK;
    size_t done = 0;

    put_bytes(bytes, 0, sizeof(bytes));
    for (; !err && at < 4 * room; at += done) {
        done = 0;
        err = gpunvme_store_write(rig.store, at, bytes, GPUNVME_MEM_HOST, 700001, &done);
        if (!err && done != 700001)
            return said("a short write without an error");
    }
    if (err != GPUNVME_ERR_NOSPC)
        return said(gpunvme_err_name(err));
    if (gpunvme_store_size(rig.store, &nbytes) || nbytes < at || nbytes > at + sizeof(bytes))
        return said("the file is not as long as what was written");
    for (uint64_t i = 0; i < at; i += 700001) {
        size_t n = at - i < 700001 ? (size_t)(at - i) : 700001;

        if (gpunvme_store_read(rig.store, i, back, GPUNVME_MEM_HOST, n, &done) || done != n ||
            memcmp(back, bytes, n))
            return said("what was written before is not there");
    }
    if (gpunvme_store_resize(rig.store, 0) ||
        gpunvme_store_write(rig.store, 0, bytes, GPUNVME_MEM_HOST, 700001, NULL))
        return said("no room after it was emptied");
    return true;
}

static int child_fsize(void)
{
    struct rlimit limit = {8u << 20, 8u << 20};
    bool ok;

    signal(SIGXFSZ, SIG_IGN);
    if (!rig_open(&rig, row, NULL))
        return said(rig.why) + 1;
    setrlimit(RLIMIT_FSIZE, &limit);
    ok = fill_up(8u << 20);
    return !rig_close(&rig) || !ok;
}

/* A small tmpfs, which only this process sees. */
static int child_nospace(void)
{
    char folder[] = "/tmp/gpunvme_small_XXXXXX";
    struct rig_row small = *row;
    bool ok;

    if (!mkdtemp(folder))
        return said(strerror(errno)) + 1;
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", folder, "tmpfs", 0, "size=8m")) {
        rmdir(folder);
        return 77;
    }
    small.folder = folder;
    ok = rig_open(&rig, &small, NULL);
    if (!rig.skip) {
        ok = ok ? fill_up(8u << 20) : said(rig.why);
        ok = rig_close(&rig) && ok;
    }
    umount2(folder, MNT_DETACH); /* the kernel may still be closing a ring's file */
    rmdir(folder);
    return rig.skip ? 77 : !ok;
}

/* Walks with little memory and none: NOMEM is an answer, and nothing is lost by it. */
static int child_nomem(void)
{
    struct rlimit before, limit;
    struct rig_walk walk;
    long pages = 0;
    FILE *statm;
    bool ok;

    if (!gpunvme_mem_gpu_is_host())
        return 77; /* CUDA takes more addresses than there are bytes, and has errors of its own */
    ok = rig_open(&rig, row, NULL) && rig_fill(&rig, RIG_NBYTES / 2);
    if (!ok)
        return said(rig.why) + 1;
    ok = rig_walk_init(&walk, &rig, rig.seed);
    walk.alone = walk.forgiving = true;
    ok = ok && rig_walk(&walk, 300, 20, SECOND);
    statm = fopen("/proc/self/statm", "r");
    if (!statm || fscanf(statm, "%ld", &pages) != 1)
        return 77;
    fclose(statm);
    getrlimit(RLIMIT_AS, &before);
    limit = before;
    limit.rlim_cur = (rlim_t)pages * 4096;
    setrlimit(RLIMIT_AS, &limit);
    ok = ok && rig_walk(&walk, walk.nops + 500, walk.ngroups + 40, SECOND);
    setrlimit(RLIMIT_AS, &before);
    walk.forgiving = false;
    ok = ok && rig_walk(&walk, walk.nops + 100, walk.ngroups + 10, SECOND);
    if (!ok)
        said(walk.why);
    rig_walk_free(&walk);
    ok = ok && (rig_same(&rig) || said(rig.why));
    return !rig_close(&rig) || !ok;
}

/* As much memory of the GPU as there is. */
struct hoard {
    struct gpunvme_buf bufs[512];
    size_t n;
};

static void hoard_free(struct hoard *h)
{
    while (h->n)
        gpunvme_mem_free(&h->bufs[--h->n]);
}

static void hoard_take(struct hoard *h)
{
    h->n = 0;
    for (size_t nbytes = (size_t)1 << 30; h->n < 512 && nbytes >= 1u << 20; nbytes /= 2)
        while (h->n < 512 && !gpunvme_mem_alloc(nbytes, GPUNVME_MEM_GPU, &h->bufs[h->n]))
            h->n++;
}

/* Opens the store, if need be when there is memory again. */
static bool open_in_need(struct hoard *h)
{
    if (rig_open(&rig, row, NULL))
        return true;
    printf("without memory of the GPU: %s\n", rig.why);
    rig_close(&rig);
    hoard_free(h);
    return rig_open(&rig, row, NULL) || said(rig.why);
}

static bool reads_to(const struct gpunvme_buf *target, bool may_fail)
{
    gpunvme_err_t err =
        gpunvme_store_read(rig.store, 0, target->gpu, GPUNVME_MEM_GPU, target->nbytes, NULL);

    if (err)
        printf("%s: %s\n", gpunvme_err_name(err), gpunvme_err_detail());
    return !err || (may_fail && (err == GPUNVME_ERR_GPU || err == GPUNVME_ERR_NOMEM));
}

/* Stores that our driver serves have what their copies need from the opening on. */
static bool needs_no_more(struct hoard *h, const struct gpunvme_buf *target)
{
    bool ok;

    if (row->kind != RIG_VFIO_USER && (row->kind != RIG_SIM || row->options))
        return true;
    if (!rig_close(&rig) || !rig_open(&rig, row, NULL) || !rig_fill(&rig, RIG_NBYTES / 2))
        return said(rig.why);
    hoard_take(h);
    ok = reads_to(target, false);
    hoard_free(h);
    return ok;
}

/* All of the GPU's memory is taken by others: what there is serves, and later all. */
static int child_no_gpu_memory(void)
{
    static struct hoard hoard;
    struct gpunvme_buf target;
    bool ok;

    if (gpunvme_mem_gpu_is_host() || gpunvme_mem_alloc(8u << 20, GPUNVME_MEM_GPU, &target)) {
        printf("SKIP: %s\n",
               gpunvme_mem_gpu_is_host() ? gpunvme_mem_gpu_why_not() : gpunvme_err_detail());
        return 77;
    }
    hoard_take(&hoard);
    ok = open_in_need(&hoard);
    ok = ok && (rig_fill(&rig, RIG_NBYTES / 2) || said(rig.why));
    ok = ok && reads_to(&target, true);
    hoard_free(&hoard);
    ok = ok && reads_to(&target, false) && needs_no_more(&hoard, &target);
    ok = rig_close(&rig) && ok;
    gpunvme_mem_free(&target);
    return !ok;
}

static const struct {
    const char *name;
    int (*run)(void);
} children[] = {
    {"fsize", child_fsize},
    {"nospace", child_nospace},
    {"nomem", child_nomem},
    {"nogpumem", child_no_gpu_memory},
};

static int run_program(const char *row_name, const char *child)
{
    char *const args[] = {(char *)"test_store_conformance", (char *)(uintptr_t)row_name,
                          (char *)(uintptr_t)child, NULL};
    int status = 0;
    pid_t pid;

    fflush(NULL);
    if (posix_spawn(&pid, "/proc/self/exe", NULL, NULL, args, environ) ||
        waitpid(pid, &status, 0) != pid)
        return 1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void child_passes(const char *child)
{
    int code = run_program(row->name, child);

    if (code == 77)
        skip();
    assert_int_equal(code, 0);
}

static void a_file_at_its_size_limit_is_an_error_and_keeps_its_bytes(void **state)
{
    (void)state;
    if (!is_file())
        skip();
    child_passes("fsize");
}

static void a_full_disk_is_an_error_and_keeps_its_bytes(void **state)
{
    (void)state;
    if (!is_file())
        skip();
    child_passes("nospace");
}

static void exhausted_memory_loses_no_bytes(void **state)
{
    (void)state;
    if (RIG_SLOW) /* sanitizers need all of it */
        skip();
    child_passes("nomem");
}

/* ---- Main -------------------------------------------------------------------------------------
 */

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

static int run_groups(void)
{
    const struct CMUnitTest tests[] = {
        TEST(random_transfers_agree_with_posix),
        TEST(threads_on_ranges_of_their_own_do_not_meet),
        TEST(signals_interrupt_nothing),
        TEST(a_read_across_the_end_is_short),
        TEST(a_write_behind_the_end_lengthens_a_file_and_nothing_else),
        TEST(a_file_may_grow_and_shrink_under_reads),
        TEST(closing_waits_for_the_last_callback),
        TEST(stores_share_a_batch_while_memory_comes_and_goes),
        TEST(a_read_only_store_is_not_written),
        cmocka_unit_test(an_error_in_the_middle_tells_how_far_it_came),
        cmocka_unit_test(a_file_at_its_size_limit_is_an_error_and_keeps_its_bytes),
        cmocka_unit_test(a_full_disk_is_an_error_and_keeps_its_bytes),
        cmocka_unit_test(exhausted_memory_loses_no_bytes),
    };
    const struct CMUnitTest faults[] = {
        cmocka_unit_test_setup_teardown(a_bad_block_ends_a_read_there, setup_bad_blocks, teardown),
        cmocka_unit_test_setup_teardown(only_what_meets_a_bad_block_of_a_batch_fails,
                                        setup_bad_blocks, teardown),
        cmocka_unit_test_setup_teardown(a_write_fault_is_an_error, setup_bad_blocks, teardown),
        cmocka_unit_test_setup_teardown(a_lost_command_is_a_timeout, setup_lost, close_sometime),
        cmocka_unit_test_setup_teardown(late_commands_are_waited_for, setup_late, teardown),
        cmocka_unit_test_setup_teardown(a_drive_that_is_gone_ends_all_with_errors, setup_removed,
                                        close_sometime),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);

    if ((row->kind == RIG_SIM && !row->options) || row->kind == RIG_VFIO_USER ||
        row->kind == RIG_SPDK)
        failed += cmocka_run_group_tests(faults, NULL, NULL);
    return failed;
}

/* cuFile's rows: in memory instead, where it takes no files of the disk. For the children, too. */
#define IN_MEMORY "GPUNVME_TEST_CUFILE_IN_MEMORY"
static struct rig_row row_in_memory;

static void go_to_memory(void)
{
    row_in_memory = *row;
    row_in_memory.folder = "/dev/shm";
    row = &row_in_memory;
    setenv(IN_MEMORY, "1", 1);
}

static int run_row(void)
{
    bool ok = rig_open(&rig, row, NULL);
    bool skipped = rig.skip;

    if (skipped && row->kind == RIG_CUFILE && strcmp(row->folder, "/dev/shm")) {
        printf("left out: %s\n", rig.why);
        rig_close(&rig);
        go_to_memory();
        ok = rig_open(&rig, row, NULL);
        skipped = rig.skip;
    }
    if (skipped)
        printf("SKIP: %s\n", rig.why);
    else if (!ok)
        printf("%s\n", rig.why);
    rig_close(&rig);
    if (!ok)
        return skipped ? 77 : 1;
    return run_groups() ? 1 : 0;
}

static int run_all(void)
{
    int failed = 0;

    for (size_t i = 0; i < rig_nrows; i++) {
        int code = run_program(rig_rows[i].name, NULL);

        printf("%s: %s\n", rig_rows[i].name, !code ? "ok" : code == 77 ? "skipped" : "FAILED");
        failed += code && code != 77;
    }
    return failed ? 1 : 0;
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return run_all();
    row = rig_row_named(argv[1]);
    if (!row) {
        printf("no row %s\n", argv[1]);
        return 1;
    }
    if (row->kind == RIG_CUFILE && getenv(IN_MEMORY))
        go_to_memory();
    if (argc < 3)
        return run_row();
    for (size_t i = 0; i < sizeof(children) / sizeof(children[0]); i++)
        if (!strcmp(children[i].name, argv[2]))
            return children[i].run();
    return 1;
}
