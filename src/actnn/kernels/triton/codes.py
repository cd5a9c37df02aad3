"""The rows that make and read codes, masks and indices, by Triton."""

from __future__ import annotations

from actnn.format import GROUP, Part, index_bytes
from actnn.kernels.contract import (
    AnyLayout,
    Array,
    Arrays,
    Division,
    Key,
    OutputAffine,
    Smooth,
    check_divided,
)
from actnn.kernels.reference.smooth import check_function
from actnn.kernels.triton.device.codes import decode_kernel, encode_kernel
from actnn.kernels.triton.device.kernel import Form
from actnn.kernels.triton.device.masks import (
    apply_mask_kernel,
    decode_index_kernel,
    encode_index_kernel,
    encode_mask_kernel,
)
from actnn.kernels.triton.device.smooth import decode_function_kernel
from actnn.kernels.triton.launching import (
    NO_CHANNELS,
    TILE,
    aligned,
    blocks_of,
    cut_of,
    divisors,
    form_of,
    grid,
    sample_places,
    signed,
    space,
)
from actnn.kernels.triton.sampling import SamplingRows, Source

# octets of a program that makes a mask; groups of one that makes or reads indices
OCTETS = 32 * TILE
INDEX_TILE = max(4, TILE // 4)


class CodeRows(SamplingRows):
    """The rows that make and read codes."""

    def encode(
        self,
        arrays: Arrays,
        values: Array,
        layout: AnyLayout,
        key: Key,
        buffer: Array | None = None,
        division: Division | None = None,
    ) -> Array:
        buffer = space(arrays, values, layout.nbytes, buffer)
        if division is not None:
            layout = check_divided(layout)
            self.measure_and_divide(arrays, values, layout, division, Source())
        form = form_of(layout)
        programs, blocks = grid(form, layout.groups, layout.samples)
        if programs == 0:
            return self.write_key(arrays, buffer, key)
        self.launch(
            *(arrays, values, encode_kernel, programs, values, buffer, *sample_places(arrays, layout, buffer)),
            *(*signed(key), layout.samples, layout.elements, layout.groups, blocks, form),
        )
        return buffer

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
        form = form_of(layout)
        programs, blocks = grid(form, layout.groups, count)
        channels = NO_CHANNELS if affine is None else affine.channels
        gamma = beta = threshold = None
        if affine is not None:
            gamma, beta, threshold = affine.gamma, affine.beta, threshold_of(affine)
        self.launch(
            *(arrays, buffer, decode_kernel, programs, aligned(arrays, buffer), out),
            *(*sample_places(arrays, layout, buffer), gamma, beta, threshold),
            *(layout.samples, layout.elements, layout.groups, blocks, first, count, *divisors(channels)),
            *(form, part is Part.POSITIVE, affine is not None, cut_of(channels, layout.elements)),
        )
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
        form = form_of(layout)
        programs, blocks = grid(form, layout.groups, count)
        channels = NO_CHANNELS if affine is None else affine.channels
        gamma, beta = (None, None) if affine is None else (affine.gamma, affine.beta)
        self.launch(
            *(arrays, buffer, decode_function_kernel, programs, aligned(arrays, buffer), grad, out),
            *(*sample_places(arrays, layout, buffer), gamma, beta),
            *(layout.samples, layout.elements, layout.groups, blocks, first, count, *divisors(channels)),
            *(form, int(function), derivative, affine is not None, cut_of(channels, layout.elements)),
        )
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
        blocks = blocks_of(elements, 8 * OCTETS)
        self.launch(
            *(arrays, values, encode_mask_kernel, samples * blocks, values, planes),
            *(0.0 if upper is None else float(upper), elements, max(1, blocks), upper is not None, OCTETS),
        )
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
        groups = -(-elements // GROUP)
        form = mask_form(groups, elements) if layout is None else form_of(layout)
        places = (mask, mask) if layout is None else sample_places(arrays, layout, mask)
        # whole groups are read two bytes at a time
        programs, blocks = grid(form, groups, samples)
        self.launch(
            *(arrays, grad, apply_mask_kernel, programs, aligned(arrays, mask), grad, out, *places),
            *(float(above), float(below), samples, elements, groups, blocks, form, layout is None),
        )
        return out

    def encode_index(self, arrays: Arrays, values: Array, bits: int, buffer: Array | None = None) -> Array:
        samples, elements = values.shape
        planes = space(arrays, values, index_bytes(samples, elements, bits), buffer)
        groups = -(-elements // GROUP)
        blocks = blocks_of(elements, INDEX_TILE * GROUP)
        arguments = values, planes, elements, groups, bits, max(1, blocks), INDEX_TILE
        self.launch(arrays, values, encode_index_kernel, samples * blocks, *arguments)
        return planes

    def decode_index(self, arrays: Arrays, planes: Array, samples: int, elements: int, bits: int) -> Array:
        values = arrays.empty((samples, elements), "int32", planes)
        groups = -(-elements // GROUP)
        blocks = blocks_of(elements, INDEX_TILE * GROUP)
        arguments = planes, values, elements, groups, bits, max(1, blocks), INDEX_TILE
        self.launch(arrays, planes, decode_index_kernel, samples * blocks, *arguments)
        return values


def threshold_of(affine: OutputAffine) -> Array | None:
    """Return the thresholds of a BatchNorm's output, where there are some."""
    if affine.threshold is None or affine.rows_before is None:
        return affine.threshold
    return affine.threshold[affine.rows_before]


def mask_form(groups: int, elements: int) -> Form:
    """Return the form of a plain mask, read as a code of one plane."""
    return Form(0, 0, 0, 0, 1, TILE, int(groups < TILE), int(elements % GROUP == 0))
