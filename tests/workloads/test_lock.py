"""Two runs of ``actnn train`` in one folder: the second is told so, and the first loses nothing."""

from __future__ import annotations

import errno
import fcntl

import pytest

from actnn.errors import ConfigError
from actnn.workloads.runs.lock import alone


def test_a_second_run_in_a_folder_is_refused_until_the_first_has_ended(tmp_path):
    def enter() -> None:
        with alone(tmp_path, pytest.fail):
            pass

    with alone(tmp_path, pytest.fail), pytest.raises(ConfigError, match=r"another run is at work in .* another --out"):
        enter()
    enter()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_which_nothing_was_left_is_removed_if_it_was_made(tmp_path):
    with alone(tmp_path / "old", pytest.fail):
        (tmp_path / "old" / "file").touch()
    with pytest.raises(KeyError), alone(tmp_path / "new" / "run", pytest.fail):
        raise KeyError
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_a_run_that_fails_lets_the_next_one_in(tmp_path):
    with pytest.raises(KeyError), alone(tmp_path, pytest.fail):
        raise KeyError
    with alone(tmp_path, pytest.fail):
        pass


def test_a_file_system_without_locks_is_told_of(tmp_path, monkeypatch):
    def refuse(file: int, kind: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    said = []
    monkeypatch.setattr(fcntl, "flock", refuse)
    with alone(tmp_path, said.append):
        assert said == [f"{tmp_path} cannot be locked (No locks available): take care that no other run uses it."]
