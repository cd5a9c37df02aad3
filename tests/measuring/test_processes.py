"""Processes of benchmarks: what comes back, and how a lack of memory is told from every other end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from actnn.errors import ActnnError
from actnn.measuring import processes

PROGRAM = """
import errno, os, signal, sys, time
from actnn.errors import ActnnError, ConfigError

def answers(settings, tell):
    print("a model that talks")
    for number in range(settings["count"]):
        tell(number)
    return {"sum": settings["count"], "seen": os.environ.get("SEEN")}

def grows(settings, tell):
    return {"bytes": len(bytearray(settings["bytes"]))}

def allocates(settings, tell):
    import torch
    torch.zeros(settings["bytes"], dtype=torch.uint8)
    return {}

def hides(settings, tell):
    try:
        raise OSError(errno.ENOMEM, "mmap")
    except OSError as problem:
        raise ConfigError("a slab cannot be had") from problem

def stops(settings, tell):
    raise RuntimeError("could not create a primitive")

def aborts(settings, tell):
    os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'")
    os.abort()

def killed(settings, tell):
    os.kill(os.getpid(), signal.SIGKILL)

def refuses(settings, tell):
    raise ActnnError("this was given, that was expected.")

def breaks(settings, tell):
    raise ValueError("a mistake of ours")

def explains(settings, tell):
    raise ValueError("first line\\nsecond line")

def looks_up(settings, tell):
    return {}["missing"]

def asserts(settings, tell):
    assert settings["true"]

def leaves(settings, tell):
    sys.exit(3)

def sleeps(settings, tell):
    tell(os.getpid())
    time.sleep(60)
"""


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Return a call of one of the functions above."""
    (tmp_path / "child_program.py").write_text(PROGRAM)
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    return lambda name, settings=None, **options: processes.call(f"child_program:{name}", settings or {}, **options)


def test_a_child_answers_and_tells_on_the_way_whatever_it_prints(call):
    told = []
    found = call("answers", {"count": 3}, environment={"SEEN": "yes"}, told=told.append)
    assert found == {"sum": 3, "seen": "yes"}
    assert told == [0, 1, 2]


def test_what_fits_under_the_limit_is_done(call):
    assert call("grows", {"bytes": 10**8}, data_limit=3 * 10**8) == {"bytes": 10**8}


@pytest.mark.parametrize("function", ["grows", "allocates"])
def test_memory_that_the_limit_refuses_does_not_fit(function, call):
    if function == "allocates":
        pytest.importorskip("torch")
    with pytest.raises(processes.DoesNotFit):
        call(function, {"bytes": 2 * 10**9}, data_limit=10**9)


@pytest.mark.parametrize("function", ["hides", "aborts", "killed"])
def test_every_way_in_which_a_process_ends_for_lack_of_memory_counts_as_such(function, call):
    with pytest.raises(processes.DoesNotFit):
        call(function)


def test_what_onednn_says_of_memory_counts_only_under_a_limit(call):
    with pytest.raises(processes.DoesNotFit):
        call("stops", data_limit=10**9)
    with pytest.raises(ActnnError, match="primitive") as raised:
        call("stops")
    assert not isinstance(raised.value, processes.DoesNotFit)


@pytest.mark.parametrize(
    ("function", "words"),
    [("refuses", "this was given"), ("breaks", "a mistake of ours"), ("leaves", "code 3")],
)
def test_any_other_failure_is_an_error_with_its_reason(function, words, call):
    with pytest.raises(ActnnError, match=words) as raised:
        call(function)
    assert not isinstance(raised.value, processes.DoesNotFit)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("explains", "ValueError: first line ("),
        ("looks_up", "KeyError: 'missing' ("),
        ("asserts", "AssertionError: no message ("),
    ],
)
def test_an_error_within_a_child_is_one_line_that_says_where_it_was_raised(function, words, call, capfd):
    with pytest.raises(ActnnError) as raised:
        call(function, {"true": False})
    assert str(raised.value).startswith(f"child_program:{function} failed with {words}")
    assert "child_program.py, line " in str(raised.value)
    assert "\n" not in str(raised.value)
    assert capfd.readouterr() == ("", "")


def test_a_child_that_takes_too_long_is_ended_and_does_not_count_as_fitting(call):
    with pytest.raises(processes.TookTooLong, match=r"longer than 0\.5 s"):
        call("sleeps", timeout=0.5)


def test_an_interrupted_parent_leaves_no_child_behind(call, monkeypatch):
    started = []
    popen = processes.subprocess.Popen

    def noted(*arguments, **options):
        started.append(popen(*arguments, **options))
        return started[-1]

    def interrupt(message):
        raise KeyboardInterrupt

    monkeypatch.setattr(processes.subprocess, "Popen", noted)
    with pytest.raises(KeyboardInterrupt):
        call("answers", {"count": 10**6}, told=interrupt)
    assert started[0].poll() is not None


def runs(process: int) -> bool:
    """Tell whether a process is there and has not ended."""
    try:
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.usefixtures("call")
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's list of processes")
def test_a_parent_that_is_killed_leaves_no_child_behind():
    told = "lambda process: print(process, flush=True)"
    program = f"from actnn.measuring import processes; processes.call('child_program:sleeps', {{}}, told={told})"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        try:
            child = int(parent.stdout.readline())
            assert runs(child)
        finally:
            parent.kill()
    deadline = time.monotonic() + 20
    while runs(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not runs(child)


def test_a_child_whose_parent_is_gone_already_does_nothing():
    reading, writing = os.pipe()
    os.close(writing)
    command = [sys.executable, "-m", "actnn.measuring.processes", "no_module:function", "{}", "0", "1"]
    ended = subprocess.run(command, stdin=reading, capture_output=True, text=True, check=False)
    os.close(reading)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "")
