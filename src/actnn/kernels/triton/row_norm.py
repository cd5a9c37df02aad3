"""The rows of normalisations over rows, by Triton."""

from __future__ import annotations

from actnn.format import GROUP
from actnn.kernels.contract import (
    AnyLayout,
    Array,
    Arrays,
    Channels,
    Division,
    Key,
    RowNorm,
    Span,
    check_buffer,
    check_divided,
)
from actnn.kernels.reference.row_norm import check_rows
from actnn.kernels.triton.batch_norm import BatchNormRows
from actnn.kernels.triton.device.row_norm import (
    part_sums_kernel,
    row_gradient_kernel,
    row_means_kernel,
    row_normalize_kernel,
    row_products_kernel,
    row_statistics_kernel,
)
from actnn.kernels.triton.launching import (
    Launch,
    aligned,
    cut_of,
    divisors,
    form_of,
    grid,
    magic,
    sample_places,
    signed,
)
from actnn.kernels.triton.sampling import Source

# a row of more parts than this is summed up by several programs
MOST_PARTS = 32
# parts of one of these
LEAVES = 16


class RowNormRows(BatchNormRows):
    """The rows of normalisations over rows."""

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
        check_rows(layout, normalization)
        check_buffer(arrays, buffer, layout.nbytes)
        rows, width = normalization.rows, normalization.rows.width
        mean = row_statistics(self.launch, arrays, values, layout, normalization)
        if division is not None:
            layout = check_divided(layout)
            # readers of the output see gamma times the noise
            parts = rows.channels, mean, normalization.saved, None, normalization.gamma
            source = Source(2, *parts, squared=True, width=max(1, width))
            self.measure_and_divide(arrays, values, layout, division, source)
        form = form_of(layout)
        programs, blocks = grid(form, layout.groups, layout.samples)
        if programs == 0:
            self.write_key(arrays, buffer, key)
            return
        self.launch(
            *(
                arrays,
                values,
                row_normalize_kernel,
                programs,
                values,
                out,
                aligned(arrays, buffer),
            ),
            *(*sample_places(arrays, layout, buffer), mean, normalization.saved, normalization.gamma),
            *(normalization.beta, *signed(key), layout.samples, layout.elements, layout.groups, blocks),
            *(*divisors(rows.channels), width, magic(width), form),
            *(cut_of(rows.channels, layout.elements), row_cut(layout, width)),
        )

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
        check_rows(layout, normalization)
        rows, width = normalization.rows, normalization.rows.width
        if energy is not None:
            self.energy(arrays, grad, stride, energy, (layout.samples, layout.elements))
        if grads is not None:
            grads[1], grads[0] = self.gradient_sums(arrays, grad, rows.channels, code, layout, False)
        if out is None or layout.samples * layout.elements == 0:
            return
        mean, product = row_products(self.launch, arrays, grad, code, layout, normalization)
        form = form_of(layout)
        programs, blocks = grid(form, layout.groups, layout.samples)
        self.launch(
            *(arrays, grad, row_gradient_kernel, programs, aligned(arrays, code), grad, out),
            *(*sample_places(arrays, layout, code), mean if normalization.centred else None, product),
            *(normalization.saved, normalization.gamma, layout.samples, layout.elements, layout.groups, blocks),
            *(*divisors(rows.channels), width, magic(width), form),
            *(cut_of(rows.channels, layout.elements), row_cut(layout, width)),
        )


def row_statistics(
    launch: Launch, arrays: Arrays, values: Array, layout: AnyLayout, normalization: RowNorm
) -> Array | None:
    """Write the inverse deviations of rows; return their means, None where they are not centred."""
    width, count = normalization.rows.width, len(normalization.saved)
    if count == 0:
        return None
    centred, epsilon, saved = normalization.centred, normalization.epsilon, normalization.saved
    mean = arrays.empty((count,), "float32", values) if centred else None
    parts, levels = parts_of(width)
    form = form_of(layout)
    if parts <= MOST_PARTS:
        results = values, mean, saved, epsilon, layout.elements, width, parts
        launch(arrays, values, row_statistics_kernel, count, *results, form, centred, levels)
        return mean
    partial = arrays.empty((count * parts,), "float32", values)
    blocks = -(-parts // LEAVES)
    shape = 1, layout.elements, 1, 1, 1, width, parts, blocks, form
    nothing = values, None, None, None
    if mean is not None:
        launch(arrays, values, part_sums_kernel, count * blocks, values, None, partial, *nothing, *shape, 0, LEAVES)
        launch(arrays, values, row_means_kernel, count, partial, mean, epsilon, width, parts, False, levels)
    launch(arrays, values, part_sums_kernel, count * blocks, values, mean, partial, *nothing, *shape, 1, LEAVES)
    launch(arrays, values, row_means_kernel, count, partial, saved, epsilon, width, parts, True, levels)
    return mean


def row_products(
    launch: Launch, arrays: Arrays, grad: Array, code: Array, layout: AnyLayout, normalization: RowNorm
) -> tuple[Array, Array]:
    """Return the means over rows of grad times gamma, and of that times the decoded value."""
    rows, count = normalization.rows, len(normalization.saved)
    mean, product = arrays.empty((count,), "float32", grad), arrays.empty((count,), "float32", grad)
    parts, levels = parts_of(rows.width)
    places, gamma, form = sample_places(arrays, layout, code), normalization.gamma, form_of(layout)
    shape = layout.samples, layout.elements, layout.groups, rows.inner, rows.parameters, rows.width, parts
    if parts <= MOST_PARTS:
        inputs = aligned(arrays, code), grad, gamma, *places
        launch(arrays, grad, row_products_kernel, count, *inputs, mean, product, *shape, form, levels)
        return mean, product
    partial = arrays.empty((2 * count * parts,), "float32", grad)
    blocks = -(-parts // LEAVES)
    arguments = grad, None, partial, aligned(arrays, code), gamma, *places, *shape, blocks
    launch(arrays, grad, part_sums_kernel, count * blocks, *arguments, form, 2, LEAVES)
    for place, result in ((0, mean), (count * parts, product)):
        launch(arrays, grad, row_means_kernel, count, partial[place:], result, 0.0, rows.width, parts, False, levels)
    return mean, product


def parts_of(width: int) -> tuple[int, int]:
    """Return the most parts that a row may have, and how often they are folded."""
    parts = (width - 1) // GROUP + 2
    return parts, (parts - 1).bit_length()


def row_cut(layout: AnyLayout, width: int) -> tuple[int, ...]:
    """Return how the elements of a group divide into rows."""
    return cut_of(Channels(layout.elements // width, width), layout.elements)
