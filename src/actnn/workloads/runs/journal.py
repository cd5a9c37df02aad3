"""What a run leaves in writing: a log of JSON lines, and events for TensorBoard where asked for.

A checkpoint notes how long the log is; a run that goes on cuts off what came after, and writes it again.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from actnn.errors import ConfigError
from actnn.workloads.metrics import METRICS
from actnn.workloads.runs.checkpoint import OutputError, said

# how TensorBoard's writer calls its files
EVENT_FILES = "events.out.tfevents.*"
FIGURES = ("loss", *METRICS, "rate", "images_per_second", "kept_bytes", "resident_bytes")


class Logger(Protocol):
    """What takes the figures of a run beside its log."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Take the figures of a step."""

    def close(self) -> None:
        """Take no more."""

    def discard(self) -> None:
        """Leave nothing of what was written."""


class Named:
    """A logger of somebody else's, of which nothing is asked but ``log(values, step=…)``, as wandb's runs have it."""

    def __init__(self, logger: Any) -> None:
        self._logger = logger

    @classmethod
    def found(cls, name: str) -> Named:
        """Return the logger that ``module:name`` is, or returns when it is called."""
        module, _, attribute = name.partition(":")
        try:
            logger: Any = getattr(import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as problem:
            raise ConfigError(f"--logger {name}: {problem}. Expected module:name, such as wandb:init.") from problem
        if not hasattr(logger, "log") and callable(logger):
            logger = logger()
        if not callable(getattr(logger, "log", None)):
            raise ConfigError(f"--logger {name} is a {type(logger).__name__}: expected a method log(values, step=…).")
        return cls(logger)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Hand the figures of a step on."""
        self._logger.log(dict(values), step=step)

    def close(self) -> None:
        """Leave the logger to whoever made it."""

    def discard(self) -> None:
        """Leave the logger to whoever made it."""


class Silence(AbstractContextManager[Any]):
    """The log of a process that does not write."""

    missing = 0

    def write(self, event: str, **figures: Any) -> None:
        """Write nothing."""

    def __exit__(self, *problem: object) -> None:
        """Leave nothing."""


class Journal:
    """The log of one run, open for writing until it is left."""

    def __init__(self, path: Path, length: int, loggers: Sequence[Logger] = ()) -> None:
        self.path = path
        self.loggers = loggers
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
        if "step" in figures:
            values = {
                f"{event} {name}/{figures['training']}": figures[name]
                for name in FIGURES
                if figures.get(name) is not None
            }
            for logger in self.loggers:
                logger.log(values, step=figures["step"])

    def length(self) -> int:
        """Return how long the log is, once all of it is on disk."""
        with said(self.path):
            self._file.flush()
            os.fsync(self._file.fileno())
            return self._file.tell()

    def close(self) -> None:
        """Write no more."""
        try:
            for logger in self.loggers:
                logger.close()
        finally:
            with said(self.path):
                self._file.close()

    def discard(self) -> None:
        """Leave nothing of what was written."""
        with suppress(OutputError):
            self.close()
        for logger in self.loggers:
            logger.discard()
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

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Add the figures of a step."""
        with said(self.folder):
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)

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
