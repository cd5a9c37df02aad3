"""What a network is trained for: its data, its model, the loss of a batch, and by what it is judged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from actnn.workloads.metrics import Metric

if TYPE_CHECKING:
    from torch import Tensor, nn

    from actnn.workloads.datasets import DataSet
    from actnn.workloads.runs.settings import Settings
    from actnn.workloads.training import Recipe

# calls a model as a training does: in its precision, with all processes where there are several
Call = Callable[..., Any]


class Goal(ABC):
    """A task; what a training learns from is whatever the batches of its data set are."""

    metric: Metric
    # whether a batch of one example is too small, as for BatchNorm
    needs_two = True

    @abstractmethod
    def load(self, settings: Settings) -> DataSet:
        """Return the data of a run."""

    @abstractmethod
    def build(self, settings: Settings, data: DataSet) -> nn.Module:
        """Return a fresh model for some data, or raise ConfigError where it cannot learn from them."""

    @abstractmethod
    def loss(self, call: Call, given: Any, wanted: Any, data: DataSet, recipe: Recipe) -> Tensor:
        """Return the loss of a model on one batch."""

    @abstractmethod
    def score(self, call: Call, data: DataSet, batch: int, after_batch: Callable[[], object]) -> float:
        """Return what a model in evaluation reaches on the data to test on, so many examples at a time."""
