# SPDX-License-Identifier: BSD-3-Clause
# mypy: disable-error-code="import-not-found"
"""Fills torch's modules from files, in the memory of their parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from .. import _lib
from ._files import Files, Tensor, refuse
from ._load import Parts, load
from ._target import CODES, Devices, Target, target

if TYPE_CHECKING:
    from ..engine import Engine
    from ._files import Name


_DIRECT = {"cpu", "cuda"}  # devices whose memory the library writes to
# Types that the library converts to each other while it loads.
_CONVERTED = {"F16": _lib.DTYPE_F16, "BF16": _lib.DTYPE_BF16, "F32": _lib.DTYPE_F32}


@cache
def _target(device: Any) -> Target:
    return target("pt", device)


class _Slot:
    """A parameter or buffer of a module, under all the names that it has."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor
        self.names: list[str] = []
        self.places: list[tuple[Any, str]] = []  # module, name there
        self.source: Tensor | None = None  # what it is filled with
        self.new: Any = None  # its memory if that is not the old one
        self.to: Target | None = None
        self.dtype = 0  # what the source is converted to, as the library counts; 0: nothing else

    @property
    def memory(self) -> Any:
        return self.tensor if self.new is None else self.new


def _slots(module: Any) -> Iterator[_Slot]:
    """The tensors of a module's state_dict(), each once."""
    found: dict[int, _Slot] = {}
    for prefix, part in module.named_modules(remove_duplicate=False):
        skipped = part._non_persistent_buffers_set
        held = [*part._parameters.items(),
                *(item for item in part._buffers.items() if item[0] not in skipped)]
        for leaf, tensor in held:
            if tensor is not None:
                slot = found.setdefault(id(tensor), _Slot(tensor))
                slot.names.append(f"{prefix}.{leaf}" if prefix else leaf)
                slot.places.append((part, leaf))
    yield from found.values()


def _match(module: Any, slots: Sequence[_Slot], files: Files,
           strict: bool) -> tuple[list[str], list[str]]:
    """Finds the source of each slot; returns the missing and the unexpected names."""
    wrong = []
    known = set()
    filled = set()  # memory
    for slot in slots:
        known.update(slot.names)
        name = next((name for name in slot.names if name in files), None)
        if name is None:
            continue
        slot.source = files[name]
        filled.add(_where(slot.tensor))
        shape = _target("cpu").shape(slot.source)
        if shape != tuple(slot.tensor.shape):
            wrong.append(f"{name} has the shape {list(shape)} in the file, and "
                         f"{list(slot.tensor.shape)} in the module")
    # A name that shares the memory of a filled one is not missing.
    missing = [name for slot in slots if slot.source is None for name in slot.names
               if _where(slot.tensor) not in filled]
    unexpected = [name for name in files.index if name not in known]
    if strict and missing:
        wrong.append(f"missing in the files: {', '.join(missing)}")
    if strict and unexpected:
        wrong.append(f"not in the module: {', '.join(unexpected)}")
    if wrong:
        raise RuntimeError(f"can't load {type(module).__name__}: {'; '.join(wrong)}")
    return missing, unexpected


def _where(tensor: Any) -> object:
    if tensor.device.type == "meta":
        return id(tensor)
    return tensor.device, tensor.data_ptr(), tensor.nbytes


def _make_room(slots: Sequence[_Slot], devices: Devices | None, assign: bool) -> None:
    """Allocates new memory for those that can't be filled in place."""
    for slot in slots:
        source, old = slot.source, slot.tensor
        if source is None:
            continue
        if devices is None:
            slot.to = _target("cpu" if old.device.type == "meta" else old.device)
        else:
            slot.to = devices.of(slot.names[0])
        code = CODES.get(str(old.dtype).rpartition(".")[2])
        if code is None:
            refuse(f'"{slot.names[0]}": a file has no type for {old.dtype}')
        empty = torch.empty(0, device=slot.to.device)  # "cuda" is "cuda:0" now
        if assign or old.device.type == "meta" or old.device != empty.device:
            dtype = slot.to.dtype(source.dtype if assign else code)
            slot.new = torch.empty(old.shape, dtype=dtype, device=empty.device)


def _direct(slots: Sequence[_Slot]) -> tuple[list[_Slot], list[_Slot]]:
    """Those that can be read into their own memory, and the others."""
    direct, others = [], []
    last = (torch.device("cpu"), 0)
    for slot in sorted((s for s in slots if s.source and s.source.nbytes),
                       key=lambda s: (str(s.memory.device), s.memory.data_ptr())):
        memory, source = slot.memory, slot.source
        assert source is not None
        plain = (type(memory.data) is torch.Tensor and memory.is_contiguous()
                 and memory.device.type in _DIRECT)
        apart = last[0] != memory.device or memory.data_ptr() >= last[1]
        code = CODES.get(str(memory.dtype).rpartition(".")[2], "")
        if source.dtype in _CONVERTED and source.dtype != code:
            slot.dtype = _CONVERTED.get(code, 0)
        if plain and apart and (source.dtype == code or slot.dtype):
            direct.append(slot)
            last = memory.device, memory.data_ptr() + memory.nbytes
        else:
            others.append(slot)
    return direct, others


def _fill(files: Files, slots: Sequence[_Slot]) -> None:
    direct, others = _direct(slots)
    for each in {s.to for s in slots if s.to is not None}:
        each.ready()
    sources = [s.source for s in direct if s.source is not None]
    parts = Parts([t.address for t in sources], [s.memory.data_ptr() for s in direct],
                  [s.to.mem for s in direct if s.to is not None], sum(t.nbytes for t in sources))
    parts.convert([s.dtype for s in direct])
    load(files, parts, [s.memory for s in direct])
    for slot in direct:
        torch.autograd.graph.increment_version(slot.memory)
    for slot in others:  # one at a time: each is in memory twice
        source, to = slot.source, slot.to
        assert source is not None and to is not None
        once = to.empty(to.shape(source), source.dtype)
        to.ready()
        load(files, Parts([source.address], [to.address(once)], to.mem, source.nbytes), once)
        with torch.no_grad():
            slot.memory.copy_(once)
        to.ready()


def _install(slot: _Slot, assign: bool) -> None:
    """Puts new memory into the module, or into the tensor that it has."""
    old, new = slot.tensor, slot.new
    if not assign and {old.device.type, new.device.type} <= _DIRECT:
        old.data = new
        return
    if isinstance(old, torch.nn.Parameter):
        new = torch.nn.Parameter(new, requires_grad=old.requires_grad)
    for module, leaf in slot.places:
        setattr(module, leaf, new)


def load_model(
    model: torch.nn.Module,
    filename: Name | Sequence[Name],
    strict: bool = True,
    device: Any = None,
    *,
    assign: bool = False,
    device_map: Mapping[str, Any] | None = None,
    require: str | None = None,
    engine: Engine | None = None,
    backend: str | None = None,
) -> tuple[list[str], list[str]]:
    """Fills the parameters and buffers of a module from files, without a second copy of them.

    ``filename``: a path or URI, several of them, or an index. Bytes are read directly into the
    parameters. ``device`` or ``device_map`` (see prefetch()) say where parameters are to be: those
    on another device are moved there, and those on the "meta" device get memory there (on the CPU
    if neither is given). With ``assign`` all parameters get new memory, and the file's types.
    Otherwise a parameter keeps its type. float32, float16 and bfloat16 are converted to each other
    while they are loaded. Other types, and parameters that are not contiguous, are converted or
    copied one by one, so that one tensor at a time is in memory twice.

    Returns the names that the files lack, and those that the module lacks. With ``strict``, any
    such name is a RuntimeError; so is a shape that differs, with or without it. Nothing is changed
    then. Names that share their memory are loaded once, and none of them is missing if one is in
    the files. If the load itself fails, parameters that are filled in place have undefined bytes,
    and the others are unchanged. ``require``, ``engine``: see prefetch().
    """
    files = Files(filename, engine=engine, require=require)
    slots = list(_slots(model))
    missing, unexpected = _match(model, slots, files, strict)
    given = device is not None or device_map is not None
    _make_room(slots, Devices("pt", device, device_map) if given else None, assign)
    _fill(files, slots)
    for slot in slots:
        if slot.new is not None:
            _install(slot, assign)
    return missing, unexpected
