"""What a run trains: its images, and one training, or two where it is compared with exact training."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actnn.console.extras import require
from actnn.errors import ConfigError
from actnn.workloads import datasets, models
from actnn.workloads.augmentation import Shifted
from actnn.workloads.datasets import DataError, DataSet
from actnn.workloads.image_folder import image_folder
from actnn.workloads.processes import ALONE, Processes
from actnn.workloads.runs.settings import IDX, SIZE, Settings
from actnn.workloads.training import Training, compressed, step_count

if TYPE_CHECKING:
    from torch import nn

EXACT = "exact"
NAMED = ("digits", "fashion-mnist")
# levels whose BatchNorms are the framework's own
EXACT_NORMS = ("L0", "L1", "swap")
# images that are looked at to tell a set from another
SOME = 8


def load_data(settings: Settings, processes: Processes = ALONE) -> DataSet:
    """Return the images of a run."""
    named = settings.data in NAMED or settings.data.startswith(IDX)
    if named and settings.size is not None:
        raise ConfigError(f"--size {settings.size} is for folders of images; those of {settings.data} have their own.")
    if settings.data_dir is not None and settings.data != "fashion-mnist":
        raise ConfigError(f"--data-dir is where fashion-mnist lies; --data {settings.data} does not need it.")
    data = named_data(settings) if named else folder_data(settings)
    if settings.augment and named:
        data = data._replace(train=Shifted(data.train, settings.seed))
    data = data.limited(settings.images or data.train.image_count)
    if (count := data.train.image_count) % settings.batch == 1:
        raise ConfigError(
            f"with {count} images and --batch {settings.batch} the last step of an epoch has a single image, of which "
            f"BatchNorm has no statistics: use --images {count - 1}, or another --batch."
        )
    if (least := count % settings.batch or settings.batch) < 2 * processes.count:
        raise ConfigError(
            f"with {count} images and --batch {settings.batch} a step has only {least} images for {processes.count} "
            f"processes: expected two for each at least. Use other --images, a larger --batch, or fewer processes."
        )
    return data


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


def fingerprint(data: DataSet) -> dict[str, Any]:
    """Return counts and checksums that differ where a set of images differs."""
    import torch

    some = data.train.batch(torch.arange(min(SOME, data.train.image_count)), None)[0]
    return {
        "images": data.train.image_count,
        "test_images": data.test.image_count,
        "classes": data.classes,
        "labels": zlib.crc32(data.train.labels.numpy().tobytes()),
        "pixels": zlib.crc32(some.numpy().tobytes()),
    }


def contestants(settings: Settings, data: DataSet, processes: Processes = ALONE) -> dict[str, Training]:
    """Return the trainings of a run by name; all begin with the same weights and see the same images."""
    bits = "" if settings.bits is None else f", {settings.bits:g} bits"
    names = [*([EXACT] if settings.compare else []), f"{settings.level}{bits}"]
    return {name: training(settings, data, name == EXACT, processes) for name in names}


def joins_statistics(settings: Settings, exact: bool, processes: Processes) -> bool:
    """Tell whether BatchNorms normalise by the batch of all processes: on the host only those that keep codes can."""
    coded = not exact and settings.level not in EXACT_NORMS
    return processes.together and settings.sync_batch_norm and coded


def training(settings: Settings, data: DataSet, exact: bool, processes: Processes = ALONE) -> Training:
    """Return one training, before its first step."""
    import torch

    torch.manual_seed(settings.seed)
    image = data.test.batch(torch.arange(1), None)[0]
    with models.one_line(settings.model, "cannot be made"):
        model: Any = models.build(settings.model, classes=data.classes, channels=image.shape[1])
        if settings.channels_last:
            model = model.to(memory_format=torch.channels_last)
    check_takes(model, image, settings.model)
    if not exact:
        model = compressed(model, settings.level, settings.bits, seed=settings.seed, memory=settings.memory)
    # weights took more random numbers in some models than in others; processes draw different ones
    torch.manual_seed(settings.seed + processes.number)
    made = Training(
        model.train(),
        data,
        batch=settings.batch,
        steps=step_count(data.train.image_count, settings.batch, settings.epochs),
        seed=settings.seed,
        recipe=settings.recipe,
        before_step=model.set_samples if settings.samples and not exact else lambda positions: None,
        processes=processes,
    )
    if joins_statistics(settings, exact, processes):
        from actnn.torch.layers.batch_norm import join_statistics

        # only now: torch lets no SyncBatchNorm on the host into DistributedDataParallel
        join_statistics(model)
    return made


def check_takes(model: nn.Module, image: Any, name: str) -> None:
    """Raise ConfigError where a model cannot take images of this size or learn, before anything else is done."""
    import torch

    shape = tuple(image.shape[1:])
    with models.one_line(name, f"does not take images of {shape} (channels, height, width)"), torch.no_grad():
        model.eval()(image)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(f"the model {name!r} has no parameters to train: expected some with requires_grad.")
