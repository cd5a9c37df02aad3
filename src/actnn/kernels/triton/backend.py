"""The backend of Triton's kernels."""

from __future__ import annotations

from actnn.kernels.triton.codes import CodeRows
from actnn.kernels.triton.pooling import PoolRows
from actnn.kernels.triton.row_norm import RowNormRows


class Triton(CodeRows, RowNormRows, PoolRows):
    """The backend of Triton's kernels, for arrays of an accelerator."""
