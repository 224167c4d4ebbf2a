# SPDX-License-Identifier: BSD-3-Clause
# mypy: allow-untyped-calls, disable-error-code="import-not-found"
"""Stores and operators for PyTorch.

Importing this registers two groups of operators. They have fake implementations and run under
``torch.compile(fullgraph=True)`` without a break.

``torch.ops.nvme_ops``: tensors from and to stores, by URI.

    read_tensor(uri, offset, shape, dtype, device) -> Tensor
    read_into_tensor(t, uri, offset)
    write_tensor(t, uri, offset)

They return when all bytes are there. A tensor on a GPU is used behind the work on the current
stream. Tensors are contiguous; they hold the store's bytes, in the machine's order. As with
PyTorch's own operators in place, one that requires gradients is only read into under
torch.no_grad(). A read beyond the end, a bad URI and a bad tensor raise ValueError; all else that
goes wrong RuntimeError, with the library's detail. To go on while bytes move, use ``gpunvme.Store.pread_async(tensor,
stream=torch.cuda.current_stream())``, whose Future has the error. In a compiled graph writes and
read_tensor() keep their order; read_into_tensor() is only ordered with what uses its tensor.

``torch.ops.optimized``: float32, float16 and bfloat16, on the CPU and on CUDA GPUs, forward and
backward, with autocast.

    matmul(a, b)                             (…, m, k) by (k, n), or (batch, m, k) by (batch, k, n)
    linear(x, weight, bias=None)             as torch.nn.functional.linear
    linear_gelu(x, weight, bias=None, tanh=False)
                                             gelu of that, exact or by its approximation with tanh
    flash_attention(q, k, v, causal=False, scale=None, window_left=-1, window_right=-1, softcap=0.0)
                                             attention of (batch, rows, heads, channels), as the
                                             function flash_attention() here describes it
    flash_attention_varlen(q, k, v, q_offsets, k_offsets, q_len, k_len, causal=False, …)
                                             the same of sequences behind each other, (rows, heads,
                                             channels); offsets are int32
    flash_attention_fp8(q, k, v, q_descale=None, k_descale=None, v_descale=None, …)
                                             the same of float8_e4m3fn, without gradients, as the
                                             function of that name here describes it
    rms_norm(x, weight=None, eps=None)       norms of the last dimension; eps=None is float32's
    layer_norm(x, weight=None, bias=None, eps=1e-5)
    add_rms_norm(x, residual, weight=None, eps=None)
    add_layer_norm(x, residual, weight=None, bias=None, eps=1e-5)
                                             (the norm of x + residual, the sum)
    swiglu(gate, up)                         silu(gate) * up
    cross_entropy(logits, targets, reduction=1, ignore_index=-100)
                                             of (…, classes); targets are int32, the loss is
                                             float32; reductions: 0 none, 1 mean, 2 sum
    embedding(ids, weight, padding_idx=-1)   weight[ids]; ids are int32
    moe(x, logits, w_gate, w_up, w_down, top_k, renormalize=True)
                                             a mixture of experts, as the function moe() here
                                             describes it
    grad_norm(grads)                         of all tensors of a list together; it has no gradients

The functions here that have these names take the arguments of torch.nn.functional's, where it has
them: rms_norm() and layer_norm() get ``normalized_shape``, cross_entropy() and embedding() take
int64. Of the operators only matmul has gradients of gradients; none has derivatives of forward
mode, which are a NotImplementedError. float32 is multiplied as float32, never as TF32.
``gpunvme.torch.nn`` has modules made of them, ``gpunvme.torch.optim`` the optimizer AdamW.
"""

from __future__ import annotations

import os

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError("gpunvme.torch needs PyTorch 2.11 or later, and there is none") from None

from .. import _lib

if torch.torch_version.TorchVersion(torch.__version__) < "2.11":
    raise ImportError(f"gpunvme.torch needs PyTorch 2.11 or later; this is {torch.__version__}")
_library = _lib._path("libgpunvme_torch.so")
if not os.path.exists(_library):
    raise ImportError(
        f"gpunvme.torch: {_library} is not there: this build has no operators for PyTorch. Build "
        "it with them: pip install ./python -C cmake.define.GPUNVME_TORCH=ON "
        "-C cmake.define.GPUNVME_TORCH_PYTHON=$(which python)"
    )
torch.ops.load_library(str(_library))

from . import nn, optim  # noqa: E402  (they need the library)
from ._attention import (  # noqa: E402
    flash_attention,
    flash_attention_fp8,
    flash_attention_varlen,
)
from ._cross_entropy import cross_entropy  # noqa: E402
from ._embedding import embedding  # noqa: E402
from ._moe import moe  # noqa: E402
from ._norm import add_layer_norm, add_rms_norm, layer_norm, rms_norm  # noqa: E402
from ._swiglu import swiglu  # noqa: E402

__all__ = ["add_layer_norm", "add_rms_norm", "cross_entropy", "embedding", "flash_attention",
           "flash_attention_fp8", "flash_attention_varlen", "layer_norm", "moe", "nn", "optim", "rms_norm",
           "swiglu"]
