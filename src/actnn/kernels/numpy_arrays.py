"""numpy as a lender of arrays: what tests, tools and the allocation use where no framework is loaded."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from actnn.errors import UnsupportedError
from actnn.kernels.contract import Array, Codes, Moves


class NumpyArrays:
    """The array operations of the contract, by numpy; it has no bfloat16."""

    codes = Codes({np.dtype(np.float32): 0, np.dtype(np.float16): 1})
    byte = np.dtype(np.uint8)
    lends_threads = False

    def dtype(self, x: Array) -> str:
        return str(x.dtype)

    def on_host(self, x: Array) -> bool:
        return True

    def device(self, x: Array) -> str:
        return "cpu"

    def moves(self, x: Array) -> Moves:
        raise UnsupportedError("numpy has no device but the host, from which nothing needs to be moved.")

    def pointer(self, x: Array) -> int:
        return int(x.ctypes.data)

    def numpy(self, x: Array) -> np.ndarray:
        return np.asarray(x)

    def from_numpy(self, x: np.ndarray) -> Array:
        return x

    def upload(self, x: np.ndarray, like: Array) -> Array:
        return x.copy()

    def computing_on(self, x: Array) -> AbstractContextManager[None]:
        return nullcontext()

    def ticket(self, number: int, release: Callable[[int], None]) -> Array:
        ticket = np.array([number])
        weakref.finalize(ticket, release, number).atexit = False
        return ticket

    def threads(self) -> int:
        return os.cpu_count() or 1

    def runtime(self) -> None:
        return None

    def empty(self, shape: Sequence[int], dtype: str, like: Array) -> Array:
        return np.empty(shape, dtype)

    def bytes(self, count: int, like: Array) -> Array:
        return np.empty(count, np.uint8)

    def as_bytes(self, x: Array) -> Array:
        return np.ascontiguousarray(x).reshape(-1).view(np.uint8)

    def arange(self, start: int, stop: int, like: Array) -> Array:
        return np.arange(start, stop, dtype=np.int64)

    def cast(self, x: Array, dtype: str) -> Array:
        return x.astype(dtype)

    def where(self, condition: Array, x: Array, y: Array | float) -> Array:
        return np.where(condition, x, y)

    def amin(self, x: Array) -> Array:
        return x.min(-1)

    def amax(self, x: Array) -> Array:
        return x.max(-1)

    def rint(self, x: Array) -> Array:
        return np.rint(x)

    def divide(self, x: Array, y: Array) -> Array:
        return x / y

    def sqrt(self, x: Array) -> Array:
        return np.sqrt(x)

    def isfinite(self, x: Array) -> Array:
        return np.isfinite(x)

    def concatenate(self, parts: Sequence[Array], axis: int) -> Array:
        return np.concatenate(parts, axis)

    def stack(self, parts: Sequence[Array], axis: int) -> Array:
        return np.stack(parts, axis)

    def transpose(self, x: Array, axes: Sequence[int]) -> Array:
        return x.transpose(axes)

    def float_bits(self, x: Array) -> Array:
        return np.ascontiguousarray(x).view(np.int32).astype(np.int64)

    def bits_float(self, x: Array) -> Array:
        return x.astype(np.int32).view(np.float32)
