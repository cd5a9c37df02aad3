"""DIVISION (Wang et al., ICML 2023): low frequencies as means of blocks at full precision, the rest in 2 bits.

Means are of 8 × 8 positions in maps ``[batch, channels, height, width]`` and of 8 tokens in ``[batch, tokens, width]``,
in bfloat16; what they leave is coded in groups with stochastic rounding. ReLUs keep one bit an element and poolings
positions, as the paper has it. Ours: what has another form, or fewer positions than a block, is coded without means.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from actnn.workloads.peers.codes import GroupCodes
from actnn.workloads.peers.hooks import Method, hooked
from actnn.workloads.peers.lossless import with_lossless_layers

BLOCK = 8


class Division(Method):
    """Keeps means of blocks and a code of the rest."""

    def __init__(self, bits: int, seed: int) -> None:
        self._bits, self._codes = bits, GroupCodes(seed)

    def encode(self, x: Tensor, number: int) -> tuple[tuple[Tensor, ...], Callable[..., Tensor]]:
        means = block_means(x)
        if means is None:
            code, decode = self._codes.encode(x, self._bits)
            return (code,), decode
        shape, dtype = x.shape, x.dtype
        code, decode = self._codes.encode(x - spread(means, shape, dtype), self._bits)
        return (means, code), lambda means, code: decode(code).add_(spread(means, shape, dtype))


def block_means(x: Tensor) -> Tensor | None:
    """Return the means of blocks, None where a tensor has no positions to average."""
    if x.dim() == 4 and min(x.shape[2:]) >= BLOCK:
        return functional.avg_pool2d(x, BLOCK, ceil_mode=True).to(torch.bfloat16)
    if x.dim() == 3 and x.shape[1] >= BLOCK:
        return functional.avg_pool1d(x.transpose(1, 2), BLOCK, ceil_mode=True).to(torch.bfloat16)
    return None


def spread(means: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Return a tensor of a shape that has the mean of its block everywhere."""
    means = means.to(dtype)
    if len(shape) == 3:
        return means.repeat_interleave(BLOCK, 2)[..., : shape[1]].transpose(1, 2)
    wide = means.repeat_interleave(BLOCK, 3)[..., : shape[3]]
    return wide.repeat_interleave(BLOCK, 2)[:, :, : shape[2]]


def division(model: nn.Module, *, seed: int = 0, bits: int = 2) -> nn.Module:
    """Return a model that trains as DIVISION does."""
    return hooked(with_lossless_layers(model), Division(bits, seed))
