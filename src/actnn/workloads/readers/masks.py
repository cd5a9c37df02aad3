"""Folders of masks: ``images/NAME.jpg`` beside ``masks/NAME.png``, whose pixels are numbers of classes, 255 of none.

Both lie in ``train`` and ``val``, or together, where one image in five is for testing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from actnn.workloads.datasets import TEST_SHARE, DataError, DataSet
from actnn.workloads.image_folder import LEARN, TEST
from actnn.workloads.readers.pictures import Pictures, by_stem, squashed

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

IMAGES, MASKS = "images", "masks"
NO_CLASS = 255


class Masked(Pictures):
    """Images with the class of every pixel."""

    def __init__(self, pixels: NDArray[np.uint8], masks: NDArray[np.uint8], seed: int | None = None) -> None:
        super().__init__(pixels, seed)
        self.masks = masks

    @property
    def labels(self) -> Tensor:
        """The masks."""
        import torch

        return torch.from_numpy(self.masks)

    def wanted(self, positions: Sequence[int], mirrored: NDArray[np.bool_]) -> Any:
        """Return the masks of some images ``[count, size, size]``."""
        import torch

        masks = self.masks[positions]
        masks[mirrored] = masks[mirrored, :, ::-1]
        return torch.from_numpy(masks.astype(np.int64))

    def limited(self, count: int) -> Masked:
        """Return the first ``count`` images."""
        return Masked(self.pixels[:count], self.masks[:count], self.seed)


def mask_folder(folder: Path, size: int, seed: int | None) -> DataSet:
    """Return the set of a folder of images and masks, as squares."""
    test = next((folder / name for name in TEST if (folder / name).is_dir()), None)
    if (folder / LEARN).is_dir() and test is not None:
        learnt, tested = pairs(folder / LEARN), pairs(test)
    else:
        every = pairs(folder)
        order = np.random.default_rng(0).permutation(len(every)).tolist()
        held_back = len(every) // TEST_SHARE
        tested, learnt = ([every[number] for number in part] for part in (order[:held_back], order[held_back:]))
    if not learnt or not tested:
        raise DataError(
            f"{folder} has {len(learnt)} images to learn from and {len(tested)} to test: expected at least "
            f"{TEST_SHARE} in {IMAGES} with masks of the same names in {MASKS}, in {LEARN} and val or without."
        )
    train, held = part_of(learnt, size, seed), part_of(tested, size, None)
    numbers = np.concatenate([np.unique(part.masks) for part in (train, held)])
    return DataSet(train, held, int(numbers[numbers != NO_CLASS].max(initial=0)) + 1)


def pairs(folder: Path) -> list[tuple[Path, Path]]:
    """Return each image of a folder with its mask."""
    images, masks = by_stem(folder / IMAGES), by_stem(folder / MASKS)
    if missing := sorted(images.keys() ^ masks.keys()):
        raise DataError(
            f"{folder} has an image or a mask {missing[0]!r} without the other ({len(missing)} in all): expected both."
        )
    return [(images[name], masks[name]) for name in images]


def part_of(files: Sequence[tuple[Path, Path]], size: int, seed: int | None) -> Masked:
    """Read some images and masks."""
    pixels = np.stack([squashed(image, size) for image, _ in files])
    return Masked(pixels, np.stack([squashed(mask, size, nearest=True) for _, mask in files]), seed)
