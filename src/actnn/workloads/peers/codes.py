"""Codes of groups of 256 with their least value and range, as several methods have them, made by our own kernels."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from actnn import kernels
from actnn.format import AFFINE, Part, Rounding, derive_key, uniform_layout
from actnn.torch.tensors import ARRAYS, NAMES


class GroupCodes:
    """Makes codes whose noise is drawn from a seed and a count; stochastic rounding keeps their mean exact.

    ``draw`` chooses the noise instead, where equal draws are to have equal noise.
    """

    def __init__(self, seed: int = 0) -> None:
        self._seed, self._calls = seed, itertools.count()

    def encode(
        self, x: Tensor, bits: int, draw: tuple[int, int] | None = None
    ) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Return a code of a tensor, a sample a row, and what decodes it."""
        rows = x.detach().contiguous().view(len(x), -1) if x.dim() > 1 else x.detach().view(1, -1)
        layout = uniform_layout(*rows.shape, AFFINE, bits, Rounding.STOCHASTIC)
        backend = kernels.select(ARRAYS, rows)
        key = derive_key(self._seed, *(draw or (0, next(self._calls))))
        code: Tensor = backend.encode(ARRAYS, rows, layout, key)
        shape, dtype = x.shape, x.dtype

        def decode(code: Tensor) -> Tensor:
            out = torch.empty(shape, dtype=dtype, device=code.device)
            kernels.select(ARRAYS, code).decode(
                ARRAYS, code, layout, Part.WHOLE, NAMES[dtype], None, None, out.view(rows.shape)
            )
            return out

        return code, decode
