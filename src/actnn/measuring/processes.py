"""The one place that starts processes: a function runs in a fresh one, perhaps under a memory limit.

``python -m actnn.measuring.processes MODULE:FUNCTION SETTINGS LIMIT PIPE`` calls the function with its settings and
writes lines of JSON to the pipe: ``{"told": …}`` whenever the function tells something, and at the end one of
``result``, ``error`` (an error of actnn), ``full`` (memory ran out) and ``failed`` (any other error).
"""

from __future__ import annotations

import errno
import fcntl
import importlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any

from actnn.errors import ActnnError

Told = Callable[[Any], object]

NO_LIMIT = 0
# how the frameworks and the libraries below them say that memory ran out
OUT_OF_MEMORY = (
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "out of memory",
    "bad_alloc",
    "failed to map segment",
    "thread creation failed",
    "can't start new thread",
    "resourceexhausted",
)
# oneDNN says no more than this; under a limit it means memory
OUT_OF_MEMORY_UNDER_LIMIT = (
    "could not create a primitive",
    "could not execute a primitive",
    "could not create a memory",
    "pthread_create failed",
)


class DoesNotFit(ActnnError):
    """A child that had too little memory."""


class TookTooLong(ActnnError):
    """A child that was ended because its time was over."""


def nobody(message: Any) -> None:
    """Take no notice of what a child tells."""


def call(
    function: str,
    settings: Mapping[str, Any],
    *,
    environment: Mapping[str, str] | None = None,
    data_limit: int | None = None,
    timeout: float | None = None,
    told: Told = nobody,
    lent: Sequence[int] = (),
    started: Callable[[subprocess.Popen[bytes]], object] = nobody,
) -> dict[str, Any]:
    """Return what ``module:function`` returns in a fresh process.

    ``data_limit`` is the most private memory that the process may have, in bytes (RLIMIT_DATA). Raises DoesNotFit
    where memory ran out, TookTooLong after ``timeout`` seconds, and ActnnError for every other failure. Files that are
    ``lent`` are the child's, and closed here; ``started`` is given the child.
    """
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "actnn.measuring.processes", function, json.dumps(settings)]
    command += [str(data_limit or NO_LIMIT), str(writing)]
    with os.fdopen(reading) as pipe, tempfile.TemporaryFile("w+", errors="replace") as complaints:
        try:
            process = subprocess.Popen(
                command,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.PIPE,
                stdout=complaints,
                stderr=complaints,
                pass_fds=[writing, *lent],
            )
        finally:
            for each in (writing, *lent):
                os.close(each)
        started(process)
        final, late = finished(process, pipe, timeout, told)
        complaints.seek(0)
        text = complaints.read()
    if late:
        raise TookTooLong(f"{function} took longer than {timeout:g} s: allow more time, or ask for less work.")
    return answer(function, final, process.returncode, text, limited=data_limit is not None)


def finished(
    process: subprocess.Popen[bytes], pipe: IO[str], timeout: float | None, told: Told
) -> tuple[dict[str, Any], bool]:
    """Wait for a child; return its last message and whether its time was over."""
    over = threading.Event()

    def stop() -> None:
        over.set()
        process.kill()

    clock = threading.Timer(timeout, stop) if timeout else None
    message: dict[str, Any] = {}
    try:
        if clock:
            clock.start()
        for message in map(json.loads, pipe):
            if "told" in message:
                told(message["told"])
        process.wait()
    finally:
        if clock:
            clock.cancel()
        process.kill()
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
    return message, over.is_set()


def answer(function: str, final: Mapping[str, Any], code: int, complaints: str, *, limited: bool) -> dict[str, Any]:
    """Return a child's result, or raise the error that its last message and exit code stand for."""
    if "result" in final:
        if complaints:
            print(complaints, end="", file=sys.stderr)
        result: dict[str, Any] = final["result"]
        return result
    if "error" in final:
        raise ActnnError(final["error"])
    if "full" in final or code == -signal.SIGKILL or says_out_of_memory(complaints, limited):
        raise DoesNotFit(final.get("full", f"the process that runs {function} ran out of memory."))
    if "failed" in final:
        raise ActnnError(f"{function} failed with {final['failed']}")
    lines = complaints.strip().splitlines()
    print(complaints, end="", file=sys.stderr)
    raise ActnnError(f"the process that runs {function} ended with code {code}: {lines[-1] if lines else 'no word'}")


def says_out_of_memory(text: str, limited: bool) -> bool:
    """Tell whether some words mean that memory ran out, in a process with or without a limit."""
    known = OUT_OF_MEMORY + OUT_OF_MEMORY_UNDER_LIMIT * limited
    return any(words in text.lower() for words in known)


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that it was raised from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def out_of_memory(error: BaseException, limited: bool) -> bool:
    """Tell whether an error, or what it was raised from, is that memory ran out."""
    return any(
        isinstance(each, MemoryError)
        or (isinstance(each, OSError) and each.errno == errno.ENOMEM)
        or says_out_of_memory(str(each), limited)
        for each in causes(error)
    )


def in_one_line(error: BaseException) -> str:
    """Return the kind of an error and the first line of what it says."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


def origin(error: BaseException) -> str:
    """Return where an error was raised."""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    return f"{frame.f_code.co_filename}, line {line}"


def end_with_parent() -> None:
    """Let the system end this process once its parent is gone, which holds the other end of its input."""
    source = sys.stdin.fileno()
    fcntl.fcntl(source, fcntl.F_SETOWN, os.getpid())
    # a signal comes when that end closes, and on Linux its default is to end the process; a thread would take memory
    fcntl.fcntl(source, fcntl.F_SETFL, fcntl.fcntl(source, fcntl.F_GETFL) | os.O_ASYNC)
    closed = select.poll()
    closed.register(source, 0)
    if closed.poll(0):
        # the parent was gone before
        sys.exit(1)


def main(argv: Sequence[str]) -> int:
    """Carry out one call on behalf of the parent."""
    function, settings, limit, pipe = argv
    # interrupting the parent ends the child too, without a traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    end_with_parent()
    # what packages say about themselves would be said once a child; what actnn says matters
    warnings.filterwarnings("ignore", category=UserWarning)
    warnings.filterwarnings("default", message="actnn ")
    if int(limit) != NO_LIMIT:
        resource.setrlimit(resource.RLIMIT_DATA, (int(limit), int(limit)))
    with os.fdopen(int(pipe), "w") as messages:

        def tell(**message: Any) -> None:
            print(json.dumps(message), file=messages, flush=True)

        try:
            module, _, name = function.partition(":")
            work = getattr(importlib.import_module(module), name)
            result = work(json.loads(settings), lambda message: tell(told=message))
        except Exception as error:
            if out_of_memory(error, limited=int(limit) != NO_LIMIT):
                tell(full=in_one_line(error))
            elif isinstance(error, ActnnError):
                tell(error=str(error))
            else:
                tell(failed=f"{in_one_line(error)} ({origin(error)})")
            return 1
        tell(result=result)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
