"""What all functions that keep codes ask of torch's autograd."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd import Function, Variable

from actnn.operations.kept import backward_begins


class KeepingFunction(Function):
    """A function that keeps codes; torch records it without looking through its arguments for transforms.

    ``record`` is ``apply`` for layers, which know that no transform is at work.
    """

    record: ClassVar[Callable[..., Any]]

    def __init_subclass__(cls) -> None:
        # past torch.func's unwrapping of each argument, which takes as long as some kernels
        cls.record = super(Function, cls).apply  # type: ignore[misc]

    @classmethod
    def apply(cls, *arguments: Any) -> Any:
        """Compute the forward, recorded by autograd."""
        if torch._C._are_functorch_transforms_active():
            return super().apply(*arguments)  # type: ignore[no-untyped-call]
        return cls.record(*arguments)


def first_order(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Let a backward run once, and tell clearly that its own gradient is not available."""

    @wraps(backward)
    def checked(ctx: Any, *grads: Tensor) -> Any:
        recording = torch.is_grad_enabled()
        session = ctx.site.session
        if recording or not session.backward_noted:
            backward_begins(ctx.site, recording)
            if session.backward_noted and session.policy.arena:
                Variable._execution_engine.queue_callback(session.work_ends)
        return backward(ctx, *grads)

    return checked
