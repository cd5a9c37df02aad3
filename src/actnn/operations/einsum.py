"""Einsum: a product of two operands at a time, of which the gradients read codes of both.

Keeps: codes of the operands, as products do. Shares: those of whoever made or reads them. Reads in backward: the other
operand. Costs: noise of two codes in every element, as products of matrices. Diagonals are left to the framework.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from string import ascii_letters
from typing import Any, NamedTuple

from actnn.kernels.contract import Array
from actnn.operations.products import Bilinear

DOTS = "..."
# an operand and its letters
Operand = tuple[Array, str]


class Equation(NamedTuple):
    """The letters of each operand, and of the result."""

    operands: tuple[str, ...]
    output: str


def contracted(
    equation: Equation, operands: Sequence[Array], multiplied: Callable[[Operand, Operand, str], Array]
) -> Array:
    """Return an einsum by products of two operands, from the first to the last, each to the letters that are asked for.

    An operand is summed over the letters that nobody else has before it is multiplied.
    """
    first, (own, *others) = operands[0], equation.operands
    for place, (second, other) in enumerate(zip(operands[1:], others, strict=True)):
        rest = equation.output + "".join(others[place + 1 :])
        last = place == len(others) - 1
        result = equation.output if last else between(own, other, rest)
        pair = alone(first, own, set(other + result)), alone(second, other, set(own + result))
        first, own = multiplied(*pair, result), result
    return first


def alone(x: Array, letters: str, seen: set[str]) -> Operand:
    """Return an operand summed over the letters that nobody else has, and its other letters."""
    axes = [axis for axis, letter in enumerate(letters) if letter not in seen]
    return (x.sum(axes) if axes else x), "".join(letter for letter in letters if letter in seen)


def between(own: str, other: str, rest: str) -> str:
    """Return the letters of a product that others read."""
    return "".join(letter for letter in dict.fromkeys(own + other) if letter in rest)


@lru_cache(maxsize=256)
def bilinear(einsum: Any, first: str, second: str, output: str) -> Bilinear:
    """Return a product and its gradients, by the einsum of a framework."""
    return Bilinear(
        partial(einsum, f"{first},{second}->{output}"),
        partial(einsum, f"{output},{second}->{first}"),
        partial(einsum, f"{output},{first}->{second}"),
    )


@lru_cache(maxsize=256)
def equation_of(text: str, dims: tuple[int, ...]) -> Equation | None:
    """Return what an equation says of operands of so many axes; None where it takes a diagonal or is not understood."""
    given, arrow, output = text.replace(" ", "").partition("->")
    parts = given.split(",")
    if len(parts) != len(dims):
        return None
    free = [letter for letter in ascii_letters if letter not in text]
    counts = [dim - len(part.replace(DOTS, "")) for part, dim in zip(parts, dims, strict=True)]
    dotted = [count for part, count in zip(parts, counts, strict=True) if DOTS in part]
    if any(count < 0 or (count > 0 and DOTS not in part) for part, count in zip(parts, counts, strict=True)):
        return None
    if len(free) < (most := max(dotted, default=0)):
        return None
    # axes of the dots are counted from the last
    dots = free[:most]
    operands = tuple(
        part.replace(DOTS, "".join(dots[most - count :])) for part, count in zip(parts, counts, strict=True)
    )
    if arrow:
        result = output.replace(DOTS, "".join(dots))
    else:
        once = Counter("".join(part.replace(DOTS, "") for part in parts))
        result = "".join(dots) + "".join(sorted(letter for letter, count in once.items() if count == 1))
    diagonal = any(len(set(letters)) < len(letters) for letters in (*operands, result))
    known = set(result) <= set("".join(operands)) and "".join((*operands, result)).isalpha()
    return None if diagonal or not known else Equation(operands, result)
