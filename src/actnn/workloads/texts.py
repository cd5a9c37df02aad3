"""Texts to learn from, as bytes: any file, or the documentation that Python brings along."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from actnn.workloads.datasets import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

TEXT = "text"
FILE = f"{TEXT}:"
# as many tokens as there are bytes
VOCABULARY = 256


def is_text(name: str) -> bool:
    """Tell whether a name is that of a text."""
    return name == TEXT or name.startswith(FILE)


def load(name: str) -> NDArray[np.uint8]:
    """Return the bytes of a text: ``text:FILE``, or ``text`` for Python's own documentation."""
    if name == TEXT:
        try:
            topics: dict[str, str] = import_module("pydoc_data.topics").topics
        except ImportError as problem:
            raise DataError(f"this Python has no documentation: use --data {FILE}FILE.") from problem
        return np.frombuffer("\n".join(topics[key] for key in sorted(topics)).encode(), np.uint8)
    path = Path(name.removeprefix(FILE))
    try:
        return np.frombuffer(path.read_bytes(), np.uint8)
    except OSError as problem:
        raise DataError(f"--data {name} cannot be read: {problem}.") from problem


def pieces(text: NDArray[np.uint8], count: int, length: int, draw: np.random.Generator) -> NDArray[np.int64]:
    """Return some pieces of a text, ``[count, length]``, drawn anywhere in it."""
    if len(text) <= length:
        raise DataError(f"a text of {len(text)} bytes has no piece of {length}: take a longer one, or fewer tokens.")
    starts = draw.integers(len(text) - length, size=count)
    found: NDArray[np.int64] = text[starts[:, None] + np.arange(length)].astype(np.int64)
    return found
