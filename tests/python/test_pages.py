# SPDX-License-Identifier: BSD-3-Clause
"""The examples run, and so does the code of docs/PYTHON.md."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SOURCE = Path(__file__).parents[2]


@pytest.mark.parametrize("command", ["tutorial.py", "broken_drive.py", "tiers.py",
                                     "nvme_benchmark.py --seconds 0.05",
                                     "nvme_benchmark.py --seconds 0.05 --json sim:size=128M"])
def test_an_example_runs(command: str) -> None:
    name, *arguments = command.split()
    done = subprocess.run([sys.executable, SOURCE / "examples/python" / name, *arguments],
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout


def test_all_is_measured_or_skipped_with_a_reason(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, SOURCE / "examples/python/benchmark_all.py", "--quick", "--json",
         tmp_path / "all.json", "--plot", tmp_path / "plots"],
        capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "all.json").read_text())
    assert all(result["value"] > 0 for result in found["results"])
    assert all(skip["why"] for skip in found["skipped"])
    told = [each["name"] for each in (*found["results"], *found["skipped"])]
    for part in ("matmul, naive", "matmul, numpy", "linear with gelu, naive", "pread, all",
                 "Batch, 1 MiB", "pread, 4 KiB random", "open().readinto()", "numpy.fromfile",
                 "safetensors", "kvikio", "torch.cuda.gds"):
        assert any(name.startswith(part) for name in told), part
    drawn = [*tmp_path.glob("plots/*.svg")]
    assert bool(drawn) != any(skip["section"] == "plots" for skip in found["skipped"])
    if drawn:
        assert len(drawn) > 3 and all("<svg" in picture.read_text() for picture in drawn)


@pytest.mark.parametrize(("name", "least"), [("PYTHON.md", 6), ("CHECKPOINT.md", 2),
                                           ("../README.md", 1)])
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


def test_a_training_is_fed_with_tokens_documents_and_images() -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    program = SOURCE / "examples/python/data_training.py"
    printed = subprocess.run([sys.executable, program, "--steps", "20"], capture_output=True,
                             text=True, timeout=300, check=True).stdout
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", printed)]
    assert len(losses) == 3 and losses[1] < losses[0] < 1
    assert losses[2] < 1, "a guess has 6.2"
    assert "images: (64, 3, 32, 32)" in printed


def test_a_training_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    program = SOURCE / "examples/python/checkpoint_training.py"
    printed = [subprocess.run([sys.executable, program, tmp_path, "--steps", "8", "--every", "4"],
                              capture_output=True, text=True, timeout=300, check=True).stdout
               for _ in range(2)]
    assert "goes on" not in printed[0] and "step 8:" in printed[0]
    assert "goes on from step 8" in printed[1] and "step 16:" in printed[1]
