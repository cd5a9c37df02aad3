"""The argument parser of every command: a mistake costs one line and exit code 2."""

from __future__ import annotations

import math
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from typing import NoReturn


class Parser(ArgumentParser):
    """An ArgumentParser that reports a mistake in one line instead of the whole usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def at_least(least: int) -> Callable[[str], int]:
    """Return a reader of whole numbers from ``least`` on."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return int(text)

    return read


def number_from(least: float, most: float, what: str) -> Callable[[str], float]:
    """Return a reader of numbers in a range, both ends included."""

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not least <= number <= most:
            raise ArgumentTypeError(f"{text!r} is not {what}")
        return number

    return read
