"""Checkpoints: files that are either the last state or the one before, never half of one.

They are written beside their place, flushed to disk and renamed; what they hold is plain data and tensors, so that
reading one runs no code of whoever wrote it.
"""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from actnn.errors import ActnnError

FORMAT = "actnn train 1"
ADVICE = "Free some space, or name another --out."
RESUME = "The last checkpoint in {} stays: free some space and use --resume."


class CheckpointError(ActnnError):
    """A checkpoint that cannot be read: damaged, or not one of this command's."""


class OutputError(ActnnError, OSError):
    """A file of a run that cannot be written."""


def save(path: Path, state: dict[str, Any]) -> None:
    """Replace a checkpoint by another; whatever happens, one of the two can be read afterwards."""
    advice = RESUME.format(path.parent) if path.exists() else ADVICE
    write_atomically(path, serialized({"format": FORMAT} | state), advice)


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
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not a checkpoint of this version of actnn train. {advice}")
    return state


def serialized(state: Any) -> memoryview:
    """Return the bytes of a file of torch's.

    In memory first: torch's own writer hides why the system refused to write.
    """
    import torch

    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getbuffer()


def write_atomically(path: Path, content: memoryview, advice: str = ADVICE) -> None:
    """Let a file hold some bytes as soon as it has its name; where that fails, what had the name keeps it."""
    unfinished = path.with_name(f"{path.name}.part")
    with said(path, advice):
        try:
            with unfinished.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        # the new name is on disk only when the folder is
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def said(path: Path, advice: str = ADVICE) -> Iterator[None]:
    """Turn the system's refusal to write a file into one clear line."""
    try:
        yield
    except OSError as problem:
        raise OutputError(f"{path} cannot be written: {problem.strerror or problem}. {advice}") from problem
