"""``actnn bench overhead``: the host time that conversion adds to a step, by layer."""

from __future__ import annotations

import json

import pytest

from actnn import cli
from actnn.bench import overhead, tables
from actnn.measuring.records import recorded
from actnn.workloads import models

# Conv, BatchNorm and ReLU of the stem; six blocks of six leaves, whose shortcut is one layer or two; head
LEAVES = 3 + 6 * 6 + (4 * 1 + 2 * 2) + 3


@pytest.mark.parametrize("framework", ["torch", "paddle"])
def test_every_contestant_is_compared_with_exact_training_and_recorded(framework, tmp_path, capsys, request):
    pytest.importorskip(framework)
    if framework != "torch":
        request.getfixturevalue("in_this_process")
    out = tmp_path / "overhead.jsonl"
    arguments = ["--framework", framework, "--models", "small_resnet", "--contestants", "L3", "--rounds", "1"]
    arguments = ["bench", "overhead", *arguments, "--steps", "1", "--out", str(out)]
    assert cli.main(arguments) == 0
    exact, compressed = records = recorded(out)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == records
    assert (exact["contestant"], compressed["contestant"]) == ("exact", "L3")
    assert (compressed["bits"], compressed["threads"], compressed["batch"], compressed["size"]) == (2, 1, 2, 32)
    assert (exact["time_ratio"], exact["added_milliseconds_per_layer"]) == (1, 0)
    assert exact["leaf_layers"] == compressed["leaf_layers"] == LEAVES
    assert compressed["milliseconds"] > 0
    assert cli.main(arguments) == 0
    assert recorded(out) == records


def test_what_a_layer_adds_is_the_difference_to_exact_training_divided_by_layers():
    exact = {"seconds": 0.010, "first_quartile": 0.009, "third_quartile": 0.011}
    step = {"seconds": 0.025, "first_quartile": 0.024, "third_quartile": 0.026}
    assert overhead.figures(step, exact, 50) == {
        "step": step,
        "milliseconds": 25.0,
        "time_ratio": 2.5,
        "leaf_layers": 50,
        "added_milliseconds_per_layer": 0.3,
    }


@pytest.mark.parametrize(("steps", "turns"), [(1, 10), (3, 4), (10, 1), (50, 1)])
def test_at_least_ten_steps_are_not_timed(steps, turns):
    assert overhead.warm_up(steps) == turns


def test_a_model_of_a_package_that_does_not_import_is_left_out_and_said(monkeypatch, capsys):
    pytest.importorskip("torch")

    def missing():
        raise ImportError("built for another torch")

    monkeypatch.setattr(models, "PACKAGES", {"torchvision": missing})
    assert overhead.available("torch") == ["resnet18", "resnet50", "small_resnet"]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("actnn bench overhead: mobilenet_v2 is left out: ")
    assert "torchvision (built for another torch)" in line


def test_a_level_that_changes_its_process_is_not_timed_beside_others(capsys):
    with pytest.raises(SystemExit) as ended:
        overhead.main(["--contestants", "L5"])
    assert ended.value.code == 2
    assert "L5 changes how the whole process works" in capsys.readouterr().err


def test_the_table_has_a_row_for_each_contestant_of_a_model():
    common = {"framework": "torch", "model": "resnet18", "batch": 2, "size": 32, "leaf_layers": 52, "bits": None}
    step = {"seconds": 0.01, "first_quartile": 0.009, "third_quartile": 0.012}
    figures = {"step": step, "milliseconds": 10.0, "time_ratio": 1.0, "added_milliseconds_per_layer": 0.0}
    exact = common | figures | {"contestant": "exact"}
    changed = {"time_ratio": 1.52, "added_milliseconds_per_layer": 0.1}
    _, rows = tables.overhead([exact, exact | changed | {"contestant": "L3", "bits": 2}])
    assert rows == [
        ["resnet18, 2, 32", "52", "exact", "10.0 ms", "9.0 to 12.0", "1.00", "–"],
        ["resnet18, 2, 32", "52", "**actnn L3, 2 bits**", "10.0 ms", "9.0 to 12.0", "1.52", "0.100 ms"],
    ]
