"""Images in memory as bytes, squashed to squares, each with something that has a place in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from actnn.console.extras import require
from actnn.workloads.augmentation import random_of
from actnn.workloads.datasets import DataError
from actnn.workloads.image_folder import DEVIATION, MEAN, SUFFIXES, coloured

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor


def squashed(path: Path, size: int, nearest: bool = False) -> NDArray[np.uint8]:
    """Return an image as a square: three channels, or the numbers of a mask where ``nearest``."""
    require("a folder of images", ["PIL"])
    from PIL import Image

    try:
        with Image.open(path) as image:
            if nearest:
                # the numbers of a palette, not its colours
                grey = image if image.mode in ("P", "L") else image.convert("L")
                return np.array(grey.resize((size, size), Image.Resampling.NEAREST), np.uint8)
            return np.array(coloured(image).resize((size, size), Image.Resampling.BILINEAR), np.uint8)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as problem:
        raise DataError(f"{path} cannot be read as an image ({problem}): remove or replace it.") from problem


def by_stem(folder: Path) -> dict[str, Path]:
    """Return the image files of a folder by their names without endings."""
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}: expected one with images.")
    found = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    return {path.stem: path for path in found}


class Pictures:
    """Images ``[count, size, size, 3]`` of bytes, normalised when they are taken, mirrored at random with a seed.

    ``wanted`` is asked for what belongs to some images, and which of them are mirrored.
    """

    def __init__(self, pixels: NDArray[np.uint8], seed: int | None = None) -> None:
        self.pixels, self.seed = pixels, seed

    @property
    def image_count(self) -> int:
        """How many images there are."""
        return len(self.pixels)

    @property
    def labels(self) -> Tensor:
        """What tells these targets from others."""
        raise NotImplementedError

    def wanted(self, positions: Sequence[int], mirrored: NDArray[np.bool_]) -> Any:
        """Return what belongs to some images."""
        raise NotImplementedError

    def limited(self, count: int) -> Pictures:
        """Return the first ``count`` images."""
        raise NotImplementedError

    def prepare(self, positions: Tensor, epoch: int | None) -> None:
        """Do nothing: the images are in memory."""

    def batch(self, positions: Tensor, epoch: int | None) -> tuple[Tensor, Any]:
        """Return some images ``[count, 3, size, size]`` and what belongs to them."""
        import torch

        chosen = positions.tolist()
        mirrored = np.zeros(len(chosen), bool)
        if self.seed is not None and epoch is not None:
            draws = [random_of(self.seed, epoch, position).random() for position in chosen]
            mirrored = np.array(draws) < 0.5
        pixels = self.pixels[chosen]
        pixels[mirrored] = pixels[mirrored, :, ::-1]
        values = (pixels.astype(np.float32) / 255 - MEAN) / DEVIATION
        images = torch.from_numpy(np.ascontiguousarray(values.transpose(0, 3, 1, 2)))
        return images, self.wanted(chosen, mirrored)
