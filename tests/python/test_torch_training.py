# SPDX-License-Identifier: BSD-3-Clause
"""gpunvme.torch's functions for training against torch.nn.functional's.

test_torch_operators.py has what all operators promise.
"""

from __future__ import annotations

import shutil
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


# ---- Cross entropy ----------------------------------------------------------------------------

REDUCTIONS = ["none", "mean", "sum"]


def targets_of(shape: tuple[int, ...], classes: int, device: str = "cpu") -> Tensor:
    """Some are ignored, by PyTorch's default."""
    generator = torch.Generator().manual_seed(18)
    found = torch.randint(classes, shape, generator=generator)
    return found.masked_fill_(torch.rand(shape, generator=generator) < 0.3, -100).to(device)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_cross_entropy_is_pytorchs_of_float32_logits(reduction: Any, dtype: torch.dtype,
                                                     device: str) -> None:
    logits, = operands([(33, 130)], dtype, device)
    target = targets_of((33,), 130, device)

    def run(f: Callable[..., Tensor], x: Tensor) -> list[Tensor]:
        loss, grad = with_gradients(lambda t: f(t, target, reduction=reduction), [x], ())
        return [loss, grad.to(dtype)]

    found = run(ours.cross_entropy, logits)
    expected = run(functional.cross_entropy, logits.float())
    exact = run(functional.cross_entropy, logits.double())
    assert_no_worse(found[0], expected[0], exact[0], torch.float32)
    assert_no_worse(found[1], expected[1], exact[1].double(), dtype)


@pytest.mark.parametrize("shape", [(7,), (2, 7, 3), (2, 7, 3, 4)])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_cross_entropy_finds_the_classes_where_pytorch_does(shape: tuple[int, ...],
                                                            reduction: Any) -> None:
    found = []
    target = targets_of(() if len(shape) == 1 else (shape[0], *shape[2:]), 7)
    for f in (ours.cross_entropy, functional.cross_entropy):
        logits, = operands([shape], grad=True)
        loss = f(logits, target.clamp(min=0), reduction=reduction)
        loss.square().sum().backward()
        found.append([loss, logits.grad])
    torch.testing.assert_close(found[0], found[1])


def test_cross_entropy_ignores_the_target_it_is_told_to() -> None:
    logits, = operands([(9, 5)])
    target = torch.arange(9) % 5
    for index in (3, -1):
        torch.testing.assert_close(
            ours.cross_entropy(logits, target, ignore_index=index),
            functional.cross_entropy(logits, target, ignore_index=index))
    assert ours.cross_entropy(logits, torch.full((9,), -100)).isnan()


def test_the_gradient_of_a_loss_is_scaled() -> None:
    found = []
    for f in (ours.cross_entropy, functional.cross_entropy):
        logits, = operands([(9, 5)], grad=True)
        (f(logits, torch.arange(9) % 5) * 3).backward()
        found.append(logits.grad)
    torch.testing.assert_close(found[0], found[1])


def test_cross_entropy_gradients_are_those_of_finite_differences() -> None:
    """gradcheck, with steps and bounds for float32."""
    logits, = operands([(4, 5)], grad=True)
    with pytest.warns(UserWarning, match="double precision"):
        assert torch.autograd.gradcheck(
            lambda x: ours.cross_entropy(x, torch.arange(4), reduction="none"), [logits], eps=1e-2,
            atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("call, text", [
    (lambda x: ours.cross_entropy(x, torch.tensor([0, 5])), r"targets\[1\] is 5"),
    (lambda x: ours.cross_entropy(x, torch.tensor([0, 1 << 32])), r"targets\[1\]"),
    (lambda x: ours.cross_entropy(x, torch.tensor([0, 1 << 32]), ignore_index=1 << 32), "32 bits"),
    (lambda x: ours.cross_entropy(x, torch.tensor([0.0, 1.0])), "int64"),
    (lambda x: ours.cross_entropy(x, torch.tensor([0])), r"targets \(1\)"),
    (lambda x: ours.cross_entropy(x, torch.tensor([0, 1]), reduction="max"), "reduction"),
    (lambda x: ops.cross_entropy(x, torch.tensor([0, 1])), "not int32"),
    (lambda x: ops.cross_entropy(x, torch.tensor([0, 1]).int(), 3), "reduction 3"),
    (lambda x: ours.cross_entropy(x.double(), torch.tensor([0, 1])), "takes float32"),
    (lambda x: ours.embedding(torch.tensor([0, 2]), x), r"ids\[1\] is 2"),
    (lambda x: ours.embedding(torch.tensor([0, -1]), x), r"ids\[1\] is -1"),
    (lambda x: ours.embedding(torch.tensor([0]), x, padding_idx=2), "padding_idx"),
    (lambda x: ours.embedding(torch.tensor([0.0]), x), "int64"),
    (lambda x: ops.embedding(torch.tensor([0]), x), "not int32"),
    (lambda x: ours.embedding(torch.tensor([0]), x[0]), "matrix"),
    (lambda x: ours.embedding(torch.tensor([0]), x.double()), "takes float32"),
])
def test_bad_numbers_are_value_errors(call: Callable[[Tensor], Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        call(torch.zeros(2, 5))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU here")
def test_on_a_gpu_a_number_beyond_the_last_makes_nan() -> None:
    x = torch.zeros(2, 5, device="cuda")
    numbers = torch.tensor([1, 1 << 32], device="cuda")
    assert ours.cross_entropy(x, numbers, reduction="none").isnan().tolist() == [False, True]
    assert ours.embedding(numbers, x).isnan().all(1).tolist() == [False, True]


# ---- Embedding --------------------------------------------------------------------------------


@pytest.mark.parametrize("padding_idx", [None, 3, -1])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_an_embedding_is_pytorchs(padding_idx: int | None, dtype: torch.dtype,
                                  device: str) -> None:
    weight, = operands([(50, 24)], dtype, device)
    numbers = torch.randint(50, (3, 40), generator=torch.Generator().manual_seed(19)).to(device)
    numbers[0, :9] = 3  # a row that is named often
    found = [with_gradients(lambda t, f=f: f(numbers, t, padding_idx), [w], ())
             for f, w in ((ours.embedding, weight), (functional.embedding, weight),
                          (functional.embedding, weight.double()))]
    assert torch.equal(found[0][0], found[1][0])
    assert_no_worse(found[0][1], found[1][1], found[2][1], dtype)


@pytest.mark.parametrize("shape", [(), (0,), (2, 3, 4)])
def test_an_embedding_takes_numbers_of_any_shape(shape: tuple[int, ...]) -> None:
    found = []
    for f in (ours.embedding, functional.embedding):
        weight, = operands([(5, 6)], grad=True)
        y = f(torch.full(shape, 2), weight)
        y.square().sum().backward()
        found.append([y, weight.grad])
    torch.testing.assert_close(found[0], found[1])


def test_the_table_may_change_before_its_gradient_is_computed() -> None:
    weight, = operands([(5, 6)], grad=True)
    y = ours.embedding(torch.tensor([1, 2]), weight)
    with torch.no_grad():
        weight.zero_()
    y.sum().backward()
    assert weight.grad.sum().item() == 12


# ---- Both -------------------------------------------------------------------------------------

NUMBERED: dict[str, Callable[..., Tensor]] = {
    "cross_entropy": lambda x, numbers: ours.cross_entropy(x, numbers),
    "cross_entropy of each row": lambda x, numbers: ours.cross_entropy(x, numbers,
                                                                       reduction="none"),
    "embedding": lambda x, numbers: ours.embedding(numbers, x, padding_idx=1),
}
numbered = pytest.mark.parametrize("f", NUMBERED.values(), ids=NUMBERED.keys())


@numbered
def test_functions_of_numbers_are_compiled_with_their_gradients(f: Callable[..., Tensor]) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (4, 6, 9):
        x, numbers = operands([(rows, 10)]), torch.arange(rows) % 3
        torch.testing.assert_close(with_gradients(compiled, x, (numbers,)),
                                   with_gradients(f, x, (numbers,)))


@numbered
def test_a_gradient_of_a_gradient_by_numbers_is_refused(f: Callable[..., Tensor]) -> None:
    x, = operands([(4, 8)], grad=True)
    grad, = torch.autograd.grad(f(x, torch.arange(4)).square().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="no gradients of gradients"):
        grad.square().sum().backward()


@pytest.mark.parametrize("device", DEVICES)
def test_autocast_leaves_the_loss_and_embeddings_in_float32(device: str) -> None:
    x, = operands([(4, 8)], device=device)
    numbers = torch.arange(4, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert ours.cross_entropy(x.bfloat16(), numbers).dtype == torch.float32
        assert ours.embedding(numbers, x).dtype == torch.float32


def test_opcheck_passes_for_functions_of_numbers() -> None:
    x, = operands([(4, 8)], grad=True)
    numbers, grad = torch.arange(4).int(), torch.ones(())
    for reduction in (0, 1):
        torch.library.opcheck(ops.cross_entropy.default, (x, numbers, reduction))
    torch.library.opcheck(ops.embedding.default, (numbers, x, 2))
    torch.library.opcheck(ops.cross_entropy_backward.default, (grad, x.detach(), numbers, 1, -100))
    torch.library.opcheck(ops.embedding_backward.default, (x.detach(), numbers, 9, 2))


# ---- All together -----------------------------------------------------------------------------


def chain(numbers: Tensor, table: Tensor, residual: Tensor, scale: Tensor, up: Tensor) -> Tensor:
    x, total = ours.add_rms_norm(ours.embedding(numbers, table), residual.sin(), (24,), scale)
    y = ours.swiglu(*ops.linear(2 * x, up).chunk(2, -1)) + total
    return ours.cross_entropy(ours.layer_norm(y, (24,)), numbers)


CHAIN = [(24, 24), (6, 24), (24,), (48, 24)]


@pytest.mark.skipif(shutil.which("g++") is None, reason="PyTorch's compiler needs g++ on the CPU")
def test_pytorchs_own_compiler_makes_code_around_them() -> None:
    torch._dynamo.reset()
    numbers = torch.arange(6)
    compiled = torch.compile(chain, fullgraph=True)
    for a, b in zip(with_gradients(lambda *args: compiled(numbers, *args), operands(CHAIN), ()),
                    with_gradients(lambda *args: chain(numbers, *args), operands(CHAIN), ())):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU here")
def test_training_is_captured_into_a_cuda_graph() -> None:
    numbers = torch.arange(6, device="cuda")
    tensors = operands(CHAIN, torch.bfloat16, "cuda", grad=True)

    def gradients() -> tuple[Tensor, ...]:
        return torch.autograd.grad(chain(numbers, *tensors), tensors)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        gradients()  # what is loaded at the first launch
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = gradients()
    with torch.no_grad():
        tensors[0].mul_(0.5)
    graph.replay()
    torch.testing.assert_close(captured, gradients(), rtol=2e-2, atol=2e-2)
