"""The argument parser of every command: a mistake costs one line and exit code 2."""

from __future__ import annotations

import math
from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Callable
from pathlib import Path
from shutil import get_terminal_size
from textwrap import fill
from typing import NoReturn

from actnn.amounts import AVERAGES, parse_memory
from actnn.errors import ConfigError

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


def number(text: str) -> float:
    """Read a number; return nan, which lies in no range, where there is none."""
    try:
        return float(text)
    except ValueError:
        return float("nan")


def width(text: str) -> float:
    """Read an average width, by number or by name."""
    bits = AVERAGES[text] if text in AVERAGES else number(text)
    if not 1 <= bits <= 8:
        raise ArgumentTypeError(f"{text!r} is not a width from 1 to 8 bits, nor {', '.join(AVERAGES)}")
    return int(bits) if bits.is_integer() else bits


def rate(text: str) -> float:
    """Read a learning rate."""
    if not 0 < number(text) < math.inf:
        raise ArgumentTypeError(f"{text!r} is not a learning rate above 0")
    return number(text)


def share(text: str) -> float:
    """Read a share between 0 and 1."""
    if not 0 < number(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a share between 0 and 1")
    return number(text)


def amount(text: str) -> int:
    """Read an amount of memory."""
    try:
        return parse_memory(text)
    except ConfigError as problem:
        raise ArgumentTypeError(f"{text!r} is not an amount of memory such as 3GB or 400MiB") from problem
