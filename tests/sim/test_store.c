/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What every store promises, asked of each: in memory and in an image, by io_uring and
 * synchronously, with and without a write cache.
 */
#include <pthread.h>
#include <sys/stat.h>

#include "base/random.h"
#include "gpunvme/memory.h"
#include "store_util.h"

#define NBYTES (8U << 20)
#define LANES  2

static const struct variant {
    const char *name;
    bool image;
    enum sim_store_engine engine;
    bool vwc;
    bool in_gpu;
} variants[] = {
    {"memory", false, SIM_STORE_ENGINE_AUTO, false, false},
    {"memory, write cache", false, SIM_STORE_ENGINE_AUTO, true, false},
    {"GPU memory", false, SIM_STORE_ENGINE_AUTO, false, true},
    {"image, io_uring", true, SIM_STORE_ENGINE_URING, false, false},
    {"image, io_uring, write cache", true, SIM_STORE_ENGINE_URING, true, false},
    {"image, synchronous", true, SIM_STORE_ENGINE_SYNC, false, false},
    {"image, synchronous, write cache", true, SIM_STORE_ENGINE_SYNC, true, false},
};

static const struct variant *variant;
static struct sim_store *store;
static uint8_t *a, *b; /* NBYTES each */

static struct sim_store *open_store(uint64_t nbytes, uint32_t block_size)
{
    struct sim_store_config config = {.nbytes = nbytes,
                                      .block_size = block_size,
                                      .in_gpu = variant->in_gpu,
                                      .gpu = -1,
                                      .vwc = variant->vwc,
                                      .seed = 1,
                                      .nlanes = LANES,
                                      .engine = variant->engine};
    struct sim_store *opened;

    if (variant->image)
        config.image = scratch_path("image");
    if (sim_store_open(&config, &opened))
        fail_msg("%s", gpunvme_err_detail());
    return opened;
}

static int setup(void **state)
{
    (void)state;
    a = aligned(NBYTES);
    b = aligned(NBYTES);
    store = open_store(NBYTES, 512);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    sim_store_close(store);
    if (variant->image)
        unlink(scratch_path("image"));
    free(a);
    free(b);
    return 0;
}

static void a_new_store_reads_as_zeroes(void **state)
{
    (void)state;
    assert_int_equal(sim_store_nbytes(store), NBYTES);
    memset(a, 0, NBYTES);
    assert_int_equal(store_read(store, 0, b, NBYTES), GPUNVME_OK);
    assert_memory_equal(a, b, NBYTES);
}

static void what_was_written_is_read(void **state)
{
    static const struct {
        uint64_t off, nbytes;
    } ranges[] = {{0, 512},           {512, 512},          {4096, 4096}, {1536, 128 << 10},
                  {1 << 20, 1 << 20}, {NBYTES - 512, 512}, {0, NBYTES}};

    (void)state;
    for (unsigned i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
        fill(a, ranges[i].off, ranges[i].nbytes, i);
        assert_int_equal(store_write(store, ranges[i].off, a, ranges[i].nbytes), GPUNVME_OK);
        assert_int_equal(store_read(store, ranges[i].off, b, ranges[i].nbytes), GPUNVME_OK);
        assert_memory_equal(a, b, ranges[i].nbytes);
    }
}

static void a_write_leaves_its_neighbours_alone(void **state)
{
    (void)state;
    fill(a, 0, 64 << 10, 1);
    assert_int_equal(store_write(store, 0, a, 64 << 10), GPUNVME_OK);
    fill(a + 1024, 1024, 512, 2);
    assert_int_equal(store_write(store, 1024, a + 1024, 512), GPUNVME_OK);
    assert_int_equal(store_read(store, 0, b, 64 << 10), GPUNVME_OK);
    assert_memory_equal(a, b, 64 << 10);
}

/* Cuts memory into pieces of odd lengths; returns their number. */
static unsigned cut(struct iovec *iov, unsigned max, uint8_t *memory, size_t nbytes)
{
    static const size_t lengths[] = {1, 511, 3, 4093, 512, 7, 100};
    unsigned count = 0;

    for (size_t length; nbytes && count + 1 < max; nbytes -= length, memory += length, count++) {
        length = lengths[count % 7] < nbytes ? lengths[count % 7] : nbytes;
        iov[count] = (struct iovec){.iov_base = memory, .iov_len = length};
    }
    if (nbytes)
        iov[count++] = (struct iovec){.iov_base = memory, .iov_len = nbytes};
    return count;
}

static void run_pieces(enum sim_store_op op, uint8_t *memory, size_t nbytes, struct iovec *iov,
                       unsigned niov)
{
    struct transfer t;

    transfer_init(&t, op, 512, memory, nbytes);
    t.io.iov = iov;
    t.io.niov = niov;
    assert_int_equal(transfer_run(store, 0, &t), GPUNVME_OK);
}

static void pieces_of_any_alignment_and_length_work(void **state)
{
    struct iovec iov[64];
    size_t nbytes = 32 << 10;

    (void)state;
    fill(a, 0, nbytes + 8, 1);
    run_pieces(SIM_STORE_WRITE, a + 3, nbytes, iov, cut(iov, 64, a + 3, nbytes));
    assert_int_equal(store_read(store, 512, b, nbytes), GPUNVME_OK);
    assert_memory_equal(a + 3, b, nbytes);
    memset(b, 0, NBYTES);
    run_pieces(SIM_STORE_READ, b + 5, nbytes, iov, cut(iov, 64, b + 5, nbytes));
    assert_memory_equal(a + 3, b + 5, nbytes);
    assert_int_equal(b[4], 0);
    assert_int_equal(b[5 + nbytes], 0);
}

static void more_pieces_than_the_kernel_takes_work(void **state)
{
    enum { COUNT = 3000 };
    struct iovec *iov = calloc(COUNT, sizeof(*iov));

    (void)state;
    fill(a, 0, COUNT * 512, 1);
    for (unsigned i = 0; i < COUNT; i++)
        iov[i] = (struct iovec){.iov_base = a + (size_t)i * 512, .iov_len = 512};
    run_pieces(SIM_STORE_WRITE, a, COUNT * 512, iov, COUNT);
    for (unsigned i = 0; i < COUNT; i++)
        iov[i].iov_base = b + (size_t)i * 512;
    run_pieces(SIM_STORE_READ, b, COUNT * 512, iov, COUNT);
    assert_memory_equal(a, b, COUNT * 512);
    free(iov);
}

static void empty_pieces_are_skipped(void **state)
{
    struct iovec iov[4] = {{a, 0}, {a, 512}, {NULL, 0}, {a + 512, 512}};

    (void)state;
    fill(a, 0, 1024, 1);
    run_pieces(SIM_STORE_WRITE, a, 1024, iov, 4);
    assert_int_equal(store_read(store, 512, b, 1024), GPUNVME_OK);
    assert_memory_equal(a, b, 1024);
}

static void beyond_the_end_is_refused(void **state)
{
    (void)state;
    memset(a, 1, 1024);
    assert_int_equal(store_read(store, NBYTES, b, 512), GPUNVME_ERR_RANGE);
    assert_int_equal(store_read(store, NBYTES - 512, b, 1024), GPUNVME_ERR_RANGE);
    assert_int_equal(store_write(store, UINT64_MAX - 511, a, 1024), GPUNVME_ERR_RANGE);
    assert_int_equal(store_do(store, SIM_STORE_ZERO, 512, NULL, NBYTES), GPUNVME_ERR_RANGE);
}

static void nothing_is_transferred_at_once(void **state)
{
    (void)state;
    assert_int_equal(store_read(store, 0, b, 0), GPUNVME_OK);
    assert_int_equal(store_write(store, NBYTES, a, 0), GPUNVME_OK);
}

static void zeroes_cover_what_was_written_and_no_more(void **state)
{
    static const struct {
        uint64_t off, nbytes;
    } ranges[] = {
        {512, 512}, {4096, 4096}, {10240, 65536 + 512}, {(1 << 20) + 512, (5 << 20) + 1024}};

    (void)state;
    fill(a, 0, NBYTES, 1);
    assert_int_equal(store_write(store, 0, a, NBYTES), GPUNVME_OK);
    for (unsigned i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
        memset(a + ranges[i].off, 0, ranges[i].nbytes);
        assert_int_equal(store_do(store, SIM_STORE_ZERO, ranges[i].off, NULL, ranges[i].nbytes),
                         GPUNVME_OK);
        assert_int_equal(store_read(store, 0, b, NBYTES), GPUNVME_OK);
        assert_memory_equal(a, b, NBYTES);
    }
}

static void flushes_and_forced_writes_end_well(void **state)
{
    struct transfer t;

    (void)state;
    fill(a, 0, 8192, 1);
    assert_int_equal(store_flush(store), GPUNVME_OK);
    assert_int_equal(store_write(store, 0, a, 4096), GPUNVME_OK);
    assert_int_equal(store_flush(store), GPUNVME_OK);
    transfer_init(&t, SIM_STORE_WRITE, 4096, a + 4096, 4096);
    t.io.fua = true;
    assert_int_equal(transfer_run(store, 0, &t), GPUNVME_OK);
    transfer_init(&t, SIM_STORE_ZERO, 512, NULL, 512);
    t.io.fua = true;
    assert_int_equal(transfer_run(store, 0, &t), GPUNVME_OK);
    memset(a + 512, 0, 512);
    assert_int_equal(store_read(store, 0, b, 8192), GPUNVME_OK);
    assert_memory_equal(a, b, 8192);
}

static void thousands_of_transfers_may_be_in_flight(void **state)
{
    enum { COUNT = 4000 };
    struct transfer *t = calloc(COUNT, sizeof(*t));

    (void)state;
    fill(a, 0, COUNT * 512, 1);
    for (unsigned i = 0; i < COUNT; i++) {
        transfer_init(&t[i], SIM_STORE_WRITE, i * 512, a + i * 512, 512);
        sim_store_submit(store, 0, &t[i].io);
    }
    for (unsigned i = 0; i < COUNT; i++)
        assert_int_equal(transfer_wait(store, 0, &t[i]), GPUNVME_OK);
    for (unsigned i = 0; i < COUNT; i++) {
        transfer_init(&t[i], SIM_STORE_READ, i * 512, b + i * 512, 512);
        sim_store_submit(store, 0, &t[i].io);
    }
    for (unsigned i = 0; i < COUNT; i++)
        assert_int_equal(transfer_wait(store, 0, &t[i]), GPUNVME_OK);
    assert_memory_equal(a, b, COUNT * 512);
    assert_int_equal(sim_store_poll(store, 0), 0);
    free(t);
}

/* A transfer that submits itself again, `left` times. */
struct chain {
    struct transfer t; /* first */
    unsigned left;
};

static void chain_done(struct sim_store_io *io, gpunvme_err_t err)
{
    struct chain *chain = (struct chain *)io;

    if (err || !chain->left--) {
        transfer_done(io, err);
        return;
    }
    io->off += 512;
    sim_store_submit(store, 1, io);
}

static void an_ended_transfer_may_submit_the_next(void **state)
{
    struct chain chain;

    (void)state;
    fill(a, 0, 512, 1);
    transfer_init(&chain.t, SIM_STORE_WRITE, 0, a, 512);
    chain.t.io.done = chain_done;
    chain.left = 500;
    assert_int_equal(transfer_run(store, 1, &chain.t), GPUNVME_OK);
    assert_int_equal(store_read(store, 500 * 512, b, 1024), GPUNVME_OK);
    assert_memory_equal(a, b, 512);
    assert_true(b[512] == 0 && b[1023] == 0);
}

static void one_random_transfer(struct base_random *random, unsigned version)
{
    uint64_t nbytes = (1 + base_random_below(random, 64)) * 512;
    uint64_t off = base_random_below(random, NBYTES / 512 - 64) * 512;
    unsigned lane = (unsigned)base_random_below(random, LANES);
    struct transfer t;

    switch (base_random_below(random, 8)) {
    case 0:
        assert_int_equal(store_flush(store), GPUNVME_OK);
        return;
    case 1:
        memset(a + off, 0, nbytes);
        transfer_init(&t, SIM_STORE_ZERO, off, NULL, nbytes);
        break;
    case 2:
    case 3:
        transfer_init(&t, SIM_STORE_READ, off, b + 1, nbytes);
        break;
    default:
        fill(a + off, off, nbytes, version);
        transfer_init(&t, SIM_STORE_WRITE, off, a + off, nbytes);
    }
    t.io.fua = version % 5 == 0;
    assert_int_equal(transfer_run(store, lane, &t), GPUNVME_OK);
    if (t.io.op == SIM_STORE_READ)
        assert_memory_equal(a + off, b + 1, nbytes);
}

static void random_transfers_agree_with_an_array(void **state)
{
    struct base_random random = {.state = 42};

    (void)state;
    memset(a, 0, NBYTES);
    for (unsigned i = 0; i < 1500; i++)
        one_random_transfer(&random, i);
    assert_int_equal(store_read(store, 0, b, NBYTES), GPUNVME_OK);
    assert_memory_equal(a, b, NBYTES);
}

/* Each lane has half of the store. Asserts would leave the thread: it reports by its result. */
static void *use_lane(void *lane_)
{
    unsigned lane = *(unsigned *)lane_;
    uint64_t base = lane * (NBYTES / LANES);
    uint8_t *memory = aligned(8192);
    struct transfer t;
    void *result = NULL;

    for (unsigned i = 0; i < 300 && !result; i++) {
        uint64_t off = base + i * 4096;

        fill(memory, off, 4096, lane);
        transfer_init(&t, SIM_STORE_WRITE, off, memory, 4096);
        t.io.fua = i % 7 == 0;
        if (transfer_run(store, lane, &t))
            result = "write";
        transfer_init(&t, SIM_STORE_READ, off, memory + 4096, 4096);
        if (transfer_run(store, lane, &t) || memcmp(memory, memory + 4096, 4096) != 0)
            result = "read";
        transfer_init(&t, SIM_STORE_FLUSH, 0, NULL, 0);
        if (i % 50 == 0 && transfer_run(store, lane, &t))
            result = "flush";
    }
    free(memory);
    return result;
}

static void lanes_work_side_by_side(void **state)
{
    unsigned lanes[LANES] = {0, 1};
    pthread_t threads[LANES];
    void *results[LANES];

    (void)state;
    for (unsigned i = 0; i < LANES; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, use_lane, &lanes[i]), 0);
    for (unsigned i = 0; i < LANES; i++)
        pthread_join(threads[i], &results[i]);
    for (unsigned i = 0; i < LANES; i++)
        assert_null(results[i]);
}

static void only_plain_memory_is_direct(void **state)
{
    (void)state;
    assert_int_equal(variant->in_gpu, sim_store_gpu(store) != NULL);
    if (variant->image || variant->vwc || (variant->in_gpu && !gpunvme_mem_gpu_is_host())) {
        assert_null(sim_store_direct(store));
        return;
    }
    fill(sim_store_direct(store) + 512, 512, 512, 1);
    fill(a, 512, 512, 1);
    assert_int_equal(store_read(store, 512, b, 512), GPUNVME_OK);
    assert_memory_equal(a, b, 512);
}

/* What the engine is to read is where the store wrote it, and the other way round. */
static void the_gpu_address_reaches_the_bytes(void **state)
{
    uint8_t *gpu = sim_store_gpu(store);

    (void)state;
    if (!gpu)
        skip();
    fill(a, 512, 1024, 1);
    assert_int_equal(store_write(store, 512, a, 512), GPUNVME_OK);
    assert_int_equal(gpunvme_mem_copy(gpu + 1024, GPUNVME_MEM_GPU, a + 512, GPUNVME_MEM_HOST, 512),
                     GPUNVME_OK);
    assert_int_equal(gpunvme_mem_copy(b, GPUNVME_MEM_HOST, gpu + 512, GPUNVME_MEM_GPU, 512),
                     GPUNVME_OK);
    assert_memory_equal(a, b, 512);
    assert_int_equal(store_read(store, 1024, b, 512), GPUNVME_OK);
    assert_memory_equal(a + 512, b, 512);
}

static void blocks_of_4096_work(void **state)
{
    (void)state;
    teardown(NULL);
    a = aligned(NBYTES);
    b = aligned(NBYTES);
    store = open_store(NBYTES, 4096);
    fill(a, 0, NBYTES, 1);
    assert_int_equal(store_write(store, 4096, a + 4096, 8192), GPUNVME_OK);
    assert_int_equal(store_flush(store), GPUNVME_OK);
    memset(a, 0, 4096);
    memset(a + 12288, 0, NBYTES - 12288);
    assert_int_equal(store_read(store, 0, b, NBYTES), GPUNVME_OK);
    assert_memory_equal(a, b, NBYTES);
}

/* 256 GiB: more than the memory, and perhaps the disk, of the machine that tests. */
static void a_store_may_be_larger_than_memory(void **state)
{
    const uint64_t nbytes = 256ULL << 30;

    (void)state;
    if (variant->in_gpu)
        skip();
    sim_store_close(store);
    unlink(scratch_path("image"));
    store = open_store(nbytes, 512);
    fill(a, 0, 65536, 1);
    assert_int_equal(store_write(store, nbytes - 65536, a, 65536), GPUNVME_OK);
    assert_int_equal(store_write(store, nbytes / 2, a, 512), GPUNVME_OK);
    assert_int_equal(store_flush(store), GPUNVME_OK);
    assert_int_equal(store_read(store, nbytes - 65536, b, 65536), GPUNVME_OK);
    assert_memory_equal(a, b, 65536);
    if (variant->image) {
        struct stat st;

        assert_int_equal(stat(scratch_path("image"), &st), 0);
        assert_int_equal(st.st_size, nbytes + 4096); /* its mark */
        assert_true(st.st_blocks < (1 << 20) / 512);
    }
}

static void the_path_is_told(void **state)
{
    (void)state;
    assert_non_null(strstr(sim_store_path(store), variant->image ? "image" : "memory"));
    if (variant->image)
        assert_non_null(strstr(sim_store_path(store), variant->engine == SIM_STORE_ENGINE_URING
                                                          ? "io_uring, "
                                                          : "preadv"));
}

static void a_store_in_memory_needs_a_size_that_there_is(void **state)
{
    struct sim_store_config config = {.block_size = 512, .nlanes = 1};
    struct sim_store *opened;

    (void)state;
    assert_int_equal(sim_store_open(&config, &opened), GPUNVME_ERR_INVALID);
    config.nbytes = INT64_MAX & ~4095ULL;
    assert_int_equal(sim_store_open(&config, &opened), GPUNVME_ERR_NOMEM);
    assert_non_null(strstr(gpunvme_err_detail(), "in memory"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

static int run_variant(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_new_store_reads_as_zeroes),
        TEST(what_was_written_is_read),
        TEST(a_write_leaves_its_neighbours_alone),
        TEST(pieces_of_any_alignment_and_length_work),
        TEST(more_pieces_than_the_kernel_takes_work),
        TEST(empty_pieces_are_skipped),
        TEST(beyond_the_end_is_refused),
        TEST(nothing_is_transferred_at_once),
        TEST(zeroes_cover_what_was_written_and_no_more),
        TEST(flushes_and_forced_writes_end_well),
        TEST(thousands_of_transfers_may_be_in_flight),
        TEST(an_ended_transfer_may_submit_the_next),
        TEST(random_transfers_agree_with_an_array),
        TEST(lanes_work_side_by_side),
        TEST(only_plain_memory_is_direct),
        TEST(the_gpu_address_reaches_the_bytes),
        TEST(blocks_of_4096_work),
        TEST(a_store_may_be_larger_than_memory),
        TEST(the_path_is_told),
        cmocka_unit_test(a_store_in_memory_needs_a_size_that_there_is),
    };

    return cmocka_run_group_tests_name(variant->name, tests, NULL, NULL);
}

/* Whether this machine can do what the variant asks for. */
static bool possible(void)
{
    struct sim_store_config config = {.image = scratch_path("probe"),
                                      .nbytes = 4096,
                                      .block_size = 512,
                                      .nlanes = 1,
                                      .engine = variant->engine};
    struct sim_store *probe;
    gpunvme_err_t err = sim_store_open(&config, &probe);

    unlink(scratch_path("probe"));
    if (!err)
        sim_store_close(probe);
    return !err;
}

int main(void)
{
    int failed = 0;

    if (scratch_make())
        return 1;
    for (unsigned i = 0; i < sizeof(variants) / sizeof(variants[0]); i++) {
        variant = &variants[i];
        if (!possible())
            printf("SKIP: %s: %s\n", variant->name, gpunvme_err_detail());
        else
            failed += run_variant();
    }
    rmdir(scratch);
    return failed;
}
