"""What all functions that keep codes ask of Paddle's autograd.

NOTE [PyLayer]
1. Only tensors count as inputs: a backward returns one gradient for each of them, in order, none for a bias that is
   None, and None for a tensor whose gradient nobody wants.
2. A gradient has the dtype of its tensor: Paddle does not cast it.
3. Paddle drops a context after its backward, whatever ``retain_graph`` says, and a second backward through it would end
   the process. A hook on the output, which runs first, tells so instead.
4. ``paddle.grad`` with respect to some of the tensors that a loss depends on fails in Paddle itself where a PyLayer has
   several: it wants None for the others, and nothing tells a backward which they are.
5. A saved None would be given to saved-tensor hooks.
6. Paddle checks the versions of what its own operations save, and of nothing that a PyLayer saves. Somebody's hooks may
   have put another tensor in the place of a saved one, with versions of its own.
7. Paddle drops what a hook on a PyLayer's output returns: users get a view of it, on which their hooks count.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from actnn.errors import UnsupportedError
from actnn.operations.kept import backward_begins
from actnn.paddle.tensors import ARRAYS
from actnn.session.saved import Left
from actnn.session.site import Site


class Inputs:
    """The tensors that a function was given, in order; None for one that the layer does not have."""

    def __init__(self, *given: Tensor | None) -> None:
        self._dtypes = [None if x is None else x.dtype for x in given]
        self.needed = tuple(x is not None and not x.stop_gradient for x in given)

    def gradients(self, *found: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return what Paddle expects of a backward: see rules 1 and 2."""
        returned: list[Tensor | None] = []
        for dtype, needed, grad in zip(self._dtypes, self.needed, found, strict=True):
            if dtype is not None:
                if not needed or grad is None:
                    returned.append(None)
                else:
                    returned.append(grad if grad.dtype == dtype else grad.astype(dtype))
        return tuple(returned)


class Function(PyLayer):
    """A PyLayer of one output that tells, instead of ending the process, that its backward ran already (rule 3)."""

    @classmethod
    def record(cls, site: Site, *arguments: Any) -> Tensor:
        """Return the output, recorded by autograd."""
        once = Once(site.name)
        apply: Any = cls.apply
        y: Tensor = apply(once, site, *arguments)
        if y.stop_gradient:
            return y
        y.register_hook(once)
        # rule 7
        seen: Tensor = y.view(y.shape)
        return seen


class Once:
    """A hook that lets gradients pass once."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.passed = False

    def __call__(self, grad: Tensor) -> None:
        if self.passed:
            raise UnsupportedError(
                f"backward ran a second time through {self.name!r}: Paddle frees what a PyLayer keeps in the first, "
                "whatever retain_graph says. Add losses up and call backward once, or leave this layer exact with "
                f"QModule(model, exact=[{self.name!r}])."
            )


def forward(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Let a forward know its site; its context keeps what tells whether its backward ran."""

    @wraps(function)
    def prepared(ctx: Any, once: Once, site: Site, *arguments: Any) -> Tensor:
        ctx.once, ctx.site, ctx.dtype = once, site, arguments[0].dtype
        return function(ctx, *arguments)

    return prepared


def first_order(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Let a backward run once, and tell clearly that its own gradient is not available.

    A gradient that is not one of several is that of the first tensor, and gets its dtype (rule 2).
    """

    @wraps(backward)
    def checked(ctx: Any, *grads: Tensor) -> Any:
        recording = paddle.is_grad_enabled()
        if recording or not ctx.site.session.backward_noted:
            backward_begins(ctx.site, recording)
        ctx.once.passed = True
        found = backward(ctx, *grads)
        return found.astype(ctx.dtype) if isinstance(found, Tensor) and found.dtype != ctx.dtype else found

    return checked


def save(ctx: Any, *tensors: Tensor | None) -> None:
    """Let autograd keep some tensors, None among them (rule 5)."""
    present = [tensor for tensor in tensors if tensor is not None]
    ctx.marks = [None if tensor is None else (tensor.data_ptr(), ARRAYS.version(tensor)) for tensor in tensors]
    ctx.save_for_backward(*present)


def saved(ctx: Any) -> list[Any]:
    """Return what ``save`` was given, unless it was changed meanwhile (rule 6)."""
    kept = iter(ctx.saved_tensor())
    return [None if mark is None else unchanged(next(kept), *mark) for mark in ctx.marks]


def unchanged(tensor: Tensor, address: int, version: int) -> Tensor:
    """Return a saved tensor; raise SessionError where its memory was changed since."""
    if tensor.data_ptr() == address and ARRAYS.version(tensor) != version:
        Left(tensor, version).unchanged(ARRAYS)
    return tensor
