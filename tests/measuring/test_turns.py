"""Processes in turns: one works at a time, in order, and where one fails all end."""

from __future__ import annotations

import os
import time

import pytest

from actnn.errors import ActnnError
from actnn.measuring import turns
from actnn.measuring.turns import Baton

PROGRAM = """
import os, signal, time
from actnn.measuring import turns
from actnn.measuring.turns import Baton

turns.SETTLING_SECONDS = 0.0

def writes(settings, tell):
    def work():
        with open(settings["path"], "a") as file:
            print(settings["name"], "begins", file=file, flush=True)
            time.sleep(0.02)
            print(settings["name"], "ends", file=file, flush=True)
        tell(settings["name"])
    time.sleep(settings["delay"])
    return {"seconds": Baton.of(settings).seconds(work, settings["rounds"], least=0.0)}

def fails(settings, tell):
    def work():
        if settings["name"] == "second":
            if settings.get("killed"):
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("a mistake of the second")
    return {"seconds": Baton.of(settings).seconds(work, 3, least=0.0)}
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Let children find the functions above."""
    (tmp_path / "turns_program.py").write_text(PROGRAM)
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    return "turns_program"


def test_each_works_while_the_others_wait_in_order_and_none_before_all_are_there(program, tmp_path):
    path, told = tmp_path / "lines", []
    names = ["first", "second", "third"]
    settings = {
        name: {"path": str(path), "name": name, "rounds": 2, "delay": 0.3 * place} for place, name in enumerate(names)
    }
    found = turns.call(f"{program}:writes", settings, told=told.append)
    assert path.read_text().splitlines() == [f"{name} {what}" for name in names * 2 for what in ("begins", "ends")]
    assert told == names * 2
    assert list(found) == names
    assert all(len(each["seconds"]) == 2 for each in found.values())


@pytest.mark.parametrize(("killed", "words"), [(False, "a mistake of the second"), (True, "ran out of memory")])
def test_where_one_fails_all_end_and_its_error_is_raised(killed, words, program):
    settings = {name: {"name": name, "killed": killed} for name in ("first", "second", "third")}
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(ActnnError, match=words):
        turns.call(f"{program}:fails", settings)
    assert set(os.listdir("/proc/self/fd")) <= before


def test_a_process_alone_needs_no_baton_and_repeats_what_is_short():
    calls = []

    def work():
        calls.append(time.sleep(0.01))

    (seconds,) = Baton().seconds(work, rounds=1, warm_up=1, least=0.1)
    assert 5 <= len(calls) <= 12
    assert 0.009 < seconds < 0.1
