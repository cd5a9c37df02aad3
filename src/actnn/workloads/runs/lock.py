"""One run at a time in a folder: two would cut off each other's logs and checkpoints."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from actnn.errors import ConfigError
from actnn.workloads.runs.checkpoint import said


@contextmanager
def alone(folder: Path, say: Callable[[str], object]) -> Iterator[None]:
    """Keep other runs out of a folder, however this one ends; raise ConfigError where one is at work in it.

    A folder that is missing is made, with those above it, and removed again where nothing was left in it.
    """
    with said(folder):
        made = [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        held = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as problem:
            raise ConfigError(
                f"another run is at work in {folder}: wait for its end, stop it, or name another --out."
            ) from problem
        except OSError as problem:
            say(f"{folder} cannot be locked ({problem.strerror}): take care that no other run uses it.")
        yield
    finally:
        os.close(held)
        with suppress(OSError):
            for each in made:
                each.rmdir()
