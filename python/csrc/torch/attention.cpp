/* SPDX-License-Identifier: BSD-3-Clause
 *
 * torch.ops.optimized: attention, forward and backward. Gradients, fake implementations and
 * autocast are in Python (gpunvme/torch/_attention.py).
 */
#include "call.h"

#include <optional>
#include <string>
#include <tuple>

namespace
{

using namespace gpunvme_torch;

/* How attention is computed, as the schemas have it. */
struct Options {
    bool causal;
    std::optional<double> scale;
    int64_t window_left, window_right; /* negative: no limit */
    double softcap;
};

/* Sequences that lie behind each other: where they begin, and how long they are at most. */
struct Ragged {
    Tensor q_offsets, k_offsets;
    int64_t q_len, k_len;
};

/* In place if channels are contiguous, else a copy. */
Tensor with_channels(const Tensor &t)
{
    return t.size(3) <= 1 || t.stride(3) == 1 ? t : torch::stable::contiguous(t);
}

struct gpunvme_attention_strides strides_of(const Tensor &t)
{
    return {t.stride(0), t.stride(1), t.stride(2)};
}

/* The descriptor without results; q, k and v must outlive it. */
struct gpunvme_attention describe(const Tensor &q, const Tensor &k, const Tensor &v, int32_t dtype,
                                  const Options &options)
{
    struct gpunvme_attention a = {};

    a.batch = q.size(0);
    a.q_len = q.size(1);
    a.heads = q.size(2);
    a.dim = q.size(3);
    a.k_len = k.size(1);
    a.kv_heads = k.size(2);
    a.dim_v = v.size(3);
    a.q = q.const_data_ptr();
    a.k = k.const_data_ptr();
    a.v = v.const_data_ptr();
    a.q_strides = strides_of(q);
    a.k_strides = strides_of(k);
    a.v_strides = strides_of(v);
    a.scale = static_cast<float>(options.scale.value_or(0));
    a.softcap = static_cast<float>(options.softcap);
    a.causal = options.causal;
    a.window = options.window_left >= 0 || options.window_right >= 0;
    a.window_left = options.window_left < 0 ? INT64_MAX : options.window_left;
    a.window_right = options.window_right < 0 ? INT64_MAX : options.window_right;
    a.dtype = a.out_dtype = dtype;
    return a;
}

/* Checked, offsets contiguous. */
Ragged ragged_of(const char *op, const Tensor &q, const Tensor &q_offsets, const Tensor &k_offsets,
                 int64_t q_len, int64_t k_len)
{
    check_memory(op, {&q, &q_offsets, &k_offsets});
    for (const Tensor *t : {&q_offsets, &k_offsets})
        if (t->dim() != 1 || !t->size(0) || t->size(0) != q_offsets.size(0) ||
            torch_dtype(*t) != aoti_torch_dtype_int32())
            refuse(std::string(op) + ": q_offsets " + shape_of(q_offsets) + " and k_offsets " +
                   shape_of(k_offsets) + " are not int32, one more than sequences");
    if (q_len < 0 || k_len < 0)
        refuse(std::string(op) + ": q_len and k_len are lengths");
    return {torch::stable::contiguous(q_offsets), torch::stable::contiguous(k_offsets), q_len,
            k_len};
}

/* The only sequence of a descriptor becomes as many as there are. */
void divide(struct gpunvme_attention &a, const Ragged &ragged)
{
    a.batch = ragged.q_offsets.size(0) - 1;
    a.q_rows = a.q_len;
    a.k_rows = a.k_len;
    a.q_len = ragged.q_len;
    a.k_len = ragged.k_len;
    a.q_offsets = static_cast<const int32_t *>(ragged.q_offsets.const_data_ptr());
    a.k_offsets = static_cast<const int32_t *>(ragged.k_offsets.const_data_ptr());
}

/* (rows, heads, channels) as a sequence of its own. */
Tensor as_one(const char *op, const Tensor &t)
{
    if (t.dim() != 3)
        refuse(std::string(op) + ": takes (rows, heads, channels), not " + shape_of(t));
    return torch::stable::unsqueeze(t, 0);
}

void check_shapes(const char *op, const Tensor &q, const Tensor &k, const Tensor &v)
{
    if (q.dim() != 4 || k.dim() != 4 || v.dim() != 4 || k.size(0) != q.size(0) ||
        v.size(0) != q.size(0) || v.size(1) != k.size(1) || v.size(2) != k.size(2) ||
        k.size(3) != q.size(3) || !k.size(2) || q.size(2) % k.size(2))
        refuse(std::string(op) + ": q " + shape_of(q) + ", k " + shape_of(k) + ", v " +
               shape_of(v) +
               ": it takes (batch, rows, heads, channels), where the heads of k and "
               "v divide those of q");
}

/*
 * Attention, and the logarithms of its sums if `lse` is not NULL. Results of rows that no sequence
 * has are zeros.
 */
Tensor forward(const char *op, const Tensor &q, const Tensor &k, const Tensor &v,
               const Options &options, Tensor *lse, const Ragged *ragged = nullptr)
{
    int32_t dtype = common_dtype(op, {&q, &k, &v});

    check_shapes(op, q, k, v);
    Tensor queries = with_channels(q), keys = with_channels(k), values = with_channels(v);
    Tensor out = make(q, {q.size(0), q.size(1), q.size(2), v.size(3)});
    struct gpunvme_attention a = describe(queries, keys, values, dtype, options);

    if (ragged) {
        divide(a, *ragged);
        torch::stable::zero_(out);
    }
    a.out = out.mutable_data_ptr();
    a.out_strides = strides_of(out);
    if (lse) {
        *lse = make(q, {q.size(0), q.size(1), q.size(2)}, aoti_torch_dtype_float32());
        if (ragged)
            torch::stable::zero_(*lse);
        a.lse = static_cast<float *>(lse->mutable_data_ptr());
        a.lse_strides = strides_of(*lse);
    }
    run(q, a, gpunvme_attention_workspace, gpunvme_attention);
    return out;
}

Tensor flash_attention(Tensor q, Tensor k, Tensor v, bool causal, std::optional<double> scale,
                       int64_t window_left, int64_t window_right, double softcap)
{
    return forward("flash_attention", q, k, v, {causal, scale, window_left, window_right, softcap},
                   nullptr);
}

std::tuple<Tensor, Tensor> flash_attention_lse(Tensor q, Tensor k, Tensor v, bool causal,
                                               std::optional<double> scale, int64_t window_left,
                                               int64_t window_right, double softcap)
{
    Tensor lse;
    Tensor out = forward("flash_attention", q, k, v,
                         {causal, scale, window_left, window_right, softcap}, &lse);

    return {out, lse};
}

Tensor flash_attention_varlen(Tensor q, Tensor k, Tensor v, Tensor q_offsets, Tensor k_offsets,
                              int64_t q_len, int64_t k_len, bool causal,
                              std::optional<double> scale, int64_t window_left,
                              int64_t window_right, double softcap)
{
    const char *op = "flash_attention_varlen";
    Ragged ragged = ragged_of(op, q, q_offsets, k_offsets, q_len, k_len);
    Tensor out = forward(op, as_one(op, q), as_one(op, k), as_one(op, v),
                         {causal, scale, window_left, window_right, softcap}, nullptr, &ragged);

    return torch::stable::squeeze(out, 0);
}

std::tuple<Tensor, Tensor>
flash_attention_varlen_lse(Tensor q, Tensor k, Tensor v, Tensor q_offsets, Tensor k_offsets,
                           int64_t q_len, int64_t k_len, bool causal, std::optional<double> scale,
                           int64_t window_left, int64_t window_right, double softcap)
{
    const char *op = "flash_attention_varlen";
    Ragged ragged = ragged_of(op, q, q_offsets, k_offsets, q_len, k_len);
    Tensor lse;
    Tensor out = forward(op, as_one(op, q), as_one(op, k), as_one(op, v),
                         {causal, scale, window_left, window_right, softcap}, &lse, &ragged);

    return {torch::stable::squeeze(out, 0), torch::stable::squeeze(lse, 0)};
}

/* The factors of a tensor of float8, packed: by sequence and head of k. */
std::optional<Tensor> factors(const std::optional<Tensor> &t, const Tensor &q, const Tensor &k)
{
    if (!t)
        return t;
    if (t->dim() != 2 || t->size(0) != q.size(0) || t->size(1) != k.size(2) ||
        torch_dtype(*t) != aoti_torch_dtype_float32())
        refuse("flash_attention_fp8: descales are not float32 of (" + std::to_string(q.size(0)) +
               ", " + std::to_string(k.size(2)) + "): one is " + shape_of(*t));
    return contiguous(t);
}

/* Of float8_e4m3fn, with a result of bfloat16. */
Tensor flash_attention_fp8(Tensor q, Tensor k, Tensor v, std::optional<Tensor> q_descale,
                           std::optional<Tensor> k_descale, std::optional<Tensor> v_descale,
                           bool causal, std::optional<double> scale, int64_t window_left,
                           int64_t window_right, double softcap)
{
    const char *op = "flash_attention_fp8";

    for (const Tensor *t : {&q, &k, &v})
        if (torch_dtype(*t) != aoti_torch_dtype_float8_e4m3fn())
            refuse(std::string(op) + ": takes float8_e4m3fn");
    check_memory(op, {&q, &k, &v, pointer(q_descale), pointer(k_descale), pointer(v_descale)});
    check_shapes(op, q, k, v);
    Tensor queries = with_channels(q), keys = with_channels(k), values = with_channels(v);
    std::optional<Tensor> of_q = factors(q_descale, q, k), of_k = factors(k_descale, q, k),
                          of_v = factors(v_descale, q, k);
    Tensor out = make(q, {q.size(0), q.size(1), q.size(2), v.size(3)}, aoti_torch_dtype_bfloat16());
    struct gpunvme_attention a = describe(queries, keys, values, GPUNVME_OPS_E4M3,
                                          {causal, scale, window_left, window_right, softcap});

    a.out = out.mutable_data_ptr();
    a.out_strides = strides_of(out);
    a.out_dtype = GPUNVME_OPS_BF16;
    a.q_descale = static_cast<const float *>(data_of(of_q));
    a.k_descale = static_cast<const float *>(data_of(of_k));
    a.v_descale = static_cast<const float *>(data_of(of_v));
    a.descale_stride = k.size(2);
    run(q, a, gpunvme_attention_workspace, gpunvme_attention);
    return out;
}

typedef std::tuple<Tensor, Tensor, Tensor> Three;

/*
 * The gradients of attention; those not needed have no elements. Those of rows that no sequence has
 * are zeros.
 */
Three backward(const char *op, const Tensor &grad_out, const Tensor &q, const Tensor &k,
               const Tensor &v, const Tensor &out, const Tensor &lse, const Options &options,
               bool need_q, bool need_k, bool need_v, const Ragged *ragged = nullptr)
{
    int32_t dtype = common_dtype(op, {&q, &k, &v, &out, &grad_out});

    check_shapes(op, q, k, v);
    if (out.dim() != 4 || shape_of(out) != shape_of(grad_out) || out.size(0) != q.size(0) ||
        out.size(1) != q.size(1) || out.size(2) != q.size(2) || out.size(3) != v.size(3) ||
        lse.dim() != 3 || lse.numel() != q.size(0) * q.size(1) * q.size(2) ||
        torch_dtype(lse) != aoti_torch_dtype_float32() ||
        lse.get_device_index() != q.get_device_index() || device_type(lse) != device_type(q))
        refuse(std::string(op) + ": grad_out " + shape_of(grad_out) + ", out " + shape_of(out) +
               " and lse " + shape_of(lse) + " of float32 are not those of q " + shape_of(q));

    Tensor queries = with_channels(q), keys = with_channels(k), values = with_channels(v);
    Tensor grad = with_channels(grad_out), result = with_channels(out);
    Tensor sums = torch::stable::contiguous(lse);
    Tensor dq = make_if(need_q, q), dk = make_if(need_k, k), dv = make_if(need_v, v);
    struct gpunvme_attention_grad problem = {};

    problem.forward = describe(queries, keys, values, dtype, options);
    if (ragged) {
        divide(problem.forward, *ragged);
        for (Tensor *t : {&dq, &dk, &dv})
            torch::stable::zero_(*t);
    }
    problem.forward.out = const_cast<void *>(result.const_data_ptr());
    problem.forward.out_strides = strides_of(result);
    problem.forward.lse = static_cast<float *>(const_cast<void *>(sums.const_data_ptr()));
    problem.forward.lse_strides = strides_of(sums);
    problem.grad_out = grad.const_data_ptr();
    problem.grad_out_strides = strides_of(grad);
    if (need_q) {
        problem.grad_q = dq.mutable_data_ptr();
        problem.grad_q_strides = strides_of(dq);
    }
    if (need_k) {
        problem.grad_k = dk.mutable_data_ptr();
        problem.grad_k_strides = strides_of(dk);
    }
    if (need_v) {
        problem.grad_v = dv.mutable_data_ptr();
        problem.grad_v_strides = strides_of(dv);
    }
    run(q, problem, gpunvme_attention_backward_workspace, gpunvme_attention_backward);
    return {dq, dk, dv};
}

Three flash_attention_backward(Tensor grad_out, Tensor q, Tensor k, Tensor v, Tensor out,
                               Tensor lse, bool causal, std::optional<double> scale,
                               int64_t window_left, int64_t window_right, double softcap,
                               bool need_q, bool need_k, bool need_v)
{
    return backward("flash_attention_backward", grad_out, q, k, v, out, lse,
                    {causal, scale, window_left, window_right, softcap}, need_q, need_k, need_v);
}

/* A gradient of (rows, heads, channels) again; one that is not needed has no elements. */
Tensor as_many(bool is_needed, const Tensor &t)
{
    return is_needed ? torch::stable::squeeze(t, 0) : t;
}

Three flash_attention_varlen_backward(Tensor grad_out, Tensor q, Tensor k, Tensor v,
                                      Tensor q_offsets, Tensor k_offsets, Tensor out, Tensor lse,
                                      int64_t q_len, int64_t k_len, bool causal,
                                      std::optional<double> scale, int64_t window_left,
                                      int64_t window_right, double softcap, bool need_q,
                                      bool need_k, bool need_v)
{
    const char *op = "flash_attention_varlen_backward";
    Ragged ragged = ragged_of(op, q, q_offsets, k_offsets, q_len, k_len);
    auto [dq, dk, dv] = backward(op, as_one(op, grad_out), as_one(op, q), as_one(op, k),
                                 as_one(op, v), as_one(op, out), torch::stable::unsqueeze(lse, 0),
                                 {causal, scale, window_left, window_right, softcap}, need_q,
                                 need_k, need_v, &ragged);

    return {as_many(need_q, dq), as_many(need_k, dk), as_many(need_v, dv)};
}

void implement(torch::stable::detail::StableLibrary &m)
{
    m.impl("flash_attention", TORCH_BOX(&flash_attention));
    m.impl("flash_attention_lse", TORCH_BOX(&flash_attention_lse));
    m.impl("flash_attention_backward", TORCH_BOX(&flash_attention_backward));
    m.impl("flash_attention_varlen", TORCH_BOX(&flash_attention_varlen));
    m.impl("flash_attention_varlen_lse", TORCH_BOX(&flash_attention_varlen_lse));
    m.impl("flash_attention_varlen_backward", TORCH_BOX(&flash_attention_varlen_backward));
    m.impl("flash_attention_fp8", TORCH_BOX(&flash_attention_fp8));
}

} // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(optimized, m)
{
    m.def("flash_attention(Tensor q, Tensor k, Tensor v, bool causal=False, float? scale=None, "
          "int window_left=-1, int window_right=-1, float softcap=0.0) -> Tensor");
    m.def("flash_attention_fp8(Tensor q, Tensor k, Tensor v, Tensor? q_descale=None, "
          "Tensor? k_descale=None, Tensor? v_descale=None, bool causal=False, float? scale=None, "
          "int window_left=-1, int window_right=-1, float softcap=0.0) -> Tensor");
    m.def("flash_attention_varlen(Tensor q, Tensor k, Tensor v, Tensor q_offsets, "
          "Tensor k_offsets, int q_len, int k_len, bool causal=False, float? scale=None, "
          "int window_left=-1, int window_right=-1, float softcap=0.0) -> Tensor");
    /* What gradients are made of: (out, lse), and attention's own. */
    m.def("flash_attention_lse(Tensor q, Tensor k, Tensor v, bool causal, float? scale, "
          "int window_left, int window_right, float softcap) -> (Tensor, Tensor)");
    m.def("flash_attention_backward(Tensor grad_out, Tensor q, Tensor k, Tensor v, Tensor out, "
          "Tensor lse, bool causal, float? scale, int window_left, int window_right, "
          "float softcap, bool need_q, bool need_k, bool need_v) -> (Tensor, Tensor, Tensor)");
    m.def("flash_attention_varlen_lse(Tensor q, Tensor k, Tensor v, Tensor q_offsets, "
          "Tensor k_offsets, int q_len, int k_len, bool causal, float? scale, int window_left, "
          "int window_right, float softcap) -> (Tensor, Tensor)");
    m.def("flash_attention_varlen_backward(Tensor grad_out, Tensor q, Tensor k, Tensor v, "
          "Tensor q_offsets, Tensor k_offsets, Tensor out, Tensor lse, int q_len, int k_len, "
          "bool causal, float? scale, int window_left, int window_right, float softcap, "
          "bool need_q, bool need_k, bool need_v) -> (Tensor, Tensor, Tensor)");
}

GPUNVME_TORCH_KERNELS(implement)
