/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The arithmetic of GPU kernels that needs no GPU: who makes which tile, where elements lie in
 * shared memory, and what names them to the tensor cores and the copy engine.
 */
#include "ops/hopper/schedule.h"
#include "ops/linear/dz.h"
#include "ops/matmul/tensorcore.h"
#include "ops_test.h"

static void descriptors_hold_address_offsets_and_swizzle(void **state)
{
    (void)state;
    /* PTX ISA, "Matrix Descriptor Format": bits 0-13 address, 16-29 leading, 32-45 stride (all /
     * 16), 62-63 mode. */
    assert_true(hopper_descriptor(0x12340, 16, 1024) == UINT64_C(0x4000004000011234));
    assert_true(hopper_descriptor(0x400, 8192, 1024) == UINT64_C(0x4000004002000040));
    /* The largest address of shared memory leaves its neighbours alone. */
    assert_true(hopper_descriptor(0x38ff0, 0, 0) == UINT64_C(0x40000000000038ff));
}

static void every_tile_is_made_once(void **state)
{
    (void)state;
    for (int64_t m = 1; m < 6000; m += m < 700 ? 127 : 1111)
        for (int64_t n = 1; n < 4000; n += n < 700 ? 255 : 777)
            for (int64_t batch = 1; batch < 4; batch++) {
                struct hopper_grid grid = hopper_grid_of(m, n, batch, HOPPER_TILE_N);
                int64_t count = hopper_grid_size(&grid), rows = HOPPER_TILE_M * (int64_t)grid.rows;
                unsigned char *seen = calloc((size_t)count, 1);

                assert_non_null(seen);
                assert_true(grid.down * rows >= m && (grid.down - 1) * rows < m);
                for (uint32_t i = 0; i < count; i++) {
                    struct hopper_place x = hopper_place_of(&grid, i);
                    int64_t down = x.row / rows, across = x.col / HOPPER_TILE_N;

                    assert_true(x.row % rows == 0 && x.col % HOPPER_TILE_N == 0);
                    assert_true(x.row < m && x.col < n && x.batch < batch);
                    assert_int_equal(seen[(x.batch * grid.down + down) * grid.across + across]++,
                                     0);
                }
                free(seen);
            }
}

static void tiles_made_together_share_rows_and_columns(void **state)
{
    struct hopper_grid grid = hopper_grid_of(8192, 8192, 1, HOPPER_TILE_N);
    int64_t rows = 0, cols = 0;

    (void)state;
    for (uint32_t i = 0; i < 64; i++) {
        struct hopper_place x = hopper_place_of(&grid, i);

        rows = x.row > rows ? x.row : rows;
        cols = x.col > cols ? x.col : cols;
    }
    assert_int_equal(rows, 7 * 2 * HOPPER_TILE_M);
    assert_int_equal(cols, 7 * HOPPER_TILE_N);
}

/* Beyond that the rung says that it is not for it. */
static void tiles_are_numbered_as_long_as_31_bits_suffice(void **state)
{
    const int64_t large = INT64_C(1) << 30;
    struct hopper_grid grid = hopper_grid_of(large, 256 * 511, 1, HOPPER_TILE_N);
    struct hopper_place last;

    (void)state;
    assert_true(hopper_grid_fits(&grid));
    last = hopper_place_of(&grid, hopper_grid_size(&grid) - 1);
    assert_true(last.row == large - 256 && last.col == 256 * 510 && last.batch == 0);
    grid = hopper_grid_of(large, large, 1, HOPPER_TILE_N);
    assert_false(hopper_grid_fits(&grid));
    grid = hopper_grid_of(1, 1, INT32_MAX, HOPPER_TILE_N);
    assert_true(hopper_grid_fits(&grid));
    last = hopper_place_of(&grid, INT32_MAX - 1);
    assert_true(last.row == 0 && last.col == 0 && last.batch == INT32_MAX - 1);
    grid = hopper_grid_of(1, 257, INT32_MAX, HOPPER_TILE_N);
    assert_false(hopper_grid_fits(&grid));
}

/* Of dZ beside a product: each piece belongs to the flag of its panel and chunk. */
static void expect_all_pieces(const struct dz_order *order)
{
    uint32_t count = dz_pieces(order), down = order->panels * (DZ_PANEL / DZ_PIECE_ROWS);
    uint32_t across = order->chunks * (DZ_CHUNK / DZ_COLS);
    unsigned char *seen = calloc(count, 1);

    assert_non_null(seen);
    assert_int_equal(count, down * across);
    assert_true(dz_early_pieces(order) <= count);
    for (uint32_t i = 0; i < count; i++) {
        struct dz_piece x = dz_piece_of(order, i);
        uint32_t row = (uint32_t)(x.row / DZ_PIECE_ROWS), col = (uint32_t)(x.col / DZ_COLS);

        assert_true(x.row % DZ_PIECE_ROWS == 0 && x.col % DZ_COLS == 0);
        assert_true(row < down && col < across);
        assert_int_equal(seen[row * across + col]++, 0);
        assert_int_equal(x.flag, x.row / DZ_PANEL * order->chunks + x.col / DZ_CHUNK);
    }
    free(seen);
}

static void every_piece_of_dz_is_made_once(void **state)
{
    (void)state;
    for (uint32_t panels = 1; panels < 20; panels += 3)
        for (uint32_t chunks = 1; chunks < 8; chunks += 2)
            for (uint32_t first = 1; first <= panels; first += 2)
                for (uint32_t set = 1; set < 9; set += 3)
                    expect_all_pieces(&(struct dz_order){panels, chunks, first, set});
}

/* First the beginnings of the rows that all blocks read at once, then the rest of these rows. */
static void pieces_of_dz_are_made_in_the_order_they_are_read(void **state)
{
    const struct dz_order order = {64, 16, 12, 8};
    int64_t row = 0, col = 0;

    (void)state;
    for (uint32_t i = 0; i < dz_pieces(&order); i++) {
        struct dz_piece x = dz_piece_of(&order, i);

        if (x.col < col)
            assert_true(x.row > row);
        if (i < dz_early_pieces(&order))
            assert_true(x.row < 12 * DZ_PANEL && x.col < 4 * DZ_CHUNK);
        if (i < 12 * 16 * DZ_PIECES)
            assert_true(x.row < 12 * DZ_PANEL);
        else
            assert_true(x.row >= 12 * DZ_PANEL);
        row = x.row > row ? x.row : row;
        col = x.col / DZ_CHUNK * DZ_CHUNK;
    }
}

static void memory_of_a_block_suffices(void **state)
{
    (void)state;
    assert_true(HOPPER_SHARED_NBYTES <= 227 * 1024);
    assert_true(HOPPER_STAGE_NBYTES % HOPPER_ALIGN == 0 && HOPPER_BLOCK % HOPPER_ALIGN == 0);
    assert_true(HOPPER_STAGE_NBYTES < 1 << 20); /* what a barrier can count */
    for (int width = 64; width <= HOPPER_TILE_N; width *= 2) {
        int stages = hopper_stages(width), nbytes = hopper_stage_nbytes(width);

        assert_true(stages <= HOPPER_MOST_STAGES && nbytes % HOPPER_ALIGN == 0);
        assert_true(stages * nbytes <= HOPPER_STAGES * HOPPER_STAGE_NBYTES);
    }
    assert_int_equal(hopper_stages(HOPPER_TILE_N), HOPPER_STAGES);
}

static void maps_have_contiguous_elements_first(void **state)
{
    struct hopper_tensor x = hopper_tensor_of(300, 200, 208, 5, 70000, 2, 128);

    (void)state;
    assert_true(x.size[0] == 200 && x.size[1] == 300 && x.size[2] == 5);
    assert_true(x.stride[0] == 416 && x.stride[1] == 140000);
    assert_true(x.box[0] == 64 && x.box[1] == 128 && x.box[2] == 1);
    x = hopper_tensor_of(300, 200, 208, 5, 0, 4, 64);
    assert_true(x.box[0] == 32 && x.box[1] == 64);
    assert_true(x.size[2] == 1 && x.stride[1] % 16 == 0 && x.stride[1] > 0);
}

/* Shared memory, each 16-bit element of which says which of the operand it holds. */
struct shared {
    int line[(HOPPER_B_NBYTES + HOPPER_ALIGN) / 2], k[(HOPPER_B_NBYTES + HOPPER_ALIGN) / 2];
};

/* The swizzle of 128 bytes, as it is defined on addresses: bits 4-6 and 7-9. */
static uint32_t swizzled(uint32_t address)
{
    return address ^ (address >> 7 & 7) << 4;
}

/* What the copy engine does with a box of 64 elements x `lines`. */
static void copy_box(struct shared *s, uint32_t to, int mn, int x, int y, int lines)
{
    for (int j = 0; j < lines; j++)
        for (int i = 0; i < 64; i++) {
            uint32_t at = swizzled(to + (uint32_t)j * 128 + (uint32_t)i * 2) / 2;

            s->line[at] = mn ? x + i : y + j;
            s->k[at] = mn ? y + j : x + i;
        }
}

/*
 * Where wgmma looks for an element of a matrix (PTX ISA, "Shared Memory Matrix Layout"; 16-byte
 * units:
 * ((8,n),2):((8,SBO),1) along k, ((8,n),(8,k)):((1,LBO),(8,SBO)) along m or n).
 */
static uint32_t looked_for(uint64_t descriptor, int mn, int line, int k)
{
    uint32_t start = (uint32_t)(descriptor & 0x3fff) << 4;
    uint32_t leading = (uint32_t)(descriptor >> 16 & 0x3fff) << 4;
    uint32_t stride = (uint32_t)(descriptor >> 32 & 0x3fff) << 4;
    uint32_t l = (uint32_t)line, d = (uint32_t)k;

    if (mn)
        return swizzled(start + l % 64 * 2 + l / 64 * leading + d % 8 * 128 + d / 8 * stride);
    return swizzled(start + l % 8 * 128 + l / 8 * stride + d * 2);
}

static void tensor_cores_find_what_the_copy_engine_brought(void **state)
{
    static struct shared s;
    const uint32_t base = HOPPER_ALIGN;

    (void)state;
    for (int mn = 0; mn < 2; mn++) {
        int lines = hopper_box_lines(mn, 2, 128);
        uint64_t descriptor = hopper_tile_descriptor(base, mn);

        /* B: 256 columns in boxes of 128 lines of n, or of 64 of k and 64 of n. */
        memset(&s, 0xff, sizeof(s));
        for (int i = 0; i < (mn ? 4 : 2); i++)
            copy_box(&s, base + (uint32_t)(i * lines) * 128, mn, mn ? i * 64 : 0, mn ? 0 : i * 128,
                     lines);
        for (int step = 0; step < 4; step++)
            for (int line = 0; line < 256; line++)
                for (int k = 0; k < 16; k++) {
                    uint64_t d = descriptor + (uint64_t)step * hopper_descriptor_step(mn);
                    uint32_t at = looked_for(d, mn, line, k) / 2;

                    assert_int_equal(s.line[at], line);
                    assert_int_equal(s.k[at], step * 16 + k);
                }
        /* A's second half, which is the second warp group's, is the second block. */
        descriptor = hopper_tile_descriptor(base + HOPPER_BLOCK, mn);
        assert_int_equal(s.line[looked_for(descriptor, mn, 5, 3) / 2], 64 + 5);
        assert_int_equal(s.k[looked_for(descriptor, mn, 5, 3) / 2], 3);
    }
}

static void results_leave_as_the_copy_engine_expects(void **state)
{
    (void)state;
    for (uint32_t row = 0; row < 64; row++)
        for (uint32_t x = 0; x < 128; x += 16)
            assert_int_equal(hopper_swizzle(row, x), swizzled(row * 128 + x));
}

/* Results in f32: half a warp writes 8 bytes a thread at once, a quarter reads 16. */
static void results_in_f32_pass_through_all_banks(void **state)
{
    bool seen[64 * 64 / 4] = {false};

    (void)state;
    for (uint32_t row = 0; row < 64; row++)
        for (uint32_t chunk = 0; chunk < 16; chunk++) {
            uint32_t at = hopper_result_place(row, chunk);

            assert_true(at % 4 == 0 && at < 64 * 64 && !seen[at / 4]);
            seen[at / 4] = true;
        }
    for (uint32_t row = 0; row < 64; row += 4)
        for (uint32_t chunk = 0; chunk < 16; chunk += 2) {
            unsigned banks = 0;

            for (uint32_t i = 0; i < 8; i++)
                banks |= 1u << hopper_result_place(row + i / 2, chunk + i % 2) / 4 % 8;
            assert_int_equal(banks, 0xff);
        }
    for (uint32_t row = 0; row < 64; row++)
        for (uint32_t chunk = 0; chunk < 16; chunk += 8) {
            unsigned banks = 0;

            for (uint32_t i = 0; i < 8; i++)
                banks |= 1u << hopper_result_place(row, chunk + i) / 4 % 8;
            assert_int_equal(banks, 0xff);
        }
}

/* Half a warp's 8 bytes each: are they from all banks? `at` is of bytes, by lane. */
static bool from_all_banks(const uint32_t *at)
{
    unsigned banks = 0;

    for (int lane = 0; lane < 16; lane++) {
        if (at[lane] % 8)
            return false;
        banks |= 1u << at[lane] / 8 % 16;
    }
    return banks == 0xffff;
}

/* f32: what a warp group's threads read is all of its 64 lines x 32 of k, once. */
static void fragments_are_where_the_copy_engine_put_them(void **state)
{
    (void)state;
    for (int mn = 0; mn < 2; mn++) {
        bool seen[64][32] = {{false}};

        for (uint32_t thread = 0; thread < 128; thread++)
            for (uint32_t h = 0; h < 2; h++)
                for (uint32_t k = thread % 4; k < 32; k += 4) {
                    uint32_t line = hopper_fragment_line(mn, thread) + h * hopper_fragment_next(mn);
                    /* Boxes of 32 lines, rows of k; or rows of lines. */
                    uint32_t box = line / 32 * (uint32_t)HOPPER_TF32_BOX;
                    uint32_t at = mn ? box + k * 128 + line % 32 * 4 : line * 128 + k * 4;

                    assert_true(line < 64 && !seen[line][k]);
                    seen[line][k] = true;
                    assert_int_equal(hopper_fragment_place(mn, line, k), swizzled(at));
                }
    }
    assert_int_equal(2 * HOPPER_TF32_BOX, HOPPER_BLOCK);
}

static void fragments_are_read_from_all_banks(void **state)
{
    (void)state;
    for (uint32_t half = 0; half < 8; half++)
        for (uint32_t k = 0; k < 32; k += 4) {
            uint32_t at[16];

            for (uint32_t i = 0; i < 16; i++)
                at[i] = hopper_fragment_place(1, hopper_fragment_line(1, half * 16 + i), k + i % 4);
            assert_true(from_all_banks(at));
        }
    for (uint32_t warp = 0; warp < 4; warp++)
        for (uint32_t k = 0; k < 32; k += 4) {
            uint32_t banks = 0;

            for (uint32_t i = 0; i < 32; i++)
                banks |= 1u << hopper_fragment_place(0, hopper_fragment_line(0, warp * 32 + i),
                                                     k + i % 4) /
                                   4 % 32;
            assert_int_equal(banks, 0xffffffff);
        }
}

/* 64 lines x 32 columns of sums: two boxes of 32 x 32 of C, either way round. */
static void sums_of_fragments_leave_as_the_copy_engine_expects(void **state)
{
    (void)state;
    for (int exchanged = 0; exchanged < 2; exchanged++)
        for (uint32_t line = 0; line < 64; line++)
            for (uint32_t col = 0; col < 32; col++) {
                uint32_t row = exchanged ? col : line % 32, x = exchanged ? line % 32 : col;

                assert_int_equal(hopper_sum_place(exchanged, line, col),
                                 line / 32 * (uint32_t)HOPPER_TF32_BOX +
                                     swizzled(row * 128 + x * 4));
            }
}

/* (That of exchanged operands is along n.) */
static void sums_of_fragments_are_written_to_all_banks(void **state)
{
    static const int ways[3][2] = {{0, 0}, {1, 0}, {1, 1}};

    (void)state;
    for (int way = 0; way < 3; way++)
        for (uint32_t half = 0; half < 8; half++)
            for (uint32_t col = 0; col < 32; col += 8)
                for (uint32_t i = 0; i < 2; i++) {
                    int mn = ways[way][0], exchanged = ways[way][1];
                    uint32_t at[16];

                    for (uint32_t lane = 0; lane < 16; lane++) {
                        uint32_t line = hopper_fragment_line(mn, half * 16 + lane);
                        uint32_t next = line + i * hopper_fragment_next(mn);
                        uint32_t j = col + lane % 4 * 2;

                        at[lane] = exchanged ? hopper_sum_place(1, line, j + i)
                                             : hopper_sum_place(0, next, j);
                    }
                    assert_true(from_all_banks(at));
                }
}

/* Eight rows that an instruction reads at once lie in different banks, and nothing lies twice. */
static void rows_read_at_once_are_in_different_banks(void **state)
{
    (void)state;
    for (int mn = 0; mn < 2; mn++) {
        uint32_t rows = mn ? 32 : 128, chunks = mn ? 16 : 4;
        bool seen[512] = {false};

        for (uint32_t row = 0; row < rows; row++)
            for (uint32_t chunk = 0; chunk < chunks; chunk++) {
                uint32_t at = tensorcore_place16(mn, row, chunk);

                assert_true(at % 16 == 0 && at / 16 < 512 && !seen[at / 16]);
                seen[at / 16] = true;
            }
        for (uint32_t row = 0; row < rows; row += 8)
            for (uint32_t chunk = 0; chunk < chunks; chunk++) {
                unsigned banks = 0;

                for (uint32_t i = 0; i < 8; i++)
                    banks |= 1u << tensorcore_place16(mn, row + i, chunk) / 16 % 8;
                assert_int_equal(banks, 0xff);
            }
    }
}

static void a_warps_tf32_is_in_different_banks(void **state)
{
    (void)state;
    for (int mn = 0; mn < 2; mn++) {
        uint32_t banks = 0;

        for (uint32_t lane = 0; lane < 32; lane++) {
            uint32_t line = lane / 4, k = lane % 4;
            uint32_t at = mn ? tensorcore_place32(1, k, line) : tensorcore_place32(0, line, k);

            banks |= 1u << at / 4 % 32;
        }
        assert_int_equal(banks, 0xffffffff);
        assert_true(tensorcore_place32(mn, mn ? 15 : 127, mn ? 127 : 15) + 4 <=
                    tensorcore_nbytes(1, mn));
    }
}

/* Matrices of C that share one of A and B take its steps of k, each once and in order. */
static void pieces_cover_all_steps_once(void **state)
{
    (void)state;
    for (int pieces = 1; pieces <= 5; pieces++)
        for (int all = pieces; all <= 40; all++) {
            int steps = (all + pieces - 1) / pieces;
            struct hopper_schedule s = {.steps = steps, .all_steps = all, .pieces = pieces};

            if ((all + steps - 1) / steps != pieces)
                continue; /* which no plan has */
            for (int64_t matrix = 0; matrix < 3; matrix++) {
                int next = 0;

                for (int piece = 0; piece < pieces; piece++) {
                    int64_t batch = matrix * pieces + piece;
                    struct hopper_span x = hopper_span_of(&s, &batch);

                    assert_int_equal(batch, matrix);
                    assert_int_equal(x.first, next);
                    assert_true(x.count > 0);
                    next += x.count;
                }
                assert_int_equal(next, all);
            }
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_cover_all_steps_once),
        cmocka_unit_test(descriptors_hold_address_offsets_and_swizzle),
        cmocka_unit_test(every_tile_is_made_once),
        cmocka_unit_test(tiles_made_together_share_rows_and_columns),
        cmocka_unit_test(tiles_are_numbered_as_long_as_31_bits_suffice),
        cmocka_unit_test(every_piece_of_dz_is_made_once),
        cmocka_unit_test(pieces_of_dz_are_made_in_the_order_they_are_read),
        cmocka_unit_test(memory_of_a_block_suffices),
        cmocka_unit_test(maps_have_contiguous_elements_first),
        cmocka_unit_test(tensor_cores_find_what_the_copy_engine_brought),
        cmocka_unit_test(results_leave_as_the_copy_engine_expects),
        cmocka_unit_test(results_in_f32_pass_through_all_banks),
        cmocka_unit_test(fragments_are_where_the_copy_engine_put_them),
        cmocka_unit_test(fragments_are_read_from_all_banks),
        cmocka_unit_test(sums_of_fragments_leave_as_the_copy_engine_expects),
        cmocka_unit_test(sums_of_fragments_are_written_to_all_banks),
        cmocka_unit_test(rows_read_at_once_are_in_different_banks),
        cmocka_unit_test(a_warps_tf32_is_in_different_banks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
