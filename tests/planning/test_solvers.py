"""Allocations against a greedy that buys one plane at a time and against the optimum of small problems."""

from __future__ import annotations

import heapq
import pickle
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actnn.errors import BudgetError
from actnn.format import AFFINE, FAMILIES, MAX_BITS, TWO_SIDED, ZERO_EXACT
from actnn.planning import Demand, allocate_jointly, allocate_layers, allocate_samples, variance

EVERY_FAMILY = pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)

COSTS = st.integers(1, 40)
# few small numbers make ties, a wide logarithm makes planes of very different worth
SENSITIVITIES = st.one_of(st.integers(0, 3).map(float), st.floats(-40, 40).map(np.exp2), st.just(-0.0))


@st.composite
def demand_lists(draw, most_demands=5, most_samples=6, costs=COSTS):
    """Draw demands of mixed families, costs and numbers of samples."""
    demands = []
    for _ in range(draw(st.integers(1, most_demands))):
        samples = draw(st.integers(0, most_samples))
        sides = (draw(st.lists(SENSITIVITIES, min_size=samples, max_size=samples)) for _ in range(2))
        family = draw(st.sampled_from(list(FAMILIES.values())))
        demands.append(Demand(family, float(draw(costs)), *(np.array(side, np.float64) for side in sides)))
    return demands


@st.composite
def problems(draw, **limits):
    """Draw demands and a budget between what they need and a little more than they can use."""
    demands = draw(demand_lists(**limits))
    least, most = (int(sum(getattr(demand, end) for demand in demands)) for end in ("least", "most"))
    return demands, float(draw(st.integers(least, most + 5)))


def squared_step(levels: int) -> float:
    return (levels - 1) ** -2.0 if levels > 1 else 0.0


def gain(demand: Demand, sample: int, width: int) -> float:
    """Return by how much one more plane than ``width`` lowers the variance."""
    before, after = demand.family.negative[width], demand.family.negative[width + 1]
    negative = squared_step(before) - squared_step(after)
    positive = squared_step(2**width - before) - squared_step(2 ** (width + 1) - after)
    return negative * float(demand.negative[sample]) + positive * float(demand.positive[sample])


def greedy(demands, budget: float):
    """Buy planes one at a time: the best gain per cost that fits; of equals the lower width, then the lower index."""
    widths = [np.full(demand.samples, demand.family.least_bits) for demand in demands]
    remaining = budget - sum(demand.least for demand in demands)
    offers = []

    def offer(index: int, sample: int) -> None:
        demand, width = demands[index], int(widths[index][sample])
        if width < MAX_BITS:
            heapq.heappush(offers, (-gain(demand, sample, width) / demand.cost, width, index, sample))

    for index, demand in enumerate(demands):
        for sample in range(demand.samples):
            offer(index, sample)
    while offers:
        _, _, index, sample = heapq.heappop(offers)
        if demands[index].cost <= remaining:
            remaining -= demands[index].cost
            widths[index][sample] += 1
            offer(index, sample)
    return widths


def least_variance(demands, budget: int) -> float:
    """Return the smallest variance that a budget allows, by a dynamic program over whole costs."""
    best = np.zeros(budget + 1)
    for demand in demands:
        for row in demand.damage():
            updated = np.full(budget + 1, np.inf)
            for width, damage in enumerate(row, demand.family.least_bits):
                cost = int(width * demand.cost)
                updated[cost:] = np.minimum(updated[cost:], best[: max(0, budget + 1 - cost)] + damage)
            best = updated
    return float(best[budget])


def spending(demands, widths) -> float:
    return sum(demand.cost * float(width.sum(dtype=np.int64)) for demand, width in zip(demands, widths, strict=True))


def random_demand(generator, family=AFFINE, cost=1.0, samples=32, spread=2.0) -> Demand:
    return Demand(family, cost, *generator.lognormal(0, spread, (2, samples)))


def equal_demand(family, samples: int, cost=1.0, sensitivity=1.0) -> Demand:
    return Demand(family, cost, np.full(samples, sensitivity), np.full(samples, sensitivity))


def same_widths(found, expected) -> None:
    """Raise unless two allocations are the same."""
    assert [width.tolist() for width in found] == [width.tolist() for width in expected]


class TestJointly:
    @given(problems())
    def test_the_result_is_that_of_buying_one_plane_at_a_time(self, problem):
        same_widths(allocate_jointly(*problem), greedy(*problem))

    @pytest.mark.parametrize("average", [2.0, 2.1, 3.7, 6.5])
    @pytest.mark.parametrize("spread", [0.001, 2.0, 30.0])
    def test_the_result_is_that_of_buying_one_at_a_time_in_large_problems_too(self, spread, average):
        generator = np.random.default_rng(8)
        families = list(FAMILIES.values())
        demands = [
            random_demand(generator, families[index % 3], float(generator.integers(1, 5000)), 40, spread)
            for index in range(12)
        ]
        budget = average * sum(demand.cost * demand.samples for demand in demands)
        same_widths(allocate_jointly(demands, budget), greedy(demands, budget))

    @given(problems())
    def test_the_budget_holds_and_what_is_left_buys_no_further_plane(self, problem):
        demands, budget = problem
        widths = allocate_jointly(demands, budget)
        left = budget - spending(demands, widths)
        assert left >= 0
        unfinished = (demand.cost for demand, width in zip(demands, widths, strict=True) if (width < MAX_BITS).any())
        assert all(cost > left for cost in unfinished)

    @given(problems())
    def test_widths_lie_between_the_familys_least_and_the_greatest(self, problem):
        for demand, width in zip(problem[0], allocate_jointly(*problem), strict=True):
            assert width.dtype == np.uint8
            assert width.shape == (demand.samples,)
            assert ((width >= demand.family.least_bits) & (width <= MAX_BITS)).all()

    @given(problems(most_demands=3, most_samples=3, costs=st.just(3)))
    def test_with_equal_costs_the_variance_is_the_least_there_is(self, problem):
        demands, budget = problem
        found = variance(demands, allocate_jointly(demands, budget))
        assert found == pytest.approx(least_variance(demands, int(budget)), rel=1e-9, abs=1e-300)

    @given(problems(most_demands=3, most_samples=3, costs=st.integers(1, 9)))
    def test_with_unequal_costs_it_is_within_the_gain_of_one_plane_of_it(self, problem):
        demands, budget = problem
        widths = allocate_jointly(demands, budget)
        unbought = (
            gain(demand, sample, int(width[sample]))
            for demand, width in zip(demands, widths, strict=True)
            for sample in np.flatnonzero(width < MAX_BITS)
        )
        excess = variance(demands, widths) - least_variance(demands, int(budget))
        assert excess <= max(unbought, default=0.0) + 1e-9 * variance(demands, widths)

    @given(problems(), st.integers(1, 60))
    def test_a_larger_budget_never_adds_variance(self, problem, more):
        demands, budget = problem
        before, after = (variance(demands, allocate_jointly(demands, each)) for each in (budget, budget + more))
        assert after <= before * (1 + 1e-12)

    def test_a_demand_a_million_times_as_sensitive_is_served_first(self):
        demands = [equal_demand(AFFINE, 4), equal_demand(AFFINE, 4, sensitivity=1e6)]
        same_widths(allocate_jointly(demands, 4 * (1 + 6)), [np.full(4, 1), np.full(4, 6)])

    def test_of_equally_sensitive_demands_the_cheaper_one_gets_more_planes(self):
        dear, cheap = allocate_jointly([equal_demand(AFFINE, 4, cost=64.0), equal_demand(AFFINE, 4)], 4 * 64 * 3.0)
        assert cheap.min() > dear.max()

    @pytest.mark.parametrize("sensitivity", [0.0, 1.0, 1e-300, 1e300])
    def test_equal_demands_get_the_average_and_each_other(self, sensitivity):
        demands = [equal_demand(TWO_SIDED, 8, 5.0, sensitivity) for _ in range(4)]
        same_widths(allocate_jointly(demands, 3 * 4 * 8 * 5.0), [np.full(8, 3)] * 4)

    def test_useless_planes_of_mixed_families_are_bought_by_width_first(self):
        demands = [equal_demand(family, 4, sensitivity=0.0) for family in (AFFINE, ZERO_EXACT, TWO_SIDED)]
        same_widths(allocate_jointly(demands, 2 * 12 + 6), [np.full(4, 3), np.array([3, 3, 2, 2]), np.full(4, 2)])

    def test_a_budget_beyond_everything_gives_the_greatest_width_everywhere(self):
        demands = [equal_demand(AFFINE, 3), equal_demand(ZERO_EXACT, 2)]
        for budget in (5.0 * MAX_BITS, 1e9, np.inf):
            same_widths(allocate_jointly(demands, budget), [np.full(3, MAX_BITS), np.full(2, MAX_BITS)])

    def test_nothing_is_allocated_to_nobody(self):
        assert allocate_jointly([], 0.0) == []
        same_widths(allocate_jointly([equal_demand(AFFINE, 0)], 0.0), [np.empty(0)])

    def test_demands_stay_as_they_were(self):
        demand = random_demand(np.random.default_rng(1), TWO_SIDED)
        before = demand.negative.copy(), demand.positive.copy()
        allocate_jointly([demand, demand], 200.0)
        np.testing.assert_array_equal((demand.negative, demand.positive), before)


class TestSamples:
    @given(problems(most_demands=1, most_samples=20, costs=st.just(1)))
    def test_within_one_code_it_is_what_all_codes_together_would_do(self, problem):
        (demand,), planes = problem
        same_widths([allocate_samples(demand, int(planes))], allocate_jointly([demand], planes))

    @EVERY_FAMILY
    @pytest.mark.parametrize("average", [1.25, 1.5, 2, 2.5, 3.125, 7.75])
    def test_equal_samples_get_the_average_and_fractions_are_hit_exactly(self, family, average):
        average = max(average, family.least_bits)
        widths = allocate_samples(equal_demand(family, 32), int(32 * average))
        assert widths.mean() == average
        assert widths.max() - widths.min() == (average % 1 > 0)

    @EVERY_FAMILY
    @pytest.mark.parametrize("average", [2.25, 2.5, 4])
    def test_unequal_samples_get_different_widths_and_the_same_average(self, family, average):
        widths = allocate_samples(random_demand(np.random.default_rng(2), family), int(32 * average))
        assert widths.mean() == average
        assert widths.max() > widths.min() + 1

    @EVERY_FAMILY
    def test_samples_without_any_sensitivity_get_the_average(self, family):
        widths = allocate_samples(equal_demand(family, 6, sensitivity=0.0), 21)
        assert widths.tolist() == [4, 4, 4, 3, 3, 3]

    @EVERY_FAMILY
    def test_every_further_plane_goes_to_one_sample_and_takes_none_away(self, family):
        demand = random_demand(np.random.default_rng(5), family, samples=7)
        planes = range(7 * family.least_bits, 7 * MAX_BITS + 1)
        for before, after in pairwise([allocate_samples(demand, count) for count in planes]):
            assert sorted(after.astype(int) - before) == [0] * 6 + [1]

    @EVERY_FAMILY
    def test_the_variance_is_the_least_of_all_allocations(self, family):
        demand = random_demand(np.random.default_rng(6), family, samples=3)
        everything = [np.array(widths) for widths in product(range(family.least_bits, MAX_BITS + 1), repeat=3)]
        for planes in range(3 * family.least_bits, 3 * MAX_BITS + 1):
            best = min(variance([demand], [widths]) for widths in everything if widths.sum() == planes)
            assert variance([demand], [allocate_samples(demand, planes)]) == pytest.approx(best)

    def test_more_planes_than_samples_can_use_give_the_greatest_width(self):
        widths = allocate_samples(equal_demand(AFFINE, 3), 100)
        assert widths.dtype == np.uint8
        assert widths.tolist() == [MAX_BITS] * 3

    def test_no_samples_need_no_planes(self):
        assert allocate_samples(equal_demand(TWO_SIDED, 0), 0).shape == (0,)


class TestLayers:
    def test_a_layer_is_served_as_the_sum_of_its_samples(self):
        generator = np.random.default_rng(7)
        families = list(FAMILIES.values())
        demands = [random_demand(generator, families[index % 3], float(3 + index), 5) for index in range(9)]
        sums = [
            Demand(demand.family, 5 * demand.cost, np.array([demand.negative.sum()]), np.array([demand.positive.sum()]))
            for demand in demands
        ]
        for average in (2.0, 2.3, 4.5):
            budget = average * sum(5 * demand.cost for demand in demands)
            expected = [int(width[0]) for width in greedy(sums, budget)]
            assert allocate_layers(demands, budget) == expected

    def test_equal_layers_of_equal_cost_get_the_average(self):
        demands = [equal_demand(ZERO_EXACT, 4, 10.0) for _ in range(6)]
        assert allocate_layers(demands, 2.5 * 6 * 4 * 10) == [3, 3, 3, 2, 2, 2]

    def test_an_empty_batch_gets_the_least_width_and_takes_nothing_from_others(self):
        demands = [equal_demand(TWO_SIDED, 0), equal_demand(AFFINE, 2)]
        assert allocate_layers(demands, 6.0) == [2, 3]

    def test_one_width_a_layer_is_never_better_than_one_a_sample(self):
        generator = np.random.default_rng(9)
        demands = [random_demand(generator, TWO_SIDED, 4.0, 16) for _ in range(5)]
        budget = 3.0 * 4 * 16 * 5
        jointly = variance(demands, allocate_jointly(demands, budget))
        assert jointly < variance(demands, allocate_layers(demands, budget))


class TestBudgetsThatAreTooSmall:
    @EVERY_FAMILY
    def test_the_error_names_the_smallest_budget_and_that_one_fits(self, family):
        demands = [equal_demand(family, 4, 10.0), equal_demand(TWO_SIDED, 3, 7.0)]
        for allocate in (allocate_jointly, allocate_layers):
            with pytest.raises(BudgetError, match="a budget of 13 does not hold") as caught:
                allocate(demands, 13.0)
            assert caught.value.smallest == 4 * 10 * family.least_bits + 3 * 7 * 2
            assert f"{caught.value.smallest:g}" in str(caught.value)
            widths = allocate(demands, caught.value.smallest)
            assert [int(np.max(width)) for width in widths] == [family.least_bits, 2]

    def test_planes_are_counted_where_one_code_is_allocated(self):
        with pytest.raises(BudgetError) as caught:
            allocate_samples(equal_demand(ZERO_EXACT, 5), 9)
        assert caught.value.smallest == 10

    def test_a_budget_that_is_no_number_is_refused(self):
        with pytest.raises(BudgetError):
            allocate_jointly([equal_demand(AFFINE, 1)], float("nan"))

    def test_the_error_survives_the_way_between_processes(self):
        error = pickle.loads(pickle.dumps(BudgetError(3.0, 8.0)))
        assert (error.budget, error.smallest) == (3.0, 8.0)
