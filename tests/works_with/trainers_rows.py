"""Rows of "works with" for trainers: each is found out by a small run of the real one."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import trainers


class Row(NamedTuple):
    """A combination: what, of which version, whether it works, and how."""

    library: str
    version: str
    verdict: str
    note: str


# by the name of the run: what it is called, the package whose version counts, and how it is used
RUNS = {
    "lightning": ("Lightning", "lightning", "`ActnnCallback` of `actnn.integrations.lightning`; resumes bit for bit"),
    "huggingface": ("Hugging Face Trainer", "transformers", "`compress(Trainer(…))`; resumes bit for bit"),
    "accelerate": ("Accelerate", "accelerate", "`compress(accelerator, model)`; resumes bit for bit"),
    "timm": ("timm's loop", "timm", "`SessionScaler` as its loss scaler; resumes bit for bit"),
}


def rows(folder: Path) -> list[Row]:
    """Return what runs of all trainers found."""
    return [Row(what, version(package), verdict(name, folder), note) for name, (what, package, note) in RUNS.items()]


def verdict(name: str, folder: Path) -> str:
    """Run a trainer and return the verdict on it."""
    own = folder / name
    own.mkdir()
    command = [sys.executable, trainers.__file__, name, str(own)]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode == 0 and (own / trainers.WEIGHTS).exists():
        return "works"
    return f"fails: {done.stderr.strip().rpartition(chr(10))[2]}"
