"""What methods keep, handed to autograd: so that whoever counts what autograd saves counts it like everybody's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


class _Keeper(Function):
    """A function that does nothing and saves some tensors."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return anchor.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        raise RuntimeError("a keeper has no gradient: what it holds is read by the method that made it")


class Saved:
    """Some tensors that autograd saved; they go when this goes."""

    def __init__(self, *tensors: Tensor) -> None:
        with torch.enable_grad():
            anchor = torch.zeros((), requires_grad=True)
            self._node: Any = _Keeper.apply(anchor, *(tensor.detach() for tensor in tensors)).grad_fn

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors as they were."""
        found: tuple[Tensor, ...] = self._node.saved_tensors
        return found
