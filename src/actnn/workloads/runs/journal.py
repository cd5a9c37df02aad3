"""What a run leaves in writing: a log of JSON lines, and events for TensorBoard where asked for.

A checkpoint notes how long the log is; a run that goes on cuts off what came after, and writes it again.
"""

from __future__ import annotations

import json
import os
import threading
from contextlib import nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from actnn.workloads.runs.checkpoint import OutputError, said

# how TensorBoard's writer calls its files
EVENT_FILES = "events.out.tfevents.*"
FIGURES = ("loss", "accuracy", "rate", "images_per_second", "kept_bytes", "resident_bytes")


class Journal:
    """The log of one run, open for writing until it is left."""

    def __init__(self, path: Path, length: int, board: Board | None = None) -> None:
        self.path = path
        self.board = board
        with said(path):
            # not "a": what a killed run wrote after its checkpoint is written again
            self._file = path.open("r+b" if path.exists() else "w+b")
            self.missing = max(0, length - self._file.seek(0, os.SEEK_END))
            self._file.truncate(length - self.missing)
            self._file.seek(0, os.SEEK_END)

    def write(self, event: str, **figures: Any) -> None:
        """Append an event."""
        with said(self.path):
            self._file.write(json.dumps({"event": event} | figures).encode() + b"\n")
            self._file.flush()
        if self.board is not None and "step" in figures:
            self.board.write(event, figures)

    def length(self) -> int:
        """Return how long the log is, once all of it is on disk."""
        with said(self.path):
            self._file.flush()
            os.fsync(self._file.fileno())
            return self._file.tell()

    def close(self) -> None:
        """Write no more."""
        try:
            if self.board is not None:
                self.board.close()
        finally:
            with said(self.path):
                self._file.close()

    def discard(self) -> None:
        """Leave nothing of what was written."""
        with suppress(OutputError):
            self.close()
        if self.board is not None:
            self.board.discard()
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        # a run that fails says why it did, not what closing its log says then
        with suppress(OutputError) if error else nullcontext():
            self.close()


class Board:
    """Events that TensorBoard shows; those of steps that will be taken again are forgotten."""

    def __init__(self, folder: Path, steps: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.folder = folder
        self._before = set(folder.glob("*"))
        # the writer's thread prints a traceback of what the next call raises
        self._hook, threading.excepthook = threading.excepthook, self._pass_on
        try:
            with said(folder):
                self._writer = SummaryWriter(str(folder), purge_step=steps)
        except BaseException:
            threading.excepthook = self._hook
            raise

    def write(self, event: str, figures: dict[str, Any]) -> None:
        """Add the figures of an event."""
        with said(self.folder):
            for name in FIGURES:
                if figures.get(name) is not None:
                    self._writer.add_scalar(f"{event} {name}/{figures['training']}", figures[name], figures["step"])

    def close(self) -> None:
        """Write no more."""
        try:
            with said(self.folder):
                self._writer.close()
        finally:
            threading.excepthook = self._hook

    def discard(self) -> None:
        """Remove what was written, and the folder if nothing else is in it."""
        for path in set(self.folder.glob("*")) - self._before:
            path.unlink()
        with suppress(OSError):
            self.folder.rmdir()

    def _pass_on(self, failed: threading.ExceptHookArgs) -> None:
        if not issubclass(failed.exc_type, OSError):
            self._hook(failed)
