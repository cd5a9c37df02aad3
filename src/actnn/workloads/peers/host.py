"""What autograd saves waits in the memory of the host, as ``torch.autograd.graph.save_on_cpu`` has it.

Where a model is trained on the host already, all stays where it is, and nothing is saved; the level ``swap`` lets exact
activations wait in a file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from actnn.workloads.peers.hooks import Method, hooked


class OnHost(Method):
    """Keeps tensors on the host, and moves them back."""

    def encode(self, x: Tensor, number: int) -> tuple[tuple[Tensor, ...], Callable[..., Tensor]]:
        device = x.device
        return (x.cpu(),), lambda kept: kept.to(device)


def save_on_cpu(model: nn.Module, **ignored: Any) -> nn.Module:
    """Return a model whose activations wait on the host."""
    return hooked(model, OnHost(), written_out=False)
