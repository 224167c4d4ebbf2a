# SPDX-License-Identifier: BSD-3-Clause
"""Operators against numpy in float64."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpunvme
from gpunvme import _lib, ops
from gpunvme.ops import _call

from test_buffers import CudaArray, DLPackOnly

quick = settings(max_examples=40, deadline=None)
AVAILABLE = [v.name for v in ops.variants() if v.available]


def normal(seed: int, *shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def close(got: Any, want: np.ndarray[Any, Any], terms: int) -> bool:
    """Whether each element is what ``terms`` products of normal numbers may lose by rounding."""
    eps = np.finfo(got.dtype).eps
    error = np.abs(np.asarray(got, np.float64) - want)
    return bool((error <= eps * (np.abs(want) + 2 * terms + 1)).all())


def wide(*arrays: Any) -> list[np.ndarray[Any, Any]]:
    return [np.asarray(a, np.float64) for a in arrays]


@quick
@given(m=st.integers(0, 40), n=st.integers(0, 40), k=st.integers(0, 40),
       dtype=st.sampled_from([np.float32, np.float16]), flip=st.integers(0, 7))
def test_matmul_is_numpy_s(m: int, n: int, k: int, dtype: Any, flip: int) -> None:
    a = normal(1, k, m, dtype=dtype).T if flip & 1 else normal(1, m, k, dtype=dtype)
    b = normal(2, n, k, dtype=dtype).T if flip & 2 else normal(2, k, n, dtype=dtype)
    out = np.full((n, m), 7, dtype).T if flip & 4 else None
    got = ops.matmul(a, b, out=out)
    assert out is None or got is out
    wa, wb = wide(a, b)
    assert got.dtype == dtype and close(got, wa @ wb, k)


@pytest.mark.parametrize("variant", AVAILABLE)
def test_each_variant_multiplies(variant: str) -> None:
    a, b = normal(1, 70, 90), normal(2, 90, 50)
    wa, wb = wide(a, b)
    assert close(ops.matmul(a, b, variant=variant, threads=2, deterministic=True), wa @ wb, 90)


def test_alpha_beta_and_float32_results() -> None:
    a, b = normal(1, 9, 8, dtype=np.float16), normal(2, 8, 7, dtype=np.float16)
    out = normal(3, 9, 7)
    wa, wb, before = wide(a, b, out)
    ops.matmul(a, b, out=out, alpha=0.5, beta=2.0)
    assert close(out, 0.5 * wa @ wb + 2 * before, 8)


@pytest.mark.parametrize(("first", "second"), [((5,), (5,)), ((5,), ()), ((), (5,)), ((5,), (1,))])
def test_batches_are_multiplied(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    a, b = normal(1, *first, 6, 7), normal(2, *second, 7, 8)
    wa, wb = wide(a, b)
    assert close(ops.matmul(a, b), wa @ wb, 7)


def test_heads_interleaved_in_rows_are_a_batch() -> None:
    qkv = normal(1, 10, 4, 16)  # rows, heads, width
    heads = qkv.transpose(1, 0, 2)
    (want,) = wide(heads)
    assert close(ops.matmul(heads, heads.transpose(0, 2, 1)), want @ want.transpose(0, 2, 1), 16)


def test_arrays_of_other_libraries_are_multiplied() -> None:
    a, b = normal(1, 5, 6), normal(2, 6, 7)
    assert (ops.matmul(DLPackOnly(a), DLPackOnly(b)) == ops.matmul(a, b)).all()


def test_bfloat16_is_known_by_dlpack_and_numpy() -> None:
    halves = (normal(1, 4, 4).view(np.uint32) >> 16).astype(np.uint16)
    a = halves.view("V2")
    want = (halves.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    out = np.zeros((4, 4), np.float32)
    ops.matmul(a, a, out=out)
    assert close(out, want @ want, 4)
    with pytest.raises(ValueError, match="bfloat16"):
        ops.matmul(_NoNumpy(a), _NoNumpy(a))


class _NoNumpy:
    """An array by its interface alone."""

    def __init__(self, owner: np.ndarray[Any, Any]) -> None:
        self.__array_interface__ = owner.__array_interface__
        self.owner = owner


ACTIVATIONS: dict[Any, Any] = {
    None: lambda z: z,
    "relu": lambda z: np.maximum(z, 0),
    "silu": lambda z: z / (1 + np.exp(-z)),
    "gelu_tanh": lambda z: z / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3))),
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("lead", [(7,), (2, 3), ()])
def test_linear_is_a_product_a_bias_and_an_activation(activation: Any,
                                                      lead: tuple[int, ...]) -> None:
    x, weight, bias = normal(1, *lead, 20), normal(2, 9, 20), normal(3, 9)
    preact = np.empty((*lead, 9), np.float32)
    y = ops.linear(x, weight, bias, activation=activation, preact=preact)
    wx, ww, wb = wide(x, weight, bias)
    z = wx @ ww.T + wb
    assert close(preact, z, 20) and close(y, ACTIVATIONS[activation](z), 40)
    assert close(ops.linear(x, weight), wx @ ww.T, 20)


def attention_in_f64(q: Any, k: Any, v: Any, causal: bool, sinks: Any = None) -> Any:
    """By einsum: (out, lse) of (sequences, rows, heads, channels)."""
    q, k, v = wide(q, k, v)
    group = q.shape[2] // k.shape[2]
    k, v = (np.repeat(x, group, axis=2) for x in (k, v))
    scores = np.einsum("bihc,bjhc->bhij", q, k) / np.sqrt(q.shape[3])
    if causal:
        rows, keys = scores.shape[2:]
        hidden = np.arange(keys) > np.arange(rows)[:, None] + keys - rows
        scores = np.where(hidden, -np.inf, scores)
    sums = np.exp(scores).sum(-1)
    if sinks is not None:
        sums = sums + np.exp(np.asarray(sinks, np.float64))[:, None]
    weights = np.exp(scores) / sums[..., None]
    return np.einsum("bhij,bjhc->bihc", weights, v), np.log(sums).transpose(0, 2, 1)


@pytest.mark.parametrize("variant", [v.name for v in ops.variants("attention") if v.available])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_attention_is_its_formula(variant: str, dtype: Any) -> None:
    q, k = normal(1, 2, 9, 4, 16, dtype=dtype), normal(2, 2, 2, 11, 16, dtype=dtype)
    v, sinks = normal(3, 2, 11, 2, 8, dtype=dtype), normal(4, 4)
    k = k.transpose(0, 2, 1, 3)  # heads before rows, in memory
    lse = np.empty((2, 9, 4), np.float32)
    got = ops.attention(q, k, v, causal=True, sinks=sinks, lse=lse, variant=variant)
    want, sums = attention_in_f64(q, k, v, True, sinks)
    assert got.dtype == dtype and close(got, want, 32) and close(lse, sums, 32)


def test_attention_has_lengths_and_a_window() -> None:
    q, k, v = normal(1, 2, 6, 2, 8), normal(2, 2, 7, 2, 8), normal(3, 2, 7, 2, 8)
    out = np.full((2, 6, 2, 8), 7, np.float32)
    lengths = np.array([4, 6], np.int32), np.array([7, 5], np.int32)
    ops.attention(q, k, v, q_lengths=lengths[0], k_lengths=lengths[1], out=out)
    for b, (rows, keys) in enumerate(zip(*lengths)):
        want, _ = attention_in_f64(q[b:b + 1, :rows], k[b:b + 1, :keys], v[b:b + 1, :keys], False)
        assert close(out[b:b + 1, :rows], want, 16) and (out[b, rows:] == 7).all()
    q, k, v = q[:, :6], k[:, :6], v[:, :6]
    assert (ops.attention(q, k, v, window=(0, 0)) == v).all()
    assert (ops.attention(q, k, v, window=(None, None)) == ops.attention(q, k, v)).all()


def offsets_of(*lengths: int) -> Any:
    return np.cumsum([0, *lengths]).astype(np.int32)


@pytest.mark.parametrize("limits", [{}, {"q_len": 4, "k_len": 7}])
def test_sequences_may_lie_behind_each_other(limits: dict[str, int]) -> None:
    q, k, v = normal(1, 6, 2, 8), normal(2, 12, 2, 8), normal(3, 12, 2, 8)
    rows, keys, lse = offsets_of(2, 0, 4), offsets_of(5, 0, 7), np.empty((6, 2), np.float32)
    options: dict[str, Any] = {"causal": True, "q_offsets": rows, "k_offsets": keys, **limits}
    out = ops.attention(q, k, v, lse=lse, **options)
    grads = ops.attention_backward(normal(4, 6, 2, 8), q, k, v, out, lse, **options)
    assert [x.shape for x in (out, *grads)] == [q.shape, q.shape, k.shape, v.shape]
    for b in range(3):
        i, j = slice(*rows[b:b + 2]), slice(*keys[b:b + 2])
        one, sums = q[None, i], np.empty((1, i.stop - i.start, 2), np.float32)
        want = ops.attention(one, k[None, j], v[None, j], causal=True, lse=sums)
        apart = ops.attention_backward(normal(4, 6, 2, 8)[None, i], one, k[None, j], v[None, j],
                                       want, sums, causal=True)
        assert (out[i] == want[0]).all() and (lse[i] == sums[0]).all()
        for found, alone, part in zip(grads, apart, (i, j, j)):
            assert (found[part] == alone[0]).all()


def test_queries_alone_may_lie_behind_each_other() -> None:
    q, k = normal(1, 6, 2, 8), normal(2, 2, 5, 2, 8)
    out = ops.attention(q, k, k, q_offsets=offsets_of(2, 4), k_lengths=np.array([3, 5], np.int32))
    for b, (i, keys) in enumerate(((slice(0, 2), 3), (slice(2, 6), 5))):
        assert (out[i] == ops.attention(q[None, i], k[b:b + 1, :keys], k[b:b + 1, :keys])[0]).all()


def test_attention_backward_is_the_gradient() -> None:
    q, k, v = normal(1, 1, 4, 2, 4), normal(2, 1, 5, 1, 4), normal(3, 1, 5, 1, 3)
    sinks, grad = normal(4, 2), normal(5, 1, 4, 2, 3)
    lse, of_sinks = np.empty((1, 4, 2), np.float32), np.empty(2, np.float32)
    out = ops.attention(q, k, v, causal=True, sinks=sinks, lse=lse)
    grads = ops.attention_backward(grad, q, k, v, out, lse, causal=True, sinks=sinks,
                                   grad_sinks=of_sinks)
    arrays = wide(q, k, v, sinks)
    for at, found in enumerate((*grads, of_sinks)):
        for index in np.ndindex(found.shape):
            ends = []
            for step in (1e-4, -1e-4):
                moved = [a.copy() for a in arrays]
                moved[at][index] += step
                ends.append((attention_in_f64(*moved[:3], True, moved[3])[0] * grad).sum())
            assert abs((ends[0] - ends[1]) / 2e-4 - found[index]) <= 1e-5


def test_attention_refuses_what_does_not_fit() -> None:
    q, k = normal(1, 2, 3, 4, 8), normal(2, 2, 5, 2, 8)
    for wrong in (
        lambda: ops.attention(q, k, k[:1]), lambda: ops.attention(q[0], k, k),
        lambda: ops.attention(q, k[..., ::2], k), lambda: ops.attention(q, k[:, :, :, :4], k),
        lambda: ops.attention(q, k, k, k_lengths=np.array([1, 2])),
        lambda: ops.attention(q, k, k, sinks=np.zeros(2, np.float32)),
        lambda: ops.attention(q, k, k, out=np.empty((2, 3, 4, 7), np.float32)),
        lambda: ops.attention(q, k, k, window=(-1, 0)),
        lambda: ops.attention(q, normal(2, 2, 5, 3, 8), normal(3, 2, 5, 3, 8)),
        lambda: ops.attention(q, k, k, lse=np.empty((2, 3, 4))),
        lambda: ops.attention(q, k, k, q_offsets=offsets_of(1, 2)),
        lambda: ops.attention(q[0], k, k, q_offsets=offsets_of(3)),
        lambda: ops.attention(q[0], k, k, q_offsets=offsets_of(1, 2).astype(np.int64)),
        lambda: ops.attention(q[0], k, k, q_offsets=offsets_of(1, 3)),
        lambda: ops.attention(q, k[0], k[0], k_offsets=offsets_of(5)),
        lambda: ops.attention(q, k, k, q_len=3),
        lambda: ops.attention(q[0], k, k, q_offsets=offsets_of(1, 2),
                              out=np.empty(q.shape, np.float32)),
    ):
        with pytest.raises(gpunvme.OpsError):
            wrong()


def test_linear_backward_is_the_gradient() -> None:
    x, weight, grad = normal(1, 6, 20), normal(2, 9, 20), normal(3, 6, 9)
    preact = ops.linear(x, weight)
    gx, gw, gb = ops.linear_backward(grad, x, weight, preact, activation="relu")
    wx, ww, wg, wz = wide(x, weight, grad, preact)
    dz = wg * (wz > 0)
    assert close(gx, dz @ ww, 9) and close(gw, dz.T @ wx, 6) and close(gb, dz.sum(0), 6)
    only = ops.linear_backward(grad, None, weight, grad_weight=False, grad_bias=False)
    assert close(only[0], wg @ ww, 9) and only[1:] == (None, None)
    gw[:], gb[:] = 1, 2
    again = ops.linear_backward(grad, x, grad_x=False, grad_weight=gw, grad_bias=gb,
                                accumulate=True)
    assert again[0] is None and again[1] is gw
    assert close(gw, 1 + wg.T @ wx, 6) and close(gb, 2 + wg.sum(0), 6)


def test_what_does_not_fit_is_refused() -> None:
    a, b = normal(1, 4, 5), normal(2, 5, 6)
    frozen = np.zeros((4, 6), np.float32)
    frozen.flags.writeable = False
    cuda: Any = CudaArray(shape=(5, 6))
    for use in (
        lambda: ops.matmul(a, a), lambda: ops.matmul(a, b.astype(np.float16)),
        lambda: ops.matmul(a, b.astype(np.float64)), lambda: ops.matmul(a, b[::2, ::2]),
        lambda: ops.matmul(a[0], b), lambda: ops.matmul("a", b), lambda: ops.matmul(a, b, out=a),
        lambda: ops.matmul(a, b, beta=1.0), lambda: ops.matmul(a, b, variant="fastest"),
        lambda: ops.matmul(a, b, out=frozen),
        lambda: ops.matmul(a, b, compute="f8"),  # type: ignore[arg-type]
        lambda: ops.matmul(np.stack([a] * 3), np.stack([b] * 2)),
        lambda: ops.matmul(a, a.T, out=a.T[:4, :4]),
        lambda: ops.linear(a, b),
        lambda: ops.linear(a, b.T, activation="tanh"),  # type: ignore[arg-type]
        lambda: ops.linear(a, a, normal(1, 5)), lambda: ops.linear_backward(a),
        lambda: ops.linear_backward(a, a, b, accumulate=True),
        lambda: ops.variants("convolution"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ops.OpsError) as raised:
            use()
        assert raised.value.detail
    with pytest.raises(gpunvme.OpsError, match="on the host and on a GPU"):
        ops.matmul(a, cuda)


def test_what_there_is_is_told() -> None:
    ladder = ops.variants()
    assert ladder[0].name == "naive" and ladder[0].available and "f32" in ladder[0].dtypes
    assert [v.name for v in ops.variants("linear_backward")][0] == "naive"
    assert ops.capability().units > 0
    assert ops.matmul_variant(64, 64, 64) in AVAILABLE
    metrics = ops.matmul_metrics(64, 32, 16)
    assert metrics.flops == 2 * 64 * 32 * 16
    assert metrics.ideal_nbytes == 4 * (64 * 16 + 16 * 32 + 64 * 32)
    took = ops.timing(lambda: None, flops=1e9, rounds=3)
    assert took.best <= took.median and took.gflops > 0


def test_each_gpu_has_a_workspace_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default stream has the same handle on all GPUs. There is none here: imitated."""

    class Memory:
        def __init__(self, shape: tuple[int]) -> None:
            (self.nbytes,) = shape
            made.append(gpu)
            self.ptr = 4096 * len(made)

    made: list[int] = []
    monkeypatch.setattr(_call, "DeviceMemory", Memory)
    monkeypatch.setattr(_call, "_current", lambda: gpu, raising=False)
    call = object.__new__(_call.Call)
    call.exec = _lib.OpsExec(device=_lib.OPS_CUDA)
    found = []
    for gpu in (0, 1, 0):
        found.append(call._workspace(100))
    assert made == [0, 1] and found[0] == found[2] != found[1]
    vars(_call._scratch).clear()


def test_the_library_has_the_short_names_of_operators() -> None:
    multiply = _lib.ops().optimized_matmul
    multiply.argtypes = [*[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 3, ctypes.c_int,
                         ctypes.c_void_p]
    a, b, c = normal(1, 5, 7), normal(2, 7, 3), normal(3, 5, 3)
    assert multiply(a.ctypes.data, b.ctypes.data, c.ctypes.data, 5, 3, 7, _lib.OPS_F32, None) == 0
    assert close(c, np.matmul(*wide(a, b)), 7)
