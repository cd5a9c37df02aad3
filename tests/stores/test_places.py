"""Places of buffers in a file: they never overlap, and the file grows by no more than is missing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from actnn.stores.places import PAGE, Places


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5 * PAGE)), max_size=60))
def test_places_never_overlap_and_are_one_again_in_the_end(actions):
    places, taken = Places(), {}
    for take, size in actions:
        if take:
            start = places.take(size)
            if start is None:
                places.extend(places.least_end(size))
                start = places.take(size)
            assert start is not None
            assert start + size <= places.end
            assert all(start + size <= other or other + length <= start for other, length in taken.items())
            taken[start] = size
        elif taken:
            start = sorted(taken)[size % len(taken)]
            places.give_back(start, taken.pop(start))
    for start, size in taken.items():
        places.give_back(start, size)
    assert places.taken_bytes == 0
    assert places.end == 0 or places.take(places.end) == 0


def test_the_file_grows_by_no_more_than_is_missing_at_its_end():
    places = Places()
    places.extend(4 * PAGE)
    places.take(3 * PAGE)
    assert places.take(2 * PAGE) is None
    assert places.least_end(2 * PAGE) == 5 * PAGE
