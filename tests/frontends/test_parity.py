"""Same weights, same input, same seed: the same codes, byte for byte, and equal gradients in torch and in Paddle.

Where layers follow each other, weights and inputs are small whole numbers: sums of them are exact, so that the
frameworks' own convolutions hand on equal activations whatever the order in which they add.
"""

from __future__ import annotations

import numpy as np
import pytest
from frameworks import NAMES, Framework, Model, input_of, load
from layer_cases import KINDS, Case
from networks import residual_block
from parity_cases import EQUAL, chain, codes_and_gradients, unit, whole, whole_images
from planned_networks import widths_of
from steps import close

RELATIVE = 1e-5


@pytest.fixture
def frameworks() -> list[Framework]:
    """Every framework; the test is skipped where one is not installed."""
    found = [load(name) for name in NAMES]
    for framework in found:
        framework.use_one_thread()
    return found


def check_parity(frameworks: list[Framework], build, x, codes: bool = True) -> None:
    """Raise unless all frameworks make the same codes and gradients of what ``build`` gives them."""
    (expected_codes, expected), *others = (codes_and_gradients(each, build(each), x) for each in frameworks)
    assert expected_codes or not codes
    for found_codes, found in others:
        assert [len(code) for code in found_codes] == [len(code) for code in expected_codes]
        assert found_codes == expected_codes
        assert found.keys() == expected.keys()
        for name, gradient in expected.items():
            close(found[name], gradient, RELATIVE, name)


@pytest.mark.parametrize("case", EQUAL, ids=str)
@pytest.mark.parametrize("bits", [2, 8])
def test_a_layer_makes_the_same_codes_and_gradients(frameworks, case: Case, bits: int):
    def build(framework: Framework) -> Model:
        return framework.compressed(framework.plain_layer(case), bits, seed=11)

    check_parity(frameworks, build, input_of(case), codes=case.kind != "AvgPool2d")


ROUNDINGS = ["dither", "stochastic", "nearest"]


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("case", [case for case in KINDS if case.kind in ("Conv2d", "Linear", "BatchNorm2d")], ids=str)
def test_every_rounding_makes_the_same_codes(frameworks, case: Case, rounding: str):
    def build(framework: Framework) -> Model:
        return framework.compressed(framework.plain_layer(case), 3, seed=2**40 + 1, rounding=rounding)

    check_parity(frameworks, build, input_of(case))


def block(framework: Framework) -> Model:
    """Return a residual block; its inner BatchNorms read what is no longer whole, but still the same."""
    return whole(framework, residual_block(framework, 3, 8))


@pytest.mark.parametrize("network", [chain, unit], ids=lambda network: network.__name__)
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_a_network_makes_the_same_codes_and_gradients(frameworks, network, bits: int):
    check_parity(frameworks, lambda framework: framework.compressed(network(framework), bits, seed=5), whole_images())


@pytest.mark.parametrize("share_codes", [True, False])
def test_sharing_makes_the_same_codes(frameworks, share_codes: bool):
    def build(framework: Framework) -> Model:
        return framework.compressed(unit(framework), 2, seed=5, share_codes=share_codes)

    check_parity(frameworks, build, whole_images())


@pytest.mark.parametrize("network", [chain, unit], ids=lambda network: network.__name__)
@pytest.mark.parametrize("level", ["L2.5", "L3"])
def test_planned_widths_and_their_codes_are_the_same(frameworks, network, level: str):
    check_parity(
        frameworks, lambda framework: framework.compressed(network(framework), 2, seed=5, level=level), whole_images()
    )


def test_planned_widths_are_the_same_step_after_step(frameworks):
    x, found = whole_images(), []
    for framework in frameworks:
        model = framework.compressed(chain(framework), 1.5, level="L3")
        model.set_samples(range(len(x)))
        found.append([widths_of(framework, model, x) for _ in range(5)])
    assert found[0] == found[1]
    assert any(len(set(widths)) > 1 for widths in found[0][-1].values())


def test_reports_are_the_same_but_for_the_names_of_types(frameworks):
    found = []
    for framework in frameworks:
        model = framework.compressed(chain(framework), 2, level="L3")
        framework.step(model, whole_images())
        framework.step(model, whole_images())
        found.append([(row.layer, row.kept_bytes, row.bits, row.readers) for row in model.report().rows])
    assert found[0] == found[1]


def test_a_residual_block_at_eight_bits_has_nearly_the_same_gradient(frameworks):
    """Rounding of the frameworks' own convolutions behind a BatchNorm may move a value to the next word of its code."""
    found = []
    for framework in frameworks:
        model = framework.compressed(block(framework), 8, seed=5)
        found.append(codes_and_gradients(framework, model, whole_images())[1])
    for name, gradient in found[0].items():
        close(found[1][name], gradient, 1e-3, name)


def test_weights_of_torch_can_be_given_to_paddle(frameworks):
    """The layout of a linear layer's weight is turned, all else is as it is: outputs are equal to rounding."""
    torch, paddle = frameworks
    theirs, ours = chain(torch), framework_state_from(torch, paddle)
    x = whole_images()
    np.testing.assert_array_equal(paddle.array(ours(paddle.tensor(x))), torch.array(theirs(torch.tensor(x))))


def framework_state_from(torch: Framework, paddle: Framework) -> Model:
    """Return Paddle's model with the state of torch's, converted."""
    state, model = torch.state(chain(torch)), paddle.compressed(paddle.initialised(chain(paddle), 9))
    paddle.load(model, paddle.canonical(model, state))
    return model
