# SPDX-License-Identifier: BSD-3-Clause
"""The examples run, and so does the code of docs/PYTHON.md."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SOURCE = Path(__file__).parents[2]


@pytest.mark.parametrize("command", ["tutorial.py", "broken_drive.py",
                                     "nvme_benchmark.py --seconds 0.05",
                                     "nvme_benchmark.py --seconds 0.05 --json sim:size=128M"])
def test_an_example_runs(command: str) -> None:
    name, *arguments = command.split()
    done = subprocess.run([sys.executable, SOURCE / "examples/python" / name, *arguments],
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout


@pytest.mark.parametrize(("name", "least"), [("PYTHON.md", 6), ("CHECKPOINT.md", 2)])
def test_the_page_s_code_runs(name: str, least: int, tmp_path: Path,
                              monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.arange(1 << 20, dtype=np.float32).tofile("weights.bin")
    page = (SOURCE / "docs" / name).read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, flags=re.S | re.M)
    assert len(blocks) >= least
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, name, "exec"), namespace)


def test_the_page_names_what_there_is() -> None:
    import gpunvme

    page = (SOURCE / "docs/PYTHON.md").read_text()
    for names in re.findall(r"\bgpunvme\.(\w+(?:\.\w+)?)", page):
        if names.startswith("torch"):
            continue
        found: object = gpunvme
        for name in names.split("."):
            found = getattr(found, name)


def test_a_training_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    program = SOURCE / "examples/python/checkpoint_training.py"
    printed = [subprocess.run([sys.executable, program, tmp_path, "--steps", "8", "--every", "4"],
                              capture_output=True, text=True, timeout=300, check=True).stdout
               for _ in range(2)]
    assert "goes on" not in printed[0] and "step 8:" in printed[0]
    assert "goes on from step 8" in printed[1] and "step 16:" in printed[1]
