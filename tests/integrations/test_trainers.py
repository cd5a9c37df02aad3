"""Real trainers: a run that was killed and resumed equals the uninterrupted one bit for bit, and figures are logged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import trainers
from patience import PATIENCE
from torch_framework import same_tensors


def run(trainer: str, folder: Path, kill: bool = False) -> None:
    """Train in a fresh process; raise unless it ends, or is killed, as it should."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, trainers.__file__, trainer, str(folder), *(["kill"] if kill else [])]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment, check=False)
    assert done.returncode == (-signal.SIGKILL if kill else 0), done.stderr


def outcome(folder: Path) -> dict[str, Any]:
    return torch.load(folder / trainers.WEIGHTS, weights_only=True)


@pytest.mark.parametrize("trainer", sorted(trainers.RUNS))
def test_a_run_that_was_killed_and_resumed_equals_the_whole_one_and_logs_what_it_kept(trainer, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(trainer, whole)
    run(trainer, parts, kill=True)
    assert not (parts / trainers.WEIGHTS).exists()
    run(trainer, parts)
    expected, found = outcome(whole), outcome(parts)
    assert expected["weights"].keys() == found["weights"].keys()
    for name, weight in expected["weights"].items():
        same_tensors(found["weights"][name], weight)
    notes = expected["notes"]
    assert notes["actnn/kept_bytes"] > 0
    assert 1 < notes["actnn/bits"] < 8
    # a session whose steps nobody begins would give all the same
    assert len({round(bits, 3) for bits in notes["bits of layers"]}) > 1
