"""The labelled images that a run names: small sets in memory, IDX files, or a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from actnn.console.extras import require
from actnn.errors import ConfigError
from actnn.workloads import datasets
from actnn.workloads.augmentation import Shifted
from actnn.workloads.datasets import DataError, DataSet
from actnn.workloads.image_folder import image_folder

if TYPE_CHECKING:
    from actnn.workloads.runs.settings import Settings

# how a folder of IDX files is named, and the side of an image of a folder where nobody names one
IDX, SIZE = "idx:", 224
NAMED = ("digits", "fashion-mnist")


def images_of(settings: Settings) -> DataSet:
    """Return the images of a run."""
    named = settings.data in NAMED or settings.data.startswith(IDX)
    if named and settings.size is not None:
        raise ConfigError(f"--size {settings.size} is for folders of images; those of {settings.data} have their own.")
    if settings.data_dir is not None and settings.data != "fashion-mnist":
        raise ConfigError(f"--data-dir is where fashion-mnist lies; --data {settings.data} does not need it.")
    data = named_data(settings) if named else folder_data(settings)
    return data._replace(train=Shifted(data.train, settings.seed)) if settings.augment and named else data


def named_data(settings: Settings) -> DataSet:
    """Return a set of small images, all in memory."""
    if settings.data.startswith(IDX):
        return datasets.idx_folder(Path(settings.data.removeprefix(IDX)))
    if settings.data == "digits":
        require("--data digits", ["sklearn"])
    return datasets.load(settings.data, None if settings.data_dir is None else Path(settings.data_dir))


def folder_data(settings: Settings) -> DataSet:
    """Return a set of images in files."""
    folder = Path(settings.data)
    if not folder.is_dir():
        raise DataError(
            f"there is no set of images {settings.data!r}: expected {', '.join(NAMED)}, {IDX}FOLDER, or a folder."
        )
    require("a folder of images", ["PIL"])
    return image_folder(folder, settings.size or SIZE, settings.seed, settings.augment)
