# SPDX-License-Identifier: BSD-3-Clause
# mypy: disable-error-code="import-not-found"
"""Files of torch's tensors, with the functions of ``safetensors.torch``."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..buffers import check_storage
from ._files import Files, refuse
from ._memory_file import memory_file
from ._model import load_model
from ._open import files_of, safe_open
from ._prefetch import load_all
from ._save import Entry, Metadata, to_bytes, to_file
from ._target import CODES, Devices, conversion
from ._together import load_in_group, load_on_each

if TYPE_CHECKING:
    from ..engine import Engine
    from ._files import Name
    from ._load import Path
    from ._prefetch import Plan

__all__ = ["load", "load_copies", "load_file", "load_model", "save", "save_file", "save_model"]


def _shared(tensors: Mapping[str, Any]) -> list[list[str]]:
    """Names of tensors whose bytes overlap, by groups of two or more."""
    storages = defaultdict(list)
    for name, t in tensors.items():
        if t.device.type != "meta" and t.nbytes:
            begin = t.data_ptr()
            span = sum((n - 1) * step for n, step in zip(t.shape, t.stride())) + 1
            key = (t.device, t.untyped_storage().data_ptr())
            storages[key].append((begin, begin + span * t.element_size(), name))
    groups: list[list[str]] = []
    for areas in storages.values():
        group: list[str] = []
        last = 0
        for begin, end, name in sorted(areas):
            if begin >= last:
                groups.append(group := [])
            group.append(name)
            last = max(last, end)
    return [group for group in groups if len(group) > 1]


def _check(tensors: Mapping[str, Any]) -> None:
    """Refuses what safetensors refuses, with the same exceptions."""
    if not isinstance(tensors, dict):
        raise ValueError(f"tensors come as a dict, not as a {type(tensors).__name__}")
    for name, t in tensors.items():
        if not isinstance(t, torch.Tensor):
            raise ValueError(f'"{name}" is a {type(t).__name__}, not a tensor')
        if t.layout != torch.strided:
            raise ValueError(f'tensor "{name}" is sparse: give its to_dense()')
        check_storage(t)
    if shared := _shared(tensors):
        raise RuntimeError(f"tensors share memory, and a file would have it twice: {shared}. "
                           "Save one of each, or a module by save_model()")
    for name, t in tensors.items():
        if not t.is_contiguous():
            raise ValueError(f'tensor "{name}" is not contiguous: give its contiguous()')


def _entries(tensors: Mapping[str, Any], on_host: bool) -> list[Entry]:
    _check(tensors)
    entries = []
    devices = set()
    for name, given in tensors.items():
        t = given.detach().resolve_conj().resolve_neg()
        if t.device.type != "cpu" and (on_host or t.device.type != "cuda"):
            t = t.cpu()
        if t.device.type == "cuda":
            devices.add(t.device)
        code = CODES.get(str(t.dtype).rpartition(".")[2])
        if code is None:
            refuse(f'tensor "{name}": a file has no type for {t.dtype}')
        shape = list(t.shape)
        if code == "F4":
            if not shape:
                refuse(f'tensor "{name}": F4 has a dimension at least')
            shape[-1] *= 2
        entries.append(Entry(name, code, shape, t.data_ptr(), t.nbytes, t))
    for device in devices:
        torch.cuda.current_stream(device).synchronize()
    return entries


def save_file(tensors: dict[str, torch.Tensor], filename: str | os.PathLike[str],
              metadata: Metadata = None) -> None:
    """Writes tensors to a file, which gets its name when all of it is on stable storage.

    Those on a GPU are written directly from its memory, after the work on its current stream.
    Tensors must not change meanwhile. As in safetensors: ValueError for tensors that are sparse or
    not contiguous, RuntimeError for those that share memory. OSError: the file could not be
    written; the name has what it had before.
    """
    to_file(_entries(tensors, on_host=False), filename, metadata)


def save(tensors: dict[str, torch.Tensor], metadata: Metadata = None) -> bytes:
    """The bytes of a file with these tensors."""
    return to_bytes(_entries(tensors, on_host=True), metadata)


def save_model(model: torch.nn.Module, filename: str | os.PathLike[str],
               metadata: Metadata = None, force_contiguous: bool = True) -> None:
    """Writes a module's state_dict(). Of tensors that share memory, only one is written.

    It is one that has all of that memory; RuntimeError if there is none. For each of the others,
    the metadata have its name and the name of the one written.
    """
    tensors = dict(model.state_dict())
    notes = dict(metadata or {})
    for group in _shared(tensors):
        whole = [name for name in group
                 if tensors[name].nbytes == tensors[name].untyped_storage().nbytes()]
        if not whole:
            raise RuntimeError(f"none of {group} has all of the memory that they share")
        kept = min(whole)
        for name in group:
            if name != kept:
                notes.setdefault(name, kept)
                del tensors[name]
    if force_contiguous:
        tensors = {name: t.contiguous() for name, t in tensors.items()}
    save_file(tensors, filename, notes or metadata)


def load_file(filename: Name | Sequence[Name] | safe_open, device: Any = "cpu", *,
              plan: Plan = None, dtype: Any = None, manifest: Path | None = None,
              group: Any = None, backend: str | None = None,
              require: str | None = None,
              engine: Engine | None = None) -> dict[str, torch.Tensor]:
    """The tensors of a file, each with memory of its own.

    ``filename``: a path or URI, several of them, an index, or what safe_open() returned. ``plan``:
    None for all tensors, or a pattern, names, or slices by name: see gpunvme.weights.prefetch().

    ``dtype``: what tensors of float32, float16 and bfloat16 are converted to: one of these, or
    torch.float8_e4m3fn. Then each tensor NAME that is converted is divided by a scale, which is
    returned as the tensor NAME_scale, so that its greatest value becomes 448. ``manifest``: a file
    of checksums that Prefetch.write_manifest() or ``gpunvme weights verify`` wrote. All tensors are
    compared with it where they have landed: DeviceError (GPUNVME_ERR_VERIFY) if one differs. It
    fits neither slices nor tensors that are converted.

    ``group``: a process group of torch.distributed (``dist.group.WORLD`` for all processes), whose
    ranks call it together. Each reads a share of the bytes and sends it to the others, so that all
    are read once. Tensors that the plan takes whole must be the same on all ranks. Slices are read
    by each rank for itself, also if they are equal. If a rank fails, all ranks raise an exception.
    Waits for other ranks have the group's timeout. A rank that is interrupted by Ctrl-C leaves the
    group out of step.

    ``backend``, ``require``, ``engine``: see safe_open().
    """
    def files() -> Files:
        return files_of(filename, engine=engine, require=require)

    if group is not None:
        return load_in_group(files, plan, device, group, dtype, manifest)
    return load_all(files(), Devices("pt", device, None), plan, conversion(dtype), manifest)


def load_copies(filename: Name | Sequence[Name] | safe_open, devices: Sequence[Any], *,
                require: str | None = None,
                engine: Engine | None = None) -> list[dict[str, torch.Tensor]]:
    """All tensors of a file on each of several devices of this process.

    Each device gets its share of the bytes from storage and the rest from the other devices, so
    that all are read once. See load_file().
    """
    return load_on_each(files_of(filename, engine=engine, require=require), devices)


def load(data: bytes) -> dict[str, torch.Tensor]:
    """All tensors in the bytes of a file."""
    with memory_file(data) as name:
        return load_all(Files(name), Devices("pt", "cpu", None))
