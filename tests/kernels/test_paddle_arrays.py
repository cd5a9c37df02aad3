"""The kernels on Paddle's arrays: the bytes of every other lender, read and written where the tensors lie."""

from __future__ import annotations

import numpy as np
import pytest
from code_cases import KEY, NUMPY, REFERENCE, ROUNDED, WIDTHS, assorted_values, layout_of

from actnn.format import Part

paddle = pytest.importorskip("paddle")
ARRAYS = pytest.importorskip("actnn.paddle.tensors").ARRAYS


@pytest.mark.parametrize(("family", "bits", "rounding"), ROUNDED)
def test_native_kernels_make_the_bytes_of_the_reference(native, family, bits, rounding):
    values = assorted_values(7, 300)
    layout = layout_of(values, family, bits, rounding)
    found = native.encode(ARRAYS, paddle.to_tensor(values), layout, KEY)
    assert np.array_equal(found.numpy(), REFERENCE.encode(NUMPY, values, layout, KEY))


@pytest.mark.parametrize(("family", "bits"), WIDTHS)
def test_the_reference_makes_the_same_bytes_by_numpy_and_by_paddle(family, bits):
    values = assorted_values(7, 300)
    layout = layout_of(values, family, bits)
    found = REFERENCE.encode(ARRAYS, paddle.to_tensor(values), layout, KEY)
    assert np.array_equal(found.numpy(), REFERENCE.encode(NUMPY, values, layout, KEY))


@pytest.mark.parametrize(("family", "bits"), WIDTHS)
def test_a_code_decodes_as_by_the_reference(native, family, bits):
    values = assorted_values(7, 300)
    layout = layout_of(values, family, bits)
    buffer = paddle.to_tensor(REFERENCE.encode(NUMPY, values, layout, KEY))
    decoded = [each.decode(ARRAYS, buffer, layout, Part.WHOLE, "float32") for each in (native, REFERENCE)]
    # equal but for the sign of zero, which Paddle's negation loses
    np.testing.assert_array_equal(*(each.numpy() for each in decoded))


def test_quotients_and_square_roots_are_rounded_correctly():
    x, y = np.random.default_rng(0).uniform(0.5, 100, (2, 100_000)).astype(np.float32)
    given = [paddle.to_tensor(each) for each in (x, y)]
    assert np.array_equal(ARRAYS.divide(*given).numpy(), x / y)
    assert np.array_equal(ARRAYS.sqrt(given[0]).numpy(), np.sqrt(x))


def test_a_tensor_comes_to_the_host_without_a_copy():
    tensor = paddle.arange(6, dtype="float32").reshape([2, 3])
    tensor.stop_gradient = False
    found = ARRAYS.numpy(tensor)
    assert found.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert found.__array_interface__["data"][0] == tensor.data_ptr() == ARRAYS.pointer(tensor)


def test_a_device_is_named_by_its_kind_and_number():
    assert ARRAYS.device(paddle.zeros([2])) == "cpu"
