/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How the rung "tensorcore" lays tiles out in shared memory, for its kernel and for tests.
 */
#ifndef OPS_MATMUL_TENSORCORE_H
#define OPS_MATMUL_TENSORCORE_H

#include <stdint.h>

#include "gpunvme/fn.h"

enum {
    TENSORCORE_TILE = 128,      /* of m and of n */
    TENSORCORE_ROW_NBYTES = 64, /* of k in a stage: 32 elements of 16 bits, 16 of f32 */
    TENSORCORE_STAGES = 4,
    TENSORCORE_THREADS = 256,
    TENSORCORE_OUT_LD = TENSORCORE_TILE + 4, /* of sums on their way out, in floats */
};

/*
 * 16-bit types: the byte where 16 bytes number `chunk` of row `row` are. Rows are of k (64 bytes,
 * two of them in a line of all banks), or of m or n (256 bytes): whichever is contiguous. ldmatrix
 * reads eight rows at once, which the exclusive or brings to different banks.
 */
GPUNVME_FN uint32_t tensorcore_place16(int mn_contiguous, uint32_t row, uint32_t chunk)
{
    if (mn_contiguous)
        return row * 256 + (chunk ^ (row & 7)) * 16;
    return row * 64 + (chunk ^ (row >> 1 & 3)) * 16;
}

/*
 * f32: where element `x` of row `row` is. A warp reads 8 x 4 elements, 8 along m or n; rows of 20
 * or 136 floats put them into 32 banks.
 */
GPUNVME_FN uint32_t tensorcore_place32(int mn_contiguous, uint32_t row, uint32_t x)
{
    return (row * (mn_contiguous ? 136 : 20) + x) * 4;
}

/* Bytes of an operand's tile. */
GPUNVME_FN uint32_t tensorcore_nbytes(int f32, int mn_contiguous)
{
    if (f32)
        return mn_contiguous ? 16 * 136 * 4 : 128 * 20 * 4;
    return 128 * 64;
}

#endif
