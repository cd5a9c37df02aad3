"""What docs/format.md promises of any split code, on every backend."""

from __future__ import annotations

import numpy as np
import pytest
from code_cases import (
    KEY,
    LINEAR_WIDTHS,
    NUMPY,
    ROUNDED,
    SIDED,
    WIDTHS,
    layout_of,
    round_trip,
    steps,
    stored_scales,
    stored_words,
    values_for,
)
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from actnn.errors import FormatError
from actnn.format import (
    AFFINE,
    FAMILIES,
    GROUP,
    TWO_SIDED,
    ZERO_EXACT,
    Layout,
    Part,
    Rounding,
    derive_key,
    index_bytes,
)

FINITE = st.floats(-(2.0**100), 2.0**100, width=32)
SMALL_SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 2 * GROUP + 9))
VALUES = arrays.arrays(np.float32, SMALL_SHAPES, elements=FINITE, fill=FINITE)
CODES = st.sampled_from(WIDTHS)
ROUNDINGS = st.sampled_from(list(Rounding))
ROUNDED_CODES = st.sampled_from(ROUNDED)

# how far from its level a value may be rounded, in steps
REACH = {Rounding.DITHER: 0.5, Rounding.NEAREST: 0.5, Rounding.STOCHASTIC: 1.0}


def tolerance(values):
    """Return what float32 arithmetic may add to an error, and what is below the least scale."""
    largest = np.abs(values).max(initial=0)
    return 4 * 2.0**-23 * float(largest) + 2.0**-99


@given(VALUES, st.sampled_from(LINEAR_WIDTHS), ROUNDINGS)
def test_a_value_decodes_to_within_a_step(backend, values, code, rounding):
    layout = layout_of(values, *code, rounding)
    buffer = backend.encode(NUMPY, values, layout, KEY)
    decoded = backend.decode(NUMPY, buffer, layout, Part.WHOLE, "float32").astype(np.float64)
    exact = values if code[0] != "zero_exact" else np.maximum(values, 0)
    step = np.where(values > 0, steps(buffer, layout)[..., 1], steps(buffer, layout)[..., 0])
    # fixed-point positions have 16 bits below the step
    reach = (REACH[rounding] + 2.0**-15) * step
    assert (np.abs(decoded - exact) <= reach + tolerance(values)).all()


@given(VALUES, ROUNDED_CODES)
def test_words_are_below_two_to_the_width(backend, values, code):
    layout = layout_of(values, *code)
    buffer = backend.encode(NUMPY, values, layout, KEY)
    assert (stored_words(buffer, layout) < 2**layout.bits).all()


@given(VALUES, st.sampled_from([code for code in ROUNDED if code[0] in SIDED]))
def test_a_word_of_n_or_more_is_exactly_a_value_above_zero(backend, values, code):
    layout = layout_of(values, *code)
    words = stored_words(backend.encode(NUMPY, values, layout, KEY), layout)
    assert ((words >= layout.family.negative[layout.bits]) == (values > 0)).all()


@given(VALUES, CODES)
def test_a_buffer_has_the_size_that_its_layout_tells(backend, values, code):
    layout = layout_of(values, *code)
    assert backend.encode(NUMPY, values, layout, KEY).shape == (layout.nbytes,)


@given(VALUES)
def test_an_affine_range_encloses_its_group(backend, values):
    layout = layout_of(values)
    scales = stored_scales(backend.encode(NUMPY, values, layout, KEY), layout).astype(np.float64)
    low = np.repeat(scales[..., 0], GROUP, 1)[:, : layout.elements]
    high = np.repeat(scales.sum(-1), GROUP, 1)[:, : layout.elements]
    room = tolerance(values)
    assert ((low <= values) & (values <= high + room)).all()


@given(VALUES)
def test_the_scales_of_the_sides_enclose_their_group(backend, values):
    layout = layout_of(values, "two_sided", 3)
    scales = stored_scales(backend.encode(NUMPY, values, layout, KEY), layout).astype(np.float64)
    negative, positive = (np.repeat(scales[..., side], GROUP, 1)[:, : layout.elements] for side in (0, 1))
    least = 2.0**-100
    assert ((-negative - least <= values) & (values <= positive + least)).all()


@given(VALUES, CODES)
def test_equal_keys_give_equal_bytes(backend, values, code):
    layout = layout_of(values, *code)
    first, second = (backend.encode(NUMPY, values, layout, KEY) for _ in range(2))
    assert np.array_equal(first, second)


@pytest.mark.parametrize("rounding", [Rounding.DITHER, Rounding.STOCHASTIC])
def test_other_keys_give_other_words(backend, rounding):
    values = np.random.default_rng(0).standard_normal((2, 1000), np.float32)
    layout = layout_of(values, rounding=rounding)
    first, second = (
        stored_words(backend.encode(NUMPY, values, layout, derive_key(0, 0, call)), layout) for call in (1, 2)
    )
    assert (first != second).mean() > 0.2


def test_nearest_rounding_does_not_depend_on_the_key(backend):
    values = np.random.default_rng(0).standard_normal((2, 1000), np.float32)
    layout = layout_of(values, rounding=Rounding.NEAREST)
    first, second = (
        stored_words(backend.encode(NUMPY, values, layout, derive_key(0, 0, call)), layout) for call in (1, 2)
    )
    assert np.array_equal(first, second)


def test_the_buffer_begins_with_its_key(backend):
    values = np.ones((1, 5), np.float32)
    buffer = backend.encode(NUMPY, values, layout_of(values), KEY)
    assert tuple(buffer[:16].view("<u4")) == KEY


@pytest.mark.parametrize(("family", "bits"), WIDTHS)
def test_an_empty_tensor_makes_an_empty_code(backend, family, bits):
    for shape in [(0, 300), (3, 0), (0, 0)]:
        values = np.empty(shape, np.float32)
        assert round_trip(backend, values, layout_of(values, family, bits)).shape == shape


def test_no_samples_with_widths_of_their_own_make_an_empty_code(backend):
    values = np.empty((0, 300), np.float32)
    assert round_trip(backend, values, layout_of(values, sample_bits=())).shape == (0, 300)


@pytest.mark.parametrize("elements", [1, 7, 8, 9, 15, 16, 17, 255, 256, 257, 511, 513])
def test_short_groups_decode_to_within_a_step(backend, elements):
    values = np.random.default_rng(elements).uniform(3, 4, (2, elements)).astype(np.float32)
    decoded = round_trip(backend, values, layout_of(values, bits=8))
    assert np.abs(decoded - values).max() <= 1.02 / 255


def test_the_unused_bits_of_a_short_group_are_zero(backend):
    values = np.ones((1, 3), np.float32)
    values[0, 0] = 0
    buffer = backend.encode(NUMPY, values, layout_of(values, rounding=Rounding.NEAREST), KEY)
    assert buffer[-4:].tolist() == [0b110] * 4


# defect 5: zero padding widened the range of the last group
def test_a_short_last_group_is_not_widened_by_padding(backend):
    values = np.random.default_rng(1).uniform(5, 6, (2, GROUP + 44)).astype(np.float32)
    layout = layout_of(values)
    scales = stored_scales(backend.encode(NUMPY, values, layout, KEY), layout)
    assert (scales[:, 1, 0] > 4.9).all()
    assert (scales[:, 1, 1] < 1.1).all()


# defect 5: scales in float16 overflow
def test_values_far_beyond_float16_stay_finite(backend):
    values = np.linspace(-1e30, 1e30, 512, dtype=np.float32).reshape(1, 512)
    decoded = round_trip(backend, values, layout_of(values, bits=8))
    assert np.abs(decoded - values).max() <= 1.02e30 / 255


@pytest.mark.parametrize(("family", "bits"), WIDTHS)
def test_a_group_that_is_not_finite_decodes_to_nan_and_no_other_does(backend, family, bits):
    values = values_for(family, np.random.default_rng(2).standard_normal((2, 3 * GROUP), np.float32))
    for trouble in (np.nan, np.inf, -np.inf):
        values[0, GROUP + 17] = trouble
        decoded = round_trip(backend, values, layout_of(values, family, bits)).reshape(2, 3, GROUP)
        poisoned = np.isnan(decoded)
        assert poisoned[0, 1].all(), trouble
        poisoned[0, 1] = False
        assert not poisoned.any(), trouble


@pytest.mark.parametrize("family", SIDED)
def test_the_positive_part_of_a_poisoned_group_is_nan(backend, family):
    values = np.full((1, 300), -1, np.float32)
    values[0, 3] = np.nan
    decoded = round_trip(backend, values, layout_of(values, family), part=Part.POSITIVE)
    assert np.isnan(decoded[0, :GROUP]).all()
    assert (decoded[0, GROUP:] == 0).all()


def test_a_range_beyond_the_largest_scale_poisons_its_group(backend):
    values = np.array([[-3.3e38, 3.3e38, 0.0]], np.float32)
    assert np.isnan(round_trip(backend, values, layout_of(values))).all()


@pytest.mark.parametrize("family", SIDED)
def test_the_mask_stays_exact_in_a_poisoned_group(backend, family):
    values = np.random.default_rng(3).standard_normal((1, 300), np.float32)
    values[0, [5, 6, 7]] = np.nan, np.inf, -np.inf
    layout = layout_of(values, family)
    words = stored_words(backend.encode(NUMPY, values, layout, KEY), layout)
    assert np.array_equal(words >= layout.family.negative[4], ~(values <= 0))


@pytest.mark.parametrize(("family", "bits"), [code for code in WIDTHS if code[0] in SIDED])
def test_the_positive_part_is_the_whole_above_zero_and_zero_elsewhere(backend, family, bits):
    values = np.random.default_rng(4).standard_normal((2, 700), np.float32)
    layout = layout_of(values, family, bits)
    whole, positive = (round_trip(backend, values, layout, part=part) for part in (Part.WHOLE, Part.POSITIVE))
    assert np.array_equal(positive, np.where(values > 0, whole, 0))


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("family", ["zero_exact", "zero_exact_companded"])
def test_zero_exact_codes_give_exact_zeros(backend, family, bits):
    values = np.maximum(np.random.default_rng(5).standard_normal((2, 700), np.float32), 0)
    decoded = round_trip(backend, values, layout_of(values, family, bits))
    assert (decoded[values == 0] == 0).all()


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -2.5, 1e-3, 1e20])
def test_a_constant_that_bfloat16_holds_decodes_to_itself_in_an_affine_code(backend, value):
    held = (np.full(1, value, np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)
    values = np.repeat(held, 300).reshape(1, 300)
    assert np.array_equal(round_trip(backend, values, layout_of(values)), values)


@pytest.mark.parametrize("family", ["affine", "zero_exact", "two_sided"])
def test_samples_may_have_widths_of_their_own(backend, family):
    widths = (8, 2, 2, 5, 3)
    values = np.random.default_rng(6).uniform(0.5, 1, (5, 300)).astype(np.float32)
    layout = layout_of(values, family, sample_bits=widths)
    errors = np.abs(round_trip(backend, values, layout) - values).max(1)
    reach = 0.51 * np.array([1.01 / (2**bits - FAMILIES[family].negative[bits] - 1) for bits in widths])
    assert (errors <= reach).all()


@pytest.mark.parametrize(("family", "bits"), WIDTHS)
def test_some_samples_decode_as_in_the_whole(backend, family, bits):
    values = values_for(family, np.random.default_rng(6).standard_normal((5, 300), np.float32))
    layout = layout_of(values, family, bits)
    buffer = backend.encode(NUMPY, values, layout, KEY)
    whole = backend.decode(NUMPY, buffer, layout, Part.WHOLE, "float32")
    for samples in (range(0, 5), range(0, 2), range(2, 4), range(4, 5), range(3, 3)):
        some = backend.decode(NUMPY, buffer, layout, Part.WHOLE, "float32", samples=samples)
        assert np.array_equal(some, whole[samples.start : samples.stop]), samples


@pytest.mark.parametrize("family", FAMILIES)
def test_some_samples_of_widths_of_their_own_decode_as_in_the_whole(backend, family):
    values = values_for(family, np.random.default_rng(6).standard_normal((5, 300), np.float32))
    layout = layout_of(values, family, sample_bits=(8, 2, 2, 5, 3))
    buffer = backend.encode(NUMPY, values, layout, KEY)
    whole = backend.decode(NUMPY, buffer, layout, Part.WHOLE, "float32")
    some = backend.decode(NUMPY, buffer, layout, Part.WHOLE, "float32", samples=range(1, 4))
    assert np.array_equal(some, whole[1:4])


def test_equal_widths_for_each_sample_give_the_bytes_of_one_width_for_all(backend):
    values = np.random.default_rng(7).standard_normal((4, 300), np.float32)
    one, each = layout_of(values, bits=3), layout_of(values, bits=8, sample_bits=(3,) * 4)
    assert np.array_equal(backend.encode(NUMPY, values, one, KEY), backend.encode(NUMPY, values, each, KEY))


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
@pytest.mark.parametrize("bits", [-1, 0, 9, 16])
def test_a_width_that_no_family_has_is_refused(family, bits):
    with pytest.raises(FormatError, match=f"{bits} bits does not exist"):
        Layout(1, 1, family, bits)


@pytest.mark.parametrize("family", [ZERO_EXACT, TWO_SIDED], ids=lambda family: family.name)
def test_a_side_of_one_level_is_refused(family):
    with pytest.raises(FormatError, match="1 bits does not exist"):
        Layout(1, 1, family, 1)


def test_a_bad_width_of_one_sample_is_refused():
    with pytest.raises(FormatError, match="9 bits"):
        Layout(2, 1, AFFINE, 4, sample_bits=(4, 9))


def test_widths_for_other_than_all_samples_are_refused():
    with pytest.raises(FormatError, match="2 widths were given for 3 samples"):
        Layout(3, 1, AFFINE, 4, sample_bits=(4, 4))


@pytest.mark.parametrize("shape", [(-1, 4), (4, -1)])
def test_a_negative_size_is_refused(shape):
    with pytest.raises(FormatError, match="at least 0"):
        Layout(*shape, AFFINE, 4)


@pytest.mark.parametrize("bits", [0, 25])
def test_an_index_width_that_does_not_exist_is_refused(backend, bits):
    with pytest.raises(FormatError, match=f"index code of {bits} bits"):
        backend.encode_index(NUMPY, np.zeros((1, 4), np.int32), bits)


def test_the_size_of_an_index_code_of_bad_width_is_refused():
    with pytest.raises(FormatError):
        index_bytes(1, 1, 25)


def test_keys_differ_in_every_word_when_a_number_changes():
    base = derive_key(1, 2, 3)
    others = [derive_key(2, 2, 3), derive_key(1, 3, 3), derive_key(1, 2, 4)]
    assert all(ours != theirs for other in others for ours, theirs in zip(base, other, strict=True))
