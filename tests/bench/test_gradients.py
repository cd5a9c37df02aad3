"""Gradients drawn many times: variance and bias are those of the noise that was put in."""

from __future__ import annotations

import pytest

from actnn.bench.gradients import PARTS, Draws, gradients, spread
from actnn.workloads.batch import Batch

torch = pytest.importorskip("torch")
EXACT = {"first": torch.full((20, 5), 2.0), "second": torch.full((50,), 0.5), "none": torch.zeros(3)}
NORM = 100 * 4 + 50 * 0.25


def drawn(count, deviation, offset):
    """Return draws of the exact gradient with noise of some deviation, and an offset that all have."""
    generator = torch.Generator().manual_seed(0)
    found = Draws(EXACT)
    for _ in range(count):
        found.add(
            {
                name: own + offset + deviation * torch.randn(own.shape, generator=generator)
                for name, own in EXACT.items()
            }
        )
    return found


@pytest.mark.parametrize("count", [PARTS // 2, PARTS, 5 * PARTS + 3])
def test_variance_and_bias_are_those_that_were_put_in(count):
    found = drawn(count, deviation=0.2, offset=0.1)
    bias, error = found.bias()
    assert found.variance == pytest.approx(153 * 0.04 / NORM, rel=0.2)
    assert abs(bias - 153 * 0.01 / NORM) < 5 * error
    assert error < 0.5 * bias


def test_noise_alone_is_no_bias():
    bias, error = drawn(40, deviation=1.0, offset=0.0).bias()
    assert abs(bias) < 4 * error
    # what the mean of all draws would show
    assert abs(bias) + error < 153 / 40 / NORM


def test_one_pair_of_draws_tells_no_standard_error():
    assert drawn(2, 0.1, 0.0).bias()[1] is None


def test_the_noisiest_parameters_are_named_relative_to_what_stands_beside_them():
    draws = drawn(40, 0.1, 0.0)
    variances = draws.variances
    (first, share), (second, other) = draws.noisiest(5, {name: 2 * own for name, own in variances.items()})
    assert first != second
    assert {first, second} <= set(variances)
    assert share == other == pytest.approx(0.5)


def test_the_noisiest_parameters_are_named_relative_to_their_own_gradient():
    (first, most), (second, less) = drawn(40, 0.1, 0.0).noisiest(5)
    assert (first, second) == ("second", "first")
    assert most == pytest.approx(0.01 / 0.25, rel=0.2)
    assert less == pytest.approx(0.01 / 4, rel=0.2)


def test_batches_differ_by_their_variance():
    shifts = [-1.0, 0.0, 1.0]
    batches = [{name: own + shift for name, own in EXACT.items()} for shift in shifts]
    found = spread(batches, EXACT)
    assert found is not None
    assert sum(found.values()) == pytest.approx(153)
    assert spread(batches[:1], EXACT) is None


def test_dropout_leaves_out_the_same_in_every_gradient():
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3))
    batch = Batch((torch.randn(4, 8),), {}, torch.tensor([0, 1, 2, 0]))
    first, second, other = gradients(model, batch), gradients(model, batch), gradients(model, batch, seed=1)
    assert torch.equal(first["0.weight"], second["0.weight"])
    assert not torch.equal(first["0.weight"], other["0.weight"])
