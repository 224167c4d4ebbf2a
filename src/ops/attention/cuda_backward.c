/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Attention backwards on the GPU: from the caller's descriptor to a rung's kernels, and the ladder.
 */
#include <cuda_runtime_api.h>
#include <inttypes.h>
#include <limits.h>

#include "ops/attention/attention.h"
#include "ops/attention/cuda/backward.h"

/* Beyond these, numbers of tiles and differences of positions in them do not fit their types. */
#define MOST_ROWS  (1 << 28)
#define MOST_WIDTH 256

#define CACHE_NBYTES (32 << 20) /* that blocks at work may count on */

/* A rung: its kernels, and which operands they can load from where the caller has them. */
struct rung {
    gpunvme_ops_status_t (*run)(const struct cuda_backward *x, void *stream);
    int width; /* channels of a head, at most; 0: any number, and operands as the caller has them */
    bool by_tma; /* only sequences that all have the length that is said */
};

enum { NAIVE, TILED, FLASH, FLASH2, HOPPER };

static const struct rung rungs[] = {
    [NAIVE] = {cuda_backward_naive, 0, false},
    [TILED] = {cuda_backward_tiled, 0, false},
    [FLASH] = {cuda_backward_flash, 128, false},
    [FLASH2] = {cuda_backward_flash2, MOST_WIDTH, false},
    [HOPPER] = {cuda_backward_hopper, MOST_WIDTH, true},
};

/* Rows of the workspace for one head: see room_of() in backward.cuh. */
static int64_t room_of(const int32_t *offsets, int64_t rows, int64_t most, int64_t batch)
{
    int64_t align = CUDA_BACKWARD_ALIGN;

    return offsets ? (rows / align + batch) * align : (most + align - 1) / align * align * batch;
}

static int width_of(const struct gpunvme_attention *f)
{
    int64_t most = f->dim > f->dim_v ? f->dim : f->dim_v;

    return most <= 64 ? 64 : most <= 128 ? 128 : MOST_WIDTH;
}

/* Can tiles be loaded from there, if the memory itself is aligned? */
static bool loadable(const struct cuda_backward *x, const struct rung *rung, int which,
                     const struct cuda_rows *rows)
{
    const struct cuda_attention *f = &x->f;
    bool keys = which == BACKWARD_K || which == BACKWARD_V;
    bool turned =
        f->rope.dim && (which == BACKWARD_Q || (which == BACKWARD_K && !f->rope.queries_only));
    bool wide = which == BACKWARD_GRAD_OUT && f->out_dtype != f->dtype;
    bool ragged = keys ? f->k_offsets || f->k_lengths : f->q_offsets || f->q_lengths;

    if (turned || wide || (rung->by_tma && ragged))
        return false;
    return (rows->batch | rows->row | rows->head) % 8 == 0;
}

static void choose_operands(struct cuda_backward *x, const struct rung *rung)
{
    const struct cuda_rows all[] = {[BACKWARD_Q] = x->f.q,
                                    [BACKWARD_K] = x->f.k,
                                    [BACKWARD_V] = x->f.v,
                                    [BACKWARD_GRAD_OUT] = x->grad_out};

    for (int i = 0; i < BACKWARD_OPERANDS; i++) {
        int64_t room = i == BACKWARD_K || i == BACKWARD_V ? x->k_room : x->q_room;

        x->operands[i].rows = all[i];
        x->operands[i].copied = !loadable(x, rung, i, &all[i]);
        if (x->operands[i].copied)
            x->operands[i].rows =
                (struct cuda_rows){.row = x->width, .head = room * x->width, .vectors = 1};
    }
}

/*
 * Heads whose tiles of keys are made at the same time. Where tiles differ in what they have to do,
 * the longest ones of several heads come first: of as many as have Q, grad_out and sums for grad_q
 * in the cache. Where they are alike and wait for their turns, a tile begins beside the same tiles
 * of other heads, so that none of them waits for another's start.
 */
static int section_of(const struct cuda_backward *x, const struct rung *rung)
{
    int64_t nbytes = (int64_t)(x->f.q_len + 1) * x->width * (2 + 2 + 4);
    int64_t heads = (int64_t)x->f.batch * x->f.kv_heads, most = CACHE_NBYTES / nbytes;
    int64_t keys = rung->by_tma && x->width < MOST_WIDTH ? 128 : 64;

    if (x->f.right == CUDA_ATTENTION_MOST)
        most = x->turns ? cuda_units() * keys / (x->f.k_len + 1) : 1;
    if (most < 1)
        return 1;
    return (int)(most < heads ? most : heads > 1 ? heads : 1);
}

static struct cuda_backward backward_of(const struct gpunvme_attention_grad *p,
                                        const struct rung *rung)
{
    const struct gpunvme_attention *f = &p->forward;
    int64_t q_batch = attention_batch(f, f->q_offsets), q_rows = attention_q_rows(f);
    int64_t k_batch = attention_batch(f, f->k_offsets), k_rows = attention_k_rows(f);
    bool q = attention_wants_q(p), kv = attention_wants_kv(p);
    struct cuda_backward x = {
        .f = cuda_attention_of(f),
        .grad_out = cuda_rows_of(p->grad_out, &p->grad_out_strides, q_batch, q_rows, f->heads,
                                 f->out_dtype),
        .grad_q = cuda_rows_of(q ? p->grad_q : NULL, &p->grad_q_strides, q_batch, q_rows, f->heads,
                               f->dtype),
        .grad_k = cuda_rows_of(kv ? p->grad_k : NULL, &p->grad_k_strides, k_batch, k_rows,
                               f->kv_heads, f->dtype),
        .grad_v = cuda_rows_of(kv ? p->grad_v : NULL, &p->grad_v_strides, k_batch, k_rows,
                               f->kv_heads, f->dtype),
        .grad_sinks = p->grad_sinks,
        .q_room = room_of(f->q_offsets, f->q_rows, f->q_len, f->batch),
        .k_room = room_of(f->k_offsets, f->k_rows, f->k_len, f->batch),
        .width = width_of(f),
    };

    if (rung->width)
        choose_operands(&x, rung);
    return x;
}

/* Parts of the workspace, one behind the other. Without one it is only measured. */
struct room {
    char *at;
    size_t nbytes;
};

static void *part(struct room *room, int64_t matrices, int64_t rows, int64_t cols, size_t size)
{
    void *data = room->at ? room->at + room->nbytes : NULL;

    room->nbytes += ops_workspace_part(matrices, rows, cols, size);
    return data;
}

/* What the workspace has in it: sums and turns, which begin as zeros, and all the rest. */
struct plan {
    void *zeros, *tables;
    size_t zeros_nbytes, nbytes;
};

static struct plan plan_of(struct cuda_backward *x, const struct rung *rung,
                           const struct ops_call *call, void *workspace)
{
    const struct gpunvme_attention_grad *p = call->descriptor;
    int64_t pieces = x->q_room / CUDA_BACKWARD_PIECE * (x->width / CUDA_BACKWARD_PIECE);
    struct room room = {workspace, 0};
    struct plan plan = {0};

    x->delta = part(&room, 1, x->f.heads, x->q_room, sizeof(float));
    x->lse2 = part(&room, 1, x->f.heads, x->q_room, sizeof(float));
    plan.tables = part(&room, 1, 1, (int64_t)cuda_attention_turns_nbytes(&x->f), 1);
    plan.zeros = part(&room, 0, 0, 0, 1);
    plan.zeros_nbytes = room.nbytes;
    if (rung->width && attention_wants_q(p)) {
        x->sums = part(&room, x->f.heads, x->q_room, x->width, sizeof(float));
        if (call->exec->flags & GPUNVME_OPS_DETERMINISTIC) {
            x->turns = part(&room, 1, x->f.heads, pieces, sizeof(uint32_t));
            x->begun = part(&room, 1, 1, 1, sizeof(uint32_t));
        }
    }
    plan.zeros_nbytes = room.nbytes - plan.zeros_nbytes;
    if (rung->width && attention_wants_kv(p) && p->grad_k && x->f.rope.dim &&
        !x->f.rope.queries_only)
        x->grad_turned = part(&room, x->f.kv_heads, x->k_room, x->width, sizeof(float));
    for (int i = 0; rung->width && i < BACKWARD_OPERANDS; i++) {
        bool keys = i == BACKWARD_K || i == BACKWARD_V;

        if (x->operands[i].copied)
            x->operands[i].rows.data =
                part(&room, keys ? x->f.kv_heads : x->f.heads, keys ? x->k_room : x->q_room,
                     x->width, sizeof(uint16_t));
    }
    plan.nbytes = room.nbytes;
    return plan;
}

static size_t workspace(const struct ops_variant *variant, const struct ops_call *call)
{
    struct cuda_backward x = backward_of(call->descriptor, variant->data);

    return plan_of(&x, variant->data, call, NULL).nbytes;
}

/* What comes before the rung's own kernels. */
static gpunvme_ops_status_t prepare(struct cuda_backward *x, const struct plan *plan, void *stream)
{
    gpunvme_ops_status_t status = GPUNVME_OPS_OK;

    if (x->f.batch && x->f.q_len)
        status = cuda_backward_deltas(x, stream);
    if (!status && x->grad_sinks)
        status = cuda_backward_sinks(x, stream);
    if (!status && plan->zeros_nbytes)
        status = cuda_status(cudaMemsetAsync(plan->zeros, 0, plan->zeros_nbytes, stream),
                             "clearing the workspace");
    if (!status)
        status = cuda_attention_turns(&x->f, plan->tables, stream);
    return status;
}

static gpunvme_ops_status_t run(const struct ops_variant *variant, const struct ops_call *call)
{
    const struct rung *rung = variant->data;
    struct cuda_backward x = backward_of(call->descriptor, rung);
    struct plan plan = plan_of(&x, rung, call, call->exec->workspace);
    void *stream = call->exec->stream;
    gpunvme_ops_status_t status = prepare(&x, &plan, stream);

    x.section = section_of(&x, rung);
    if (!status && rung->width)
        status = cuda_backward_copy(&x, stream);
    if (!status)
        status = rung->run(&x, stream);
    if (!status && rung->width)
        status = cuda_backward_finish(&x, stream);
    return status;
}

static gpunvme_ops_status_t check_aligned(const struct ops_variant *variant,
                                          const struct cuda_backward *x)
{
    static const char *const names[] = {"q", "k", "v", "grad_out"};

    for (int i = 0; i < BACKWARD_OPERANDS; i++)
        if (!x->operands[i].copied && (uintptr_t)x->operands[i].rows.data % 16)
            return ops_fail(GPUNVME_OPS_ERR_ALIGN,
                            "variant '%s' takes operands at multiples of 16 bytes: %s is at %p",
                            variant->name, names[i], x->operands[i].rows.data);
    return GPUNVME_OPS_OK;
}

static gpunvme_ops_status_t suits(const struct ops_variant *variant, const struct ops_call *call)
{
    const struct gpunvme_attention_grad *p = call->descriptor;
    const struct gpunvme_attention *f = &p->forward;
    const struct rung *rung = variant->data;
    gpunvme_ops_status_t status = cuda_attention_check(variant, f);
    struct cuda_backward x;

    if (status || !rung->width)
        return status;
    if (f->dim > rung->width || f->dim_v > rung->width)
        return ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED,
                        "variant '%s' takes up to %d channels a head: there are %" PRId64
                        " and %" PRId64,
                        variant->name, rung->width, f->dim, f->dim_v);
    if (f->q_len > MOST_ROWS || f->k_len > MOST_ROWS ||
        (f->k_len / 64 + 1) * f->kv_heads > INT_MAX / (f->batch + 1))
        return ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED,
                        "variant '%s' takes lengths up to 2^28, and less than 2^31 tiles of keys",
                        variant->name);
    x = backward_of(p, rung);
    return call->any_pointers ? GPUNVME_OPS_OK : check_aligned(variant, &x);
}

static int rank(const struct ops_variant *variant, const struct ops_call *call)
{
    (void)call;
    return 1 + (int)((const struct rung *)variant->data - rungs);
}

#define BY_16_BITS (1u << GPUNVME_OPS_F16 | 1u << GPUNVME_OPS_BF16)
#define VARIANT(index, name_, needs_, min_sm_, max_sm_, dtypes_, changes_)                         \
    {                                                                                              \
        .name = name_, .needs = needs_, .changes = changes_, .dtypes = dtypes_,                    \
        .computes = OPS_ALL_COMPUTES, .deterministic = 1, .min_sm = min_sm_, .max_sm = max_sm_,    \
        .suits = suits, .rank = rank, .workspace = workspace, .run = run, .data = &rungs[index]    \
    }

static const struct ops_variant variants[] = {
    VARIANT(NAIVE, "naive", CUDA_SM80, 80, 0, OPS_ALL_DTYPES,
            "a block for each row of a gradient, and scores are made again for each"),
    VARIANT(
        TILED, "tiled", CUDA_SM80, 80, 0, OPS_ALL_DTYPES,
        "64 rows of a gradient, and 64 of the other side in shared memory at a time: scores are "
        "made once for 64 rows"),
    VARIANT(
        FLASH, "flash", CUDA_SM80, 80, 0, BY_16_BITS,
        "one pass over the queries for each 64 keys by tensor cores (mma): scores are made once "
        "for all gradients, which warps divide by channels; grad_q is added up in f32 in the "
        "workspace, in order if it must be the same bits in every run"),
    VARIANT(FLASH2, "flash2", CUDA_SM80, 80, 0, BY_16_BITS,
            "each warp has keys of its own, so weights and their gradients are operands in "
            "registers; the next queries are loaded meanwhile"),
    VARIANT(HOPPER, "hopper", CUDA_SM90A, CUDA_ONLY_90A, CUDA_ONLY_90A, BY_16_BITS,
            "128 keys by two warp groups (wgmma), whose P and dS are operands in registers; a "
            "third group loads and adds to grad_q's sums by the copy engine (TMA). With more than "
            "128 channels 64 keys, and one group makes grad_v, the other one grad_k"),
};

const struct ops_ladder attention_backward_cuda = OPS_LADDER(variants);
