"""The disk store: buffers come back as they were put, whatever the order or the thread, and leave memory meanwhile."""

from __future__ import annotations

import os
import random
import tracemalloc
import weakref

import numpy as np
import pytest
from disk_stores import KB, THREAD, Gate, check, content, emptied, filed, in_background, put_all, stays_in_memory
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import until

from actnn.errors import SwapError, UnsupportedError
from actnn.stores.disk import SwapStore, file
from actnn.stores.places import PAGE, pages


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, PAGE - 1, PAGE, PAGE + 1, 64 * KB, 200 * KB])
def test_a_buffer_of_any_size_comes_back_from_the_file(store, size):
    number = store.put(content(1, size))
    filed(store)
    check(store, number, 1, size)
    check(store, number, 1, size)


@pytest.mark.parametrize(
    "kind", [bytes, bytearray, memoryview, lambda data: data.reshape(4, -1), lambda data: data[1:]]
)
def test_whatever_holds_contiguous_bytes_can_be_put(store, kind):
    given = kind(content(3))
    expected = np.asarray(memoryview(given)).reshape(-1).copy()
    number = store.put(given)
    filed(store)
    np.testing.assert_array_equal(store.get(number), expected)


@pytest.mark.parametrize("data", [np.zeros(8, np.float32), np.zeros(8, np.uint8)[::2], np.zeros(4, np.int8)])
def test_anything_but_contiguous_bytes_is_refused(store, data):
    with pytest.raises(UnsupportedError, match="expected contiguous uint8"):
        store.put(data)


@pytest.mark.parametrize("order", [list(range(40)), list(range(39, -1, -1)), random.Random(0).sample(range(40), 40)])
def test_any_order_of_asking_gives_the_right_bytes(store, order):
    numbers = put_all(store, 40)
    for seed in order:
        check(store, numbers[seed], seed)
        store.release(numbers[seed])
    emptied(store)


def test_two_backward_passes_may_alternate(store):
    first, second = put_all(store, 60), put_all(store, 60)
    for seed in reversed(range(60)):
        check(store, first[seed], seed)
        check(store, second[seed], seed)
        store.release(first[seed])
        store.release(second[seed])
    emptied(store)


def test_a_retained_graph_can_be_read_many_times(store):
    numbers = put_all(store, 30)
    for _ in range(4):
        for seed in reversed(range(30)):
            check(store, numbers[seed], seed)
            check(store, numbers[seed], seed)


Action = st.tuples(st.sampled_from(["put", "get", "get down", "release"]), st.integers(0, 10**6))


@settings(max_examples=40)
@given(st.lists(Action, max_size=80))
def test_any_sequence_agrees_with_a_dictionary(actions):
    store, model, last = SwapStore(buffer_bytes=16 * KB), {}, 0
    for action, choice in actions:
        if action == "put":
            data = content(choice, choice % (12 * KB))
            model[store.put(data.copy())] = data
        elif model:
            below = [number for number in model if number < last]
            number = max(below) if below and action == "get down" else sorted(model)[choice % len(model)]
            np.testing.assert_array_equal(store.get(number), model[number])
            last = number
            if action == "release":
                store.release(number)
                del model[number]
                with pytest.raises(SwapError, match="no code"):
                    store.get(number)
    assert store.statistics().unknown_releases == 0
    for number, data in model.items():
        np.testing.assert_array_equal(store.get(number), data)
    store.close()


def test_many_threads_share_a_store(store):
    def work(seed):
        choose, mine = random.Random(seed), {}
        for step in range(150):
            if len(mine) < 8 or choose.random() < 0.4:
                mine[store.put(content(seed * 1000 + step))] = seed * 1000 + step
            number = choose.choice(list(mine))
            check(store, number, mine[number])
            if choose.random() < 0.5:
                store.release(number)
                del mine[number]
        for number in mine:
            store.release(number)
        return True

    with in_background(lambda: work(1)) as (_, one), in_background(lambda: work(2)) as (_, two):
        work(3)
    assert one == two == [True]
    emptied(store)
    assert store.statistics().unknown_releases == 0


def test_what_is_not_written_yet_is_the_very_buffer(store, monkeypatch):
    gate = Gate(monkeypatch, "pwrite")
    data = content(0)
    number = store.put(data)
    until(lambda: gate.calls)
    assert store.get(number) is data
    assert gate.calls == [THREAD]
    gate.open()


def test_a_buffer_leaves_memory_once_it_is_written(store):
    data = content(0)
    gone = weakref.ref(data)
    store.put(data)
    del data
    until(lambda: gone() is None)
    assert store.statistics().written_bytes == 8 * KB


def test_put_waits_while_too_much_is_not_written(store, monkeypatch):
    gate = Gate(monkeypatch, "pwrite")
    put_all(store, 8)
    with in_background(lambda: store.put(content(8))) as (thread, results):
        thread.join(0.05)
        assert results == []
        assert store.statistics().memory_bytes == 64 * KB
        gate.open()
    check(store, results[0], 8)
    assert store.statistics().put_seconds > 0


def test_releasing_what_waits_makes_room_for_a_put(store, monkeypatch):
    gate = Gate(monkeypatch, "pwrite")
    numbers = put_all(store, 8)
    with in_background(lambda: store.put(content(8))) as (_, results):
        store.release(numbers[-1])
    assert results == [8]
    gate.open()


def test_a_buffer_larger_than_the_bound_waits_alone(store):
    numbers = put_all(store, 3, 100 * KB)
    for seed in reversed(range(3)):
        check(store, numbers[seed], seed, 100 * KB)
    assert store.statistics().peak_memory_bytes == 100 * KB


def test_a_released_buffer_is_not_written(store, monkeypatch):
    gate = Gate(monkeypatch, "pwrite")
    first, second, third = put_all(store, 3)
    until(lambda: gate.calls)
    store.release(second)
    store.release(first)
    gate.open()
    filed(store)
    assert store.statistics().written_bytes == 16 * KB
    assert store.statistics().file_bytes == 8 * KB
    check(store, third, 2)


def test_short_writes_and_reads_are_continued(store, monkeypatch):
    write, read = os.pwrite, os.preadv
    monkeypatch.setattr(file.os, "pwrite", lambda to, data, start: write(to, data[:1000], start))
    monkeypatch.setattr(file.os, "preadv", lambda of, into, start: read(of, [into[0][:1001]], start))
    number = store.put(content(5))
    filed(store)
    check(store, number, 5)


def test_the_file_grows_in_large_steps(store, monkeypatch):
    gate = Gate(monkeypatch, "posix_fallocate", holds=lambda: False)
    put_all(store, 50)
    filed(store)
    assert len(gate.calls) == 1
    assert store.statistics().file_size == file.GROWTH


def test_a_thousand_steps_of_changing_sizes_need_no_more_file_or_memory(store, monkeypatch):
    monkeypatch.setattr(file, "GROWTH", PAGE)
    choose = random.Random(0)
    sizes = [[choose.randrange(20 * KB) for _ in range(6)] for _ in range(1000)]
    largest = max(sum(pages(size) for size in step) for step in sizes)
    block = content(0, 20 * KB)
    tracemalloc.start()
    try:
        for index, step in enumerate(sizes):
            numbers = [store.put(block[:size].copy()) for size in step]
            if index % 5:
                for number, size in zip(reversed(numbers), reversed(step), strict=True):
                    assert store.get(number).size == size
            for number in numbers:
                store.release(number)
            if index == 100:
                emptied(store)
                early = tracemalloc.get_traced_memory()[0]
        emptied(store)
        assert tracemalloc.get_traced_memory()[0] - early < 64 * KB
    finally:
        tracemalloc.stop()
    # one buffer of the step before may still be in the hands of the thread when the next one begins
    assert store.statistics().file_size <= 2 * largest


def test_a_forward_without_backward_leaves_nothing(store):
    for _ in range(50):
        for number in put_all(store, 10):
            store.release(number)
    emptied(store)


def test_a_limit_keeps_what_does_not_fit_in_memory(tmp_path):
    store = SwapStore(tmp_path, most_bytes=20 * KB)
    numbers = stays_in_memory(store, "limit of 20480 bytes")
    assert store.statistics().file_size <= 20 * KB
    assert store.statistics().kept_bytes == 4 * 8 * KB
    store.release(numbers[0])
    store.put(content(9))
    until(lambda: store.statistics().written_bytes == 3 * 8 * KB)
    store.close()


def test_no_limit_is_passed_by_a_file_of_nothing(tmp_path):
    store = SwapStore(tmp_path, most_bytes=0)
    stays_in_memory(store, "limit of 0 bytes")
    assert store.statistics().file_size == 0
    store.close()


def test_statistics_tell_what_was_done_and_is_held(store):
    numbers = put_all(store, 4, 5000)
    filed(store)
    store.get(numbers[3])
    until(lambda: store.statistics().read_bytes == 4 * 5000)
    found = store.statistics()
    assert (found.written_bytes, found.file_bytes, found.memory_bytes) == (20000, 8 * PAGE, 20000)
    assert found.file_size == file.GROWTH
    assert found.peak_memory_bytes <= 20000
    assert found.get_seconds > 0
    assert found.kept_bytes == 0
    for number in numbers:
        store.release(number)
    emptied(store)
