# SPDX-License-Identifier: BSD-3-Clause
"""Operators for PyTorch; on top of gpunvme.torch."""

from __future__ import annotations

from importlib import import_module


def register_ops() -> None:
    """Registers torch.ops.optimized: importing gpunvme.torch does it."""
    import_module("gpunvme.torch")
