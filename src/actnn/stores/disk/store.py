"""The store itself: settings, which engine serves the process that asks, and reports."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from actnn.errors import ConfigError, UnsupportedError
from actnn.stores.disk.engine import Engine
from actnn.stores.disk.file import Allocate, Bytes, SwapFile, plain

if TYPE_CHECKING:
    from typing_extensions import Buffer

BUFFER_BYTES = 64 * 2**20
# packages whose lines tell a user nothing
NOT_THE_USER = ("actnn", "torch", "paddle")


@dataclass(frozen=True)
class SwapStatistics:
    """What a store did, since it exists in this process, and holds now.

    ``file_bytes`` are taken by buffers out of a file of ``file_size``; ``memory_bytes`` wait to be written, were read
    back, or are kept since they could not be written (``kept_bytes``). Seconds are those that callers waited.
    """

    written_bytes: int
    read_bytes: int
    file_bytes: int
    file_size: int
    memory_bytes: int
    peak_memory_bytes: int
    kept_bytes: int
    put_seconds: float
    get_seconds: float
    unknown_releases: int


class SwapStore:
    """Buffers that leave memory for a file in the background, and are read ahead when they are asked for in reverse.

    Up to ``buffer_bytes`` wait to be written, beyond which ``put`` waits, and as much is held of what was read back, in
    memory that ``allocate`` gives. Nothing is written before more than ``idle_bytes`` wait.
    ``directory`` is best on a fast local disk; the default is the system's directory for temporary files, which on some
    systems lies in memory. What does not fit into ``most_bytes`` stays in memory. Safe to use from many threads.
    A child process starts with an empty file, and with what its parent had in memory.

    Raises:
        ConfigError: a limit that is none, or a directory that cannot be written to.

    """

    def __init__(
        self,
        directory: Path | None = None,
        most_bytes: int | None = None,
        buffer_bytes: int = BUFFER_BYTES,
        allocate: Allocate = plain,
        idle_bytes: int = 0,
    ) -> None:
        if most_bytes is not None:
            check_bytes("most_bytes", most_bytes, least=0)
        check_bytes("buffer_bytes", buffer_bytes, least=1)
        check_bytes("idle_bytes", idle_bytes, least=0)
        if directory is not None:
            check_directory(directory)
        self._engine = Engine(SwapFile(directory, most_bytes, allocate), buffer_bytes, idle_bytes)
        self._heirs: dict[int, Engine] = {}
        self._end = weakref.finalize(self, self._engine.stop)

    def put(self, buffer: Buffer | Bytes, kept: Callable[[int], None] | None = None) -> int:
        """Take over C-contiguous bytes, which nobody may change from now on; return the number to ask for them with.

        ``kept`` is called with their size, now or later and in any thread, where they stay in memory after all; it may
        neither wait nor use the store.

        Raises:
            UnsupportedError: anything but contiguous bytes.
            SwapError: the store was closed.

        """
        data = flat_bytes(buffer)
        engine = self._engine_here()
        warn_once(engine)
        return engine.put(data, kept)

    def get(self, number: int) -> Bytes:
        """Return the bytes put under a number, not to be changed; may be called any number of times.

        Raises:
            SwapError: they cannot be read, are not what was written, or belong to no number of this process.

        """
        engine = self._engine_here()
        warn_once(engine)
        return engine.get(number)

    def release(self, number: int) -> None:
        """Forget a buffer: its write is cancelled, its place is free.

        Never waits and never raises, so that finalizers may call it. Numbers that were never put, or were released
        before, count as ``unknown_releases``.
        """
        self._engine_here().release(number)

    def close(self) -> None:
        """Forget all buffers, and wait until the thread and the file are gone; ``release`` stays harmless."""
        self._engine_here().close()

    def statistics(self) -> SwapStatistics:
        """Return what the store did and holds."""
        engine = self._engine_here()
        return SwapStatistics(**engine.sizes(), **vars(engine.counts))

    def _engine_here(self) -> Engine:
        """Return the engine of this process, which a child inherits at its first use (rule 3)."""
        engine, process = self._engine, os.getpid()
        if engine.process != process:
            # setdefault is atomic: of two threads that come first, one wins, and the other's engine was never used
            engine = self._heirs.setdefault(process, engine.inherit())
            self._engine = engine
            # the parent's engine, and the memory it refers to, has nothing left to end
            self._end.detach()
            self._end = weakref.finalize(self, engine.stop)
        return engine


def warn_once(engine: Engine) -> None:
    """Warn of what keeps buffers in memory, in the thread of a caller and not where it was noticed."""
    if (fault := engine.take_warning()) is not None:
        message = f"actnn keeps codes in memory that were to go to disk: {fault}"
        warnings.warn(message, UserWarning, stacklevel=users_level())


def users_level() -> int:
    """Return the ``stacklevel`` at which a warning of the caller points at the user's line."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in NOT_THE_USER:
        frame, level = frame.f_back, level + 1
    return level


def flat_bytes(buffer: Buffer | Bytes) -> Bytes:
    """Return the bytes of a buffer without copying them."""
    data = buffer if isinstance(buffer, np.ndarray) else np.asarray(memoryview(buffer))
    if data.dtype != np.uint8 or not data.flags.c_contiguous:
        order = "contiguous" if data.flags.c_contiguous else "strided"
        raise UnsupportedError(
            f"cannot store a {order} {data.dtype} array: expected contiguous uint8. Pass array.ravel().view('uint8')."
        )
    return data if data.ndim == 1 else data.reshape(-1)


def check_bytes(name: str, value: int, least: int) -> None:
    """Raise ConfigError for anything but a whole number of bytes."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name}={value!r}: expected a whole number of bytes, at least {least}.")


def check_directory(directory: Path) -> None:
    """Raise ConfigError for a directory in which no file can be made."""
    try:
        with tempfile.TemporaryFile(dir=directory):
            pass
    except (OSError, TypeError) as error:
        raise ConfigError(
            f"directory={str(directory)!r} cannot hold a temporary file ({error}): expected a directory that exists "
            "and can be written to. Create it, or leave the setting out for the system's temporary directory."
        ) from error
