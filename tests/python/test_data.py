# SPDX-License-Identifier: BSD-3-Clause
"""gpunvme.data.Dataset: samples of each format, and what is refused."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpunvme
from gpunvme import data


def test_records_are_samples_of_one_size(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"HEAD" + bytes(range(12)))
    (tmp_path / "b").write_bytes(b"HEAD" + bytes(range(100, 108)))
    with data.Dataset([tmp_path / "a", tmp_path / "b"], format="records", record_nbytes=4,
                      header_nbytes=4) as records:
        assert (len(records), records.nbytes, records.sample_nbytes) == (5, 20, 4)
        assert (records.dtype, records.shape, records.format) == ("U8", (4,), "records")
        assert [bytes(sample) for sample in records] == [
            bytes(range(0, 4)), bytes(range(4, 8)), bytes(range(8, 12)), bytes(range(100, 104)),
            bytes(range(104, 108))]
        assert records.at(-1) == data.Place(1, 8, 4)
        assert records.files[1].endswith("/b")


def test_windows_of_tokens_overlap(tmp_path: Path) -> None:
    np.arange(100, dtype=np.uint16).tofile(tmp_path / "t.bin")
    with data.Dataset(tmp_path / "t.bin", seq_tokens=8, overlap_tokens=1) as tokens:
        assert (len(tokens), tokens.dtype, tokens.shape) == (12, "U16", (9,))
        assert tokens[3].tolist() == list(range(24, 33))


def test_samples_of_an_array_are_its_rows(tmp_path: Path) -> None:
    array = np.random.default_rng(1).random((7, 3, 5)).astype(np.float32)
    np.save(tmp_path / "x.npy", array)
    with data.Dataset(tmp_path / "x.npy") as rows:
        assert rows.shape == (3, 5)
        assert all((row == array[i]).all() for i, row in enumerate(rows))


@pytest.mark.usefixtures("parser")
def test_samples_of_a_safetensors_file_are_rows_of_the_member(tmp_path: Path) -> None:
    from gpunvme.weights.numpy import save_file

    image = np.arange(24, dtype=np.uint8).reshape(4, 6)
    save_file({"image": image, "label": np.arange(4)}, tmp_path / "x.safetensors")
    with data.Dataset(tmp_path / "x.safetensors", member="image") as rows:
        assert (np.stack(list(rows)) == image).all()
    with pytest.raises(gpunvme.NotFoundError, match="none"):
        data.Dataset(tmp_path / "x.safetensors", member="none")


def test_a_member_of_a_tar_archive_is_a_sample_by_itself(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for i in range(3):
            for suffix, content in (("jpg", bytes([i] * (i + 1))), ("cls", b"%d" % i)):
                entry = tarfile.TarInfo(f"{i:04}.{suffix}")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    with data.Dataset(tmp_path / "x.tar", member="jpg") as images:
        assert [bytes(image) for image in images] == [b"\0", b"\1\1", b"\2\2\2"]
        assert (images.sample_nbytes, images.max_nbytes) == (None, 3)


def test_an_index_has_the_samples_of_its_data_set(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(10))
    with data.Dataset(tmp_path / "x.npy") as rows:
        rows.write_index(tmp_path / "x.gnvidx")
        with data.Dataset(tmp_path / "x.gnvidx") as indexed:
            assert indexed.fingerprint == rows.fingerprint
            assert [row.item() for row in indexed] == list(range(10))


def test_a_path_report_says_how_the_bytes_of_a_file_went(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(10, dtype=np.uint64))
    with data.Dataset(tmp_path / "x.npy") as rows:
        before = sum(rows.path().bytes_read.values())
        rows[3]
        path = rows.path()
        assert path.backend == "posix"
        assert sum(path.bytes_read.values()) == before + 8
        with pytest.raises(IndexError, match="file 1 of 1"):
            rows.path(1)
    with pytest.raises(gpunvme.ClosedError):
        rows.path()


def test_a_shard_is_not_replaced_by_its_index(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(10))
    before = (tmp_path / "x.npy").read_bytes()
    with data.Dataset(tmp_path / "x.npy") as rows:
        with pytest.raises(gpunvme.ArgumentError, match="not replaced"):
            rows.write_index(tmp_path / "x.npy")
    assert (tmp_path / "x.npy").read_bytes() == before


def test_an_index_has_checksums_if_they_are_asked_for(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(60, dtype=np.uint16).reshape(20, 3))
    with data.Dataset(tmp_path / "x.npy") as rows:
        assert not rows.has_checksums
        with pytest.raises(gpunvme.UnsupportedError, match="no checksums"):
            rows.checksum(0)
        rows.write_index(tmp_path / "x.gnvidx", checksums=True)
        fingerprint = rows.fingerprint
    with data.Dataset(tmp_path / "x.gnvidx") as rows:
        assert rows.has_checksums and rows.fingerprint == fingerprint
        sums = [rows.checksum(i) for i in range(20)]
        assert len(set(sums)) == 20 and rows.checksum(-1) == sums[19]
        with pytest.raises(IndexError):
            rows.checksum(20)


def test_a_closed_data_set_refuses_calls(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(10))
    rows = data.Dataset(tmp_path / "x.npy")
    rows.close()
    rows.close()
    with pytest.raises(gpunvme.ClosedError):
        rows[0]
    assert "closed" in repr(rows)


@pytest.mark.parametrize("arguments, kind, match", [
    ({"format": "parquet"}, gpunvme.ArgumentError, "parquet"),
    ({"format": "records"}, gpunvme.ArgumentError, "record_nbytes"),
    ({"format": "records", "record_nbytes": -1}, gpunvme.ArgumentError, "record_nbytes: -1"),
    ({"format": "records", "record_nbytes": 7}, gpunvme.ArgumentError, "no whole record"),
    ({"format": "tokens", "token_nbytes": 1 << 32}, gpunvme.ArgumentError, "token_nbytes"),
    ({"member": "a\0b"}, gpunvme.ArgumentError, "byte 0"),
    ({"format": "records", "record_nbytes": 4.0}, TypeError, "float"),
])
def test_bad_arguments_are_refused(tmp_path: Path, arguments: Any, kind: type[Exception],
                                   match: str) -> None:
    (tmp_path / "x").write_bytes(bytes(64))
    with pytest.raises(kind, match=match):
        data.Dataset(tmp_path / "x", **arguments)


def test_a_sample_that_is_not_there_is_an_index_error(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(10))
    with data.Dataset(tmp_path / "x.npy") as rows:
        for i in (10, -11, 1 << 70):
            with pytest.raises(IndexError):
                rows[i]
        with pytest.raises(gpunvme.NotFoundError):
            data.Dataset(tmp_path / "none.npy")


def test_a_file_that_has_become_shorter_is_told(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(1000))
    with data.Dataset(tmp_path / "x.npy") as rows:
        with open(tmp_path / "x.npy", "r+b") as file:
            file.truncate(1000)
        with pytest.raises(gpunvme.RangeError, match="shorter"):
            rows[999]


# ---- Samples by their places ------------------------------------------------------------------


def two_files(folder: Path) -> list[Path]:
    paths = [folder / "first", folder / "second"]
    paths[0].write_bytes(bytes(range(100)))
    paths[1].write_bytes(bytes(range(100, 200)))
    return paths


def test_samples_are_where_the_arrays_say(tmp_path: Path) -> None:
    with data.Dataset.from_ranges(two_files(tmp_path), np.array([1, 0, 0]), [5, 90, 0],
                             np.array([3, 10, 1], np.int32)) as dataset:
        assert [bytes(dataset[i]) for i in range(len(dataset))] == [
            bytes([105, 106, 107]), bytes(range(90, 100)), bytes([0])]
        assert dataset.format == "list"


def test_one_file_needs_no_numbers_of_files(tmp_path: Path) -> None:
    with data.Dataset.from_ranges(two_files(tmp_path)[0], None, [1], [2]) as dataset:
        assert bytes(dataset[0]) == bytes([1, 2])


@pytest.mark.parametrize(("file", "offset", "nbytes"), [
    ([0], [95], [6]),
    ([2], [0], [1]),
    ([0], [-1], [1]),
    ([0, 0], [0], [1]),
    ([0], [0.5], [1]),
    ([[0]], [[0]], [[1]]),
])
def test_places_that_make_no_sense_are_refused(tmp_path: Path, file: list[Any],
                                               offset: list[Any], nbytes: list[Any]) -> None:
    with pytest.raises(gpunvme.ArgumentError):
        data.Dataset.from_ranges(two_files(tmp_path), file, offset, nbytes)


def test_a_text_lists_samples(tmp_path: Path) -> None:
    first, second = two_files(tmp_path)
    (tmp_path / "list").write_text(f"# what\n{second}\t5\t3\n\n{first} 0 2\n")
    with data.Dataset(tmp_path / "list", format="list") as dataset:
        assert [bytes(dataset[i]) for i in (0, 1)] == [bytes([105, 106, 107]), bytes([0, 1])]
