"""The tests of all front ends: one suite, run for every framework that is installed."""

from __future__ import annotations

import pytest
from frameworks import NAMES, Framework, load


@pytest.fixture(params=NAMES)
def framework(request) -> Framework:
    """One framework after the other, on one thread, with the same random numbers each time."""
    found = load(request.param)
    found.use_one_thread()
    found.seed(0)
    return found
