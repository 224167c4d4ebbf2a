# SPDX-License-Identifier: BSD-3-Clause
"""safe_open(): tensors of a file, one by one, whole or in slices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import _lib
from ._files import Files, Tensor, failure
from ._load import Parts, load
from ._prefetch import Prefetch, load_all
from ._slices import Pick
from ._target import Devices, Target, target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from ..engine import Engine
    from ._files import Name
    from ._prefetch import Plan


def get(files: Files, tensor: Tensor, to: Target, pick: Pick | None = None) -> Any:
    """One tensor, or the part that ``pick`` describes."""
    shape = to.shape(tensor) if pick is None else pick.box_shape
    array = to.empty(shape, tensor.dtype)
    nbytes = tensor.nbytes if pick is None else pick.nbytes
    if nbytes:
        to.ready()
        parts = Parts([tensor.address], [to.address(array)], to.mem, nbytes)
        if pick is not None and pick.box is not None:
            parts.set_boxes([pick.box])
        load(files, parts, array)
    return to.result(array if pick is None else pick.of(array))


class Slice:
    """A tensor that is loaded, whole or in part, when it is indexed; made by get_slice().

    Indexes follow the rules of the framework. If they are whole numbers, slices and ``...``, only
    the box that contains them is read. IndexError: outside of the tensor. It may be used after its
    file was closed.
    """

    def __init__(self, files: Files, tensor: Tensor, to: Target) -> None:
        self._files = files
        self._tensor = tensor
        self._to = to

    def get_shape(self) -> list[int]:
        """The shape of the whole tensor."""
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        """Its type, by its name in the file: "F32"."""
        return self._tensor.dtype

    def __getitem__(self, index: Any) -> Any:
        pick = None if index is ... else Pick(self._tensor, self._to, index)
        return get(self._files, self._tensor, self._to, pick)

    def load(self, device: Any) -> Any:
        """All of it on another device, for framework "pt"."""
        return get(self._files, self._tensor, target("pt", device))


class safe_open:
    """Opens a file of tensors, as ``safetensors.safe_open`` does.

        with safe_open("model.safetensors", framework="pt", device="cuda:0") as f:
            for name in f.keys():
                tensor = f.get_tensor(name)
            part = f.get_slice("lm_head.weight")[:1000]

    ``filename``: a path or URI, several of them, or an index (model.safetensors.index.json). The
    files form one set of names. ``framework``: "pt" for torch, "np" for numpy. ``device``: any of
    torch's; "cuda" is torch's current GPU. ``backend`` is ignored, for programs that pass it to
    safetensors. ``require`` and ``engine``: see prefetch().

    A tensor is the caller's own: it shares no memory with others or the file. Methods may be called
    from several threads. Raises WeightsError (a ValueError, and a safetensors.SafetensorError if
    that is installed) for invalid files and arguments, FileNotFoundError, or another gpunvme.Error.
    """

    def __init__(self, filename: Name | Sequence[Name], framework: str = "pt",
                 device: Any = "cpu", *, backend: str | None = None, require: str | None = None,
                 engine: Engine | None = None) -> None:
        self._files: Files | None = None
        self._framework = framework
        self._device = device
        self._to = target(framework, device)
        self._files = Files(filename, engine=engine, require=require)

    def _now(self) -> Files:
        files = self._files
        if files is None:
            raise failure(_lib.ERR_INVALID, "the file is closed")
        return files

    def keys(self) -> list[str]:
        """The names of all tensors, sorted."""
        return sorted(self._now().names)

    def offset_keys(self) -> list[str]:
        """The names of all tensors, in the order of their bytes."""
        return list(self._now().names)

    def metadata(self) -> dict[str, str] | None:
        """The file's ``__metadata__``; None if it has none."""
        return self._now().metadata()

    def bytes_read(self) -> int:
        """Bytes read from storage since it was opened, headers included."""
        return self._now().bytes_read()

    def get_tensor(self, name: str) -> Any:
        """A whole tensor."""
        files = self._now()
        return get(files, files[name], self._to)

    def get_tensors(self) -> dict[str, Any]:
        """All tensors, in the order of their bytes."""
        return load_all(self._now(), Devices(self._framework, self._device, None))

    def get_slice(self, name: str) -> Slice:
        """A tensor to be indexed."""
        files = self._now()
        return Slice(files, files[name], self._to)

    def prefetch(self, plan: Plan = None, *, device: Any = None,
                 threads: int | None = None) -> Prefetch:
        """Starts to load tensors in the background: see gpunvme.weights.prefetch().

        ``threads`` is ignored, for programs that pass it to safetensors: the engine has them.
        """
        where = self._device if device is None else device
        return Prefetch(self._now(), plan, Devices(self._framework, where, None), arena=False)

    def __enter__(self) -> Self:
        self._now()
        return self

    def __exit__(self, *_: object) -> None:
        """Closes it. The file stays open until its slices and prefetches are gone."""
        self._files = None


def files_of(given: Name | Sequence[Name] | safe_open, *, engine: Engine | None,
             require: str | None) -> Files:
    """The files of these names, or those that have been opened."""
    if isinstance(given, safe_open):
        return given._now()
    return Files(given, engine=engine, require=require)
