# SPDX-License-Identifier: BSD-3-Clause
"""Attention over a cache in pages, appending to one, and rotary positions, against numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gpunvme
from gpunvme import ops

from test_ops import attention_in_f64, close, normal, offsets_of, wide

ROWS = 4  # of a page
TABLE = np.array([[5, 1, 7], [0, 6, 99]], np.int32)  # 99: behind the second's length
LENGTHS = np.array([11, 6], np.int32)


def rotated(x: Any, rope: ops.Rope, first: int) -> Any:
    """Rows of (sequences, rows, heads, channels) at positions from ``first`` on."""
    found = np.array(x, np.float64)
    half = rope.dim // 2
    for row in range(found.shape[1]):
        for pair in range(half):
            a = rope.first + (2 * pair if rope.interleaved else pair)
            b = rope.first + (2 * pair + 1 if rope.interleaved else pair + half)
            angle = (first + row) * rope.base ** (-2 * pair / rope.dim)
            c, s = np.cos(angle), np.sin(angle)
            left, right = found[:, row, :, a].copy(), found[:, row, :, b].copy()
            found[:, row, :, a], found[:, row, :, b] = left * c - right * s, left * s + right * c
    return found


def pages(seed: int, heads: int, channels: int, dtype: Any = np.float32) -> Any:
    """With NaN in pages that no sequence has, and in rows behind the lengths."""
    made = normal(seed, 8, ROWS, heads, channels, dtype=dtype)
    made[[2, 3, 4]] = np.nan
    made[7, 3:] = made[6, 2:] = np.nan
    return made


def rows_of(cache: Any, sequence: int) -> Any:
    used = TABLE[sequence, : -(-LENGTHS[sequence] // ROWS)]
    return np.concatenate(cache[used])[None, : LENGTHS[sequence]]


@pytest.mark.parametrize("variant", [v.name for v in ops.variants("attention_paged")
                                     if v.available])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_attention_over_pages_is_attention(variant: str, dtype: Any) -> None:
    q, sinks = normal(1, 2, 3, 4, 16, dtype=dtype), normal(2, 4)
    k, v = pages(3, 2, 16, dtype), pages(4, 2, 8, dtype)
    lse = np.empty((2, 3, 4), np.float32)
    got = ops.attention_paged(q, k, v, TABLE, LENGTHS, causal=True, sinks=sinks, lse=lse,
                              variant=variant)
    assert got.dtype == dtype and got.shape == (2, 3, 4, 8)
    for b in range(2):
        want, sums = attention_in_f64(q[b:b + 1], rows_of(k, b), rows_of(v, b), True, sinks)
        assert close(got[b:b + 1], want, 32) and close(lse[b:b + 1], sums, 32)


@pytest.mark.parametrize("variant", [v.name for v in ops.variants("attention_paged")
                                     if v.available])
def test_values_may_be_a_view_of_keys(variant: str) -> None:
    q, k = normal(1, 2, 1, 4, 24), pages(2, 1, 24)
    got = ops.attention_paged(q, k, k[..., :16], TABLE, LENGTHS, variant=variant)
    for b in range(2):
        rows = rows_of(k, b)
        want, _ = attention_in_f64(q[b:b + 1], rows, rows[..., :16], False)
        assert close(got[b:b + 1], want, 32)


def test_padding_of_queries_is_left_as_it_is() -> None:
    q, k = normal(1, 2, 3, 2, 8), pages(2, 2, 8)
    out = np.full((2, 3, 2, 8), 7, np.float32)
    ops.attention_paged(q, k, k, TABLE, LENGTHS, q_lengths=np.array([3, 1], np.int32), out=out,
                        k_len=11)
    want, _ = attention_in_f64(q[1:, :1], rows_of(k, 1), rows_of(k, 1), False)
    assert close(out[1:, :1], want, 16) and (out[1, 1:] == 7).all()


@pytest.mark.parametrize("rope", [ops.Rope(8), ops.Rope(4, 500.0, 2, True)], ids=str)
def test_rope_rotates_queries_and_keys(rope: ops.Rope) -> None:
    q, k, v = normal(1, 1, 3, 2, 8), normal(2, 1, 5, 2, 8), normal(3, 1, 5, 2, 8)
    want, _ = attention_in_f64(rotated(q, rope, 2), rotated(k, rope, 0), v, True)
    assert close(ops.attention(q, k, v, causal=True, rope=rope), want, 16)
    angles = np.arange(6)[:, None] * rope.base ** (-np.arange(rope.dim // 2) * 2 / rope.dim)
    tables = rope._replace(base=1.0, cos=np.cos(angles).astype(np.float32),
                           sin=np.sin(angles).astype(np.float32))
    assert close(ops.attention(q, k, v, causal=True, rope=tables), want, 16)


def test_gradients_are_those_before_the_rotation() -> None:
    rope = ops.Rope(4)
    q, k, v = normal(1, 1, 2, 1, 4), normal(2, 1, 3, 1, 4), normal(3, 1, 3, 1, 4)
    grad, lse = normal(4, 1, 2, 1, 4), np.empty((1, 2, 1), np.float32)
    out = ops.attention(q, k, v, rope=rope, lse=lse)
    found = ops.attention_backward(grad, q, k, v, out, lse, rope=rope)[1]

    def loss(moved: Any) -> float:
        out, _ = attention_in_f64(rotated(q, rope, 1), rotated(moved, rope, 0), v, False)
        return float((out * grad).sum())

    for index in np.ndindex(k.shape):
        step = np.zeros(k.shape)
        step[index] = 1e-4
        assert abs((loss(k + step) - loss(k - step)) / 2e-4 - found[index]) <= 1e-5


@pytest.mark.parametrize("variant", [v.name for v in ops.variants("kv_append") if v.available])
def test_what_is_appended_is_attended_to(variant: str) -> None:
    """A sequence token by token, and one whose first tokens come together, as in the whole."""
    rope = ops.Rope(8)
    q, k, v = normal(1, 2, 9, 4, 8), normal(2, 2, 9, 2, 8), normal(3, 2, 9, 2, 6)
    want, _ = attention_in_f64(rotated(q, rope, 0), rotated(k, rope, 0), v, True)
    both = np.full((6, ROWS, 2, 14), np.nan, np.float32)  # K and V interleave in one array
    cache = both[..., :8], both[..., 8:]
    table = np.array([[4, 0, 5], [1, 3, 2]], np.int32)
    for first, last in ((0, 5), (5, 6), (6, 7), (7, 9)):
        lengths = np.array([last, last], np.int32)
        new = slice(first, last)
        ops.kv_append(k[:, new], v[:, new], *cache, table, lengths, rope=rope, variant=variant)
        got = ops.attention_paged(q[:, new], *cache, table, lengths, causal=True, rope=rope)
        assert close(got, want[:, new], 32)
    assert np.isnan(both).sum() == 2 * 3 * 2 * 14  # of each last page rows 1 to 3


def test_keys_that_were_not_rotated_are_rotated_as_they_are_loaded() -> None:
    rope = ops.Rope(8)
    q, k, v = normal(1, 1, 4, 2, 8), normal(2, 1, 4, 2, 8), normal(3, 1, 4, 2, 8)
    cache = np.zeros((1, 4, 2, 8), np.float32), np.zeros((1, 4, 2, 8), np.float32)
    table, lengths = np.zeros((1, 1), np.int32), np.array([4], np.int32)
    ops.kv_append(k, v, *cache, table, lengths)
    assert (cache[0] == k).all() and (cache[1] == v).all()
    got = ops.attention_paged(q, *cache, table, lengths, rope=rope, rope_keys=True)
    assert (got == ops.attention(q, k, v, rope=rope)).all()


def test_tokens_and_queries_of_sequences_may_lie_behind_each_other() -> None:
    """One of 3 new tokens beside one of 1, as a step has them that prefills and decodes."""
    q, k, offsets = normal(1, 4, 4, 8), normal(2, 4, 2, 8), offsets_of(3, 1)
    cache, apart = (np.zeros((8, ROWS, 2, 8), np.float32) for _ in range(2))
    ops.kv_append(k, k, cache, cache.copy(), TABLE, LENGTHS, new_offsets=offsets, new_len=3)
    padded = np.zeros((2, 3, 2, 8), np.float32)
    padded[0], padded[1, 0] = k[:3], k[3]
    ops.kv_append(padded, None, apart, None, TABLE, LENGTHS,
                  new_lengths=np.array([3, 1], np.int32))
    assert (cache == apart).all() and cache.any()
    out = ops.attention_paged(q, cache, cache, TABLE, LENGTHS, causal=True, q_offsets=offsets,
                              q_len=3)
    for b, rows in enumerate((slice(0, 3), slice(3, 4))):
        keys = rows_of(cache, b)
        want, _ = attention_in_f64(q[None, rows], keys, keys, True)
        assert close(out[rows], want[0], 32)


def test_only_the_new_tokens_of_a_sequence_are_appended() -> None:
    k, cache = normal(1, 2, 3, 1, 4), np.zeros((8, ROWS, 1, 4), np.float32)
    ops.kv_append(k, None, cache, None, TABLE, LENGTHS, new_lengths=np.array([2, 0], np.int32))
    assert (cache[7, 1:3] == k[0, :2]).all()
    cache[7, 1:3] = 0
    assert not cache.any()


def test_what_does_not_fit_is_refused() -> None:
    q, k = normal(1, 2, 3, 4, 8), normal(2, 8, ROWS, 2, 8)
    new, bad = normal(3, 2, 1, 2, 8), TABLE.copy()
    bad[0, 1] = 8
    frozen = k.copy()
    frozen.flags.writeable = False
    wrong: list[Callable[[], object]] = [
        lambda: ops.attention_paged(q, k, k, TABLE[:1], LENGTHS),
        lambda: ops.attention_paged(q, k, k, TABLE.astype(np.int64), LENGTHS),
        lambda: ops.attention_paged(q, k, k, np.asfortranarray(TABLE), LENGTHS),
        lambda: ops.attention_paged(q, k, k, TABLE[0], LENGTHS),
        lambda: ops.attention_paged(q, k, k, bad, LENGTHS),
        lambda: ops.attention_paged(q, k, k, TABLE, LENGTHS[:1]),
        lambda: ops.attention_paged(q, k, k, TABLE, np.array([13, 6], np.int32)),
        lambda: ops.attention_paged(q, k, k, TABLE, None),
        lambda: ops.attention_paged(q, k, k, TABLE, LENGTHS, k_len=13),
        lambda: ops.attention_paged(q, k, k[:7], TABLE, LENGTHS),
        lambda: ops.attention_paged(q, k, k.astype(np.float16), TABLE, LENGTHS),
        lambda: ops.attention_paged(q, k, k, TABLE, LENGTHS, rope=ops.Rope(7)),
        lambda: ops.attention_paged(q, k, k, TABLE, LENGTHS,
                                    rope=ops.Rope(8, cos=normal(1, 12, 4), sin=normal(1, 12, 3))),
        lambda: ops.kv_append(new, None, k, k, TABLE, LENGTHS),
        lambda: ops.kv_append(new, new[..., :4], k, k, TABLE, LENGTHS),
        lambda: ops.kv_append(new[:, :, :1], new, k, k, TABLE, LENGTHS),
        lambda: ops.kv_append(new, new, frozen, k, TABLE, LENGTHS),
        lambda: ops.kv_append(new, new, k, k, bad, np.array([6, 6], np.int32)),
        lambda: ops.kv_append(new, new, k, k.copy(), TABLE, np.array([0, 6], np.int32)),
        lambda: ops.kv_append(new, new, k, k, TABLE, LENGTHS, variant="fastest"),
    ]
    for use in wrong:
        with pytest.raises(gpunvme.OpsError) as raised:
            use()
        assert raised.value.detail
