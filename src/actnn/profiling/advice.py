"""What other settings would keep, what dominates the peak, and what to do about it, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from actnn.amounts import readable
from actnn.format import MAX_BITS
from actnn.profiling.blocks import (
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
from actnn.profiling.growth import MEASURABLE_BYTES, fitting, tells
from actnn.profiling.layers import balance, holders, kept_bytes, layers, total_variance, uncompressed
from actnn.profiling.peaks import measurable, peaks_of
from actnn.profiling.timeline import Timeline
from actnn.settings import LEVELS
from actnn.stores.store import BUFFER_BYTES

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
# two steps of one setting differ by so much of what they take
STEADY = 0.03
# a setting that leaves more than this of exact training's peak is not worth its noise
WORTH = 0.95

MEANINGS = {
    CODES: "Fewer bits, or level L4, which keeps codes on disk, lower it",
    EXACT: "Layers and functions keep them that this level, or actnn, does not compress",
    IN_FLIGHT: "These results nobody keeps; they shrink with the batch or the image",
    DECODED: "actnn.config.pipeline_threshold lets large layers decode parts of the batch",
    ACTIVATION_GRADIENTS: "They are on their way to the next layer, and shrink with the batch or the image",
    PARAMETER_GRADIENTS: "They are as large as the weights, whatever the batch",
    WORKSPACES: "The framework's own operators take them; codes do not touch them",
    WORKING: "They are there within one layer's backward: actnn.config.pipeline_threshold bounds those of large layers",
    OTHER: "They belong to no layer and no function of one",
}


@dataclass(frozen=True)
class Forecast:
    """What another setting would keep and take, computed from the codes that were measured."""

    level: str
    bits: int
    kept_bytes: int
    peak_bytes: int


def forecasts(timeline: Timeline, measured: Mapping[str, Any]) -> list[Forecast]:
    """Return what other settings would keep and take at their peak, from accounts and the curve of one step."""
    rows = measured["rows"]
    now = sum(row["kept_bytes"] for row in rows)
    if not now:
        return []
    rest = kept_bytes(measured) - now
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
    """Return what a profile tells and what follows from it, one thing a sentence."""
    exact, measured, settings = profile["exact"], profile["compressed"], profile["settings"]
    found = [saving(profile), recommendation(profile), dominating(measured["peak"])]
    if (variance := total_variance(measured)) is not None:
        found.append(noise(variance))
    if memory is not None and settings["level"] != UNCOMPRESSED:
        found.append(batches(exact, measured, memory))
    return found


def batches(exact: Mapping[str, Any], measured: Mapping[str, Any], memory: int) -> str:
    """Say what batch fits into some memory, where that can be told."""
    if not (tells(exact) and tells(measured)):
        return (
            f"What batch fits in {readable(memory)} cannot be told: what the process needs grows too little with the "
            "batch, or no larger batch fits. Profile another --batch."
        )
    counts = [fitting(each, memory) for each in (exact, measured)]
    if not any(counts):
        least = min(need for each in (exact, measured) for _, need in each["needs"])
        return f"{readable(memory)} hold not even one image: a step of this batch needs {readable(least)}."
    names = [f"a batch of about {count}" if count else "not even one image" for count in counts]
    sizes = sorted({batch for each in (exact, measured) for batch, _ in each["needs"]})
    return (
        f"In {readable(memory)} {names[1]} should fit, against {names[0]} with exact training (estimated from what the "
        f"process needed at batches of {', '.join(map(str, sizes))})."
    )


def saving(profile: Mapping[str, Any]) -> str:
    """Say what a setting saves."""
    exact, measured, settings = profile["exact"], profile["compressed"], profile["settings"]
    kept = kept_bytes(exact), kept_bytes(measured)
    swapped = sum(row["swapped_bytes"] for row in measured["rows"])
    on_disk = f", {readable(swapped)} of it on disk" if swapped else ""
    width = "" if measured["average_bits"] is None else f" at {settings['bits']:g} bits"
    if as_much(*kept):
        amount = f"about as much for backward as exact training, {readable(kept[1])}"
    elif kept[1] > kept[0]:
        amount = (
            f"{readable(kept[1])} for backward, more than the {readable(kept[0])} of exact training{surplus(profile)}"
        )
    else:
        amount = f"{readable(kept[1])} for backward instead of {readable(kept[0])} ({times(*kept)})"
    return f"{settings['level']}{width} keeps {amount}{on_disk}. {fall(profile)}"


def surplus(profile: Mapping[str, Any]) -> str:
    """Say why more is kept than without codes, where that is known."""
    anyway = balance(profile, layers(profile)).anyway_bytes
    if anyway <= 0:
        return ""
    return f": codes stand for {readable(anyway)} that are in memory anyway, such as the batch, and free none of them"


def fall(profile: Mapping[str, Any]) -> str:
    """Say by how much the peak of a step falls, or that it does not, and why where that is known."""
    exact, measured, level = profile["exact"], profile["compressed"], profile["settings"]["level"]
    peaks = peaks_of(profile)
    if level == UNCOMPRESSED:
        return f"{level} compresses nothing: the peak of a step stays that of exact training, {readable(peaks.exact)}."
    grown = ""
    if peaks.replayed and measurable(exact) and measurable(measured):
        grown = (
            " These are peaks of what is allocated; the process grew by "
            f"{readable(exact['true_peak'])} and {readable(measured['true_peak'])}."
        )
    if as_much(peaks.exact, peaks.compressed):
        return f"The peak of a step stays about {readable(peaks.exact)}{reason(profile)}.{grown}"
    if peaks.compressed > peaks.exact:
        return (
            f"The peak of a step does not fall, {readable(peaks.compressed)} against {readable(peaks.exact)} with "
            f"exact training{reason(profile)}.{grown}"
        )
    always = sum(measured["always_there"].values())
    totals = always + peaks.exact, always + peaks.compressed
    return (
        f"The peak of a step falls from {readable(peaks.exact)} to {readable(peaks.compressed)} "
        f"({times(peaks.exact, peaks.compressed)}); with weights, gradients and the optimizer's state, from "
        f"{readable(totals[0])} to {readable(totals[1])} ({times(*totals)}).{grown}"
    )


def reason(profile: Mapping[str, Any]) -> str:
    """Say why a peak does not fall, where that is known."""
    kept = kept_bytes(profile["exact"])
    if mostly_uncompressed(profile):
        return f": most of what is kept belongs to what {profile['settings']['level']} does not compress"
    if kept < MEASURABLE_BYTES:
        return f": exact training keeps too little, {readable(kept)}, for anything to be saved"
    return ""


def mostly_uncompressed(profile: Mapping[str, Any]) -> bool:
    """Tell whether layers and functions without a code keep half of what is kept, with codes and without any."""
    kept = max(kept_bytes(profile["exact"]), kept_bytes(profile["compressed"]))
    return kept > 0 and 2 * sum(uncompressed(profile["compressed"]).values()) >= kept


def noise(variance: float) -> str:
    """Say how much noise codes add."""
    advice = " That is much: take more bits." if variance >= NOISY else ""
    return (
        f"Codes are predicted to add a variance of {variance:.2g} of the squared gradient, for random inputs and fresh "
        f"weights: actnn.verify measures it on yours.{advice}"
    )


def recommendation(profile: Mapping[str, Any]) -> str:
    """Advise a level: the one with the least noise among those whose peak is close to the least."""
    exact, found = profile["exact"], profile["compressed"].get("forecasts")
    if not found:
        return without_forecasts(profile)
    kept, peak = kept_bytes(exact), peaks_of(profile).exact
    gains = min(each["peak_bytes"] for each in found) < WORTH * exact["peak"]["bytes"]
    if not gains and mostly_uncompressed(profile):
        return (
            "Conversion gains next to nothing here, since most of what is kept for backward belongs to layers and "
            f"functions that are not compressed: {holders(profile)}."
        )
    if kept < peak / 2:
        # where all of the peak grows with the batch, what is kept stays as small a part of it
        growing = max((growing for _, growing in exact["extremes"]), default=0)
        change = " A larger batch or image would change that." if growing < exact["peak"]["bytes"] / 2 else ""
        return (
            "Activations are less than half of exact training's peak here: without all of them it would still be about "
            f"{readable(peak - kept)}.{change}"
        )
    if not gains:
        return f"No setting is expected to lower the peak of this step by more than {100 - 100 * WORTH:.0f} %."
    return advised(found, exact["peak"]["bytes"])


def without_forecasts(profile: Mapping[str, Any]) -> str:
    """Say what follows where other settings cannot be told from what was measured."""
    measured, own = profile["compressed"], LEVELS[profile["settings"]["level"]]
    every_kind = own.get("compress_activation", True) and own.get("enable_quantized_bn", True)
    if not every_kind or any(row["kept_bytes"] for row in measured["rows"]):
        return "Profile at level L3 to see what other levels would keep."
    most = f"; what is kept for backward belongs to others: {holders(profile)}" if uncompressed(measured) else ""
    return f"No layer of this model, and no function that it calls, is compressed, so no level would help{most}."


def advised(found: Sequence[Mapping[str, Any]], exact_peak: int) -> str:
    """Advise one of several settings, of which one at least lowers the peak."""
    swapped = [each for each in found if each["level"] == "L4"]
    candidates = [each for each in found if each["level"] != "L4"]
    least = min(each["peak_bytes"] for each in candidates)
    best = max((each for each in candidates if each["peak_bytes"] <= CLOSE * least), key=lambda each: each["bits"])
    text = (
        f"Advice: {best['level']} at {best['bits']} bits, expected to keep {readable(best['kept_bytes'])} with a peak "
        f"of {readable(best['peak_bytes'])}, {times(exact_peak, best['peak_bytes'])} below exact training"
    )
    if (less := round(100 - 100 * least / best["peak_bytes"])) > 0:
        text += f"; fewer bits would lower the peak by {less} % and add noise"
    if swapped and swapped[0]["peak_bytes"] < least / CLOSE:
        text += f". If that is still too much, L4 keeps codes on disk: about {readable(swapped[0]['peak_bytes'])}"
    return f"{text}."


def as_much(before: float, after: float) -> bool:
    """Tell whether two measurements are too close for a difference to mean anything."""
    return abs(after - before) <= STEADY * max(before, after)


def times(before: float, after: float) -> str:
    """Return how many times less that is."""
    return f"{before / max(1, after):.1f}×"
