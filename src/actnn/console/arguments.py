"""The argument parser of every command: a mistake costs one line and exit code 2."""

from __future__ import annotations

import math
from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Callable
from pathlib import Path
from shutil import get_terminal_size
from textwrap import fill
from typing import NoReturn

# what torch takes as a whole number, as a number of threads, and as a float32
MOST, MOST_THREADS = 2**31 - 1, 1024
LARGEST = 3.4e38
# Python reads no more than 4300
MOST_DIGITS = 99


class Parser(ArgumentParser):
    """An ArgumentParser that reports a mistake in one line instead of the whole usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def parser_with_example(prog: str, description: str, example: str) -> Parser:
    """Return the parser of a command whose help ends in an example, unbroken so that it can be pasted."""
    width = max(20, get_terminal_size().columns - 2)
    return Parser(
        prog=prog,
        description=fill(description, width),
        epilog=f"example:\n  {example}",
        formatter_class=RawDescriptionHelpFormatter,
    )


def at_least(least: int, most: int = MOST) -> Callable[[str], int]:
    """Return a reader of whole numbers in a range, both ends included."""

    def read(text: str) -> int:
        if text.isdecimal() and (len(text) > MOST_DIGITS or int(text) > most):
            raise ArgumentTypeError(f"{text!r} is larger than {most}")
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


def folder(text: str) -> Path:
    """Read the name of a folder; an empty one would be the working directory."""
    if not text.strip():
        raise ArgumentTypeError(f"{text!r} is not the name of a folder: write . for this one")
    return Path(text)
