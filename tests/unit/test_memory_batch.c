/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Batches of copies as they hold on any machine; and the arithmetic of the kernel that copies them
 * on a GPU (batch.h), run here lane by lane.
 */
#include "memory_util.h"

#include "memory/batch.h"

#define MARGIN  64
#define NPIECES 3000

/* --- the arithmetic of a warp ----------------------------------------------------------------- */

static struct mem_batch_vector load(const uint8_t *bytes)
{
    struct mem_batch_vector v;

    memcpy(&v, bytes, sizeof(v));
    return v;
}

/* A pointer at the address that the layout speaks of. */
static uint8_t *at(uint64_t address)
{
    return (uint8_t *)(uintptr_t)address;
}

/* What the kernel's lanes do, one after the other; fails where a vector leaves its range. */
static void copy_unit(uint8_t *dst, const uint8_t *src, uint32_t nbytes)
{
    struct mem_batch_layout l;

    mem_batch_lay_out((uintptr_t)dst, (uintptr_t)src, nbytes, &l);
    assert_int_equal(l.head + l.nvectors * MEM_BATCH_VECTOR + l.tail, nbytes);
    assert_true(l.head < MEM_BATCH_LANES && l.tail < MEM_BATCH_LANES);
    assert_true(l.nvectors + (l.shift != 0) <= MEM_BATCH_LANES * MEM_BATCH_LANE_VECTORS);
    for (uint32_t i = 0; i < l.nvectors; i++) {
        const uint8_t *from = at(l.src_vectors) + i * MEM_BATCH_VECTOR;
        uint8_t *to = at(l.dst_vectors) + i * MEM_BATCH_VECTOR;
        struct mem_batch_vector v = load(from);

        assert_true((uintptr_t)from % MEM_BATCH_VECTOR == 0 &&
                    (uintptr_t)to % MEM_BATCH_VECTOR == 0);
        assert_true(from >= src && from + (l.shift ? 2 : 1) * MEM_BATCH_VECTOR <= src + nbytes);
        if (l.shift)
            v = mem_batch_join(v, load(from + MEM_BATCH_VECTOR), l.shift);
        memcpy(to, &v, sizeof(v));
    }
    memcpy(dst, src, l.head);
    memcpy(dst + nbytes - l.tail, src + nbytes - l.tail, l.tail);
}

static void check_unit(uint8_t *src, uint8_t *dst, size_t src_off, size_t dst_off, uint32_t nbytes)
{
    memset(dst, 0xa5, nbytes + MARGIN);
    copy_unit(dst + dst_off, src + src_off, nbytes);
    assert_memory_equal(dst + dst_off, src + src_off, nbytes);
    for (size_t i = 0; i < dst_off; i++)
        assert_int_equal(dst[i], 0xa5);
    for (size_t i = dst_off + nbytes; i < nbytes + MARGIN; i++)
        assert_int_equal(dst[i], 0xa5);
}

static void a_unit_of_any_length_and_alignment_arrives_and_touches_nothing_else(void **state)
{
    uint8_t *src = aligned_alloc(64, 8192), *dst = aligned_alloc(64, 8192);

    (void)state;
    assert_true(src && dst);
    random_bytes(src, 8192, 31);
    for (size_t src_off = 0; src_off < 17; src_off++) {
        for (size_t dst_off = 0; dst_off < 17; dst_off++) {
            for (uint32_t nbytes = 1; nbytes < 100; nbytes++)
                check_unit(src, dst, src_off, dst_off, nbytes);
            for (uint32_t nbytes = MEM_BATCH_UNIT - 33; nbytes <= MEM_BATCH_UNIT; nbytes++)
                check_unit(src, dst, src_off, dst_off, nbytes);
        }
    }
    free(src);
    free(dst);
}

static void a_unit_that_lies_alike_goes_by_vectors_alone(void **state)
{
    struct mem_batch_layout l;

    (void)state;
    mem_batch_lay_out(0x1000, 0x8010, MEM_BATCH_UNIT, &l);
    assert_int_equal(l.nvectors, MEM_BATCH_UNIT / MEM_BATCH_VECTOR);
    assert_int_equal(l.head + l.tail + l.shift, 0);
}

/* --- cutting ---------------------------------------------------------------------------------- */

static void every_byte_of_the_small_pieces_is_in_one_unit(void **state)
{
    struct gpunvme_mem_piece pieces[200];
    struct mem_batch_unit units[7];
    struct mem_batch_cursor cursor = {.pieces = pieces, .n = 200};
    uint64_t seed = 5, want = 0, got = 0;
    size_t piece = 0, off = 0, n;

    (void)state;
    for (size_t i = 0; i < 200; i++) {
        pieces[i].dst = at(random_word(&seed) >> 20);
        pieces[i].src = at(random_word(&seed) >> 20);
        pieces[i].nbytes = random_word(&seed) % 3 ? random_word(&seed) % 40000 : 0;
        want += pieces[i].nbytes <= 30000 ? pieces[i].nbytes : 0;
    }
    while ((n = mem_batch_cut(&cursor, 30000, units, 7)) != 0) {
        for (size_t i = 0; i < n; i++) {
            while (pieces[piece].nbytes > 30000 || off == pieces[piece].nbytes) {
                piece++;
                off = 0;
            }
            assert_true(units[i].nbytes > 0 && units[i].nbytes <= MEM_BATCH_UNIT);
            assert_int_equal(units[i].dst, (uintptr_t)pieces[piece].dst + off);
            assert_int_equal(units[i].src, (uintptr_t)pieces[piece].src + off);
            off += units[i].nbytes;
            got += units[i].nbytes;
        }
    }
    assert_int_equal(got, want);
}

static void counting_tells_how_many_units_there_will_be(void **state)
{
    const struct gpunvme_mem_piece pieces[] = {{at(4096), at(1 << 20), 20000}, {at(7), at(9), 5}};
    struct mem_batch_cursor counted = {.pieces = pieces, .n = 2}, cursor = counted;
    struct mem_batch_unit units[100];

    (void)state;
    assert_int_equal(mem_batch_cut(&counted, 65536, NULL, 100), 6);
    assert_int_equal(mem_batch_cut(&cursor, 65536, units, 100), 6);
    assert_int_equal(mem_batch_cut(&counted, 65536, NULL, 100), 0);
}

/* --- the ring --------------------------------------------------------------------------------- */

struct span {
    size_t begin, n;
};

static void assert_apart(const struct span *spans, unsigned nspans, struct span it)
{
    for (unsigned i = 0; i < nspans; i++)
        assert_true(it.begin + it.n <= spans[i].begin || spans[i].begin + spans[i].n <= it.begin);
}

static void tables_in_the_ring_never_overlap(void **state)
{
    struct mem_batch_ring ring = {.capacity = 1000};
    struct span spans[MEM_BATCH_RING_TABLES];
    unsigned nspans = 0;
    uint64_t seed = 8;
    size_t begin;

    (void)state;
    for (int step = 0; step < 200000; step++) {
        size_t n = 1 + random_word(&seed) % (random_word(&seed) % 8 ? 30 : 1000);

        if (random_word(&seed) % 2 && nspans) {
            mem_batch_ring_pop(&ring);
            memmove(spans, spans + 1, --nspans * sizeof(spans[0]));
        } else if (mem_batch_ring_find(&ring, n, &begin)) {
            assert_true(begin + n <= ring.capacity);
            assert_apart(spans, nspans, (struct span){begin, n});
            mem_batch_ring_push(&ring, begin, n);
            spans[nspans++] = (struct span){begin, n};
        } else {
            assert_true(nspans > 0); /* an empty ring has room for every table */
        }
        assert_int_equal(ring.ntables, nspans);
    }
}

static void a_full_ring_has_no_room(void **state)
{
    struct mem_batch_ring ring = {.capacity = 8};
    size_t begin;

    (void)state;
    assert_true(mem_batch_ring_find(&ring, 8, &begin));
    mem_batch_ring_push(&ring, begin, 8);
    assert_false(mem_batch_ring_find(&ring, 1, &begin));
    mem_batch_ring_pop(&ring);
    assert_true(mem_batch_ring_find(&ring, 1, &begin));
}

/* --- the public call -------------------------------------------------------------------------- */

static void a_batch_arrives_and_touches_nothing_else(void **state)
{
    (void)state;
    check_batch(GPUNVME_MEM_GPU, GPUNVME_MEM_PINNED, NPIECES, 9000, 1);
    check_batch(GPUNVME_MEM_PINNED, GPUNVME_MEM_GPU, NPIECES, 9000, 2);
    check_batch(GPUNVME_MEM_GPU, GPUNVME_MEM_GPU, 100, 300, 3);
    check_batch(GPUNVME_MEM_PINNED, GPUNVME_MEM_PINNED, 100, 300, 4);
    check_batch(GPUNVME_MEM_GPU, GPUNVME_MEM_PINNED, 40, 400000, 5);
}

static void an_empty_batch_does_nothing(void **state)
{
    const struct gpunvme_mem_piece nothing = {0};
    struct gpunvme_mem_stream *stream;

    (void)state;
    assert_int_equal(gpunvme_mem_stream_create(NULL, &stream), GPUNVME_OK);
    assert_int_equal(gpunvme_mem_copy_batch(NULL, 0, stream), GPUNVME_OK);
    assert_int_equal(gpunvme_mem_copy_batch(&nothing, 1, stream), GPUNVME_OK);
    assert_int_equal(gpunvme_mem_stream_destroy(stream), GPUNVME_OK);
}

static void a_piece_at_null_is_refused_by_its_number(void **state)
{
    uint8_t bytes[32] = {0};
    struct gpunvme_mem_piece pieces[] = {{bytes, bytes + 16, 16}, {NULL, bytes, 1}};
    struct gpunvme_mem_stream *stream;

    (void)state;
    assert_int_equal(gpunvme_mem_stream_create(NULL, &stream), GPUNVME_OK);
    assert_int_equal(gpunvme_mem_copy_batch(pieces, 2, stream), GPUNVME_ERR_INVALID);
    assert_non_null(strstr(gpunvme_err_detail(), "piece 1"));
    pieces[1] = (struct gpunvme_mem_piece){bytes, NULL, 1};
    assert_int_equal(gpunvme_mem_copy_batch(pieces, 2, stream), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_mem_copy_batch(NULL, 2, stream), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_mem_copy_batch(pieces, 1, NULL), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_mem_stream_destroy(stream), GPUNVME_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_unit_of_any_length_and_alignment_arrives_and_touches_nothing_else),
        cmocka_unit_test(a_unit_that_lies_alike_goes_by_vectors_alone),
        cmocka_unit_test(every_byte_of_the_small_pieces_is_in_one_unit),
        cmocka_unit_test(counting_tells_how_many_units_there_will_be),
        cmocka_unit_test(tables_in_the_ring_never_overlap),
        cmocka_unit_test(a_full_ring_has_no_room),
        cmocka_unit_test(a_batch_arrives_and_touches_nothing_else),
        cmocka_unit_test(an_empty_batch_does_nothing),
        cmocka_unit_test(a_piece_at_null_is_refused_by_its_number),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
