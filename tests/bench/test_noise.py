"""``actnn bench noise``: noise of gradients beside what batches let them vary by, many models in one table."""

from __future__ import annotations

import json

import numpy as np
import pytest

from actnn.bench import noise, tables
from actnn.bench.gradients import Draws, own_noise
from actnn.measuring.records import recorded

TINY = "layers=1,width=16,heads=2,tokens=8,vocabulary=256"
FEW = ["--steps", "2", "--draws", "6", "--batches", "3", "--batch", "4"]


def test_models_are_measured_once_and_stand_in_one_table(tmp_path, capsys):
    pytest.importorskip("transformers")
    pytest.importorskip("sklearn")
    out = tmp_path / "noise.jsonl"
    models = f"opt:{TINY},small_resnet"
    arguments = [*FEW, "--models", models, "--size", "16", "--out", str(out)]
    assert noise.main(arguments) == 0
    printed = capsys.readouterr().out
    records = recorded(out)
    assert [record["model"] for record in records] == [f"opt:{TINY}", "small_resnet"]
    assert [record["data"] for record in records] == ["text", "digits"]
    for record in records:
        assert 0 < record["of_sampling"] < record["noisiest"][0][1]
        assert record["most_of_95_percent"] <= record["noisiest"][0][1]
        assert record["above"] <= record["parameters"]
        assert record["exact_bytes"] > 4 * record["kept_bytes"]
        assert record["noise_without"] < 1e-6
    # biases of keys, which a softmax does not feel
    assert records[0]["without"] >= 1
    assert noise.main(arguments) == 0
    assert capsys.readouterr().out == printed
    assert len(out.read_text().splitlines()) == 2
    heading, rows = tables.TABLES["noise"](records)
    assert [len(row) for row in rows] == [len(heading)] * 2


def test_the_newest_record_of_a_model_stands_in_the_table(tmp_path, capsys):
    pytest.importorskip("transformers")
    arguments = [*FEW, "--models", f"gpt2:{TINY}", "--out", str(tmp_path / "noise.jsonl")]
    assert noise.main(arguments) == 0
    (record,) = map(json.loads, (tmp_path / "noise.jsonl").read_text().splitlines())
    _, rows = noise.table([record, record | {"above": 77}])
    assert len(rows) == 1
    assert "77" in rows[0]


def test_parameters_without_a_gradient_are_told_apart():
    torch = pytest.importorskip("torch")
    exact = {"weight": torch.ones(4), "bias": torch.full((4,), 1e-8), "still": torch.zeros(4)}
    drawn = Draws(exact)
    generator = np.random.default_rng(0)
    for _ in range(8):
        drawn.add({name: own + torch.tensor(generator.normal(size=4)) * own for name, own in exact.items()})
    own = own_noise(drawn, exact, {"weight": 2.0, "bias": 1e-16, "still": 0.0})
    assert own.without == ["bias", "still"]
    assert own.shares == {"weight": pytest.approx(drawn.variances["weight"] / 2)}
