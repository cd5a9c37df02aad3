"""Amounts of memory, and averages of bits, written for people and read from them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from actnn.errors import ConfigError

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
FACTORS = {"": 1, "B": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("KMGT", 1)
    for suffix, base in (("B", 1000), ("iB", 1024))
}
# averages by name: the default, and one and two bits more
AVERAGES: Mapping[str, float] = {"lean": 2.0, "middle": 3.0, "safe": 4.0}
AMOUNT = re.compile(r"\s*(\d+(?:\.\d*)?)\s*([A-Za-z]*)\s*")


def readable(count: float) -> str:
    """Return a number of bytes for people."""
    unit = 0
    while count >= 1024 and unit < len(UNITS) - 1:
        count /= 1024
        unit += 1
    return f"{count:.0f} {UNITS[unit]}" if unit == 0 else f"{count:.1f} {UNITS[unit]}"


def parse_memory(given: Any) -> int:
    """Return the bytes of an amount such as ``"400MB"``, ``"1.5 GiB"`` or ``4e8``."""
    if isinstance(given, str) and (found := AMOUNT.fullmatch(given)):
        factor = {name.lower(): value for name, value in FACTORS.items()}.get(found[2].lower())
        if factor is not None and (amount := int(float(found[1]) * factor)) > 0:
            return amount
    elif isinstance(given, (int, float)) and not isinstance(given, bool) and 0 < given < float("inf"):
        return int(given)
    raise ConfigError(f"memory={given!r}: expected a number of bytes or an amount such as '400MB' or '1.5 GiB'.")
