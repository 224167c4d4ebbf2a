/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Between the host's half of the rung "hopper" and its kernels: how work is divided, and how memory
 * is laid out.
 */
#ifndef OPS_ATTENTION_CUDA_HOPPER_H
#define OPS_ATTENTION_CUDA_HOPPER_H

#include "ops/attention/cuda/problem.h"
#include "ops/hopper/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    HOPPER_ROWS = 64,           /* of Q, for each warp group that multiplies */
    HOPPER_MOST_SLOTS = 8,      /* for tiles of K and V: so many, or half of that */
    HOPPER_SHARED = 227 * 1024, /* what a block can have */
    HOPPER_PIECE = 8,           /* rows of a page that are loaded at once: a multiple of this */
    HOPPER_LOADING = 3,         /* warps that do so */

    /* Of elements of 8 bits: the shape, and keys of V that lie together where it is transposed. */
    HOPPER_FP8_CHANNELS = 128,
    HOPPER_FP8_KEYS = 96,
    HOPPER_FP8_GROUPS = 3,
    HOPPER_VALUES = 16
};

/*
 * A tile has 64 queries for each of `groups` warp groups and `keys` keys; rows of Q, K and V are
 * padded to `channels`, which is 64, 128 or 256, of `size` bytes.
 */
struct hopper_shape {
    int channels, keys, groups, size;
};

GPUNVME_FN int hopper_q_nbytes(struct hopper_shape s)
{
    return s.groups * HOPPER_ROWS * s.channels * s.size;
}

GPUNVME_FN int hopper_slot_nbytes(struct hopper_shape s)
{
    return s.keys * s.channels * s.size;
}

GPUNVME_FN int hopper_barriers_nbytes(struct hopper_shape s)
{
    return 8 * (2 * (HOPPER_MOST_SLOTS + s.groups) + 1 + 2 * 2) + 2 * 16;
}

/* As many as there is room for: a power of two, so that one number counts slots and turns. */
GPUNVME_FN int hopper_slots(struct hopper_shape s)
{
    int room = HOPPER_SHARED - HOPPER_ALIGN - hopper_q_nbytes(s) - hopper_barriers_nbytes(s);

    return room < HOPPER_MOST_SLOTS * hopper_slot_nbytes(s) ? HOPPER_MOST_SLOTS / 2
                                                            : HOPPER_MOST_SLOTS;
}

GPUNVME_FN int hopper_attention_nbytes(struct hopper_shape s)
{
    return HOPPER_ALIGN + hopper_q_nbytes(s) + hopper_slots(s) * hopper_slot_nbytes(s) +
           hopper_barriers_nbytes(s);
}

/*
 * What there is to do: tiles of queries of all heads of all sequences, in an order in which blocks
 * that work at the same time share K and V: `span` heads together, whose K and V the cache can
 * hold. Of these come the last queries first, which see the most keys. So little ones remain for
 * blocks that are done early.
 */
struct hopper_queue {
    unsigned items, heads; /* heads: of all sequences */
    unsigned tiles, span;
};

struct hopper_item {
    unsigned head, tile; /* head: of all sequences */
};

GPUNVME_FN struct hopper_item hopper_item_of(const struct hopper_queue *q, unsigned i)
{
    unsigned first = i / (q->span * q->tiles) * q->span, left = q->heads - first, turn;
    unsigned span = left < q->span ? left : q->span;
    struct hopper_item x;

    i -= first * q->tiles;
    turn = i / span;
    x.head = first + i - turn * span;
    x.tile = q->tiles - 1 - turn;
    return x;
}

/*
 * With elements of 8 bits wgmma takes V only if keys are contiguous, so a kernel before transposes
 * it: tiles of `keys` keys of all channels lie behind each other in the workspace, as they are in
 * shared memory. Tiles of a sequence follow each other, each with all heads of K. What is behind a
 * sequence's end is zeros.
 *
 * A tile has groups of 16 keys, of 16 bytes for each channel. Bytes 4 l to 4 l + 3 are keys 2 l,
 * 2 l + 1, 2 l + 8 and 2 l + 9: those whose scores lane l of four has. So scores become the second
 * product's operand where they are.
 *
 * The number of a sequence's first tile: by its first row, or with room for `tiles` of each.
 */
GPUNVME_FN int64_t hopper_first_values(const int32_t *offsets, int b, int64_t row, int tiles,
                                       int keys)
{
    return offsets ? row / keys + b : (int64_t)b * tiles;
}

/* Rows of K and V in pages come in pieces, none of which is in two tiles or two pages. */
GPUNVME_FN int hopper_piece(int page_size, int keys)
{
    int piece = HOPPER_PIECE;

    while (page_size % (2 * piece) == 0 && keys % (2 * piece) == 0)
        piece *= 2;
    return piece;
}

struct hopper_attention {
    CUtensorMap q, k, v;
    int piece;       /* rows of a page that are loaded at once; 0: K and V are not in pages */
    uint8_t *values; /* V transposed, of elements of 8 bits */
    int tiles;       /* of keys, of a sequence */
    struct cuda_attention problem;
    struct hopper_queue queue;
    uint32_t *taken; /* items beyond the first of each block; NULL: blocks take every so many */
    /* What coordinates are multiplied by: 0 where all heads or sequences share one. */
    int q_head, q_batch, k_head, k_batch, v_head, v_batch;
    float rate, cap_rate; /* see soften() and limit() */
    int padded;           /* rows behind a sequence's last key may be anything */
    int vectors;          /* results are written 16 bytes at a time */
};

/* Can the copy engine read rows, of which a sequence or page has so many? */
bool hopper_reads(const struct cuda_rows *x, int64_t rows);

/* Their map: they are read `box` at a time, and 64 channels. */
gpunvme_ops_status_t hopper_encode_rows(CUtensorMap *map, const struct cuda_rows *x, int channels,
                                        int64_t rows, int heads, int64_t batch, int box, int dtype);

/* NULL: there is none. */
const void *hopper_attention_kernel(int dtype, struct hopper_shape shape, bool paged);
const void *hopper_attention_fp8_kernel(void);

/* Enqueues the kernel that transposes V. */
gpunvme_ops_status_t hopper_transpose_values(const struct hopper_attention *work, void *stream);

#ifdef __cplusplus
}
#endif
#endif
