"""What noise costs single gradients: small ones are not drowned for the sake of the whole."""

from __future__ import annotations

import numpy as np
import pytest

from actnn.format import AFFINE, Layout, Rounding
from actnn.planning.caps import CAP, CHAIN, MOST_EXCESS, PRESSURE, weigh
from actnn.planning.learnt import Learnt
from actnn.planning.noise import noise_of_widths, rounding_factor
from actnn.planning.records import BOTH_SIDES, NOTHING, Felt, Record

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


def test_what_is_handed_down_weighs_as_a_typical_gradient_and_that_of_a_loss_as_the_whole():
    maps = [site(str(index)) for index in range(3)]
    energies = dict(zip(maps, (1.0, 2.0, 97.0), strict=True))
    hander, loss = site("gelu"), site("loss")
    # so little that the penalty is nothing beside it
    little = 1e-12
    records = [
        record(hander, Felt(BOTH_SIDES, little, hander, handed=True)),
        record(loss, Felt(BOTH_SIDES, little, loss, handed=True, loss=True)),
    ]
    weigh(records, energies, FACTOR)
    of_hander, of_loss = (float(each.weights[1]) / little for each in records)
    assert of_hander == pytest.approx(CHAIN * 2.0)
    assert of_loss == pytest.approx(100.0)


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
    assert float(made.weights[1]) >= CHAIN
