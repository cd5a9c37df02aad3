"""What the demo measures of each contestant: times, in a process in turns with the other's, and memory in another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from actnn.measuring import timing
from actnn.measuring.memory import peak_growth, reset_peak
from actnn.measuring.processes import Told
from actnn.measuring.turns import Baton
from actnn.workloads.datasets import TEST_SHARE, digits
from actnn.workloads.small_resnet import small_resnet
from actnn.workloads.training import Training, compressed, step_count

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


def training(settings: Settings, name: str, tell: Told) -> Training:
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
        after_step=lambda: tell(name),
    )


def settings_of(settings: Settings, name: str) -> dict[str, Any]:
    """Return what the functions below are given."""
    return {"settings": asdict(settings), "contestant": name}


def times(given: Mapping[str, Any], tell: Told) -> dict[str, Any]:
    """Train a contestant, an epoch in each of its turns; return its accuracy and the median seconds of an epoch."""
    settings = Settings(**given["settings"])
    contestant = training(settings, given["contestant"], tell)
    seconds = Baton.of(given).seconds(contestant.epoch, settings.epochs)
    return {"accuracy": contestant.score(), "seconds": timing.summary(seconds)["seconds"]}


def memory(given: Mapping[str, Any], tell: Told) -> dict[str, Any]:
    """Take a few steps on one batch; the first ones, which allocate what stays, are not counted."""
    from actnn.torch.memory import KeptBytes

    contestant = training(Settings(**given["settings"]), given["contestant"], tell)
    positions = next(contestant.batches())
    images, _ = contestant.data.train.batch(positions, None)

    def steps(count: int) -> None:
        for _ in range(count):
            contestant.step(positions)

    steps(WARM_UP_STEPS)
    peak = peak_if_told(lambda: steps(MEMORY_STEPS))
    with KeptBytes(contestant.model) as kept:
        contestant.model(images)
    return {"peak": peak, "kept": kept.total}


def peak_if_told(work: Callable[[], object]) -> int | None:
    """Return by how many bytes this process grows at most during some work, None where the system does not tell."""
    try:
        reset_peak()
    except OSError:
        return None
    return peak_growth(work)
