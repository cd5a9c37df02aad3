"""``actnn bench step``: time and memory of a training step against exact training."""

from __future__ import annotations

import json

import pytest

from actnn.bench import step
from actnn.errors import ConfigError


def lines(capsys) -> list[dict]:
    """Return what a benchmark printed."""
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_step_is_timed_and_weighed_against_exact_training(capsys, tmp_path):
    size = ["--model", "small_resnet", "--batch", "4", "--size", "32", "--rounds", "1", "--threads", "1"]
    arguments = [
        *size,
        "--contestants",
        "exact,exact-kept-heap,L3,L5",
        "--bits",
        "2",
        "--out",
        str(tmp_path / "step.jsonl"),
    ]
    assert step.main(arguments) == 0
    records = {record["contestant"]: record for record in lines(capsys)}
    assert set(records) == {"exact", "exact-kept-heap", "L3", "L5"}
    assert records["exact-kept-heap"]["kept_ratio"] == 1
    assert records["exact"]["kept_ratio"] == records["exact"]["time_ratio_default"] == 1
    assert records["L3"]["kept_ratio"] > 10
    assert records["L3"]["step_default"]["seconds"] > 0


def test_a_step_of_paddle_is_timed_and_weighed_too(in_this_process, capsys):
    pytest.importorskip("paddle")
    pytest.importorskip("actnn.paddle")
    arguments = ["--framework", "paddle", "--model", "small_resnet", "--batch", "4", "--size", "32", "--rounds", "1"]
    assert step.main([*arguments, "--threads", "1", "--contestants", "exact,L3,swap"]) == 0
    exact, compressed, swapped = lines(capsys)
    assert compressed["kept_ratio"] > 8
    assert swapped["kept_bytes"] < compressed["kept_bytes"]
    assert compressed["own_bytes"] == exact["own_bytes"]


@pytest.mark.parametrize("bad", [["--contestants", "nobody"], ["--allocators", "mine"], ["--batch", "0"]])
def test_bad_arguments_end_with_exit_code_two(bad, capsys):
    with pytest.raises(SystemExit) as ended:
        step.main(bad)
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_step_of_a_language_model_is_timed_and_weighed_too(in_this_process, capsys):
    pytest.importorskip("transformers")
    model = "bert:layers=1,width=32,tokens=16,vocabulary=64"
    arguments = ["--model", model, "--batch", "2", "--rounds", "1", "--threads", "1", "--contestants", "exact,L3"]
    assert step.main(arguments) == 0
    exact, compressed = lines(capsys)
    assert (exact["model"], exact["size"]) == (model, "16 tokens")
    assert compressed["kept_ratio"] > 1


def test_the_size_of_images_is_refused_for_a_language_model():
    with pytest.raises(ConfigError, match="gpt2 learns from texts, not from images of 64x64: leave --size out"):
        step.main(["--model", "gpt2", "--size", "64"])


def test_several_models_stand_in_one_table(capsys, monkeypatch):
    seconds = {"exact": 1.0, "checkpoint": 1.3, "L2": 1.1}

    def measured(task, group, told):
        memory = {"kept_bytes": 2**20, "peak_bytes": 2**21, "forward_bytes": 2**20, "loss_bytes": 0}
        names = [run["contestant"] for run in group]
        times = {"default": {name: {"seconds": seconds[name]} for name in names}}
        return [step.figures(name, times, dict.fromkeys(names, memory)) for name in names]

    monkeypatch.setattr(step, "measured", measured)
    small = "layers=2,width=32,tokens=32,vocabulary=64"
    models = f"gpt2:{small},llama:{small},timm:vit_small_patch16_224"
    assert step.main(["--models", models, "--contestants", "exact,checkpoint,L2", "--table"]) == 0
    heading, _, *rows = capsys.readouterr().out.splitlines()
    assert heading.split("  ")[0] == "model, batch, size"
    assert len(rows) == 9
    assert sum("checkpoint" in row and " 1.30 " in row for row in rows) == 3
