"""Files that are whole or not there: written beside their place, flushed to disk and renamed."""

from __future__ import annotations

import os
from pathlib import Path

# the end of the name of a file that is being written
UNFINISHED = ".part"


def write_atomically(path: Path, content: memoryview) -> None:
    """Write a file beside its place and rename it, so that a failure leaves the file that was there before."""
    unfinished = path.with_name(f"{path.name}{UNFINISHED}")
    try:
        with unfinished.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    # the new name is on disk only when the folder is
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
