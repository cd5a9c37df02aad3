"""Cross entropy of logits.

Keeps: a code of the probabilities, in parts of the batch, and the targets as they are.
Shares: nothing. Reads in backward: the decoded probabilities.
Noise: with T the weights that a row's targets have, the gradient of its logits is p Σ T - T: linear in p, so unbiased.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from actnn.kernels.contract import Array
from actnn.operations.kept import Kept, Reading
from actnn.operations.softmax import keep_probabilities
from actnn.session.site import Site
from actnn.session.tensors import Tensors

FLOAT32_BYTES = 4


def parts_of_batch(site: Site, samples: int, elements: int) -> list[range]:
    """Return the parts of a batch of logits whose probabilities are there one after another, in float32."""
    nbytes = FLOAT32_BYTES * samples * elements
    return site.session.pieces(samples, nbytes, nbytes)


class Probabilities:
    """The codes of all parts of a batch: tensors for autograd to save, and how to read them."""

    __slots__ = ("_readings", "_rows", "parts")

    def __init__(self, parts: Sequence[range]) -> None:
        self.parts = parts
        self._readings: list[Reading] = []
        self._rows: list[float] = []

    def keep(self, tensors: Tensors, p: Array, site: Site, exact_bytes: int, axis: int = 1) -> Array:
        """Return what autograd is to save of the next part, for which exact training would keep ``exact_bytes``.

        Classes lie along ``axis``.
        """
        self._rows.append(math.prod(p.shape) / max(1, p.shape[axis]))
        kept: Kept = keep_probabilities(tensors, p, site, exact_bytes, batched=False)
        self._readings.append(kept.reading)
        (saved,) = kept.tensors
        return saved

    def decoded(self, place: int, site: Site, saved: Array) -> Array:
        """Return the probabilities of one part in float32, some of them below 0: on average they are right."""
        reading = self._readings[place]
        buffer = site.session.store.get(reading.order.tensors, saved)
        # noise is held against p - y, whose rows have a square of about 1 until their targets are learnt
        reading.hand_down(site, 1.0, self._rows[place])
        return reading.value(site, [buffer], "float32")
