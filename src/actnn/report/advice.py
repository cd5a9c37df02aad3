"""What other settings would keep, what dominates the peak, and what to do about it, in words."""

from __future__ import annotations

from collections.abc import Mapping
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
    WORKING,
    WORKSPACES,
)
from actnn.report.growth import MEASURABLE_BYTES, fitting, tells
from actnn.report.layers import kept_bytes, total_variance
from actnn.report.timeline import Timeline

BITS_PER_BYTE = 8
# level, bits of a value, and how many bytes of codes may be in memory
ALTERNATIVES = (
    ("L2", 8, float("inf")),
    ("L2", 4, float("inf")),
    ("L3", 2, float("inf")),
    ("L4", 2, 2.0 * BUFFER_BYTES),
)
# a predicted variance of the whole gradient, relative to its squared norm, from which on more bits are advised
NOISY = 0.5
# the level that is exact training
UNCOMPRESSED = "L0"
# how much more memory than the least a setting with less noise may take to be advised
CLOSE = 1.15

MEANINGS = {
    CODES: "Fewer bits, or level L4, which keeps codes on disk, lower it",
    EXACT: "Layers keep them that this level, or actnn, does not compress",
    IN_FLIGHT: "These results nobody keeps; they shrink with the batch or the image",
    DECODED: "actnn.config.pipeline_threshold lets large layers decode parts of the batch",
    ACTIVATION_GRADIENTS: "They are on their way to the next layer, and shrink with the batch or the image",
    PARAMETER_GRADIENTS: "They are as large as the weights, whatever the batch",
    WORKSPACES: "The framework's own operators take them; codes do not touch them",
    WORKING: "They are there within one layer's backward: actnn.config.pipeline_threshold bounds those of large layers",
    OTHER: "They belong to no layer",
}


@dataclass(frozen=True)
class Forecast:
    """What another setting would keep and take, computed from the codes of this run."""

    level: str
    bits: int
    kept_bytes: int
    peak_bytes: int


def forecasts(timeline: Timeline, run: Mapping[str, Any]) -> list[Forecast]:
    """Return what other settings would keep and take at their peak, from accounts and the curve of one run."""
    rows = run["rows"]
    now = sum(row["kept_bytes"] for row in rows)
    if not now:
        return []
    rest = kept_bytes(run) - now
    found = []
    for level, bits, most in ALTERNATIVES:
        kept = sum(kept_at(row, bits) for row in rows)
        found.append(Forecast(level, bits, int(rest + min(kept, most)), timeline.peak_with(kept / now, most)))
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
    first, nbytes = ranked[0]
    holder = next(share for share in peak["shares"] if share["category"] == first)
    where = f", most of them in {holder['layer']}" if holder["layer"] and 2 * holder["nbytes"] > nbytes else ""
    return f"The peak lies in the {peak['phase'] or 'step'}: {listed}. Largest are {first}{where}. {MEANINGS[first]}."


def sentences(profile: Mapping[str, Any], memory: int | None) -> list[str]:
    """Return what a run tells and what follows from it, one thing a sentence."""
    exact, run, settings = profile["exact"], profile["compressed"], profile["settings"]
    found = [saving(exact, run, settings), recommendation(profile), dominating(run["peak"])]
    if (variance := total_variance(run)) is not None:
        found.append(noise(variance))
    if memory is not None and settings["level"] != UNCOMPRESSED and None not in (exact["resident"], run["resident"]):
        found.append(batches(exact, run, settings, memory))
    return found


def batches(exact: Mapping[str, Any], run: Mapping[str, Any], settings: Mapping[str, Any], memory: int) -> str:
    """Say what batch fits into some memory, where that can be told."""
    counts = [fitting(each, settings, memory) for each in (exact, run)]
    if not any(counts):
        return (
            f"{readable(memory)} hold not even one image: the process has {readable(run['resident'])} before the step "
            "begins."
        )
    if not (tells(exact) and tells(run)):
        return (
            f"What batch fits in {readable(memory)} cannot be told: too little of this step grows with the batch. "
            "Profile a larger --batch."
        )
    names = [f"a batch of about {count}" if count else "not even one image" for count in counts]
    return (
        f"In {readable(memory)} {names[1]} should fit, against {names[0]} with exact training (estimated from what of "
        "this step grows with the batch)."
    )


def saving(exact: Mapping[str, Any], run: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Say what a setting saves."""
    kept = kept_bytes(exact), kept_bytes(run)
    swapped = sum(row["swapped_bytes"] for row in run["rows"])
    on_disk = f", {readable(swapped)} of it on disk" if swapped else ""
    width = "" if run["average_bits"] is None else f" at {settings['bits']:g} bits"
    return (
        f"{settings['level']}{width} keeps {readable(kept[1])} for backward instead of "
        f"{readable(kept[0])} ({times(*kept)}){on_disk}. {fall(exact, run, settings['level'])}"
    )


def fall(exact: Mapping[str, Any], run: Mapping[str, Any], level: str) -> str:
    """Say by how much the peak of a step falls, or that it does not, and why where that is known."""
    peaks = peak_of(exact), peak_of(run)
    if level == UNCOMPRESSED:
        return f"{level} compresses nothing: the peak of a step stays that of exact training, {readable(peaks[0])}."
    if peaks[1] >= peaks[0]:
        small = kept_bytes(exact) < MEASURABLE_BYTES
        reason = ": so small a step keeps too little for anything to be saved" if small else ""
        return (
            f"The peak of a step does not fall, {readable(peaks[1])} against {readable(peaks[0])} with exact "
            f"training{reason}."
        )
    always = sum(run["always_there"].values())
    totals = always + peaks[0], always + peaks[1]
    return (
        f"The peak of a step falls from {readable(peaks[0])} to {readable(peaks[1])} ({times(*peaks)}); with weights, "
        f"gradients and the optimizer's state, from {readable(totals[0])} to {readable(totals[1])} ({times(*totals)})."
    )


def noise(variance: float) -> str:
    """Say how much noise codes add."""
    advice = " That is much: take more bits." if variance >= NOISY else ""
    return (
        f"Codes are predicted to add a variance of {variance:.2g} of the squared gradient, for random inputs and fresh "
        f"weights: actnn.verify measures it on yours.{advice}"
    )


def recommendation(profile: Mapping[str, Any]) -> str:
    """Advise a level: the one with the least noise among those whose peak is close to the least."""
    run = profile["compressed"]
    if not run.get("forecasts"):
        return "Profile at level L3 to see what other levels would keep."
    kept, peak = kept_bytes(profile["exact"]), peak_of(profile["exact"])
    if kept < peak / 2:
        return (
            "Activations are less than half of exact training's peak here: without all of them it would still be about "
            f"{readable(peak - kept)}. A larger batch or image would change that."
        )
    swapped = [found for found in run["forecasts"] if found["level"] == "L4"]
    candidates = [found for found in run["forecasts"] if found["level"] != "L4"]
    least = min(found["peak_bytes"] for found in candidates)
    advised = max(
        (found for found in candidates if found["peak_bytes"] <= CLOSE * least), key=lambda found: found["bits"]
    )
    text = (
        f"Advice: {advised['level']} at {advised['bits']} bits, expected to keep {readable(advised['kept_bytes'])} "
        f"with a peak of {readable(advised['peak_bytes'])}, "
        f"{times(profile['exact']['peak']['bytes'], advised['peak_bytes'])} below exact training"
    )
    if advised["peak_bytes"] > least:
        text += f"; fewer bits would lower the peak by {100 - 100 * least / advised['peak_bytes']:.0f} % and add noise"
    if swapped and swapped[0]["peak_bytes"] < least / CLOSE:
        text += f". If that is still too much, L4 keeps codes on disk: about {readable(swapped[0]['peak_bytes'])}"
    return f"{text}."


def peak_of(run: Mapping[str, Any]) -> int:
    """Return the peak of a step as the system saw it, or as replayed where it does not tell.

    The system sees pages that others of the process take as well: of a small step they are most.
    """
    seen = run["true_peak"] or 0
    return int(seen if seen >= MEASURABLE_BYTES else run["peak"]["bytes"])


def times(before: float, after: float) -> str:
    """Return how many times less that is."""
    return f"{before / max(1, after):.1f}×"
