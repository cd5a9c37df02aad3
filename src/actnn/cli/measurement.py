"""What the demo measures, in processes of its own: one for all times, in turns, and one for each memory figure.

``python -m actnn.cli.measurement times|memory SETTINGS [CONTESTANT]`` writes lines of JSON: ``{"step": contestant}``
after every step, and at the end ``{"result": …}`` or ``{"error": …}``.
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
from actnn.cli.datasets import TEST_SHARE, digits
from actnn.cli.small_resnet import small_resnet
from actnn.cli.training import Training, compressed, step_count
from actnn.errors import ActnnError

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
        return step_count(self.images - self.test_images, self.batch, self.epochs)


def training(settings: Settings, name: str) -> Training:
    """Return a contestant; all of them begin with the same weights and see the same images."""
    import torch

    torch.manual_seed(0)
    bits = settings.contestants[name]
    model = small_resnet() if bits is None else compressed(small_resnet(), "L2", bits)
    return Training(
        model,
        digits(settings.images, settings.test_images),
        batch=settings.batch,
        steps=max(settings.training_steps, WARM_UP_STEPS + MEMORY_STEPS),
        after_step=lambda: tell(step=name),
    )


def measure_times(settings: Settings) -> dict[str, Any]:
    """Train all contestants, an epoch each in turns; return their accuracy and the median seconds of an epoch."""
    trainings = {name: training(settings, name) for name in settings.contestants}
    epochs = {name: contestant.epoch for name, contestant in trainings.items()}
    times = harness.interleaved(epochs, settings.epochs, warm_up=0)
    return {
        name: {"accuracy": contestant.accuracy(), "seconds": harness.summary(times[name])["seconds"]}
        for name, contestant in trainings.items()
    }


def measure_memory(settings: Settings, name: str) -> dict[str, Any]:
    """Take a few steps on one batch; the first ones, which allocate what stays, are not counted."""
    contestant = training(settings, name)
    positions = next(contestant.batches())
    images = contestant.data.train.images[positions]

    def steps(count: int) -> None:
        for _ in range(count):
            contestant.step(positions)

    steps(WARM_UP_STEPS)
    peak = peak_growth(lambda: steps(MEMORY_STEPS))
    return {"peak": peak, "kept": kept_bytes(contestant.model, lambda: contestant.model(images))}


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
