#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""A loader for vLLM: weights by gpunvme, as --load-format gpunvme.

Install this file as a module with an entry point, so that each of vLLM's processes calls
register() (https://docs.vllm.ai, "Plugin System"):

    [project.entry-points."vllm.general_plugins"]
    gpunvme = "vllm_loader:register"

    vllm serve /models/llama --load-format gpunvme \\
        --model-loader-extra-config '{"require": "bounce"}'

The model is a local folder. It can be imported, and run, without vLLM: then it only says what it
would load.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpunvme import weights

FORMAT = "gpunvme"


def files_of(folder: str) -> list[Path]:
    """The files of a model: its index, or its only file, or all that are there."""
    path = Path(folder)
    for name in ("model.safetensors.index.json", "model.safetensors"):
        if (path / name).exists():
            return [path / name]
    found = sorted(path.glob("*.safetensors"))
    if not found:
        raise FileNotFoundError(f"{folder}: no .safetensors files (is it a local folder?)")
    return found


def tensors_of(folder: str, device: Any, require: str | None = None) -> Iterator[tuple[str, Any]]:
    """Names and tensors, as they land on the device."""
    with weights.prefetch(files_of(folder), device=device, require=require) as loader:
        yield from loader


def register() -> None:
    """Tells vLLM of the loader. Calling it twice in a process does nothing."""
    from vllm.model_executor.model_loader import BaseModelLoader, register_model_loader

    if getattr(register, "done", False):
        return

    @register_model_loader(FORMAT)
    class GpunvmeLoader(BaseModelLoader):
        def __init__(self, load_config: Any) -> None:
            super().__init__(load_config)
            self.options = dict(load_config.model_loader_extra_config or {})
            if unknown := set(self.options) - {"require"}:
                raise ValueError(f"--model-loader-extra-config: {unknown} (there is \"require\")")

        def download_model(self, model_config: Any) -> None:
            files_of(model_config.model)

        def load_weights(self, model: Any, model_config: Any) -> None:
            # Each rank reads all tensors; model.load_weights() keeps the rank's part of each.
            device = next(model.parameters()).device
            model.load_weights(tensors_of(model_config.model, device, **self.options))

    register.done = True  # type: ignore[attr-defined]


def main(folder: str) -> None:
    files = files_of(folder)
    with weights.safe_open(files, "np") as f:
        slices = [f.get_slice(name) for name in f.offset_keys()]
        print(json.dumps({"files": [str(file) for file in files], "tensors": len(slices),
                          "types": sorted({s.get_dtype() for s in slices})}))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: vllm_loader.py FOLDER")
    main(sys.argv[1])
