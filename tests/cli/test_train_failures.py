"""``actnn train`` that ends before its first checkpoint or step: what it says, and that nothing counts as a run."""

from __future__ import annotations

import errno
import os
import signal
import threading
from pathlib import Path

import pytest
from image_files import write_image_folder
from tiny_runs import train

from actnn.workloads.runs import execution
from actnn.workloads.runs.checkpoint import OutputError, said


def last_line(capsys) -> str:
    return capsys.readouterr().err.splitlines()[-1]


def interrupt_in(monkeypatch, module, function: str, times: int = 1) -> None:
    """Send this process a signal as soon as some function is called."""
    called = getattr(module, function)

    def interrupted(*given):
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        return called(*given)

    monkeypatch.setattr(module, function, interrupted)


@pytest.mark.parametrize(("times", "word"), [(1, "interrupted"), (2, "ended at once")])
@pytest.mark.parametrize("more", [[], ["--resume"], ["--overwrite"]], ids=str)
def test_an_interruption_before_the_first_checkpoint_promises_nothing(more, times, word, tmp_path, monkeypatch, capsys):
    interrupt_in(monkeypatch, execution, "contestants", times)
    assert train(tmp_path / "run", *more) == 130
    assert last_line(capsys) == (
        f"actnn: {word} before the first checkpoint; nothing was kept, and the same command begins anew."
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("more", [["--resume"], ["--overwrite"]], ids=str)
def test_an_interruption_before_a_run_began_leaves_the_one_that_was_there(more, complete, monkeypatch, capsys):
    before = (complete / "checkpoint.pt").read_bytes()
    interrupt_in(monkeypatch, execution, "contestants")
    assert train(complete, *more) == 130
    assert last_line(capsys) == f"actnn: interrupted before it began; the run in {complete} is as it was."
    assert (complete / "checkpoint.pt").read_bytes() == before


@pytest.mark.parametrize(("times", "word"), [(1, "interrupted; all is saved"), (2, "ended at once; the last")])
def test_whoever_overwrote_a_run_is_told_not_to_do_so_again(times, word, tmp_path, monkeypatch, capsys):
    interrupt_in(monkeypatch, execution.Run, "step", times)
    assert train(tmp_path, "--overwrite") == 130
    line = last_line(capsys)
    assert line.startswith(f"actnn: {word}")
    assert "the same command with --resume instead of --overwrite goes on" in line
    monkeypatch.undo()
    assert train(tmp_path, "--resume") == 0


@pytest.mark.parametrize("more", [[], ["--compare", "exact", "--tensorboard"]], ids=["alone", "beside exact"])
def test_a_run_that_fails_in_its_first_step_is_none(more, tmp_path):
    out = tmp_path / "new" / "run"
    assert train(out, "--model", "small_classifiers:of_maps", *more) == 1
    assert not out.parent.exists()
    assert train(out, *more) == 0


def test_a_run_that_fails_before_steps_were_saved_is_none_but_for_its_log(tmp_path):
    # what a budget must hold is known after some steps
    assert train(tmp_path, "--images", "48", "--memory", "1KB") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]
    assert train(tmp_path, "--images", "48") == 0


def test_an_image_that_cannot_be_read_in_the_first_step_leaves_no_run(tmp_path, capsys):
    images = write_image_folder(tmp_path / "images")
    # all but the first eight, which are looked at beforehand
    spoilt = sorted(images.glob("train/*/*"))[8:]
    kept = {file: file.read_bytes() for file in spoilt}
    for file in spoilt:
        file.write_bytes(b"")
    more = ["--data", str(images), "--size", "16"]
    assert train(tmp_path / "run", *more) == 1
    assert "cannot be read as an image" in last_line(capsys)
    assert not (tmp_path / "run").exists()
    for file, content in kept.items():
        file.write_bytes(content)
    assert train(tmp_path / "run", *more) == 0


def test_a_run_whose_steps_were_saved_before_it_failed_stays(tmp_path):
    assert train(tmp_path, "--rate", "1e30", "--level", "L0", "--checkpoint-every", "1") == 1
    assert (tmp_path / "checkpoint.pt").exists()
    assert (tmp_path / "log.jsonl").exists()


def test_events_that_cannot_be_written_give_one_line_and_replace_no_run(complete, capsys):
    before = (complete / "checkpoint.pt").read_bytes()
    (complete / "events").write_text("")
    assert train(complete, "--overwrite", "--tensorboard") == 1
    assert capsys.readouterr().err == (
        f"actnn: {complete / 'events'} cannot be written: File exists. Name another --out.\n"
    )
    assert (complete / "checkpoint.pt").read_bytes() == before


@pytest.mark.parametrize("writes", [0, 2])
def test_events_on_a_full_disk_give_one_line(writes, tmp_path, monkeypatch, capsys):
    from tensorboard.summary.writer.record_writer import RecordWriter

    left, flush = [writes], RecordWriter.flush

    def full(self):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        flush(self)

    monkeypatch.setattr(RecordWriter, "flush", full)
    hook = threading.excepthook
    assert train(tmp_path / "run", "--tensorboard", "--log-every", "1") == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("epoch ")]
    assert "events cannot be written: No space left on device. Free some space" in line
    assert threading.excepthook is hook


@pytest.mark.parametrize(
    ("number", "kept", "advice"),
    [
        (errno.ENOSPC, None, "Free some space, or name another --out."),
        (errno.EDQUOT, None, "Free some space, or name another --out."),
        (errno.EEXIST, None, "exists. Name another --out."),
        (errno.ENOTDIR, None, "directory. Name another --out."),
        (errno.EACCES, None, "denied. Name another --out."),
        (errno.ENOSPC, Path("here"), "The last checkpoint in here stays: free some space and use --resume."),
        (errno.EACCES, Path("here"), "The last checkpoint in here stays: put that right and use --resume."),
    ],
)
def test_what_cannot_be_written_is_answered_with_what_helps(number, kept, advice):
    with pytest.raises(OutputError) as refused, said(Path("file"), kept):
        raise OSError(number, os.strerror(number))
    assert str(refused.value).endswith(advice)
