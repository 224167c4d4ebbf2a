# SPDX-License-Identifier: BSD-3-Clause
# mypy: disable-error-code="import-not-found"
"""Destinations of tensors: arrays of numpy or torch on a device, and their names of types."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _lib
from .._lib import lib
from ..buffers import packed
from ..errors import argument, error
from ._files import Tensor, refuse

if TYPE_CHECKING:
    from numpy.typing import NDArray

ALIGN = 256  # of tensors in an arena, in bytes

#: The names that numpy and torch have for the types of files.
NAMES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "F16": "float16",
    "BF16": "bfloat16",
    "U32": "uint32",
    "I32": "int32",
    "F32": "float32",
    "U64": "uint64",
    "I64": "int64",
    "F64": "float64",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F4": "float4_e2m1fn_x2",  # two to a byte
}
CODES = {name: code for code, name in NAMES.items()}

#: Types that the library converts to each other while it loads, as it counts them.
NUMBERS = {"F16": _lib.DTYPE_F16, "BF16": _lib.DTYPE_BF16, "F32": _lib.DTYPE_F32}


def conversion(dtype: Any) -> str | None:
    """The type that numbers are converted to, as files name it, from any name of it."""
    if dtype is None:
        return None
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    name = name.rpartition(".")[2]
    code = CODES.get(name, name)
    if code not in NUMBERS and code != "F8_E4M3":
        refuse(f"dtype {dtype}: tensors can become float32, float16, bfloat16 or float8_e4m3fn")
    return code


@lru_cache(maxsize=1024)
def _packed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a row-major array, in elements."""
    return packed(shape)


class Target:
    """One framework's arrays on one device."""

    mem = _lib.MEM_HOST
    device: Any = "cpu"

    def dtype(self, code: str) -> Any:
        """The framework's type for a file's; WeightsError if it has none."""
        raise NotImplementedError

    def empty(self, shape: tuple[int, ...], code: str) -> Any:
        raise NotImplementedError

    def address(self, array: Any) -> int:
        raise NotImplementedError

    def arena(self, nbytes: int) -> Any:
        """Memory for arrays, ``nbytes`` a multiple of ALIGN."""
        raise NotImplementedError

    def views(self, arena: Any, offsets: Sequence[int], shapes: Sequence[tuple[int, ...]],
              codes: Sequence[str]) -> list[Any]:
        """Arrays in an arena, by offset (bytes), shape and type; any of them keeps it alive."""
        raise NotImplementedError

    def shape(self, tensor: Tensor) -> tuple[int, ...]:
        """The shape that it has in the framework."""
        if tensor.dtype != "F4":
            return tensor.shape
        if not tensor.shape or tensor.shape[-1] % 2:
            refuse(f'tensor "{tensor.name}": F4 has an even last dimension in torch, and this has '
                   f"the shape {list(tensor.shape)}")
        return (*tensor.shape[:-1], tensor.shape[-1] // 2)

    def scalars(self, values: NDArray[np.float32]) -> Any:
        """Arrays of these numbers, one each."""
        raise NotImplementedError

    def ready(self) -> None:
        """Waits for the work on a GPU's current stream, which may use the memory of new arrays."""

    def result(self, array: Any) -> Any:
        """The array for the caller."""
        return array

    def index(self, shape: tuple[int, ...], index: Any) -> tuple[int, ...]:
        """The shape that ``array[index]`` has, or what it raises."""
        raise NotImplementedError


class _Numpy(Target):
    @cache  # noqa: B019  (there is one, for good)
    def dtype(self, code: str) -> Any:
        try:
            return np.dtype(NAMES[code])
        except (KeyError, TypeError):
            refuse(f"numpy has no type for {code}: torch may have one, and ml_dtypes, if imported, "
                   "adds some to numpy")

    def empty(self, shape: tuple[int, ...], code: str) -> Any:
        return np.empty(shape, self.dtype(code))

    def address(self, array: Any) -> int:
        return int(array.__array_interface__["data"][0])

    def arena(self, nbytes: int) -> Any:
        whole = np.empty(nbytes + ALIGN, np.uint8)
        skip = -self.address(whole) % ALIGN
        return whole[skip : skip + nbytes]

    def views(self, arena: Any, offsets: Sequence[int], shapes: Sequence[tuple[int, ...]],
              codes: Sequence[str]) -> list[Any]:
        array = np.ndarray
        return [array(shape, self.dtype(code), arena, offset)
                for offset, shape, code in zip(offsets, shapes, codes)]

    def scalars(self, values: NDArray[np.float32]) -> Any:
        return [np.array(value) for value in values]

    def index(self, shape: tuple[int, ...], index: Any) -> tuple[int, ...]:
        shaped = np.broadcast_to(np.int8(0), shape)[index]
        return tuple(shaped.shape)


def _alike(offsets: Sequence[int], shapes: Sequence[tuple[int, ...]],
           codes: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Begin and end of neighbours of one shape and type that lie equally far apart."""
    begin, step = 0, -1
    for i in range(1, len(offsets)):
        distance = offsets[i] - offsets[i - 1]
        if shapes[i] == shapes[begin] and codes[i] == codes[begin] and step in (-1, distance):
            step = distance
        else:
            yield begin, i
            begin, step = i, -1
    if offsets:
        yield begin, len(offsets)


class _Torch(Target):
    def __init__(self, device: Any) -> None:
        import torch

        self._torch = torch
        self.device = device
        # The library writes to the memory of the host and of CUDA's GPUs.
        self._at = device if device.type in ("cpu", "cuda") else torch.device("cpu")
        self._dtypes: dict[str, Any] = {}
        if device.type == "cuda":
            if not torch.cuda.is_available():
                raise argument(f'device "{device}": torch finds no GPU')
            if lib.gpunvme_mem_gpu_is_host():
                raise error(_lib.ERR_NO_GPU, lib.gpunvme_mem_gpu_why_not().decode())
            self.mem = _lib.MEM_GPU

    def dtype(self, code: str) -> Any:
        found = self._dtypes.get(code)
        if found is None:
            found = getattr(self._torch, NAMES.get(code, ""), None)
            if found is None:
                refuse(f"torch {self._torch.__version__} has no type for {code}")
            self._dtypes[code] = found
        return found

    def empty(self, shape: tuple[int, ...], code: str) -> Any:
        return self._torch.empty(shape, dtype=self.dtype(code), device=self._at)

    def address(self, array: Any) -> int:
        return int(array.data_ptr())

    def arena(self, nbytes: int) -> Any:
        return self._torch.empty(nbytes, dtype=self._torch.uint8, device=self._at)

    def views(self, arena: Any, offsets: Sequence[int], shapes: Sequence[tuple[int, ...]],
              codes: Sequence[str]) -> list[Any]:
        # Tensors of their own, which autograd does not know as views of the arena.
        untracked = getattr(self._torch._C, "_AutoDispatchBelowADInplaceOrView", None)
        typed = {code: arena.view(self.dtype(code)) for code in set(codes)}
        made: list[Any] = []
        with self._torch.no_grad(), nullcontext() if untracked is None else untracked():
            for begin, end in _alike(offsets, shapes, codes):
                shape, source = shapes[begin], typed[codes[begin]]
                strides, size = _packed(shape), source.itemsize
                at = offsets[begin] // size
                if end - begin == 1:
                    made.append(source.as_strided(shape, strides, at))
                    continue
                # One call for all that are alike: thousands of calls take a while.
                step = (offsets[begin + 1] - offsets[begin]) // size
                made += source.as_strided((end - begin, *shape), (step, *strides), at).unbind(0)
        return [t.data for t in made] if untracked is None else made

    def ready(self) -> None:
        if self.mem == _lib.MEM_GPU:
            self._torch.cuda.current_stream(self.device).synchronize()

    def result(self, array: Any) -> Any:
        return array if self._at is self.device else array.to(self.device)

    def scalars(self, values: NDArray[np.float32]) -> Any:
        return [t.clone() for t in self._torch.from_numpy(values.copy()).to(self.device)]

    def index(self, shape: tuple[int, ...], index: Any) -> tuple[int, ...]:
        return tuple(self._torch.empty(shape, dtype=self._torch.int8, device="meta")[index].shape)


@cache
def _numpy() -> Target:
    return _Numpy()


def target(framework: str, device: Any = "cpu") -> Target:
    """The target for "pt" or "np" (or safetensors' other names of them) on a device."""
    if framework in ("np", "numpy"):
        if device not in ("cpu", None):
            refuse(f"device {device}: arrays of numpy are on the CPU")
        return _numpy()
    if framework not in ("pt", "torch", "pytorch"):
        refuse(f'framework "{framework}": there are "pt" and "np". JAX, Flax, TensorFlow, MLX and '
               'Paddle make their tensors of arrays of numpy, as by jax.numpy.asarray()')
    import torch

    try:
        return _Torch(torch.device("cpu" if device is None else device))
    except RuntimeError as why:
        refuse(f"device {device}: {why}")


class Devices:
    """The target of each tensor, by a device for all or a map of them.

    A map has devices by names of modules, "" for all others: {"": "cuda:0", "lm_head": "cpu"}.
    """

    def __init__(self, framework: str, device: Any, device_map: Mapping[str, Any] | None) -> None:
        self._framework = framework
        self._device = device
        self._map = None if device_map is None else dict(device_map)
        self._targets: dict[Any, Target] = {}

    def of_all(self, n: int, names: Callable[[], Sequence[str]]) -> list[Target]:
        """Those of ``n`` tensors, whose names are asked for if there is a map."""
        return [self.of("")] * n if self._map is None else list(map(self.of, names()))

    def of(self, name: str) -> Target:
        device = self._device if self._map is None else self._look_up(name)
        if device not in self._targets:
            self._targets[device] = target(self._framework, device)
        return self._targets[device]

    def _look_up(self, name: str) -> Any:
        assert self._map is not None
        prefix = name
        while prefix not in self._map:
            if not prefix:
                refuse(f'the device_map has no device for "{name}", and none for ""')
            prefix = prefix.rpartition(".")[0]
        return self._map[prefix]
