"""The allocator that a process may load before the C library."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from actnn.kernels.native import LibraryMissingError, preload

try:
    preload.library()
except LibraryMissingError as problem:
    pytest.skip(str(problem), allow_module_level=True)

BEGIN = """
import ctypes, os, threading
import numpy as np
from actnn.kernels.native import preload
MB = 2**20
def array(megabytes):
    values = np.empty(megabytes * MB, np.uint8)
    values.fill(1)
    return values
libc = ctypes.CDLL(None)
for name in ("malloc", "calloc", "realloc", "aligned_alloc"):
    getattr(libc, name).restype = ctypes.c_void_p
libc.realloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.aligned_alloc.argtypes = libc.calloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
libc.malloc_usable_size.argtypes, libc.malloc_usable_size.restype = [ctypes.c_void_p], ctypes.c_size_t
libc.malloc.argtypes, libc.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
alive = preload.counts().alive
"""
PROGRAMS = {
    "what is freed serves the next one, and goes back when a step begins": """
        first = array(32)
        place = first.ctypes.data
        del first
        assert preload.counts().idle >= 32 * MB
        second = array(32)
        assert second.ctypes.data == place
        del second
        assert preload.begin_step()
        assert preload.counts().idle <= preload.counts().alive / 16
    """,
    "zeros are zeros where others lay": """
        used = array(8)
        del used
        pointer = libc.calloc(8, MB)
        assert preload.counts().idle < 8 * MB
        assert not ctypes.string_at(pointer, 8 * MB).strip(bytes(1))
        libc.free(pointer)
    """,
    "a block that grows or shrinks keeps what is in it, wherever it lies": """
        pointer, sizes = libc.malloc(100), [100, 2 * MB, 9 * MB, 8 * MB, 3 * MB, 50]
        ctypes.memset(pointer, 7, 100)
        for size in sizes:
            pointer = libc.realloc(pointer, size)
            assert libc.malloc_usable_size(pointer) >= size
            assert ctypes.string_at(pointer, 50) == bytes([7]) * 50
        libc.free(pointer)
        assert preload.counts().alive == alive
    """,
    "blocks lie as they are asked to": """
        for power in range(4, 24):
            pointer = libc.aligned_alloc(2**power, 3 * MB)
            assert pointer % 2**power == 0
            libc.free(pointer)
    """,
    "small blocks are the C library's": """
        small = [libc.malloc(2**19) for _ in range(20)]
        assert preload.counts().alive == alive
    """,
    "what is too large fails as ever": """
        assert libc.malloc(2**62) is None
        assert libc.calloc(2**40, 2**40) is None
    """,
    "a child of a process goes on by itself": """
        mine = array(16)
        child = os.fork()
        if child == 0:
            mine.fill(2)
            other = array(8)
            os._exit(int(mine.sum() != 2 * 16 * MB))
        assert os.waitpid(child, 0)[1] == 0
        assert mine.sum() == 16 * MB
    """,
    "threads take and free at once": """
        def work(number):
            for _ in range(50):
                values = np.full(2 * MB, number, np.uint8)
                assert (values == number).all()
        threads = [threading.Thread(target=work, args=[number]) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert preload.counts().alive == alive
    """,
}


def run(program: str) -> None:
    """Run a program in a process that allocates with it."""
    lines = [line.removeprefix(" " * 8) for line in program.splitlines()]
    command = [sys.executable, "-c", BEGIN + "\n".join(lines)]
    subprocess.run(command, check=True, env=preload.environment(os.environ), timeout=120)


@pytest.mark.parametrize("sentence", PROGRAMS)
def test_blocks(sentence):
    run(PROGRAMS[sentence])


def test_a_process_that_did_not_load_it_has_none():
    assert preload.counts() is None
    assert not preload.begin_step()


def test_nothing_of_the_runtime_of_cpp_comes_along_with_it():
    """A second unwinder in every process, and one that wants a newer C library than all else does."""
    content = preload.library().read_bytes()
    assert [name for name in (b"__gxx_personality", b"_Unwind_", b"_dl_find_object") if name in content] == []


def test_other_libraries_that_are_loaded_first_stay():
    given = {"LD_PRELOAD": "/lib/a.so /lib/b.so", "HOME": "/"}
    chosen = preload.environment(given)
    assert chosen["LD_PRELOAD"].split(":") == [str(preload.library()), "/lib/a.so", "/lib/b.so"]
    assert preload.environment(chosen) == chosen
    assert preload.without(chosen)["LD_PRELOAD"] == "/lib/a.so:/lib/b.so"
    assert chosen["HOME"] == "/"


def test_a_command_is_run_with_it():
    command = [sys.executable, "-m", "actnn", "run", sys.executable, "-c", "from actnn.kernels.native import preload; "]
    command[-1] += "assert preload.counts() is not None; raise SystemExit(7)"
    assert subprocess.run(command, check=False).returncode == 7


def test_a_command_that_is_not_there_is_told_of():
    found = subprocess.run(
        [sys.executable, "-m", "actnn", "run", "no-such-program"], check=False, capture_output=True, text=True
    )
    assert found.returncode == 1
    assert "no program 'no-such-program'" in found.stderr
