# SPDX-License-Identifier: BSD-3-Clause
"""A Loader as torch.utils.data.IterableDataset, for trainers that take nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import argument

if TYPE_CHECKING:
    from ._loader import Loader


def iterable_dataset(loader: Loader) -> Any:
    """A torch.utils.data.IterableDataset that yields the batches of ``loader``.

        dataset = data.iterable_dataset(data.Loader(tokens, 512, device="cuda:0"))
        for batch in torch.utils.data.DataLoader(dataset, batch_size=None): ...

    For torch's DataLoader and torchdata's StatefulDataLoader, with ``batch_size=None`` and
    ``num_workers=0``: batches are whole, and the engine's threads read ahead. In a worker process
    it raises ArgumentError. An iterator ends with the epoch. It has the loader's ``state_dict()``
    and ``load_state_dict()``, which StatefulDataLoader calls, and ``set_epoch()``.
    """
    return _class()(loader)


@cache
def _class() -> Any:
    # Not needed otherwise. Any, so that types are the same with torch and without it.
    torch_data: Any = import_module("torch.utils.data")

    class LoaderDataset(torch_data.IterableDataset):  # type: ignore[misc]
        """See iterable_dataset()."""

        def __init__(self, loader: Loader) -> None:
            super().__init__()
            self.loader = loader

        def __iter__(self) -> Iterator[Any]:
            if torch_data.get_worker_info() is not None:
                raise argument("a worker process of torch's DataLoader has none of the threads that "
                               "read: say num_workers=0")
            return iter(self.loader)

        def __len__(self) -> int:
            return len(self.loader)

        def state_dict(self) -> dict[str, int]:
            return self.loader.state_dict()

        def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
            self.loader.load_state_dict(state_dict)

        def set_epoch(self, epoch: int) -> None:
            self.loader.set_epoch(epoch)

    return LoaderDataset
