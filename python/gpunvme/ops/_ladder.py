# SPDX-License-Identifier: BSD-3-Clause
"""What operators there are, and how long a call takes."""

from __future__ import annotations

import ctypes
import time
from typing import Callable, Literal

from .. import _lib
from ..reports import Capability, Timing, Variant
from ._call import DEVICES, DTYPE_NAMES, Device, look_up, ok

_OPS = {
    "matmul": _lib.OPS_MATMUL,
    "linear_forward": _lib.OPS_LINEAR_FORWARD,
    "linear_backward": _lib.OPS_LINEAR_BACKWARD,
    "attention": _lib.OPS_ATTENTION,
    "attention_backward": _lib.OPS_ATTENTION_BACKWARD,
    "attention_paged": _lib.OPS_ATTENTION_PAGED,
    "kv_append": _lib.OPS_KV_APPEND,
    "norm_forward": _lib.OPS_NORM_FORWARD,
    "norm_backward": _lib.OPS_NORM_BACKWARD,
    "cross_entropy": _lib.OPS_CROSS_ENTROPY,
    "adamw": _lib.OPS_ADAMW,
    "grad_norm": _lib.OPS_GRAD_NORM,
    "embedding_forward": _lib.OPS_EMBEDDING_FORWARD,
    "embedding_backward": _lib.OPS_EMBEDDING_BACKWARD,
    "swiglu_forward": _lib.OPS_SWIGLU_FORWARD,
    "swiglu_backward": _lib.OPS_SWIGLU_BACKWARD,
    "rope": _lib.OPS_ROPE,
    "moe_forward": _lib.OPS_MOE_FORWARD,
    "moe_backward": _lib.OPS_MOE_BACKWARD,
}


def variants(op: Literal["matmul", "linear_forward", "linear_backward", "attention",
                         "attention_backward", "attention_paged", "kv_append", "norm_forward",
                         "norm_backward", "cross_entropy", "adamw", "grad_norm",
                         "embedding_forward", "embedding_backward", "swiglu_forward",
                         "swiglu_backward", "rope", "moe_forward", "moe_backward"] = "matmul",
             device: Device = "cpu") -> list[Variant]:
    """The ladder of an operator on a device, from the plainest to the fastest."""
    found: list[Variant] = []
    variant = _lib.OpsVariant()
    while not _lib.ops().gpunvme_ops_variant(
        look_up("op", _OPS, op), look_up("device", DEVICES, device), len(found),
        ctypes.byref(variant),
    ):
        found.append(Variant(
            name=variant.name.decode(),
            needs=variant.needs.decode(),
            changes=variant.changes.decode(),
            dtypes=tuple(name for name, number in DTYPE_NAMES.items()
                         if variant.dtypes >> number & 1),
            deterministic=bool(variant.deterministic),
            available=bool(variant.available),
        ))
    return found


def capability(device: Device = "cpu", index: int = 0) -> Capability:
    """What a device can do."""
    found = _lib.OpsCapability()
    ok(_lib.ops().gpunvme_ops_capability(look_up("device", DEVICES, device), index,
                                         ctypes.byref(found)))
    return Capability(found.name.decode(), found.features.decode(), found.units,
                      found.cache_nbytes)


def timing(call: Callable[[], object], flops: float = 0.0, rounds: int = 5) -> Timing:
    """Times ``call``, run once before. For the CPU: on a GPU a call returns before its work."""
    call()
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    times.sort()
    median = times[len(times) // 2]
    return Timing(median, times[0], flops / median / 1e9)
