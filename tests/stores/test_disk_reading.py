"""What the disk store reads ahead: the reverse order, twice nothing, and never more than its bound."""

from __future__ import annotations

import threading

import numpy as np
from disk_stores import KB, THREAD, Gate, check, content, filed, in_background, put_all
from patience import until

from actnn.stores.disk.entries import Phase
from actnn.stores.disk.ledger import Ledger
from actnn.stores.places import Places


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
