# SPDX-License-Identifier: BSD-3-Clause
# mypy: disable-error-code="import-not-found"
"""The loader: batches of samples, read ahead in a reproducible order."""

from __future__ import annotations

import ctypes
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .. import _lib
from .._lib import lib
from ..buffers import stream_handle
from ..errors import argument, check, error
from ..memory import DeviceMemory
from ..reports import FilesPath, Path
from ._arguments import choice, count, depth_of, elements_of, framework_of, place_of, rank_of, timeout_of
from ._dataset import Dataset, Opened

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Self

_SHUFFLES = {"epoch": _lib.SHUFFLE_EPOCH, True: _lib.SHUFFLE_EPOCH, "blocks": _lib.SHUFFLE_BLOCKS,
             False: _lib.SHUFFLE_NONE, "none": _lib.SHUFFLE_NONE}
_LAST = {"short": _lib.LAST_SHORT, "drop": _lib.LAST_DROP, "pad": _lib.LAST_PAD}
_LAYOUTS = {"auto": _lib.LAYOUT_AUTO, "rows": _lib.LAYOUT_ROWS, "ragged": _lib.LAYOUT_RAGGED,
            "padded": _lib.LAYOUT_PADDED, "packed": _lib.LAYOUT_PACKED}
_LAYOUT_NAMES = {value: name for name, value in _LAYOUTS.items()}
_ON_ERROR = {"raise": _lib.ON_ERROR_RAISE, "skip": _lib.ON_ERROR_SKIP,
             "substitute": _lib.ON_ERROR_SUBSTITUTE}
_ROUTES = ("host", "p2p", "bounce", "compat")
_STATE = ("fingerprint", "seed", "epoch", "taken")

#: A wait for a batch is cut into such parts, between which Ctrl-C is seen.
_SLICE_NS = 100_000_000



@dataclass(frozen=True)
class LoaderStats:
    """What a loader has done (``Loader.stats()``)."""

    batches: int  #: given to the caller, as the next four
    samples: int
    nbytes: int
    skipped: int  #: samples, because of errors
    substituted: int
    stall_s: float  #: seconds that the caller has waited for batches
    stalls: int  #: how often a batch was not ready
    transfers: int  #: fewer than samples where neighbours were read together
    routes: dict[str, int]  #: bytes by the way that they took
    ahead: int  #: batches that are read ahead; of these,
    ready: int  #: those that are there already


def _close(handle: int, pid: int) -> None:
    if pid == os.getpid():  # a child has none of its parent's threads
        lib.gpunvme_loader_close(handle)


class _Core:
    """The C loader; it lives as long as the Loader or memory of any of its batches."""

    def __init__(self, handle: int, opened: Sequence[Opened]) -> None:
        self.handle = handle
        self.opened = opened  # closed after it
        self.lock = threading.Lock()  # the C loader is one thread's at a time
        #: Addresses of batches whose memory nobody has any more. Filled by the garbage collector,
        #: anywhere: so it takes no lock.
        self.unused: deque[int] = deque()
        weakref.finalize(self, _close, handle, os.getpid())


class _HostMemory:
    """The base of numpy arrays of a batch."""

    def __init__(self, core: _Core, ptr: int, nbytes: int) -> None:
        self.core = core
        self.__array_interface__ = {"version": 3, "shape": (nbytes,), "typestr": "|u1",
                                    "data": (ptr, False)}


class _BatchMemory(DeviceMemory):
    """GPU memory of a batch."""

    def __init__(self, core: _Core, ptr: int, nbytes: int, device: int) -> None:
        self.core = core
        self.device, self.shape, self.typestr = device, (nbytes,), "|u1"
        self.nbytes, self.ptr = nbytes, ptr

    def viewed(self, typestr: str, shape: tuple[int, ...]) -> _BatchMemory:
        view = _BatchMemory(self.core, self.ptr, self.nbytes, self.device)
        view.typestr, view.shape = typestr, shape
        view.core = self  # type: ignore[assignment]  # holds what the collector watches
        return view


@dataclass
class Batch:
    """A batch: ``data`` and what it is of.

    ``data``: for "rows" [samples, *shape]; for "padded" [samples, row]; for "packed" [rows, row];
    for "ragged" all elements, one sample behind the other. Its memory is read into again when
    nothing refers to ``data`` any more. The arrays are in host memory; tensor() takes one to the
    device of ``data``.
    """

    data: Any
    layout: str
    #: Where each sample begins in the flat ``data``, in elements, and behind them where the last
    #: one ends.
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]  #: valid elements of each sample
    indices: NDArray[np.int64]  #: which sample of its data set each is
    sources: NDArray[np.int64]  #: and of which data set
    epoch: int
    index: int  #: in the epoch, from where it was begun or resumed
    padded: int  #: samples at the end that fill up a last batch
    skipped: int
    substituted: int
    cut: int  #: samples that are longer than their row
    stall_s: float  #: seconds that the caller has waited for it

    def cu_seqlens(self, rows: bool = False) -> NDArray[np.int32]:
        """The boundaries of the documents of a "ragged" or "packed" batch, for attention.

        In elements of the flat ``data``, from 0 to its end; the padding of "packed" counts as a
        document, and empty documents have no boundary. With ``rows``, the rows of "packed" are
        boundaries too, for models that attend within a row. The longest sequence has
        ``max(numpy.diff(...))`` elements.
        """
        if self.layout not in ("ragged", "packed"):
            raise argument(f'documents of a batch of layout "{self.layout}"')
        end = math.prod(self.data.shape)
        if end >= 1 << 31:
            raise argument(f"a batch of {end} elements: 2^31 - 1 at most")
        marks = [self.offsets, np.array([0, end])]
        if rows and self.layout == "packed":
            marks.append(np.arange(0, end, self.data.shape[1]))
        return np.unique(np.concatenate(marks)).astype(np.int32)

    def tensor(self, array: NDArray[Any]) -> Any:
        """An array of the batch, or of one's own, as a torch tensor on the device of ``data``.

        On a GPU it is copied from pinned memory on torch's current stream, and the call returns at
        once. On the CPU it shares the array's memory. Without torch it is the array itself, in host
        memory.
        """
        if isinstance(self.data, (np.ndarray, DeviceMemory)):
            return array
        import torch

        tensor = torch.from_numpy(array)
        if not self.data.is_cuda:
            return tensor
        return tensor.pin_memory().to(self.data.device, non_blocking=True)


class Loader:
    """Batches of samples, read ahead into host or GPU memory in a reproducible order.

        loader = Loader(Dataset("train.bin", seq_tokens=1024, overlap_tokens=1), 512, seed=7,
                        device="cuda:0")
        for epoch in range(3):
            for tokens in loader:          # torch tensors, [samples, 1025]
                train(tokens[:, :-1].long(), tokens[:, 1:].long())

    ``dataset``: one, or several as a mixture, with ``weights``. ``batch_size``: samples of a global
    batch, of all ranks together; each of ``world`` ranks gets its part (without ``rank`` and
    ``world``: torch.distributed's, if that has been set up). The order depends on ``seed``,
    ``shuffle`` ("epoch" or True; "blocks" of ``block`` samples within a ``window``; False) and
    ``epoch_samples``, not on the number of ranks. ``last``: what becomes of the samples at the end
    of an epoch that fill no batch ("short", "drop", "pad").

    ``device``: "cpu", "pinned", "cuda" or "cuda:1". ``layout``: "rows" (samples of one size),
    "ragged", "padded" or "packed" to rows of ``row_nbytes`` bytes, filled with the byte ``pad``;
    "auto" takes "rows" or "ragged". ``dtype`` (numpy's name of it) and ``shape`` say what a
    sample's bytes are, if the data set does not. ``framework``: "pt" for torch tensors, "np" for
    numpy arrays and, on a GPU, DeviceMemory; without it torch, if that is installed. ``on_error``:
    what happens to a sample that can't be read: "raise", "skip", or "substitute" the next one.
    ``depth``: batches that are read ahead, up to ``depth_nbytes`` bytes of them. ``collate`` makes
    what is iterated from a Batch; without it "rows" and "padded" give ``data``, the other layouts
    (data, offsets), with torch both on the device. ``timeout``: seconds in which something of a
    batch must move. ``verify`` compares each sample with its checksum, on the GPU if the batch is
    there; the data sets must have been opened by an index that was written with checksums. A sample
    that differs is read once more, and then treated by ``on_error``; the error's name is
    "GPUNVME_ERR_VERIFY".

    An iterator ends with the epoch. It begins where the loader is: at an epoch's beginning, or
    after load_state_dict(), or where a loop was left. There are no worker processes: the engine's
    threads read. One thread at a time may use it.

    Memory of a batch is used again when its last tensor is gone, and the work that is then on
    ``stream`` (without it: torch's current stream) has ended. If other streams use a tensor, keep
    it until their work has ended: ``record_stream()`` does not know of this memory.
    """

    def __init__(
        self, dataset: Dataset | Sequence[Dataset], batch_size: int, *,
        weights: Sequence[float] | None = None, seed: int = 0,
        shuffle: bool | Literal["epoch", "blocks", "none"] = True, block: int = 0, window: int = 0,
        epoch_samples: int = 0, last: Literal["short", "drop", "pad"] = "short",
        rank: int | None = None, world: int | None = None, device: Any = "cpu",
        layout: Literal["auto", "rows", "ragged", "padded", "packed"] = "auto",
        row_nbytes: int = 0, pad: int = 0, dtype: Any = None, shape: Sequence[int] | None = None,
        framework: Literal["pt", "np"] | None = None,
        on_error: Literal["raise", "skip", "substitute"] = "raise", depth: int = 8,
        depth_nbytes: int = 0, collate: Callable[[Batch], Any] | None = None,
        stream: Any = None, timeout: float | None = None, verify: bool = False,
    ) -> None:
        datasets = [dataset] if isinstance(dataset, Dataset) else list(dataset)
        if not datasets:
            raise argument("no data sets")
        if weights is not None and len(weights) != len(datasets):
            raise argument(f"{len(weights)} weights for {len(datasets)} data sets")
        self._torch = framework_of(framework)
        self._mem, self._gpu = place_of(str(device))
        self._dtype, self._itemsize, self._shape = elements_of(datasets, dtype, shape)
        if collate is not None and not callable(collate):
            raise argument(f"collate: {collate!r} can't be called")
        self._collate = collate
        self._stream = stream
        self._timeout_ns = timeout_of(timeout)
        rank, world = rank_of(rank, world)
        order = _lib.SamplerOptions(
            seed=count("seed", seed), batch=count("batch_size", batch_size),
            rank=count("rank", rank, 32), world=count("world", world, 32),
            shuffle=choice("shuffle", shuffle, _SHUFFLES), last=choice("last", last, _LAST),
            block=count("block", block), window=count("window", window),
            epoch=count("epoch_samples", epoch_samples))
        options = _lib.LoaderOptions(
            order=order, layout=choice("layout", layout, _LAYOUTS),
            on_error=choice("on_error", on_error, _ON_ERROR),
            row_nbytes=count("row_nbytes", row_nbytes), pad=count("pad", pad, 32), mem=self._mem,
            gpu=self._gpu, depth=depth_of(depth), depth_nbytes=count("depth_nbytes", depth_nbytes),
            timeout_ns=self._timeout_ns, verify=verify)
        if row_nbytes % self._itemsize:
            raise argument(f"row_nbytes: {row_nbytes} are no whole elements of {self._itemsize}")
        opened = [one.opened() for one in datasets]
        sources = (_lib.LoaderSource * len(datasets))(*(
            _lib.LoaderSource(one.handle, 0 if weights is None else weights[i])
            for i, one in enumerate(opened)))
        handle = ctypes.c_void_p()
        check(lib.gpunvme_loader_open(sources, len(datasets), ctypes.byref(options),
                                      ctypes.byref(handle)))
        self._core: _Core | None = _Core(handle.value or 0, opened)
        info = _lib.SamplerInfo()
        lib.gpunvme_loader_get_info(handle, ctypes.byref(info))
        self._length: int = info.batches
        self.epoch_samples: int = info.samples  #: of all ranks together
        self._depth = depth

    # -- Iteration --

    def __len__(self) -> int:
        """Batches of an epoch from its beginning."""
        return self._length

    def __iter__(self) -> Iterator[Any]:
        for batch in self.batches():
            yield self.collated(batch)
            del batch  # its memory is free while the next one is waited for

    def collated(self, batch: Batch) -> Any:
        """What is iterated for a batch: what ``collate`` makes of it, or its data."""
        if self._collate is not None:
            return self._collate(batch)
        if batch.layout in ("rows", "padded"):
            return batch.data
        return batch.data, batch.tensor(batch.offsets)

    def batches(self) -> Iterator[Batch]:
        """The batches to the end of the epoch, with what they are of."""
        while (batch := self.next_batch()) is not None:
            yield batch
            del batch

    def next_batch(self) -> Batch | None:
        """The next batch; None at the end of an epoch, once."""
        core = self._now()
        with core.lock:
            found = self._wait(core)
            return None if found is None else self._batch(core, found)

    def _now(self) -> _Core:
        if self._core is None:
            raise error(_lib.ERR_CLOSED, "the loader has been closed")
        return self._core

    def _wait(self, core: _Core) -> _lib.LoaderBatch | None:
        found = ctypes.POINTER(_lib.LoaderBatch)()
        waited = 0
        while True:
            self._release_unused(core)
            begun = time.monotonic_ns()
            part = min(_SLICE_NS, self._timeout_ns - waited)
            err = lib.gpunvme_loader_next(core.handle, ctypes.byref(found), part)
            if err != _lib.ERR_TIMEOUT:
                check(err)
                return found.contents if found else None
            # What moves before nothing moves any more counts from the beginning again.
            waited = waited + part if time.monotonic_ns() - begun < 2 * part else part
            if waited >= self._timeout_ns:
                raise error(err)

    def _release_unused(self, core: _Core) -> None:
        """Gives back batches of which no tensor is left."""
        order = None
        while core.unused:
            ptr = core.unused.popleft()
            if order is None:
                order = self._order()
            err = lib.gpunvme_loader_release(core.handle, ptr,
                                             ctypes.byref(order) if order else None)
            if err and order:  # the stream is being captured, or there are no waits for memory
                self._synchronize()
                err = lib.gpunvme_loader_release(core.handle, ptr, None)
            check(err)

    def _order(self) -> _lib.Order | None:
        """Behind the work that uses the memory."""
        if self._mem == _lib.MEM_HOST or lib.gpunvme_mem_gpu_is_host():
            return None
        stream = self._stream
        if stream is None and self._torch is not None and self._torch.cuda.is_initialized():
            stream = self._torch.cuda.current_stream(self._gpu)
        handle = 0 if stream is None else stream_handle(stream)
        return _lib.Order(flags=_lib.AFTER_STREAM, stream=handle)

    def _synchronize(self) -> None:
        if self._torch is None:
            raise error(_lib.ERR_UNSUPPORTED)
        self._torch.cuda.synchronize(self._gpu)

    # -- What the caller gets --

    def _batch(self, core: _Core, found: _lib.LoaderBatch) -> Batch:
        n, size = found.n, self._itemsize
        offsets, lengths = _copied(found.offsets, n + 1), _copied(found.lengths, n)
        samples = _copied(found.samples, 2 * n).reshape(n, 2)
        layout = _LAYOUT_NAMES[found.layout]
        try:
            shape = self._shape_in(found, layout, offsets, lengths)
        except Exception:
            core.unused.append(ctypes.addressof(found))
            raise
        return Batch(self._array(core, found, shape), layout, offsets // size, lengths // size,
                     samples[:, 0], samples[:, 1], found.epoch, found.index, found.npadded,
                     found.nskipped, found.nsubstituted, found.ncut, found.stall_ns / 1e9)

    def _shape_in(self, found: _lib.LoaderBatch, layout: str, offsets: NDArray[np.int64],
                  lengths: NDArray[np.int64]) -> tuple[int, ...]:
        """The shape of a batch's data."""
        size = self._itemsize
        if (offsets % size).any() or (lengths % size).any():
            raise argument(f"a sample's bytes are no whole elements of {size}: say dtype=\"uint8\"")
        if layout == "rows":
            return found.n, *self._shape_of(found.row_nbytes // size)
        if layout == "ragged":
            return (found.nbytes // size,)
        return found.nrows, found.row_nbytes // size

    def _shape_of(self, elements: int) -> tuple[int, ...]:
        if self._shape is None:
            return (elements,)
        if math.prod(self._shape) != elements:
            raise argument(f"samples of {elements} elements have not the shape {self._shape}")
        return self._shape

    def _array(self, core: _Core, found: _lib.LoaderBatch, shape: tuple[int, ...]) -> Any:
        address = ctypes.addressof(found)
        if not found.nbytes:
            core.unused.append(address)
            return self._empty(shape)
        if self._mem == _lib.MEM_GPU and not lib.gpunvme_mem_gpu_is_host():
            memory = _BatchMemory(core, found.ptr, found.nbytes, self._gpu)
            weakref.finalize(memory, core.unused.append, address).atexit = False
            view = memory.viewed(self._dtype, shape)
            return view if self._torch is None else self._torch.from_dlpack(view)
        host = _HostMemory(core, found.ptr, found.nbytes)
        weakref.finalize(host, core.unused.append, address).atexit = False
        array = np.asarray(host)
        if self._torch is None:
            return array.view(self._dtype).reshape(shape)
        name = "bfloat16" if self._dtype == "<V2" else np.dtype(self._dtype).name
        return self._torch.from_numpy(array).view(getattr(self._torch, name)).reshape(shape)

    def _empty(self, shape: tuple[int, ...]) -> Any:
        if self._torch is None:
            return np.empty(shape, self._dtype)
        name = "bfloat16" if self._dtype == "<V2" else np.dtype(self._dtype).name
        on_gpu = self._mem == _lib.MEM_GPU and not lib.gpunvme_mem_gpu_is_host()
        return self._torch.empty(shape, dtype=getattr(self._torch, name),
                                 device=f"cuda:{self._gpu}" if on_gpu else "cpu")

    # -- Where it is --

    def state_dict(self) -> dict[str, int]:
        """Where the caller is: behind the last batch that it got, whatever was read ahead.

        Four numbers, the same on all ranks. A loader of the same data goes on there, with any
        number of ranks.
        """
        state = _lib.SamplerState()
        core = self._now()
        with core.lock:
            lib.gpunvme_loader_get_state(core.handle, ctypes.byref(state))
        return {name: getattr(state, name) for name in _STATE}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Goes to a state. ArgumentError: it is of other data or of another order."""
        try:
            numbers = [count(name, state[name]) for name in _STATE]
        except (KeyError, TypeError) as why:
            raise argument(f"a state has {', '.join(_STATE)}: {why}") from None
        found = _lib.SamplerState(*numbers)
        core = self._now()
        with core.lock:
            check(lib.gpunvme_loader_set_state(core.handle, ctypes.byref(found)))

    def set_epoch(self, epoch: int) -> None:
        """Goes to the beginning of an epoch."""
        core = self._now()
        with core.lock:
            check(lib.gpunvme_loader_set_epoch(core.handle, count("epoch", epoch)))

    @property
    def depth(self) -> int:
        """Batches that are read ahead; may be set at any time."""
        return self._depth

    @depth.setter
    def depth(self, depth: int) -> None:
        core = self._now()
        with core.lock:
            check(lib.gpunvme_loader_set_depth(core.handle, depth_of(depth)))
        self._depth = depth

    def prefetch(self) -> None:
        """Begins reads for which there is room; iteration does so, too."""
        core = self._now()
        with core.lock:
            self._release_unused(core)
            lib.gpunvme_loader_prefetch(core.handle)

    def stats(self) -> LoaderStats:
        """What it has done so far."""
        found = _lib.LoaderStats()
        core = self._now()
        with core.lock:
            lib.gpunvme_loader_get_stats(core.handle, ctypes.byref(found))
        return LoaderStats(found.batches, found.samples, found.nbytes, found.nskipped,
                           found.nsubstituted, found.stall_ns / 1e9, found.stalls,
                           found.transfers, dict(zip(_ROUTES, found.routes)), found.ahead,
                           found.ready)

    def path(self) -> tuple[FilesPath, ...]:
        """How the bytes of its files go, as Store.path(): a report for each way that files have.

        Bytes are summed over the files of a report, and are all that were read since the data set
        was opened, by other loaders too. The way of the most bytes is the first.
        """
        ways: dict[tuple[str, ...], list[tuple[str, Path]]] = {}
        for opened in self._now().opened:
            for uri, path in opened.paths():
                way = (path.backend, path.gpu_route, path.how, path.why_not)
                ways.setdefault(way, []).append((uri, path))
        found = [_joined(files) for files in ways.values()]
        return tuple(sorted(found, key=lambda one: -sum(one.bytes_read.values())))

    def close(self) -> None:
        """Ends reading ahead; memory of batches stays until nothing refers to it."""
        self._core = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (f"<gpunvme.data.Loader of {self._length} batches an epoch"
                f"{', closed' if self._core is None else ''}>")


def _joined(files: Sequence[tuple[str, Path]]) -> FilesPath:
    """The report of files whose bytes go one way."""
    def total(of: Sequence[dict[str, int]]) -> dict[str, int]:
        return {route: sum(one[route] for one in of) for route in of[0]}

    paths = [path for _, path in files]
    return FilesPath(**{**vars(paths[0]), "bytes_read": total([one.bytes_read for one in paths]),
                        "bytes_written": total([one.bytes_written for one in paths])},
                     files=tuple(uri for uri, _ in files))


def _copied(address: int | None, n: int) -> NDArray[np.int64]:
    if not n or not address:
        return np.zeros(n, np.int64)
    return np.frombuffer(memoryview((ctypes.c_int64 * n).from_address(address)), np.int64).copy()
