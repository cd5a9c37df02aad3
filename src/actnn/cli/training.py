"""What the demo trains, run in processes of its own: one for all times, in turns, and one for each memory figure.

``python -m actnn.cli.training times|memory SETTINGS [CONTESTANT]`` writes lines of JSON: ``{"step": contestant}`` after
every step, and at the end ``{"result": …}`` or ``{"error": …}``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from actnn.bench import harness
from actnn.bench.memory import reset_peak, resident
from actnn.bench.step import kept_bytes
from actnn.cli.small_resnet import small_resnet
from actnn.errors import ActnnError

SIZE = 32
TEST_SHARE = 5
PEAK_RATE = 0.1
WARM_UP_STEPS = 2
MEMORY_STEPS = 4


@dataclass(frozen=True)
class Settings:
    """How much to train, and at which width."""

    epochs: int
    images: int
    batch: int
    bits: int

    @property
    def contestants(self) -> dict[str, int | None]:
        """The width of each contestant's codes, None for exact training."""
        return {"exact": None, f"{self.bits}-bit codes": self.bits}

    @property
    def test_images(self) -> int:
        """How many images are held back to measure accuracy."""
        return self.images // TEST_SHARE

    @property
    def training_steps(self) -> int:
        """How many steps all epochs take."""
        return self.epochs * -(-(self.images - self.test_images) // self.batch)


class Training:
    """A contestant: its model, data, optimizer and learning rates; all contestants see the same numbers."""

    def __init__(self, settings: Settings, name: str) -> None:
        import torch

        torch.manual_seed(0)
        self.name, self.batch = name, settings.batch
        self.model = build(settings.contestants[name])
        self.train_set, self.test_set = digits(settings.images, settings.test_images)
        self.shuffle = torch.Generator().manual_seed(0)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=PEAK_RATE, momentum=0.9, weight_decay=5e-4)
        steps = max(settings.training_steps, WARM_UP_STEPS + MEMORY_STEPS)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, PEAK_RATE, total_steps=steps)

    def step(self, images, labels) -> None:
        """Take one step of stochastic gradient descent."""
        from torch.nn import functional

        self.optimizer.zero_grad()
        functional.cross_entropy(self.model(images), labels).backward()
        self.optimizer.step()
        self.schedule.step()
        tell(step=self.name)

    def batches(self):
        """Yield one epoch in a new random order."""
        import torch

        images, labels = self.train_set
        for chosen in torch.randperm(len(images), generator=self.shuffle).split(self.batch):
            yield images[chosen], labels[chosen]

    def epoch(self) -> None:
        """Train on every image once."""
        for images, labels in self.batches():
            self.step(images, labels)

    def accuracy(self) -> float:
        """Return the share of test images that the model gets right."""
        import torch

        images, labels = self.test_set
        self.model.eval()
        with torch.no_grad():
            guesses = torch.cat([self.model(part).argmax(1) for part in images.split(self.batch)])
        return float((guesses == labels).float().mean())


def digits(count: int, test_count: int):
    """Return scikit-learn's handwritten digits, enlarged and shuffled, as a training set and a test set."""
    import torch
    from sklearn.datasets import load_digits
    from torch.nn import functional

    pixels, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(0))[:count]
    images = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8)[order] / 8 - 1
    images = functional.interpolate(images, size=(SIZE, SIZE), mode="bilinear")
    labels = torch.tensor(labels)[order]
    return (images[test_count:], labels[test_count:]), (images[:test_count], labels[:test_count])


def build(bits: int | None):
    """Return the network, converted unless ``bits`` is None."""
    model = small_resnet()
    if bits is None:
        return model

    import actnn

    actnn.set_optimization_level("L2")
    actnn.config.activation_compression_bits = [bits]
    return actnn.QModule(model)


def measure_times(settings: Settings) -> dict[str, Any]:
    """Train all contestants, an epoch each in turns; return their accuracy and the median seconds of an epoch."""
    trainings = {name: Training(settings, name) for name in settings.contestants}
    epochs = {name: training.epoch for name, training in trainings.items()}
    times = harness.interleaved(epochs, settings.epochs, warm_up=0)
    return {
        name: {"accuracy": training.accuracy(), "seconds": harness.summary(times[name])["seconds"]}
        for name, training in trainings.items()
    }


def measure_memory(settings: Settings, name: str) -> dict[str, Any]:
    """Take a few steps on one batch; the first ones, which allocate what stays, are not counted."""
    training = Training(settings, name)
    images, labels = next(training.batches())

    def steps(count: int) -> None:
        for _ in range(count):
            training.step(images, labels)

    steps(WARM_UP_STEPS)
    peak = peak_growth(lambda: steps(MEMORY_STEPS))
    return {"peak": peak, "kept": kept_bytes(training.model, lambda: training.model(images))}


def peak_growth(work: Callable[[], None]) -> int | None:
    """Return by how many bytes this process grows at most during some work, None where the system does not tell."""
    try:
        reset_peak()
    except OSError:
        return None
    before = resident("VmRSS")
    work()
    return resident("VmHWM") - before


def tell(**message: Any) -> None:
    """Send a message to the parent."""
    print(json.dumps(message), flush=True)


MEASUREMENTS: dict[str, Callable[..., dict[str, Any]]] = {"times": measure_times, "memory": measure_memory}


def main(argv: Sequence[str]) -> int:
    """Carry out one measurement."""
    measurement, settings, *contestant = argv
    try:
        tell(result=MEASUREMENTS[measurement](Settings(**json.loads(settings)), *contestant))
    except ActnnError as error:
        tell(error=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
