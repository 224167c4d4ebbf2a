# SPDX-License-Identifier: BSD-3-Clause
"""Bytes in memory as a file with a name, so that one parser reads all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def memory_file(data: bytes) -> Iterator[str]:
    descriptor = os.memfd_create("gpunvme weights")
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
