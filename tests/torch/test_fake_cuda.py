"""Whole steps on a CUDA device that fake tensors play: no host read, few launches, little memory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

SUPPORT = Path(__file__).parents[1] / "support"
pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler for the guard of the fake device"),
    pytest.mark.slow,
]


class Bar(NamedTuple):
    """What so many steps may launch, and the most memory that any of them may take in GiB.

    ``launches`` holds for the last; for the others too, but where something is measured in the first steps alone.
    """

    case: str
    launches: int
    peak: float
    up: int = 0
    alike: bool = True

    def problems(self, steps: list[dict]) -> list[str]:
        """Return what steps did that they must not."""
        last, peak = steps[-1], max(step["peak_gib"] for step in steps)
        launches = max(step["launches"] for step in (steps if self.alike else [last]))
        found = []
        if peak > self.peak:
            found.append(f"{self.case} takes {peak} GiB: expected at most {self.peak}")
        if launches > self.launches:
            found.append(f"{self.case} launches {launches} kernels: expected at most {self.launches}")
        copies, most = (
            max(step["out"] for step in steps),
            MOST_COPIES.get(self.case.split(":")[1], copies_of_codes(steps)),
        )
        if copies > most:
            found.append(f"{self.case} copies {copies} times to the host: expected {most}")
        # tables that are the same for ever go up in the first steps, norms of samples in one copy a step
        if last["up"] > self.up:
            found.append(f"{self.case} copies {last['up']} times to the device: expected {self.up}")
        return found


# the one copy of statistics a step
MOST_COPIES = {"exact": 0, "L2": 0, "L3": 1}
RESNET = [
    Bar("resnet50:exact:64:224:2", 895, 5.37),
    Bar("resnet50:L2:64:224:2", 1900, 1.2),
    Bar("resnet50:L3:64:224:5", 2100, 1.05),
    Bar("resnet50:L4:64:224:2", 2100, 1.0, up=1),
]
BUDGET = [Bar("resnet18:L3:8:64:4:8MB", 800, 0.2, up=1, alike=False)]
TRANSFORMER = [
    # in its first steps attention is measured, and how parts of a batch differ
    Bar("vit_small_patch16_224:L3:16:224:3", 2500, 0.45, alike=False),
    Bar("vit_small_patch16_224+bfloat16:L4:16:224:1", 9200, 0.25, up=3),
]
# half the bytes of exact training, and so half of what may be taken
HALF = [
    # the first step also widens what it measures
    Bar("resnet50+bfloat16:L3:64:224:3", 2100, 0.62, alike=False),
    Bar("resnet50+float16+channels_last:L2:64:224:2", 1900, 0.8),
]


def copies_of_codes(steps: list[dict]) -> int:
    """Return how often codes, which leave the device at L4, and statistics are copied at the most."""
    return 1 + sum(steps[-1]["by_kind"].get(name, 0) for name in MAKERS)


MAKERS = ("normalize_kernel", "row_normalize_kernel", "encode_kernel", "encode_mask_kernel", "max_pool_kernel")


def child(*arguments: str) -> subprocess.CompletedProcess:
    """Run a program in a process that plays the device: torch looks for one only once."""
    for needed in ("triton", "torchvision", "timm"):
        pytest.importorskip(needed)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(SUPPORT), *sys.path])}
    environment.pop("TRITON_INTERPRET", None)
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)


# one process for all levels of a model: torch takes longer to load than some of them
@pytest.mark.parametrize("bars", [RESNET, BUDGET, TRANSFORMER, HALF], ids=["resnet50", "budget", "vit-s", "half"])
def test_steps_read_nothing_launch_few_kernels_and_take_little_memory(bars: list[Bar]):
    done = child(str(SUPPORT / "fake_steps.py"), *(bar.case for bar in bars))
    assert done.returncode == 0, done.stderr
    found = [json.loads(line)["steps"] for line in done.stdout.splitlines()]
    assert [problem for bar, steps in zip(bars, found, strict=True) for problem in bar.problems(steps)] == []


READS = """
import fake_cuda, torch
with fake_cuda.played():
    x = torch.ones(3, device="cuda")
    reads = [lambda: x.sum().item(), lambda: x.cpu(), lambda: x.tolist(), lambda: bool(x[0]), lambda: x[x > 0],
             lambda: torch.zeros(3).copy_(x)]
    for number, read in enumerate(reads):
        try:
            read()
        except (fake_cuda.HostReadError, RuntimeError) as problem:
            continue
        raise SystemExit(f"read {number} went through")
"""


def test_the_fake_device_refuses_every_kind_of_host_read():
    done = child("-c", READS)
    assert done.returncode == 0, done.stderr
