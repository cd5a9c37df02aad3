"""The backend of the compiled library."""

from __future__ import annotations

from actnn.kernels.native.batch_norm import BatchNormRows
from actnn.kernels.native.codes import CodeRows
from actnn.kernels.native.row_norm import RowNormRows


class Native(CodeRows, BatchNormRows, RowNormRows):
    """The backend of the compiled library, for arrays in host memory."""

    name = "native"
    any_shape = True
