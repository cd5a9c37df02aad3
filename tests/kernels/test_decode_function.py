"""Smooth functions of decoded values: right, right on average, and alike on every backend."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from code_cases import FEW_WIDTHS, KEY, NUMPY, REFERENCE, PoisonedArrays, layout_of, same_bits, values_for

from actnn.errors import FormatError
from actnn.format import FAMILIES, Part, Rounding
from actnn.kernels.contract import Channels, OutputAffine, Smooth

torch = pytest.importorskip("torch")
functional = torch.nn.functional

EXACT = {
    Smooth.GELU: functional.gelu,
    Smooth.GELU_TANH: lambda x: functional.gelu(x, approximate="tanh"),
    Smooth.SILU: functional.silu,
    Smooth.SIGMOID: torch.sigmoid,
    Smooth.TANH: torch.tanh,
    Smooth.HARDSWISH: functional.hardswish,
    Smooth.HARDSIGMOID: functional.hardsigmoid,
    Smooth.SOFTPLUS: functional.softplus,
    Smooth.MISH: functional.mish,
    Smooth.ELU: functional.elu,
    Smooth.QUICK_GELU: lambda x: x * torch.sigmoid(1.702 * x),
}
KINKED = (Smooth.HARDSWISH, Smooth.HARDSIGMOID, Smooth.ELU)

function = pytest.mark.parametrize("function", Smooth, ids=lambda function: function.name.lower())
derivative = pytest.mark.parametrize("derivative", [0, 1])


def exact(function: Smooth, x, derivative: int):
    """Return a function or its derivative in float64, by torch."""
    given = torch.from_numpy(np.asarray(x, np.float64)).requires_grad_()
    value = EXACT[function](given)
    if derivative == 0:
        return value.detach().numpy()
    return torch.autograd.grad(value.sum(), given)[0].numpy()


def spread_values(samples: int = 3, elements: int = 700):
    return np.random.default_rng(30).standard_normal((samples, elements)).astype(np.float32) * 3


@function
@pytest.mark.parametrize("family", FAMILIES)
def test_without_noise_it_is_the_function_of_the_decoded_value(backend, function, family):
    values = values_for(family, spread_values())
    layout = layout_of(values, family, 6, Rounding.NEAREST)
    buffer = backend.encode(NUMPY, values, layout, KEY)
    decoded = backend.decode(NUMPY, buffer, layout, Part.WHOLE, "float32")
    for derivative in (0, 1):
        found = backend.decode_function(NUMPY, buffer, layout, function, derivative, "float32")
        np.testing.assert_allclose(found, exact(function, decoded, derivative), rtol=2e-6, atol=2e-6)


@function
@derivative
def test_far_values_have_the_limits_of_the_function(backend, function, derivative):
    values = np.repeat(np.array([[-1e4], [-60.0], [-25.0], [25.0], [60.0], [1e4]], np.float32), 9, 1)
    layout = layout_of(values, "affine", 8, Rounding.NEAREST)
    buffer = backend.encode(NUMPY, values, layout, KEY)
    decoded = backend.decode(NUMPY, buffer, layout, Part.WHOLE, "float32")
    found = backend.decode_function(NUMPY, buffer, layout, function, derivative, "float32")
    np.testing.assert_allclose(found, exact(function, decoded, derivative), rtol=2e-6, atol=2e-6)


@function
@pytest.mark.parametrize("family", FAMILIES)
def test_kernels_agree_with_the_reference(native, function, family):
    values = values_for(family, spread_values())
    values[1, 3] = np.nan
    for bits in [bits for name, bits in FEW_WIDTHS if name == family]:
        layout = layout_of(values, family, bits)
        buffer = REFERENCE.encode(NUMPY, values, layout, KEY)
        for derivative, (dtype, relative) in product((0, 1), (("float32", 2e-6), ("float16", 2e-3))):
            lender, grad = PoisonedArrays(3), spread_values()[::-1].astype(dtype)
            found, expected = (
                each.decode_function(arrays, buffer, layout, function, derivative, dtype, grad=grad)
                for each, arrays in ((native, lender), (REFERENCE, NUMPY))
            )
            scale = np.nanmax(np.abs(expected.astype(np.float64)))
            # of 1 or 2 bits the corrections are many times the values, and magnify what was rounded
            absolute = (2e-6 if bits > 2 else 8e-6) * scale
            np.testing.assert_allclose(
                found, expected, rtol=relative, atol=absolute, err_msg=f"{bits} bits, {derivative}, {dtype}"
            )
            lender.check_guards()


@function
@pytest.mark.parametrize("family", ["affine", "companded", "two_sided_normalized"])
def test_instructions_and_threads_change_no_bit(native, function, family):
    values = spread_values(5, 1031)
    layout = layout_of(values, family, 3)
    buffer = REFERENCE.encode(NUMPY, values, layout, KEY)
    plain = type(native)(native.path, "scalar")
    for derivative in (0, 1):
        arguments = buffer, layout, function, derivative, "float32"
        scalar = plain.decode_function(PoisonedArrays(1), *arguments)
        for threads in (1, 3):
            same_bits(native.decode_function(PoisonedArrays(threads), *arguments), scalar)


@pytest.mark.parametrize(
    "function", [each for each in Smooth if each not in KINKED], ids=lambda each: each.name.lower()
)
@derivative
@pytest.mark.parametrize("family", ["affine", "companded", "normalized"])
def test_the_mean_over_the_noise_is_right_to_second_order(native, function, derivative, family):
    values = np.random.default_rng(31).standard_normal(256).astype(np.float32)
    repeated = np.repeat(values[None], 4000, 0)
    layout = layout_of(repeated, family, 3)
    buffer = native.encode(NUMPY, repeated, layout, KEY)
    decoded = native.decode(NUMPY, buffer, layout, Part.WHOLE, "float32")
    found = native.decode_function(NUMPY, buffer, layout, function, derivative, "float32").astype(np.float64)
    wanted = exact(function, values, derivative)
    corrected = np.sqrt(np.mean((found.mean(0) - wanted) ** 2))
    plain = np.sqrt(np.mean((exact(function, decoded, derivative).mean(0) - wanted) ** 2))
    # the mean of 4000 still has an error of its own
    noise = np.sqrt(found.var(0).mean() / 4000)
    assert corrected < 0.25 * plain + 2 * noise


@function
@derivative
@pytest.mark.parametrize("family", ["affine", "normalized"])
@pytest.mark.parametrize("channels", [Channels(7, 100), Channels(7, 1), Channels(700, 1)], ids=str)
def test_gamma_and_beta_come_before_the_function(native, function, derivative, family, channels):
    values = spread_values() / 3
    generator = np.random.default_rng(32)
    gamma, beta = generator.normal(size=(2, channels.count)).astype(np.float32)
    affine = OutputAffine(channels, gamma, beta)
    layout = layout_of(values, family, 3)
    buffer = REFERENCE.encode(NUMPY, values, layout, KEY)
    found, expected = (
        each.decode_function(NUMPY, buffer, layout, function, derivative, "float32", affine)
        for each in (native, REFERENCE)
    )
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=3e-6)
    nearest = layout_of(values, family, 8, Rounding.NEAREST)
    buffer = REFERENCE.encode(NUMPY, values, nearest, KEY)
    inputs = native.decode(NUMPY, buffer, nearest, Part.WHOLE, "float32", affine)
    found = native.decode_function(NUMPY, buffer, nearest, function, derivative, "float32", affine)
    np.testing.assert_allclose(found, exact(function, inputs, derivative), rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_poisoned_group_has_no_function(backend, family):
    values = values_for(family, spread_values(1, 600))
    values[0, 300] = np.inf
    layout = layout_of(values, family, 3)
    buffer = backend.encode(NUMPY, values, layout, KEY)
    found = backend.decode_function(NUMPY, buffer, layout, Smooth.SIGMOID, 1, "float32")
    assert np.isnan(found)[0].tolist() == [False] * 256 + [True] * 256 + [False] * 88


def test_some_samples_and_places_to_write_to_are_taken(backend):
    values = spread_values(5, 300)
    layout = layout_of(values, "companded", sample_bits=(8, 2, 2, 5, 3))
    buffer = backend.encode(NUMPY, values, layout, KEY)
    whole = backend.decode_function(NUMPY, buffer, layout, Smooth.GELU, 0, "float32")
    out, grad = np.empty((2, 300), np.float32), spread_values(2, 300)
    found = backend.decode_function(
        NUMPY, buffer, layout, Smooth.GELU, 0, "float32", samples=range(1, 3), out=out, grad=grad
    )
    assert found is out
    np.testing.assert_allclose(out, whole[1:3] * grad, rtol=1e-6)


@pytest.mark.parametrize("shape", [(0, 300), (3, 0)])
def test_nothing_has_a_function_of_nothing(backend, shape):
    layout = layout_of(np.empty(shape), "companded", 2)
    buffer = backend.encode(NUMPY, np.empty(shape, np.float32), layout, KEY)
    assert backend.decode_function(NUMPY, buffer, layout, Smooth.MISH, 1, "float32").shape == shape


def test_what_does_not_fit_is_refused(backend):
    values = spread_values(1, 300)
    layout = layout_of(values, "two_sided", 3)
    buffer = backend.encode(NUMPY, values, layout, KEY)
    with pytest.raises(FormatError, match="derivative 2"):
        backend.decode_function(NUMPY, buffer, layout, Smooth.GELU, 2, "float32")
    with pytest.raises(FormatError, match="with sides"):
        backend.decode_function(
            NUMPY, buffer, layout, Smooth.GELU, 0, "float32", OutputAffine(Channels(1, 300), None, None)
        )
