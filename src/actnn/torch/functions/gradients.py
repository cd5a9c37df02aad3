"""Which gradients a backward may overwrite, and sums of gradients that are made in place.

NOTE [Gradients in place]
1. A gradient that nobody holds but the function that received it may be overwritten: no other branch of the graph has it,
   no hook kept it, it is not the user's own. References of Python, of C++ and of its memory are counted at each call.
2. A tensor that several branches read has the sum of their gradients, which autograd makes as they come. The first one
   waits in autograd's buffer, and a function whose gradient comes later may add to it part by part, without ever having
   the whole of its own; it then returns none.
3. What waits is found by the edge of the graph where it waits. It is weakly held: once autograd made another sum of it,
   or handed it on, it is gone, or has other holders, and nothing is added.
"""

from __future__ import annotations

import sys
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from actnn.torch.functions.kept import KeepingFunction, first_order

# a tensor, and the object of Python by which its memory is asked for it
OWN_REFERENCES, MEMORY_REFERENCES = 1, 2
memory_references = torch._C._storage_Use_Count


def owned(ctx: Any, grad: Tensor, references: int) -> bool:
    """Tell whether nobody but a backward holds the gradient that it received, of which it counted the references."""
    if not ctx.site.session.policy.overwrite or type(grad) is not Tensor or grad.device.type != "cpu":
        return False
    return references == references_of_gradients() and alone(grad)


def alone(x: Tensor) -> bool:
    """Tell whether no C++ code holds a tensor, and no other tensor its memory."""
    return x._use_count() == OWN_REFERENCES and memory_references(x.untyped_storage()._cdata) == MEMORY_REFERENCES


class Probe(KeepingFunction):
    """A function that counts the references of its gradient as others do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, counted: list[int]) -> Tensor:
        ctx.site, ctx.counted = SimpleNamespace(session=SimpleNamespace(backward_noted=True)), counted
        return x.clone()

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        Probe.note(ctx, grad, sys.getrefcount(grad))
        return grad, None

    @staticmethod
    def note(ctx: Any, grad: Tensor, references: int) -> None:
        """Stand in the place of ``owned``."""
        ctx.counted.append(references)


@cache
def references_of_gradients() -> int:
    """Return how many references a gradient has in the backward of the one function that holds it."""
    counted: list[int] = []
    with torch.enable_grad():
        x = torch.zeros(2, requires_grad=True)
        y: Any = Probe.apply(x, counted)
        (2.0 * y).sum().backward()
    return counted[0]
