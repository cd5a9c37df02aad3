"""How planes are divided between the samples of a code: the definition, in float64."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from actnn.errors import FormatError
from actnn.format import MAX_BITS, Family, squared_steps
from actnn.kernels.contract import DividedLayout, Division

Floats = NDArray[np.float64]


def divide(layout: DividedLayout, division: Division) -> None:
    """Write the widths and offsets that follow from the ranges of a layout's block to that block."""
    check_planes(layout)
    block, samples, least = layout.block, layout.samples, layout.family.least_bits
    gain = gains(layout, division)
    if gain is None:
        widths = np.full(samples, layout.planes // max(1, samples))
        widths[: layout.planes - int(widths.sum())] += 1
    else:
        best = (-gain.ravel()).argsort(kind="stable")[: layout.planes - samples * least]
        widths = least + np.bincount(best % max(1, samples), minlength=samples)
    block.sample_bits[:] = widths
    block.sample_offsets[0] = layout.planes_offset
    block.sample_offsets[1:] = layout.planes_offset + layout.plane * np.cumsum(widths)


def check_planes(layout: DividedLayout) -> None:
    """Raise FormatError unless every sample can have a width of its family."""
    samples, least = layout.samples, layout.family.least_bits
    if not samples * least <= layout.planes <= samples * MAX_BITS:
        raise FormatError(
            f"{layout.planes} planes cannot be divided between {samples} samples of a {layout.family.name} code: "
            f"expected {least} to {MAX_BITS} for each."
        )


def gains(layout: DividedLayout, division: Division) -> Floats | None:
    """Return by how much each plane lowers the cost of noise, (steps, samples); None where nothing tells."""
    ranges, weights = layout.block.ranges.astype(np.float64), division.weights
    if weights is None or not np.isfinite(ranges).all():
        return None
    negative = weights[0] * ranges[:, 0] + weights[2] * ranges[:, 2]
    positive = weights[1] * ranges[:, 1] + weights[3] * ranges[:, 3]
    if division.norms is not None:
        negative, positive = negative * division.norms, positive * division.norms
    of_negative, of_positive = np.array(relief(layout.family))
    gain: Floats = np.multiply.outer(of_positive, positive) + np.multiply.outer(of_negative, negative)
    return gain if np.isfinite(gain).all() else None


@lru_cache(maxsize=16)
def relief(family: Family) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return by how much the squared step falls with each plane after the least width: of each side, negative first."""
    steps = squared_steps(family)[family.least_bits :]
    falls = [[before[side] - after[side] for before, after in pairwise(steps)] for side in (0, 1)]
    return tuple(falls[0]), tuple(falls[1])
