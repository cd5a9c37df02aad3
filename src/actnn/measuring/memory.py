"""The true memory of this process, as the kernel counts it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

# For the process that is measured: every large block is mapped on its own and returned when freed, so that resident
# memory is what the program holds and not what the allocator keeps for later. Slows training; never time it so.
MALLOC_SETTINGS = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


def reset_peak() -> None:
    """Set the peak back to what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")


def resident(field: str) -> int:
    """Return a field of /proc/self/status in bytes."""
    return field_of(Path("/proc/self/status"), field)


def peak_growth(work: Callable[[], object]) -> int:
    """Return by how many bytes this process grows at most during some work."""
    reset_peak()
    before = resident("VmRSS")
    work()
    return resident("VmHWM") - before


def available() -> int:
    """Return the memory that processes can have without swapping."""
    return field_of(Path("/proc/meminfo"), "MemAvailable")


def machine_total() -> int:
    """Return the memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def field_of(source: Path, field: str) -> int:
    """Return the bytes of a line such as ``VmRSS:  1024 kB``."""
    lines = source.read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))
