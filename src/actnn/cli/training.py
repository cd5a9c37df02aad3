"""How commands train a network: the order of images, optimizer and learning rates, and conversion."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

    from actnn.cli.datasets import DataSet

PEAK_RATE = 0.1


def step_count(images: int, batch: int, epochs: int) -> int:
    """Return how many steps some epochs take; the last step of an epoch may have fewer images."""
    return epochs * math.ceil(images / batch)


def compressed(model: nn.Module, level: str, bits: float | None, *, seed: int = 0, **settings: Any) -> nn.Module:
    """Convert a model at a level and a width, or the level's own; ``settings`` are other attributes of config."""
    import actnn

    actnn.set_optimization_level(level)
    if bits is not None:
        settings["activation_compression_bits"] = [bits]
    for name, value in settings.items():
        setattr(actnn.config, name, value)
    return actnn.QModule(model, seed=seed)


class Training:
    """A model on its way through a data set; equal seeds give equal orders of images.

    ``before_step`` is told the positions of a step's images in the data set, ``after_step`` that it is done.
    """

    def __init__(
        self,
        model: nn.Module,
        data: DataSet,
        *,
        batch: int,
        steps: int,
        seed: int = 0,
        rate: float = PEAK_RATE,
        before_step: Callable[[Tensor], object] = lambda positions: None,
        after_step: Callable[[], object] = lambda: None,
    ) -> None:
        import torch

        self.model, self.data, self.batch = model, data, batch
        self.before_step, self.after_step = before_step, after_step
        self.shuffle = torch.Generator().manual_seed(seed)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=5e-4)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, rate, total_steps=steps, cycle_momentum=False
        )

    def batches(self) -> Iterator[Tensor]:
        """Yield the positions of one epoch's images, a batch at a time, in a new random order."""
        import torch

        yield from torch.randperm(len(self.data.train.images), generator=self.shuffle).split(self.batch)

    def step(self, positions: Tensor) -> float:
        """Take one step of stochastic gradient descent on some images and return the loss."""
        from torch.nn import functional

        images, labels = (part[positions] for part in self.data.train)
        self.before_step(positions)
        self.optimizer.zero_grad()
        loss = functional.cross_entropy(self.model(images), labels)
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        self.after_step()
        return loss.item()

    def epoch(self) -> float:
        """Train on every image once and return the mean loss; the first loss that is not finite ends it."""
        losses = []
        for positions in self.batches():
            losses.append(self.step(positions))
            if not math.isfinite(losses[-1]):
                break
        return sum(losses) / len(losses)

    def accuracy(self) -> float:
        """Return the share of test images that the model gets right; it is in evaluation mode afterwards."""
        import torch

        images, labels = self.data.test
        self.model.eval()
        with torch.no_grad():
            guesses = torch.cat([self.model(part).argmax(1) for part in images.split(self.batch)])
        return float((guesses == labels).float().mean())
