"""The search for the largest that fits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from actnn.errors import ConfigError
from actnn.measuring.search import extrapolated, largest


@given(limit=some.integers(1, 5000), guess=some.integers(-10, 6000), tolerance=some.sampled_from([0.0001, 0.04, 0.3]))
def test_the_largest_that_fits_is_found_to_within_the_tolerance(limit, guess, tolerance):
    found = largest(lambda value: value <= limit, guess, tolerance=tolerance)
    assert found.largest <= limit < found.too_large
    assert found.too_large - found.largest <= max(1, tolerance * found.largest)


@given(limit=some.integers(20, 2000))
def test_a_good_guess_takes_few_trials_and_none_twice(limit):
    tried = []

    def fits(value):
        tried.append(value)
        return value <= limit

    largest(fits, int(limit * 1.03), tolerance=0.04)
    assert len(tried) == len(set(tried)) <= 4


def test_nothing_below_the_least_is_tried():
    with pytest.raises(ConfigError, match="not even 32 fits"):
        largest(lambda value: value >= 32 and value < 0, 100, least=32)


@pytest.mark.parametrize("power", [1, 1.5, 2])
def test_an_extrapolation_meets_the_limit(power):
    def need(value):
        return round(1000 + 7 * value**power)

    guess = extrapolated((100, need(100)), (200, need(200)), need(900), power)
    assert guess == pytest.approx(900, rel=0.01)


def test_a_need_that_does_not_grow_is_not_extrapolated():
    assert extrapolated((4, 100), (8, 100), 1000) == 8
