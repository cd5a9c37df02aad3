"""The compiled rows of codes, masks, indices and pooling."""

from __future__ import annotations

import math
from pathlib import Path

from actnn.format import Part, index_bytes
from actnn.kernels.contract import (
    AnyLayout,
    Array,
    Arrays,
    DividedLayout,
    Division,
    Key,
    OutputAffine,
    Pool,
    Smooth,
    Span,
    check_buffer,
)
from actnn.kernels.native.calls import Calls, space
from actnn.kernels.native.library import refuse
from actnn.kernels.native.structures import KEY, c_output, layout_handle, pool_handle
from actnn.kernels.reference import Reference
from actnn.kernels.reference.smooth import check_function


class CodeRows(Calls):
    """The rows that make and read codes."""

    def __init__(self, path: Path, simd: str | None = None) -> None:
        super().__init__(path, simd)
        self._reference = Reference()
        library = self._library
        self._encode = library.actnn_encode
        self._encode_divided = library.actnn_encode_divided
        self._divide = library.actnn_divide
        self._decode = library.actnn_decode
        self._decode_output = library.actnn_decode_output
        self._decode_function = library.actnn_decode_function
        self._encode_mask = library.actnn_encode_mask
        self._apply_mask = library.actnn_apply_mask
        self._energy = library.actnn_energy
        self._max_pool = library.actnn_max_pool
        self._max_pool_backward = library.actnn_max_pool_backward

    def encode(
        self,
        arrays: Arrays,
        values: Array,
        layout: AnyLayout,
        key: Key,
        buffer: Array | None = None,
        division: Division | None = None,
    ) -> Array:
        if buffer is None:
            buffer = arrays.bytes(layout.nbytes, values)
        else:
            check_buffer(arrays, buffer, layout.nbytes)
        form = layout.handle or layout_handle(layout)
        operands = arrays.pointer(values), arrays.codes[values.dtype], arrays.pointer(buffer)
        call = self._simd, self._threads(arrays), KEY.pack(*key)
        if division is None:
            if status := self._encode(form, *call, *operands):
                refuse("actnn_encode", status)
        elif status := self._encode_divided(form, self._divisions.pack(layout, division), *call, *operands):
            refuse("actnn_encode_divided", status)
        return buffer

    def divide(self, layout: DividedLayout, division: Division) -> None:
        form = layout.handle or layout_handle(layout)
        refuse("actnn_divide", self._divide(form, self._divisions.pack(layout, division)))

    def decode(
        self,
        arrays: Arrays,
        buffer: Array,
        layout: AnyLayout,
        part: Part,
        dtype: str,
        affine: OutputAffine | None = None,
        samples: range | None = None,
        out: Array | None = None,
    ) -> Array:
        first, count = (0, layout.samples) if samples is None else (samples.start, len(samples))
        if out is None:
            out = arrays.empty((count, layout.elements), dtype, buffer)
        form = layout.handle or layout_handle(layout)
        call = self._simd, self._threads(arrays), first, count, arrays.pointer(buffer), part
        result = arrays.pointer(out), arrays.codes[out.dtype]
        if affine is None:
            if status := self._decode(form, *call, *result):
                refuse("actnn_decode", status)
        else:
            room, kept = self._scratch.room(2 * affine.channels.count)
            if status := self._decode_output(form, c_output(arrays, affine, room), *call, *result):
                refuse("actnn_decode_output", status)
            del kept
        return out

    def decode_function(
        self,
        arrays: Arrays,
        buffer: Array,
        layout: AnyLayout,
        function: Smooth,
        derivative: int,
        dtype: str,
        affine: OutputAffine | None = None,
        samples: range | None = None,
        out: Array | None = None,
        grad: Array | None = None,
    ) -> Array:
        check_function(layout, derivative, affine)
        first, count = (0, layout.samples) if samples is None else (samples.start, len(samples))
        if out is None:
            out = arrays.empty((count, layout.elements), dtype, buffer)
        parameters = None if affine is None else c_output(arrays, affine, 0)
        if grad is not None and arrays.dtype(grad) != arrays.dtype(out):
            grad = arrays.cast(grad, arrays.dtype(out))
        status = self._decode_function(
            layout.handle or layout_handle(layout),
            function,
            derivative,
            parameters,
            self._simd,
            self._threads(arrays),
            first,
            count,
            arrays.pointer(buffer),
            0 if grad is None else arrays.pointer(grad),
            arrays.pointer(out),
            arrays.codes[out.dtype],
        )
        refuse("actnn_decode_function", status)
        return out

    def encode_mask(
        self,
        arrays: Arrays,
        values: Array,
        buffer: Array | None = None,
        rows: tuple[int, int] | None = None,
        upper: float | None = None,
    ) -> Array:
        samples, elements = values.shape if rows is None else rows
        planes = space(arrays, values, index_bytes(samples, elements, 1), buffer)
        operands = arrays.pointer(values), arrays.codes[values.dtype], arrays.pointer(planes)
        bound = math.nan if upper is None else upper
        if status := self._encode_mask(samples, elements, self._simd, self._threads(arrays), bound, *operands):
            refuse("actnn_encode_mask", status)
        return planes

    def apply_mask(
        self,
        arrays: Arrays,
        mask: Array,
        layout: AnyLayout | None,
        grad: Array,
        above: float,
        below: float,
        rows: tuple[int, int] | None = None,
        out: Array | None = None,
    ) -> Array:
        samples, elements = grad.shape if rows is None else rows
        if out is None:
            out = arrays.empty((samples, elements), arrays.dtype(grad), grad)
        status = self._apply_mask(
            None if layout is None else layout.handle or layout_handle(layout),
            samples,
            elements,
            self._simd,
            self._threads(arrays),
            arrays.pointer(mask),
            above,
            below,
            arrays.pointer(grad),
            arrays.pointer(out),
            arrays.codes[grad.dtype],
        )
        if status:
            refuse("actnn_apply_mask", status)
        return out

    def encode_index(self, arrays: Arrays, values: Array, bits: int, buffer: Array | None = None) -> Array:
        samples, elements = values.shape
        planes = space(arrays, values, index_bytes(samples, elements, bits), buffer)
        operands = self._threads(arrays), arrays.pointer(values), arrays.pointer(planes)
        refuse("actnn_encode_index", self._library.actnn_encode_index(samples, elements, bits, *operands))
        return planes

    def decode_index(self, arrays: Arrays, planes: Array, samples: int, elements: int, bits: int) -> Array:
        values = arrays.empty((samples, elements), "int32", planes)
        operands = self._threads(arrays), arrays.pointer(planes), arrays.pointer(values)
        refuse("actnn_decode_index", self._library.actnn_decode_index(samples, elements, bits, *operands))
        return values

    def energy(
        self,
        arrays: Arrays,
        values: Array,
        stride: int,
        out: Span | None = None,
        rows: tuple[int, int] | None = None,
    ) -> Array | None:
        samples, elements = values.shape if rows is None else rows
        result = arrays.empty((samples,), "float32", values) if out is None else None
        place = arrays.pointer(result) if out is None else out.address
        call = self._simd, self._threads(arrays), stride
        operands = arrays.pointer(values), arrays.codes[values.dtype], place
        if status := self._energy(samples, elements, *call, *operands):
            refuse("actnn_energy", status)
        return result

    def max_pool(self, arrays: Arrays, values: Array, out: Array, pool: Pool, buffer: Array | None = None) -> Array:
        if len(pool.kernel) > 2:
            return self._reference.max_pool(arrays, values, out, pool, buffer)
        planes = space(arrays, values, pool.nbytes, buffer)
        form = pool.handle or pool_handle(pool)
        operands = arrays.pointer(values), arrays.codes[values.dtype], arrays.pointer(out), arrays.pointer(planes)
        refuse("actnn_max_pool", self._max_pool(form, self._threads(arrays), *operands))
        return planes

    def max_pool_backward(
        self, arrays: Arrays, planes: Array, grad: Array, pool: Pool, out: Array | None = None
    ) -> Array:
        if len(pool.kernel) > 2:
            return self._reference.max_pool_backward(arrays, planes, grad, pool, out)
        if out is None:
            out = arrays.empty((pool.samples, pool.elements[0]), arrays.dtype(grad), grad)
        form = pool.handle or pool_handle(pool)
        operands = arrays.pointer(planes), arrays.pointer(grad), arrays.codes[grad.dtype], arrays.pointer(out)
        refuse("actnn_max_pool_backward", self._max_pool_backward(form, self._threads(arrays), *operands))
        return out
