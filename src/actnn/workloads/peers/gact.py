"""GACT (Liu et al., ICML 2022): whatever autograd saves, in groups with stochastic rounding, each tensor with its bits.

A tensor's sensitivity is how much the gradient changes when only its noise is drawn anew: one backward pass for each
tensor. Widths from 1 to 8 bits then go greedily to where they lower variance most a bit, within an average of 4. The
paper repeats that every thousand steps; ours does so once, on a small batch, before training, and where there are more
tensors than 48, neighbours are measured together and have one width. Ours too: ReLUs keep one bit and poolings
positions, which only helps it.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from actnn.workloads.peers.codes import GroupCodes
from actnn.workloads.peers.hooks import Method, hooked
from actnn.workloads.peers.lossless import with_lossless_layers

WIDEST = 8
MOST_MEASURED = 48
# two draws of a tensor's noise
USUAL, OTHER = 0, 1


class Gact(Method):
    """Keeps a code of every tensor, as wide as the tensor is sensitive."""

    def __init__(self, bits: int, seed: int) -> None:
        self._bits = bits
        self.widths: dict[int, int] = {}
        self.elements: dict[int, int] = {}
        self._codes = GroupCodes(seed)
        self._redrawn: Collection[int] = ()
        self._measures = False

    def encode(self, x: Tensor, number: int) -> tuple[tuple[Tensor, ...], Callable[..., Tensor]]:
        self.elements[number] = x.numel()
        # while sensitivities are measured, all draw the same noise as before but for one
        draw = (number + 1, OTHER if number in self._redrawn else USUAL) if self._measures else None
        code, decode = self._codes.encode(x, self.widths.get(number, self._bits), draw)
        return (code,), decode

    def adapt(self, gradient: Callable[[], list[Tensor]]) -> None:
        """Give each tensor its width; ``gradient`` computes that of one batch."""
        self.widths, self._measures, self._redrawn = {}, True, ()
        usual = [own.clone() for own in gradient()]
        groups = neighbours(sorted(self.elements), MOST_MEASURED)
        sensitivities = {}
        for place, self._redrawn in enumerate(groups):
            pairs = zip(gradient(), usual, strict=True)
            # of two draws, half the squared difference is the variance
            sensitivities[place] = sum(float((own - other).square().sum()) for own, other in pairs) / 2
        self._measures = False
        elements = {place: sum(self.elements[number] for number in group) for place, group in enumerate(groups)}
        widths = allocated(sensitivities, elements, self._bits)
        self.widths = {number: widths[place] for place, group in enumerate(groups) for number in group}


def neighbours(numbers: Sequence[int], most: int) -> list[Sequence[int]]:
    """Return so many groups of neighbours at most, as equal in size as can be."""
    count = min(most, len(numbers))
    ends = [len(numbers) * place // count for place in range(count + 1)]
    return [numbers[first:last] for first, last in itertools.pairwise(ends)]


def allocated(sensitivities: Mapping[int, float], elements: Mapping[int, int], bits: int) -> dict[int, int]:
    """Return widths that lower total variance greedily within an average; variance goes as (2**bits - 1)**-2."""
    widths = dict.fromkeys(sensitivities, 1)
    room = (bits - 1) * sum(elements[number] for number in sensitivities)
    scale = (2**bits - 1) ** 2

    def gain(number: int) -> float:
        now, then = (1 / (2**width - 1) ** 2 for width in (widths[number], widths[number] + 1))
        return float(scale * sensitivities[number] * (now - then) / elements[number])

    waiting = [(-gain(number), number) for number in sensitivities]
    heapq.heapify(waiting)
    while waiting:
        _, number = heapq.heappop(waiting)
        if elements[number] > room:
            continue
        room -= elements[number]
        widths[number] += 1
        if widths[number] < WIDEST:
            heapq.heappush(waiting, (-gain(number), number))
    return widths


def gact(model: Any, *, seed: int = 0, bits: int = 4) -> Any:
    """Return a model that trains as GACT does."""
    method = Gact(bits, seed)

    def prepare(backward: Callable[[], object]) -> None:
        def gradient() -> list[Tensor]:
            model.zero_grad()
            # what a model draws itself is equal each time
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                backward()
            return [own.grad for own in model.parameters() if own.grad is not None]

        method.adapt(gradient)
        model.zero_grad()

    hooked(with_lossless_layers(model), method)
    model.prepare_peer = prepare
    return model
