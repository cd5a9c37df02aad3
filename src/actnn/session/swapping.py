"""What level ``swap`` leaves with autograd in place of a tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from actnn.kernels.contract import Array
from actnn.session.tensors import Order


@dataclass(frozen=True)
class Swapped:
    """A tensor that left: what the store gave for its bytes, how to read them, and whether it is to say it learns."""

    saved: Array
    order: Order
    dtype: Any
    wants_gradient: bool = False
