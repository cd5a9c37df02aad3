"""Mesa (Pan et al., 2021): 8 bits for what transformers keep, over running ranges of each head.

Ranges follow the least and greatest value of each group of channels, one group a head, by a running mean; values
outside are cut off, and rounding is to the nearest: its gradient is not unbiased, and little is lost at 8 bits. Ours:
whatever autograd saves is coded, by the order in which it is saved; heads are eight, or one where channels do not
divide so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from actnn.workloads.peers.hooks import Method, hooked

HEADS = 8
LEVELS = 255
# what a running range keeps of itself in a step
DECAY = 0.9
LEAST_RANGE = 1e-8


class Mesa(Method):
    """Keeps a byte an element, and knows the range of each group."""

    def __init__(self) -> None:
        self._ranges: dict[Any, Tensor] = {}

    def encode(self, x: Tensor, number: int) -> tuple[tuple[Tensor, ...], Callable[..., Tensor]]:
        grouped = in_groups(x)
        low, high = self._followed((number, grouped.shape[1]), grouped)
        scale = ((high - low) / LEVELS).clamp_min(LEAST_RANGE)
        words = ((grouped - along(low)) / along(scale)).round_().clamp_(0, LEVELS).to(torch.uint8)
        shape, dtype = x.shape, x.dtype

        def decode(words: Tensor, low: Tensor, scale: Tensor) -> Tensor:
            return (words.to(scale.dtype) * along(scale) + along(low)).view(shape).to(dtype)

        return (words, low, scale), decode

    def _followed(self, key: Any, grouped: Tensor) -> Tensor:
        now = torch.stack((grouped.amin((0, 2)), grouped.amax((0, 2)))).float()
        before = self._ranges.get(key)
        self._ranges[key] = now if before is None else DECAY * before + (1 - DECAY) * now
        return self._ranges[key]


def in_groups(x: Tensor) -> Tensor:
    """Return a tensor as ``[outer, groups, inner]``: channels are axis 1 of maps and heads, else the last axis."""
    axis = 1 if x.dim() == 4 else x.dim() - 1
    groups = HEADS if x.shape[axis] % HEADS == 0 else 1
    return x.contiguous().view(x.shape[:axis].numel(), groups, -1)


def along(values: Tensor) -> Tensor:
    """Return a value of each group, to be combined with all of its elements."""
    return values[:, None]


def mesa(model: nn.Module, *, seed: int = 0) -> nn.Module:
    """Return a model that trains as Mesa does; it draws no random numbers."""
    return hooked(model, Mesa())
