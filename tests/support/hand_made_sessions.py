"""Sessions without a model, for operations that no layer leads to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

import actnn
from actnn.session.session import Session


def session_of(bits: float, level: str = "L2", **settings) -> Session:
    """Return a session whose codes have a given average width."""
    actnn.set_optimization_level(level)
    actnn.config.activation_compression_bits = [bits]
    for name, value in settings.items():
        setattr(actnn.config, name, value)
    return Session(actnn.config.policy())


def gradients(function: Callable[..., Tensor], inputs: Sequence[Tensor], grad: Tensor | None = None) -> list[Tensor]:
    """Return the output of a function and the gradients of its inputs, which are results of recorded operations."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    # of each its own memory, which lies as that of the input does
    y = function(*[leaf.clone(memory_format=torch.preserve_format) for leaf in leaves])
    return [y.detach(), *torch.autograd.grad(y, leaves, torch.ones_like(y) if grad is None else grad)]


def saved_tensors(call: Callable[[], Tensor]) -> list[Tensor]:
    """Return what autograd saves during a call."""
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        call()
    return saved


def kept_bytes(session: Session) -> int:
    """Return what all sites of a session kept in the last step."""
    return sum(row.kept_bytes for row in session.report().rows)


def exact_bytes(session: Session) -> int:
    """Return what exact training would have kept in the last step."""
    return sum(row.exact_bytes for row in session.report().rows)
