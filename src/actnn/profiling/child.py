"""What a profile measures, in a process of its own for exact and for compressed training."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actnn.errors import ActnnError
from actnn.measuring.memory import reset_peak, resident
from actnn.measuring.processes import Told, in_one_line
from actnn.model.wrapper import session_of
from actnn.profiling.advice import forecasts
from actnn.profiling.blocks import pieces
from actnn.profiling.steps import summary
from actnn.profiling.timeline import Timeline
from actnn.profiling.trace import ROOT
from actnn.profiling.tracing import Tracer
from actnn.workloads import language, models
from actnn.workloads.batch import Batch
from actnn.workloads.training import compressed

if TYPE_CHECKING:
    from torch import Tensor, nn

    from actnn.session.session import Session

# sites learn their readers in the second step, and widths settle in the third
WARM_UP = 4
# momentum and readers are known in the second, widths in the third
NEED_STEPS = 3


@dataclass(frozen=True)
class Settings:
    """What to profile; ``level`` None is exact training, and the ``input`` of a language model its count of tokens."""

    model: str
    batch: int
    input: tuple[int, ...]
    classes: int
    level: str | None
    bits: float | None


class Profiled:
    """One model that takes training steps on one batch, its gradients and the optimizer's state always allocated."""

    def __init__(self, settings: Settings) -> None:
        import torch

        torch.manual_seed(0)
        self.settings = settings
        texts = language.find(settings.model)
        plain = build(settings) if texts is None else texts.build()
        plain.train()
        self.model: Any = plain
        self.session: Session | None = None
        if settings.level is not None:
            self.model = compressed(plain, settings.level, settings.bits)
            self.session = session_of(self.model)
        images = Batch((torch.randn(settings.batch, *settings.input),), {}, None)
        self.batch = images if texts is None else texts.batch(settings.batch)
        self.labels: dict[tuple[int, ...], Tensor] = {}
        if not any(parameter.requires_grad for parameter in plain.parameters()):
            raise ActnnError(f"the model {settings.model!r} has no parameters to train.")
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)

    def forward(self) -> Tensor:
        """Return the loss."""
        outputs = self.batch.outputs(self.model)
        return self.batch.loss(outputs) if self.batch.named else self.loss(outputs)

    def optimize(self) -> None:
        """Take the step, and leave gradients of 0 where they are."""
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)

    def step(self) -> None:
        """Take one whole step."""
        loss = self.forward()
        loss.backward()
        del loss
        self.optimize()

    def loss(self, output: Any) -> Tensor:
        """Return a loss of whatever a model of images returns: cross entropy of scores, else the mean square."""
        import torch
        from torch.nn import functional

        parts: list[Tensor] = []
        for tensor in tensors(output):
            if tensor.dim() < 2:
                parts.append(tensor.float().square().mean())
                continue
            shape = (tensor.shape[0], *tensor.shape[2:])
            if shape not in self.labels:
                self.labels[shape] = torch.randint(0, tensor.shape[1], shape)
            parts.append(functional.cross_entropy(tensor, self.labels[shape]))
        parts = [part for part in parts if part.requires_grad]
        if not parts:
            raise ActnnError(f"the model {self.settings.model!r} returns nothing that has a gradient.")
        return parts[0] if len(parts) == 1 else torch.stack(parts).sum()

    def always_there(self) -> dict[str, int]:
        """Return the bytes of weights, gradients and the optimizer's state."""
        parameters = list(self.model.parameters())
        state = [value for own in self.optimizer.state.values() for value in own.values()]
        return {
            "weights": nbytes([*parameters, *self.model.buffers()]),
            "gradients": nbytes(parameter.grad for parameter in parameters),
            "optimizer": nbytes(state),
        }


def build(settings: Settings) -> nn.Module:
    """Return a model of images."""
    return models.build(settings.model, classes=settings.classes, channels=settings.input[0])


def nbytes(given: Iterable[Any]) -> int:
    """Return the bytes of those that are tensors."""
    return sum(value.numel() * value.element_size() for value in given if hasattr(value, "element_size"))


def tensors(output: Any) -> Iterator[Tensor]:
    """Yield the tensors of an output that have a gradient."""
    if hasattr(output, "requires_grad"):
        if output.requires_grad:
            yield output
    elif isinstance(output, Mapping):
        yield from tensors(list(output.values()))
    elif isinstance(output, Sequence) and not isinstance(output, str):
        for part in output:
            yield from tensors(part)


def measure(given: Mapping[str, Any], tell: Told) -> dict[str, Any]:
    """Return everything that a report shows of one contestant."""
    settings = Settings(**{**given, "input": tuple(given["input"])})
    with not_ended(settings):
        return measured(settings)


def need(given: Mapping[str, Any], tell: Told) -> dict[str, int | None]:
    """Return the private memory that a process needs for training steps, None where the system does not tell."""
    settings = Settings(**{**given, "input": tuple(given["input"])})
    with not_ended(settings), one_line(settings):
        profiled = Profiled(settings)
        peak = 0
        for _ in range(NEED_STEPS):
            try:
                reset_peak()
            except OSError:
                return {"bytes": None}
            private = resident("VmData") - resident("VmRSS")
            profiled.step()
            peak = private + resident("VmHWM")
    return {"bytes": peak}


def measured(settings: Settings) -> dict[str, Any]:
    """Return everything that a report shows of one contestant, unless the user's code ends this process."""
    with one_line(settings):
        profiled = Profiled(settings)
        profiled.step()
    for _ in range(WARM_UP - 1):
        profiled.step()
    before, peak = true_peak(profiled.step)
    step = Tracer(profiled.model, profiled.session).traced(profiled.forward, profiled.optimize)
    timeline = Timeline(step, pieces(step))
    result = summary(step, timeline) | {"true_peak": peak, "resident": before, "always_there": profiled.always_there()}
    result["kinds"] = {name or ROOT: type(layer).__name__ for name, layer in profiled.model.named_modules()}
    if profiled.session is not None:
        result |= of_session(profiled, profiled.session)
        policy = profiled.session.policy
        # only where all codes are there, and in memory, is it known what other widths would make of them
        tells = policy.compress and policy.compress_batch_norm and not policy.swap
        result["forecasts"] = [vars(found) for found in forecasts(timeline, result)] if tells else []
    return result


@contextmanager
def one_line(settings: Settings) -> Iterator[None]:
    """Say in one line what is wrong with a model that cannot be made, or cannot take a step."""
    try:
        yield
    except ActnnError:
        raise
    except Exception as problem:
        # the user's code may raise anything
        shape = "×".join(map(str, (settings.batch, *settings.input)))
        raise ActnnError(
            f"the model {settings.model!r} fails on an input of {shape}: {in_one_line(problem)}"
        ) from problem


@contextmanager
def not_ended(settings: Settings) -> Iterator[None]:
    """Say in one line which function of the user's ended the process."""
    try:
        yield
    except SystemExit as leaving:
        # exit() is a frame of Python's own
        frames = [frame for frame in traceback.extract_tb(leaving.__traceback__) if not frame.filename.startswith("<")]
        place = f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}"
        raise ActnnError(
            f"the model {settings.model!r} ended the process with {leaving!r} in {frames[-1].name} ({place}): "
            "expected a model that returns. Raise an error there instead."
        ) from leaving


def true_peak(step: Callable[[], None]) -> tuple[int | None, int | None]:
    """Return what is resident before a step and by how much it grows; None where the system does not tell."""
    try:
        reset_peak()
    except OSError:
        return None, None
    before = resident("VmRSS")
    step()
    return before, resident("VmHWM") - before


def of_session(profiled: Profiled, session: Session) -> dict[str, Any]:
    """Return what the session knows of each layer: accounts of the traced step, and predictions from one more."""
    report = session.report()
    session.predictions = {}
    loss = profiled.forward()
    loss.backward()
    sensitivity: dict[str, float] = {}
    for code in session.planner.records:
        sensitivity[code.site.name] = sensitivity.get(code.site.name, 0.0) + code.sensitivity
    norms = {
        name or ROOT: sum(float(own.grad.square().sum()) for own in layer.parameters(False) if own.grad is not None)
        for name, layer in profiled.model.named_modules()
    }
    return {
        "rows": [vars(row) for row in report.rows],
        "average_bits": report.average_bits,
        "left_exact": [list(left) for left in report.left_exact],
        "sensitivity": sensitivity,
        "variance": dict(session.predictions),
        "squared_norms": {name: norm for name, norm in norms.items() if norm},
    }
