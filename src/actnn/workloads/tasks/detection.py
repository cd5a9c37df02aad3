"""Detection: the losses of torchvision's RetinaNet, judged by the mean average precision of COCO."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actnn.console.extras import require
from actnn.errors import ConfigError
from actnn.workloads.metrics import METRICS
from actnn.workloads.readers.coco import coco_folder
from actnn.workloads.readers.voc import voc_folder
from actnn.workloads.tasks.goal import Call, Goal
from actnn.workloads.tasks.sources import source_of

if TYPE_CHECKING:
    from torch import Tensor, nn

    from actnn.workloads.datasets import DataSet
    from actnn.workloads.runs.settings import Settings
    from actnn.workloads.training import Recipe

SIZE = 256
READERS: Mapping[str, Callable[[Path, int, int | None], DataSet]] = {"voc": voc_folder, "coco": coco_folder}
# models by name: of how many channels the pyramid is
RETINANETS = {"retinanet": 128, "retinanet_small": 64}


class Detection(Goal):
    """Tell where things are, and what."""

    metric = METRICS["mean_ap"]

    def load(self, settings: Settings) -> DataSet:
        require("--task detection", ["torchvision", "torchmetrics", "pycocotools"])
        kind, path = source_of(settings, tuple(READERS))
        return READERS[kind](Path(path), settings.size or SIZE, settings.seed if settings.augment else None)

    def build(self, settings: Settings, data: DataSet) -> nn.Module:
        from actnn.workloads.retinanet import retinanet

        if settings.model not in RETINANETS:
            raise ConfigError(f"there is no detector {settings.model!r}: expected {' or '.join(RETINANETS)}.")
        # the background is a class of its own
        return retinanet(data.classes + 1, settings.size or SIZE, RETINANETS[settings.model])

    def loss(self, call: Call, given: Any, wanted: Any, data: DataSet, recipe: Recipe) -> Tensor:
        losses: Mapping[str, Tensor] = call(list(given), wanted)
        total: Any = sum(losses.values())
        found: Tensor = total
        return found

    def score(self, call: Call, data: DataSet, batch: int, after_batch: Callable[[], object]) -> float:
        import torch
        from torchmetrics.detection import MeanAveragePrecision

        metric = MeanAveragePrecision(backend="pycocotools")
        for positions in torch.arange(data.test.image_count).split(batch):
            images, wanted = data.test.batch(positions, None)
            metric.update(call(list(images)), wanted)
            after_batch()
        # it has no value where nothing is there to be found
        return max(0.0, float(metric.compute()["map"]))
