"""One contestant with its model, batch and optimizer: what is the same in every framework."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from actnn.errors import ConfigError
from actnn.kernels import heap
from actnn.workloads import peers
from actnn.workloads.task import Task
from actnn.workloads.training import compressed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MOMENTUM = 0.9
SGD, ADAMW = "sgd", "adamw"


class Trainee(ABC):
    """A contestant, made by ``Trainee(task, contestant)``; equal tasks give equal weights and equal batches.

    A framework sets ``model`` and ``optimizer`` (SGD with momentum, or AdamW), and loads the task's batch.
    """

    model: Any
    optimizer: Any

    @abstractmethod
    def load(self, task: Task) -> None:
        """Take the batch of a task, which may be of another size than the one before."""

    @abstractmethod
    def take(self, images: NDArray[np.float32], labels: NDArray[np.int64]) -> None:
        """Take some images ``[count, channels, height, width]`` and their labels instead."""

    def read(self, texts: NDArray[np.int64]) -> None:
        """Take some texts ``[count, length]`` as tokens instead."""
        raise ConfigError(f"{type(self.model).__name__} does not learn from texts: expected a model of language.")

    @abstractmethod
    def outputs(self) -> Any:
        """Return what the model makes of the batch."""

    @abstractmethod
    def examples(self) -> Iterable[Any]:
        """Return the tensors of the batch."""

    @abstractmethod
    def loss(self, outputs: Any) -> Any:
        """Return the loss of what the model gave."""

    @abstractmethod
    def clear(self, keep: bool = False) -> None:
        """Forget the gradients of the last step; ``keep`` their memory."""

    @abstractmethod
    def counter(self) -> Any:
        """Return a context that counts what autograd keeps, as ``total``."""

    @abstractmethod
    def layers(self) -> Iterable[Any]:
        """Return all modules of the model, the model among them."""

    @abstractmethod
    def bytes_of(self, tensors: Iterable[Any]) -> int:
        """Return the bytes of some tensors."""

    def forward(self) -> Any:
        """Return the loss of the batch."""
        return self.loss(self.outputs())

    def finish(self, loss: Any) -> None:
        """Do the rest of a step: backward and update."""
        loss.backward()
        self.optimizer.step()

    def step(self, keep_gradients: bool = False) -> float:
        """Take one step and return its loss."""
        self.clear(keep_gradients)
        loss = self.forward()
        self.finish(loss)
        return float(loss.item())

    def kept(self) -> dict[str, int]:
        """Return ``kept_bytes``, all that autograd keeps after a forward, and ``loss_bytes``, the loss's share.

        A language model computes its own loss, which counts as a part of the network.
        """
        with self.counter() as kept:
            outputs = self.outputs()
            network = kept.total
            loss = self.loss(outputs)
        del outputs, loss
        return {"kept_bytes": kept.total, "loss_bytes": kept.total - network}

    def leaf_count(self) -> int:
        """Return how many modules of the model hold no other one."""
        return sum(not any(True for _ in layer.children()) for layer in self.layers())

    def own_bytes(self) -> int:
        """Return the bytes of parameters, buffers, gradients, the optimizer's state and the batch."""
        # each parameter has a gradient and a momentum
        parameters = 3 * self.bytes_of(self.model.parameters())
        return parameters + self.bytes_of((*self.model.buffers(), *self.examples()))


def unchanged(model: Any) -> Any:
    """Return a model as it is."""
    return model


def in_kept_heap(model: Any) -> Any:
    """Return a model as it is; from now on the C library keeps freed blocks in this process."""
    heap.keep_blocks()
    return model


def contest(task: Task, contestant: str, model: Any, plain: Mapping[str, Callable[[Any], Any]]) -> Any:
    """Return a model as a contestant trains it; ``plain`` are those that make no codes."""
    if contestant in plain:
        return plain[contestant](model)
    if contestant in peers.PEERS:
        return peers.applied(contestant, task.framework, model, task.seed)
    settings: dict[str, Any] = {"share_codes": task.share_codes, "rounding": task.rounding}
    return compressed(model, contestant, task.width_of(contestant), seed=task.seed, **settings)
