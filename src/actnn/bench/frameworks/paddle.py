"""Contestants in PaddlePaddle; models are those of ``paddle.vision``."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from actnn.bench.task import CHECKPOINT, EXACT, Task
from actnn.cli.training import compressed
from actnn.errors import ConfigError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from paddle import Tensor, nn

RATE, MOMENTUM = 0.01, 0.9
BLOCKS = ("BasicBlock", "BottleneckBlock", "DenseLayer", "InvertedResidual")


class Trainee:
    """One contestant; see the protocol of the same name."""

    def __init__(self, task: Task, contestant: str) -> None:
        import paddle

        if task.channels_last:
            raise UnsupportedError("Paddle's models have no channels_last layout: leave --channels-last out.")
        paddle.set_device("cpu")
        paddle.base.core.set_num_threads(task.threads)
        paddle.seed(0)
        self.model = contest(task, contestant, build(task.model, task.classes))
        self.optimizer = paddle.optimizer.Momentum(RATE, MOMENTUM, parameters=self.model.parameters())
        paddle.seed(1)
        self.images = paddle.randn([task.batch, 3, task.height, task.width])
        self.labels = paddle.randint(0, task.classes, [task.batch])

    def forward(self) -> Tensor:
        return self.loss(self.model(self.images))

    def loss(self, outputs: Tensor) -> Tensor:
        """Return the loss of what the model gave."""
        from paddle.nn import functional

        return functional.cross_entropy(outputs, self.labels)

    def finish(self, loss: Tensor) -> None:
        loss.backward()
        self.optimizer.step()

    def clear(self, keep: bool = False) -> None:
        self.optimizer.clear_grad(set_to_zero=keep)

    def kept(self) -> dict[str, int]:
        from actnn.paddle.memory import KeptBytes

        with KeptBytes(self.model) as kept:
            outputs = self.model(self.images)
            network = kept.total
            loss = self.loss(outputs)
        del outputs, loss
        return {"kept_bytes": kept.total, "loss_bytes": kept.total - network}

    def own_bytes(self) -> int:
        def total(tensors: Any) -> int:
            return sum(tensor.size * tensor.element_size() for tensor in tensors)

        # each parameter has a gradient and a velocity
        return 3 * total(self.model.parameters()) + total(self.model.buffers()) + total((self.images, self.labels))


def build(name: str, classes: int) -> nn.Layer:
    """Return a fresh model by the name of its function in ``paddle.vision.models``."""
    from paddle.vision import models

    known = [each for each in models.__all__ if each.islower()]
    if name not in known:
        close = difflib.get_close_matches(name, known, n=3) or known
        raise ConfigError(f"Paddle has no model {name!r}: expected a name such as {', '.join(close)}.")
    return getattr(models, name)(num_classes=classes)


def contest(task: Task, contestant: str, model: nn.Layer) -> nn.Layer:
    """Return a model as a contestant trains it."""
    if contestant in PLAIN:
        return PLAIN[contestant](model)
    settings: dict[str, Any] = {"share_codes": task.share_codes, "rounding": task.rounding}
    return compressed(model, contestant, task.width_of(contestant), **settings)


def recomputed(model: nn.Layer) -> nn.Layer:
    """Let every block keep only its input and compute the rest anew in backward."""
    from paddle.distributed.fleet.utils import recompute

    blocks = [layer for layer in model.sublayers() if type(layer).__name__ in BLOCKS]
    if not blocks:
        raise UnsupportedError(
            f"a {type(model).__name__} cannot be cut into parts for checkpointing: expected layers of a type among "
            f"{', '.join(BLOCKS)}. Leave the contestant checkpoint out."
        )
    for block in blocks:
        block.forward = lambda x, forward=block.forward: recompute(forward, x)
    return model


PLAIN: dict[str, Callable[[nn.Layer], nn.Layer]] = {EXACT: lambda model: model, CHECKPOINT: recomputed}
