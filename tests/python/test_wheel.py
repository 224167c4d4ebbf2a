# SPDX-License-Identifier: BSD-3-Clause
"""Wheels: what pip has installed, and the licence texts that scripts/wheel-licenses.py adds.

The wheels to which texts are added here are made up.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2]
INFO = "made_up-1.0.dist-info"


def wheel_with(folder: Path, library: str) -> Path:
    wheel = folder / "made_up-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("made_up/__init__.py", "")
        archive.writestr(f"made_up.libs/{library}", b"\x7fELF")
        archive.writestr(f"{INFO}/RECORD", f"made_up/__init__.py,,\n{INFO}/RECORD,,\n")
    return wheel


def licensed(wheel: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SOURCE / "scripts/wheel-licenses.py", wheel, *more],
                          capture_output=True, text=True, timeout=60)


def packaged() -> str:
    """The name of libc's real file, which every system has from a package."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = Path(line.split()[-1])
        if path.name.startswith("libc.so.6"):
            return path.name
    pytest.skip("libc is no libc.so.6")


def test_what_is_installed_has_all_that_is_needed_and_no_more() -> None:
    try:
        installed = metadata.distribution("gpunvme")
    except metadata.PackageNotFoundError:
        pytest.skip("the package is not installed by pip here")
    names = {str(name) for name in installed.files or () if name.suffix != ".pyc"}
    needed = {"gpunvme/py.typed", "gpunvme/lib/libgpunvme.so", "gpunvme/lib/libgpunvme_ops.so",
              "gpunvme/bin/gpunvme", "pycuda_nvme.py", "torch_nvme.py", "optimized_ops.py"}
    needed |= {f"gpunvme/{module.relative_to(SOURCE / 'python/gpunvme')}"
               for module in SOURCE.glob("python/gpunvme/**/*.py")}
    assert needed <= names
    more = [name for name in names - needed
            if not re.match(r"gpunvme-.*\.dist-info/|pycuda_cpu_ops.py|"
                            r"gpunvme/lib/libgpunvme_torch|(\.\./)*bin/gpunvme$", name)]
    assert more == []
    assert installed.metadata["Requires-Python"] == ">=3.10"
    assert [r for r in installed.requires or () if "extra" not in r] == ["numpy"]


def test_a_library_s_text_is_that_of_its_package(tmp_path: Path) -> None:
    name = packaged()
    wheel = wheel_with(tmp_path, name.replace(".so", "-0123abcd.so", 1))
    done = licensed(wheel, f"made_up/LICENSE={SOURCE}/LICENSE")
    if "no licence text" in done.stderr:
        pytest.skip("no package has the C library, or its texts were left out")
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(wheel) as archive:
        texts = {n: archive.read(n) for n in archive.namelist() if f"{INFO}/licenses/" in n}
        record = {row[0]: row for row in csv.reader(io.StringIO(
            archive.read(f"{INFO}/RECORD").decode()))}
    assert texts.pop(f"{INFO}/licenses/made_up/LICENSE") == (SOURCE / "LICENSE").read_bytes()
    assert any(b"GNU" in text for text in texts.values())
    for text_name, text in texts.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text).digest()).decode().rstrip("=")
        assert record[text_name] == [text_name, f"sha256={digest}", str(len(text))]
    assert set(record) >= {"made_up/__init__.py", f"{INFO}/RECORD"}


def test_a_library_without_a_text_is_no_wheel(tmp_path: Path) -> None:
    wheel = wheel_with(tmp_path, "libnowhere-0123abcd.so.7")
    before = wheel.read_bytes()
    done = licensed(wheel)
    assert done.returncode and "libnowhere-0123abcd.so.7" in done.stderr
    assert wheel.read_bytes() == before
