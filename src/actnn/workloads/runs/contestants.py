"""What a run trains: its data, and one training, or two where it is compared with exact training."""

from __future__ import annotations

import zlib
from typing import Any

from actnn.errors import ConfigError
from actnn.workloads import tasks
from actnn.workloads.datasets import DataSet
from actnn.workloads.processes import ALONE, Processes
from actnn.workloads.runs.settings import Settings
from actnn.workloads.training import Training, compressed, step_count

EXACT = "exact"
# levels whose BatchNorms are the framework's own
EXACT_NORMS = ("L0", "L1", "swap")
# images that are looked at to tell a set from another
SOME = 8


def load_data(settings: Settings, processes: Processes = ALONE) -> DataSet:
    """Return what a run learns from."""
    goal = tasks.find(settings.task)
    data = goal.load(settings)
    data = data.limited(settings.images or data.train.image_count)
    count = data.train.image_count
    if goal.needs_two and count % settings.batch == 1:
        raise ConfigError(
            f"with {count} images and --batch {settings.batch} the last step of an epoch has a single image, of which "
            f"BatchNorm has no statistics: use --images {count - 1}, or another --batch."
        )
    if (least := count % settings.batch or settings.batch) < 2 * processes.count and processes.together:
        raise ConfigError(
            f"with {count} images and --batch {settings.batch} a step has only {least} images for {processes.count} "
            f"processes: expected two for each at least. Use other --images, a larger --batch, or fewer processes."
        )
    return data


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
    goal = tasks.find(settings.task)
    model: Any = goal.build(settings, data)
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
        goal=goal,
    )
    if joins_statistics(settings, exact, processes):
        from actnn.torch.layers.batch_norm import join_statistics

        # only now: torch lets no SyncBatchNorm on the host into DistributedDataParallel
        join_statistics(model)
    return made
