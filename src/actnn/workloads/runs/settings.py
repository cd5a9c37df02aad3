"""What a run is asked to do: the settings that its result depends on, and where and how it is carried out."""

from __future__ import annotations

from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

from actnn.errors import ConfigError
from actnn.workloads.tasks import CLASSIFICATION
from actnn.workloads.training import Recipe


@dataclass(frozen=True)
class Settings:
    """Everything that the result of a run depends on; a checkpoint serves only a run with equal ones."""

    data: str
    data_dir: str | None
    size: int | None
    images: int | None
    augment: bool
    model: str
    level: str
    bits: float | None
    memory: int | None
    samples: bool
    epochs: int
    batch: int
    rate: float
    warm_up: float
    momentum: float
    weight_decay: float
    label_smoothing: float
    amp: str | None
    channels_last: bool
    seed: int
    compare: str | None
    optimizer: str = "sgd"
    schedule: str = "cosine"
    parallel: str | None = None
    sync_batch_norm: bool = True
    task: str = CLASSIFICATION

    @property
    def recipe(self) -> Recipe:
        """How weights learn."""
        return Recipe(
            rate=self.rate,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            label_smoothing=self.label_smoothing,
            warm_up=self.warm_up,
            bf16=self.amp == "bf16",
            channels_last=self.channels_last,
            optimizer=self.optimizer,
            schedule=self.schedule,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as plain data."""
        return asdict(self)

    def check_equal(self, saved: dict[str, Any], where: Path) -> None:
        """Raise ConfigError where a checkpoint belongs to a run with other settings; say which.

        More epochs may be asked for than before. Settings that the checkpoint's version did not know had defaults.
        """
        own = self.as_dict()
        known = {each.name: each.default for each in fields(self) if each.default is not MISSING}
        saved = known | saved
        differing = [name for name in own if own[name] != saved.get(name)]
        if differing == ["epochs"] and self.epochs > saved["epochs"]:
            return
        if differing:
            said = ", ".join(f"{flag(name)} {saved.get(name)} (now {own[name]})" for name in differing)
            raise ConfigError(
                f"the run in {where} was started with {said}: resume with the same settings, or name another --out."
            )


@dataclass(frozen=True)
class Options:
    """Where a run is kept and how it is carried out; its result does not depend on them."""

    out: Path
    resume: bool
    overwrite: bool
    checkpoint_every: Every
    log_every: int
    threads: int | None
    tensorboard: bool
    logger: str | None
    table: bool


@dataclass(frozen=True)
class Every:
    """How often something is done: after so many steps or so many seconds."""

    steps: int | None = None
    seconds: float | None = None

    def due(self, steps: int, seconds: float) -> bool:
        """Tell whether it is time again, so many steps and seconds after the last time."""
        return (self.steps is not None and steps >= self.steps) or (
            self.seconds is not None and seconds >= self.seconds
        )


def flag(name: str) -> str:
    """Return the argument that gives a setting."""
    return f"--{name.replace('_', '-')}"
