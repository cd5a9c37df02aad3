"""Small generated data in the open formats that tasks read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

SIDE = 32


def picture(random: np.random.Generator) -> tuple[np.ndarray, tuple[int, int, int, int]]:
    """Return a dark image with a bright square, and the corners of that."""
    pixels = random.integers(0, 80, (SIDE, SIDE, 3), dtype=np.uint8)
    left, top = random.integers(0, SIDE // 2, 2).tolist()
    right, bottom = left + SIDE // 2, top + SIDE // 2
    pixels[top:bottom, left:right] += 150
    return pixels, (left, top, right, bottom)


def save(path: Path, pixels: np.ndarray) -> None:
    """Write an image."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def write_masks(folder: Path, count: int = 10) -> Path:
    """Write images beside masks, in which the square is class 1 and the border of the image is of none."""
    random = np.random.default_rng(0)
    for number in range(count):
        pixels, (left, top, right, bottom) = picture(random)
        mask = np.zeros((SIDE, SIDE), np.uint8)
        mask[top:bottom, left:right] = 1
        mask[0] = 255
        save(folder / "images" / f"{number}.png", pixels)
        save(folder / "masks" / f"{number}.png", mask)
    return folder


def write_voc(folder: Path, count: int = 6, parts: bool = True) -> Path:
    """Write images with annotations of VOC, in each a square and a box that is none."""
    random = np.random.default_rng(0)
    for number in range(count):
        pixels, corners = picture(random)
        save(folder / "JPEGImages" / f"{number}.jpg", pixels)
        boxes = [corners, (3, 3, 3, 9)]
        objects = "".join(
            f"<object><name>{'cell' if place == 0 else 'dust'}</name><bndbox><xmin>{box[0]}</xmin><ymin>{box[1]}</ymin>"
            f"<xmax>{box[2]}</xmax><ymax>{box[3]}</ymax></bndbox></object>"
            for place, box in enumerate(boxes)
        )
        size = f"<size><width>{SIDE}</width><height>{SIDE}</height><depth>3</depth></size>"
        path = folder / "Annotations" / f"{number}.xml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"<annotation>{size}{objects}</annotation>")
    if parts:
        lists = folder / "ImageSets" / "Main"
        lists.mkdir(parents=True)
        (lists / "train.txt").write_text("".join(f"{number}\n" for number in range(count - 2)))
        (lists / "test.txt").write_text("".join(f"{number}\n" for number in range(count - 2, count)))
    return folder


def write_coco(folder: Path, count: int = 5) -> Path:
    """Write images with annotations of COCO."""
    random = np.random.default_rng(0)
    images, annotations = [], []
    for number in range(count):
        pixels, (left, top, right, bottom) = picture(random)
        save(folder / "images" / f"{number}.png", pixels)
        images.append({"id": 10 + number, "file_name": f"{number}.png", "width": SIDE, "height": SIDE})
        box = [left, top, right - left, bottom - top]
        annotations.append({"image_id": 10 + number, "category_id": 7, "bbox": box, "iscrowd": 0})
        annotations.append({"image_id": 10 + number, "category_id": 7, "bbox": [0, 0, 32, 32], "iscrowd": 1})
    described = {"images": images, "annotations": annotations, "categories": [{"id": 7, "name": "cell"}]}
    (folder / "train.json").write_text(json.dumps(described))
    return folder


def write_text(folder: Path) -> Path:
    """Write a text that repeats itself."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.txt").write_text("the cat sat on the mat. " * 60)
    (folder / "valid.txt").write_text("the cat sat on the mat. " * 8)
    return folder


def write_table(folder: Path) -> Path:
    """Write texts, of which the good ones are labelled 1."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"a {'good' if number % 2 else 'bad'} film of {number} days\t{number % 2}\n" for number in range(24)]
    (folder / "train.tsv").write_text("sentence\tlabel\n" + "".join(lines))
    (folder / "test.tsv").write_text("".join(lines[:8]))
    return folder
