"""The heap of the process: what was freed goes back to the system where that is asked for."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from actnn.kernels.native import LibraryMissingError, find_library

# blocks that the C library keeps in its heap, every second of them freed: holes that it gives back to nobody by itself
FRAGMENTED = """
import ctypes
from actnn.measuring.memory import resident
from actnn.kernels import heap
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
libc.mallopt(-3, 2**25)  # M_MMAP_THRESHOLD: no block of these sizes is apart from others
def block(size):
    pointer = libc.malloc(size)
    ctypes.memset(pointer, 1, size)
    return pointer
blocks = [block(100_000) for _ in range(1000)]
full = resident("VmRSS")
for pointer in blocks[::2]:
    libc.free(pointer)
holes = resident("VmRSS")
"""
SEPARATE = """
import ctypes
from actnn.measuring.memory import resident
from actnn.kernels import heap
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
libc.mallopt(-3, 2**25)
assert heap.separate_blocks()
blocks = [libc.malloc(4 * 2**20) for _ in range(20)]
for pointer in blocks:
    ctypes.memset(pointer, 1, 4 * 2**20)
full = resident("VmRSS")
for pointer in blocks[::2]:
    libc.free(pointer)
assert full - resident("VmRSS") > 38 * 2**20, "blocks that were freed are still there"
"""


# what a step does over and over: some large blocks are used and freed
REUSED = """
import resource
import numpy as np
from actnn.kernels import heap
heap.keep_blocks()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def use():
    blocks = [np.empty(4 * 2**20, np.uint8) for _ in range(8)]
    for block in blocks:
        block.fill(1)
for _ in range(2):
    use()
before = faults()
for _ in range(20):
    use()
assert faults() - before < 32 * 2**20 // 4096, "every use of blocks maps them anew"
"""


def run(program: str, backend: str = "native") -> None:
    """Run a program in a process of its own; raise unless it succeeds."""
    environment = os.environ | {"ACTNN_BACKEND": backend, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def library():
    """Skip where the compiled library is not there."""
    try:
        find_library()
    except LibraryMissingError as problem:
        pytest.skip(str(problem))


@pytest.mark.usefixtures("library")
def test_trimming_gives_holes_back_to_the_system():
    run(FRAGMENTED + "assert heap.trim(0.2)\nassert holes - resident('VmRSS') > 40 * 10**6")


@pytest.mark.usefixtures("library")
def test_nothing_is_trimmed_below_the_threshold():
    run(FRAGMENTED + "assert not heap.trim(0.9)\nassert holes - resident('VmRSS') < 10**6")


@pytest.mark.usefixtures("library")
def test_large_blocks_go_back_to_the_system_when_they_are_freed():
    run(SEPARATE)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="what other C libraries do is not known")
def test_blocks_that_were_freed_are_used_again():
    run(REUSED)


def test_the_reference_backend_leaves_the_heap_alone():
    run(
        "from actnn.kernels import heap\nassert heap.trim(0.0) is False\nassert heap.separate_blocks() is False",
        "reference",
    )
