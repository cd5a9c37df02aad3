"""Which gradients a backward may overwrite, and sums of gradients that are made in place.

NOTE [Gradients in place]
1. A gradient that nobody holds but the function that received it may be overwritten: no other branch of the graph has
   it, no hook kept it, it is not the user's own. References of Python, of C++ and of its memory are counted at each
   call.
2. A tensor that several branches read has the sum of their gradients, which autograd makes as they come. The first one
   waits in autograd's buffer, and a function whose gradient comes later may add to it part by part, without ever having
   the whole of its own; it then returns none.
3. What waits is found by the edge of the graph where it waits. It is weakly held: once autograd made another sum of it,
   or handed it on, it is gone, or has other holders, and nothing is added.
4. Behind a plain addition the gradient of the sum waits at both edges, as one tensor. Nothing is added to it before one
   of the two has received it, and it waits at the other alone.
5. Counts that mean this are those of a small graph in which it is certain, where Python itself evaluates functions.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from actnn.session.tags import Noted
from actnn.torch.callers import evaluated_elsewhere
from actnn.torch.functions.kept import KeepingFunction, first_order
from actnn.torch.holders import LEAST_BYTES, alone, tensor_references, undivided


class Waiting(Noted):
    """A gradient that waits at an edge of the graph, alone once nobody has yet to receive it elsewhere."""

    __slots__ = ("alone",)
    alone: bool


def owned(ctx: Any, grad: Tensor, references: int) -> bool:
    """Tell whether nobody but a backward holds the gradient that it received, of which it counted the references."""
    shared = ctx.site.session.shared_gradients
    if shared:
        for waiting in shared.pop(id(ctx), ()):
            waiting.alone = waiting() is grad
    if not ctx.site.session.policy.overwrite or type(grad) is not Tensor or grad.layout is not torch.strided:
        return False
    if grad.nbytes < LEAST_BYTES or grad.device.type != "cpu" or evaluated_elsewhere():
        return False
    return references == references_of_gradients() and alone(grad)


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


def note_waiting(ctx: Any, grad: Tensor) -> None:
    """Note that a gradient, which a backward returns for its first input, waits for those of other branches."""
    session, (node, number) = ctx.site.session, ctx.next_functions[0]
    if not session.policy.overwrite or type(grad) is not Tensor or grad.device.type != "cpu":
        return
    if hasattr(node, "site"):
        note(session, node, number, grad).alone = True
    elif node is not None and node.name() == "AddBackward0" and node._saved_alpha == 1:
        edges = node.next_functions
        for (node, number), (other, _) in zip(edges, reversed(edges), strict=True):
            if hasattr(node, "site") and hasattr(other, "site") and node is not other:
                session.shared_gradients.setdefault(id(other), []).append(note(session, node, number, grad))


def note(session: Any, node: Any, number: int, grad: Tensor) -> Waiting:
    """Note a gradient that waits at an edge."""
    waiting = session.waiting_gradients[edge(node, number)] = Waiting(grad)
    waiting.alone = False
    return waiting


def edge(node: Any, number: int) -> tuple[int, int, int]:
    """Return what tells an edge from all others of the backward that runs."""
    return torch._C._current_graph_task_id(), id(node), number


def waiting_sum(ctx: Any, shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
    """Return the gradient that waits where that of the first input of a backward is to go; None where there is none.

    Whatever is added to it need not be returned.
    """
    session, (node, number) = ctx.site.session, ctx.next_functions[0]
    waiting = session.waiting_gradients.pop(edge(node, number), None) if session.waiting_gradients else None
    if waiting is None or not waiting.alone or evaluated_elsewhere():
        return None
    grad = waiting()
    if grad is None or grad.shape != shape or grad.dtype != dtype or grad.requires_grad:
        return None
    return grad if (tensor_references(grad), sys.getrefcount(grad)) == counts_of_waiting() and undivided(grad) else None


class WaitingProbe(KeepingFunction):
    """One of two branches, of which the first leaves a gradient and the second counts its references."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, left: list[Any]) -> Tensor:
        ctx.site, ctx.left = SimpleNamespace(session=SimpleNamespace(backward_noted=True)), left
        return x.clone()

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if not ctx.left:
            grad_x = 2.0 * grad
            ctx.left.append(Waiting(grad_x))
            return grad_x, None
        grad_x = ctx.left[0]()
        ctx.left.append((tensor_references(grad_x), sys.getrefcount(grad_x)))
        return None, None


@cache
def counts_of_waiting() -> tuple[int, int]:
    """Return how many references of C++ and of Python a gradient has that waits, and that one variable holds."""
    left: list[Any] = []
    with torch.enable_grad():
        x: Any = Probe.apply(torch.zeros(2, requires_grad=True), [])
        y: Any = WaitingProbe.apply(x, left)
        z: Any = WaitingProbe.apply(x, left)
        (y + z).sum().backward()
    counts: tuple[int, int] = left[1]
    return counts
