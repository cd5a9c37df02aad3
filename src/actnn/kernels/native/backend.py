"""The backend of the compiled library."""

from __future__ import annotations

from actnn.kernels.native.batch_norm import BatchNormRows
from actnn.kernels.native.codes import CodeRows


class Native(CodeRows, BatchNormRows):
    """The backend of the compiled library, for arrays in host memory."""

    name = "native"
    any_shape = True
