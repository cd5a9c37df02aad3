"""The picture of ``actnn bench step``: who is on the front, and what is drawn."""

from __future__ import annotations

import json

import pytest

from actnn.bench import front, plots


def test_the_front_holds_those_whom_nobody_beats_in_both():
    points = {"exact": (1.0, 100.0), "slow": (2.0, 50.0), "worse": (2.5, 60.0), "small": (3.0, 5.0), "twin": (3.0, 6.0)}
    assert front.front_of(points) == ["exact", "slow", "small"]


def record(model, contestant, bits, seconds, kept):
    found = {"model": model, "batch": 2, "size": 32, "contestant": contestant, "bits": bits, "framework": "torch"}
    return found | {"step_default": {"seconds": seconds}, "kept_bytes": kept, "peak_bytes": 2 * kept}


def test_all_contestants_of_each_model_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    records = [
        record(model, *each)
        for model in ("resnet50", "gpt2")
        for each in (("exact", None, 1.0, 9e8), ("L3", 2, 1.2, 5e7), ("mesa", 8, 1.3, 2e8), ("dtr", None, 1.4, 4e8))
    ]
    (tmp_path / "step.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    assert plots.main(["--results", str(tmp_path), "--only", "step"]) == 0
    drawn = (tmp_path / "step.svg").read_text()
    for words in (
        "resnet50",
        "gpt2",
        "L3, 2 bits",
        "mesa, 8 bits",
        "dtr",
        "kept for backward, MB",
        "peak of a step, MB",
    ):
        assert words in drawn
