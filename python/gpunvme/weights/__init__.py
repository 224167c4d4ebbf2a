# SPDX-License-Identifier: BSD-3-Clause
"""Model weights: tensors of .safetensors files, into numpy arrays, torch's tensors and modules.

    import gpunvme.weights as weights

    with weights.safe_open("model.safetensors", "pt", device="cuda") as f:    # as in safetensors
        tensor = f.get_tensor("lm_head.weight")
        rows = f.get_slice("lm_head.weight")[:1000]

    tensors = weights.torch.load_file("model.safetensors", device="cuda")
    weights.torch.save_file(tensors, "copy.safetensors")         # complete, or not at all

    with weights.prefetch(files, device="cuda") as loader:       # as they land
        for name, tensor in loader: ...

    weights.load_model(module, files, device="cuda")             # into its parameters

    with weights.accelerate():
        model = AutoModel.from_pretrained(folder, device_map="cuda")

``weights.numpy`` and ``weights.torch`` have the functions of ``safetensors.numpy`` and
``safetensors.torch``. torch is imported when something needs it. Files are paths, URIs of stores,
or an index (model.safetensors.index.json). Begin with docs/WEIGHTS.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._accelerate import accelerate
from ._files import WeightsError
from ._open import Slice, safe_open
from ._prefetch import Prefetch, prefetch

if TYPE_CHECKING:
    from . import numpy, torch
    from ._model import load_model

__all__ = [
    "Prefetch",
    "Slice",
    "WeightsError",
    "accelerate",
    "load_model",
    "numpy",
    "prefetch",
    "safe_open",
    "torch",
]


def __getattr__(name: str) -> Any:
    if name in ("numpy", "torch"):
        return import_module(f".{name}", __name__)
    if name == "load_model":
        from ._model import load_model

        return load_model
    raise AttributeError(f"module 'gpunvme.weights' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
