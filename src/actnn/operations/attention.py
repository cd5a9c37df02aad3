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

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from actnn.format import AFFINE, MAX_BITS
from actnn.kernels.contract import Array
from actnn.operations.kept import Kept, Reading, counted_once, encode, keep
from actnn.operations.variances import mean_variance, variance
from actnn.planning.learnt import NoiseOfLogits
from actnn.session.session import Session
from actnn.session.site import Site
from actnn.session.tensors import Tensors

VALUE = 2
# beyond the average width
EXTRA_BITS = {"query": 2, "key": 2, "value": 2}
# the variance of noise in logits up to which the squared bias is below 5e-5 of the squared gradient, and left alone
LEAST_VARIANCE = 0.02
# what noise in logits weighs beside relative noise in gradients: at that variance as much as one of 5 % does
NOISE_OF_LOGITS = 0.05 / LEAST_VARIANCE
# the noise, over the mean square of an input, with which it is measured how much of it goes on
PROBE = 1e-3
# keys that the queries' site took until the noise of logits is looked at again, and the samples that tell it
RENEWED = 64
FEW_SAMPLES = 4


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
        """Tell whether noise in queries and keys counts in their products times ``scale``.

        It changes slowly while codes have as many planes, and is measured seldom, on few samples. Of an accelerator it
        is known some steps later, when they may have others again: until then it counts.
        """
        site, reading = self._sites.query, self._readings[0]
        assert reading is not None
        known, planes = (
            site.noise,
            [each.layout.planes if each and each.layout else 0 for each in self._readings[:VALUE]],
        )
        renewed = known is None or site.encoded - known.encoded >= RENEWED
        if known is not None and known.planes != planes:
            renewed = renewed or reading.order.tensors.on_host(decoded[0])
        if renewed and (samples is None or samples.start == 0):
            self._measure_noise(planes, fetched, decoded, scale)
            known = site.noise
        return known is None or known.variance > LEAST_VARIANCE

    def _measure_noise(
        self, planes: list[int], fetched: Sequence[list[Array]], decoded: Sequence[Array], scale: float
    ) -> None:
        """Let the site know the noise of logits, from the first samples of a batch."""
        site, reading = self._sites.query, self._readings[0]
        assert reading is not None
        samples = None
        if all(each is not None and each.order.batched for each in self._readings[:VALUE]):
            samples = range(min(FEW_SAMPLES, *(len(x) for x in decoded)))
            decoded = [x[: samples.stop] for x in decoded]
        noise = self._noise_of_logits(fetched, decoded, samples, scale)
        encoded = site.encoded
        if noise is None:
            site.noise = NoiseOfLogits(planes, 0.0, encoded)
            return
        planner = site.session.planner
        held = planner.hold(reading.order.tensors, noise)

        def note() -> None:
            site.noise = NoiseOfLogits(planes, float(held()), encoded)

        planner.tell(held, note)

    def _noise_of_logits(
        self, fetched: Sequence[list[Array]], decoded: Sequence[Array], samples: range | None, scale: float
    ) -> Array | None:
        """Return the variance of products of queries and keys times ``scale``; None where steps do not tell it."""
        noise: Array | None = None
        for place, other in ((0, decoded[1]), (1, decoded[0])):
            reading = self._readings[place]
            assert reading is not None
            own = mean_variance(reading, fetched[place][0], decoded[place], samples)
            if own is not None:
                values = reading.order.tensors.cast(other, "float32").reshape(-1)
                squared_length = (values @ values) * (other.shape[-1] / max(1, len(values)))
                part = own * squared_length * (scale * scale)
                noise = part if noise is None else noise + part
        return noise

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

    def observe(self) -> None:
        """Tell the planner that the gradients of all inputs, which go on, were computed of their codes."""
        for site, reading in zip(self._sites, self._readings, strict=True):
            if reading is not None:
                reading.hand_down(site, 1.0 if site.passing is None else site.passing)

    def measure(
        self,
        inputs: Sequence[Array],
        scale: float,
        compute: Callable[..., Sequence[Array | None]],
        noise: Callable[[Array], Array],
    ) -> None:
        """Measure how much noise goes on from each input to the gradients, all relative to their own squares.

        ``compute`` returns the gradients of all inputs from inputs, ``noise`` numbers of given variances, and products
        of queries and keys times ``scale`` are logits.
        """
        exact, powers = compute(*inputs), [(x * x).mean() for x in inputs[:2]]
        for place, (site, reading) in enumerate(zip(self._sites, self._readings, strict=True)):
            if reading is None:
                continue
            moved = list(inputs)
            x = moved[place]
            moved[place] = x + noise(0.0 * x + PROBE * (x * x).mean())
            numbers = list(powers)
            for own, other in zip(exact, compute(*moved), strict=True):
                if own is not None and other is not None:
                    numbers += [((other - own) * (other - own)).sum(), (own * own).sum()]
            tensors = reading.order.tensors
            found = tensors.stack([tensors.cast(number, "float32") for number in numbers], 0)
            self._tell(site, place, scale * scale * inputs[0].shape[-1], found)

    def _tell(self, site: Site, place: int, logits: float, numbers: Array) -> None:
        """Let a site know how much of an input's noise goes on, once numbers of that can be read.

        They are the mean squares of queries and keys, and the squares of each gradient's change and of itself.
        """
        planner, reading = site.session.planner, self._readings[place]
        assert reading is not None
        held = planner.hold(reading.order.tensors, numbers)

        def note() -> None:
            of_query, of_key, *of_gradients = held().tolist()
            variance_of_logits = logits * of_query * of_key
            pairs = list(zip(of_gradients[::2], of_gradients[1::2], strict=True))
            relative = [change / square for change, square in pairs if square > 0]
            # Each of the maps that made the inputs feels its own. One map that made all of them does, too: in its
            # weight's gradient, those of queries and keys may count for more than in what comes to it.
            felt = sum(relative) / max(1, len(relative))
            if math.isfinite(felt) and math.isfinite(variance_of_logits):
                # the variance of logits, of which noise is to stay where it gives no bias
                site.passing = felt / PROBE + (NOISE_OF_LOGITS * variance_of_logits if place < VALUE else 0.0)

        planner.tell(held, note)


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
