"""The allocator for large blocks that a process may load before the C library: where it is, and whether it serves.

``native/heap`` says how it works. A process has it where ``LD_PRELOAD`` names it as it starts, which is what
``actnn run COMMAND …`` does; nothing can bring it in later.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from actnn.kernels.native.library import LibraryMissingError

FILE_NAME = "libactnn_heap.so"
VARIABLE = "LD_PRELOAD"
BEGIN, COUNTS = "actnn_heap_begin_step", "actnn_heap_counts"


class HeapCounts(NamedTuple):
    """Bytes of large blocks that live, of idle pages, of the most that lived in this step, of all pages given back."""

    alive: int
    idle: int
    peak: int
    returned: int


def library() -> Path:
    """Return the path of the allocator; raise LibraryMissingError where this installation has none."""
    path = Path(__file__).resolve().parents[2] / "lib" / FILE_NAME
    if not path.exists():
        raise LibraryMissingError(
            f"there is no {path}: this installation was made without the native build, or not for Linux with the GNU C "
            "library. Run the command without `actnn run`."
        )
    return path


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which processes allocate with it."""
    others = [name for name in given.get(VARIABLE, "").replace(":", " ").split() if not name.endswith(FILE_NAME)]
    return {**given, VARIABLE: ":".join([str(library()), *others])}


def without(given: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which processes allocate without it."""
    others = [name for name in given.get(VARIABLE, "").replace(":", " ").split() if not name.endswith(FILE_NAME)]
    return {**given, VARIABLE: ":".join(others)}


@cache
def loaded() -> ctypes.CDLL | None:
    """Return the allocator of this process, None where it has another."""
    if sys.platform != "linux":
        return None
    everything = ctypes.CDLL(None)
    if not hasattr(everything, BEGIN):
        return None
    everything[BEGIN].argtypes, everything[BEGIN].restype = (), None
    everything[COUNTS].argtypes, everything[COUNTS].restype = (ctypes.POINTER(ctypes.c_uint64),), None
    return everything


def begin_step() -> bool:
    """Let idle pages of large blocks go back to the system, and what lives at most be counted anew.

    Return whether the allocator serves this process.
    """
    serving = loaded()
    if serving is None:
        return False
    serving[BEGIN]()
    return True


def counts() -> HeapCounts | None:
    """Return what lies in the allocator of this process, None where it has another."""
    serving = loaded()
    if serving is None:
        return None
    found = (ctypes.c_uint64 * len(HeapCounts._fields))()
    serving[COUNTS](found)
    return HeapCounts(*found)
