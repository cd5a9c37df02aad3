"""What noise costs single gradients: small ones are not drowned for the sake of the whole."""

from __future__ import annotations

import numpy as np
import pytest

from actnn.format import AFFINE, Layout, Rounding
from actnn.planning.caps import (
    BEYOND,
    CAP,
    MOST_EXCESS,
    MOST_SPREAD,
    PRESSURE,
    reach,
    sampling_of,
    sampling_variances,
    weigh,
)
from actnn.planning.learnt import Learnt
from actnn.planning.noise import noise_of_widths, rounding_factor
from actnn.planning.records import BOTH_SIDES, NOTHING, RANGES_OF_VALUES, Felt, Record

BITS = 4
FACTOR = rounding_factor(Rounding.DITHER)


def site(name: str) -> Learnt:
    return Learnt(name, 0, 0, 2.0, True)


def record(owner: Learnt, *felt: Felt, ranges: float = 1.0) -> Record:
    """Return the record of one sample at a known width, whose squared ranges sum up to ``ranges``."""
    made = Record(owner, Layout(1, 256, AFFINE, 0, Rounding.DITHER, (BITS,)), None)
    made._ranges = np.array([[0.0, ranges, 0.0, ranges]])
    made.felt.extend(felt)
    return made


def noise_of_one() -> float:
    return FACTOR * float(noise_of_widths(AFFINE)[BITS, 1])


def test_noise_weighs_more_the_smaller_the_gradient_that_feels_it():
    large, small = site("large"), site("small")
    records = [record(each, Felt(BOTH_SIDES, 1.0, each, handed=False)) for each in (large, small)]
    weigh(records, {large: 100.0, small: 1.0}, FACTOR)
    of_large, of_small = (float(each.weights[1]) for each in records)
    # the slope of a square: once for the noise itself, once for what it is relative to
    assert of_small / of_large == pytest.approx(100.0**2)


def test_a_gradient_at_its_cap_weighs_what_is_documented():
    reader = site("map")
    own = noise_of_one() / CAP
    made = record(reader, Felt(BOTH_SIDES, 1.0, reader, handed=False))
    weigh([made], {reader: own}, FACTOR)
    # it is the whole gradient, too
    assert float(made.weights[1]) * CAP == pytest.approx(PRESSURE)


def test_far_beyond_the_cap_the_penalty_is_a_line():
    reader = site("map")
    found = []
    for times in (10.0, 1000.0):
        made = record(reader, Felt(BOTH_SIDES, 1.0, reader, handed=False), ranges=times)
        weigh([made], {reader: noise_of_one() / CAP}, FACTOR)
        found.append(float(made.weights[1]))
    assert found[0] == pytest.approx(found[1])
    assert found[0] * CAP == pytest.approx(PRESSURE * MOST_EXCESS)


def at_map(name: str, place: int, energy: float = 0.0) -> Felt:
    return Felt(BOTH_SIDES, 1.0, site(name), False, place, energy)


def handed(name: str, place: int, energy: float = 0.0) -> Felt:
    return Felt(BOTH_SIDES, 1.0, site(name), True, place, energy)


def normalization(name: str, place: int, came: float, left: float) -> list[Felt]:
    """Return what a normalisation feels and hands down, ``came`` being the square of the gradient that came to it."""
    owner = site(name)
    return [Felt(BOTH_SIDES, 1.0, owner, False, place, came), Felt(BOTH_SIDES, 1.0, owner, True, place + 1, left)]


def reached(backward: list[Felt]) -> dict[tuple[str, str], float]:
    """Return how much of what each hander hands down is left in each map; "" stands for all that lies below."""
    maps = list(dict.fromkeys(felt.site for felt in backward if not felt.handed))
    handers = list(dict.fromkeys(felt.site for felt in backward if felt.handed))
    found = reach(backward, *({own: row for row, own in enumerate(some)} for some in (maps, handers)))
    names = [own.name for own in maps] + [""]
    return {
        (hander.name, name): float(share)
        for hander, row in zip(handers, found, strict=True)
        for name, share in zip(names, row, strict=True)
    }


def test_what_is_handed_down_reaches_all_that_comes_later_and_nothing_before():
    found = reached([handed("loss", 1), at_map("head", 2), handed("gelu", 3), at_map("stem", 4)])
    assert found["loss", "head"] == found["loss", "stem"] == found["loss", ""] == 1.0
    assert found["gelu", "head"] == 0.0
    assert found["gelu", "stem"] == found["gelu", ""] == 1.0


def test_noise_of_a_branch_thins_out_where_the_branch_joins_what_passed_it_by():
    backward = [
        *(handed("gelu", 1), at_map("fc1", 2, 5.0), *normalization("norm2", 3, 5.0, 1.0)),
        *(at_map("proj", 5, 4.0), at_map("qkv", 6, 3.0), *normalization("norm1", 7, 3.0, 1.0)),
        *(at_map("fc2 below", 9, 8.0), at_map("fc1 below", 10, 3.0)),
    ]
    found = reached(backward)
    assert found["gelu", "fc1"] == found["gelu", "norm2"] == 1.0
    # of the stream's square, 4 and then 8, the branch brought 1
    assert found["gelu", "proj"] == found["gelu", "qkv"] == pytest.approx(1 / 4)
    assert found["gelu", "fc2 below"] == found["gelu", "fc1 below"] == pytest.approx(1 / 8)


def test_noise_of_a_last_norm_is_in_every_gradient():
    backward = [
        *(at_map("head", 1), *normalization("norm", 2, 5.0, 4.0), at_map("fc2", 4, 4.0)),
        *(*normalization("norm2", 5, 3.0, 1.0), at_map("proj", 7, 5.0)),
        *(*normalization("norm1", 8, 3.0, 1.0), at_map("stem", 10, 7.0)),
    ]
    found = reached(backward)
    assert found["norm", "head"] == 0.0
    assert found["norm", "fc2"] == found["norm", "proj"] == found["norm", "stem"] == found["norm", ""] == BEYOND


def test_where_branches_join_before_norms_the_share_of_a_branch_counts():
    backward = [
        *(at_map("head", 1), *normalization("norm2", 2, 8.0, 6.0), at_map("fc2", 4, 6.0), handed("gelu", 5)),
        *(at_map("fc1", 6, 2.0), *normalization("norm1", 7, 8.0, 5.0), at_map("proj", 9, 5.0)),
    ]
    found = reached(backward)
    assert found["gelu", "fc1"] == 1.0
    # of 8 that came to the norm, 6 passed the branch by
    assert found["gelu", "proj"] == pytest.approx(1 / 4)
    assert found["norm2", "proj"] == 1.0


def test_what_is_handed_down_weighs_as_much_as_all_that_it_reaches():
    maps = [site(str(index)) for index in range(3)]
    energies = dict(zip(maps, (1.0, 2.0, 97.0), strict=True))
    # so little that the penalty is nothing beside it
    little = 1e-12
    felt = [Felt(BOTH_SIDES, little, own, False, 2 * place) for place, own in enumerate(maps)]
    hander = site("gelu")
    made = record(hander, Felt(BOTH_SIDES, little, hander, True, 1))
    weigh([record(site("code"), *felt), made], energies, FACTOR)
    # the second and the third map, of whose activations next to nothing was told, and one like the median for what lies
    # below
    assert float(made.weights[1]) / little == pytest.approx((2.0 + 97.0) / MOST_SPREAD + 2.0)


@pytest.mark.parametrize("coherent", [0.25, 4.0])
def test_noise_that_is_handed_down_counts_as_positions_add_up(coherent):
    reader, hander = site("map"), site("gelu")
    # of values as large as the gradient, at positions that know nothing of each other, the weight's would be one
    values = RANGES_OF_VALUES
    read = record(site("code"), Felt(BOTH_SIDES, 1.0, reader, False, 2), ranges=values)
    made = record(hander, Felt(BOTH_SIDES, 1e-12, hander, True, 1))
    weigh([read, made], {reader: coherent}, FACTOR)
    # what reaches the map, and a gradient like it for what lies below
    weight = float(made.weights[1]) / 1e-12
    penalty = PRESSURE * coherent * min(noise_of_one() * values / coherent / CAP, MOST_EXCESS) / CAP
    assert weight == pytest.approx((coherent + penalty) / coherent + coherent, rel=1e-6)


def test_parts_of_a_batch_tell_how_batches_differ():
    generator = np.random.default_rng(0)
    told, exact = [], []
    for _ in range(200):
        parts = 3.0 / 4 + generator.normal(size=(4, 16)) / 2
        whole = parts.sum(0)
        square = float(whole @ whole)
        told.append(sampling_of(square, float(np.square(parts).sum()), 4) * square)
        exact.append(np.square(whole - 3.0).sum())
    assert np.mean(told) == pytest.approx(np.mean(exact), rel=0.1)


def test_parts_that_cancel_vary_no_more_than_all():
    assert sampling_of(1.0, 1e6, 4) == 1.0


def test_where_no_parts_tell_batches_differ_as_in_most_maps():
    told, silent = [site(name) for name in ("first", "second", "third")], site("norm")
    for each, share in zip(told, (0.1, 0.2, 0.9), strict=True):
        each.sampling = share
    found = sampling_variances(dict.fromkeys([*told, silent], 10.0))
    assert [found[each] for each in (*told, silent)] == pytest.approx([1.0, 2.0, 9.0, 5.5])
    assert sampling_variances({silent: 10.0}) == {silent: 10.0}


def test_of_a_gradient_of_nothing_all_varies_and_of_what_overflows_nothing_is_known():
    assert sampling_of(0.0, 0.0, 4) == 1.0
    assert np.isnan(sampling_of(np.inf, np.inf, 4))


def test_codes_that_feed_one_gradient_share_its_cap():
    reader = site("map")
    felt = Felt(BOTH_SIDES, 1.0, reader, handed=False)
    alone, first, second = (record(site(name), felt) for name in ("alone", "first", "second"))
    weigh([alone], {reader: 100.0}, FACTOR)
    weigh([first, second], {reader: 100.0}, FACTOR)
    assert float(first.weights[1]) == pytest.approx(2 * float(alone.weights[1]))


def test_a_map_whose_weights_do_not_learn_asks_for_nothing():
    reader = site("frozen")
    made = record(reader, Felt(BOTH_SIDES, 1.0, reader, handed=False))
    weigh([made], {}, FACTOR)
    assert made.weights is NOTHING


def test_where_nothing_learns_but_what_is_handed_down_it_counts_all_the_same():
    hander = site("gelu")
    made = record(hander, Felt(BOTH_SIDES, 1.0, hander, handed=True))
    weigh([made], {}, FACTOR)
    assert float(made.weights[1]) >= 1.0
