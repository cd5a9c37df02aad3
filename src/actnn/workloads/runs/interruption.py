"""Ctrl-C and SIGTERM: a wish to end that a run fulfils between two steps, where its state is whole."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# what a shell reports for a process that a signal ended
EXIT_CODE = 128


class Interrupted(Exception):
    """Somebody asked the run to end."""


class Interruption:
    """Notes, while it is entered, that somebody asks the run to end; whoever asks twice gets it at once.

    ``begun`` is whether the run has a checkpoint of its own by then.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self.begun = False
        self._before: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        """The exit code that tells of it."""
        return EXIT_CODE + (self.signal or signal.SIGINT)

    def check(self) -> None:
        """Raise Interrupted if somebody asked."""
        if self.signal is not None:
            raise Interrupted

    def __enter__(self) -> Interruption:
        self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number
