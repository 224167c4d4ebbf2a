/* SPDX-License-Identifier: BSD-3-Clause
 *
 * torch.ops.optimized: rows of a table by number, and the table's gradient. Gradients and fake
 * implementations are in Python (gpunvme/torch/_embedding.py).
 */
#include "call.h"

#include <string>

namespace
{

using namespace gpunvme_torch;

const int32_t *numbers(const char *op, const Tensor &like, Tensor &ids)
{
    check_memory(op, {&like, &ids});
    if (torch_dtype(ids) != aoti_torch_dtype_int32())
        refuse(std::string(op) + ": ids are not int32");
    ids = torch::stable::contiguous(ids);
    return static_cast<const int32_t *>(ids.const_data_ptr());
}

Tensor embedding(Tensor ids, Tensor weight, int64_t)
{
    int32_t dtype = common_dtype("embedding", {&weight});

    if (weight.dim() != 2)
        refuse("embedding: weight " + shape_of(weight) + ": it takes a matrix");
    struct gpunvme_embedding problem = {};
    problem.ids = numbers("embedding", weight, ids);
    Matrix table = matrix(weight, false);
    std::vector<int64_t> shape(ids.dim() + 1, table.columns);
    for (int64_t i = 0; i < ids.dim(); i++)
        shape[i] = ids.size(i);
    Tensor y = make(weight, shape);

    problem.rows = ids.numel();
    problem.vocab = table.rows;
    problem.dim = problem.ldy = table.columns;
    problem.weight = table.data();
    problem.y = y.mutable_data_ptr();
    problem.ld_weight = table.ld;
    problem.dtype = dtype;
    run(weight, problem, gpunvme_embedding_forward_workspace, gpunvme_embedding_forward);
    return y;
}

Tensor embedding_backward(Tensor grad_y, Tensor ids, int64_t rows, int64_t padding_idx)
{
    const char *op = "embedding_backward";
    int32_t dtype = common_dtype(op, {&grad_y});
    std::vector<int64_t> lead = sizes_of(grad_y);

    if (!lead.empty())
        lead.pop_back();
    if (grad_y.dim() < 1 || lead != sizes_of(ids) || rows < 0 || padding_idx >= rows)
        refuse(std::string(op) + ": grad_y " + shape_of(grad_y) + ", ids " + shape_of(ids) + ", " +
               std::to_string(rows) + " rows");
    struct gpunvme_embedding_grad problem = {};
    problem.ids = numbers(op, grad_y, ids);
    Matrix grad = rows_of(grad_y);
    Tensor table = make(grad_y, {rows, grad.columns});

    problem.rows = grad.rows;
    problem.vocab = rows;
    problem.dim = problem.ld_grad_weight = grad.columns;
    problem.grad_y = grad.data();
    problem.grad_weight = table.mutable_data_ptr();
    problem.ld_grad_y = grad.ld;
    problem.dtype = problem.grad_dtype = dtype;
    run(grad_y, problem, gpunvme_embedding_backward_workspace, gpunvme_embedding_backward);
    if (padding_idx >= 0) {
        Tensor row = torch::stable::select(table, 0, padding_idx);
        torch::stable::zero_(row);
    }
    return table;
}

void implement(torch::stable::detail::StableLibrary &m)
{
    m.impl("embedding", TORCH_BOX(&embedding));
    m.impl("embedding_backward", TORCH_BOX(&embedding_backward));
}

} // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(optimized, m)
{
    /* The row padding_idx gets no gradient (-1: there is none). */
    m.def("embedding(Tensor ids, Tensor weight, int padding_idx=-1) -> Tensor");
    m.def("embedding_backward(Tensor grad_y, Tensor ids, SymInt rows, int padding_idx) -> Tensor");
}

GPUNVME_TORCH_KERNELS(implement)
