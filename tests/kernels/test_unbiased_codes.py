"""Decoded values are right on average: z-tests over many codes, false alarm below one in a million each."""

from __future__ import annotations

import numpy as np
import pytest
from code_cases import (
    FEW_WIDTHS,
    KEY,
    LINEAR_WIDTHS,
    NUMPY,
    ROUNDED,
    SIDED,
    backend_named,
    layout_of,
    round_trip,
    steps,
    values_for,
)
from z_tests import check_unbiased, check_uncorrelated, normal_bound

from actnn.format import FAMILIES, Part, Rounding, derive_key
from actnn.kernels.native import SIMD

REPEATS = 2000
ELEMENTS = 300
UNBIASED = [code for code in ROUNDED if code[:2] in FEW_WIDTHS and code[2] is not Rounding.NEAREST]


@pytest.fixture(scope="module")
def fastest():
    """The backend that users get; agreement with the others is tested elsewhere."""
    return backend_named(SIMD[-1])


def plain_values(family: str):
    """Return one sample, its extremes between two bfloat16 values so that rounding of scales matters."""
    values = np.random.default_rng(9).standard_normal(ELEMENTS).astype(np.float32)
    values[:2] = 2.0039, -3.0041
    return values_for(family, values)


# samples of one code draw different noise: repeating a sample repeats the experiment
@pytest.mark.parametrize(("family", "bits", "rounding"), UNBIASED)
def test_the_mean_of_decoded_values_is_the_value(fastest, family, bits, rounding):
    values = plain_values(family)
    repeated = np.repeat(values[None], REPEATS, 0)
    check_unbiased(round_trip(fastest, repeated, layout_of(repeated, family, bits, rounding)), values)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_mean_over_calls_is_the_value(fastest, family):
    values = plain_values(family)
    layout = layout_of(values[None], family, 2)
    decoded = [round_trip(fastest, values[None], layout, derive_key(0, 5, call))[0] for call in range(REPEATS)]
    check_unbiased(np.stack(decoded), values)


@pytest.mark.parametrize("family", SIDED)
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_the_positive_part_is_unbiased(fastest, family, bits):
    values = plain_values("two_sided")
    repeated = np.repeat(values[None], REPEATS, 0)
    decoded = round_trip(fastest, repeated, layout_of(repeated, family, bits), part=Part.POSITIVE)
    check_unbiased(decoded, np.maximum(values, 0))


# defect 5: scales rounded after coding move every value
@pytest.mark.parametrize("largest", [1.001, 1.0039, 1.0041, 1.0077])
def test_rounding_the_scales_adds_no_bias(fastest, largest):
    values = np.linspace(0.1234, largest, 64, dtype=np.float32)
    repeated = np.repeat(values[None], REPEATS, 0)
    check_unbiased(round_trip(fastest, repeated, layout_of(repeated, bits=8)), values)


def errors(backend, family: str, bits: int, rounding: Rounding):
    """Return the errors of decoded values in steps of their side, and the values; values fill both sides evenly."""
    values = np.random.default_rng(10).uniform(-1, 1, (REPEATS, ELEMENTS)).astype(np.float32)
    layout = layout_of(values, family, bits, rounding)
    buffer = backend.encode(NUMPY, values, layout, KEY)
    decoded = backend.decode(NUMPY, buffer, layout, Part.WHOLE, "float32").astype(np.float64)
    sides = steps(buffer, layout)
    step = np.where(values > 0, sides[..., 1], sides[..., 0])
    coded = values > 0 if family == "zero_exact" else np.ones_like(values, bool)
    return ((decoded - values)[coded] / step[coded]), values


@pytest.mark.parametrize(("family", "bits"), [code for code in FEW_WIDTHS if code in LINEAR_WIDTHS])
def test_the_variance_of_dither_is_a_twelfth_of_a_squared_step(fastest, family, bits):
    found, _ = errors(fastest, family, bits, Rounding.DITHER)
    # the variance of the square of a uniform variable is 1/180
    deviation = np.sqrt(1 / 180 / found.size)
    assert abs(np.mean(found**2) - 1 / 12) < normal_bound(1) * deviation


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_the_variance_of_dither_does_not_depend_on_the_value(fastest, bits):
    values = plain_values("affine")
    repeated = np.repeat(values[None], REPEATS, 0)
    layout = layout_of(repeated, bits=bits)
    buffer = fastest.encode(NUMPY, repeated, layout, KEY)
    decoded = fastest.decode(NUMPY, buffer, layout, Part.WHOLE, "float32").astype(np.float64)
    squares = ((decoded - values) / steps(buffer, layout)[..., 1]) ** 2
    check_unbiased(squares, np.full(ELEMENTS, 1 / 12))


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_the_variance_of_stochastic_rounding_is_twice_that_of_dither(fastest, bits):
    found, _ = errors(fastest, "affine", bits, Rounding.STOCHASTIC)
    assert np.mean(found**2) == pytest.approx(1 / 6, rel=0.02)


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_errors_of_dither_do_not_depend_on_the_value(fastest, bits):
    found, values = errors(fastest, "affine", bits, Rounding.DITHER)
    check_uncorrelated(found, values)
