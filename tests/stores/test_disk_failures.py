"""The disk store on disks that are full, fail or lie: no code is lost, and no wrong byte is returned."""

from __future__ import annotations

import errno
import os
import tempfile
import threading
import warnings

import numpy as np
import pytest
from disk_stores import (
    KB,
    Gate,
    check,
    content,
    emptied,
    fails,
    filed,
    in_background,
    put_all,
    stays_in_memory,
    swap_threads,
)
from patience import until

import actnn
from actnn.errors import ActnnError, ConfigError, SwapError
from actnn.stores.disk import SwapStore, engine, file


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
