# SPDX-License-Identifier: BSD-3-Clause
"""The package is typed, and its docstrings and pages are true."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import gpunvme

SOURCE = Path(__file__).parents[2]


def test_mypy_finds_nothing(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--cache-dir", tmp_path],
        cwd=SOURCE / "python", capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_every_public_name_has_a_docstring() -> None:
    names = [(name, getattr(gpunvme, name)) for name in gpunvme.__all__]
    names += [(f"ops.{name}", getattr(gpunvme.ops, name)) for name in gpunvme.ops.__all__]
    names += [(f"checkpoint.{name}", getattr(gpunvme.checkpoint, name))
              for name in gpunvme.checkpoint.__all__]
    names += [(f"tiers.{name}", getattr(gpunvme.tiers, name)) for name in gpunvme.tiers.__all__]
    names += [(f"data.{name}", getattr(gpunvme.data, name)) for name in gpunvme.data.__all__]
    for name, value in list(names):
        if inspect.isclass(value) and value.__module__.startswith("gpunvme"):
            names += [(f"{name}.{method}", function) for method, function in vars(value).items()
                      if inspect.isfunction(function) and not method.startswith("_")]
    assert [name for name, value in names if not inspect.getdoc(value)] == []
