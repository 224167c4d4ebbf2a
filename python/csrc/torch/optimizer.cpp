/* SPDX-License-Identifier: BSD-3-Clause
 *
 * torch.ops.optimized: AdamW and the norm of gradients, of many tensors at once. Python has the
 * optimizer that calls them (gpunvme/torch/optim.py).
 */
#include "call.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

namespace
{

using namespace gpunvme_torch;
using Tensors = std::vector<Tensor>;

/* Whether elements fill their memory, in any order of dimensions. */
bool is_dense(const Tensor &t)
{
    std::vector<std::pair<int64_t, int64_t>> dims; /* (stride, size) */
    int64_t next = 1;

    for (int64_t i = 0; i < t.dim(); i++)
        if (t.size(i) != 1)
            dims.emplace_back(t.stride(i), t.size(i));
    std::sort(dims.begin(), dims.end());
    for (const auto &[stride, size] : dims) {
        if (stride != next)
            return false;
        next *= size;
    }
    return true;
}

/* Whether elements of both lie in the same order. */
bool same_order(const Tensor &a, const Tensor &b)
{
    if (sizes_of(a) != sizes_of(b))
        return false;
    for (int64_t i = 0; i < a.dim(); i++)
        if (a.size(i) != 1 && a.stride(i) != b.stride(i))
            return false;
    return true;
}

/* The type of all tensors of a list, which are dense and where `like` is. */
int32_t list_dtype(const char *op, const char *name, const Tensors &list, const Tensor &like)
{
    int32_t dtype = dtype_of(op, list[0]);

    for (size_t i = 0; i < list.size(); i++) {
        if (torch_dtype(list[i]) != torch_dtype(list[0]))
            refuse(std::string(op) + ": " + name + " of different types");
        check_memory(op, {&like, &list[i]});
        if (list[i].numel() && !is_dense(list[i]))
            refuse(std::string(op) + ": " + name + " " + std::to_string(i) + " of shape " +
                   shape_of(list[i]) + " does not fill its memory: use .contiguous()");
    }
    return dtype;
}

/* Refuses a list that differs from weights in its number, or in any shape or order. */
void check_beside(const char *name, const Tensors &list, const Tensors &weights)
{
    if (list.size() != weights.size())
        refuse("adamw_: " + std::to_string(list.size()) + " " + name + " for " +
               std::to_string(weights.size()) + " weights");
    for (size_t i = 0; i < list.size(); i++)
        if (!same_order(list[i], weights[i]))
            refuse(std::string("adamw_: ") + name + " " + std::to_string(i) + " of shape " +
                   shape_of(list[i]) + " has not the shape and strides of weight " +
                   shape_of(weights[i]));
}

/* The same of tensors that are float32. */
void check_floats(const char *name, const Tensors &list, const Tensors &weights)
{
    check_beside(name, list, weights);
    if (list_dtype("adamw_", name, list, weights[0]) != GPUNVME_OPS_F32)
        refuse(std::string("adamw_: ") + name + " are not float32");
}

float *floats_of(const Tensor &t)
{
    return static_cast<float *>(t.mutable_data_ptr());
}

void adamw_(Tensors grads, Tensors weights, Tensors masters, Tensors exp_avgs, Tensors exp_avg_sqs,
            std::optional<Tensor> grad_scale, int64_t step, double lr, double beta1, double beta2,
            double eps, double weight_decay, bool stochastic, int64_t seed)
{
    if (weights.empty())
        refuse("adamw_: there are no weights");
    int32_t dtype = list_dtype("adamw_", "weights", weights, weights[0]);
    check_beside("grads", grads, weights);
    int32_t grad_dtype = list_dtype("adamw_", "grads", grads, weights[0]);
    if (!masters.empty())
        check_floats("masters", masters, weights);
    check_floats("exp_avgs", exp_avgs, weights);
    check_floats("exp_avg_sqs", exp_avg_sqs, weights);
    check_memory("adamw_", {&weights[0], pointer(grad_scale)});
    if (grad_scale &&
        (torch_dtype(*grad_scale) != aoti_torch_dtype_float32() || grad_scale->numel() != 1))
        refuse("adamw_: grad_scale " + shape_of(*grad_scale) + " is not one float32");

    std::vector<struct gpunvme_adamw_tensor> tensors(weights.size());
    for (size_t i = 0; i < weights.size(); i++) {
        tensors[i].count = weights[i].numel();
        tensors[i].grad = grads[i].const_data_ptr();
        tensors[i].master = masters.empty() ? nullptr : floats_of(masters[i]);
        tensors[i].weight = weights[i].mutable_data_ptr();
        tensors[i].m = floats_of(exp_avgs[i]);
        tensors[i].v = floats_of(exp_avg_sqs[i]);
    }
    struct gpunvme_adamw problem = {};
    problem.tensors = tensors.data();
    problem.ntensors = static_cast<int64_t>(tensors.size());
    problem.grad_scale = static_cast<const float *>(data_of(grad_scale));
    problem.step = step;
    problem.seed = static_cast<uint64_t>(seed);
    problem.lr = static_cast<float>(lr);
    problem.beta1 = static_cast<float>(beta1);
    problem.beta2 = static_cast<float>(beta2);
    problem.eps = static_cast<float>(eps);
    problem.weight_decay = static_cast<float>(weight_decay);
    problem.dtype = dtype;
    problem.grad_dtype = grad_dtype;
    problem.stochastic = stochastic;
    run(weights[0], problem, gpunvme_adamw_workspace, gpunvme_adamw);
}

Tensor grad_norm(Tensors grads)
{
    if (grads.empty())
        refuse("grad_norm: there are no gradients");
    struct gpunvme_grad_norm problem = {};
    problem.dtype = list_dtype("grad_norm", "grads", grads, grads[0]);
    std::vector<struct gpunvme_grad_tensor> tensors(grads.size());
    for (size_t i = 0; i < grads.size(); i++)
        tensors[i] = {grads[i].numel(), grads[i].const_data_ptr()};
    Tensor norm = make(grads[0], {}, aoti_torch_dtype_float32());

    problem.tensors = tensors.data();
    problem.ntensors = static_cast<int64_t>(tensors.size());
    problem.norm = floats_of(norm);
    run(grads[0], problem, gpunvme_grad_norm_workspace, gpunvme_grad_norm);
    return norm;
}

void implement(torch::stable::detail::StableLibrary &m)
{
    m.impl("adamw_", TORCH_BOX(&adamw_));
    m.impl("grad_norm", TORCH_BOX(&grad_norm));
}

} // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(optimized, m)
{
    m.def("adamw_(Tensor[] grads, Tensor(a!)[] weights, Tensor(b!)[] masters, "
          "Tensor(c!)[] exp_avgs, Tensor(d!)[] exp_avg_sqs, Tensor? grad_scale, int step, "
          "float lr, float beta1, float beta2, float eps, float weight_decay, "
          "bool stochastic=False, int seed=0) -> ()");
    m.def("grad_norm(Tensor[] grads) -> Tensor");
}

GPUNVME_TORCH_KERNELS(implement)
