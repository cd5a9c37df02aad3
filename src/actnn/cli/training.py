"""One training run of the demo in a process of its own.

Settings come as JSON in the first argument, and a line on standard input begins each turn. Lines of JSON go out: one
for every step, one that passes the turn back, and at the end the outcome. Runs that take turns see the same
disturbances from whatever else the machine does, so that their times can be compared.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from actnn.cli.peak_memory import peak_growth
from actnn.cli.small_resnet import small_resnet
from actnn.errors import ActnnError

SIZE = 32
TEST_SHARE = 5
PEAK_RATE = 0.1
WARM_UP_STEPS = 2
MEMORY_STEPS = 4


@dataclass(frozen=True)
class Run:
    """What to train, and whether to measure memory (a few steps) or accuracy and time (all epochs)."""

    bits: int | None
    memory: bool
    epochs: int
    images: int
    batch: int
    seed: int = 0

    @property
    def name(self) -> str:
        """What the table calls the contestant."""
        return "exact" if self.bits is None else f"{self.bits}-bit codes"

    @property
    def test_images(self) -> int:
        """How many images are held back to measure accuracy."""
        return self.images // TEST_SHARE

    @property
    def turns(self) -> int:
        """How many turns the run takes: one an epoch."""
        return 1 if self.memory else self.epochs

    @property
    def steps(self) -> int:
        """How many steps the run takes."""
        if self.memory:
            return WARM_UP_STEPS + MEMORY_STEPS
        return self.epochs * -(-(self.images - self.test_images) // self.batch)


@dataclass(frozen=True)
class Outcome:
    """What a run measured; the fields of the other kind of run stay None. ``seconds`` is the median of the epochs."""

    accuracy: float | None = None
    seconds: float | None = None
    peak: int | None = None
    kept: int | None = None


class Training:
    """A model, its data, its optimizer and its learning rates."""

    def __init__(self, run: Run) -> None:
        import torch

        torch.manual_seed(run.seed)
        self.run = run
        self.train_set, self.test_set = digits(run.images, run.test_images)
        self.model = build(run.bits)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=PEAK_RATE, momentum=0.9, weight_decay=5e-4)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, PEAK_RATE, total_steps=run.steps)

    def step(self, images, labels) -> None:
        """Take one step of stochastic gradient descent."""
        from torch.nn import functional

        self.optimizer.zero_grad()
        functional.cross_entropy(self.model(images), labels).backward()
        self.optimizer.step()
        self.schedule.step()
        tell(steps=1)

    def batches(self) -> Iterator[tuple]:
        """Yield one epoch in a new random order."""
        import torch

        images, labels = self.train_set
        for chosen in torch.randperm(len(images)).split(self.run.batch):
            yield images[chosen], labels[chosen]

    def accuracy(self) -> float:
        """Return the share of test images that the model gets right."""
        import torch

        images, labels = self.test_set
        self.model.eval()
        with torch.no_grad():
            guesses = torch.cat([self.model(part).argmax(1) for part in images.split(self.run.batch)])
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


def tell(**message: Any) -> None:
    """Send a message to the parent."""
    print(json.dumps(message), flush=True)


def wait_for_turn() -> None:
    """Pass the turn to the parent until it comes back; end where the parent has ended."""
    tell(turn="over")
    if not sys.stdin.readline():
        sys.exit(1)


def measure_time(run: Run) -> Outcome:
    """Train for all epochs."""
    training = Training(run)
    seconds = []
    for _ in range(run.epochs):
        wait_for_turn()
        begin = time.perf_counter()
        for images, labels in training.batches():
            training.step(images, labels)
        seconds.append(time.perf_counter() - begin)
    return Outcome(accuracy=training.accuracy(), seconds=statistics.median(seconds))


def measure_memory(run: Run) -> Outcome:
    """Take a few steps on one batch; the first ones, which allocate what stays, are not counted."""
    training = Training(run)
    images, labels = next(training.batches())
    wait_for_turn()

    def steps(count: int) -> None:
        for _ in range(count):
            training.step(images, labels)

    steps(WARM_UP_STEPS)
    peak = peak_growth(lambda: steps(MEMORY_STEPS))
    return Outcome(peak=peak, kept=kept_for_backward(training.model, images))


def kept_for_backward(model, images) -> int:
    """Return the bytes that autograd keeps after a forward, parameters left out.

    Memory that several layers keep, such as a ReLU's output that is the next convolution's input, counts once.
    """
    from torch.autograd.graph import saved_tensors_hooks

    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        output = model(images)  # holds what is kept, so that no address is used twice
    del output
    return sum(kept.values())


def main(settings: str) -> int:
    """Carry out the run that ``settings`` describes."""
    run = Run(**json.loads(settings))
    try:
        outcome = measure_memory(run) if run.memory else measure_time(run)
    except ActnnError as error:
        tell(error=str(error))
        return 1
    tell(outcome=asdict(outcome))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
