# SPDX-License-Identifier: BSD-3-Clause
"""Move bytes between NVMe storage and GPU memory.

    import gpunvme

    with gpunvme.open("/data/weights.bin") as store:
        buf = gpunvme.empty(1 << 20, "cuda:0")    # or a torch or CuPy tensor, a numpy array, …
        store.pread(buf, offset=4096)             # returns when the bytes are there
        print(store.path())                       # which way they went

        futures = [store.pread_async(part, offset=o) for part, o in work]
        total = sum(f.result() for f in futures)  # or `await` them

Stores: open(), Store, Future, Batch (thousands of transfers by one call), Requests (records by
kind and index). What serves them: Engine, register(), unregister(). Memory: empty(). Drives by
their own commands, and broken ones to test with: Controller. Operators: gpunvme.ops. Model weights:
gpunvme.weights. Checkpoints, written while a training goes on: gpunvme.checkpoint. Samples for
training: gpunvme.data. Files by name over fast and slow directories: gpunvme.tiers. What this machine has: info(). Errors: Error and its subclasses, each also the built-in exception that fits.
docs/PYTHON.md is the page to begin with.
"""

from __future__ import annotations

import atexit
from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import errors, store
from .engine import Engine, engine_info, register, unregister
from .errors import (
    ArgumentError,
    BusyError,
    CanceledError,
    ClosedError,
    DeadlineError,
    DeviceError,
    Error,
    ExistsError,
    NotFoundError,
    OpsArgumentError,
    OpsError,
    OutOfMemoryError,
    PermissionDeniedError,
    RangeError,
    StatusError,
    UnsupportedError,
)
from .future import Future
from .memory import DeviceMemory, empty
from .store import Store, open

if TYPE_CHECKING:
    from . import checkpoint, data, ops, tiers, weights
    from .batch import Batch
    from .controller import Controller
    from .machine import info
    from .requests import Requests

__version__ = "0.1.0"

# What needs numpy or dataclasses is loaded when it is first used: import takes some milliseconds.
_LATER = {
    "Batch": "batch",
    "Controller": "controller",
    "Requests": "requests",
    "checkpoint": "checkpoint",
    "data": "data",
    "info": "machine",
    "ops": "ops",
    "tiers": "tiers",
    "weights": "weights",
}
_MODULES = ("checkpoint", "data", "ops", "tiers", "weights")


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'gpunvme' has no attribute {name!r}")
    module = import_module(f".{_LATER[name]}", __name__)
    value = module if name in _MODULES else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


atexit.register(store.end)


__all__ = [
    "ArgumentError",
    "Batch",
    "BusyError",
    "CanceledError",
    "ClosedError",
    "Controller",
    "DeadlineError",
    "DeviceError",
    "DeviceMemory",
    "Engine",
    "Error",
    "ExistsError",
    "Future",
    "NotFoundError",
    "OpsArgumentError",
    "OpsError",
    "OutOfMemoryError",
    "PermissionDeniedError",
    "RangeError",
    "Requests",
    "StatusError",
    "Store",
    "UnsupportedError",
    "checkpoint",
    "data",
    "empty",
    "engine_info",
    "errors",
    "info",
    "open",
    "ops",
    "register",
    "tiers",
    "unregister",
    "weights",
]
