"""``actnn bench compile``: four contestants in turns, whose ratios follow from their figures."""

from __future__ import annotations

import json

import pytest

from actnn.bench import compile as bench

SECONDS = {"plain": 3.0, "plain, compiled": 2.0, "codes": 4.0, "codes, compiled": 2.5}
KEPT = {"plain": 1000, "plain, compiled": 900, "codes": 100, "codes, compiled": 80}


def measurements(function, settings, told):
    """Return figures as children would."""
    assert {name: own["bits"] for name, own in settings.items() if own["bits"]} == {"codes": 3, "codes, compiled": 3}
    return {name: {"step": {"seconds": SECONDS[name]}, "kept_bytes": KEPT[name]} for name in settings}


def test_times_are_compared_with_plain_compiled_and_bytes_with_plain(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(bench.turns, "call", measurements)
    out = tmp_path / "compile.jsonl"
    assert bench.main(["--models", "resnet50", "--bits", "3", "--out", str(out)]) == 0
    records = {record["contestant"]: record for record in map(json.loads, out.read_text().splitlines())}
    assert set(records) == set(bench.CONTESTANTS)
    assert records["codes, compiled"]["time_ratio"] == 1.25
    assert records["codes, compiled"]["kept_ratio"] == 12.5
    assert records["plain"]["bits"] is None
    assert "codes, compiled, 3 bits" in capsys.readouterr().out


@pytest.mark.parametrize(("contestant", "least_saving"), [("plain", 1), ("plain, compiled", 1), ("codes", 1.1)])
def test_a_contestant_is_timed_and_weighed(contestant, least_saving, monkeypatch):
    torch = pytest.importorskip("torch")
    # it would be compiled for nothing here
    monkeypatch.setattr(torch, "compile", lambda model, **options: model)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 1000))
    monkeypatch.setattr(bench, "built", lambda name: network)
    common = {"model": "any", "batch": 2, "size": 8, "bits": 2, "threads": 1, "rounds": 1}
    found = bench.measure(common | {"contestant": contestant}, lambda message: None)
    assert found["step"]["seconds"] > 0
    # the flattened images, the logits of the loss and what it sums up
    exact = 4 * 2 * (3 * 8 * 8 + 1000 + 1000)
    assert exact / 2 <= least_saving * found["kept_bytes"] <= 1.1 * exact


def test_widths_that_do_not_exist_are_refused(capsys):
    with pytest.raises(SystemExit):
        bench.parse(["--bits", "9"])
    assert "--bits" in capsys.readouterr().err
