# SPDX-License-Identifier: BSD-3-Clause
"""Operators of neural networks, on the CPU and on CUDA GPUs.

    from gpunvme import ops

    c = ops.matmul(a, b)                         # numpy arrays: a new one
    ops.matmul(a, b, out=c, variant="openmp")    # into one of yours, by a rung of the ladder
    y = ops.linear(x, weight, bias, activation="gelu")
    y = ops.attention(q, k, v, causal=True)      # sequences, rows, heads, channels
    y = ops.norm(x, weight, kind="rms")          # of rows

Arrays are numpy's, or anything with ``__cuda_array_interface__`` or ``__dlpack__`` (torch, CuPy,
JAX), of float32, float16 or bfloat16; all of a call on one device. Rows or columns must be
contiguous: a transposed view costs nothing. Of tensors of torch, tensors are made; of anything else
a numpy array on the CPU and a gpunvme.DeviceMemory on a GPU, which CuPy takes; bring ``out`` for
another.

All functions take ``variant`` (variants() lists them; None: the best), ``threads`` (CPU: at most so
many), ``stream`` (GPU: where the work is put; None: torch's current stream for its tensors, and the
stream that CuPy names) and ``deterministic`` (the same bits in every run).
On the CPU a call returns when the result is there; on a GPU it is enqueued.
"""

from __future__ import annotations

from ..errors import OpsError
from ._attention import Rope, attention, attention_backward, attention_paged, kv_append
from ._call import Compute as Compute
from ._call import Device as Device
from ._cross_entropy import Reduction as Reduction
from ._cross_entropy import cross_entropy
from ._embedding import embedding, embedding_backward
from ._ladder import capability, timing, variants
from ._moe import moe, moe_backward
from ._norm import NormKind as NormKind
from ._norm import norm, norm_backward
from ._optimizer import AdamWTensor, adamw, grad_norm
from ._products import Activation as Activation
from ._products import linear, linear_backward, matmul, matmul_metrics, matmul_variant
from ._rope import rotate
from ._swiglu import swiglu, swiglu_backward

__all__ = [
    "AdamWTensor",
    "OpsError",
    "Rope",
    "adamw",
    "attention",
    "attention_backward",
    "attention_paged",
    "capability",
    "cross_entropy",
    "embedding",
    "embedding_backward",
    "grad_norm",
    "kv_append",
    "linear",
    "linear_backward",
    "matmul",
    "matmul_metrics",
    "matmul_variant",
    "moe",
    "moe_backward",
    "norm",
    "norm_backward",
    "rotate",
    "swiglu",
    "swiglu_backward",
    "timing",
    "variants",
]
