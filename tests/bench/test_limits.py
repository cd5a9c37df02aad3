"""Benchmarks under memory limits and by batch size, at the smallest sizes, in real processes."""

from __future__ import annotations

import json
import os

import pytest

from actnn import cli
from actnn.bench import limits, maxbatch, maxmodel, measurements, memory, speed
from actnn.errors import ConfigError
from actnn.measuring import processes
from actnn.workloads.task import Task

pytest.importorskip("torch")

# one large activation for each image, and next to no weights
MODEL = """
from torch import nn
def wide(classes):
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, classes))
"""
GIB = 2**30
SMALL = ["--threads", "1", "--size", "64"]


@pytest.fixture
def own_model(tmp_path, monkeypatch):
    """Return the name of a small model of the user's that children find too."""
    (tmp_path / "tiny_model.py").write_text(MODEL)
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.syspath_prepend(tmp_path)
    return "tiny_model:wide"


def printed(capsys) -> list[dict]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_largest_batch_is_found_by_real_steps_under_a_real_limit(own_model, tmp_path, capsys):
    arguments = [*SMALL, "--model", own_model, "--memory-limit", "330MB", "--tolerance", "0.4"]
    arguments += ["--contestants", "exact", "--out", str(tmp_path / "maxbatch.jsonl")]
    assert maxbatch.main(arguments) == 0
    (record,) = printed(capsys)
    assert 1 < record["largest"] < record["too_large"]
    assert dict(record["trials"])[record["largest"]] is True
    assert dict(record["trials"])[record["too_large"]] is False
    assert len(record["seconds"]) == 2
    assert record["private_bytes"] <= 330e6
    assert maxbatch.main(arguments) == 0
    assert printed(capsys) == [record]


def test_a_limit_that_not_even_one_image_meets_is_an_error(own_model, monkeypatch):
    def full(*arguments, **options):
        raise processes.DoesNotFit("no memory")

    monkeypatch.setattr(measurements, "call", full)
    with pytest.raises(ConfigError, match="exact: not even 1 fits"):
        maxbatch.main([*SMALL, "--model", own_model, "--contestants", "exact"])


def test_a_trial_that_takes_too_long_ends_the_search(own_model, monkeypatch):
    def late(*arguments, **options):
        raise processes.TookTooLong("too long")

    monkeypatch.setattr(measurements, "call", late)
    with pytest.raises(processes.TookTooLong):
        maxbatch.main([*SMALL, "--model", own_model, "--contestants", "exact"])


def test_an_interrupted_search_goes_on_with_the_contestant_under_way(own_model, tmp_path, monkeypatch, capsys):
    searched = []

    def search(scale, contestant, how, told):
        searched.append(contestant)
        if searched == ["exact", "L2"]:
            raise KeyboardInterrupt
        return {"largest": 5, "too_large": 6}

    monkeypatch.setattr(limits, "search", search)
    arguments = [*SMALL, "--model", own_model, "--contestants", "exact,L2,L3", "--out", str(tmp_path / "out.jsonl")]
    assert maxbatch.main(arguments) == 130
    assert "goes on from there" in capsys.readouterr().err
    assert maxbatch.main(arguments) == 0
    assert searched == ["exact", "L2", "L2", "L3"]


def test_the_largest_model_is_searched_in_every_dimension(monkeypatch, capsys):
    largest = {"depth": 333, "width": 77, "resolution": 500}

    def call(name, task, **options):
        assert name == "trial"
        family, _, scale = task.model.rpartition("-")
        dimension = {"resnet": "depth", "wide-resnet": "width", "": "resolution"}[family]
        value = int(scale) if family else task.height
        if value > largest[dimension]:
            raise processes.DoesNotFit("no memory")
        return {"seconds": [1.0, 1.0], "private_bytes": 10**6 * value}

    monkeypatch.setattr(measurements, "call", call)
    assert maxmodel.main(["--contestants", "exact", "--tolerance", "0.01"]) == 0
    found = {record["dimension"]: record for record in printed(capsys)}
    for dimension, value in largest.items():
        assert value * 0.98 <= found[dimension]["largest"] <= value
    assert found["resolution"]["size"] is None


def test_speed_is_counted_by_batch_and_what_does_not_fit_is_said(own_model, capsys):
    arguments = [*SMALL, "--model", own_model, "--memory-limit", "400MB", "--rounds", "1", "--steps", "1"]
    assert speed.main([*arguments, "--batches", "100000,2", "--contestants", "exact"]) == 0
    small, large = printed(capsys)
    assert (small["batch"], small["fits"]) == (2, True)
    assert small["images_per_second"] > 0
    assert (large["batch"], large["fits"]) == (100000, False)


def test_a_contestant_that_does_not_fit_is_not_tried_with_larger_batches(own_model, monkeypatch, capsys):
    tried = []

    def call(name, task, **options):
        tried.append((options["contestant"], task.batch))
        if task.batch > {"exact": 2, "L3": 8}[options["contestant"]]:
            raise processes.DoesNotFit("no memory")
        return {"seconds": [1.0] * options["steps"]}

    monkeypatch.setattr(measurements, "call", call)
    arguments = [*SMALL, "--model", own_model, "--rounds", "2", "--batches", "2,4,8", "--contestants", "exact,L3"]
    assert speed.main(arguments) == 0
    assert tried == [
        *[("exact", 2), ("L3", 2)] * 2,
        ("exact", 4),
        *[("L3", 4)] * 2,
        *[("L3", 8)] * 2,
    ]
    assert [record["fits"] for record in printed(capsys)] == [True, True, False, True, False, True]


def test_memory_is_measured_where_it_fits_and_computed_where_not(capsys):
    arguments = ["--models", "resnet18", "--size", "32", "--threads", "1", "--memory-limit", "500MB"]
    assert memory.main([*arguments, "--batches", "4", "--contestants", "exact,L3"]) == 0
    exact, compressed = printed(capsys)
    assert exact["how"] == compressed["how"] == "measured"
    assert exact["activation_bytes"] > 10 * compressed["activation_bytes"]
    assert exact["total_bytes"] > exact["own_bytes"]
    assert memory.main([*arguments, "--batches", "1000", "--contestants", "exact"]) == 0
    (large,) = printed(capsys)
    assert large["how"] == "computed"
    assert large["activation_bytes"] / 1000 == pytest.approx(exact["activation_bytes"] / 4, rel=0.05)


def test_what_was_computed_is_measured_where_it_fits_by_now(tmp_path, monkeypatch, capsys):
    figures = {"kept_bytes": 1000, "loss_bytes": 0, "own_bytes": 1000}
    monkeypatch.setattr(measurements, "memory_of", lambda task, contestant, told: figures | {"total_bytes": 3000})
    arguments = ["--models", "resnet18", "--size", "32", "--batches", "100", "--contestants", "exact"]
    arguments += ["--out", str(tmp_path / "records.jsonl")]
    found = []
    for limit in ("1MB", "1MB", "8GB", "8GB"):
        assert memory.main([*arguments, "--memory-limit", limit]) == 0
        found += [record["how"] for record in printed(capsys)]
    assert found == ["computed", "computed", "measured", "measured"]
    assert len((tmp_path / "records.jsonl").read_text().splitlines()) == 2


def test_what_a_level_keeps_is_scaled_from_two_small_batches(monkeypatch, capsys):
    def call(task, contestant, told):
        assert (contestant, task.batch) in {("L3", 2), ("L3", 4)}
        return {"kept_bytes": 1000 + 50 * task.batch, "loss_bytes": task.batch, "own_bytes": 10**9}

    monkeypatch.setattr(measurements, "memory_of", call)
    arguments = ["--models", "resnet18", "--size", "32", "--batches", "100", "--memory-limit", "1MB"]
    assert memory.main([*arguments, "--contestants", "L3"]) == 0
    (record,) = printed(capsys)
    assert (record["how"], record["kept_bytes"], record["activation_bytes"]) == ("computed", 6000, 5900)


@pytest.mark.parametrize(
    ("command", "bad", "complaint"),
    [
        (maxbatch, ["--memory-limit", "much"], "'much' is not an amount of memory"),
        (maxbatch, ["--tolerance", "1.5"], "'1.5' is not a share"),
        (maxbatch, ["--steps", "1"], "at least 2"),
        (maxbatch, ["--contestants", "L9"], "'L9' is not one of exact, exact-kept-heap, checkpoint"),
        (maxmodel, ["--dimensions", "height"], "'height' is not one of"),
        (speed, ["--size", "4"], "'4' is not a size"),
        (memory, ["--batches", "0"], "at least 1"),
    ],
)
def test_bad_arguments_give_one_line_and_exit_code_2(command, bad, complaint, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(bad)
    assert ended.value.code == 2
    words = capsys.readouterr().err
    assert complaint in words
    assert words.count("\n") == 1


def test_an_unknown_model_gives_one_line_and_exit_code_1(capsys):
    assert cli.main(["bench", "maxbatch", "--model", "absent_module:model", "--contestants", "exact"]) == 1
    line = capsys.readouterr().err
    assert line.startswith("actnn: the model 'absent_module:model' cannot be loaded as module:function: ")
    assert line.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "batch", "size", "published"),
    [("resnet152", 32, (224, 224), 5.28), ("fcn_hrnet_w48", 2, (512, 1024), 4.76)],
)
def test_exact_training_keeps_what_the_paper_says(name, batch, size, published):
    found = memory.exact_bytes(Task(name, batch, *size))
    assert (found["kept_bytes"] - found["loss_bytes"]) / GIB == pytest.approx(published, rel=0.05)
