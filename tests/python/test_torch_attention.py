# SPDX-License-Identifier: BSD-3-Clause
"""torch.ops.optimized.flash_attention against PyTorch's: values, gradients, compilation."""

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

from gpunvme.ops import variants
from gpunvme.torch import flash_attention, flash_attention_fp8, flash_attention_varlen

from test_torch_operators import DTYPES, assert_no_worse, operands, with_gradients

op = torch.ops.optimized.flash_attention
has_gpu = torch.cuda.is_available() and any(
    v.available for v in variants("attention_backward", "cuda"))
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    not has_gpu, reason="PyTorch sees no GPU here, or attention has no gradients on it"))]


def masked(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None,
           left: int = -1, right: int = -1, softcap: float = 0.0) -> Tensor:
    """By PyTorch's own operators."""
    rows, keys = q.shape[1], k.shape[1]
    apart = torch.arange(keys) - torch.arange(rows)[:, None] - keys + rows
    seen = torch.ones(rows, keys, dtype=torch.bool)
    for limit, is_hidden in ((0 if causal else -1, apart), (right, apart), (left, -apart)):
        if limit >= 0:
            seen &= is_hidden <= limit
    seen = seen.to(q.device)
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    if not softcap:
        return functional.scaled_dot_product_attention(
            q, k, v, attn_mask=seen, scale=scale, enable_gqa=True).transpose(1, 2)
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = (softcap * torch.tanh(scores / softcap)).masked_fill(~seen, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2)


# Shapes of q, k and v, and what follows them.
CASES: dict[str, tuple[list[tuple[int, ...]], tuple[Any, ...]]] = {
    "all keys": ([(2, 9, 3, 16), (2, 9, 3, 16), (2, 9, 3, 16)], ()),
    "causal": ([(2, 9, 3, 16), (2, 9, 3, 16), (2, 9, 3, 16)], (True,)),
    "more keys, fewer heads": ([(1, 5, 4, 8), (1, 11, 2, 8), (1, 11, 2, 6)], (True,)),
    "one head of keys, a scale": ([(2, 4, 4, 8), (2, 4, 1, 8), (2, 4, 1, 8)], (False, 0.3)),
    "a window": ([(1, 12, 2, 8), (1, 12, 2, 8), (1, 12, 2, 8)], (False, None, 3, 2)),
    "a window, causal, softcap": ([(1, 12, 2, 8), (1, 12, 2, 8), (1, 12, 2, 8)],
                                  (True, None, 4, -1, 2.0)),
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


@cases
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_values_and_gradients_are_pytorchs(case: Any, dtype: torch.dtype, device: str) -> None:
    shapes, extra = case
    tensors = operands(shapes, dtype, device)
    exact = with_gradients(masked, [t.double() for t in tensors], extra)
    for a, b, c in zip(with_gradients(op, tensors, extra), with_gradients(masked, tensors, extra),
                       exact):
        assert_no_worse(a, b, c, dtype)


@cases
def test_gradients_are_those_of_finite_differences(case: Any) -> None:
    """gradcheck, with steps and bounds for float32: the operator does not take float64."""
    shapes, extra = case
    small = [(1, min(n, 4), heads, min(d, 4)) for _, n, heads, d in shapes]
    tensors = [t.detach().requires_grad_() for t in operands(small)]
    with pytest.warns(UserWarning, match="double precision"):
        assert torch.autograd.gradcheck(lambda *args: op(*args, *extra), tensors, eps=1e-2,
                                        atol=2e-2, rtol=2e-2)


@cases
def test_a_gradient_that_nobody_wants_is_left_out(case: Any) -> None:
    shapes, extra = case
    for i in range(3):
        tensors, same = operands(shapes), operands(shapes)
        tensors[i].requires_grad_()
        same[i].requires_grad_()
        op(*tensors, *extra).sum().backward()
        masked(*same, *extra).sum().backward()
        torch.testing.assert_close(tensors[i].grad, same[i].grad, rtol=1e-4, atol=1e-4)
        assert all(t.grad is None for j, t in enumerate(tensors) if j != i)


def test_the_function_has_names_for_its_options() -> None:
    q, k, v = operands([(1, 6, 2, 8)] * 3)
    found = flash_attention(q, k, v, causal=True, scale=0.5, window=(2, -1), softcap=3.0)
    assert torch.equal(found, op(q, k, v, True, 0.5, 2, -1, 3.0))
    assert torch.equal(found, op(q, k, v, softcap=3.0, causal=True, scale=0.5, window_left=2))


def test_any_layout_whose_channels_are_contiguous_is_read_as_it_lies() -> None:
    packed = torch.randn(2, 7, 3, 4, 8)
    q, k, v = packed.unbind(2)
    heads_first = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v)]
    across = [t.transpose(1, 3).contiguous().transpose(1, 3) for t in (q, k, v)]
    shared = [q, *(t[:1].expand(2, 7, 4, 8) for t in (k, v))]
    for tensors in ([q, k, v], heads_first, across, shared):
        torch.testing.assert_close(op(*tensors, True), masked(*tensors, True), rtol=1e-4, atol=1e-5)


def test_a_gradient_may_lie_in_any_way() -> None:
    found = []
    for f in (op, masked):
        q, k, v = operands([(2, 5, 3, 8)] * 3, grad=True)
        f(q, k, v).sum().backward()  # of steps 0
        f(q, k, v).permute(3, 1, 0, 2).contiguous().square().sum().backward()
        found.append([t.grad for t in (q, k, v)])
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)


def test_sequences_without_rows_have_empty_results() -> None:
    q, k = torch.randn(2, 0, 2, 8, requires_grad=True), torch.randn(2, 3, 2, 8, requires_grad=True)
    y = op(q, k, k)
    assert y.shape == (2, 0, 2, 8)
    y.sum().backward()
    assert not k.grad.any()
    assert not op(k, q, q).any()  # no key is seen


@pytest.mark.parametrize(("shapes", "text"), [
    ([(3, 4, 8)] * 3, r"q \(3, 4, 8\)"),
    ([(1, 3, 4, 8), (2, 3, 4, 8), (2, 3, 4, 8)], "it takes"),
    ([(1, 3, 4, 8), (1, 3, 3, 8), (1, 3, 3, 8)], "divide"),
    ([(1, 3, 4, 8), (1, 3, 4, 7), (1, 3, 4, 8)], "it takes"),
    ([(1, 3, 4, 8), (1, 3, 4, 8), (1, 5, 4, 8)], "it takes"),
    ([(1, 3, 4, 8), (1, 3, 0, 8), (1, 3, 0, 8)], "divide"),
])
def test_shapes_that_do_not_fit_are_value_errors(shapes: list[tuple[int, ...]], text: str) -> None:
    with pytest.raises(ValueError, match=f"optimized::flash_attention: .*{text}"):
        op(*operands(shapes))


def test_other_types_are_value_errors() -> None:
    q, k, v = operands([(1, 3, 2, 8)] * 3)
    for tensors in ((q.double(), k.double(), v.double()), (q, k, v.half())):
        with pytest.raises(ValueError, match="optimized::flash_attention: "):
            op(*tensors)
    with pytest.raises(ValueError, match="softcap"):
        op(q, k, v, softcap=-1.0)


def test_a_gradient_of_a_gradient_is_refused() -> None:
    q, k, v = operands([(1, 3, 2, 8)] * 3, grad=True)
    grad, = torch.autograd.grad(op(q, k, v).square().sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="no gradients of gradients"):
        grad.square().sum().backward()


@pytest.mark.parametrize("device", DEVICES)
def test_autocast_computes_in_its_type(device: str) -> None:
    q, k, v = operands([(1, 3, 2, 8)] * 3, device=device, grad=True)
    with torch.autocast(device, dtype=torch.bfloat16):
        found = op(q, k, v, True)
    assert found.dtype == torch.bfloat16
    found.float().sum().backward()
    assert q.grad.dtype == k.grad.dtype == v.grad.dtype == torch.float32


@cases
def test_opcheck_passes(case: Any) -> None:
    shapes, extra = case
    torch.library.opcheck(op.default, (*operands(shapes, grad=True), *extra))


def test_opcheck_passes_for_the_operators_behind_gradients() -> None:
    q, k, v = operands([(1, 3, 2, 8), (1, 5, 1, 8), (1, 5, 1, 4)])
    options = (True, None, -1, -1, 0.0)
    out, lse = torch.ops.optimized.flash_attention_lse(q, k, v, *options)
    torch.library.opcheck(torch.ops.optimized.flash_attention_lse.default, (q, k, v, *options))
    torch.library.opcheck(torch.ops.optimized.flash_attention_backward.default,
                          (out, q, k, v, out, lse, *options, True, False, True))


@cases
def test_a_whole_graph_is_compiled_with_its_gradients(case: Any) -> None:
    shapes, extra = case

    def f(*args: Any) -> Tensor:
        return op(*args).sin()

    torch._dynamo.reset()
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    for a, b in zip(with_gradients(compiled, operands(shapes), extra),
                    with_gradients(f, operands(shapes), extra)):
        torch.testing.assert_close(a, b)


def test_a_compiled_graph_serves_any_number_of_rows() -> None:
    torch._dynamo.reset()
    compiled: Callable[..., Tensor] = torch.compile(
        lambda q, k: flash_attention(q, k, k, causal=True) + 1, fullgraph=True, dynamic=True,
        backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for rows in (6, 7, 10):  # sizes that are alike at first would be taken for the same
            q, k = operands([(2, rows, 4, 8), (2, rows + 3, 2, 8)])
            torch.testing.assert_close(compiled(q, k), masked(q, k, k, True) + 1)


@pytest.mark.skipif(shutil.which("g++") is None, reason="PyTorch's compiler needs g++ on the CPU")
def test_pytorchs_own_compiler_makes_code_around_it() -> None:
    torch._dynamo.reset()

    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flash_attention(q.sin(), k, v, causal=True).flatten(2) * 2

    shapes = [(1, 5, 2, 8)] * 3
    for a, b in zip(with_gradients(torch.compile(f, fullgraph=True), operands(shapes), ()),
                    with_gradients(f, operands(shapes), ())):
        torch.testing.assert_close(a, b)


def test_inference_mode_and_no_grad_give_the_same() -> None:
    q, k, v = operands([(1, 3, 2, 8)] * 3, grad=True)
    with torch.inference_mode():
        inferred = op(q, k, v)
    with torch.no_grad():
        unrecorded = op(q, k, v)
    recorded = op(q, k, v)
    assert torch.equal(inferred, recorded) and torch.equal(unrecorded, recorded)
    assert recorded.requires_grad and not unrecorded.requires_grad


@pytest.mark.skipif(not has_gpu, reason="PyTorch sees no GPU here")
def test_attention_is_captured_into_a_cuda_graph() -> None:
    q, k, v = operands([(2, 64, 4, 64)] * 3, torch.bfloat16, "cuda")
    op(q, k, v, True)  # what is loaded at the first launch
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = op(q, k, v, True)
    q.copy_(torch.randn_like(q))
    graph.replay()
    torch.testing.assert_close(y, masked(q, k, v, True), rtol=2e-2, atol=2e-2)


VARLEN = torch.ops.optimized.flash_attention_varlen

# Lengths of sequences' queries and keys, heads of both, channels of q and v, options.
RAGGED: dict[str, tuple[list[int], list[int], tuple[int, ...], tuple[Any, ...]]] = {
    "one sequence": ([9], [9], (2, 2, 8, 8), ()),
    "causal": ([5, 1, 17, 3], [5, 1, 17, 3], (3, 3, 16, 16), (True,)),
    "more keys, fewer heads": ([5, 7, 1], [11, 7, 30], (4, 2, 8, 6), (True,)),
    "empty ones": ([0, 4, 0, 3, 2], [3, 4, 0, 0, 2], (2, 1, 8, 8), (False, 0.3)),
    "a window, softcap": ([12, 6], [12, 9], (2, 2, 8, 8), (False, None, 3, 2, 2.0)),
}
ragged = pytest.mark.parametrize("case", RAGGED.values(), ids=RAGGED.keys())


def shapes_of(case: Any, spare: int = 0) -> list[tuple[int, ...]]:
    q_lengths, k_lengths, (heads, kv_heads, dim, dim_v), _ = case
    rows, keys = sum(q_lengths) + spare, sum(k_lengths) + spare
    return [(rows, heads, dim), (keys, kv_heads, dim), (keys, kv_heads, dim_v)]


def offsets_of(lengths: list[int], device: str, first: int = 0) -> Tensor:
    sums = torch.tensor([first, *lengths]).cumsum(0, dtype=torch.int32)
    return sums.to(device)


def behind(case: Any, device: str = "cpu", first: int = 0) -> tuple[Any, ...]:
    """What follows q, k and v of a case."""
    q_lengths, k_lengths, _, options = case
    return (offsets_of(q_lengths, device, first), offsets_of(k_lengths, device, first),
            max(q_lengths), max(k_lengths), *options)


def one_by_one(q: Tensor, k: Tensor, v: Tensor, q_offsets: Tensor, k_offsets: Tensor, q_len: int,
               k_len: int, *options: Any) -> Tensor:
    """By PyTorch, sequence by sequence."""
    del q_len, k_len
    found = []
    for a, b, c, d in zip(q_offsets, q_offsets[1:], k_offsets, k_offsets[1:]):
        y = masked(q[None, a:b], k[None, c:d], v[None, c:d], *options)[0]
        found.append(y.nan_to_num() if c == d else y)  # no key is seen
    return torch.cat(found)


@ragged
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_values_and_gradients_of_ragged_sequences_are_pytorchs(case: Any, dtype: torch.dtype,
                                                               device: str) -> None:
    tensors, extra = operands(shapes_of(case), dtype, device), behind(case, device)
    exact = with_gradients(one_by_one, [t.double() for t in tensors], extra)
    for a, b, c in zip(with_gradients(VARLEN, tensors, extra),
                       with_gradients(one_by_one, tensors, extra), exact):
        assert_no_worse(a, b, c, dtype)


@ragged
@pytest.mark.parametrize("device", DEVICES)
def test_rows_of_no_sequence_are_not_read_and_get_zeros(case: Any, device: str) -> None:
    spare = operands(shapes_of(case, spare=3), device=device)
    inner = [t[1:-2].detach().clone().requires_grad_() for t in spare]
    for t in spare:
        t[0] = t[-2:] = torch.nan
        t.requires_grad_()
    out = VARLEN(*spare, *behind(case, device, first=1))
    want = VARLEN(*inner, *behind(case, device))
    assert torch.equal(out[1:-2], want) and not out[0].any() and not out[-2:].any()
    out.square().sum().backward()
    want.square().sum().backward()
    for t, same in zip(spare, inner):
        assert not t.grad[0].any() and not t.grad[-2:].any()
        # On a GPU a gradient may be added up in another order.
        torch.testing.assert_close(t.grad[1:-2], same.grad)


def test_a_gradient_of_ragged_sequences_that_nobody_wants_is_left_out() -> None:
    case = RAGGED["more keys, fewer heads"]
    for i in range(3):
        tensors, same = operands(shapes_of(case)), operands(shapes_of(case))
        tensors[i].requires_grad_()
        same[i].requires_grad_()
        VARLEN(*tensors, *behind(case)).sum().backward()
        one_by_one(*same, *behind(case)).sum().backward()
        torch.testing.assert_close(tensors[i].grad, same[i].grad, rtol=1e-4, atol=1e-4)
        assert all(t.grad is None for j, t in enumerate(tensors) if j != i)


def test_the_function_of_ragged_sequences_takes_offsets_of_64_bits() -> None:
    case = RAGGED["causal"]
    tensors, (q_offsets, k_offsets, *lengths, _) = operands(shapes_of(case)), behind(case)
    found = flash_attention_varlen(*tensors, q_offsets.long(), k_offsets.long(), *lengths,
                                   causal=True, scale=0.5, window=(2, -1), softcap=3.0)
    assert torch.equal(found, VARLEN(*tensors, q_offsets, k_offsets, *lengths, True, 0.5, 2, -1,
                                     3.0))


def test_ragged_sequences_that_do_not_fit_are_value_errors() -> None:
    q, k, v = operands([(6, 2, 8)] * 3)
    offsets = torch.tensor([0, 2, 6], dtype=torch.int32)
    for args, text in (
        ((q[None], k, v, offsets, offsets, 4, 4), "rows, heads, channels"),
        ((q, k[:, :, :4], v, offsets, offsets, 4, 4), "it takes"),
        ((q, k, v, offsets.long(), offsets, 4, 4), "int32"),
        ((q, k, v, offsets, offsets[:2], 4, 4), "one more than sequences"),
        ((q, k, v, offsets[None], offsets, 4, 4), "one more than sequences"),
        ((q, k, v, offsets, offsets, -1, 4), "lengths"),
        ((q, k, v, offsets, offsets, 3, 4), "q_len is 3"),
        ((q, k, v, offsets.flip(0), offsets, 6, 6), "q_offsets"),
        ((q, k, v, offsets, offsets * 2, 8, 8), "k_offsets"),
    ):
        with pytest.raises(ValueError, match=text):
            VARLEN(*args)


def test_autocast_computes_ragged_sequences_in_its_type() -> None:
    case = RAGGED["causal"]
    tensors = operands(shapes_of(case), grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = VARLEN(*tensors, *behind(case))
    assert found.dtype == torch.bfloat16
    found.float().sum().backward()
    assert all(t.grad.dtype == torch.float32 for t in tensors)


@ragged
def test_opcheck_passes_for_ragged_sequences(case: Any) -> None:
    torch.library.opcheck(VARLEN.default, (*operands(shapes_of(case), grad=True), *behind(case)))


def test_opcheck_passes_for_the_operators_behind_gradients_of_ragged_sequences() -> None:
    case = RAGGED["more keys, fewer heads"]
    tensors, (q_offsets, k_offsets, *lengths, _) = operands(shapes_of(case)), behind(case)
    args = (*tensors, q_offsets, k_offsets)
    options = (*lengths, True, None, -1, -1, 0.0)
    out, lse = torch.ops.optimized.flash_attention_varlen_lse(*args, *options)
    torch.library.opcheck(torch.ops.optimized.flash_attention_varlen_lse.default,
                          (*args, *options))
    torch.library.opcheck(torch.ops.optimized.flash_attention_varlen_backward.default,
                          (out, *args, out, lse, *options, True, False, True))


def test_a_graph_of_ragged_sequences_is_compiled_with_its_gradients() -> None:
    case = RAGGED["more keys, fewer heads"]

    def f(*args: Any) -> Tensor:
        return VARLEN(*args).sin()

    torch._dynamo.reset()
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    for a, b in zip(with_gradients(compiled, operands(shapes_of(case)), behind(case)),
                    with_gradients(f, operands(shapes_of(case)), behind(case))):
        torch.testing.assert_close(a, b)


FP8 = torch.ops.optimized.flash_attention_fp8


def float8(device: str = "cpu") -> tuple[list[Tensor], list[Tensor]]:
    generator = torch.Generator().manual_seed(5)
    tensors = [torch.randn(2, rows, heads, 128, generator=generator).to(torch.float8_e4m3fn)
               for rows, heads in ((21, 4), (130, 2), (130, 2))]
    factors = [torch.rand(2, 2, generator=generator) + 0.5 for _ in range(3)]
    return [t.to(device) for t in tensors], [f.to(device) for f in factors]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("device", DEVICES)
def test_float8_is_multiplied_by_its_descales(causal: bool, device: str) -> None:
    tensors, factors = float8(device)
    got = flash_attention_fp8(*tensors, q_descale=factors[0], k_descale=factors[1],
                              v_descale=factors[2], causal=causal)
    wide = [t.double() * f.double().repeat_interleave(t.shape[2] // 2, 1)[:, None, :, None]
            for t, f in zip(tensors, factors)]
    want = masked(*wide, causal)
    assert got.dtype == torch.bfloat16
    # On a GPU weights are float8, too, which is off by 2^-4 at most.
    share = 2 ** -4 if device == "cuda" else 2 ** -8
    sizes = masked(wide[0], wide[1], wide[2].abs(), causal)
    assert ((got.double() - want).abs() <= share * sizes + 2 ** -8 * want.abs()).all()


def test_float8_without_descales_is_as_it_is() -> None:
    tensors, _ = float8()
    ones = torch.ones(2, 2)
    assert torch.equal(flash_attention_fp8(*tensors), FP8(*tensors, ones, ones, ones))


def test_float8_passes_opcheck() -> None:
    tensors, factors = float8()
    # Not test_schema, which multiplies operands by numbers: PyTorch has no such product of float8.
    torch.library.opcheck(FP8.default, (*tensors, *factors, True), test_utils=(
        "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static"))


def test_float8_that_does_not_fit_is_refused() -> None:
    (q, k, v), (f, _, _) = float8()
    for use in (
        lambda: flash_attention_fp8(q.float(), k, v),
        lambda: flash_attention_fp8(q, k, v, q_descale=f[0]),
        lambda: flash_attention_fp8(q, k, v, k_descale=f.half()),
        lambda: flash_attention_fp8(q, k[:, :, :, :64], v),
        lambda: flash_attention(q, k, v),
    ):
        with pytest.raises(ValueError):
            use()
