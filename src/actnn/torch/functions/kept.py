"""What all functions that keep codes ask of torch's autograd."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from actnn.errors import UnsupportedError


def first_order(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Let a backward run once, and tell clearly that its own gradient is not available."""

    @wraps(backward)
    def checked(ctx: Any, *grads: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise UnsupportedError(
                f"the gradient of a gradient was asked for at {ctx.site.name!r}, where only a code of the activation "
                f"is kept. Call backward without create_graph, or leave this layer exact with "
                f"QModule(model, exact=[{ctx.site.name!r}])."
            )
        ctx.site.session.backward_begins()
        return backward(ctx, *grads)

    return checked
