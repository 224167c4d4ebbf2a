# SPDX-License-Identifier: BSD-3-Clause
"""Batches by number, for loops that count them themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import argument
from ..memory import empty
from ._arguments import count
from ._loader import Loader

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ._dataset import Dataset


class BatchLoader:
    """A Loader whose batches are asked for by number; ``options`` are the Loader's."""

    def __init__(self, dataset: Dataset, batch_size: int, device: Any = "cuda:0",
                 **options: Any) -> None:
        self.loader = Loader(dataset, batch_size, device=device, **options)
        self._batch_size = batch_size
        self._nbytes = batch_size * dataset.max_nbytes

    def load_batch_to_gpu(self, batch_idx: int) -> Any:
        """Batch ``batch_idx`` of the epoch, as the Loader yields it.

        One after the other is fast, since the next ones are read ahead; any other number drops
        those. ArgumentError: an epoch has fewer.
        """
        if count("batch_idx", batch_idx) >= len(self.loader):
            raise argument(f"batch_idx: {batch_idx}: an epoch has {len(self.loader)} batches")
        state, taken = self.loader.state_dict(), batch_idx * self._batch_size
        if state["taken"] != taken:
            self.loader.load_state_dict({**state, "taken": taken})
        found = self.loader.next_batch()
        if found is None:  # the end of the epoch before
            found = self.loader.next_batch()
        assert found is not None
        return self.loader.collated(found)

    def prefetch_next_batch(self) -> None:
        """Begins to read the next batch, if that has not begun."""
        self.loader.prefetch()

    def get_pinned_buffer(self) -> NDArray[np.uint8]:
        """Pinned host memory of a batch's size, the caller's."""
        return np.asarray(empty(max(self._nbytes, 1), "pinned"))

    def set_prefetch_depth(self, depth: int) -> None:
        """Changes how many batches are read ahead."""
        self.loader.depth = depth
