"""What a name stands for in a benchmark: how its model is made, and what batches it learns from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from actnn.workloads import language, models
from actnn.workloads.batch import Batch

if TYPE_CHECKING:
    from torch import nn

HELP = f"{models.HELP}; or {language.HELP}"


class Workload(Protocol):
    """A model and its batches; a batch knows the loss of what the model makes of it."""

    def build(self) -> nn.Module:
        """Return a fresh model with its own initialisation."""
        ...

    def batch(self, count: int) -> Batch:
        """Draw a batch from torch's random numbers."""
        ...


@dataclass(frozen=True)
class Images:
    """A model for images, and random ones of one size."""

    model: str
    height: int
    width: int
    classes: int
    channels: int = 3
    channels_last: bool = False

    def build(self) -> nn.Module:
        """Return a fresh model with its own initialisation."""
        model: Any = models.build(self.model, classes=self.classes, channels=self.channels)
        arranged: nn.Module = model.to(memory_format=self._memory_format)
        return arranged

    def batch(self, count: int) -> Batch:
        """Draw a batch from torch's random numbers."""
        import torch

        images = torch.randn(count, self.channels, self.height, self.width)
        # a segmentation model has a class for every pixel
        places = (self.height, self.width) if self.model in models.SEGMENTATION else ()
        labels = torch.randint(0, self.classes, (count, *places))
        return Batch((images.contiguous(memory_format=self._memory_format),), {}, labels)

    @property
    def _memory_format(self) -> Any:
        import torch

        return torch.channels_last if self.channels_last else torch.contiguous_format


def find(model: str, *, height: int, width: int, classes: int, channels_last: bool = False) -> Workload:
    """Return the workload of a name; all else is of images, and no matter to language models."""
    return language.find(model) or Images(model, height, width, classes, channels_last=channels_last)
