"""What rules ask of the tensors that they are given."""

from __future__ import annotations

from typing import Any

from paddle import Tensor

from actnn.paddle.tensors import FLOATING


def coded(*tensors: Any) -> bool:
    """Tell whether all are dense tensors of a kind that codes can hold, none of them empty."""
    return all(isinstance(x, Tensor) and x.dtype in FLOATING and x.is_dense() and 0 not in x.shape for x in tensors)


def learns(*tensors: Any) -> bool:
    """Tell whether the gradient of any tensor is asked for."""
    return any(isinstance(x, Tensor) and not x.stop_gradient for x in tensors)
