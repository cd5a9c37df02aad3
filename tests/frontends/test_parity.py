"""Same weights, same input, same seed: the same codes, byte for byte, and equal gradients in torch and in Paddle.

Where layers follow each other, weights and inputs are small whole numbers: sums of them are exact, so that the
frameworks' own convolutions hand on equal activations whatever the order in which they add.
"""

from __future__ import annotations

import numpy as np
import pytest
from frameworks import NAMES, Framework, Model, input_of, load, numbers, offers
from layer_cases import GEOMETRY, KINDS, NORM_OPTIONS, Case
from networks import residual_block
from planned_networks import widths_of
from steps import close

RELATIVE = 1e-5
# each framework draws the masks of a dropout itself; torch pads beforehand where both sides are not padded alike, and
# Paddle pads as if there were no dilation; the size of a three-dimensional pool is rounded in two ways
DIFFERENT = [
    case
    for case in (*KINDS, *GEOMETRY)
    if case.kind == "Dropout"
    or (case.options.get("padding") == "same" and case.arguments[2] not in (3, 5))
    or (case.kind == "MaxPool3d" and "ceil_mode" in case.options)
]
SHARED = [case for case in (*KINDS, *GEOMETRY, *NORM_OPTIONS) if offers("paddle", case) and case not in DIFFERENT]


@pytest.fixture
def frameworks() -> list[Framework]:
    """Every framework; the test is skipped where one is not installed."""
    found = [load(name) for name in NAMES]
    for framework in found:
        framework.use_one_thread()
    return found


def codes_and_gradients(framework: Framework, model: Model, x) -> tuple[list[bytes], dict[str, np.ndarray]]:
    """Take two steps; return the codes and the gradients of the second."""
    framework.step(model, x)
    found = []

    def step() -> None:
        found.append(framework.canonical(model, framework.step(model, x).gradients))

    codes = framework.saved_codes(step)
    return codes, found[0]


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


@pytest.mark.parametrize("case", SHARED, ids=str)
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


def whole(framework: Framework, model: Model) -> Model:
    """Give convolutions and linear layers small whole numbers for parameters."""
    generator = np.random.default_rng(3)
    for _, layer in framework.layers(model):
        own = framework.own_parameters(layer)
        if "weight" not in own or "Norm" in type(layer).__name__:
            continue
        shape = tuple(own["weight"].shape)
        turned = "Linear" in type(layer).__name__ and framework.linear_is_transposed
        values = generator.integers(-1, 2, shape[::-1] if turned else shape).astype(np.float32)
        framework.assign(own["weight"], values.T if turned else values)
        if "bias" in own:
            framework.assign(own["bias"], generator.integers(-2, 3, tuple(own["bias"].shape)).astype(np.float32))
    return model


def whole_images(batch: int = 8) -> np.ndarray:
    return np.rint(2 * numbers((batch, 3, 16, 16), 7)).astype(np.float32)


def chain(framework: Framework) -> Model:
    """Return convolutions, pools and linear layers."""
    layer = framework.layer
    return whole(
        framework,
        framework.sequential(
            layer("Conv2d", 3, 8, 3, padding=1),
            layer("ReLU"),
            layer("MaxPool2d", 2),
            layer("Conv2d", 8, 8, 3, padding=1),
            layer("ReLU"),
            layer("AvgPool2d", 2),
            layer("ConvTranspose2d", 8, 6, 2, stride=2),
            layer("ReLU"),
            layer("Flatten"),
            layer("Linear", 6 * 64, 20),
            layer("ReLU"),
            layer("Linear", 20, 5),
        ),
    )


def unit(framework: Framework) -> Model:
    """Return a BatchNorm and a ReLU between two convolutions, which share a code."""
    layer = framework.layer
    # the gradient of a bias before a BatchNorm would be nothing but rounding
    first = layer("Conv2d", 3, 8, 3, padding=1, bias=False), layer("BatchNorm2d", 8), layer("ReLU", inplace=True)
    return whole(framework, framework.sequential(*first, layer("Conv2d", 8, 4, 1)))


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
