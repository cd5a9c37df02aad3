"""For tests of the disk store: buffers to put, a system that holds back or fails, and what a process has open."""

from __future__ import annotations

import errno
import os
import threading
import warnings
from contextlib import contextmanager

import numpy as np
from patience import PATIENCE, until

from actnn.stores.disk import file

THREAD = "actnn-swap"
KB = 1024


def content(number, size=8 * KB):
    return np.random.default_rng(number).integers(0, 256, size, dtype=np.uint8)


def put_all(store, count, size=8 * KB):
    return [store.put(content(seed, size)) for seed in range(count)]


def check(store, number, seed, size=8 * KB):
    np.testing.assert_array_equal(store.get(number), content(seed, size))


def filed(store):
    """Wait until nothing waits to be written, where nothing was read back."""
    until(lambda: store.statistics().memory_bytes == store.statistics().kept_bytes)


def emptied(store):
    """Wait until a store whose buffers were all released holds nothing."""
    until(lambda: store.statistics().memory_bytes == store.statistics().file_bytes == 0)


@contextmanager
def in_background(work):
    """Run some work in a thread; hand out its results, and raise what it raised."""
    results, errors = [], []

    def run():
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield thread, results
    thread.join(PATIENCE)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


class Gate:
    """Stands before a function of ``os``: holds back calls of some threads while it is shut, and counts all."""

    def __init__(self, monkeypatch, name, holds=lambda: True):
        self.calls, self._real, self._holds = [], getattr(os, name), holds
        self._open = threading.Event()
        monkeypatch.setattr(file.os, name, self)

    def __call__(self, *arguments):
        self.calls.append(threading.current_thread().name)
        if self._holds() and not self._open.wait(PATIENCE):
            raise TimeoutError("the gate was never opened")
        return self._real(*arguments)

    def open(self):
        self._open.set()


def fails(monkeypatch, name, number=errno.EIO, when=lambda *_: True):
    """Let a function of ``os`` raise an OSError for the arguments that ``when`` accepts."""
    real = getattr(os, name)

    def call(*arguments):
        if when(*arguments):
            raise OSError(number, os.strerror(number))
        return real(*arguments)

    monkeypatch.setattr(file.os, name, call)


def swap_threads():
    return [thread for thread in threading.enumerate() if thread.name == THREAD]


def open_files(directory):
    """Return the descriptors of this process that lead to files of a directory, with a name or without."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except FileNotFoundError:
            continue
        found += [target] if target.startswith(str(directory)) else []
    return found


def stays_in_memory(store, message, count=6):
    """Put buffers, of which some cannot be written; expect one warning, and right bytes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        numbers = []
        for seed in range(count):
            numbers.append(store.put(content(seed)))
            until(lambda: store.statistics().memory_bytes == store.statistics().kept_bytes)
        for seed in reversed(range(count)):
            check(store, numbers[seed], seed)
    assert [warning.category for warning in caught] == [UserWarning]
    assert message in str(caught[0].message)
    assert "keeps codes in memory" in str(caught[0].message)
    return numbers
