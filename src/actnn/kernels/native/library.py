"""The compiled library: where it is, what its functions take, and which OpenMP runtime it computes with."""

from __future__ import annotations

import ctypes
import os
import platform
from functools import cache
from pathlib import Path

from actnn.errors import FormatError, UnsupportedError

ABI_VERSION = 9
# the second by the processor: a library has kernels for the vectors of one
SIMD = ("scalar", "neon" if platform.machine() in ("aarch64", "arm64") else "avx2")
FILE_NAMES = ("libactnn_kernels.so", "libactnn_kernels.dylib", "actnn_kernels.dll")
RUNTIME = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")


class CRuntime(ctypes.Structure):
    """``actnn_runtime`` of actnn.h."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in RUNTIME)


# structures of actnn.h are passed as pointers to their bytes, which ``structures`` packs
_INT32, _INT64, _POINTER, _FLOAT = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p, ctypes.c_float
_CALL = (_INT32, _INT32)  # simd, threads
_GRADIENT = (_POINTER, _POINTER, _INT32, *_CALL, _POINTER, _POINTER, _INT32)
SIGNATURES: dict[str, tuple[type, ...]] = {
    "actnn_abi_version": (),
    "actnn_best_simd": (),
    "actnn_use_runtime": (ctypes.POINTER(CRuntime),),
    "actnn_max_threads": (),
    "actnn_encode": (_POINTER, *_CALL, _POINTER, _POINTER, _INT32, _POINTER),
    "actnn_decode": (_POINTER, *_CALL, _INT64, _INT64, _POINTER, _INT32, _POINTER, _INT32),
    "actnn_encode_mask": (_INT64, _INT64, *_CALL, _FLOAT, _POINTER, _INT32, _POINTER),
    "actnn_apply_mask": (_POINTER, _INT64, _INT64, *_CALL, _POINTER, _FLOAT, _FLOAT, _POINTER, _POINTER, _INT32),
    "actnn_encode_index": (_INT64, _INT64, _INT32, _INT32, _POINTER, _POINTER),
    "actnn_decode_index": (_INT64, _INT64, _INT32, _INT32, _POINTER, _POINTER),
    "actnn_decode_output": (_POINTER, _POINTER, *_CALL, _INT64, _INT64, _POINTER, _INT32, _POINTER, _INT32),
    "actnn_decode_function": (*(_POINTER, _INT32, _INT32, _POINTER, *_CALL, _INT64, _INT64, *(_POINTER,) * 3, _INT32),),
    "actnn_statistics_workspace": (_INT64, _INT64, _POINTER),
    "actnn_channel_statistics": (_INT64, _INT64, _POINTER, *_CALL, _POINTER, _INT32, *(_POINTER,) * 5),
    "actnn_normalize": (*(_POINTER,) * 3, *_CALL, _POINTER, _POINTER, _POINTER, _INT32, _POINTER),
    "actnn_gradient_workspace": (_POINTER, _POINTER),
    "actnn_gradient_sums": (*_GRADIENT, *(_POINTER,) * 3),
    "actnn_gradient": (*_GRADIENT, *(_POINTER,) * 5),
    "actnn_ranges": (*(_POINTER,) * 4, *_CALL, _INT64, _POINTER, _INT32, _POINTER),
    "actnn_energy": (_INT64, _INT64, *_CALL, _INT64, _POINTER, _INT32, _POINTER),
    "actnn_divide": (_POINTER, _POINTER),
    "actnn_encode_divided": (_POINTER, _POINTER, *_CALL, _POINTER, _POINTER, _INT32, _POINTER),
    "actnn_forward_workspace": (_POINTER, _POINTER),
    "actnn_backward_workspace": (_POINTER, _POINTER),
    "actnn_batch_norm_forward": (_POINTER, _POINTER, _POINTER),
    "actnn_batch_norm_backward": (_POINTER, _POINTER),
    "actnn_row_forward_workspace": (_POINTER, _POINTER),
    "actnn_row_backward_workspace": (_POINTER, _POINTER),
    "actnn_row_norm_forward": (_POINTER, _POINTER, _POINTER),
    "actnn_row_norm_backward": (_POINTER, _POINTER),
    "actnn_max_pool": (_POINTER, _INT32, _POINTER, _INT32, _POINTER, _POINTER),
    "actnn_max_pool_backward": (_POINTER, _INT32, _POINTER, _POINTER, _INT32, _POINTER),
    "actnn_copy": (_INT64, _INT64, _INT32, _POINTER, _POINTER),
    "actnn_clear": (_INT64, _INT64, _INT32, _POINTER),
    "actnn_heap_usage": (ctypes.POINTER(_INT64),) * 2,
    "actnn_trim_heap": (),
    "actnn_separate_blocks": (_INT64,),
}


class LibraryMissingError(UnsupportedError):
    """The compiled library is not there or cannot be used; the message says why."""


def find_library() -> Path:
    """Return the path of the compiled library; raise LibraryMissingError with the reason otherwise."""
    if chosen := os.environ.get("ACTNN_LIBRARY"):
        return Path(chosen)
    folder = Path(__file__).resolve().parents[2] / "lib"
    for name in FILE_NAMES:
        if (folder / name).exists():
            return folder / name
    raise LibraryMissingError(f"no compiled library in {folder}: this installation was made without the native build.")


def load(path: Path) -> ctypes.CDLL:
    """Load a library and declare its functions."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError as problem:
        raise LibraryMissingError(f"{path} cannot be loaded: {problem}.") from problem
    if not hasattr(library, "actnn_abi_version"):
        raise LibraryMissingError(f"{path} is no library of actnn: it was built from other sources. Set ACTNN_LIBRARY.")
    if (found := library.actnn_abi_version()) != ABI_VERSION:
        raise LibraryMissingError(f"{path} speaks ABI {found}, expected {ABI_VERSION}. Install actnn again.")
    for name, arguments in SIGNATURES.items():
        if not hasattr(library, name):
            raise LibraryMissingError(f"{path} has no {name}: it was built from other sources. Install actnn again.")
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, _INT64 if name.endswith("_workspace") else _INT32
    return library


@cache
def c_runtime(path: Path) -> CRuntime | None:
    """Return an OpenMP runtime as the C ABI wants it; None where it is not loaded, or not one of those it knows."""
    try:
        runtime = ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        return CRuntime(*(ctypes.cast(getattr(runtime, name), ctypes.c_void_p) for name in RUNTIME))
    except (OSError, AttributeError):
        return None


def heap_usage(library: ctypes.CDLL) -> tuple[int, int] | None:
    """Return the bytes that the C library holds, and of them those that nobody uses; None where it cannot tell."""
    held, unused = ctypes.c_int64(), ctypes.c_int64()
    if library.actnn_heap_usage(ctypes.byref(held), ctypes.byref(unused)):
        return None
    return held.value, unused.value


def refuse(name: str, status: int) -> None:
    """Raise FormatError where a function refused its arguments."""
    if status:
        raise FormatError(
            f"the kernel {name} refused its arguments with status {status}, though they were checked before: expected "
            "none that it refuses. Report it, please, with what `actnn doctor` prints."
        )
