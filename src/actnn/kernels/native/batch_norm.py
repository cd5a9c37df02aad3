"""The compiled rows of BatchNorm, and of what widths are chosen by."""

from __future__ import annotations

from pathlib import Path

from actnn.errors import UnsupportedError
from actnn.kernels.contract import (
    AnyLayout,
    Array,
    Arrays,
    BatchNorm,
    Channels,
    Division,
    Key,
    Normalization,
    Span,
    check_buffer,
)
from actnn.kernels.native.calls import Calls, space
from actnn.kernels.native.library import refuse
from actnn.kernels.native.structures import (
    BACKWARD,
    FORWARD,
    KEY,
    backward_fields,
    c_channels,
    c_normalization,
    layer_fields,
    layout_handle,
)


class BatchNormRows(Calls):
    """The rows of BatchNorm: whole steps, and the passes that they consist of."""

    def __init__(self, path: Path, simd: str | None = None) -> None:
        super().__init__(path, simd)
        self._forward = self._library.actnn_batch_norm_forward
        self._backward = self._library.actnn_batch_norm_backward

    def batch_norm(
        self,
        arrays: Arrays,
        values: Array,
        out: Array,
        layout: AnyLayout,
        normalization: BatchNorm,
        key: Key,
        buffer: Array,
        division: Division | None = None,
    ) -> None:
        check_buffer(arrays, buffer, layout.nbytes)
        room, kept = self._room(layout, normalization.channels, False)
        call = FORWARD.pack(
            *layer_fields(arrays, normalization, room),
            self._simd,
            self._threads(arrays),
            arrays.codes[values.dtype],
            *key,
            arrays.pointer(values),
            arrays.pointer(out),
            arrays.pointer(buffer),
        )
        divided = None if division is None else self._divisions.pack(layout, division)
        if status := self._forward(layout.handle or layout_handle(layout), divided, call):
            refuse("actnn_batch_norm_forward", status)
        del kept

    def batch_norm_backward(
        self,
        arrays: Arrays,
        grad: Array,
        code: Array,
        layout: AnyLayout,
        normalization: BatchNorm,
        rectified: bool,
        of_input: bool,
        grads: Array,
        out: Array | None,
        sums: Array | None = None,
        stride: int = 1,
        energy: Span | None = None,
    ) -> None:
        if normalization.share is not None:
            raise UnsupportedError(
                "the compiled kernels were given a number of values that only an accelerator knows: expected one that "
                "the host knows, whose memory they serve. Give it as count."
            )
        room, kept = self._room(layout, normalization.channels, True)
        call = BACKWARD.pack(
            *backward_fields(arrays, normalization, room),
            self._simd,
            self._threads(arrays),
            arrays.codes[grad.dtype],
            rectified,
            of_input,
            arrays.pointer(code),
            arrays.pointer(grad),
            arrays.pointer(grads),
            0 if sums is None else arrays.pointer(sums),
            0 if out is None else arrays.pointer(out),
            stride,
            0 if energy is None else energy.address,
        )
        if status := self._backward(layout.handle or layout_handle(layout), call):
            refuse("actnn_batch_norm_backward", status)
        del kept

    def channel_statistics(self, arrays: Arrays, values: Array, channels: Channels) -> tuple[Array, ...]:
        shape = (*values.shape, c_channels(channels))
        workspace = arrays.empty((self._library.actnn_statistics_workspace(*shape),), "float32", values)
        results = tuple(arrays.empty((channels.count,), "float32", values) for _ in range(4))
        status = self._library.actnn_channel_statistics(
            *shape,
            self._simd,
            self._threads(arrays),
            arrays.pointer(values),
            arrays.codes[values.dtype],
            arrays.pointer(workspace),
            *map(arrays.pointer, results),
        )
        refuse("actnn_channel_statistics", status)
        return results

    def normalize(
        self,
        arrays: Arrays,
        values: Array,
        out: Array,
        channels: Channels,
        normalization: Normalization,
        layout: AnyLayout,
        key: Key,
        buffer: Array | None = None,
    ) -> Array:
        buffer = space(arrays, values, layout.nbytes, buffer)
        status = self._library.actnn_normalize(
            layout.handle or layout_handle(layout),
            c_channels(channels),
            c_normalization(arrays, normalization),
            self._simd,
            self._threads(arrays),
            KEY.pack(*key),
            arrays.pointer(values),
            arrays.pointer(out),
            arrays.codes[values.dtype],
            arrays.pointer(buffer),
        )
        refuse("actnn_normalize", status)
        return buffer

    def gradient_sums(
        self, arrays: Arrays, grad: Array, channels: Channels, code: Array, layout: AnyLayout, rectified: bool
    ) -> tuple[Array, Array]:
        shape = layout.handle or layout_handle(layout), c_channels(channels)
        workspace = arrays.empty((self._library.actnn_gradient_workspace(*shape),), "float32", grad)
        sums = arrays.empty((channels.count,), "float32", grad), arrays.empty((channels.count,), "float32", grad)
        operands = self._gradient(arrays, grad, code, rectified)
        results = arrays.pointer(workspace), *map(arrays.pointer, sums)
        refuse("actnn_gradient_sums", self._library.actnn_gradient_sums(*shape, *operands, *results))
        return sums

    def gradient(
        self,
        arrays: Arrays,
        grad: Array,
        channels: Channels,
        code: Array,
        layout: AnyLayout,
        rectified: bool,
        coefficients: tuple[Array, Array, Array],
        of_noise: Array | None = None,
        out: Array | None = None,
    ) -> Array:
        if out is None:
            out = arrays.empty(grad.shape, arrays.dtype(grad), grad)
        shape = layout.handle or layout_handle(layout), c_channels(channels)
        operands = self._gradient(arrays, grad, code, rectified)
        noise = None if of_noise is None else arrays.pointer(of_noise)
        results = *map(arrays.pointer, coefficients), noise, arrays.pointer(out)
        refuse("actnn_gradient", self._library.actnn_gradient(*shape, *operands, *results))
        return out

    def _gradient(self, arrays: Arrays, grad: Array, code: Array, rectified: bool) -> tuple[int, ...]:
        """Return the arguments that both functions of a gradient share."""
        pointers = arrays.pointer(code), arrays.pointer(grad)
        return int(rectified), self._simd, self._threads(arrays), *pointers, arrays.codes[grad.dtype]

    def ranges(
        self,
        arrays: Arrays,
        values: Array,
        layout: AnyLayout,
        stride: int,
        channels: Channels | None = None,
        normalization: Normalization | None = None,
        weight: Array | None = None,
    ) -> Array:
        result = arrays.empty((layout.samples, 4), "float32", values)
        status = self._library.actnn_ranges(
            layout.handle or layout_handle(layout),
            None if channels is None else c_channels(channels),
            None if normalization is None else c_normalization(arrays, normalization),
            None if weight is None else arrays.pointer(weight),
            self._simd,
            self._threads(arrays),
            stride,
            arrays.pointer(values),
            arrays.codes[values.dtype],
            arrays.pointer(result),
        )
        refuse("actnn_ranges", status)
        return result
