"""The mean gradient over many keys is the exact one, at 1, 2 and 4 bits.

Every check is a z-test with a false alarm below one in a million (Bonferroni over all elements of a gradient, and
Hotelling's T² along a few directions); seeds are fixed. See z_tests.check_unbiased. It finds, with next to certainty, a
bias along one of these directions that is above 9 / √REPEATS, two thirds, of what one draw deviates by there.
"""

from __future__ import annotations

import numpy as np
import pytest
from frameworks import Framework, Model, cases, input_of, numbers
from layer_cases import FUNCTIONAL, KINDS, MAPS, NORMS, Case
from networks import images, small_network
from parity_cases import EQUAL
from z_tests import check_unbiased

from actnn.kernels.reference.batch_norm import MOST_VALUES

REPEATS = 200
WIDTHS = [1, 2, 4]
CONVOLUTION = MAPS[1]
KINKS = {"ELU": (0,)}

widths = pytest.mark.parametrize("bits", WIDTHS)


def batch_norm_allowance(framework: Framework, layer: Model, x, bits: int):
    """Return the bias that BatchNorm's input gradient may have: of the order of 1 / (elements per channel), if many.

    The gradient holds the product of the decoded value with a mean that contains it; where that is not taken out, the
    variance of that value, a twelfth of a squared step of at most 8 deviations, remains (docs/design.md, section 7).
    """
    count = x.size // x.shape[1]
    if count <= MOST_VALUES:
        return 0.0
    exact = framework.step(layer, x)
    axes = tuple(axis for axis in range(x.ndim) if axis != 1)
    variance = (8 / (2**bits - 1)) ** 2 / 12
    shape = [-1 if axis == 1 else 1 for axis in range(x.ndim)]
    slope = np.abs(framework.array(layer.weight).reshape(shape) / x.std(axes, keepdims=True, ddof=1))
    gradient = np.abs(numbers(x.shape, 4))
    assert gradient.shape == exact.output.shape
    return np.asarray(gradient * slope * variance / count, np.float64).reshape(-1)


@cases(KINDS, equal=EQUAL)
@widths
def test_the_mean_gradient_of_a_layer_is_exact(framework: Framework, case: Case, bits: int):
    layer, x = framework.plain_layer(case), input_of(case)
    exact = framework.step(layer, x).gradients
    found = framework.many_gradients(framework.compressed(layer, bits), x, 3 if case.lossless else REPEATS)
    for name, gradient in exact.items():
        biased = case in NORMS and name == "input"
        check_unbiased(found[name], gradient, batch_norm_allowance(framework, layer, x, bits) if biased else 0.0)


def kink_allowance(case: Case, x, bits: int):
    """Return the bias that the gradient of a function with kinks may have within a step of them.

    What kernels correct is the mean of a slope that has a derivative (docs/design.md, section 7).
    """
    step = 8 / (2**bits - 1)
    near = np.any([np.abs(x - kink) <= step for kink in KINKS[case.kind]], axis=0)
    return np.asarray(np.abs(numbers(x.shape, 4)) * near, np.float64).reshape(-1)


@cases(FUNCTIONAL, equal=EQUAL)
@pytest.mark.parametrize("bits", [4, 6])
def test_the_mean_gradient_of_a_functional_layer_is_exact(framework: Framework, case: Case, bits: int):
    layer, x = framework.plain_layer(case), input_of(case)
    exact = framework.step(layer, x).gradients
    found = framework.many_gradients(framework.compressed(layer, bits), x, REPEATS)
    for name, gradient in exact.items():
        check_unbiased(found[name], gradient, kink_allowance(case, x, bits) if case.kind in KINKS else 0.0)


@cases(NORMS, equal=EQUAL)
def test_the_bias_of_batch_norm_is_of_the_order_of_one_over_the_elements_of_a_channel(framework: Framework, case: Case):
    layer, x = framework.plain_layer(case), input_of(case)
    exact = framework.step(layer, x).gradients["input"].astype(np.float64)
    found = framework.many_gradients(framework.compressed(layer, 1), x, REPEATS)["input"].astype(np.float64)
    shrinkage = 1 - float((found.mean(0) * exact).sum() / np.square(exact).sum())
    assert abs(shrinkage) < 8 * x.shape[1] / x.size + 0.005


@cases([CONVOLUTION, NORMS[1]])
def test_the_mean_gradient_over_seeds_is_exact(framework: Framework, case: Case):
    layer, x = framework.plain_layer(case), input_of(case)
    exact = framework.step(layer, x).gradients["weight"]
    found = [framework.step(framework.compressed(layer, 2, seed), x).gradients["weight"] for seed in range(200)]
    check_unbiased(np.stack(found), exact)


@cases([case for case in KINDS if not case.lossless], equal=EQUAL)
def test_stochastic_rounding_is_unbiased_too(framework: Framework, case: Case):
    layer, x = framework.plain_layer(case), input_of(case)
    exact = framework.step(layer, x).gradients["weight"]
    model = framework.compressed(layer, 2, rounding="stochastic")
    check_unbiased(framework.many_gradients(model, x, REPEATS)["weight"], exact)


# what layers without shared codes keep does not depend on the width
@pytest.mark.parametrize(("bits", "share_codes"), [*((bits, True) for bits in WIDTHS), (2, False)])
def test_the_mean_gradient_of_a_whole_network_is_exact(framework: Framework, bits: int, share_codes: bool):
    network, x = small_network(framework), images()
    exact = framework.step(network, x).gradients
    model = framework.compressed(network, bits, share_codes=share_codes)
    found = framework.many_gradients(model, x, REPEATS)
    assert found.keys() == exact.keys()
    for name, gradient in exact.items():
        # BatchNorms of more than 1024 values a channel leave a bias to what lies behind them
        shrinkage = 8 / 1024 / (2**bits - 1) ** 2
        check_unbiased(found[name], gradient, np.abs(gradient).reshape(-1) * shrinkage if name == "input" else 0.0)


def test_a_z_test_finds_a_bias_of_nearest_rounding(framework: Framework):
    layer, x = framework.plain_layer(CONVOLUTION), input_of(CONVOLUTION)
    exact = framework.step(layer, x).gradients["weight"]
    model = framework.compressed(layer, 2, stochastic=False)
    found = framework.many_gradients(model, x, 3)["weight"]
    with pytest.raises(AssertionError, match="biased"):
        check_unbiased(found, exact)


def test_the_noise_of_a_gradient_is_proportional_to_the_step(framework: Framework):
    layer, x = framework.plain_layer(CONVOLUTION), input_of(CONVOLUTION)
    models = [framework.compressed(layer, bits) for bits in (2, 4)]
    coarse, fine = (framework.many_gradients(model, x, 60)["weight"].std(0, ddof=1).mean() for model in models)
    # 3 steps against 15
    assert float(coarse / fine) == pytest.approx(5, rel=0.2)


@pytest.mark.parametrize("gamma", [1.0, 1e-6, -1e-6, 0.0, -1.0])
@pytest.mark.parametrize("beta", [0.5, -0.5])
def test_a_tiny_gamma_before_a_relu_makes_no_more_noise_than_any_other(framework: Framework, gamma: float, beta: float):
    norm = framework.layer("BatchNorm2d", 6)
    framework.assign(norm.weight, np.full(6, gamma, np.float32))
    framework.assign(norm.bias, np.full(6, beta, np.float32))
    x = numbers((8, 6, 13, 11))
    model = framework.compressed(framework.sequential(norm, framework.layer("ReLU")), 4)
    found = framework.many_gradients(model, x, 30)["0.weight"]
    # a step of at most 8 deviations over 11 levels, a twelfth of its square a variance, times gradients of variance 1
    assert float(found.std(0, ddof=1).max()) < 8 / 11 / 12**0.5 * (x.size / 6) ** 0.5 * 1.5
