"""Cross entropy that keeps a code of the probabilities."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from paddle import Tensor

# Paddle has no public function for the gradient of a cross entropy alone; its own functions call these
from paddle import _C_ops as operators
from paddle.nn import functional as F

from actnn.operations.cross_entropy import Probabilities, parts_of_batch
from actnn.paddle.functions.kept import Function, first_order, forward, save, saved
from actnn.paddle.functions.maps import samples_of, with_part
from actnn.paddle.tensors import ARRAYS
from actnn.session.site import Site


class Options(NamedTuple):
    """What ``F.cross_entropy`` takes besides tensors and how losses are added up."""

    ignore_index: int
    soft_label: bool
    axis: int
    label_smoothing: float

    def targets(self, label: Tensor, x: Tensor) -> tuple[Tensor, bool]:
        """Return what the logits ``x`` are compared with, as Paddle's operator takes it, and whether it is weights."""
        soft = self.soft_label
        if self.label_smoothing > 0.0:
            if len(label.shape) == len(x.shape) - 1:
                label = F.one_hot(label, x.shape[-1])
            return F.label_smooth(label, epsilon=self.label_smoothing).astype(x.dtype), True
        return (label.unsqueeze(self.axis) if len(label.shape) == len(x.shape) - 1 else label), soft


def cross_entropy(site: Site, x: Tensor, label: Tensor, options: Options, reduction: str) -> Tensor:
    """Return ``F.cross_entropy`` of logits without weights of classes, which keeps a code of the probabilities."""
    losses = CrossEntropyFunction.record(site, x, label, options)
    if reduction == "sum":
        return losses.sum()
    if reduction == "none":
        return losses.squeeze(options.axis) if len(label.shape) == len(x.shape) - 1 else losses
    if options.ignore_index < 0:
        # as in Paddle, which counts ignored rows too where their index is below zero
        return losses.mean()
    counted = (label != options.ignore_index).astype(losses.dtype).sum()
    return losses.sum() / counted.clip(min=1.0)


class CrossEntropyFunction(Function):
    """The cross entropy of each row of logits; the axis of classes has size 1 in the result."""

    @staticmethod
    @forward
    def forward(ctx: Any, x: Tensor, label: Tensor, options: Options) -> Tensor:
        batched = options.axis % len(x.shape) > 0
        parts = parts_of_batch(ctx.site, x.shape[0], math.prod(x.shape[1:])) if batched else [range(x.shape[0])]
        probabilities = Probabilities(parts)
        ctx.options, ctx.probabilities = options, probabilities
        losses, kept = None, []
        for part in parts:
            own, of_part = (samples_of(given, part) if batched else given for given in (x, label))
            targets, soft = options.targets(of_part, own)
            fixed = (soft, True, True, options.ignore_index, options.axis)
            p, loss = operators.cross_entropy_with_softmax(own, targets, *fixed)
            # exact training keeps the probabilities themselves
            kept.append(probabilities.keep(ARRAYS, p, ctx.site, ARRAYS.nbytes(p), options.axis))
            losses = with_part(losses, loss, part, parts)
        save(ctx, label, *kept)
        assert losses is not None
        return losses

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        label, *kept = saved(ctx)
        options, parts = ctx.options, ctx.probabilities.parts
        found = None
        for place, part in enumerate(parts):
            whole = len(parts) == 1
            p = ctx.probabilities.decoded(place, ctx.site, kept[place]).astype(ctx.dtype)
            of_part, own = (given if whole else samples_of(given, part) for given in (label, grad))
            targets, soft = options.targets(of_part, p)
            fixed = (soft, True, True, options.ignore_index, options.axis)
            of_logits = operators.cross_entropy_with_softmax_grad(targets, p, own.astype(p.dtype), *fixed)
            found = with_part(found, of_logits, part, parts)
        assert found is not None
        return found, None
