"""Images varied at random: shifted, cropped and mirrored, each by its position and epoch alone.

What becomes of an image depends on nothing that happened before, so a run that goes on from a checkpoint, or reads
images in several threads, sees the same ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

    from actnn.workloads.datasets import Images

# pixels by which small images are shifted at most: an eighth of their side, as is usual for 32 pixels
SHIFT = 8
LEAST_AREA, LEAST_RATIO = 0.25, 3 / 4
TRIES = 10


class Box(NamedTuple):
    """A part of an image in pixels, and whether it is mirrored."""

    left: float
    upper: float
    right: float
    lower: float
    mirrored: bool = False


def random_of(seed: int, epoch: int, position: int) -> np.random.Generator:
    """Return the random numbers of one image in one epoch."""
    return np.random.default_rng((seed, epoch, position))


def random_box(width: int, height: int, numbers: np.random.Generator) -> Box:
    """Return a part of at least a quarter of an image, of about its shape, mirrored or not."""
    mirrored = bool(numbers.random() < 0.5)
    for _ in range(TRIES):
        area = width * height * numbers.uniform(LEAST_AREA, 1.0)
        ratio = math.exp(numbers.uniform(math.log(LEAST_RATIO), -math.log(LEAST_RATIO)))
        across, down = math.sqrt(area * ratio), math.sqrt(area / ratio)
        if across <= width and down <= height:
            left, upper = numbers.uniform(0, width - across), numbers.uniform(0, height - down)
            return Box(left, upper, left + across, upper + down, mirrored)
    return central_box(width, height)._replace(mirrored=mirrored)


def central_box(width: int, height: int, share: float = 1.0) -> Box:
    """Return the square in the middle of an image whose side is a share of the shorter one."""
    side = share * min(width, height)
    left, upper = (width - side) / 2, (height - side) / 2
    return Box(left, upper, left + side, upper + side)


@dataclass(frozen=True)
class Shifted:
    """Images in memory that are shifted a little, by other amounts in every epoch; borders repeat the last pixel."""

    images: Images
    seed: int

    @property
    def image_count(self) -> int:
        """How many images there are."""
        return self.images.image_count

    @property
    def labels(self) -> Tensor:
        """The class of each."""
        return self.images.labels

    def batch(self, positions: Tensor, epoch: int | None) -> tuple[Tensor, Tensor]:
        """Return some images, shifted unless ``epoch`` is None, and their labels."""
        import torch
        from torch.nn import functional

        images, labels = self.images.batch(positions, epoch)
        if epoch is None:
            return images, labels
        height, width = images.shape[-2:]
        most = max(1, min(height, width) // SHIFT)
        padded = functional.pad(images, (most,) * 4, mode="replicate")
        shifted = torch.empty_like(images)
        for row, position in enumerate(positions.tolist()):
            down, across = random_of(self.seed, epoch, position).integers(0, 2 * most + 1, 2)
            shifted[row] = padded[row, :, down : down + height, across : across + width]
        return shifted, labels

    def prepare(self, positions: Tensor, epoch: int | None) -> None:
        """Begin to fetch what ``batch`` will be asked for next."""
        self.images.prepare(positions, epoch)

    def limited(self, count: int) -> Shifted:
        """Return the first ``count`` images."""
        return Shifted(self.images.limited(count), self.seed)
