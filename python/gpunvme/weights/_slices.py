# SPDX-License-Identifier: BSD-3-Clause
"""Indexes of tensors: the box that they need from the file, and what they pick from the box."""

from __future__ import annotations

import math
import operator
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ._files import SliceError, Tensor, refuse
from ._target import Target

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ._files import Files


class Pick:
    """``tensor[index]``, for an index of whole numbers, slices, ``...`` and None.

    Other indexes (arrays, masks) load the whole tensor, from which the framework picks.
    """

    def __init__(self, tensor: Tensor, target: Target, index: Any) -> None:
        self._target = target
        self._whole: Any = None
        self._shape: tuple[int, ...] = ()
        self.box: tuple[tuple[int, int], ...] | None = None
        items = index if isinstance(index, tuple) else (index,)
        shape = target.shape(tensor)
        # Two elements to a byte: the library's boxes count them, and the framework does not.
        if tensor.dtype == "F4" or not all(map(_is_plain, items)):
            self._whole = (index,)
            self.box_shape, self.nbytes = shape, tensor.nbytes
            return
        try:
            self._shape = target.index(shape, index)  # by the framework's own rules
        except IndexError as why:
            refuse(f'tensor "{tensor.name}" of shape {list(shape)}: {why}', SliceError)
        self._steps: tuple[slice, ...] = ()
        self._box(tensor, items)

    def _box(self, tensor: Tensor, items: tuple[Any, ...]) -> None:
        used = [item for item in items if item is not None]
        if not any(item is ... for item in used):
            used.append(...)
        at = next(i for i, item in enumerate(used) if item is ...)
        rest = len(tensor.shape) - len(used) + 1
        used[at : at + 1] = [slice(None)] * rest
        box, steps = [], []
        for size, item in zip(tensor.shape, used):
            begin, end, step = _range(item, size)
            box.append((begin, end))
            steps.append(slice(None, None, step))
        self.box = tuple(box)
        self.box_shape = tuple(end - begin for begin, end in box)
        whole = max(math.prod(tensor.shape), 1)
        self.nbytes = tensor.nbytes // whole * math.prod(self.box_shape)
        if any(step.step != 1 for step in steps):
            self._steps = tuple(steps)

    def of(self, box: Any) -> Any:
        """The elements of the index, from the loaded box."""
        if self._whole is not None:
            box = box[self._whole[0]]
            self._target.ready()
            return box
        if self._steps:  # a copy: the box may be much larger
            box = box[self._steps]
            box = box.contiguous() if hasattr(box, "contiguous") else box.copy()
            self._target.ready()
        return box if self._shape == self.box_shape else box.reshape(self._shape)


def picks(files: Files, names: Sequence[str], rows: NDArray[np.int64], targets: Sequence[Target],
          plan: Mapping[str, Any]) -> dict[int, Pick]:
    """The pick of each name that is not taken whole, by its place in ``names``.

    Tensors alike share one: a model has thousands, and few shapes.
    """
    known: dict[Hashable, Pick] = {}
    found = {}
    alike = zip(files.shapes(rows), files.codes(rows), targets)
    for i, (name, like) in enumerate(zip(names, alike)):
        index = plan[name]
        if index is None:
            continue
        key = _key(index)
        if key is None:
            found[i] = Pick(files[name], targets[i], index)
            continue
        pick = known.get((key, like))
        if pick is None:
            pick = known[key, like] = Pick(files[name], targets[i], index)
        found[i] = pick
    return found


_BOUNDS = {int, type(None)}


def _key(index: Any) -> Hashable:
    """Equal for equal indexes; None: not known to be."""
    found: list[Hashable] = []
    for item in index if isinstance(index, tuple) else (index,):
        if isinstance(item, slice):
            begin, end, step = item.start, item.stop, item.step
            if not (type(begin) in _BOUNDS and type(end) in _BOUNDS and type(step) in _BOUNDS):
                return None
            found.append((begin, end, step))
        elif item is None or item is ... or type(item) is int:
            found.append(item)
        else:
            return None
    return tuple(found)


def _is_plain(item: Any) -> bool:
    if item is None or item is ... or isinstance(item, slice):
        return True
    return hasattr(item, "__index__") and not hasattr(item, "shape") and not isinstance(item, bool)


def _range(item: Any, size: int) -> tuple[int, int, int]:
    """Begin and end of the elements that are needed, and the step."""
    if not isinstance(item, slice):
        i = operator.index(item) % size
        return i, i + 1, 1
    wanted = range(*item.indices(size))
    if not wanted:
        return 0, 0, 1
    return min(wanted[0], wanted[-1]), max(wanted[0], wanted[-1]) + 1, wanted.step
