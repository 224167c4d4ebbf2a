/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dZ made beside the product that reads it, grad_x = dZ W: which pieces there are, in which order
 * they are made, and how the product knows that they are. For the GPU, for the host that prepares
 * it, and for tests that look at it by value.
 *
 * The product's blocks read dZ in tiles of 128 rows (panels), along k. A flag counts the pieces
 * made of each panel and 1024 columns (a chunk). Warps that have nothing else to do claim pieces by
 * their number, in the order in which the product needs them: first those panels that the first
 * tiles of all blocks read, chunk by chunk, then the next ones likewise.
 *
 * Nobody can wait forever: a piece is claimed by a warp that runs, which makes it without waiting
 * for anything, and warps claim until none is left. So whatever a block waits for is being made or
 * will be claimed, if need be by its own warps, no matter whether other blocks have begun. Only who
 * has found no piece left waits for the last ones, to make the bias's gradient of their sums.
 */
#ifndef OPS_LINEAR_DZ_H
#define OPS_LINEAR_DZ_H

#include "gpunvme/fn.h"
#include "ops/core/fail.h"

#ifdef __cplusplus
extern "C" {
#endif

/* dZ = grad_y * act'(preact). */
struct linear_dz {
    int64_t rows, out;
    const void *grad_y, *preact;
    int64_t ld_grad_y, ld_preact;
    int activation, dtype;
    void *dz; /* of `dtype`; NULL: not wanted */
    int64_t ld_dz;
    float *sums; /* over rows; NULL: not wanted */
    int vectors; /* four elements at once may be read and written */
};

enum {
    DZ_COLS = 32 * 8,   /* of a piece: eight elements for each lane */
    DZ_PIECE_ROWS = 32, /* of which one sum is made for each column */
    DZ_PANEL = 128,     /* rows of a tile of the product */
    DZ_CHUNK = 1024,    /* columns for which there is a flag */
    DZ_PIECES = DZ_PANEL / DZ_PIECE_ROWS * (DZ_CHUNK / DZ_COLS), /* of a panel's chunk */
};

/* `first` panels are made first, then `set` at a time. */
struct dz_order {
    uint32_t panels, chunks, first, set;
};

/* Where a piece begins, which may be beyond the edge, and the flag that counts it. */
struct dz_piece {
    int64_t row, col;
    uint32_t flag;
};

GPUNVME_FN uint32_t dz_pieces(const struct dz_order *order)
{
    return order->panels * order->chunks * DZ_PIECES;
}

/* So many are made by the warps that multiply before they begin: what they need in their first
 * moments. */
GPUNVME_FN uint32_t dz_early_pieces(const struct dz_order *order)
{
    return order->first * ((order->chunks + 3) / 4) * DZ_PIECES;
}

GPUNVME_FN struct dz_piece dz_piece_of(const struct dz_order *order, uint32_t index)
{
    uint32_t panels = order->first, panel = 0, i = index, chunk, of_chunk;
    struct dz_piece x;

    if (i >= panels * order->chunks * DZ_PIECES) {
        uint32_t of_set = order->set * order->chunks * DZ_PIECES;

        i -= panels * order->chunks * DZ_PIECES;
        panel = panels + i / of_set * order->set;
        i %= of_set;
        panels = order->panels - panel < order->set ? order->panels - panel : order->set;
    }
    of_chunk = panels * DZ_PIECES;
    chunk = i / of_chunk;
    i -= chunk * of_chunk;
    panel += i / DZ_PIECES;
    i %= DZ_PIECES;
    x.row = (int64_t)panel * DZ_PANEL + i / (DZ_CHUNK / DZ_COLS) * DZ_PIECE_ROWS;
    x.col = (int64_t)chunk * DZ_CHUNK + i % (DZ_CHUNK / DZ_COLS) * DZ_COLS;
    x.flag = panel * order->chunks + chunk;
    return x;
}

/* Flags and counters in the workspace, all 0 at the beginning, those of each kind in lines of
 * memory of their own. */
enum { DZ_EARLY = 0, DZ_LATER = 32, DZ_BIAS = 64, DZ_FLAGS = 96 };

/* The bias's gradient, which is made of dZ's sums when all of it is there; NULL: not wanted. */
struct dz_bias {
    void *grad;
    int dtype, accumulate;
};

/* What a kernel needs to make dZ; sums are of DZ_PIECE_ROWS rows each. */
struct dz_plan {
    struct linear_dz dz;
    struct dz_bias bias;
    struct dz_order order;
    uint32_t *counters; /* pieces claimed, columns of bias, and from DZ_FLAGS on pieces made */
};

static inline int64_t dz_panels(int64_t rows)
{
    return (rows + DZ_PANEL - 1) / DZ_PANEL;
}

static inline int64_t dz_chunks(int64_t out)
{
    return (out + DZ_CHUNK - 1) / DZ_CHUNK;
}

static inline int64_t dz_parts(int64_t rows)
{
    return (rows + DZ_PIECE_ROWS - 1) / DZ_PIECE_ROWS;
}

static inline size_t dz_counters_nbytes(int64_t rows, int64_t out)
{
    return (size_t)(DZ_FLAGS + dz_panels(rows) * dz_chunks(out)) * sizeof(uint32_t);
}

/* May pieces be numbered by 31 bits, and a little more? For rows and out up to 2^31. */
static inline int dz_fits(int64_t rows, int64_t out)
{
    return dz_panels(rows) * dz_chunks(out) <= INT32_MAX / 2 / DZ_PIECES;
}

static inline int dz_aligned(const void *data, int64_t ld)
{
    return (uintptr_t)data % 16 == 0 && ld % 8 == 0;
}

/*
 * Can it be made by 16 bytes a lane? Rows end with a lane's eight elements, so that there is no
 * edge to look at.
 */
static inline int dz_suits(const struct linear_dz *x)
{
    return x->dtype != GPUNVME_OPS_F32 && x->out % 8 == 0 && dz_aligned(x->grad_y, x->ld_grad_y) &&
           (x->activation == GPUNVME_OPS_ACT_NONE ||
            (dz_aligned(x->preact, x->ld_preact) && dz_aligned(x->dz, x->ld_dz)));
}

#ifdef __cplusplus
}
#endif
#endif
