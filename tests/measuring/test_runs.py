"""Runs that can be interrupted: nothing is measured twice, nothing that was measured is lost."""

from __future__ import annotations

import json
import subprocess

import pytest

from actnn.errors import ConfigError
from actnn.measuring import machine, runs


@pytest.fixture
def carry_out(tmp_path):
    """Return a way to carry out numbered runs; it returns what was measured this time, and all records."""

    def carry_out(groups, *, fail_at=None, **options):
        measured = []

        def measure(group, told):
            for run in group:
                if run["number"] == fail_at:
                    raise KeyboardInterrupt
                measured.append(run["number"])
                told(run["number"])
            return [{"square": run["number"] ** 2} for run in group]

        records = runs.carry_out(
            [[{"number": number} for number in group] for group in groups],
            measure,
            out=tmp_path / "folder" / "runs.jsonl",
            words=lambda run: f"number {run['number']}",
            found=lambda record: f"{record['square']}",
            **options,
        )
        return measured, [record["square"] for record in records]

    return carry_out


def test_recorded_runs_are_not_measured_again_unless_asked(carry_out):
    assert carry_out([[1], [2]]) == ([1, 2], [1, 4])
    assert carry_out([[1], [2], [3]]) == ([3], [1, 4, 9])
    assert carry_out([[1]], again=True) == ([1], [1])


def test_a_group_is_measured_as_a_whole(carry_out):
    carry_out([[1, 2]])
    assert carry_out([[1, 2, 3]]) == ([1, 2, 3], [1, 4, 9])


def test_an_interrupted_command_keeps_what_was_finished(carry_out):
    with pytest.raises(KeyboardInterrupt):
        carry_out([[1], [2], [3]], fail_at=2)
    assert carry_out([[1], [2], [3]]) == ([2, 3], [1, 4, 9])


def test_a_run_of_another_commit_is_measured_again_unless_any_will_do(carry_out, monkeypatch):
    carry_out([[1]])
    monkeypatch.setattr(machine, "commit", lambda: "another")
    assert carry_out([[1]], any_commit=True) == ([], [1])
    assert carry_out([[1]]) == ([1], [1])


def test_every_record_says_what_it_was_made_on(carry_out, tmp_path):
    carry_out([[1]])
    (record,) = map(json.loads, (tmp_path / "folder" / "runs.jsonl").read_text().splitlines())
    assert {"processor", "cores", "memory_gib", "python", "versions", "commit", "date"} <= record["machine"].keys()


def test_finished_runs_are_told_in_plain_lines_where_nobody_watches(carry_out, capsys):
    carry_out([[3]])
    assert capsys.readouterr().err == "number 3: 9\n"


def test_records_that_cannot_be_written_are_said_before_anything_is_measured(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        runs.writable(tmp_path / "file" / "out.jsonl")


@pytest.mark.parametrize(("out", "words"), [("a.jsonl", "goes on from there"), (None, "nothing was kept")])
def test_an_interruption_is_one_line_and_exit_code_130(out, words, capsys):
    def interrupted():
        raise KeyboardInterrupt

    assert runs.interruptible(out, interrupted) == 130
    printed = capsys.readouterr().err
    assert words in printed
    assert printed.count("\n") == 1


def test_bars_are_shown_to_somebody_who_watches():
    console = pytest.importorskip("rich.console")
    from actnn.console.progress import progress_bars

    screen = console.Console(record=True, force_terminal=True, width=80)
    with progress_bars(console=screen) as bars:
        shown = runs.Display(bars)
        advance = shown.bar("runs", 2)
        advance(2)
        shown.line("a line that stays")
    printed = screen.export_text()
    assert "a line that stays" in printed
    assert "2/2" in printed


def test_a_record_says_that_it_was_made_with_changed_sources(tmp_path, monkeypatch):
    def git(*arguments: str) -> None:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path), *arguments]
        subprocess.run(command, check=True, capture_output=True)

    monkeypatch.chdir(tmp_path)
    assert machine.commit() is None
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("1")
    git("init"), git("add", "."), git("commit", "-m", "first")
    clean = machine.commit()
    assert len(clean) == 12
    (tmp_path / "record.jsonl").write_text("{}")
    assert machine.commit() == clean
    (tmp_path / "src" / "a.py").write_text("2")
    assert machine.commit() == f"{clean}-changed"
