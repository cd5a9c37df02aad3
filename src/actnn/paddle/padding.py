"""Paddings as Paddle's layers take them: a number, one or two for each axis, pairs of all axes, 'SAME' or 'VALID'."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from actnn.errors import ShapeError


@dataclass(frozen=True)
class Padding:
    """A padding as Paddle's operators take it: ``numbers`` are one for each axis, or one before and one behind each."""

    numbers: tuple[int, ...]
    algorithm: str

    @classmethod
    def of(cls, given: Any, rank: int, channels_last: bool) -> Padding:
        """Read what a layer was given for ``rank`` axes."""
        if isinstance(given, str) and given.upper() in ("SAME", "VALID"):
            return cls((0,) * rank, given.upper())
        if isinstance(given, int):
            return cls((given,) * rank, "EXPLICIT")
        if isinstance(given, Sequence) and not isinstance(given, str):
            if len(given) == rank + 2 and all(isinstance(pair, Sequence) and len(pair) == 2 for pair in given):
                space = given[1:-1] if channels_last else given[2:]
                return cls(tuple(number for pair in space for number in pair), "EXPLICIT")
            if len(given) in (1, rank, 2 * rank) and all(isinstance(number, int) for number in given):
                return cls(tuple(given) * rank if len(given) == 1 else tuple(given), "EXPLICIT")
        raise ShapeError(
            f"padding={given!r}: expected a number, {rank} or {2 * rank} of them, a pair for every axis, "
            "'SAME' or 'VALID'."
        )

    def around(self, space: Sequence[int], kernel: Sequence[int], stride: Sequence[int]) -> list[tuple[int, int]]:
        """Return what is added before and behind each axis of an input."""
        if self.algorithm == "SAME":
            missing = [
                max((-(-size // step) - 1) * step + window - size, 0)
                for size, window, step in zip(space, kernel, stride, strict=True)
            ]
            return [(total // 2, total - total // 2) for total in missing]
        if len(self.numbers) == len(space):
            return [(number, number) for number in self.numbers]
        return list(zip(self.numbers[::2], self.numbers[1::2], strict=True))


def each_axis(size: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """Return a size as one number an axis."""
    numbers = (size,) if isinstance(size, int) else tuple(size)
    return numbers * rank if len(numbers) == 1 else numbers
