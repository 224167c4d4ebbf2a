# SPDX-License-Identifier: BSD-3-Clause
"""Tensors of torch as memory; no operator of gpunvme.torch is needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpunvme
from gpunvme import checkpoint, ops

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


class Subclass(torch.Tensor):
    """A tensor that has no short way to its memory."""


def shrunk(t: Any, nbytes: int) -> Any:
    t.untyped_storage().resize_(nbytes)
    return t


@pytest.mark.parametrize("make", [
    lambda: shrunk(torch.zeros(4096), 0), lambda: shrunk(torch.zeros(4096), 4 * 4095),
    lambda: shrunk(torch.zeros(8192)[4096:], 4 * 8191),
    lambda: shrunk(torch.zeros(4096).as_subclass(Subclass), 0),
    lambda: shrunk(torch.zeros(4096).view(torch.bfloat16), 100),
], ids=["emptied", "by one", "a view", "a subclass", "of bfloat16"])
def test_a_tensor_beyond_its_storage_is_no_buffer(store: gpunvme.Store,
                                                  make: Callable[[], Any]) -> None:
    t = make()
    uses: list[Callable[[Any], object]] = [
        store.pread, store.pwrite, store.pread_async, gpunvme.register,
        lambda t: store.readv([bytearray(4), t]), lambda t: gpunvme.Batch(store, t, [0], 4),
    ]
    for use in uses:
        with pytest.raises(gpunvme.ArgumentError, match="of its storage, which has"):
            use(t)


def test_a_tensor_that_ends_with_its_storage_is_read_into(store: gpunvme.Store,
                                                          data: bytes) -> None:
    t = shrunk(torch.zeros(8192, dtype=torch.uint8)[4096:6000], 6000)
    assert store.pread(t) == 1904
    assert bytes(t.numpy()) == data[:1904]


def test_operators_refuse_a_tensor_beyond_its_storage() -> None:
    a = shrunk(torch.zeros(4, 4).t(), 60)
    with pytest.raises(gpunvme.ArgumentError, match="ends at byte 64 of its storage"):
        ops.matmul(a, a)


def test_a_checkpoint_refuses_a_tensor_beyond_its_storage(tmp_path: Path) -> None:
    checkpoint.save({"w": torch.zeros(100)}, tmp_path / "run")
    t = shrunk(torch.zeros(100), 0)
    with pytest.raises(gpunvme.ArgumentError, match="of its storage"):
        checkpoint.save({"w": t}, tmp_path / "other")
    with pytest.raises(gpunvme.ArgumentError, match="of its storage"):
        checkpoint.load(tmp_path / "run", into={"w": t})


@pytest.mark.usefixtures("parser")
def test_weights_refuse_a_tensor_beyond_its_storage(tmp_path: Path) -> None:
    weights = pytest.importorskip("gpunvme.weights.torch")
    file = tmp_path / "w.safetensors"
    model = torch.nn.Linear(10, 10)
    weights.save_file(dict(model.state_dict()), file)
    shrunk(model.weight.detach(), 100)
    with pytest.raises(ValueError, match="of its storage"):
        weights.save_file({"w": model.weight}, file)
    with pytest.raises(ValueError, match="of its storage"):
        weights.load_model(model, file)


def test_numpy_s_view_of_a_tensor_keeps_its_storage() -> None:
    """Why arrays of numpy need no such check: torch itself refuses."""
    t = torch.zeros(100)
    array: np.ndarray[Any, Any] = t.numpy()
    with pytest.raises(RuntimeError, match="not resizable"):
        shrunk(t, 0)
    assert array.sum() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_operators_make_tensors_of_tensors(dtype: Any) -> None:
    generator = torch.Generator().manual_seed(17)
    a, b = (torch.randn(6, 6, generator=generator).to(dtype) for _ in range(2))
    q = torch.randn(1, 3, 2, 8, generator=generator).to(dtype)
    lse = torch.empty(1, 3, 2)
    found = ops.attention(q, q, q, causal=True, lse=lse)
    want = torch.nn.functional.scaled_dot_product_attention(
        *[q.transpose(1, 2)] * 3, is_causal=True).transpose(1, 2)
    made = [(ops.matmul(a, b), a @ b), (ops.linear(a, b), torch.nn.functional.linear(a, b)),
            (found, want)]
    for got, expected in made:
        assert type(got) is torch.Tensor and got.dtype == dtype
        torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)
    gradients = (*ops.linear_backward(a, a, b), *ops.attention_backward(q, q, q, q, found, lse))
    assert [type(t) for t in gradients] == [torch.Tensor] * 6
    assert {t.dtype for t in gradients} == {dtype}
    assert type(ops.matmul(torch.nn.Parameter(a, requires_grad=False), b)) is torch.Tensor


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("scaling", ["tensor", "row", "block"])
def test_float8_is_multiplied_with_scales(dtype: Any, scaling: Any) -> None:
    generator = torch.Generator().manual_seed(18)
    m, n, k = 5, 140, 200
    a, b = (torch.randn(lines, k, generator=generator).to(dtype) for lines in (m, n))
    shapes = {"tensor": ((), ()), "row": ((m, 1), (n,)), "block": ((m, 2), (2, 2))}[scaling]
    scale_a, scale_b = (torch.rand(shape, generator=generator) + 0.5 for shape in shapes)
    wide_a, wide_b = a.float(), b.float()
    if scaling == "block":
        wide_a = wide_a * scale_a.repeat_interleave(128, 1)[:, :k]
        wide_b = wide_b * scale_b.repeat_interleave(128, 0).repeat_interleave(128, 1)[:n, :k]
    else:
        wide_a, wide_b = wide_a * scale_a, wide_b * scale_b.reshape(-1, 1)
    got = ops.matmul(a, b.t(), scale_a=scale_a, scale_b=scale_b, scaling=scaling)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, wide_a @ wide_b.t(), rtol=1e-4, atol=1e-4)
    out = torch.empty(m, n, dtype=torch.bfloat16)
    ops.matmul(a, b.t(), scale_a=scale_a, scale_b=scale_b, scaling=scaling, out=out)
    torch.testing.assert_close(out, got.to(torch.bfloat16))


def test_float8_of_both_types_is_multiplied() -> None:
    generator = torch.Generator().manual_seed(20)
    a = torch.randn(9, 70, generator=generator).to(torch.float8_e5m2)
    b = torch.randn(33, 70, generator=generator).to(torch.float8_e4m3fn)
    want = a.float() @ b.float().t()
    torch.testing.assert_close(ops.matmul(a, b.t()), want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ops.matmul(b, a.t()), want.t(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 2), (2,), None], ids=str)
def test_attention_of_float8_multiplies_by_descales(shape: Any) -> None:
    generator = torch.Generator().manual_seed(19)
    q, k, v = (torch.randn(2, rows, heads, 16, generator=generator).to(torch.float8_e4m3fn)
               for rows, heads in ((5, 4), (9, 2), (9, 2)))
    factors: list[Any] = [None if shape is None else torch.rand(shape, generator=generator) + 0.5
                          for _ in range(3)]
    out = ops.attention(q, k, v, causal=True, q_descale=factors[0], k_descale=factors[1],
                        v_descale=factors[2])
    assert out.dtype == torch.float32
    ones = torch.ones(2, 2)
    wide_q, wide_k, wide_v = (
        t.float() * (ones if f is None else f * ones).repeat_interleave(n, 1)[:, None, :, None]
        for t, f, n in zip((q, k, v), factors, (2, 1, 1)))
    want = ops.attention(wide_q, wide_k, wide_v, causal=True)
    torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-5)
    half = torch.empty(2, 5, 4, 16, dtype=torch.bfloat16)
    ops.attention(q, k, v, causal=True, q_descale=factors[0], k_descale=factors[1],
                  v_descale=factors[2], out=half)
    torch.testing.assert_close(half, out.to(torch.bfloat16))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(2, 2), (2,), None], ids=str)
def test_a_cache_of_float8_has_descales(shape: Any, dtype: Any) -> None:
    generator = torch.Generator().manual_seed(22)
    q, k, v = (torch.randn(2, rows, heads, 16, generator=generator).to(dtype)
               for rows, heads in ((3, 4), (9, 2), (9, 2)))
    factors: dict[str, Any] = {} if shape is None else {
        name: torch.rand(shape, generator=generator) + 0.5 for name in ("k_descale", "v_descale")}
    caches = [torch.zeros(6, 4, 2, 16, dtype=torch.float8_e4m3fn) for _ in range(2)]
    table = torch.tensor([[5, 0, 2], [1, 4, 3]], dtype=torch.int32)
    lengths = torch.tensor([9, 9], dtype=torch.int32)
    ops.kv_append(k, v, *caches, table, lengths, **factors)
    wide = []
    for cache, x, f in zip(caches, (k, v), factors.values() or (torch.ones(2), torch.ones(2))):
        f = (f * torch.ones(2, 2))[:, None, :, None]
        rows = cache[table.long()].reshape(2, 12, 2, 16)[:, :9]
        assert torch.equal(rows.float(), (x.float() / f).to(torch.float8_e4m3fn).float())
        wide.append(rows.float() * f)
    out = ops.attention_paged(q, *caches, table, lengths, causal=True, **factors)
    assert out.dtype == dtype
    want = ops.attention(q.float(), *wide, causal=True).to(dtype)
    torch.testing.assert_close(out, want)


def test_descales_that_do_not_fit_are_refused() -> None:
    q = torch.zeros(2, 3, 4, 16).to(torch.float8_e4m3fn)
    pages, lengths = torch.tensor([[0], [1]], dtype=torch.int32), torch.tensor([3, 3]).int()
    for use in (
        lambda: ops.attention(q, q, q, q_descale=torch.ones(2)),
        lambda: ops.attention(q, q, q, k_descale=torch.ones(4, dtype=torch.float16)),
        lambda: ops.attention(q, q, q, q_descale=torch.ones(4), k_descale=torch.ones(2, 4)),
        lambda: ops.attention(q.float(), q.float(), q.float(), v_descale=torch.ones(4)),
        lambda: ops.attention(q, q.float(), q),
        lambda: ops.attention(*[torch.zeros(2, 3, 4, 16).to(torch.float8_e5m2)] * 3),
        lambda: ops.attention_paged(q.float(), q, q, pages, lengths, k_descale=torch.ones(2)),
        lambda: ops.attention_paged(q.float(), q, q.float(), pages, lengths),
        lambda: ops.attention_paged(q, q, q, pages, lengths),
        lambda: ops.attention_paged(q.float(), *[q.to(torch.float8_e5m2)] * 2, pages, lengths),
        lambda: ops.attention_paged(*[q.float()] * 3, pages, lengths, v_descale=torch.ones(4)),
        lambda: ops.kv_append(q.float(), q.float(), q, q.float(), pages, lengths),
        lambda: ops.kv_append(q.float(), q.float(), q, q, pages, lengths, v_descale=torch.ones(3)),
    ):
        with pytest.raises(ops.OpsError):
            use()


def test_scales_that_do_not_fit_are_refused() -> None:
    a = torch.zeros(4, 256).to(torch.float8_e4m3fn)
    for use in (
        lambda: ops.matmul(a, a.t(), scale_a=torch.ones(4)),
        lambda: ops.matmul(a, a.t(), scale_a=torch.ones(4, 1), scaling="block"),
        lambda: ops.matmul(a, a.t(), scale_a=torch.ones(1, dtype=torch.float16)),
        lambda: ops.matmul(a, a.t(), scaling="column"),  # type: ignore[arg-type]
        lambda: ops.matmul(a, a.t(), scaling="block", fast_sums=True),
        lambda: ops.matmul(a, torch.zeros(256, 4), scale_a=torch.ones(1)),
        lambda: ops.matmul(a.float(), a.float().t(), scale_a=torch.ones(1)),
        lambda: ops.linear(a, a),
    ):
        with pytest.raises(ops.OpsError) as raised:
            use()
        assert raised.value.detail


def test_types_that_differ_are_named() -> None:
    a = torch.zeros(4, 256).to(torch.float8_e4m3fn)
    with pytest.raises(ops.OpsError, match="a float8_e4m3fn, b float32"):
        ops.matmul(a, torch.zeros(256, 4))


def test_lengths_and_tables_may_be_tensors() -> None:
    q, cache = torch.ones(1, 1, 1, 4), torch.zeros(2, 4, 1, 4)
    table, lengths = torch.tensor([[1]], dtype=torch.int32), torch.tensor([3], dtype=torch.int32)
    ops.kv_append(torch.ones(1, 3, 1, 4), None, cache, None, table, lengths)
    assert torch.equal(ops.attention_paged(q, cache, cache, table, lengths), q)
