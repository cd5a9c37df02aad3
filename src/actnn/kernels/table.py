"""Which backend serves which kind of device."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import lru_cache

from actnn.errors import ConfigError
from actnn.kernels.contract import Array, Arrays, Backend, Status
from actnn.kernels.native import LibraryMissingError, Native, find_library
from actnn.kernels.reference import Reference

_REFERENCE = Reference()


def select(arrays: Arrays, x: Array) -> Backend:
    """Return the backend that serves an array: the native one in host memory, the reference elsewhere."""
    kind = "host" if arrays.on_host(x) else arrays.device(x).partition(":")[0]
    return BACKENDS.get(kind, reference)()


@lru_cache(maxsize=1)
def host_backend() -> tuple[Backend, str]:
    """Return the backend for host memory and the reason for it; warn once where it is the slow one."""
    wanted = os.environ.get("ACTNN_BACKEND", "native")
    if wanted == "reference":
        return _REFERENCE, "ACTNN_BACKEND=reference asks for it"
    if wanted != "native":
        raise ConfigError(f"ACTNN_BACKEND is {wanted!r}: expected 'native' or 'reference'.")
    try:
        backend = Native(find_library())
    except LibraryMissingError as problem:
        warnings.warn(f"actnn runs on its slow reference kernels: {problem}", RuntimeWarning, stacklevel=4)
        return _REFERENCE, str(problem)
    return backend, f"compiled library, {backend.simd} instructions"


def host() -> Backend:
    """Return the backend for host memory."""
    return host_backend()[0]


def reference() -> Backend:
    """Return the backend that runs everywhere."""
    return _REFERENCE


# by the kind of a device; any other has the reference
BACKENDS: dict[str, Callable[[], Backend]] = {"host": host}


def status() -> Status:
    """Tell which backend serves host memory, and why."""
    backend, reason = host_backend()
    if isinstance(backend, Native):
        return Status(backend.name, reason, backend.simd, backend.max_threads, str(backend.path))
    return Status(backend.name, reason, "none", 1, None)
