"""``actnn train --overwrite``: all of the old run goes, and nothing else."""

from __future__ import annotations

import pytest
from tiny_runs import train

from actnn.workloads.runs import execution
from actnn.workloads.runs.interruption import Interrupted


def interrupted(run) -> None:
    """Stand for a run that is interrupted before its first step."""
    raise Interrupted


@pytest.mark.parametrize("more", [[], ["--tensorboard"]], ids=str)
def test_nothing_of_a_run_that_was_overwritten_lies_beside_the_new_one(more, tmp_path, monkeypatch):
    assert train(tmp_path, "--tensorboard") == 0
    (tmp_path / "model.pt.part").write_text("half of")
    old = set((tmp_path / "events").iterdir())
    monkeypatch.setattr(execution.Run, "go", interrupted)
    assert train(tmp_path, "--overwrite", *more) == 130
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint.pt", "log.jsonl", *["events"] * len(more)}
    left = set((tmp_path / "events").iterdir()) if more else set()
    assert not left & old
    assert len(left) == len(more)


def test_files_that_no_run_wrote_are_not_overwritten(tmp_path):
    assert train(tmp_path, "--tensorboard") == 0
    foreign = [tmp_path / "notes.txt", tmp_path / "model.onnx", tmp_path / "events" / "notes.txt"]
    for path in foreign:
        path.write_text("mine")
    assert train(tmp_path, "--overwrite") == 0
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == {
        *foreign,
        *(tmp_path / name for name in ("checkpoint.pt", "log.jsonl", "model.pt")),
    }


def test_a_run_that_replaces_none_leaves_weights_that_lie_there_until_it_has_its_own(tmp_path, monkeypatch):
    (tmp_path / "model.pt").write_text("mine")
    monkeypatch.setattr(execution.Run, "go", interrupted)
    assert train(tmp_path) == 130
    assert (tmp_path / "model.pt").read_text() == "mine"
