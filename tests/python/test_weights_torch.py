# SPDX-License-Identifier: BSD-3-Clause
"""gpunvme.weights for torch: files, slices, prefetch, modules."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import gpunvme  # noqa: E402
from gpunvme import weights  # noqa: E402
from gpunvme.weights import torch as wt  # noqa: E402

pytestmark = pytest.mark.usefixtures("parser")
DTYPES = ["bool", "uint8", "int8", "uint16", "int16", "float16", "bfloat16", "uint32", "int32",
          "float32", "uint64", "int64", "float64", "complex64", "float8_e4m3fn", "float8_e5m2",
          "float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz", "float4_e2m1fn_x2"]
same_folder = settings(deadline=None, max_examples=30,
                       suppress_health_check=[HealthCheck.function_scoped_fixture])


def raw(dtype: str, shape: tuple[int, ...], seed: int = 1) -> Any:
    """A tensor of random bytes (of 0 and 1 for bool)."""
    kind = getattr(torch, dtype)
    n = kind.itemsize
    for size in shape:
        n *= size
    data = torch.randint(0, 2 if dtype == "bool" else 256, (n,), dtype=torch.uint8,
                         generator=torch.Generator().manual_seed(seed))
    return data.view(kind).reshape(shape)


def same(a: Any, b: Any) -> bool:
    return bool(a.dtype == b.dtype and a.shape == b.shape and torch.equal(
        a.contiguous().flatten().view(torch.uint8), b.contiguous().flatten().view(torch.uint8)))


TENSORS = {dtype: raw(dtype, (6, 8), i) for i, dtype in enumerate(DTYPES)}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    wt.save_file(TENSORS, tmp_path / "x.safetensors", {"format": "pt"})
    return tmp_path / "x.safetensors"


@pytest.fixture
def theirs() -> Any:
    return pytest.importorskip("safetensors.torch", reason="safetensors is not installed")


# ---- Files ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_comes_back(file: Path, dtype: str) -> None:
    assert same(wt.load_file(file)[dtype], TENSORS[dtype])
    assert same(wt.load(file.read_bytes())[dtype], TENSORS[dtype])
    with weights.safe_open(file, "pt") as f:
        assert same(f.get_tensor(dtype), TENSORS[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_is_that_which_safetensors_loads(theirs: Any, tmp_path: Path,
                                                    dtype: str) -> None:
    import safetensors

    theirs.save_file({"x": TENSORS[dtype]}, tmp_path / "x")
    with safetensors.safe_open(tmp_path / "x", "pt") as f:
        assert same(weights.safe_open(tmp_path / "x", "pt").get_tensor("x"), f.get_tensor("x"))


def test_a_file_is_the_same_bytes_as_safetensors_writes(theirs: Any, file: Path) -> None:
    wanted = theirs.save(TENSORS, {"format": "pt"})
    assert file.read_bytes() == wanted
    assert wt.save(TENSORS, {"format": "pt"}) == wanted


shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@same_folder
@given(st.dictionaries(st.text("abc.", max_size=5),
                       st.builds(raw, st.sampled_from(DTYPES[:-1]), shapes, st.integers(0, 9)),
                       max_size=5))
def test_what_was_saved_is_loaded(tmp_path: Path, tensors: dict[str, Any]) -> None:
    wt.save_file(tensors, tmp_path / "x")
    loaded = wt.load_file(tmp_path / "x")
    assert loaded.keys() == tensors.keys()
    assert all(same(loaded[name], t) for name, t in tensors.items())


@pytest.mark.parametrize("index", [..., (), 1, -1, slice(None, None, 2), slice(2, 100),
                                   (slice(None), slice(1, 3)), (..., 2), (1, ..., None),
                                   (slice(1, 3), slice(None, None, 3)), slice(3, 1), [1, 2],
                                   torch.tensor([3, 1]), (slice(None), True)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e5m2"])
def test_a_slice_is_what_torch_has(file: Path, dtype: str, index: Any) -> None:
    with weights.safe_open(file, "pt") as f:
        assert same(f.get_slice(dtype)[index], TENSORS[dtype][index])


def test_a_slice_with_a_negative_step_is_refused_as_in_torch(file: Path) -> None:
    with weights.safe_open(file, "pt") as f, pytest.raises(ValueError, match="step"):
        f.get_slice("float32")[::-1]


def test_a_slice_with_steps_keeps_what_it_picked_alone(file: Path) -> None:
    with weights.safe_open(file, "pt") as f:
        assert f.get_slice("float32")[::3].untyped_storage().nbytes() == 2 * 8 * 4


@pytest.mark.parametrize("make", [
    lambda: {"a": torch.zeros(4, 4).T[1:]},
    lambda: {"a": torch.zeros(4).to_sparse()},
    lambda: {"a": [1.0]},
    lambda: [("a", torch.zeros(1))],
    lambda: dict.fromkeys("ab", torch.zeros(4)),
    lambda: (lambda t: {"a": t[:3], "b": t[2:]})(torch.zeros(4)),
], ids=["not contiguous", "sparse", "a list", "no dict", "the same", "an overlap"])
def test_what_safetensors_does_not_save_is_the_same_error(theirs: Any, tmp_path: Path,
                                                          make: Callable[[], Any]) -> None:
    tensors = make()
    with pytest.raises(Exception) as wanted:
        theirs.save_file(tensors, tmp_path / "x")
    with pytest.raises(wanted.type):
        wt.save_file(tensors, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_parts_of_one_storage_that_lie_apart_are_saved(tmp_path: Path) -> None:
    whole = torch.arange(10)
    wt.save_file({"a": whole[:4], "b": whole[4:]}, tmp_path / "x")
    assert torch.equal(wt.load_file(tmp_path / "x")["b"], whole[4:])


def test_a_conjugate_is_saved_as_it_looks(tmp_path: Path) -> None:
    t = raw("complex64", (5,)).conj()
    wt.save_file({"x": t}, tmp_path / "x")
    assert same(wt.load_file(tmp_path / "x")["x"], t.resolve_conj())


def test_another_device_gets_a_copy(file: Path) -> None:
    with weights.safe_open(file, "pt", device="meta") as f:
        assert f.get_tensor("float32").device.type == "meta"


def test_a_gpu_that_is_not_there_is_an_error(file: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    for device in ("cuda", "cuda:7", 0):
        with pytest.raises((gpunvme.Error, RuntimeError)):
            wt.load_file(file, device=device)


# ---- On a GPU ---------------------------------------------------------------------------------


def home(t: Any) -> Any:
    """A copy on the host, also of types that torch copies only as bytes."""
    return t.view(torch.uint8).cpu().view(t.dtype)


@pytest.mark.parametrize("arena", [False, True])
def test_tensors_come_to_a_gpu(gpu: str, file: Path, arena: bool) -> None:
    with weights.prefetch(file, device=gpu, arena=arena) as loader:
        found = dict(loader)
    assert found.keys() == TENSORS.keys()
    assert all(t.is_cuda and same(home(t), TENSORS[name]) for name, t in found.items())


def test_slices_come_to_a_gpu(gpu: str, file: Path) -> None:
    with weights.safe_open(file, "pt", device=gpu) as f:
        part = f.get_slice("float32")[1:5, ::3]
    assert part.is_cuda and same(part.cpu(), TENSORS["float32"][1:5, ::3])


def test_tensors_on_a_gpu_are_saved_behind_its_work(gpu: str, tmp_path: Path) -> None:
    t = torch.zeros(1 << 22, device=gpu)
    for _ in range(100):
        t += 1
    wt.save_file({"t": t, "host": torch.ones(3)}, tmp_path / "x")
    loaded = wt.load_file(tmp_path / "x")
    assert (loaded["t"] == 100).all() and (loaded["host"] == 1).all()
    assert wt.load(wt.save({"t": t}))["t"].equal(loaded["t"])


def test_memory_that_a_gpu_still_uses_is_waited_for(gpu: str, tmp_path: Path) -> None:
    wt.save_file({"t": torch.ones(1 << 22)}, tmp_path / "x")
    for _ in range(20):
        used = torch.empty(1 << 22, device=gpu)
        for i in range(50):
            used.fill_(i)
        del used  # the next tensor gets this memory
        assert (wt.load_file(tmp_path / "x", device=gpu)["t"] == 1).all()


def test_load_model_fills_a_module_on_a_gpu(gpu: str, tmp_path: Path) -> None:
    wt.save_model(module(1), tmp_path / "x")
    for made in (module(2).to(gpu), module(2), module(2, "meta"), module(2, gpu, torch.float16)):
        dtype = next(made.parameters()).dtype
        weights.load_model(made, tmp_path / "x", device=gpu)
        assert all(p.is_cuda for p in made.parameters())
        assert equal(made.cpu(), module(1).to(dtype))


# ---- Prefetch ---------------------------------------------------------------------------------


@pytest.mark.parametrize("arena", [False, True])
def test_prefetch_hands_out_all(file: Path, arena: bool) -> None:
    with weights.prefetch(file, arena=arena) as loader:
        found = dict(loader)
    assert found.keys() == TENSORS.keys()
    assert all(same(found[name], t) for name, t in TENSORS.items())


def test_views_of_an_arena_outlive_it_and_are_no_views_for_autograd(file: Path) -> None:
    with weights.prefetch(file, ["float32", "float64"], arena=True) as loader:
        found = dict(loader)
    del loader
    gc.collect()
    a, b = found["float32"], found["float64"]
    assert a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
    assert same(a, TENSORS["float32"]) and not a._is_view()
    version = b._version
    a.zero_()
    assert b._version == version


@pytest.mark.parametrize("torch_has", [True, False])
def test_neighbours_that_are_alike_are_tensors_of_their_own(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch_has: bool) -> None:
    if not torch_has:  # it is no part of torch's interface
        monkeypatch.delattr(torch._C, "_AutoDispatchBelowADInplaceOrView")
    shapes = [(3, 5), (3, 5), (3, 5), (5, 3), (), (), (0, 5), (0, 5), (3, 5), (700,), (3, 5)]
    kept = {f"{i:02}": raw("bfloat16", shape, i) for i, shape in enumerate(shapes)}
    wt.save_file(kept, tmp_path / "x.safetensors")
    with weights.prefetch(tmp_path / "x.safetensors", arena=True) as loader:
        found = dict(loader)
    assert all(same(found[name], t) for name, t in kept.items())
    versions = {name: t._version for name, t in found.items()}
    found["01"].zero_()
    assert all(t._base is None for t in found.values())
    assert {name for name, t in found.items() if t._version != versions[name]} == {"01"}


def test_prefetch_puts_tensors_where_the_map_says(file: Path) -> None:
    devices = {"": "cpu", "float32": "meta"}
    with weights.prefetch(file, device_map=devices, arena=True) as loader:
        assert {name: t.device.type for name, t in loader if t.device.type != "cpu"} == {
            "float32": "meta"}
    with pytest.raises(weights.WeightsError, match="device_map"):
        weights.prefetch(file, device_map={"float32": "cpu"})


# ---- Modules ----------------------------------------------------------------------------------


def module(seed: int = 0, device: str = "cpu", dtype: Any = torch.float32) -> Any:
    torch.manual_seed(seed)
    with torch.device(device):
        made = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8),
                                   torch.nn.Linear(8, 8, bias=False))
    return made.to(dtype)


def equal(a: Any, b: Any) -> bool:
    mine, other = a.state_dict(), b.state_dict()
    return mine.keys() == other.keys() and all(same(mine[name], other[name]) for name in mine)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    wt.save_model(module(1), tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def test_load_model_fills_parameters_in_place(saved: Path) -> None:
    m = module(2)
    where = {name: t.data_ptr() for name, t in m.state_dict().items()}
    parameters = list(m.parameters())
    assert weights.load_model(m, saved) == ([], [])
    assert equal(m, module(1))
    assert {name: t.data_ptr() for name, t in m.state_dict().items()} == where
    assert all(a is b for a, b in zip(m.parameters(), parameters))


def test_load_model_gives_memory_to_meta_parameters(saved: Path) -> None:
    m = module(2, "meta")
    m[0].weight.requires_grad_(False)
    weights.load_model(m, saved)
    assert equal(m, module(1))
    assert not m[0].weight.requires_grad and m[2].weight.requires_grad


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_load_model_converts_to_the_parameters_type(saved: Path, dtype: Any) -> None:
    m = module(2, dtype=dtype)
    weights.load_model(m, saved)
    assert equal(m, module(1).to(dtype))
    back = module(2)
    wt.save_model(m, saved)
    weights.load_model(back, saved)
    assert equal(back, m.to(torch.float32))


def test_assign_takes_the_file_s_type(saved: Path) -> None:
    m = module(2, dtype=torch.bfloat16)
    weights.load_model(m, saved, assign=True)
    assert equal(m, module(1))


def test_load_model_fills_what_is_not_contiguous(tmp_path: Path) -> None:
    m = torch.nn.Linear(6, 8, bias=False)
    wt.save_file({"weight": m.weight.data.clone()}, tmp_path / "x")
    wanted = m.weight.data.clone()
    m.weight.data = torch.zeros(6, 8).T
    weights.load_model(m, tmp_path / "x")
    assert torch.equal(m.weight, wanted) and not m.weight.is_contiguous()


def test_load_model_moves_to_the_device(saved: Path) -> None:
    m = module(2)
    weights.load_model(m, saved, device_map={"": "cpu", "2": "meta"})
    assert {name: p.device.type for name, p in m.named_parameters()}["2.weight"] == "meta"


def test_missing_and_unexpected_names_are_told_or_an_error(saved: Path, tmp_path: Path) -> None:
    m = module(2)
    m[2] = torch.nn.Identity()
    m.register_parameter("extra", torch.nn.Parameter(torch.zeros(1)))
    old = {name: t.clone() for name, t in m.state_dict().items()}
    with pytest.raises(RuntimeError, match=r"extra.*2\.weight"):
        weights.load_model(m, saved)
    assert all(same(t, old[name]) for name, t in m.state_dict().items())
    assert weights.load_model(m, saved, strict=False) == (["extra"], ["2.weight"])
    assert same(m.state_dict()["0.weight"], module(1).state_dict()["0.weight"])


def test_another_shape_is_an_error_also_if_not_strict(saved: Path) -> None:
    m = module(2)
    m[0] = torch.nn.Linear(7, 8)
    with pytest.raises(RuntimeError, match=r"0\.weight.*\[8, 6\].*\[8, 7\]"):
        weights.load_model(m, saved, strict=False)


class Tied(torch.nn.Module):  # type: ignore[name-defined, misc]
    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Linear(4, 4, bias=False)
        self.b = torch.nn.Linear(4, 4, bias=False)
        self.b.weight = self.a.weight


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_tied_parameters_are_saved_once_and_stay_tied(theirs: Any, tmp_path: Path,
                                                      device: str) -> None:
    first = Tied()
    wt.save_model(first, tmp_path / "x")
    theirs.save_model(first, tmp_path / "y")
    assert (tmp_path / "x").read_bytes() == (tmp_path / "y").read_bytes()
    with torch.device(device):
        second = Tied()
    assert weights.load_model(second, tmp_path / "x") == ([], [])
    assert second.a.weight is second.b.weight
    assert torch.equal(second.a.weight, first.a.weight)


def test_parameters_that_overlap_are_filled_one_after_the_other(tmp_path: Path) -> None:
    m = Tied()
    wt.save_file({"a.weight": torch.ones(4, 4), "b.weight": torch.full((4, 4), 2.0)},
                 tmp_path / "x")
    m.b.weight = torch.nn.Parameter(m.a.weight.data)
    weights.load_model(m, tmp_path / "x")
    assert torch.equal(m.b.weight, m.a.weight)


def test_a_change_by_load_model_is_seen_by_autograd(saved: Path) -> None:
    m = module(2)
    out = m[2](torch.ones(3, 8, requires_grad=True)).sum()
    weights.load_model(m, saved)
    with pytest.raises(RuntimeError, match="modified"):
        out.backward()


# ---- Modules that load_state_dict() has to fill -------------------------------------------------


class Counts(torch.nn.Linear):  # type: ignore[name-defined, misc]
    """Has extra state."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.steps = 0

    def get_extra_state(self) -> Any:
        return torch.tensor([self.steps])

    def set_extra_state(self, state: Any) -> None:
        assert type(state) is torch.Tensor
        self.steps = int(state)


class Renames(torch.nn.Module):  # type: ignore[name-defined, misc]
    """Loads files in which a layer has another name, and one parameter is two."""

    def __init__(self, new: bool = True) -> None:
        super().__init__()
        self.add_module("new" if new else "old", torch.nn.Linear(4, 4))
        if new:
            self.both = torch.nn.Parameter(torch.zeros(4, 4))
            self._register_load_state_dict_pre_hook(self._rename)
        else:
            self.upper = torch.nn.Parameter(torch.randn(2, 4))
            self.lower = torch.nn.Parameter(torch.randn(2, 4))

    @staticmethod
    def _rename(state: dict[str, Any], prefix: str, *_: Any) -> None:
        for name in [name for name in state if name.startswith(prefix + "old.")]:
            state[prefix + "new." + name[len(prefix) + 4:]] = state.pop(name)
        halves = [state.pop(prefix + half, None) for half in ("upper", "lower")]
        if halves[0] is not None:
            state[prefix + "both"] = torch.cat(halves)


class Keeps(torch.nn.Module):  # type: ignore[name-defined, misc]
    """Takes a buffer as it finds it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", None)
        self._register_load_state_dict_pre_hook(self._take)

    def _take(self, state: dict[str, Any], prefix: str, *_: Any) -> None:
        self.register_buffer("table", state[prefix + "table"])


def keeper(table: Any) -> Any:
    made = Keeps()
    made.table = table
    return made


class Tells(torch.nn.Linear):  # type: ignore[name-defined, misc]
    """A hook removes names that lack, and sees what was loaded."""

    def __init__(self) -> None:
        super().__init__(4, 4, bias=False)
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.seen = 0.0
        self.register_load_state_dict_post_hook(self._look)

    @staticmethod
    def _look(self: Any, found: Any) -> None:
        found.missing_keys[:] = [name for name in found.missing_keys if "scale" not in name]
        self.seen = self.weight.sum().item()


def counts(steps: int) -> Any:
    made = Counts()
    made.steps = steps
    return made


HANDED = [
    (lambda: counts(7), lambda: counts(0)),
    (lambda: Renames(new=False), Renames),
    (lambda: keeper(torch.arange(5)), Keeps),
    (lambda: torch.nn.Linear(4, 4, bias=False), Tells),
    (lambda: torch.nn.BatchNorm1d(4), lambda: torch.nn.BatchNorm1d(4)),
]
HANDED_IDS = ["extra state", "renamed", "kept", "post-hook", "own method"]


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("save, make", HANDED, ids=HANDED_IDS)
def test_modules_with_hooks_and_extra_state_are_as_safetensors_loads_them(
        theirs: Any, tmp_path: Path, save: Any, make: Any, inner: bool, assign: bool) -> None:
    def whole(part: Any) -> Any:
        return torch.nn.Sequential(torch.nn.Linear(4, 4), part) if inner else part

    torch.manual_seed(5)
    wt.save_model(whole(save()), tmp_path / "x")
    wanted, found = whole(make()), whole(make())
    names = theirs.load_model(wanted, tmp_path / "x")
    assert weights.load_model(found, tmp_path / "x", assign=assign) == (sorted(names[0]), names[1])
    assert equal(found, wanted)
    mine, other = (m[1] if inner else m for m in (found, wanted))
    assert [type(t) for t in mine.state_dict(keep_vars=True).values()] == [
        type(t) for t in other.state_dict(keep_vars=True).values()]
    for name in ("steps", "seen"):
        assert getattr(mine, name, None) == getattr(other, name, None)


def test_parameters_that_a_hook_renames_are_filled_in_place(tmp_path: Path) -> None:
    old, new = Renames(new=False), Renames()
    wt.save_model(old, tmp_path / "x")
    where = new.new.weight.data_ptr()
    assert weights.load_model(new, tmp_path / "x") == ([], [])
    assert new.new.weight.data_ptr() == where and same(new.new.weight.data, old.old.weight.data)
    with torch.device("meta"):
        new = Renames().bfloat16()
    weights.load_model(new, tmp_path / "x")
    assert same(new.new.weight.data, old.old.weight.data.bfloat16())
    assert same(new.both.data, torch.cat([old.upper.data, old.lower.data]).bfloat16())


def test_lazy_modules_get_the_shapes_of_the_file(tmp_path: Path) -> None:
    full, lazy = torch.nn.Linear(4, 6), torch.nn.LazyLinear(6)
    wt.save_model(full, tmp_path / "x")
    assert weights.load_model(lazy, tmp_path / "x") == ([], [])
    assert same(lazy.weight.data, full.weight.data) and same(lazy.bias.data, full.bias.data)


def test_extra_state_that_lacks_or_is_not_expected_is_an_error_if_strict(tmp_path: Path) -> None:
    wt.save_model(torch.nn.Linear(4, 4), tmp_path / "plain")
    wt.save_model(Counts(), tmp_path / "extra")
    with pytest.raises(RuntimeError, match="missing in the files: _extra_state"):
        weights.load_model(Counts(), tmp_path / "plain")
    assert weights.load_model(Counts(), tmp_path / "plain", strict=False) == (["_extra_state"], [])
    with pytest.raises(RuntimeError, match="not in the module: _extra_state"):
        weights.load_model(torch.nn.Linear(4, 4), tmp_path / "extra")
