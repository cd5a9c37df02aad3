"""``actnn bench compile``: four contestants in turns, whose ratios follow from their figures."""

from __future__ import annotations

import json

import pytest

from actnn.bench import compile as bench

SECONDS = {"plain": 3.0, "plain, compiled": 2.0, "codes": 4.0, "codes, compiled": 2.5}
KEPT = {"plain": 1000, "plain, compiled": 900, "codes": 100, "codes, compiled": 80}


def measurement(settings, tell):
    """Return figures as a child would."""
    assert settings["bits"] == 3
    return {"seconds": {name: {"seconds": time} for name, time in SECONDS.items()}, "kept": KEPT}


def test_times_are_compared_with_plain_compiled_and_bytes_with_plain(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(bench.processes, "call", lambda target, settings, told: measurement(settings, told))
    out = tmp_path / "compile.jsonl"
    assert bench.main(["--models", "resnet50", "--bits", "3", "--out", str(out)]) == 0
    records = {record["contestant"]: record for record in map(json.loads, out.read_text().splitlines())}
    assert set(records) == set(bench.CONTESTANTS)
    assert records["codes, compiled"]["time_ratio"] == 1.25
    assert records["codes, compiled"]["kept_ratio"] == 12.5
    assert records["plain"]["bits"] is None
    assert "codes, compiled, 3 bits" in capsys.readouterr().out


def test_all_contestants_are_measured_in_one_process(monkeypatch):
    torch = pytest.importorskip("torch")
    # the plain ones would be compiled for nothing here
    monkeypatch.setattr(torch, "compile", lambda model, **options: model)
    names = [bench.PLAIN, bench.PLAIN_COMPILED]
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 1000))
    monkeypatch.setattr(bench, "contestants", lambda name, bits: dict.fromkeys(names, network))
    told = []
    settings = {"model": "any", "batch": 2, "size": 8, "bits": 2, "threads": 1, "rounds": 1}
    found = bench.measure(settings, told.append)
    assert told == names * (bench.WARM_UP_STEPS + 1)
    # the flattened images, the logits of the loss and what it sums up
    assert found["kept"][bench.PLAIN] >= 4 * 2 * (3 * 8 * 8 + 1000)


def test_widths_that_do_not_exist_are_refused(capsys):
    with pytest.raises(SystemExit):
        bench.parse(["--bits", "9"])
    assert "--bits" in capsys.readouterr().err
