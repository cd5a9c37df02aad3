"""Gradients of one model, drawn many times: their variance, their bias, and which parameters feel them most."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from actnn.model.verification import Moments
from actnn.workloads.batch import Batch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

Gradients = Mapping[str, "Tensor"]
# The means of so many parts of the draws are compared with each other: more would take more memory, and tell the bias
# hardly any better, since n parts lose 1 / n of what all draws tell.
PARTS = 8
# a parameter whose gradient is a smaller share of the whole has none but what rounding leaves, as biases of keys have
LEAST_SHARE = 1e-10


def gradients(model: Any, batch: Batch, seed: int = 0) -> dict[str, Tensor]:
    """Return the gradient of every parameter that has one; equal seeds let dropout leave out the same."""
    import torch

    torch.manual_seed(seed)
    model.zero_grad()
    batch.loss(batch.outputs(model)).backward()
    return {name: own.grad.clone() for name, own in model.named_parameters() if own.grad is not None}


def energy(given: Gradients) -> float:
    """Return the squared norm of a gradient."""
    return sum(float(own.double().square().sum()) for own in given.values())


class Draws:
    """What is known of a gradient's noise from draws of it; all figures are relative to the squared exact gradient."""

    def __init__(self, exact: Gradients) -> None:
        self._exact = exact
        self._norm = energy(exact)
        self._moments = {name: Moments(own.numel()) for name, own in exact.items()}
        self._sums: list[dict[str, NDArray[np.float32]]] = []
        self._count = 0

    def add(self, drawn: Gradients) -> None:
        """Take one more draw in."""
        part = self._count % PARTS
        if part == len(self._sums):
            self._sums.append({name: np.zeros(own.numel(), np.float32) for name, own in self._exact.items()})
        for name, own in self._exact.items():
            error = (drawn[name] - own).flatten().numpy()
            self._moments[name].add(error.astype(np.float64))
            self._sums[part][name] += error
        self._count += 1

    @property
    def variance(self) -> float:
        """The variance of the whole gradient."""
        return sum(each.variance for each in self._moments.values()) / self._norm

    @property
    def variances(self) -> dict[str, float]:
        """The variance of each parameter's gradient, not relative to anything."""
        return {name: each.variance for name, each in self._moments.items()}

    def bias(self) -> tuple[float, float | None]:
        """Return the squared bias and its standard error, None where a single pair of draws tells none.

        Products of errors of different draws have the squared bias as their mean, and no part of the variance.
        """
        counts = [len(range(part, self._count, PARTS)) for part in range(len(self._sums))]
        products = np.array(
            [
                self._product(first, second) / (counts[first] * counts[second])
                for first in range(len(counts))
                for second in range(first)
            ]
        )
        if len(products) < 2:
            return float(products.mean()), None
        return float(products.mean()), float(products.std(ddof=1) / len(products) ** 0.5)

    def _product(self, first: int, second: int) -> float:
        pairs = ((self._sums[first][name], self._sums[second][name]) for name in self._exact)
        return sum(float(np.dot(one.astype(np.float64), other)) for one, other in pairs) / self._norm

    def noisiest(self, count: int, beside: Mapping[str, float] | None = None) -> list[list[Any]]:
        """Return the parameters whose gradients vary most, and by how much, relative to what stands ``beside`` each.

        By default that is its own square.
        """
        own = {name: energy({name: grad}) for name, grad in self._exact.items()}
        found = {
            name: each.variance / (own if beside is None else beside)[name]
            for name, each in self._moments.items()
            if own[name] > LEAST_SHARE * self._norm
        }
        return [[name, found[name]] for name in sorted(found, key=lambda name: -found[name])[:count]]


class Own(NamedTuple):
    """The noise in each parameter's gradient beside how that gradient itself varies from batch to batch.

    ``without`` are parameters that hardly have a gradient on any batch, as biases of keys and those before a BatchNorm:
    what rounding leaves of it varies, too, and noise beside that tells nothing.
    """

    shares: dict[str, float]
    without: list[str]


def own_noise(drawn: Draws, exact: Gradients, sampled: Mapping[str, float]) -> Own:
    """Return the noise of each parameter that ``exact`` names as a share of its own sampling variance."""
    found = {name: energy({name: grad}) + sampled[name] for name, grad in exact.items()}
    whole = sum(found.values())
    without = [name for name, size in found.items() if size < LEAST_SHARE * whole or sampled[name] == 0]
    told = found.keys() - set(without)
    shares = {name: own / sampled[name] for name, own in drawn.variances.items() if name in told}
    return Own(shares, without)


def spread(drawn: Iterable[Gradients], exact: Gradients) -> dict[str, float] | None:
    """Return how each parameter's gradient varies from batch to batch; None for fewer than two batches."""
    moments = {name: Moments(own.numel()) for name, own in exact.items()}
    for each in drawn:
        for name, own in moments.items():
            own.add(each[name].flatten().double().numpy())
    if any(own.count < 2 for own in moments.values()):
        return None
    return {name: own.variance for name, own in moments.items()}
