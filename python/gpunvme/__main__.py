# SPDX-License-Identifier: BSD-3-Clause
"""The command gpunvme, which the package has beside its libraries."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    command = Path(__file__).parent / "bin" / "gpunvme"
    try:
        os.execv(command, ["gpunvme", *sys.argv[1:]])
    except OSError as why:
        sys.exit(f"gpunvme: {command}: {why.strerror}")


if __name__ == "__main__":
    main()
