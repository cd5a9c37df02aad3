"""The rule of embeddings."""

from __future__ import annotations

from typing import Any

import paddle
from paddle import Tensor

from actnn.model.door import DECLINED, Frame, Rule
from actnn.operations.kept import counted_once
from actnn.paddle.tensors import ARRAYS

# the largest number of rows whose indices fit into half the bytes
MOST_ROWS = 2**31 - 1


def embedding(
    frame: Frame,
    function: Any,
    x: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    sparse: bool = False,
    scale_grad_by_freq: bool = False,
    name: Any = None,
) -> Any:
    """Return ``F.embedding`` of the same indices in 32 bits, which is all that autograd keeps.

    Declines what keeps nothing, and sparse gradients, whose indices have 64 bits themselves.
    """
    if sparse or not (isinstance(x, Tensor) and isinstance(weight, Tensor)) or weight.stop_gradient:
        return DECLINED
    if x.dtype != paddle.int64 or not x.is_dense() or len(weight) > MOST_ROWS or 0 in x.shape:
        return DECLINED
    site = frame.site(frame.count("embedding"))
    if not site.compresses:
        return DECLINED
    exact = counted_once(ARRAYS, x, site)
    small = x.astype(paddle.int32)
    site.keeps(ARRAYS.nbytes(small), exact)
    return function(small, weight, padding_idx, max_norm, norm_type, sparse, scale_grad_by_freq, name)


RULES: dict[str, Rule] = {"embedding": embedding}
