"""For tests of what a fork leaves: work in a child process, whose failure fails the test."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable

from patience import PATIENCE


def in_child(work: Callable[[], None]) -> int:
    """Do some work in a forked process; return its id."""
    with warnings.catch_warnings():
        # newer Pythons warn of a fork beside threads
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child:
        return child
    status = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(PATIENCE))
        work()
        status = 0
    except BaseException as error:
        os.write(2, f"in the child: {error!r}\n".encode())
    finally:
        os._exit(status)


def check_in_child(work: Callable[[], None]) -> None:
    """Raise unless some work succeeds in a forked process."""
    check_ended_well(in_child(work))


def check_ended_well(child: int) -> None:
    """Wait for a child process; raise unless its work succeeded."""
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
