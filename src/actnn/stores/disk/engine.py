"""The work of a store in one process: one lock, and one background thread that reads ahead first and writes then."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

from actnn.errors import SwapError
from actnn.stores.disk.entries import Entry, Phase
from actnn.stores.disk.file import Bytes, FullError, SwapFile, checksum
from actnn.stores.disk.ledger import Counts, Ledger

# a wait is looked at again after so many seconds, whatever happened to the thread that should have ended it
PATIENCE = 1.0


class Engine:
    """What a store keeps and the thread that moves it, with all that the rules of the package say about them.

    Methods whose name begins with ``_locked`` are called by those who hold the lock.
    """

    def __init__(self, file: SwapFile, buffer_bytes: int, idle_bytes: int, first: int = 0) -> None:
        self.process = os.getpid()
        self._file = file
        self._bound = buffer_bytes
        self._ledger = Ledger(file.places, buffer_bytes, idle_bytes, first)
        self._changed = threading.Condition(threading.Lock())
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._released: SimpleQueue[int] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._serving = False
        # whether the thread was called and has not found that nothing is left to do
        self._awake = False
        # entries that a get reads itself
        self._own_reads: set[Entry] = set()
        self._warned = False
        self._stopping = False
        self._closed = False

    def inherit(self) -> Engine:
        """Return what a child process continues with (rule 3): an empty file, and what the parent had in memory."""
        # closes the descriptor of this process; the parent has its own
        self._file.close()
        heir = Engine(self._file.renewed(), self._bound, self._ledger.idle_bytes, first=self._ledger.next)
        for number, data in self._ledger.entries.in_memory():
            heir._ledger.inherit(number, data)
        heir._stopping = heir._closed = self._stopping
        return heir

    def put(self, data: Bytes, kept: Callable[[int], None] | None = None) -> int:
        """Take over a buffer, which may wait until earlier ones were written; return its number."""
        with self._changed:
            self._locked_settle()
            self._locked_start()
            began = time.perf_counter()
            while self._locked_has_no_room(data.size):
                self._changed.wait(PATIENCE)
            self._ledger.counts.put_seconds += time.perf_counter() - began
            self._locked_check_open()
            number = self._ledger.add(data, kept)
            self._locked_call()
        return number

    def get(self, number: int) -> Bytes:
        """Return a buffer's bytes, from memory or from the file."""
        own: Entry | None = None
        data: Bytes | None = None
        try:
            with self._changed:
                self._locked_settle()
                entry = self._locked_await(number)
                self._ledger.fetched.asked(number, self._ledger.entries)
                data = entry.data
                if data is None:
                    # before anything changes: an interrupt from the keyboard may come between any two of these lines
                    own = entry
                    self._own_reads.add(entry)
                    self._ledger.read_now(entry)
                self._locked_call()
            if data is None:
                data = self._timed_read(entry)
            return data
        finally:
            if own is not None:
                with self._changed:
                    self._own_reads.discard(own)
                    self._ledger.read(own, data)
                    self._changed.notify_all()
                if self._stopping:
                    self._dismantle()

    def release(self, number: int) -> None:
        """Forget a buffer; waits for nobody (rule 2)."""
        self._released.put(number)
        if self._changed.acquire(blocking=False):
            try:
                self._locked_settle()
                self._locked_call()
            finally:
                self._changed.release()
        elif self._serving:
            self._wake.put(None)

    def stop(self) -> None:
        """Let the thread end, and the file with it; waits for nobody (rule 2)."""
        if self.process != os.getpid():
            self._file.close()
            return
        self._stopping = True
        self._wake.put(None)
        if not self._serving:
            self._dismantle()

    def close(self) -> None:
        """Stop, and wait until thread and file are gone."""
        self.stop()
        if self._thread is threading.current_thread():
            return
        if self._thread is not None:
            self._thread.join()
        self._dismantle()
        with self._changed:
            while not self._closed:
                self._changed.wait(PATIENCE)

    def take_warning(self) -> str | None:
        """Return, once, why buffers stay in memory."""
        if self._ledger.fault is None or self._warned:
            return None
        with self._changed:
            fault, self._warned = None if self._warned else self._ledger.fault, True
        return fault

    def sizes(self) -> dict[str, int]:
        """Return the bytes that are taken in the file, its length, and the bytes in memory."""
        with self._changed:
            self._locked_settle()
            return {
                "file_bytes": self._file.places.taken_bytes,
                "file_size": self._file.places.end,
                "memory_bytes": self._ledger.memory_bytes,
                "kept_bytes": self._ledger.kept_bytes,
            }

    @property
    def counts(self) -> Counts:
        """What was done so far."""
        return self._ledger.counts

    def _run(self) -> None:
        fault = None
        try:
            while not self._stopping:
                self._wake.get()
                while (job := self._next_job()) is not None:
                    job()
        except BaseException as error:
            fault = f"their background thread ended with {error!r}. Please report this."
            raise
        finally:
            with self._changed:
                self._serving = False
                if fault is not None:
                    self._ledger.write_no_more(fault)
                self._changed.notify_all()
            if self._stopping:
                self._dismantle()

    def _next_job(self) -> Callable[[], None] | None:
        """Return what to do next: reading comes first, as somebody will wait for it."""
        with self._changed:
            self._locked_settle()
            if self._stopping:
                return None
            if (entry := self._ledger.next_read()) is not None:
                return partial(self._read_ahead, entry)
            if (entry := self._ledger.next_write()) is not None:
                return partial(self._write, entry)
            self._awake = False
        return None

    def _write(self, entry: Entry) -> None:
        data = entry.data
        assert data is not None, "what waits to be written is in memory"
        try:
            entry.start = self._place(entry.size)
            entry.check = checksum(data)
            self._file.write(data, entry.start)
        except FullError as error:
            with self._changed:
                self._ledger.not_written(entry, str(error))
                self._changed.notify_all()
        except OSError as error:
            with self._changed:
                where = self._file.place_name()
                self._ledger.write_no_more(f"writing to {where} failed ({error}). Choose another directory.")
                self._changed.notify_all()
        else:
            with self._changed:
                self._ledger.written(entry)
                self._changed.notify_all()

    def _place(self, size: int) -> int:
        """Return a place in the file, which grows without the lock; raises FullError and OSError."""
        self._file.open()
        places = self._file.places
        with self._changed:
            if (start := places.take(size)) is not None:
                return start
            least = places.least_end(size)
        end = self._file.lengthen(least)
        with self._changed:
            places.extend(end)
            start = places.take(size)
        assert start is not None, "the file was lengthened by enough"
        return start

    def _read_ahead(self, entry: Entry) -> None:
        data = None
        try:
            data = self._file.read(entry.start, entry.size, entry.check)
        except (SwapError, MemoryError):
            # rule 5
            entry.doubtful = True
        finally:
            with self._changed:
                self._ledger.read(entry, data)
                self._changed.notify_all()

    def _timed_read(self, entry: Entry) -> Bytes:
        began = time.perf_counter()
        data = self._file.read(entry.start, entry.size, entry.check)
        with self._changed:
            self._ledger.counts.get_seconds += time.perf_counter() - began
        return data

    def _dismantle(self) -> None:
        """Free everything once neither the thread nor a get is at work (rule 4)."""
        with self._changed:
            if not (self._closed or self._serving or self._own_reads):
                self._closed = True
                self._file.close()
                counts, first = self._ledger.counts, self._ledger.next
                self._file = self._file.renewed()
                self._ledger = Ledger(self._file.places, self._bound, self._ledger.idle_bytes, first)
                self._ledger.counts = counts
            self._changed.notify_all()

    def _locked_call(self) -> None:
        """Let the thread look for work where enough has come together: each time it takes a core from the training."""
        if self._serving and not self._awake and self._ledger.has_work():
            self._awake = True
            self._wake.put(None)

    def _locked_start(self) -> None:
        """Start the thread at the first put."""
        self._locked_check_open()
        if self._thread is not None or not self._ledger.writes:
            return
        thread = threading.Thread(target=self._run, name="actnn-swap", daemon=True)
        self._serving = True
        try:
            thread.start()
        except RuntimeError as error:
            self._serving = False
            self._ledger.write_no_more(f"no thread can be started to write them ({error}).")
        else:
            self._thread = thread

    def _locked_has_no_room(self, size: int) -> bool:
        waiting = self._ledger.waiting_bytes
        # of less nothing is written
        return (
            waiting > self._ledger.idle_bytes and waiting + size > self._bound and self._serving and not self._stopping
        )

    def _locked_settle(self) -> None:
        """Forget what was released since somebody last held the lock (rule 2)."""
        while not self._released.empty():
            self._ledger.release(self._released.get())
            self._changed.notify_all()

    def _locked_await(self, number: int) -> Entry:
        """Return an entry that nobody is reading any more."""
        entry = self._locked_find(number)
        began = time.perf_counter()
        while entry.phase is Phase.FETCHING:
            self._changed.wait(PATIENCE)
            entry = self._locked_find(number)
        self._ledger.counts.get_seconds += time.perf_counter() - began
        return entry

    def _locked_find(self, number: int) -> Entry:
        self._locked_check_open()
        entry = self._ledger.entries.get(number)
        if entry is not None:
            return entry
        if 0 <= number < self._ledger.first:
            raise SwapError(
                errno.ENOENT,
                f"code {number} was put by the parent of this process, and had left its memory before the fork. "
                "Run forward and backward in one process.",
            )
        raise SwapError(
            errno.ENOENT,
            f"there is no code {number}: it was released, or never put. Run forward again before backward.",
        )

    def _locked_check_open(self) -> None:
        if self._stopping:
            raise SwapError(errno.EBADF, "this store was closed. Convert the model again.")
