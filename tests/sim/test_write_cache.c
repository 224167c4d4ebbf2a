/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The volatile write cache: what a power loss may do and what not; and, over a backend that ends
 * transfers only when told, the order in which flushes, reads and writes pass each other.
 */
#include "sim/store/backend.h"
#include "store_util.h"

#define BLOCK   512U
#define NBLOCKS 4096U
#define NBYTES  ((uint64_t)NBLOCKS * BLOCK)

static struct sim_store *store;
static uint8_t *a, *b; /* NBYTES each */

static gpunvme_err_t open_store(const char *image, uint64_t nbytes, uint64_t seed)
{
    struct sim_store_config config = {.image = image,
                                      .nbytes = nbytes,
                                      .block_size = BLOCK,
                                      .vwc = true,
                                      .seed = seed,
                                      .nlanes = 2};

    return sim_store_open(&config, &store);
}

static int setup(void **state)
{
    (void)state;
    a = aligned(NBYTES);
    b = aligned(NBYTES);
    return open_store(NULL, NBYTES, 1);
}

static int teardown(void **state)
{
    (void)state;
    sim_store_close(store);
    free(a);
    free(b);
    return 0;
}

/* Writes blocks of one version. */
static void write_blocks(uint64_t first, uint64_t count, unsigned version, bool fua)
{
    struct transfer t;

    fill(a, first * BLOCK, count * BLOCK, version);
    transfer_init(&t, SIM_STORE_WRITE, first * BLOCK, a, count * BLOCK);
    t.io.fua = fua;
    assert_int_equal(transfer_run(store, 0, &t), GPUNVME_OK);
}

/* The version of a block that the store holds now; zeroes are version 0. */
static unsigned version_of(uint64_t block)
{
    uint8_t expected[BLOCK], zero[BLOCK] = {0}, got[BLOCK];

    assert_int_equal(store_read(store, block * BLOCK, got, BLOCK), GPUNVME_OK);
    if (!memcmp(got, zero, BLOCK))
        return 0;
    for (unsigned version = 1; version < 100; version++) {
        fill(expected, block * BLOCK, BLOCK, version);
        if (!memcmp(expected, got, BLOCK))
            return version;
    }
    fail_msg("block %llu holds nothing that was written to it", (unsigned long long)block);
    return 0;
}

static void expect_versions(uint64_t first, uint64_t count, unsigned version)
{
    for (uint64_t i = first; i < first + count; i++)
        assert_int_equal(version_of(i), version);
}

static void an_unflushed_write_is_read(void **state)
{
    (void)state;
    write_blocks(0, 64, 1, false);
    write_blocks(32, 8, 2, false);
    expect_versions(0, 32, 1);
    expect_versions(32, 8, 2);
    expect_versions(40, 24, 1);
}

static void a_read_joins_cached_and_stored_blocks(void **state)
{
    (void)state;
    write_blocks(0, 64, 1, false);
    assert_int_equal(store_flush(store), GPUNVME_OK);
    write_blocks(10, 1, 2, false);
    write_blocks(20, 3, 3, false);
    assert_int_equal(store_read(store, 0, b, 64 * BLOCK), GPUNVME_OK);
    fill(a, 0, 64 * BLOCK, 1);
    fill(a + 10 * BLOCK, 10 * BLOCK, BLOCK, 2);
    fill(a + 20 * BLOCK, 20 * BLOCK, 3 * BLOCK, 3);
    assert_memory_equal(a, b, 64 * BLOCK);
}

/* What became of 16 blocks written at once, over many power losses: counts by how many survived. */
static void each_unflushed_write_is_kept_lost_or_torn(void **state)
{
    unsigned nkept = 0, nlost = 0, ntorn = 0;

    (void)state;
    for (unsigned i = 0; i < 200; i++) {
        unsigned survived = 0;

        assert_int_equal(store_do(store, SIM_STORE_ZERO, 0, NULL, 16 * BLOCK), GPUNVME_OK);
        write_blocks(0, 16, 1, false);
        sim_store_power_loss(store);
        for (unsigned block = 0; block < 16; block++)
            survived += version_of(block);
        nkept += survived == 16;
        nlost += survived == 0;
        ntorn += survived > 0 && survived < 16;
    }
    assert_in_range(nkept, 40, 95);
    assert_in_range(nlost, 40, 95);
    assert_in_range(ntorn, 40, 95);
}

static void writes_share_no_fate(void **state)
{
    unsigned seen[4] = {0};

    (void)state;
    for (unsigned i = 0; i < 100; i++) {
        assert_int_equal(store_do(store, SIM_STORE_ZERO, 0, NULL, 2 * BLOCK), GPUNVME_OK);
        write_blocks(0, 1, 1, false);
        write_blocks(1, 1, 1, false);
        sim_store_power_loss(store);
        seen[version_of(0) * 2 + version_of(1)]++;
    }
    for (unsigned i = 0; i < 4; i++)
        assert_in_range(seen[i], 10, 50);
}

static void any_version_of_a_block_may_survive(void **state)
{
    unsigned seen[4] = {0};

    (void)state;
    for (unsigned i = 0; i < 200; i++) {
        assert_int_equal(store_do(store, SIM_STORE_ZERO, 0, NULL, BLOCK), GPUNVME_OK);
        for (unsigned version = 1; version <= 3; version++)
            write_blocks(0, 1, version, false);
        sim_store_power_loss(store);
        seen[version_of(0)]++;
    }
    for (unsigned i = 0; i < 4; i++)
        assert_in_range(seen[i], 5, 150);
    assert_true(seen[3] > seen[2] && seen[2] > seen[1]);
}

static void flushed_writes_survive(void **state)
{
    (void)state;
    for (unsigned i = 1; i <= 20; i++) {
        write_blocks(0, 100, i, false);
        assert_int_equal(store_flush(store), GPUNVME_OK);
        sim_store_power_loss(store);
        expect_versions(0, 100, i);
    }
}

static void a_loss_after_a_flush_goes_back_to_the_flushed_version_at_most(void **state)
{
    unsigned nlost = 0;

    (void)state;
    for (unsigned i = 0; i < 20; i++) {
        write_blocks(0, 1, 1, false);
        assert_int_equal(store_flush(store), GPUNVME_OK);
        write_blocks(0, 1, 2, false);
        sim_store_power_loss(store);
        assert_in_range(version_of(0), 1, 2);
        nlost += version_of(0) == 1;
    }
    assert_in_range(nlost, 1, 19);
}

static void forced_writes_survive_and_others_do_not_gain(void **state)
{
    unsigned nlost = 0;

    (void)state;
    for (unsigned i = 0; i < 20; i++) {
        assert_int_equal(store_do(store, SIM_STORE_ZERO, 0, NULL, 8 * BLOCK), GPUNVME_OK);
        write_blocks(0, 8, 1, false);
        write_blocks(2, 3, 2, true);
        sim_store_power_loss(store);
        expect_versions(2, 3, 2);
        nlost += !version_of(0) + !version_of(7);
    }
    assert_in_range(nlost, 1, 39);
}

static void a_write_over_a_forced_one_may_be_lost_but_not_the_forced_one(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 20; i++) {
        write_blocks(0, 1, 1, false);
        write_blocks(0, 1, 2, true);
        write_blocks(0, 1, 3, false);
        sim_store_power_loss(store);
        assert_in_range(version_of(0), 2, 3);
    }
}

static void zeroes_survive(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 20; i++) {
        write_blocks(0, 64, 1, false);
        assert_int_equal(store_do(store, SIM_STORE_ZERO, 0, NULL, 1000 * BLOCK), GPUNVME_OK);
        sim_store_power_loss(store);
        expect_versions(0, 64, 0);
    }
}

/* The fate of 64 writes with a seed. */
static void lose_with_seed(uint64_t seed, unsigned *fate)
{
    sim_store_close(store);
    assert_int_equal(open_store(NULL, NBYTES, seed), 0);
    for (unsigned i = 0; i < 64; i++)
        write_blocks(i, 1, 1, false);
    sim_store_power_loss(store);
    for (unsigned i = 0; i < 64; i++)
        fate[i] = version_of(i);
}

static void the_seed_decides(void **state)
{
    unsigned first[64], again[64], other[64];

    (void)state;
    lose_with_seed(7, first);
    lose_with_seed(7, again);
    lose_with_seed(8, other);
    assert_memory_equal(first, again, sizeof(first));
    assert_memory_not_equal(first, other, sizeof(first));
}

/* 64 MiB do not fit: what comes when the cache is full is durable at once. */
static void a_full_cache_lets_writes_through(void **state)
{
    enum { MIB = 1 << 20, COUNT = 64 };
    unsigned nsurvived = 0;

    (void)state;
    sim_store_close(store);
    assert_int_equal(open_store(NULL, COUNT * MIB, 1), 0);
    for (unsigned i = 0; i < COUNT; i++)
        write_blocks((uint64_t)i * MIB / BLOCK, MIB / BLOCK, 1, false);
    for (unsigned i = 0; i < COUNT; i++)
        assert_int_equal(version_of((uint64_t)i * MIB / BLOCK), 1);
    sim_store_power_loss(store);
    for (unsigned i = 0; i < COUNT; i++)
        nsurvived += version_of((uint64_t)i * MIB / BLOCK);
    assert_in_range(nsurvived, 33, 63);
    for (unsigned i = 32; i < COUNT; i++)
        assert_int_equal(version_of((uint64_t)i * MIB / BLOCK), 1);
}

static void a_write_larger_than_the_cache_goes_through(void **state)
{
    const size_t nbytes = 40 << 20;
    uint8_t *memory = aligned(nbytes);

    (void)state;
    sim_store_close(store);
    assert_int_equal(open_store(NULL, nbytes, 1), 0);
    fill(memory, 0, nbytes, 1);
    assert_int_equal(store_write(store, 0, memory, nbytes), GPUNVME_OK);
    sim_store_power_loss(store);
    expect_versions(0, 10, 1);
    free(memory);
}

static void a_clean_close_writes_back(void **state)
{
    (void)state;
    sim_store_close(store);
    store = NULL;
    assert_int_equal(scratch_make(), 0);
    assert_int_equal(open_store(scratch_path("image"), NBYTES, 1), 0);
    write_blocks(0, 50, 1, false);
    write_blocks(7, 1, 2, false);
    sim_store_close(store);
    assert_int_equal(open_store(scratch_path("image"), NBYTES, 1), 0);
    expect_versions(0, 7, 1);
    expect_versions(7, 1, 2);
    expect_versions(8, 42, 1);
    sim_store_power_loss(store);
    expect_versions(0, 7, 1);
    unlink(scratch_path("image"));
    rmdir(scratch);
}

static void parts_of_blocks_are_refused(void **state)
{
    struct sim_store_config config = {
        .nbytes = NBYTES, .block_size = 4096, .vwc = true, .nlanes = 1};

    (void)state;
    sim_store_close(store);
    assert_int_equal(sim_store_open(&config, &store), 0);
    assert_int_equal(store_write(store, 512, a, 4096), GPUNVME_ERR_ALIGN);
    assert_int_equal(store_read(store, 0, b, 512), GPUNVME_ERR_ALIGN);
}

/*
 * ---- Over a backend that waits --------------------------------------------------------------
 *
 * It holds every transfer until release() ends it.
 */

static struct {
    struct sim_backend base; /* first */
    struct sim_store_io *held[64];
    unsigned lanes[64];
    unsigned nheld;
    bool at_once; /* nothing is held any more */
    uint8_t bytes[64 * BLOCK];
} slow;

static void slow_move(const struct sim_store_io *io)
{
    assert_true(io->op == SIM_STORE_FLUSH || io->off + io->nbytes <= sizeof(slow.bytes));
    if (io->op == SIM_STORE_READ)
        memcpy(io->iov->iov_base, slow.bytes + io->off, io->nbytes);
    else if (io->op == SIM_STORE_WRITE)
        memcpy(slow.bytes + io->off, io->iov->iov_base, io->nbytes);
    else if (io->op == SIM_STORE_ZERO)
        memset(slow.bytes + io->off, 0, io->nbytes);
}

static void slow_submit(struct sim_backend *backend, unsigned lane, struct sim_store_io *io)
{
    (void)backend;
    if (slow.at_once) {
        slow_move(io);
        io->done(io, GPUNVME_OK);
        return;
    }
    slow.lanes[slow.nheld] = lane;
    slow.held[slow.nheld++] = io;
}

static gpunvme_err_t slow_now(struct sim_backend *backend, const struct sim_store_io *io)
{
    (void)backend;
    slow_move(io);
    return GPUNVME_OK;
}

static const struct sim_backend_ops slow_ops = {.submit = slow_submit, .now = slow_now};

/* Ends the oldest transfer that is held, which must be of this kind. */
static void release(enum sim_store_op op, gpunvme_err_t err)
{
    struct sim_store_io *io = slow.held[0];

    assert_true(slow.nheld > 0);
    assert_int_equal(io->op, op);
    slow.nheld--;
    memmove(&slow.held[0], &slow.held[1], slow.nheld * sizeof(slow.held[0]));
    memmove(&slow.lanes[0], &slow.lanes[1], slow.nheld * sizeof(slow.lanes[0]));
    if (!err)
        slow_move(io);
    io->done(io, err);
}

static struct sim_cache *cache;
static uint8_t memory[8][BLOCK];

static int setup_slow(void **state)
{
    const struct sim_store_config config = {.block_size = BLOCK, .seed = 1, .nlanes = 2};

    (void)state;
    memset(&slow, 0, sizeof(slow));
    slow.base.ops = &slow_ops;
    return sim_cache_create(&config, &slow.base, &cache);
}

static int teardown_slow(void **state)
{
    (void)state;
    sim_cache_destroy(cache);
    return slow.nheld != 0;
}

/* Submits a transfer of one block, filled with `value` for a write. */
static void submit(struct transfer *t, unsigned lane, enum sim_store_op op, uint64_t block,
                   uint8_t value, bool fua)
{
    static unsigned next;
    uint8_t *block_memory = memory[next++ % 8];

    memset(block_memory, value, BLOCK);
    transfer_init(t, op, block * BLOCK, block_memory, op == SIM_STORE_FLUSH ? 0 : BLOCK);
    t->io.fua = fua;
    sim_cache_submit(cache, lane, &t->io);
}

static void expect_done(const struct transfer *t, gpunvme_err_t err)
{
    assert_int_equal(t->ndone, 1);
    assert_int_equal(t->err, err);
}

/* What the cache says that a block holds: it must know without asking below. */
static uint8_t cached_value(uint64_t block)
{
    struct transfer t;

    submit(&t, 0, SIM_STORE_READ, block, 0, false);
    expect_done(&t, GPUNVME_OK);
    return ((uint8_t *)t.iov.iov_base)[BLOCK - 1];
}

static void writes_end_without_the_medium(void **state)
{
    struct transfer t;

    (void)state;
    submit(&t, 0, SIM_STORE_WRITE, 5, 0x11, false);
    expect_done(&t, GPUNVME_OK);
    assert_int_equal(slow.nheld, 0);
    assert_int_equal(cached_value(5), 0x11);
}

static void a_flush_ends_when_all_is_written_and_flushed(void **state)
{
    struct transfer w, f;

    (void)state;
    submit(&w, 0, SIM_STORE_WRITE, 1, 0x11, false);
    submit(&w, 0, SIM_STORE_WRITE, 3, 0x33, false);
    submit(&f, 1, SIM_STORE_FLUSH, 0, 0, false);
    assert_int_equal(slow.nheld, 2);
    assert_int_equal(slow.lanes[0], 1);
    release(SIM_STORE_WRITE, GPUNVME_OK);
    assert_int_equal(f.ndone, 0);
    release(SIM_STORE_WRITE, GPUNVME_OK);
    assert_int_equal(f.ndone, 0);
    release(SIM_STORE_FLUSH, GPUNVME_OK);
    expect_done(&f, GPUNVME_OK);
    assert_int_equal(slow.bytes[1 * BLOCK], 0x11);
    assert_int_equal(slow.bytes[3 * BLOCK], 0x33);
}

static void only_the_newest_version_is_written(void **state)
{
    struct transfer w, f;

    (void)state;
    submit(&w, 0, SIM_STORE_WRITE, 1, 0x11, false);
    submit(&w, 0, SIM_STORE_WRITE, 1, 0x22, false);
    submit(&f, 0, SIM_STORE_FLUSH, 0, 0, false);
    assert_int_equal(slow.nheld, 1);
    release(SIM_STORE_WRITE, GPUNVME_OK);
    release(SIM_STORE_FLUSH, GPUNVME_OK);
    assert_int_equal(slow.bytes[1 * BLOCK], 0x22);
}

static void a_write_during_a_flush_stays_in_the_cache(void **state)
{
    struct transfer w, f;

    (void)state;
    submit(&w, 0, SIM_STORE_WRITE, 1, 0x11, false);
    submit(&f, 0, SIM_STORE_FLUSH, 0, 0, false);
    submit(&w, 0, SIM_STORE_WRITE, 1, 0x22, false);
    expect_done(&w, GPUNVME_OK);
    release(SIM_STORE_WRITE, GPUNVME_OK);
    release(SIM_STORE_FLUSH, GPUNVME_OK);
    expect_done(&f, GPUNVME_OK);
    assert_int_equal(slow.bytes[1 * BLOCK], 0x11);
    assert_int_equal(cached_value(1), 0x22);
}

static void a_read_that_a_flush_overtakes_is_not_stale(void **state)
{
    struct iovec iov = {.iov_base = memory, .iov_len = 2 * BLOCK};
    struct transfer w, r, f;

    (void)state;
    submit(&w, 0, SIM_STORE_WRITE, 1, 0x11, false);
    transfer_init(&r, SIM_STORE_READ, 0, NULL, 2 * BLOCK); /* block 0 from below, 1 cached */
    memset(memory, 0xee, sizeof(memory));
    r.io.iov = &iov;
    sim_cache_submit(cache, 0, &r.io);
    submit(&f, 1, SIM_STORE_FLUSH, 0, 0, false);
    assert_int_equal(slow.nheld, 2);
    /* The read looks at the medium now, but ends after the flush. */
    slow_move(slow.held[0]);
    slow.held[63] = slow.held[0];
    slow.held[0] = slow.held[1];
    slow.nheld = 1;
    release(SIM_STORE_WRITE, GPUNVME_OK);
    release(SIM_STORE_FLUSH, GPUNVME_OK);
    expect_done(&f, GPUNVME_OK);
    slow.held[63]->done(slow.held[63], GPUNVME_OK);
    expect_done(&r, GPUNVME_OK);
    assert_int_equal(memory[0][0], 0);
    assert_int_equal(memory[1][0], 0x11);
}

static void a_forced_write_waits_for_a_flush(void **state)
{
    struct transfer w, f, fua;

    (void)state;
    submit(&w, 0, SIM_STORE_WRITE, 1, 0x11, false);
    submit(&f, 0, SIM_STORE_FLUSH, 0, 0, false);
    submit(&fua, 1, SIM_STORE_WRITE, 1, 0x22, true);
    assert_int_equal(sim_cache_poll(cache, 1), 0);
    assert_int_equal(slow.nheld, 1);
    release(SIM_STORE_WRITE, GPUNVME_OK);
    release(SIM_STORE_FLUSH, GPUNVME_OK);
    assert_int_equal(sim_cache_poll(cache, 1), 1);
    assert_true(slow.held[0]->fua);
    release(SIM_STORE_WRITE, GPUNVME_OK);
    expect_done(&fua, GPUNVME_OK);
    assert_int_equal(slow.bytes[1 * BLOCK], 0x22);
}

static void a_flush_waits_for_forced_writes_and_keeps_new_ones_back(void **state)
{
    struct transfer first, f, second;

    (void)state;
    submit(&first, 0, SIM_STORE_WRITE, 1, 0x11, true);
    submit(&f, 1, SIM_STORE_FLUSH, 0, 0, false);
    submit(&second, 0, SIM_STORE_WRITE, 2, 0x22, true);
    assert_int_equal(slow.nheld, 1);
    assert_int_equal(sim_cache_poll(cache, 1), 0);
    release(SIM_STORE_WRITE, GPUNVME_OK);
    expect_done(&first, GPUNVME_OK);
    assert_int_equal(sim_cache_poll(cache, 0), 0);
    assert_int_equal(sim_cache_poll(cache, 1), 1);
    release(SIM_STORE_FLUSH, GPUNVME_OK);
    expect_done(&f, GPUNVME_OK);
    assert_int_equal(sim_cache_poll(cache, 0), 1);
    release(SIM_STORE_WRITE, GPUNVME_OK);
    expect_done(&second, GPUNVME_OK);
}

static void a_write_during_a_forced_one_stays_in_the_cache(void **state)
{
    struct transfer w, fua;

    (void)state;
    submit(&w, 0, SIM_STORE_WRITE, 1, 0x11, false);
    submit(&fua, 0, SIM_STORE_WRITE, 1, 0x22, true);
    submit(&w, 0, SIM_STORE_WRITE, 1, 0x33, false);
    release(SIM_STORE_WRITE, GPUNVME_OK);
    expect_done(&fua, GPUNVME_OK);
    assert_int_equal(cached_value(1), 0x33);
}

static void what_waits_in_a_lane_keeps_its_order(void **state)
{
    struct transfer f, waiting[3];

    (void)state;
    submit(&f, 0, SIM_STORE_FLUSH, 0, 0, false);
    for (unsigned i = 0; i < 3; i++)
        submit(&waiting[i], 0, SIM_STORE_WRITE, 1, (uint8_t)(0x11 * (i + 1)), true);
    assert_int_equal(slow.nheld, 1);
    release(SIM_STORE_FLUSH, GPUNVME_OK);
    assert_int_equal(sim_cache_poll(cache, 0), 3);
    for (unsigned i = 0; i < 3; i++) {
        release(SIM_STORE_WRITE, GPUNVME_OK);
        expect_done(&waiting[i], GPUNVME_OK);
    }
    assert_int_equal(slow.bytes[1 * BLOCK], 0x33);
}

static void a_flush_that_fails_keeps_the_writes(void **state)
{
    struct transfer w, f;

    (void)state;
    submit(&w, 0, SIM_STORE_WRITE, 1, 0x11, false);
    submit(&w, 0, SIM_STORE_WRITE, 3, 0x33, false);
    submit(&f, 0, SIM_STORE_FLUSH, 0, 0, false);
    release(SIM_STORE_WRITE, GPUNVME_ERR_NOSPC);
    release(SIM_STORE_WRITE, GPUNVME_OK);
    expect_done(&f, GPUNVME_ERR_NOSPC);
    assert_int_equal(cached_value(1), 0x11);
    submit(&f, 0, SIM_STORE_FLUSH, 0, 0, false);
    release(SIM_STORE_WRITE, GPUNVME_OK);
    release(SIM_STORE_WRITE, GPUNVME_OK);
    release(SIM_STORE_FLUSH, GPUNVME_ERR_IO);
    expect_done(&f, GPUNVME_ERR_IO);
    assert_int_equal(cached_value(1), 0x11);
}

static void a_forced_write_that_fails_keeps_the_older_one(void **state)
{
    struct transfer w, fua;

    (void)state;
    submit(&w, 0, SIM_STORE_WRITE, 1, 0x11, false);
    submit(&fua, 0, SIM_STORE_WRITE, 1, 0x22, true);
    release(SIM_STORE_WRITE, GPUNVME_ERR_IO);
    expect_done(&fua, GPUNVME_ERR_IO);
    assert_int_equal(cached_value(1), 0x11);
}

static void a_read_that_fails_below_fails(void **state)
{
    struct iovec iov = {.iov_base = memory, .iov_len = 2 * BLOCK};
    struct transfer w, r;

    (void)state;
    submit(&w, 0, SIM_STORE_WRITE, 1, 0x11, false);
    transfer_init(&r, SIM_STORE_READ, 0, NULL, 2 * BLOCK);
    r.io.iov = &iov;
    sim_cache_submit(cache, 0, &r.io);
    release(SIM_STORE_READ, GPUNVME_ERR_IO);
    expect_done(&r, GPUNVME_ERR_IO);
}

/* From the end of a transfer, submits another to the same lane. */
static struct transfer follower;

static void submit_follower(struct sim_store_io *io, gpunvme_err_t err)
{
    transfer_done(io, err);
    submit(&follower, 0, SIM_STORE_WRITE, 2, 0x22, true);
}

static void a_waiting_transfer_may_submit_the_next_as_it_ends(void **state)
{
    struct transfer f, last;

    (void)state;
    submit(&f, 0, SIM_STORE_FLUSH, 0, 0, false);
    submit(&last, 0, SIM_STORE_WRITE, 1, 0x11, true);
    last.io.done = submit_follower;
    release(SIM_STORE_FLUSH, GPUNVME_OK);
    slow.at_once = true;
    assert_int_equal(sim_cache_poll(cache, 0), 1);
    expect_done(&last, GPUNVME_OK);
    expect_done(&follower, GPUNVME_OK);
    assert_int_equal(sim_cache_poll(cache, 0), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
#define SLOW(name) cmocka_unit_test_setup_teardown(name, setup_slow, teardown_slow)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(an_unflushed_write_is_read),
        TEST(a_read_joins_cached_and_stored_blocks),
        TEST(each_unflushed_write_is_kept_lost_or_torn),
        TEST(writes_share_no_fate),
        TEST(any_version_of_a_block_may_survive),
        TEST(flushed_writes_survive),
        TEST(a_loss_after_a_flush_goes_back_to_the_flushed_version_at_most),
        TEST(forced_writes_survive_and_others_do_not_gain),
        TEST(a_write_over_a_forced_one_may_be_lost_but_not_the_forced_one),
        TEST(zeroes_survive),
        TEST(the_seed_decides),
        TEST(a_full_cache_lets_writes_through),
        TEST(a_write_larger_than_the_cache_goes_through),
        TEST(a_clean_close_writes_back),
        TEST(parts_of_blocks_are_refused),
        SLOW(writes_end_without_the_medium),
        SLOW(a_flush_ends_when_all_is_written_and_flushed),
        SLOW(only_the_newest_version_is_written),
        SLOW(a_write_during_a_flush_stays_in_the_cache),
        SLOW(a_read_that_a_flush_overtakes_is_not_stale),
        SLOW(a_forced_write_waits_for_a_flush),
        SLOW(a_flush_waits_for_forced_writes_and_keeps_new_ones_back),
        SLOW(a_write_during_a_forced_one_stays_in_the_cache),
        SLOW(what_waits_in_a_lane_keeps_its_order),
        SLOW(a_flush_that_fails_keeps_the_writes),
        SLOW(a_forced_write_that_fails_keeps_the_older_one),
        SLOW(a_read_that_fails_below_fails),
        SLOW(a_waiting_transfer_may_submit_the_next_as_it_ends),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
