"""The backend that defines all others."""

from __future__ import annotations

from actnn.format import Part
from actnn.kernels.contract import (
    AnyLayout,
    Array,
    Arrays,
    BatchNorm,
    Channels,
    DividedLayout,
    Division,
    Key,
    Normalization,
    OutputAffine,
    Pool,
    RowNorm,
    Smooth,
    Span,
    check_divided,
)
from actnn.kernels.reference import batch_norm, codes, division, passes, pooling, row_norm, sampling, smooth
from actnn.kernels.reference.pieces import Piece


class Reference:
    """The backend that defines all others."""

    name = "reference"
    any_shape = False

    def encode(
        self,
        arrays: Arrays,
        values: Array,
        layout: AnyLayout,
        key: Key,
        buffer: Array | None = None,
        division: Division | None = None,
    ) -> Array:
        if division is not None:
            layout = check_divided(layout)
            layout.block.ranges[:] = arrays.numpy(self.ranges(arrays, values, layout, division.stride))
            self.divide(layout, division)
        return codes.encode(arrays, values, None, layout, key, buffer)

    def divide(self, layout: DividedLayout, chosen: Division) -> None:
        division.divide(layout, chosen)

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
        if affine is None:
            return codes.decode(arrays, buffer, layout, part, dtype, samples, out)
        channels, (scale, shift) = affine.channels, batch_norm.output_scale(arrays, affine, part, buffer)

        def finished(values: Array, piece: Piece) -> Array:
            channel = piece.channels(arrays, channels, buffer)
            return values * scale[channel] + shift[channel]

        return codes.decode(arrays, buffer, layout, part, dtype, samples, out, finished=finished)

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
        chosen = function, derivative, dtype, affine
        return smooth.decode_function(arrays, buffer, layout, *chosen, samples, out, grad)

    def encode_mask(
        self,
        arrays: Arrays,
        values: Array,
        buffer: Array | None = None,
        rows: tuple[int, int] | None = None,
        upper: float | None = None,
    ) -> Array:
        def inside(x: Array) -> Array:
            found = codes.above_zero(arrays, x)
            return found if upper is None else found * (1 - arrays.cast(x >= upper, "int64"))

        return codes.encode_index(arrays, values, 1, buffer, inside)

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
        return passes.apply_mask(arrays, mask, layout, grad, above, below, out)

    def encode_index(self, arrays: Arrays, values: Array, bits: int, buffer: Array | None = None) -> Array:
        return codes.encode_index(arrays, values, bits, buffer)

    def decode_index(self, arrays: Arrays, planes: Array, samples: int, elements: int, bits: int) -> Array:
        return codes.decode_index(arrays, planes, samples, elements, bits)

    def max_pool(self, arrays: Arrays, values: Array, out: Array, pool: Pool, buffer: Array | None = None) -> Array:
        return pooling.max_pool(arrays, values, out, pool, buffer)

    def max_pool_backward(
        self, arrays: Arrays, planes: Array, grad: Array, pool: Pool, out: Array | None = None
    ) -> Array:
        return pooling.max_pool_backward(arrays, planes, grad, pool, out)

    def channel_statistics(self, arrays: Arrays, values: Array, channels: Channels) -> tuple[Array, ...]:
        return passes.channel_statistics(arrays, values, channels)

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
        return passes.normalize(arrays, values, out, channels, normalization, layout, key, buffer)

    def gradient_sums(
        self, arrays: Arrays, grad: Array, channels: Channels, code: Array, layout: AnyLayout, rectified: bool
    ) -> tuple[Array, Array]:
        return passes.gradient_sums(arrays, grad, channels, code, layout, rectified)

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
        return passes.gradient(arrays, grad, channels, code, layout, rectified, coefficients, of_noise, out)

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
        return sampling.ranges(arrays, values, layout, stride, channels, normalization, weight)

    def energy(
        self,
        arrays: Arrays,
        values: Array,
        stride: int,
        out: Span | None = None,
        rows: tuple[int, int] | None = None,
    ) -> Array | None:
        found = sampling.energy(arrays, values, stride)
        if out is None:
            return found
        out.values[:] = arrays.numpy(found)
        return None

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
        batch_norm.forward(self, arrays, values, out, layout, normalization, key, buffer, division)

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
        batch_norm.backward(
            *(self, arrays, grad, code, layout, normalization, rectified, of_input, grads, out, sums, stride, energy)
        )

    def row_norm(
        self,
        arrays: Arrays,
        values: Array,
        out: Array,
        layout: AnyLayout,
        normalization: RowNorm,
        key: Key,
        buffer: Array,
        division: Division | None = None,
    ) -> None:
        row_norm.forward(self, arrays, values, out, layout, normalization, key, buffer, division)

    def row_norm_backward(
        self,
        arrays: Arrays,
        grad: Array,
        code: Array,
        layout: AnyLayout,
        normalization: RowNorm,
        grads: Array | None,
        out: Array | None,
        stride: int = 1,
        energy: Span | None = None,
    ) -> None:
        row_norm.backward(self, arrays, grad, code, layout, normalization, grads, out, stride, energy)
