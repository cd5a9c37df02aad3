"""What widths are chosen by: ranges and energy on every backend, the compiled ones as the reference has them."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import pytest
from code_cases import NUMPY, REFERENCE, SIDED, PoisonedArrays, assorted_values, layout_of, same_bits, values_for

from actnn.errors import FormatError
from actnn.format import FAMILIES, GROUP, Layout
from actnn.kernels.contract import Channels, Normalization
from actnn.kernels.reference.curves import CUBE_ROOT

# (samples, channels, inner, outer): planes of one channel after another, or channels side by side (channels_last)
FORMS = {
    "planes": (4, 5, 777, 1),
    "short planes": (3, 70, 49, 1),
    "tiny planes": (3, 90, 4, 1),
    "one short group": (5, 7, 3, 1),
    "channels side by side": (4, 5, 1, 777),
    "many channels": (2, 300, 1, 9),
    "full groups": (2, 8, 1024, 1),
    "many groups": (2, 3, 30_001, 1),
}
EXTRAS = {
    "plain": (False, False),
    "normalised": (True, False),
    "weighted": (False, True),
    "normalised and weighted": (True, True),
}
STRIDES = [1, 8]

form = pytest.mark.parametrize("form", FORMS)
family = pytest.mark.parametrize("family", FAMILIES)
stride = pytest.mark.parametrize("stride", STRIDES)


def activations(form: str):
    """Return values (samples, elements) whose groups differ in range, and their channels."""
    samples, count, inner, outer = FORMS[form]
    generator = np.random.default_rng(len(form))
    values = generator.standard_normal((samples, outer, count, inner)) * generator.uniform(0.2, 3, (count, 1))
    return (values + generator.normal(size=(count, 1))).astype(np.float32).reshape(samples, -1), Channels(count, inner)


def parameters(channels: Channels, extras: str) -> tuple[Channels | None, Normalization | None, np.ndarray | None]:
    """Return what ``ranges`` takes besides values, layout and stride."""
    normalised, weighted = EXTRAS[extras]
    generator = np.random.default_rng(1)
    arrays = generator.normal(size=(5, channels.count)).astype(np.float32)
    weight = generator.uniform(0, 2, channels.count).astype(np.float32)
    return (
        channels if normalised or weighted else None,
        Normalization(*arrays) if normalised else None,
        weight if weighted else None,
    )


def companded(v, units=3):
    """Return values along the curve of their unit, and the squared slope of what they are decoded by."""
    unit = (np.array([np.abs(v).mean()], np.float32).view(np.uint32) + 0xFFFF & 0xFFFF0000).view(np.float32)[0]
    return along_cubic(v, units * np.float64(unit))


def along_cubic(v, reach):
    """Return u of values reach (u + u³), and the squared slope of these, by one step of Newton's method."""
    y = np.abs(v / reach)
    start = np.minimum(y, (y.astype(np.float32).view(np.uint32) // 3 + CUBE_ROOT).astype(np.uint32).view(np.float32))
    u = (2 * start**3 + y) / (3 * start**2 + 1)
    return inverse_cubic(v / reach), (reach * (1 + 3 * u**2)) ** 2


def inverse_cubic(y):
    """Return the u of y = u + u³."""
    root = 2 / np.sqrt(3)
    return root * np.sinh(np.arcsinh(y * 3 / root) / 3)


BENT = {
    **dict.fromkeys(("affine", "zero_exact", "two_sided"), lambda v: (v, np.ones_like(v))),
    "companded": companded,
    "zero_exact_companded": lambda v: companded(v, 6),
    **dict.fromkeys(("normalized", "two_sided_normalized"), lambda v: along_cubic(v, 2.0)),
    "root": lambda v: (np.sqrt(v), 4 * v),
}


def test_one_step_makes_squared_slopes_at_most_a_seventh_too_large():
    y = np.geomspace(1e-6, 2.0**60, 200_001)
    exact = (1 + 3 * inverse_cubic(y) ** 2) ** 2
    ratio = along_cubic(y, 1.0)[1] / exact
    assert ratio.min() > 1 - 1e-6
    assert 1.1 < ratio.max() < 1 + 1 / 7


def groups_read(elements: int, stride: int) -> list[slice]:
    """Return the places of the groups that are read."""
    starts = range(0, elements, GROUP)
    return [slice(start, min(start + GROUP, elements)) for start in starts[stride // 2 :: stride] or starts[:1]]


def expected_ranges(values, family: str, stride: int, channels, normalization, weight):
    """Return the sums by their definition, group by group in float64."""
    samples, elements = values.shape
    x, weights = values.astype(np.float32), np.ones(elements)
    if channels is not None:
        channel = np.arange(elements) // channels.inner % channels.count
    if normalization is not None:
        x = (x - normalization.mean[channel]) * normalization.inverse[channel] - normalization.threshold[channel]
    if weight is not None:
        weights = weight[channel].astype(np.float64)
    groups = groups_read(elements, stride)
    sums = np.zeros((samples, 4))
    for sample in range(samples):
        for group in groups:
            v, w = x[sample, group].astype(np.float64), weights[group]
            u, slope = BENT[family](v)
            if FAMILIES[family].affine:
                sides = [(np.ptp(u), np.zeros_like(v)), (np.ptp(u), slope)]
            else:
                exact = FAMILIES[family].sides == 1
                sides = [(max(0, -u.min()) * (not exact), (v <= 0) * slope), (max(0, u.max()), (v > 0) * slope)]
            sums[sample] += [reach**2 * side.sum() for reach, side in sides] + [
                reach**2 * (w * side).sum() for reach, side in sides
            ]
        if family == "root" and min(x[sample, group].min() for group in groups) < 0:
            sums[sample] = np.nan
    return sums * (elements / sum(group.stop - group.start for group in groups))


@cache
def defined_ranges(form: str, family: str, extras: str, stride: int):
    """Return what every backend is to find."""
    values, channels = activations(form)
    return expected_ranges(values_for(family, values), family, stride, *parameters(channels, extras))


@form
@family
def test_ranges_are_those_of_the_definition(backend, form, family):
    values, channels = activations(form)
    values = values_for(family, values)
    for extras, stride in product(EXTRAS, STRIDES):
        lender = PoisonedArrays(2)
        found = backend.ranges(lender, values, layout_of(values, family), stride, *parameters(channels, extras))
        assert found.dtype == np.float32
        expected = defined_ranges(form, family, extras, stride)
        np.testing.assert_allclose(found, expected, rtol=1e-5, err_msg=f"{extras}, stride {stride}")
        lender.check_guards()


@form
@family
def test_ranges_of_float16_are_those_of_the_reference(native, form, family):
    values, channels = activations(form)
    values = values.astype(np.float16)
    layout = layout_of(values, family)
    for extras, stride in product(["plain", "normalised and weighted"], STRIDES):
        chosen = parameters(channels, extras)
        expected = REFERENCE.ranges(NUMPY, values, layout, stride, *chosen)
        found = native.ranges(PoisonedArrays(), values, layout, stride, *chosen)
        np.testing.assert_allclose(found, expected, rtol=1e-5, err_msg=f"{extras}, stride {stride}")


@form
@family
def test_ranges_of_torch_tensors_are_those_of_the_reference(native, form, family):
    torch = pytest.importorskip("torch")
    arrays = pytest.importorskip("actnn.torch.tensors").ARRAYS
    values, channels = activations(form)
    _, normalization, weight = parameters(channels, "normalised and weighted")
    chosen = channels, Normalization(*map(torch.from_numpy, vars(normalization).values())), torch.from_numpy(weight)
    layout = layout_of(values, family)
    for dtype, stride in product([torch.float32, torch.float16, torch.bfloat16], STRIDES):
        tensor = torch.from_numpy(values).to(dtype)
        found, expected = (
            arrays.numpy(each.ranges(arrays, tensor, layout, stride, *chosen)) for each in (native, REFERENCE)
        )
        np.testing.assert_allclose(found, expected, rtol=1e-5, err_msg=f"{dtype}, stride {stride}")


@form
@family
def test_instructions_and_threads_change_no_bit_of_the_ranges(native, form, family):
    values, channels = activations(form)
    layout, plain = layout_of(values, family), type(native)(native.path, "scalar")
    for extras, stride in product(EXTRAS, STRIDES):
        chosen = parameters(channels, extras)
        scalar = plain.ranges(PoisonedArrays(1), values, layout, stride, *chosen)
        for threads in (1, 2, 3, 8):
            same_bits(native.ranges(PoisonedArrays(threads), values, layout, stride, *chosen), scalar)


@pytest.mark.parametrize("family", SIDED)
def test_weights_of_one_count_the_elements(backend, family):
    values, channels = activations("planes")
    weight = np.ones(channels.count, np.float32)
    found = backend.ranges(NUMPY, values, layout_of(values, family), 1, channels, None, weight)
    np.testing.assert_allclose(found[:, 2:], found[:, :2], rtol=1e-6)


@family
def test_widths_play_no_role_in_the_ranges(backend, family):
    values = activations("planes")[0]
    values = values_for(family, values)
    one = backend.ranges(NUMPY, values, layout_of(values, family, 8), 1)
    assert np.array_equal(backend.ranges(NUMPY, values, layout_of(values, family, sample_bits=(2, 8, 3, 4)), 1), one)


def test_a_group_on_one_side_of_zero_has_no_range_on_the_other(backend):
    values = np.abs(activations("planes")[0]) + 1
    layout = layout_of(values, "two_sided")
    positive, negative = (backend.ranges(NUMPY, each, layout, 1) for each in (values, -values))
    assert (positive[:, ::2] == 0).all()
    assert (negative[:, 1::2] == 0).all()
    np.testing.assert_allclose(positive[:, 1], negative[:, 0], rtol=1e-6)


@family
@pytest.mark.parametrize("trouble", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("extras", ["plain", "normalised and weighted"])
def test_a_sample_with_a_value_that_is_not_finite_has_no_ranges(backend, family, trouble, extras):
    values, channels = activations("planes")
    values = abs(values)
    values[2, 1000] = trouble
    if family == "root" and extras != "plain":
        pytest.skip("normalised values are not all positive, so none has ranges")
    found = backend.ranges(NUMPY, values, layout_of(values, family), 1, *parameters(channels, extras))
    assert np.isnan(found).tolist() == [[False] * 4, [False] * 4, [True] * 4, [False] * 4]


@family
def test_ranges_of_any_values_are_finite_where_those_of_the_reference_are(native, family):
    values = assorted_values(30, 700)
    layout = layout_of(values, family)
    np.testing.assert_allclose(
        native.ranges(NUMPY, values, layout, 1), REFERENCE.ranges(NUMPY, values, layout, 1), rtol=1e-5
    )


@form
@stride
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_energy_is_the_sum_of_squares_of_the_groups_read(backend, form, stride, dtype):
    values = activations(form)[0].astype(dtype)
    lender, groups = PoisonedArrays(2), groups_read(values.shape[1], stride)
    read = np.concatenate([values[:, group] for group in groups], 1).astype(np.float64)
    found = backend.energy(lender, values, stride)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, (read**2).sum(1) * (values.shape[1] / read.shape[1]), rtol=1e-5)
    lender.check_guards()


@form
@stride
def test_the_energy_of_bfloat16_is_that_of_the_reference(native, form, stride):
    torch = pytest.importorskip("torch")
    arrays = pytest.importorskip("actnn.torch.tensors").ARRAYS
    values = torch.from_numpy(activations(form)[0]).bfloat16()
    found, expected = (each.energy(arrays, values, stride) for each in (native, REFERENCE))
    np.testing.assert_allclose(arrays.numpy(found), arrays.numpy(expected), rtol=1e-5)


@form
@stride
def test_instructions_and_threads_change_no_bit_of_the_energy(native, form, stride):
    values = activations(form)[0]
    scalar = type(native)(native.path, "scalar").energy(PoisonedArrays(1), values, stride)
    for threads in (1, 2, 3, 8):
        same_bits(native.energy(PoisonedArrays(threads), values, stride), scalar)


@pytest.mark.parametrize("trouble", [np.nan, np.inf, -np.inf])
def test_a_sample_with_a_value_that_is_not_finite_has_no_finite_energy(backend, trouble):
    values = activations("planes")[0]
    values[2, 1000] = trouble
    assert np.isfinite(backend.energy(NUMPY, values, 1)).tolist() == [True, True, False, True]


def test_what_lies_between_the_groups_read_does_not_matter(backend):
    values = activations("full groups")[0]
    other = np.full_like(values, np.nan)
    for group in groups_read(values.shape[1], 8):
        other[:, group] = values[:, group]
    layout = layout_of(values, "two_sided")
    assert np.array_equal(backend.ranges(NUMPY, other, layout, 8), backend.ranges(NUMPY, values, layout, 8))
    assert np.array_equal(backend.energy(NUMPY, other, 8), backend.energy(NUMPY, values, 8))


@family
@pytest.mark.parametrize("shape", [(0, 300), (3, 0), (0, 0)])
def test_what_is_empty_has_sums_of_zero(backend, family, shape):
    values = np.empty(shape, np.float32)
    layout = Layout(*shape, FAMILIES[family], 4)
    assert np.array_equal(backend.ranges(PoisonedArrays(), values, layout, 8), np.zeros((shape[0], 4), np.float32))
    assert np.array_equal(backend.energy(PoisonedArrays(), values, 8), np.zeros(shape[0], np.float32))


@pytest.mark.parametrize("stride", [0, -1])
def test_a_stride_below_one_is_refused(backend, stride):
    values = activations("planes")[0]
    with pytest.raises(FormatError):
        backend.ranges(NUMPY, values, layout_of(values), stride)
    with pytest.raises(FormatError):
        backend.energy(NUMPY, values, stride)
