"""``actnn train``: what it prints and writes, and what it says of bad input."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch
from image_files import write_idx_set, write_image_folder
from tiny_runs import events, train

from actnn.cli.train import options
from actnn.console import extras
from actnn.workloads.runs import checkpoint
from actnn.workloads.runs.checkpoint import CheckpointError, OutputError
from actnn.workloads.runs.figures import Figures
from actnn.workloads.runs.lock import alone


def only_line(capsys) -> str:
    """Return the one line that was printed, and that to stderr."""
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    return printed.err


def test_a_run_prints_its_result_and_leaves_weights_and_log(tmp_path, capsys):
    assert train(tmp_path / "new" / "run", "--log-every", "2", "--epochs", "2") == 0
    out = tmp_path / "new" / "run"
    printed = capsys.readouterr()
    for word in ("test accuracy", "time of an epoch", "kept for backward", "model.pt"):
        assert word in printed.out
    assert printed.err.count("epoch 1/2, L3: loss ") == 1
    assert {path.name for path in out.iterdir()} == {"checkpoint.pt", "log.jsonl", "model.pt"}
    (run,) = events(out, "run")
    assert (run["data"], run["level"], run["threads"], run["fingerprint"]["images"]) == ("digits", "L3", 1, 48)
    steps = events(out, "step")
    assert [step["step"] for step in steps] == [0, 2, 4]
    for step in steps:
        assert step["loss"] > 0
        assert step["images_per_second"] > 0
        assert step["kept_bytes"] > 0
    assert [epoch["epoch"] for epoch in events(out, "epoch")] == [0, 1]
    assert torch.load(out / "model.pt", weights_only=True).keys() >= {"0.weight", "1.running_mean"}


def test_a_model_learns(tmp_path):
    assert train(tmp_path, "--data", f"idx:{write_idx_set(tmp_path / 'set', 80, 2)}", "--epochs", "6") == 0
    assert events(tmp_path, "epoch")[-1]["accuracy"] > 0.9


def test_side_by_side_both_see_the_same_images_and_the_difference_is_printed(tmp_path, capsys):
    assert train(tmp_path, "--level", "L2", "--bits", "8", "--compare", "exact", "--log-every", "1") == 0
    printed = capsys.readouterr().out
    for word in ("exact", "L2, 8 bits", "difference", "points", "× the time", "× less"):
        assert word in printed
    losses = {
        name: [step["loss"] for step in events(tmp_path, "step") if step["training"] == name]
        for name in ("exact", "L2, 8 bits")
    }
    # the first loss is computed before any gradient; later ones see only the noise of 8 bits
    assert losses["exact"][0] == losses["L2, 8 bits"][0]
    assert losses["exact"] == pytest.approx(losses["L2, 8 bits"], rel=0.02)
    kept = {step["training"]: step["kept_bytes"] for step in events(tmp_path, "step")}
    assert kept["L2, 8 bits"] < kept["exact"]


def test_level_zero_is_exact_training_bit_for_bit(tmp_path):
    assert train(tmp_path / "a", "--level", "L0") == 0
    assert train(tmp_path / "b", "--level", "L2", "--compare", "exact") == 0
    ends = [torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)["trainings"] for name in "ab"]
    first, second = ends[0]["L0"]["model"], ends[1]["exact"]["model"]
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_seeds_differ(tmp_path):
    for seed in ("0", "1"):
        assert train(tmp_path / seed, "--seed", seed) == 0
    first, second = (torch.load(tmp_path / seed / "model.pt", weights_only=True)["0.weight"] for seed in ("0", "1"))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("suffix", [".gz", ""])
def test_images_in_idx_files(suffix, tmp_path):
    images = write_idx_set(tmp_path / "set", classes=3, suffix=suffix)
    assert train(tmp_path / "run", "--data", f"idx:{images}") == 0
    assert events(tmp_path / "run", "run")[0]["fingerprint"]["classes"] == 3
    assert train(tmp_path / "named", "--data", "fashion-mnist", "--data-dir", str(images)) == 0
    assert events(tmp_path / "named", "run")[0]["fingerprint"]["classes"] == 10


@pytest.mark.parametrize("parts", [("train", "val"), ("train", "test"), ("",)], ids=str)
def test_images_in_folders(parts, tmp_path):
    images = write_image_folder(tmp_path / "images", parts)
    assert train(tmp_path / "run", "--data", str(images), "--size", "16", "--channels-last") == 0
    found = events(tmp_path / "run", "run")[0]["fingerprint"]
    assert found["classes"] == 3
    assert (found["images"], found["test_images"]) == ((15, 3) if parts == ("",) else (18, 18))


def test_events_for_tensorboard_hold_the_figures_of_steps_and_epochs(tmp_path):
    events_of = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    assert train(tmp_path, "--tensorboard", "--log-every", "2") == 0
    shown = events_of.EventAccumulator(str(tmp_path / "events")).Reload()
    assert {"step loss/L3", "step kept_bytes/L3", "epoch accuracy/L3"} <= set(shown.Tags()["scalars"])
    losses = {event.step: event.value for event in shown.Scalars("step loss/L3")}
    assert losses == pytest.approx({step["step"]: step["loss"] for step in events(tmp_path, "step")})


@pytest.mark.parametrize(
    ("module", "more", "advice"),
    [
        ("tensorboard", ["--tensorboard"], "pip install 'actnn[tensorboard]'"),
        ("rich", [], "pip install 'actnn[demo]'"),
        ("sklearn", [], "pip install 'actnn[demo]'"),
        ("PIL", ["--data", "."], "pip install 'actnn[train]'"),
    ],
)
def test_what_to_install_is_said_before_training(module, more, advice, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == module else object())
    assert train(tmp_path, *more) == 1
    assert advice in only_line(capsys)
    assert not (tmp_path / "checkpoint.pt").exists()


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (["--level", "L9"], "'L9'"),
        (["--bits", "9"], "'9' is not a width from 1 to 8 bits"),
        (["--memory", "much"], "'much' is not an amount of memory"),
        (["--rate", "0"], "'0' is not a number above 0"),
        (["--rate", "nan"], "'nan' is not a number above 0"),
        (["--warm-up", "1"], "'1' is not a share"),
        (["--epochs", "0"], "at least 1"),
        (["--seed", "-1"], "at least 0"),
        (["--seed", str(2**64)], "larger than"),
        (["--checkpoint-every", "often"], "'often' is neither a number of steps nor of seconds"),
        (["--checkpoint-every", "0"], "'0' is neither"),
        (["--amp", "fp8"], "'fp8'"),
        (["--compare", "exact", "--level", "L0"], "exact already"),
        (["--resume", "--overwrite"], "--overwrite"),
        (["--threads", "99999999"], "'99999999' is larger than 1024"),
        (["--batch", "9" * 23], "is larger than 2147483647"),
        (["--batch", "9" * 5000], "is larger than 2147483647"),
        (["--size", "99999999"], "is larger than 16384"),
        (["--rate", "1e308"], "'1e308' is not a number above 0 and up to 3.4e+38"),
        (["--rate", "inf"], "'inf' is not a number above 0"),
        (["--weight-decay", "1e308"], "'1e308' is not a number from 0 to 3.4e+38"),
        (["--weight-decay", "inf"], "'inf' is not a number from 0"),
        (["--out", ""], "'' is not the name of a folder"),
        (["--data", ""], "'' is not the name of a folder"),
        (["--data", "idx:"], "'' is not the name of a folder"),
    ],
)
def test_bad_arguments_give_one_line_and_exit_code_2(bad, complaint, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        train(tmp_path, *bad)
    assert ended.value.code == 2
    assert complaint in only_line(capsys)


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (["--model", "smal_resnet"], "did you mean 'small_resnet'"),
        (["--model", "small_classifiers:nothing"], "cannot be loaded"),
        (["--model", "small_classifiers:of_maps"], "expected a classifier"),
        (["--model", "small_classifiers:of_two_classes"], "of 10 classes"),
        (["--images", "33"], "use --images 32"),
        (["--model", "small_classifiers:of_one_size"], "does not take images of (1, 32, 32)"),
        (["--data", "no/such/folder"], "there is no set of images 'no/such/folder'"),
        (["--data", "idx:no/such/folder"], "has no file train-images-idx3-ubyte"),
        (["--data", "fashion-mnist", "--data-dir", "no/such/folder"], "dataset-fashion-mnist"),
        (["--data-dir", "here"], "--data-dir is where fashion-mnist lies"),
        (["--size", "32"], "--size 32 is for folders"),
        (["--level", "L2", "--bits", "1.5"], "fractional average"),
        (["--level", "L1", "--memory", "1MB"], "memory budget"),
        (["--memory", "1KB"], "memory=1000 B is too small"),
        (["--rate", "1e30", "--level", "L0", "--epochs", "3"], "lower --rate"),
        (["--model", "resnet-" + "9" * 20], "expected at least 110 and at most 10000"),
    ],
)
def test_what_cannot_be_done_gives_one_line_and_exit_code_1(bad, complaint, tmp_path, capsys):
    assert train(tmp_path, *bad) == 1
    printed = capsys.readouterr()
    (line,) = [line for line in printed.err.splitlines() if not line.startswith("epoch ")]
    assert line.startswith("actnn: ")
    assert complaint in line
    assert printed.out == ""


def test_the_example_is_understood():
    settings, arguments = options.parse(options.EXAMPLE.split()[2:])
    assert (settings.data, settings.level, settings.epochs) == ("digits", "L3", 2)
    assert arguments.out == Path("runs/digits")


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ("digits", "digits"),
        ("/some where/photos", "photos"),
        ("some/photos/", "photos"),
        ("idx:/some/files/", "files"),
        ("/some/photos/../.hidden", "hidden"),
        (".", "working"),
    ],
)
def test_a_run_has_a_folder_of_its_own_where_none_is_named(data, name, tmp_path, monkeypatch):
    (tmp_path / "working").mkdir()
    monkeypatch.chdir(tmp_path / "working")
    _, arguments = options.parse(["--data", data, "--model", "a.b:c", "--level", "L2"])
    assert arguments.out == Path(f"runs/{name}-a.b-c-L2")


def test_a_folder_that_holds_a_run_is_not_overwritten_by_accident(complete, capsys):
    before = (complete / "checkpoint.pt").read_bytes()
    assert train(complete) == 1
    assert "holds a run already: go on with --resume" in only_line(capsys)
    assert (complete / "checkpoint.pt").read_bytes() == before
    assert train(complete, "--overwrite", "--level", "L2") == 0
    assert [run["level"] for run in events(complete, "run")] == ["L2"]


def test_a_run_that_never_came_to_a_checkpoint_begins_anew(tmp_path, capsys):
    (tmp_path / "log.jsonl").write_text("what a killed run left\n")
    (tmp_path / "checkpoint.pt.part").write_text("half of")
    assert train(tmp_path, "--resume") == 0
    assert "has no checkpoint yet" in capsys.readouterr().err
    assert len(events(tmp_path, "run")) == 1


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (["--level", "L2"], "was started with --level L3 (now L2)"),
        (["--rate", "0.2", "--seed", "3"], "--rate 0.05 (now 0.2), --seed 0 (now 3)"),
        (["--threads", "2"], "--threads 2: this run had 1"),
    ],
)
def test_a_run_goes_on_only_with_its_own_settings(more, complaint, complete, capsys):
    assert train(complete, "--resume", *more) == 1
    assert complaint in only_line(capsys)


def test_a_run_goes_on_only_with_its_own_images(tmp_path, capsys):
    images = write_idx_set(tmp_path / "set", classes=3)
    assert train(tmp_path / "run", "--data", f"idx:{images}") == 0
    write_idx_set(tmp_path / "set", classes=4)
    capsys.readouterr()
    assert train(tmp_path / "run", "--data", f"idx:{images}", "--resume") == 1
    assert "had other images" in only_line(capsys)


def test_a_run_goes_on_only_with_its_own_model(complete, monkeypatch, capsys):
    import small_classifiers

    monkeypatch.setattr(small_classifiers, "with_dropout", small_classifiers.of_two_classes)
    assert train(complete, "--resume", "--level", "L3") == 1
    assert "does not fit 'small_classifiers:with_dropout' any more" in only_line(capsys)


def test_another_version_is_said(complete, capsys):
    state = torch.load(complete / "checkpoint.pt", weights_only=True)
    state["versions"]["torch"] = "1.0"
    torch.save(state, complete / "checkpoint.pt")
    assert train(complete, "--resume") == 0
    assert "results may differ" in capsys.readouterr().err


def test_a_log_that_was_cut_is_said(complete, capsys):
    (complete / "log.jsonl").unlink()
    assert train(complete, "--resume") == 0
    assert "the run goes on without them" in capsys.readouterr().err


class Harmful:
    """An object that would run code when it is unpickled."""

    def __reduce__(self):
        return os.system, ("true",)


def harmful(path: Path) -> None:
    torch.save({"format": checkpoint.FORMAT, "harm": Harmful()}, path)


def changed(**parts):
    """Return a function that changes parts of a checkpoint, and removes those that are None."""

    def change(path: Path) -> None:
        state = torch.load(path, weights_only=True) | parts
        torch.save({name: part for name, part in state.items() if part is not None}, path)

    return change


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("not a checkpoint"),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "another's": lambda path: torch.save({"model": {}}, path),
    "a list": lambda path: torch.save([1, 2], path),
    "harmful": harmful,
    "flipped": flipped,
    "nothing but its format": lambda path: torch.save({"format": checkpoint.FORMAT}, path),
    "no log": changed(log=None),
    "a log of text": changed(log="x"),
    "a log below 0": changed(log=-5),
    "no settings": changed(settings=None),
    "settings in a list": changed(settings=[]),
    "threads below 0": changed(threads=-2),
    "too many threads": changed(threads=10**8),
    "no trainings": changed(trainings=None),
    "empty trainings": changed(trainings={}),
    "trainings without a state": changed(trainings={"L3": {"taken": 1}}),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_checkpoint_that_cannot_be_read_gives_one_line(damage, complete, capsys):
    damage(complete / "checkpoint.pt")
    assert train(complete, "--resume") == 1
    line = only_line(capsys)
    assert "checkpoint" in line
    assert "--overwrite" in line


@pytest.mark.parametrize("part", ["model", "optimizer", "shuffled"])
def test_a_checkpoint_whose_state_is_another_kind_of_thing_gives_one_line(part, complete, capsys):
    state = torch.load(complete / "checkpoint.pt", weights_only=True)
    state["trainings"]["L3"][part] = 5
    torch.save(state, complete / "checkpoint.pt")
    assert train(complete, "--resume") == 1
    assert "does not fit" in only_line(capsys)


def no_space_after(monkeypatch, writes: int) -> None:
    """Let the disk be full after some files."""
    left, fsync = [writes], os.fsync

    def full(descriptor):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)


def test_a_full_disk_gives_one_line_and_the_last_checkpoint_stays(tmp_path, monkeypatch, capsys):
    # the first checkpoint takes three: log, file and folder
    no_space_after(monkeypatch, 4)
    assert train(tmp_path, "--checkpoint-every", "1") == 1
    line = only_line(capsys)
    assert "No space left on device" in line
    assert "The last checkpoint" in line
    assert "--resume" in line
    assert not (tmp_path / "checkpoint.pt.part").exists()
    monkeypatch.undo()
    assert train(tmp_path, "--resume") == 0


def test_a_file_takes_the_place_of_another_only_when_it_is_whole(tmp_path, monkeypatch):
    path = tmp_path / "file"
    checkpoint.write(path, memoryview(b"old"))
    no_space_after(monkeypatch, 0)
    with pytest.raises(OutputError, match="cannot be written: No space left"):
        checkpoint.write(path, memoryview(b"new"))
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_cannot_be_made_gives_one_line(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert train(tmp_path / "file" / "run") == 1
    line = only_line(capsys)
    assert "cannot be written" in line
    assert "space" not in line


def test_a_missing_checkpoint_is_a_checkpoint_error(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be read"):
        checkpoint.load(tmp_path / "none")


@pytest.mark.parametrize(
    ("every", "steps", "seconds", "due"),
    [("5", 4, 100.0, False), ("5", 5, 0.0, True), ("1.5s", 100, 1.4, False), ("1.5s", 0, 1.5, True)],
)
def test_checkpoints_come_after_steps_or_seconds(every, steps, seconds, due):
    assert options.every(every).due(steps, seconds) is due


def test_a_first_checkpoint_that_cannot_be_written_does_not_speak_of_another(tmp_path, monkeypatch, capsys):
    no_space_after(monkeypatch, 1)
    assert train(tmp_path) == 1
    line = only_line(capsys)
    assert "No space left on device" in line
    assert "--resume" not in line


def test_the_figures_of_a_step_are_words_and_leave_out_what_is_unknown():
    assert str(Figures(1.5, 20.4, 2048, 3 * 2**20)) == "loss 1.500 · 20 images/s · kept 2.0 KiB · resident 3.0 MiB"
    assert str(Figures(1.5, 20.4, None, None)) == "loss 1.500 · 20 images/s"


def test_bars_show_the_figures_where_somebody_watches(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    assert train(tmp_path) == 0
    shown = capsys.readouterr().err
    for words in ("images/s · kept ", "resident ", "3/3"):
        assert words in shown


def test_a_folder_in_which_another_run_is_at_work_is_left_alone(complete, capsys):
    before = {path.name: path.read_bytes() for path in complete.iterdir()}
    with alone(complete, pytest.fail):
        assert train(complete, "--overwrite") == 1
    assert "another run is at work" in only_line(capsys)
    assert {path.name: path.read_bytes() for path in complete.iterdir()} == before
