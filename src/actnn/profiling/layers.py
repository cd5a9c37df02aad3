"""What a report says of each layer: bytes, widths, readers, and the noise that codes bring to its gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from actnn.amounts import readable
from actnn.profiling.timeline import STORE

# a layer that is not compressed and keeps less than this, statistics of a few channels, is not worth a row
LEAST_BYTES = 1024


@dataclass(frozen=True)
class Layer:
    """One layer of compressed training.

    ``reads`` names the layer whose code it reads instead of keeping one; ``variance`` is predicted for the gradient of
    its weights, relative to that gradient's squared norm.
    """

    name: str
    kind: str
    exact_bytes: int
    kept_bytes: int
    peak_bytes: int
    swapped_bytes: int = 0
    bits: float | None = None
    readers: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    sensitivity: float | None = None
    variance: float | None = None
    left_exact: str = ""


def layers(profile: Mapping[str, Any]) -> list[Layer]:
    """Return all layers that keep something, read a code or were left exact, in the order of the model."""
    measured, exact = profile["compressed"], profile["exact"]
    rows = {row["layer"]: row for row in measured["rows"]}
    owners: dict[str, list[str]] = {}
    for row in measured["rows"]:
        for reader in row["readers"]:
            owners.setdefault(reader, []).append(row["layer"])
    left = {name: reason for name, _, reason in measured["left_exact"]}
    at_peak: dict[str, int] = {}
    for share in measured["peak"]["shares"]:
        at_peak[share["layer"]] = at_peak.get(share["layer"], 0) + share["nbytes"]
    found = []
    for name, kind in measured["kinds"].items():
        row = rows.get(name)
        kept = row["kept_bytes"] if row else measured["kept"].get(name, 0)
        if not (row or name in owners or name in left or kept >= LEAST_BYTES):
            continue
        found.append(
            Layer(
                name,
                kind,
                row["exact_bytes"] if row else 0 if name in owners else exact["kept"].get(name, 0),
                0 if name in owners and not row else kept,
                at_peak.get(name, 0),
                row["swapped_bytes"] if row else 0,
                row["bits"] if row else None,
                tuple(row["readers"]) if row else (),
                tuple(owners.get(name, ())),
                measured["sensitivity"].get(name),
                relative_variance(measured, name),
                left.get(name, ""),
            )
        )
    return found


def relative_variance(measured: Mapping[str, Any], name: str) -> float | None:
    """Return the variance predicted for a layer's gradient relative to its squared norm, None where it has none."""
    predicted, norm = measured["variance"].get(name), measured["squared_norms"].get(name)
    return predicted / norm if predicted is not None and norm else None


def total_variance(measured: Mapping[str, Any]) -> float | None:
    """Return the variance predicted for the whole gradient relative to its squared norm."""
    norm = sum(measured["squared_norms"].values())
    return sum(measured["variance"].values()) / norm if norm and measured["variance"] else None


def kept_bytes(measured: Mapping[str, Any]) -> int:
    """Return what a contestant keeps for backward, in memory or elsewhere."""
    coded = {row["layer"]: row["kept_bytes"] for row in measured.get("rows", ())}
    if not coded:
        # without accounts of sites, what a store took over and does not hold in memory counts as well
        held: int = measured["kept"].get(STORE, 0)
        total: int = sum(measured["kept"].values()) - held + max(held, measured["stored"])
        return total
    rest: int = sum(nbytes for layer, nbytes in measured["kept"].items() if layer not in coded and layer != STORE)
    return rest + int(sum(coded.values()))


@dataclass(frozen=True)
class Balance:
    """The difference between the sum of a table of layers and the totals of training.

    ``anyway_bytes`` are values of which layers keep codes and which cost exact training nothing: it only refers to
    them, as the batch was there before the step, or another layer keeps them.
    """

    unlisted_exact_bytes: int
    unlisted_kept_bytes: int
    unlisted_peak_bytes: int
    anyway_bytes: int


def balance(profile: Mapping[str, Any], found: Sequence[Layer]) -> Balance:
    """Return what to add to the sums of all layers, and to take off, for the totals of both contestants."""
    measured, exact = profile["compressed"], profile["exact"]
    listed = {layer.name for layer in found}
    unlisted = sum(nbytes for name, nbytes in exact["kept"].items() if name not in listed)
    return Balance(
        unlisted,
        kept_bytes(measured) - sum(layer.kept_bytes for layer in found),
        measured["peak"]["bytes"] - sum(layer.peak_bytes for layer in found),
        sum(layer.exact_bytes for layer in found) + unlisted - kept_bytes(exact),
    )


def uncompressed(measured: Mapping[str, Any]) -> dict[str, int]:
    """Return what each layer without a code keeps in memory, most first; what is outside layers has no name."""
    coded = {row["layer"] for row in measured.get("rows", ())}
    found = {layer: nbytes for layer, nbytes in measured["kept"].items() if layer not in coded and layer != STORE}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def holders(profile: Mapping[str, Any], most: int = 3) -> str:
    """Name the kinds of layers without a code that keep most, with how much they keep."""
    kinds: dict[str, dict[str, int]] = {}
    for layer, nbytes in uncompressed(profile["compressed"]).items():
        # as the user wrote the model: conversion wraps the whole of it
        kinds.setdefault(profile["exact"]["kinds"].get(layer, ""), {})[layer] = nbytes
    total = sum(sum(own.values()) for own in kinds.values())
    ranked = sorted(kinds.items(), key=lambda item: -sum(item[1].values()))
    # what keeps less than a twentieth explains nothing
    shown = [(kind, own) for kind, own in ranked[:most] if 20 * sum(own.values()) >= total]
    return ", ".join(f"{readable(sum(own.values()))} to {holder(kind, list(own))}" for kind, own in shown)


def holder(kind: str, names: Sequence[str]) -> str:
    """Name the layers of one kind."""
    if not kind:
        return "the loss and whatever else is outside layers"
    return f"{names[0]} ({kind})" if len(names) == 1 else f"{len(names)} layers of kind {kind}"
