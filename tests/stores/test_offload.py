"""Codes of an accelerator in host memory, on a stand-in device whose copies take as long as a test wants."""

from __future__ import annotations

import gc
import os
import weakref

import numpy as np
import pytest
from stand_in_device import StandInArrays

from actnn.errors import SwapError
from actnn.stores.offload import Offload

SIZE = 1000


def content(seed: int, size: int = SIZE) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


@pytest.fixture
def arrays():
    return StandInArrays()


@pytest.fixture
def offload():
    return Offload(bound=4 * SIZE)


def put(offload, arrays, count: int) -> list[int]:
    return [offload.put(arrays, content(seed)) for seed in range(count)]


def test_buffers_come_back_in_reverse_as_they_were(offload, arrays):
    numbers = put(offload, arrays, 20)
    for seed, number in reversed(list(enumerate(numbers))):
        np.testing.assert_array_equal(offload.get(number), content(seed))


def test_buffers_come_back_in_any_order_and_more_than_once(offload, arrays):
    numbers = put(offload, arrays, 20)
    for seed in (3, 19, 3, 0, 7, 7, 18, 0):
        np.testing.assert_array_equal(offload.get(numbers[seed]), content(seed))


def test_a_buffer_leaves_the_device_once_its_copy_is_done(offload, arrays):
    buffer = content(0)
    gone = weakref.ref(buffer)
    offload.put(arrays, buffer)
    del buffer
    gc.collect()
    assert gone() is not None, "the copy still reads it"
    arrays.lane.run(1)
    assert offload.statistics().leaving_bytes == 0
    gc.collect()
    assert gone() is None


def test_no_more_than_the_bound_is_on_its_way_out(offload, arrays):
    for seed in range(20):
        offload.put(arrays, content(seed))
        assert offload.statistics().leaving_bytes <= 4 * SIZE


def test_a_buffer_larger_than_the_bound_still_goes_out_and_back(offload, arrays):
    numbers = [offload.put(arrays, content(seed, 10 * SIZE)) for seed in range(3)]
    for seed, number in reversed(list(enumerate(numbers))):
        np.testing.assert_array_equal(offload.get(number), content(seed, 10 * SIZE))


def test_what_is_still_on_its_way_out_is_given_back_without_a_copy(offload, arrays):
    (number,) = put(offload, arrays, 1)
    np.testing.assert_array_equal(offload.get(number), content(0))
    assert offload.statistics().back_bytes == 0


def test_what_a_backward_pass_asks_for_next_is_fetched_before(offload, arrays):
    numbers = put(offload, arrays, 20)
    arrays.lane.run(20)
    offload.get(numbers[19])
    begun = len(arrays.lane.begun)
    assert offload.statistics().fetched_bytes >= 4 * SIZE
    # its copy was begun by the get before
    np.testing.assert_array_equal(offload.get(numbers[18]), content(18))
    assert any(copy.waited for copy in arrays.lane.begun[:begun]), "the get did not wait for a copy begun before"


def test_no_more_than_the_bound_is_fetched_ahead_or_kept_behind(offload, arrays):
    numbers = put(offload, arrays, 40)
    arrays.lane.run(40)
    for number in reversed(numbers):
        offload.get(number)
        assert offload.statistics().fetched_bytes <= 2 * 4 * SIZE + SIZE


def test_a_second_reader_needs_no_second_copy(offload, arrays):
    numbers = put(offload, arrays, 8)
    arrays.lane.run(8)
    for number in reversed(numbers):
        offload.get(number)
        offload.get(number)
    assert offload.statistics().back_bytes == 8 * SIZE


def test_a_released_buffer_frees_the_host(offload, arrays):
    numbers = put(offload, arrays, 4)
    offload.release(numbers[1])
    assert offload.statistics().host_bytes == 3 * SIZE
    with pytest.raises(SwapError, match="released"):
        offload.get(numbers[1])
    np.testing.assert_array_equal(offload.get(numbers[0]), content(0))


def test_what_was_released_frees_the_host_when_the_next_step_begins(offload, arrays):
    numbers = put(offload, arrays, 4)
    arrays.lane.run(4)
    offload.release(numbers[1])
    offload.step_begins()
    assert numbers[1] not in offload._entries


def test_a_buffer_released_on_its_way_out_does_not_disturb_the_copy(offload, arrays):
    number = offload.put(arrays, content(0))
    offload.release(number)
    offload.put(arrays, content(1))
    arrays.lane.run(2)
    assert arrays.lane.begun[0].done


def test_closing_waits_for_copies_and_forgets_everything(offload, arrays):
    put(offload, arrays, 3)
    offload.close()
    assert all(copy.done for copy in arrays.lane.begun)
    assert offload.statistics().host_bytes == 0


def test_closing_says_so_to_whoever_comes_later(offload, arrays):
    (number,) = put(offload, arrays, 1)
    offload.close()
    with pytest.raises(SwapError, match="closed"):
        offload.get(number)
    with pytest.raises(SwapError, match="closed"):
        offload.put(arrays, content(0))
    offload.release(number)


def test_what_is_released_on_its_way_back_stays_until_its_copy_is_done(offload, arrays):
    numbers = put(offload, arrays, 8)
    arrays.lane.run(8)
    offload.get(numbers[7])
    ahead = next(copy for copy in arrays.lane.begun[8:] if not copy.done)
    ends = weakref.ref(ahead.source), weakref.ref(ahead.target)
    # as on a real device, the copy itself keeps nothing alive
    strong, arrays.lane.begun = arrays.lane.begun, []
    for number in numbers:
        offload.release(number)
    offload.statistics()
    ahead.source = ahead.target = None
    del strong
    gc.collect()
    assert all(end() is not None for end in ends), "the copy still needs both ends"
    ahead.done = True
    offload.statistics()
    gc.collect()
    assert all(end() is None for end in ends)


def test_a_bound_that_is_reached_lets_the_device_wait_and_not_the_program(offload, arrays, monkeypatch):
    def refuse(event) -> None:
        pytest.fail("the program waits")

    waited = []
    monkeypatch.setattr(arrays.lane, "finish", refuse)
    monkeypatch.setattr(arrays.lane, "wait", lambda buffer, event: waited.append(event))
    put(offload, arrays, 6)
    assert waited == arrays.lane.begun[:2]
    assert offload.statistics().leaving_bytes == 4 * SIZE


def test_a_forked_child_leaves_what_its_parent_put_and_has_codes_of_its_own(offload, arrays, monkeypatch):
    (of_parent,) = put(offload, arrays, 1)
    # a lock that another thread held at the fork
    offload._lock.acquire()
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        with pytest.raises(SwapError, match="put by the parent of this process, which was forked"):
            offload.get(of_parent)
        own = offload.put(StandInArrays(), content(7))
        assert own != of_parent
        np.testing.assert_array_equal(offload.get(own), content(7))
        offload.step_begins()
        offload.close()
    assert not arrays.lane.begun[0].done
