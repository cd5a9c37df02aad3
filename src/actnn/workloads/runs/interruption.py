"""Ctrl-C and SIGTERM: the run ends between two steps, because only there its state can be saved."""

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
    """Notes the first signal, so that the run ends behind its step; a second one raises KeyboardInterrupt at once.

    ``begun`` is whether the run has a checkpoint of its own by then.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self.begun = False
        self._before: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        """The exit code of a command that a signal ended."""
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
