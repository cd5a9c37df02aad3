"""The true memory of this process, as the kernel counts it."""

from __future__ import annotations

from pathlib import Path

# For the process that is measured: every large block is mapped on its own and returned when freed, so that resident
# memory is what the program holds and not what the allocator keeps for later. Slows training; never time such a run.
MALLOC_SETTINGS = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


def reset_peak() -> None:
    """Set the peak back to what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")


def resident(field: str) -> int:
    """Return a field of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))
