"""Attention: softmax(Q Kᵀ scale + mask) V, computed by the framework's own kernels.

Keeps: codes of queries, keys and values, whoever made them, and the mask as it is; of dropout the state from which it
was drawn. Values are not kept where they alone want a gradient, which does not read them.
Shares: its codes with everybody who reads the same tensors. Where two of its inputs are one tensor, each has a code of
its own: products of equal noise are not zero on average.
Reads in backward: the decoded inputs, from which attention is computed anew, part by part of the batch.
Noise: queries and keys pass through an exponential, so the gradient has a bias of the order of the variance of the
logits: their codes are finer than the average by ``EXTRA_BITS``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from actnn.format import AFFINE, MAX_BITS
from actnn.kernels.contract import Array
from actnn.operations.kept import Kept, Reading, counted_once, encode, itself, keep
from actnn.session.session import Session
from actnn.session.site import Site
from actnn.session.tensors import Tensors

# beyond the average width; at 5 bits, logits of deviation 3 left a squared bias below what 100 draws can show
EXTRA_BITS = {"query": 2, "key": 2, "value": 1}


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

    def parts(self, saved: Sequence[Array], dtype: str, parts: Sequence[range]) -> Iterator[list[Array | None]]:
        """Yield the decoded inputs part by part of the batch; a single part is all of them, with a batch or without."""
        fetched = [list(each) for each in self._fetched(saved)]
        for part in parts:
            samples = None if len(parts) == 1 else part
            yield [
                None if reading is None else reading.value(site, own, dtype, samples)
                for site, reading, own in zip(self._sites, self._readings, fetched, strict=True)
            ]

    def _fetched(self, saved: Sequence[Array]) -> Iterator[Sequence[Array]]:
        """Yield what is saved of each input, its buffer fetched once for all parts."""
        start = 0
        for site, reading, count in zip(self._sites, self._readings, self._counts, strict=True):
            own, start = saved[start : start + count], start + count
            if reading is None:
                yield own
                continue
            tensors = reading.order.tensors
            yield [site.session.store.get(tensors, own[0]), *own[1:]]


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
        if any(own is not None and other is not None and own.tensors[0] is other.tensors[0] for other in kept):
            own = encode(tensors, x, tensors.form(x), site, AFFINE) or itself(tensors, x, site)
        kept.append(own)
    return kept
