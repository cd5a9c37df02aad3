"""The rows of BatchNorm, by Triton."""

from __future__ import annotations

from typing import Any

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
    check_divided,
)
from actnn.kernels.reference.batch_norm import MOST_VALUES
from actnn.kernels.triton.device.batch_norm import (
    coefficients_kernel,
    finish_statistics_kernel,
    finish_sums_kernel,
    gradient_kernel,
    gradient_sums_kernel,
    normalize_kernel,
    prepare_kernel,
    statistics_kernel,
)
from actnn.kernels.triton.launching import (
    Chunks,
    Launch,
    aligned,
    cut_of,
    divisors,
    form_of,
    grid,
    sample_places,
    signed,
    space,
)
from actnn.kernels.triton.sampling import SamplingRows, Source

# channels of a program that does the arithmetic of channels
CHANNELS = 128

# a normalisation holds numbers of channels beside a code
NORMALIZING = 2


class BatchNormRows(SamplingRows):
    """The rows of BatchNorm: whole steps, and the passes that they consist of."""

    def channel_statistics(self, arrays: Arrays, values: Array, channels: Channels) -> tuple[Array, ...]:
        results = tuple(arrays.empty((channels.count,), "float32", values) for _ in range(4))
        chunks = Chunks.of(channels, *values.shape)
        if chunks.positions == 0:
            for result in results:
                result[:] = 0
            return results
        partial = measured_statistics(self.launch, arrays, values, channels, chunks)
        programs = -(-channels.count // CHANNELS)
        shape = channels.count, chunks.positions, chunks.length, chunks.number
        self.launch(arrays, values, finish_statistics_kernel, programs, partial, *results, *shape, CHANNELS)
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
        form = form_of(layout, NORMALIZING)
        programs, blocks = grid(form, layout.groups, layout.samples)
        if programs == 0:
            return self.write_key(arrays, buffer, key)
        each = normalization
        self.launch(
            *(arrays, values, normalize_kernel, programs, values, out, buffer),
            *sample_places(arrays, layout, buffer),
            *(each.slope, each.offset, each.mean, each.inverse, each.threshold, *signed(key)),
            *(layout.samples, layout.elements, layout.groups, blocks, *divisors(channels)),
            *(form, cut_of(channels, layout.elements)),
        )
        return buffer

    def gradient_sums(
        self, arrays: Arrays, grad: Array, channels: Channels, code: Array, layout: AnyLayout, rectified: bool
    ) -> tuple[Array, Array]:
        sums = arrays.empty((channels.count,), "float32", grad), arrays.empty((channels.count,), "float32", grad)
        partial, chunks = measured_sums(self.launch, arrays, grad, channels, code, layout, rectified)
        programs = -(-channels.count // CHANNELS)
        self.launch(arrays, grad, finish_sums_kernel, programs, partial, *sums, channels.count, chunks.number, CHANNELS)
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
        parts = *coefficients, of_noise
        write_gradient(self.launch, arrays, grad, channels, code, layout, rectified, parts, out)
        return out

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
        channels, given = normalization.channels, normalization.statistics
        chunks = Chunks.of(channels, layout.samples, layout.elements)
        partial: Any = None
        if given is None:
            partial = values
            if chunks.positions == 0:
                given = arrays.empty((4, channels.count), "float32", values)
                given[:] = 0
            else:
                partial = measured_statistics(self.launch, arrays, values, channels, chunks)
        prepared = arrays.empty((5, channels.count), "float32", values)
        ratio = normalization.count / max(1, normalization.count - 1) if normalization.unbiased else 1.0
        if normalization.batches is not None:
            normalization.batches += 1
        self.launch(
            *(arrays, values, prepare_kernel, -(-channels.count // CHANNELS), partial, given),
            *(normalization.gamma, normalization.beta, *(normalization.running or (None, None)), prepared),
            *(normalization.saved, normalization.epsilon, 1.0 - normalization.momentum, normalization.momentum, ratio),
            *(channels.count, chunks.positions, chunks.length, chunks.number, not layout.family.affine, CHANNELS),
        )
        if division is not None:
            layout = check_divided(layout)
            # readers of the output see gamma times the noise
            parts = prepared[2], prepared[3], prepared[4]
            source = Source(1, channels, *parts, normalization.gamma, squared=True)
            self.measure_and_divide(arrays, values, layout, division, source)
        parts_of = Normalization(*(prepared[row] for row in range(5)))
        self.normalize(arrays, values, out, channels, parts_of, layout, key, buffer)

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
        channels = normalization.channels
        partial, number = None, 0
        if sums is None:
            partial, chunks = measured_sums(self.launch, arrays, grad, channels, code, layout, rectified)
            number = chunks.number
            if energy is not None:
                self.energy(arrays, grad, stride, energy, (layout.samples, layout.elements))
        noise = normalization.count <= MOST_VALUES
        coefficients = None if out is None else arrays.empty((3 + noise, channels.count), "float32", grad)
        scheme = 2 if of_input else int(not layout.family.affine)
        self.launch(
            *(arrays, grad, coefficients_kernel, -(-channels.count // CHANNELS), partial, sums),
            *(None if sums is None else normalization.share, normalization.gamma),
            *(normalization.saved, grads, coefficients, float(normalization.count), channels.count, number),
            *(scheme, noise, CHANNELS),
        )
        if coefficients is not None:
            parts = coefficients[0], coefficients[1], coefficients[2], coefficients[3] if noise else None
            write_gradient(self.launch, arrays, grad, channels, code, layout, rectified, parts, out)


def measured_statistics(launch: Launch, arrays: Arrays, values: Array, channels: Channels, chunks: Chunks) -> Array:
    """Return what programs leave of channels: mean, sum of squares about it, minimum and maximum of each chunk."""
    partial = arrays.empty((chunks.number, 4, channels.count), "float32", values)
    launch(
        *(arrays, values, statistics_kernel, chunks.programs, values, partial, channels.inner, channels.count),
        *(chunks.positions, chunks.length, chunks.number, chunks.channels, chunks.tile),
    )
    return partial


def measured_sums(
    launch: Launch, arrays: Arrays, grad: Array, channels: Channels, code: Array, layout: AnyLayout, rectified: bool
) -> tuple[Array, Chunks]:
    """Return what programs leave of channels: the sums of grad and of grad times the decoded value of each chunk."""
    chunks = Chunks.of(channels, layout.samples, layout.elements)
    partial = arrays.empty((chunks.number, 2, channels.count), "float32", grad)
    launch(
        *(arrays, grad, gradient_sums_kernel, chunks.programs, aligned(arrays, code), grad, partial),
        *(*sample_places(arrays, layout, code), layout.samples, layout.elements, layout.groups),
        *(channels.inner, channels.count, chunks.positions, chunks.length, chunks.number),
        *(form_of(layout), rectified, chunks.channels, chunks.tile),
    )
    return partial, chunks


def write_gradient(
    launch: Launch,
    arrays: Arrays,
    grad: Array,
    channels: Channels,
    code: Array,
    layout: AnyLayout,
    rectified: bool,
    coefficients: tuple[Array, Array, Array, Array | None],
    out: Array,
) -> None:
    """Write the gradient of the input of a BatchNorm."""
    form = form_of(layout)
    programs, blocks = grid(form, layout.groups, layout.samples)
    launch(
        *(arrays, grad, gradient_kernel, programs, aligned(arrays, code), grad, out),
        *(*sample_places(arrays, layout, code), *coefficients),
        *(layout.samples, layout.elements, layout.groups, blocks, *divisors(channels)),
        *(form, cut_of(channels, layout.elements), rectified),
    )
