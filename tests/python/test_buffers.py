# SPDX-License-Identifier: BSD-3-Clause
"""What is taken as memory, and what is refused."""

from __future__ import annotations

import array
import ctypes
import gc
import mmap
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gpunvme
from gpunvme import _lib, buffers, dlpack


class DLPackOnly:
    """An array that DLPack alone tells of, as torch's are on the CPU."""

    def __init__(self, owner: np.ndarray[Any, Any]) -> None:
        self.owner = owner

    def __dlpack__(self, **options: Any) -> object:
        return self.owner.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.owner.__dlpack_device__()


class Allocation:
    """pycuda's DeviceAllocation is used by int() alone."""

    def __init__(self, address: int) -> None:
        self.address = address

    def __int__(self) -> int:
        return self.address


class CudaArray:
    """An array that says it is CUDA's; nothing here reads its memory."""

    def __init__(self, **interface: Any) -> None:
        self.__cuda_array_interface__ = {
            "version": 3, "shape": (4, 3), "typestr": "<f4", "data": (0x1000, False), **interface,
        }


HOLD = np.zeros(64, np.uint8)


@pytest.mark.parametrize(
    "buf",
    [
        bytearray(64), memoryview(bytearray(64)), array.array("I", [0] * 16), mmap.mmap(-1, 64),
        np.zeros((4, 4), np.float32), np.zeros(64, np.uint8)[:], np.zeros(8, "datetime64[s]"),
        np.zeros(4, np.dtype([("x", "<i4"), ("y", "<f8"), ("z", "<i4")])),
        (ctypes.c_uint8 * 64)(), DLPackOnly(np.zeros((2, 8), np.float32)),
        gpunvme.empty(64), gpunvme.empty(64, "pinned"),
    ],
    ids=lambda buf: type(buf).__name__,
)
def test_a_buffer_of_any_kind_is_read_into(store: gpunvme.Store, data: bytes, buf: Any) -> None:
    assert store.pread(buf, offset=5) == 64
    found = buffers.view(buf, False)
    assert ctypes.string_at(found.ptr, 64) == data[5:69]
    assert store.pwrite(buf, offset=5) == 64


@pytest.mark.parametrize(
    "address",
    [HOLD.ctypes.data, Allocation(HOLD.ctypes.data), ctypes.c_void_p(HOLD.ctypes.data),
     ctypes.cast(HOLD.ctypes.data, ctypes.POINTER(ctypes.c_char))],
    ids=lambda address: type(address).__name__,
)
def test_an_address_is_read_into(store: gpunvme.Store, data: bytes, address: Any) -> None:
    HOLD[:] = 0
    assert store.pread(address, 30, 9) == 30
    assert HOLD[:30].tobytes() == data[9:39] and not HOLD[30:].any()
    with pytest.raises(gpunvme.ArgumentError, match="size"):
        store.pread(address)


@pytest.mark.parametrize("address", [0, 1, 0xdead0000000, 2**63, 2**64 - 5, 2**64, 2**70, -1])
def test_an_address_without_memory_is_refused(store: gpunvme.Store, address: int) -> None:
    buf: Any
    for buf in (address, Allocation(address), ctypes.c_void_p(address)):
        for use in (store.pread, store.pwrite, store.pread_async, gpunvme.register):
            with pytest.raises(gpunvme.ArgumentError, match="no memory"):
                use(buf, 10)


def test_memory_that_ends_before_the_size_does_is_refused(store: gpunvme.Store) -> None:
    with mmap.mmap(-1, 1 << 16) as memory:
        begin = ctypes.c_char.from_buffer(memory)
        address = ctypes.addressof(begin)
        assert store.pread(address + 4096, (1 << 16) - 4096) == (1 << 16) - 4096
        for size in (1 << 40, 1 << 63):
            with pytest.raises(gpunvme.ArgumentError, match=f"no memory of {size} bytes"):
                store.pread(address, size)
        del begin


def test_the_address_of_read_only_memory_is_not_read_into(store: gpunvme.Store) -> None:
    memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ)
    address = np.frombuffer(memory, np.uint8).ctypes.data
    assert store.pwrite(address, 4096) == 4096
    with pytest.raises(gpunvme.ArgumentError, match="read-only"):
        store.pread(address, 4096)


def test_a_batch_refuses_addresses_without_memory(store: gpunvme.Store) -> None:
    apart = [np.zeros(64, np.uint8), mmap.mmap(-1, 1 << 16)]
    at = [np.frombuffer(memory, np.uint8).ctypes.data for memory in apart]
    assert gpunvme.Batch(store, None, [0, 8], 8, at).run() == 16
    with pytest.raises(gpunvme.ArgumentError, match="0xdead0000000"):
        gpunvme.Batch(store, None, [0, 8, 16], 8, [*at, 0xdead0000000])
    with pytest.raises(gpunvme.ArgumentError, match="no memory of 8 bytes"):
        gpunvme.Batch(store, None, [0, 8, 16], 8, np.array([*at, 2**64 - 4], np.uint64))


def test_read_only_memory_is_written_but_not_read_into(store: gpunvme.Store) -> None:
    frozen = np.arange(10, dtype=np.uint8)
    frozen.flags.writeable = False
    for buf in (b"0123456789", memoryview(b"0123456789"), frozen):
        assert store.pwrite(buf) == 10
        with pytest.raises(ValueError, match="(?i)read-only|not writable"):
            store.pread(buf)


@pytest.mark.parametrize("buf", [
    np.zeros((4, 4))[:, 1], np.zeros((4, 4)).T, np.zeros(8)[::-1],
    np.asfortranarray(np.zeros((3, 2))), memoryview(bytearray(8))[::2],
    DLPackOnly(np.zeros((4, 4))[:, :2]), CudaArray(strides=(4, 16)),
], ids=lambda buf: type(buf).__name__)
def test_memory_that_is_not_contiguous_is_refused(store: gpunvme.Store, buf: Any) -> None:
    for use in (store.pread, store.pwrite):
        with pytest.raises(gpunvme.ArgumentError, match="(?i)contiguous"):
            use(buf)


@pytest.mark.parametrize("buf", [None, "text", 1.5, object(), [1, 2], {}], ids=lambda buf: type(buf).__name__)
def test_what_is_no_buffer_is_refused(store: gpunvme.Store, buf: Any) -> None:
    for use in (store.pread, store.pwrite):
        with pytest.raises(gpunvme.ArgumentError, match="is no buffer"):
            use(buf)


@pytest.mark.parametrize("buf", [
    np.zeros(4, object), np.zeros(4, object)[::2], np.zeros(4, [("a", "i4"), ("b", object)]),
    memoryview(np.zeros(4, object)),
], ids=lambda buf: str(getattr(buf, "dtype", "memoryview")))
def test_references_to_objects_are_no_bytes(store: gpunvme.Store, buf: Any) -> None:
    for use in (store.pread, store.pwrite):
        with pytest.raises(gpunvme.ArgumentError, match="Python objects"):
            use(buf)


def test_names_of_fields_are_no_objects(store: gpunvme.Store) -> None:
    assert store.pread(np.zeros(4, [("Offset", "<i8"), ("O", "<i4")])) == 48


def test_a_number_of_numpy_s_is_an_address_or_nothing(store: gpunvme.Store, data: bytes) -> None:
    HOLD[:] = 0
    assert store.pread(np.uint64(HOLD.ctypes.data), 8) == 8
    assert HOLD[:9].tobytes() == data[:8] + b"\0"
    for number in (np.float32(0), np.float64(0), np.bool_(True)):
        with pytest.raises(gpunvme.ArgumentError):
            store.pread(number)
        with pytest.raises(gpunvme.ArgumentError):
            store.pread(number, 1)


@pytest.mark.parametrize("size", [4.0, "4", None], ids=str)
def test_a_size_that_is_no_whole_number_is_a_type_error(store: gpunvme.Store, size: Any) -> None:
    with pytest.raises(TypeError):
        gpunvme.empty(size)
    if size is not None:
        with pytest.raises(TypeError):
            store.pread(bytearray(8), size)


def test_what_dlpack_can_not_say_is_refused(store: gpunvme.Store) -> None:
    class Meta(DLPackOnly):
        def __dlpack_device__(self) -> tuple[int, int]:
            raise ValueError("Unknown device type meta for Dlpack")  # torch's words

    with pytest.raises(gpunvme.ArgumentError, match="meta"):
        store.pread(Meta(np.zeros(4)))


@pytest.mark.parametrize("buf", [bytearray(), np.zeros(0), np.zeros((3, 0))], ids=str)
def test_an_empty_buffer_is_refused(store: gpunvme.Store, buf: Any) -> None:
    for use in (store.pread, store.pwrite, store.pread_async):
        with pytest.raises(ValueError, match="0 bytes"):
            use(buf)


def throw() -> None:
    raise RuntimeError("requires grad")


def test_a_cuda_array_is_gpu_memory() -> None:
    found = buffers.view(CudaArray(stream=7), True)
    assert (found.ptr, found.nbytes, found.mem, found.stream) == (0x1000, 48, _lib.MEM_GPU, 7)
    grad = type("Tensor", (), {"__cuda_array_interface__": property(lambda self: throw())})()
    with pytest.raises(gpunvme.ArgumentError, match="requires grad"):
        buffers.view(grad, True)
    with pytest.raises(gpunvme.ArgumentError, match="mask"):
        buffers.view(CudaArray(mask=object()), True)
    with pytest.raises(gpunvme.ArgumentError, match="read-only"):
        buffers.view(CudaArray(data=(0x1000, True)), True)


@pytest.mark.parametrize(("stream", "handle"), [
    (5, 5), (type("torch", (), {"cuda_stream": 6})(), 6), (type("cupy", (), {"ptr": 7})(), 7),
    (type("pycuda", (), {"handle": 8})(), 8),
    (type("numba", (), {"handle": ctypes.c_void_p(9)})(), 9),
    (type("core", (), {"__cuda_stream__": lambda self: (0, 10)})(), 10),
])
def test_a_stream_of_any_library_has_a_handle(stream: Any, handle: int) -> None:
    assert buffers.stream_handle(stream) == handle


def test_elements_that_only_dlpack_has_a_name_for_are_taken(store: gpunvme.Store) -> None:
    class Float8(DLPackOnly):
        """As torch's on a GPU."""

        @property
        def __cuda_array_interface__(self) -> object:
            raise KeyError("float8_e4m3fn")

    assert store.pread(Float8(np.zeros(64, np.uint8))) == 64


def test_what_is_no_stream_is_refused(store: gpunvme.Store) -> None:
    with pytest.raises(gpunvme.ArgumentError, match="no CUDA stream"):
        store.pread_async(bytearray(1), stream="main")


def test_empty_memory_is_zeroed_and_aligned() -> None:
    for device in ("cpu", "pinned", "cuda", "cuda:0"):
        memory = gpunvme.empty(10000, device)
        assert memory.nbytes == 10000
        if isinstance(memory, np.ndarray):
            assert not memory.any() and memory.ctypes.data % 4096 == 0


def test_memory_outlives_the_array_that_it_was_made_as() -> None:
    view = gpunvme.empty(1 << 20, "pinned")[100:200].view(np.uint32)
    gc.collect()
    view[:] = 3
    assert view.sum() == 75


@pytest.mark.parametrize(("nbytes", "device"), [(0, "cpu"), (-1, "cpu"), (1, "gpu"), (1, "cpu:0"),
                                                (1, "cuda:x"), (1, "cuda:"), (1, "cuda:99")])
def test_memory_that_is_none_is_refused(nbytes: int, device: str) -> None:
    with pytest.raises(gpunvme.ArgumentError):
        gpunvme.empty(nbytes, device)


class Owner:
    """What gpunvme exports; host memory here, where a consumer may look into it."""

    def __init__(self) -> None:
        self.memory = np.arange(6, dtype=np.float32)
        self.device = dlpack.CPU

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0

    def __dlpack__(self, **_: Any) -> object:
        return dlpack.exported(self, self.memory.ctypes.data, 0, (2, 3), "<f4")


def torch_takes(owner: Owner) -> object:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    return torch.from_dlpack(owner)


@pytest.fixture
def cpu_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exports say that they are the CPU's, for numpy to take them."""
    monkeypatch.setattr(dlpack, "CUDA", dlpack.CPU)


@pytest.mark.usefixtures("cpu_exports")
def test_an_export_holds_its_owner_until_the_consumer_is_done() -> None:
    before = len(dlpack._live)
    taken = np.from_dlpack(Owner())
    gc.collect()
    assert taken.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert len(dlpack._live) == before + 1
    del taken
    gc.collect()
    assert len(dlpack._live) == before


def test_an_export_that_nobody_takes_is_freed() -> None:
    before = len(dlpack._live)
    capsule = Owner().__dlpack__()
    assert len(dlpack._live) == before + 1
    del capsule
    assert len(dlpack._live) == before


@pytest.mark.usefixtures("cpu_exports")
@pytest.mark.parametrize("make", [lambda: np.from_dlpack(Owner()), lambda: Owner().__dlpack__(),
                                  lambda: torch_takes(Owner())],
                         ids=["taken", "not taken", "taken by torch"])
def test_an_export_may_end_while_an_exception_is_raised(make: Callable[[], object]) -> None:
    make()
    gc.collect()
    before = len(dlpack._live)
    with pytest.raises(ZeroDivisionError):
        # sort() drops the keys that it has when the next one can't be had.
        [0, 1, 2].sort(key=lambda i: make() if i < 2 else 1 / 0)  # type: ignore[arg-type,return-value]
    assert len(dlpack._live) == before


@pytest.mark.usefixtures("cpu_exports")
def test_what_dlpack_exports_is_imported_as_it_is() -> None:
    found = dlpack.imported(Owner())
    assert (found.shape, found.strides, found.typestr) == ((2, 3), None, "<f4")


def test_an_export_may_end_while_another_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the garbage collector has it, which may run wherever something is allocated."""

    class Collecting(weakref.WeakSet[object]):
        def add(self, item: object) -> None:
            gc.collect()
            super().add(item)

    exports = Collecting()
    monkeypatch.setattr(dlpack, "_live", exports)

    def work() -> None:
        cycle: list[object] = [Owner().__dlpack__()]
        cycle.append(cycle)
        del cycle
        kept.append(Owner().__dlpack__())

    kept: list[object] = []
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60)
    assert kept and len(exports) == 1
