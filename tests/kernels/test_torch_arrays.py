"""The kernels on torch's arrays, which have the bfloat16 that numpy lacks."""

from __future__ import annotations

import numpy as np
import pytest
from code_cases import KEY, NUMPY, REFERENCE, ROUNDED, WIDTHS, assorted_values, layout_of, same_bits

from actnn.format import Part

torch = pytest.importorskip("torch")
ARRAYS = pytest.importorskip("actnn.torch.tensors").ARRAYS


@pytest.mark.parametrize(("family", "bits", "rounding"), ROUNDED)
def test_bfloat16_is_encoded_as_by_the_reference(native, family, bits, rounding):
    values = torch.from_numpy(assorted_values(7, 300)).bfloat16()
    layout = layout_of(values, family, bits, rounding)
    assert torch.equal(native.encode(ARRAYS, values, layout, KEY), REFERENCE.encode(ARRAYS, values, layout, KEY))


@pytest.mark.parametrize(("family", "bits"), WIDTHS)
def test_a_code_decodes_to_bfloat16_as_by_the_reference(native, family, bits):
    values = torch.from_numpy(assorted_values(7, 300))
    layout = layout_of(values, family, bits)
    buffer = REFERENCE.encode(ARRAYS, values, layout, KEY)
    decoded = [each.decode(ARRAYS, buffer, layout, Part.WHOLE, "bfloat16") for each in (native, REFERENCE)]
    same_bits(*(each.float().numpy() for each in decoded))


def test_a_mask_is_applied_to_bfloat16_as_by_the_reference(native):
    values, grad = (torch.from_numpy(assorted_values(7, 300, seed)).bfloat16() for seed in (0, 1))
    mask = native.encode_mask(ARRAYS, values)
    applied = [each.apply_mask(ARRAYS, mask, None, grad, 1.0, 0.25) for each in (native, REFERENCE)]
    same_bits(*(each.float().numpy() for each in applied))


@pytest.mark.parametrize(("family", "bits"), WIDTHS)
def test_the_reference_makes_the_same_bytes_by_numpy_and_by_torch(family, bits):
    values = assorted_values(7, 300)
    layout = layout_of(values, family, bits)
    ours = REFERENCE.encode(ARRAYS, torch.from_numpy(values), layout, KEY)
    assert np.array_equal(ours.numpy(), REFERENCE.encode(NUMPY, values, layout, KEY))


def test_a_square_root_is_rounded_correctly():
    # every mantissa of the numbers from 1 to 4
    bits = np.arange(0x3F800000, 0x40800000, dtype=np.uint32)
    expected = np.sqrt(bits.view(np.float32))
    assert np.array_equal(ARRAYS.sqrt(torch.from_numpy(bits.view(np.float32))).numpy(), expected)


def test_a_tensor_comes_to_the_host_as_an_array_of_numpy():
    tensor = torch.arange(6.0, requires_grad=True).reshape(2, 3)
    found = ARRAYS.numpy(tensor)
    assert isinstance(found, np.ndarray)
    assert found.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
