"""Rules of products, and of copies, which hand the code of what they copy on."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from actnn.model.door import DECLINED, Frame, Rule
from actnn.operations.copies import tag_copy
from actnn.operations.products import EXTRA
from actnn.torch.door.activations import RULES as RULES_OF_CURVES
from actnn.torch.door.maps import coded
from actnn.torch.functions.products import MULTIPLY, product
from actnn.torch.tensors import ARRAYS


def multiply(frame: Frame, function: Any, input: Any, other: Any) -> Any:
    """Return a product element by element, which keeps codes of both factors."""
    if input is other or not coded(input, other) or not (input.requires_grad and other.requires_grad):
        return DECLINED
    if input.dtype != other.dtype or not frame.training:
        return DECLINED
    site = frame.site(frame.count("mul"), extra=EXTRA)
    return product(input, other, MULTIPLY, site, True)


def glu(frame: Frame, function: Any, input: Any, dim: int = -1) -> Any:
    """Return half of a tensor times the sigmoid of the other half, which keeps a code of each."""
    if not (frame.training and coded(input) and input.requires_grad) or input.dim() == 0 or input.shape[dim] % 2:
        return DECLINED
    value, gate = input.chunk(2, dim)
    opened = RULES_OF_CURVES[torch.sigmoid](frame, torch.sigmoid, gate)
    if opened is DECLINED:
        return DECLINED
    found = multiply(frame, torch.mul, value, opened)
    return value * opened if found is DECLINED else found


def copied(frame: Frame, function: Any, input: Any, *arguments: Any, **options: Any) -> Any:
    """Return what a function makes of a tensor whose elements it copies or moves; its code goes along."""
    y = function(input, *arguments, **options)
    if isinstance(input, Tensor) and isinstance(y, Tensor) and coded(input, y) and input.requires_grad:
        tag_copy(ARRAYS, input, y, frame.session, partial(repeated, function, arguments, options))
    return y


def repeated(function: Any, arguments: tuple[Any, ...], options: dict[str, Any], x: Tensor) -> Tensor:
    """Return the copy of another tensor of the same shape."""
    y: Tensor = function(x, *arguments, **options)
    return y


COPIES = ("contiguous", "reshape", "clone", "flatten", "to", "float", "half", "bfloat16", "type_as", "roll")
VIEWS = ("transpose", "permute", "movedim", "unsqueeze", "squeeze", "unflatten", "narrow", "expand")
RULES: dict[Any, Rule] = {
    **dict.fromkeys((torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__, torch.multiply), multiply),
    F.glu: glu,
    **{getattr(Tensor, name): copied for name in (*COPIES, *VIEWS)},
    **dict.fromkeys((torch.reshape, torch.flatten, torch.clone, torch.roll, torch.transpose, torch.permute), copied),
}
