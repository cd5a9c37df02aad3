"""Checkpoints: files that are either the last state or the one before, never half of one.

They are written beside their place, flushed to disk and renamed; what they hold is plain data and tensors, so that
reading one runs no code of whoever wrote it.
"""

from __future__ import annotations

import errno
import io
import pickle
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from actnn.console.arguments import MOST_THREADS
from actnn.errors import ActnnError
from actnn.files import write_atomically

FORMAT = "actnn train 1"
# what a checkpoint of that format holds besides, and what it holds of each training
KINDS: Mapping[str, type] = {
    "settings": dict,
    "fingerprint": dict,
    "versions": dict,
    "threads": int,
    "trainings": dict,
    "outcomes": dict,
    "log": int,
}
COUNTS = ("epoch", "done", "taken")
FULL = (errno.ENOSPC, errno.EDQUOT)


class CheckpointError(ActnnError):
    """A checkpoint that cannot be read: damaged, or not one of this command's."""


class OutputError(ActnnError, OSError):
    """A file of a run that cannot be written."""


def save(path: Path, state: dict[str, Any]) -> None:
    """Replace a checkpoint by another; whatever happens, one of the two can be read afterwards."""
    kept = path.parent if path.exists() else None
    write(path, serialized({"format": FORMAT} | state), kept)


def load(path: Path) -> dict[str, Any]:
    """Return what ``save`` was given."""
    import torch

    advice = "Name another --out, or begin anew with --overwrite."
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise CheckpointError(f"the checkpoint {path} is damaged in {damaged}. {advice}")
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, zipfile.BadZipFile, pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as problem:
        # the first line: torch adds a page about unpickling
        reason = str(problem).partition("\n")[0].partition(". ")[0]
        raise CheckpointError(f"the checkpoint {path} cannot be read ({reason}). {advice}") from problem
    if not is_whole(state):
        raise CheckpointError(f"{path} is not a checkpoint of this version of actnn train. {advice}")
    whole: dict[str, Any] = state
    return whole


def is_whole(state: Any) -> bool:
    """Tell whether something has the parts of a checkpoint; whether they fit a model is another question."""
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        return False
    if any(type(state.get(name)) is not kind for name, kind in KINDS.items()):
        return False
    if state["log"] < 0 or not 1 <= state["threads"] <= MOST_THREADS or not state["trainings"]:
        return False
    trainings = state["trainings"].values()
    return all(isinstance(one, dict) and all(is_count(one.get(name)) for name in COUNTS) for one in trainings)


def is_count(value: Any) -> bool:
    """Tell whether something counts steps or epochs."""
    return type(value) is int and value >= 0


def serialized(state: Any) -> memoryview:
    """Return the bytes of a file of torch's.

    In memory first: torch's own writer hides why the system refused to write.
    """
    import torch

    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getbuffer()


def write(path: Path, content: memoryview, kept: Path | None = None) -> None:
    """Write a file of a run, whole or not at all; ``kept`` is where a checkpoint stays if that fails."""
    with said(path, kept):
        write_atomically(path, content)


@contextmanager
def said(path: Path, kept: Path | None = None) -> Iterator[None]:
    """Turn the system's refusal to write a file into one clear line; ``kept`` is where a checkpoint stays."""
    try:
        yield
    except OSError as problem:
        is_full = problem.errno in FULL
        advice = "Free some space, or name another --out." if is_full else "Name another --out."
        if kept is not None:
            remedy = "free some space" if is_full else "put that right"
            advice = f"The last checkpoint in {kept} stays: {remedy} and use --resume."
        raise OutputError(f"{path} cannot be written: {problem.strerror or problem}. {advice}") from problem
