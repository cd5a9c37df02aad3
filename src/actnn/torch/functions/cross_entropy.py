"""Cross entropy that keeps a code of the probabilities."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from actnn.operations.cross_entropy import Probabilities, parts_of_batch
from actnn.session.site import Site
from actnn.torch.functions.kept import KeepingFunction, first_order
from actnn.torch.functions.maps import samples_of
from actnn.torch.functions.softmax import records
from actnn.torch.tensors import ARRAYS


class Options(NamedTuple):
    """What ``F.cross_entropy`` takes besides tensors."""

    ignore_index: int
    reduction: str
    label_smoothing: float


def cross_entropy(
    site: Site,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    training: bool = True,
) -> Tensor:
    """Return ``F.cross_entropy``, which keeps a code of the probabilities.

    Where targets or weights learn too, their gradients read the logarithms themselves: torch's own keeps those.
    """
    options = Options(ignore_index, reduction, label_smoothing)
    others_learn = target.requires_grad or (weight is not None and weight.requires_grad)
    if others_learn or not records(site, input, training):
        return F.cross_entropy(input, target, weight, **options._asdict())
    if input.dim() > 1:
        loss: Tensor = CrossEntropyFunction.apply(input, target, weight, site, options)
        return loss
    loss = CrossEntropyFunction.apply(input.unsqueeze(0), target.unsqueeze(0), weight, site, options)
    return loss.reshape(())


class CrossEntropyFunction(KeepingFunction):
    """``F.cross_entropy`` of a batch of logits, their classes along axis 1."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, target: Tensor, weight: Tensor | None, site: Site, options: Options) -> Tensor:
        parts = parts_of_batch(site, x.shape[0], x[0].numel())
        probabilities = Probabilities(parts)
        ctx.site, ctx.options, ctx.probabilities = site, options, probabilities
        ctx.shape, ctx.dtype = x.shape, x.dtype
        whole = len(parts) == 1
        of_parts = options if whole else options._replace(reduction="none")
        losses, saved = [], []
        for part in parts:
            own = samples_of(x, part)
            losses.append(F.cross_entropy(own, samples_of(target, part), weight, **of_parts._asdict()))
            p = F.softmax(own, 1, dtype=torch.float32)
            # the logarithms of probabilities
            exact_bytes = own.numel() * losses[-1].element_size()
            saved.append(probabilities.keep(ARRAYS, p, site, exact_bytes))
            del p
        ctx.save_for_backward(target, weight, *saved)
        loss = losses[0] if whole else torch.cat(losses)
        if whole or options.reduction == "none":
            return loss
        return loss.sum() / divisor(options, target, weight, x.shape)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        target, weight, *saved = ctx.saved_tensors
        options, probabilities, parts = ctx.options, ctx.probabilities, ctx.probabilities.parts
        each = options.reduction == "none"
        grad = grad.float()
        if not each:
            grad = grad / divisor(options, target, weight, ctx.shape)
        rule = of_probabilities if target.shape == ctx.shape else of_classes
        found = grad.new_empty(ctx.shape, dtype=ctx.dtype) if len(parts) > 1 else None
        for place, part in enumerate(parts):
            p = probabilities.decoded(place, ctx.site, saved[place])
            own = rule(p, samples_of(target, part), weight, samples_of(grad, part) if each else grad, options)
            if found is None:
                return own.to(ctx.dtype), None, None, None, None
            samples_of(found, part).copy_(own)
        return found, None, None, None, None


def divisor(options: Options, target: Tensor, weight: Tensor | None, shape: torch.Size) -> Tensor | float:
    """Return by what the sum of all losses is divided."""
    if options.reduction == "sum":
        return 1.0
    if target.shape == shape:
        return float(shape.numel() // shape[1])
    counted = target != options.ignore_index
    if weight is None:
        return counted.sum()
    # without choosing rows by the mask, for which a host would have to wait
    return torch.where(counted, weight.float()[torch.where(counted, target, 0)], 0.0).sum()


def of_classes(p: Tensor, target: Tensor, weight: Tensor | None, grad: Tensor, options: Options) -> Tensor:
    """Return the gradient of logits whose targets are classes; ``grad`` is that of each row's loss, or of all."""
    smoothing = options.label_smoothing
    counted = target != options.ignore_index
    chosen = torch.where(counted, target, 0)
    # a row that does not count has no gradient, whatever the sum of the others is divided by
    rows = torch.where(counted, grad, 0.0)
    of_chosen = (1.0 - smoothing) * (rows if weight is None else rows * weight.float()[chosen])
    rows, of_chosen = rows.unsqueeze(1), of_chosen.unsqueeze(1)
    if smoothing:
        of_all = smoothing / p.shape[1] * along_classes(weight, p)
        found = p * (of_chosen + rows * of_all.sum()) - rows * of_all
    else:
        found = p * of_chosen
    return found.scatter_add_(1, chosen.unsqueeze(1), -of_chosen)


def of_probabilities(p: Tensor, target: Tensor, weight: Tensor | None, grad: Tensor, options: Options) -> Tensor:
    """Return the gradient of logits whose targets are probabilities; ``grad`` is that of each row's loss, or of all."""
    smoothing = options.label_smoothing
    weights = (target.float() * (1.0 - smoothing) + smoothing / p.shape[1]) * along_classes(weight, p)
    return (p * weights.sum(1, keepdim=True) - weights) * (grad.unsqueeze(1) if grad.dim() else grad)


def along_classes(weight: Tensor | None, p: Tensor) -> Tensor:
    """Return the weights of classes, 1 where none are given, in a shape that broadcasts over ``p``."""
    given = p.new_ones(p.shape[1]) if weight is None else weight.float()
    return given.view(1, -1, *[1] * (p.dim() - 2))
