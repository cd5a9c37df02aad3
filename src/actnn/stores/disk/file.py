"""The file of a store: without a name, grown in large steps, and read only with a check of what comes back."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from actnn.errors import SwapError
from actnn.stores.places import PAGE, Places

Bytes = NDArray[np.uint8]
Allocate = Callable[[int], Bytes]

GROWTH = 64 * 2**20
WORD = 8

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NOT_OFFERED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


def plain(size: int) -> Bytes:
    """Return new bytes of numpy's own."""
    return np.empty(size, np.uint8)


class FullError(Exception):
    """The file may not or cannot grow; its text says why. Never leaves the package."""


class SwapFile:
    """A temporary file and its places.

    ``places`` belongs to the lock of whoever uses the file; ``lengthen`` and ``write`` to one thread; ``read`` to all.
    """

    def __init__(self, directory: Path | None, most_bytes: int | None, allocate: Allocate = plain) -> None:
        self.directory = directory
        self.most_bytes = most_bytes
        self._new_bytes = allocate
        self.places = Places()
        self._file: IO[bytes] | None = None
        self._full: str | None = None

    def renewed(self) -> SwapFile:
        """Return a file of the same settings, with nothing in it."""
        return SwapFile(self.directory, self.most_bytes, self._new_bytes)

    def open(self) -> None:
        """Create the file where there is none yet. It has no name, so that nothing is left of it after a crash.

        Raises:
            OSError: the directory is missing, or cannot be written to.

        """
        if self._file is None:
            # without buffering: its close() then takes no lock, and may be called in a forked child
            self._file = tempfile.TemporaryFile(prefix="actnn-", dir=self.directory, buffering=0)  # noqa: SIM115

    def close(self) -> None:
        """Give the file's space back to the disk."""
        if self._file is not None:
            self._file.close()

    def lengthen(self, least: int) -> int:
        """Let the file end at ``least`` or beyond, and return where.

        Raises:
            FullError: the limit or the disk does not allow it.
            OSError: anything else that the system reports.

        """
        if self._full is not None:
            raise FullError(self._full)
        if self.most_bytes is not None and least > self.most_bytes:
            raise FullError(f"their file has reached its limit of {self.most_bytes} bytes. Raise most_bytes.")
        end = max(least, self.places.end + GROWTH)
        if self.most_bytes is not None:
            end = max(least, min(end, self.most_bytes // PAGE * PAGE))
        try:
            self._allocate(end)
        except OSError as error:
            if error.errno not in FULL:
                raise
            # what is free on the disk may be less than a large step and still enough
            return self._lengthen_by_little(least)
        return end

    def write(self, data: Bytes, start: int) -> None:
        """Write ``data`` from ``start`` on; raises OSError."""
        left = data.data
        while left:
            done = os.pwrite(self._descriptor(), left, start)
            if done == 0:
                raise OSError(errno.EIO, "the system wrote nothing")
            left, start = left[done:], start + done

    def read(self, start: int, size: int, check: int) -> Bytes:
        """Return the ``size`` bytes from ``start`` on, whose checksum has to be ``check``.

        Raises:
            SwapError: they could not be read, or are not the bytes that were written.

        """
        data = self._new_bytes(size)
        left = data.data
        while left:
            try:
                done = os.preadv(self._descriptor(), [left], start)
            except OSError as error:
                raise self._unreadable(error.errno or errno.EIO, f"reading failed: {error.strerror}") from error
            if done == 0:
                raise self._unreadable(errno.EIO, f"it ends {len(left)} bytes too early")
            left, start = left[done:], start + done
        if checksum(data) != check:
            raise self._unreadable(errno.EIO, "its bytes are not those that were written")
        return data

    def place_name(self) -> str:
        """Return the directory, for messages."""
        return "the system's temporary directory" if self.directory is None else str(self.directory)

    def _lengthen_by_little(self, least: int) -> int:
        try:
            self._allocate(least)
        except OSError as error:
            if error.errno not in FULL:
                raise
            self._full = (
                f"no space is left in {self.place_name()} ({error.strerror}). Choose a directory on a disk with more."
            )
            raise FullError(self._full) from error
        return least

    def _allocate(self, end: int) -> None:
        start, descriptor = self.places.end, self._descriptor()
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, start, end - start)
                return
        except OSError as error:
            # an attempt that failed may have filled the disk
            os.ftruncate(descriptor, start)
            if error.errno not in NOT_OFFERED:
                raise
        os.ftruncate(descriptor, end)

    def _descriptor(self) -> int:
        assert self._file is not None, "places exist only in a file that was opened"
        return self._file.fileno()

    def _unreadable(self, number: int, what: str) -> SwapError:
        return SwapError(
            number,
            f"a code cannot be read back from its file in {self.place_name()}: {what}. Run this step again; if it "
            "happens again, check that disk or choose a directory on another one.",
        )


def checksum(data: Bytes) -> int:
    """Return the sum of all 64-bit words, and of what is left over.

    It finds bytes that were never written or belong to another buffer at a tenth of the cost of a CRC.
    """
    whole = data.size // WORD * WORD
    words = int(data[:whole].view(np.uint64).sum(dtype=np.uint64))
    return (words + int.from_bytes(data[whole:].tobytes(), "little")) % 2**64
