"""``actnn bench noise``: noise of gradients beside what batches let them vary by, many models in one table."""

from __future__ import annotations

import json

import numpy as np
import pytest

from actnn.bench import noise, tables
from actnn.bench.gradients import Draws, energy, own_noise
from actnn.bench.scales import turned, undone
from actnn.errors import ConfigError
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


def test_what_is_not_finite_is_refused():
    torch = pytest.importorskip("torch")
    found = {"sound": torch.ones(2), "broken": torch.tensor([1.0, float("nan")])}
    with pytest.raises(ConfigError, match="gpt2 after 7 steps is not finite at broken:"):
        noise.finite(found, "gpt2 after 7 steps")
    assert noise.finite({"sound": found["sound"]}, "gpt2") == {"sound": found["sound"]}


def depthwise_network(nn):
    """Return a network whose first BatchNorm's scale is undone by the second one's."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, groups=16, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(5),
    )


def gradient_of(torch, model, seed: int):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(8, 3, 12, 12, generator=generator)
    model.zero_grad()
    torch.nn.functional.cross_entropy(model(x), torch.arange(8) % 5).backward()
    return {name: own.grad.clone() for name, own in model.named_parameters()}


def test_scales_that_a_later_norm_undoes_are_found_and_told_apart():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    model = depthwise_network(torch.nn)
    model(torch.randn(8, 3, 12, 12))
    for norm in (model[1], model[4]):
        torch.nn.init.uniform_(norm.weight, 0.5, 2.0)
        torch.nn.init.uniform_(norm.bias, -0.5, 0.5)
    exact = gradient_of(torch, model, 0)
    (pair,) = undone(model, exact)
    assert (pair.gamma, pair.beta) == ("1.weight", "1.bias")
    parts = turned(exact, [pair])
    assert energy(parts) == pytest.approx(energy(exact), rel=1e-5)
    assert pair.gamma not in parts
    # neither of the two is small, only what lies along both
    assert energy({"": parts[pair.along]}) < 1e-4 * min(energy({"": exact[name]}) for name in (pair.gamma, pair.beta))

    sampled = dict.fromkeys(parts, 1.0)
    drawn = Draws(parts)
    generator = torch.Generator().manual_seed(0)
    for _ in range(8):
        drawn.add({name: own + torch.randn(own.shape, generator=generator) for name, own in parts.items()})
    figures = noise.figures(drawn, parts, sampled, [pair])
    assert figures["scales"] == 1
    assert figures["noise_of_scales"] == pytest.approx(drawn.variances[pair.along] / len(parts))
    assert figures["noisiest_scales"] == [["1.weight", pytest.approx(drawn.variances[pair.along] / 2)]]
    assert pair.along not in dict(figures["noisiest"])
    # what changes the network is held to the same bar as all others
    assert figures["parameters"] + figures["without"] == len(parts) - 1
