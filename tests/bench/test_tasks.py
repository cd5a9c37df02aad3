"""``actnn bench tasks``: what is planned, trained, resumed, and what it adds up to."""

from __future__ import annotations

import json

import pytest
from task_files import write_table, write_text

from actnn.bench import plots, tables, task_plan, task_results, task_training, tasks
from actnn.errors import ConfigError
from actnn.workloads.contestant import Contestant

PLAN = """
[words]
task = "text"
data = "tsv:{folder}"
model = "small_encoder:layers=1,width=32"
size = 8
epochs = 1
batch = 8
rate = 0.01
"""


@pytest.fixture
def plan(tmp_path):
    """Return a plan of one small task."""
    pytest.importorskip("torchmetrics")
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.format(folder=write_table(tmp_path / "table")))
    return path


@pytest.fixture
def in_this_process(monkeypatch):
    """Let runs happen in this process, and return who trained."""
    trained = []

    def call(function, settings, told, **options):
        module, _, name = function.partition(":")
        assert module == task_training.__name__
        trained.append((name, settings["contestant"]))
        return getattr(task_training, name)(settings, told)

    monkeypatch.setattr(tasks.processes, "call", call)
    return trained


def test_runs_are_trained_once_paired_by_seed_and_shown(plan, tmp_path, capsys, in_this_process):
    out = tmp_path / "tasks.jsonl"
    given = ["--plan", str(plan), "--threads", "1", "--out", str(out)]
    assert tasks.main([*given, "--contestants", "exact,L3:2", "--seeds", "0,1"]) == 0
    assert [who for name, who in in_this_process if name == "train"] == ["exact", "L3", "exact", "L3"]
    printed = capsys.readouterr()
    assert "words, L3, 2 bits, seed 1" in printed.err
    assert "3 runs left, about" in printed.err
    assert printed.err.rstrip().endswith("all done")
    exact, ours = printed.out.splitlines()[1:]
    assert "points" in ours
    assert "×" in ours
    assert exact.split()[:2] == ["words", "exact"]
    # another contestant joins; nothing is trained again
    in_this_process.clear()
    assert tasks.main([*given, "--contestants", "exact,L3:2,mesa", "--seeds", "0,1"]) == 0
    assert {who for _, who in in_this_process} == {"mesa"}
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(records) == 6
    for record in records:
        assert record["metric"] == "accuracy"
        assert 0 <= record["score"] <= 1
        assert record["peak_bytes"] >= 0
    by_name = {record["contestant"]: record["kept_bytes"] for record in records}
    assert by_name["L3"] < by_name["mesa"] < by_name["exact"]
    assert "| words | L3, 2 bits | test accuracy | 2 |" in tables.table("tasks", tmp_path)


def record(contestant, seed, score, bits=None, name="books", metric="perplexity", **others):
    common = {"kept_bytes": 1e6 if contestant == "exact" else 1e5, "peak_bytes": 2e6, "processor_seconds": 2.0}
    found = {"name": name, "metric": metric, "contestant": contestant, "bits": bits, "seed": seed, "score": score}
    return found | common | others


def test_a_difference_is_that_of_equal_seeds_with_its_standard_error():
    records = [record("exact", seed, 4.0 + seed) for seed in range(3)]
    records += [record("L3", seed, 1.01 * (4.0 + seed), 2) for seed in range(3)]
    _, rows = task_results.table(records)
    assert rows[1][5] in ("-1.00 ± 0.00 %", "-1.00 %")
    assert rows[1][6:8] == ["0.10 MB", "10.0×"]
    assert rows[0][5] == "–"


def test_what_diverged_is_shown_and_not_averaged():
    records = [record("exact", seed, 0.9, metric="accuracy") for seed in range(2)]
    records += [record("L3", 0, 0.8, 1.25, metric="accuracy"), record("L3", 1, None, 1.25, metric="accuracy")]
    _, rows = task_results.table(records)
    assert rows[1][1] == "L3, 1.25 bits"
    assert rows[1][4] == "80.00% (1 diverged)"
    assert rows[1][5] == "-10.00 points"


def test_of_two_records_of_a_seed_the_newest_counts():
    records = [record("exact", 0, 5.0), record("exact", 0, 4.0)]
    assert task_results.cells(records)["books", "exact"].scores == [4.0]


def test_a_picture_has_a_panel_for_each_task(tmp_path):
    pytest.importorskip("matplotlib")
    records = [
        record(who, seed, score + seed / 100, bits, name, "accuracy", benchmark="tasks")
        for name in ("pets", "cells", "books", "words")
        for seed in range(2)
        for who, bits, score in (("exact", None, 0.9), ("L3", 2, 0.89), ("blpa4", 4, 0.8))
    ]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    assert plots.main(["--results", str(tmp_path), "--only", "tasks"]) == 0
    drawn = (tmp_path / "tasks.svg").read_text()
    for words in ("pets: test accuracy", "L3, 2 bits", "blpa4", "better than exact, points"):
        assert words in drawn


@pytest.mark.parametrize(
    ("text", "name", "bits"),
    [("exact", "exact", None), ("L3:1.25", "L3", 1.25), ("L2", "L2", 4), ("blpa8", "blpa8", 8), ("dtr", "dtr", None)],
)
def test_a_contestant_is_read_with_its_width(text, name, bits):
    assert Contestant.of(text) == Contestant(name, bits)


@pytest.mark.parametrize("text", ["nobody", "exact:2", "mesa:4", "L3:wide"])
def test_what_is_no_contestant_is_refused(text):
    with pytest.raises(ConfigError, match="contestant"):
        Contestant.of(text)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("epochs = 1\n", ""), "lacks epochs"),
        (("rate = 0.01", "rate = 0.01\nspeed = 3"), "has speed"),
        (("batch = 8", 'batch = "8"'), "has batch = '8'"),
        (('task = "text"', 'task = "chess"'), "is 'chess': expected one of classification"),
        (("epochs = 1", "epochs = 0"), "not above 0"),
        (("[words]", "["), "cannot be read"),
    ],
)
def test_a_plan_that_is_wrong_is_refused_with_its_task(tmp_path, change, complaint):
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.format(folder="x").replace(*change))
    with pytest.raises(ConfigError, match=complaint):
        task_plan.read(path)


def test_every_contestant_begins_with_the_same_weights_and_sees_the_same_examples(tmp_path):
    import torch

    pytest.importorskip("torchmetrics")
    task = task_plan.DEFAULTS | {"task": "language", "data": f"text:{write_text(tmp_path)}", "size": 16}
    task |= {"model": "small_gpt:layers=1,width=32", "epochs": 1, "batch": 16, "rate": 0.1}
    losses = {}
    for name, bits in (("exact", None), ("L3", 2), ("gact", 4), ("checkpoint", None), ("dtr", None)):
        settings = {"task": task, "contestant": name, "bits": bits, "seed": 3, "threads": 1}
        training = task_training.prepared(settings)
        losses[name] = training.advance()
    assert len({round(loss, 4) for loss in losses.values()}) == 1
    assert torch.get_num_threads() == 1
