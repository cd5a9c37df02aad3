"""Which backend serves which kind of device."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec

from actnn.errors import ConfigError, TritonMissingError
from actnn.kernels.contract import Array, Arrays, Backend, Status
from actnn.kernels.native import LibraryMissingError, Native, find_library
from actnn.kernels.reference import Reference

_REFERENCE = Reference()


def select(arrays: Arrays, x: Array) -> Backend:
    """Return the backend that serves an array: the native one in host memory, Triton's on CUDA and ROCm."""
    kind = "host" if arrays.on_host(x) else arrays.device(x).partition(":")[0]
    found = BACKENDS.get(kind)
    return other_backend(kind) if found is None else found()


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


@lru_cache(maxsize=1)
def accelerator_backend() -> tuple[Backend, str]:
    """Return the backend for CUDA and ROCm devices and the reason for it; warn once where it is the slow one."""
    if os.environ.get("ACTNN_BACKEND") == "reference":
        return _REFERENCE, "ACTNN_BACKEND=reference asks for it"
    try:
        return find_triton()
    except TritonMissingError as problem:
        warnings.warn(f"actnn runs on its slow reference kernels: {problem}", RuntimeWarning, stacklevel=4)
        return _REFERENCE, str(problem)


@lru_cache(maxsize=16)
def other_backend(kind: str) -> Backend:
    """Return the backend for devices of a kind that has no kernels of its own; warn once of each."""
    if os.environ.get("ACTNN_BACKEND") != "reference":
        warnings.warn(
            f"actnn runs on its slow reference kernels: there are none for devices of kind {kind!r}, only for the "
            "host, and in torch for CUDA and ROCm. Set ACTNN_BACKEND=reference to ask for these.",
            RuntimeWarning,
            stacklevel=4,
        )
    return _REFERENCE


def find_triton() -> tuple[Backend, str]:
    """Return the backend of Triton and what it compiles for; raise TritonMissingError where it cannot serve."""
    if find_spec("triton") is None:
        raise TritonMissingError("Triton is not installed. Install it with pip install 'actnn[triton]'.")
    # not before there is an accelerator: Triton takes long to import
    from actnn.kernels.triton import Triton, found_target

    return Triton(), found_target()


def host() -> Backend:
    """Return the backend for host memory."""
    return host_backend()[0]


def accelerator() -> Backend:
    """Return the backend for CUDA and ROCm devices, both of which torch calls cuda."""
    return accelerator_backend()[0]


# by the kind of a device; any other has the reference, which runs everywhere
BACKENDS: dict[str, Callable[[], Backend]] = {"host": host, "cuda": accelerator}


def status() -> Status:
    """Tell which backend serves host memory, and why."""
    backend, reason = host_backend()
    if isinstance(backend, Native):
        return Status(backend.name, reason, backend.simd, backend.max_threads, str(backend.path))
    return Status(backend.name, reason, "none", 1, None)
