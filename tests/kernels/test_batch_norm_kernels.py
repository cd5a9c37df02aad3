"""The kernels of BatchNorm: what they compute on every backend, and that the compiled ones agree with the reference."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from code_cases import KEY, NUMPY, REFERENCE, SIDED, PoisonedArrays, layout_of, same_bits, stored_words, variances

from actnn.format import Part
from actnn.kernels.contract import Channels, Normalization, OutputAffine

# (samples, channels, inner, outer): planes of one channel after another, or channels side by side (channels_last)
FORMS = {
    "planes": (4, 5, 77, 1),
    "one short plane": (3, 7, 1, 1),
    "channels side by side": (4, 5, 1, 77),
    "many channels": (2, 300, 1, 9),
    "full groups": (2, 8, 256, 1),
    "one channel": (3, 1, 1000, 1),
}
CODES = [
    *(("affine", bits) for bits in (1, 2, 4, 8)),
    *(("two_sided", bits) for bits in (2, 3, 4)),
    *(("normalized", bits) for bits in (1, 2, 4)),
    *(("two_sided_normalized", bits) for bits in (2, 3)),
]
# of inputs, which other layers coded
OF_INPUTS = [("companded", 2), ("zero_exact", 2), ("zero_exact_companded", 3), ("root", 3)]

# an affine code has no mask by which a gradient could be rectified
READINGS = [(code, False) for code in CODES] + [(code, True) for code in CODES if code[0] in SIDED]

form = pytest.mark.parametrize("form", FORMS)
code = pytest.mark.parametrize("code", CODES, ids=lambda code: f"{code[0]}-{code[1]}")
reading = pytest.mark.parametrize(("code", "rectified"), READINGS)


def activations(form: str, seed: int = 0):
    """Return values (samples, elements) whose channels differ in mean and spread, and their channels."""
    samples, count, inner, outer = FORMS[form]
    generator = np.random.default_rng(seed)
    shape = (samples, outer, count, inner)
    spread, centre = generator.uniform(0.5, 3, (count, 1)), generator.normal(size=(count, 1))
    values = centre + spread * generator.standard_normal(shape)
    return values.astype(np.float32).reshape(samples, -1), Channels(count, inner)


def by_channel(values, channels: Channels):
    """Return (channels, everything else), float64."""
    split = values.astype(np.float64).reshape(values.shape[0], -1, channels.count, channels.inner)
    return split.transpose(2, 0, 1, 3).reshape(channels.count, -1)


def each_element(per_channel, values, channels: Channels):
    """Return one value a channel at every element of ``values``."""
    return np.tile(np.repeat(per_channel, channels.inner), values.shape[1] // (channels.count * channels.inner))


def normalization_of(values, channels: Channels) -> Normalization:
    """Return a normalisation with slopes of both signs, and zeros."""
    split = by_channel(values, channels)
    mean = split.mean(1)
    inverse = 1 / np.sqrt(split.var(1) + 1e-5)
    generator = np.random.default_rng(3)
    gamma, beta = generator.normal(size=(2, channels.count))
    gamma[::3] = np.abs(gamma[::3])
    threshold = np.clip(-beta / gamma, -1, 1)
    beta = -threshold * gamma
    sign = np.sign(gamma)
    slope = gamma * inverse
    parts = (slope, beta - mean * slope, mean, sign * inverse, sign * threshold)
    return Normalization(*(np.ascontiguousarray(part, np.float32) for part in parts))


def close(found, expected, relative: float = 1e-5) -> None:
    """Raise unless arrays agree relative to their largest value."""
    expected = np.asarray(expected)
    np.testing.assert_allclose(found, expected, rtol=relative, atol=relative * np.abs(expected).max())


@form
def test_statistics_are_those_of_each_channel(backend, form):
    values, channels = activations(form)
    split = by_channel(values, channels)
    expected = split.mean(1), split.var(1), split.min(1), split.max(1)
    for found, wanted in zip(backend.channel_statistics(NUMPY, values, channels), expected, strict=True):
        close(found, wanted)


def test_the_variance_does_not_cancel_far_from_zero(backend):
    values = (np.random.default_rng(0).standard_normal((8, 4096)) + 1000).astype(np.float32)
    _, variance, *_ = backend.channel_statistics(NUMPY, values, Channels(1, 4096))
    close(variance, [values.astype(np.float64).var()], 1e-3)


def test_the_variance_of_many_elements_is_accurate(backend):
    values = np.random.default_rng(0).uniform(0, 1, (64, 16384)).astype(np.float32)
    _, variance, *_ = backend.channel_statistics(NUMPY, values, Channels(1, 16384))
    close(variance, [values.astype(np.float64).var()], 1e-5)


@pytest.mark.parametrize("trouble", [np.nan, np.inf])
def test_statistics_of_a_channel_with_a_value_that_is_not_finite_are_not_finite(backend, trouble):
    values, channels = activations("planes")
    values[1, channels.inner * 2 + 3] = trouble
    mean, variance, *_ = backend.channel_statistics(NUMPY, values, channels)
    assert np.isfinite(mean).tolist() == [True, True, False, True, True]
    assert np.isnan(variance).tolist() == [False, False, True, False, False]


@form
@code
def test_the_output_is_normalised(backend, form, code):
    values, channels = activations(form)
    chosen = normalization_of(values, channels)
    out = np.full_like(values, np.nan)
    backend.normalize(NUMPY, values, out, channels, chosen, layout_of(values, *code), KEY)
    close(out, values * each_element(chosen.slope, values, channels) + each_element(chosen.offset, values, channels))


@form
def test_the_code_is_of_the_normalised_input(backend, form):
    values, channels = activations(form)
    chosen = normalization_of(values, channels)
    layout = layout_of(values, "two_sided", 8)
    buffer = backend.normalize(NUMPY, values, np.empty_like(values), channels, chosen, layout, KEY)
    decoded = backend.decode(NUMPY, buffer, layout, Part.WHOLE, "float32")
    mean, inverse, threshold = (
        each_element(part, values, channels) for part in (chosen.mean, chosen.inverse, chosen.threshold)
    )
    # 96 levels below the threshold and 160 above it over a range of a few deviations
    assert np.abs(decoded - ((values - mean) * inverse - threshold)).max() < 0.05


@form
@pytest.mark.parametrize("bits", [2, 3, 8])
def test_the_mask_of_a_two_sided_code_is_that_of_the_output(backend, form, bits):
    values, channels = activations(form)
    layout, out = layout_of(values, "two_sided", bits), np.empty_like(values)
    buffer = backend.normalize(NUMPY, values, out, channels, normalization_of(values, channels), layout, KEY)
    assert np.array_equal(stored_words(buffer, layout) >= layout.family.negative[bits], ~(out <= 0))


@code
def test_the_output_may_replace_the_input(backend, code):
    values, channels = activations("planes")
    chosen, layout = normalization_of(values, channels), layout_of(values, *code)
    out, in_place = np.empty_like(values), values.copy()
    separate = backend.normalize(NUMPY, values, out, channels, chosen, layout, KEY)
    assert np.array_equal(separate, backend.normalize(NUMPY, in_place, in_place, channels, chosen, layout, KEY))
    assert np.array_equal(out, in_place)


@form
@reading
def test_gradient_sums_are_those_of_the_decoded_values(backend, form, code, rectified):
    (values, channels), (grad, _) = activations(form), activations(form, seed=1)
    layout = layout_of(values, *code)
    buffer = REFERENCE.encode(NUMPY, values, layout, KEY)
    decoded = REFERENCE.decode(NUMPY, buffer, layout, Part.WHOLE, "float32")
    passed = np.where(values > 0, grad, 0) if rectified else grad
    sums = backend.gradient_sums(NUMPY, grad, channels, buffer, layout, rectified)
    size = np.abs(grad).sum()
    for found, expected in zip(sums, (passed, passed * decoded.astype(np.float64)), strict=True):
        np.testing.assert_allclose(found, by_channel(expected, channels).sum(1), rtol=1e-5, atol=1e-6 * size)


@form
@reading
def test_the_gradient_combines_the_incoming_one_and_the_decoded_value(backend, form, code, rectified):
    (values, channels), (grad, _) = activations(form), activations(form, seed=1)
    layout = layout_of(values, *code)
    buffer = REFERENCE.encode(NUMPY, values, layout, KEY)
    decoded = REFERENCE.decode(NUMPY, buffer, layout, Part.WHOLE, "float32")
    passed = np.where(values > 0, grad, 0) if rectified else grad
    coefficients = tuple(np.random.default_rng(4).normal(size=(3, channels.count)).astype(np.float32))
    found = backend.gradient(NUMPY, grad, channels, buffer, layout, rectified, coefficients)
    of_grad, of_value, constant = (each_element(each, values, channels) for each in coefficients)
    close(found, passed * of_grad + decoded * of_value + constant)


@form
@code
def test_decoding_applies_a_scale_and_a_shift_to_each_channel(backend, form, code):
    values, channels = activations(form)
    layout = layout_of(values, *code)
    buffer = REFERENCE.encode(NUMPY, values, layout, KEY)
    scale, shift = np.random.default_rng(5).normal(size=(2, channels.count)).astype(np.float32)
    found = backend.decode(NUMPY, buffer, layout, Part.WHOLE, "float32", OutputAffine(channels, scale, shift))
    decoded = REFERENCE.decode(NUMPY, buffer, layout, Part.WHOLE, "float32")
    close(found, decoded * each_element(scale, values, channels) + each_element(shift, values, channels))


@form
@code
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_normalising_gives_the_bytes_of_the_reference(native, form, code, dtype):
    values, channels = activations(form)
    values = values.astype(dtype)
    chosen, layout = normalization_of(values, channels), layout_of(values, *code)

    def normalized(backend, threads):
        lender = PoisonedArrays(threads)
        out = lender.empty(values.shape, dtype, values)
        buffer = backend.normalize(lender, values, out, channels, chosen, layout, KEY)
        lender.check_guards()
        return out, buffer

    expected = normalized(REFERENCE, 1)
    for threads in (1, 3):
        for ours, theirs in zip(normalized(native, threads), expected, strict=True):
            assert np.array_equal(ours, theirs), f"{threads} threads"


@form
@pytest.mark.parametrize("code", [*CODES, *OF_INPUTS], ids=lambda code: f"{code[0]}-{code[1]}")
def test_the_gradient_has_the_bits_of_the_reference(native, form, code):
    (values, channels), (grad, _) = activations(form), activations(form, seed=1)
    values = abs(values) if code[0] == "root" else values
    layout = layout_of(values, *code)
    buffer = REFERENCE.encode(NUMPY, values, layout, KEY)
    coefficients = tuple(np.random.default_rng(4).normal(size=(3, channels.count)).astype(np.float32))
    own_noise = np.linspace(0.5, 2, channels.count, dtype=np.float32)
    for dtype, of_noise in product(["float32", "float16"], [None, own_noise]):
        lender = PoisonedArrays(3)
        arguments = (grad.astype(dtype), channels, buffer, layout, code[0] in SIDED, coefficients, of_noise)
        found, expected = native.gradient(lender, *arguments), REFERENCE.gradient(NUMPY, *arguments)
        assert np.array_equal(found, expected), f"{dtype}, {'own noise' if of_noise is not None else 'plain'}"
        lender.check_guards()


@pytest.mark.parametrize("rectified", [False, True])
@pytest.mark.parametrize("family", ["two_sided", "zero_exact"])
def test_a_variance_that_overflows_on_one_side_leaves_the_other_alone(native, family, rectified):
    values = np.linspace(-1, 1e20, 600, dtype=np.float32).reshape(2, 300)
    values[:, ::3] = -1
    layout, channels = layout_of(values, family, 3), Channels(2, 150)
    buffer = REFERENCE.encode(NUMPY, values, layout, KEY)
    parts = np.ones((4, 2), np.float32)
    arguments = np.ones_like(values), channels, buffer, layout, rectified, tuple(parts[:3]), parts[3]
    found = native.gradient(NUMPY, *arguments)
    same_bits(found, REFERENCE.gradient(NUMPY, *arguments))
    assert not np.isnan(found).any()


@form
def test_the_number_of_threads_changes_no_bit_of_the_sums(native, form):
    (values, channels), (grad, _) = activations(form), activations(form, seed=1)
    layout = layout_of(values, "two_sided", 3)
    buffer = REFERENCE.encode(NUMPY, values, layout, KEY)
    results = [
        np.stack(
            [
                *native.channel_statistics(PoisonedArrays(threads), values, channels),
                *native.gradient_sums(PoisonedArrays(threads), grad, channels, buffer, layout, True),
            ]
        )
        for threads in (1, 2, 5)
    ]
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])


@pytest.mark.parametrize("code", [*CODES, *OF_INPUTS], ids=lambda code: f"{code[0]}-{code[1]}")
def test_the_variance_of_decoded_values_is_what_their_steps_tell(code):
    values = np.random.default_rng(6).normal(size=(1, 300)).astype(np.float32)
    values = abs(values) if code[0] == "root" else values
    layout = layout_of(values, *code)
    buffers = [REFERENCE.encode(NUMPY, values, layout, (*KEY[:3], key)) for key in range(400)]
    decoded = np.stack([REFERENCE.decode(NUMPY, buffer, layout, Part.WHOLE, "float32") for buffer in buffers])
    told = np.stack([variances(buffer, layout) for buffer in buffers])
    found, expected = decoded.var(0, ddof=1, dtype=np.float64), told.mean(0, dtype=np.float64)
    assert found.mean() == pytest.approx(expected.mean(), rel=0.03)
    # uniform noise: the variance of 400 draws is known to 5 %, and 300 elements are looked at
    np.testing.assert_allclose(found, expected, rtol=0.35, atol=1e-6)
