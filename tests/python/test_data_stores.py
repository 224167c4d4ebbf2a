# SPDX-License-Identifier: BSD-3-Clause
"""gpunvme.data on what is no file: namespaces of drives, stripe sets of files and of drives."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpunvme
from gpunvme import _lib, data

MEMBER = 4 << 20  # bytes
UNIT = 4096  # of a stripe set
RECORD = 1200  # bytes: most samples lie on units of their own and of a neighbour
N = 900


def drive(folder: Path, name: str) -> str:
    """A namespace whose bytes stay when it is closed."""
    return f"sim:size={MEMBER},image={folder}/{name}.img"


def striped(members: list[str]) -> str:
    create = _lib.lib.gpunvme_stripe_create
    create.argtypes = [ctypes.POINTER(ctypes.c_char_p), ctypes.c_size_t, ctypes.c_uint64,
                       ctypes.c_uint]
    uris = (ctypes.c_char_p * len(members))(*(uri.encode() for uri in members))
    assert create(uris, len(members), UNIT, 0) == 0
    return "stripe:" + ";".join(members)


@pytest.fixture(params=["drive", "stripe of files", "stripe of drives"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "drive":
        return drive(tmp_path, "a")
    if request.param == "stripe of drives":
        return striped([drive(tmp_path, name) for name in "abc"])
    for name in "abc":
        with open(tmp_path / name, "wb") as file:
            file.truncate(MEMBER)
    return striped([f"file:{tmp_path}/{name}" for name in "abc"])


@pytest.fixture
def raw(uri: str) -> Any:
    """What the first N records hold: the number of each, and random bytes."""
    found = np.random.default_rng(5).integers(0, 256, (N, RECORD), np.uint8)
    found[:, :4] = np.arange(N, dtype="<u4")[:, None].view(np.uint8)
    with gpunvme.open(uri, "r+") as store:
        store.pwrite(found.tobytes())
    return found


@pytest.fixture
def records(uri: str, raw: Any) -> Iterator[data.Dataset]:
    at = np.arange(N) * RECORD
    with data.Dataset.from_ranges(uri, None, at, np.full(N, RECORD)) as found:
        yield found


def loader_of(records: data.Dataset, **options: Any) -> data.Loader:
    return data.Loader(records, 64, **{"seed": 3, "framework": "np", **options})


def test_an_epoch_has_each_sample_once_with_its_bytes(records: data.Dataset, raw: Any) -> None:
    for shuffle in (True, False):
        found = np.concatenate([np.array(batch) for batch in loader_of(records, shuffle=shuffle)])
        order = found[:, :4].copy().view("<u4")[:, 0]
        assert sorted(order.tolist()) == list(range(N))
        assert (found == raw[order]).all()


def test_a_whole_store_is_records_and_windows_of_tokens(uri: str, raw: Any) -> None:
    with data.Dataset(uri, format="records", record_nbytes=RECORD) as whole:
        assert len(whole) >= MEMBER // RECORD
        assert (whole[N - 1] == raw[N - 1]).all()
    with data.Dataset(uri, format="tokens", token_nbytes=2, seq_tokens=512) as tokens:
        loader = data.Loader(tokens, 8, shuffle=False, framework="np", collate=data.Tokens())
        inputs, targets = next(iter(loader))
        flat = raw.reshape(-1).view(np.uint16)
        for i in range(8):
            window = flat[512 * i:512 * (i + 1)]
            assert (inputs[i] == window[:-1]).all() and (targets[i] == window[1:]).all()


def test_samples_of_any_lengths_are_packed(uri: str, raw: Any) -> None:
    flat = raw.reshape(-1)
    ends = np.sort(np.random.default_rng(1).choice(flat.size, 300, replace=False))
    with data.Dataset.from_ranges(uri, None, ends[:-1], np.diff(ends)) as documents:
        for batch in loader_of(documents, layout="packed", row_nbytes=5000).batches():
            found = batch.data.reshape(-1)
            for i, begin, nbytes in zip(batch.indices, batch.offsets, batch.lengths):
                assert (found[begin:begin + nbytes] == flat[ends[i]:ends[i + 1]]).all()


def test_a_state_goes_on_when_the_store_is_opened_again(uri: str, raw: Any) -> None:
    def opened() -> data.Dataset:
        return data.Dataset(uri, format="records", record_nbytes=RECORD)

    with opened() as records:
        loader = loader_of(records)
        for _ in range(3):
            loader.next_batch()
        state = loader.state_dict()
        rest = [batch.tobytes() for batch in loader]
        loader.close()
    with opened() as records:
        loader = loader_of(records, depth=2)
        loader.load_state_dict(state)
        assert [batch.tobytes() for batch in loader] == rest


def test_a_drive_s_bad_blocks_cost_the_samples_on_them(tmp_path: Path) -> None:
    uri = "sim:size=1M,fault=status=2/81:read:lba=100-107"
    with gpunvme.open(uri) as store:
        block = store.info().block_size
    bad = {i for i in range(N // 2)
           if (i + 1) * RECORD > 100 * block and i * RECORD < 108 * block}
    ranges = (uri, None, np.arange(N // 2) * RECORD, np.full(N // 2, RECORD))
    with data.Dataset.from_ranges(*ranges) as records:
        for shuffle in (True, False):
            loader = loader_of(records, on_error="skip", shuffle=shuffle)
            found = {int(i) for batch in loader.batches() for i in batch.indices}
            assert set(range(N // 2)) - found == bad
            assert loader.stats().skipped == len(bad)
        with pytest.raises(gpunvme.Error, match=f"sample ({'|'.join(map(str, bad))}): sim:"):
            list(loader_of(records))


def test_a_stripe_set_tells_how_its_bytes_go(tmp_path: Path) -> None:
    drives = [drive(tmp_path, name) for name in "abcd"]
    with data.Dataset(striped(drives), format="records", record_nbytes=4 * UNIT) as records:
        loader = loader_of(records)
        list(loader)
        way, = loader.path()
        assert way.backend == "stripe"
        assert sum(way.bytes_read.values()) >= loader.stats().nbytes


def test_an_index_opens_the_samples_of_a_store(records: data.Dataset, uri: str, raw: Any,
                                               tmp_path: Path) -> None:
    records.write_index(tmp_path / "x.gnvidx", checksums=True)
    fingerprint = records.fingerprint
    records.close()
    with data.Dataset([tmp_path / "x.gnvidx", uri]) as indexed:
        assert indexed.fingerprint == fingerprint
        assert (indexed[N - 1] == raw[N - 1]).all()
        assert sum(len(batch) for batch in loader_of(indexed, verify=True)) == N
