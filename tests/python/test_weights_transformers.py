# SPDX-License-Identifier: BSD-3-Clause
"""transformers reads through gpunvme.weights.accelerate()."""

from __future__ import annotations

import os
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import safetensors.torch  # noqa: E402

from gpunvme import weights  # noqa: E402

pytestmark = pytest.mark.usefixtures("parser")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random Llama in several files, with tied embeddings."""
    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(3)
    config = transformers.LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=3,
                                      num_attention_heads=4, num_key_value_heads=2, vocab_size=500,
                                      tie_word_embeddings=True)
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder, max_shard_size="200KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    return folder


def equal(a: Any, b: Any) -> bool:
    mine, other = a.state_dict(), b.state_dict()
    return mine.keys() == other.keys() and all(
        mine[name].dtype == t.dtype and torch.equal(mine[name], t) for name, t in other.items())


def pretrained(folder: Path, **options: Any) -> Any:
    return transformers.LlamaForCausalLM.from_pretrained(folder, **options)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are opened by this package."""
    from gpunvme.weights import _open

    opened: list[str] = []

    class Counted(_open.Files):
        def __init__(self, name: Any, **options: Any) -> None:
            opened.append(os.fsdecode(name))
            super().__init__(name, **options)

    monkeypatch.setattr(_open, "Files", Counted)
    return opened


@pytest.mark.parametrize("options", [{}, {"dtype": torch.float32}, {"device_map": "cpu"}],
                         ids=["plain", "another type", "a device map"])
def test_from_pretrained_reads_through_accelerate(llama: Path, counted: list[str],
                                                  options: dict[str, Any]) -> None:
    if "device_map" in options:
        pytest.importorskip("accelerate", reason="accelerate is not installed")
    wanted = pretrained(llama, **options)
    assert not counted
    with weights.accelerate():
        model = pretrained(llama, **options)
    assert {os.path.basename(name) for name in counted} == {
        file.name for file in llama.glob("*.safetensors")}
    assert equal(model, wanted)
    tokens = torch.arange(20).view(2, 10)
    assert torch.equal(model(tokens).logits, wanted(tokens).logits)


def places() -> list[Any]:
    """What transformers and safetensors call."""
    import transformers.modeling_utils

    found = [safetensors.safe_open, safetensors.torch.safe_open,
             transformers.modeling_utils.safe_open]
    try:
        import transformers.core_model_loading as loading

        found.append(loading._materialize_copy)
    except ImportError:
        pass
    return found


def test_accelerate_is_undone_by_an_exception(llama: Path) -> None:
    before = places()
    with pytest.raises(KeyError), weights.accelerate():
        assert all(now is not old for now, old in zip(places(), before))
        raise KeyError
    assert all(now is old for now, old in zip(places(), before))


def test_accelerate_may_be_nested(llama: Path) -> None:
    before = places()
    with weights.accelerate():
        inside = places()
        with weights.accelerate():
            assert places() == inside
        assert places() == inside
    assert places() == before


def test_accelerate_lasts_until_the_last_thread_has_left(llama: Path, counted: list[str]) -> None:
    before = places()
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with weights.accelerate():
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    with weights.accelerate():
        thread.start()
        assert inside.wait(60)
    assert places() != before
    leave.set()
    thread.join(60)
    assert places() == before


def test_a_module_imported_within_accelerate_is_put_right(llama: Path) -> None:
    with weights.accelerate():
        late = types.ModuleType("transformers.late")
        late.safe_open = safetensors.safe_open  # type: ignore[attr-defined]
        sys.modules["transformers.late"] = late
    try:
        assert late.safe_open is safetensors.safe_open  # type: ignore[attr-defined]
    finally:
        del sys.modules["transformers.late"]


def test_a_parameter_for_a_device_is_read_there(llama: Path,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    loading = pytest.importorskip("transformers.core_model_loading",
                                  reason="this transformers has no such module")
    devices = []
    load = weights.Slice.load

    def noted(self: Any, device: Any) -> Any:
        devices.append(str(device))
        return load(self, device)

    monkeypatch.setattr(weights.Slice, "load", noted)
    file = next(llama.glob("*.safetensors"))
    with weights.accelerate(), weights.safe_open(file, "pt") as f:
        name = f.keys()[0]
        t = loading._materialize_copy(f.get_slice(name), device="meta", dtype=torch.float32)
    assert devices == ["meta"]
    assert (t.device.type, t.dtype) == ("meta", torch.float32)


def test_from_pretrained_on_a_gpu_has_the_same_parameters(gpu: str, llama: Path) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    with weights.accelerate():
        model = pretrained(llama, device_map=gpu)
    assert all(p.is_cuda for p in model.parameters())
    assert equal(model.cpu(), pretrained(llama))
