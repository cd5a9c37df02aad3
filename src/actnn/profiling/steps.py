"""One traced step, summed up as plain data: what a report shows of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from actnn.profiling.blocks import KEPT
from actnn.profiling.growth import extremes
from actnn.profiling.timeline import Kind, Timeline, by_category
from actnn.profiling.trace import ROOT, Step

POINTS = 600
MOMENTS = 12
MILLISECONDS_PER_MICROSECOND = 1e-3


def summary(step: Step, timeline: Timeline) -> dict[str, Any]:
    """Return a step as data: its curve by category and by layer, its peak, what is kept, and when layers ran.

    Times are milliseconds since the step began. A layer's curve lists (moment, bytes) where it changes.
    """

    def elapsed(time: float) -> float:
        return round((time - timeline.begin) * MILLISECONDS_PER_MICROSECOND, 3)

    samples = timeline.sampled(POINTS)
    return {
        "phases": {name: [elapsed(start), elapsed(end)] for name, (start, end) in step.phases.items()},
        "times": [elapsed(time) for time, _ in samples],
        "categories": [by_category(held) for _, held in samples],
        "layers": layer_curves([held for _, held in samples]),
        "passes": layer_passes(step, elapsed),
        "peak": {
            "bytes": timeline.peak_bytes,
            "time": elapsed(timeline.peak_time),
            "phase": phase_at(step, timeline.peak_time),
            "moments": [vars(moment) for moment in timeline.highest(leaf_passes(step), MOMENTS)],
            "shares": [vars(share) for share in timeline.at_peak()],
        },
        "extremes": extremes(timeline.pieces),
        "kept": kept_by_layer(step, timeline),
        "stored": step.stored,
    }


def phase_at(step: Step, time: float) -> str:
    """Return the phase of a moment."""
    return next((name for name, (start, end) in step.phases.items() if start <= time <= end), "")


def layer_curves(samples: Sequence[dict[Kind, int]]) -> dict[str, list[list[int]]]:
    """Return what each layer holds over the samples, as (index, bytes) of every change."""
    curves: dict[str, list[list[int]]] = defaultdict(list)
    last: dict[str, int] = {}
    for index, held in enumerate(samples):
        now: dict[str, int] = dict.fromkeys(last, 0)
        for (layer, _), nbytes in held.items():
            now[layer] = now.get(layer, 0) + nbytes
        for layer, nbytes in now.items():
            if last.get(layer, 0) != nbytes:
                curves[layer].append([index, nbytes])
        last = now
    return dict(curves)


def layer_passes(step: Step, elapsed: Callable[[float], float]) -> dict[str, dict[str, list[list[float]]]]:
    """Return when each layer ran in forward and in backward."""
    passes: dict[str, dict[str, list[list[float]]]] = {}
    for layer, phase, start, end in leaf_passes(step):
        passes.setdefault(layer, {}).setdefault(phase, []).append([elapsed(start), elapsed(end)])
    return passes


def leaf_passes(step: Step) -> list[tuple[str, str, float, float]]:
    """Return the passes through layers that hold no other layer."""
    holders = {parent for layer, *_ in step.passes for parent in parents(layer)} | {ROOT}
    return [each for each in step.passes if each[0] not in holders]


def parents(name: str) -> list[str]:
    """Return the paths of the modules that hold a layer."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def kept_by_layer(step: Step, timeline: Timeline) -> dict[str, int]:
    """Return what each layer keeps in the framework's memory when backward begins."""
    _, moment = step.phases.get("forward", (0.0, timeline.end))
    kept: dict[str, int] = defaultdict(int)
    for piece in timeline.held_at(moment):
        if piece.category in KEPT:
            kept[piece.layer] += piece.nbytes
    return dict(kept)
