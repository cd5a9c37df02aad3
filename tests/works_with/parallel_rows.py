"""Rows of "works with" for many processes: each is found out by two processes that train a small model."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from parallel_training import CASES, difference, exact_gradients, results_of


class Row(NamedTuple):
    """A combination: what, of which version, whether it works, and how."""

    library: str
    version: str
    verdict: str
    note: str


NOTES = {
    "DDP": "`DistributedDataParallel(actnn.QModule(model))`; `join_statistics` for BatchNorm",
    "FSDP1": "`FullyShardedDataParallel(actnn.QModule(model), use_orig_params=True)`",
    "FSDP2": "`fully_shard(actnn.QModule(model))`, its parts before it",
    "tensor parallel": "linear layers by `ColwiseParallel` and `RowwiseParallel`, and attention between them",
}


def rows(folder: Path) -> list[Row]:
    """Return what two processes found: gradients at 8 bits within 1 % of those of one process."""
    results = results_of(folder, CASES)
    worst: dict[str, float] = {}
    for way, model in CASES:
        found = difference(results[way, model]["gradients"], exact_gradients(model))
        worst[way] = max(worst.get(way, 0.0), found)
    return [Row(way, f"torch {torch.__version__}", verdict(worst[way]), NOTES[way]) for way in NOTES]


def verdict(error: float) -> str:
    """Return the verdict on a relative error of the gradient."""
    return "works" if error < 0.01 else f"gradient differs by {error:.1%}"
