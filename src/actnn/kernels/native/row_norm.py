"""The compiled rows of normalisations over rows: LayerNorm, RMSNorm, GroupNorm, InstanceNorm."""

from __future__ import annotations

from pathlib import Path

from actnn.kernels.contract import AnyLayout, Array, Arrays, Division, Key, RowNorm, Rows, Span, check_buffer
from actnn.kernels.native.calls import Calls
from actnn.kernels.native.library import refuse
from actnn.kernels.native.structures import BACKWARD_ROW, FORWARD_ROW, c_rows, layout_handle, row_fields
from actnn.kernels.reference.row_norm import check_rows


class RowNormRows(Calls):
    """The rows of normalisations over rows."""

    def __init__(self, path: Path, simd: str | None = None) -> None:
        super().__init__(path, simd)
        self._row_forward = self._library.actnn_row_norm_forward
        self._row_backward = self._library.actnn_row_norm_backward
        self._row_workspaces: dict[tuple[int, ...], tuple[int, int]] = {}

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
        room, kept = self._scratch.room(self._row_workspace(layout, normalization.rows)[0])
        call = FORWARD_ROW.pack(
            *row_fields(arrays, normalization, room),
            self._simd,
            self._threads(arrays),
            arrays.codes[values.dtype],
            *key,
            arrays.pointer(values),
            arrays.pointer(out),
            arrays.pointer(buffer),
        )
        divided = None if division is None else self._divisions.pack(layout, division)
        refuse("actnn_row_norm_forward", self._row_forward(layout.handle or layout_handle(layout), divided, call))
        del kept

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
        room, kept = self._scratch.room(self._row_workspace(layout, normalization.rows)[1])
        call = BACKWARD_ROW.pack(
            *row_fields(arrays, normalization, room),
            self._simd,
            self._threads(arrays),
            arrays.codes[grad.dtype],
            arrays.pointer(code),
            arrays.pointer(grad),
            0 if grads is None else arrays.pointer(grads),
            0 if out is None else arrays.pointer(out),
            stride,
            0 if energy is None else energy.address,
        )
        refuse("actnn_row_norm_backward", self._row_backward(layout.handle or layout_handle(layout), call))
        del kept

    def _row_workspace(self, layout: AnyLayout, rows: Rows) -> tuple[int, int]:
        """Return the floats that a forward and a backward need to work in."""
        shape = layout.samples, layout.elements, rows.width, rows.parameters, rows.inner
        found = self._row_workspaces.get(shape)
        if found is None:
            form = layout.handle or layout_handle(layout), c_rows(rows)
            library = self._library
            found = library.actnn_row_forward_workspace(*form), library.actnn_row_backward_workspace(*form)
            self._row_workspaces[shape] = found
        return found
