# SPDX-License-Identifier: BSD-3-Clause
# mypy: disable-error-code="import-not-found"
"""Makes transformers and other packages read through this one instead of safetensors."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ._open import Slice, safe_open

# Packages whose modules may have imported safe_open by name.
_PACKAGES = {"accelerate", "diffusers", "peft", "safetensors", "transformers"}

_lock = threading.Lock()
_depth = 0
_undo: list[tuple[Any, Any]] = []  # what was replaced, and its replacement


def _swap(old: Any, new: Any) -> None:
    """Replaces ``old`` by ``new`` in all loaded modules of these packages."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in _PACKAGES:
            continue
        for key, value in list(getattr(module, "__dict__", {}).items()):
            if value is old:
                setattr(module, key, new)


def _materialize(plain: Any) -> Any:
    """A replacement for transformers' ``plain``, which loads one parameter to its device."""

    def materialize(tensor: Any, device: Any = None, dtype: Any = None) -> Any:
        if isinstance(tensor, Slice):
            tensor = tensor.load("cpu" if device is None else device)
        return plain(tensor, device, dtype)

    return materialize


def _begin() -> None:
    import safetensors

    _undo.append((safetensors.safe_open, safe_open))
    try:
        loading: Any = importlib.import_module("transformers.core_model_loading")
    except ImportError:  # none, or one from before version 5
        loading = None
    if loading is not None and hasattr(loading, "_materialize_copy"):
        plain = loading._materialize_copy
        _undo.append((plain, _materialize(plain)))
    for old, new in _undo:
        _swap(old, new)


def _end() -> None:
    for old, new in _undo:
        _swap(new, old)
    _undo.clear()


@contextmanager
def accelerate() -> Iterator[None]:
    """Within this context, transformers' from_pretrained() reads through this package.

        with gpunvme.weights.accelerate():
            model = AutoModelForCausalLM.from_pretrained(folder, device_map="cuda")

    So does everything else in transformers, accelerate, diffusers and peft that calls
    ``safetensors.safe_open`` or ``safetensors.torch.load_file``. With transformers 5, parameters
    for a GPU are read directly into its memory.

    Contexts may be nested; the end of the outermost restores everything, also after an exception.
    It applies to the whole process: other threads that load models meanwhile read through this
    package, too, with the same results. ImportError: safetensors is not installed.
    """
    global _depth
    with _lock:
        if not _depth:
            try:
                _begin()
            except BaseException:
                _end()
                raise
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if not _depth:
                _end()
