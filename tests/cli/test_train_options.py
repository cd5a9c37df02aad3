"""Optimizers, schedules, loggers, the live table, and more epochs than a run began with."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
from tiny_runs import events, train

from actnn.cli.train.display import LiveTable
from actnn.cli.train.options import parse
from actnn.workloads.runs.figures import Figures
from actnn.workloads.training import Recipe


class Notes:
    """A logger of the one-method kind."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, dict[str, float]]] = []

    def log(self, values: dict[str, float], step: int) -> None:
        self.taken.append((step, values))


@pytest.fixture
def notes(monkeypatch):
    """A module with loggers."""
    found = Notes()
    monkeypatch.setitem(sys.modules, "notes", SimpleNamespace(logger=found, init=lambda: found, nothing=object()))
    return found


def test_adamw_has_a_rate_and_a_decay_of_its_own(tmp_path):
    settings, _ = parse(["--optimizer", "adamw"])
    assert (settings.rate, settings.weight_decay) == (1e-3, 0.05)
    assert parse(["--optimizer", "adamw", "--rate", "0.2"])[0].rate == 0.2
    assert train(tmp_path, "--optimizer", "adamw") == 0
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["trainings"]["L3"]["optimizer"]
    assert "exp_avg_sq" in state["state"][0]


@pytest.mark.parametrize(("schedule", "middle"), [("cosine", 0.5), ("linear", 0.5), ("constant", 1.0)])
def test_a_schedule_goes_from_the_peak_to_its_end(schedule, middle):
    recipe = Recipe(rate=1.0, warm_up=0.0, schedule=schedule)
    rates = [recipe.rate_of(step, 101) for step in range(101)]
    assert rates[0] == pytest.approx(1.0, abs=0.02)
    assert rates[50] == pytest.approx(middle, abs=0.02)
    assert rates[100] == pytest.approx(1.0 if schedule == "constant" else 0.0, abs=1e-3)
    assert rates == sorted(rates, reverse=True)


def test_schedules_differ():
    quarter = {name: Recipe(warm_up=0.0, schedule=name).rate_of(25, 101) for name in ("cosine", "linear", "constant")}
    assert len(set(quarter.values())) == 3


def test_a_run_goes_on_for_more_epochs(tmp_path):
    assert train(tmp_path) == 0
    assert train(tmp_path, "--epochs", "3", "--resume") == 0
    assert [event["epoch"] for event in events(tmp_path, "epoch")] == [0, 1, 2]


def test_a_run_does_not_go_on_for_fewer_epochs(tmp_path, capsys):
    assert train(tmp_path, "--epochs", "2") == 0
    assert train(tmp_path, "--resume") != 0
    assert "--epochs 2 (now 1)" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["logger", "init"], ids=["an object", "what returns one"])
def test_a_logger_takes_the_figures_of_steps_and_epochs(tmp_path, notes, name):
    assert train(tmp_path, "--logger", f"notes:{name}", "--log-every", "1") == 0
    steps = [step for step, values in notes.taken if "step loss/L3" in values]
    assert steps == [0, 1, 2]
    assert any("epoch accuracy/L3" in values for _, values in notes.taken)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [("notes:nothing", "expected a method log"), ("no_such_module:log", "such as wandb:init"), ("notes:x", "wandb")],
)
def test_what_is_no_logger_is_refused(tmp_path, notes, capsys, name, complaint):
    assert train(tmp_path, "--logger", name) != 0
    assert complaint in capsys.readouterr().err


def test_a_live_table_shows_the_last_step(tmp_path):
    from rich.console import Console

    with LiveTable(["L3"], 8, 2) as table:
        table.step("L3", 3, Figures(0.5, 100.0, 2048, None))
        console = Console(width=120)
        with console.capture() as shown:
            console.print(table.table())
    assert "3/8" in shown.get()
    assert "2.0 KiB" in shown.get()
    assert train(tmp_path, "--table") == 0
