# SPDX-License-Identifier: BSD-3-Clause
# mypy: allow-untyped-calls, disable-error-code="import-not-found"
"""State as a tree in JSON, and the tensors that the tree names. Knows no files.

A tree is JSON. What JSON lacks is an object with the key "$": {"$": "tuple", "of": […]}; a tensor
is {"$": "tensor", "of": its name}. torch is only used where the caller has imported it, or where
the tensors were torch's.
"""

from __future__ import annotations

import base64
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._safetensors import ITEMSIZE
from ..buffers import check_storage
from ..errors import argument

# The types of safetensors by numpy's and torch's names; numpy lacks the last ones.
_NUMPY = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "float16": "F16",
    "uint32": "U32", "int32": "I32", "float32": "F32", "uint64": "U64", "int64": "I64",
    "float64": "F64", "complex64": "C64",
}
_TORCH = _NUMPY | {"bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
                   "float8_e8m0fnu": "F8_E8M0"}
_NAMES = {code: name for name, code in _TORCH.items()}

Box = tuple[tuple[int, ...], tuple[int, ...]]  # offsets and shape


@dataclass(frozen=True)
class Slice:
    """The part of a tensor that one rank has: ``tensor`` lies at ``offsets`` in one of ``shape``.

    A leaf of the state that is saved, or of ``into`` of load().
    """

    tensor: Any
    shape: tuple[int, ...]
    offsets: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(map(int, self.shape)))
        object.__setattr__(self, "offsets", tuple(map(int, self.offsets)))
        own = tuple(self.tensor.shape)
        if not len(own) == len(self.shape) == len(self.offsets) or any(
                not 0 <= at <= at + n <= size
                for at, n, size in zip(self.offsets, own, self.shape)):
            raise argument(f"a slice of shape {own} at {self.offsets} of a tensor of shape "
                           f"{self.shape}")


@dataclass
class Leaf:
    """A tensor, or this rank's part of it. ``data`` is None if another rank writes it."""

    name: str
    dtype: str  # safetensors' name
    whole: tuple[int, ...]  # shape of the whole tensor
    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    data: Any  # a torch tensor or a numpy array, not always contiguous
    kind: str  # "torch" or "numpy"; "bytes" is an array of a planner's

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEMSIZE[self.dtype]

    @property
    def device(self) -> Any:
        """torch's device if it is a GPU, else None."""
        return self.data.device if self.kind == "torch" and self.data.is_cuda else None


def is_torch(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_tensor(value: object) -> bool:
    return isinstance(value, (np.ndarray, Slice)) or is_torch(value)


def _own_part(value: Any, path: tuple[Any, ...]) -> tuple[Any, Box, tuple[int, ...], bool]:
    """(local tensor, its box, whole shape, whether this rank writes it)."""
    if isinstance(value, Slice):
        return value.tensor, (value.offsets, tuple(value.tensor.shape)), value.shape, True
    if is_torch(value) and hasattr(value, "placements"):  # a DTensor
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        kinds = [type(p).__name__ for p in value.placements]
        if not set(kinds) <= {"Shard", "Replicate"}:
            raise argument(f"{_show(path)}: a DTensor placed as {value.placements}: only Shard and "
                           "Replicate can be stored")
        shape, offsets = compute_local_shape_and_global_offset(
            value.shape, value.device_mesh, value.placements)
        rank = value.device_mesh.get_coordinate() or []
        mine = bool(rank) and not any(kind == "Replicate" and at for kind, at in zip(kinds, rank))
        return (value.to_local(), (tuple(offsets), tuple(shape)), tuple(value.shape), mine)
    return value, ((0,) * value.ndim, tuple(value.shape)), tuple(value.shape), True


def leaf_of(name: str, value: Any, path: tuple[Any, ...]) -> Leaf:
    """The leaf for a tensor, an array or a Slice. ArgumentError: it can't be stored."""
    local, (offsets, shape), whole, mine = _own_part(value, path)
    if is_torch(local):
        if local.layout is not sys.modules["torch"].strided or local.is_quantized or local.is_meta \
                or local.device.type not in ("cpu", "cuda"):
            raise argument(f"{_show(path)}: a {local.layout} tensor on {local.device}: only "
                           "plain tensors on the CPU and on CUDA GPUs can be stored")
        check_storage(local)
        dtype = _TORCH.get(str(local.dtype).removeprefix("torch."))
        local = local.detach().resolve_conj().resolve_neg()
        kind = "torch"
    elif isinstance(local, np.ndarray) and not isinstance(local, np.ma.MaskedArray):
        dtype = _NUMPY.get(local.dtype.name) if local.dtype.isnative else None
        kind = "numpy"
    else:
        raise argument(f"{_show(path)}: a {type(local).__name__} can't be stored as a tensor")
    if dtype is None:
        raise argument(f"{_show(path)}: safetensors has no type for {local.dtype}")
    return Leaf(name, dtype, whole, offsets, shape, local if mine else None, kind)


# ---- Trees ------------------------------------------------------------------------------------


class Encoder:
    """Makes a tree of a state; collects its tensors in ``leaves``."""

    def __init__(self) -> None:
        self.leaves: list[Leaf] = []
        self._names = {"__metadata__"}
        self._seen: dict[object, tuple[str, object]] = {}

    def tree(self, state: dict[Any, Any]) -> Any:
        if not isinstance(state, dict):
            raise argument(f"state: a {type(state).__name__}, not a dict")
        return self._encode(state, ())

    def _encode(self, value: Any, path: tuple[Any, ...]) -> Any:
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"$": "float", "of": repr(value)}
        if is_tensor(value):
            return {"$": "tensor", "of": self._tensor(value, path)}
        if isinstance(value, dict):
            return self._dict(value, path)
        kind = type(value).__name__
        if type(value) is list:
            return [self._encode(v, (*path, i)) for i, v in enumerate(value)]
        if type(value) in (tuple, set, frozenset) or kind == "Size":
            return {"$": kind, "of": [self._encode(v, (*path, i)) for i, v in enumerate(value)]}
        return self._scalar(value, kind, path)

    def _scalar(self, value: Any, kind: str, path: tuple[Any, ...]) -> Any:
        torch = sys.modules.get("torch")
        if type(value) in (bytes, bytearray):
            return {"$": kind, "of": base64.b64encode(value).decode()}
        if type(value) is complex:
            return {"$": kind, "of": [repr(value.real), repr(value.imag)]}
        if isinstance(value, np.generic) and value.dtype.name in _NUMPY:
            return {"$": "numpy", "type": value.dtype.name, "of": value.tobytes().hex()}
        if torch is not None and isinstance(value, (torch.dtype, torch.device)):
            return {"$": kind, "of": str(value).removeprefix("torch.")}
        raise argument(f"{_show(path)}: a {type(value).__module__}.{type(value).__qualname__} "
                       "can't be stored without pickle: make it of dicts, lists, tuples, numbers, "
                       "strings, bytes and tensors (an object's state_dict())")

    def _dict(self, value: dict[Any, Any], path: tuple[Any, ...]) -> Any:
        if all(type(key) is str for key in value) and "$" not in value:
            return {key: self._encode(v, (*path, key)) for key, v in value.items()}
        pairs = []
        for key, v in value.items():
            if is_tensor(key):
                raise argument(f"{_show(path)}: a tensor as a key")
            pairs.append([self._encode(key, (*path, "key")), self._encode(v, (*path, key))])
        return {"$": "dict", "of": pairs}

    def _tensor(self, value: Any, path: tuple[Any, ...]) -> str:
        leaf = leaf_of(".".join(map(str, path)), value, path)
        tied = None
        if leaf.data is not None and leaf.nbytes:
            strides = leaf.data.stride() if leaf.kind == "torch" else leaf.data.strides
            address = leaf.data.data_ptr() if leaf.kind == "torch" else leaf.data.ctypes.data
            tied = (leaf.kind, str(leaf.device), address, leaf.dtype, leaf.whole, leaf.offsets,
                    leaf.shape, strides)
            if tied in self._seen:
                return self._seen[tied][0]
        name, n = leaf.name, 1
        while leaf.name in self._names:
            n += 1
            leaf.name = f"{name}#{n}"
        self._names.add(leaf.name)
        self.leaves.append(leaf)
        if tied is not None:
            self._seen[tied] = leaf.name, leaf.data  # held, so that its address stays its own
        return leaf.name


def _show(path: tuple[Any, ...]) -> str:
    return "state" + "".join(f"[{key!r}]" for key in path)


def merged(trees: list[Any]) -> Any:
    """Joins the trees of several ranks: dicts are merged, of other values the first is taken."""
    if len(trees) == 1 or any(_pairs(tree) is None for tree in trees):
        return trees[0]
    found: dict[str, tuple[Any, list[Any]]] = {}
    for tree in trees:
        for key, value in _pairs(tree) or ():
            found.setdefault(repr(key), (key, []))[1].append(value)
    pairs = [[key, merged(values)] for key, values in found.values()]
    if any("$" in tree for tree in trees):
        return {"$": "dict", "of": pairs}
    return dict(pairs)


def _pairs(tree: Any) -> Any:
    """Keys (as trees) and values of a dict; None if it is no dict."""
    if not isinstance(tree, dict) or tree.get("$") not in (None, "dict"):
        return None
    return tree["of"] if "$" in tree else tree.items()


def decode(tree: Any, tensor: Callable[[str], Any]) -> Any:
    """The state of a tree; ``tensor`` returns the tensor of a name."""
    if isinstance(tree, list):
        return [decode(v, tensor) for v in tree]
    if not isinstance(tree, dict):
        return tree
    tag = tree.get("$")
    if tag is None:
        return {key: decode(v, tensor) for key, v in tree.items()}
    of = tree["of"]
    if tag == "tensor":
        return tensor(of)
    if tag == "dict":
        return {decode(key, tensor): decode(v, tensor) for key, v in of}
    if tag in ("tuple", "set", "frozenset"):
        return {"tuple": tuple, "set": set, "frozenset": frozenset}[tag](
            decode(v, tensor) for v in of)
    return _value(tag, tree)


def _value(tag: str, tree: dict[str, Any]) -> Any:
    of = tree["of"]
    if tag == "float":
        return float(of)
    if tag in ("bytes", "bytearray"):
        return {"bytes": bytes, "bytearray": bytearray}[tag](base64.b64decode(of))
    if tag == "complex":
        return complex(float(of[0]), float(of[1]))
    if tag == "numpy":
        return np.frombuffer(bytes.fromhex(of), tree["type"])[0]
    if tag in ("Size", "dtype", "device"):
        import torch

        if tag == "dtype" and of.isidentifier():
            return getattr(torch, of)
        return torch.Size(of) if tag == "Size" else torch.device(of)
    raise argument(f'a checkpoint with "{tag}", which this version does not know')


def filled(into: Any, tree: Any, fill: Callable[[Any, str], Any], new: Callable[[str], Any],
           path: tuple[Any, ...] = ()) -> Any:
    """``into`` with what ``tree`` has: tensors in place by ``fill``, all else replaced.

    A tensor that is not in ``into`` is made by ``new``. ArgumentError: they do not fit.
    """
    tag = tree.get("$") if isinstance(tree, dict) else None
    if is_tensor(into):
        if tag != "tensor":
            raise argument(f"{_show(path)}: the checkpoint has no tensor there")
        return fill(into, tree["of"])
    if isinstance(into, dict) and into and isinstance(tree, dict) and tag in (None, "dict"):
        pairs = tree["of"] if tag else tree.items()
        found = {decode(key, new): value for key, value in pairs}
        for key in into:
            if key not in found:
                raise argument(f"{_show((*path, key))} is not in the checkpoint")
            into[key] = filled(into[key], found[key], fill, new, (*path, key))
        return into
    if isinstance(into, (list, tuple)) and into and any(map(_holds_tensors, into)):
        of = tree["of"] if tag == "tuple" else tree
        if not isinstance(of, list) or len(of) != len(into):
            raise argument(f"{_show(path)}: a {type(into).__name__} of {len(into)}, which the "
                           "checkpoint has not there")
        values = [filled(v, of[i], fill, new, (*path, i)) for i, v in enumerate(into)]
        if isinstance(into, tuple):
            return tuple(values)
        into[:] = values
        return into
    return decode(tree, new)


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_tensors, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_holds_tensors, value))
    return is_tensor(value)


def empty(code: str, shape: tuple[int, ...], kind: str, device: Any) -> Any:
    """A new tensor or array for a tensor of a checkpoint."""
    name = _NAMES[code]
    if kind != "torch":
        return np.empty(shape, name)
    import torch

    return torch.empty(shape, dtype=getattr(torch, name), device=device)
