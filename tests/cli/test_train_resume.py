"""``actnn train`` stopped at any moment: with ``--resume`` it ends as if it had never been stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from image_files import write_image_folder

from actnn import cli
from actnn.cli.train import display

SUPPORT = Path(__file__).parents[1] / "support"
# 5 steps an epoch, the last with fewer images
TINY = ["--data", "digits", "--images", "72", "--batch", "16", "--model", "small_classifiers:with_dropout"]
TINY += ["--epochs", "2", "--log-every", "1", "--threads", "1", "--rate", "0.05"]
TIMES = {"images_per_second", "resident_bytes", "seconds"}


def train(out: Path, *more: str) -> int:
    return cli.main(["train", *TINY, "--out", str(out), *more])


def logged(out: Path) -> list[dict]:
    """Return what happened to the trainings of a run, without times."""
    events = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [
        {name: value for name, value in event.items() if name not in TIMES}
        for event in events
        if event["event"] in ("step", "epoch")
    ]


def check_equal(found: Path, expected: Path) -> None:
    """Raise AssertionError unless two runs ended with the same weights, state and log."""
    assert logged(found) == logged(expected)
    ends = [torch.load(out / "checkpoint.pt", weights_only=True)["trainings"] for out in (found, expected)]
    for name, training in ends[1].items():
        assert_same(ends[0][name], training)
    weights = [torch.load(out / "model.pt", weights_only=True) for out in (found, expected)]
    assert_same(*weights)


def assert_same(found, expected) -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        found, expected = list(found.values()), list(expected.values())
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected)
    else:
        assert found == expected


def interrupt_after(monkeypatch, steps: int, number: int = signal.SIGINT) -> None:
    """Send this process a signal in the middle of a run, once."""
    shown = display.Display.step
    left = [steps]

    def step(self, *figures):
        shown(self, *figures)
        left[0] -= 1
        if left[0] == 0:
            signal.raise_signal(number)

    monkeypatch.setattr(display.Display, "step", step)


SETTINGS = {
    "L3": [],
    "L0": ["--level", "L0"],
    "L2, augmented, smoothed": ["--level", "L2", "--augment", "--label-smoothing", "0.1"],
    "L2.5, bfloat16, channels last": ["--level", "L2.5", "--bits", "1.5", "--amp", "bf16", "--channels-last"],
    "L4": ["--level", "L4"],
    "swap": ["--level", "swap"],
    "memory": ["--memory", "2MB"],
    "no samples": ["--no-samples"],
    "beside exact": ["--compare", "exact"],
}


@pytest.mark.parametrize("more", SETTINGS.values(), ids=SETTINGS)
def test_an_interrupted_run_goes_on_bit_for_bit(more, tmp_path, monkeypatch, capsys):
    assert train(tmp_path / "whole", *more) == 0
    # in both epochs; two trainings take two steps in turns
    for steps in (3, 4):
        interrupt_after(monkeypatch, steps * (2 if "exact" in more else 1))
        assert train(tmp_path / "parts", *more, *["--resume"] * (steps > 3)) == 130
        monkeypatch.undo()
    capsys.readouterr()
    assert train(tmp_path / "parts", *more, "--resume") == 0
    assert "going on after" in capsys.readouterr().err
    check_equal(tmp_path / "parts", tmp_path / "whole")


def test_varied_images_of_a_folder_go_on_bit_for_bit(tmp_path, monkeypatch):
    images = write_image_folder(tmp_path / "images")
    more = ["--data", str(images), "--size", "16", "--batch", "4", "--images", "18", "--augment"]
    assert train(tmp_path / "whole", *more) == 0
    interrupt_after(monkeypatch, 3)
    assert train(tmp_path / "parts", *more) == 130
    monkeypatch.undo()
    assert train(tmp_path / "parts", *more, "--resume") == 0
    check_equal(tmp_path / "parts", tmp_path / "whole")


def test_checkpoints_change_nothing(tmp_path):
    assert train(tmp_path / "few") == 0
    assert train(tmp_path / "many", "--checkpoint-every", "1") == 0
    check_equal(tmp_path / "many", tmp_path / "few")


def test_an_interruption_says_what_was_saved_and_how_to_go_on(tmp_path, monkeypatch, capsys):
    interrupt_after(monkeypatch, 2)
    assert train(tmp_path) == 130
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("actnn: interrupted; all is saved in ")
    assert "--resume" in line
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["trainings"]["L3"]["taken"] == 2


def test_a_request_to_terminate_saves_as_well(tmp_path, monkeypatch):
    interrupt_after(monkeypatch, 2, signal.SIGTERM)
    assert train(tmp_path) == 143
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["trainings"]["L3"]["taken"] == 2


def test_an_interruption_in_an_evaluation_repeats_the_evaluation(tmp_path, monkeypatch):
    assert train(tmp_path / "whole") == 0
    # the last step of an epoch, behind which the evaluation begins
    interrupt_after(monkeypatch, 5)
    assert train(tmp_path / "parts") == 130
    monkeypatch.undo()
    assert torch.load(tmp_path / "parts" / "checkpoint.pt", weights_only=True)["trainings"]["L3"]["done"] == 5
    assert train(tmp_path / "parts", "--resume") == 0
    check_equal(tmp_path / "parts", tmp_path / "whole")


def test_who_asks_twice_is_not_kept_waiting(tmp_path, monkeypatch, capsys):
    def step(self, *figures):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(display.Display, "step", step)
    assert train(tmp_path) == 130
    assert "ended at once" in capsys.readouterr().err


def test_a_complete_run_is_only_shown_again(tmp_path, capsys):
    assert train(tmp_path, "--epochs", "1") == 0
    before, table = (tmp_path / "log.jsonl").read_bytes(), capsys.readouterr().out
    assert train(tmp_path, "--epochs", "1", "--resume") == 0
    printed = capsys.readouterr()
    assert "is complete" in printed.err
    assert printed.out == table
    assert (tmp_path / "log.jsonl").read_bytes() == before


def child(out: Path, *more: str) -> subprocess.Popen:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path, str(SUPPORT)])}
    command = [sys.executable, "-m", "actnn", "train", *TINY, "--out", str(out), *more]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_steps(out: Path, count: int, process: subprocess.Popen) -> None:
    """Return as soon as the log of a run tells of so many steps."""
    while process.poll() is None:
        if (out / "log.jsonl").exists() and (out / "log.jsonl").read_bytes().count(b'"event": "step"') >= count:
            return
        time.sleep(0.002)
    pytest.fail(f"the run ended before it had taken {count} steps: {process.communicate()[1]}")


def test_a_killed_run_goes_on_bit_for_bit(tmp_path):
    more = ["--epochs", "5", "--checkpoint-every", "2"]
    for steps in (3, 13):
        run = child(tmp_path / "parts", *more, *["--resume"] * (steps > 3))
        wait_for_steps(tmp_path / "parts", steps, run)
        run.send_signal(signal.SIGKILL)
        run.communicate()
        assert run.returncode == -signal.SIGKILL
    last = child(tmp_path / "parts", *more, "--resume")
    errors = last.communicate()[1]
    assert last.returncode == 0, errors
    assert train(tmp_path / "whole", *more) == 0
    check_equal(tmp_path / "parts", tmp_path / "whole")


def test_control_c_in_a_terminal_leaves_a_run_that_goes_on(tmp_path):
    run = child(tmp_path, "--epochs", "50")
    wait_for_steps(tmp_path, 2, run)
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate()
    assert run.returncode == 130
    assert errors.splitlines()[-1].startswith("actnn: interrupted; all is saved in ")
    assert "Traceback" not in errors
