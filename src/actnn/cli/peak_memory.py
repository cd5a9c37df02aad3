"""The true peak of a process's memory, as the kernel counts it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

# For the process that is measured: every large block is mapped on its own and returned when freed, so that resident
# memory is what the program holds and not what the allocator keeps for later. Slows training; never time such a run.
MALLOC_SETTINGS = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


def peak_growth(work: Callable[[], None]) -> int | None:
    """Run ``work``; return by how many bytes this process grew at most, or None where the system does not tell."""
    try:
        Path("/proc/self/clear_refs").write_text("5")  # sets the peak back to what is resident now
    except OSError:
        work()
        return None
    before = resident("VmRSS")
    work()
    return resident("VmHWM") - before


def resident(field: str) -> int:
    """Return a field of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))
