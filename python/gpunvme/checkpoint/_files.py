# SPDX-License-Identifier: BSD-3-Clause
# mypy: allow-untyped-calls, disable-error-code="import-not-found"
"""Checkpoint folders: written under a temporary name, renamed when durable, deleted when old.

    ROOT/step-0000000042/    a checkpoint: gets this name when all of it is on stable storage
    ROOT/.saving-…/          one that is being written, or was when its program died
    ROOT/.deleting-…/        one that is being deleted
    ROOT/.lock               writers hold it shared; leftovers are deleted under an exclusive lock

Ranks that write one checkpoint share a .saving- folder. Each adds its part of the manifest when its
own files are on stable storage. The last one joins the parts and renames the folder. Knows neither
tensors nor transfers.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import re
import shutil
import time
import uuid
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import _lib
from ..errors import argument, error

MANIFEST = "manifest.json"
_FORMAT, _VERSION = "gpunvme checkpoint", 1
_STEP = re.compile(r"step-(\d{10,})")
_PATIENCE = 30.0  # seconds to wait while another process deletes leftovers
_EXCHANGE = 2  # RENAME_EXCHANGE
_AT_FDCWD = -100


@dataclass
class Ranks:
    """The processes that write a checkpoint together: this one is ``rank`` of ``world``.

    All have the same ``session``, which differs from that of every other run (a job's id and its
    number of starts), so that parts left by a run that died are never used. They make the same
    saves in the same order. of_group() makes it from torch.distributed. ``timeout``: how many
    seconds a rank waits for the others after it has written its part.
    """

    rank: int
    world: int
    session: str
    timeout: float = 1800.0
    count: int = field(default=0, init=False)  # of saves

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world or not re.fullmatch(r"[\w-]{1,80}", self.session):
            raise argument(f"rank {self.rank} of {self.world}, session {self.session!r}")

    @classmethod
    def of_group(cls, group: Any = None, *, timeout: float = 1800.0) -> Ranks:
        """Of a group of torch.distributed (None: the default one). All of its ranks call it."""
        import torch.distributed as dist

        session = [uuid.uuid4().hex]
        dist.broadcast_object_list(session, group=group, group_src=0)
        return cls(dist.get_rank(group), dist.get_world_size(group), session[0], timeout)


hook: Callable[[str], None] | None = None  # tests end the process in it


def reached(point: str) -> None:
    """Called at each step of a save."""
    if hook is not None:
        hook(point)


# ---- Files ------------------------------------------------------------------------------------


def sync(path: Path) -> None:
    """fsync(2) of a folder or file."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make(path: Path) -> None:
    """os.makedirs() whose result is on stable storage when it returns."""
    if not path.is_dir():
        make(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


def _sum(manifest: Any) -> str:
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
    return f"{_lib.lib.gpunvme_mem_checksum_host(text, len(text)):#018x}"


def write_json(path: Path, manifest: Any) -> None:
    """Writes a file with its own checksum, by a temporary name; the file is synchronized."""
    draft = path.with_name(path.name + ".draft")
    with draft.open("w") as file:
        json.dump({"checksum": _sum(manifest), "manifest": manifest}, file)
        file.flush()
        os.fsync(file.fileno())
    reached("draft")
    draft.rename(path)


def read_json(path: Path) -> Any:
    try:
        content = json.loads(path.read_bytes())
        whole = content["checksum"] == _sum(content["manifest"])
    except (ValueError, KeyError, TypeError):
        whole = False
    if not whole:
        raise error(_lib.ERR_VERIFY, f"{path}: no manifest, or a damaged one")
    return content["manifest"]


def read_manifest(folder: Path) -> Any:
    """The manifest of a checkpoint. FileNotFoundError: the folder has none."""
    manifest = read_json(folder / MANIFEST)
    if manifest.get("format") != _FORMAT or manifest.get("version") != _VERSION:
        raise error(_lib.ERR_FORMAT, f"{folder / MANIFEST}: of format {manifest.get('format')!r}, "
                                     f"version {manifest.get('version')!r}")
    return manifest


def joined(parts: list[Any], step: int | None, session: str) -> Any:
    """The manifest of the parts of all ranks."""
    tensors: dict[str, Any] = {}
    for part in parts:
        for name, tensor in part["tensors"].items():
            first = tensors.setdefault(name, tensor)
            if first is not tensor:
                if any(first[key] != tensor[key] for key in ("dtype", "shape")):
                    raise argument(f"tensor {name}: ranks have it in different types or shapes")
                first["slices"] += tensor["slices"]
    return {
        "format": _FORMAT, "version": _VERSION, "step": step, "session": session,
        "world": len(parts), "time": time.time(), "checksum": "gpunvme-1",
        "trees": [part["tree"] for part in parts], "tensors": tensors,
        "files": {name: size for part in parts for name, size in part["files"].items()},
    }


# ---- What there is ----------------------------------------------------------------------------


def folder_of(root: Path, step: int) -> Path:
    return root / f"step-{step:010d}"


def steps(path: str | os.PathLike[str]) -> list[int]:
    """The steps of the checkpoints in a folder, in ascending order."""
    try:
        names = os.listdir(path)
    except FileNotFoundError:
        return []
    return sorted(int(found[1]) for name in names if (found := _STEP.fullmatch(name)))


def is_whole(folder: Path) -> bool:
    """Whether the manifest is valid and all files have their sizes. Reads no data."""
    try:
        files = read_manifest(folder)["files"]
        return all((folder / name).stat().st_size == size for name, size in files.items())
    except (OSError, ValueError):
        return False


def latest(path: str | os.PathLike[str]) -> str | None:
    """The folder of the checkpoint with the highest step; None if there is none.

    A checkpoint whose files do not have the sizes of its manifest is skipped: no save leaves that,
    so it was damaged later. verify() also compares checksums.
    """
    root = Path(path)
    for step in reversed(steps(root)):
        if is_whole(folder_of(root, step)):
            return str(folder_of(root, step))
    return None


# ---- Locks ------------------------------------------------------------------------------------


class Lock:
    """A shared lock on ROOT/.lock. A child of fork(2) releases it."""

    _held: weakref.WeakSet[Lock] = weakref.WeakSet()

    _fd = -1

    def __init__(self, root: Path) -> None:
        self._fd = os.open(root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        Lock._held.add(self)
        end = time.monotonic() + _PATIENCE
        while not self._try(fcntl.LOCK_SH):
            if time.monotonic() > end:
                self.release()
                raise error(_lib.ERR_BUSY, f"{root / '.lock'} has been locked for {_PATIENCE:g} s")
            time.sleep(0.01)

    def _try(self, how: int) -> bool:
        try:
            fcntl.flock(self._fd, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as why:
            if why.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                raise
            return how == fcntl.LOCK_SH  # no locks here: nothing is ever cleared
        return True

    def alone(self) -> bool:
        """Makes it exclusive if no other process holds it; otherwise it is lost."""
        return self._try(fcntl.LOCK_EX)

    def __del__(self) -> None:
        self.release()

    def release(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def _in_child() -> None:
    for lock in list(Lock._held):
        lock.release()


os.register_at_fork(after_in_child=_in_child)


# ---- A checkpoint that is being written -------------------------------------------------------


def _exchange(a: Path, b: Path) -> None:
    exchange = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if exchange is None:
        raise error(_lib.ERR_UNSUPPORTED, "the C library has no renameat2()")
    if exchange(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), _EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(b))


class Draft:
    """A folder in which a checkpoint is written, by one rank or by several.

    It is renamed to ``target``. Call commit(), finish() or abandon(), and then end().
    """

    def __init__(self, target: Path, ranks: Ranks | None, replace: bool) -> None:
        self.target = target
        self.root = target.parent
        self.rank, self.world = (ranks.rank, ranks.world) if ranks else (0, 1)
        self._timeout = ranks.timeout if ranks else 0.0
        self._replace = replace
        self.session = f"{ranks.session}.{ranks.count}" if ranks else uuid.uuid4().hex
        if ranks:
            ranks.count += 1
        make(self.root)
        if not replace and target.exists():
            raise error(_lib.ERR_EXISTS, f"{target}: there is this checkpoint already")
        self.lock = Lock(self.root)
        self.folder = self.root / f".saving-{target.name}-{self.session}"
        try:
            reached("locked")
            self.folder.mkdir(exist_ok=self.world > 1)
            reached("folder")
        except BaseException:
            self.lock.release()
            raise

    def commit(self, part: Any, step: int | None, stop: Callable[[], bool]) -> bool:
        """Call it when this rank's files are on stable storage; returns when all of it is.

        True: this rank has renamed the folder.
        """
        if self.world == 1:
            self.finish(joined([part], step, self.session))
            return True
        folder = os.open(self.folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            write_json(self.folder / f"part-{self.rank}", part)
            os.fsync(folder)  # which the last rank may have renamed since
        finally:
            os.close(folder)
        reached("part")
        names = [f"part-{rank}" for rank in range(self.world)]
        if not all((self.folder / name).exists() for name in names) or not self._is_last():
            self._wait(stop)
            return False
        parts = [read_json(self.folder / name) for name in names]
        self.finish(joined(parts, step, self.session))
        for name in (*names, "last"):
            (self.target / name).unlink(missing_ok=True)
        return True

    def _is_last(self) -> bool:
        """Elects the rank that joins the parts, since several may see all of them."""
        try:
            (self.folder / "last").touch(exist_ok=False)
        except (FileExistsError, FileNotFoundError):
            return False
        return True

    def finish(self, manifest: Any) -> None:
        """Writes the manifest and renames the folder."""
        write_json(self.folder / MANIFEST, manifest)
        reached("manifest")
        sync(self.folder)
        reached("synchronized")
        if self._replace and self.target.exists():
            _exchange(self.folder, self.target)
            reached("exchanged")
            sync(self.root)
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            try:
                self.folder.rename(self.target)
            except OSError as why:
                if why.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                raise error(_lib.ERR_EXISTS,
                            f"{self.target}: another one has saved it meanwhile") from None
            reached("renamed")
            sync(self.root)
        reached("committed")

    def _wait(self, stop: Callable[[], bool]) -> None:
        """Waits until the last rank has renamed the folder."""
        end, pause = time.monotonic() + self._timeout, 0.01
        while not self._is_there():
            for name in self.root.glob(f"{self.folder.name}/failed-*"):
                raise error(_lib.ERR_CANCELED, f"{self.target}: rank {name.name[7:]} failed: "
                                               f"{name.read_text(errors='replace')}")
            if stop():
                raise error(_lib.ERR_CANCELED, f"{self.target}: canceled")
            if time.monotonic() > end:
                raise error(_lib.ERR_TIMEOUT, f"{self.target}: rank {self.rank} has waited "
                                              f"{self._timeout:g} s for the others")
            time.sleep(pause)
            pause = min(0.5, pause * 1.5)

    def _is_there(self) -> bool:
        try:
            return bool(read_manifest(self.target)["session"] == self.session)
        except (OSError, ValueError):
            return False

    def abandon(self, why: BaseException) -> None:
        """Deletes it. Of several ranks, each deletes its own files and notifies the others."""
        if self.world == 1:
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        try:
            for name in self.folder.glob(f"{self.rank:05d}-*"):
                name.unlink()
            written = self.folder / f"{self.rank:05d}-why"  # no other rank reads half of it
            written.write_text(str(why))
            written.rename(self.folder / f"failed-{self.rank}")
        except OSError:
            pass  # others run into their deadline

    def end(self) -> None:
        """Deletes leftovers of programs that died, if no other is writing, and unlocks."""
        try:
            if self.lock.alone():
                for name in os.listdir(self.root):
                    if name.startswith((".saving-", ".deleting-")):
                        shutil.rmtree(self.root / name, ignore_errors=True)
        except OSError:
            pass  # a later save clears it
        finally:
            self.lock.release()


def retain(root: Path, keep: int, written: Path) -> None:
    """Deletes all checkpoints but the ``keep`` with the highest steps and the one just written."""
    for step in steps(root)[:-keep]:
        folder = folder_of(root, step)
        if folder != written:
            doomed = root / f".deleting-{uuid.uuid4().hex}"
            try:
                folder.rename(doomed)
            except FileNotFoundError:
                continue  # another writer was faster
            reached("doomed")
            shutil.rmtree(doomed, ignore_errors=True)
            reached("deleted")
