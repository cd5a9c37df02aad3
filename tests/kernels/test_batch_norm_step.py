"""Whole steps of BatchNorm: bit for bit what the rows that they consist of come to, and near enough the mathematics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from code_cases import (
    KEY,
    NUMPY,
    REFERENCE,
    ROUNDED,
    SIDED,
    PoisonedArrays,
    backend_named,
    divided_layout,
    layout_of,
    same_bits,
    span_of,
    variances,
)

from actnn.errors import FormatError, UnsupportedError
from actnn.format import FAMILIES, Layout, Part, Rounding
from actnn.kernels.contract import BatchNorm, Channels, Division
from actnn.kernels.reference import batch_norm

# (samples, channels, inner, outer): planes of one channel after another, or channels side by side (channels_last)
FORMS = {
    "planes": (4, 5, 77, 1),
    "one value a plane": (6, 7, 1, 1),
    "channels side by side": (4, 5, 1, 77),
    "many channels": (2, 300, 1, 9),
    "small planes": (3, 20, 49, 1),
    "tiny planes": (3, 90, 4, 1),
    "full groups": (2, 8, 256, 1),
    "one channel": (3, 1, 1000, 1),
    "several tasks": (2, 3, 9000, 1),
}
CODES = [
    *(("affine", 2), ("affine", 8), ("zero_exact", 2), ("two_sided", 2), ("two_sided", 3), ("two_sided", 8)),
    *(("normalized", 2), ("two_sided_normalized", 3)),
]
# an affine code has no mask by which a gradient could be rectified
READINGS = [(code, False) for code in CODES] + [(code, True) for code in CODES if code[0] in SIDED]
EPSILON = 1e-5

form = pytest.mark.parametrize("form", FORMS)
code = pytest.mark.parametrize("code", CODES, ids=lambda code: f"{code[0]}-{code[1]}")
reading = pytest.mark.parametrize(("code", "rectified"), READINGS)


def activations(form: str, dtype: str = "float32", seed: int = 0):
    """Return values (samples, elements) whose channels differ in mean and spread, and their channels."""
    samples, count, inner, outer = FORMS[form]
    generator = np.random.default_rng(seed)
    spread, centre = generator.uniform(0.5, 3, (count, 1)), generator.normal(size=(count, 1))
    values = centre + spread * generator.standard_normal((samples, outer, count, inner))
    return values.astype(dtype).reshape(samples, -1), Channels(count, inner)


# how many batches a layer has seen
BATCHES = 41


class Step:
    """A BatchNorm and all that its forward and backward write, filled with rubbish beforehand."""

    def __init__(self, values, channels: Channels, layout: Any, threads: int = 2, **options: Any) -> None:
        self.arrays = PoisonedArrays(threads)
        self.values, self.layout = values, layout
        generator = np.random.default_rng(3)
        numbers = generator.normal(size=(4, channels.count)).astype(options.get("parameters", "float32"))
        # a channel of one side, and one whose sign is negative
        numbers[0, 0] = 0
        numbers[0, -1] = -abs(numbers[0, -1])
        bare = options.get("bare", False)
        rows = 1 if layout.family.affine and not options.get("of_input") else 2
        self.normalization = BatchNorm(
            channels,
            EPSILON,
            options.get("count", max(1, values.size // max(1, channels.count))),
            None if bare else self.copied(numbers[0]),
            None if bare else self.copied(numbers[1]),
            None if bare else (self.copied(numbers[2]), self.copied(abs(numbers[3]))),
            0.1,
            options.get("statistics"),
            self.arrays.empty((rows, channels.count), "float32", values),
            options.get("unbiased", True),
            batches=None if bare else np.array([BATCHES]),
        )
        self.out = self.arrays.empty(values.shape, str(values.dtype), values)
        self.buffer = self.arrays.empty((layout.nbytes,), "uint8", values)
        self.grads = self.arrays.empty((2, channels.count), "float32", values)
        self.grad_out = self.arrays.empty(values.shape, str(values.dtype), values)
        self.energy = span_of(values.shape[0])

    def copied(self, numbers):
        """Return a copy that is guarded."""
        copy = self.arrays.empty(numbers.shape, str(numbers.dtype), numbers)
        copy[:] = numbers
        return copy

    def forward(self, row, division: Division | None = None) -> Step:
        """Do a forward by a row of a backend, or by what defines it."""
        row(self.arrays, self.values, self.out, self.layout, self.normalization, KEY, self.buffer, division)
        self.arrays.check_guards()
        return self

    def backward(self, row, grad, rectified=False, of_input=False, sums=None, wanted=True) -> Step:
        """Do a backward likewise."""
        out, stride, energy = self.grad_out if wanted else None, 2, self.energy
        layer = self.layout, self.normalization
        row(self.arrays, grad, self.buffer, *layer, rectified, of_input, self.grads, out, sums, stride, energy)
        self.arrays.check_guards()
        return self

    def written(self) -> list[Any]:
        """Return all that a forward wrote."""
        running = self.normalization.running or ()
        return [self.out, self.normalization.saved, *running]


def composed_forward(rows):
    return lambda *arguments: batch_norm.forward(rows, *arguments)


def composed_backward(rows):
    return lambda *arguments: batch_norm.backward(rows, *arguments)


def same_step(one: Step, other: Step) -> None:
    """Raise unless two forwards wrote the same bits."""
    for first, second in zip(one.written(), other.written(), strict=True):
        same_bits(first, second)
    assert np.array_equal(one.buffer, other.buffer)


@form
@code
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_forward_is_what_its_rows_come_to(native, form, code, dtype):
    values, channels = activations(form, dtype)
    layout = layout_of(values, *code)
    expected = Step(values, channels, layout).forward(composed_forward(native))
    for threads in (1, 3):
        same_step(Step(values, channels, layout, threads).forward(native.batch_norm), expected)


# parameters of either type, and none
@form
@code
@pytest.mark.parametrize("parameters", [{"parameters": "float32"}, {"parameters": "float16"}, {"bare": True}], ids=str)
def test_a_forward_by_given_statistics_is_that_of_the_reference(native, form, code, parameters):
    values, channels = activations(form)
    statistics = np.stack(REFERENCE.channel_statistics(NUMPY, values, channels))
    layout, options = layout_of(values, *code), {"statistics": statistics, **parameters}
    found = Step(values, channels, layout, **options).forward(native.batch_norm)
    same_step(found, Step(values, channels, layout, **options).forward(REFERENCE.batch_norm))


@pytest.mark.parametrize("rounding", Rounding, ids=lambda rounding: rounding.name.lower())
@code
def test_every_rounding_is_that_of_the_reference(native, rounding, code):
    if (code[0], code[1], rounding) not in ROUNDED:
        pytest.skip("a curve knows no stochastic rounding")
    values, channels = activations("planes")
    statistics = np.stack(REFERENCE.channel_statistics(NUMPY, values, channels))
    layout = layout_of(values, *code, rounding)
    found = Step(values, channels, layout, statistics=statistics).forward(native.batch_norm)
    same_step(found, Step(values, channels, layout, statistics=statistics).forward(REFERENCE.batch_norm))


@form
def test_a_forward_normalises_and_tracks(backend, form):
    values, channels = activations(form)
    step = Step(values, channels, layout_of(values, "two_sided", 3))
    before = [array.astype(np.float64) for array in step.normalization.running]
    step.forward(backend.batch_norm)
    split = values.astype(np.float64).reshape(len(values), -1, channels.count, channels.inner)
    mean, variance = split.mean((0, 1, 3)), split.var((0, 1, 3))
    gamma, beta = (array[:, None] for array in (step.normalization.gamma, step.normalization.beta))
    expected = (split - mean[:, None]) / np.sqrt(variance + EPSILON)[:, None] * gamma + beta
    np.testing.assert_allclose(step.out, expected.reshape(values.shape), rtol=1e-4, atol=1e-5)
    count = step.normalization.count
    assert step.normalization.batches == BATCHES + 1
    np.testing.assert_allclose(step.normalization.running[0], 0.9 * before[0] + 0.1 * mean, rtol=1e-4, atol=1e-6)
    unbiased = variance * count / max(1, count - 1)
    np.testing.assert_allclose(step.normalization.running[1], 0.9 * before[1] + 0.1 * unbiased, rtol=1e-4)
    assert np.array_equal(
        REFERENCE.apply_mask(NUMPY, step.buffer, step.layout, np.ones_like(values), 1, 0), step.out > 0
    )


def test_the_running_variance_may_be_biased(backend):
    values, channels = activations("planes")
    step = Step(values, channels, layout_of(values), unbiased=False)
    before = step.normalization.running[1].copy()
    variance = step.forward(backend.batch_norm) and REFERENCE.channel_statistics(NUMPY, values, channels)[1]
    np.testing.assert_allclose(step.normalization.running[1], 0.9 * before + 0.1 * variance, rtol=1e-5)


@form
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("evenly", [False, True])
def test_a_forward_with_a_division_is_what_its_rows_come_to(native, form, family, evenly):
    values, channels = activations(form)
    samples = len(values)
    planes = 3 * samples + 1
    division = Division(1, None if evenly else (0.5, 1.0, 0.25, 2.0), np.linspace(0.5, 2, samples))
    steps = []
    for row in (native.batch_norm, composed_forward(native)):
        layout = divided_layout(values.shape, family, planes)
        steps.append(Step(values, channels, layout).forward(row, division))
    same_step(*steps)
    same_bits(*(step.layout.block.ranges for step in steps))
    assert steps[0].layout.sample_bits == steps[1].layout.sample_bits
    plain = Layout(*values.shape, FAMILIES[family], 0, Rounding.DITHER, steps[0].layout.sample_bits)
    again = Step(values, channels, plain).forward(native.batch_norm)
    same_step(steps[0], again)


@form
@code
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("of_input", [False, True])
def test_a_backward_is_what_its_rows_come_to(native, form, code, dtype, of_input):
    values, channels = activations(form, dtype)
    grad, _ = activations(form, dtype, seed=1)
    rectified = code[0] in SIDED and not of_input
    steps = []
    for threads, row in ((3, native.batch_norm_backward), (1, composed_backward(native))):
        step = Step(values, channels, layout_of(values, *code), threads, of_input=of_input).forward(native.batch_norm)
        if of_input:
            step.normalization.saved[1] = REFERENCE.channel_statistics(NUMPY, values, channels)[0]
            native.encode(NUMPY, values, step.layout, KEY, step.buffer)
        steps.append(step.backward(row, grad, rectified, of_input))
    for name in ("grads", "grad_out"):
        same_bits(*(getattr(step, name) for step in steps))
    same_bits(*(step.energy.values for step in steps))


@form
@reading
@pytest.mark.parametrize("bare", [False, True])
def test_a_backward_by_given_sums_is_that_of_the_reference(native, form, code, rectified, bare):
    values, channels = activations(form)
    grad, _ = activations(form, seed=1)
    sums = np.random.default_rng(5).normal(size=(2, channels.count)).astype(np.float32)
    options = {"statistics": np.stack(REFERENCE.channel_statistics(NUMPY, values, channels)), "bare": bare}
    steps = [
        Step(values, channels, layout_of(values, *code), **options)
        .forward(REFERENCE.batch_norm)
        .backward(backend.batch_norm_backward, grad, rectified, sums=sums)
        for backend in (native, REFERENCE)
    ]
    same_bits(*(step.grad_out for step in steps))
    for step in steps:
        # neither gradients of parameters nor the energy are written
        assert (step.grads.view(np.uint8) == PoisonedArrays.RUBBISH).all()
        assert np.isnan(step.energy.values).all()


@form
@pytest.mark.parametrize("rectified", [False, True])
def test_a_backward_is_the_gradient_of_what_was_decoded(backend, form, rectified):
    values, channels = activations(form)
    grad, _ = activations(form, seed=1)
    # nearest leaves no noise to account for
    layout = layout_of(values, "two_sided", 3, Rounding.NEAREST)
    step = Step(values, channels, layout).forward(backend.batch_norm)
    step.backward(backend.batch_norm_backward, grad, rectified)
    inverse, threshold = (row[:, None].astype(np.float64) for row in step.normalization.saved)
    gamma = step.normalization.gamma[:, None].astype(np.float64)
    sign = np.where(gamma < 0, -1, 1)

    def split(x):
        return x.astype(np.float64).reshape(len(x), -1, channels.count, channels.inner)

    normalized = sign * (split(REFERENCE.decode(NUMPY, step.buffer, layout, Part.WHOLE, "float32")) + threshold)
    passed = split(np.where(step.out > 0, grad, 0) if rectified else grad)
    of_gamma, of_beta = (passed * normalized).sum((0, 1, 3)), passed.sum((0, 1, 3))
    size = np.abs(grad).sum()
    np.testing.assert_allclose(step.grads, [of_gamma, of_beta], rtol=1e-4, atol=1e-6 * size)
    count = step.normalization.count
    expected = gamma * inverse * (passed - (of_beta[:, None] + normalized * of_gamma[:, None]) / count)
    np.testing.assert_allclose(step.grad_out, expected.reshape(values.shape), rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(step.energy.values, backend.energy(NUMPY, grad, 2))


UNBIASED = [("affine", 2, False), ("two_sided", 2, True), ("normalized", 2, False), ("two_sided_normalized", 2, True)]


@pytest.mark.parametrize(("family", "bits", "rectified"), UNBIASED)
def test_the_gradient_of_the_input_of_few_values_is_unbiased(backend, family, bits, rectified):
    samples, count, inner = 4, 5000, 2
    generator = np.random.default_rng(2)
    values, grad = generator.normal(size=(2, samples, count * inner)).astype(np.float32)
    layout = layout_of(values, family, bits)
    step = Step(values, Channels(count, inner), layout, bare=True).forward(backend.batch_norm)
    step.backward(backend.batch_norm_backward, grad, rectified)

    def split(x):
        return x.astype(np.float64).reshape(samples, count, inner)

    def mean(x):
        return x.mean((0, 2), keepdims=True)

    x, given = split(values), split(np.where(step.out > 0, grad, 0) if rectified else grad)
    inverse = 1 / np.sqrt(mean((x - mean(x)) ** 2) + EPSILON)
    exact = (x - mean(x)) * inverse
    expected = inverse * (given - mean(given) - exact * mean(given * exact))
    # a product of the value with a mean that contains it would be too small by just this
    lacking = given * given * split(variances(step.buffer, layout)) / step.normalization.count
    share = ((split(step.grad_out) - expected) / inverse * given).sum() / lacking.sum()
    assert abs(share) < 0.4


def test_a_backward_without_an_input_to_serve_leaves_it_alone(backend):
    values, channels = activations("planes")
    step = Step(values, channels, layout_of(values, "two_sided", 3)).forward(backend.batch_norm)
    step.backward(backend.batch_norm_backward, values, wanted=False)
    assert (step.grad_out.view(np.uint8) == PoisonedArrays.RUBBISH).all()
    assert np.isfinite(step.grads).all()


@pytest.mark.parametrize("form", ["planes", "channels side by side", "many channels", "several tasks"])
@pytest.mark.parametrize("code", [("affine", 2), ("two_sided", 2), ("two_sided_normalized", 3)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("rectified", [False, True])
def test_a_step_may_overwrite_what_it_reads(backend, form, code, dtype, rectified):
    values, channels = activations(form, dtype)
    grad, _ = activations(form, dtype, seed=1)
    layout = layout_of(values, code[0], code[1])
    rectified = rectified and code[0] in SIDED
    expected = Step(values, channels, layout, 3).forward(backend.batch_norm)
    expected.backward(backend.batch_norm_backward, grad, rectified)
    found = Step(values, channels, layout, 3)
    found.out = found.values = found.copied(values)
    found.forward(backend.batch_norm)
    same_step(found, expected)
    found.grad_out = found.copied(grad)
    found.backward(backend.batch_norm_backward, found.grad_out, rectified)
    same_bits(found.grad_out, expected.grad_out)
    same_bits(found.grads, expected.grads)


@pytest.mark.parametrize("trouble", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("family", ["affine", "two_sided", "normalized", "two_sided_normalized"])
@pytest.mark.parametrize("form", ["planes", "channels side by side"])
def test_values_that_are_not_finite_are_those_of_the_rows(native, trouble, family, form):
    values, channels = activations(form)
    values[1, 30] = trouble
    layout = layout_of(values, family, 3)
    found = Step(values, channels, layout).forward(native.batch_norm)
    same_step(found, Step(values, channels, layout).forward(composed_forward(native)))
    assert not np.isfinite(found.out).all()


@pytest.mark.parametrize("shape", [(0, 35), (3, 0)])
@pytest.mark.parametrize("family", ["affine", "two_sided", "normalized", "two_sided_normalized"])
def test_an_empty_tensor_has_an_empty_code_and_gradients_of_zero(backend, shape, family):
    values, channels = np.empty(shape, np.float32), Channels(5, shape[1] // 5)
    layout = Layout(*shape, FAMILIES[family], 3)
    step = Step(values, channels, layout).forward(backend.batch_norm)
    step.backward(backend.batch_norm_backward, values)
    assert np.array_equal(step.buffer, REFERENCE.encode(NUMPY, values, layout, KEY))
    assert not step.grads.any()
    assert np.isfinite(step.normalization.saved).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("last", [False, True])
def test_tensors_of_any_shape_and_dtype_are_served(native, dtype, last):
    torch = pytest.importorskip("torch")
    tensors = pytest.importorskip("actnn.torch.tensors")

    class ExactArrays(tensors.TorchArrays):
        """torch's arrays with a square root that is rounded correctly, as torch's own need not be."""

        def sqrt(self, x):
            return torch.from_numpy(np.sqrt(x.numpy()))

    arrays, form = ExactArrays(), torch.channels_last if last else torch.contiguous_format
    kind = getattr(torch, dtype)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 6, 9, 7, generator=generator).to(kind).contiguous(memory_format=form)
    channels, layout = Channels(6, 1 if last else 63), Layout(4, 378, FAMILIES["two_sided"], 3)
    flat = (x.permute(0, 2, 3, 1) if last else x).reshape(4, 378)
    statistics = torch.stack(REFERENCE.channel_statistics(arrays, flat, channels))
    results = []
    for backend, values in ((native, x), (REFERENCE, flat)):
        numbers = torch.randn(4, 6, generator=torch.Generator().manual_seed(1)).to(kind)
        running = numbers[2].clone(), numbers[3].abs()
        saved, y = torch.full((2, 6), float("nan")), torch.full_like(values, float("nan"))
        layer = BatchNorm(channels, 1e-3, 252, numbers[0], numbers[1], running, 0.3, statistics, saved)
        code = torch.zeros(layout.nbytes, dtype=torch.uint8)
        backend.batch_norm(arrays, values, y, layout, layer, KEY, code)
        grad_x, sums = torch.full_like(values, float("nan")), torch.ones(2, 6)
        step = layout, layer, True, False, torch.empty(2, 6), grad_x, sums
        backend.batch_norm_backward(arrays, y, code, *step)
        outputs = [(each.permute(0, 2, 3, 1) if last and backend is native else each) for each in (y, grad_x)]
        results.append([*(each.reshape(4, 378) for each in outputs), saved, code, *running])
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("simd", ["scalar", "avx2"])
def test_the_host_is_to_know_how_many_values_there_are(simd):
    values, channels = activations("planes")
    step = Step(values, channels, layout_of(values))
    step.normalization.share = np.ones(1, np.float32)
    with pytest.raises(UnsupportedError, match="Give it as count"):
        step.backward(backend_named(simd).batch_norm_backward, values)


def test_a_buffer_of_another_size_is_refused(backend):
    values, channels = activations("planes")
    step = Step(values, channels, layout_of(values))
    step.buffer = step.buffer[:-1]
    with pytest.raises(FormatError, match="was to be written"):
        step.forward(backend.batch_norm)
