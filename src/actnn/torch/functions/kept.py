"""What all functions that keep codes ask of torch's autograd."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from actnn.operations.kept import backward_begins


def first_order(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Let a backward run once, and tell clearly that its own gradient is not available."""

    @wraps(backward)
    def checked(ctx: Any, *grads: Tensor) -> Any:
        recording = torch.is_grad_enabled()
        if recording or not ctx.site.session.backward_noted:
            backward_begins(ctx.site, recording)
        return backward(ctx, *grads)

    return checked
