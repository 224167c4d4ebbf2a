/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How tiles lie in shared memory and what names them, for kernels of sm_90a, for the host that
 * prepares their work, and for tests that look at it by value.
 *
 * A tile of an operand is 128 bytes wide. Along which direction they lie is the operand's own: k
 * (as A row-major, B column-major), or m or n. With 16-bit types wgmma takes both; blocks of 64
 * rows of 128 bytes are the unit of all that follows. Within each group of eight rows the 16 bytes
 * number c of row r lie at place c ^ r (the swizzle of 128 bytes), so that no two of a column share
 * a bank.
 */
#ifndef OPS_HOPPER_TILE_H
#define OPS_HOPPER_TILE_H

#include <stddef.h>
#include <stdint.h>

#include "gpunvme/fn.h"

enum {
    HOPPER_TILE_M = 128, /* 64 for each of two warp groups */
    HOPPER_TILE_N = 256,
    HOPPER_WIDTH = 128, /* bytes of a tile's rows: 64 elements of 16 bits, or 32 of f32 */
    HOPPER_BLOCK = 64 * HOPPER_WIDTH,
    HOPPER_A_NBYTES = HOPPER_TILE_M * HOPPER_WIDTH,
    HOPPER_B_NBYTES = HOPPER_TILE_N * HOPPER_WIDTH,
    HOPPER_STAGE_NBYTES = HOPPER_A_NBYTES + HOPPER_B_NBYTES,
    HOPPER_STAGES = 4,
    HOPPER_MOST_STAGES = 8,               /* of narrower tiles: as many as there is room for */
    HOPPER_OUT_NBYTES = 2 * HOPPER_BLOCK, /* of results on their way out, by warp group */
    HOPPER_THREADS = 3 * 128,             /* one warp group loads, two multiply */
    HOPPER_REGISTERS = 168,               /* a thread of so many begins with */
    HOPPER_ALIGN = 1024,                  /* of tiles: eight rows, the swizzle's period */
    HOPPER_SHARED_NBYTES = HOPPER_STAGES * HOPPER_STAGE_NBYTES + 2 * HOPPER_OUT_NBYTES +
                           2 * HOPPER_MOST_STAGES * 8 + HOPPER_ALIGN,
};

/* Of tiles of this width: a stage, and how many there are. */
GPUNVME_FN int hopper_stage_nbytes(int width)
{
    return HOPPER_A_NBYTES + width * HOPPER_WIDTH;
}

GPUNVME_FN int hopper_stages(int width)
{
    return HOPPER_STAGES * HOPPER_STAGE_NBYTES / hopper_stage_nbytes(width);
}

/*
 * The descriptor of a matrix in shared memory (PTX ISA, "Matrix Descriptor Format"): address,
 * leading and stride byte offset, each without its lower four bits, and the swizzle of 128 bytes.
 */
GPUNVME_FN uint64_t hopper_descriptor(uint32_t address, uint32_t leading, uint32_t stride)
{
    return (uint64_t)(address >> 4 & 0x3fff) | (uint64_t)(leading >> 4 & 0x3fff) << 16 |
           (uint64_t)(stride >> 4 & 0x3fff) << 32 | UINT64_C(1) << 62;
}

/*
 * Eight rows further is 1024 bytes further in both directions. Where m or n is contiguous, 64
 * elements further along it is the next block.
 */
GPUNVME_FN uint64_t hopper_tile_descriptor(uint32_t address, int mn_contiguous)
{
    return hopper_descriptor(address, mn_contiguous ? HOPPER_BLOCK : 16, 1024);
}

/* What is added to a descriptor for the next 32 bytes of k: along a row, or 16 rows down. */
GPUNVME_FN uint64_t hopper_descriptor_step(int mn_contiguous)
{
    return (mn_contiguous ? 16 * HOPPER_WIDTH : 32) >> 4;
}

/*
 * Likewise without a swizzle: rows of 16 bytes of k lie behind each other, the next eight rows are
 * `stride` bytes further, and the next 16 bytes of k `leading`.
 */
GPUNVME_FN uint64_t hopper_plain_descriptor(uint32_t address, uint32_t leading, uint32_t stride)
{
    return hopper_descriptor(address, leading, stride) & ~(UINT64_C(1) << 62);
}

/* Where byte `x` of row `row` is in a block whose rows are 128 bytes. */
GPUNVME_FN uint32_t hopper_swizzle(uint32_t row, uint32_t x)
{
    return row * HOPPER_WIDTH + (x ^ (row & 7) << 4);
}

/*
 * Where 16 bytes number `chunk` of row `row` of 64 x 64 results in f32 are, in floats. A warp
 * writes 8 bytes to each of four rows and two chunks at once, and reads 16 bytes of eight chunks of
 * a row: both from all banks.
 */
GPUNVME_FN uint32_t hopper_result_place(uint32_t row, uint32_t chunk)
{
    return row * 64 + (chunk ^ (row & 3) << 1) * 4;
}

/*
 * With f32, wgmma takes what lies along m or n only from registers, and only as its first operand,
 * of 64 lines. In shared memory that is boxes of 32 lines (128 bytes) by 32 of k, HOPPER_TF32_BOX
 * bytes each; or a block, if it lies along k. A thread has two lines of k = thread % 4 and each
 * fourth from there ("Register Fragments" there). Which lines wgmma takes for those is ours to
 * choose, if results are found there again, so that warps read from all banks and write sums to
 * all:
 *
 *  - along m or n: two neighbours, read and written at once by half a warp at a time, which reads
 * 16 bytes number c and c ^ 5 of rows r to r + 3 and writes those of four even or odd rows;
 *  - along k: eight different rows by a warp, four even and four odd.
 */
enum {
    HOPPER_TF32_BOX = 32 * HOPPER_WIDTH,
    HOPPER_TF32_PARTS = 8, /* of a warp group's sums on their way out, 32 columns of sums each */
};

/* A thread's first line; the second is hopper_fragment_next() further. */
GPUNVME_FN uint32_t hopper_fragment_line(int mn_contiguous, uint32_t thread)
{
    uint32_t warp = thread / 32, group = thread % 32 / 4;
    uint32_t chunk = (group / 2 % 2 * 5) ^ (group / 4 * 2) ^ warp % 2;

    return mn_contiguous ? warp / 2 * 32 + chunk * 4 + group % 2 * 2
                         : warp * 16 + group % 4 * 2 + group / 4;
}

GPUNVME_FN uint32_t hopper_fragment_next(int mn_contiguous)
{
    return mn_contiguous ? 1 : 8;
}

/* Where line `line` of the operand at `k` is, in bytes. */
GPUNVME_FN uint32_t hopper_fragment_place(int mn_contiguous, uint32_t line, uint32_t k)
{
    return mn_contiguous ? line / 32 * HOPPER_TF32_BOX + hopper_swizzle(k, line % 32 * 4)
                         : hopper_swizzle(line, k * 4);
}

/*
 * Where the sum of a line and one of 32 columns is on its way out, in bytes: in one of two boxes of
 * 32 x 32 elements of C, rows of 128 bytes. If the operands were exchanged, lines are C's columns.
 */
GPUNVME_FN uint32_t hopper_sum_place(int exchanged, uint32_t line, uint32_t col)
{
    return line / 32 * HOPPER_TF32_BOX +
           (exchanged ? hopper_swizzle(col, line % 32 * 4) : hopper_swizzle(line % 32, col * 4));
}

/*
 * B's tile is loaded in so many parts, one for each block of a pair. The narrowest tile has as many
 * columns as a block and is not divided.
 */
GPUNVME_FN int hopper_parts(int width)
{
    return width > 64 ? 2 : 1;
}

/* A tensor map's numbers: three dimensions, the contiguous one first, strides in bytes. */
struct hopper_tensor {
    uint64_t size[3], stride[2];
    uint32_t box[3];
};

/* The same of four. */
struct hopper_tensor4 {
    uint64_t size[4], stride[3];
    uint32_t box[4];
};

/*
 * An operand of `lines` x `width` elements of `size` bytes, `pitch` elements apart, which is read
 * in boxes 128 bytes wide. A single matrix for the whole batch has stride 0, which maps have not.
 */
GPUNVME_FN struct hopper_tensor hopper_tensor_of(int64_t lines, int64_t width, int64_t pitch,
                                                 int64_t batch, int64_t stride, int size,
                                                 int box_lines)
{
    struct hopper_tensor x;

    x.size[0] = (uint64_t)width;
    x.size[1] = (uint64_t)lines;
    x.size[2] = stride ? (uint64_t)batch : 1;
    x.stride[0] = (uint64_t)pitch * (uint64_t)size;
    x.stride[1] = stride ? (uint64_t)stride * (uint64_t)size : x.stride[0];
    x.box[0] = (uint32_t)(HOPPER_WIDTH / size);
    x.box[1] = (uint32_t)box_lines;
    x.box[2] = 1;
    return x;
}

/*
 * Lines of the boxes that an operand with elements of `size` bytes is read in: all `load` of a
 * load, or, of k, as many as elements fit in 128 bytes.
 */
GPUNVME_FN int hopper_box_lines(int mn_contiguous, int size, int load)
{
    return mn_contiguous ? HOPPER_WIDTH / size : load;
}

#endif
