/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How the software controller walks PRPs and SGLs, by the bytes that arrive, and the mappings
 * behind them. The walks are tested on a namespace in memory and on one behind a cache, which use
 * them differently.
 */
#include "gpunvme/memory.h"
#include "sim/raw.h"

#define KINDS 2
static const char *const kinds[KINDS] = {"sim:size=4M,mdts=10", "sim:size=4M,mdts=10,vwc=1"};

static uint8_t pattern[1 << 20];

/* A controller whose first MiB of blocks holds the pattern. */
static void open_filled(struct raw *r, unsigned kind)
{
    uint8_t *data;
    uint64_t *list;

    raw_open(r, kinds[kind]);
    raw_fill(pattern, sizeof(pattern), 99);
    data = raw_alloc(r, sizeof(pattern));
    list = raw_alloc(r, 4096);
    memcpy(data, pattern, sizeof(pattern));
    for (unsigned i = 0; i < 255; i++)
        list[i] = raw_bus(r, data + (i + 1) * 4096);
    assert_int_equal(raw_do(r, &r->queue[1],
                            raw_rw(GPUNVME_CMD_WRITE, 0, 2048, raw_bus(r, data), raw_bus(r, list))),
                     0);
    r->used -= sizeof(pattern) + 4096;
    memset(r->memory + r->used, 0xee, sizeof(pattern) + 4096);
}

static uint16_t read_prp(struct raw *r, uint32_t nlb, uint64_t prp1, uint64_t prp2)
{
    return raw_do(r, &r->queue[1], raw_rw(GPUNVME_CMD_READ, 0, nlb, prp1, prp2));
}

static void two_prps_cover_two_pages(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < KINDS; kind++) {
        struct raw r;
        uint8_t *a, *b;

        open_filled(&r, kind);
        a = raw_alloc(&r, 4096);
        b = raw_alloc(&r, 8192) + 4096;
        memset(a, 0, 4096);
        assert_int_equal(read_prp(&r, 8, raw_bus(&r, a) + 4, raw_bus(&r, b)), 0);
        assert_memory_equal(a + 4, pattern, 4092);
        assert_memory_equal(b, pattern + 4092, 4);
        assert_int_equal(b[4], 0);
        raw_close(&r);
    }
}

static void a_list_begins_anywhere_in_its_page(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < KINDS; kind++) {
        struct raw r;
        uint64_t *list;
        uint8_t *pages;

        open_filled(&r, kind);
        pages = raw_alloc(&r, 8 * 4096);
        list = raw_alloc(&r, 4096);
        for (unsigned i = 0; i < 7; i++) /* the last seven entries of the page, none to spare */
            list[505 + i] = raw_bus(&r, pages + (7 - i) * 4096);
        assert_int_equal(read_prp(&r, 64, raw_bus(&r, pages), raw_bus(&r, &list[505])), 0);
        assert_memory_equal(pages, pattern, 4096);
        for (unsigned i = 0; i < 7; i++)
            assert_memory_equal(pages + (7 - i) * 4096, pattern + (i + 1) * 4096, 4096);
        raw_close(&r);
    }
}

static void lists_are_chained(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < KINDS; kind++) {
        struct raw r;
        uint64_t *first, *second;
        uint8_t *pages;

        open_filled(&r, kind);
        pages = raw_alloc(&r, 12 * 4096);
        first = raw_alloc(&r, 4096);
        second = raw_alloc(&r, 4096);
        for (unsigned i = 0; i < 3; i++)
            first[508 + i] = raw_bus(&r, pages + (i + 1) * 4096);
        first[511] = raw_bus(&r, second);
        for (unsigned i = 0; i < 8; i++)
            second[i] = raw_bus(&r, pages + (i + 4) * 4096);
        assert_int_equal(read_prp(&r, 96, raw_bus(&r, pages), raw_bus(&r, &first[508])), 0);
        assert_memory_equal(pages, pattern, 12 * 4096);
        raw_close(&r);
    }
}

static void a_list_may_be_longer_than_a_page(void **state)
{
    struct raw r;
    uint64_t *list;
    uint8_t *pages;

    (void)state;
    raw_open(&r, "sim:size=4M,mdts=10");
    pages = raw_alloc(&r, 600 * 4096);
    list = raw_alloc(&r, 2 * 4096);
    raw_fill(pages, 600 * 4096, 8);
    for (unsigned i = 0; i < 511; i++)
        list[i] = raw_bus(&r, pages + (i + 1) * 4096);
    list[511] = raw_bus(&r, &list[512]);
    for (unsigned i = 0; i < 88; i++)
        list[512 + i] = raw_bus(&r, pages + (i + 512) * 4096);
    for (unsigned opc = GPUNVME_CMD_WRITE; opc <= GPUNVME_CMD_READ; opc++)
        assert_int_equal(
            raw_do(&r, &r.queue[1],
                   raw_rw((uint8_t)opc, 0, 4800, raw_bus(&r, pages), raw_bus(&r, list))),
            0);
    {
        uint8_t *expected = malloc(600 * 4096);

        raw_fill(expected, 600 * 4096, 8);
        assert_memory_equal(pages, expected, 600 * 4096);
        free(expected);
    }
    raw_close(&r);
}

static void a_full_list_page_needs_no_chain(void **state)
{
    struct raw r;
    uint64_t *list;
    uint8_t *pages;

    (void)state;
    raw_open(&r, "sim:size=4M,mdts=10");
    pages = raw_alloc(&r, 513 * 4096);
    list = raw_alloc(&r, 4096);
    for (unsigned i = 0; i < 512; i++)
        list[i] = raw_bus(&r, pages + (i + 1) * 4096);
    assert_int_equal(read_prp(&r, 513 * 8, raw_bus(&r, pages), raw_bus(&r, list)), 0);
    raw_close(&r);
}

/* A wrong PRP: the status, and the violation counted. */
static void check_bad_prp(uint32_t nlb, uint32_t off1, bool list, uint32_t off2, uint64_t entry,
                          uint16_t status, enum gpunvme_sim_violation violation)
{
    for (unsigned kind = 0; kind < KINDS; kind++) {
        struct raw r;
        uint64_t *entries;
        uint8_t *pages;

        raw_open(&r, kinds[kind]);
        pages = raw_alloc(&r, 1024 * 512);
        entries = raw_alloc(&r, 4096);
        for (unsigned i = 0; i < 512; i++)
            entries[i] = raw_bus(&r, pages + (i % 100) * 4096) + entry;
        assert_int_equal(read_prp(&r, nlb, raw_bus(&r, pages) + off1,
                                  raw_bus(&r, list ? entries : (void *)pages) + off2),
                         status);
        raw_close_violated(&r, violation);
    }
}

static void prp_offsets_are_checked(void **state)
{
    (void)state;
    check_bad_prp(16, 2, false, 4096, 0, GPUNVME_SC_PRP_OFFSET_INVALID,
                  GPUNVME_SIM_VIOLATION_PRP_OFFSET);
    check_bad_prp(16, 0, false, 8, 0, GPUNVME_SC_PRP_OFFSET_INVALID,
                  GPUNVME_SIM_VIOLATION_PRP_OFFSET);
    check_bad_prp(32, 0, true, 4, 0, GPUNVME_SC_PRP_OFFSET_INVALID,
                  GPUNVME_SIM_VIOLATION_PRP_OFFSET);
    check_bad_prp(32, 0, true, 0, 4, GPUNVME_SC_PRP_OFFSET_INVALID,
                  GPUNVME_SIM_VIOLATION_PRP_OFFSET);
    /* The last entry of the page is a chain pointer: with an offset here. */
    check_bad_prp(32, 0, true, 4088, 8, GPUNVME_SC_PRP_OFFSET_INVALID,
                  GPUNVME_SIM_VIOLATION_PRP_OFFSET);
}

static void unmapped_addresses_are_told(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < KINDS; kind++) {
        struct raw r;
        uint64_t *list;
        uint64_t bus;

        raw_open(&r, kinds[kind]);
        bus = raw_bus(&r, raw_alloc(&r, 4096));
        list = raw_alloc(&r, 4096);
        assert_int_equal(read_prp(&r, 1, 0, 0), GPUNVME_SC_DATA_TRANSFER_ERROR);
        assert_int_equal(read_prp(&r, 1, UINT64_MAX - 511, 0), GPUNVME_SC_DATA_TRANSFER_ERROR);
        assert_int_equal(read_prp(&r, 16, bus, 0x1000), GPUNVME_SC_DATA_TRANSFER_ERROR);
        assert_int_equal(read_prp(&r, 24, bus, 0x1000), GPUNVME_SC_DATA_TRANSFER_ERROR);
        assert_int_equal(read_prp(&r, 24, bus, 0x1ff8), GPUNVME_SC_DATA_TRANSFER_ERROR);
        assert_int_equal(read_prp(&r, 24, bus, raw_bus(&r, list)), GPUNVME_SC_DATA_TRANSFER_ERROR);
        list[511] = 0x1000;
        assert_int_equal(read_prp(&r, 24, bus, raw_bus(&r, &list[511])),
                         GPUNVME_SC_DATA_TRANSFER_ERROR);
        raw_close_violated(&r, GPUNVME_SIM_VIOLATION_DMA_UNMAPPED);
    }
}

static void an_unneeded_prp2_is_told(void **state)
{
    struct raw r;
    uint64_t bus;

    (void)state;
    raw_open(&r, kinds[0]);
    bus = raw_bus(&r, raw_alloc(&r, 4096));
    assert_int_equal(read_prp(&r, 1, bus, bus), 0);
    raw_close_violated(&r, GPUNVME_SIM_VIOLATION_RESERVED_BITS);
}

/* --- SGLs --- */

static struct gpunvme_sgl_desc desc(unsigned type, uint64_t addr, uint32_t length)
{
    return (struct gpunvme_sgl_desc){.addr = addr, .length = length, .id = GPUNVME_SGL_ID(type, 0)};
}

static uint16_t sgl(struct raw *r, uint8_t opc, uint32_t nlb, struct gpunvme_sgl_desc first)
{
    struct gpunvme_sqe sqe = raw_rw(opc, 0, nlb, 0, 0);

    sqe.flags = GPUNVME_PSDT_SGL_MPTR_CONTIG;
    sqe.sgl1 = first;
    return raw_do(r, &r->queue[1], sqe);
}

static void one_data_block_is_the_whole_transfer(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < KINDS; kind++) {
        struct raw r;
        uint8_t *data;

        open_filled(&r, kind);
        data = (uint8_t *)raw_alloc(&r, 1 << 20) + 3; /* any byte */
        assert_int_equal(sgl(&r, GPUNVME_CMD_READ, 1000,
                             desc(GPUNVME_SGL_DATA_BLOCK, raw_bus(&r, data), 512000)),
                         0);
        assert_memory_equal(data, pattern, 512000);
        assert_int_equal(sgl(&r, GPUNVME_CMD_COMPARE, 1000,
                             desc(GPUNVME_SGL_DATA_BLOCK, raw_bus(&r, data), 512000)),
                         0);
        raw_close(&r);
    }
}

static void segments_of_ragged_pieces_work(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < KINDS; kind++) {
        static const uint32_t lengths[] = {1, 511, 513, 0, 1000, 7, 4000, 96, 2064, 8192};
        struct gpunvme_sgl_desc *a, *b;
        uint8_t *data, *flat = malloc(16384), *at = flat;
        uint64_t bus;
        struct raw r;

        open_filled(&r, kind);
        data = raw_alloc(&r, 65536);
        memset(data, 0xee, 65536);
        a = raw_alloc(&r, 4096);
        b = raw_alloc(&r, 4096);
        bus = raw_bus(&r, data);
        for (unsigned i = 0; i < 10; i++) {
            struct gpunvme_sgl_desc d = desc(GPUNVME_SGL_DATA_BLOCK, bus, lengths[i]);

            if (i < 4)
                a[i] = d;
            else
                b[i - 4] = d;
            bus += lengths[i] + 1; /* a byte between the pieces */
        }
        a[4] = desc(GPUNVME_SGL_LAST_SEGMENT, raw_bus(&r, b), 6 * 16);
        assert_int_equal(
            sgl(&r, GPUNVME_CMD_READ, 32, desc(GPUNVME_SGL_SEGMENT, raw_bus(&r, a), 5 * 16)), 0);
        bus = 0;
        for (unsigned i = 0; i < 10; i++) {
            memcpy(at, data + bus, lengths[i]);
            at += lengths[i];
            bus += lengths[i];
            assert_int_equal(data[bus++], 0xee);
        }
        assert_memory_equal(flat, pattern, 16384);
        /* The same pieces written back are the same. */
        assert_int_equal(
            sgl(&r, GPUNVME_CMD_WRITE, 32, desc(GPUNVME_SGL_SEGMENT, raw_bus(&r, a), 5 * 16)), 0);
        assert_int_equal(
            sgl(&r, GPUNVME_CMD_COMPARE, 32, desc(GPUNVME_SGL_SEGMENT, raw_bus(&r, a), 5 * 16)), 0);
        assert_int_equal(
            sgl(&r, GPUNVME_CMD_COMPARE, 32,
                desc(GPUNVME_SGL_DATA_BLOCK, raw_bus(&r, raw_alloc(&r, 16384)), 16384)),
            GPUNVME_SC_COMPARE_FAILURE);
        raw_close(&r);
        free(flat);
    }
}

static void more_pieces_than_a_part_holds_work(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < KINDS; kind++) {
        struct gpunvme_sgl_desc *list;
        uint8_t *data;
        struct raw r;

        open_filled(&r, kind);
        data = raw_alloc(&r, 512 * 1024);
        list = raw_alloc(&r, 8192);
        for (unsigned i = 0; i < 400; i++) /* 600 bytes each, never two in a row */
            list[i] = desc(GPUNVME_SGL_DATA_BLOCK, raw_bus(&r, data + i * 1024),
                           i < 399 ? 600 : 468 * 512 - 399 * 600);
        assert_int_equal(sgl(&r, GPUNVME_CMD_READ, 468,
                             desc(GPUNVME_SGL_LAST_SEGMENT, raw_bus(&r, list), 400 * 16)),
                         0);
        for (unsigned i = 0; i < 399; i++)
            assert_memory_equal(data + i * 1024, pattern + i * 600, 600);
        raw_close(&r);
    }
}

static void a_bit_bucket_swallows(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < KINDS; kind++) {
        struct gpunvme_sgl_desc *list;
        uint8_t *data;
        struct raw r;

        open_filled(&r, kind);
        data = raw_alloc(&r, 4096);
        list = raw_alloc(&r, 4096);
        list[0] = desc(GPUNVME_SGL_DATA_BLOCK, raw_bus(&r, data), 300);
        list[1] = desc(GPUNVME_SGL_BIT_BUCKET, 0, 424);
        list[2] = desc(GPUNVME_SGL_DATA_BLOCK, raw_bus(&r, data + 300), 300);
        assert_int_equal(
            sgl(&r, GPUNVME_CMD_READ, 2, desc(GPUNVME_SGL_LAST_SEGMENT, raw_bus(&r, list), 48)), 0);
        assert_memory_equal(data, pattern, 300);
        assert_memory_equal(data + 300, pattern + 724, 300);
        /* In a write it stands for nothing. */
        list[0] = desc(GPUNVME_SGL_DATA_BLOCK, raw_bus(&r, data), 500);
        list[2] = desc(GPUNVME_SGL_DATA_BLOCK, raw_bus(&r, data + 500), 524);
        assert_int_equal(
            sgl(&r, GPUNVME_CMD_WRITE, 2, desc(GPUNVME_SGL_LAST_SEGMENT, raw_bus(&r, list), 48)),
            0);
        assert_int_equal(
            sgl(&r, GPUNVME_CMD_COMPARE, 2, desc(GPUNVME_SGL_DATA_BLOCK, raw_bus(&r, data), 1024)),
            0);
        raw_close(&r);
    }
}

/* A malformed SGL: the status that the specification has for it, and the violation. */
static void check_bad_sgl(const struct gpunvme_sgl_desc *list, unsigned n,
                          struct gpunvme_sgl_desc first, uint16_t status)
{
    for (unsigned kind = 0; kind < KINDS; kind++) {
        struct gpunvme_sgl_desc *copy;
        struct raw r;

        raw_open(&r, kinds[kind]);
        copy = raw_alloc(&r, 65536);
        for (unsigned i = 0; i < n; i++) {
            copy[i] = list[i];
            copy[i].addr += raw_bus(&r, copy);
        }
        first.addr += raw_bus(&r, copy);
        assert_int_equal(sgl(&r, GPUNVME_CMD_READ, 1, first), status);
        raw_close_violated(&r, GPUNVME_SIM_VIOLATION_SGL_INVALID);
        first.addr -= raw_bus(&r, copy);
    }
}

static void lengths_of_sgls_are_checked(void **state)
{
    struct gpunvme_sgl_desc two[2] = {desc(GPUNVME_SGL_DATA_BLOCK, 4096, 512),
                                      desc(GPUNVME_SGL_DATA_BLOCK, 8192, 4)};

    (void)state;
    check_bad_sgl(NULL, 0, desc(GPUNVME_SGL_DATA_BLOCK, 4096, 508),
                  GPUNVME_SC_SGL_INVALID_DATA_LENGTH);
    check_bad_sgl(NULL, 0, desc(GPUNVME_SGL_DATA_BLOCK, 4096, 516),
                  GPUNVME_SC_SGL_INVALID_DATA_LENGTH);
    check_bad_sgl(two, 2, desc(GPUNVME_SGL_LAST_SEGMENT, 0, 32),
                  GPUNVME_SC_SGL_INVALID_DATA_LENGTH);
}

static void segments_are_checked(void **state)
{
    struct gpunvme_sgl_desc middle[2] = {desc(GPUNVME_SGL_LAST_SEGMENT, 4096, 16),
                                         desc(GPUNVME_SGL_DATA_BLOCK, 8192, 512)};
    struct gpunvme_sgl_desc again[1] = {desc(GPUNVME_SGL_LAST_SEGMENT, 0, 16)};
    struct gpunvme_sgl_desc data[1] = {desc(GPUNVME_SGL_DATA_BLOCK, 4096, 512)};
    struct gpunvme_sgl_desc loop[1] = {desc(GPUNVME_SGL_SEGMENT, 0, 16)};

    (void)state;
    check_bad_sgl(middle, 2, desc(GPUNVME_SGL_SEGMENT, 0, 32), GPUNVME_SC_SGL_INVALID_LAST_SEGMENT);
    check_bad_sgl(again, 1, desc(GPUNVME_SGL_LAST_SEGMENT, 0, 16),
                  GPUNVME_SC_SGL_INVALID_LAST_SEGMENT);
    check_bad_sgl(data, 1, desc(GPUNVME_SGL_SEGMENT, 0, 16), GPUNVME_SC_SGL_INVALID_LAST_SEGMENT);
    check_bad_sgl(data, 1, desc(GPUNVME_SGL_LAST_SEGMENT, 0, 0),
                  GPUNVME_SC_SGL_INVALID_LAST_SEGMENT);
    check_bad_sgl(data, 1, desc(GPUNVME_SGL_LAST_SEGMENT, 0, 24),
                  GPUNVME_SC_SGL_INVALID_LAST_SEGMENT);
    check_bad_sgl(loop, 1, desc(GPUNVME_SGL_SEGMENT, 0, 16), GPUNVME_SC_SGL_INVALID_COUNT);
}

static void types_of_descriptors_are_checked(void **state)
{
    struct gpunvme_sgl_desc odd = desc(GPUNVME_SGL_DATA_BLOCK, 4096, 512);

    (void)state;
    check_bad_sgl(NULL, 0, desc(GPUNVME_SGL_KEYED_DATA_BLOCK, 4096, 512),
                  GPUNVME_SC_SGL_INVALID_TYPE);
    odd.id |= GPUNVME_SGL_SUBTYPE_OFFSET;
    check_bad_sgl(NULL, 0, odd, GPUNVME_SC_SGL_INVALID_TYPE);
    odd = desc(GPUNVME_SGL_DATA_BLOCK, 4096, 512);
    odd.rsvd12[1] = 1;
    check_bad_sgl(NULL, 0, odd, GPUNVME_SC_SUCCESS); /* works, but is told */
}

static void an_unmapped_segment_is_told(void **state)
{
    struct raw r;

    (void)state;
    raw_open(&r, kinds[0]);
    assert_int_equal(sgl(&r, GPUNVME_CMD_READ, 1, desc(GPUNVME_SGL_LAST_SEGMENT, 0x1000, 16)),
                     GPUNVME_SC_DATA_TRANSFER_ERROR);
    raw_close_violated(&r, GPUNVME_SIM_VIOLATION_DMA_UNMAPPED);
}

static void sgls_are_refused_where_there_are_none(void **state)
{
    struct gpunvme_sqe sqe = {.opc = GPUNVME_ADMIN_IDENTIFY, .flags = GPUNVME_PSDT_SGL, .cdw10 = 1};
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M,sgl=0");
    assert_int_equal(sgl(&r, GPUNVME_CMD_READ, 1,
                         desc(GPUNVME_SGL_DATA_BLOCK, raw_bus(&r, raw_alloc(&r, 512)), 512)),
                     GPUNVME_SC_INVALID_FIELD);
    assert_int_equal(raw_admin(&r, sqe), GPUNVME_SC_INVALID_FIELD);
    raw_close_violated(&r, GPUNVME_SIM_VIOLATION_SGL_INVALID);
}

static void dsm_ranges_may_come_by_sgl(void **state)
{
    struct gpunvme_dsm_range *ranges;
    struct gpunvme_sqe sqe = {.opc = GPUNVME_CMD_DSM,
                              .flags = GPUNVME_PSDT_SGL,
                              .nsid = 1,
                              .cdw10 = 1,
                              .cdw11 = GPUNVME_DSM_AD};
    struct raw r;

    (void)state;
    raw_open(&r, kinds[1]);
    ranges = raw_alloc(&r, 4096);
    ranges[0].nlb = ranges[1].nlb = 4;
    sqe.sgl1 = desc(GPUNVME_SGL_DATA_BLOCK, raw_bus(&r, ranges), 32);
    assert_int_equal(raw_do(&r, &r.queue[1], sqe), 0);
    raw_close(&r);
}

/* --- mappings --- */

static gpunvme_err_t map(struct raw *r, uint64_t bus, void *memory, uint64_t nbytes)
{
    struct gpunvme_buf buf = {.cpu = memory, .nbytes = nbytes};

    return gpunvme_sim_dma_map(r->sim, bus, nbytes, &buf);
}

static void accesses_go_over_adjacent_mappings(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < KINDS; kind++) {
        struct raw r;
        uint8_t *data;

        open_filled(&r, kind);
        data = raw_alloc(&r, 65536);
        memset(data, 0, 65536);
        assert_ok(map(&r, 0x10000, data + 30000, 1000));
        assert_ok(map(&r, 0x10000 + 1000, data, 5000));
        assert_ok(map(&r, 0x10000 + 6000, data + 10000, 10000));
        assert_int_equal(sgl(&r, GPUNVME_CMD_READ, 16, desc(GPUNVME_SGL_DATA_BLOCK, 0x10000, 8192)),
                         0);
        assert_memory_equal(data + 30000, pattern, 1000);
        assert_memory_equal(data, pattern + 1000, 5000);
        assert_memory_equal(data + 10000, pattern + 6000, 2192);
        assert_int_equal(
            sgl(&r, GPUNVME_CMD_COMPARE, 16, desc(GPUNVME_SGL_DATA_BLOCK, 0x10000, 8192)), 0);
        raw_close(&r);
    }
}

static void a_queue_may_lie_in_two_mappings(void **state)
{
    struct raw r;
    struct raw_queue *q;

    (void)state;
    raw_create(&r, kinds[0]);
    raw_enable(&r, RAW_CC);
    q = raw_queue_init(&r, 1, 128); /* two pages of entries */
    assert_ok(map(&r, 0x20000, q->sq, 4096));
    assert_ok(map(&r, 0x21000, q->sq + 64, 4096));
    assert_ok(map(&r, 0x30000, q->cq, 512));
    assert_ok(map(&r, 0x30200, q->cq + 32, 4096 - 512));
    assert_int_equal(raw_create_cq(&r, 1, 128, 0x30000), 0);
    assert_int_equal(raw_create_sq(&r, 1, 1, 128, 0x20000), 0);
    for (unsigned i = 0; i < 300; i++)
        assert_int_equal(raw_do(&r, q, (struct gpunvme_sqe){.nsid = 1}), 0);
    raw_close(&r);
}

static void wrong_mappings_are_refused(void **state)
{
    struct gpunvme_buf nowhere = {.nbytes = 4096};
    struct raw r;
    uint8_t *data;

    (void)state;
    raw_open(&r, kinds[0]);
    data = raw_alloc(&r, 65536);
    assert_ok(map(&r, 0x10000, data, 8192));
    assert_int_equal(map(&r, 0x10000, data, 8192), GPUNVME_ERR_INVALID);
    assert_int_equal(map(&r, 0x11fff, data, 4096), GPUNVME_ERR_INVALID);
    assert_int_equal(map(&r, 0x0f001, data, 4096), GPUNVME_ERR_INVALID);
    assert_int_equal(map(&r, 0x0f000, data, 65536), GPUNVME_ERR_INVALID);
    assert_int_equal(map(&r, 0x20000, data, 0), GPUNVME_ERR_INVALID);
    assert_int_equal(map(&r, UINT64_MAX - 10, data, 4096), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_sim_dma_map(r.sim, 0x20000, 4096, &nowhere), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_sim_dma_map(r.sim, 0x20000, 4096, NULL), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_sim_dma_unmap(r.sim, 0x10000, 4096), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_sim_dma_unmap(r.sim, 0x50000, 4096), GPUNVME_ERR_INVALID);
    assert_ok(gpunvme_sim_dma_unmap(r.sim, 0x10000, 8192));
    assert_ok(map(&r, 0x10000, data, 8192));
    raw_close(&r);
}

static void hundreds_of_mappings_are_told_apart(void **state)
{
    struct raw r;
    uint8_t *data;

    (void)state;
    open_filled(&r, 0);
    data = raw_alloc(&r, 300 * 4096);
    for (unsigned i = 0; i < 300; i++) /* in no order, with gaps */
        assert_ok(
            map(&r, 0x1000000 + (i * 7919 % 300) * 0x10000, data + (i * 7919 % 300) * 4096, 4096));
    for (unsigned i = 0; i < 300; i++) {
        assert_int_equal(read_prp(&r, 1, 0x1000000 + i * 0x10000 + i * 4 % 2048, 0), 0);
        assert_memory_equal(data + i * 4096 + i * 4 % 2048, pattern, 512);
    }
    for (unsigned i = 0; i < 300; i += 2)
        assert_ok(gpunvme_sim_dma_unmap(r.sim, 0x1000000 + i * 0x10000, 4096));
    assert_int_equal(read_prp(&r, 1, 0x1000000 + 0x10000, 0), 0);
    assert_int_equal(read_prp(&r, 1, 0x1000000 + 0x20000, 0), GPUNVME_SC_DATA_TRANSFER_ERROR);
    raw_close_violated(&r, GPUNVME_SIM_VIOLATION_DMA_UNMAPPED);
}

/* GPU memory without a CPU address: the controller must not touch it but by the memory module. */
static void gpu_memory_is_reached_by_copies(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < KINDS; kind++) {
        struct gpunvme_buf gpu, bare;
        struct gpunvme_sgl_desc *list;
        uint8_t *back = malloc(65536);
        struct raw r;

        open_filled(&r, kind);
        assert_ok(gpunvme_mem_alloc(65536, GPUNVME_MEM_GPU, &gpu));
        bare = gpu;
        bare.cpu = NULL;
        assert_ok(gpunvme_sim_dma_map(r.sim, 0x100000, 65536, &bare));
        list = raw_alloc(&r, 4096);
        list[0] = desc(GPUNVME_SGL_DATA_BLOCK, 0x100000, 60000);
        list[1] = desc(GPUNVME_SGL_DATA_BLOCK, 0x100000 + 60000, 65536 - 60000);
        for (unsigned opc = GPUNVME_CMD_WRITE; opc <= GPUNVME_CMD_READ; opc++) {
            if (opc == GPUNVME_CMD_WRITE) {
                raw_fill(back, 65536, 4);
                assert_ok(
                    gpunvme_mem_copy(gpu.gpu, GPUNVME_MEM_GPU, back, GPUNVME_MEM_HOST, 65536));
            } else {
                assert_ok(gpunvme_mem_fill(gpu.gpu, GPUNVME_MEM_GPU, 0, 65536));
            }
            assert_int_equal(
                sgl(&r, (uint8_t)opc, 128, desc(GPUNVME_SGL_LAST_SEGMENT, raw_bus(&r, list), 32)),
                0);
        }
        memset(back, 0, 65536);
        assert_ok(gpunvme_mem_copy(back, GPUNVME_MEM_HOST, gpu.gpu, GPUNVME_MEM_GPU, 65536));
        raw_fill(pattern, 65536, 4);
        assert_memory_equal(back, pattern, 65536);
        assert_int_equal(
            sgl(&r, GPUNVME_CMD_COMPARE, 128, desc(GPUNVME_SGL_DATA_BLOCK, 0x100000, 65536)), 0);
        raw_close(&r);
        gpunvme_mem_free(&gpu);
        free(back);
    }
}

/* Queues in GPU memory: entries are fetched and posted by copies too. */
static void queues_in_gpu_memory_work(void **state)
{
    struct gpunvme_buf gpu, bare;
    struct gpunvme_sqe sqe = {.nsid = 1, .cid = 5};
    struct gpunvme_cqe cqe = {0};
    struct raw r;
    time_t end = 0;

    (void)state;
    raw_create(&r, kinds[0]);
    raw_enable(&r, RAW_CC);
    assert_ok(gpunvme_mem_alloc(8192, GPUNVME_MEM_GPU, &gpu));
    assert_ok(gpunvme_mem_fill(gpu.gpu, GPUNVME_MEM_GPU, 0, 8192));
    bare = gpu;
    bare.cpu = NULL;
    assert_ok(gpunvme_sim_dma_map(r.sim, 0x100000, 8192, &bare));
    assert_int_equal(raw_create_cq(&r, 1, 16, 0x100000), 0);
    assert_int_equal(raw_create_sq(&r, 1, 1, 16, 0x101000), 0);
    assert_ok(gpunvme_mem_copy((uint8_t *)gpu.gpu + 4096, GPUNVME_MEM_GPU, &sqe, GPUNVME_MEM_HOST,
                               sizeof(sqe)));
    raw_ring(raw_sq_doorbell(&r, 1), 1);
    while (raw_report(&r).commands[1] == 0)
        assert_false(raw_expired(&end));
    raw_disable(&r);
    assert_ok(gpunvme_mem_copy(&cqe, GPUNVME_MEM_HOST, gpu.gpu, GPUNVME_MEM_GPU, sizeof(cqe)));
    assert_int_equal(cqe.cid, 5);
    assert_int_equal(cqe.status, 1);
    assert_int_equal(cqe.sqhd, 1);
    raw_close(&r);
    gpunvme_mem_free(&gpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_prps_cover_two_pages),
        cmocka_unit_test(a_list_begins_anywhere_in_its_page),
        cmocka_unit_test(lists_are_chained),
        cmocka_unit_test(a_list_may_be_longer_than_a_page),
        cmocka_unit_test(a_full_list_page_needs_no_chain),
        cmocka_unit_test(prp_offsets_are_checked),
        cmocka_unit_test(unmapped_addresses_are_told),
        cmocka_unit_test(an_unneeded_prp2_is_told),
        cmocka_unit_test(one_data_block_is_the_whole_transfer),
        cmocka_unit_test(segments_of_ragged_pieces_work),
        cmocka_unit_test(more_pieces_than_a_part_holds_work),
        cmocka_unit_test(a_bit_bucket_swallows),
        cmocka_unit_test(lengths_of_sgls_are_checked),
        cmocka_unit_test(segments_are_checked),
        cmocka_unit_test(types_of_descriptors_are_checked),
        cmocka_unit_test(an_unmapped_segment_is_told),
        cmocka_unit_test(sgls_are_refused_where_there_are_none),
        cmocka_unit_test(dsm_ranges_may_come_by_sgl),
        cmocka_unit_test(accesses_go_over_adjacent_mappings),
        cmocka_unit_test(a_queue_may_lie_in_two_mappings),
        cmocka_unit_test(wrong_mappings_are_refused),
        cmocka_unit_test(hundreds_of_mappings_are_told_apart),
        cmocka_unit_test(gpu_memory_is_reached_by_copies),
        cmocka_unit_test(queues_in_gpu_memory_work),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
