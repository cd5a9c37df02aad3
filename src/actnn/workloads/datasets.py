"""The images that commands train on: digits from scikit-learn, Fashion-MNIST, and whatever lies in IDX files."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from actnn.errors import ActnnError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

CLASSES = 10
DIGITS = 1797
DIGITS_SIZE = 32
TEST_SHARE = 5

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
INSTALL = "Install Debian's package dataset-fashion-mnist, name its folder with --data-dir, or use --data digits."

# the only type of element that image sets use
UNSIGNED_BYTES = 0x08


class DataError(ActnnError):
    """A data set that is missing or damaged."""


class Images(Protocol):
    """Images with their labels, of which batches are taken by position."""

    @property
    def image_count(self) -> int:
        """How many images there are."""

    @property
    def labels(self) -> Tensor:
        """The class of each."""

    def batch(self, positions: Tensor, epoch: int | None) -> tuple[Tensor, Any]:
        """Return some images and what is wanted of them; ``epoch`` varies them, None leaves them as they are."""

    def prepare(self, positions: Tensor, epoch: int | None) -> None:
        """Begin to fetch what ``batch`` will be asked for next."""

    def limited(self, count: int) -> Images:
        """Return the first ``count`` images."""


class Part(NamedTuple):
    """Images ``[count, channels, height, width]`` in memory, with their labels ``[count]``."""

    images: Tensor
    labels: Tensor

    @property
    def image_count(self) -> int:
        """How many images there are."""
        return len(self.labels)

    def batch(self, positions: Tensor, epoch: int | None) -> tuple[Tensor, Tensor]:
        """Return some images and their labels."""
        return self.images[positions], self.labels[positions]

    def prepare(self, positions: Tensor, epoch: int | None) -> None:
        """Do nothing: the images are in memory."""

    def limited(self, count: int) -> Part:
        """Return the first ``count`` images."""
        return Part(self.images[:count], self.labels[:count])


class DataSet(NamedTuple):
    """What a network learns from, and what it is tested on."""

    train: Images
    test: Images
    classes: int = CLASSES

    def limited(self, count: int) -> DataSet:
        """Return the same set with at most ``count`` images to learn from."""
        return self._replace(train=self.train.limited(count))


def chosen(name: str, folder: Path | None) -> str:
    """Return the set that ``auto`` stands for: Fashion-MNIST where it is installed or a folder is named, or digits."""
    if name != "auto":
        return name
    return "fashion-mnist" if folder or FASHION_MNIST.is_dir() else "digits"


def load(name: str, folder: Path | None) -> DataSet:
    """Return a set by its name; ``folder`` is where Fashion-MNIST lies, None for the place of Debian's package."""
    if name == "digits":
        return digits(DIGITS, DIGITS // TEST_SHARE)
    return fashion_mnist(folder or FASHION_MNIST)


def digits(count: int, test_count: int) -> DataSet:
    """Return ``count`` of scikit-learn's handwritten digits, enlarged and shuffled, ``test_count`` of them to test."""
    import torch
    from sklearn.datasets import load_digits
    from torch.nn import functional

    pixels, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(0))[:count]
    images = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8)[order] / 8 - 1
    images = functional.interpolate(images, size=(DIGITS_SIZE, DIGITS_SIZE), mode="bilinear")
    labels = torch.tensor(labels)[order]
    return DataSet(Part(images[test_count:], labels[test_count:]), Part(images[:test_count], labels[:test_count]))


def fashion_mnist(folder: Path) -> DataSet:
    """Return Fashion-MNIST, or another set of ten classes, from the folder of its IDX files."""
    return idx_folder(folder, CLASSES)


def idx_folder(folder: Path, classes: int | None = None) -> DataSet:
    """Return the set whose IDX files lie in a folder, all images normalised by those to learn from.

    Without ``classes`` there are as many as the labels to learn from tell.
    """
    import torch

    learnt = pixels_and_labels(folder, "train", classes)
    classes = classes or int(learnt[1].max()) + 1
    parts = [learnt, pixels_and_labels(folder, "t10k", classes)]
    deviation, mean = torch.std_mean(torch.tensor(parts[0][0], dtype=torch.float32))
    train, test = (
        Part(
            torch.tensor(pixels, dtype=torch.float32).sub_(mean).div_(deviation).unsqueeze(1),
            torch.tensor(labels, dtype=torch.int64),
        )
        for pixels, labels in parts
    )
    return DataSet(train, test, classes)


def pixels_and_labels(
    folder: Path, name: str, classes: int | None = CLASSES
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return one part's images ``[count, height, width]`` and labels ``[count]``, checked against each other."""
    pixels = read_idx(found(folder, f"{name}-images-idx3-ubyte"), 3)
    labels = read_idx(found(folder, f"{name}-labels-idx1-ubyte"), 1)
    if len(pixels) != len(labels) or not len(labels):
        raise DataError(f"{folder} has {len(pixels)} {name} images and {len(labels)} labels: expected as many of both.")
    if classes is not None and labels.max() >= classes:
        raise DataError(f"{folder} has a {name} label {labels.max()}: expected labels below {classes}.")
    return pixels, labels


def found(folder: Path, name: str) -> Path:
    """Return the path of a file that may be gzipped."""
    for path in (folder / f"{name}.gz", folder / name):
        if path.is_file():
            return path
    raise DataError(f"{folder} has no file {name}, gzipped or not. {INSTALL}")


def read_idx(path: Path, rank: int) -> NDArray[np.uint8]:
    """Return the array of an IDX file of bytes: a magic number, ``rank`` lengths, then the elements, all big-endian."""
    content = read_bytes(path)
    begin = 4 + 4 * rank
    magic = bytes((0, 0, UNSIGNED_BYTES, rank))
    if content[:4] != magic:
        raise DataError(f"{path} begins with {content[:4].hex(' ')}: an IDX file of this kind has {magic.hex(' ')}.")
    if len(content) < begin:
        raise DataError(f"{path} ends after {len(content)} bytes, within its header of {begin}: get the file anew.")
    shape = struct.unpack_from(f">{rank}I", content, offset=4)
    if len(content) != begin + math.prod(shape):
        raise DataError(
            f"{path} holds {len(content)} bytes, but its header {shape} asks for {begin + math.prod(shape)}: "
            "get the file anew."
        )
    return np.frombuffer(content, np.uint8, offset=begin).reshape(shape)


def read_bytes(path: Path) -> bytes:
    """Return what a file holds, gzipped or not."""
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as problem:
        raise DataError(f"{path} cannot be read ({problem}): get the file anew.") from problem
