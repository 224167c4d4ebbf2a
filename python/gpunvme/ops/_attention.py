# SPDX-License-Identifier: BSD-3-Clause
"""Attention: forward, backward, over a cache in pages, and appending to one."""

from __future__ import annotations

from typing import Any, NamedTuple

from .. import _lib
from ..buffers import Array, describe
from ..errors import ops_error
from ._call import DTYPES, FP8, FP8_DTYPES, Call, array_of, check, result_of, same_dtype, vector_of


def _packed(array: Array) -> Array:
    """Rows of all sequences behind each other, as one sequence."""
    return array._replace(shape=(1, *array.shape), strides=(0, *array.strides))


def _tensor(name: str, obj: Any, fp8: bool = False, packed: bool = False) -> Array:
    """sequences (not if ``packed``) x rows x heads x channels; channels are contiguous."""
    array = array_of(name, obj, fp8)
    check(len(array.shape) == 4 - packed, f"{name} has {len(array.shape)} dimensions: "
          f"{'' if packed else 'sequence, '}row, head and channel are wanted")
    array = _packed(array) if packed else array
    check(array.shape[3] < 2 or array.strides[3] == 1, f"{name}: its channels are not contiguous")
    return array


def _strides(array: Array) -> _lib.AttentionStrides:
    return _lib.AttentionStrides(*array.strides[:3])


def _lengths(name: str, obj: Any, count: int) -> Array | None:
    array = None if obj is None else describe(obj)
    check(obj is None or (array is not None and array.typestr == "<i4" and array.contiguous
                           and array.shape == (count,)), f"{name} is not {count} int32")
    return array


class _Rows(NamedTuple):
    """Which rows sequences have, as the caller says it."""

    q_lengths: Any = None
    k_lengths: Any = None
    q_offsets: Any = None
    k_offsets: Any = None
    q_len: int | None = None
    k_len: int | None = None

    def sequences(self, q: Array) -> int:
        if self.q_offsets is None:
            return q.shape[0]
        offsets = describe(self.q_offsets)
        check(offsets is not None and len(offsets.shape) == 1 and offsets.shape[0] > 0,
              "q_offsets are not int32, one more than sequences")
        return offsets.shape[0] - 1 if offsets is not None else 0

    def longest(self, q: Array, k: Array) -> tuple[int, int]:
        check((self.q_len is None or self.q_offsets is not None)
              and (self.k_len is None or self.k_offsets is not None),
              "q_len and k_len go with q_offsets and k_offsets")
        return (q.shape[1] if self.q_len is None else self.q_len,
                k.shape[1] if self.k_len is None else self.k_len)


def _sinks(name: str, obj: Any, heads: int) -> Array | None:
    array = None if obj is None else vector_of(name, obj, heads)
    if array is not None and array.typestr != "<f4":
        raise ops_error(_lib.OPS_ERR_DTYPE, f"{name} has elements of {array.typestr}, not float32")
    return array


def _descales(problem: _lib.Attention | _lib.KvAppend, **factors: Any) -> list[Array]:
    """Of float8: (sequences, heads of K), or heads of K that all sequences share."""
    found = {name: array_of(name, obj) for name, obj in factors.items() if obj is not None}
    steps = set()
    for name, array in found.items():
        check(array.shape in ((problem.batch, problem.kv_heads), (problem.kv_heads,))
              and array.typestr == "<f4" and (problem.kv_heads < 2 or array.strides[-1] == 1),
              f"{name} is not float32 of ({problem.batch}, {problem.kv_heads}) or "
              f"({problem.kv_heads},)")
        setattr(problem, name, array.ptr)
        shared = len(array.shape) == 1 or problem.batch < 2
        steps.add(0 if shared else array.strides[0])
    check(len(steps) < 2, f"{', '.join(found)} have different strides")
    problem.descale_stride = steps.pop() if steps else 0
    return list(found.values())


def _integers(name: str, obj: Any, rows: int) -> Array:
    """A matrix of int32, whose rows are contiguous."""
    array = describe(obj)
    if array is None or array.typestr != "<i4" or len(array.shape) != 2 or (
            array.shape[0] != rows or (array.shape[1] > 1 and array.strides[1] != 1)):
        raise ops_error(_lib.OPS_ERR_SHAPE, f"{name} is not {rows} contiguous rows of int32")
    return array


class Rope(NamedTuple):
    """Rotary position embedding: of Q and K, as they are loaded.

    Of each head the ``dim`` channels from ``first`` on are rotated in pairs: the p-th with that
    dim / 2 behind it, or if ``interleaved`` with its neighbour. Pair p of a row at position t is
    rotated by the angle t * base^(-2 p / dim); or by ``cos`` and ``sin``, which are arrays of
    float32 of (positions, dim / 2).
    """

    dim: int
    base: float = 10000.0
    first: int = 0
    interleaved: bool = False
    cos: Any = None
    sin: Any = None

    def _described(self, queries_only: bool) -> tuple[_lib.Rope, list[Array]]:
        found = _lib.Rope(base=self.base, dim=self.dim, first=self.first,
                          interleaved=self.interleaved, queries_only=queries_only)
        if self.cos is None and self.sin is None:
            return found, []
        tables = [array_of("cos", self.cos), array_of("sin", self.sin)]
        shape = tables[0].shape
        for table in tables:
            check(len(shape) == 2 and table.shape == shape and shape[1] == self.dim // 2
                  and table.typestr == "<f4" and table.strides == tables[0].strides
                  and (shape[1] < 2 or table.strides[1] == 1),
                  f"cos and sin are not float32 of (positions, {self.dim // 2}), alike")
        found.cos, found.sin = tables[0].ptr, tables[1].ptr
        found.rows, found.ld = shape[0], tables[0].strides[0]
        return found, tables


def _ptr(array: Array | None) -> int | None:
    return None if array is None else array.ptr


class _Attention(NamedTuple):
    """A call's descriptor without results, and the arrays that it points to."""

    problem: _lib.Attention
    q: Array
    k: Array
    v: Array
    arrays: list[Array]

    def shape(self, *channels: int) -> tuple[int, ...]:
        """Of what has the rows and heads of Q."""
        return (*self.q.shape[1 if self.problem.q_offsets else 0:3], *channels)


def _attention(q: Any, k: Any, v: Any, causal: bool, window: tuple[int | None, int | None] | None,
               scale: float | None, softcap: float, sinks: Any, rows: _Rows,
               rope: Rope | None, queries_only: bool = False, in_pages: bool = False,
               fp8: bool = False) -> _Attention:
    packed = rows.k_offsets is not None
    queries = _tensor("q", q, fp8, rows.q_offsets is not None)
    keys = _tensor("k", k, fp8 or in_pages, packed)
    values = _tensor("v", v, fp8 or in_pages, packed)
    same_dtype(q=None if in_pages and keys.typestr == _E4M3 else queries, k=keys, v=values)
    batch, (_, q_rows, heads, dim) = rows.sequences(queries), queries.shape
    pages, k_rows, kv_heads, dim_v = values.shape
    check(keys.shape == (pages, k_rows, kv_heads, dim) and (in_pages or packed or pages == batch),
          f"q is {queries.shape}, k {keys.shape} and v {values.shape}")
    extra = [_sinks("sinks", sinks, heads), _lengths("q_lengths", rows.q_lengths, batch),
             _lengths("k_lengths", rows.k_lengths, batch),
             _lengths("q_offsets", rows.q_offsets, batch + 1),
             _lengths("k_offsets", rows.k_offsets, batch + 1)]
    left, right = (_FAR if side is None else side for side in window or (None, None))
    number = {**DTYPES, **FP8_DTYPES}[queries.typestr]
    q_len, k_len = rows.longest(queries, keys)
    problem = _lib.Attention(
        batch=batch, heads=heads, kv_heads=kv_heads, dim=dim, dim_v=dim_v, q_len=q_len,
        k_len=k_len, q_rows=q_rows, k_rows=k_rows, q=queries.ptr, k=keys.ptr, v=values.ptr,
        q_strides=_strides(queries), k_strides=_strides(keys), v_strides=_strides(values),
        sinks=_ptr(extra[0]), q_lengths=_ptr(extra[1]), k_lengths=_ptr(extra[2]),
        q_offsets=_ptr(extra[3]), k_offsets=_ptr(extra[4]), window=window is not None,
        window_left=left, window_right=right, scale=scale or 0.0, softcap=softcap, causal=causal,
        dtype=number, out_dtype=number,
    )
    arrays = [queries, keys, values, *(a for a in extra if a is not None)]
    if rope is not None:
        problem.rope, tables = rope._described(queries_only)
        arrays += tables
    return _Attention(problem, queries, keys, values, arrays)


_FAR = 2**63 - 1  # no limit to a side of a window
_E4M3 = FP8["float8_e4m3fn"]


def _lse(name: str, obj: Any, x: _Attention) -> Array:
    array = array_of(name, obj)
    check(array.shape == x.shape() and array.typestr == "<f4", f"{name} is not {x.shape()} float32")
    return _packed(array) if x.problem.q_offsets else array


def _with_result(x: _Attention, q: Any, out: Any, lse: Any, variant: str | None, threads: int,
                 stream: Any, deterministic: bool) -> tuple[Call, Any]:
    """The call, whose descriptor gets its result, and that."""
    shape = (*x.q.shape[:3], x.v.shape[3])
    typestr = "<f4" if x.q.typestr in FP8_DTYPES else x.q.typestr
    result = result_of(out, q, x.shape(shape[3]), typestr, stream)
    made = _tensor("out", result, packed=bool(x.problem.q_offsets))
    check(made.shape == shape, f"out is {made.shape}: {shape} is made")
    sums = None if lse is None else _lse("lse", lse, x)
    x.problem.out, x.problem.out_strides = made.ptr, _strides(made)
    x.problem.out_dtype = DTYPES[made.typestr]
    if sums is not None:
        x.problem.lse, x.problem.lse_strides = sums.ptr, _strides(sums)
    written = [made, *([sums] if sums is not None else [])]
    call = Call(x.arrays, written, variant, threads, stream, deterministic)
    return call, result


def attention(q: Any, k: Any, v: Any, *, causal: bool = False,
              window: tuple[int | None, int | None] | None = None, scale: float | None = None,
              softcap: float = 0.0, sinks: Any = None, q_lengths: Any = None, k_lengths: Any = None,
              q_offsets: Any = None, k_offsets: Any = None, q_len: int | None = None,
              k_len: int | None = None, rope: Rope | None = None, q_descale: Any = None, k_descale: Any = None,
              v_descale: Any = None, out: Any = None, lse: Any = None,
              variant: str | None = None, threads: int = 0, stream: Any = None,
              deterministic: bool = False) -> Any:
    """``softmax(scale * q @ k.T) @ v`` of each sequence and head.

    ``q`` is (sequences, rows, heads, channels), ``k`` and ``v`` have rows and, where queries share
    them, fewer heads of their own; ``v`` may have other channels. Any view will do whose channels
    are contiguous. The last query is aligned to the last key: ``causal`` hides the keys behind a
    query, ``window`` those that are more than (left, right) away (None: no limit). ``scale`` is
    1 / sqrt(channels) if None. ``sinks`` are float32, a logit a head that has no value.
    ``q_lengths`` and ``k_lengths`` are int32, the rows that are used of each sequence; of ``out``
    the others are left as they are. Sequences may also lie behind each other: with ``q_offsets``
    ``q``, ``out`` and ``lse`` have no first dimension, and the rows of sequence b begin at
    ``q_offsets[b]`` and end before ``q_offsets[b + 1]``: int32, one more than sequences. No sequence
    is longer than ``q_len`` (None: as all together, which takes longer). Likewise ``k`` and ``v``
    with ``k_offsets`` and ``k_len``. ``rope`` rotates Q and K as they are loaded. ``lse`` is a
    float32 array of (sequences, rows, heads) that gets the logarithms of the sums, as
    attention_backward() wants them.

    Operands may be float8_e4m3fn (of torch, or arrays whose dtype has that name). The result is
    then float32, or has the type of ``out``: float32, float16 or bfloat16. ``q_descale``,
    ``k_descale`` and ``v_descale`` are what elements are multiplied by: positive float32 of
    (sequences, heads of k) or (heads of k,), where the operands are. There is no gradient.
    """
    x = _attention(q, k, v, causal, window, scale, softcap, sinks,
                   _Rows(q_lengths, k_lengths, q_offsets, k_offsets, q_len, k_len), rope, fp8=True)
    x.arrays.extend(_descales(x.problem, q_descale=q_descale, k_descale=k_descale,
                              v_descale=v_descale))
    call, result = _with_result(x, q, out, lse, variant, threads, stream, deterministic)
    call.run("gpunvme_attention", x.problem)
    return result


def attention_backward(
    grad_out: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *, causal: bool = False,
    window: tuple[int | None, int | None] | None = None, scale: float | None = None,
    softcap: float = 0.0, sinks: Any = None, q_lengths: Any = None, k_lengths: Any = None,
    q_offsets: Any = None, k_offsets: Any = None, q_len: int | None = None,
    k_len: int | None = None, rope: Rope | None = None, grad_q: Any = None, grad_k: Any = None, grad_v: Any = None,
    grad_sinks: Any = None, variant: str | None = None, threads: int = 0, stream: Any = None,
    deterministic: bool = False,
) -> tuple[Any, Any, Any]:
    """The gradients of attention(): (grad_q, grad_k, grad_v), into arrays of yours if given.

    ``out`` and ``lse`` are what attention() made; all else is what it was given. ``grad_sinks`` is
    a float32 array that gets the gradient of the sinks.
    """
    x = _attention(q, k, v, causal, window, scale, softcap, sinks,
                   _Rows(q_lengths, k_lengths, q_offsets, k_offsets, q_len, k_len), rope)
    of_q, of_k = bool(x.problem.q_offsets), bool(x.problem.k_offsets)
    shape, sums = (*x.q.shape[:3], x.v.shape[3]), _lse("lse", lse, x)
    grad, forward = _tensor("grad_out", grad_out, packed=of_q), _tensor("out", out, packed=of_q)
    for name, found in (("grad_out", grad), ("out", forward)):
        check(found.shape == shape, f"{name} is {found.shape}, not {shape}")
    same_dtype(grad_out=grad, out=forward)
    x.problem.out, x.problem.out_strides = forward.ptr, _strides(forward)
    x.problem.out_dtype = DTYPES[forward.typestr]
    x.problem.lse, x.problem.lse_strides = sums.ptr, _strides(sums)
    given = (("grad_q", grad_q, q, x.q, of_q), ("grad_k", grad_k, k, x.k, of_k),
             ("grad_v", grad_v, v, x.v, of_k))
    results = tuple(result_of(to, of, array.shape[packed:], array.typestr, stream)
                    for _, to, of, array, packed in given)
    made = []
    for (name, _, _, like, packed), result in zip(given, results):
        found = _tensor(name, result, packed=packed)
        check(found.shape == like.shape and found.typestr == like.typestr,
               f"{name} is not like what it is the gradient of")
        made.append(found)
    of_sinks = _sinks("grad_sinks", grad_sinks, x.q.shape[2])
    problem = _lib.AttentionGrad(
        forward=x.problem, grad_out=grad.ptr, grad_q=made[0].ptr, grad_k=made[1].ptr,
        grad_v=made[2].ptr, grad_sinks=_ptr(of_sinks), grad_out_strides=_strides(grad),
        grad_q_strides=_strides(made[0]), grad_k_strides=_strides(made[1]),
        grad_v_strides=_strides(made[2]),
    )
    written = [*made, *([of_sinks] if of_sinks is not None else [])]
    call = Call([*x.arrays, grad, forward, sums], written, variant, threads, stream, deterministic)
    call.run("gpunvme_attention_backward", problem)
    return results


# ---- A cache in pages -------------------------------------------------------------------------


def attention_paged(
    q: Any, k_pages: Any, v_pages: Any, block_table: Any, k_lengths: Any, *,
    k_len: int | None = None, causal: bool = False,
    window: tuple[int | None, int | None] | None = None, scale: float | None = None,
    softcap: float = 0.0, sinks: Any = None, q_lengths: Any = None, q_offsets: Any = None,
    q_len: int | None = None, rope: Rope | None = None, rope_keys: bool = False,
    k_descale: Any = None, v_descale: Any = None, out: Any = None, lse: Any = None,
    variant: str | None = None, threads: int = 0, stream: Any = None, deterministic: bool = False,
) -> Any:
    """attention() over a cache whose keys and values are in pages, as kv_append() fills it.

    ``k_pages`` and ``v_pages`` are (pages, rows of a page, heads, channels), of up to 256 rows. A
    cache of latent vectors (MLA) is both: ``v_pages = k_pages[..., :512]``.
    Key j of sequence b is row j % rows of page ``block_table[b, j // rows]``. ``block_table`` is
    int32 of (sequences, at least as many as the pages of the longest), ``k_lengths`` int32: the
    keys of each sequence, those of its queries among them. ``k_len`` is the longest that these
    may be; None: as long as a row of the table lasts. ``rope`` rotates the queries, and with
    ``rope_keys`` the keys, too: leave that to kv_append(), which does it once. All else is as in
    attention(). On the CPU a page or a length that makes no sense is an OpsArgumentError; on a
    GPU it is not noticed.

    The cache may be float8_e4m3fn beside wider queries. ``k_descale`` and ``v_descale`` are what
    its elements are multiplied by: positive float32 of (sequences, heads of the cache) or (heads of
    the cache,), where the operands are.
    """
    x = _attention(q, k_pages, v_pages, causal, window, scale, softcap, sinks,
                   _Rows(q_lengths, k_lengths, q_offsets, None, q_len), rope, not rope_keys,
                   in_pages=True)
    pages, page_size = x.k.shape[:2]
    table = _integers("block_table", block_table, x.problem.batch)
    longest = _longest(k_len, table, page_size)
    x.problem.k_len = longest
    x.arrays.append(table)
    x.arrays.extend(_descales(x.problem, k_descale=k_descale, v_descale=v_descale))
    call, result = _with_result(x, q, out, lse, variant, threads, stream, deterministic)
    call.run("gpunvme_attention_paged", _lib.AttentionPaged(
        attention=x.problem, block_table=table.ptr, ld_table=_step(table), pages=pages,
        page_size=page_size, cache_dtype={**DTYPES, **FP8_DTYPES}[x.k.typestr]))
    return result


def kv_append(
    k: Any, v: Any, k_pages: Any, v_pages: Any, block_table: Any, k_lengths: Any, *,
    new_lengths: Any = None, new_offsets: Any = None, new_len: int | None = None,
    k_len: int | None = None, rope: Rope | None = None,
    k_descale: Any = None, v_descale: Any = None, variant: str | None = None,
    threads: int = 0, stream: Any = None, deterministic: bool = False,
) -> None:
    """Writes the keys and values of new tokens to a cache in pages, for attention_paged().

    ``k`` and ``v`` are (sequences, new tokens, heads, channels); without values (MLA) both ``v``
    and ``v_pages`` are None. New tokens are the last of their sequence: ``k_lengths`` counts them
    already. ``new_lengths`` is int32, how many of each sequence's are used (None: all). With
    ``new_offsets`` the sequences' tokens lie behind each other, as those of ``q`` in attention():
    ``k`` and ``v`` have no first dimension, and no sequence has more than ``new_len``. ``rope``
    rotates the keys on their way. No other row of the cache is written; no two tokens may have the
    same row. All else is as in attention_paged(). What goes to a cache of float8_e4m3fn is divided
    by ``k_descale`` and ``v_descale`` and rounded to nearest even; what is too large becomes 448.
    """
    packed = new_offsets is not None
    keys, cache = _tensor("k", k, packed=packed), _tensor("k_pages", k_pages, fp8=True)
    rows = _Rows(new_lengths, None, new_offsets, None, new_len)
    batch, (sequences, new_rows, kv_heads, dim) = rows.sequences(keys), keys.shape
    pages, page_size = cache.shape[:2]
    check(cache.shape[2:] == (kv_heads, dim), f"k is {keys.shape} and k_pages {cache.shape}")
    check((v is None) == (v_pages is None), "v and v_pages go together")
    values = None if v is None else _tensor("v", v, packed=packed)
    values_cache = None if v_pages is None else _tensor("v_pages", v_pages, fp8=True)
    dim_v = 0 if values is None else values.shape[3]
    for name, found, shape in (("v", values, (sequences, new_rows, kv_heads, dim_v)),
                               ("v_pages", values_cache, (pages, page_size, kv_heads, dim_v))):
        check(found is None or found.shape == shape, f"{name} is not {shape}")
    same_dtype(k=keys, v=values)
    same_dtype(k=None if cache.typestr == _E4M3 else keys, k_pages=cache, v_pages=values_cache)
    table = _integers("block_table", block_table, batch)
    lengths = _lengths("k_lengths", k_lengths, batch)
    new = _lengths("new_lengths", new_lengths, batch)
    offsets = _lengths("new_offsets", new_offsets, batch + 1)
    problem = _lib.KvAppend(
        batch=batch, kv_heads=kv_heads, dim=dim, dim_v=dim_v, new_rows=new_rows,
        new_len=rows.longest(keys, cache)[0], new_offsets=_ptr(offsets), k_len=_longest(k_len, table, page_size), k=keys.ptr, v=_ptr(values), k_pages=cache.ptr,
        v_pages=_ptr(values_cache), k_strides=_strides(keys), k_pages_strides=_strides(cache),
        new_lengths=_ptr(new), k_lengths=_ptr(lengths), block_table=table.ptr,
        ld_table=_step(table), pages=pages, page_size=page_size,
        dtype=DTYPES[keys.typestr], cache_dtype={**DTYPES, **FP8_DTYPES}[cache.typestr],
    )
    if values is not None and values_cache is not None:
        problem.v_strides, problem.v_pages_strides = _strides(values), _strides(values_cache)
    operands = [a for a in (keys, values, table, lengths, new, offsets) if a is not None]
    operands += _descales(problem, k_descale=k_descale, v_descale=v_descale)
    if rope is not None:
        problem.rope, tables = rope._described(False)
        operands += tables
    written = [a for a in (cache, values_cache) if a is not None]
    call = Call(operands, written, variant, threads, stream, deterministic)
    call.run("gpunvme_kv_append", problem)


def _longest(k_len: int | None, table: Array, page_size: int) -> int:
    room = table.shape[1] * page_size
    check(k_len is None or k_len <= room,
          f"k_len is {k_len}, and a row of block_table has the pages of {room} keys")
    return room if k_len is None else k_len


def _step(table: Array) -> int:
    """From a row of a matrix to the next; ignored if there is one."""
    return table.strides[0] if table.shape[0] > 1 else max(table.shape[1], 1)
