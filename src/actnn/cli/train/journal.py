"""What a run leaves in writing: a log of JSON lines, and events for TensorBoard where asked for.

A checkpoint notes how long the log is; a run that goes on cuts off what came after, and writes it again.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from actnn.cli.train.checkpoint import said

FIGURES = ("loss", "accuracy", "rate", "images_per_second", "kept_bytes", "resident_bytes")


class Journal:
    """The log of one run, open for writing."""

    def __init__(self, path: Path, length: int, board: Board | None = None) -> None:
        self.path = path
        self.board = board
        with said(path):
            # not "a": what a killed run wrote after its checkpoint is written again
            self._file = path.open("r+b" if path.exists() else "w+b")
            self.missing = max(0, length - self._file.seek(0, os.SEEK_END))
            self._file.truncate(length - self.missing)
            self._file.seek(0, os.SEEK_END)

    def write(self, event: str, **record: Any) -> None:
        """Append an event."""
        with said(self.path):
            self._file.write(json.dumps({"event": event} | record).encode() + b"\n")
            self._file.flush()
        if self.board is not None and "step" in record:
            self.board.write(event, record)

    def length(self) -> int:
        """Return how long the log is, once all of it is on disk."""
        with said(self.path):
            self._file.flush()
            os.fsync(self._file.fileno())
            return self._file.tell()

    def close(self) -> None:
        """Write no more."""
        if self.board is not None:
            self.board.close()
        with said(self.path):
            self._file.close()


class Board:
    """Events that TensorBoard shows; those of steps that will be taken again are forgotten."""

    def __init__(self, folder: Path, steps: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=steps)

    def write(self, event: str, record: dict[str, Any]) -> None:
        """Add the figures of an event."""
        for name in FIGURES:
            if record.get(name) is not None:
                self._writer.add_scalar(f"{event} {name}/{record['training']}", record[name], record["step"])

    def close(self) -> None:
        """Write no more."""
        self._writer.close()
