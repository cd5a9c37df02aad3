"""Normalisation over rows: every backend has the bits of the reference, and the reference follows the mathematics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from code_cases import KEY, NUMPY, REFERENCE, PoisonedArrays, divided_layout, layout_of, same_bits, span_of, steps

from actnn.errors import FormatError, UnsupportedError
from actnn.format import FAMILIES, GROUP, Layout, Part, Rounding, derive_key
from actnn.kernels.contract import Division, RowNorm, Rows
from actnn.kernels.reference import row_norm

# (samples, rows of a sample, rows): rows that are groups, cross them, share them, and more than a cache holds
FORMS = {
    "rows of a group": (3, 4, Rows(256, 256, 1)),
    "layer norm": (4, 9, Rows(384, 384, 1)),
    "one row a sample": (7, 1, Rows(100, 100, 1)),
    "odd rows": (3, 11, Rows(197, 197, 1)),
    "short rows": (2, 40, Rows(24, 24, 1)),
    "tiny rows": (3, 90, Rows(3, 3, 1)),
    "rows of one element": (2, 300, Rows(1, 1, 1)),
    "wide rows": (2, 2, Rows(9001, 9001, 1)),
    "group norm": (3, 4, Rows(3 * 77, 12, 77)),
    "wide group norm": (2, 3, Rows(2 * 5000, 6, 5000)),
    "instance norm": (3, 8, Rows(49, 8, 49)),
    "small planes": (2, 20, Rows(4 * 6, 80, 6)),
    "parameters across rows": (2, 6, Rows(100, 300, 1)),
    "parameters that repeat in a row": (2, 3, Rows(512, 64, 1)),
    "many tasks": (3, 60, Rows(384, 384, 1)),
}
EPSILON = 1e-5

form = pytest.mark.parametrize("form", FORMS)
centred = pytest.mark.parametrize("centred", [True, False], ids=["centred", "not centred"])


def activations(form: str, dtype: str = "float32", seed: int = 0):
    """Return values (samples, elements) whose rows differ in mean and spread, and their rows."""
    samples, count, rows = FORMS[form]
    generator = np.random.default_rng(seed)
    spread, centre = generator.uniform(0.5, 3, (samples, count, 1)), generator.normal(size=(samples, count, 1))
    values = centre + spread * generator.standard_normal((samples, count, rows.width))
    return values.astype(dtype).reshape(samples, -1), rows


class Step:
    """A normalisation and all that its forward and backward write, filled with rubbish beforehand."""

    def __init__(self, values, rows: Rows, layout: Any, threads: int = 2, **options: Any) -> None:
        self.arrays = PoisonedArrays(threads)
        self.values, self.layout = values, layout
        generator = np.random.default_rng(3)
        numbers = generator.normal(size=(2, rows.parameters)).astype(options.get("parameters", "float32"))
        bare = options.get("bare", False)
        count = values.size // rows.width if values.size else 0
        self.normalization = RowNorm(
            rows,
            EPSILON,
            options.get("centred", True),
            None if bare else self.copied(numbers[0]),
            None if bare else self.copied(numbers[1]),
            self.arrays.empty((count,), "float32", values),
        )
        self.out = self.arrays.empty(values.shape, str(values.dtype), values)
        self.buffer = self.arrays.empty((layout.nbytes,), "uint8", values)
        self.grads = self.arrays.empty((2, rows.parameters), "float32", values)
        self.grad_out = self.arrays.empty(values.shape, str(values.dtype), values)
        self.energy = span_of(values.shape[0])

    def copied(self, numbers):
        """Return a copy that is guarded."""
        copy = self.arrays.empty(numbers.shape, str(numbers.dtype), numbers)
        copy[:] = numbers
        return copy

    def forward(self, backend, division: Division | None = None) -> Step:
        """Do a forward."""
        layer = self.layout, self.normalization
        backend.row_norm(self.arrays, self.values, self.out, *layer, KEY, self.buffer, division)
        self.arrays.check_guards()
        return self

    def backward(self, backend, grad, parameters: bool = True, wanted: bool = True) -> Step:
        """Do a backward."""
        grads, out = self.grads if parameters else None, self.grad_out if wanted else None
        layer = self.layout, self.normalization
        backend.row_norm_backward(self.arrays, grad, self.buffer, *layer, grads, out, 2, self.energy)
        self.arrays.check_guards()
        return self

    def expected(self):
        """Return mean and inverse deviation of each row, and the normalised values, float64 of shape (rows, width)."""
        x = self.values.astype(np.float64).reshape(-1, self.normalization.rows.width)
        mean = x.mean(1, keepdims=True) if self.normalization.centred else 0 * x[:, :1]
        inverse = 1 / np.sqrt(((x - mean) ** 2).mean(1, keepdims=True) + EPSILON)
        return mean, inverse, (x - mean) * inverse

    def spread(self, numbers, default: float):
        """Return a parameter of each element, float64 of shape (rows, width)."""
        rows, elements = self.normalization.rows, self.values.shape[1]
        numbers = np.full(rows.parameters, default) if numbers is None else numbers.astype(np.float64)
        one = numbers[np.arange(elements) // rows.inner % rows.parameters]
        return np.tile(one, len(self.values)).reshape(-1, rows.width)


def same_forward(one: Step, other: Step) -> None:
    """Raise unless two forwards wrote the same bits."""
    same_bits(one.normalization.saved, other.normalization.saved)
    same_bits(one.out, other.out)
    assert np.array_equal(one.buffer, other.buffer)


@form
@centred
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_forward_is_that_of_the_reference(native, form, centred, dtype):
    values, rows = activations(form, dtype)
    layout = layout_of(values, bits=2)
    expected = Step(values, rows, layout, centred=centred).forward(REFERENCE)
    for threads in (1, 3):
        same_forward(Step(values, rows, layout, threads, centred=centred).forward(native), expected)


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("rounding", Rounding, ids=lambda rounding: rounding.name.lower())
@pytest.mark.parametrize("bare", [False, True])
def test_every_width_and_rounding_is_that_of_the_reference(native, bits, rounding, bare):
    values, rows = activations("odd rows")
    grad, _ = activations("odd rows", seed=1)
    layout, options = layout_of(values, bits=bits, rounding=rounding), {"bare": bare, "parameters": "float16"}
    found = Step(values, rows, layout, **options).forward(native).backward(native, grad)
    expected = Step(values, rows, layout, **options).forward(REFERENCE).backward(REFERENCE, grad)
    same_forward(found, expected)
    same_bits(found.grad_out, expected.grad_out)


@form
@centred
def test_a_forward_normalises(backend, form, centred):
    values, rows = activations(form)
    step = Step(values, rows, layout_of(values, bits=8), centred=centred).forward(backend)
    _, inverse, expected = step.expected()
    gamma, beta = step.spread(step.normalization.gamma, 1), step.spread(step.normalization.beta, 0)
    np.testing.assert_allclose(step.normalization.saved, inverse[:, 0], rtol=1e-5)
    output = (expected * gamma + beta).reshape(values.shape)
    np.testing.assert_allclose(step.out, output, rtol=1e-4, atol=1e-5)
    decoded = REFERENCE.decode(NUMPY, step.buffer, step.layout, Part.WHOLE, "float32")
    np.testing.assert_allclose(decoded, expected.reshape(values.shape), atol=np.ptp(expected) / 200)


def test_statistics_are_those_of_rows_far_from_zero(backend):
    values, rows = activations("layer norm")
    values = values + np.float32(10000)
    step = Step(values, rows, layout_of(values)).forward(backend)
    np.testing.assert_allclose(step.normalization.saved, step.expected()[1][:, 0], rtol=1e-3)


@form
@pytest.mark.parametrize("evenly", [False, True])
@pytest.mark.parametrize("bare", [False, True])
def test_a_forward_with_a_division_is_what_its_rows_come_to(native, form, evenly, bare):
    values, rows = activations(form)
    samples = len(values)
    division = Division(1, None if evenly else (0.5, 1.0, 0.25, 2.0), np.linspace(0.5, 2, samples))
    found = Step(values, rows, divided_layout(values.shape, "affine", 3 * samples + 1), bare=bare)
    found.forward(native, division)
    expected = Step(values, rows, divided_layout(values.shape, "affine", 3 * samples + 1), bare=bare)
    row_norm.forward(
        *(native, expected.arrays, values, expected.out, expected.layout, expected.normalization),
        *(KEY, expected.buffer, division),
    )
    same_bits(found.layout.block.ranges, expected.layout.block.ranges)
    assert found.layout.sample_bits == expected.layout.sample_bits
    same_forward(found, expected)
    grad, _ = activations(form, seed=1)
    same_bits(found.backward(native, grad).grad_out, expected.backward(REFERENCE, grad).grad_out)


@pytest.mark.parametrize("form", ["layer norm", "group norm"])
@pytest.mark.parametrize("stride", [1, 2])
def test_ranges_are_those_of_the_reference(native, form, stride):
    values, rows = activations(form)
    division = Division(stride, (0.0, 1.0, 0.0, 1.0))
    found, expected = (
        Step(values, rows, divided_layout(values.shape, "affine", 3 * len(values))).forward(backend, division)
        for backend in (native, REFERENCE)
    )
    np.testing.assert_allclose(found.layout.block.ranges, expected.layout.block.ranges, rtol=1e-5)


@form
@centred
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_backward_is_that_of_the_reference(native, form, centred, dtype):
    values, rows = activations(form, dtype)
    grad, _ = activations(form, dtype, seed=1)
    expected, one, many = (
        Step(values, rows, layout_of(values, bits=2), threads, centred=centred)
        .forward(REFERENCE)
        .backward(backend, grad)
        for backend, threads in ((REFERENCE, 1), (native, 1), (native, 3))
    )
    same_bits(one.grad_out, expected.grad_out)
    size = np.abs(grad.astype(np.float32)).sum() / rows.parameters
    np.testing.assert_allclose(one.grads, expected.grads, rtol=1e-4, atol=1e-5 * size)
    np.testing.assert_allclose(one.energy.values, expected.energy.values, rtol=1e-5)
    for name in ("grad_out", "grads"):
        same_bits(getattr(many, name), getattr(one, name))
    same_bits(many.energy.values, one.energy.values)


@form
@centred
def test_a_backward_is_the_gradient_of_what_was_decoded(backend, form, centred):
    values, rows = activations(form)
    grad, _ = activations(form, seed=1)
    # nearest leaves no noise to account for
    layout = layout_of(values, bits=3, rounding=Rounding.NEAREST)
    step = Step(values, rows, layout, centred=centred).forward(backend).backward(backend, grad)
    value = REFERENCE.decode(NUMPY, step.buffer, layout, Part.WHOLE, "float64").reshape(-1, rows.width)
    given = grad.astype(np.float64).reshape(-1, rows.width)
    weighed = given * step.spread(step.normalization.gamma, 1)
    mean = weighed.mean(1, keepdims=True) if centred else 0.0
    of_value = (weighed * value).mean(1, keepdims=True)
    expected = step.normalization.saved[:, None] * (weighed - mean - value * of_value)
    tolerance = 1e-5 * np.abs(expected).max()
    np.testing.assert_allclose(step.grad_out, expected.reshape(values.shape), rtol=1e-3, atol=tolerance)
    index = np.tile(np.arange(values.shape[1]) // rows.inner % rows.parameters, len(values))
    for found, terms in zip(step.grads, (given * value, given), strict=True):
        sums = np.bincount(index, terms.ravel(), rows.parameters)
        np.testing.assert_allclose(found, sums, rtol=1e-3, atol=1e-5 * np.abs(terms).sum() / rows.parameters)
    np.testing.assert_array_equal(step.energy.values, backend.energy(NUMPY, grad, 2))


@pytest.mark.parametrize("rounding", [Rounding.DITHER, Rounding.STOCHASTIC], ids=["dither", "stochastic"])
def test_the_gradient_of_the_input_is_unbiased(backend, rounding):
    samples, width, bits = 20000, 32, 2
    generator = np.random.default_rng(2)
    values, grad = generator.normal(size=(2, samples, width)).astype(np.float32)
    layout = layout_of(values, bits=bits, rounding=rounding)
    step = Step(values, Rows(width, width, 1), layout, bare=True).forward(backend).backward(backend, grad)
    _, inverse, exact = step.expected()
    expected = inverse * (grad - grad.mean(1, keepdims=True) - exact * (grad * exact).mean(1, keepdims=True))
    # a product of the value with a mean that contains it would be too small by just this
    squared_step = steps(step.buffer, layout)[..., 0] ** 2
    bias = inverse * grad * squared_step / (12 if rounding is Rounding.DITHER else 6) / width
    share = ((step.grad_out - expected) * bias).sum() / (bias * bias).sum()
    assert abs(share) < 0.1


@pytest.mark.parametrize("form", ["layer norm", "wide rows", "wide group norm"])
@pytest.mark.parametrize(("parameters", "wanted"), [(True, False), (False, True), (False, False)])
def test_gradients_that_nobody_wants_are_left_alone(backend, form, parameters, wanted):
    values, rows = activations(form)
    whole = Step(values, rows, layout_of(values)).forward(backend).backward(backend, values)
    step = Step(values, rows, layout_of(values)).forward(backend).backward(backend, values, parameters, wanted)
    for name, asked in (("grads", parameters), ("grad_out", wanted)):
        if asked:
            same_bits(getattr(step, name), getattr(whole, name))
        else:
            assert (getattr(step, name).view(np.uint8) == PoisonedArrays.RUBBISH).all()
    same_bits(step.energy.values, whole.energy.values)


@pytest.mark.parametrize("form", ["layer norm", "odd rows", "wide rows"])
def test_a_step_may_overwrite_what_it_reads(native, form):
    values, rows = activations(form)
    grad, _ = activations(form, seed=1)
    expected = Step(values, rows, layout_of(values), 3).forward(native).backward(native, grad)
    found = Step(values, rows, layout_of(values), 3)
    found.out = found.values = found.copied(values)
    found.forward(native)
    same_forward(found, expected)
    found.grad_out = found.copied(grad)
    found.backward(native, found.grad_out)
    same_bits(found.grad_out, expected.grad_out)


@pytest.mark.parametrize("trouble", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("form", ["layer norm", "short rows", "group norm", "wide rows"])
def test_values_that_are_not_finite_are_those_of_the_reference(native, trouble, form):
    values, rows = activations(form)
    grad, _ = activations(form, seed=1)
    values[1, 30] = trouble
    layout = layout_of(values, bits=3)
    found = Step(values, rows, layout).forward(native).backward(native, grad)
    expected = Step(values, rows, layout).forward(REFERENCE).backward(REFERENCE, grad)
    same_forward(found, expected)
    same_bits(found.grad_out, expected.grad_out)
    row = rows.width * (30 // rows.width)
    assert np.isnan(found.out[1, row : row + rows.width]).all()
    assert np.isfinite(found.out[0]).all()
    # the group is lost, and so are the rows that have a part in it
    assert np.isnan(found.grad_out[1, :GROUP]).all()
    assert np.isfinite(found.grad_out[0]).all()


@pytest.mark.parametrize("kind", ["zeros", "constant", "huge", "tiny"])
def test_rows_without_a_spread_are_those_of_the_reference(native, kind):
    values, rows = activations("odd rows")
    values = {
        "zeros": 0 * values * np.sign(values),
        "constant": 0 * values + np.float32(1e6),
        "huge": values * np.float32(1e30),
        "tiny": values * np.float32(1e-30),
    }[kind]
    grad, _ = activations("odd rows", seed=1)
    layout = layout_of(values, bits=2)
    found = Step(values, rows, layout).forward(native).backward(native, grad)
    expected = Step(values, rows, layout).forward(REFERENCE).backward(REFERENCE, grad)
    same_forward(found, expected)
    same_bits(found.grad_out, expected.grad_out)


@pytest.mark.parametrize("shape", [(0, 35), (3, 0)])
@pytest.mark.parametrize("divided", [False, True])
def test_an_empty_tensor_has_an_empty_code_and_gradients_of_zero(backend, shape, divided):
    values, rows = np.empty(shape, np.float32), Rows(shape[1] // 5, 5, shape[1] // 35)
    layout = divided_layout(shape, "affine", 3 * shape[0]) if divided else Layout(*shape, FAMILIES["affine"], 3)
    step = Step(values, rows, layout).forward(backend, Division(1) if divided else None)
    step.backward(backend, values)
    assert np.array_equal(step.buffer, REFERENCE.encode(NUMPY, values, Layout(*shape, FAMILIES["affine"], 3), KEY))
    assert not step.grads.any()
    assert not step.energy.values.any()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_tensors_of_any_shape_and_dtype_are_served(native, dtype):
    torch = pytest.importorskip("torch")
    tensors = pytest.importorskip("actnn.torch.tensors")

    class ExactArrays(tensors.TorchArrays):
        """torch's arrays with a square root that is rounded correctly, as torch's own need not be."""

        def sqrt(self, x):
            return torch.from_numpy(np.sqrt(x.numpy()))

    arrays, kind = ExactArrays(), getattr(torch, dtype)
    generator = torch.Generator().manual_seed(0)
    x, grad = torch.randn(2, 4, 11, 96, generator=generator).to(kind)
    gamma, beta = torch.randn(2, 96, generator=generator).to(kind)
    layout = Layout(4, 11 * 96, FAMILIES["affine"], 3)
    results = []
    for backend, shape in ((native, (4, 11, 96)), (REFERENCE, (4, 11 * 96))):
        saved, grads = torch.full((44,), float("nan")), torch.full((2, 96), float("nan"))
        layer = RowNorm(Rows(96, 96, 1), 1e-3, True, gamma, beta, saved)
        code, y = torch.zeros(layout.nbytes, dtype=torch.uint8), torch.full(shape, float("nan"), dtype=kind)
        backend.row_norm(arrays, x.reshape(shape), y, layout, layer, KEY, code)
        grad_x = torch.full(shape, float("nan"), dtype=kind)
        backend.row_norm_backward(arrays, grad.reshape(shape), code, layout, layer, grads, grad_x)
        results.append([y.reshape(-1), grad_x.reshape(-1), saved, code, grads])
    (*ours, our_grads), (*theirs, their_grads) = results
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other)
    torch.testing.assert_close(our_grads, their_grads, rtol=1e-4, atol=1e-3)


def test_another_key_makes_another_code(backend):
    values, rows = activations("layer norm")
    one, other = (Step(values, rows, layout_of(values, bits=2)) for _ in range(2))
    one.forward(backend)
    layer = other.layout, other.normalization
    backend.row_norm(other.arrays, values, other.out, *layer, derive_key(7, 11, 14), other.buffer)
    same_bits(one.out, other.out)
    assert not np.array_equal(one.buffer, other.buffer)


@pytest.mark.parametrize("family", ["zero_exact", "two_sided"])
def test_codes_with_sides_are_refused(backend, family):
    values, rows = activations("layer norm")
    step = Step(values, rows, layout_of(values, family, 3))
    with pytest.raises(UnsupportedError, match=f"a {family} code of normalised rows"):
        step.forward(backend)
    with pytest.raises(UnsupportedError, match=f"a {family} code of normalised rows"):
        step.backward(backend, values)


@pytest.mark.parametrize("rows", [Rows(100, 384, 1), Rows(384, 100, 1), Rows(384, 384, 5), Rows(0, 384, 1)])
def test_rows_that_do_not_divide_a_sample_are_refused(backend, rows):
    values, whole = activations("layer norm")
    step = Step(values, whole, layout_of(values))
    step.normalization.rows = rows
    with pytest.raises(FormatError, match="do not divide into rows"):
        step.forward(backend)


def test_deviations_of_another_number_of_rows_are_refused(backend):
    values, rows = activations("layer norm")
    step = Step(values, rows, layout_of(values))
    step.normalization.saved = step.normalization.saved[:-1]
    with pytest.raises(FormatError, match="expected one each"):
        step.forward(backend)


def test_a_buffer_of_another_size_is_refused(backend):
    values, rows = activations("layer norm")
    step = Step(values, rows, layout_of(values))
    step.buffer = step.buffer[:-1]
    with pytest.raises(FormatError, match="was to be written"):
        step.forward(backend)
