"""The codes of BLPA: pre-activations over three deviations either side of their mean, in steps, one from zero on."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# how many deviations the words of a channel span
SPAN = 6
LEAST_DEVIATION = 1e-6
NIBBLE = 4


class Preactivation(NamedTuple):
    """A coded pre-activation: its words, and the width of a step and the place of the first one in each channel."""

    words: Tensor
    step: Tensor
    first: Tensor
    shape: torch.Size
    bits: int

    @staticmethod
    def of(x: Tensor, mean: Tensor, deviation: Tensor, bits: int) -> Preactivation:
        """Code a tensor whose channels, axis 1, have a mean and a deviation; values outside are cut off.

        Zero lies between two steps, so that signs are kept wherever it is within reach.
        """
        step = deviation.abs().clamp_min(LEAST_DEVIATION) * SPAN / 2**bits
        first = (mean / step).floor() - 2 ** (bits - 1)
        words = ((x / along(step, x.dim())).floor() - along(first, x.dim())).clamp_(0, 2**bits - 1).to(torch.uint8)
        return Preactivation(packed(words.flatten(), bits), step, first, x.shape, bits)

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """What has to be kept."""
        return self.words, self.step, self.first

    def decoded(self) -> Tensor:
        """Return the middles of the steps."""
        words = unpacked(self.words, self.shape.numel(), self.bits).view(self.shape)
        dimensions = len(self.shape)
        return (words + along(self.first, dimensions) + 0.5) * along(self.step, dimensions)


def along(values: Tensor, dimensions: int) -> Tensor:
    """Return a value of each channel, to be combined with all of its elements."""
    return values.view(-1, *(1,) * (dimensions - 2))


def packed(words: Tensor, bits: int) -> Tensor:
    """Return words of 4 bits two a byte, and wider ones as they are."""
    if bits > NIBBLE:
        return words
    pairs = torch.nn.functional.pad(words, (0, len(words) % 2)).view(-1, 2)
    return pairs[:, 0] | pairs[:, 1] << NIBBLE


def unpacked(words: Tensor, count: int, bits: int) -> Tensor:
    """Return so many words as floats."""
    if bits <= NIBBLE:
        words = torch.stack((words & 15, words >> NIBBLE), 1).flatten()[:count]
    return words.float()
