# SPDX-License-Identifier: BSD-3-Clause
"""Headers of safetensors files: the table of tensors before their bytes. Knows no files.

The format: 8 bytes (little-endian) that say how long the JSON behind them is, the JSON, and the
tensors' bytes, one after the other without holes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

ALIGN = 4096  # where data begins: a multiple of what O_DIRECT asks for
MOST = 100_000_000  # bytes of JSON that readers accept

#: Bytes of an element, by the format's names of types; those of less than a byte are left out.
ITEMSIZE = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2, "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}


def header(tensors: Iterable[tuple[str, str, Sequence[int], int]],
           metadata: Mapping[str, str] | None = None, align: int = ALIGN) -> bytes:
    """The header for tensors (name, type, shape, bytes), which follow in this order.

    Padded with spaces to a multiple of ``align``. ValueError: longer than readers accept.
    """
    table: dict[str, object] = {} if metadata is None else {"__metadata__": dict(metadata)}
    at = 0
    for name, dtype, shape, nbytes in tensors:
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + nbytes]}
        at += nbytes
    text = json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % align)
    if len(text) > MOST:
        raise ValueError(f"a safetensors header of {len(text)} bytes: {MOST} are the most")
    return len(text).to_bytes(8, "little") + text
