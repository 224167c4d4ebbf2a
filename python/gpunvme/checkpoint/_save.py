# SPDX-License-Identifier: BSD-3-Clause
# mypy: allow-untyped-calls, disable-error-code="import-not-found"
"""Saving: the caller's thread takes the snapshot, threads of the save do the rest.

Workers take chunks, submit each as one transfer, and compute its checksums. One more thread waits
for the transfers, synchronizes the files and renames the folder. These threads are not daemons, so
the interpreter waits for them when it ends.
"""

from __future__ import annotations

import ctypes
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal, NamedTuple

from .. import _lib
from .._safetensors import header
from ..buffers import checksum
from ..engine import Engine
from ..errors import argument, error
from ..future import Future
from ..store import Store
from ..store import open as open_store
from ._files import Draft, Ranks, folder_of, reached, retain, steps, sync
from ._jobs import WORKERS, run_all
from ._memory import BLOCK, Chunk, Snapshot, Staged, cut, in_place, packed
from ._state import Encoder, Leaf


class Progress(NamedTuple):
    """The bytes of tensors that have been written, and the total."""

    written: int
    total: int


# Files of a large state, at least, and bytes of each: the kernel lets one thread at a time write new
# pages of a file, so there are several for each thread of the engine.
_FILES, _LEAST = 64, 16 << 20
_FLYING = 64  # chunks at a time


class Files:
    """The safetensors files of one rank in a folder, and how to write them.

    All ``leaves`` have data. write() may be called by several threads.
    """

    def __init__(self, folder: Path, rank: int, leaves: Sequence[Leaf], step: int | None,
                 shard_nbytes: int, engine: Engine | None = None) -> None:
        self.folder = folder
        self._engine = engine
        self.chunks: list[Chunk] = []
        self.table: dict[str, Any] = {}
        self.sizes: dict[str, int] = {}
        self._headers: list[bytes] = []
        self._fds: list[int] = []
        self._stores: list[Store] = []
        self._sums: dict[tuple[str, tuple[int, ...]], list[str]] = {}
        metadata = {"format": "pt"} | ({} if step is None else {"step": str(step)})
        share = max(_LEAST, sum(leaf.nbytes for leaf in leaves) // _FILES)
        places: list[float] = []
        for number, shard in enumerate(_shards(leaves, min(share, shard_nbytes))):
            name = f"{rank:05d}-{number:05d}.safetensors"
            rows = [(key, leaf.dtype, leaf.shape, leaf.nbytes) for key, leaf in _named(shard)]
            head = header(rows, metadata)
            chunks = cut(number, len(head), shard)
            self.chunks += chunks
            places += [i / len(chunks) for i in range(len(chunks))]
            self._headers.append(head)
            at = len(head)
            for leaf in shard:
                self._describe(leaf, rank, name, at)
                at += leaf.nbytes
            self.sizes[name] = at
        # All files are written at once, each from its beginning to its end.
        self.chunks = [self.chunks[i] for i in sorted(range(len(places)), key=places.__getitem__)]
        self.nbytes = sum(chunk.nbytes for chunk in self.chunks)

    def _describe(self, leaf: Leaf, rank: int, file: str, at: int) -> None:
        sums = self._sums[leaf.name, leaf.offsets] = [""] * -(-leaf.nbytes // BLOCK)
        tensor = self.table.setdefault(leaf.name, {
            "dtype": leaf.dtype, "shape": leaf.whole, "kind": leaf.kind, "slices": []})
        tensor["slices"].append({"rank": rank, "file": file, "at": at, "nbytes": leaf.nbytes,
                                 "offsets": leaf.offsets, "shape": leaf.shape, "sums": sums})

    def open(self) -> None:
        for (name, size), head in zip(self.sizes.items(), self._headers):
            fd = os.open(self.folder / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC,
                         0o666)
            self._fds.append(fd)
            reached("created")
            store = open_store(fd, "r+", engine=self._engine)
            self._stores.append(store)
            store.resize(size)
            store.pwrite(head)

    def submit(self, staged: Staged) -> Future:
        """Begins to write a chunk."""
        chunk = staged.chunk
        store = self._stores[chunk.file]
        vecs = (_lib.Vec * len(staged.views))(
            *[_lib.Vec(v.ptr, v.nbytes, v.mem) for v in staged.views])
        io = _lib.Io(op=_lib.OP_WRITE, offset=chunk.offset, vecs=ctypes.addressof(vecs),
                     n=len(vecs))
        return store._submit(io, staged.views, (staged, vecs), chunk.nbytes, None)

    def sum(self, staged: Staged) -> None:
        """Notes the checksums of a chunk."""
        for block, view in zip(staged.chunk.blocks, staged.blocks):
            sums = self._sums[block.leaf.name, block.leaf.offsets]
            sums[block.start // BLOCK] = f"{checksum(view):#018x}"

    def write(self) -> None:
        """Writes all tensors from their own memory; returns when they are on stable storage."""
        def one(staged: Staged) -> None:
            future = self.submit(staged)
            self.sum(staged)
            self.whole(staged, future.result())

        try:
            self.open()
            run_all([partial(one, in_place(chunk)) for chunk in self.chunks], _FLYING)
            self.sync()
        finally:
            self.close()

    def whole(self, staged: Staged, moved: int) -> None:
        if moved != staged.chunk.nbytes:
            raise error(_lib.ERR_IO, f"{self.folder}: {moved} of {staged.chunk.nbytes} bytes were "
                                     "written")

    def sync(self) -> None:
        """Synchronizes files and folder: they are on stable storage then."""
        for fd in self._fds:
            os.fsync(fd)  # without a deadline, which a store's flush() has
            reached("flushed")
        sync(self.folder)

    def close(self) -> None:
        for store in self._stores:
            store.close()
        while self._fds:
            os.close(self._fds.pop())


def _shards(leaves: Iterable[Leaf], most: int) -> list[list[Leaf]]:
    """Leaves by file: those with larger elements first, so that all elements are aligned."""
    shards: list[list[Leaf]] = [[]]
    nbytes = 0
    for leaf in leaves:
        if shards[-1] and nbytes + leaf.nbytes > most:
            shards.append([])
            nbytes = 0
        shards[-1].append(leaf)
        nbytes += leaf.nbytes
    return [sorted(shard, key=lambda leaf: (-leaf.data.dtype.itemsize, str(leaf.device)))
            for shard in shards]


def _named(leaves: list[Leaf]) -> list[tuple[str, Leaf]]:
    """Leaves with their names in a file; slices of one tensor need different ones."""
    used: set[str] = set()
    named = []
    for leaf in leaves:
        name = leaf.name
        while name in used or name == "__metadata__":
            name += "@" + ",".join(map(str, leaf.offsets))
        used.add(name)
        named.append((name, leaf))
    return named


class Save:
    """A save in progress, or one that has ended. Methods may be called from several threads."""

    def __init__(self, draft: Draft, files: Files, tree: Any, step: int, keep: int | None,
                 memory: int | None, snapshot: Literal["pinned", "device"] | None) -> None:
        self.path = str(draft.target)  #: the checkpoint's folder, once it is complete
        self.step = step
        self._draft, self._files, self._tree, self._keep = draft, files, tree, keep
        self._room = None if memory is None else max(1, memory // BLOCK)
        self._lock = threading.Condition()
        self._snapshot = snapshot and Snapshot(snapshot == "device", self._released)
        self._queue: SimpleQueue[Staged | None] = SimpleQueue()
        self._submitted: SimpleQueue[tuple[Staged, Future | None] | None] = SimpleQueue()
        self._may_fly = threading.Semaphore(_FLYING)
        self._flying: set[Future] = set()
        self._written = self._used = 0
        self._error: BaseException | None = None
        self._canceled = False
        self._runs = threading.Lock()  # taken by the thread that does
        self._ended = threading.Event()

    def __repr__(self) -> str:
        state = "done" if self.done() else "{} of {} bytes".format(*self.progress())
        return f"<gpunvme.checkpoint.Save {self.path!r}, {state}>"

    # -- The caller's side --

    def result(self, timeout: float | None = None) -> str:
        """Waits until the checkpoint is on stable storage, and returns its folder.

        Raises the error of the save. DeadlineError (a TimeoutError): it has not ended within
        ``timeout`` seconds; the save goes on.
        """
        failure = self.exception(timeout)
        if failure is not None:
            raise failure
        return self.path

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Waits as result() does, and returns the error of the save, or None."""
        if not self._ended.wait(timeout):
            raise error(_lib.ERR_TIMEOUT, f"{self!r}: it has not ended in {timeout:g} s")
        return self._error

    def done(self) -> bool:
        """Whether it has ended. Does not wait."""
        return self._ended.is_set()

    def cancel(self) -> bool:
        """Ends it soon, with CanceledError, unless it is too late. False: it has ended already."""
        with self._lock:
            self._canceled = True
            flying = list(self._flying)
            self._lock.notify_all()
        for future in flying:
            future.cancel()
        return not self.done()

    def progress(self) -> Progress:
        """How many bytes have been written."""
        return Progress(self._written, self._files.nbytes)

    def wait_snapshot(self, stream: Any = None) -> None:
        """Makes later work on ``stream`` wait until the snapshot has been taken.

        None: the current stream of each GPU. The call itself does not wait. It is needed only after
        ``defer=True``.
        """
        if self._snapshot:
            self._snapshot.wait(stream)

    def _begin(self) -> None:
        """Starts the threads, and returns when the snapshot has been taken (or submitted)."""
        n = min(WORKERS, len(self._files.chunks))
        try:
            if self._snapshot:
                self._snapshot.reserve(self._files.chunks, self._room)
            _started(self._run, n)
            with _last_lock:
                _last[str(self._draft.root), self._draft.rank] = self
            for chunk in self._files.chunks:
                if not self._take():
                    break
                self._queue.put(self._snapshot.copy(chunk) if self._snapshot else in_place(chunk))
            if self._snapshot:
                self._snapshot.end()
        except BaseException as why:
            self._fail(why)
            self._run(0)  # Ctrl-C may have come before the thread was started
            raise
        finally:
            for _ in range(n):
                self._queue.put(None)

    def _take(self) -> bool:
        """Waits for room in memory. False: the save has failed."""
        with self._lock:
            while not self._stopped():
                if self._room is None or self._used < self._room:
                    self._used += 1
                    return True
                self._lock.wait()
        return False

    def _released(self) -> None:
        with self._lock:
            self._used -= 1
            self._lock.notify()

    # -- The threads' side --

    def _stopped(self) -> bool:
        return self._canceled or self._error is not None

    def _fail(self, why: BaseException) -> None:
        with self._lock:
            if self._error is None:
                self._error = why
            self._lock.notify_all()

    def _work(self) -> None:
        """Submits chunks, which _collect() gets."""
        while (staged := self._queue.get()) is not None:
            future = None
            self._may_fly.acquire()
            try:
                if not self._stopped():
                    staged.wait()
                    future = self._submit(staged)
                    self._files.sum(staged)
            except BaseException as why:
                self._fail(why)
            self._submitted.put((staged, future))
            del staged
        self._submitted.put(None)

    def _submit(self, staged: Staged) -> Future:
        future = self._files.submit(staged)
        with self._lock:
            self._flying.add(future)
        if self._canceled:
            future.cancel()
        return future

    def _collect(self) -> None:
        """Waits for chunks, until a worker has ended."""
        while (submitted := self._submitted.get()) is not None:
            staged, future = submitted
            try:
                try:
                    if future is not None:
                        self._files.whole(staged, future.result())
                        reached("written")
                finally:
                    with self._lock:
                        if future is not None:
                            self._flying.discard(future)
                            self._written += staged.chunk.nbytes
                    self._may_fly.release()
                    staged.release()
            except BaseException as why:
                self._fail(why)
            del staged, submitted

    def _run(self, n: int) -> None:
        """From the files to the end, with ``n`` workers. The second call does nothing."""
        if not self._runs.acquire(blocking=False):
            return
        workers = 0
        try:
            if not self._stopped():
                self._files.open()
                for _ in range(n):
                    _started(self._work)
                    workers += 1
        except BaseException as why:
            self._fail(why)
        for _ in range(workers):
            self._collect()
        try:
            self._finish()
        except BaseException as why:
            self._error = self._error or why
            self._draft.abandon(self._error)
        finally:
            self._files.chunks.clear()  # they hold tensors
            self._draft.end()
            self._ended.set()

    def _finish(self) -> None:
        """All workers have ended."""
        draft, files = self._draft, self._files
        try:
            if not self._stopped():
                files.sync()
                reached("files")
        finally:
            files.close()
        if self._error is not None:
            raise self._error
        if self._canceled:
            raise error(_lib.ERR_CANCELED, f"{self.path}: canceled")
        part = {"tree": self._tree, "tensors": files.table, "files": files.sizes}
        if draft.commit(part, self.step, lambda: self._canceled) and self._keep:
            try:
                retain(draft.root, self._keep, draft.target)
            except OSError as why:
                warnings.warn(f"{self.path} is there, but old checkpoints could not be deleted: "
                              f"{why}", RuntimeWarning, stacklevel=1)


def _started(target: Callable[..., None], *args: Any) -> threading.Thread:
    thread = threading.Thread(target=target, args=args, name="gpunvme checkpoint", daemon=False)
    thread.start()
    return thread


# ---- Calls ------------------------------------------------------------------------------------

# The last save into each folder, by each rank: a child of fork(2) has none of the threads.
_last: weakref.WeakValueDictionary[tuple[str, int], Save] = weakref.WeakValueDictionary()
_last_lock = threading.Lock()


def _in_child() -> None:
    global _last_lock
    _last_lock = threading.Lock()
    for save in list(_last.values()):
        if not save.done():
            save._error = error(_lib.ERR_UNSUPPORTED, "a save that the parent process began")
            save._ended.set()
    _last.clear()


os.register_at_fork(after_in_child=_in_child)


def _prepared(state: dict[Any, Any], path: str | os.PathLike[str], step: int | None,
              keep: int | None, ranks: Ranks | None, replace: bool, shard_nbytes: int,
              memory: int | None, snapshot: Literal["pinned", "device"] | None,
              engine: Engine | None) -> Save:
    if keep is not None and keep < 1:
        raise argument(f"keep={keep}: at least one checkpoint is kept")
    if snapshot not in (None, "pinned", "device"):
        raise argument(f'snapshot="{snapshot}": there are "pinned" and "device"')
    if step is None and ranks:
        raise argument("ranks that save together say which step it is")
    if step is not None and step < 0:
        raise argument(f"step {step} is negative")
    encoder = Encoder()
    tree = encoder.tree(state)
    leaves = [leaf for leaf in encoder.leaves if leaf.data is not None]
    root = Path(os.path.abspath(path))
    with _last_lock:
        before = _last.get((str(root), ranks.rank if ranks else 0))
    if before is not None:
        before.exception()
    if step is None:
        step = (steps(root) or [-1])[-1] + 1
    if snapshot is None:
        for leaf in leaves:
            leaf.data = packed(leaf.data)
        wait_for_gpus(leaves)
    draft = Draft(folder_of(root, step), ranks, replace)
    try:
        files = Files(draft.folder, draft.rank, leaves, step, shard_nbytes, engine)
        return Save(draft, files, tree, step, keep, memory, snapshot)
    except BaseException as why:
        draft.abandon(why)
        draft.end()
        raise


def save_async(state: dict[Any, Any], path: str | os.PathLike[str], *, step: int | None = None,
               keep: int | None = None, ranks: Ranks | None = None, replace: bool = False,
               snapshot: Literal["pinned", "device"] = "pinned", defer: bool = False,
               memory: int | None = None, shard_nbytes: int = 4 << 30,
               engine: Engine | None = None) -> Save:
    """Begins to save ``state`` as a checkpoint in the folder ``path``, and returns a Save.

    This takes a snapshot, so tensors may be changed as soon as it returns: those on the CPU have
    been copied, and later work on the GPUs' current streams waits for the copies. With ``defer``
    that work does not wait, and runs while the copies are made: call ``wait_snapshot()`` of the
    Save before work that changes a tensor. ``snapshot`` says where copies of tensors on a GPU go:
    "pinned" is host memory, over PCIe; "device" is the GPU's own memory, which takes milliseconds,
    and as much memory as the state. ``memory`` limits the copies, in bytes: if the state is larger,
    this call waits until enough has been written.

    ``state`` is a dict of dicts, lists, tuples, numbers, strings, bytes, tensors, arrays and
    Slices; ArgumentError: it has anything else. ``step`` names the checkpoint (None: one more than
    the last). ``keep``: once the checkpoint is complete, all others are deleted but the ``keep``
    with the highest steps. ``ranks``: the processes that save it together. ExistsError: there is a
    checkpoint of this step; with ``replace`` the new one replaces it atomically, if the file system
    supports that. A large state is spread over 64 files or more, each of up to ``shard_nbytes``
    bytes of tensors, or one larger tensor. ``engine`` serves the files instead of the process's.

    A previous save into the same folder is waited for first. Errors of the folder are raised here,
    errors of writing by result().
    """
    save = _prepared(state, path, step, keep, ranks, replace, shard_nbytes, memory, snapshot,
                     engine)
    save._begin()
    try:
        if not defer:
            save.wait_snapshot()
    except BaseException:
        save.cancel()
        raise
    return save


def save(state: dict[Any, Any], path: str | os.PathLike[str], *, step: int | None = None,
         keep: int | None = None, ranks: Ranks | None = None, replace: bool = False,
         shard_nbytes: int = 4 << 30, engine: Engine | None = None) -> str:
    """Saves, and returns the checkpoint's folder when it is on stable storage.

    As save_async(), but without a snapshot: tensors are written from their own memory. Ctrl-C
    cancels it.
    """
    begun = _prepared(state, path, step, keep, ranks, replace, shard_nbytes, None, None, engine)
    try:
        begun._begin()
        return begun.result()
    except BaseException:
        begun.cancel()
        begun.exception()
        raise


def wait_for_gpus(leaves: list[Leaf]) -> None:
    """Waits for the work on the current streams of the leaves' GPUs."""
    devices = {leaf.device for leaf in leaves} - {None}
    if devices:
        import torch

        for device in devices:
            torch.cuda.current_stream(device).synchronize()
