"""Samples of the training set: positions that are checked, and what is remembered of their gradients."""

from __future__ import annotations

import numpy as np
import pytest

from actnn.errors import ConfigError
from actnn.planning.samples import MEMORY, MOST_SAMPLES, SampleNorms, check_indices
from actnn.settings import SampleScheme

BAD = {
    "a number": 3,
    "floats": [1.0, 2.0],
    "booleans": [True, False],
    "names": ["a", "b"],
    "nothing": [None],
    "two axes": [[1, 2]],
    "rows of different lengths": [[1], [1, 2]],
    "negative": [0, -1],
    "larger than any training set": [0, MOST_SAMPLES],
    "larger than any number": [2**70],
    "a set": {1, 2},
}


def indices(*positions: int):
    return np.array(positions, np.int64)


@pytest.mark.parametrize("given", [[3, 1, 2], (3, 1, 2), range(3), np.array([5], np.uint8), np.array([7], np.int32)])
def test_positions_are_whole_numbers_in_a_row(given):
    found = check_indices(given, None)
    assert found.dtype == np.int64
    assert found.tolist() == list(given)


@pytest.mark.parametrize("given", BAD.values(), ids=BAD)
def test_what_is_no_row_of_positions_is_refused(given):
    with pytest.raises(ConfigError, match=r"positions? in the training set"):
        check_indices(given, None)


def test_a_position_beyond_the_training_set_is_refused_with_its_size():
    with pytest.raises(ConfigError, match="0 to 99"):
        check_indices([5, 100], 100)


def test_the_last_position_of_the_training_set_is_accepted():
    assert check_indices([99], 100).tolist() == [99]


def test_an_empty_batch_has_no_positions():
    assert len(check_indices(np.empty(0, np.int64), 0)) == 0


def test_positions_are_copied():
    given = indices(1, 2)
    found = check_indices(given, None)
    given[0] = 7
    assert found.tolist() == [1, 2]


def test_a_sample_that_was_never_seen_is_an_average_one():
    assert SampleNorms().of(indices(0, 10**6)).tolist() == [1.0, 1.0]


def test_the_first_norm_of_a_sample_counts_as_it_is():
    norms = SampleNorms()
    norms.update(indices(4, 1), np.array([9.0, 0.25]))
    assert norms.of(indices(1, 4)).tolist() == [0.25, 9.0]


def test_a_sample_between_known_ones_is_an_average_one():
    norms = SampleNorms()
    norms.update(indices(0, 9), np.array([5.0, 5.0]))
    assert norms.of(indices(4)).tolist() == [1.0]


def test_later_norms_are_averaged_with_earlier_ones():
    norms = SampleNorms()
    for norm in (8.0, 2.0):
        norms.update(indices(3), np.array([norm]))
    assert norms.of(indices(3)).tolist() == [MEMORY * 8.0 + (1 - MEMORY) * 2.0]


def test_more_samples_leave_those_before_them_as_they_were():
    norms = SampleNorms()
    norms.update(indices(0), np.array([3.0]))
    norms.update(indices(1000), np.array([7.0]))
    assert norms.of(indices(0, 999, 1000)).tolist() == [3.0, 1.0, 7.0]


def test_a_sample_that_a_batch_holds_twice_has_a_norm_of_its_own():
    norms = SampleNorms()
    norms.update(indices(2, 2), np.array([4.0, 6.0]))
    assert norms.of(indices(2))[0] in (4.0, 6.0)


def test_asking_changes_nothing():
    norms = SampleNorms()
    norms.update(indices(1), np.array([2.0]))
    norms.of(indices(0, 50))
    assert norms.of(indices(0, 1, 50)).tolist() == [1.0, 2.0, 1.0]


def test_a_new_scheme_knows_no_batch():
    scheme = SampleScheme()
    assert (scheme.batch, scheme.num_samples) == (None, None)
