"""Attention: softmax(Q Kᵀ scale + mask) V, computed by the framework's own kernels.

Keeps: codes of queries, keys and values, whoever made them, and the mask as it is; of dropout the state from which it
was drawn. Values are not kept where they alone want a gradient, which does not read them.
Shares: its codes with everybody who reads the same tensors. Where two of its inputs are one tensor, each has a code of
its own: products of equal noise are not zero on average.
Reads in backward: the decoded inputs, from which attention is computed anew, part by part of the batch.
Noise: queries and keys pass through an exponential, so their codes are finer than the average by ``EXTRA_BITS``, and
the gradient f of decoded inputs has a bias of the order of the noise in the logits. Where that counts, it is taken out
to first order: with further noise ±e of the same variance, the mean of 2 f(x̃) - (f(x̃ + e) + f(x̃ - e)) / 2 has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from actnn.format import AFFINE, MAX_BITS
from actnn.kernels.contract import Array
from actnn.operations.kept import Kept, Reading, counted_once, encode, keep
from actnn.operations.variances import mean_variance, variance
from actnn.session.session import Session
from actnn.session.site import Site
from actnn.session.tensors import Tensors

# beyond the average width
EXTRA_BITS = {"query": 2, "key": 2, "value": 1}
# the variance of noise in logits up to which the squared bias is below 5e-5 of the squared gradient, and left alone
LEAST_VARIANCE = 0.02


class AttentionSites(NamedTuple):
    """The places where one attention keeps its inputs."""

    query: Site
    key: Site
    value: Site

    @classmethod
    def of(cls, session: Session, name: str, group: int = 0) -> AttentionSites:
        """Return new sites, whose codes are as much finer than the average as they need to be."""
        sites = [session.site(f"{name}.{role}", "attention", group) for role in EXTRA_BITS]
        for site, extra in zip(sites, EXTRA_BITS.values(), strict=True):
            if site.compresses:
                site.bits = min(site.bits + extra, MAX_BITS)
        return cls(*sites)


class Inputs:
    """How the backward of an attention reads its inputs; ``None`` stands for one that it does not read."""

    __slots__ = ("_counts", "_readings", "_sites")

    def __init__(self, sites: AttentionSites, kept: Sequence[Kept | None]) -> None:
        self._sites = sites
        self._readings: list[Reading | None] = [None if each is None else each.reading for each in kept]
        self._counts = [0 if each is None else len(each.tensors) for each in kept]

    def fetched(self, saved: Sequence[Array]) -> list[list[Array]]:
        """Return what is saved of each input, its buffer fetched from where it lies."""
        found, start = [], 0
        for site, reading, count in zip(self._sites, self._readings, self._counts, strict=True):
            own, start = list(saved[start : start + count]), start + count
            if reading is not None:
                own[0] = site.session.store.get(reading.order.tensors, own[0])
            found.append(own)
        return found

    def decoded(self, fetched: Sequence[list[Array]], dtype: str, samples: range | None) -> list[Array | None]:
        """Return the inputs, or those of some samples."""
        return [
            None if reading is None else reading.value(site, own, dtype, samples)
            for site, reading, own in zip(self._sites, self._readings, fetched, strict=True)
        ]

    def noisy(
        self, fetched: Sequence[list[Array]], decoded: Sequence[Array], samples: range | None, scale: float
    ) -> bool:
        """Tell whether noise in queries and keys counts in their products times ``scale``."""
        noise = 0.0
        for place, other in ((0, decoded[1]), (1, decoded[0])):
            reading = self._readings[place]
            assert reading is not None
            if own := mean_variance(reading, fetched[place][0], decoded[place], samples):
                values = reading.order.tensors.cast(other, "float32").reshape(-1)
                squared_length = float(values @ values) / max(1, len(values)) * other.shape[-1]
                noise += scale * scale * own * squared_length
        return noise > LEAST_VARIANCE

    def variances(
        self, fetched: Sequence[list[Array]], decoded: Sequence[Array], samples: range | None
    ) -> list[Array | None]:
        """Return the variances of queries and keys; None where they are not known."""
        found = []
        for place, values in enumerate(decoded[:2]):
            reading = self._readings[place]
            assert reading is not None
            found.append(variance(reading, fetched[place][0], values, samples))
        return found


def keep_inputs(
    tensors: Tensors, sites: AttentionSites, query: Array, key: Array, value: Array, reads_value: bool
) -> list[Kept | None]:
    """Return how an attention keeps its inputs in training, values only where ``reads_value``."""
    kept: list[Kept | None] = []
    for site, x, read in zip(sites, (query, key, value), (True, True, reads_value), strict=True):
        if not read:
            # exact training would keep it all the same
            site.keeps(0, counted_once(tensors, x, site))
            kept.append(None)
            continue
        own = keep(tensors, x, site, training=True)
        if any(other is not None and own.tensors[0] is other.tensors[0] for other in kept):
            own = encode(tensors, x, tensors.form(x), site, AFFINE) or own
        kept.append(own)
    return kept
