"""Masks and indices come back exactly, on every backend."""

from __future__ import annotations

import numpy as np
import pytest
from code_cases import KEY, NUMPY, SIDED, layout_of
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from actnn.format import index_bytes

ANY_FLOATS = arrays.arrays(np.float32, st.tuples(st.integers(1, 3), st.integers(1, 600)), elements=st.floats(width=32))
SPECIAL = np.array([[0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 1e-45, -1e-45, 1.0, -1.0]], np.float32)


@given(ANY_FLOATS)
def test_a_mask_lets_through_exactly_what_is_not_at_or_below_zero(backend, values):
    grad = np.ones_like(values)
    mask = backend.encode_mask(NUMPY, values)
    passed = backend.apply_mask(NUMPY, mask, None, grad, 1.0, 0.0)
    assert np.array_equal(passed == 1, ~(values <= 0))


def test_nan_counts_as_above_zero(backend):
    mask = backend.encode_mask(NUMPY, SPECIAL)
    passed = backend.apply_mask(NUMPY, mask, None, np.ones_like(SPECIAL), 1.0, 0.0)
    assert passed.tolist() == [[0, 0, 1, 1, 1, 0, 1, 0, 1, 0]]


@given(ANY_FLOATS)
def test_a_mask_with_an_upper_bound_ends_there(backend, values):
    mask = backend.encode_mask(NUMPY, values, upper=6.0)
    passed = backend.apply_mask(NUMPY, mask, None, np.ones_like(values), 1.0, 0.0)
    assert np.array_equal(passed == 1, ~(values <= 0) & ~(values >= 6))


def test_the_upper_bound_itself_and_infinity_lie_outside(backend):
    values = np.array([[6.0, np.nextafter(np.float32(6), np.float32(0)), np.inf, np.nan, -1.0, 1e-45]], np.float32)
    mask = backend.encode_mask(NUMPY, values, upper=6.0)
    passed = backend.apply_mask(NUMPY, mask, None, np.ones_like(values), 1.0, 0.0)
    assert passed.tolist() == [[0, 1, 0, 1, 0, 1]]


@pytest.mark.parametrize("family", SIDED)
def test_a_split_code_serves_as_the_mask_of_its_values(backend, family):
    values = np.random.default_rng(11).standard_normal((3, 700), np.float32)
    values[0, :10] = SPECIAL
    grad = np.random.default_rng(12).standard_normal((3, 700), np.float32)
    layout = layout_of(values, family, 3)
    code = backend.encode(NUMPY, values, layout, KEY)
    passed = backend.apply_mask(NUMPY, code, layout, grad, 1.0, 0.5)
    assert np.array_equal(passed, np.where(~(values <= 0), grad, 0.5 * grad))


def test_both_slopes_are_applied(backend):
    values, grad = np.array([[1.0, -1.0]], np.float32), np.array([[3.0, 5.0]], np.float32)
    mask = backend.encode_mask(NUMPY, values)
    assert backend.apply_mask(NUMPY, mask, None, grad, 2.0, -0.5).tolist() == [[6.0, -2.5]]


def test_a_mask_takes_one_bit_an_element(backend):
    assert backend.encode_mask(NUMPY, np.ones((2, 1024), np.float32)).nbytes == 2 * 1024 // 8


@given(st.integers(1, 24), st.data())
def test_an_index_comes_back_exactly(backend, bits, data):
    shape = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 600)))
    values = data.draw(arrays.arrays(np.int32, shape, elements=st.integers(0, 2**bits - 1)))
    planes = backend.encode_index(NUMPY, values, bits)
    assert np.array_equal(backend.decode_index(NUMPY, planes, *shape, bits), values)


@pytest.mark.parametrize("bits", [1, 4, 9, 24])
@pytest.mark.parametrize("shape", [(1, 1), (3, 300), (2, 512)])
def test_an_index_code_has_the_size_that_is_promised(backend, bits, shape):
    assert backend.encode_index(NUMPY, np.zeros(shape, np.int32), bits).nbytes == index_bytes(*shape, bits)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0)])
def test_an_empty_index_comes_back(backend, shape):
    planes = backend.encode_index(NUMPY, np.zeros(shape, np.int32), 4)
    assert backend.decode_index(NUMPY, planes, *shape, 4).shape == shape


@pytest.mark.parametrize("shape", [(0, 5), (5, 0)])
def test_an_empty_mask_can_be_applied(backend, shape):
    values = np.zeros(shape, np.float32)
    mask = backend.encode_mask(NUMPY, values)
    assert backend.apply_mask(NUMPY, mask, None, values, 1.0, 0.0).shape == shape
