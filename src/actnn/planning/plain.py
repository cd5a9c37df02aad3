"""Arrays as plain data, and back: what a state is made of."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

import numpy as np
from numpy.typing import NDArray

Plain = dict[str, Any]


def plain_array(array: NDArray[Any] | None) -> Plain | None:
    """Return an array as plain data: its type, shape and bytes."""
    if array is None:
        return None
    content = b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")
    return {"dtype": array.dtype.str, "shape": list(array.shape), "bytes": content}


def array_of(plain: Plain | None) -> NDArray[Any] | None:
    """Return the array that plain data stand for."""
    if plain is None:
        return None
    # a copy: what is made of bytes cannot be written to
    content = np.frombuffer(b64decode(plain["bytes"], validate=True), np.dtype(plain["dtype"]))
    return content.reshape(plain["shape"]).copy()
