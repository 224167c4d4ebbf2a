# SPDX-License-Identifier: BSD-3-Clause
# mypy: disable-error-code="import-not-found"
"""Batches of raw samples made into tensors, by one kernel or, in host memory, on the CPU."""

from __future__ import annotations

import ctypes
import math
import operator
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .. import _lib
from .._lib import lib
from ..buffers import stream_handle
from ..errors import argument, check, error
from ..memory import DeviceMemory

if TYPE_CHECKING:
    from ._loader import Batch

_NUMBERS = {"uint8": _lib.NUMBER_U8, "uint16": _lib.NUMBER_U16, "uint32": _lib.NUMBER_U32,
            "int32": _lib.NUMBER_I32, "int64": _lib.NUMBER_I64, "float16": _lib.NUMBER_F16,
            "bfloat16": _lib.NUMBER_BF16, "float32": _lib.NUMBER_F32}
_TO_IMAGES = ("float32", "float16", "bfloat16")
_TO_TOKENS = ("int64", "int32")


def _name_of(dtype: Any) -> str:
    """numpy's name of a type, of torch's or numpy's."""
    name = str(dtype).rpartition(".")[2]
    if name in ("|V2", "<V2", "bfloat16"):
        return "bfloat16"
    try:
        return np.dtype(name if name in _NUMBERS else dtype).name
    except TypeError:
        raise argument(f"dtype {dtype!r}: there is no such type") from None


class _Source:
    """The data of a batch: where it lies and what it is of."""

    def __init__(self, data: Any) -> None:
        self.shape = tuple(int(size) for size in data.shape)
        self.torch: Any = None
        if isinstance(data, np.ndarray):
            self.dtype, self.ptr, self.gpu = _name_of(data.dtype), data.ctypes.data, None
            whole = data.flags.c_contiguous
        elif isinstance(data, DeviceMemory):
            self.dtype, self.ptr, self.gpu = _name_of(data.typestr), data.ptr, data.device
            whole = True
        else:
            import torch

            self.torch = torch
            self.dtype, self.ptr = _name_of(data.dtype), data.data_ptr()
            self.gpu = data.device.index if data.is_cuda else None
            whole = data.is_contiguous()
        if not whole:
            raise argument("the batch's data are no tensor without gaps")

    def make(self, shape: tuple[int, ...], dtype: str, stream: Any) -> tuple[Any, int]:
        """A tensor of the same framework in the same memory, for the stream, and its address."""
        if self.torch is not None:
            where = "cpu" if self.gpu is None else f"cuda:{self.gpu}"
            with self.on(stream):
                made = self.torch.empty(shape, dtype=getattr(self.torch, dtype), device=where)
            return made, made.data_ptr()
        typestr = "<V2" if dtype == "bfloat16" else np.dtype(dtype).str
        if self.gpu is None:
            array = np.empty(shape, typestr)
            return array, array.ctypes.data
        memory = DeviceMemory(shape, typestr, self.gpu)
        return memory, memory.ptr

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Puts what torch does on the stream of the kernels."""
        if stream is None or self.gpu is None or self.torch is None:
            return nullcontext()
        cuda, handle = self.torch.cuda, stream_handle(stream)
        found: AbstractContextManager[Any] = cuda.stream(
            cuda.ExternalStream(handle, device=self.gpu) if handle  # of 0 it makes a new stream
            else cuda.default_stream(self.gpu))
        return found

    def how(self, to: str, **members: Any) -> _lib.Convert:
        return _lib.Convert(**{"from": _NUMBERS[self.dtype]}, to=_NUMBERS[to], **members)

    def convert(self, how: _lib.Convert, stream: Any) -> None:
        handle = 0
        if self.gpu is not None:
            how.mem = _lib.MEM_GPU
            if stream is None and self.torch is not None:
                stream = self.torch.cuda.current_stream(self.gpu)
            handle = 0 if stream is None else stream_handle(stream)
        check(lib.gpunvme_convert(ctypes.byref(how), handle))


class Images:
    """Makes images of a batch of raw ones: numbers of another type, normalised, channels first.

        loader = data.Loader(records, 256, device="cuda:0",
                             collate=data.Images((224, 224, 3), dtype="bfloat16", scale=1 / 255,
                                                 mean=(0.485, 0.456, 0.406),
                                                 std=(0.229, 0.224, 0.225)))
        for images in loader:              # bfloat16, [256, 3, 224, 224]

    ``shape``: height, width and channels of a sample, as its bytes lie; without it the batch's own.
    ``dtype``: "float32", "float16" or "bfloat16", or torch's. What becomes of x in channel c is
    ``(x * scale - mean[c]) / std[c]``. ``layout``: "chw" or "hwc". ``stream``: what the kernel goes
    on; without it torch's current stream, or the default one. Name the Loader the same one, as it
    orders the use of the raw memory. The tensor is allocated on it: other streams that use it wait
    for that one, and are told to the tensor's ``record_stream()``.

    Called with a Batch of the layout "rows", it returns a tensor of its own memory, of the
    framework of the batch's.
    """

    def __init__(
        self, shape: Sequence[int] | None = None, *, dtype: Any = "float32", scale: float = 1.0,
        mean: Sequence[float] | None = None, std: Sequence[float] | None = None,
        layout: Literal["chw", "hwc"] = "chw", stream: Any = None,
    ) -> None:
        self._shape = None if shape is None else tuple(int(size) for size in shape)
        self._dtype = _name_of(dtype)
        self._scale, self._mean, self._std, self._stream = scale, mean, std, stream
        if self._dtype not in _TO_IMAGES:
            raise argument(f"dtype {dtype!r}: there are {', '.join(_TO_IMAGES)}")
        if layout not in ("chw", "hwc"):
            raise argument(f'layout {layout!r}: there are "chw" and "hwc"')
        if not scale or not math.isfinite(scale):
            raise argument(f"scale: {scale}")
        if std is not None and not all(std):
            raise argument(f"std: {std}: none may be 0")
        self._first = layout == "chw"

    def __call__(self, batch: Batch) -> Any:
        source = _Source(batch.data)
        if batch.layout != "rows":
            raise argument(f'images of a batch of layout "{batch.layout}"')
        shape = source.shape[1:] if self._shape is None else self._shape
        if len(shape) != 3 or math.prod(shape) != math.prod(source.shape[1:]):
            raise argument(f"samples of shape {source.shape[1:]} are no images of height, width "
                           f"and channels {shape}")
        if source.dtype not in _NUMBERS or source.dtype == "int64":
            raise argument(f"images of {source.dtype}")
        height, width, channels = shape
        for name, values in (("mean", self._mean), ("std", self._std)):
            if values is not None and len(values) != channels:
                raise argument(f"{name}: {len(values)} numbers for {channels} channels")
        if not 1 <= channels <= _lib.CONVERT_CHANNELS:
            raise argument(f"{channels} channels: 1 to {_lib.CONVERT_CHANNELS}")
        n = source.shape[0]
        made, ptr = source.make(
            (n, channels, height, width) if self._first else (n, height, width, channels),
            self._dtype, self._stream)
        how = source.how(self._dtype, channels=channels, channels_first=self._first,
                         src=source.ptr, dst=ptr, nrows=n, row=math.prod(shape),
                         stride=math.prod(shape) * _size_of(source.dtype), scale=self._scale)
        for c in range(channels):
            how.mean[c] = 0.0 if self._mean is None else self._mean[c]
            how.std[c] = 1.0 if self._std is None else self._std[c]
        source.convert(how, self._stream)
        return made


class Tokens:
    """Makes inputs and targets of a batch of tokens: the targets are one token further.

        tokens = data.Dataset("train.bin", seq_tokens=1024, overlap_tokens=1)
        loader = data.Loader(tokens, 512, device="cuda:0", collate=data.Tokens())
        for inputs, targets in loader:     # int64, [512, 1024] each

        loader = data.Loader(documents, 64, layout="packed", row_nbytes=8192 * 2, dtype="uint16",
                             device="cuda:0", collate=data.Tokens(cu_seqlens=True))
        for inputs, targets, cu_seqlens, longest in loader:    # inputs: int64, [rows, 8192]

    In the layout "rows", a sample of n + 1 tokens gives n inputs and n targets. In the others a
    sample is a document. Inputs and targets have the shape of the batch's data, and a target is
    ``ignore`` at the last token of each document, where the target would be of another one, and in
    the padding. A document that spans rows of "packed" has targets across them.

    ``dtype``: "int64" or "int32", or torch's. ``cu_seqlens`` adds the boundaries that
    Batch.cu_seqlens() gives, as Batch.tensor() makes them, and the tokens of the longest sequence;
    with "rows", the rows of "packed" are boundaries too. ``stream``: as for Images.

    Called with a Batch, it returns tensors of their own memory, of the framework of the batch's.
    It does not wait for a GPU. ArgumentError: the data are no tokens; boundaries of "rows" or
    "padded". UnsupportedError: documents on a GPU without torch.
    """

    def __init__(self, *, dtype: Any = "int64", ignore: int = -100,
                 cu_seqlens: bool | Literal["rows"] = False, stream: Any = None) -> None:
        self._dtype, self._stream = _name_of(dtype), stream
        if self._dtype not in _TO_TOKENS:
            raise argument(f"dtype {dtype!r}: there are {', '.join(_TO_TOKENS)}")
        self._ignore = operator.index(ignore)
        if not -1 << 31 <= self._ignore < 1 << 31:
            raise argument(f"ignore: {ignore}")
        if cu_seqlens not in (False, True, "rows"):
            raise argument(f'cu_seqlens: {cu_seqlens!r}: there are False, True and "rows"')
        self._cu_seqlens = cu_seqlens

    def __call__(self, batch: Batch) -> tuple[Any, ...]:
        source = _Source(batch.data)
        if source.dtype not in ("uint8", "uint16", "uint32", "int32"):
            raise argument(f"tokens of {source.dtype}")
        if not self._cu_seqlens:
            return self._pair(source, batch)
        boundaries = batch.cu_seqlens(rows=self._cu_seqlens == "rows")
        pair = self._pair(source, batch)
        with source.on(self._stream):
            return *pair, batch.tensor(boundaries), int(np.diff(boundaries).max(initial=0))

    def _pair(self, source: _Source, batch: Batch) -> tuple[Any, Any]:
        """Inputs and targets."""
        if batch.layout == "rows":
            if len(source.shape) != 2 or source.shape[1] < 2:
                raise argument(f"tokens of samples of shape {source.shape[1:]}: two or more")
            n, tokens = source.shape
            shape = (n, tokens - 1)
            return (self._made(source, shape, 0, n, tokens - 1, tokens),
                    self._made(source, shape, 1, n, tokens - 1, tokens))
        if source.gpu is not None and source.torch is None:
            raise error(_lib.ERR_UNSUPPORTED, "targets of documents on a GPU without torch")
        n = math.prod(source.shape)
        inputs = self._made(source, source.shape, 0, 1, n, n)
        targets = self._made(source, source.shape, 1, 1, max(n - 1, 0), n)
        with source.on(self._stream):
            _ignore_ends(targets, batch, self._ignore)
        return inputs, targets

    def _made(self, source: _Source, shape: tuple[int, ...], first: int, nrows: int, row: int,
              stride: int) -> Any:
        """``nrows`` rows of ``row`` tokens, which begin ``stride`` tokens apart."""
        size = _size_of(source.dtype)
        tensor, ptr = source.make(shape, self._dtype, self._stream)
        if nrows * row:
            source.convert(source.how(self._dtype, src=source.ptr + first * size, dst=ptr,
                                      nrows=nrows, row=row, stride=stride * size), self._stream)
        return tensor


def _ignore_ends(targets: Any, batch: Batch, ignore: int) -> None:
    """Writes ``ignore`` to the last token of each document and to the padding."""
    on_host = isinstance(targets, np.ndarray)
    if batch.layout == "padded":
        columns, last = np.arange(targets.shape[1]), batch.lengths[:, None] - 1
        if on_host:
            targets[columns >= last] = ignore
        else:
            targets.masked_fill_(batch.tensor(columns) >= batch.tensor(last), ignore)
        return
    flat = targets.reshape(-1)
    last = (batch.offsets[:-1] + batch.lengths)[batch.lengths > 0] - 1
    if on_host:
        flat[last] = ignore
        flat[batch.offsets[-1]:] = ignore
    else:
        flat.index_fill_(0, batch.tensor(last), ignore)
        flat[int(batch.offsets[-1]):].fill_(ignore)  # assigning a number would copy it to the GPU


def _size_of(dtype: str) -> int:
    size: int = lib.gpunvme_number_nbytes(_NUMBERS[dtype])
    return size
