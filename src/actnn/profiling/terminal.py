"""A profile as text: totals, what the peak consists of, and what each layer keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from actnn.amounts import readable
from actnn.console.columns import aligned
from actnn.profiling.advice import sentences
from actnn.profiling.layers import LEAST_BYTES, Layer, kept_bytes, layers

MOST_ROWS = 12
CONTESTANTS = ("exact", "compressed")

Rows = list[tuple[str, ...]]


def lines(profile: Mapping[str, Any], whole_peak: bool, memory: int | None) -> list[str]:
    """Return the lines of a whole profile."""
    found = totals(profile)
    if whole_peak:
        for name in CONTESTANTS:
            found += ["", *peak_lines(name, profile[name]["peak"], None)]
    else:
        found += ["", *peak_lines(CONTESTANTS[1], profile[CONTESTANTS[1]]["peak"], MOST_ROWS)]
        found += ["", *layer_lines(layers(profile))]
    return [*found, "", *(f"- {sentence}" for sentence in sentences(profile, memory))]


def layer_lines(found: Sequence[Layer]) -> list[str]:
    """Return the layers that keep most."""
    cells = [("layer", "kind", "exact", "kept", "bits", "sensitivity", "variance", "also read by")]
    ranked = sorted(found, key=lambda layer: -layer.kept_bytes)
    if not ranked:
        return [f"No layer keeps {readable(LEAST_BYTES)} or more for backward."]
    for layer in ranked[:MOST_ROWS]:
        sizes = readable(layer.exact_bytes), readable(layer.kept_bytes)
        figures = number(layer.bits, ".2f"), number(layer.sensitivity, ".1e"), number(layer.variance, ".1e")
        cells.append((layer.name, layer.kind, *sizes, *figures, ", ".join(layer.readers)))
    text = ["What layers keep for backward:", *indented(aligned(cells))]
    if len(ranked) > MOST_ROWS:
        text.append(f"  … and {len(ranked) - MOST_ROWS} more: --html shows them all")
    return text


def number(value: float | None, form: str) -> str:
    """Return a number, or a dash where there is none."""
    return "-" if value is None else format(value, form)


def totals(profile: Mapping[str, Any]) -> list[str]:
    """Return the totals of both contestants."""
    cells: Rows = [("", *CONTESTANTS, "ratio")]
    exact, compressed = (profile[name] for name in CONTESTANTS)
    for label, value in (
        ("kept for backward", kept_bytes),
        ("peak of the step, replayed", lambda measured: measured["peak"]["bytes"]),
        ("peak of the step, resident", lambda measured: measured["true_peak"]),
        ("weights, gradients, optimizer", lambda measured: sum(measured["always_there"].values())),
    ):
        figures = value(exact), value(compressed)
        if None not in figures:
            cells.append((label, *map(readable, figures), ratio(*figures)))
    return aligned(cells)


def ratio(before: int, after: int) -> str:
    """Return how many times less that is, with one significant figure where it is much more."""
    if not (before and after):
        return "-"
    return f"{before / after:.1f}x" if before >= after / 2 else f"{before / after:.1g}x"


def peak_lines(name: str, peak: Mapping[str, Any], most: int | None) -> list[str]:
    """Return what a peak consists of: by category, and the largest parts by layer."""
    total = max(1, peak["bytes"])
    categories: dict[str, int] = {}
    for share in peak["shares"]:
        categories[share["category"]] = categories.get(share["category"], 0) + share["nbytes"]
    cells: Rows = [("category", "bytes", "share")]
    for category, nbytes in sorted(categories.items(), key=lambda item: -item[1]):
        cells.append((category, readable(nbytes), f"{100 * nbytes / total:.1f} %"))
    found = [f"The peak of {name} training, {readable(total)}:", *indented(aligned(cells)), ""]
    cells = [("layer", "category", "bytes", "share", "blocks", "taken by", "held by")]
    for share in peak["shares"][:most]:
        figures = readable(share["nbytes"]), f"{100 * share['nbytes'] / total:.1f} %", str(share["blocks"])
        parts = ", ".join(share["makers"]), ", ".join(share["holders"])
        cells.append((share["layer"], share["category"], *figures, *parts))
    found += indented(aligned(cells))
    if most is not None and len(peak["shares"]) > most:
        found.append(f"  … and {len(peak['shares']) - most} smaller parts: --peak prints them all")
    if most is None:
        found += ["", *indented(moment_lines(peak))]
    return found


def moment_lines(peak: Mapping[str, Any]) -> list[str]:
    """Return the fullest moments, one for each pass of a layer: each would be the peak without those above it."""
    cells = [("fullest moments", "phase", "bytes", "of which", "held by")]
    for moment in peak["moments"]:
        parts = sorted(moment["categories"].items(), key=lambda part: -part[1])
        held = moment["holders"].items()
        columns = [
            ", ".join(f"{name} {readable(nbytes)}" for name, nbytes in listed if nbytes >= 0.01 * moment["nbytes"])
            for listed in (parts, held)
        ]
        cells.append((moment["layer"], moment["phase"], readable(moment["nbytes"]), *columns))
    return aligned(cells)


def indented(text: Sequence[str]) -> list[str]:
    """Return lines, indented by two spaces."""
    return [f"  {line}" for line in text]
