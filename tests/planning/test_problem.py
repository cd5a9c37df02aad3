"""Demands: what they accept, what they cost, and the variance of an allocation."""

from __future__ import annotations

import numpy as np
import pytest

from actnn.errors import DemandError
from actnn.format import AFFINE, FAMILIES, MAX_BITS, TWO_SIDED, ZERO_EXACT
from actnn.planning import Demand, noise_of_widths, variance


def demand(family=AFFINE, cost=1.0, negative=(1.0, 2.0), positive=(3.0, 4.0)) -> Demand:
    return Demand(family, cost, np.array(negative, np.float64), np.array(positive, np.float64))


@pytest.mark.parametrize("wrong", [-1.0, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("side", ["negative", "positive"])
def test_sensitivities_that_are_negative_or_not_finite_are_refused(side, wrong):
    with pytest.raises(DemandError, match="at least 0"):
        demand(**{side: (1.0, wrong)})


def test_sides_of_unequal_length_are_refused():
    with pytest.raises(DemandError, match=r"\(1,\) and \(2,\)"):
        demand(negative=(1.0,))


@pytest.mark.parametrize("cost", [0.0, -1.0, np.nan, np.inf])
def test_planes_that_cost_nothing_or_no_finite_amount_are_refused(cost):
    with pytest.raises(DemandError, match="cost"):
        demand(cost=cost)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_least_and_most_are_the_costs_at_the_ends(family):
    assert demand(family, cost=10.0).least == 2 * family.least_bits * 10
    assert demand(family, cost=10.0).most == 2 * MAX_BITS * 10


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_damage_lists_the_variance_of_each_width_convex_and_decreasing(family):
    damage = demand(family).damage()
    assert damage.shape == (2, MAX_BITS + 1 - family.least_bits)
    for column, bits in enumerate(range(family.least_bits, MAX_BITS + 1)):
        assert damage[:, column].sum() == pytest.approx(variance([demand(family)], [bits]))
    assert (np.diff(damage) < 0).all()
    assert (np.diff(damage, n=2) > 0).all()


def test_variance_sums_over_demands_samples_and_sides():
    demands = [demand(TWO_SIDED), demand(ZERO_EXACT)]
    two_sided, zero_exact = noise_of_widths(TWO_SIDED), noise_of_widths(ZERO_EXACT)
    expected = two_sided[2] @ [1, 3] + two_sided[5] @ [2, 4] + zero_exact[3] @ [1, 3] + zero_exact[4] @ [2, 4]
    widths = [np.array([2, 5], np.uint8), np.array([3, 4], np.uint8)]
    assert variance(demands, widths) == pytest.approx(expected)


def test_one_width_stands_for_all_samples():
    everywhere = [np.full(2, 3, np.uint8)]
    assert variance([demand(TWO_SIDED)], [3]) == pytest.approx(variance([demand(TWO_SIDED)], everywhere))
