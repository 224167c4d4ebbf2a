# SPDX-License-Identifier: BSD-3-Clause
"""torch.ops.optimized.moe against experts one by one in PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
ours = pytest.importorskip("gpunvme.torch", exc_type=ImportError,
                           reason="this build has no operators for PyTorch")

from torch import Tensor
from torch.nn import functional

from test_torch_operators import DEVICES, DTYPES, assert_no_worse, with_gradients

ops = torch.ops.optimized
EXPERTS, TOP_K, DIM, HIDDEN = 5, 2, 24, 40


def reference(x: Tensor, logits: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor,
              top_k: int = TOP_K, renormalize: bool = True) -> Tensor:
    found = logits.to(torch.promote_types(logits.dtype, torch.float32))
    highest, chosen = found.topk(top_k)
    weights = highest.softmax(-1) if renormalize else found.softmax(-1).gather(-1, chosen)
    every = torch.stack([
        functional.linear(functional.silu(functional.linear(x, gate)) * functional.linear(x, up),
                          down)
        for gate, up, down in zip(w_gate, w_up, w_down)], -2)
    picked = every.gather(-2, chosen[..., None].expand(*chosen.shape, x.shape[-1]))
    return (picked * weights[..., None]).sum(-2).to(x.dtype)


def operands(*lead: int, dtype: torch.dtype = torch.float32, device: str = "cpu",
             grad: bool = False) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    shapes = [(*lead, DIM), (*lead, EXPERTS), (EXPERTS, HIDDEN, DIM), (EXPERTS, HIDDEN, DIM),
              (EXPERTS, DIM, HIDDEN)]
    made = [torch.randn(shape, generator=generator) for shape in shapes]
    made[2:] = [t / 4 for t in made[2:]]
    return [t.to(device, dtype).requires_grad_(grad) for t in made]


@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("lead", [(33,), (2, 5), (0,), ()], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_values_and_gradients_are_pytorchs(device: str, dtype: torch.dtype, lead: tuple[int, ...],
                                           renormalize: bool) -> None:
    tensors = operands(*lead, dtype=dtype, device=device)
    extra = (TOP_K, renormalize)
    exact = with_gradients(reference, [t.double() for t in tensors], extra)
    for a, b, c in zip(with_gradients(ops.moe, tensors, extra),
                       with_gradients(reference, tensors, extra), exact):
        assert_no_worse(a, b, c, dtype)


def test_logits_may_be_float32() -> None:
    x, logits, *experts = operands(9, dtype=torch.bfloat16)
    logits = logits.float().requires_grad_()
    y = ours.moe(x, logits, *experts, TOP_K)
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert logits.grad.dtype == torch.float32


def test_halves_of_one_tensor_are_read_as_they_lie() -> None:
    x, logits, w_gate, w_up, w_down = operands(9)
    both = torch.cat((w_gate, w_up), 1)
    torch.testing.assert_close(ours.moe(x, logits, *both.chunk(2, 1), w_down, TOP_K),
                               ours.moe(x, logits, w_gate, w_up, w_down, TOP_K))


def test_a_gradient_that_nobody_wants_is_left_out() -> None:
    for i in range(5):
        tensors, same = operands(7), operands(7)
        tensors[i].requires_grad_()
        same[i].requires_grad_()
        ops.moe(*tensors, TOP_K).sum().backward()
        reference(*same).sum().backward()
        torch.testing.assert_close(tensors[i].grad, same[i].grad, rtol=1e-4, atol=1e-4)
        assert all(t.grad is None for j, t in enumerate(tensors) if j != i)


def test_gradients_are_those_of_finite_differences() -> None:
    """gradcheck, with steps and bounds for float32; logits stand so far apart that no choice changes."""
    x, logits, *experts = operands(3)
    logits = torch.stack([torch.randperm(EXPERTS) for _ in range(3)]).float()
    tensors = [t.detach().requires_grad_() for t in (x, logits, *experts)]
    with pytest.warns(UserWarning, match="double precision"):
        assert torch.autograd.gradcheck(lambda *args: ops.moe(*args, TOP_K), tensors, eps=1e-2,
                                        atol=2e-2, rtol=2e-2)


def test_a_gradient_of_a_gradient_is_refused() -> None:
    x, *rest = operands(4, grad=True)
    grad, = torch.autograd.grad(ops.moe(x, *rest, TOP_K).square().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="no gradients of gradients"):
        grad.square().sum().backward()


def test_opcheck_passes() -> None:
    torch.library.opcheck(ops.moe.default, (*operands(6, grad=True), TOP_K))
    tensors = operands(6)
    torch.library.opcheck(ops.moe_kept.default, (*tensors, TOP_K, True))
    y, *kept = ops.moe_kept(*tensors, TOP_K, True)
    torch.library.opcheck(ops.moe_backward.default, (y, *tensors, *kept, TOP_K, True, True, True,
                                                     True, False, True))


def test_a_whole_graph_is_compiled_with_its_gradients() -> None:
    def f(*args: Any) -> Tensor:
        return ops.moe(*args, TOP_K).sin()

    torch._dynamo.reset()
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    for a, b in zip(with_gradients(compiled, operands(6), ()), with_gradients(f, operands(6), ())):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("device", DEVICES)
def test_autocast_computes_in_its_type_with_logits_of_float32(device: str) -> None:
    x, logits, *experts = operands(6, device=device, grad=True)
    with torch.autocast(device, dtype=torch.bfloat16):
        y = ops.moe(x, logits, *experts, TOP_K)
    narrow = [t.detach().to(torch.bfloat16) for t in (x, *experts)]
    torch.testing.assert_close(y, ops.moe(narrow[0], logits.detach(), *narrow[1:], TOP_K))
    y.float().sum().backward()
    assert all(t.grad.dtype == torch.float32 for t in (x, logits, *experts))


@pytest.mark.parametrize("change, text", [
    (lambda t: t.__setitem__(1, t[1][:, :3]), r"logits \(4, 3\)"),
    (lambda t: t.__setitem__(4, t[2]), "w_down"),
    (lambda t: t.__setitem__(2, t[2].half()), "different types"),
    (lambda t: t.__setitem__(1, t[1].half()), "logits are f16"),
])
def test_bad_operands_are_value_errors(change: Any, text: str) -> None:
    tensors = operands(4)
    change(tensors)
    with pytest.raises(ValueError, match=text):
        ops.moe(*tensors, TOP_K)


@pytest.mark.parametrize("top_k", [0, EXPERTS + 1])
def test_a_bad_top_k_is_a_value_error(top_k: int) -> None:
    with pytest.raises(ValueError, match="top_k"):
        ops.moe(*operands(4), top_k)


def test_the_module_learns_and_has_a_state() -> None:
    torch.manual_seed(1)
    layer = ours.nn.MoE(DIM, HIDDEN, EXPERTS)
    same = ours.nn.MoE(DIM, HIDDEN, EXPERTS)
    same.load_state_dict(layer.state_dict())
    assert set(layer.state_dict()) == {"router.weight", "w_gate", "w_up", "w_down"}
    x, goal = torch.randn(64, DIM), torch.randn(64, DIM)
    torch.testing.assert_close(layer(x), same(x))
    before = functional.mse_loss(layer(x), goal).item()
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-2)
    for _ in range(50):
        optimizer.zero_grad()
        loss = functional.mse_loss(layer(x), goal)
        loss.backward()
        optimizer.step()
    assert loss.item() < before / 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU here")
def test_it_is_captured_into_a_cuda_graph_and_follows_the_choice() -> None:
    tensors = operands(64, dtype=torch.bfloat16, device="cuda")
    ops.moe(*tensors, TOP_K)  # what is loaded at the first launch
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = ops.moe(*tensors, TOP_K)
    tensors[1].copy_(torch.randn_like(tensors[1]))
    graph.replay()
    assert torch.equal(y, ops.moe(*tensors, TOP_K))
