# SPDX-License-Identifier: BSD-3-Clause
"""What GPUs the package is built for: python/architectures.cmake, with nvidia-smi imitated."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2]


def built_for(folder: Path, *options: str) -> str:
    """What is chosen where programs of ``folder`` come before those of the system."""
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("cmake is not installed")
    script = folder / "told.cmake"
    script.write_text(f"include({SOURCE}/python/architectures.cmake)\n"
                      'message(STATUS "for=${GPUNVME_CUDA_ARCHITECTURES}")\n')
    done = subprocess.run([cmake, *options, "-P", script], capture_output=True, text=True,
                          check=True, env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"})
    return done.stdout.partition("for=")[2].strip()


@pytest.mark.parametrize(("printed", "status", "built"), [
    ("9.0", 0, "90a"),
    ("8.0\n8.6\n8.0", 0, "80;86"),
    ("12.0\n9.0", 0, "120;90a"),
    ("", 127, ""),
    ("No devices were found", 6, ""),
    ("NVML library version: 535.161", 18, ""),
])
def test_it_is_built_for_the_gpus_that_there_are(tmp_path: Path, printed: str, status: int,
                                                 built: str) -> None:
    smi = tmp_path / "nvidia-smi"
    (tmp_path / "printed").write_text(printed)
    smi.write_text(f"#!/bin/sh\ncat {tmp_path}/printed\nexit {status}\n")
    smi.chmod(0o755)
    assert built_for(tmp_path) == built


def test_what_is_given_stays(tmp_path: Path) -> None:
    assert built_for(tmp_path, "-DGPUNVME_CUDA_ARCHITECTURES=75") == "75"
