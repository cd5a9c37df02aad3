"""Gradients of large weights, a few rows at a time, added to what the weight has from earlier steps.

NOTE [Standing gradients]
1. Where ``weight.grad`` stands, as between the parts of a large batch and after ``zero_grad(set_to_none=False)``,
   torch makes the whole of a new gradient and then adds it there. That of a classifier or of a language model's head
   is the largest tensor of a step. So a large one is made by rows, and each piece is added and gone before the next.
2. Autograd then receives none for the weight. That is the same to it only where it would have added the gradient to
   ``weight.grad`` itself and nobody would have seen it before: the backward runs into the leaf (no ``autograd.grad``),
   and the weight has no hooks. Those of the leaf's node in the graph nothing tells: one that runs before it receives no
   gradient, one that runs behind it, as in data parallel training, finds ``weight.grad`` as ever.
3. Elsewhere the same pieces become one gradient, so that no bit depends on where they go. Only of a weight with several
   readers (tied ones) the gradients of one backward are then added in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from actnn.torch.callers import evaluated_elsewhere

# of a smaller gradient there is nothing to save; of a larger one so much is there at a time
PIECE_BYTES = 16 * 2**20


def large(weight: Tensor) -> bool:
    """Tell whether the gradient of a weight is made in pieces."""
    return weight.nbytes > PIECE_BYTES and weight.dim() == 2


def gradient_by_rows(ctx: Any, place: int, weight: Tensor, compute: Callable[[slice], Tensor]) -> Tensor | None:
    """Return the gradient of a weight, the input of a function at ``place``; None where it was added to what stands.

    ``compute`` returns that of some rows.
    """
    total = standing(ctx, place)
    added = total is not None
    for rows in pieces(weight):
        piece = compute(rows)
        if total is None:
            total = piece.new_empty(weight.shape)
        if added:
            total[rows].add_(piece)
        else:
            total[rows].copy_(piece)
        # before the next one is computed
        del piece
    return None if added else total


def pieces(weight: Tensor) -> Iterator[slice]:
    """Yield the rows of a weight a few at a time."""
    size = max(1, PIECE_BYTES * len(weight) // weight.nbytes)
    for start in range(0, len(weight), size):
        yield slice(start, min(start + size, len(weight)))


def standing(ctx: Any, place: int) -> Tensor | None:
    """Return the gradient of the leaf that is a function's input at ``place``, if autograd would add to it unseen."""
    node = ctx.next_functions[place][0]
    # by the graph: hooks of what is saved may hand back a copy of the weight
    leaf = getattr(node, "variable", None)
    if leaf is None or not ctx.site.session.policy.overwrite:
        return None
    total = leaf.grad
    if type(total) is not Tensor or total.layout is not torch.strided or total.requires_grad:
        return None
    if leaf._backward_hooks or leaf._post_accumulate_grad_hooks or evaluated_elsewhere():
        return None
    return total if runs_into(node) else None


def runs_into(node: Any) -> bool:
    """Tell whether the backward that runs adds to a leaf, and does not merely ask for some gradients."""
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:
        # so it answers for leaves of which autograd.grad asks for the gradient
        return False
