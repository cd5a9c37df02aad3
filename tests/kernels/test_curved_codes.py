"""Codes along a curve: what they gain, what they refuse, and that what plans them knows their noise."""

from __future__ import annotations

import numpy as np
import pytest
from code_cases import KEY, NUMPY, backend_named, layout_of, round_trip, stored_scales, values_for
from z_tests import check_unbiased

from actnn.errors import FormatError
from actnn.format import FAMILIES, GROUP, Curve, Layout, Part, Rounding
from actnn.kernels.native import SIMD
from actnn.planning import noise_of_widths, rounding_factor

CURVED = [name for name, family in FAMILIES.items() if family.curve is not Curve.LINEAR]
BENT = [name for name in CURVED if FAMILIES[name].curve is Curve.CUBIC]


@pytest.fixture(scope="module")
def fastest():
    """The backend that users get; agreement with the others is tested elsewhere."""
    return backend_named(SIMD[-1])


def gaussian(samples: int = 40, elements: int = 100 * GROUP):
    return np.random.default_rng(20).standard_normal((samples, elements)).astype(np.float32)


def noise_over_energy(backend, values, family: str, bits: int) -> float:
    error = round_trip(backend, values, layout_of(values, family, bits)).astype(np.float64) - values
    return float((error**2).sum() / (values.astype(np.float64) ** 2).sum())


def student():
    return np.random.default_rng(21).standard_t(3, (40, 100 * GROUP)).astype(np.float32)


@pytest.mark.parametrize(
    ("family", "values", "expected"),
    [
        ("companded", gaussian, 0.227),
        ("normalized", gaussian, 0.23),
        ("two_sided_normalized", gaussian, 0.50),
        ("zero_exact_companded", lambda: np.maximum(gaussian(), 0), 0.129),
        ("companded", lambda: np.maximum(gaussian(), 0), 0.080),
        ("companded", student, 0.36),
    ],
)
def test_two_bits_have_the_noise_that_was_measured_once(fastest, family, values, expected):
    assert noise_over_energy(fastest, values(), family, 2) == pytest.approx(expected, rel=0.04)


@pytest.mark.parametrize(
    ("curved", "straight", "values"),
    [
        ("companded", "affine", gaussian),
        ("companded", "affine", student),
        ("two_sided_normalized", "two_sided", gaussian),
        ("zero_exact_companded", "zero_exact", lambda: np.maximum(gaussian(), 0)),
        ("root", "affine", lambda: gaussian() ** 4),
    ],
)
def test_a_curve_lowers_the_noise_of_values_that_are_rare_far_out(fastest, curved, straight, values):
    given = values()
    assert noise_over_energy(fastest, given, curved, 2) < noise_over_energy(fastest, given, straight, 2)


@pytest.mark.parametrize("family", CURVED)
@pytest.mark.parametrize(("bits", "tolerance"), [(3, 0.35), (5, 0.15), (8, 0.05)])
def test_ranges_foretell_the_noise(fastest, family, bits, tolerance):
    values = values_for(family, gaussian())
    layout = layout_of(values, family, bits)
    ranges = fastest.ranges(NUMPY, values, layout, 1).astype(np.float64)
    expected = rounding_factor(Rounding.DITHER) * (ranges[:, :2] @ noise_of_widths(FAMILIES[family])[bits]).sum()
    error = round_trip(fastest, values, layout).astype(np.float64) - values
    assert (error**2).sum() == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize("family", CURVED)
@pytest.mark.parametrize("bits", [2, 3])
def test_values_of_any_size_are_unbiased(fastest, family, bits):
    values = values_for(family, gaussian(1, 300)[0]) * np.geomspace(1e-3, 20, 300, dtype=np.float32)
    repeated = np.repeat(values[None], 4000, 0)
    check_unbiased(round_trip(fastest, repeated, layout_of(repeated, family, bits)), values)


@pytest.mark.parametrize("family", BENT)
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("values", [gaussian, student], ids=["gaussian", "student"])
def test_levels_reach_as_far_as_values_do(backend, family, bits, values):
    given = np.ascontiguousarray(values_for(family, values()[:2, : 9 * GROUP + 50]))
    layout = layout_of(given, family, bits)
    scales = stored_scales(backend.encode(NUMPY, given, layout, KEY), layout).astype(np.float64)
    reach = np.full(scales.shape[:-1], 2.0)
    if FAMILIES[family].unit:
        reach = scales[..., -1] * (3 if FAMILIES[family].affine else 6)
    groups = [given[:, start : start + GROUP].astype(np.float64) for start in range(0, given.shape[1], GROUP)]
    least, most = (np.stack([end(group, 1) for group in groups], 1) / reach for end in (np.min, np.max))
    if FAMILIES[family].affine:
        low, high = scales[..., 0], scales[..., 0] + scales[..., 1]
    else:
        sides = scales[..., : FAMILIES[family].sides]
        low, high = -sides[..., 0], sides[..., -1]
    if FAMILIES[family].sides == 2:
        assert (low + low**3 <= least).all()
    assert (high + high**3 >= most).all()
    # a bfloat16 has eight bits
    assert (high + high**3 <= most * 1.03 + 0.02 * (most - least)).all()


@pytest.mark.parametrize("family", CURVED)
def test_eight_bits_rounded_to_the_nearest_are_near(backend, family):
    values = values_for(family, gaussian(2, 700))
    decoded = round_trip(backend, values, layout_of(values, family, 8, Rounding.NEAREST))
    np.testing.assert_allclose(decoded, values, rtol=0.04, atol=0.04)


@pytest.mark.parametrize("family", CURVED)
def test_stochastic_rounding_is_refused(family):
    with pytest.raises(FormatError, match="Use dither"):
        Layout(1, 1, FAMILIES[family], 4, Rounding.STOCHASTIC)


@pytest.mark.parametrize("family", ["companded", "zero_exact_companded"])
@pytest.mark.parametrize("scale", [2.0**-90, 1.0, 1e20])
def test_the_unit_is_the_mean_magnitude_rounded_up(backend, family, scale):
    values = values_for(family, gaussian(3, GROUP + 44)) * np.float32(scale)
    layout = layout_of(values, family)
    units = stored_scales(backend.encode(NUMPY, values, layout, KEY), layout)[..., -1]
    means = np.stack([abs(values[:, :GROUP]).mean(1), abs(values[:, GROUP:]).mean(1)], 1)
    assert (units >= means * (1 - 1e-6)).all()
    assert (units <= means * (1 + 2.0**-7)).all()


@pytest.mark.parametrize("family", ["companded", "zero_exact_companded"])
@pytest.mark.parametrize("value", [0.0, 2.0**-110])
def test_a_group_of_nothing_has_the_unit_one(backend, family, value):
    values = np.full((1, 300), value, np.float32)
    layout = layout_of(values, family)
    buffer = backend.encode(NUMPY, values, layout, KEY)
    assert (stored_scales(buffer, layout)[..., -1] == 1).all()
    assert np.abs(backend.decode(NUMPY, buffer, layout, Part.WHOLE, "float32")).max() < 2.0**-90


@pytest.mark.parametrize("family", BENT)
def test_zeros_decode_to_zeros(backend, family):
    values = np.zeros((1, 300), np.float32)
    assert (round_trip(backend, values, layout_of(values, family, 2)) == 0).all()


@pytest.mark.parametrize("family", ["companded", "zero_exact_companded"])
def test_the_size_of_values_does_not_matter_where_groups_have_a_unit(backend, family):
    values = values_for(family, gaussian(2, 700))
    layout = layout_of(values, family, 3)
    small, large = (round_trip(backend, values * np.float32(scale), layout) / scale for scale in (2.0**-40, 2.0**40))
    np.testing.assert_array_equal(small, large)


@pytest.mark.parametrize("family", ["normalized", "two_sided_normalized"])
def test_values_no_normalisation_leaves_poison_their_group(backend, family):
    values = gaussian(1, 2 * GROUP)
    values[0, 3] = 2.0**62
    assert (
        np.isnan(round_trip(backend, values, layout_of(values, family))).tolist()[0] == [True] * GROUP + [False] * GROUP
    )
    values[0, 3] = 2.0**61
    assert np.isfinite(round_trip(backend, values, layout_of(values, family, 2))).all()


@pytest.mark.parametrize("family", ["companded", "zero_exact_companded"])
def test_a_mean_that_overflows_poisons_its_group(backend, family):
    values = np.full((1, 300), 3e38, np.float32)
    assert np.isnan(round_trip(backend, values, layout_of(values, family))).all()


def test_a_negative_value_has_no_root_and_poisons_its_group(backend):
    values = abs(gaussian(1, 2 * GROUP))
    values[0, 7] = -1e-9
    decoded = round_trip(backend, values, layout_of(values, "root"))
    assert np.isnan(decoded[0, :GROUP]).all()
    assert np.isfinite(decoded[0, GROUP:]).all()


@pytest.mark.parametrize("family", ["two_sided_normalized", "zero_exact_companded"])
def test_values_far_below_the_unit_keep_their_side(backend, family):
    values = gaussian(1, 300)
    values[0, :6] = 1e-45, -1e-45, 1e-30, -1e-30, 0.0, -0.0
    values[0, 6] = 1e30 if family == "zero_exact_companded" else 1.0
    layout = layout_of(values, family)
    mask = backend.apply_mask(NUMPY, backend.encode(NUMPY, values, layout, KEY), layout, np.ones_like(values), 1, 0)
    assert np.array_equal(mask, values > 0)
