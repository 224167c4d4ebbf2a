# SPDX-License-Identifier: BSD-3-Clause
"""The examples of gpunvme.weights run, and so does the code of docs/WEIGHTS.md."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpunvme import weights
from gpunvme.weights.numpy import save_file

pytestmark = pytest.mark.usefixtures("parser")
SOURCE = Path(__file__).parents[2]
EXAMPLES = SOURCE / "examples/python"


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="PyTorch is not installed")


def test_the_loader_for_vllm_runs_without_it(tmp_path: Path) -> None:
    save_file({"a": np.zeros(3), "b": np.zeros(2)}, tmp_path / "model.safetensors")
    done = subprocess.run([sys.executable, EXAMPLES / "vllm_loader.py", tmp_path],
                          capture_output=True, text=True, timeout=300)
    assert json.loads(done.stdout)["tensors"] == 2, done.stderr


def test_the_loader_for_vllm_gives_a_model_its_tensors(
    torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = torch.nn.Linear(3, 4)
    weights.torch.save_model(wanted, tmp_path / "model.safetensors")
    monkeypatch.syspath_prepend(EXAMPLES)
    loaders: dict[str, Any] = {}

    class Base:
        def __init__(self, config: Any) -> None:
            pass

    vllm = types.ModuleType("vllm.model_executor.model_loader")
    vllm.BaseModelLoader = Base  # type: ignore[attr-defined]
    vllm.register_model_loader = (  # type: ignore[attr-defined]
        lambda name: lambda cls: loaders.setdefault(name, cls))
    for name in ("vllm", "vllm.model_executor"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, vllm.__name__, vllm)

    import vllm_loader

    vllm_loader.register()
    vllm_loader.register()
    loader = loaders["gpunvme"](types.SimpleNamespace(model_loader_extra_config={}))
    config = types.SimpleNamespace(model=str(tmp_path))
    loader.download_model(config)
    found: dict[str, Any] = {}
    model = types.SimpleNamespace(parameters=wanted.parameters, load_weights=found.update)
    loader.load_weights(model, config)
    assert {name: t.tolist() for name, t in found.items()} == {
        name: t.tolist() for name, t in wanted.state_dict().items()}


def test_the_example_swaps_two_models(torch: Any) -> None:
    done = subprocess.run([sys.executable, EXAMPLES / "weights_serve.py"], capture_output=True,
                          text=True, timeout=300)
    assert done.returncode == 0 and "took turns" in done.stdout, done.stdout + done.stderr


def test_the_page_s_code_runs(torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make_module() -> Any:
        module = torch.nn.Module()
        module.model = torch.nn.Module()
        module.model.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(3))
        module.lm_head = torch.nn.Linear(64, 200)
        return module

    monkeypatch.chdir(tmp_path)
    weights.torch.save_model(make_module(), "model.safetensors")
    names = weights.safe_open("model.safetensors", "pt").keys()
    Path("model.safetensors.index.json").write_text(json.dumps(
        {"weight_map": dict.fromkeys(names, "model.safetensors")}))
    page = (SOURCE / "docs/WEIGHTS.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, flags=re.S | re.M)
    assert len(blocks) > 2
    namespace: dict[str, Any] = {"make_module": make_module}
    for block in blocks:
        exec(compile(block, "docs/WEIGHTS.md", "exec"), namespace)
    assert namespace["parts"]["lm_head.weight"].shape == (100, 64)
    assert namespace["missing"] == namespace["unexpected"] == []
