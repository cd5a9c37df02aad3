"""The compiled kernels, reached through their C ABI."""

from __future__ import annotations

import ctypes
import os
from functools import cache, lru_cache
from pathlib import Path

from actnn.errors import FormatError, UnsupportedError
from actnn.format import Layout, Part, index_bytes
from actnn.kernels.contract import (
    FLOATS,
    Array,
    Arrays,
    ChannelAffine,
    Channels,
    Key,
    Normalization,
    Pool,
    check_buffer,
)
from actnn.kernels.reference import Reference

ABI_VERSION = 4
SIMD = ("scalar", "avx2")
DTYPES = {name: number for number, name in enumerate(FLOATS)}
FILE_NAMES = ("libactnn_kernels.so", "libactnn_kernels.dylib", "actnn_kernels.dll")
PARAMETERS = ("slope", "offset", "mean", "inverse", "threshold")
RUNTIME = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
AXES = ("input", "output", "kernel", "stride", "padding", "dilation")


class CLayout(ctypes.Structure):
    """``actnn_layout`` of actnn.h."""

    _fields_ = (
        ("samples", ctypes.c_int64),
        ("elements", ctypes.c_int64),
        ("bits", ctypes.c_int32),
        ("rounding", ctypes.c_int32),
        ("negative", ctypes.c_uint8 * 12),
        ("sample_bits", ctypes.c_void_p),
        ("sample_offsets", ctypes.c_void_p),
    )


class CChannels(ctypes.Structure):
    """``actnn_channels`` of actnn.h."""

    _fields_ = (("channels", ctypes.c_int64), ("inner", ctypes.c_int64))


class CNormalization(ctypes.Structure):
    """``actnn_normalization`` of actnn.h."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in PARAMETERS)


class CPool(ctypes.Structure):
    """``actnn_pool`` of actnn.h."""

    _fields_ = (
        ("samples", ctypes.c_int64),
        ("channels", ctypes.c_int64),
        ("input", ctypes.c_int64 * 2),
        ("output", ctypes.c_int64 * 2),
        ("kernel", ctypes.c_int32 * 2),
        ("stride", ctypes.c_int32 * 2),
        ("padding", ctypes.c_int32 * 2),
        ("dilation", ctypes.c_int32 * 2),
        ("channels_last", ctypes.c_int32),
        ("bits", ctypes.c_int32),
    )


class CRuntime(ctypes.Structure):
    """``actnn_runtime`` of actnn.h."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in RUNTIME)


_INT32, _INT64, _POINTER, _FLOAT = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p, ctypes.c_float
_LAYOUT, _CHANNELS, _POOL = ctypes.POINTER(CLayout), ctypes.POINTER(CChannels), ctypes.POINTER(CPool)
_NORMALIZATION, _KEY = ctypes.POINTER(CNormalization), ctypes.c_uint32 * 4
_CALL = (_INT32, _INT32)  # simd, threads
SIGNATURES: dict[str, tuple[type, ...]] = {
    "actnn_abi_version": (),
    "actnn_best_simd": (),
    "actnn_use_runtime": (ctypes.POINTER(CRuntime),),
    "actnn_max_threads": (),
    "actnn_encode": (_LAYOUT, *_CALL, _KEY, _POINTER, _INT32, _POINTER),
    "actnn_decode": (_LAYOUT, *_CALL, _INT64, _INT64, _POINTER, _INT32, _POINTER, _INT32),
    "actnn_encode_mask": (_INT64, _INT64, *_CALL, _POINTER, _INT32, _POINTER),
    "actnn_apply_mask": (_LAYOUT, _INT64, _INT64, *_CALL, _POINTER, _FLOAT, _FLOAT, _POINTER, _POINTER, _INT32),
    "actnn_encode_index": (_INT64, _INT64, _INT32, _INT32, _POINTER, _POINTER),
    "actnn_decode_index": (_INT64, _INT64, _INT32, _INT32, _POINTER, _POINTER),
    "actnn_decode_affine": (
        *(_LAYOUT, _CHANNELS, *_CALL, _INT64, _INT64),
        *(_POINTER, _INT32, _POINTER, _POINTER, _POINTER, _INT32),
    ),
    "actnn_statistics_workspace": (_INT64, _INT64, _CHANNELS),
    "actnn_channel_statistics": (_INT64, _INT64, _CHANNELS, *_CALL, _POINTER, _INT32, *(_POINTER,) * 5),
    "actnn_normalize": (_LAYOUT, _CHANNELS, _NORMALIZATION, *_CALL, _KEY, _POINTER, _POINTER, _INT32, _POINTER),
    "actnn_gradient_workspace": (_LAYOUT, _CHANNELS),
    "actnn_gradient_sums": (_LAYOUT, _CHANNELS, _INT32, *_CALL, _POINTER, _POINTER, _INT32, *(_POINTER,) * 3),
    "actnn_gradient": (_LAYOUT, _CHANNELS, _INT32, *_CALL, _POINTER, _POINTER, _INT32, *(_POINTER,) * 4),
    "actnn_ranges": (
        *(_LAYOUT, _CHANNELS, _NORMALIZATION, _POINTER, *_CALL),
        *(_INT64, _POINTER, _INT32, _POINTER),
    ),
    "actnn_energy": (_INT64, _INT64, *_CALL, _INT64, _POINTER, _INT32, _POINTER),
    "actnn_max_pool": (_POOL, _INT32, _POINTER, _INT32, _POINTER, _POINTER),
    "actnn_copy": (_INT64, _INT64, _INT32, _POINTER, _POINTER),
    "actnn_clear": (_INT64, _INT64, _INT32, _POINTER),
    "actnn_heap_usage": (ctypes.POINTER(_INT64),) * 2,
    "actnn_trim_heap": (),
    "actnn_separate_blocks": (_INT64,),
    "actnn_max_pool_backward": (_POOL, _INT32, _POINTER, _POINTER, _INT32, _POINTER),
}
SIZES = ("actnn_statistics_workspace", "actnn_gradient_workspace")


class LibraryMissingError(UnsupportedError):
    """The compiled library is not there or cannot be used; the message says why."""


class Native:
    """The backend of the compiled library, for arrays in host memory."""

    name = "native"

    def __init__(self, path: Path, simd: str | None = None) -> None:
        self.path = path
        self._reference = Reference()
        self._library = load(path)
        best = self._library.actnn_best_simd()
        self._simd = best if simd is None else SIMD.index(simd)
        if self._simd > best:
            raise UnsupportedError(f"this CPU does not run {simd}: the best it does is {SIMD[best]}.")

    @property
    def simd(self) -> str:
        """Name of the instruction set in use."""
        return SIMD[self._simd]

    @property
    def max_threads(self) -> int:
        """Threads that the library's OpenMP runtime would use by itself."""
        return int(self._library.actnn_max_threads())

    def shares(self, runtime: Path) -> bool:
        """Tell whether kernels can compute with the threads of an OpenMP runtime: one they know, and loaded already."""
        return c_runtime(runtime) is not None

    def encode(self, arrays: Arrays, values: Array, layout: Layout, key: Key, buffer: Array | None = None) -> Array:
        buffer = space(arrays, values, layout.nbytes, buffer)
        self._call(
            "actnn_encode",
            c_layout(layout),
            self._simd,
            self._threads(arrays),
            (ctypes.c_uint32 * 4)(*key),
            arrays.pointer(values),
            dtype_code(arrays, values),
            arrays.pointer(buffer),
        )
        return buffer

    def decode(
        self,
        arrays: Arrays,
        buffer: Array,
        layout: Layout,
        part: Part,
        dtype: str,
        affine: ChannelAffine | None = None,
        samples: range | None = None,
    ) -> Array:
        first, count = (0, layout.samples) if samples is None else (samples.start, len(samples))
        values = arrays.empty((count, layout.elements), dtype, buffer)
        call = self._simd, self._threads(arrays), first, count, arrays.pointer(buffer), int(part)
        result = arrays.pointer(values), dtype_code(arrays, values)
        if affine is None:
            self._call("actnn_decode", c_layout(layout), *call, *result)
        else:
            parameters = arrays.pointer(affine.scale), arrays.pointer(affine.shift)
            self._call(
                "actnn_decode_affine", c_layout(layout), c_channels(affine.channels), *call, *parameters, *result
            )
        return values

    def encode_mask(self, arrays: Arrays, values: Array, buffer: Array | None = None) -> Array:
        samples, elements = values.shape
        planes = space(arrays, values, index_bytes(samples, elements, 1), buffer)
        self._call(
            "actnn_encode_mask",
            samples,
            elements,
            self._simd,
            self._threads(arrays),
            arrays.pointer(values),
            dtype_code(arrays, values),
            arrays.pointer(planes),
        )
        return planes

    def apply_mask(
        self, arrays: Arrays, mask: Array, layout: Layout | None, grad: Array, above: float, below: float
    ) -> Array:
        samples, elements = grad.shape
        out = arrays.empty((samples, elements), arrays.dtype(grad), grad)
        self._call(
            "actnn_apply_mask",
            None if layout is None else c_layout(layout),
            samples,
            elements,
            self._simd,
            self._threads(arrays),
            arrays.pointer(mask),
            above,
            below,
            arrays.pointer(grad),
            arrays.pointer(out),
            dtype_code(arrays, grad),
        )
        return out

    def encode_index(self, arrays: Arrays, values: Array, bits: int, buffer: Array | None = None) -> Array:
        samples, elements = values.shape
        planes = space(arrays, values, index_bytes(samples, elements, bits), buffer)
        pointers = arrays.pointer(values), arrays.pointer(planes)
        self._call("actnn_encode_index", samples, elements, bits, self._threads(arrays), *pointers)
        return planes

    def decode_index(self, arrays: Arrays, planes: Array, samples: int, elements: int, bits: int) -> Array:
        values = arrays.empty((samples, elements), "int32", planes)
        pointers = arrays.pointer(planes), arrays.pointer(values)
        self._call("actnn_decode_index", samples, elements, bits, self._threads(arrays), *pointers)
        return values

    def channel_statistics(self, arrays: Arrays, values: Array, channels: Channels) -> tuple[Array, ...]:
        shape = (*values.shape, c_channels(channels))
        workspace = arrays.empty((self._library.actnn_statistics_workspace(*shape),), "float32", values)
        results = tuple(arrays.empty((channels.count,), "float32", values) for _ in range(4))
        self._call(
            "actnn_channel_statistics",
            *shape,
            self._simd,
            self._threads(arrays),
            arrays.pointer(values),
            dtype_code(arrays, values),
            arrays.pointer(workspace),
            *map(arrays.pointer, results),
        )
        return results

    def normalize(
        self,
        arrays: Arrays,
        values: Array,
        out: Array,
        channels: Channels,
        normalization: Normalization,
        layout: Layout,
        key: Key,
        buffer: Array | None = None,
    ) -> Array:
        buffer = space(arrays, values, layout.nbytes, buffer)
        self._call(
            "actnn_normalize",
            c_layout(layout),
            c_channels(channels),
            c_normalization(arrays, normalization),
            self._simd,
            self._threads(arrays),
            (ctypes.c_uint32 * 4)(*key),
            arrays.pointer(values),
            arrays.pointer(out),
            dtype_code(arrays, values),
            arrays.pointer(buffer),
        )
        return buffer

    def gradient_sums(
        self, arrays: Arrays, grad: Array, channels: Channels, code: Array, layout: Layout, rectified: bool
    ) -> tuple[Array, Array]:
        shape = c_layout(layout), c_channels(channels)
        workspace = arrays.empty((self._library.actnn_gradient_workspace(*shape),), "float32", grad)
        sums = tuple(arrays.empty((channels.count,), "float32", grad) for _ in range(2))
        operands = self._gradient(arrays, grad, code, rectified)
        self._call("actnn_gradient_sums", *shape, *operands, arrays.pointer(workspace), *map(arrays.pointer, sums))
        return sums

    def gradient(
        self,
        arrays: Arrays,
        grad: Array,
        channels: Channels,
        code: Array,
        layout: Layout,
        rectified: bool,
        coefficients: tuple[Array, Array, Array],
    ) -> Array:
        out = arrays.empty(grad.shape, arrays.dtype(grad), grad)
        shape = c_layout(layout), c_channels(channels)
        operands = self._gradient(arrays, grad, code, rectified)
        self._call("actnn_gradient", *shape, *operands, *map(arrays.pointer, coefficients), arrays.pointer(out))
        return out

    def _gradient(self, arrays: Arrays, grad: Array, code: Array, rectified: bool) -> tuple[int, ...]:
        """Return the arguments that both functions of a gradient share."""
        pointers = arrays.pointer(code), arrays.pointer(grad)
        return int(rectified), self._simd, self._threads(arrays), *pointers, dtype_code(arrays, grad)

    def ranges(
        self,
        arrays: Arrays,
        values: Array,
        layout: Layout,
        stride: int,
        channels: Channels | None = None,
        normalization: Normalization | None = None,
        weight: Array | None = None,
    ) -> Array:
        result = arrays.empty((layout.samples, 4), "float32", values)
        self._call(
            "actnn_ranges",
            c_layout(layout),
            None if channels is None else c_channels(channels),
            None if normalization is None else c_normalization(arrays, normalization),
            None if weight is None else arrays.pointer(weight),
            self._simd,
            self._threads(arrays),
            stride,
            arrays.pointer(values),
            dtype_code(arrays, values),
            arrays.pointer(result),
        )
        return result

    def energy(self, arrays: Arrays, values: Array, stride: int) -> Array:
        result = arrays.empty((values.shape[0],), "float32", values)
        operands = arrays.pointer(values), dtype_code(arrays, values), arrays.pointer(result)
        self._call("actnn_energy", *values.shape, self._simd, self._threads(arrays), stride, *operands)
        return result

    def max_pool(self, arrays: Arrays, values: Array, out: Array, pool: Pool, buffer: Array | None = None) -> Array:
        if len(pool.kernel) > 2:
            return self._reference.max_pool(arrays, values, out, pool, buffer)
        planes = space(arrays, values, pool.nbytes, buffer)
        operands = arrays.pointer(values), dtype_code(arrays, values), arrays.pointer(out), arrays.pointer(planes)
        self._call("actnn_max_pool", c_pool(pool), self._threads(arrays), *operands)
        return planes

    def max_pool_backward(self, arrays: Arrays, planes: Array, grad: Array, pool: Pool) -> Array:
        if len(pool.kernel) > 2:
            return self._reference.max_pool_backward(arrays, planes, grad, pool)
        out = arrays.empty((pool.samples, pool.elements[0]), arrays.dtype(grad), grad)
        operands = arrays.pointer(planes), arrays.pointer(grad), dtype_code(arrays, grad), arrays.pointer(out)
        self._call("actnn_max_pool_backward", c_pool(pool), self._threads(arrays), *operands)
        return out

    def copy(self, arrays: Arrays, values: Array, out: Array, nbytes: int, piece: int) -> None:
        """Copy memory with the kernels' own threads, a memcpy for each piece: a yardstick for their speed."""
        self._call("actnn_copy", nbytes, piece, self._threads(arrays), arrays.pointer(values), arrays.pointer(out))

    def clear(self, arrays: Arrays, out: Array, nbytes: int, piece: int) -> None:
        """Clear memory with the kernels' own threads, a memset for each piece: a yardstick for their speed."""
        self._call("actnn_clear", nbytes, piece, self._threads(arrays), arrays.pointer(out))

    def heap_usage(self) -> tuple[int, int] | None:
        """Return the bytes that the C library holds, and of them those that nobody uses; None where it cannot tell."""
        held, unused = ctypes.c_int64(), ctypes.c_int64()
        if self._library.actnn_heap_usage(ctypes.byref(held), ctypes.byref(unused)):
            return None
        return held.value, unused.value

    def trim_heap(self) -> bool:
        """Let the system have what the C library holds and nobody uses; tell whether that can be done here."""
        return not self._library.actnn_trim_heap()

    def separate_blocks(self, least: int) -> bool:
        """Let blocks of at least so many bytes go back to the system when freed; tell whether that can be done here."""
        return not self._library.actnn_separate_blocks(least)

    def _threads(self, arrays: Arrays) -> int:
        """Let the next kernel of this thread compute with the threads of whoever lends arrays; return how many."""
        runtime = arrays.runtime()
        self._library.actnn_use_runtime(None if runtime is None else c_runtime(runtime))
        return arrays.threads()

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise FormatError(f"{name} refused its arguments with status {status} (see actnn.h).")


def find_library() -> Path:
    """Return the path of the compiled library; raise LibraryMissingError with the reason otherwise."""
    if chosen := os.environ.get("ACTNN_LIBRARY"):
        return Path(chosen)
    folder = Path(__file__).resolve().parent.parent / "lib"
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
    for name, arguments in SIGNATURES.items():
        if not hasattr(library, name):
            raise LibraryMissingError(f"{path} has no {name}: it was built from other sources. Install actnn again.")
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, _INT64 if name in SIZES else _INT32
    if (found := library.actnn_abi_version()) != ABI_VERSION:
        raise LibraryMissingError(f"{path} speaks ABI {found}, expected {ABI_VERSION}. Install actnn again.")
    return library


@cache
def c_runtime(path: Path) -> CRuntime | None:
    """Return an OpenMP runtime as the C ABI wants it; None where it is not loaded, or not one of those it knows."""
    try:
        runtime = ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        return CRuntime(*(ctypes.cast(getattr(runtime, name), ctypes.c_void_p) for name in RUNTIME))
    except (OSError, AttributeError):
        return None


@lru_cache(maxsize=4096)
def c_layout(layout: Layout) -> CLayout:
    """Return the layout as the C ABI wants it; the arrays it points to live as long as it does."""
    negative = (ctypes.c_uint8 * 12)(*layout.family.negative)
    result = CLayout(layout.samples, layout.elements, layout.bits, int(layout.rounding), negative, None, None)
    if layout.sample_bits is not None:
        bits = (ctypes.c_uint8 * layout.samples).from_buffer_copy(bytes(layout.sample_bits))
        offsets = (ctypes.c_int64 * (layout.samples + 1))(*layout.sample_offsets)
        result.sample_bits, result.sample_offsets = ctypes.addressof(bits), ctypes.addressof(offsets)
        result.keep_alive = bits, offsets
    return result


@lru_cache(maxsize=4096)
def c_channels(channels: Channels) -> CChannels:
    """Return the channels as the C ABI wants them."""
    return CChannels(channels.count, channels.inner)


def c_normalization(arrays: Arrays, normalization: Normalization) -> CNormalization:
    """Return pointers to the arrays of a normalization."""
    return CNormalization(*(arrays.pointer(getattr(normalization, name)) for name in PARAMETERS))


@lru_cache(maxsize=4096)
def c_pool(pool: Pool) -> CPool:
    """Return the geometry of a pooling as the C ABI wants it: one-dimensional pooling has height 1."""
    flat = len(pool.kernel) == 1
    sizes = ((0 if name == "padding" else 1,) * flat + getattr(pool, name) for name in AXES)
    return CPool(pool.samples, pool.channels, *sizes, pool.channels_last, pool.bits)


def space(arrays: Arrays, like: Array, nbytes: int, buffer: Array | None) -> Array:
    """Return bytes for a code: the buffer that the caller gave, or new ones."""
    return arrays.empty((nbytes,), "uint8", like) if buffer is None else check_buffer(arrays, buffer, nbytes)


def dtype_code(arrays: Arrays, x: Array) -> int:
    """Return the ABI's number of an array's dtype."""
    name = arrays.dtype(x)
    if name not in DTYPES:
        raise UnsupportedError(f"the kernels take {', '.join(FLOATS)}; they were given {name}.")
    return DTYPES[name]
