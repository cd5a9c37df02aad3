"""Folders of images: a sub-folder is a class, ``train`` and ``val`` are parts, and Pillow reads the files."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from actnn.workloads.augmentation import central_box, random_box, random_of
from actnn.workloads.datasets import TEST_SHARE, DataError, DataSet

if TYPE_CHECKING:
    from torch import Tensor

SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"))
LEARN, TEST = "train", ("val", "valid", "validation", "test")
# what others call the part to learn from
LIKE_LEARN = (LEARN, "training")
EXPECTED = "expected a folder for each class, or train and val with one for each class in both"

CHANNELS = 3
# of the pixels of ImageNet's photographs, as everybody normalises them
MEAN, DEVIATION = np.array([(0.485, 0.456, 0.406), (0.229, 0.224, 0.225)], np.float32)
# photographs show their subject in the middle
CENTRAL_SHARE = 7 / 8
READERS = 2
# the brightest grey of 16 bits; Pillow has more than one mode for it, of which the last may be of 32 bits elsewhere
BRIGHTEST = 65535
DEEP, DEEP_FORMATS = "I;16", ("PNG", "PPM")

Labelled = tuple[Path, int]


def image_folder(folder: Path, size: int, seed: int, augment: bool) -> DataSet:
    """Return the set of a folder as squares of ``size`` pixels; without ``val``, one image in five is for testing."""
    parts = {path.name: path for path in sub_folders(folder)}
    while list(parts) == [LEARN]:
        folder = parts[LEARN]
        parts = {path.name: path for path in sub_folders(folder)}
    check_parts(folder, list(parts))
    test = next((parts[name] for name in TEST if name in parts), None)
    if LEARN in parts and test is not None:
        classes = [path.name for path in sub_folders(parts[LEARN])]
        learnt, tested = labelled(parts[LEARN], classes), labelled(test, classes)
    else:
        classes = list(parts)
        files = labelled(folder, classes)
        order = np.random.default_rng(0).permutation(len(files))
        held_back = set(order[: len(files) // TEST_SHARE].tolist())
        learnt = [file for number, file in enumerate(files) if number not in held_back]
        tested = [files[number] for number in sorted(held_back)]
    if len(classes) < 2 or not learnt or not tested:
        raise DataError(
            f"{folder} has {len(classes)} classes, {len(learnt)} images to learn from and {len(tested)} to test: "
            f"{EXPECTED}, and at least {TEST_SHARE} images where they are to be divided."
        )
    return DataSet(FolderImages(learnt, size, seed if augment else None), FolderImages(tested, size), len(classes))


def check_parts(folder: Path, names: Sequence[str]) -> None:
    """Raise DataError where the folders in a folder are parts of a set that would be taken for classes."""
    parts = [name for name in names if name.lower() in LIKE_LEARN]
    if parts == [LEARN] and not set(TEST).isdisjoint(names):
        return
    # a class may well be called test, but not all of them are called like parts
    if not parts and all(name.lower() in TEST for name in names):
        parts = list(names)
    if parts:
        raise DataError(
            f"{folder} holds {' and '.join(parts)}, which is how parts are called and no class: expected {LEARN} "
            f"beside {', '.join(TEST[:-1])} or {TEST[-1]}, or {LEARN} alone. Rename what is called otherwise, or a "
            "class of that name."
        )


def sub_folders(folder: Path) -> list[Path]:
    """Return the folders in a folder by name; hidden ones are left out."""
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError as problem:
        raise DataError(f"the folder {folder} cannot be read: {problem}.") from problem


def labelled(folder: Path, classes: Sequence[str]) -> list[Labelled]:
    """Return all image files of a folder, in order of their names, with the number of their class."""
    numbers = {name: number for number, name in enumerate(classes)}
    files = []
    for path in sub_folders(folder):
        if path.name not in numbers:
            raise DataError(f"{path} is a class that {LEARN} does not have: {EXPECTED}.")
        found = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
        files += [(file, numbers[path.name]) for file in found]
    return files


class FolderImages:
    """Images in files, read when they are wanted; with a ``seed``, parts of them that differ from epoch to epoch."""

    def __init__(self, files: Sequence[Labelled], size: int, seed: int | None = None) -> None:
        import torch

        self.files, self.size, self.seed = files, size, seed
        self.labels = torch.tensor([label for _, label in files])
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="actnn-images")
        self._waiting: dict[Any, list[Future[Tensor]]] = {}
        self._last: tuple[Any, Tensor] | None = None

    @property
    def image_count(self) -> int:
        """How many images there are."""
        return len(self.files)

    def limited(self, count: int) -> FolderImages:
        """Return ``count`` images of all classes: the files lie in order of their classes."""
        order = np.random.default_rng(0).permutation(len(self.files))[:count]
        return FolderImages([self.files[number] for number in sorted(order)], self.size, self.seed)

    def prepare(self, positions: Tensor, epoch: int | None) -> None:
        """Begin to read some images."""
        key = (epoch, *positions.tolist())
        if key not in self._waiting:
            read = [self._readers.submit(self.read, position, epoch) for position in positions.tolist()]
            self._waiting[key] = read

    def batch(self, positions: Tensor, epoch: int | None) -> tuple[Tensor, Tensor]:
        """Return some images ``[count, 3, size, size]`` and their labels."""
        import torch

        key = (epoch, *positions.tolist())
        # contestants that train side by side ask for the same batch in turns
        if self._last is None or self._last[0] != key:
            self.prepare(positions, epoch)
            self._last = key, torch.stack([reading.result() for reading in self._waiting.pop(key)])
        else:
            self._waiting.pop(key, None)
        return self._last[1], self.labels[positions]

    def read(self, position: int, epoch: int | None) -> Tensor:
        """Return one image, normalised."""
        import torch
        from PIL import Image

        path = self.files[position][0]
        try:
            with Image.open(path) as image:
                pixels = self.square(coloured(image), position, epoch)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as problem:
            # Pillow's readers raise all of these for damaged files
            raise DataError(f"{path} cannot be read as an image ({problem}): remove or replace it.") from problem
        values = (np.asarray(pixels, np.float32) / 255 - MEAN) / DEVIATION
        return torch.from_numpy(np.ascontiguousarray(values.transpose(2, 0, 1)))

    def square(self, image: Any, position: int, epoch: int | None) -> Any:
        """Return a part of an image, scaled to the wanted size."""
        from PIL import Image

        width, height = image.size
        if self.seed is None or epoch is None:
            box = central_box(width, height, CENTRAL_SHARE)
        else:
            box = random_box(width, height, random_of(self.seed, epoch, position))
        scaled = image.resize((self.size, self.size), Image.Resampling.BILINEAR, box[:4])
        return scaled.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if box.mirrored else scaled


def coloured(image: Any) -> Any:
    """Return an image in three channels of 8 bits; raise ValueError where it is not known how bright white is."""
    from PIL import Image

    if image.mode.startswith(DEEP) or (image.mode == "I" and image.format in DEEP_FORMATS):
        # Pillow itself would take all above 255 for white
        grey = (np.asarray(image).astype(np.int64) * 255 + BRIGHTEST // 2) // BRIGHTEST
        image = Image.fromarray(grey.astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError(f"pixels of mode {image.mode}, where 8 or 16 bits were expected")
    return image.convert("RGB")
