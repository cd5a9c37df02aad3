"""Softmax and its logarithm, which keep a code of the probabilities."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from actnn.operations.kept import Kept, counted_once
from actnn.operations.rectifiers import tag_output
from actnn.operations.softmax import gradient, keep_probabilities, log_softmax_rule, softmax_rule
from actnn.session.site import Readers, Site
from actnn.torch.functions.kept import KeepingFunction, first_order
from actnn.torch.tensors import ARRAYS


def softmax(site: Site, x: Tensor, dim: int, dtype: torch.dtype | None = None, training: bool = True) -> Tensor:
    """Return ``F.softmax``, which keeps a code of its output; readers of the output find that code."""
    if not records(site, x, training):
        return F.softmax(x, dim, dtype=dtype)
    made: list[Kept] = []
    y: Tensor = SoftmaxFunction.apply(x, site, dim, dtype, made)
    (kept,) = made
    # what is kept as it is would live as long as its tag, which goes with it
    shared = kept if kept.reading.layout is not None else None
    site.keeps(0, tag_output(ARRAYS, y, shared, site, Readers()))
    return y


def log_softmax(site: Site, x: Tensor, dim: int, dtype: torch.dtype | None = None, training: bool = True) -> Tensor:
    """Return ``F.log_softmax``, which keeps a code of the probabilities."""
    if not records(site, x, training):
        return F.log_softmax(x, dim, dtype=dtype)
    y: Tensor = LogSoftmaxFunction.apply(x, site, dim, dtype)
    site.keeps(0, counted_once(ARRAYS, y, site))
    return y


def records(site: Site, x: Tensor, training: bool) -> bool:
    """Tell whether a gradient will be asked for that codes are to serve."""
    wanted = training and site.compresses and torch.is_grad_enabled() and x.requires_grad
    # a number by itself has no axis, and its softmax no gradient
    return wanted and x.dim() > 0 and x.numel() > 0


class SoftmaxFunction(KeepingFunction):
    """``F.softmax`` that keeps a code of its output, which it adds to ``made``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, site: Site, dim: int, dtype: torch.dtype | None, made: list[Kept]) -> Tensor:
        y = F.softmax(x, dim, dtype=dtype)
        kept = keep_probabilities(ARRAYS, y, site)
        ctx.site, ctx.reading, ctx.axis = site, kept.reading, dim % x.dim()
        ctx.save_for_backward(*kept.tensors)
        made.append(kept)
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        found = gradient(softmax_rule, ctx.site, ctx.reading, ctx.saved_tensors, grad, ctx.axis)
        return found, None, None, None, None


class LogSoftmaxFunction(KeepingFunction):
    """``F.log_softmax`` that keeps a code of the probabilities."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, site: Site, dim: int, dtype: torch.dtype | None) -> Tensor:
        y = F.log_softmax(x, dim, dtype=dtype)
        kept = keep_probabilities(ARRAYS, y.exp(), site)
        ctx.site, ctx.reading, ctx.axis = site, kept.reading, dim % x.dim()
        ctx.save_for_backward(*kept.tensors)
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        found = gradient(log_softmax_rule, ctx.site, ctx.reading, ctx.saved_tensors, grad, ctx.axis)
        return found, None, None, None
