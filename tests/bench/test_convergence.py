"""``actnn bench convergence``: tiny runs, what they record, and the table and picture that come of it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from actnn import cli
from actnn.bench import accuracies, convergence, drawing, tables
from actnn.console import extras
from actnn.workloads import datasets

TINY = ["--data", "digits", "--images", "64", "--epochs", "1", "--batch", "32", "--channels", "4,4,4"]


@pytest.fixture
def small_digits(monkeypatch):
    """Test on fewer digits, and smaller ones: these tests ask what is recorded, not how good it is."""
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    pytest.importorskip("rich")
    monkeypatch.setattr(datasets, "DIGITS", 200)
    monkeypatch.setattr(datasets, "DIGITS_SIZE", 8)


def bench(out: Path, *more: str) -> int:
    return cli.main(["bench", "convergence", *TINY, "--out", str(out), *more])


def recorded(out: Path) -> list[dict]:
    return [json.loads(line) for line in out.read_text().splitlines()]


def record(level: str, bits: float, seed: int, accuracy: float, **more) -> dict:
    """Return a record as a run would leave it."""
    common = {"benchmark": "convergence", "data": "digits", "model": "small_resnet", "channels": [4, 4, 4]}
    common |= {"images": 64, "epochs": 1, "batch": 32, "rate": 0.1, "diverged": False}
    common["machine"] = {"processor": "a processor", "cores": 2, "memory_gib": 8, "python": "3.11"}
    common["machine"] |= {"versions": {"torch": "2"}, "commit": "abc", "date": "2026-01-01"}
    return common | {"level": level, "bits": bits, "seed": seed, "accuracy": accuracy} | more


def test_every_run_is_recorded_and_the_table_printed(small_digits, tmp_path, capsys):
    out = tmp_path / "folder" / "convergence.jsonl"
    assert bench(out, "--levels", "FP,L2", "--bits", "2,1.5", "--seeds", "0,1") == 0
    found = recorded(out)
    assert [(run["level"], run["bits"], run["seed"]) for run in found] == [
        ("FP", 32, 0),
        ("L2", 2, 0),
        ("FP", 32, 1),
        ("L2", 2, 1),
    ]
    for run in found:
        assert (run["images"], run["channels"], run["data"]) == (64, [4, 4, 4], "digits")
        assert 0 <= run["accuracy"] <= 1
        assert run["loss"] > 0
        assert {"diverged", "seconds", "machine", "average_bits"} <= run.keys()
    table = capsys.readouterr().out.splitlines()[-3:]
    assert table[0].split() == ["32", "2"]
    assert [line.split()[0] for line in table[1:]] == ["FP", "L2"]
    assert "±" in table[1]
    assert "–" in table[2]


def test_a_run_depends_on_its_seed_alone(small_digits, tmp_path):
    for name, seeds in (("a", "0,1"), ("b", "1")):
        assert bench(tmp_path / name, "--levels", "FP,L2", "--bits", "2", "--seeds", seeds) == 0
    kept = ("level", "accuracy", "loss")
    first, second = ([{key: run[key] for key in kept} for run in recorded(tmp_path / name)] for name in "ab")
    assert first[2:] == second
    assert first[:2] != second


def test_a_second_call_trains_only_what_is_missing(small_digits, tmp_path, monkeypatch):
    out = tmp_path / "convergence.jsonl"
    assert bench(out, "--levels", "FP", "--seeds", "0") == 0
    trained = []

    def train(run, *others):
        trained.append((run["level"], run["seed"], run["epochs"]))
        return {"accuracy": 0.5, "diverged": False, "seconds": 0.0}

    monkeypatch.setattr(convergence, "train", train)
    assert bench(out, "--levels", "FP,L2", "--bits", "2", "--seeds", "0,1") == 0
    assert trained == [("L2", 0, 1), ("FP", 1, 1), ("L2", 1, 1)]
    assert bench(out, "--levels", "FP", "--seeds", "0", "--epochs", "2") == 0
    assert trained[3:] == [("FP", 0, 2)]
    assert len(recorded(out)) == 5


def test_an_interrupted_command_loses_only_the_run_under_way(small_digits, tmp_path, monkeypatch, capsys):
    out = tmp_path / "convergence.jsonl"
    build = convergence.build
    calls = []

    def interrupted(run):
        calls.append(run)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return build(run)

    monkeypatch.setattr(convergence, "build", interrupted)
    assert bench(out, "--levels", "FP", "--seeds", "0,1,2") == 130
    assert [run["seed"] for run in recorded(out)] == [0]
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines()[-1].startswith("actnn: interrupted; finished runs are in ")


@pytest.mark.parametrize("level", accuracies.PER_SAMPLE)
def test_levels_with_widths_per_sample_reach_fractional_averages(level, small_digits, tmp_path):
    out = tmp_path / "convergence.jsonl"
    assert bench(out, "--levels", level, "--bits", "1.5", "--seeds", "0") == 0
    (run,) = recorded(out)
    assert (run["level"], run["bits"]) == (level, 1.5)
    assert run["average_bits"] == pytest.approx(1.5, abs=0.1)


def test_levels_with_widths_per_sample_are_told_the_samples(small_digits, monkeypatch):
    import torch
    from torch import nn

    seen = []

    class Told(nn.Sequential):
        def set_samples(self, positions):
            seen.append(positions)

        def report(self):
            return SimpleNamespace(average_bits=1.5)

    monkeypatch.setattr(convergence, "build", lambda run: Told(nn.Flatten(), nn.Linear(64, 10)))
    run = {"level": "L3", "bits": 1.5, "seed": 0, "images": 64, "epochs": 1, "batch": 32, "rate": 0.1}
    convergence.train(run, datasets.load("digits", None).limited(64), 1, lambda: None)
    assert sorted(torch.cat(seen).tolist()) == list(range(64))


def test_training_that_is_no_longer_finite_ends_and_counts_as_diverged(small_digits, tmp_path):
    out = tmp_path / "convergence.jsonl"
    assert bench(out, "--levels", "FP", "--seeds", "0", "--rate", "1e30", "--epochs", "3") == 0
    (run,) = recorded(out)
    assert run["diverged"]
    assert run["loss"] is None


@pytest.mark.parametrize("name", ["a.svg", "folder/a.png"])
def test_a_picture_is_drawn(name, tmp_path):
    pytest.importorskip("matplotlib")
    runs = [
        record(level, bits, seed, 0.9 - 0.1 / bits + 0.01 * seed)
        for level in accuracies.LEVELS
        for bits in ([32] if level == "FP" else [4, 2, 1.5])
        for seed in (0, 1)
    ]
    drawing.plot(accuracies.cells(runs), "a title", tmp_path / name)
    drawn = (tmp_path / name).read_bytes()
    if name.endswith("svg"):
        for word in (b"a title", b"L2.5", b"exact, 32 bits", b"test accuracy, %"):
            assert word in drawn
    else:
        assert drawn.startswith(b"\x89PNG")


def test_the_picture_is_drawn_from_what_is_recorded(small_digits, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(convergence, "train", lambda *given: pytest.fail("a recorded run was trained again"))
    out = tmp_path / "convergence.jsonl"
    out.write_text("".join(json.dumps(record("L2", bits, 0, 0.9)) + "\n" for bits in (4, 2)))
    assert bench(out, "--levels", "L2", "--bits", "4,2", "--seeds", "0", "--plot", str(tmp_path / "a.svg")) == 0
    drawn = (tmp_path / "a.svg").read_text()
    for words in (">L2<", "digits, 64 images, 1 epoch", ">4<", ">2<"):
        assert words in drawn


@pytest.mark.parametrize(
    ("module", "more", "advice"),
    [
        ("sklearn", ["--data", "digits"], "pip install 'actnn[demo]'"),
        ("matplotlib", ["--plot", "a.svg"], "pip install 'actnn[plots]'"),
    ],
)
def test_what_to_install_is_said_before_training(module, more, advice, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == module else object())
    assert bench(tmp_path / "out", *more) == 1
    assert advice in capsys.readouterr().err


def test_a_cell_is_mean_and_spread_of_the_newest_record_of_each_seed():
    runs = [record("L3", 1.5, 0, 0.5), record("L3", 1.5, 1, 0.9), record("L3", 1.5, 0, 0.8)]
    runs += [record("L2", 2, 0, 0.1, diverged=True)]
    found = accuracies.cells(runs)
    assert str(found["L3", 1.5]) == "85.00 ± 7.07"
    assert str(found["L2", 2]) == "10.00 (1 diverged)"


def test_the_markdown_table_has_a_row_for_each_level(tmp_path):
    runs = [
        record("L3", 1.25, 0, 0.7),
        record("FP", 32, 0, 0.9),
        record("L2", 2, 0, 0.8),
        record("FP", 32, 0, 0.9, epochs=2),
    ]
    (tmp_path / "convergence.jsonl").write_text("".join(json.dumps(run) + "\n" for run in runs))
    page = tmp_path / "page.md"
    page.write_text("<!-- table:convergence -->\n<!-- end -->\n")
    assert tables.main(["--file", str(page), "--results", str(tmp_path)]) == 0
    written = page.read_text()
    assert "| training | level | 32 bits | 2 bits | 1.25 bits |" in written
    for cells in ("FP | 90.00 | – | –", "L2 | – | 80.00 | –", "L3 | – | – | 70.00"):
        assert f"| digits, 64 images, 1 epoch, batch 32, rate 0.1, small_resnet 4-4-4 | {cells} |" in written
    assert "| digits, 64 images, 2 epochs, " in written


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (["--levels", "L2,L7"], "'L7' is not one of"),
        (["--bits", "9"], "'9' is not a width"),
        (["--bits", "wide"], "'wide' is not a width"),
        (["--levels", "L2", "--bits", "1.5"], "whole numbers of bits"),
        (["--seeds", "0,x"], "'x' is not a whole number"),
        (["--rate", "0"], "'0' is not a learning rate"),
        (["--plot", "a.pdf"], "does not end in"),
    ],
)
def test_bad_arguments_give_one_line_and_exit_code_2(bad, complaint, capsys):
    with pytest.raises(SystemExit) as ended:
        convergence.main(bad)
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert complaint in printed
    assert printed.count("\n") == 1


def test_missing_data_gives_one_line_and_exit_code_1(tmp_path, capsys):
    pytest.importorskip("torch")
    pytest.importorskip("rich")
    assert cli.main(["bench", "convergence", "--data-dir", str(tmp_path), "--out", str(tmp_path / "out")]) == 1
    printed = capsys.readouterr().err
    assert "dataset-fashion-mnist" in printed
    assert printed.count("\n") == 1
