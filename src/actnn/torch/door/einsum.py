"""The rule of einsum: products of two operands at a time, as torch multiplies them."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache, partial
from string import ascii_letters
from typing import Any, NamedTuple

import torch
from torch import Tensor

from actnn.model.door import DECLINED, Frame, Rule
from actnn.operations.products import MATMUL_EXTRA, Bilinear
from actnn.torch.door.maps import coded
from actnn.torch.functions.products import product
from actnn.torch.tensors import ARRAYS

DOTS = "..."


class Equation(NamedTuple):
    """The letters of each operand, and of the result."""

    operands: tuple[str, ...]
    output: str


def einsum(frame: Frame, function: Any, equation: Any, *operands: Any) -> Any:
    """Return an einsum that keeps codes of the operands which the gradients read."""
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    if not isinstance(equation, str) or len(operands) < 2 or not coded(*operands):
        return DECLINED
    letters = equation_of(equation, tuple(x.dim() for x in operands))
    if letters is None or not all(x.requires_grad for x in operands):
        return DECLINED
    first, (own, *others) = operands[0], letters.operands
    for place, (second, other) in enumerate(zip(operands[1:], others, strict=True)):
        rest = letters.output + "".join(others[place + 1 :])
        result = letters.output if place == len(others) - 1 else between(own, other, rest)
        first, own = multiplied(frame, (first, own), (second, other), result), result
    return first


def multiplied(frame: Frame, one: tuple[Tensor, str], other: tuple[Tensor, str], result: str) -> Tensor:
    """Return the product of two operands, each with its letters."""
    (first, own), (second, its) = (
        alone(x, mine, set(others + result)) for (x, mine), (_, others) in ((one, other), (other, one))
    )
    maps = any(not ARRAYS.recorded(x) for x in (first, second))
    site = frame.site(frame.count("einsum"), extra=0.0 if maps else MATMUL_EXTRA)
    site.parameter = next((id(x) for x in (first, second) if x.is_leaf), None)
    return product(first, second, bilinear(own, its, result), site, frame.training)


def alone(x: Tensor, letters: str, seen: set[str]) -> tuple[Tensor, str]:
    """Return an operand summed over the letters that nobody else has, and its other letters."""
    axes = [axis for axis, letter in enumerate(letters) if letter not in seen]
    return (x.sum(axes) if axes else x), "".join(letter for letter in letters if letter in seen)


def between(own: str, other: str, rest: str) -> str:
    """Return the letters of a product that others read."""
    return "".join(letter for letter in dict.fromkeys(own + other) if letter in rest)


@lru_cache(maxsize=256)
def bilinear(first: str, second: str, output: str) -> Bilinear:
    """Return a product and its gradients."""
    return Bilinear(
        partial(torch.einsum, f"{first},{second}->{output}"),
        partial(torch.einsum, f"{output},{second}->{first}"),
        partial(torch.einsum, f"{output},{first}->{second}"),
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


RULES: dict[Any, Rule] = {torch.einsum: einsum}
