"""Normalisation over rows that keeps a code of the normalised input."""

from __future__ import annotations

from typing import Any

from paddle import Tensor

from actnn.format import Family
from actnn.kernels.contract import Rows
from actnn.operations.row_normalization import RowNormalizing, begin, tag_normalized
from actnn.paddle.functions.kept import Function, Inputs, first_order, forward, save, saved
from actnn.paddle.tensors import ARRAYS
from actnn.session.site import Site


class RowNormFunction(Function):
    """LayerNorm, RMSNorm or GroupNorm, by what its call says."""

    @staticmethod
    @forward
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, call: RowNormalizing) -> Tensor:
        ctx.inputs, ctx.call = Inputs(x, weight, bias), call
        ctx.shapes = [None if own is None else own.shape for own in (weight, bias)]
        y: Tensor = call.normalize(x, weight, bias)
        save(ctx, *call.saved)
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs: Inputs = ctx.inputs
        need_x, *need_parameters = inputs.needed
        grad_x, grads = ctx.call.gradients(saved(ctx), grad, need_x, any(need_parameters))
        of_parameters = [
            grads[place].reshape(shape) if needed else None
            for place, (needed, shape) in enumerate(zip(need_parameters, ctx.shapes, strict=True))
        ]
        return inputs.gradients(grad_x, *of_parameters)


def row_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    rows: Rows,
    epsilon: float,
    centred: bool,
    site: Site,
    family: Family,
) -> Tensor | None:
    """Return ``x`` normalised over rows, with gamma and beta; None where the plain function serves."""
    call = begin(ARRAYS, x, site, rows, epsilon, centred, family)
    if call is None:
        return None
    y = RowNormFunction.record(site, x, weight, bias, call)
    tag_normalized(call, y)
    # its tensors belong to autograd now
    call.kept, call.saved = None, ()
    return y
