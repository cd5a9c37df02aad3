"""The rule of einsum."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from actnn.model.door import DECLINED, Frame, Rule
from actnn.operations.einsum import Operand, bilinear, contracted, equation_of
from actnn.operations.products import MATMUL_EXTRA
from actnn.torch.door.maps import coded
from actnn.torch.functions.products import product
from actnn.torch.tensors import ARRAYS


def einsum(frame: Frame, function: Any, equation: Any, *operands: Any) -> Any:
    """Return an einsum that keeps codes of the operands which the gradients read."""
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    if not isinstance(equation, str) or len(operands) < 2 or not coded(*operands):
        return DECLINED
    letters = equation_of(equation, tuple(x.dim() for x in operands))
    if letters is None or not all(x.requires_grad for x in operands):
        return DECLINED

    def multiplied(one: Operand, other: Operand, result: str) -> Tensor:
        (first, own), (second, its) = one, other
        maps = any(not ARRAYS.recorded(x) for x in (first, second))
        site = frame.site(frame.count("einsum"), extra=0.0 if maps else MATMUL_EXTRA)
        site.parameter = next((id(x) for x in (first, second) if x.is_leaf), None)
        return product(first, second, bilinear(torch.einsum, own, its, result), site, frame.training)

    return contracted(letters, operands, multiplied)


RULES: dict[Any, Rule] = {torch.einsum: einsum}
