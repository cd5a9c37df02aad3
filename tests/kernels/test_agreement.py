"""The compiled kernels and the reference make the same bytes and the same values, whatever the way there."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import pytest
from code_cases import (
    INTERPRETED,
    KEY,
    NUMPY,
    REFERENCE,
    ROUNDED,
    SIDED,
    WIDTHS,
    PoisonedArrays,
    assorted_values,
    layout_of,
    same_bits,
)
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from actnn.format import FAMILIES, Layout, Part

# full, short, single and many groups, and enough of them for every thread to get some
SHAPES = [(1, 1), (3, 7), (4, 256), (7, 300), (5, 520), (33, 1031)]
if INTERPRETED:
    # which takes as long for each program, however much is in it
    SHAPES = [(1, 1), (4, 256), (7, 1031)]
FLOATS = ["float32", "float16"]
PARTS = {name: [Part.WHOLE] if family.affine else list(Part) for name, family in FAMILIES.items()}


@cache
def coded(family, bits, rounding, dtype):
    """Return values of every shape with their layouts and what the reference, which is slow, makes of them."""
    values = [assorted_values(*shape).astype(dtype) for shape in SHAPES]
    layouts = [layout_of(each, family, bits, rounding) for each in values]
    codes = [REFERENCE.encode(NUMPY, each, layout, KEY) for each, layout in zip(values, layouts, strict=True)]
    return list(zip(values, layouts, codes, strict=True))


@pytest.mark.parametrize(("family", "bits", "rounding"), ROUNDED)
def test_encoding_gives_the_bytes_of_the_reference(native, family, bits, rounding):
    lender = PoisonedArrays()
    for dtype in FLOATS:
        for values, layout, expected in coded(family, bits, rounding, dtype):
            assert np.array_equal(native.encode(lender, values, layout, KEY), expected), f"{dtype} {values.shape}"
    lender.check_guards()


@pytest.mark.parametrize(("family", "bits", "rounding"), ROUNDED)
def test_decoding_gives_the_bits_of_the_reference(native, family, bits, rounding):
    lender = PoisonedArrays()
    for _, layout, buffer in coded(family, bits, rounding, "float32"):
        for part, dtype in product(PARTS[family], FLOATS):
            expected = REFERENCE.decode(NUMPY, buffer, layout, part, dtype)
            same_bits(native.decode(lender, buffer, layout, part, dtype), expected)
    lender.check_guards()


@pytest.mark.parametrize(("family", "bits"), WIDTHS)
def test_the_reference_reads_what_the_kernels_wrote(native, family, bits):
    values = assorted_values(7, 300)
    layout = layout_of(values, family, bits)
    theirs = native.encode(NUMPY, values, layout, KEY)
    ours = REFERENCE.encode(NUMPY, values, layout, KEY)
    same_bits(
        REFERENCE.decode(NUMPY, theirs, layout, Part.WHOLE, "float32"),
        native.decode(NUMPY, ours, layout, Part.WHOLE, "float32"),
    )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_the_number_of_threads_changes_no_byte(native, family, threads):
    values = assorted_values(33, 1031)
    layout = layout_of(values, family, 3)
    one, many = PoisonedArrays(1), PoisonedArrays(threads)
    assert np.array_equal(native.encode(one, values, layout, KEY), native.encode(many, values, layout, KEY))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_the_number_of_threads_changes_no_decoded_bit(native, family, threads):
    values = assorted_values(33, 1031)
    layout = layout_of(values, family, 3)
    buffer = REFERENCE.encode(NUMPY, values, layout, KEY)
    one, many = PoisonedArrays(1), PoisonedArrays(threads)
    decoded = [native.decode(lender, buffer, layout, Part.WHOLE, "float32") for lender in (one, many)]
    same_bits(*decoded)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tensor_of_a_few_million_elements_gives_the_bytes_of_the_reference(native, family):
    values = np.random.default_rng(8).standard_normal((3, 400_003), np.float32)
    layout = layout_of(values, family, 3)
    assert np.array_equal(
        native.encode(PoisonedArrays(), values, layout, KEY), REFERENCE.encode(NUMPY, values, layout, KEY)
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_widths_for_each_sample_give_the_bytes_of_the_reference(native, family):
    values = assorted_values(9, 700)
    layout = layout_of(values, family, sample_bits=(2, 8, 8, 3, 5, 5, 7, 4, 6))
    lender = PoisonedArrays(3)
    assert np.array_equal(native.encode(lender, values, layout, KEY), REFERENCE.encode(NUMPY, values, layout, KEY))
    lender.check_guards()


@pytest.mark.parametrize("family", FAMILIES)
def test_widths_for_each_sample_decode_to_the_bits_of_the_reference(native, family):
    values = assorted_values(9, 700)
    layout = layout_of(values, family, sample_bits=(2, 8, 8, 3, 5, 5, 7, 4, 6))
    buffer = REFERENCE.encode(NUMPY, values, layout, KEY)
    same_bits(
        native.decode(PoisonedArrays(3), buffer, layout, Part.WHOLE, "float32"),
        REFERENCE.decode(NUMPY, buffer, layout, Part.WHOLE, "float32"),
    )


@given(
    arrays.arrays(np.float32, st.tuples(st.integers(1, 3), st.integers(1, 600)), elements=st.floats(width=32)),
    st.sampled_from(ROUNDED),
)
def test_any_float32_is_encoded_as_by_the_reference(native, values, code):
    layout = layout_of(values, *code)
    assert np.array_equal(native.encode(NUMPY, values, layout, KEY), REFERENCE.encode(NUMPY, values, layout, KEY))


@given(
    arrays.arrays(np.uint16, st.tuples(st.integers(1, 2), st.integers(1, 600))),
    st.sampled_from(WIDTHS),
)
def test_any_float16_is_encoded_as_by_the_reference(native, bits, code):
    values = bits.view(np.float16)
    layout = layout_of(values, *code)
    assert np.array_equal(native.encode(NUMPY, values, layout, KEY), REFERENCE.encode(NUMPY, values, layout, KEY))


@given(st.data(), st.sampled_from(WIDTHS), st.sampled_from(FLOATS))
def test_any_bytes_decode_as_by_the_reference(native, data, code, dtype):
    family, bits = FAMILIES[code[0]], code[1]
    layout = Layout(2, data.draw(st.integers(1, 300)), family, bits)
    buffer = data.draw(arrays.arrays(np.uint8, layout.nbytes))
    # unused bits are zero by the format: whatever else they were, no backend need read them alike
    expected = REFERENCE.decode(NUMPY, buffer, layout, Part.WHOLE, dtype)
    same_bits(native.decode(NUMPY, buffer, layout, Part.WHOLE, dtype), expected)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_mask_has_the_bytes_of_the_reference(native, dtype, shape):
    lender = PoisonedArrays(3)
    values = assorted_values(*shape).astype(dtype)
    assert np.array_equal(native.encode_mask(lender, values), REFERENCE.encode_mask(NUMPY, values))
    lender.check_guards()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("slopes", [(1.0, 0.0), (1.0, 0.01), (1.25, 0.0), (1.0, -0.3)])
def test_a_mask_is_applied_with_the_bits_of_the_reference(native, dtype, shape, slopes):
    lender = PoisonedArrays(3)
    values, grad = (assorted_values(*shape, seed).astype(dtype) for seed in (0, 1))
    mask = REFERENCE.encode_mask(NUMPY, values)
    expected = REFERENCE.apply_mask(NUMPY, mask, None, grad, *np.float32(slopes))
    same_bits(native.apply_mask(lender, mask, None, grad, *slopes), expected)
    lender.check_guards()


@pytest.mark.parametrize("code", [code for code in WIDTHS if code[0] in SIDED])
def test_the_mask_of_a_split_code_is_applied_with_the_bits_of_the_reference(native, code):
    values, grad = (assorted_values(7, 300, seed) for seed in (0, 1))
    layout = layout_of(values, *code)
    buffer = REFERENCE.encode(NUMPY, values, layout, KEY)
    expected = REFERENCE.apply_mask(NUMPY, buffer, layout, grad, 1.0, 0.0)
    same_bits(native.apply_mask(PoisonedArrays(3), buffer, layout, grad, 1.0, 0.0), expected)


@pytest.mark.parametrize("bits", [1, 2, 4, 5, 9, 16, 24])
@pytest.mark.parametrize("shape", SHAPES)
def test_an_index_has_the_bytes_of_the_reference(native, bits, shape):
    lender = PoisonedArrays(3)
    values = np.random.default_rng(bits).integers(0, 2**bits, shape, dtype=np.int32)
    assert np.array_equal(native.encode_index(lender, values, bits), REFERENCE.encode_index(NUMPY, values, bits))
    lender.check_guards()
