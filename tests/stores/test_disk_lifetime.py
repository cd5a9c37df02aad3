"""The end of a disk store, of its process and of its parent: nothing is left, and nothing waits for ever."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys

import numpy as np
import pytest
from child_process import check_in_child
from disk_stores import KB, Gate, check, content, emptied, filed, in_background, open_files, put_all, swap_threads
from patience import PATIENCE, until

from actnn.errors import SwapError
from actnn.stores.disk import SwapStore, engine


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
