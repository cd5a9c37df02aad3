"""What autograd keeps of an activation: tensors to save, and how to read them again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from actnn import kernels
from actnn.core.format import AFFINE, Layout, Part
from actnn.core.session import Code
from actnn.core.site import Site
from actnn.errors import UnsupportedError
from actnn.torch.tensors import ARRAYS, NAMES, Order, check_floating, nbytes


@dataclass(frozen=True)
class Kept:
    """An activation in the form in which it is kept.

    ``tensor`` is a code's buffer, or with ``layout`` None the activation itself. Tensors go to autograd's saved tensors,
    which frees them when their backward is done; everything else stays on the context.
    """

    tensor: Tensor | None
    order: Order
    layout: Layout | None = None

    def value(self, site: Site, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the activation, given the saved tensor."""
        if self.layout is None:
            return tensor.to(dtype)
        code = Code(tensor, self.layout)
        return self.order.shaped(site.session.decode(ARRAYS, site, code, NAMES[dtype], Part.WHOLE))


def encode(x: Tensor, site: Site, batched: bool = True) -> Kept:
    """Return a code of ``x``; or ``x`` itself where a code would not be smaller."""
    check_floating(x, site.name)
    order = Order.of(x, batched)
    layout = site.session.layout(site, *order.rows, AFFINE)
    site.session.check_open()
    if layout.nbytes >= nbytes(x):
        site.record(nbytes(x), nbytes(x))
        return Kept(x.detach(), order)
    code = site.session.encode(ARRAYS, order.flat(x), site, AFFINE)
    site.record(nbytes(x), nbytes(code.buffer))
    return Kept(code.buffer, order, layout)


def encode_mask(x: Tensor, site: Site) -> tuple[Tensor, Order]:
    """Return one bit an element, ``not (x <= 0)``, and the order of the elements."""
    check_floating(x, site.name)
    site.session.check_open()
    order = Order.of(x, batched=x.dim() > 1)
    return kernels.select(ARRAYS, x).encode_mask(ARRAYS, order.flat(x)), order


def apply_mask(mask: Tensor, order: Order, grad: Tensor, above: float, below: float) -> Tensor:
    """Return ``grad`` times ``above`` where the mask holds and ``below`` elsewhere."""
    backend = kernels.select(ARRAYS, grad)
    return order.shaped(backend.apply_mask(ARRAYS, mask, None, order.flat(grad), above, below))


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
