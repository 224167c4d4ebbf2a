# SPDX-License-Identifier: BSD-3-Clause
"""torch.ops.nvme_ops: tensors from and to stores."""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import gpunvme

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("gpunvme.torch", exc_type=ImportError,
                    reason="this build has no operators for PyTorch")

from gpunvme import _lib  # noqa: E402
from gpunvme.buffers import view  # noqa: E402
from torch.multiprocessing.reductions import StorageWeakRef  # noqa: E402

ops = torch.ops.nvme_ops
CPU = torch.device("cpu")


@pytest.fixture
def file(tmp_path: Path) -> str:
    """1,024 int32: 0, 1, 2, …"""
    torch.arange(1024, dtype=torch.int32).numpy().tofile(tmp_path / "data")
    return str(tmp_path / "data")


def test_read_tensor_has_the_bytes_from_the_offset_on(file: str) -> None:
    t = ops.read_tensor(file, 40, [3, 4], torch.int32, CPU)
    assert torch.equal(t, torch.arange(10, 22, dtype=torch.int32).view(3, 4))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.bool, torch.complex64,
                                   torch.float8_e4m3fn, torch.uint16])
def test_any_type_comes_back_as_it_was_written(tmp_path: Path, dtype: torch.dtype) -> None:
    uri = str(tmp_path / "new")
    t = torch.arange(60).view(5, 12).to(dtype)
    ops.write_tensor(t, uri, 8)
    found = ops.read_tensor(uri, 8, [5, 12], dtype, CPU)
    assert torch.equal(found.view(torch.uint8), t.view(torch.uint8))


def test_read_into_tensor_writes_only_its_tensor(file: str) -> None:
    whole = torch.full((4, 8), -1, dtype=torch.int32)
    ops.read_into_tensor(whole[1:3], file, 0)
    assert torch.equal(whole[1:3].flatten(), torch.arange(16, dtype=torch.int32))
    assert (whole[[0, 3]] == -1).all()


def test_write_tensor_leaves_what_is_around_it(file: str) -> None:
    ops.write_tensor(torch.tensor([-5, -6], dtype=torch.int32), file, 8)
    t = ops.read_tensor(file, 0, [1024], torch.int32, CPU)
    assert t[:5].tolist() == [0, 1, -5, -6, 4] and t[-1] == 1023


def test_a_drive_is_named_as_a_file_is() -> None:
    uri = "sim:size=16M"
    ops.write_tensor(torch.arange(100), uri, 4096)
    assert torch.equal(ops.read_tensor(uri, 4096, [100], torch.int64, CPU), torch.arange(100))


def test_an_empty_tensor_reads_nothing(file: str) -> None:
    assert ops.read_tensor(file, 4096, [0, 3], torch.int32, CPU).shape == (0, 3)


def test_a_read_beyond_the_end_is_a_value_error(file: str) -> None:
    with pytest.raises(ValueError, match="ends behind 4096 of 4100 bytes.*ERR_RANGE"):
        ops.read_tensor(file, 0, [1025], torch.int32, CPU)


def test_a_file_that_is_not_there_is_a_runtime_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="/nothing: No such file.*ERR_NOT_FOUND"):
        ops.read_tensor(str(tmp_path / "nothing"), 0, [1], torch.int32, CPU)


def test_a_misspelt_parameter_is_a_value_error_that_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'size'"):
        ops.read_tensor("sim:siz=4M", 0, [1], torch.int32, CPU)


def test_a_negative_offset_is_a_value_error(file: str) -> None:
    with pytest.raises(ValueError, match="offset -1"):
        ops.write_tensor(torch.zeros(1), file, -1)


def test_a_zero_byte_in_a_uri_is_a_value_error(file: str) -> None:
    with pytest.raises(ValueError, match="zero byte"):
        ops.read_tensor(f"{file}\0x", 0, [1], torch.int32, CPU)


@pytest.mark.parametrize("t", [
    torch.zeros(3, 5), torch.zeros(7, dtype=torch.bfloat16)[2:5], torch.zeros((), dtype=torch.int8),
    torch.zeros(2, 3, dtype=torch.complex64), torch.zeros(4, 1).t(), torch.zeros(6).view(2, 3)[1]])
def test_a_tensor_is_the_memory_that_dlpack_tells_of(t: torch.Tensor) -> None:
    as_subclass = t.as_subclass(type("Sub", (torch.Tensor,), {}))  # which has no shorter way
    quick, slow = view(t, True), view(as_subclass, True)
    assert quick[:3] == slow[:3] == (t.data_ptr(), t.nbytes, _lib.MEM_HOST)


@pytest.mark.parametrize("t", [
    torch.zeros(4, 4)[:, :2], torch.zeros(3, requires_grad=True), torch.zeros(0),
    torch.zeros(3, device="meta"), torch.zeros(2, dtype=torch.cfloat).conj()])
def test_a_tensor_without_plain_bytes_is_an_argument_error(path: str, t: torch.Tensor) -> None:
    with gpunvme.open(path) as store, pytest.raises(gpunvme.ArgumentError):
        store.pread(t)


NOT_PLAIN = {
    "a sparse one": (lambda: torch.eye(3).to_sparse(), "torch.sparse_coo .* to_dense"),
    "compressed rows": (lambda: torch.eye(3).to_sparse_csr(), "torch.sparse_csr .* to_dense"),
    "quint8": (lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.quint8),
               "torch.quint8 .* int_repr"),
    "a nested one": (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested"),
    "a jagged one": (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)],
                                                        layout=torch.jagged), "nested"),
}


@pytest.mark.filterwarnings("ignore:.*(prototype|beta|deprecated)")
@pytest.mark.parametrize(("make", "text"), NOT_PLAIN.values(), ids=NOT_PLAIN.keys())
def test_a_tensor_that_is_more_than_its_bytes_is_refused(path: str, make: Any, text: str) -> None:
    t = make()
    with gpunvme.open(path, "r+") as store:
        for use in (store.pread, store.pwrite):
            with pytest.raises(gpunvme.ArgumentError, match=text):
                use(t)
    for op in (ops.read_into_tensor, ops.write_tensor):
        with pytest.raises(ValueError, match=f"nvme_ops: .*{text}"):
            op(t, path, 0)


def test_a_tensor_that_requires_gradients_is_read_into_without_grad_alone(file: str) -> None:
    leaf = torch.zeros(4, requires_grad=True)
    for t in (leaf, leaf * 2):
        with pytest.raises(ValueError, match="requires gradients"):
            ops.read_into_tensor(t, file, 0)
        ops.write_tensor(t, file, 0)  # which changes nothing
    with torch.no_grad():
        ops.read_into_tensor(leaf, file, 16)
    ops.read_into_tensor(leaf.detach(), file, 16)
    assert leaf.detach().view(torch.int32).tolist() == [4, 5, 6, 7]


def test_a_tensor_within_vmap_is_an_argument_error(path: str) -> None:
    with gpunvme.open(path) as store:
        def read(t: torch.Tensor) -> torch.Tensor:
            store.pread(t)
            return t

        with pytest.raises(gpunvme.ArgumentError):
            torch.vmap(read)(torch.zeros(2, 8))


def test_the_bytes_of_a_tensor_that_is_replaced_in_flight_are_kept() -> None:
    with gpunvme.open("sim:size=1M,latency=100ms") as store:
        t = torch.zeros(4096, dtype=torch.uint8)
        memory = StorageWeakRef(t.untyped_storage())
        future = store.pread_async(t)
        t.set_()
        assert not memory.expired()
        future.result(10)


def test_a_tensor_beyond_its_storage_is_refused(file: str) -> None:
    t = torch.zeros(3, 1000)[1:]
    t.untyped_storage().resize_(4000)
    for use in (ops.read_into_tensor, ops.write_tensor):
        with pytest.raises(ValueError, match="ends at byte 12000 of its storage, which has 4000"):
            use(t, file, 0)
    weight = torch.zeros(4, 4).t()
    weight.untyped_storage().resize_(60)
    with pytest.raises(ValueError, match="optimized::linear: .* byte 64"):
        torch.ops.optimized.linear(torch.zeros(2, 4), weight)


@pytest.mark.parametrize("t", [torch.zeros(4, 4).t(), torch.zeros(8)[::2],
                               torch.zeros(1).expand(4)], ids=["transposed", "steps", "expanded"])
def test_a_tensor_that_is_not_contiguous_is_a_value_error(file: str, t: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="not contiguous"):
        ops.read_into_tensor(t, file, 0)
    with pytest.raises(ValueError, match="not contiguous"):
        ops.write_tensor(t, file, 0)


def test_a_shape_with_a_negative_size_is_refused(file: str) -> None:
    with pytest.raises(RuntimeError, match="negative dimension"):
        ops.read_tensor(file, 0, [-4], torch.int32, CPU)


def test_what_cannot_be_written_says_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="GPUNVME_ERR_"):
        ops.write_tensor(torch.zeros(4), str(tmp_path), 0)


def test_a_drive_that_fails_is_a_runtime_error_with_its_status() -> None:
    with pytest.raises(RuntimeError, match="GPUNVME_SC_"):
        ops.read_tensor("sim:size=16M,fault=status=2/81:read", 0, [1024], torch.int32, CPU)


def test_other_python_threads_run_during_a_transfer() -> None:
    begun = threading.Event()

    def read() -> None:
        begun.set()
        ops.read_tensor("sim:size=16M,read_latency=500ms", 0, [1024], torch.int32, CPU)

    reader = threading.Thread(target=read)
    reader.start()
    begun.wait()
    rounds = 0
    while reader.is_alive():
        rounds += 1
        time.sleep(0.001)
    assert rounds > 20  # with the interpreter's lock held it would be a few


def test_autograd_knows_that_the_tensor_has_changed(file: str) -> None:
    weight = torch.ones(4, requires_grad=True)
    t = torch.zeros(4)
    y = (weight * t).sum()  # its gradient needs t as it is
    ops.read_into_tensor(t, file, 0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_opcheck_passes(file: str) -> None:
    torch.library.opcheck(ops.read_tensor.default, (file, 0, [4], torch.int32, CPU))
    torch.library.opcheck(ops.read_into_tensor.default, (torch.zeros(4), file, 0))
    torch.library.opcheck(ops.write_tensor.default, (torch.ones(4), file, 0))


def test_a_compiled_graph_writes_and_reads_in_order(file: str) -> None:
    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        before = ops.read_tensor(file, 0, [4], torch.float32, CPU)
        ops.write_tensor(x + 1, file, 0)
        return before, ops.read_tensor(file, 0, [4], torch.float32, CPU)

    ops.write_tensor(torch.full((4,), 5.0), file, 0)
    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    before, behind = compiled(torch.zeros(4))
    assert before.tolist() == [5.0] * 4 and behind.tolist() == [1.0] * 4


def test_a_compiled_graph_reads_into_a_tensor(file: str) -> None:
    def read(t: torch.Tensor) -> torch.Tensor:
        ops.read_into_tensor(t, file, 4)
        return t * 2

    t = torch.zeros(3, dtype=torch.int32)
    assert torch.compile(read, fullgraph=True, backend="aot_eager")(t).tolist() == [2, 4, 6]
    assert t.tolist() == [1, 2, 3]


# ---- On a GPU ---------------------------------------------------------------------------------

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU here")


@on_gpu
def test_bytes_reach_and_leave_a_gpu(tmp_path: Path) -> None:
    uri = str(tmp_path / "new")
    t = torch.randn(1 << 18, device="cuda")
    ops.write_tensor(t, uri, 512)
    assert torch.equal(ops.read_tensor(uri, 512, [1 << 18], torch.float32, "cuda"), t)


@on_gpu
def test_transfers_stand_behind_the_work_on_the_current_stream(tmp_path: Path) -> None:
    """Blocks that the allocator recycles while kernels that use them are still in the queue."""
    uri = str(tmp_path / "new")
    expected = torch.arange(1 << 20, dtype=torch.float32)
    with torch.cuda.stream(torch.cuda.Stream()):
        for i in range(20):
            t = torch.zeros(1 << 20, device="cuda")
            torch.cuda._sleep(5_000_000)
            t += expected.cuda() + i
            ops.write_tensor(t, uri, 0)
            torch.cuda._sleep(5_000_000)
            t.fill_(-1)
            del t  # its block is the next one's, with the kernels above still to run
            found = ops.read_tensor(uri, 0, [1 << 20], torch.float32, "cuda")
            assert torch.equal(found.cpu(), expected + i)


def test_a_registered_tensor_that_is_dropped_keeps_its_memory(path: str, data: bytes) -> None:
    tensor = torch.zeros(1 << 14, dtype=torch.uint8)
    storage, address = StorageWeakRef(tensor.untyped_storage()), tensor.data_ptr()
    gpunvme.register(tensor)
    del tensor
    gc.collect()
    assert not storage.expired()
    with gpunvme.open(path) as store:
        assert store.pread(address, 1 << 14) == 1 << 14
    gpunvme.unregister(address)
    assert storage.expired()


def test_the_memory_of_a_tensor_in_flight_is_kept() -> None:
    with gpunvme.open("sim:size=1M,read_latency=300ms") as store:
        tensor = torch.zeros(4096, dtype=torch.uint8)
        storage = StorageWeakRef(tensor.untyped_storage())
        transfer = store.pread_async(tensor)
        del tensor
        gc.collect()
        assert not storage.expired()
        transfer.result()
        gc.collect()
        assert storage.expired()
