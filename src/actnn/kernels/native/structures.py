"""The structures of actnn.h as bytes; what is made once for a layout or a pooling stays on it as its handle."""

from __future__ import annotations

import struct
import threading
from typing import Any

import numpy as np

from actnn.errors import FormatError
from actnn.format import Family
from actnn.kernels.contract import (
    AnyLayout,
    Arrays,
    BatchNorm,
    Channels,
    DividedLayout,
    Division,
    Normalization,
    OutputAffine,
    Pool,
    RowNorm,
    Rows,
    check_divided,
)
from actnn.kernels.reference.division import relief

KEY = struct.Struct("@4I")
LAYOUT = struct.Struct("@qqii10sBBPP")
CHANNELS = struct.Struct("@qq")
NORMALIZATION = struct.Struct("@5P")
OUTPUT = struct.Struct("@qq4Pii")
DIVISION = struct.Struct("@qqPP4diiPPP")
POOL = struct.Struct("@6q8iii")
# the layer of both is actnn_batch_norm: 18 members, filled up to a multiple of 8 bytes
_LAYER = "qqqdd8P5i4x"
FORWARD = struct.Struct(f"@{_LAYER}3i4IPPP")
BACKWARD = struct.Struct(f"@{_LAYER}5iPPPPPqP")
ROWS = struct.Struct("@qqq")
# the layer of both is actnn_row_norm: 11 members, filled up likewise
_ROW_LAYER = "qqqd4P3i4x"
FORWARD_ROW = struct.Struct(f"@{_ROW_LAYER}3i4IPPP")
BACKWARD_ROW = struct.Struct(f"@{_ROW_LAYER}3iPPPPqP")
AXES = ("input", "output", "kernel", "stride", "padding", "dilation")
EVENLY = (0.0, 0.0, 0.0, 0.0)
RELIEF_STEPS = 7
FLOAT_BYTES = 4
# in floats; more than that is given back after the call
MOST_SCRATCH = 1 << 16


class Handle(bytes):
    """The bytes of a structure, and the memory that they point to."""

    keep_alive: Any


def layout_handle(layout: AnyLayout) -> bytes:
    """Make the ``actnn_layout`` of a layout, and keep it there."""
    shape = layout.samples, layout.elements, layout.bits
    kind = layout.rounding, bytes(layout.family.negative), layout.family.curve, layout.family.unit
    if isinstance(layout, DividedLayout):
        packed = LAYOUT.pack(*shape, *kind, layout.block.bits_address, layout.block.address)
        layout.handle = packed
        return packed
    arrays: tuple[Any, ...] = ()
    if layout.sample_bits is not None:
        arrays = np.array(layout.sample_bits, np.uint8), np.array(layout.sample_offsets, np.int64)
    addresses = [array.ctypes.data for array in arrays] or (0, 0)
    handle = Handle(LAYOUT.pack(*shape, *kind, *addresses))
    handle.keep_alive = arrays
    object.__setattr__(layout, "handle", handle)
    return handle


def pool_handle(pool: Pool) -> bytes:
    """Make the ``actnn_pool`` of a pooling, and keep it there: one-dimensional pooling has height 1."""
    flat = len(pool.kernel) == 1
    sizes = [size for name in AXES for size in (0 if name == "padding" else 1,) * flat + getattr(pool, name)]
    handle = POOL.pack(pool.samples, pool.channels, *sizes, pool.channels_last, pool.bits)
    object.__setattr__(pool, "handle", handle)
    return handle


def c_channels(channels: Channels) -> bytes:
    """Return ``actnn_channels``."""
    return CHANNELS.pack(channels.count, channels.inner)


def c_normalization(arrays: Arrays, normalization: Normalization) -> bytes:
    """Return ``actnn_normalization``."""
    return NORMALIZATION.pack(
        arrays.pointer(normalization.slope),
        arrays.pointer(normalization.offset),
        arrays.pointer(normalization.mean),
        arrays.pointer(normalization.inverse),
        arrays.pointer(normalization.threshold),
    )


def c_output(arrays: Arrays, affine: OutputAffine, workspace: int) -> bytes:
    """Return ``actnn_output``."""
    pointer, codes, gamma, beta, threshold = arrays.pointer, arrays.codes, affine.gamma, affine.beta, affine.threshold
    return OUTPUT.pack(
        affine.channels.count,
        affine.channels.inner,
        0 if gamma is None else pointer(gamma),
        0 if beta is None else pointer(beta),
        0
        if threshold is None
        else pointer(threshold) + FLOAT_BYTES * affine.channels.count * (affine.rows_before or 0),
        workspace,
        0 if gamma is None else codes[gamma.dtype],
        0 if beta is None else codes[beta.dtype],
    )


def layer_fields(arrays: Arrays, normalization: BatchNorm, workspace: int) -> tuple[Any, ...]:
    """Return the members of ``actnn_batch_norm`` that a forward reads."""
    pointer, codes, channels = arrays.pointer, arrays.codes, normalization.channels
    gamma, beta, statistics = normalization.gamma, normalization.beta, normalization.statistics
    batches, (mean, variance) = normalization.batches, normalization.running or (None, None)
    return (
        channels.count,
        channels.inner,
        normalization.count,
        normalization.epsilon,
        normalization.momentum,
        0 if gamma is None else pointer(gamma),
        0 if beta is None else pointer(beta),
        0 if mean is None else pointer(mean),
        0 if variance is None else pointer(variance),
        0 if statistics is None else pointer(statistics),
        pointer(normalization.saved),
        workspace,
        0 if batches is None else pointer(batches),
        0 if gamma is None else codes[gamma.dtype],
        0 if beta is None else codes[beta.dtype],
        0 if mean is None else codes[mean.dtype],
        0 if variance is None else codes[variance.dtype],
        normalization.unbiased,
    )


def backward_fields(arrays: Arrays, normalization: BatchNorm, workspace: int) -> tuple[Any, ...]:
    """Return the members of ``actnn_batch_norm`` that a backward reads, which are few."""
    pointer, channels, gamma = arrays.pointer, normalization.channels, normalization.gamma
    places = 0 if gamma is None else pointer(gamma), 0, 0, 0, 0, pointer(normalization.saved), workspace, 0
    dtype = 0 if gamma is None else arrays.codes[gamma.dtype]
    return channels.count, channels.inner, normalization.count, normalization.epsilon, 0.0, *places, dtype, 0, 0, 0, 0


def c_rows(rows: Rows) -> bytes:
    """Return ``actnn_rows``."""
    return ROWS.pack(rows.width, rows.parameters, rows.inner)


def row_fields(arrays: Arrays, normalization: RowNorm, workspace: int) -> tuple[Any, ...]:
    """Return the members of ``actnn_row_norm``."""
    rows, gamma, beta = normalization.rows, normalization.gamma, normalization.beta
    return (
        rows.width,
        rows.parameters,
        rows.inner,
        normalization.epsilon,
        0 if gamma is None else arrays.pointer(gamma),
        0 if beta is None else arrays.pointer(beta),
        arrays.pointer(normalization.saved),
        workspace,
        0 if gamma is None else arrays.codes[gamma.dtype],
        0 if beta is None else arrays.codes[beta.dtype],
        normalization.centred,
    )


class Divisions:
    """Makes ``actnn_division``; remembers where the norms lie, which all codes of a step share."""

    def __init__(self) -> None:
        self._norms: tuple[Any, int] = (None, 0)

    def pack(self, layout: AnyLayout, division: Division) -> bytes:
        """Return the bytes of a division of a layout's planes."""
        layout = check_divided(layout)
        block, family, weights = layout.block, layout.family, division.weights
        return DIVISION.pack(
            layout.planes,
            division.stride,
            relief_address(family),
            0 if division.norms is None else self._address(division.norms, layout.samples),
            *(EVENLY if weights is None else weights),
            weights is not None,
            family.least_bits,
            block.ranges_address,
            block.bits_address,
            block.address,
        )

    def _address(self, norms: Any, samples: int) -> int:
        known, address = self._norms
        if known is not norms:
            if norms.dtype != np.float64 or not norms.flags.c_contiguous:
                raise FormatError(f"norms of type {norms.dtype} were given: expected float64, one after another.")
            address = int(norms.ctypes.data)
            self._norms = norms, address
        if len(norms) != samples:
            raise FormatError(f"{len(norms)} norms were given for {samples} samples: expected one each.")
        return address


# by the numbers that a family consists of: memory, and its address
_RELIEFS: dict[tuple[Any, ...], tuple[np.ndarray, int]] = {}


def relief_address(family: Family) -> int:
    """Return the address of what each plane relieves: seven numbers a side, negative first, 0 past the last plane."""
    name = family.negative, family.least_bits
    if name not in _RELIEFS:
        table = np.zeros((2, RELIEF_STEPS))
        for side, falls in zip(table, relief(family), strict=True):
            side[: len(falls)] = falls
        _RELIEFS[name] = table, int(table.ctypes.data)
    return _RELIEFS[name][1]


class Scratch(threading.local):
    """Memory of each thread that kernels may write to during a call."""

    def __init__(self) -> None:
        self._memory = np.empty(MOST_SCRATCH, np.float32)
        self.address = int(self._memory.ctypes.data)

    def room(self, floats: int) -> tuple[int, Any]:
        """Return the address of some floats, and what must live as long as they are used."""
        if floats <= MOST_SCRATCH:
            return self.address, None
        memory = np.empty(floats, np.float32)
        return int(memory.ctypes.data), memory
