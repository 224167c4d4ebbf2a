/* SPDX-License-Identifier: BSD-3-Clause
 *
 * I/O on the mock: every kind of transfer compared, byte by byte, with what memcpy would have done;
 * single commands by value; errors in the middle, full queues, no memory.
 */
#include "mock_test.h"
#include "rng.h"

#define NS_NBYTES  ((size_t)64 << 10)
#define BUF_NBYTES ((size_t)96 << 10)
#define CANARY     0xc7

/* How a transfer reaches memory. */
struct way {
    const char *name;
    unsigned block_shift;
    uint8_t mdts;           /* 2^n × 4 KiB; 0: no limit */
    uint16_t noiob;         /* blocks */
    unsigned scatter_shift; /* 0: contiguous */
    bool sgl;               /* the controller has SGLs */
    enum gpunvme_data_format format;
    bool gpu;   /* no cpu address: copies by the transport */
    size_t off; /* of the first byte in the buffer */
    uint32_t entries;
    bool newest_first;
};

struct bench {
    struct mock *m;
    struct gpunvme_ctrl *ctrl;
    struct gpunvme_ioq *ioq;
    const struct gpunvme_ns *ns;
    struct gpunvme_buf buf;
    uint8_t *memory; /* the buffer's */
    uint8_t *disk;   /* the namespace's, in the mock */
};

static struct gpunvme_ctrl_opts opts_for(const struct way *w)
{
    struct gpunvme_ctrl_opts opts;

    gpunvme_ctrl_opts_init(&opts);
    opts.data_format = w->format;
    opts.io_timeout_ms = 200;
    opts.admin_timeout_ms = 100;
    return opts;
}

static void open_buffer(struct bench *b, const struct way *w)
{
    b->memory = aligned_alloc(65536, BUF_NBYTES + 65536 - BUF_NBYTES % 65536);
    assert_non_null(b->memory);
    memset(b->memory, CANARY, BUF_NBYTES);
    b->buf = (struct gpunvme_buf){.nbytes = BUF_NBYTES};
    b->buf.cpu = w->gpu ? NULL : b->memory;
    b->buf.gpu = w->gpu ? b->memory : NULL;
    b->buf.mem = w->gpu ? GPUNVME_MEM_GPU : GPUNVME_MEM_HOST;
    b->m->scatter_shift = w->scatter_shift;
    assert_ok(gpunvme_ctrl_map(b->ctrl, &b->buf));
}

static struct bench bench_open(const struct way *w)
{
    struct bench b = {.m = mock_open()};
    struct gpunvme_ctrl_opts opts = opts_for(w);
    struct mock_ns *ns;

    mock_remove_namespaces(b.m);
    ns = mock_add_ns(b.m, 1, NS_NBYTES >> w->block_shift, w->block_shift, true);
    ns->id.noiob = w->noiob;
    b.m->id.mdts = w->mdts;
    b.m->id.sgls = w->sgl ? GPUNVME_SGLS_SUPPORT_DWORD : 0;
    b.m->newest_first = w->newest_first;
    if (w->gpu) {
        b.m->ops.copy_to = mock_copy_to;
        b.m->ops.copy_from = mock_copy_from;
    }
    b.ctrl = bring_up_with(b.m, &opts);
    b.ns = gpunvme_ctrl_ns_at(b.ctrl, 0);
    b.disk = b.m->ns[0].data;
    assert_ok(gpunvme_ioq_create(b.ctrl, w->entries ? w->entries : 64, &b.ioq));
    open_buffer(&b, w);
    return b;
}

/* With everything given back: nothing in flight, no list or bounce buffer lost. */
static void bench_close(struct bench *b)
{
    assert_int_equal(gpunvme_qpair_outstanding(gpunvme_ioq_qpair(b->ioq)), 0);
    gpunvme_ctrl_unmap(b->ctrl, &b->buf);
    free(b->memory);
    take_down(b->m, b->ctrl);
}

static const struct way plain = {.block_shift = 9, .mdts = 5};

static void fill(uint8_t *p, size_t n, uint64_t seed)
{
    struct base_random r = {.state = seed};

    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)base_random_u64(&r);
}

/* --- against memcpy --------------------------------------------------------------------------- */

static const size_t offsets[] = {0, 1, 4, 511, 512, 516, 4095, 4096, 4097, 7680, 8190, 20000};
static const size_t lengths[] = {1, 3, 4, 511, 512, 513, 1024, 4096, 4100, 8192, 9001, 40000};
#define N(array) (sizeof(array) / sizeof((array)[0]))

static void check_read(struct bench *b, size_t buf_off, size_t offset, size_t nbytes)
{
    static uint8_t want[BUF_NBYTES];

    memset(b->memory, CANARY, BUF_NBYTES);
    memset(want, CANARY, BUF_NBYTES);
    memcpy(want + buf_off, b->disk + offset, nbytes);
    assert_ok(gpunvme_read(b->ioq, b->ns, offset, nbytes, &b->buf, buf_off));
    if (memcmp(b->memory, want, BUF_NBYTES))
        fail_msg("read of %zu bytes at %zu into offset %zu", nbytes, offset, buf_off);
}

static void check_write(struct bench *b, size_t buf_off, size_t offset, size_t nbytes)
{
    static uint8_t want[NS_NBYTES];

    fill(b->memory, BUF_NBYTES, offset * 977 + nbytes);
    memcpy(want, b->disk, NS_NBYTES);
    memcpy(want + offset, b->memory + buf_off, nbytes);
    assert_ok(gpunvme_write(b->ioq, b->ns, offset, nbytes, &b->buf, buf_off, 0));
    if (memcmp(b->disk, want, NS_NBYTES))
        fail_msg("write of %zu bytes at %zu from offset %zu", nbytes, offset, buf_off);
}

static void every_transfer_does_what_memcpy_does(void **state)
{
    const struct way *w = *state;
    struct bench b = bench_open(w);

    fill(b.disk, NS_NBYTES, 1);
    for (unsigned i = 0; i < N(offsets); i++) {
        for (unsigned k = 0; k < N(lengths); k++) {
            check_read(&b, w->off, offsets[i], lengths[k]);
            check_write(&b, w->off, offsets[i], lengths[k]);
        }
    }
    /* All of it, and its last byte. */
    check_read(&b, w->off, 0, NS_NBYTES);
    check_write(&b, w->off, 0, NS_NBYTES);
    check_read(&b, w->off, NS_NBYTES - 1, 1);
    check_write(&b, w->off, NS_NBYTES - 1, 1);
    bench_close(&b);
}

static const struct way ways[] = {
    {.name = "512 byte blocks", .block_shift = 9, .mdts = 5},
    {.name = "4 KiB blocks", .block_shift = 12, .mdts = 5},
    {.name = "512 byte blocks, MDTS 8 KiB", .block_shift = 9, .mdts = 1},
    {.name = "4 KiB blocks, MDTS 8 KiB", .block_shift = 12, .mdts = 1},
    {.name = "no MDTS", .block_shift = 9},
    {.name = "boundary of 3 blocks", .block_shift = 9, .mdts = 5, .noiob = 3},
    {.name = "boundary of 1 block", .block_shift = 12, .mdts = 5, .noiob = 1},
    {.name = "boundary of 5 blocks, MDTS 8 KiB", .block_shift = 12, .mdts = 1, .noiob = 5},
    {.name = "buffer offset 4", .block_shift = 9, .mdts = 5, .off = 4},
    {.name = "buffer offset 2,052", .block_shift = 12, .mdts = 5, .off = 2052},
    {.name = "buffer offset 1", .block_shift = 9, .mdts = 5, .off = 1},
    {.name = "buffer offset 4,099", .block_shift = 12, .mdts = 1, .off = 4099},
    {.name = "pieces of 4 KiB", .block_shift = 9, .mdts = 5, .scatter_shift = 12},
    {.name = "pieces of 8 KiB, offset 12",
     .block_shift = 9,
     .mdts = 5,
     .scatter_shift = 13,
     .off = 12},
    {.name = "pieces of 64 KiB, offset 3", .block_shift = 12, .scatter_shift = 16, .off = 3},
    {.name = "SGLs where they help", .block_shift = 9, .mdts = 5, .sgl = true},
    {.name = "SGLs where they help, in pieces", .block_shift = 9, .sgl = true, .scatter_shift = 12},
    {.name = "PRPs in spite of SGLs",
     .block_shift = 9,
     .sgl = true,
     .format = GPUNVME_DATA_PRP,
     .scatter_shift = 12},
    {.name = "SGLs always", .block_shift = 9, .mdts = 5, .sgl = true, .format = GPUNVME_DATA_SGL},
    {.name = "SGLs always, in pieces, offset 8",
     .block_shift = 12,
     .sgl = true,
     .format = GPUNVME_DATA_SGL,
     .scatter_shift = 12,
     .off = 8},
    {.name = "no cpu address", .block_shift = 9, .mdts = 5, .gpu = true},
    {.name = "no cpu address, offset 2", .block_shift = 12, .mdts = 5, .gpu = true, .off = 2},
    {.name = "a queue of two entries", .block_shift = 9, .mdts = 1, .entries = 2},
    {.name = "a queue of four, newest first",
     .block_shift = 9,
     .mdts = 1,
     .noiob = 2,
     .entries = 4,
     .newest_first = true},
    {.name = "newest first", .block_shift = 9, .mdts = 1, .noiob = 1, .newest_first = true},
};

/* --- what is sent ----------------------------------------------------------------------------- */

static unsigned commands(const struct bench *b, uint8_t opcode)
{
    unsigned n = 0;

    for (unsigned i = 0; i < b->m->nio; i++)
        n += b->m->io[i].opcode == opcode;
    return n;
}

static void whole_blocks_are_written_without_reading(void **state)
{
    struct bench b = bench_open(&plain);

    (void)state;
    assert_ok(gpunvme_write(b.ioq, b.ns, 512, 20 * 512, &b.buf, 0, 0));
    assert_int_equal(commands(&b, GPUNVME_CMD_READ), 0);
    assert_int_equal(commands(&b, GPUNVME_CMD_WRITE), 1);
    assert_ok(gpunvme_write(b.ioq, b.ns, 100, 2000, &b.buf, 0, 0));
    assert_int_equal(commands(&b, GPUNVME_CMD_READ), 2); /* the two ends */
    assert_int_equal(commands(&b, GPUNVME_CMD_WRITE), 1 + 3);
    assert_ok(gpunvme_write(b.ioq, b.ns, 512, 2000, &b.buf, 0, 0));
    assert_int_equal(commands(&b, GPUNVME_CMD_READ), 3); /* one end */
    assert_ok(gpunvme_write(b.ioq, b.ns, 548, 988, &b.buf, 0, 0));
    assert_int_equal(commands(&b, GPUNVME_CMD_READ), 4);
    bench_close(&b);
}

static void a_transfer_is_cut_at_mdts_and_at_the_boundary(void **state)
{
    static const struct {
        uint64_t slba;
        uint32_t nlb;
    } want[] = {{3, 7}, {10, 10}, {20, 10}, {30, 10}, {40, 2}};
    struct bench b;

    (void)state;
    b = bench_open(&(struct way){.block_shift = 9, .mdts = 5, .noiob = 10});
    assert_ok(gpunvme_read(b.ioq, b.ns, 3 * 512, 39 * 512, &b.buf, 0));
    assert_int_equal(b.m->nio, 5);
    for (unsigned i = 0; i < 5; i++) {
        assert_true(b.m->io[i].slba == want[i].slba);
        assert_int_equal(b.m->io[i].nlb, want[i].nlb);
    }
    bench_close(&b);
    b = bench_open(&(struct way){.block_shift = 9, .mdts = 1});
    assert_ok(gpunvme_read(b.ioq, b.ns, 512, 40 * 512, &b.buf, 0));
    assert_int_equal(b.m->nio, 3); /* 16 + 16 + 8 blocks */
    assert_int_equal(b.m->io[1].nlb, 16);
    assert_int_equal(b.m->io[2].nlb, 8);
    bench_close(&b);
}

/* Without a limit of the controller: 1 MiB of the caller's memory, or one bounce buffer. */
static void long_transfers_go_in_pieces_that_run_beside_each_other(void **state)
{
    enum { LONG = 4 << 20 };
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl;
    const struct gpunvme_ns *ns;
    struct gpunvme_ioq *ioq;
    struct gpunvme_buf buf;

    (void)state;
    m->id.mdts = 0;
    mock_remove_namespaces(m);
    mock_add_ns(m, 1, LONG / 512, 9, true);
    fill(m->ns[0].data, LONG, 10);
    ctrl = bring_up(m);
    ns = gpunvme_ctrl_ns_at(ctrl, 0);
    assert_ok(gpunvme_ioq_create(ctrl, 8, &ioq));
    assert_ok(gpunvme_ctrl_alloc(ctrl, LONG, GPUNVME_MEM_HOST, &buf));
    assert_ok(gpunvme_read(ioq, ns, 0, LONG, &buf, 0));
    assert_memory_equal(buf.cpu, m->ns[0].data, LONG);
    assert_int_equal(m->nio, 4);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(m->io[i].nlb, 2048);
    m->nio = 0;
    assert_ok(gpunvme_read(ioq, ns, 1, LONG - 1, &buf, 0));
    assert_memory_equal(buf.cpu, m->ns[0].data + 1, LONG - 1);
    for (unsigned i = 0; i < m->nio; i++)
        assert_in_range(m->io[i].nlb, 1, 256);
    gpunvme_ctrl_free(ctrl, &buf);
    take_down(m, ctrl);
}

static uint64_t host_nbytes(struct gpunvme_ctrl *ctrl)
{
    struct gpunvme_ctrl_info info;

    gpunvme_ctrl_get_info(ctrl, &info);
    return info.host_nbytes;
}

static void lists_and_bounce_buffers_are_used_again(void **state)
{
    struct bench b = bench_open(&(struct way){.block_shift = 9, .mdts = 5, .scatter_shift = 12});
    uint64_t first = 0;

    (void)state;
    for (unsigned i = 0; i < 100; i++) {
        assert_ok(gpunvme_read(b.ioq, b.ns, 0, NS_NBYTES, &b.buf, 0)); /* lists */
        assert_ok(gpunvme_read(b.ioq, b.ns, 1, 60000, &b.buf, 0));     /* bounces */
        assert_ok(gpunvme_write(b.ioq, b.ns, 1, 60000, &b.buf, 1, 0));
        assert_ok(gpunvme_deallocate(b.ioq, b.ns, 0, 1));
        if (!i)
            first = host_nbytes(b.ctrl);
    }
    assert_true(host_nbytes(b.ctrl) == first);
    /* Nor are they lost when commands fail. */
    mock_on_io(b.m, -1, -1, MOCK_STATUS, GPUNVME_SC_INTERNAL);
    for (unsigned i = 0; i < 100; i++) {
        assert_true(gpunvme_read(b.ioq, b.ns, 0, NS_NBYTES, &b.buf, 0) < 0);
        assert_true(gpunvme_read(b.ioq, b.ns, 1, 60000, &b.buf, 0) < 0);
        assert_true(gpunvme_write(b.ioq, b.ns, 1, 60000, &b.buf, 1, 0) < 0);
        assert_true(gpunvme_deallocate(b.ioq, b.ns, 0, 1) < 0);
    }
    assert_true(host_nbytes(b.ctrl) == first);
    bench_close(&b);
}

static void fua_is_on_every_write_of_a_transfer_and_on_no_read(void **state)
{
    struct bench b = bench_open(&plain);

    (void)state;
    assert_ok(gpunvme_write(b.ioq, b.ns, 100, 3000, &b.buf, 0, 0));
    for (unsigned i = 0; i < b.m->nio; i++)
        assert_int_equal(b.m->io[i].cdw12 & GPUNVME_RW_FUA, 0);
    b.m->nio = 0;
    assert_ok(gpunvme_write(b.ioq, b.ns, 100, 3000, &b.buf, 0, GPUNVME_IO_FUA));
    assert_ok(gpunvme_write(b.ioq, b.ns, 700, 100, &b.buf, 0, GPUNVME_IO_FUA));
    for (unsigned i = 0; i < b.m->nio; i++)
        assert_int_equal((b.m->io[i].cdw12 & GPUNVME_RW_FUA) != 0,
                         b.m->io[i].opcode == GPUNVME_CMD_WRITE);
    bench_close(&b);
}

static void no_bytes_are_no_commands(void **state)
{
    struct bench b = bench_open(&plain);

    (void)state;
    assert_ok(gpunvme_read(b.ioq, b.ns, 77, 0, NULL, 0));
    assert_ok(gpunvme_write(b.ioq, b.ns, NS_NBYTES, 0, NULL, 0, 0));
    assert_ok(gpunvme_compare(b.ioq, b.ns, 5, 0, NULL, 0));
    assert_ok(gpunvme_write_zeroes(b.ioq, b.ns, 5, 0, true));
    assert_ok(gpunvme_deallocate(b.ioq, b.ns, 5, 0));
    assert_ok(gpunvme_verify(b.ioq, b.ns, 5, 0));
    assert_int_equal(b.m->nio, 0);
    bench_close(&b);
}

static void an_sgl_is_used_where_it_saves_a_list(void **state)
{
    struct bench b = bench_open(&(struct way){.block_shift = 12, .mdts = 5, .sgl = true});
    struct bench s =
        bench_open(&(struct way){.block_shift = 12, .mdts = 5, .sgl = true, .scatter_shift = 12});

    (void)state;
    assert_ok(gpunvme_read(b.ioq, b.ns, 0, 4096, &b.buf, 0));  /* one page */
    assert_ok(gpunvme_read(b.ioq, b.ns, 0, 8192, &b.buf, 0));  /* two */
    assert_ok(gpunvme_read(b.ioq, b.ns, 0, 12288, &b.buf, 0)); /* three: a list */
    assert_int_equal(b.m->io[0].psdt, GPUNVME_PSDT_PRP);
    assert_int_equal(b.m->io[1].psdt, GPUNVME_PSDT_PRP);
    assert_int_equal(b.m->io[2].psdt, GPUNVME_PSDT_SGL_MPTR_CONTIG);
    assert_ok(gpunvme_read(s.ioq, s.ns, 0, 32768, &s.buf, 0)); /* not one run */
    assert_int_equal(s.m->io[0].psdt, GPUNVME_PSDT_PRP);
    bench_close(&b);
    bench_close(&s);
}

/* Each run on the bus takes a descriptor, and there may be as many as pages. */
static void the_longest_command_in_pieces_fits_its_sgl(void **state)
{
    (void)state;
    for (uint8_t mdts = 5; mdts <= 10; mdts++) { /* 128 KiB to 4 MiB */
        struct gpunvme_ctrl_opts opts = opts_for(&(struct way){.format = GPUNVME_DATA_SGL});
        struct gpunvme_buf buf = {.nbytes = (size_t)4096 << mdts};
        struct mock *m = mock_open();
        struct gpunvme_token token;
        struct gpunvme_ctrl *ctrl;
        struct gpunvme_ioq *ioq;

        mock_remove_namespaces(m);
        mock_add_ns(m, 1, 1024, 12, false);
        m->id.mdts = mdts;
        m->id.sgls = GPUNVME_SGLS_SUPPORT_DWORD;
        m->scatter_shift = 12;
        ctrl = bring_up_with(m, &opts);
        assert_ok(gpunvme_ioq_create(ctrl, 64, &ioq));
        buf.cpu = aligned_alloc(4096, buf.nbytes);
        assert_ok(gpunvme_ctrl_map(ctrl, &buf));
        assert_ok(
            gpunvme_submit_read(ioq, gpunvme_ctrl_ns_at(ctrl, 0), 0, 1u << mdts, &buf, 0, &token));
        assert_ok(gpunvme_token_wait(&token, 0));
        gpunvme_ctrl_unmap(ctrl, &buf);
        free(buf.cpu);
        take_down(m, ctrl);
    }
}

/* --- single commands -------------------------------------------------------------------------- */

static void a_block_beyond_32_bits_is_addressed_whole(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl;
    struct gpunvme_token token;
    struct gpunvme_ioq *ioq;
    struct gpunvme_buf buf;

    (void)state;
    mock_remove_namespaces(m);
    mock_add_ns(m, 5, UINT64_C(1) << 50, 9, false);
    ctrl = bring_up(m);
    assert_ok(gpunvme_ioq_create(ctrl, 8, &ioq));
    assert_ok(gpunvme_ctrl_alloc(ctrl, 4096, GPUNVME_MEM_HOST, &buf));
    assert_ok(gpunvme_submit_write(ioq, gpunvme_ctrl_ns_at(ctrl, 0), UINT64_C(0x2fedcba987654), 8,
                                   &buf, 0, GPUNVME_IO_FUA, &token));
    assert_ok(gpunvme_token_wait(&token, 0));
    assert_true(m->io[0].slba == UINT64_C(0x2fedcba987654));
    assert_int_equal(m->io[0].nlb, 8);
    assert_int_equal(m->io[0].nsid, 5);
    assert_int_equal(m->io[0].opcode, GPUNVME_CMD_WRITE);
    assert_int_equal(m->io[0].cdw12, GPUNVME_RW_FUA | 7);
    gpunvme_ctrl_free(ctrl, &buf);
    take_down(m, ctrl);
}

static void tokens_end_in_any_order_with_their_bytes(void **state)
{
    struct bench b = bench_open(&(struct way){.block_shift = 9, .mdts = 5, .newest_first = true});
    struct gpunvme_token tokens[40];

    (void)state;
    fill(b.disk, NS_NBYTES, 3);
    b.m->latency_ns = 50000;
    for (unsigned i = 0; i < 40; i++) {
        assert_ok(gpunvme_submit_read(b.ioq, b.ns, i * 3, 3, &b.buf, i * 1536, &tokens[i]));
        assert_err(gpunvme_token_test(&tokens[i]), GPUNVME_ERR_AGAIN);
    }
    for (unsigned i = 0; i < 40; i++) {
        unsigned k = i * 7 % 40;

        assert_ok(gpunvme_token_wait(&tokens[k], 0));
        assert_memory_equal(b.memory + k * 1536, b.disk + k * 1536, 1536);
        assert_err(gpunvme_token_test(&tokens[k]), GPUNVME_ERR_STALE);
        assert_err(gpunvme_token_wait(&tokens[k], 0), GPUNVME_ERR_STALE);
    }
    bench_close(&b);
}

/* 63 commands of 20 pages: more lists than a pool has at first. */
static void as_many_lists_as_commands_are_there(void **state)
{
    struct bench b =
        bench_open(&(struct way){.block_shift = 12, .mdts = 5, .scatter_shift = 12, .off = 4});
    struct gpunvme_token tokens[64];

    (void)state;
    fill(b.disk, NS_NBYTES, 4);
    b.m->latency_ns = 50000;
    for (unsigned i = 0; i < 63; i++)
        assert_ok(gpunvme_submit_read(b.ioq, b.ns, i % 4, 12, &b.buf, 4, &tokens[i]));
    assert_err(gpunvme_submit_read(b.ioq, b.ns, 0, 12, &b.buf, 4, &tokens[63]), GPUNVME_ERR_AGAIN);
    for (unsigned i = 0; i < 63; i++)
        assert_ok(gpunvme_token_wait(&tokens[i], 0));
    assert_memory_equal(b.memory + 4, b.disk + (62 % 4) * 4096, 12 * 4096);
    bench_close(&b);
}

static void a_command_that_cannot_be_is_refused(void **state)
{
    struct bench b = bench_open(&(struct way){.block_shift = 9, .mdts = 1, .noiob = 10});
    struct gpunvme_token t;
    struct gpunvme_buf no_bus = b.buf, none = {0};

    (void)state;
    no_bus.bus = 0;
    assert_err(gpunvme_submit_read(b.ioq, b.ns, 0, 0, &b.buf, 0, &t), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_submit_read(b.ioq, b.ns, 0, 17, &b.buf, 0, &t), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_submit_read(b.ioq, b.ns, 5, 6, &b.buf, 0, &t), GPUNVME_ERR_INVALID);
    assert_detail("boundary");
    assert_err(gpunvme_submit_read(b.ioq, b.ns, 128, 1, &b.buf, 0, &t), GPUNVME_ERR_RANGE);
    assert_err(gpunvme_submit_read(b.ioq, b.ns, 127, 2, &b.buf, 0, &t), GPUNVME_ERR_RANGE);
    assert_err(gpunvme_submit_read(b.ioq, b.ns, UINT64_MAX, 1, &b.buf, 0, &t), GPUNVME_ERR_RANGE);
    assert_err(gpunvme_submit_read(b.ioq, b.ns, 0, 1, &b.buf, BUF_NBYTES - 511, &t),
               GPUNVME_ERR_INVALID);
    assert_err(gpunvme_submit_read(b.ioq, b.ns, 0, 1, &b.buf, SIZE_MAX - 3, &t),
               GPUNVME_ERR_INVALID);
    assert_err(gpunvme_submit_read(b.ioq, b.ns, 0, 1, &b.buf, 2, &t), GPUNVME_ERR_ALIGN);
    assert_err(gpunvme_submit_read(b.ioq, b.ns, 0, 1, &no_bus, 0, &t), GPUNVME_ERR_INVALID);
    assert_detail("bus address");
    assert_err(gpunvme_submit_read(b.ioq, b.ns, 0, 1, &none, 0, &t), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_submit_read(b.ioq, b.ns, 0, 1, NULL, 0, &t), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_submit_read(NULL, b.ns, 0, 1, &b.buf, 0, &t), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_submit_read(b.ioq, NULL, 0, 1, &b.buf, 0, &t), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_submit_write(b.ioq, b.ns, 0, 1, &b.buf, 0, 0, NULL), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_submit_flush(NULL, b.ns, &t), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_submit_flush(b.ioq, NULL, &t), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_submit_flush(b.ioq, b.ns, NULL), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_token_test(NULL), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_token_wait(NULL, 0), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_token_test(&(struct gpunvme_token){0}), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_token_wait(&(struct gpunvme_token){0}, 0), GPUNVME_ERR_INVALID);
    assert_int_equal(b.m->nio, 0);
    bench_close(&b);
}

static void a_transfer_that_cannot_be_is_refused(void **state)
{
    struct bench b = bench_open(&plain);
    struct gpunvme_buf no_bus = b.buf;

    (void)state;
    no_bus.bus = 0;
    assert_err(gpunvme_read(b.ioq, b.ns, NS_NBYTES, 1, &b.buf, 0), GPUNVME_ERR_RANGE);
    assert_err(gpunvme_read(b.ioq, b.ns, NS_NBYTES - 5, 6, &b.buf, 0), GPUNVME_ERR_RANGE);
    assert_err(gpunvme_read(b.ioq, b.ns, UINT64_MAX, 2, &b.buf, 0), GPUNVME_ERR_RANGE);
    assert_err(gpunvme_write(b.ioq, b.ns, 1, SIZE_MAX, &b.buf, 0, 0), GPUNVME_ERR_RANGE);
    assert_err(gpunvme_read(b.ioq, b.ns, 0, 10, &b.buf, BUF_NBYTES - 9), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_write(b.ioq, b.ns, 0, 10, &b.buf, BUF_NBYTES + 1, 0), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_read(b.ioq, b.ns, 0, 10, NULL, 0), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_write(b.ioq, b.ns, 0, 10, &no_bus, 0, 0), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_read(NULL, b.ns, 0, 10, &b.buf, 0), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_write(b.ioq, NULL, 0, 10, &b.buf, 0, 0), GPUNVME_ERR_INVALID);
    assert_int_equal(b.m->nio, 0);
    bench_close(&b);
}

static void a_write_protected_namespace_is_read_only(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl;
    const struct gpunvme_ns *ns;
    struct gpunvme_token token;
    struct gpunvme_ioq *ioq;
    struct gpunvme_buf buf;

    (void)state;
    m->ns[0].id.nsattr = GPUNVME_NSATTR_WRITE_PROTECTED;
    ctrl = bring_up(m);
    assert_ok(gpunvme_ctrl_ns(ctrl, 1, &ns));
    assert_ok(gpunvme_ioq_create(ctrl, 8, &ioq));
    assert_ok(gpunvme_ctrl_alloc(ctrl, 4096, GPUNVME_MEM_HOST, &buf));
    assert_err(gpunvme_submit_write(ioq, ns, 0, 1, &buf, 0, 0, &token), GPUNVME_ERR_READONLY);
    assert_err(gpunvme_write(ioq, ns, 0, 512, &buf, 0, 0), GPUNVME_ERR_READONLY);
    assert_err(gpunvme_write_zeroes(ioq, ns, 0, 1, false), GPUNVME_ERR_READONLY);
    assert_err(gpunvme_deallocate(ioq, ns, 0, 1), GPUNVME_ERR_READONLY);
    assert_int_equal(m->nio, 0);
    assert_ok(gpunvme_read(ioq, ns, 1, 1000, &buf, 0));
    assert_ok(gpunvme_compare(ioq, ns, 0, 1, &buf, 0));
    assert_ok(gpunvme_verify(ioq, ns, 0, 1));
    gpunvme_ctrl_free(ctrl, &buf);
    take_down(m, ctrl);
}

/* --- commands without data, Compare ----------------------------------------------------------- */

static void commands_over_many_blocks_are_cut(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl;
    const struct gpunvme_ns *ns;
    struct gpunvme_ioq *ioq;
    uint64_t next = 7;

    (void)state;
    mock_remove_namespaces(m);
    mock_add_ns(m, 1, UINT64_C(1) << 34, 9, false)->id.dlfeat = GPUNVME_DLFEAT_DEAC;
    ctrl = bring_up(m);
    ns = gpunvme_ctrl_ns_at(ctrl, 0);
    assert_ok(gpunvme_ioq_create(ctrl, 8, &ioq));
    assert_ok(gpunvme_write_zeroes(ioq, ns, 7, 1000, true));
    for (unsigned i = 0; i < m->nio; i++) {
        assert_int_equal(m->io[i].opcode, GPUNVME_CMD_WRITE_ZEROES);
        assert_true(m->io[i].slba == next);
        assert_int_equal(m->io[i].cdw12 & ~0xffffu, GPUNVME_WZ_DEAC);
        next += m->io[i].nlb;
    }
    assert_true(next == 1007);
    m->nio = 0;
    assert_ok(gpunvme_verify(ioq, ns, UINT64_C(1) << 33, 600));
    for (unsigned i = 0; i < m->nio; i++)
        assert_int_equal(m->io[i].opcode, GPUNVME_CMD_VERIFY);
    assert_true(m->io[0].slba == UINT64_C(1) << 33);
    m->nio = 0;
    /* A range has 32 bits of blocks. */
    assert_ok(gpunvme_deallocate(ioq, ns, 1, (UINT64_C(1) << 33) + 5));
    assert_int_equal(m->nio, 3);
    take_down(m, ctrl);
}

static void deac_is_not_set_where_the_namespace_lacks_it(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl;
    struct gpunvme_ioq *ioq;

    (void)state;
    m->ns[0].id.dlfeat = (uint8_t)~GPUNVME_DLFEAT_DEAC;
    ctrl = bring_up(m);
    assert_ok(gpunvme_ioq_create(ctrl, 8, &ioq));
    assert_ok(gpunvme_write_zeroes(ioq, gpunvme_ctrl_ns_at(ctrl, 0), 0, 8, true));
    assert_int_equal(m->io[0].opcode, GPUNVME_CMD_WRITE_ZEROES);
    assert_int_equal(m->io[0].cdw12, 7);
    take_down(m, ctrl);
}

static void zeroes_and_deallocation_reach_their_blocks(void **state)
{
    struct bench b = bench_open(&plain);
    uint8_t *want = malloc(NS_NBYTES);

    (void)state;
    assert_non_null(want);
    fill(b.disk, NS_NBYTES, 8);
    memcpy(want, b.disk, NS_NBYTES);
    assert_ok(gpunvme_write_zeroes(b.ioq, b.ns, 3, 4, false));
    memset(want + 3 * 512, 0, 4 * 512);
    assert_memory_equal(b.disk, want, NS_NBYTES);
    assert_int_equal(b.m->io[0].cdw12, 3);
    assert_ok(gpunvme_deallocate(b.ioq, b.ns, 100, 28));
    memset(want + 100 * 512, 0, 28 * 512);
    assert_memory_equal(b.disk, want, NS_NBYTES);
    assert_ok(gpunvme_flush(b.ioq, b.ns));
    free(want);
    bench_close(&b);
}

static void compare_finds_what_differs(void **state)
{
    struct bench b = bench_open(&(struct way){.block_shift = 9, .mdts = 1});

    (void)state;
    for (size_t off = 0; off < 6; off++) { /* directly, and through bounce buffers */
        fill(b.disk, NS_NBYTES, 9 + off);
        memcpy(b.memory + off, b.disk + 512, 40 * 512);
        assert_ok(gpunvme_compare(b.ioq, b.ns, 1, 40, &b.buf, off));
        b.memory[off + 39 * 512] ^= 1;
        assert_err(gpunvme_compare(b.ioq, b.ns, 1, 40, &b.buf, off),
                   GPUNVME_ERR_NVME(GPUNVME_SC_COMPARE_FAILURE));
        assert_ok(gpunvme_compare(b.ioq, b.ns, 1, 39, &b.buf, off));
    }
    assert_err(gpunvme_compare(b.ioq, b.ns, 100, 29, &b.buf, 0), GPUNVME_ERR_RANGE);
    assert_err(gpunvme_compare(b.ioq, b.ns, UINT64_MAX, 1, &b.buf, 0), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_compare(b.ioq, b.ns, 0, UINT64_MAX, &b.buf, 0), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_compare(b.ioq, b.ns, 0, 1, NULL, 0), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_compare(NULL, b.ns, 0, 1, &b.buf, 0), GPUNVME_ERR_INVALID);
    bench_close(&b);
}

static void a_command_that_the_controller_does_not_have_is_not_sent(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl *ctrl;
    const struct gpunvme_ns *ns;
    struct gpunvme_ioq *ioq;
    struct gpunvme_buf buf;

    (void)state;
    m->id.oncs = 0;
    ctrl = bring_up(m);
    ns = gpunvme_ctrl_ns_at(ctrl, 0);
    assert_ok(gpunvme_ioq_create(ctrl, 8, &ioq));
    assert_ok(gpunvme_ctrl_alloc(ctrl, 512, GPUNVME_MEM_HOST, &buf));
    assert_err(gpunvme_compare(ioq, ns, 0, 1, &buf, 0), GPUNVME_ERR_UNSUPPORTED);
    assert_err(gpunvme_write_zeroes(ioq, ns, 0, 1, false), GPUNVME_ERR_UNSUPPORTED);
    assert_err(gpunvme_deallocate(ioq, ns, 0, 1), GPUNVME_ERR_UNSUPPORTED);
    assert_err(gpunvme_verify(ioq, ns, 0, 1), GPUNVME_ERR_UNSUPPORTED);
    assert_int_equal(m->nio, 0);
    gpunvme_ctrl_free(ctrl, &buf);
    take_down(m, ctrl);
}

static void blocks_beyond_the_end_are_refused_without_data_too(void **state)
{
    struct bench b = bench_open(&plain);

    (void)state;
    assert_err(gpunvme_write_zeroes(b.ioq, b.ns, 128, 1, false), GPUNVME_ERR_RANGE);
    assert_err(gpunvme_write_zeroes(b.ioq, b.ns, 1, UINT64_MAX, false), GPUNVME_ERR_RANGE);
    assert_err(gpunvme_deallocate(b.ioq, b.ns, 127, 2), GPUNVME_ERR_RANGE);
    assert_err(gpunvme_verify(b.ioq, b.ns, UINT64_MAX, 1), GPUNVME_ERR_RANGE);
    assert_err(gpunvme_flush(NULL, b.ns), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_verify(b.ioq, NULL, 0, 1), GPUNVME_ERR_INVALID);
    assert_int_equal(b.m->nio, 0);
    bench_close(&b);
}

/* --- errors in the middle --------------------------------------------------------------------- */

static bool nothing_in_flight(const struct bench *b)
{
    for (unsigned i = 0; i < b->m->npending; i++) {
        if (b->m->pending[i].sqid)
            return false;
    }
    return true;
}

/* 16 commands of 8 KiB, of which one fails, at any place; and a later one as well. */
static void the_first_error_of_a_transfer_is_told_when_all_has_ended(void **state)
{
    (void)state;
    for (int nth = 0; nth < 8; nth++) {
        for (unsigned order = 0; order < 2; order++) {
            struct bench b =
                bench_open(&(struct way){.block_shift = 9, .mdts = 1, .newest_first = order});

            mock_on_io(b.m, -1, nth, MOCK_STATUS, GPUNVME_SC_UNRECOVERED_READ);
            mock_on_io(b.m, -1, nth + 3, MOCK_STATUS, GPUNVME_SC_ACCESS_DENIED);
            b.m->latency_ns = 20000;
            assert_err(gpunvme_read(b.ioq, b.ns, 0, NS_NBYTES, &b.buf, 0),
                       GPUNVME_ERR_NVME(GPUNVME_SC_UNRECOVERED_READ));
            assert_true(nothing_in_flight(&b));
            b.m->nrules = 0;
            assert_ok(gpunvme_read(b.ioq, b.ns, 0, NS_NBYTES, &b.buf, 0));
            bench_close(&b);
        }
    }
}

static void an_error_at_any_command_of_a_write_is_told(void **state)
{
    int nth = 0;

    (void)state;
    for (;; nth++) {
        struct bench b = bench_open(&(struct way){.block_shift = 9, .mdts = 1});
        gpunvme_err_t err;
        int n;

        mock_on_io(b.m, -1, nth, MOCK_STATUS, GPUNVME_SC_WRITE_FAULT);
        /* Unaligned at both ends: two reads, and writes around them. */
        err = gpunvme_write(b.ioq, b.ns, 100, 20000, &b.buf, 1, 0);
        n = (int)b.m->nio;
        assert_true(nothing_in_flight(&b));
        b.m->nrules = 0;
        bench_close(&b);
        if (!err) {
            assert_int_equal(n, nth);
            break;
        }
        assert_err(err, GPUNVME_ERR_NVME(GPUNVME_SC_WRITE_FAULT));
    }
    assert_true(nth >= 7);
}

static void a_command_lost_in_the_middle_ends_the_transfer(void **state)
{
    (void)state;
    for (int nth = 0; nth < 8; nth += 3) {
        struct bench b = bench_open(&(struct way){.block_shift = 9, .mdts = 1});

        b.m->abort_works = nth != 3;
        mock_on_io(b.m, -1, nth, MOCK_LOST, 0);
        assert_err(gpunvme_read(b.ioq, b.ns, 0, NS_NBYTES, &b.buf, 0), GPUNVME_ERR_TIMEOUT);
        assert_true(nothing_in_flight(&b));
        b.m->nrules = 0;
        assert_ok(gpunvme_read(b.ioq, b.ns, 0, NS_NBYTES, &b.buf, 0));
        bench_close(&b);
    }
}

static void a_controller_that_goes_away_in_the_middle_ends_the_transfer(void **state)
{
    struct bench b = bench_open(&(struct way){.block_shift = 9, .mdts = 1});

    (void)state;
    mock_on_io(b.m, -1, 3, MOCK_REMOVED, 0);
    b.m->latency_ns = 1000000;
    assert_err(gpunvme_write(b.ioq, b.ns, 0, NS_NBYTES, &b.buf, 0, 0), GPUNVME_ERR_REMOVED);
    assert_err(gpunvme_read(b.ioq, b.ns, 3, 5, &b.buf, 0), GPUNVME_ERR_REMOVED);
    bench_close(&b);
}

/* --- pressure --------------------------------------------------------------------------------- */

static void no_memory_for_lists_and_bounces_is_told_and_passes(void **state)
{
    struct bench b = bench_open(&(struct way){.block_shift = 12, .mdts = 5, .scatter_shift = 12});
    struct gpunvme_token token;

    (void)state;
    b.m->fail_at_alloc = (int)b.m->allocs;
    assert_err(gpunvme_submit_read(b.ioq, b.ns, 0, 8, &b.buf, 0, &token), GPUNVME_ERR_NOMEM);
    b.m->fail_at_alloc = (int)b.m->allocs;
    assert_err(gpunvme_read(b.ioq, b.ns, 1, 5, &b.buf, 0), GPUNVME_ERR_NOMEM);
    b.m->fail_at_alloc = (int)b.m->allocs;
    assert_err(gpunvme_write(b.ioq, b.ns, 1, 5, &b.buf, 0, 0), GPUNVME_ERR_NOMEM);
    b.m->fail_at_alloc = (int)b.m->allocs;
    assert_err(gpunvme_deallocate(b.ioq, b.ns, 0, 1), GPUNVME_ERR_NOMEM);
    assert_int_equal(b.m->nio, 0);
    fill(b.disk, NS_NBYTES, 12);
    check_read(&b, 0, 1, 50000);
    check_write(&b, 0, 1, 50000);
    assert_ok(gpunvme_deallocate(b.ioq, b.ns, 0, 1));
    bench_close(&b);
}

/* Somebody else's commands fill the queue, and nobody ends them. */
static void a_queue_that_stays_full_is_a_timeout(void **state)
{
    struct bench b = bench_open(&(struct way){.block_shift = 9, .mdts = 5, .entries = 4});
    struct gpunvme_token tokens[3];

    (void)state;
    for (unsigned i = 0; i < 3; i++)
        assert_ok(gpunvme_submit_flush(b.ioq, b.ns, &tokens[i]));
    assert_err(gpunvme_read(b.ioq, b.ns, 0, 512, &b.buf, 0), GPUNVME_ERR_TIMEOUT);
    assert_detail("full");
    assert_err(gpunvme_read(b.ioq, b.ns, 3, 17, &b.buf, 0), GPUNVME_ERR_TIMEOUT);
    assert_err(gpunvme_flush(b.ioq, b.ns), GPUNVME_ERR_TIMEOUT);
    assert_err(gpunvme_deallocate(b.ioq, b.ns, 0, 1), GPUNVME_ERR_TIMEOUT);
    for (unsigned i = 0; i < 3; i++)
        assert_ok(gpunvme_token_wait(&tokens[i], 0));
    assert_ok(gpunvme_read(b.ioq, b.ns, 0, 512, &b.buf, 0));
    bench_close(&b);
}

/* The other thread: it ends one of its commands whenever the first one pauses. */
static struct gpunvme_token others[3];
static unsigned nothers;
static void (*pause_for_real)(struct gpunvme_transport *t, uint64_t ns);

static void pause_and_end_one(struct gpunvme_transport *t, uint64_t ns)
{
    if (nothers && gpunvme_token_test(&others[nothers - 1]) == GPUNVME_OK)
        nothers--;
    pause_for_real(t, ns);
}

static void a_full_queue_is_waited_for(void **state)
{
    (void)state;
    for (unsigned what = 0; what < 2; what++) {
        struct bench b = bench_open(&(struct way){.block_shift = 9, .mdts = 1, .entries = 4});

        fill(b.disk, NS_NBYTES, 5);
        for (nothers = 0; nothers < 3; nothers++)
            assert_ok(gpunvme_submit_flush(b.ioq, b.ns, &others[nothers]));
        pause_for_real = b.m->ops.pause_ns;
        b.m->ops.pause_ns = pause_and_end_one;
        if (what)
            assert_ok(gpunvme_write_zeroes(b.ioq, b.ns, 0, 100, false));
        else
            check_read(&b, 0, 0, NS_NBYTES);
        while (nothers)
            assert_ok(gpunvme_token_wait(&others[--nothers], 0));
        bench_close(&b);
    }
}

static void a_reset_in_the_middle_ends_the_transfer_and_the_next_one_works(void **state)
{
    struct bench b = bench_open(&(struct way){.block_shift = 9, .mdts = 1});

    (void)state;
    mock_on_io(b.m, -1, 4, MOCK_CFS, 0);
    b.m->latency_ns = 1000000;
    assert_err(gpunvme_read(b.ioq, b.ns, 0, NS_NBYTES, &b.buf, 0), GPUNVME_ERR_ABORTED);
    assert_true(nothing_in_flight(&b));
    fill(b.disk, NS_NBYTES, 6);
    check_read(&b, 0, 0, NS_NBYTES);
    bench_close(&b);
}

#define NWAYS (sizeof(ways) / sizeof(ways[0]))

static const struct CMUnitTest singles[] = {
    cmocka_unit_test(whole_blocks_are_written_without_reading),
    cmocka_unit_test(a_transfer_is_cut_at_mdts_and_at_the_boundary),
    cmocka_unit_test(long_transfers_go_in_pieces_that_run_beside_each_other),
    cmocka_unit_test(lists_and_bounce_buffers_are_used_again),
    cmocka_unit_test(fua_is_on_every_write_of_a_transfer_and_on_no_read),
    cmocka_unit_test(no_bytes_are_no_commands),
    cmocka_unit_test(an_sgl_is_used_where_it_saves_a_list),
    cmocka_unit_test(the_longest_command_in_pieces_fits_its_sgl),
    cmocka_unit_test(a_block_beyond_32_bits_is_addressed_whole),
    cmocka_unit_test(tokens_end_in_any_order_with_their_bytes),
    cmocka_unit_test(as_many_lists_as_commands_are_there),
    cmocka_unit_test(a_command_that_cannot_be_is_refused),
    cmocka_unit_test(a_transfer_that_cannot_be_is_refused),
    cmocka_unit_test(a_write_protected_namespace_is_read_only),
    cmocka_unit_test(commands_over_many_blocks_are_cut),
    cmocka_unit_test(deac_is_not_set_where_the_namespace_lacks_it),
    cmocka_unit_test(zeroes_and_deallocation_reach_their_blocks),
    cmocka_unit_test(compare_finds_what_differs),
    cmocka_unit_test(a_command_that_the_controller_does_not_have_is_not_sent),
    cmocka_unit_test(blocks_beyond_the_end_are_refused_without_data_too),
    cmocka_unit_test(the_first_error_of_a_transfer_is_told_when_all_has_ended),
    cmocka_unit_test(an_error_at_any_command_of_a_write_is_told),
    cmocka_unit_test(a_command_lost_in_the_middle_ends_the_transfer),
    cmocka_unit_test(a_controller_that_goes_away_in_the_middle_ends_the_transfer),
    cmocka_unit_test(no_memory_for_lists_and_bounces_is_told_and_passes),
    cmocka_unit_test(a_queue_that_stays_full_is_a_timeout),
    cmocka_unit_test(a_full_queue_is_waited_for),
    cmocka_unit_test(a_reset_in_the_middle_ends_the_transfer_and_the_next_one_works),
};

#define NSINGLES (sizeof(singles) / sizeof(singles[0]))

int main(void)
{
    struct CMUnitTest tests[NWAYS + NSINGLES];

    for (unsigned i = 0; i < NWAYS; i++)
        tests[i] = (struct CMUnitTest){ways[i].name, every_transfer_does_what_memcpy_does, NULL,
                                       NULL, (void *)(uintptr_t)&ways[i]};
    memcpy(&tests[NWAYS], singles, sizeof(singles));
    return cmocka_run_group_tests_name("transfers", tests, NULL, NULL);
}
