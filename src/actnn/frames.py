"""Variables of functions that run, read without holding what lies in them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

# a frame, a variable, and the argument of the counting
SNAPSHOT_REFERENCES = 3


def variables_of(frame: FrameType, names: Sequence[str | None]) -> list[Any]:
    """Return some variables of a function that runs, None for those that it does not have."""
    variables = frame.f_locals
    values = [None if name is None else variables.get(name) for name in names]
    if isinstance(variables, dict) and sys.getrefcount(variables) == SNAPSHOT_REFERENCES:
        # a copy, which would hold every tensor in it as long as the function runs
        variables.clear()
    return values
