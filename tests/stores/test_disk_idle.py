"""The disk store leaves the last buffers in memory: nothing is written before more than some bytes wait."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from patience import nothing_hangs, until  # noqa: F401

from actnn.stores.disk import SwapStore

KB = 1024


def content(number, size=8 * KB):
    return np.random.default_rng(number).integers(0, 256, size, dtype=np.uint8)


def put_all(store, count):
    return [store.put(content(seed)) for seed in range(count)]


def check(store, number, seed, size=8 * KB):
    np.testing.assert_array_equal(store.get(number), content(seed, size))


def test_the_last_buffers_stay_in_memory_and_are_never_written(tmp_path):
    store = SwapStore(tmp_path, buffer_bytes=64 * KB, idle_bytes=32 * KB)
    numbers = put_all(store, 10)
    until(lambda: store.statistics().memory_bytes <= 32 * KB)
    left = store.statistics().memory_bytes
    assert left >= 16 * KB
    for number, seed in reversed(list(zip(numbers, range(10), strict=True))):
        check(store, number, seed)
        store.release(number)
    assert store.statistics().written_bytes == 80 * KB - left
    store.close()


def test_the_thread_is_called_only_when_enough_has_come_together(tmp_path):
    store = SwapStore(tmp_path, buffer_bytes=256 * KB, idle_bytes=96 * KB)
    calls = []
    wake = store._engine._wake
    store._engine._wake = SimpleNamespace(get=wake.get, put=lambda _: (calls.append(None), wake.put(None)))
    numbers = []
    for seed in range(64):
        numbers.append(store.put(content(seed)))
        until(lambda: not store._engine._awake)
    # each time a third of what may wait: four buffers, and the one that is too much
    assert len(calls) == (64 - 12) // 5 + 1
    calls.clear()
    for number in reversed(numbers):
        store.get(number)
        until(lambda: not store._engine._awake)
        store.release(number)
        until(lambda: not store._engine._awake)
    assert 2 <= len(calls) <= 16
    store.close()


def test_a_step_that_keeps_little_never_touches_the_file(tmp_path):
    store = SwapStore(tmp_path, buffer_bytes=64 * KB, idle_bytes=32 * KB)
    for _ in range(20):
        for number in put_all(store, 4):
            store.release(number)
    assert store.statistics().written_bytes == store.statistics().file_size == 0
    store.close()


def test_a_buffer_that_is_larger_than_the_rest_of_the_bound_waits_for_nobody(tmp_path):
    store = SwapStore(tmp_path, buffer_bytes=64 * KB, idle_bytes=32 * KB)
    # so little waits that nothing is written, and there is no room for both
    first, second = store.put(content(0, 32 * KB)), store.put(content(1, 48 * KB))
    check(store, first, 0, 32 * KB)
    check(store, second, 1, 48 * KB)
    store.close()
