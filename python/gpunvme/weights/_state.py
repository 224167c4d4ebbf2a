# SPDX-License-Identifier: BSD-3-Clause
# mypy: disable-error-code="import-not-found,misc,override"
"""Parts of torch's modules that load_state_dict() has to fill: those with hooks, or extra state."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from ._files import Tensor
from ._open import get

if TYPE_CHECKING:
    from ._files import Files
    from ._target import Devices

_Fill = Callable[[Any, Tensor], None]  # fills a parameter from a file
_Move = Callable[[Any, Any], bool]  # if a parameter moves, gives it another tensor's values

_TENSOR: Any = torch.Tensor
_KNOWN = {_TENSOR.size, _TENSOR.dim, _TENSOR.numel, _TENSOR.__len__} | {  # without the bytes
    getattr(_TENSOR, name).__get__
    for name in ("shape", "dtype", "ndim", "device", "is_meta", "requires_grad")}


class _Later(torch.Tensor):
    """A tensor of a file that is read when something computes with it.

    If a parameter copies it, it is read directly into the parameter.
    """

    _read: Callable[[], Any]
    _fill: Callable[[Any], None]
    _made: Any

    @staticmethod
    def of(files: Files, source: Tensor, devices: Devices, fill: _Fill) -> _Later:
        to = devices.of(source.name)
        made: _Later = torch.Tensor._make_wrapper_subclass(
            _Later, to.shape(source), dtype=to.dtype(source.dtype), device=to.device)
        made._read = lambda: get(files, source, to)
        made._fill = lambda tensor: fill(tensor, source)
        made._made = None
        return made

    @property
    def now(self) -> Any:
        if self._made is None:
            self._made = self._read()
        return self._made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            if func in _KNOWN:
                return func(*args)
            if func is torch.Tensor.copy_ and _fits(*args[:2]):
                args[1]._fill(args[0])
                return args[0]
            return func(*_real(args), **_real(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*_real(args), **_real(kwargs or {}))


def _fits(to: Any, source: Any) -> bool:
    """Whether ``source`` can be read directly into ``to``."""
    return (isinstance(source, _Later) and not isinstance(to, _Later) and source._made is None
            and to.shape == source.shape)


def _real(args: Any) -> Any:
    return tree_map(lambda each: each.now if isinstance(each, _Later) else each, args)


class _Moves(TorchFunctionMode):
    """Parameters that are to be on another device get memory there when something is copied."""

    def __init__(self, move: _Move) -> None:
        super().__init__()
        self._move = move

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.copy_ and not any(isinstance(t, _Later) for t in args[:2]):
            if self._move(*args[:2]):
                return args[0]
        return func(*args, **(kwargs or {}))


def _has_hooks(module: Any) -> bool:
    kind, plain = type(module), torch.nn.Module
    return bool(module._load_state_dict_pre_hooks or module._load_state_dict_post_hooks
                or kind._load_from_state_dict is not plain._load_from_state_dict
                or kind.load_state_dict is not plain.load_state_dict)


class Handed:
    """The names of a module that load_state_dict() has to fill.

    Hooks see all names below their module, so these are all of them. Of a module that has only
    extra state, it is that alone.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        self._extra: set[str] = set()
        prefixes = []
        for name, part in module.named_modules(remove_duplicate=False):
            prefix = f"{name}." if name else ""
            if _has_hooks(part):
                prefixes.append(prefix)
            if type(part).set_extra_state is not torch.nn.Module.set_extra_state:
                self._extra.add(f"{prefix}_extra_state")
        self._prefixes = tuple(prefixes)
        self.others: set[str] = set()  #: names that share memory with these

    def __contains__(self, name: str) -> bool:
        return name.startswith(self._prefixes) or name in self._extra or name in self.others

    def __bool__(self) -> bool:
        return bool(self._prefixes or self._extra)

    def load(self, files: Files, devices: Devices, assign: bool,
             fill: _Fill, move: _Move) -> tuple[list[str], list[str]]:
        """Fills them; returns all names that load_state_dict() misses, and does not expect.

        A tensor that a hook computes with is in memory twice until all are filled.
        """
        state: dict[str, Any] = {}
        for name in files.names:
            if name not in self:
                continue
            later = _Later.of(files, files[name], devices, fill)
            state[name] = later.now if assign or name in self._extra else later
        with warnings.catch_warnings(), _Moves(move):
            # Parameters on the "meta" device do get memory.
            warnings.filterwarnings("ignore", "for .*: copying from a non-meta parameter")
            found = self._module.load_state_dict(state, strict=False, assign=assign)
        for part in self._module.modules():
            for held in (part._parameters, part._buffers, vars(part)):
                for name, value in held.items():
                    if isinstance(value, _Later):  # a hook kept it
                        held[name] = value.now
        return list(found.missing_keys), list(found.unexpected_keys)
