# SPDX-License-Identifier: BSD-3-Clause
"""gpunvme.torch.nn: modules that stand for PyTorch's."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("gpunvme.torch", exc_type=ImportError,
                    reason="this build has no operators for PyTorch")

from gpunvme.torch import nn
from test_torch_operators import DEVICES


def reference(d_model: int, n_heads: int) -> torch.nn.Module:
    """PyTorch's own layer of the same kind."""
    return torch.nn.TransformerEncoderLayer(d_model, n_heads, 4 * d_model, dropout=0.0,
                                            activation="gelu", batch_first=True, norm_first=True)


def take_over(ours: nn.OptimizedTransformer, theirs: torch.nn.Module) -> None:
    """Gives ours the parameters of PyTorch's."""
    names = {"norm1": "norm1", "norm2": "norm2", "up": "linear1", "down": "linear2",
             "out": "self_attn.out_proj"}
    state = theirs.state_dict()
    found = {f"{a}.{kind}": state[f"{b}.{kind}"] for a, b in names.items()
             for kind in ("weight", "bias")}
    found |= {f"qkv.{kind}": state[f"self_attn.in_proj_{kind}"] for kind in ("weight", "bias")}
    ours.load_state_dict(found)


@pytest.mark.parametrize("bias", [True, False])
def test_linear_takes_the_state_of_pytorchs(bias: bool) -> None:
    theirs, ours = torch.nn.Linear(8, 3, bias=bias), nn.Linear(8, 3, bias=bias)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 5, 8)
    torch.testing.assert_close(ours(x), theirs(x))
    theirs.load_state_dict(ours.state_dict())
    assert isinstance(ours, torch.nn.Linear)


def test_linear_gelu_is_a_linear_layer_and_gelu() -> None:
    ours = nn.LinearGELU(8, 3)
    x = torch.randn(5, 8)
    theirs = torch.nn.functional.gelu(torch.nn.functional.linear(x, ours.weight, ours.bias))
    torch.testing.assert_close(ours(x), theirs)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm"])
@pytest.mark.parametrize("affine", [True, False])
def test_norms_take_the_state_of_pytorchs(name: str, affine: bool, device: str) -> None:
    theirs, ours = (getattr(of, name)((3, 8), eps=1e-3, elementwise_affine=affine, device=device)
                    for of in (torch.nn, nn))
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 3, 8, device=device)
    torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(ours(x, 2 * x), (theirs(3 * x), 3 * x))


@pytest.mark.parametrize("options", [{}, {"padding_idx": 1}, {"sparse": True}, {"max_norm": 1.0}])
def test_embedding_takes_the_state_of_pytorchs(options: dict[str, Any]) -> None:
    theirs, ours = (of.Embedding(5, 3, **options) for of in (torch.nn, nn))
    ours.load_state_dict(theirs.state_dict())
    numbers = torch.tensor([[0, 1], [4, 1]])
    for module in (ours, theirs):
        module(numbers).square().sum().backward()
    torch.testing.assert_close(ours(numbers), theirs(numbers))
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)


@pytest.mark.parametrize("flash", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
def test_the_transformer_computes_what_pytorchs_does(is_causal: bool, flash: bool,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn, "_suits_flash_attention", lambda q: flash)
    theirs, ours = reference(24, 3), nn.OptimizedTransformer(24, 3)
    take_over(ours, theirs)
    x, same = (torch.linspace(-2, 2, 240).sin().view(2, 5, 24).requires_grad_() for _ in range(2))
    mask = torch.nn.Transformer.generate_square_subsequent_mask(5) if is_causal else None
    found, expected = ours(x, is_causal=is_causal), theirs(same, src_mask=mask)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    found.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(x.grad, same.grad, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(ours.up.weight.grad, theirs.linear1.weight.grad, rtol=1e-3,
                               atol=1e-4)


def test_the_transformer_has_the_sizes_of_bert_unless_told() -> None:
    ours = nn.OptimizedTransformer(device="meta")
    assert ours.up.weight.shape == (3072, 768) and ours.n_heads == 12
    assert ours(torch.empty(2, 7, 768, device="meta")).shape == (2, 7, 768)


def test_heads_that_do_not_divide_the_model_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of n_heads"):
        nn.OptimizedTransformer(10, 3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("is_causal", [False, True])
def test_the_transformer_on_a_gpu_is_the_one_with_pytorchs_attention(
        is_causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = nn.OptimizedTransformer(256, 4, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(2, 70, 256, device="cuda", dtype=torch.bfloat16)
    found = ours(x, is_causal=is_causal)
    torch.testing.assert_close(torch.compile(ours, fullgraph=True)(x, is_causal=is_causal), found,
                               rtol=2e-2, atol=2e-2)
    monkeypatch.setattr(nn, "_suits_flash_attention", lambda q: False)
    torch.testing.assert_close(found, ours(x, is_causal=is_causal), rtol=2e-2, atol=2e-2)


def test_attention_of_float32_or_on_the_cpu_is_left_to_pytorch() -> None:
    assert not nn._suits_flash_attention(torch.empty(2, 5, 3, 64, dtype=torch.bfloat16))
    assert not nn._suits_flash_attention(torch.empty(2, 5, 3, 64, device="meta"))


def test_the_transformer_is_compiled_as_one_graph() -> None:
    ours = nn.OptimizedTransformer(24, 3)
    x = torch.randn(2, 5, 24)
    found = torch.compile(ours, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(found, ours(x), rtol=1e-4, atol=1e-5)
    found.sum().backward()
    assert ours.qkv.weight.grad is not None


@pytest.mark.skipif(shutil.which("g++") is None, reason="PyTorch's compiler needs g++ on the CPU")
def test_pytorchs_own_compiler_makes_code_around_the_operators() -> None:
    ours = nn.LinearGELU(8, 3)
    x = torch.randn(5, 8)
    found = torch.compile(lambda x: ours(x).sin(), fullgraph=True)(x)
    torch.testing.assert_close(found, ours(x).sin())


def test_the_example_runs() -> None:
    example = Path(__file__).parents[2] / "examples/python/pytorch_integration.py"
    done = subprocess.run([sys.executable, example], capture_output=True, text=True)
    assert done.returncode == 0 and "the same" in done.stdout, done.stdout + done.stderr
