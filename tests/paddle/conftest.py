"""The tests of what Paddle alone has: they need Paddle, one thread of it, and the same random numbers each time."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

# without Paddle there is nothing to collect here
collect_ignore_glob = [] if find_spec("paddle") else ["test_*.py"]


@pytest.fixture(autouse=True)
def fixed_seed():
    """Seed Paddle's own generator, and use one thread: tensors are tiny here."""
    from paddle_framework import FRAMEWORK

    FRAMEWORK.use_one_thread()
    FRAMEWORK.seed(0)
