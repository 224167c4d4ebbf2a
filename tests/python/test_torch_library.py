# SPDX-License-Identifier: BSD-3-Clause
"""libgpunvme_torch as a binary: it keeps to PyTorch's stable ABI."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("gpunvme.torch", exc_type=ImportError,
                    reason="this build has no operators for PyTorch")

from gpunvme import _lib

PATH = str(_lib._path("libgpunvme_torch.so"))


def symbols(*options: str) -> list[tuple[str, str]]:
    """(kind, name) of the dynamic symbols."""
    if shutil.which("nm") is None:
        pytest.skip("nm is not installed")
    text = subprocess.run(["nm", "-D", *options, PATH], check=True, capture_output=True,
                          text=True).stdout
    return [(kind, name) for kind, name in re.findall(r"(\w) (\S+)$", text, re.MULTILINE)]


def test_it_needs_nothing_of_pytorch_but_the_stable_abi() -> None:
    needed = [name for _, name in symbols("--undefined-only")]
    assert any(name.startswith("aoti_torch_") for name in needed)  # what is looked for is seen
    unstable = [name for name in needed if re.search(r"c10|\d+at|torch|caffe2", name)
                and not re.match(r"(aoti_torch|torch)_\w+$", name)]
    assert unstable == []


def test_functions_of_cuda_may_be_missing() -> None:
    kinds = {name: kind for kind, name in symbols("--undefined-only") if "cuda_stream" in name}
    assert set(kinds.values()) == {"w"}


def test_it_is_no_extension_module_and_exports_no_function() -> None:
    assert [name for kind, name in symbols("--defined-only") if kind in "TW"] == []


def test_optimized_ops_registers_the_operators() -> None:
    pytest.importorskip("optimized_ops")
    code = ("import torch, optimized_ops; optimized_ops.register_ops(); "
            "optimized_ops.register_ops(); "
            "print(torch.ops.optimized.matmul(torch.eye(2), torch.eye(2)).trace().item())")
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stdout == "2.0\n", ran.stderr
