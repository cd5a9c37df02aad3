"""Normalisation over rows that keeps a code of the normalised input."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from actnn.format import Family
from actnn.kernels.contract import Rows
from actnn.operations.row_normalization import RowNormalizing, begin, tag_normalized
from actnn.session.site import Site
from actnn.torch.functions.kept import KeepingFunction, first_order
from actnn.torch.tensors import ARRAYS


class RowNormFunction(KeepingFunction):
    """LayerNorm, RMSNorm or GroupNorm, by what its call says."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, call: RowNormalizing) -> Tensor:
        y: Tensor = call.normalize(x, weight, bias)
        ctx.site, ctx.call = call.site, call
        ctx.save_for_backward(*call.saved)
        ctx.parameters = [None if own is None else (own.shape, own.dtype) for own in (weight, bias)]
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        need_x, need_weight, need_bias, _ = ctx.needs_input_grad
        grad_x, grads = ctx.call.gradients(ctx.saved_tensors, grad, need_x, need_weight or need_bias)
        of_parameters: list[Tensor | None] = [None, None]
        for place, (needed, parameter) in enumerate(zip((need_weight, need_bias), ctx.parameters, strict=True)):
            if needed:
                shape, dtype = parameter
                of_parameters[place] = grads[place].reshape(shape).to(dtype)
        return grad_x, *of_parameters, None


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
    y: Tensor = RowNormFunction.apply(x, weight, bias, call)
    tag_normalized(call, y)
    # its tensors belong to autograd now
    call.kept, call.saved = None, ()
    return y
