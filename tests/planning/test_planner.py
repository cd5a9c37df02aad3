"""The planner: widths from ranges and gradients, an average that is kept, and steps that teach nothing."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from planned_sites import (
    ELEMENTS,
    EVERY_FAMILY,
    SAMPLES,
    UNEQUAL,
    code,
    hand,
    learned,
    planes,
    planned,
    read,
    session,
    sites,
    statistics,
    widths,
)

from actnn.format import AFFINE, TWO_SIDED, ZERO_EXACT, Family
from actnn.planning import Demand, variance
from actnn.planning.lessons import MOST_CODES
from actnn.planning.noise import Transfer
from actnn.planning.planner import LEAST_GROUPS, STRIDES
from actnn.planning.records import BOTH_SIDES, OUTPUT, POSITIVE_OUTPUT
from actnn.session.session import Session


@EVERY_FAMILY
@pytest.mark.parametrize("level", ["L2.5", "L3"])
@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_the_first_code_has_one_width_for_all_samples(family: Family, level: str, bits: int):
    owner = session(level, bits)
    (site,) = sites(owner)
    owner.forward_begins()
    assert set(widths(code(site, UNEQUAL, family))) == {int(site.asked(family))}


@EVERY_FAMILY
@pytest.mark.parametrize("bits", [1.25, 1.5, 2.25, 2.5, 3.75])
def test_a_fractional_average_is_met_by_neighbouring_widths_at_first(family: Family, bits: float):
    owner = session("L3", bits)
    (site,) = sites(owner)
    owner.forward_begins()
    found = widths(code(site, UNEQUAL, family))
    assert sum(found) == site.asked(family) * SAMPLES
    assert max(found) - min(found) <= 1


def test_samples_of_larger_range_get_more_bits_after_a_backward():
    owner = session()
    (site,) = sites(owner)
    learned(owner, [site], [1.0], UNEQUAL)
    found = widths(code(site, UNEQUAL))
    assert found == sorted(found)
    assert found[0] < found[-1]


@pytest.mark.parametrize("level", ["L2.5", "L3"])
def test_the_samples_of_a_code_keep_the_average_however_unequal_they_are(level: str):
    owner = session(level)
    (site,) = sites(owner)
    learned(owner, [site], [1.0], UNEQUAL)
    assert planes(code(site, UNEQUAL)) == 2 * SAMPLES


def test_equal_samples_have_equal_widths_after_a_backward():
    owner = session()
    (site,) = sites(owner)
    learned(owner, [site], [1.0])
    assert set(widths(code(site))) == {2}


def test_layers_with_larger_gradients_get_more_bits():
    owner = session()
    weak, strong = sites(owner, 2)
    learned(owner, [weak, strong], [1.0, 1e4])
    assert planes(code(weak)) < 2 * SAMPLES < planes(code(strong))


@pytest.mark.parametrize("bits", [1, 1.25, 2, 2.5, 4, 8])
def test_layers_of_equal_size_share_exactly_the_average(bits: float):
    owner = session("L3", bits)
    owners = sites(owner, 4)
    learned(owner, owners, [1.0, 10.0, 1e3, 1e6])
    assert sum(planes(code(site)) for site in owners) == pytest.approx(4 * SAMPLES * bits)


def test_without_perlayer_every_layer_has_the_average():
    owner = session("L2.5")
    owners = sites(owner, 2)
    learned(owner, owners, [1.0, 1e4])
    assert [planes(code(site)) for site in owners] == [2 * SAMPLES, 2 * SAMPLES]


def test_planned_widths_lower_the_predicted_variance():
    owner = session()
    owners = sites(owner, 3)
    energies = [1.0, 30.0, 3000.0]
    learned(owner, owners, energies, UNEQUAL)
    demands = [Demand(AFFINE, float(ELEMENTS), np.zeros(SAMPLES), UNEQUAL * energy) for energy in energies]
    planned = [np.array(widths(code(site, UNEQUAL)), np.uint8) for site in owners]
    assert variance(demands, planned) < 0.5 * variance(demands, [2, 2, 2])


@pytest.mark.parametrize("before", range(4))
def test_what_is_handed_down_is_found_anew_once_the_layer_below_was_measured_anew(before: int):
    owner = session()
    # a site's number must not decide whether it ever meets a step in which gradients are measured
    below, *_, norm = *sites(owner, 1 + before), *sites(owner, batch_norm=True)
    norm.below = below
    found = []
    for aligned in (1.0, 4.0):
        below.transfer = Transfer(np.full(3, aligned), 0.0)
        for _ in range(3):
            owner.forward_begins()
            hand(code(norm), norm, np.ones(SAMPLES), (np.ones(3), np.ones(3)))
        owner.forward_begins()
        found.append(norm.handed_down)
    assert found == pytest.approx([1.0, 4.0])


def test_a_measured_transfer_is_read_when_the_next_forward_begins():
    owner = session()
    below, norm = sites(owner)[0], sites(owner, batch_norm=True)[0]
    norm.below, reads = below, []
    owner.forward_begins()

    def transfer() -> Transfer:
        reads.append(below)
        return Transfer(np.full(3, 4.0), 0.0)

    assert owner.planner.wants_transfer(below)
    owner.planner.measured(below, transfer)
    hand(code(norm), norm, np.ones(SAMPLES), (np.ones(3), np.ones(3)))
    assert not owner.planner.wants_transfer(below)
    assert (reads, below.transfer) == ([], None)
    owner.forward_begins()
    assert reads == [below]
    assert norm.handed_down == pytest.approx(4.0)


def test_a_code_computed_anew_in_backward_has_the_same_widths():
    owner = session("L3", 1.5)
    owners = sites(owner, 3)
    learned(owner, owners, [1.0, 10.0, 100.0], UNEQUAL)
    first = [code(site, UNEQUAL) for site in owners]
    again = []
    for site, record in reversed(list(zip(owners, first, strict=True))):
        read(record, 50.0)
        again.append(widths(code(site, UNEQUAL)))
    assert again[::-1] == [widths(record) for record in first]


def test_codes_of_other_batches_computed_anew_have_the_same_planes():
    owner = session("L3", 1.5)
    owners = sites(owner, 5)
    batches = [8, 3, 5, 1]
    learned(owner, owners, [1.0, 10.0, 100.0, 3.0, 5.0], UNEQUAL)
    first = []
    for samples in batches:
        owner.forward_begins()
        first.append([planes(code(site, samples=samples)) for site in owners])
    again = [[planes(code(site, samples=samples)) for site in owners] for samples in reversed(batches)]
    assert again[::-1] == first


@pytest.mark.parametrize("bits", [1.25, 1.5, 2.5])
@pytest.mark.parametrize("samples", [1, 3, 5])
def test_fractions_of_a_plane_go_to_later_codes(bits: float, samples: int):
    owner = session("L3", bits)
    owners = sites(owner, 20)
    owner.forward_begins()
    total = sum(planes(code(site, samples=samples)) for site in owners)
    assert 20 * samples * bits - 1 < total <= 20 * samples * bits


def test_no_code_gets_more_than_a_plane_a_sample_from_those_before_it():
    owner = session("L3", 1.5)
    large, small = sites(owner, 2)
    owner.forward_begins()
    code(large, samples=3, elements=10**6)
    assert planes(code(small, samples=3, elements=1)) == 4 + 3


@pytest.mark.parametrize("samples", [1, 2, 3, 5, 7])
def test_a_smaller_batch_is_never_given_more_than_the_average(samples: int):
    owner = session()
    owners = sites(owner, 4)
    learned(owner, owners, [1.0, 10.0, 300.0, 5e3], UNEQUAL)
    assert sum(planes(code(site, samples=samples)) for site in owners) <= 4 * samples * 2


def test_several_codes_of_one_site_keep_the_average_together():
    owner = session()
    twice, once = sites(owner, 2)
    owner.forward_begins()
    for site, energy in ((twice, 1.0), (twice, 40.0), (twice, 9.0), (once, 1e3)):
        read(code(site, UNEQUAL), energy)
    owner.forward_begins()
    found = [planes(code(site, UNEQUAL)) for site in (twice, twice, twice, once)]
    # the next plane of the site that makes three codes would cost three
    assert 4 * 2 * SAMPLES - 3 < sum(found) <= 4 * 2 * SAMPLES


def test_a_site_that_takes_no_part_in_a_step_has_the_average_again():
    owner = session()
    owners = sites(owner, 3)
    learned(owner, owners, [1.0, 1.0, 1e6])
    assert planes(code(owners[2])) > 2 * SAMPLES
    learned(owner, owners[:2], [1.0, 1.0])
    assert [planes(code(site)) for site in owners] == [2 * SAMPLES] * 3


def test_groups_of_layers_keep_their_own_averages():
    owner = session("L3", [2, 4])
    first, second = sites(owner, 2, group=0), sites(owner, 2, group=1)
    learned(owner, [*first, *second], [1.0, 1e4, 1.0, 1e4])
    totals = [sum(planes(code(site)) for site in group) for group in (first, second)]
    assert totals == [2 * 2 * SAMPLES, 2 * 4 * SAMPLES]


def test_fractions_of_a_plane_stay_within_their_group():
    owner = session("L3", [1.5, 2])
    first, second = sites(owner, 1, group=0), sites(owner, 3, group=1)
    owner.forward_begins()
    code(first[0], samples=3)
    assert {planes(code(site, samples=3)) for site in second} == {6}


def test_without_adaptive_widths_all_samples_of_a_site_have_one():
    owner = session(adaptive_conv_scheme=False, adaptive_bn_scheme=False)
    owners = sites(owner, 3)
    learned(owner, owners, [1.0, 100.0, 1e6], UNEQUAL)
    found = [set(widths(code(site, UNEQUAL))) for site in owners]
    assert [len(each) for each in found] == [1, 1, 1]
    assert found[0] != found[2]


@pytest.mark.parametrize("batch_norm", [True, False])
def test_each_kind_of_site_has_a_switch_of_its_own(batch_norm: bool):
    settings = {"adaptive_bn_scheme" if batch_norm else "adaptive_conv_scheme": False}
    owner = session("L2.5", **settings)
    for kind in (True, False):
        (site,) = sites(owner, 1, batch_norm=kind)
        learned(owner, [site], [1.0], UNEQUAL)
        assert (len(set(widths(code(site, UNEQUAL)))) == 1) is (kind is batch_norm)


def test_fixed_levels_measure_nothing():
    assert not session("L2").planner.active


@EVERY_FAMILY
def test_a_site_that_changes_its_kind_of_code_keeps_what_it_holds_of_values(family: Family):
    owner = session("L3", 1.5)
    weak, strong = sites(owner, 2)
    learned(owner, [weak, strong], [1.0, 1e3], family=TWO_SIDED)
    expected = planes(code(strong, family=TWO_SIDED)) / SAMPLES - 1.0
    found = planes(code(strong, family=family)) / SAMPLES
    signs = {AFFINE.negative: 0.0, ZERO_EXACT.negative: 0.5, TWO_SIDED.negative: 1.0}[family.negative]
    assert found == pytest.approx(expected + signs, abs=1 / SAMPLES)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda session: pickle.loads(pickle.dumps(session))])
def test_a_copy_plans_as_the_original_does(copied):
    owner = session()
    sites(owner, 3)

    def after(session: Session) -> list[list[int]]:
        learned(session, session.sites, [2.0, 1e3, 0.1], UNEQUAL, family=TWO_SIDED)
        return [widths(code(site, UNEQUAL, family)) for site in session.sites for family in (TWO_SIDED, AFFINE)]

    learned(owner, owner.sites, [1.0, 10.0, 100.0], UNEQUAL, family=TWO_SIDED)
    other = copied(owner)
    shares = [(site.share[0].name, site.planes(AFFINE)) for site in owner.sites]
    assert [(site.share[0].name, site.planes(AFFINE)) for site in other.sites] == shares
    assert after(other) == after(owner)


def test_samples_with_large_gradients_get_more_bits_when_they_are_seen_again():
    owner = session()
    (site,) = sites(owner)
    hard = np.where(np.arange(SAMPLES) % 2, 100.0, 0.01)
    batch = np.arange(SAMPLES) + 40
    for _ in range(3):
        owner.forward_begins(batch)
        read(code(site), hard)
    owner.forward_begins(batch[::-1].copy())
    found = np.array(widths(code(site)))[::-1]
    assert found[hard > 1].min() > found[hard < 1].max()


def test_samples_that_are_not_told_have_equal_widths():
    owner = session()
    (site,) = sites(owner)
    for _ in range(3):
        owner.forward_begins()
        read(code(site), UNEQUAL)
    owner.forward_begins()
    assert set(widths(code(site))) == {2}


def test_samples_are_ignored_where_a_code_has_another_number_of_them():
    owner = session()
    (site,) = sites(owner)
    owner.forward_begins(np.arange(5))
    record = code(site)
    assert record.indices is None


def test_norms_of_samples_are_averaged_over_layers():
    owner = session()
    owners = sites(owner, 2)
    owner.forward_begins(np.arange(2))
    for site, energies in zip(owners, ([1.0, 3.0], [10.0, 10.0]), strict=True):
        read(code(site, samples=2), energies)
    owner.forward_begins()
    assert owner.planner.norms.of(np.arange(2)).tolist() == [(0.5 + 1.0) / 2, (1.5 + 1.0) / 2]


def test_a_code_that_was_learned_from_is_not_learned_from_again():
    owner = session()
    (site,) = sites(owner)
    owner.forward_begins()
    record = code(site)
    read(record, 4.0)
    owner.forward_begins()
    before = statistics(owner)
    read(record, 9.0)
    owner.forward_begins()
    assert statistics(owner) == before


def test_what_is_observed_without_a_forward_of_the_whole_model_is_bounded():
    owner = session()
    (site,) = sites(owner)
    sizes = []
    for count in (2 * MOST_CODES, 10 * MOST_CODES):
        for _ in range(count):
            read(code(site))
        sizes.append(len(pickle.dumps(owner)))
    assert sizes[1] < 1.1 * sizes[0]


def test_forwards_without_backward_do_not_grow_a_session():
    owner = session("L3", 1.5)
    owners = sites(owner, 3)
    learned(owner, owners, [1.0, 2.0, 3.0])
    sizes = []
    for count in (2, 200):
        for _ in range(count):
            owner.forward_begins(np.arange(3))
            for site in owners:
                code(site, samples=3)
        sizes.append(len(pickle.dumps(owner)))
    assert sizes[1] <= sizes[0] + 8


def test_large_samples_are_measured_on_some_of_their_groups():
    planner = session().planner
    assert planner.stride(256 * LEAST_GROUPS * (min(STRIDES) - 1)) == 1
    assert [planner.stride(256 * LEAST_GROUPS * stride) for stride in STRIDES] == list(STRIDES)
    assert planner.stride(256 * LEAST_GROUPS * 1000) == max(STRIDES)


@pytest.mark.parametrize("last", [True, False], ids=["channels last", "channels first"])
@pytest.mark.parametrize("width", [14, 16, 28, 32, 48, 56, 64, 112, 128, 224])
def test_groups_that_are_measured_lie_in_all_parts_of_an_image(width: int, last: bool):
    planner, channels = session().planner, 64
    elements = np.arange(width * width * channels)
    stride = planner.stride(len(elements))
    measured = elements[elements // 256 % stride == stride // 2]
    places = measured // channels if last else measured % width**2
    for axis in (places // width, places % width):
        quarters = np.bincount(axis * 4 // width, minlength=4) / len(measured)
        evenly = np.bincount(np.arange(width) * 4 // width, minlength=4) / width
        assert quarters / evenly == pytest.approx(1, abs=0.5)


def test_predictions_are_measured_on_all_groups():
    owner = session()
    owner.predictions = {}
    assert owner.planner.stride(256 * LEAST_GROUPS * 1000) == 1


@pytest.mark.parametrize("level", ["L2", "L3"])
def test_predictions_hold_the_variance_of_every_reader(level: str):
    owner = session(level, rounding="stochastic")
    own, other = sites(owner, 2)
    owner.predictions = {}
    owner.forward_begins()
    record = code(own, np.full(SAMPLES, 9.0))
    read(record, 2.0)
    read(record, 4.0, other, POSITIVE_OUTPUT, 0.5)
    # a squared step of a ninth of the squared range, a sixth of it the error; affine codes have one side
    noise = 9.0 / 9 / 6
    assert owner.predictions["layer0"] == pytest.approx(SAMPLES * noise * 2.0)
    assert owner.predictions["layer1"] == pytest.approx(SAMPLES * 0.5 * noise * 4.0)


def test_noise_counts_where_a_reader_feels_it():
    owner = session()
    (site,) = sites(owner)
    owner.forward_begins()
    table = np.array([[1.0, 2.0, 30.0, 40.0]])
    record = planned(site, table, TWO_SIDED)
    # three bits have 3 levels on the negative and 5 on the positive side
    assert record.noise(BOTH_SIDES, 1.0)[0] == pytest.approx(1 / 4 + 2 / 16)
    assert record.noise(OUTPUT, 1.0)[0] == pytest.approx(30 / 4 + 40 / 16)
    assert record.noise(POSITIVE_OUTPUT, 1.0)[0] == pytest.approx(40 / 16)
