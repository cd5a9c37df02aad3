"""Sets of random images in files, in the forms that people have them."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np


def write_idx(path: Path, array: np.ndarray) -> None:
    """Write an IDX file, gzipped where its name says so."""
    content = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_idx_set(folder: Path, count: int = 40, classes: int = 10, suffix: str = ".gz") -> Path:
    """Write a set of small images whose brightness tells their class."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = np.random.default_rng(0)
    for name in ("train", "t10k"):
        labels = (np.arange(count) % classes).astype(np.uint8)
        images = numbers.integers(0, 64, (count, 12, 10)) + labels[:, None, None] * (190 // classes)
        write_idx(folder / f"{name}-images-idx3-ubyte{suffix}", images.astype(np.uint8))
        write_idx(folder / f"{name}-labels-idx1-ubyte{suffix}", labels)
    return folder


def write_image_folder(folder: Path, parts: tuple[str, ...] = ("train", "val"), each: int = 6) -> Path:
    """Write images of three classes, of different sizes and kinds, with Pillow; their colour tells their class."""
    from PIL import Image

    numbers = np.random.default_rng(0)
    for part in parts:
        for label, name in enumerate(("cat", "dog", "eel")):
            (folder / part / name).mkdir(parents=True)
            for number in range(each):
                pixels = numbers.integers(0, 80, (20 + number, 30 - number, 3))
                pixels[..., label] += 150
                kind = ("png", "jpg", "bmp")[number % 3]
                Image.fromarray(pixels.astype(np.uint8)).save(folder / part / name / f"{number}.{kind}")
    return folder
