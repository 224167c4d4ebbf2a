# SPDX-License-Identifier: BSD-3-Clause
# mypy: disable-error-code="import-not-found"
"""Fills torch's modules from files, in the memory of their parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from ..buffers import check_storage
from ._files import Files, Tensor, refuse
from ._group import Group
from ._load import Parts, load
from ._open import files_of, safe_open
from ._share import Memory, Shared, Spread, flat
from ._state import Handed
from ._target import CODES, NUMBERS, Devices, Target, target

if TYPE_CHECKING:
    from ..engine import Engine
    from ._files import Name


_DIRECT = {"cpu", "cuda"}  # devices whose memory the library writes to


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


def _split(slots: Sequence[_Slot], handed: Handed) -> tuple[list[_Slot], list[_Slot]]:
    """Those that are filled here, and those that load_state_dict() fills."""
    places = {_where(slot.tensor) for slot in slots if any(name in handed for name in slot.names)}
    mine: list[_Slot] = []
    theirs: list[_Slot] = []  # and what shares their memory
    for slot in slots:
        (theirs if _where(slot.tensor) in places else mine).append(slot)
    handed.others.update(name for slot in theirs for name in slot.names)
    return mine, theirs


def _match(module: Any, slots: Sequence[_Slot], files: Files, strict: bool,
           handed: Handed) -> tuple[list[str], list[str]]:
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
    unexpected = [name for name in files.index if name not in known and name not in handed]
    _complain(module, wrong, missing if strict else [], unexpected if strict else [])
    return missing, unexpected


def _complain(module: Any, wrong: list[str], missing: list[str], unexpected: list[str]) -> None:
    if missing:
        wrong.append(f"missing in the files: {', '.join(missing)}")
    if unexpected:
        wrong.append(f"not in the module: {', '.join(unexpected)}")
    if wrong:
        raise RuntimeError(f"can't load {type(module).__name__}: {'; '.join(wrong)}")


def _where(tensor: Any) -> object:
    if torch.nn.parameter.is_lazy(tensor) or tensor.device.type == "meta":
        return id(tensor)
    return tensor.device, tensor.data_ptr(), tensor.nbytes


def _home(slot: _Slot, devices: Devices | None) -> tuple[Target, Any]:
    """Where its memory is to be, and that device."""
    old = slot.tensor.device
    if devices is None:
        to = _target("cpu" if old.type == "meta" else old)
    else:
        to = devices.of(slot.names[0])
    return to, torch.empty(0, device=to.device).device  # "cuda" is "cuda:0" now


def _make_room(slots: Sequence[_Slot], devices: Devices | None, assign: bool) -> None:
    """Allocates new memory for those that can't be filled in place."""
    for slot in slots:
        source, old = slot.source, slot.tensor
        if source is None:
            continue
        slot.to, device = _home(slot, devices)
        code = CODES.get(str(old.dtype).rpartition(".")[2])
        if code is None:
            refuse(f'"{slot.names[0]}": a file has no type for {old.dtype}')
        if assign or old.device != device:
            dtype = slot.to.dtype(source.dtype if assign else code)
            slot.new = torch.empty(old.shape, dtype=dtype, device=device)


def _direct(slots: Sequence[_Slot]) -> tuple[list[_Slot], list[_Slot]]:
    """Those that can be read into their own memory, and the others."""
    direct, others = [], []
    last = (torch.device("cpu"), 0)
    for slot in sorted((s for s in slots if s.source and s.source.nbytes),
                       key=lambda s: (str(s.memory.device), s.memory.data_ptr())):
        memory, source = slot.memory, slot.source
        assert source is not None
        check_storage(memory)
        plain = (type(memory.data) is torch.Tensor and memory.is_contiguous()
                 and memory.device.type in _DIRECT)
        apart = last[0] != memory.device or memory.data_ptr() >= last[1]
        code = CODES.get(str(memory.dtype).rpartition(".")[2], "")
        if source.dtype in NUMBERS and source.dtype != code:
            slot.dtype = NUMBERS.get(code, 0)
        if plain and apart and (source.dtype == code or slot.dtype):
            direct.append(slot)
            last = memory.device, memory.data_ptr() + memory.nbytes
        else:
            others.append(slot)
    return direct, others


class _Work(NamedTuple):
    """What is to be loaded into a module."""

    files: Files
    slots: Sequence[_Slot]
    missing: list[str]
    unexpected: list[str]
    direct: Sequence[_Slot]
    others: Sequence[_Slot]
    theirs: Sequence[_Slot]  # of load_state_dict()

    def targets(self) -> set[Target]:
        return {slot.to for slot in self.slots if slot.to is not None}


def _fill(work: _Work) -> None:
    files, direct = work.files, work.direct
    for each in work.targets():
        each.ready()
    sources = [s.source for s in direct if s.source is not None]
    parts = Parts([t.address for t in sources], [s.memory.data_ptr() for s in direct],
                  [s.to.mem for s in direct if s.to is not None], sum(t.nbytes for t in sources))
    parts.convert([s.dtype for s in direct])
    load(files, parts, [s.memory for s in direct])
    for slot in work.others:  # one at a time: each is in memory twice
        source, to = slot.source, slot.to
        assert source is not None and to is not None
        once = to.empty(to.shape(source), source.dtype)
        to.ready()
        load(files, Parts([source.address], [to.address(once)], to.mem, source.nbytes), once)
        _copy(slot, once)


def _copy(slot: _Slot, once: Any) -> None:
    assert slot.to is not None
    with torch.no_grad():
        slot.memory.copy_(once)
    slot.to.ready()


# ---- In a process group -------------------------------------------------------------------------


def _in_order(slots: Sequence[_Slot]) -> list[_Slot]:
    """In the order of the files."""
    return sorted(slots, key=lambda s: (s.source.file, s.source.offset) if s.source else (0, 0))


def _same(work: _Work) -> list[Any]:
    """What all ranks of a group must have."""
    return [(slot.source[:4] if slot.source else None, slot.memory.dtype, kind)
            for kind, slots in (("direct", work.direct), ("other", work.others))
            for slot in _in_order(slots)]


def _fill_together(work: _Work, spread: Spread, ranks: Group) -> None:
    for each in work.targets():
        each.ready()
    error = spread.run(work.files, [slot.memory for slot in work.direct])
    for slot in _in_order(work.others):
        once, spread = ranks.together(partial(_once, slot, ranks))
        error = spread.run(work.files, once) or error
        try:
            _copy(slot, once)
        except Exception as why:  # noqa: BLE001  (raised when the other ranks know)
            error = error or why
    ranks.raise_any(error)
    for each in work.targets():
        each.ready()


def _once(slot: _Slot, ranks: Group) -> tuple[tuple[Any, Spread], list[Any]]:
    """For together(): memory for a tensor that is copied from there, and its load."""
    source, to = slot.source, slot.to
    assert source is not None and to is not None
    once = to.empty(to.shape(source), source.dtype)
    to.ready()
    return (once, _spread([slot], [once], [0], ranks)), []


def _spread(slots: Sequence[_Slot], memory: Sequence[Any], dtypes: Sequence[int],
            ranks: Group) -> Spread:
    sources = [slot.source for slot in slots if slot.source is not None]
    mem = [slot.to.mem for slot in slots if slot.to is not None]
    mine = {ranks.rank: Memory([flat(t) for t in memory], mem[0])} if mem else {}
    shared = Shared(np.array([t.address for t in sources], np.uint64), [t.shape for t in sources],
                    np.array(dtypes, np.int32), np.zeros(len(slots), np.float32), mine)
    return Spread(shared, ranks)


# ---- The module ---------------------------------------------------------------------------------


def _finish(work: _Work, assign: bool) -> None:
    """Shows the module what its slots have been filled with."""
    for slot in work.direct:
        torch.autograd.graph.increment_version(slot.memory)
    for slot in work.slots:
        if slot.new is not None:
            _install(slot, assign)


def _hand(model: Any, work: _Work, handed: Handed, devices: Devices | None, assign: bool,
          strict: bool) -> None:
    """Has load_state_dict() fill what it has to, and adds the names that lack."""
    slots = {id(slot.tensor): slot for slot in work.theirs}
    places = {name: _where(slot.tensor) for slot in work.theirs for name in slot.names}

    def fill(tensor: Any, source: Tensor) -> None:
        slot = slots.get(id(tensor)) or _Slot(tensor)
        slot.names = slot.names or [source.name]
        slot.source, slot.new, slot.dtype = source, None, 0
        _make_room([slot], devices, assign=False)
        one = _Work(work.files, [slot], [], [], *_direct([slot]), [])
        _fill(one)
        _finish(one, assign=False)

    def move(tensor: Any, value: Any) -> bool:
        slot = slots.get(id(tensor))
        if slot is None or tensor.shape != value.shape:
            return False
        _, device = _home(slot, devices)
        if tensor.device == device:
            return False
        slot.new = value.to(device, tensor.dtype, copy=True)
        _install(slot, assign=False)
        return True

    missing, unexpected = handed.load(work.files, devices or Devices("pt", "cpu", None), assign,
                                      fill, move)
    lacking = {name for name in missing if name in handed}  # the others have been filled
    filled = {place for name, place in places.items() if name not in lacking}
    missing = [name for name in missing
               if name in lacking and (name not in places or places[name] not in filled)]
    _complain(model, [], missing if strict else [], unexpected if strict else [])
    work.missing.extend(missing)
    work.unexpected.extend(unexpected)


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
    filename: Name | Sequence[Name] | safe_open,
    strict: bool = True,
    device: Any = None,
    *,
    assign: bool = False,
    device_map: Mapping[str, Any] | None = None,
    group: Any = None,
    require: str | None = None,
    engine: Engine | None = None,
    backend: str | None = None,
) -> tuple[list[str], list[str]]:
    """Fills the parameters and buffers of a module from files, without a second copy of them.

    ``filename``: a path or URI, several of them, an index, or what safe_open() returned. Bytes are
    read directly into the parameters. ``device`` or ``device_map`` (see prefetch()) say where
    parameters are to be: those on another device are moved there, and those on the "meta" device
    get memory there (on the CPU if neither is given). With ``assign`` all parameters get new
    memory, and the file's types. Otherwise a parameter keeps its type. float32, float16 and
    bfloat16 are converted to each other while they are loaded. Other types, and parameters that are
    not contiguous, are converted or copied one by one, so that one tensor at a time is in memory
    twice.

    Modules that have hooks of load_state_dict(), or their own _load_from_state_dict(), are filled
    by load_state_dict(), with all modules in them; so is extra state (set_extra_state()). Bytes are
    still read directly into their parameters, but one tensor after the other. A tensor that a hook
    computes with is in memory twice until the end. In a group each rank reads these for itself.

    Returns the names that the files lack, and those that the module lacks. With ``strict``, any
    such name is a RuntimeError; so is a shape that differs, with or without it. Nothing is changed
    then, unless load_state_dict() found it. Names that share their memory are loaded once, and none of them is missing if one is in
    the files. If the load itself fails, parameters that are filled in place have undefined bytes,
    and the others are unchanged. ``require``, ``engine``: see prefetch().

    ``group``: a process group of torch.distributed, whose ranks call it together, each with such a
    module on one device. Each reads a share of the bytes and sends it to the others, as with
    gpunvme.weights.torch.load_file(). If a rank fails, all ranks raise an exception.
    """
    handed = Handed(model)
    devices = None
    if device is not None or device_map is not None:
        devices = Devices("pt", device, device_map)

    def prepare() -> _Work:
        files = files_of(filename, engine=engine, require=require)
        slots, theirs = _split(list(_slots(model)), handed)
        missing, unexpected = _match(model, slots, files, strict, handed)
        _make_room(slots, devices, assign)
        return _Work(files, slots, missing, unexpected, *_direct(slots), theirs)

    def prepare_together(ranks: Group) -> tuple[tuple[_Work, Spread], list[Any]]:
        work = prepare()
        ranks.check(work.targets())
        direct = _in_order(work.direct)
        spread = _spread(direct, [slot.memory for slot in direct], [slot.dtype for slot in direct],
                         ranks)
        return (work, spread), _same(work)

    ranks = None
    if group is None:
        work = prepare()
        _fill(work)
    else:
        gpus = (p.device for p in model.parameters() if p.is_cuda)
        ranks = Group(group, next(gpus, None) if device is None else device)
        work, spread = ranks.together(lambda: prepare_together(ranks))
        _fill_together(work, spread, ranks)
    _finish(work, assign)
    if handed:
        error = None
        try:
            _hand(model, work, handed, devices, assign, strict)
        except Exception as why:
            if ranks is None:
                raise
            error = why
        if ranks is not None:
            ranks.raise_any(error)
    return work.missing, work.unexpected
