"""Segmentation: cross entropy of every pixel, judged by the mean intersection over union of classes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actnn.console.extras import require
from actnn.errors import ConfigError
from actnn.workloads import models
from actnn.workloads.metrics import METRICS
from actnn.workloads.readers.masks import NO_CLASS, mask_folder
from actnn.workloads.tasks.goal import Call, Goal
from actnn.workloads.tasks.sources import source_of

if TYPE_CHECKING:
    from torch import Tensor, nn

    from actnn.workloads.datasets import DataSet
    from actnn.workloads.runs.settings import Settings
    from actnn.workloads.training import Recipe

SIZE = 128
MASKS = "masks"


class Segmentation(Goal):
    """Tell the class of every pixel."""

    metric = METRICS["mean_iou"]

    def load(self, settings: Settings) -> DataSet:
        require("--task segmentation", ["torchmetrics"])
        _, path = source_of(settings, (MASKS,))
        return mask_folder(Path(path), settings.size or SIZE, settings.seed if settings.augment else None)

    def build(self, settings: Settings, data: DataSet) -> nn.Module:
        import torch

        with models.one_line(settings.model, "cannot be made"):
            model: Any = models.build(settings.model, classes=data.classes)
            if settings.channels_last:
                model = model.to(memory_format=torch.channels_last)
        images, masks = data.test.batch(torch.arange(1), None)
        with models.one_line(settings.model, f"does not take images of {tuple(images.shape[1:])}"), torch.no_grad():
            logits = model.eval()(images)
        expected = (1, data.classes, *masks.shape[1:])
        if tuple(getattr(logits, "shape", ())) != expected:
            raise ConfigError(
                f"the model {settings.model!r} does not segment: expected scores {expected} of one image, a class for "
                f"each pixel. Choose one of {', '.join(models.SEGMENTATION)}, or a function of your own."
            )
        built: nn.Module = model
        return built

    def loss(self, call: Call, given: Any, wanted: Any, data: DataSet, recipe: Recipe) -> Tensor:
        from torch.nn import functional

        smoothing = recipe.label_smoothing
        return functional.cross_entropy(call(given), wanted, ignore_index=NO_CLASS, label_smoothing=smoothing)

    def score(self, call: Call, data: DataSet, batch: int, after_batch: Callable[[], object]) -> float:
        import torch
        from torchmetrics.classification import MulticlassJaccardIndex

        metric = MulticlassJaccardIndex(max(2, data.classes), ignore_index=NO_CLASS)
        for positions in torch.arange(data.test.image_count).split(batch):
            images, masks = data.test.batch(positions, None)
            metric.update(call(images).argmax(1), masks)
            after_batch()
        return float(metric.compute())
