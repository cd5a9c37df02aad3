"""For tests of what runs in the background: nothing waits for ever."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

PATIENCE = 20.0


@pytest.fixture(autouse=True)
def nothing_hangs():
    """Let a test that waits for ever fail instead."""

    def fail(*_):
        raise TimeoutError("this test waits for something that does not happen")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def until(condition: Callable[[], bool]) -> None:
    """Wait for what a background thread will do."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("what was waited for did not happen")
        time.sleep(0.001)
