"""``actnn train --memory``: a budget is kept, and where it is not, that is said."""

from __future__ import annotations

import pytest
from tiny_runs import events, train

from actnn.session.report import Report


def test_a_memory_budget_is_kept(tmp_path):
    assert train(tmp_path, "--memory", "150KB", "--epochs", "3", "--log-every", "1") == 0
    kept = [step["kept_bytes"] for step in events(tmp_path, "step")]
    assert max(kept[4:]) <= 150_000


@pytest.mark.parametrize(
    ("images", "reason"), [("16", "the only step measures, and "), ("32", "the first of 2 steps measure, and ")]
)
def test_a_memory_budget_that_no_step_met_gives_one_line_and_exit_code_1(images, reason, tmp_path, capsys):
    given = ["--memory", "1KB", "--images", images]
    for more in ([], ["--resume"]):
        assert train(tmp_path, *given, *more) == 1
        printed = capsys.readouterr()
        (line,) = [line for line in printed.err.splitlines() if "--memory" in line]
        assert line.startswith(f"actnn: --memory 1000 B was not met: {reason}")
        assert line.endswith("were kept. Train more steps, or allow more.")
    # what it learnt is not lost
    assert (tmp_path / "model.pt").exists()
    assert "test accuracy" in printed.out


def test_a_memory_budget_is_looked_after_in_steps_that_are_not_logged(tmp_path, capsys):
    assert train(tmp_path, "--memory", "50KB", "--epochs", "3", "--log-every", "100") == 0
    assert "--memory" not in capsys.readouterr().err
    assert len(events(tmp_path, "step")) == 1
    assert events(tmp_path, "epoch")[-1]["kept_bytes"] <= 50_000


def test_a_memory_budget_that_only_the_last_step_missed_is_said(tmp_path, monkeypatch, capsys):
    kept = iter((2**21, 2**19, 2**21))
    monkeypatch.setattr(Report, "kept_bytes", property(lambda report: next(kept) - report.other_bytes))
    assert train(tmp_path, "--memory", "1MiB") == 0
    assert "--memory 1.0 MiB was met, but not in the end: the last step kept 2.0 MiB.\n" in capsys.readouterr().err
