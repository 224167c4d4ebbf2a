/* SPDX-License-Identifier: BSD-3-Clause
 *
 * device.cuh on the CPU, where a thread is a warp of one lane: each call moves the right bytes and
 * tells what went wrong. One thread; test_device_threads.c has many.
 */
#include "sim/device_fixture.h"

/* --- each call moves the right bytes ------------------------------------------------------------
 */

static void read_moves_the_right_blocks(void **state)
{
    struct fixture f;

    (void)state;
    fixture_open(&f, "sim:size=1M", NULL);
    image_fill(&f, 1);
    for (uint64_t lba = 0; lba < f.ns.nblocks; lba += 37) {
        assert_err(gpunvme_dev_read(&f.ns, lba, 1, &f.buf, 4 * lba, 0), GPUNVME_OK);
        assert_memory_equal(f.bytes + 4 * lba, f.image + lba * 512, 512);
        assert_int_equal(f.bytes[4 * lba + 512], 0xee);
    }
    fixture_close(&f);
}

static void write_moves_the_right_blocks(void **state)
{
    struct fixture f;

    (void)state;
    fixture_open(&f, "sim:size=1M", NULL);
    image_fill(&f, 2);
    for (uint64_t lba = 0; lba < f.ns.nblocks; lba += 41) {
        fill_random(f.bytes + 1000, 512, lba + 7);
        memcpy(f.image + lba * 512, f.bytes + 1000, 512);
        assert_err(gpunvme_dev_write(&f.ns, lba, 1, &f.buf, 1000, 0, 0), GPUNVME_OK);
    }
    image_assert(&f);
    fixture_close(&f);
}

static void the_last_block_can_be_read(void **state)
{
    struct fixture f;

    (void)state;
    fixture_open(&f, "sim:size=1M", NULL);
    image_fill(&f, 3);
    assert_err(gpunvme_dev_read(&f.ns, f.ns.nblocks - 1, 1, &f.buf, 0, 0), GPUNVME_OK);
    assert_memory_equal(f.bytes, f.image + (1 << 20) - 512, 512);
    fixture_close(&f);
}

/* One page, PRP2, a list; at any dword of a page. */
static void transfers_of_any_size_and_place_in_memory_are_right(void **state)
{
    static const uint32_t blocks[] = {1, 2, 7, 8, 9, 15, 16, 17, 24, 25, 64, 255, 256, 257, 1000};
    static const uint32_t offs[] = {0, 4, 512, 3580, 3584, 3588, 4092, 4096, 65532};
    struct fixture f;

    (void)state;
    fixture_open(&f, "sim:size=1M", NULL);
    image_fill(&f, 4);
    for (size_t b = 0; b < sizeof(blocks) / sizeof(blocks[0]); b++) {
        for (size_t o = 0; o < sizeof(offs) / sizeof(offs[0]); o++) {
            size_t n = (size_t)blocks[b] * 512;
            uint64_t lba = (b * 131 + o * 17) % (f.ns.nblocks - blocks[b] + 1);

            memset(f.bytes, 0xee, offs[o] + n + 8);
            assert_err(gpunvme_dev_read(&f.ns, lba, blocks[b], &f.buf, offs[o], 0), GPUNVME_OK);
            assert_memory_equal(f.bytes + offs[o], f.image + lba * 512, n);
            assert_int_equal(f.bytes[offs[o] + n], 0xee);
            if (offs[o])
                assert_int_equal(f.bytes[offs[o] - 1], 0xee);
        }
    }
    fixture_close(&f);
}

/* The same for writes, which are one command here where they can be: their list is read. */
static void writes_by_lists_are_right(void **state)
{
    struct fixture f;

    (void)state;
    fixture_open(&f, "sim:size=1M", NULL);
    image_fill(&f, 5);
    for (uint32_t nlb = 1; nlb < 200; nlb += 13) {
        uint64_t lba = nlb * 7, off = 4 * (uint64_t)nlb;

        fill_random(f.bytes + off, nlb * 512, nlb);
        memcpy(f.image + lba * 512, f.bytes + off, nlb * 512);
        assert_err(gpunvme_dev_write(&f.ns, lba, nlb, &f.buf, off, 0, 0), GPUNVME_OK);
    }
    image_assert(&f);
    fixture_close(&f);
}

/* A view of the buffer whose pages are in the reverse order on the bus. */
static void buffers_in_pieces_on_the_bus_are_right(void **state)
{
    uint64_t pages[64];
    struct fixture f;

    (void)state;
    fixture_open(&f, "sim:size=128K", NULL);
    image_fill(&f, 6);
    for (unsigned i = 0; i < 64; i++)
        pages[i] = f.d.buf.bus + (63 - i) * 4096;
    f.buf.nbytes = sizeof(pages) / sizeof(pages[0]) * 4096;
    f.buf.bus_pages = pages;
    f.buf.bus_page_shift = 12;
    f.buf.bus = pages[0];
    assert_err(gpunvme_dev_read(&f.ns, 3, 100, &f.buf, 512 * 3, 0), GPUNVME_OK);
    for (uint32_t i = 3 * 512; i < 103 * 512; i++)
        assert_int_equal(f.bytes[(63 - i / 4096) * 4096 + i % 4096], f.image[i]);
    f.buf.bus_page_shift = 11;
    assert_err(gpunvme_dev_read(&f.ns, 3, 1, &f.buf, 0, 0), GPUNVME_ERR_ALIGN);
    assert_err(gpunvme_dev_read_bytes(&f.ns, 0, 9000, &f.buf, 0, 0), GPUNVME_ERR_ALIGN);
    assert_err(gpunvme_dev_warp_read_bytes(&f.ns, 0, 9000, &f.buf, 0, 0), GPUNVME_ERR_ALIGN);
    fixture_close(&f);
}

static void long_transfers_are_split_at_the_limits(void **state)
{
    struct fixture f;

    (void)state;
    fixture_open(&f, "sim:size=3M,mdts=2,noiob=24", NULL);
    assert_int_equal(f.ns.max_blocks, 32);
    assert_int_equal(f.ns.boundary_blocks, 24);
    image_fill(&f, 7);
    assert_err(gpunvme_dev_read(&f.ns, 5, 4000, &f.buf, 8, 0), GPUNVME_OK);
    assert_memory_equal(f.bytes + 8, f.image + 5 * 512, 4000 * 512);
    assert_err(gpunvme_dev_warp_read(&f.ns, 7, 4000, &f.buf, 12, 0), GPUNVME_OK);
    assert_memory_equal(f.bytes + 12, f.image + 7 * 512, 4000 * 512);
    fixture_close(&f);
}

/* The remainder by 32-bit arithmetic is the remainder. */
static void boundaries_are_found_at_any_address(void **state)
{
    uint64_t seed = 8;

    (void)state;
    for (unsigned i = 0; i < 200000; i++) {
        uint32_t boundary = 1 + (uint32_t)(next_random(&seed) % 0xffff);
        uint64_t lba = next_random(&seed) >> (next_random(&seed) % 64);

        assert_int_equal(gpunvme_dev_to_boundary(lba, boundary), boundary - lba % boundary);
    }
}

static void split_phase_reads_any_number_at_once(void **state)
{
    struct gpunvme_dev_token tokens[60];
    struct fixture f;

    (void)state;
    fixture_open(&f, "sim:size=1M", NULL);
    image_fill(&f, 9);
    for (unsigned i = 0; i < 60; i++)
        assert_err(gpunvme_dev_submit_read(&f.ns, i * 3, 2, &f.buf, i * 1024, &tokens[i]),
                   GPUNVME_OK);
    for (unsigned i = 60; i--;) {
        assert_err(gpunvme_dev_wait(&f.ns, &tokens[i], 0), GPUNVME_OK);
        assert_memory_equal(f.bytes + i * 1024, f.image + i * 3 * 512, 1024);
    }
    fixture_close(&f);
}

static void several_commands_are_submitted_with_one_doorbell(void **state)
{
    struct gpunvme_dev_token tokens[4];
    struct gpunvme_dev_vec vec[4];
    uint32_t nsubmitted = 0;
    struct fixture f;

    (void)state;
    fixture_open(&f, "sim:size=1M", NULL);
    image_fill(&f, 9);
    for (unsigned round = 0; round < 400; round++) {
        uint32_t n = 1 + round % 4, published = f.ns.queues[0].published;

        for (uint32_t i = 0; i < n; i++)
            vec[i] = (struct gpunvme_dev_vec){.slba = round + 7 * i, .off = 2048 * i, .nlb = 1 + i};
        assert_err(gpunvme_dev_submit_readv(&f.ns, vec, n, &f.buf, tokens, &nsubmitted),
                   GPUNVME_OK);
        assert_int_equal(nsubmitted, n);
        assert_int_equal(f.ns.queues[0].published, published + (n << 1));
        for (uint32_t i = n; i--;) {
            assert_err(gpunvme_dev_wait(&f.ns, &tokens[i], 0), GPUNVME_OK);
            assert_memory_equal(f.bytes + vec[i].off, f.image + vec[i].slba * 512,
                                512 * vec[i].nlb);
        }
    }
    assert_int_equal(dev_rig_taken(&f.rig, 0), 0);
    fixture_close(&f);
}

static void several_writes_are_on_the_drive(void **state)
{
    struct gpunvme_dev_token tokens[4];
    struct gpunvme_dev_vec vec[4];
    uint32_t nsubmitted = 0;
    struct fixture f;

    (void)state;
    fixture_open(&f, "sim:size=1M", NULL);
    image_fill(&f, 10);
    for (uint32_t i = 0; i < 4; i++) {
        vec[i] = (struct gpunvme_dev_vec){.slba = 100 * i, .off = 1024 * i, .nlb = 2};
        memset(f.bytes + vec[i].off, (int)i, 1024);
        memset(f.image + vec[i].slba * 512, (int)i, 1024);
    }
    assert_err(gpunvme_dev_submit_writev(&f.ns, vec, 4, &f.buf, 0, tokens, &nsubmitted),
               GPUNVME_OK);
    assert_int_equal(nsubmitted, 4);
    for (uint32_t i = 0; i < 4; i++)
        assert_err(gpunvme_dev_wait(&f.ns, &tokens[i], 0), GPUNVME_OK);
    image_assert(&f);
    fixture_close(&f);
}

static void if_one_of_several_commands_is_wrong_none_is_submitted(void **state)
{
    struct gpunvme_dev_vec vec[4] = {{0, 0, 1}, {1, 512, 1}, {2048, 1024, 1}, {3, 1536, 1}};
    struct gpunvme_dev_token tokens[4];
    uint32_t nsubmitted = 9;
    struct fixture f;

    (void)state;
    fixture_open(&f, "sim:size=1M", NULL);
    assert_err(gpunvme_dev_submit_readv(&f.ns, vec, 4, &f.buf, tokens, &nsubmitted),
               GPUNVME_ERR_RANGE);
    assert_int_equal(nsubmitted, 0);
    for (uint32_t i = 0; i < 3; i++)
        assert_err(gpunvme_dev_test(&tokens[i]), GPUNVME_ERR_STALE);
    assert_int_equal(dev_rig_taken(&f.rig, 0), 0);
    for (uint32_t n = 0; n <= 5; n += 5)
        assert_err(gpunvme_dev_submit_readv(&f.ns, vec, n, &f.buf, tokens, &nsubmitted),
                   GPUNVME_ERR_INVALID);
    assert_int_equal(f.ns.queues[0].reserved, 0);
    fixture_close(&f);
}

static void as_many_of_several_commands_as_there_is_room_for_are_submitted(void **state)
{
    struct gpunvme_dev_token tokens[4], more[4];
    struct gpunvme_dev_vec vec[4];
    struct dev_rig_opts opts;
    uint32_t taken = 0, n;
    struct fixture f;

    (void)state;
    for (uint32_t i = 0; i < 4; i++)
        vec[i] = (struct gpunvme_dev_vec){.slba = i, .off = 512 * i, .nlb = 1};
    dev_rig_opts_init(&opts);
    opts.entries = 4; /* three slots */
    fixture_open(&f, "sim:size=1M", &opts);
    image_fill(&f, 11);
    for (unsigned round = 0; round < 200; round++) {
        assert_err(gpunvme_dev_submit_readv(&f.ns, vec, 4, &f.buf, tokens, &taken), GPUNVME_OK);
        assert_int_equal(taken, 3);
        assert_int_equal(dev_rig_taken(&f.rig, 0), taken);
        for (uint32_t i = taken; i < 4; i++)
            assert_err(gpunvme_dev_wait(&f.ns, &tokens[i], 0), GPUNVME_ERR_STALE);
        assert_err(gpunvme_dev_submit_readv(&f.ns, vec, 4, &f.buf, more, &n), GPUNVME_ERR_AGAIN);
        assert_int_equal(n, 0);
        for (uint32_t i = 0; i < taken; i++) {
            assert_err(gpunvme_dev_wait(&f.ns, &tokens[i], 0), GPUNVME_OK);
            assert_memory_equal(f.bytes + vec[i].off, f.image + vec[i].slba * 512, 512);
        }
    }
    fixture_close(&f);
}

/* Of the slots side by side that they try first, only every other one is free. */
static void several_commands_are_submitted_to_a_queue_that_is_half_full(void **state)
{
    struct gpunvme_dev_token tokens[4];
    struct gpunvme_dev_vec vec[4];
    struct dev_rig_opts opts;
    struct fixture f;
    uint32_t n;

    (void)state;
    for (uint32_t i = 0; i < 4; i++)
        vec[i] = (struct gpunvme_dev_vec){.slba = i, .off = 512 * i, .nlb = 1};
    dev_rig_opts_init(&opts);
    opts.entries = 64;
    fixture_open(&f, "sim:size=1M", &opts);
    image_fill(&f, 12);
    for (uint32_t i = 2; i < 64; i += 2)
        f.ns.queues[0].slots[i].word |= GPUNVME_DEV_SLOT_TAKEN;
    for (unsigned round = 0; round < 200; round++) {
        assert_err(gpunvme_dev_submit_readv(&f.ns, vec, 4, &f.buf, tokens, &n), GPUNVME_OK);
        assert_int_equal(n, 4);
        for (uint32_t i = 0; i < 4; i++)
            assert_err(gpunvme_dev_wait(&f.ns, &tokens[i], 0), GPUNVME_OK);
        assert_memory_equal(f.bytes, f.image, 2048);
    }
    for (uint32_t i = 2; i < 64; i += 2)
        f.ns.queues[0].slots[i].word &= ~GPUNVME_DEV_SLOT_TAKEN;
    fixture_close(&f);
}

/* A thread's commands in flight would take each other's first choice, and search. */
static void a_thread_hopes_for_another_slot_at_each_submit(void **state)
{
    struct dev_rig_opts opts;
    struct fixture f;
    uint32_t first, differ = 0;

    (void)state;
    dev_rig_opts_init(&opts);
    opts.entries = 1024;
    fixture_open(&f, "sim:size=1M", &opts);
    first = gpunvme_dev_fresh_hint(&f.ns, 1);
    for (unsigned i = 0; i < 100; i++) {
        gpunvme_relax_for(100000); /* some microseconds, as a submit takes on a GPU */
        differ += gpunvme_dev_fresh_hint(&f.ns, 1) != first;
    }
    assert_true(differ > 90);
    fixture_close(&f);
}

/* Each slot of a queue can be had by one thread, which asks until there is room. */
static void one_thread_can_fill_a_large_queue(void **state)
{
    static struct gpunvme_dev_token tokens[1023];
    uint64_t until = gpunvme_clock_ns() + PATIENCE_NS;
    struct dev_rig_opts opts;
    struct fixture f;

    (void)state;
    dev_rig_opts_init(&opts);
    opts.entries = 1024;
    opts.list_nbytes = 0;
    opts.bounce_nbytes = 0;
    fixture_open(&f, "sim:size=1M", &opts);
    for (unsigned i = 0; i < 1023; i++) {
        int err;

        do
            err = gpunvme_dev_submit_flush(&f.ns, &tokens[i]);
        while (err == GPUNVME_ERR_AGAIN && gpunvme_clock_ns() < until);
        assert_err(err, GPUNVME_OK);
    }
    assert_int_equal(dev_rig_taken(&f.rig, 0), 1023);
    for (unsigned i = 0; i < 1023; i++)
        assert_err(gpunvme_dev_wait(&f.ns, &tokens[i], 0), GPUNVME_OK);
    fixture_close(&f);
}

static void split_phase_writes_and_flushes(void **state)
{
    struct gpunvme_dev_token token;
    struct gpunvme_sim_report before, after;
    struct fixture f;
    int err;

    (void)state;
    fixture_open(&f, "sim:size=1M,vwc", NULL);
    image_fill(&f, 10);
    fill_random(f.bytes, 1024, 11);
    memcpy(f.image + 512, f.bytes, 1024);
    assert_err(gpunvme_dev_submit_write(&f.ns, 1, 2, &f.buf, 0, GPUNVME_IO_FUA, &token),
               GPUNVME_OK);
    while ((err = gpunvme_dev_test(&token)) == GPUNVME_ERR_AGAIN)
        sched_yield();
    assert_err(err, GPUNVME_OK);
    gpunvme_sim_report(f.d.sim, &before);
    assert_err(gpunvme_dev_submit_flush(&f.ns, &token), GPUNVME_OK);
    assert_err(gpunvme_dev_wait(&f.ns, &token, 0), GPUNVME_OK);
    assert_err(gpunvme_dev_flush(&f.ns, 0), GPUNVME_OK);
    gpunvme_sim_report(f.d.sim, &after);
    assert_int_equal(after.commands[1] - before.commands[1], 2);
    image_assert(&f);
    fixture_close(&f);
}

/* A write by FUA survives a power cut without a flush. */
static void a_write_by_fua_is_on_the_medium(void **state)
{
    struct gpunvme_dev_token token;
    struct fixture f;

    (void)state;
    fixture_open(&f, "sim:size=1M,vwc,seed=3", NULL);
    image_fill(&f, 12);
    assert_ok(gpunvme_flush(f.d.ioq, f.d.ns));
    for (unsigned i = 0; i < 32; i++) {
        fill_random(f.bytes, 4096, 100 + i);
        memcpy(f.image + i * 4096, f.bytes, 4096);
        if (i % 2)
            assert_err(gpunvme_dev_write(&f.ns, i * 8, 8, &f.buf, 0, GPUNVME_IO_FUA, 0),
                       GPUNVME_OK);
        else {
            assert_err(gpunvme_dev_submit_write(&f.ns, i * 8, 8, &f.buf, 0, GPUNVME_IO_FUA, &token),
                       GPUNVME_OK);
            assert_err(gpunvme_dev_wait(&f.ns, &token, 0), GPUNVME_OK);
        }
    }
    gpunvme_sim_power_cycle(f.d.sim);
    assert_ok(gpunvme_ctrl_reset(f.d.ctrl));
    image_assert(&f);
    f.rig.nqueues = 0; /* the reset has deleted them */
    fixture_close(&f);
}

static void warp_and_block_share_a_range(void **state)
{
    struct fixture f;

    (void)state;
    fixture_open(&f, "sim:size=1M", NULL);
    image_fill(&f, 13);
    assert_err(gpunvme_dev_warp_read(&f.ns, 11, 999, &f.buf, 4, 0), GPUNVME_OK);
    assert_memory_equal(f.bytes + 4, f.image + 11 * 512, 999 * 512);
    assert_err(gpunvme_dev_block_write(&f.ns, 100, 999, &f.buf, 4, 0, 0), GPUNVME_OK);
    memcpy(f.image + 100 * 512, f.bytes + 4, 999 * 512);
    assert_err(gpunvme_dev_warp_write(&f.ns, 1200, 77, &f.buf, 4, GPUNVME_IO_FUA, 0), GPUNVME_OK);
    memcpy(f.image + 1200 * 512, f.bytes + 4, 77 * 512);
    assert_err(gpunvme_dev_block_read(&f.ns, 0, 2048, &f.buf, 0, 0), GPUNVME_OK);
    assert_memory_equal(f.bytes, f.image, 1 << 20);
    image_assert(&f);
    fixture_close(&f);
}

static void vectors_move_each_element(void **state)
{
    struct gpunvme_dev_vec vec[40];
    struct fixture f;

    (void)state;
    fixture_open(&f, "sim:size=1M,mdts=1", NULL);
    image_fill(&f, 14);
    for (unsigned i = 0; i < 40; i++)
        vec[i] = (struct gpunvme_dev_vec){
            .slba = (i * 7919) % 2000, .off = i * 24576 + 4 * i, .nlb = i % 5 ? i : 0};
    assert_err(gpunvme_dev_warp_readv(&f.ns, vec, 40, &f.buf, 0), GPUNVME_OK);
    for (unsigned i = 0; i < 40; i++)
        assert_memory_equal(f.bytes + vec[i].off, f.image + vec[i].slba * 512, vec[i].nlb * 512);
    for (unsigned i = 0; i < 40; i++) {
        vec[i].slba = i * 40;
        memcpy(f.image + vec[i].slba * 512, f.bytes + vec[i].off, vec[i].nlb * 512);
    }
    assert_err(gpunvme_dev_block_writev(&f.ns, vec, 40, &f.buf, 0, 0), GPUNVME_OK);
    image_assert(&f);
    fixture_close(&f);
}

static void a_thread_moves_a_vector_of_its_own(void **state)
{
    struct gpunvme_dev_vec vec[3] = {{7, 4, 40}, {1900, 65536, 0}, {2000, 65540, 48}};
    struct fixture f;

    (void)state;
    fixture_open(&f, "sim:size=1M,mdts=1", NULL);
    image_fill(&f, 15);
    assert_err(gpunvme_dev_readv(&f.ns, vec, 3, &f.buf, 0), GPUNVME_OK);
    assert_memory_equal(f.bytes + 4, f.image + 7 * 512, 40 * 512);
    assert_memory_equal(f.bytes + 65540, f.image + 2000 * 512, 48 * 512);
    vec[0].slba = 100;
    memcpy(f.image + 100 * 512, f.bytes + 4, 40 * 512);
    assert_err(gpunvme_dev_writev(&f.ns, vec, 3, &f.buf, GPUNVME_IO_FUA, 0), GPUNVME_OK);
    vec[0].slba = 2009; /* beyond the end: nothing of it, and nothing after it */
    memset(f.bytes, 0xaa, DEVICE_BUF_NBYTES);
    assert_err(gpunvme_dev_writev(&f.ns, vec, 3, &f.buf, 0, 0), GPUNVME_ERR_RANGE);
    assert_err(gpunvme_dev_readv(&f.ns, vec, 0, &f.buf, 0), GPUNVME_OK);
    image_assert(&f);
    fixture_close(&f);
}

static void warp_and_block_flush_once(void **state)
{
    struct gpunvme_sim_report before, after;
    struct fixture f;

    (void)state;
    fixture_open(&f, "sim:size=1M,vwc", NULL);
    gpunvme_sim_report(f.d.sim, &before);
    assert_err(gpunvme_dev_warp_flush(&f.ns, 0), GPUNVME_OK);
    assert_err(gpunvme_dev_block_flush(&f.ns, 0), GPUNVME_OK);
    gpunvme_sim_report(f.d.sim, &after);
    assert_int_equal(after.commands[1] - before.commands[1], 2);
    fixture_close(&f);
}

static void vectors_tell_of_an_element_that_is_wrong(void **state)
{
    struct gpunvme_dev_vec vec[3] = {{.nlb = 1}, {.slba = 2048, .nlb = 1}, {.nlb = 1}};
    struct fixture f;

    (void)state;
    fixture_open(&f, "sim:size=1M", NULL);
    assert_err(gpunvme_dev_warp_readv(&f.ns, vec, 3, &f.buf, 0), GPUNVME_ERR_RANGE);
    vec[1] = (struct gpunvme_dev_vec){.off = 2, .nlb = 1};
    assert_err(gpunvme_dev_block_readv(&f.ns, vec, 3, &f.buf, 0), GPUNVME_ERR_ALIGN);
    assert_err(gpunvme_dev_block_readv(&f.ns, vec, 1, &f.buf, 0), GPUNVME_OK);
    fixture_close(&f);
}

/* --- bytes --------------------------------------------------------------------------------------
 */

static void random_byte_ranges(const char *uri, bool warp)
{
    uint64_t seed = 15, size;
    struct fixture f;

    fixture_open(&f, uri, NULL);
    size = f.d.ns->nbytes;
    image_fill(&f, 16);
    for (unsigned i = 0; i < 300; i++) {
        uint64_t n = next_random(&seed) % (i % 3 ? 3000 : 40000);
        uint64_t at = next_random(&seed) % (size - n + 1), off = next_random(&seed) % 10000;
        uint8_t *bytes = f.bytes + off;

        if (i % 2) {
            memset(bytes, 0xdd, n + 1);
            assert_err(!warp       ? gpunvme_dev_read_bytes(&f.ns, at, n, &f.buf, off, 0)
                       : i % 4 > 1 ? gpunvme_dev_block_read_bytes(&f.ns, at, n, &f.buf, off, 0)
                                   : gpunvme_dev_warp_read_bytes(&f.ns, at, n, &f.buf, off, 0),
                       GPUNVME_OK);
            assert_memory_equal(bytes, f.image + at, n);
            assert_int_equal(bytes[n], 0xdd);
        } else {
            fill_random(bytes, n, seed);
            memcpy(f.image + at, bytes, n);
            assert_err(!warp       ? gpunvme_dev_write_bytes(&f.ns, at, n, &f.buf, off, 0, 0)
                       : i % 4 > 1 ? gpunvme_dev_block_write_bytes(&f.ns, at, n, &f.buf, off, 0, 0)
                                   : gpunvme_dev_warp_write_bytes(&f.ns, at, n, &f.buf, off, 0, 0),
                       GPUNVME_OK);
        }
    }
    image_assert(&f);
    fixture_close(&f);
}

static void byte_ranges_of_any_place_are_right(void **state)
{
    (void)state;
    random_byte_ranges("sim:size=256K", false);
}

static void byte_ranges_on_blocks_of_4_kib_are_right(void **state)
{
    (void)state;
    random_byte_ranges("sim:size=256K,block=4096", false);
}

static void byte_ranges_by_a_warp_are_right(void **state)
{
    (void)state;
    random_byte_ranges("sim:size=256K,mdts=1", true);
}

static void byte_ranges_without_bounce_blocks_must_be_whole_blocks(void **state)
{
    struct dev_rig_opts opts;
    struct fixture f;

    (void)state;
    dev_rig_opts_init(&opts);
    opts.bounce_nbytes = 0;
    fixture_open(&f, "sim:size=1M", &opts);
    image_fill(&f, 17);
    assert_err(gpunvme_dev_read_bytes(&f.ns, 512, 1024, &f.buf, 0, 0), GPUNVME_OK);
    assert_memory_equal(f.bytes, f.image + 512, 1024);
    assert_err(gpunvme_dev_read_bytes(&f.ns, 513, 511, &f.buf, 0, 0), GPUNVME_ERR_ALIGN);
    assert_err(gpunvme_dev_write_bytes(&f.ns, 512, 511, &f.buf, 0, 0, 0), GPUNVME_ERR_ALIGN);
    assert_err(gpunvme_dev_warp_read_bytes(&f.ns, 512, 512, &f.buf, 1, 0), GPUNVME_ERR_ALIGN);
    fixture_close(&f);
}

static void an_error_in_a_part_of_a_block_is_told(void **state)
{
    struct fixture f;

    (void)state;
    fixture_open(&f, "sim:size=1M", NULL);
    assert_ok(gpunvme_sim_fault(f.d.sim, "status=2/81:lba=20-20:read"));
    assert_ok(gpunvme_sim_fault(f.d.sim, "status=2/80:lba=30-30:write"));
    for (unsigned i = 0; i < 100; i++) { /* and nothing is lost on the way */
        assert_err(gpunvme_dev_read_bytes(&f.ns, 19 * 512 + 5, 800, &f.buf, 0, 0),
                   GPUNVME_ERR_NVME(GPUNVME_SC_UNRECOVERED_READ));
        assert_err(gpunvme_dev_write_bytes(&f.ns, 30 * 512 + 5, 8, &f.buf, 0, 0, 0),
                   GPUNVME_ERR_NVME(GPUNVME_SC_WRITE_FAULT));
    }
    fixture_close(&f);
}

/* --- what is refused ----------------------------------------------------------------------------
 */

static void what_is_out_of_range_is_refused(void **state)
{
    struct gpunvme_dev_token t;
    struct fixture f;

    (void)state;
    fixture_open(&f, "sim:size=1M", NULL);
    assert_err(gpunvme_dev_read(&f.ns, 2048, 1, &f.buf, 0, 0), GPUNVME_ERR_RANGE);
    assert_err(gpunvme_dev_read(&f.ns, 2047, 2, &f.buf, 0, 0), GPUNVME_ERR_RANGE);
    assert_err(gpunvme_dev_read(&f.ns, 1, UINT64_MAX, &f.buf, 0, 0), GPUNVME_ERR_RANGE);
    assert_err(gpunvme_dev_warp_write(&f.ns, UINT64_MAX, 2, &f.buf, 0, 0, 0), GPUNVME_ERR_RANGE);
    assert_err(gpunvme_dev_submit_read(&f.ns, 2048, 1, &f.buf, 0, &t), GPUNVME_ERR_RANGE);
    assert_err(gpunvme_dev_read_bytes(&f.ns, 1 << 20, 1, &f.buf, 0, 0), GPUNVME_ERR_RANGE);
    assert_err(gpunvme_dev_write_bytes(&f.ns, 5, UINT64_MAX, &f.buf, 0, 0, 0), GPUNVME_ERR_RANGE);
    fixture_close(&f);
}

static void what_is_beyond_the_buffer_is_refused(void **state)
{
    uint64_t end = DEVICE_BUF_NBYTES;
    struct gpunvme_dev_token t;
    struct fixture f;

    (void)state;
    fixture_open(&f, "sim:size=1M", NULL);
    assert_err(gpunvme_dev_read(&f.ns, 0, 1, &f.buf, end - 512, 0), GPUNVME_OK);
    assert_err(gpunvme_dev_read(&f.ns, 0, 1, &f.buf, end - 508, 0), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_dev_block_read(&f.ns, 0, 1, &f.buf, UINT64_MAX - 3, 0), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_dev_submit_write(&f.ns, 0, 1, &f.buf, end, 0, &t), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_dev_read_bytes(&f.ns, 0, 2, &f.buf, end - 1, 0), GPUNVME_ERR_INVALID);
    fixture_close(&f);
}

static void what_one_command_cannot_do_is_refused(void **state)
{
    struct gpunvme_dev_token t;
    struct fixture f;

    (void)state;
    fixture_open(&f, "sim:size=1M,mdts=2,noiob=24", NULL);
    assert_err(gpunvme_dev_submit_read(&f.ns, 0, 0, &f.buf, 0, &t), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_dev_submit_read(&f.ns, 23, 2, &f.buf, 0, &t), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_dev_submit_read(&f.ns, 0, 33, &f.buf, 0, &t), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_dev_submit_read(&f.ns, 0, 1, &f.buf, 2, &t), GPUNVME_ERR_ALIGN);
    assert_err(gpunvme_dev_read(&f.ns, 0, 0, &f.buf, 0, 0), GPUNVME_OK);
    fixture_close(&f);
}

static void writes_to_a_protected_namespace_are_refused(void **state)
{
    struct gpunvme_dev_token t;
    struct fixture f;

    (void)state;
    fixture_open(&f, "sim:size=1M", NULL);
    f.ns.readonly = 1;
    assert_err(gpunvme_dev_write(&f.ns, 0, 1, &f.buf, 0, 0, 0), GPUNVME_ERR_READONLY);
    assert_err(gpunvme_dev_submit_write(&f.ns, 0, 1, &f.buf, 0, 0, &t), GPUNVME_ERR_READONLY);
    assert_err(gpunvme_dev_write_bytes(&f.ns, 0, 1, &f.buf, 0, 0, 0), GPUNVME_ERR_READONLY);
    assert_err(gpunvme_dev_read(&f.ns, 0, 1, &f.buf, 0, 0), GPUNVME_OK);
    fixture_close(&f);
}

static void a_list_that_is_too_short_is_refused(void **state)
{
    struct dev_rig_opts opts;
    struct fixture f;

    (void)state;
    dev_rig_opts_init(&opts);
    opts.list_nbytes = 16;
    fixture_open(&f, "sim:size=1M", &opts);
    image_fill(&f, 18);
    assert_err(gpunvme_dev_read(&f.ns, 0, 24, &f.buf, 0, 0), GPUNVME_OK);
    assert_memory_equal(f.bytes, f.image, 24 * 512);
    assert_err(gpunvme_dev_read(&f.ns, 0, 25, &f.buf, 0, 0), GPUNVME_ERR_LIMIT);
    assert_err(gpunvme_dev_warp_read(&f.ns, 0, 2048, &f.buf, 0, 0), GPUNVME_ERR_LIMIT);
    fixture_close(&f);
}

static void a_full_queue_says_so(void **state)
{
    struct gpunvme_dev_token tokens[8];
    struct dev_rig_opts opts;
    struct fixture f;

    (void)state;
    dev_rig_opts_init(&opts);
    opts.entries = 4;
    fixture_open(&f, "sim:size=1M", &opts);
    for (unsigned i = 0; i < 3; i++)
        assert_err(gpunvme_dev_submit_read(&f.ns, i, 1, &f.buf, 512 * i, &tokens[i]), GPUNVME_OK);
    assert_err(gpunvme_dev_submit_read(&f.ns, 3, 1, &f.buf, 0, &tokens[3]), GPUNVME_ERR_AGAIN);
    /* The room is this thread's own: it must not wait for itself for ever. */
    assert_err(gpunvme_dev_read(&f.ns, 3, 1, &f.buf, 4096, 50 * MS), GPUNVME_ERR_TIMEOUT);
    assert_false(dev_rig_alarmed(&f.rig)); /* which would have a good controller reset */
    for (unsigned i = 0; i < 3; i++)
        assert_err(gpunvme_dev_wait(&f.ns, &tokens[i], 0), GPUNVME_OK);
    assert_err(gpunvme_dev_read(&f.ns, 3, 1, &f.buf, 4096, 0), GPUNVME_OK);
    fixture_close(&f);
}

static void a_closed_queue_says_so(void **state)
{
    struct gpunvme_dev_vec vec[2] = {{0, 0, 1}, {1, 512, 1}};
    struct gpunvme_dev_token t, tokens[2];
    struct fixture f;
    uint32_t n;

    (void)state;
    fixture_open(&f, "sim:size=1M", NULL);
    gpunvme_fetch_or64(&f.ns.queues[0].reserved, GPUNVME_QPAIR_CLOSED);
    assert_err(gpunvme_dev_submit_readv(&f.ns, vec, 2, &f.buf, tokens, &n), GPUNVME_ERR_CLOSED);
    assert_int_equal(dev_rig_taken(&f.rig, 0), 0);
    assert_err(gpunvme_dev_read(&f.ns, 0, 1, &f.buf, 0, 0), GPUNVME_ERR_CLOSED);
    assert_err(gpunvme_dev_submit_flush(&f.ns, &t), GPUNVME_ERR_CLOSED);
    assert_err(gpunvme_dev_read_bytes(&f.ns, 1, 1, &f.buf, 0, 0), GPUNVME_ERR_CLOSED);
    assert_err(gpunvme_dev_warp_read(&f.ns, 0, 99, &f.buf, 0, 0), GPUNVME_ERR_CLOSED);
    fixture_close(&f);
}

/* What whoever reaps does with a completion. */
static void complete_by_hand(struct fixture *f, const struct gpunvme_dev_token *t, uint32_t status)
{
    struct gpunvme_dev_queue *q = &f->ns.queues[0];
    uint64_t *word = &q->slots[t->ticket & q->mask].word;

    gpunvme_store64_fenced_gpu(word, *word | GPUNVME_SLOT_DONE | status);
}

static void commands_that_a_reset_ends_are_told(void **state)
{
    struct gpunvme_dev_token t;
    struct fixture f;

    (void)state;
    fixture_open(&f, "sim:size=1M", NULL);
    assert_ok(gpunvme_sim_fault(f.d.sim, "delay=300ms:read:once"));
    assert_err(gpunvme_dev_submit_read(&f.ns, 0, 1, &f.buf, 0, &t), GPUNVME_OK);
    complete_by_hand(&f, &t, GPUNVME_SC_HOST_ABORTED);
    assert_err(gpunvme_dev_wait(&f.ns, &t, 0), GPUNVME_ERR_ABORTED);
    fixture_close(&f);
}

/* A holder of the doorbell may leave marks behind; nobody else submits or waits here. */
static void tests_of_a_token_ring_for_what_was_left(void **state)
{
    uint64_t until = gpunvme_clock_ns() + PATIENCE_NS;
    struct gpunvme_dev_token token;
    struct fixture f;
    int err;

    (void)state;
    fixture_open(&f, "sim:size=1M", NULL);
    gpunvme_fetch_or32(&f.ns.queues->published, GPUNVME_DEV_QUEUE_LOCKED);
    assert_err(gpunvme_dev_submit_read(&f.ns, 0, 1, &f.buf, 0, &token), GPUNVME_OK);
    gpunvme_fetch_and32(&f.ns.queues->published, ~GPUNVME_DEV_QUEUE_LOCKED);
    while ((err = gpunvme_dev_test(&token)) == GPUNVME_ERR_AGAIN && gpunvme_clock_ns() < until)
        sched_yield();
    assert_err(err, GPUNVME_OK);
    fixture_close(&f);
}

static void a_token_ends_once(void **state)
{
    struct gpunvme_dev_token t;
    struct fixture f;

    (void)state;
    fixture_open(&f, "sim:size=1M", NULL);
    assert_err(gpunvme_dev_submit_read(&f.ns, 0, 1, &f.buf, 0, &t), GPUNVME_OK);
    assert_err(gpunvme_dev_wait(&f.ns, &t, 0), GPUNVME_OK);
    assert_err(gpunvme_dev_wait(&f.ns, &t, 0), GPUNVME_ERR_STALE);
    assert_err(gpunvme_dev_test(&t), GPUNVME_ERR_STALE);
    fixture_close(&f);
}

/* One that was refused must not be waited for until the deadline, which resets the controller. */
static void a_token_of_nothing_is_stale(void **state)
{
    enum gpunvme_reaper reapers[] = {GPUNVME_REAPER_WAITERS, GPUNVME_REAPER_CPU};
    struct gpunvme_dev_token tokens[3], t;
    struct dev_rig_opts opts;
    struct fixture f;

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        dev_rig_opts_init(&opts);
        opts.entries = 4;
        opts.timeout_ns = 100 * MS;
        opts.reaper = reapers[i];
        fixture_open(&f, "sim:size=1M", &opts);
        assert_err(gpunvme_dev_submit_read(&f.ns, 0, 0, &f.buf, 0, &t), GPUNVME_ERR_INVALID);
        assert_err(gpunvme_dev_wait(&f.ns, &t, 0), GPUNVME_ERR_STALE);
        assert_err(gpunvme_dev_submit_read(&f.ns, 0, 9, NULL, 0, &t), GPUNVME_ERR_INVALID);
        assert_err(gpunvme_dev_submit_write(&f.ns, 0, 1, NULL, 0, 0, &t), GPUNVME_ERR_INVALID);
        assert_err(gpunvme_dev_test(&t), GPUNVME_ERR_STALE);
        for (unsigned k = 0; k < 3; k++)
            assert_err(gpunvme_dev_submit_flush(&f.ns, &tokens[k]), GPUNVME_OK);
        assert_err(gpunvme_dev_submit_flush(&f.ns, &t), GPUNVME_ERR_AGAIN);
        assert_err(gpunvme_dev_wait(&f.ns, &t, 0), GPUNVME_ERR_STALE);
        assert_false(dev_rig_alarmed(&f.rig));
        assert_ok(gpunvme_ctrl_reset(f.d.ctrl)); /* nobody reaps for the CPU here */
        f.rig.nqueues = 0;
        fixture_close(&f);
    }
}

static void a_token_that_was_given_up_is_stale(void **state)
{
    enum gpunvme_reaper reapers[] = {GPUNVME_REAPER_WAITERS, GPUNVME_REAPER_CPU};
    struct gpunvme_dev_token t;
    struct dev_rig_opts opts;
    struct fixture f;

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        dev_rig_opts_init(&opts);
        opts.reaper = reapers[i];
        fixture_open(&f, "sim:size=1M", &opts);
        assert_ok(gpunvme_sim_fault(f.d.sim, "lose:read:once"));
        assert_err(gpunvme_dev_submit_read(&f.ns, 0, 1, &f.buf, 0, &t), GPUNVME_OK);
        assert_err(gpunvme_dev_wait(&f.ns, &t, 10 * MS), GPUNVME_ERR_TIMEOUT);
        assert_err(gpunvme_dev_wait(&f.ns, &t, 10 * MS), GPUNVME_ERR_STALE);
        assert_err(gpunvme_dev_test(&t), GPUNVME_ERR_STALE);
        assert_ok(gpunvme_ctrl_reset(f.d.ctrl));
        f.rig.nqueues = 0;
        fixture_close(&f);
    }
}

/* --- defects of published queues ----------------------------------------------------------------
 */

/* Each bit by itself and all of them: written by hand where the controller would write it. */
static void every_bit_of_a_status_reaches_the_caller(void **state)
{
    struct fixture f;

    (void)state;
    fixture_open(&f, "sim:size=1M", NULL);
    assert_ok(gpunvme_sim_fault(f.d.sim, "lose:read"));
    for (unsigned bit = 0; bit <= 15; bit++) {
        uint32_t status = bit < 15 ? 1u << bit : 0x7fff;
        struct gpunvme_dev_token t;

        assert_err(gpunvme_dev_submit_read(&f.ns, 0, 1, &f.buf, 0, &t), GPUNVME_OK);
        complete_by_hand(&f, &t, status);
        assert_int_equal(gpunvme_dev_wait(&f.ns, &t, 0), -0x8000 - (int)status);
        /* The controller has it in flight: its id must not come again. */
        f.ns.queues[0].slots[t.ticket & f.ns.queues[0].mask].word |= GPUNVME_DEV_SLOT_TAKEN;
    }
    /* The controller still has them in flight by name: a reset forgets them. */
    assert_ok(gpunvme_ctrl_reset(f.d.ctrl));
    f.rig.nqueues = 0;
    fixture_close(&f);
}

static void each_status_of_the_controller_reaches_the_caller(void **state)
{
    static const char *const rules[] = {"status=0/1:once", "status=1/80:once", "status=2/81:once",
                                        "status=3/2:once", "status=7/ff/dnr:once"};
    static const uint16_t statuses[] = {0x001, 0x180, 0x281, 0x302, 0x7ff | GPUNVME_STATUS_DNR};
    struct fixture f;

    (void)state;
    fixture_open(&f, "sim:size=1M", NULL);
    for (unsigned i = 0; i < 5; i++) {
        assert_ok(gpunvme_sim_fault(f.d.sim, rules[i]));
        assert_int_equal(gpunvme_dev_read(&f.ns, 0, 1, &f.buf, 0, 0),
                         GPUNVME_ERR_NVME(statuses[i]));
        assert_ok(gpunvme_sim_fault(f.d.sim, rules[i]));
        assert_int_equal(gpunvme_dev_warp_read(&f.ns, 0, 2048, &f.buf, 0, 0),
                         GPUNVME_ERR_NVME(statuses[i]));
        assert_ok(gpunvme_sim_fault(f.d.sim, rules[i]));
        assert_int_equal(gpunvme_dev_flush(&f.ns, 0), GPUNVME_ERR_NVME(statuses[i]));
    }
    fixture_close(&f);
}

static void a_command_that_is_done_does_not_wait_for_an_earlier_one(void **state)
{
    struct gpunvme_dev_token late, others[50];
    struct fixture f;

    (void)state;
    fixture_open(&f, "sim:size=1M", NULL);
    image_fill(&f, 20);
    assert_ok(gpunvme_sim_fault(f.d.sim, "delay=3s:read:once"));
    assert_err(gpunvme_dev_submit_read(&f.ns, 0, 1, &f.buf, 0, &late), GPUNVME_OK);
    /* Many times around the queue while the first command stands. */
    for (unsigned turn = 0; turn < 20; turn++) {
        for (unsigned i = 0; i < 50; i++)
            assert_err(gpunvme_dev_submit_read(&f.ns, i, 1, &f.buf, 512 * (i + 1), &others[i]),
                       GPUNVME_OK);
        for (unsigned i = 0; i < 50; i++)
            assert_err(gpunvme_dev_wait(&f.ns, &others[i], 0), GPUNVME_OK);
    }
    assert_err(gpunvme_dev_test(&late), GPUNVME_ERR_AGAIN);
    assert_err(gpunvme_dev_wait(&f.ns, &late, 0), GPUNVME_OK);
    assert_memory_equal(f.bytes, f.image, 512);
    fixture_close(&f);
}

static void a_lost_command_ends_at_its_deadline(void **state)
{
    struct gpunvme_dev_token t;
    struct fixture f;

    (void)state;
    fixture_open(&f, "sim:size=1M", NULL);
    assert_ok(gpunvme_sim_fault(f.d.sim, "lose:lba=9-9"));
    assert_false(dev_rig_alarmed(&f.rig));
    assert_err(gpunvme_dev_read(&f.ns, 9, 1, &f.buf, 0, 30 * MS), GPUNVME_ERR_TIMEOUT);
    assert_true(dev_rig_alarmed(&f.rig));
    assert_err(gpunvme_dev_submit_read(&f.ns, 9, 1, &f.buf, 0, &t), GPUNVME_OK);
    assert_err(gpunvme_dev_wait(&f.ns, &t, 30 * MS), GPUNVME_ERR_TIMEOUT);
    assert_err(gpunvme_dev_warp_read(&f.ns, 0, 256, &f.buf, 0, 30 * MS), GPUNVME_ERR_TIMEOUT);
    assert_err(gpunvme_dev_read_bytes(&f.ns, 9 * 512 + 1, 1, &f.buf, 0, 30 * MS),
               GPUNVME_ERR_TIMEOUT);
    assert_err(gpunvme_dev_write_bytes(&f.ns, 9 * 512 + 1, 1, &f.buf, 0, 0, 30 * MS),
               GPUNVME_ERR_TIMEOUT);
    /* Others go on. */
    for (unsigned i = 0; i < 200; i++)
        assert_err(gpunvme_dev_read(&f.ns, 10, 1, &f.buf, 0, 0), GPUNVME_OK);
    assert_ok(gpunvme_ctrl_reset(f.d.ctrl));
    f.rig.nqueues = 0;
    fixture_close(&f);
}

/* A late command that was given up gives its slot back when it ends after all. */
static void a_late_command_gives_its_slot_back(void **state)
{
    struct dev_rig_opts opts;
    struct fixture f;

    (void)state;
    dev_rig_opts_init(&opts);
    opts.entries = 2;
    opts.timeout_ns = 20 * MS;
    fixture_open(&f, "sim:size=1M", &opts);
    assert_ok(gpunvme_sim_fault(f.d.sim, "delay=3s:read:once"));
    assert_err(gpunvme_dev_read(&f.ns, 0, 1, &f.buf, 0, 0), GPUNVME_ERR_TIMEOUT);
    assert_err(gpunvme_dev_read(&f.ns, 0, 1, &f.buf, 0, PATIENCE_NS), GPUNVME_OK);
    assert_int_equal(dev_rig_taken(&f.rig, 0), 0);
    fixture_close(&f);
}

static void positions_and_tickets_wrap(void **state)
{
    static const uint64_t positions[] = {(UINT64_C(1) << 31) - 8, (UINT64_C(1) << 32) - 8,
                                         (UINT64_C(1) << 48) - 8, (UINT64_C(1) << 62) - 8};
    struct dev_rig_opts opts;
    struct fixture f;

    (void)state;
    for (unsigned p = 0; p < 4; p++) {
        dev_rig_opts_init(&opts);
        opts.entries = 4;
        opts.first_position = positions[p];
        opts.first_generation = p == 1 ? (UINT64_C(1) << 32) - 2 : (UINT64_C(1) << 47) - 2;
        fixture_open(&f, "sim:size=64K", &opts);
        image_fill(&f, 21);
        for (unsigned i = 0; i < 100; i++) {
            assert_err(gpunvme_dev_read(&f.ns, i, 1, &f.buf, 512 * i, 0), GPUNVME_OK);
            assert_memory_equal(f.bytes + 512 * i, f.image + 512 * i, 512);
        }
        assert_int_equal(dev_rig_taken(&f.rig, 0), 0);
        fixture_close(&f);
    }
}

static void any_namespace_and_lbas_beyond_2_to_the_32_work(void **state)
{
    uint64_t lba = (UINT64_C(1) << 32) + 5;
    const struct gpunvme_ns *third;
    struct fixture f;

    (void)state;
#if defined(__SANITIZE_THREAD__)
    printf("SKIP: no address space for 24 TiB beside the thread sanitizer's\n");
    skip();
#endif
    fixture_open(&f, "sim:ns=1,size=1M,ns=3,size=24T,block=4096", NULL);
    assert_ok(gpunvme_ctrl_ns(f.d.ctrl, 3, &third));
    f.ns = dev_rig_ns(&f.rig, third);
    fill_random(f.bytes, 8192, 22);
    assert_err(gpunvme_dev_write(&f.ns, lba, 2, &f.buf, 0, 0, 0), GPUNVME_OK);
    assert_err(gpunvme_dev_read(&f.ns, lba, 2, &f.buf, 8192, 0), GPUNVME_OK);
    assert_memory_equal(f.bytes, f.bytes + 8192, 8192);
    assert_ok(gpunvme_read(f.d.ioq, third, lba << 12, 8192, &f.d.buf, 16384));
    assert_memory_equal(f.bytes, f.bytes + 16384, 8192);
    assert_err(gpunvme_dev_read(&f.ns, 5, 2, &f.buf, 8192, 0), GPUNVME_OK);
    assert_int_equal(f.bytes[8192], 0);
    assert_err(gpunvme_dev_read(&f.ns, f.ns.nblocks - 1, 1, &f.buf, 0, 0), GPUNVME_OK);
    fixture_close(&f);
}

static void the_caller_can_choose_the_queue(void **state)
{
    struct dev_rig_opts opts;
    struct fixture f;

    (void)state;
    dev_rig_opts_init(&opts);
    opts.nqueues = 3;
    fixture_open(&f, "sim:size=1M", &opts);
    for (uint32_t i = 0; i < 3; i++) {
        struct gpunvme_dev_ns one = gpunvme_dev_on_queue(&f.ns, i);
        struct gpunvme_dev_token t;

        assert_err(gpunvme_dev_submit_read(&one, 0, 1, &f.buf, 0, &t), GPUNVME_OK);
        assert_ptr_equal(t.queue, &f.ns.queues[i]);
        assert_err(gpunvme_dev_wait(&f.ns, &t, 0), GPUNVME_OK);
    }
    assert_err(gpunvme_dev_read(&f.ns, 0, 9, &f.buf, 0, 0), GPUNVME_OK);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(read_moves_the_right_blocks),
        cmocka_unit_test(write_moves_the_right_blocks),
        cmocka_unit_test(the_last_block_can_be_read),
        cmocka_unit_test(transfers_of_any_size_and_place_in_memory_are_right),
        cmocka_unit_test(writes_by_lists_are_right),
        cmocka_unit_test(buffers_in_pieces_on_the_bus_are_right),
        cmocka_unit_test(long_transfers_are_split_at_the_limits),
        cmocka_unit_test(boundaries_are_found_at_any_address),
        cmocka_unit_test(split_phase_reads_any_number_at_once),
        cmocka_unit_test(a_thread_hopes_for_another_slot_at_each_submit),
        cmocka_unit_test(several_commands_are_submitted_with_one_doorbell),
        cmocka_unit_test(several_writes_are_on_the_drive),
        cmocka_unit_test(if_one_of_several_commands_is_wrong_none_is_submitted),
        cmocka_unit_test(as_many_of_several_commands_as_there_is_room_for_are_submitted),
        cmocka_unit_test(several_commands_are_submitted_to_a_queue_that_is_half_full),
        cmocka_unit_test(one_thread_can_fill_a_large_queue),
        cmocka_unit_test(split_phase_writes_and_flushes),
        cmocka_unit_test(a_write_by_fua_is_on_the_medium),
        cmocka_unit_test(warp_and_block_share_a_range),
        cmocka_unit_test(vectors_move_each_element),
        cmocka_unit_test(a_thread_moves_a_vector_of_its_own),
        cmocka_unit_test(warp_and_block_flush_once),
        cmocka_unit_test(vectors_tell_of_an_element_that_is_wrong),
        cmocka_unit_test(byte_ranges_of_any_place_are_right),
        cmocka_unit_test(byte_ranges_on_blocks_of_4_kib_are_right),
        cmocka_unit_test(byte_ranges_by_a_warp_are_right),
        cmocka_unit_test(byte_ranges_without_bounce_blocks_must_be_whole_blocks),
        cmocka_unit_test(an_error_in_a_part_of_a_block_is_told),
        cmocka_unit_test(what_is_out_of_range_is_refused),
        cmocka_unit_test(what_is_beyond_the_buffer_is_refused),
        cmocka_unit_test(what_one_command_cannot_do_is_refused),
        cmocka_unit_test(writes_to_a_protected_namespace_are_refused),
        cmocka_unit_test(a_list_that_is_too_short_is_refused),
        cmocka_unit_test(a_full_queue_says_so),
        cmocka_unit_test(a_closed_queue_says_so),
        cmocka_unit_test(commands_that_a_reset_ends_are_told),
        cmocka_unit_test(tests_of_a_token_ring_for_what_was_left),
        cmocka_unit_test(a_token_ends_once),
        cmocka_unit_test(a_token_of_nothing_is_stale),
        cmocka_unit_test(a_token_that_was_given_up_is_stale),
        cmocka_unit_test(every_bit_of_a_status_reaches_the_caller),
        cmocka_unit_test(each_status_of_the_controller_reaches_the_caller),
        cmocka_unit_test(a_command_that_is_done_does_not_wait_for_an_earlier_one),
        cmocka_unit_test(a_lost_command_ends_at_its_deadline),
        cmocka_unit_test(a_late_command_gives_its_slot_back),
        cmocka_unit_test(positions_and_tickets_wrap),
        cmocka_unit_test(any_namespace_and_lbas_beyond_2_to_the_32_work),
        cmocka_unit_test(the_caller_can_choose_the_queue),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
