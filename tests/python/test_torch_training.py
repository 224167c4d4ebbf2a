# SPDX-License-Identifier: BSD-3-Clause
"""gpunvme.torch's functions for training against torch.nn.functional's.

test_torch_operators.py has what all operators promise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("gpunvme.torch", exc_type=ImportError,
                    reason="this build has no operators for PyTorch")

from torch import Tensor
from torch.nn import functional

import gpunvme.torch as ours
from test_torch_operators import (
    DEVICES,
    DTYPES,
    assert_no_worse,
    layer_norm,
    operands,
    rms_norm,
    swiglu,
    with_gradients,
)

ops = torch.ops.optimized

# ---- Norms ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(6,), (3, 6)])
def test_norms_have_the_arguments_of_pytorchs(sizes: tuple[int, ...]) -> None:
    x, weight, bias = operands([(2, 3, 6), sizes, sizes])
    for name, args in (("rms_norm", (weight, 1e-3)), ("layer_norm", (weight, bias, 1e-3)),
                       ("rms_norm", ()), ("layer_norm", ())):
        torch.testing.assert_close(getattr(ours, name)(x, sizes, *args),
                                   getattr(functional, name)(x, sizes, *args))


@pytest.mark.parametrize("call", [
    lambda: ours.rms_norm(torch.zeros(2, 3), (2,)),
    lambda: ours.rms_norm(torch.zeros(2, 3), ()),
    lambda: ours.layer_norm(torch.zeros(2, 3), (2, 3), torch.zeros(3)),
])
def test_a_normalized_shape_that_is_not_the_inputs_is_a_value_error(call: Any) -> None:
    with pytest.raises(ValueError, match="normalized_shape"):
        call()


def by_pytorch(name: str) -> Callable[..., tuple[Tensor, Tensor]]:
    norm = rms_norm if name == "add_rms_norm" else layer_norm

    def f(x: Tensor, residual: Tensor, *parameters: Any) -> tuple[Tensor, Tensor]:
        return norm(x + residual, *parameters), x + residual

    return f


def joined(f: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., Tensor]:
    """Both results as one, whose gradients differ."""
    return lambda *args: torch.stack(f(*args))


ADDING = {"add_rms_norm": [(33, 65), (33, 65), (65,)],
          "add_layer_norm": [(33, 65), (33, 65), (65,), (65,)]}
adding = pytest.mark.parametrize("name", ADDING)


@adding
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_a_residual_is_added_and_normalized_as_by_pytorch(name: str, dtype: torch.dtype,
                                                          device: str) -> None:
    tensors = operands(ADDING[name], dtype, device)
    theirs = joined(by_pytorch(name))
    found = [with_gradients(f, list(of), ())
             for f, of in ((joined(getattr(ops, name)), tensors), (theirs, tensors),
                           (theirs, [t.double() for t in tensors]))]
    for a, b, c in zip(*found):
        assert_no_worse(a, b, c, dtype)


@adding
@pytest.mark.parametrize("used", [0, 1])
def test_one_result_of_two_may_be_left_unused(name: str, used: int) -> None:
    found = []
    for f in (getattr(ops, name), by_pytorch(name)):
        x, residual, *parameters = operands(ADDING[name], grad=True)
        f(x, residual, *parameters)[used].square().sum().backward()
        found.append([x.grad, residual.grad, *(p.grad for p in parameters)])
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)


@adding
def test_a_residual_that_needs_no_gradient_gets_none(name: str) -> None:
    x, residual, *parameters = operands(ADDING[name])
    getattr(ops, name)(x.requires_grad_(), residual, *parameters)[0].square().sum().backward()
    assert x.grad is not None and residual.grad is None


@adding
def test_a_residual_of_another_type_is_added_as_pytorch_adds(name: str) -> None:
    x, residual = torch.randn(3, 8, dtype=torch.bfloat16), torch.randn(3, 8)
    found = getattr(ours, name)(x, residual, (8,))
    torch.testing.assert_close(found, by_pytorch(name)(x, residual))
    assert found[0].dtype == torch.float32


@adding
def test_a_residual_may_be_the_input(name: str) -> None:
    found = []
    for f in (getattr(ops, name), by_pytorch(name)):
        x, = operands([(3, 8)], grad=True)
        y, total = f(x, x)
        (y + total).square().sum().backward()
        found.append(x.grad)
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)


@adding
def test_residual_additions_are_compiled_with_their_gradients(name: str) -> None:
    torch._dynamo.reset()
    f = joined(getattr(ops, name))
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(with_gradients(compiled, operands(ADDING[name]), ()),
                               with_gradients(f, operands(ADDING[name]), ()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_parameters_may_be_float32_beside_16_bit_inputs(dtype: torch.dtype, device: str) -> None:
    x, weight, bias = operands([(9, 40), (40,), (40,)], device=device)
    found = with_gradients(lambda *args: ops.layer_norm(x.to(dtype), *args), [weight, bias], ())
    exact = with_gradients(lambda *args: layer_norm(x.to(dtype).float(), *args), [weight, bias],
                           ())
    assert [t.dtype for t in found] == [dtype, torch.float32, torch.float32]
    torch.testing.assert_close(found[0].float(), exact[0], rtol=1e-2, atol=1e-2)
    for a, b in zip(found[1:], exact[1:]):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("device", DEVICES)
def test_autocast_of_norms_is_pytorchs(device: str) -> None:
    x, weight, bias = operands([(4, 8), (8,), (8,)], torch.bfloat16, device)
    for name, args in (("rms_norm", (weight,)), ("layer_norm", (weight, bias))):
        with torch.autocast(device, dtype=torch.bfloat16):
            found = getattr(ours, name)(x, (8,), *args)
            expected = getattr(functional, name)(x, (8,), *args)
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


@adding
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_a_residual_keeps_its_type_under_autocast(name: str, dtype: torch.dtype,
                                                  device: str) -> None:
    tensors = operands(ADDING[name], dtype, device)
    with torch.autocast(device, dtype=torch.bfloat16):
        found, expected = getattr(ops, name)(*tensors), by_pytorch(name)(*tensors)
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)  # types as well


@pytest.mark.parametrize("call, text", [
    (lambda: ops.rms_norm(torch.zeros(2, 3), torch.zeros(2)), r"\(2\) for x \(2, 3\)"),
    (lambda: ops.rms_norm(torch.tensor(1.0)), r"x \(\)"),
    (lambda: ops.rms_norm(torch.zeros(2, 3), eps=-1.0), "eps"),
    (lambda: ops.layer_norm(torch.zeros(2, 3), torch.zeros(3), torch.zeros(3).half()), "types"),
    (lambda: ops.layer_norm(torch.zeros(2, 3), torch.zeros(3).half()), "weight_dtype"),
    (lambda: ops.layer_norm(torch.zeros(2, 3).double()), "takes float32"),
    (lambda: ops.add_rms_norm(torch.zeros(2, 3), torch.zeros(2, 4)), r"residual \(2, 4\)"),
    (lambda: ops.add_rms_norm(torch.zeros(2, 3), torch.zeros(2, 3).half()), "different types"),
    (lambda: ops.swiglu(torch.zeros(2, 3), torch.zeros(3)), "one shape"),
    (lambda: ops.swiglu(torch.zeros(2, 3), torch.zeros(2, 3).half()), "different types"),
])
def test_bad_operands_are_value_errors(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        call()


@pytest.mark.parametrize("call", [
    lambda x: ops.rms_norm(x), lambda x: ops.layer_norm(x), lambda x: ops.swiglu(x, x + 1),
    lambda x: ops.add_rms_norm(x, x)[0],
], ids=["rms_norm", "layer_norm", "swiglu", "add_rms_norm"])
def test_a_gradient_of_a_gradient_is_refused(call: Callable[[Tensor], Tensor]) -> None:
    x, = operands([(4, 8)], grad=True)
    grad, = torch.autograd.grad(call(x).square().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="no gradients of gradients"):
        grad.square().sum().backward()


def test_opcheck_passes_for_the_norms_behind_gradients() -> None:
    x, grad, weight, bias = operands([(4, 8), (4, 8), (8,), (8,)])
    for residual, is_layer in ((None, True), (grad, True), (grad, False)):
        args = (x, residual, weight, bias if is_layer else None, 1e-5, is_layer)
        torch.library.opcheck(ops.norm_statistics.default, args)
        _, total, mean, rstd = ops.norm_statistics(*args)
        torch.library.opcheck(ops.norm_backward.default, (
            grad, residual, x if residual is None else total, weight, mean if is_layer else None,
            rstd, bias if is_layer else None, True, True, is_layer))


@adding
def test_opcheck_passes_for_residual_additions(name: str) -> None:
    torch.library.opcheck(getattr(ops, name).default, operands(ADDING[name], grad=True))


# ---- SwiGLU -----------------------------------------------------------------------------------


def test_swiglu_reads_both_halves_of_one_tensor_as_they_lie() -> None:
    found = []
    for f in (ours.swiglu, swiglu):
        x, = operands([(2, 5, 24)], grad=True)
        y = f(*x.chunk(2, -1))
        y.square().sum().backward()
        found.append([y, x.grad])
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)
