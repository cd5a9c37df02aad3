"""Images with boxes, whatever format named them: what a detector learns from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from actnn.workloads.datasets import TEST_SHARE, DataError, DataSet
from actnn.workloads.readers.pictures import Pictures, squashed

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

# of a side of the image; smaller boxes are mistakes of whoever drew them
LEAST_SIDE = 1e-3


class Annotated(NamedTuple):
    """An image file with its boxes ``[count, 4]``, corners as shares of its sides, and their classes from 0 on."""

    path: Path
    boxes: NDArray[np.float32]
    classes: NDArray[np.int64]

    @staticmethod
    def of(path: Path, corners: Sequence[Sequence[float]], classes: Sequence[int], sides: tuple[int, int]) -> Annotated:
        """Return an image with boxes in pixels ``(left, top, right, bottom)``; what is no box is left out."""
        shares = np.asarray(corners, np.float32).reshape(-1, 4) / np.array([*sides, *sides], np.float32)
        scaled = shares.clip(0, 1).astype(np.float32)
        proper = ((scaled[:, 2:] - scaled[:, :2]) >= LEAST_SIDE).all(1)
        return Annotated(path, scaled[proper], np.asarray(classes, np.int64)[proper])


class Boxed(Pictures):
    """Images with boxes and their classes."""

    def __init__(self, pixels: NDArray[np.uint8], annotated: Sequence[Annotated], seed: int | None = None) -> None:
        super().__init__(pixels, seed)
        self.annotated = annotated

    @property
    def labels(self) -> Tensor:
        """The classes of all boxes."""
        import torch

        return torch.from_numpy(np.concatenate([each.classes for each in self.annotated]))

    def wanted(self, positions: Sequence[int], mirrored: NDArray[np.bool_]) -> Any:
        """Return boxes in pixels and their labels, which count from 1: 0 is the background."""
        import torch

        size, found = self.pixels.shape[1], []
        for position, turned in zip(positions, mirrored, strict=True):
            each = self.annotated[position]
            boxes = each.boxes.copy()
            if turned:
                boxes[:, [0, 2]] = 1 - boxes[:, [2, 0]]
            found.append({"boxes": torch.from_numpy(boxes * size), "labels": torch.from_numpy(each.classes + 1)})
        return found

    def limited(self, count: int) -> Boxed:
        """Return the first ``count`` images."""
        return Boxed(self.pixels[:count], self.annotated[:count], self.seed)


def boxed(
    learnt: Sequence[Annotated], tested: Sequence[Annotated], classes: int, size: int, seed: int | None
) -> DataSet:
    """Return a set of images with boxes, as squares; without any to test, one in five is held back."""
    if not tested:
        order = np.random.default_rng(0).permutation(len(learnt)).tolist()
        count = len(learnt) // TEST_SHARE
        tested, learnt = ([learnt[number] for number in part] for part in (order[:count], order[count:]))
    if not learnt or not tested:
        raise DataError(f"{len(learnt)} images to learn from and {len(tested)} to test were found: expected some each.")
    train, test = (np.stack([squashed(each.path, size) for each in part]) for part in (learnt, tested))
    return DataSet(Boxed(train, learnt, seed), Boxed(test, tested), classes)
