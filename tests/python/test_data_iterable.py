# SPDX-License-Identifier: BSD-3-Clause
"""gpunvme.data.iterable_dataset(): a Loader for torch's DataLoader and torchdata's.

torch is not needed: a module of the few names that are used stands in for torch.utils.data. The
order of calls of a resume is that of torchdata's StatefulDataLoader with num_workers=0: the state
of the data set, then an iterator of it.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpunvme
from gpunvme import data
from gpunvme.data import _iterable

N = 200


class StandIn(types.ModuleType):
    """torch.utils.data."""

    worker: Any = None

    class IterableDataset:
        pass

    def get_worker_info(self) -> Any:
        return self.worker


@pytest.fixture
def torch_data(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    module = StandIn("torch.utils.data")
    utils, torch = types.ModuleType("torch.utils"), types.ModuleType("torch")
    utils.data, torch.utils = module, utils  # type: ignore[attr-defined]
    for name, one in (("torch", torch), ("torch.utils", utils), ("torch.utils.data", module)):
        monkeypatch.setitem(sys.modules, name, one)
    _iterable._class.cache_clear()
    yield module
    _iterable._class.cache_clear()


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[data.Dataset]:
    np.save(tmp_path / "x.npy", np.arange(N, dtype=np.int32)[:, None])
    with data.Dataset(tmp_path / "x.npy") as found:
        yield found


def loader_of(rows: data.Dataset) -> data.Loader:
    return data.Loader(rows, 32, seed=3, framework="np")


def numbers(batches: Any) -> list[list[int]]:
    return [batch[:, 0].tolist() for batch in batches]


def test_it_is_torchs_and_yields_the_batches_of_an_epoch(rows: data.Dataset,
                                                         torch_data: StandIn) -> None:
    dataset = data.iterable_dataset(loader_of(rows))
    assert isinstance(dataset, torch_data.IterableDataset)
    assert len(dataset) == 7
    expected = loader_of(rows)
    assert numbers(dataset) == numbers(expected)
    assert numbers(dataset) == numbers(expected), "the next epoch"
    dataset.set_epoch(0)
    assert numbers(dataset) == numbers(loader_of(rows))


def test_a_state_goes_on_where_it_was(rows: data.Dataset, torch_data: StandIn) -> None:
    dataset = data.iterable_dataset(loader_of(rows))
    iterator = iter(dataset)
    first = numbers(next(iterator) for _ in range(3))
    state = dataset.state_dict()
    other = data.iterable_dataset(loader_of(rows))
    other.load_state_dict(state)
    assert first + numbers(other) == numbers(loader_of(rows))


def test_a_worker_process_is_refused(rows: data.Dataset, torch_data: StandIn) -> None:
    dataset = data.iterable_dataset(loader_of(rows))
    torch_data.worker = object()
    with pytest.raises(gpunvme.ArgumentError, match="num_workers=0"):
        iter(dataset)
