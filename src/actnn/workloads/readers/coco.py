"""Boxes as COCO has them: ``train.json`` and ``val.json`` with ``images``, ``annotations`` and ``categories``.

The files that they name lie in the same folder, or in ``images``, ``train`` or ``val`` of it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from actnn.workloads.datasets import DataError, DataSet
from actnn.workloads.readers.boxes import Annotated, boxed

PARTS = ("train", "val")


def coco_folder(folder: Path, size: int, seed: int | None) -> DataSet:
    """Return the set of a folder; without ``val.json``, one image in five is for testing."""
    described = {part: description(folder / f"{part}.json") for part in PARTS if (folder / f"{part}.json").is_file()}
    if PARTS[0] not in described:
        raise DataError(f"{folder} holds no train.json: expected COCO's annotations in train.json and val.json.")
    categories = {each["id"]: each["name"] for part in described.values() for each in part["categories"]}
    numbers = {identity: number for number, identity in enumerate(sorted(categories))}
    parts = {part: annotated(folder, part, found, numbers) for part, found in described.items()}
    return boxed(parts[PARTS[0]], parts.get(PARTS[1], []), len(numbers), size, seed)


def description(path: Path) -> dict[str, Any]:
    """Return what an annotation file holds."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        missing = {"images", "annotations", "categories"} - found.keys()
    except (OSError, ValueError, AttributeError) as problem:
        raise DataError(f"{path} cannot be read as COCO's annotations ({problem}): get the file anew.") from problem
    if missing:
        raise DataError(f"{path} lacks {', '.join(sorted(missing))}: expected COCO's annotations.")
    return found


def annotated(folder: Path, part: str, found: dict[str, Any], numbers: dict[int, int]) -> list[Annotated]:
    """Return the images of a part with their boxes; boxes of crowds are left out, as everybody does."""
    boxes: dict[int, list[tuple[int, list[float]]]] = {each["id"]: [] for each in found["images"]}
    for each in found["annotations"]:
        left, top, width, height = each["bbox"]
        if not each.get("iscrowd"):
            boxes[each["image_id"]].append((numbers[each["category_id"]], [left, top, left + width, top + height]))
    return [
        Annotated.of(
            located(folder, part, each["file_name"]),
            [box for _, box in boxes[each["id"]]],
            [number for number, _ in boxes[each["id"]]],
            (each["width"], each["height"]),
        )
        for each in found["images"]
    ]


def located(folder: Path, part: str, name: str) -> Path:
    """Return where an image lies."""
    places = [folder / name, folder / "images" / name, folder / part / name]
    for place in places:
        if place.is_file():
            return place
    raise DataError(f"there is no image {name}: expected it in {', '.join(str(place.parent) for place in places)}.")
