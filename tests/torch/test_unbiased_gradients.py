"""The mean gradient over many keys is the exact one, at 1, 2 and 4 bits.

Every check is a z-test with a false alarm below one in a million (Bonferroni over all elements of a gradient, and
Hotelling's T² along a few directions); seeds are fixed. See z_tests.check_unbiased.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from layer_cases import KINDS, NORMS, Case
from torch import nn
from torch_layers import compressed, images, input_of, many_gradients, plain_layer, small_network, step
from z_tests import check_unbiased

REPEATS = 300
NETWORK_REPEATS = 300
WIDTHS = [1, 2, 4]

widths = pytest.mark.parametrize("bits", WIDTHS)


def batch_norm_allowance(layer, x, bits: int):
    """Return the bias that BatchNorm's input gradient may have: of the order of 1 / (elements per channel).

    The gradient holds the product of the decoded value with a mean that contains it; the variance of that value,
    a twelfth of a squared step of at most 8 deviations, remains (docs/design.md, section 7).
    """
    exact = step(layer, x)
    axes = [axis for axis in range(x.dim()) if axis != 1]
    count = x.numel() // x.shape[1]
    variance = (8 / (2**bits - 1)) ** 2 / 12
    shape = [-1 if axis == 1 else 1 for axis in range(x.dim())]
    slope = (layer.weight.detach().view(shape) / x.std(axes, keepdim=True)).abs()
    gradient = torch.randn(x.shape, generator=torch.Generator().manual_seed(4)).abs()
    assert gradient.shape == exact.output.shape
    return np.asarray(gradient * slope * variance / count, np.float64).reshape(-1)


@pytest.mark.parametrize("case", KINDS, ids=str)
@widths
def test_the_mean_gradient_of_a_layer_is_exact(case: Case, bits: int):
    layer, x = plain_layer(case), input_of(case)
    exact = step(layer, x).gradients
    found = many_gradients(compressed(layer, bits), x, 3 if case.lossless else REPEATS)
    for name, gradient in exact.items():
        biased = case in NORMS and name == "input"
        check_unbiased(found[name], gradient, batch_norm_allowance(layer, x, bits) if biased else 0.0)


@pytest.mark.parametrize("case", NORMS, ids=str)
def test_the_bias_of_batch_norm_is_of_the_order_of_one_over_the_elements_of_a_channel(case: Case):
    layer, x = plain_layer(case), input_of(case)
    exact = step(layer, x).gradients["input"].double()
    mean = many_gradients(compressed(layer, 1), x, REPEATS)["input"].double().mean(0)
    shrinkage = 1 - float((mean * exact).sum() / exact.square().sum())
    assert abs(shrinkage) < 8 * x.shape[1] / x.numel() + 0.005


@pytest.mark.parametrize("case", [case for case in KINDS if not case.lossless], ids=str)
def test_the_mean_gradient_over_seeds_is_exact(case: Case):
    layer, x = plain_layer(case), input_of(case)
    exact = step(layer, x).gradients
    name = "weight"
    found = [step(compressed(layer, 2, seed), x).gradients[name] for seed in range(200)]
    check_unbiased(torch.stack(found), exact[name])


@pytest.mark.parametrize("case", [case for case in KINDS if not case.lossless], ids=str)
def test_stochastic_rounding_is_unbiased_too(case: Case):
    layer, x = plain_layer(case), input_of(case)
    exact = step(layer, x).gradients["weight"]
    model = compressed(layer, 2, rounding="stochastic")
    check_unbiased(many_gradients(model, x, REPEATS)["weight"], exact)


@pytest.mark.parametrize("share_codes", [True, False])
@widths
def test_the_mean_gradient_of_a_whole_network_is_exact(bits: int, share_codes: bool):
    network, x = small_network(), images()
    exact = step(network, x).gradients
    found = many_gradients(compressed(network, bits, share_codes=share_codes), x, NETWORK_REPEATS)
    assert found.keys() == exact.keys()
    for name, gradient in exact.items():
        # what lies behind BatchNorm layers has their bias; its inner ones have 512 elements a channel
        shrinkage = 8 / 512 / (2**bits - 1) ** 2
        check_unbiased(
            found[name], gradient, np.abs(gradient.numpy()).reshape(-1) * shrinkage if name == "input" else 0.0
        )


def test_a_z_test_finds_a_bias_of_nearest_rounding():
    case = KINDS[1]
    layer, x = plain_layer(case), input_of(case)
    exact = step(layer, x).gradients["weight"]
    model = compressed(layer, 2, stochastic=False)
    found = many_gradients(model, x, 3)["weight"]
    with pytest.raises(AssertionError, match="biased"):
        check_unbiased(found, exact)


def test_the_noise_of_a_gradient_is_proportional_to_the_step():
    case = KINDS[1]
    layer, x = plain_layer(case), input_of(case)
    deviations = [many_gradients(compressed(layer, bits), x, 60)["weight"].std(0).mean() for bits in (2, 4)]
    # 3 steps against 15
    assert float(deviations[0] / deviations[1]) == pytest.approx(5, rel=0.2)


@pytest.mark.parametrize("gamma", [1.0, 1e-6, -1e-6, 0.0, -1.0])
@pytest.mark.parametrize("beta", [0.5, -0.5])
def test_a_tiny_gamma_before_a_relu_makes_no_more_noise_than_any_other(gamma: float, beta: float):
    norm = nn.BatchNorm2d(6)
    nn.init.constant_(norm.weight, gamma)
    nn.init.constant_(norm.bias, beta)
    x = torch.randn(8, 6, 13, 11)
    found = many_gradients(compressed(nn.Sequential(norm, nn.ReLU()), 4), x, 30)["0.weight"]
    # a step of at most 8 deviations over 11 levels, a twelfth of its square a variance, times gradients of variance 1
    assert float(found.std(0).max()) < 8 / 11 / 12**0.5 * (x.numel() / 6) ** 0.5 * 1.5
