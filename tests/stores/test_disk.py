"""The disk store: buffers come back as they were put, whatever the order, the disk, the process or the thread."""

from __future__ import annotations

import errno
import gc
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import tracemalloc
import warnings
import weakref
from contextlib import contextmanager

import numpy as np
import pytest
from child_process import check_in_child
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import PATIENCE, nothing_hangs, until  # noqa: F401

import actnn
from actnn.errors import ActnnError, ConfigError, SwapError, UnsupportedError
from actnn.stores.disk import SwapStore, engine, file
from actnn.stores.disk.entries import Phase
from actnn.stores.disk.ledger import Ledger
from actnn.stores.places import PAGE, Places, pages

THREAD = "actnn-swap"
KB = 1024


@pytest.fixture
def store(tmp_path):
    made = SwapStore(tmp_path, buffer_bytes=64 * KB)
    yield made
    made.close()


def content(number, size=8 * KB):
    return np.random.default_rng(number).integers(0, 256, size, dtype=np.uint8)


def put_all(store, count, size=8 * KB):
    return [store.put(content(seed, size)) for seed in range(count)]


def check(store, number, seed, size=8 * KB):
    np.testing.assert_array_equal(store.get(number), content(seed, size))


def filed(store):
    """Wait until nothing waits to be written, where nothing was read back."""
    until(lambda: store.statistics().memory_bytes == store.statistics().kept_bytes)


def emptied(store):
    """Wait until a store whose buffers were all released holds nothing."""
    until(lambda: store.statistics().memory_bytes == store.statistics().file_bytes == 0)


@contextmanager
def in_background(work):
    """Run some work in a thread; hand out its results, and raise what it raised."""
    results, errors = [], []

    def run():
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield thread, results
    thread.join(PATIENCE)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


class Gate:
    """Stands before a function of ``os``: holds back calls of some threads while it is shut, and counts all."""

    def __init__(self, monkeypatch, name, holds=lambda: True):
        self.calls, self._real, self._holds = [], getattr(os, name), holds
        self._open = threading.Event()
        monkeypatch.setattr(file.os, name, self)

    def __call__(self, *arguments):
        self.calls.append(threading.current_thread().name)
        if self._holds() and not self._open.wait(PATIENCE):
            raise TimeoutError("the gate was never opened")
        return self._real(*arguments)

    def open(self):
        self._open.set()


def fails(monkeypatch, name, number=errno.EIO, when=lambda *_: True):
    """Let a function of ``os`` raise an OSError for the arguments that ``when`` accepts."""
    real = getattr(os, name)

    def call(*arguments):
        if when(*arguments):
            raise OSError(number, os.strerror(number))
        return real(*arguments)

    monkeypatch.setattr(file.os, name, call)


def swap_threads():
    return [thread for thread in threading.enumerate() if thread.name == THREAD]


def open_files(directory):
    """Return the descriptors of this process that lead to files of a directory, with a name or without."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except FileNotFoundError:
            continue
        found += [target] if target.startswith(str(directory)) else []
    return found


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


def test_asking_in_reverse_reads_ahead_in_the_background(store, monkeypatch):
    numbers = put_all(store, 12)
    filed(store)
    gate = Gate(monkeypatch, "preadv", holds=lambda: False)
    check(store, numbers[-1], 11)
    # half of the bound is read ahead: four buffers
    until(lambda: store.statistics().read_bytes == 5 * 8 * KB)
    for seed in (10, 9, 8, 7):
        check(store, numbers[seed], seed)
    until(lambda: store.statistics().read_bytes == 9 * 8 * KB)
    assert gate.calls == ["MainThread"] + [THREAD] * 8


def test_a_get_waits_for_what_is_being_read(store, monkeypatch):
    numbers = put_all(store, 2)
    filed(store)
    gate = Gate(monkeypatch, "preadv", holds=lambda: threading.current_thread().name == THREAD)
    check(store, numbers[1], 1)
    until(lambda: THREAD in gate.calls)
    with in_background(lambda: store.get(numbers[0])) as (thread, results):
        thread.join(0.05)
        assert results == []
        gate.open()
    np.testing.assert_array_equal(results[0], content(0))
    assert gate.calls == ["MainThread", THREAD]


def test_what_is_released_while_it_is_read_gives_its_place_back(store, monkeypatch):
    numbers = put_all(store, 2)
    filed(store)
    gate = Gate(monkeypatch, "preadv", holds=lambda: threading.current_thread().name == THREAD)
    store.get(numbers[1])
    until(lambda: THREAD in gate.calls)
    store.release(numbers[0])
    assert store.statistics().file_bytes == 16 * KB
    gate.open()
    until(lambda: store.statistics().file_bytes == 8 * KB)
    assert store.statistics().memory_bytes == 8 * KB


class Reader:
    """A ledger of filed buffers of one byte each, of which eight fit into memory, and what is read of them."""

    def __init__(self, count):
        self.places = Places()
        self.ledger = Ledger(self.places, buffer_bytes=8)
        self.read = []
        for _ in range(count):
            number = self.ledger.add(np.zeros(1, np.uint8))
            entry = self.ledger.next_write()
            self.places.extend(self.places.least_end(1))
            entry.start = self.places.take(1)
            self.ledger.written(entry)
            assert entry.number == number

    def ask(self, number):
        """Do what a get does, and then all that is to be done in the background."""
        entry = self.ledger.entries.get(number)
        self.ledger.fetched.asked(number, self.ledger.entries)
        if entry.data is None:
            self.ledger.read_now(entry)
            self._finish(entry)
        while (entry := self.ledger.next_read()) is not None:
            self._finish(entry)

    def _finish(self, entry):
        self.read.append(entry.number)
        self.ledger.read(entry, np.zeros(1, np.uint8))


def test_nothing_is_read_twice_where_a_second_reader_follows_soon():
    reader = Reader(20)
    for number in reversed(range(20)):
        reader.ask(number)
        reader.ask(min(19, number + 2))
    assert reader.read == list(reversed(range(20)))


def test_two_passes_that_alternate_do_not_keep_throwing_out_what_was_read_for_one_another():
    reader = Reader(120)
    for number in reversed(range(60)):
        reader.ask(number)
        reader.ask(number + 60)
    assert set(reader.read) == set(range(120))
    assert len(reader.read) < 130


def test_nothing_is_read_twice_where_the_order_is_only_roughly_reverse():
    reader = Reader(40)
    for number in reversed(range(0, 40, 2)):
        reader.ask(number)
        reader.ask(number + 1)
    assert sorted(reader.read) == list(range(40))


def test_what_an_old_pass_left_unread_makes_room_for_a_new_one():
    reader = Reader(60)
    for number in (24, 23, 22):
        reader.ask(number)
    reader.read.clear()
    for number in (59, 58, 57):
        reader.ask(number)
    assert reader.read == [59, 58, 57, 56, 55, 54, 53]


def test_what_is_being_read_keeps_its_room():
    ledger = Reader(8).ledger
    ledger.fetched.asked(8, ledger.entries)
    ahead = [ledger.next_read() for _ in range(5)]
    large = ledger.add(np.zeros(5, np.uint8))
    ledger.read_now(ledger.entries.get(large))
    assert [entry and entry.phase for entry in ahead] == [Phase.FETCHING] * 4 + [None]
    assert ledger.fetched.nbytes == 4


def test_reading_ahead_stays_within_the_bound(store):
    numbers = put_all(store, 100)
    filed(store)
    for seed in reversed(range(100)):
        check(store, numbers[seed], seed)
    assert store.statistics().peak_memory_bytes <= 2 * 64 * KB
    assert store.statistics().memory_bytes <= 64 * KB


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


def stays_in_memory(store, message, count=6):
    """Put buffers, of which some cannot be written; expect one warning, and right bytes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        numbers = []
        for seed in range(count):
            numbers.append(store.put(content(seed)))
            until(lambda: store.statistics().memory_bytes == store.statistics().kept_bytes)
        for seed in reversed(range(count)):
            check(store, numbers[seed], seed)
    assert [warning.category for warning in caught] == [UserWarning]
    assert message in str(caught[0].message)
    assert "keeps codes in memory" in str(caught[0].message)
    return numbers


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


def test_a_full_disk_keeps_codes_in_memory(store, monkeypatch):
    fails(monkeypatch, "posix_fallocate", errno.ENOSPC)
    stays_in_memory(store, "no space is left")
    assert store.statistics().kept_bytes == 6 * 8 * KB


def test_a_disk_that_turns_out_to_be_full_is_not_left_full(store, monkeypatch):
    allocate = os.posix_fallocate

    def fill_and_fail(descriptor, start, size):
        allocate(descriptor, start, size)
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(file.os, "posix_fallocate", fill_and_fail)
    stays_in_memory(store, "no space is left")
    assert os.fstat(store._engine._file._descriptor()).st_size == 0


def test_a_disk_with_little_space_is_used_up_to_it(store, monkeypatch):
    fails(monkeypatch, "posix_fallocate", errno.ENOSPC, when=lambda _, start, size: start + size > 30 * KB)
    stays_in_memory(store, "no space is left")
    assert store.statistics().kept_bytes == 3 * 8 * KB


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_failing_write_keeps_later_codes_in_memory(store, monkeypatch, number):
    fails(monkeypatch, "pwrite", number, when=lambda _, data, start: start >= 16 * KB)
    stays_in_memory(store, os.strerror(number))
    assert store.statistics().kept_bytes == 4 * 8 * KB
    assert store.statistics().file_bytes == 16 * KB


def test_a_write_of_nothing_does_not_repeat_for_ever(store, monkeypatch):
    monkeypatch.setattr(file.os, "pwrite", lambda *_: 0)
    stays_in_memory(store, "wrote nothing")


def test_a_put_that_waits_goes_on_when_writing_fails(store, monkeypatch):
    fails(monkeypatch, "pwrite")
    gate = Gate(monkeypatch, "pwrite")
    put_all(store, 8)
    with pytest.warns(UserWarning, match="failed"):
        failing_while_a_put_waits(store, gate)
    assert store.statistics().kept_bytes == 9 * 8 * KB


def failing_while_a_put_waits(store, gate):
    with in_background(lambda: store.put(content(8))) as (thread, results):
        thread.join(0.05)
        gate.open()
    check(store, results[0], 8)


def test_what_was_released_while_its_write_fails_is_gone(store, monkeypatch):
    fails(monkeypatch, "pwrite")
    gate = Gate(monkeypatch, "pwrite")
    number = store.put(content(0))
    until(lambda: gate.calls)
    store.release(number)
    gate.open()
    emptied(store)


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, None])
def test_a_system_that_reserves_no_space_still_swaps(store, monkeypatch, number):
    if number is None:
        monkeypatch.delattr(file.os, "posix_fallocate")
    else:
        fails(monkeypatch, "posix_fallocate", number)
    numbers = put_all(store, 3)
    filed(store)
    assert store.statistics().kept_bytes == 0
    for seed in range(3):
        check(store, numbers[seed], seed)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_death_of_the_thread_loses_nothing(store, monkeypatch):
    numbers = put_all(store, 3)
    filed(store)

    def die(data):
        raise RuntimeError("a mistake in the thread")

    with monkeypatch.context() as patched:
        patched.setattr(engine, "checksum", die)
        numbers.append(store.put(content(3)))
        until(lambda: not swap_threads())
    with pytest.warns(UserWarning, match="a mistake in the thread"):
        numbers.append(store.put(content(4)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in reversed(range(5)):
            check(store, numbers[seed], seed)
            store.release(numbers[seed])
    emptied(store)


def test_a_thread_that_cannot_be_started_keeps_codes_in_memory(store, monkeypatch):
    refused = []

    def refuse(thread):
        refused.append(thread)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    stays_in_memory(store, "can't start new thread")
    assert len(refused) == 1


def test_a_warning_that_is_made_an_error_loses_no_code(tmp_path):
    store = SwapStore(tmp_path, most_bytes=0)
    number = store.put(content(0))
    filed(store)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="limit"):
            store.get(number)
        check(store, number, 0)
    store.close()


def unreadable(store, match):
    with pytest.raises(SwapError, match=match) as raised:
        store.get(0)
    assert raised.value.errno == errno.EIO
    assert "another" in str(raised.value)


def test_a_short_read_is_an_error(store, monkeypatch):
    put_all(store, 1)
    filed(store)
    with monkeypatch.context() as patched:
        read = os.preadv
        patched.setattr(
            file.os, "preadv", lambda of, into, start: read(of, [into[0][:100]], start) if start < 100 else 0
        )
        unreadable(store, "ends 8092 bytes too early")
    check(store, 0, 0)


def test_a_failing_read_is_an_error_and_may_be_tried_again(store, monkeypatch):
    put_all(store, 1)
    filed(store)
    with monkeypatch.context() as patched:
        fails(patched, "preadv")
        unreadable(store, "reading failed")
        unreadable(store, "reading failed")
    check(store, 0, 0)
    assert store.statistics().memory_bytes == 8 * KB


@pytest.mark.parametrize("place", [0, 4095, 8191])
def test_changed_bytes_are_never_returned(store, place):
    put_all(store, 1)
    filed(store)
    descriptor = store._engine._file._descriptor()
    os.pwrite(descriptor, bytes([content(0)[place] ^ 1]), place)
    unreadable(store, "not those that were written")


def test_what_fails_ahead_is_raised_by_the_get_that_needs_it(store, monkeypatch):
    numbers = put_all(store, 3)
    filed(store)
    ahead = Gate(monkeypatch, "preadv", holds=lambda: False)
    fails(monkeypatch, "preadv", when=lambda _, into, start: ahead.calls.append(start) or start == 8 * KB)
    check(store, numbers[2], 2)
    until(lambda: store.statistics().read_bytes == 16 * KB)
    with pytest.raises(SwapError, match="reading failed"):
        store.get(numbers[1])
    check(store, numbers[0], 0)


def test_the_checksum_tells_shifted_missing_and_foreign_bytes():
    data = content(0, 1003)
    sums = {file.checksum(other) for other in (data, data[:-1], data[1:], content(1, 1003), np.zeros(1003, np.uint8))}
    assert len(sums) == 5
    assert file.checksum(np.concatenate([data[:3], data])[3:]) == file.checksum(data)


def test_its_error_is_one_of_this_package_and_one_of_the_system():
    assert issubclass(actnn.SwapError, ActnnError)
    assert issubclass(actnn.SwapError, OSError)


@pytest.mark.parametrize(
    "limits", [{"most_bytes": -1}, {"most_bytes": 1.5}, {"buffer_bytes": 0}, {"buffer_bytes": True}]
)
def test_limits_are_whole_numbers_of_bytes(limits):
    with pytest.raises(ConfigError, match=next(iter(limits))):
        SwapStore(**limits)


def test_a_directory_that_was_named_has_to_take_files(tmp_path):
    (tmp_path / "file").write_text("")
    for bad in (tmp_path / "missing", tmp_path / "file"):
        with pytest.raises(ConfigError, match="cannot hold a temporary file"):
            SwapStore(bad)


def test_without_a_temporary_directory_codes_stay_in_memory(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    store = SwapStore()
    stays_in_memory(store, "the system's temporary directory")
    store.close()


def test_nothing_exists_before_the_first_put(tmp_path):
    store = SwapStore(tmp_path)
    assert open_files(tmp_path) == swap_threads() == []
    store.close()


def test_closing_frees_everything(store, tmp_path):
    numbers = put_all(store, 20)
    store.get(numbers[-1])
    store.close()
    store.close()
    assert open_files(tmp_path) == swap_threads() == []
    assert store.statistics().memory_bytes == store.statistics().file_bytes == 0
    store.release(numbers[0])
    for use in (lambda: store.put(content(0)), lambda: store.get(numbers[0])):
        with pytest.raises(SwapError, match="closed"):
            use()
    assert store.statistics().unknown_releases == 0


def test_closing_ends_a_put_that_waits(store, monkeypatch):
    gate = Gate(monkeypatch, "pwrite")
    put_all(store, 8)
    with pytest.raises(SwapError, match="closed"):
        closing_while_a_put_waits(store, gate)


def closing_while_a_put_waits(store, gate):
    with in_background(lambda: store.put(content(8))) as (thread, _):
        thread.join(0.05)
        with in_background(store.close):
            until(lambda: store._engine._stopping)
            gate.open()


def test_closing_waits_for_a_get_that_reads(store, monkeypatch, tmp_path):
    number = store.put(content(0))
    filed(store)
    gate = Gate(monkeypatch, "preadv")
    with in_background(lambda: store.get(number)) as (_, results):
        until(lambda: gate.calls)
        with in_background(store.close) as (closing, _):
            closing.join(0.05)
            assert closing.is_alive()
            assert len(open_files(tmp_path)) == 1
            gate.open()
    np.testing.assert_array_equal(results[0], content(0))
    assert open_files(tmp_path) == []


@pytest.mark.parametrize("died", [False, True])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_store_that_nobody_holds_leaves_no_thread_and_no_file(tmp_path, monkeypatch, died):
    store = SwapStore(tmp_path)
    cycle = [store]
    cycle.append(cycle)
    put_all(store, 5)
    filed(store)
    if died:
        monkeypatch.delattr(engine, "checksum")
        store.put(content(0))
        until(lambda: not swap_threads())
    assert len(open_files(tmp_path)) == 1
    del store, cycle
    gc.collect()
    until(lambda: open_files(tmp_path) == swap_threads() == [])


def test_releasing_an_unknown_number_is_counted_and_harmless(store):
    number = store.put(content(0))
    store.release(number)
    for unknown in (number, 77):
        store.release(unknown)
    assert store.statistics().unknown_releases == 2


def test_a_finalizer_may_release_while_the_lock_is_held(store):
    number = store.put(content(0))
    filed(store)
    with store._engine._changed:
        store.release(number)
    assert store.statistics().file_bytes == 0


def test_garbage_collection_may_release_at_any_moment(store):
    class Handle:
        def __init__(self, seed):
            self.number, self.cycle = store.put(content(seed)), self

        def __del__(self):
            store.release(self.number)

    before = gc.get_threshold()
    gc.set_threshold(5, 2, 2)
    try:
        for seed in range(300):
            handle = Handle(seed)
            check(store, handle.number, seed)
    finally:
        gc.set_threshold(*before)
    del handle
    gc.collect()
    emptied(store)
    assert store.statistics().unknown_releases == 0


def test_the_interpreter_ends_with_buffers_still_to_write(tmp_path):
    program = """
import sys, numpy
from pathlib import Path
from actnn.stores.disk import SwapStore
store = SwapStore(Path(sys.argv[1]))
numbers = [store.put(numpy.zeros(2**20, numpy.uint8)) for _ in range(32)]
store.get(numbers[3])
"""
    command = [sys.executable, "-W", "error", "-c", program, str(tmp_path)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert finished.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_a_killed_process_leaves_no_file(tmp_path):
    program = """
import sys, time, numpy
from pathlib import Path
from actnn.stores.disk import SwapStore
store = SwapStore(Path(sys.argv[1]))
store.put(numpy.zeros(2**20, numpy.uint8))
while not store.statistics().written_bytes:
    time.sleep(0.001)
print("written", flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "written\n"
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE)
    assert list(tmp_path.iterdir()) == []


def test_a_child_starts_empty_with_its_own_file_and_thread(store, tmp_path):
    numbers = put_all(store, 4)
    filed(store)

    def child():
        assert len(open_files(tmp_path)) == 1
        with pytest.raises(SwapError, match="parent of this process"):
            store.get(numbers[0])
        assert open_files(tmp_path) == []
        store.release(numbers[0])
        fresh = [store.put(content(100 + seed)) for seed in range(20)]
        assert not set(fresh) & set(numbers)
        filed(store)
        for seed in reversed(range(20)):
            check(store, fresh[seed], 100 + seed)
        assert store.statistics().written_bytes == 20 * 8 * KB
        assert store.statistics().unknown_releases == 0
        store.close()
        assert open_files(tmp_path) == swap_threads() == []

    check_in_child(child)
    for seed in range(4):
        check(store, numbers[seed], seed)


def test_a_child_has_what_its_parent_had_in_memory(store, monkeypatch):
    gate = Gate(monkeypatch, "pwrite")
    numbers = put_all(store, 4)
    until(lambda: gate.calls)

    def child():
        for seed in range(4):
            check(store, numbers[seed], seed)
            store.release(numbers[seed])
        assert store.statistics().memory_bytes == 0

    check_in_child(child)
    gate.open()
    filed(store)
    for seed in range(4):
        check(store, numbers[seed], seed)


def test_a_lock_held_at_the_fork_stops_no_child(store):
    numbers = put_all(store, 4)
    filed(store)

    def child():
        number = store.put(content(7))
        check(store, number, 7)
        with pytest.raises(SwapError, match="parent of this process"):
            store.get(numbers[1])
        store.release(number)
        store.close()

    with store._engine._changed:
        check_in_child(child)
        check_in_child(store.close)
        check_in_child(store._engine.stop)
    check(store, numbers[1], 1)


def test_a_grandchild_and_a_child_that_never_asks_work_too(store, tmp_path):
    number = store.put(content(0))
    filed(store)

    def child():
        mine = store.put(content(1))
        filed(store)
        check_in_child(lambda: check(store, store.put(content(2)), 2))
        check(store, mine, 1)

    def unused():
        store._engine.stop()
        assert open_files(tmp_path) == []

    check_in_child(unused)
    check_in_child(child)
    check(store, number, 0)


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
