"""The compiled kernels, reached through their C ABI."""

from actnn.kernels.native.backend import Native
from actnn.kernels.native.library import SIMD, LibraryMissingError, find_library

__all__ = ["SIMD", "LibraryMissingError", "Native", "find_library"]
