"""Samples of the training set: how large their gradients were, relative to others, when they were last seen."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from actnn.errors import ConfigError
from actnn.planning.plain import Plain, array_of, plain_array

Indices = NDArray[np.int64]
Floats = NDArray[np.float64]

MEMORY = 0.5
MOST_SAMPLES = 10**8


class SampleNorms:
    """One number a sample: its squared gradient norm over that of an average sample, averaged over steps.

    All layers share it. Norms of different layers are nearly proportional, and a table for each layer would take more
    memory than codes save.
    """

    def __init__(self) -> None:
        self._norms = np.empty(0, np.float32)

    def of(self, indices: Indices) -> Floats:
        """Return the numbers of some samples, 1 for one that was never seen."""
        result = np.ones(len(indices))
        known = indices < len(self._norms)
        found = self._norms[indices[known]]
        result[known] = np.where(np.isnan(found), 1.0, found)
        return result

    def update(self, indices: Indices, norms: Floats) -> None:
        """Let some samples have had these norms in the last step."""
        most = int(indices.max(initial=-1)) + 1
        if most > len(self._norms):
            grown = np.full(max(most, 2 * len(self._norms)), np.nan, np.float32)
            grown[: len(self._norms)] = self._norms
            self._norms = grown
        old = self._norms[indices]
        self._norms[indices] = np.where(np.isnan(old), norms, MEMORY * old + (1.0 - MEMORY) * norms)

    def state(self) -> Plain | None:
        """Return all numbers as plain data."""
        return plain_array(self._norms)

    def load(self, state: Plain | None) -> None:
        """Take the numbers that ``state`` returned."""
        norms = array_of(state)
        self._norms = np.empty(0, np.float32) if norms is None else norms


def check_indices(given: Any, num_samples: int | None) -> Indices:
    """Return the positions of a batch in the training set; raise ConfigError where they are none."""
    try:
        indices = np.asarray(given)
    except ValueError:
        # rows of different lengths
        indices = np.asarray(given, object)
    most = MOST_SAMPLES if num_samples is None else num_samples
    if indices.ndim != 1 or indices.dtype.kind not in "iu":
        raise ConfigError(
            f"samples of shape {indices.shape} and type {indices.dtype} were given: expected one whole number for each "
            "sample of the batch, its position in the training set."
        )
    if len(indices) and (indices.min() < 0 or indices.max() >= most):
        raise ConfigError(
            f"samples {indices.min()} to {indices.max()} were given: expected positions in the training set, "
            f"0 to {most - 1}."
        )
    return indices.astype(np.int64)


def numbered(batches: list[Indices], indices: Indices | None) -> int | None:
    """Return the place of a batch in a list, where it is put if need be: several records share one."""
    if indices is None:
        return None
    for place, batch in enumerate(batches):
        if batch is indices:
            return place
    batches.append(indices)
    return len(batches) - 1
