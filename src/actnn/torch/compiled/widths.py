"""Widths of the codes of a compiled model, planned once from what noise in each of them was measured to cost.

A code's size is part of a compiled graph, so that widths cannot follow every step as they do at L3 of ``QModule``. They
are chosen before anything is compiled. A step is taken with all noise drawn, and then once more for each code, with
the noise of that one drawn anew: half the squared change of the gradient is the variance that it adds, wherever it
went. No model of noise is needed, and no knowledge of the operations.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from actnn.errors import BudgetError, UnsupportedError
from actnn.format import uniform_layout
from actnn.planning.noise import noise_of_widths
from actnn.planning.problem import Demand
from actnn.planning.solvers import allocate_layers
from actnn.torch.compiled.backend import Plan
from actnn.torch.compiled.library import CodeForm, draw_of
from actnn.torch.compiled.report import CodeSite, GraphReport

# where noise is more than this of a weight's own squared gradient, it counts by this share of that besides the whole:
# else a weight with a small gradient would be left with noise as large as that
MOST_OWN = 0.02
OWN_SHARE = 0.1
# calls of a step whose noise is drawn anew are counted from here
AGAIN = 1 << 32


class Redraws:
    """Draws of a step that can be taken again, all noise the same but that of one code."""

    def __init__(self, seed: int) -> None:
        self._seed, self._calls = seed, itertools.count()
        self._graph: GraphReport | None = None
        self._number = -1
        # how often each graph was called since the step began
        self.called: Counter[GraphReport] = Counter()

    def begin(self, graph: GraphReport | None = None, number: int = -1) -> None:
        """Begin the step anew, with other noise at one site of a graph."""
        self._graph, self._number, self._calls, self.called = graph, number, itertools.count(), Counter()

    def __call__(self, graph: GraphReport | None) -> Tensor:
        """Return what the next call of a graph, of which there is no report unless it trains, draws noise from."""
        call = next(self._calls)
        if graph is None:
            return draw_of(self._seed, call)
        self.called[graph] += 1
        return draw_of(self._seed, call, self._number if graph == self._graph else -1, AGAIN + call)


@dataclass(frozen=True)
class Measured:
    """A code, of which a step makes ``count``, and what its noise costs: variance of gradients, by ``shares``."""

    structure: str
    site: CodeSite
    count: int
    cost: float


def measure(model: nn.Module, step: Callable[[], Tensor], draws: Redraws) -> tuple[list[Measured], int]:
    """Return what noise in each code costs in a step, and the bytes that this keeps.

    The model and the generators of numbers stay as they were.
    """
    learning = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    weights = list(learning.values())
    with repeatable(model) as again:

        def gradients() -> Sequence[Tensor | None]:
            again()
            loss = step()
            if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
                raise UnsupportedError(
                    f"calibrate was given a step that returns {loss!r}: expected the loss of this model for a batch, a "
                    "tensor of one number that depends on its parameters."
                )
            grads = torch.autograd.grad(loss, weights, allow_unused=True)
            check_finite(dict(zip(learning, grads, strict=True)))
            return grads

        draws.begin()
        first, called = gradients(), draws.called
        sites, found = [], []
        for graph, count in called.items():
            for site in graph.codes:
                draws.begin(graph, site.number)
                sites.append((graph.structure, site, count))
                found.append(variances(first, gradients()))
    factors = shares(weights, first, [sum(each) for each in zip(*found, strict=True)])
    costs = (sum(factor * each for factor, each in zip(factors, own, strict=True)) for own in found)
    measured = [Measured(*site, cost) for site, cost in zip(sites, costs, strict=True)]
    return measured, sum(graph.kept_bytes * count for graph, count in called.items())


def check_finite(gradients: Mapping[str, Tensor | None]) -> None:
    """Raise UnsupportedError where a gradient has a number that is not finite."""
    for name, grad in gradients.items():
        if grad is not None and not bool(grad.isfinite().all()):
            raise UnsupportedError(
                f"calibrate was given a step with a gradient of {name!r} that is not finite: expected finite ones, "
                "since noise is measured beside them. Give a batch and weights whose loss and gradients are finite; "
                "where half precision overflows, return a loss that is multiplied by less, since only ratios count."
            )


@contextmanager
def repeatable(model: nn.Module) -> Iterator[Callable[[], None]]:
    """Yield what brings buffers and generators of numbers back to where they are now, which happens at the end too."""
    buffers = [
        (owner, name, buffer, buffer.clone())
        for owner in model.modules()
        for name, buffer in owner.named_buffers(recurse=False)
    ]
    with torch.random.fork_rng():
        seed = torch.initial_seed()

        def again() -> None:
            torch.manual_seed(seed)
            with torch.no_grad():
                for owner, name, buffer, copy in buffers:
                    # a forward may have put another tensor in its place
                    setattr(owner, name, buffer)
                    buffer.copy_(copy)

        try:
            yield again
        finally:
            again()


def variances(first: Sequence[Tensor | None], second: Sequence[Tensor | None]) -> list[float]:
    """Return the variance of the gradient of each parameter, of which two draws are given."""
    return [
        0.0 if one is None or other is None else squared(one.double() - other.double()) / 2
        for one, other in zip(first, second, strict=True)
    ]


def squared(x: Tensor) -> float:
    """Return the sum of squares."""
    return float(x.double().square().sum())


def shares(weights: Sequence[Tensor], gradients: Sequence[Tensor | None], noise: Sequence[float]) -> list[float]:
    """Return by what the variance of each parameter's gradient counts: relative to the whole, and to its own."""
    squares = [0.0 if grad is None else squared(grad) for grad in gradients]
    whole = sum(squares)
    found = []
    for place, (weight, square) in enumerate(zip(weights, squares, strict=True)):
        share = 1.0 / whole if whole > 0 else 0.0
        # a gamma that a normalisation behind it undoes has hardly a gradient, and would take the bits of all others
        own = weight.dim() > 1 and noise and noise[place] > MOST_OWN * square > 0
        found.append(share + OWN_SHARE / square if own else share)
    return found


def planned(measured: Sequence[Measured], kept: int, memory: int | None) -> Plan:
    """Return the widths of least variance that take as many bytes as are kept now, or as the memory that may be."""
    # graphs of inputs of other shapes share their widths
    same: dict[tuple[str, str], list[Measured]] = {}
    for each in measured:
        same.setdefault((each.structure, each.site.of), []).append(each)
    demands = [demand_of(codes) for codes in same.values()]
    spent = sum(demand.cost * codes[0].site.form.bits for demand, codes in zip(demands, same.values(), strict=True))
    # what is kept whatever the widths are: scales, masks, and what stays exact
    beside = kept - spent
    budget = spent if memory is None else memory - beside
    try:
        widths = allocate_layers(demands, budget)
    except BudgetError as problem:
        raise BudgetError(beside + problem.budget, beside + problem.smallest) from None
    plan: dict[str, dict[str, int]] = {}
    for (structure, name), width in zip(same, widths, strict=True):
        plan.setdefault(structure, {})[name] = width
    return plan


def demand_of(codes: Sequence[Measured]) -> Demand:
    """Return what planes of codes of one width take, in bytes, and what their noise costs at each width."""
    form = codes[0].site.form
    noise = sum(each.cost for each in codes)
    # nobody knows how much of it comes from either side; most readers of two read the positive one alone
    positive = np.array([noise / noise_of_widths(form.family)[form.bits][1]])
    return Demand(
        form.family, float(sum(each.count * plane_bytes(each.site.form) for each in codes)), 0.0 * positive, positive
    )


def plane_bytes(form: CodeForm) -> int:
    """Return the bytes of one plane of a code."""
    least = form.family.least_bits
    narrow, wide = (
        uniform_layout(*form.order.rows, form.family, bits, form.rounding).nbytes for bits in (least, least + 1)
    )
    return wide - narrow
