# SPDX-License-Identifier: BSD-3-Clause
# mypy: allow-untyped-calls, allow-subclassing-any, disable-error-code="import-not-found"
"""Storage for torch.distributed.checkpoint.

    import torch.distributed.checkpoint as dcp
    from gpunvme.checkpoint.dcp import StorageReader, StorageWriter

    dcp.save(state, storage_writer=StorageWriter("/data/run1/step-0000001000"))
    dcp.load(state, storage_reader=StorageReader("/data/run1/step-0000001000"))

The folder is a checkpoint as save() makes it: complete, or not there at all.
gpunvme.checkpoint.load() reads its tensors, and StorageReader reads the tensors that save() has
written. torch's planner pickles all other values.
"""

from __future__ import annotations

import dataclasses
import io
import os
import shutil
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed.checkpoint import storage
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, WriteItemType
from torch.futures import Future

from .. import _lib
from ..buffers import check_storage
from ..errors import error
from ._files import Draft, folder_of, joined, read_manifest, retain
from ._load import Reader, find
from ._memory import packed
from ._save import Files, wait_for_gpus
from ._state import _NAMES, Encoder, Leaf, decode, leaf_of

_BYTES = "bytes"  # kind of a tensor that is an object of the planner's


class StorageWriter(storage.StorageWriter):
    """Writes one checkpoint, which is the folder ``path``.

    ``keep``: of the checkpoints beside it that are named as by save() (step-0000001000), all are
    deleted but the ``keep`` with the highest steps. ExistsError: the folder exists already; with
    ``replace`` it is replaced.
    """

    def __init__(self, path: str | os.PathLike[str], *, keep: int | None = None,
                 replace: bool = False, shard_nbytes: int = 4 << 30) -> None:
        self._path = Path(os.path.abspath(path))
        self._keep, self._replace, self._shard_nbytes = keep, replace, shard_nbytes
        self._draft: Draft | None = None

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return "://" not in os.fspath(checkpoint_id)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id:
            self._path = Path(os.path.abspath(checkpoint_id))
        self._abandon()

    def _abandon(self) -> None:
        """Deletes what an earlier, failed save has left."""
        if self._draft is not None:
            shutil.rmtree(self._draft.folder, ignore_errors=True)
            self._draft.end()
            self._draft = None

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("use_collectives", True):
            raise error(_lib.ERR_UNSUPPORTED, "use_collectives=False: ranks must know each other")

    def storage_meta(self) -> StorageMeta | None:
        return StorageMeta(checkpoint_id=str(self._path), save_id=uuid.uuid4().hex)

    def prepare_local_plan(self, plan: Any) -> Any:
        return plan

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        self._draft = Draft(self._path, None, self._replace)
        folder = str(self._draft.folder)
        return [dataclasses.replace(plan, storage_data=(folder, rank))
                for rank, plan in enumerate(plans)]

    def write_data(self, plan: Any, planner: Any) -> Future[list[storage.WriteResult]]:
        folder, rank = plan.storage_data
        leaves = [_leaf(item, planner.resolve_data(item)) for item in plan.items]
        wait_for_gpus(leaves)
        files = Files(Path(folder), rank, leaves, None, self._shard_nbytes)
        files.write()
        results = []
        for item, leaf in zip(plan.items, leaves):
            described = files.table[leaf.name]
            piece = next(p for p in described["slices"] if p["offsets"] == leaf.offsets)
            one = {**described, "slices": [piece]}
            data = leaf.name, one, {piece["file"]: files.sizes[piece["file"]]}
            results.append(storage.WriteResult(item.index, leaf.nbytes, data))
        done: Future[list[storage.WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Any, results: list[list[storage.WriteResult]]) -> None:
        draft = self._draft
        assert draft is not None
        parts = []
        for one in results:
            for result in one:
                name, described, sizes = result.storage_data
                parts.append({"tensors": {name: described}, "files": sizes, "tree": None})
        tree = {name: {"$": "tensor", "of": name} for name in metadata.state_dict_metadata}
        planner = Encoder().tree({"data": metadata.planner_data})
        draft.finish(joined(parts, _step_of(draft.target), draft.session)
                     | {"planner": planner, "trees": [tree], "world": len(results)})
        if self._keep:
            retain(draft.root, self._keep, draft.target)
        draft.end()
        self._draft = None


def _step_of(folder: Path) -> int | None:
    """The step in a folder's name; None if it has none."""
    number = folder.name.removeprefix("step-")
    return int(number) if number.isdigit() and folder_of(folder.parent, int(number)) == folder \
        else None


def _leaf(item: Any, data: Any) -> Leaf:
    name = item.index.fqn
    if item.type == WriteItemType.BYTE_IO:
        array = np.frombuffer(data.getbuffer(), np.uint8)
        return Leaf(name, "U8", array.shape, (0,), array.shape, array, _BYTES)
    leaf = leaf_of(name, data, (name,))
    leaf.data = packed(leaf.data)
    leaf.whole, leaf.offsets = tuple(item.tensor_data.size), tuple(item.tensor_data.chunk.offsets)
    return leaf


class StorageReader(storage.StorageReader):
    """Reads a checkpoint: the folder ``path``, or the last one in it. ``check`` as in load()."""

    def __init__(self, path: str | os.PathLike[str], *, check: bool = True) -> None:
        self._path, self._check = Path(path), check
        self._manifest: Any = None

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return "://" not in os.fspath(checkpoint_id)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id:
            self._path = Path(checkpoint_id)
        self._manifest = None

    def _read_manifest(self) -> Any:
        if self._manifest is None:
            self._folder = find(self._path, None)
            self._manifest = read_manifest(self._folder)
        return self._manifest

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        manifest = self._read_manifest()
        planner = manifest.get("planner")
        return Metadata(
            {name: _metadata(tensor) for name, tensor in manifest["tensors"].items()},
            planner_data=planner and decode(planner, str)["data"],
            storage_data={}, storage_meta=StorageMeta(checkpoint_id=str(self._folder)))

    def set_up_storage_reader(self, metadata: Any, is_coordinator: bool, *args: Any,
                              **kwargs: Any) -> None:
        self._read_manifest()

    def prepare_local_plan(self, plan: Any) -> Any:
        return plan

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        return plans

    def read_data(self, plan: Any, planner: Any) -> Future[None]:
        tensors = self._manifest["tensors"]
        objects, targets = [], []
        with Reader(self._folder, self._manifest, self._check) as reader:
            for item in plan.items:
                saved = tensors[item.storage_index.fqn]
                if item.type == LoadItemType.BYTE_IO:
                    array = np.empty(saved["shape"], np.uint8)
                    reader.want(saved["slices"][0], "U8", ((0,), array.shape), array)
                    objects.append((item, array))
                    continue
                at = item.storage_index.offset
                piece = next(p for p in saved["slices"]
                             if at is None or tuple(p["offsets"]) == tuple(at))
                begins = tuple(map(sum, zip(piece["offsets"], item.storage_offsets)))
                target = planner.resolve_tensor(item)
                check_storage(target)
                reader.want(piece, saved["dtype"], (begins, tuple(item.lengths)), target.detach())
                targets.append((item, target))
            reader.run()
        for item, array in objects:
            planner.load_bytes(item, io.BytesIO(array.tobytes()))
        for item, target in targets:
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done


def _metadata(tensor: Any) -> Any:
    if tensor["kind"] == _BYTES:
        return BytesStorageMetadata()
    properties = TensorProperties(dtype=getattr(torch, _NAMES[tensor["dtype"]]))
    chunks: dict[Any, ChunkStorageMetadata] = {}
    for piece in tensor["slices"]:
        offsets, shape = torch.Size(piece["offsets"]), torch.Size(piece["shape"])
        chunks.setdefault(offsets, ChunkStorageMetadata(offsets, shape))
    return TensorStorageMetadata(properties, torch.Size(tensor["shape"]), list(chunks.values()))
