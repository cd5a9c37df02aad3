"""Whether kernels agree with the reference, which is checked before they are timed."""

from __future__ import annotations

import numpy as np

from actnn.errors import ActnnError
from actnn.format import Layout, Part
from actnn.kernels import Backend, Reference
from actnn.kernels.contract import Array, Arrays, Key
from actnn.kernels.numpy_arrays import NumpyArrays


class DisagreementError(ActnnError):
    """Kernels that encode to other bytes than the reference, or decode to other values."""


def check_agreement(backend: Backend, arrays: Arrays, values: Array, layout: Layout, key: Key) -> int:
    """Raise DisagreementError unless both backends encode and decode alike; return the size of the code in bytes."""
    own = NumpyArrays()
    defined = Reference().encode(own, values, layout, key)
    made = backend.encode(arrays, values, layout, key)
    check_equal(backend, "encodes", "bytes", made, defined)
    read = backend.decode(arrays, defined, layout, Part.WHOLE, "float32")
    check_equal(backend, "decodes", "values", read, Reference().decode(own, defined, layout, Part.WHOLE, "float32"))
    return int(defined.nbytes)


def check_equal(backend: Backend, does: str, what: str, found: Array, defined: Array) -> None:
    """Raise DisagreementError where two arrays differ anywhere."""
    if found.shape != defined.shape:
        counts = f"{found.size} {what} where {defined.size} were expected"
    elif not np.array_equal(found, defined):
        counts = f"{np.count_nonzero(found != defined)} of {defined.size} {what} differ"
    else:
        return
    raise DisagreementError(
        f"the {backend.name} backend {does} otherwise than the reference defines, {counts}: install actnn again."
    )
