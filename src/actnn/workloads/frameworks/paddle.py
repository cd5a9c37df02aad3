"""Contestants in PaddlePaddle; models are those of ``paddle.vision``, and the small ResNet."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from actnn.errors import ConfigError, UnsupportedError
from actnn.workloads.frameworks.trainee import ADAMW, MOMENTUM, Trainee, contest, in_kept_heap, unchanged
from actnn.workloads.small_resnet import small_resnet_of_paddle
from actnn.workloads.task import CHECKPOINT, EXACT, FLOOR, KEPT_HEAP, SWAP, Task

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from paddle import Tensor

SMALL_RESNET = "small_resnet"
BLOCKS = ("BasicBlock", "BottleneckBlock", "DenseLayer", "InvertedResidual")


class PaddleTrainee(Trainee):
    """One contestant."""

    images: Tensor
    labels: Tensor

    def __init__(self, task: Task, contestant: str) -> None:
        import paddle

        if task.channels_last:
            raise UnsupportedError("Paddle's models have no channels_last layout: leave --channels-last out.")
        paddle.device.set_device("cpu")
        paddle.base.core.set_num_threads(task.threads)
        # Paddle read it when it was imported; the kernels do in every call
        os.environ["OMP_NUM_THREADS"] = str(task.threads)
        paddle.seed(task.seed)
        self.contestant = contestant
        self.model = contest(task, contestant, build(task.model, task.classes), PLAIN)
        if task.optimizer == ADAMW:
            self.optimizer = paddle.optimizer.AdamW(task.rate, parameters=self.model.parameters())
        else:
            self.optimizer = paddle.optimizer.Momentum(task.rate, MOMENTUM, parameters=self.model.parameters())
        self.load(task)

    def load(self, task: Task) -> None:
        import paddle

        paddle.seed(1)
        self.images = paddle.randn([task.batch, 3, task.height, task.width])
        self.labels = paddle.randint(0, task.classes, [task.batch])

    def take(self, images: NDArray[np.float32], labels: NDArray[np.int64]) -> None:
        import paddle

        self.images, self.labels = paddle.to_tensor(images), paddle.to_tensor(labels)

    def outputs(self) -> Any:
        return self.model(self.images)

    def examples(self) -> Iterable[Tensor]:
        return (self.images, self.labels)

    def loss(self, outputs: Tensor) -> Tensor:
        from paddle.nn import functional

        return functional.cross_entropy(outputs, self.labels)

    def clear(self, keep: bool = False) -> None:
        self.optimizer.clear_grad(set_to_zero=keep)

    def counter(self) -> Any:
        from actnn.paddle.memory import KeptBytes

        return KeptBytes(self.model)

    def kept(self) -> dict[str, int]:
        if self.contestant != SWAP:
            return super().kept()
        # that level has the one pair of hooks that Paddle allows, and counts what it leaves in memory itself
        outputs = self.outputs()
        with self.counter() as kept:
            self.loss(outputs)
        report = self.model.report()
        network = report.kept_bytes - report.swapped_bytes
        return {"kept_bytes": network + kept.total, "loss_bytes": kept.total}

    def layers(self) -> Iterable[Any]:
        yield from self.model.sublayers(include_self=True)

    def bytes_of(self, tensors: Iterable[Tensor]) -> int:
        return sum(tensor.size * tensor.element_size() for tensor in tensors)


def build(name: str, classes: int) -> Any:
    """Return a fresh model by the name of its function in ``paddle.vision.models``, ``vgg16_bn`` with batch norm."""
    from paddle.vision import models

    if name == SMALL_RESNET:
        return small_resnet_of_paddle(classes)
    known: dict[str, dict[str, Any]] = {each: {} for each in models.__all__ if each.islower()}
    known |= {f"{each}_bn": {"batch_norm": True} for each in known if each.startswith("vgg")}
    if name not in known:
        close = difflib.get_close_matches(name, [*known, SMALL_RESNET], n=3) or known
        raise ConfigError(f"Paddle has no model {name!r}: expected a name such as {', '.join(close)}.")
    return getattr(models, name.removesuffix("_bn"))(num_classes=classes, **known[name])


def recomputed(model: Any) -> Any:
    """Let every block keep only its input and compute the rest anew in backward."""
    from paddle.distributed.fleet.utils import recompute

    blocks = [layer for layer in model.sublayers() if type(layer).__name__ in BLOCKS]
    if not blocks:
        raise UnsupportedError(
            f"a {type(model).__name__} cannot be cut into parts for checkpointing: expected layers of a type among "
            f"{', '.join(BLOCKS)}. Leave the contestant checkpoint out."
        )
    for block in blocks:
        block.forward = partial(recompute, block.forward)
    return model


PLAIN: dict[str, Callable[[Any], Any]] = {
    EXACT: unchanged,
    KEPT_HEAP: in_kept_heap,
    FLOOR: unchanged,
    CHECKPOINT: recomputed,
}
