"""A few of many cases in which everything occurs that occurs in any of them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Set
from zlib import crc32


def covering(cases: Mapping[str, Set[Hashable]], most: int | None = None) -> set[str]:
    """Return names of cases that together have all traits of all; equal cases give equal ones, on every machine.

    Of no more than ``most`` cases, those that have most of the traits between them.
    """
    chosen: set[str] = set()
    left = set().union(*cases.values())
    # among cases with as many new traits, one of no meaning: neighbours have the same numbers beside another word
    rest = sorted(cases, key=lambda name: crc32(name.encode()))
    while left and len(chosen) != most:
        best = max(rest, key=lambda name: len(cases[name] & left))
        chosen.add(best)
        left -= cases[best]
    return chosen


def traits(parameters: Mapping[str, object]) -> set[Hashable]:
    """Return what occurs in a case of a test: each number, word or object that it is given, where it is given it."""
    return {
        (name, place, repr(part))
        for name, value in parameters.items()
        for place, part in enumerate(value if isinstance(value, tuple) else (value,))
    } or {()}
