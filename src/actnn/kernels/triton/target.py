"""What Triton compiles for on this machine."""

from __future__ import annotations

import triton

from actnn.errors import TritonMissingError


def found_target() -> str:
    """Return what kernels are compiled for; raise TritonMissingError where Triton finds no driver of a device."""
    try:
        target = triton.runtime.driver.active.get_current_target()
    # what Triton raises depends on the vendor: no active driver, or a library of one that does not load
    except (RuntimeError, OSError, ImportError, AssertionError) as problem:
        reason = str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
        raise TritonMissingError(
            f"Triton {triton.__version__} finds no accelerator ({reason}). Install the driver of the device."
        ) from problem
    return f"compiles for {target.backend} {target.arch} by Triton {triton.__version__}"
