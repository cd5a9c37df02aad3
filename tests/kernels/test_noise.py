"""The noise of docs/format.md, section 8: uniform, and independent of neighbours, groups, sites, calls and seeds.

It is read off decoded values, as any reader of a code would see it: values from 0 to 1 at width 1 decode to
(131072 q + 65535 - 2 r) / 131072.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from code_cases import REFERENCE, layout_of, round_trip
from z_tests import check_no_shifted_copy, check_uncorrelated, check_uniform

from actnn.format import GROUP, derive_key

GROUPS = 400


@lru_cache
def noise(seed: int = 0, site: int = 0, call: int = 1, groups: int = GROUPS, samples: int = 1):
    """Return the noise of one code, of shape (samples * groups, 256)."""
    values = np.zeros((samples, groups * GROUP), np.float32)
    values[:, ::GROUP] = 1
    decoded = round_trip(REFERENCE, values, layout_of(values, bits=1), derive_key(seed, site, call))
    position = (decoded.astype(np.float64) * 131072).astype(np.int64)
    return ((65535 - position) % 131072 // 2).reshape(-1, GROUP)


OTHERS = {"call": {"call": 2}, "site": {"site": 1}, "seed": {"seed": 1}, "process": {"site": 1 << 32}}


@pytest.mark.parametrize("shift", [0, 4, 8])
def test_every_byte_of_the_noise_is_uniform(shift):
    check_uniform(noise() >> shift & 0xFF, 256)


def test_the_noise_of_every_position_in_a_group_is_uniform():
    many = noise(groups=4000)
    for position in range(GROUP):
        check_uniform(many[:, position] >> 12, 16)


@pytest.mark.parametrize("distance", [1, 2, 3, 7, 8, 9, 16, 32, 64, 128])
def test_neighbouring_elements_are_uncorrelated(distance):
    check_uncorrelated(noise()[:, distance:], noise()[:, :-distance])


@pytest.mark.parametrize("distance", [1, 2, 3, 8, 64])
def test_neighbouring_groups_are_uncorrelated(distance):
    check_uncorrelated(noise()[distance:], noise()[:-distance])


def test_samples_are_uncorrelated():
    first, second = noise(samples=2).reshape(2, -1)
    check_uncorrelated(first, second)


def test_pairs_of_neighbours_fill_the_square_evenly():
    high = noise() >> 12
    check_uniform(high[:, :-1] * 16 + high[:, 1:], 256)


@pytest.mark.parametrize("other", OTHERS)
def test_codes_that_differ_in_one_number_of_their_key_are_uncorrelated(other):
    check_uncorrelated(noise(), noise(**OTHERS[other]))


@pytest.mark.parametrize("other", OTHERS)
def test_two_keys_are_not_shifted_copies_of_one_sequence(other):
    check_no_shifted_copy(noise(), noise(**OTHERS[other]))


def test_a_code_does_not_repeat_itself_after_any_distance():
    check_no_shifted_copy(noise(), noise())


def test_the_mean_over_many_calls_is_that_of_uniform_noise():
    means = np.stack([noise(call=call, groups=1) for call in range(1, 2001)]).mean(0)
    # 65536 / sqrt(12 · 2000) is one standard deviation; 256 comparisons
    assert np.abs(means - 32767.5).max() < 6.5 * 65536 / np.sqrt(12 * 2000)
