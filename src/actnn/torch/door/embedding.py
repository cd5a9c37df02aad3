"""The rule of embeddings."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from actnn.model.door import DECLINED, Frame, Rule
from actnn.operations.kept import counted_once
from actnn.torch.tensors import ARRAYS, is_distributed

# the largest number of rows whose indices fit into half the bytes
MOST_ROWS = torch.iinfo(torch.int32).max


def embedding(
    frame: Frame,
    function: Any,
    input: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    """Return ``F.embedding`` of the same indices in 32 bits, which is all that autograd keeps.

    Declines what keeps nothing, and sparse gradients, whose indices have 64 bits themselves.
    """
    if sparse or not (isinstance(input, Tensor) and isinstance(weight, Tensor) and weight.requires_grad):
        return DECLINED
    fits = input.dtype is torch.int64 and weight.dim() == 2 and len(weight) <= MOST_ROWS and 0 not in input.shape
    if not fits or is_distributed(input) or is_distributed(weight):
        return DECLINED
    site = frame.site(frame.count("embedding"))
    if not site.compresses:
        return DECLINED
    exact = counted_once(ARRAYS, input, site)
    small = input.to(torch.int32)
    site.keeps(ARRAYS.nbytes(small), exact)
    return F.embedding(small, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)


RULES: dict[Any, Rule] = {F.embedding: embedding}
