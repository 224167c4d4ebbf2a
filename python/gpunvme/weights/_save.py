# SPDX-License-Identifier: BSD-3-Clause
"""Writes files of tensors, which appear under their names complete or not at all."""

from __future__ import annotations

import ctypes
import os
import secrets
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .. import store
from .._safetensors import header
from ..batch import Batch
from ..buffers import kind_of
from ._files import refuse

Metadata = Mapping[str, str] | None

# Wide types first, so that all are aligned; the order is that of safetensors.
_ORDER = ["BOOL", "F4", "F6_E2M3", "F6_E3M2", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0",
          "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I16", "U16", "F16", "BF16", "I32", "U32", "F32", "C64",
          "F64", "I64", "U64"]


class Entry(NamedTuple):
    """A tensor to be written: its bytes are at ``ptr``, held by ``keep``."""

    name: str
    code: str  # of its type in the file
    shape: Sequence[int]
    ptr: int
    nbytes: int
    keep: object


def layout(entries: Sequence[Entry], metadata: Metadata) -> tuple[bytes, list[Entry]]:
    """The file's bytes before the data, and the entries in the order of the data."""
    ordered = sorted(entries, key=lambda e: (-_ORDER.index(e.code), e.name))
    for key, value in (metadata or {}).items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"metadata are strings by strings, not {value!r} by {key!r}")
    if any(entry.name == "__metadata__" for entry in ordered):
        refuse('a tensor can\'t have the name "__metadata__"')
    return header(((e.name, e.code, e.shape, e.nbytes) for e in ordered), metadata, 8), ordered


def to_bytes(entries: Sequence[Entry], metadata: Metadata) -> bytes:
    """The bytes of the whole file; the entries' bytes must be on the host."""
    head, ordered = layout(entries, metadata)
    data = [(ctypes.c_char * e.nbytes).from_address(e.ptr) for e in ordered if e.nbytes]
    return b"".join([head, *data])


def _write(file: store.Store, entries: Sequence[Entry], metadata: Metadata) -> None:
    head, ordered = layout(entries, metadata)
    file.resize(len(head) + sum(e.nbytes for e in ordered))
    file.pwrite(head)
    offset = len(head)
    kinds: dict[int, list[tuple[int, Entry]]] = {}  # a batch has one kind of memory
    for entry in ordered:
        if entry.nbytes:
            kinds.setdefault(kind_of(entry.ptr), []).append((offset, entry))
        offset += entry.nbytes
    for found in kinds.values():
        Batch(file, None, [at for at, _ in found], [e.nbytes for _, e in found],
              [e.ptr for _, e in found], write=True).run()
    file.flush()


def to_file(entries: Sequence[Entry], filename: str | os.PathLike[str],
            metadata: Metadata) -> None:
    """Writes a file under a temporary name beside it, syncs and renames it.

    At any time the name has the old file, or the complete new one.
    """
    path = os.path.realpath(filename)  # what a link refers to is replaced, not the link
    if os.path.exists(path) and not os.path.isfile(path):
        refuse(f"{path} is no regular file")
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name[:200]}.{secrets.token_hex(4)}.tmp")
    try:
        with store.open(_file_uri(temporary), "x") as file:
            _write(file, entries, metadata)
        os.replace(temporary, path)
    except BaseException:
        try:
            os.unlink(temporary)
        except OSError:
            pass
        raise
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _file_uri(path: str) -> str:
    return "file:" + path.replace("%", "%25").replace("?", "%3F")
