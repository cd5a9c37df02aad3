"""Values and gradients that are not finite, or tell nothing: planning goes on with what was known."""

from __future__ import annotations

import numpy as np
import pytest
from planned_sites import SAMPLES, UNEQUAL, code, hand, learned, planes, read, session, sites, statistics, widths

from actnn.planning.noise import Transfer


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("first", [True, False], ids=["before the others", "after the others"])
def test_a_gradient_that_is_not_finite_leaves_all_statistics_as_they_were(value: float, first: bool):
    owner = session()
    owners = sites(owner, 3)
    learned(owner, owners, [1.0, 2.0, 3.0], UNEQUAL)
    before = statistics(owner)
    owner.forward_begins(np.arange(SAMPLES))
    records = [code(site, UNEQUAL) for site in owners]
    overflow = np.full(SAMPLES, 5.0)
    overflow[3] = value
    for number, record in enumerate(records if first else reversed(records)):
        read(record, overflow if number == 0 else 7.0)
    owner.forward_begins()
    assert statistics(owner) == before


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_tells_nothing_of_what_batch_norm_hands_down(value: float):
    owner = session()
    below, norm = sites(owner)[0], sites(owner, batch_norm=True)[0]
    below.transfer, norm.below = Transfer(np.ones(3), 1.0), below
    before = owner.planner.lessons.handed_down
    owner.forward_begins()
    hand(code(norm), norm, np.full(SAMPLES, value), (np.ones(3), np.full(3, value)))
    owner.forward_begins()
    assert (norm.handed_down, owner.planner.lessons.handed_down) == (None, before)


@pytest.mark.parametrize("overflow", [Transfer(np.array([1.0, np.nan]), 0.0), Transfer(np.ones(2), np.inf)])
def test_a_transfer_that_is_not_finite_leaves_the_last_one_in_place(overflow: Transfer):
    owner = session()
    (site,) = sites(owner)
    known = site.transfer = Transfer(np.ones(2), 1.0)
    owner.planner.measured(site, lambda: overflow)
    owner.forward_begins()
    assert site.transfer is known


def test_a_step_after_an_overflow_teaches_again():
    owner = session()
    (site,) = sites(owner)
    learned(owner, [site], [1.0])
    learned(owner, [site], [np.inf])
    learned(owner, [site], [3.0])
    assert site.gradient == 2.0


def test_a_code_of_values_that_are_not_finite_has_the_average():
    owner = session()
    (site,) = sites(owner)
    learned(owner, [site], [1.0], UNEQUAL)
    ranges = UNEQUAL.copy()
    ranges[2] = np.nan
    assert set(widths(code(site, ranges))) == {2}


def test_a_step_of_values_that_are_not_finite_does_not_stop_planning():
    owner = session()
    owners = sites(owner, 2)
    learned(owner, owners, [1.0, 1.0], np.full(SAMPLES, np.nan))
    learned(owner, owners, [1.0, 1e4])
    assert planes(code(owners[0])) < planes(code(owners[1]))


def test_gradients_that_are_all_zero_leave_the_average():
    owner = session()
    owners = sites(owner, 2)
    learned(owner, owners, [0.0, 0.0], UNEQUAL)
    assert sum(planes(code(site, UNEQUAL)) for site in owners) == 2 * 2 * SAMPLES
