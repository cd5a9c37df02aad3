"""Classification of images: cross entropy, judged by the share of test images that a model gets right."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from actnn.errors import ConfigError
from actnn.workloads import models
from actnn.workloads.images import images_of
from actnn.workloads.metrics import METRICS
from actnn.workloads.tasks.goal import Call, Goal

if TYPE_CHECKING:
    from torch import Tensor, nn

    from actnn.workloads.datasets import DataSet
    from actnn.workloads.runs.settings import Settings
    from actnn.workloads.training import Recipe


class Classification(Goal):
    """Tell which class an image shows."""

    metric = METRICS["accuracy"]

    def load(self, settings: Settings) -> DataSet:
        return images_of(settings)

    def build(self, settings: Settings, data: DataSet) -> nn.Module:
        import torch

        image = data.test.batch(torch.arange(1), None)[0]
        with models.one_line(settings.model, "cannot be made"):
            model: Any = models.build(settings.model, classes=data.classes, channels=image.shape[1])
            if settings.channels_last:
                model = model.to(memory_format=torch.channels_last)
        check_takes(model, image, settings.model)
        built: nn.Module = model
        return built

    def loss(self, call: Call, given: Any, wanted: Any, data: DataSet, recipe: Recipe) -> Tensor:
        from torch.nn import functional

        scores = call(given)
        check_scores(scores, len(wanted), data.classes)
        return functional.cross_entropy(scores, wanted, label_smoothing=recipe.label_smoothing)

    def score(self, call: Call, data: DataSet, batch: int, after_batch: Callable[[], object]) -> float:
        import torch

        right = 0
        for positions in torch.arange(data.test.image_count).split(batch):
            images, labels = data.test.batch(positions, None)
            right += int((call(images).argmax(1) == labels).sum())
            after_batch()
        return right / data.test.image_count


def check_takes(model: nn.Module, image: Any, name: str) -> None:
    """Raise ConfigError where a model cannot take images of this size or learn, before anything else is done."""
    import torch

    shape = tuple(image.shape[1:])
    with models.one_line(name, f"does not take images of {shape} (channels, height, width)"), torch.no_grad():
        model.eval()(image)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(f"the model {name!r} has no parameters to train: expected some with requires_grad.")


def check_scores(scores: Any, images: int, classes: int) -> None:
    """Raise ConfigError unless a model gave a score of every class for each image."""
    shape = tuple(getattr(scores, "shape", ()))
    if len(shape) != 2 or shape[0] != images or shape[1] < classes:
        given = f"a tensor of shape {shape}" if shape else f"a {type(scores).__name__}"
        raise ConfigError(
            f"this model returned {given} for {images} images: expected a classifier, which returns a score for each "
            f"of {classes} classes, {(images, classes)}."
        )
