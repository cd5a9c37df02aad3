"""Buffers that a caller gives to kernels: they hold the bytes of the code, and none of another size is touched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from code_cases import KEY, PoisonedArrays, assorted_values, layout_of

from actnn.errors import FormatError
from actnn.format import index_bytes
from actnn.kernels.contract import Channels, Normalization, Pool

SAMPLES, CHANNELS, INNER = 4, 5, 77
VALUES = assorted_values(SAMPLES, CHANNELS * INNER)
LAYOUT = layout_of(VALUES, "two_sided", 3)
WIDTHS = layout_of(VALUES, "affine", 4, sample_bits=(1, 8, 3, 3))


def normalize(backend: Any, arrays: Any, buffer: Any) -> Any:
    parameters = [np.linspace(0.5, 1, CHANNELS, dtype=np.float32) for _ in range(5)]
    form = Channels(CHANNELS, INNER), Normalization(*parameters)
    return backend.normalize(arrays, VALUES, np.empty_like(VALUES), *form, LAYOUT, KEY, buffer)


def max_pool(pool: Pool) -> Callable[[Any, Any, Any], Any]:
    def encode(backend: Any, arrays: Any, buffer: Any) -> Any:
        values = np.ascontiguousarray(VALUES[: pool.samples, : pool.elements[0]])
        return backend.max_pool(arrays, values, np.empty((pool.samples, pool.elements[1]), np.float32), pool, buffer)

    return encode


def pool(rank: int) -> Pool:
    return Pool(2, 3, (4,) * rank, (2,) * rank, (2,) * rank, (2,) * rank, (0,) * rank, (1,) * rank, False)


INDEX = np.arange(SAMPLES * CHANNELS * INNER, dtype=np.int32).reshape(VALUES.shape) % 8
# what writes a code, and the size of it
ENCODERS: dict[str, tuple[Callable[[Any, Any, Any], Any], int]] = {
    "encode": (lambda backend, arrays, buffer: backend.encode(arrays, VALUES, LAYOUT, KEY, buffer), LAYOUT.nbytes),
    "widths": (lambda backend, arrays, buffer: backend.encode(arrays, VALUES, WIDTHS, KEY, buffer), WIDTHS.nbytes),
    "mask": (
        lambda backend, arrays, buffer: backend.encode_mask(arrays, VALUES, buffer),
        index_bytes(*VALUES.shape, 1),
    ),
    "index": (
        lambda backend, arrays, buffer: backend.encode_index(arrays, INDEX, 3, buffer),
        index_bytes(*VALUES.shape, 3),
    ),
    "normalize": (normalize, LAYOUT.nbytes),
    **{f"pool of {rank} axes": (max_pool(pool(rank)), pool(rank).nbytes) for rank in (1, 2, 3)},
}

encoders = pytest.mark.parametrize("name", ENCODERS)


@encoders
def test_a_buffer_that_is_given_holds_the_same_bytes_and_is_returned(backend, name):
    encode, size = ENCODERS[name]
    arrays = PoisonedArrays()
    buffer = arrays.empty((size,), "uint8", VALUES)
    assert encode(backend, arrays, buffer) is buffer
    np.testing.assert_array_equal(buffer, encode(backend, PoisonedArrays(), None))
    arrays.check_guards()


@encoders
@pytest.mark.parametrize("more", [-1, 1])
def test_a_buffer_of_another_size_is_refused_and_left_alone(backend, name, more):
    encode, size = ENCODERS[name]
    arrays = PoisonedArrays()
    buffer = arrays.empty((size + more,), "uint8", VALUES)
    with pytest.raises(FormatError, match=rf"code of {size} bytes .* shape \({size + more},\)"):
        encode(backend, arrays, buffer)
    assert (buffer == PoisonedArrays.RUBBISH).all()
    arrays.check_guards()


@encoders
def test_a_buffer_of_another_dtype_is_refused(backend, name):
    encode, size = ENCODERS[name]
    with pytest.raises(FormatError, match="int32 buffer"):
        encode(backend, PoisonedArrays(), np.zeros(size, np.int32))
