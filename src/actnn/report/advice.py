"""What other settings would keep, what dominates the peak, and what to do about it, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from actnn.core.format import MAX_BITS
from actnn.core.memory import readable
from actnn.core.store import BUFFER_BYTES
from actnn.report.blocks import (
    ACTIVATION_GRADIENTS,
    CODES,
    DECODED,
    EXACT,
    IN_FLIGHT,
    OTHER,
    PARAMETER_GRADIENTS,
    WORKSPACES,
)
from actnn.report.timeline import Timeline

BITS_PER_BYTE = 8
# level, bits of a value, and how many bytes of codes may be in memory
ALTERNATIVES = (
    ("L2", 8, float("inf")),
    ("L2", 4, float("inf")),
    ("L3", 2, float("inf")),
    ("L4", 2, 2.0 * BUFFER_BYTES),
)
# from which share on of the predicted variance in the squared gradient a setting is called noisy
NOISY = 0.5

MEANINGS = {
    CODES: "the codes themselves: fewer bits, or level L4, which keeps them on disk",
    EXACT: "activations that are kept as they are: a level that codes more, or fewer layers left exact",
    IN_FLIGHT: "results of the forward pass that nobody keeps: only a smaller batch or image lowers them",
    DECODED: "decoded inputs: actnn.config.pipeline_threshold lets large layers work on parts of the batch",
    ACTIVATION_GRADIENTS: "gradients on their way: only a smaller batch or image lowers them",
    PARAMETER_GRADIENTS: "gradients of weights before they are added up: they do not grow with the batch",
    WORKSPACES: "working memory of the framework's own operators, which codes do not touch",
    OTHER: "small results on the way",
}


@dataclass(frozen=True)
class Forecast:
    """What another setting would keep and take, computed from the codes of this run."""

    level: str
    bits: int
    kept_bytes: int
    peak_bytes: int


def forecasts(timeline: Timeline, rows: Sequence[Mapping[str, Any]]) -> list[Forecast]:
    """Return what other settings would keep and take at their peak, from accounts and the curve of one run."""
    now = sum(row["kept_bytes"] for row in rows)
    if not now:
        return []
    found = []
    for level, bits, most in ALTERNATIVES:
        kept = sum(kept_at(row, bits) for row in rows)
        found.append(Forecast(level, bits, int(min(kept, most)), timeline.peak_with(kept / now, most)))
    return found


def kept_at(row: Mapping[str, Any], bits: int) -> float:
    """Return the bytes that a layer would keep with codes of another width.

    A code with sides has one plane more. At the largest width there is none to spare: BatchNorm and whoever reads its
    output then keep a code each.
    """
    elements = row["elements"]
    if not elements:
        return float(row["kept_bytes"])
    planes = elements * row["bits"] / BITS_PER_BYTE
    signs = row["sign_bits"]
    width = 2 * bits if signs >= 1 and bits + signs > MAX_BITS else min(bits + signs, MAX_BITS)
    return float(row["kept_bytes"] - planes + elements * width / BITS_PER_BYTE)


def dominating(peak: Mapping[str, Any]) -> str:
    """Say what a peak consists of, and what would lower it."""
    total = max(1, peak["bytes"])
    parts: dict[str, int] = {}
    for share in peak["shares"]:
        parts[share["category"]] = parts.get(share["category"], 0) + share["nbytes"]
    if not parts:
        return "The step took no memory of its own."
    ranked = sorted(parts.items(), key=lambda part: -part[1])
    listed = ", ".join(f"{name} {100 * nbytes / total:.0f} %" for name, nbytes in ranked if nbytes >= 0.02 * total)
    first = ranked[0][0]
    holder = next(share for share in peak["shares"] if share["category"] == first)
    where = f", most of it in {holder['layer']}" if 2 * holder["nbytes"] > parts[first] and holder["layer"] else ""
    return f"The peak lies in the {peak['phase'] or 'step'}: {listed}. Largest{where}: {MEANINGS[first]}."
