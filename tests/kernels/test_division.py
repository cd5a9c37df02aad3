"""How planes are divided between the samples of a code: every backend as the definition has it."""

from __future__ import annotations

import numpy as np
import pytest
from code_cases import KEY, NUMPY, REFERENCE, PoisonedArrays, assorted_values, block_of, divided_layout, same_bits
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from actnn.errors import FormatError
from actnn.format import FAMILIES, MAX_BITS, Layout, Part, Rounding, squared_steps
from actnn.kernels.contract import Division
from actnn.planning.noise import noise_of_widths
from actnn.planning.problem import Demand
from actnn.planning.solvers import allocate_samples

WEIGHTS = (0.5, 1.0, 0.25, 2.0)

family = pytest.mark.parametrize("family", FAMILIES)


def widths(backend, ranges, family: str, planes: int, division: Division):
    """Return the widths that ranges lead to; check the offsets that come with them."""
    layout = divided_layout((len(ranges), 300), family, planes)
    layout.block.ranges[:] = ranges
    backend.divide(layout, division)
    plain = Layout(len(ranges), 300, FAMILIES[family], 0, Rounding.DITHER, layout.sample_bits)
    assert layout.sample_offsets == plain.sample_offsets
    assert layout.nbytes == plain.nbytes
    return layout.sample_bits


@st.composite
def problems(draw):
    """Draw ranges with many ties and zeros, norms and a number of planes."""
    name = draw(st.sampled_from(sorted(FAMILIES)))
    samples = draw(st.integers(1, 40))
    few = st.sampled_from([0.0, 1.0, 2.0, 0.5, 1e-38, 3e38])
    elements = draw(st.sampled_from([few, st.floats(0, 1e6, width=32), st.sampled_from([1.0, 4.0, np.inf, np.nan])]))
    ranges = draw(arrays.arrays(np.float32, (samples, 4), elements=elements))
    norms = draw(st.none() | arrays.arrays(np.float64, samples, elements=st.sampled_from([0.0, 1.0, 0.25, 3.7])))
    weights = draw(st.none() | st.tuples(*[st.sampled_from([0.0, 1.0, 0.3, 1e-300])] * 4))
    planes = draw(st.integers(samples * FAMILIES[name].least_bits, samples * MAX_BITS))
    return name, ranges, planes, Division(8, weights, norms)


@given(problems())
def test_any_ranges_are_divided_as_by_the_reference(native, problem):
    name, ranges, planes, division = problem
    assert widths(native, ranges, name, planes, division) == widths(REFERENCE, ranges, name, planes, division)


@given(problems())
def test_finite_ranges_are_divided_as_by_the_planner(problem):
    name, ranges, planes, division = problem
    if division.weights is None or not np.isfinite(ranges).all():
        return
    wide, weights = ranges.astype(np.float64), division.weights
    norms = 1.0 if division.norms is None else division.norms
    negative = (weights[0] * wide[:, 0] + weights[2] * wide[:, 2]) * norms
    positive = (weights[1] * wide[:, 1] + weights[3] * wide[:, 3]) * norms
    expected = allocate_samples(Demand(FAMILIES[name], 1.0, negative, positive), planes)
    assert widths(REFERENCE, ranges, name, planes, division) == tuple(expected.tolist())


@family
def test_many_samples_are_divided_as_by_the_reference(native, family):
    generator = np.random.default_rng(0)
    ranges = np.exp(generator.normal(size=(1000, 4))).astype(np.float32)
    division = Division(8, WEIGHTS, np.exp(generator.normal(size=1000)))
    for planes in (2000, 2001, 3333, 5000, 7999, 8000):
        assert widths(native, ranges, family, planes, division) == widths(REFERENCE, ranges, family, planes, division)


def test_planes_go_where_they_gain_most(backend):
    ranges = np.ones((4, 4), np.float32)
    ranges[2] = 1000
    found = widths(backend, ranges, "two_sided", 14, Division(8, WEIGHTS))
    assert found == (3, 3, 6, 2)


@pytest.mark.parametrize("trouble", [np.nan, np.inf])
def test_planes_are_divided_evenly_where_a_range_is_not_finite(backend, trouble):
    ranges = np.arange(16, dtype=np.float32).reshape(4, 4)
    ranges[1, 2] = trouble
    assert widths(backend, ranges, "two_sided", 14, Division(8, WEIGHTS)) == (4, 4, 3, 3)


def test_planes_are_divided_evenly_without_weights(backend):
    ranges = np.arange(16, dtype=np.float32).reshape(4, 4)
    assert widths(backend, ranges, "affine", 5, Division(8)) == (2, 1, 1, 1)


def test_no_samples_need_no_planes(backend):
    assert widths(backend, np.empty((0, 4), np.float32), "affine", 0, Division(8, WEIGHTS)) == ()


@pytest.mark.parametrize("planes", [7, 33])
def test_planes_that_no_width_allows_are_refused(backend, planes):
    with pytest.raises(FormatError):
        widths(backend, np.ones((4, 4), np.float32), "two_sided", planes, Division(8, WEIGHTS))


@family
def test_squared_steps_are_the_noise_of_widths(family):
    assert np.array_equal(squared_steps(FAMILIES[family]), noise_of_widths(FAMILIES[family]))


@family
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (7, 300), (9, 1031), (4, 9000)])
@pytest.mark.parametrize("evenly", [False, True])
def test_encoding_measures_divides_and_codes_as_the_reference(native, family, dtype, shape, evenly):
    values = assorted_values(*shape).astype(dtype)
    values[~np.isfinite(values)] = 3
    planes = shape[0] * 3 + shape[0] // 2
    division = Division(2, None if evenly else WEIGHTS, np.linspace(0.5, 2, shape[0]))
    lender, layouts, codes = PoisonedArrays(3), [], []
    for backend in (native, REFERENCE):
        layouts.append(divided_layout(shape, family, planes))
        codes.append(backend.encode(lender, values, layouts[-1], KEY, None, division))
    np.testing.assert_allclose(layouts[0].block.ranges, layouts[1].block.ranges, rtol=1e-5)
    # sums of the two may differ by rounding, and widths then rest on it
    layouts[1].block.ranges[:] = layouts[0].block.ranges
    REFERENCE.divide(layouts[1], division)
    assert layouts[0].sample_bits == layouts[1].sample_bits
    plain = Layout(*shape, FAMILIES[family], 0, Rounding.DITHER, layouts[0].sample_bits)
    assert np.array_equal(codes[0], REFERENCE.encode(NUMPY, values, plain, KEY))
    same_bits(
        native.decode(lender, codes[0], layouts[0], Part.WHOLE, "float32"),
        REFERENCE.decode(NUMPY, codes[0], plain, Part.WHOLE, "float32"),
    )
    lender.check_guards()


@family
def test_a_value_that_is_not_finite_leads_to_an_even_division(backend, family):
    values = np.random.default_rng(0).standard_normal((4, 700)).astype(np.float32)
    values[1] *= 100
    values[2, 300] = np.nan
    layout = divided_layout(values.shape, family, 14)
    code = backend.encode(NUMPY, values, layout, KEY, None, Division(1, WEIGHTS))
    assert layout.sample_bits == (4, 4, 3, 3)
    assert len(code) == layout.nbytes


@pytest.mark.parametrize("shape", [(0, 300), (3, 0)])
def test_an_empty_tensor_is_divided_evenly(backend, shape):
    layout = divided_layout(shape, "affine", 2 * shape[0])
    code = backend.encode(NUMPY, np.empty(shape, np.float32), layout, KEY, None, Division(8, WEIGHTS))
    assert layout.sample_bits == (2,) * shape[0]
    assert len(code) == layout.nbytes


def test_a_divided_code_is_masked_as_its_widths_say(backend):
    values = np.random.default_rng(1).standard_normal((3, 300)).astype(np.float32)
    layout = divided_layout(values.shape, "two_sided", 10)
    code = backend.encode(NUMPY, values, layout, KEY, None, Division(1, WEIGHTS))
    assert np.array_equal(backend.apply_mask(NUMPY, code, layout, values, 1.0, 0.0), np.where(values > 0, values, 0))


def test_norms_must_be_one_a_sample(native):
    layout = divided_layout((3, 300), "affine", 9)
    with pytest.raises(FormatError, match="2 norms"):
        native.divide(layout, Division(8, WEIGHTS, np.ones(2)))


def test_a_plain_layout_cannot_be_divided(native):
    layout = Layout(2, 300, FAMILIES["affine"], 3)
    with pytest.raises(FormatError, match="DividedLayout"):
        native.encode(NUMPY, np.ones((2, 300), np.float32), layout, KEY, None, Division(8))


def test_a_block_lies_where_it_is_told_within_larger_memory():
    block = block_of(5, before=3)
    block.sample_offsets[:] = -1
    block.ranges[:] = 2
    block.sample_bits[:] = 7
    inside = np.concatenate([np.full(6, -1).view(np.uint8), np.full(20, 2, np.float32).view(np.uint8), [7] * 5])
    assert np.array_equal(block.stretch.memory[3 * 8 : 3 * 8 + len(inside)], inside)
    assert block.nbytes(5) == 136
    assert not block.stretch.memory[:24].any()
