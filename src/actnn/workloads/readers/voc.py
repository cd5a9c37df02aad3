"""Boxes as Pascal VOC has them: ``Annotations/NAME.xml``, ``JPEGImages/NAME.jpg``, and parts in ``ImageSets/Main``."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from actnn.workloads.datasets import DataError, DataSet
from actnn.workloads.readers.boxes import Annotated, boxed
from actnn.workloads.readers.pictures import by_stem

ANNOTATIONS, IMAGES, PARTS = "Annotations", "JPEGImages", "ImageSets/Main"
TESTS = ("test", "val")
CORNERS = ("xmin", "ymin", "xmax", "ymax")


def voc_folder(folder: Path, size: int, seed: int | None) -> DataSet:
    """Return the set of a folder; without lists of parts, one image in five is for testing."""
    images = by_stem(folder / IMAGES)
    files = sorted((folder / ANNOTATIONS).glob("*.xml"))
    if not files:
        raise DataError(f"{folder} holds no annotation: expected {ANNOTATIONS}/NAME.xml beside {IMAGES}/NAME.jpg.")
    parsed = {path.stem: objects_of(path) for path in files}
    if missing := sorted(parsed.keys() - images.keys()):
        raise DataError(f"{folder} has an annotation of {missing[0]!r}, but no such image in {IMAGES}.")
    names = sorted({name for objects in parsed.values() for name, _ in objects[1]})
    numbers = {name: number for number, name in enumerate(names)}
    every = {
        stem: Annotated.of(images[stem], [box for _, box in found], [numbers[name] for name, _ in found], sides)
        for stem, (sides, found) in parsed.items()
    }
    learnt = part_of(folder, ["train"], list(every))
    tested = part_of(folder, [name for name in TESTS if (folder / PARTS / f"{name}.txt").is_file()][:1], [])
    return boxed([every[stem] for stem in learnt], [every[stem] for stem in tested], len(names), size, seed)


def part_of(folder: Path, names: list[str], default: list[str]) -> list[str]:
    """Return the images of a part, or others where nothing lists it."""
    lists = [folder / PARTS / f"{name}.txt" for name in names]
    if not lists or not lists[0].is_file():
        return default
    return [line.split()[0] for line in lists[0].read_text().splitlines() if line.strip()]


def objects_of(path: Path) -> tuple[tuple[int, int], list[tuple[str, list[float]]]]:
    """Return the sides of an image, and the name and corners of each object in it."""
    try:
        root = ElementTree.parse(path).getroot()
        sides = int(root.findtext("size/width", "")), int(root.findtext("size/height", ""))
        found = [
            (each.findtext("name", ""), [float(each.findtext(f"bndbox/{corner}", "")) for corner in CORNERS])
            for each in root.iter("object")
        ]
    except (ElementTree.ParseError, ValueError, OSError) as problem:
        raise DataError(f"{path} is not an annotation of VOC ({problem}): correct or remove it.") from problem
    return sides, found
