"""What trainings tell while they run and what they reached, and who shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from actnn.amounts import readable


@dataclass(frozen=True)
class Figures:
    """What one step of one training tells; what was not measured is None."""

    loss: float
    images_per_second: float
    kept_bytes: int | None
    resident_bytes: int | None

    def __str__(self) -> str:
        words = [f"loss {self.loss:.3f}", f"{self.images_per_second:.0f} images/s"]
        amounts = {"kept": self.kept_bytes, "resident": self.resident_bytes}
        words += [f"{name} {readable(amount)}" for name, amount in amounts.items() if amount is not None]
        return " · ".join(words)


@dataclass
class Outcome:
    """What one training reached so far: its last epoch's figures, the seconds of all its steps, and bytes kept.

    ``score`` is by the ``metric`` of that name.
    ``within_budget`` is whether any step kept no more than a memory budget allows, None where there is none.
    """

    loss: float | None = None
    score: float | None = None
    seconds: float = 0.0
    kept_bytes: int | None = None
    within_budget: bool | None = None
    metric: str = "accuracy"

    @staticmethod
    def of(saved: Mapping[str, Any]) -> Outcome:
        """Return the outcome that a checkpoint holds; one of an earlier form names its metric."""
        saved = dict(saved)
        if "accuracy" in saved:
            saved["score"] = saved.pop("accuracy")
        return Outcome(**saved)

    def as_log(self) -> dict[str, Any]:
        """Return this for a log, where the score has the name of its metric."""
        figures = asdict(self)
        return {figures.pop("metric"): figures.pop("score")} | figures


class Display(Protocol):
    """Shows how far a run is."""

    def step(self, name: str, taken: int, figures: Figures) -> None:
        """Show the figures of a training's last step, and how many it has taken."""

    def epoch(self, name: str, number: int, epochs: int, outcome: Outcome, speed: float) -> None:
        """Say what a training reached in an epoch, and how many images a second it took so far."""


# opens the display of trainings by name, which have so many steps and took so many before
Opens = Callable[[Iterable[str], int, int], AbstractContextManager[Display]]
