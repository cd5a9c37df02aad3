"""Runs of ``actnn train`` that take a moment, and what they log."""

from __future__ import annotations

import json
from pathlib import Path

from actnn import cli

TINY = ["--images", "48", "--batch", "16", "--model", "small_classifiers:with_dropout", "--epochs", "1"]
TINY += ["--threads", "1", "--rate", "0.05"]


def train(out: Path, *more: str) -> int:
    """Train in this process and return the exit code."""
    return cli.main(["train", *TINY, "--out", str(out), *more])


def events(out: Path, kind: str) -> list[dict]:
    """Return the events of one kind in the log of a run."""
    found = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [event for event in found if event["event"] == kind]
