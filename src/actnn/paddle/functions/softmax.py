"""Softmax and its logarithm, which keep a code of the probabilities."""

from __future__ import annotations

from typing import Any

import paddle
from paddle import Tensor
from paddle.nn import functional as F

from actnn.operations.kept import Kept, counted_once
from actnn.operations.rectifiers import tag_output
from actnn.operations.softmax import gradient, keep_probabilities, log_softmax_rule, softmax_rule
from actnn.paddle.functions.kept import Function, first_order, forward, save, saved
from actnn.paddle.tensors import ARRAYS
from actnn.session.site import Readers, Site


def softmax(site: Site, x: Tensor, axis: int, dtype: Any = None) -> Tensor:
    """Return ``F.softmax``, which keeps a code of its output; readers of the output find that code."""
    made: list[Kept] = []
    y = SoftmaxFunction.record(site, x, axis, dtype, made)
    (kept,) = made
    # what is kept as it is would live as long as its tag, which goes with it
    shared = kept if kept.reading.layout is not None else None
    site.keeps(0, tag_output(ARRAYS, y, shared, site, Readers()))
    return y


def log_softmax(site: Site, x: Tensor, axis: int, dtype: Any = None) -> Tensor:
    """Return ``F.log_softmax``, which keeps a code of the probabilities."""
    y = LogSoftmaxFunction.record(site, x, axis, dtype)
    site.keeps(0, counted_once(ARRAYS, y, site))
    return y


class SoftmaxFunction(Function):
    """``F.softmax`` that keeps a code of its output, which it adds to ``made``."""

    @staticmethod
    @forward
    def forward(ctx: Any, x: Tensor, axis: int, dtype: Any, made: list[Kept]) -> Tensor:
        y = F.softmax(x, axis, dtype)
        kept = keep_probabilities(ARRAYS, y, ctx.site)
        ctx.reading, ctx.axis = kept.reading, axis % len(x.shape)
        save(ctx, *kept.tensors)
        made.append(kept)
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        found: Tensor = gradient(softmax_rule, ctx.site, ctx.reading, saved(ctx), grad, ctx.axis)
        return found


class LogSoftmaxFunction(Function):
    """``F.log_softmax`` that keeps a code of the probabilities."""

    @staticmethod
    @forward
    def forward(ctx: Any, x: Tensor, axis: int, dtype: Any) -> Tensor:
        y = F.log_softmax(x, axis, dtype)
        kept = keep_probabilities(ARRAYS, paddle.exp(y), ctx.site)
        ctx.reading, ctx.axis = kept.reading, axis % len(x.shape)
        save(ctx, *kept.tensors)
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        found: Tensor = gradient(log_softmax_rule, ctx.site, ctx.reading, saved(ctx), grad, ctx.axis)
        return found
