"""What noise costs: counts against loops, formulas against simulated gradients and the codes themselves."""

from __future__ import annotations

from itertools import product
from math import prod, sqrt

import numpy as np
import pytest
from code_cases import LINEAR_WIDTHS, REFERENCE, layout_of, round_trip
from hypothesis import given
from hypothesis import strategies as st
from z_tests import normal_bound

from actnn.format import AFFINE, FAMILIES, MAX_BITS, TWO_SIDED, ZERO_EXACT, Rounding
from actnn.planning import (
    batch_norm_coefficient,
    convolution_coefficient,
    handed_down,
    linear_coefficient,
    noise_of_widths,
    rounding_factor,
)
from actnn.planning.noise import Transfer


def check_mean(samples, expected: float) -> None:
    """Raise unless ``samples`` have the expected mean, to a false alarm in a million."""
    samples = np.asarray(samples, np.float64)
    error = normal_bound(1, len(samples)) * samples.std(ddof=1) / sqrt(len(samples))
    assert abs(samples.mean() - expected) <= error + 1e-9 * expected, f"{samples.mean():.6g} is not {expected:.6g}"


class TestNoiseOfWidths:
    @pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
    def test_widths_that_do_not_exist_are_infinitely_noisy_and_all_others_finite(self, family):
        noise = noise_of_widths(family)
        assert noise.shape == (MAX_BITS + 1, 2)
        assert np.isinf(noise[: family.least_bits]).all()
        assert np.isfinite(noise[family.least_bits :]).all()

    @pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
    def test_noise_is_convex_and_decreasing_on_both_sides(self, family):
        relief = -np.diff(noise_of_widths(family)[family.least_bits :], axis=0)
        assert (relief >= 0).all()
        assert (np.diff(relief, axis=0) <= 0).all()

    @pytest.mark.parametrize("family", [AFFINE, ZERO_EXACT], ids=lambda family: family.name)
    def test_a_side_without_levels_or_with_one_is_exact(self, family):
        assert (noise_of_widths(family)[family.least_bits :, 0] == 0).all()

    def test_the_levels_of_a_side_set_its_noise(self):
        assert noise_of_widths(AFFINE)[2, 1] == pytest.approx(1 / 9)
        assert noise_of_widths(ZERO_EXACT)[2, 1] == pytest.approx(1 / 4)
        assert noise_of_widths(TWO_SIDED)[3] == pytest.approx([1 / 4, 1 / 16])

    def test_the_table_cannot_be_written_to(self):
        with pytest.raises(ValueError, match="read-only"):
            noise_of_widths(AFFINE)[3] = 0


class TestEnergyOfCodes:
    SAMPLES, ELEMENTS = 1500, 256

    def energies(self, family: str, bits: int, rounding: Rounding):
        """Return the squared error of each sample's code and the two energies A of one sample."""
        values = np.random.default_rng(3).uniform(-1, 2, self.ELEMENTS).astype(np.float32)
        # bfloat16 holds these limits, so that scales are not rounded
        values[:2] = -1, 2
        if family == "zero_exact":
            values = np.maximum(values, 0)
        repeated = np.repeat(values[None], self.SAMPLES, 0)
        errors = round_trip(REFERENCE, repeated, layout_of(repeated, family, bits, rounding)) - values.astype(float)
        if family == "affine":
            return (errors**2).sum(1), 0.0, self.ELEMENTS * 9.0
        return (errors**2).sum(1), float((values <= 0).sum()), 4.0 * float((values > 0).sum())

    @pytest.mark.parametrize(("family", "bits"), LINEAR_WIDTHS)
    def test_the_noise_of_a_dithered_code_has_the_stated_energy(self, family, bits):
        energies, negative, positive = self.energies(family, bits, Rounding.DITHER)
        expected = rounding_factor(Rounding.DITHER) * noise_of_widths(FAMILIES[family])[bits] @ [negative, positive]
        check_mean(energies, expected)

    def test_stochastic_rounding_stays_below_its_bound_and_near_its_mean(self):
        energies, _, positive = self.energies("affine", 4, Rounding.STOCHASTIC)
        energy = noise_of_widths(AFFINE)[4, 1] * positive
        assert energies.mean() < rounding_factor(Rounding.STOCHASTIC, bound=True) * energy
        # one sample's positions between levels are random, but not many
        assert energies.mean() == pytest.approx(rounding_factor(Rounding.STOCHASTIC) * energy, rel=0.15)

    def test_the_bound_of_dither_is_its_variance_and_of_others_a_quarter(self):
        assert rounding_factor(Rounding.DITHER, bound=True) == rounding_factor(Rounding.DITHER) == 1 / 12
        assert (
            rounding_factor(Rounding.STOCHASTIC, bound=True) == rounding_factor(Rounding.NEAREST, bound=True) == 1 / 4
        )


def output_size(inputs: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    return max(0, (inputs + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1)


def counted_pairs(input_size, output_size, kernel, stride, padding, dilation) -> int:
    """Count, one by one, the pairs of positions that a kernel's offset joins."""

    def joined(inside, outside, offset) -> bool:
        axes = zip(inside, outside, offset, stride, padding, dilation, strict=True)
        return all(i + p == o * s + k * d for i, o, k, s, p, d in axes)

    everywhere = (product(*map(range, sizes)) for sizes in (input_size, output_size, kernel))
    return sum(joined(*triple) for triple in product(*everywhere))


@st.composite
def geometries(draw):
    """Draw a convolution of 1 to 3 axes: input, kernel, stride, padding and dilation."""
    axes = draw(st.integers(1, 3))
    most = {1: 9, 2: 5, 3: 3}[axes]
    limits = [(1, most), (1, 3), (1, 3), (0, 2), (1, 2)]
    return tuple(tuple(draw(st.integers(*limit)) for _ in range(axes)) for limit in limits)


class TestConvolution:
    @given(geometries())
    def test_pairs_are_those_that_loops_count(self, geometry):
        inputs, *window = geometry
        outputs = tuple(map(output_size, inputs, *window))
        positions = prod(inputs) * prod(outputs)
        expected = counted_pairs(inputs, outputs, *window) / positions if positions else 0.0
        assert convolution_coefficient(inputs, outputs, *window, groups=1) == pytest.approx(expected)

    @given(geometries())
    def test_a_transposed_convolution_meets_the_same_pairs_the_other_way(self, geometry):
        outputs, *window = geometry
        inputs = tuple(map(output_size, outputs, *window))
        positions = prod(inputs) * prod(outputs)
        expected = counted_pairs(outputs, inputs, *window) / positions if positions else 0.0
        coefficient = convolution_coefficient(inputs, outputs, *window, groups=1, transposed=True)
        assert coefficient == pytest.approx(expected)

    def test_without_padding_it_is_kernel_volume_over_input_positions_and_groups(self):
        window = ((3, 5), (2, 1), (0, 0), (1, 2))
        assert convolution_coefficient((9, 12), (4, 4), *window, groups=4) == pytest.approx(15 / 108 / 4)

    def test_a_kernel_of_one_is_a_linear_layer_over_positions(self):
        window = ((1, 1), (1, 1), (0, 0), (1, 1))
        assert convolution_coefficient((6, 7), (6, 7), *window, groups=1) == pytest.approx(linear_coefficient(42))

    def test_padding_on_one_side_only_follows_from_the_sizes(self):
        # an even kernel with padding "same": nothing before the first element, one behind the last
        assert convolution_coefficient((4,), (4,), (2,), (1,), (0,), (1,), groups=1) == pytest.approx(7 / 16)

    def test_it_predicts_the_variance_of_a_simulated_weight_gradient(self):
        generator = np.random.default_rng(4)
        inputs, kernel, stride, padding, dilation, groups = 11, 3, 2, 2, 2, 2
        outputs, channels = output_size(inputs, kernel, stride, padding, dilation), 4
        # gradients of one size at all positions: there the mean field is exact
        gradient = generator.choice([-0.7, 0.7], (channels, outputs)).reshape(groups, -1, outputs)
        deviation, repeats = 0.3, 4000
        noise = np.zeros((repeats, groups, channels // groups, inputs + 2 * padding))
        inner = noise[..., padding:-padding]
        inner[:] = deviation * generator.standard_normal(inner.shape)
        reach = stride * np.arange(outputs) + dilation * np.arange(kernel)[:, None]
        errors = np.einsum("goq,rgikq->rgoik", gradient, noise[..., reach])
        coefficient = convolution_coefficient(
            (inputs,), (outputs,), (kernel,), (stride,), (padding,), (dilation,), groups=groups
        )
        energy = deviation**2 * channels * inputs
        check_mean((errors**2).sum((1, 2, 3, 4)), coefficient * (gradient**2).sum() * energy)


class TestOtherLayers:
    @pytest.mark.parametrize("tokens", [1, 5])
    def test_linear_predicts_the_variance_of_a_simulated_weight_gradient(self, tokens):
        generator = np.random.default_rng(tokens)
        samples, inputs, outputs, repeats = 3, 6, 4, 4000
        gradient = generator.standard_normal((samples, tokens, outputs))
        deviation = np.array([0.1, 0.4, 0.9])
        noise = deviation[:, None, None] * generator.standard_normal((repeats, samples, tokens, inputs))
        errors = np.einsum("nto,rnti->roi", gradient, noise)
        energy = deviation**2 * tokens * inputs
        expected = linear_coefficient(tokens) * ((gradient**2).sum((1, 2)) * energy).sum()
        check_mean((errors**2).sum((1, 2)), expected)

    @pytest.mark.parametrize("rectified", [False, True])
    def test_batch_norm_predicts_the_variance_of_gammas_gradient(self, rectified):
        generator = np.random.default_rng(6)
        channels, positions, repeats, deviation = 4, 50, 4000, 0.2
        elements = channels * positions
        gradient = generator.choice([-1.0, 1.0], (channels, positions))
        if rectified:
            gradient[:, ::2] = 0
        noise = deviation * generator.standard_normal((repeats, channels, positions))
        errors = (gradient * noise).sum(2)
        energy = deviation**2 * (elements / 2 if rectified else elements)
        expected = batch_norm_coefficient(elements, rectified) * (gradient**2).sum() * energy
        check_mean((errors**2).sum(1), expected)

    @pytest.mark.parametrize("gain", [0.0, 0.2], ids=["gradients at random", "gradients that follow the values"])
    def test_what_is_handed_down_is_the_simulated_variance_of_the_weights_below(self, gain):
        random = np.random.default_rng(11)
        rows, inputs, channels, noise = 300, 6, 3, 0.1
        h = random.normal(size=(rows, inputs)) @ random.normal(size=(inputs, inputs))
        y = h @ random.normal(size=(inputs, channels))
        gamma, deviation = np.array([0.5, 1.0, 2.0]), y.std(0)
        normalized = (y - y.mean(0)) / deviation
        grad = random.normal(size=y.shape) + gain * normalized
        slope, product = gamma / deviation, (grad * normalized).mean(0)

        def weight_error(error):
            """Return how wrong the gradient of the weights is where x̂ is off by ``error``, to first order."""
            wrong = error * product + normalized * (grad * error).mean(0)
            return ((slope * wrong).T @ h).ravel()

        below = Transfer(np.square(normalized.T @ h / rows).sum(1), np.square(h).sum(1).mean())
        energy = np.square(grad).sum(1).mean()
        coefficient = batch_norm_coefficient(channels, False)
        # mean field: noise of channel c meets the mean of the gradients of all channels
        errors = [np.square(weight_error(random.normal(scale=noise, size=y.shape))).sum() for _ in range(2000)]
        own = coefficient * rows * energy * channels * noise**2
        predicted = own * handed_down(slope, product, below, coefficient, energy)
        assert np.mean(errors) == pytest.approx(predicted, rel=0.15)

    def test_nothing_is_handed_down_without_a_gradient(self):
        below = Transfer(np.zeros(2), 5.0)
        assert handed_down(np.ones(2), np.zeros(2), below, 0.5, 0.0) == 0.0

    def test_layers_without_elements_have_no_variance(self):
        assert linear_coefficient(0) == batch_norm_coefficient(0, True) == 0.0
        assert convolution_coefficient((0,), (0,), (1,), (1,), (0,), (1,), groups=1) == 0.0
