# SPDX-License-Identifier: BSD-3-Clause
"""torch.ops.optimized against torch.nn.functional: values, gradients, autocast, compilation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("gpunvme.torch", exc_type=ImportError,
                    reason="this build has no operators for PyTorch")

from torch import Tensor
from torch.nn import functional

ops = torch.ops.optimized
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    not torch.cuda.is_available(), reason="PyTorch sees no GPU here"))]


def gelu(x: Tensor, weight: Tensor, bias: Tensor | None = None, tanh: bool = False) -> Tensor:
    return functional.gelu(functional.linear(x, weight, bias),
                           approximate="tanh" if tanh else "none")


def rms_norm(x: Tensor, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    # float32's, which PyTorch takes for narrower types; float64 would have its own.
    eps = torch.finfo(torch.float32).eps if eps is None else eps
    return functional.rms_norm(x, x.shape[-1:], weight, eps)


def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None,
               eps: float = 1e-5) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return functional.silu(gate) * up


# Ours, PyTorch's, the shapes of the tensors, arguments behind them.
CASES: dict[str, tuple[Any, Callable[..., Tensor], list[tuple[int, ...]], tuple[Any, ...]]] = {
    "matmul": (ops.matmul, torch.matmul, [(33, 65), (65, 17)], ()),
    "matmul of more dimensions": (ops.matmul, torch.matmul, [(2, 3, 5, 7), (7, 4)], ()),
    "matmul of a batch": (ops.matmul, torch.matmul, [(3, 5, 7), (3, 7, 4)], ()),
    "linear": (ops.linear, functional.linear, [(33, 65), (17, 65), (17,)], ()),
    "linear without bias": (ops.linear, functional.linear, [(2, 3, 65), (17, 65)], ()),
    "linear of a vector": (ops.linear, functional.linear, [(65,), (17, 65), (17,)], ()),
    "linear without rows": (ops.linear, functional.linear, [(0, 65), (17, 65), (17,)], ()),
    "linear_gelu": (ops.linear_gelu, gelu, [(33, 65), (17, 65), (17,)], ()),
    "linear_gelu without bias": (ops.linear_gelu, gelu, [(2, 3, 65), (17, 65)], ()),
    "linear_gelu by tanh": (ops.linear_gelu, gelu, [(33, 65), (17, 65), (17,)], (True,)),
    "rms_norm": (ops.rms_norm, rms_norm, [(33, 65), (65,)], ()),
    "rms_norm without weight": (ops.rms_norm, rms_norm, [(2, 3, 65)], ()),
    "rms_norm with an eps": (ops.rms_norm, rms_norm, [(65,), (65,)], (0.5,)),
    "layer_norm": (ops.layer_norm, layer_norm, [(33, 65), (65,), (65,)], ()),
    "layer_norm without parameters": (ops.layer_norm, layer_norm, [(2, 3, 65)], ()),
    "layer_norm without rows": (ops.layer_norm, layer_norm, [(0, 65), (65,), (65,)], (0.5,)),
    "swiglu": (ops.swiglu, swiglu, [(33, 65), (33, 65)], ()),
    "swiglu of more dimensions": (ops.swiglu, swiglu, [(2, 3, 65), (2, 3, 65)], ()),
    "swiglu of vectors": (ops.swiglu, swiglu, [(65,), (65,)], ()),
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def operands(shapes: list[tuple[int, ...]], dtype: torch.dtype = torch.float32,
             device: str = "cpu", grad: bool = False) -> list[Tensor]:
    generator = torch.Generator().manual_seed(17)
    return [torch.randn(shape, generator=generator).to(device, dtype).requires_grad_(grad)
            for shape in shapes]


def with_gradients(f: Callable[..., Tensor], tensors: list[Tensor],
                   extra: tuple[Any, ...]) -> list[Tensor]:
    leaves = [t.detach().requires_grad_() for t in tensors]
    y = f(*leaves, *extra)
    weights = torch.linspace(-1, 1, y.numel()).view(y.shape).to(y)
    y.backward(weights)
    return [y.detach(), *(leaf.grad for leaf in leaves)]


def assert_no_worse(ours: Tensor, theirs: Tensor, exact: Tensor, dtype: torch.dtype) -> None:
    """Our error is at most twice PyTorch's, but for some units in the last place of the scale."""
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    if not exact.numel():
        return
    error = (ours.double() - exact).abs().max().item()
    allowed = 2 * (theirs.double() - exact).abs().max().item()
    allowed += 4 * torch.finfo(dtype).eps * exact.abs().max().item()
    assert error <= allowed


@cases
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_values_and_gradients_are_pytorchs(case: Any, dtype: torch.dtype, device: str) -> None:
    ours, theirs, shapes, extra = case
    tensors = operands(shapes, dtype, device)
    exact = with_gradients(theirs, [t.double() for t in tensors], extra)
    for a, b, c in zip(with_gradients(ours, tensors, extra),
                       with_gradients(theirs, tensors, extra), exact):
        assert_no_worse(a, b, c, dtype)


@cases
def test_a_gradient_that_nobody_wants_is_left_out(case: Any) -> None:
    ours, theirs, shapes, extra = case
    for i in range(len(shapes)):
        tensors, same = operands(shapes), operands(shapes)
        tensors[i].requires_grad_()
        same[i].requires_grad_()
        ours(*tensors, *extra).sum().backward()
        theirs(*same, *extra).sum().backward()
        torch.testing.assert_close(tensors[i].grad, same[i].grad, rtol=1e-4, atol=1e-4)
        assert all(t.grad is None for j, t in enumerate(tensors) if j != i)


@cases
def test_gradients_are_those_of_finite_differences(case: Any) -> None:
    """gradcheck, with steps and bounds for float32: the operators do not take float64."""
    ours, _, shapes, extra = case
    small = [tuple(min(n, 5) for n in shape) for shape in shapes]
    tensors = [t.detach().requires_grad_() for t in operands(small)]
    with pytest.warns(UserWarning, match="double precision"):
        assert torch.autograd.gradcheck(lambda *args: ours(*args, *extra), tensors, eps=1e-2,
                                        atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("op", [ops.linear, ops.linear_gelu], ids=["linear", "linear_gelu"])
def test_a_gradient_of_a_gradient_is_refused(op: Any) -> None:
    x, weight = operands([(4, 8), (3, 8)], grad=True)
    grad, = torch.autograd.grad(op(x, weight).square().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="no gradients of gradients"):
        grad.square().sum().backward()


@cases
def test_derivatives_of_forward_mode_are_refused(case: Any) -> None:
    ours, _, shapes, extra = case
    tensors = tuple(operands(shapes))
    with pytest.raises(NotImplementedError, match="forward mode"):
        torch.func.jvp(lambda *args: ours(*args, *extra), tensors, tensors)
    ours(*tensors, *extra)  # as before


def test_matmul_has_gradients_of_gradients() -> None:
    found = []
    for f in (ops.matmul, torch.matmul):
        a, b = operands([(4, 8), (8, 3)], grad=True)
        grad, = torch.autograd.grad(f(a, b).square().sum(), a, create_graph=True)
        found.append(torch.autograd.grad(grad.square().sum(), [a, b]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-3)


def test_strided_operands_are_read_as_they_are() -> None:
    wide = torch.randn(40, 60)
    for a in (wide[:, :30], wide[::2], wide.t()[:, :30], wide.t()[::3, ::2], wide[:1].expand(9, 60)):
        b = torch.randn(7, a.shape[1]).t()
        torch.testing.assert_close(ops.matmul(a, b), a @ b, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(ops.linear(a, b.t()), a @ b, rtol=1e-4, atol=1e-4)
        weight = torch.randn(a.shape[1], 5).t()  # stored transposed
        torch.testing.assert_close(ops.linear(a, weight), a @ weight.t(), rtol=1e-4, atol=1e-4)


def test_a_batch_may_be_strided() -> None:
    a, b = torch.randn(5, 3, 7).transpose(0, 1), torch.randn(7, 3, 4).transpose(0, 1)
    torch.testing.assert_close(ops.matmul(a, b), a @ b)
    one = torch.randn(1, 7, 4).expand(3, 7, 4)
    torch.testing.assert_close(ops.matmul(a, one), a @ one)


@pytest.mark.parametrize("call, text", [
    (lambda: ops.matmul(torch.zeros(2, 3), torch.zeros(4, 5)), r"\(2, 3\) by \(4, 5\)"),
    (lambda: ops.matmul(torch.zeros(3), torch.zeros(3, 3)), "takes"),
    (lambda: ops.matmul(torch.zeros(2, 3, 4), torch.zeros(3, 4, 5)), "takes"),
    (lambda: ops.linear(torch.zeros(2, 3), torch.zeros(4, 5)), r"weight \(4, 5\)"),
    (lambda: ops.linear(torch.zeros(2, 3), torch.zeros(4, 3), torch.zeros(3)), r"bias \(3\)"),
    (lambda: ops.linear(torch.tensor(1.0), torch.zeros(4, 3)), r"x \(\)"),
    (lambda: ops.linear(torch.zeros(2, 3), torch.zeros(4, 3).half()), "different types"),
    (lambda: ops.linear(torch.zeros(2, 3).double(), torch.zeros(4, 3).double()), "takes float32"),
    (lambda: ops.linear_gelu(torch.zeros(2, 3).int(), torch.zeros(4, 3).int()), "takes float32"),
])
def test_bad_operands_are_value_errors(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(ValueError, match=f"optimized::.*{text}"):
        call()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_computes_in_its_type(device: str, dtype: torch.dtype) -> None:
    x, weight, bias = operands([(4, 8), (3, 8), (3,)], device=device, grad=True)
    with torch.autocast(device, dtype=dtype):
        found = [ops.linear(x, weight, bias), ops.linear_gelu(x, weight, bias),
                 ops.matmul(x, weight.t())]
    assert [t.dtype for t in found] == [dtype] * 3
    sum(t.float().sum() for t in found).backward()
    assert x.grad.dtype == weight.grad.dtype == bias.grad.dtype == torch.float32
    assert ops.linear(x, weight).dtype == torch.float32


def test_a_compiled_graph_follows_autocast() -> None:
    x, weight, bias = operands([(4, 8), (3, 8), (3,)], grad=True)
    torch._dynamo.reset()
    compiled = torch.compile(lambda *args: ops.linear_gelu(*args), fullgraph=True,
                             backend="aot_eager")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, expected = compiled(x, weight, bias), ops.linear_gelu(x, weight, bias)
    assert found.dtype == torch.bfloat16 and torch.equal(found, expected)
    found.float().sum().backward()
    assert weight.grad.dtype == torch.float32


@cases
def test_opcheck_passes(case: Any) -> None:
    ours, _, shapes, extra = case
    torch.library.opcheck(ours.default, (*operands(shapes, grad=True), *extra))


def test_opcheck_passes_for_the_operators_behind_gradients() -> None:
    grad, x, weight, bias = operands([(4, 3), (4, 8), (3, 8), (3,)])
    torch.library.opcheck(ops.linear_gelu_preact.default, (x, weight, bias, False))
    torch.library.opcheck(ops.linear_backward.default,
                          (grad, x, weight, grad, True, True, False, True))


@cases
def test_a_whole_graph_is_compiled_with_its_gradients(case: Any) -> None:
    ours, _, shapes, extra = case

    def f(*args: Any) -> Tensor:
        return ours(*args).sin()

    torch._dynamo.reset()
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    for a, b in zip(with_gradients(compiled, operands(shapes), extra),
                    with_gradients(f, operands(shapes), extra)):
        torch.testing.assert_close(a, b)


def test_a_compiled_graph_serves_any_number_of_rows() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, w: ops.linear_gelu(x, w) + 1, fullgraph=True, dynamic=True,
                             backend="aot_eager")
    weight = torch.randn(3, 8)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for rows in (4, 5, 9):
            x = torch.randn(rows, 8)
            torch.testing.assert_close(compiled(x, weight), gelu(x, weight) + 1)


def test_inference_mode_and_no_grad_give_the_same() -> None:
    x, weight = operands([(4, 8), (3, 8)], grad=True)
    with torch.inference_mode():
        inferred = ops.linear_gelu(x, weight)
    with torch.no_grad():
        unrecorded = ops.linear_gelu(x, weight)
    recorded = ops.linear_gelu(x, weight)
    assert torch.equal(inferred, recorded) and torch.equal(unrecorded, recorded)
    assert recorded.requires_grad and not unrecorded.requires_grad


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU here")
def test_operators_are_captured_into_a_cuda_graph() -> None:
    x, weight = operands([(64, 128), (256, 128)], torch.bfloat16, "cuda")
    ops.linear_gelu(x, weight)  # what is loaded at the first launch
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = ops.linear_gelu(x, weight)
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.testing.assert_close(y, gelu(x, weight), rtol=2e-2, atol=2e-2)
