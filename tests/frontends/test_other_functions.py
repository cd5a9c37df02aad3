"""``config.other_bits``: what functions without a rule have autograd save becomes codes of many bits."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
from frameworks import Framework
from steps import distance
from z_tests import check_unbiased

import actnn
from actnn.session.session import Session

WIDTH, ROWS = 128, 64


def batch(framework: Framework, scale: float = 1.0):
    numbers = np.random.default_rng(3).standard_normal((ROWS, WIDTH)).astype(np.float32)
    return framework.tensor(scale * numbers)


def odd(framework: Framework):
    """Return a network of functions that nobody has a rule for."""
    if framework.name == "torch":
        import torch
        from torch import nn
    else:
        import paddle as torch
        from paddle import nn

    class Odd(nn.Module if framework.name == "torch" else nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            h = self.first(x)
            h = torch.sin(h) + torch.erf(h) + torch.atan(h)
            return self.second(torch.cos(h))

    return framework.training(Odd())


def converted(model, other_bits: int | None = 8, bits: float = 8) -> actnn.QModule:
    actnn.set_optimization_level("L2")
    actnn.config.activation_compression_bits = [bits]
    actnn.config.other_bits = other_bits
    return actnn.QModule(model)


def gradients(framework: Framework, model, x) -> dict[str, np.ndarray]:
    framework.clear(model)
    (model(x) ** 2).sum().backward()
    return {name: np.array(framework.array(own.grad)) for name, own in model.named_parameters()}


def test_functions_without_a_rule_keep_a_quarter_and_the_gradient_is_right(framework: Framework):
    plain, x = odd(framework), batch(framework)
    expected = gradients(framework, plain, x)
    exact = framework.saved_bytes(plain, lambda: plain(x))
    ours = converted(deepcopy(plain))
    for _ in range(5):
        found = gradients(framework, ours, x)
        for name, gradient in expected.items():
            assert distance(found[name], gradient) < 0.02 * np.linalg.norm(gradient), name
    report = ours.report()
    rows = {row.layer: row for row in report.rows}
    # one code of what three functions save; in Paddle nothing tells that a tensor is the one that was saved before
    shared = {"model/erf.saved", "model/atan.saved"} if framework.name == "torch" else set()
    assert set(rows["model/sin.saved"].readers) == shared
    assert rows["model/sin.saved"].bits == 8
    assert report.exact_bytes > 3.7 * report.kept_bytes
    assert exact > 3 * ROWS * WIDTH * 4


def test_its_gradient_is_unbiased(framework: Framework):
    plain, x = odd(framework), batch(framework, 0.5)
    exact = gradients(framework, plain, x)["first.weight"]
    ours = converted(plain)
    found = np.stack([gradients(framework, ours, x)["first.weight"] for _ in range(120)])
    assert found.std(0).max() > 0
    check_unbiased(found, exact, 1e-3 * np.abs(exact).max())


def test_it_is_off_by_default(framework: Framework):
    assert actnn.config.other_bits is None
    ours = converted(odd(framework), other_bits=None)
    gradients(framework, ours, batch(framework))
    assert not [row for row in ours.report().rows if row.layer.endswith(".saved")]


def test_what_is_to_stay_exact_stays_exact(framework: Framework):
    actnn.set_optimization_level("L2")
    actnn.config.other_bits = 8
    plain, x = odd(framework), batch(framework)
    expected = gradients(framework, plain, x)
    ours = actnn.QModule(plain, exact=["*"])
    found = gradients(framework, ours, x)
    for name, gradient in expected.items():
        np.testing.assert_array_equal(found[name], gradient)


def test_widths_of_others_are_no_matter_of_planning(framework: Framework):
    actnn.set_optimization_level("L3")
    actnn.config.other_bits = 8
    ours, x = actnn.QModule(odd(framework)), batch(framework)
    for _ in range(4):
        gradients(framework, ours, x)
    rows = {row.layer: row for row in ours.report().rows}
    assert rows["model/sin.saved"].bits == 8
    state = ours.session_state()
    other = actnn.QModule(odd(framework))
    other.load_session_state(state)
    gradients(framework, other, x)
    assert {row.layer: row.bits for row in other.report().rows}["model/sin.saved"] == 8


@pytest.mark.parametrize("bits", [0, 9, 2.5, True, "8"])
def test_a_width_that_does_not_exist_is_refused(bits: object):
    with pytest.raises(actnn.ConfigError, match="expected None, or a whole number of 1 to 8"):
        actnn.config.other_bits = bits


def test_a_session_holds_the_setting():
    actnn.config.other_bits = 8
    assert Session(actnn.config.policy()).policy.other_bits == 8
