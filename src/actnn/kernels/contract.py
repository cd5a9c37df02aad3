"""What a framework lends to the kernels, and what every kernel backend offers in return."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from actnn.errors import FormatError, UnsupportedError
from actnn.format import Layout, Part
from actnn.kernels.blocks import Block, DividedLayout, Division, Span, Stretch
from actnn.kernels.forms import (
    Array,
    BatchNorm,
    Channels,
    Normalization,
    OutputAffine,
    Pool,
    RowNorm,
    Rows,
    Smooth,
    Status,
)

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "FLOATS",
    "AnyLayout",
    "Array",
    "Arrays",
    "Backend",
    "BatchNorm",
    "Block",
    "Channels",
    "DividedLayout",
    "Division",
    "Key",
    "Moves",
    "Normalization",
    "OutputAffine",
    "Pool",
    "RowNorm",
    "Rows",
    "Smooth",
    "Span",
    "Status",
    "Stretch",
    "check_buffer",
    "check_divided",
]

Key = tuple[int, int, int, int]
AnyLayout = Layout | DividedLayout

FLOATS = ("float32", "float16", "bfloat16")


class Codes(dict[Any, int]):
    """The number by which kernels know each dtype of a framework."""

    def __missing__(self, dtype: Any) -> int:
        raise UnsupportedError(f"the kernels take {', '.join(FLOATS)}; they were given {dtype}.")


class Arrays(Protocol):
    """The few array operations that the kernels ask of a framework; one object a framework.

    Besides these, the reference uses only operators (+, *, >>, &, <=, …), indexing, ``reshape`` and ``sum``.
    """

    @property
    def codes(self) -> Mapping[Any, int]:
        """The places in FLOATS of the framework's own dtypes; a ``Codes``, which refuses others."""

    @property
    def byte(self) -> Any:
        """The framework's own dtype of bytes."""

    @property
    def lends_threads(self) -> bool:
        """Whether the framework computes in an OpenMP runtime of its own."""

    def dtype(self, x: Array) -> str: ...
    def on_host(self, x: Array) -> bool: ...
    def device(self, x: Array) -> str:
        """Return a name of the device that an array lies on."""

    def moves(self, x: Array) -> Moves:
        """Return what moves buffers between the device of ``x`` and the host."""

    def pointer(self, x: Array) -> int: ...
    def numpy(self, x: Array) -> np.ndarray:
        """Return a small array as one of numpy, in host memory."""

    def threads(self) -> int:
        """Return how many threads compute."""

    def runtime(self) -> Path | None:
        """Return the file of the OpenMP runtime whose threads compute; None for the one that kernels are linked to."""

    def empty(self, shape: Sequence[int], dtype: str, like: Array) -> Array: ...
    def bytes(self, count: int, like: Array) -> Array:
        """Return room for so many bytes on the device of ``like``."""

    def as_bytes(self, x: Array) -> Array:
        """Return the bytes of an array, of one axis; those of a contiguous one are not copied."""

    def arange(self, start: int, stop: int, like: Array) -> Array: ...
    def cast(self, x: Array, dtype: str) -> Array: ...
    def where(self, condition: Array, x: Array, y: Array | float) -> Array:
        """Choose between two broadcast arrays; a number ``y`` takes the dtype of ``x``."""

    def amin(self, x: Array) -> Array:
        """Return the minimum over the last axis."""

    def amax(self, x: Array) -> Array:
        """Return the maximum over the last axis."""

    def rint(self, x: Array) -> Array: ...
    def divide(self, x: Array, y: Array) -> Array:
        """Return the quotient of two arrays, rounded correctly."""

    def sqrt(self, x: Array) -> Array: ...
    def isfinite(self, x: Array) -> Array: ...
    def concatenate(self, parts: Sequence[Array], axis: int) -> Array: ...
    def stack(self, parts: Sequence[Array], axis: int) -> Array: ...
    def transpose(self, x: Array, axes: Sequence[int]) -> Array: ...
    def from_numpy(self, x: np.ndarray[Any, Any]) -> Array:
        """Return a host array of the framework that shares the memory of a numpy array."""

    def upload(self, x: np.ndarray[Any, Any], like: Array) -> Array:
        """Return a copy of a small numpy array on the device of ``like``, without waiting for the device."""

    def computing_on(self, x: Array) -> AbstractContextManager[Any]:
        """Return a context in which kernels are launched on the device of ``x``."""

    def ticket(self, number: int, release: Callable[[int], None]) -> Array:
        """Return an int64 array (1,) of a number; ``release`` is called with it when the array's memory goes."""

    def float_bits(self, x: Array) -> Array:
        """Return the bits of float32 values as int64."""

    def bits_float(self, x: Array) -> Array:
        """Return the float32 values whose bits an int64 array holds."""


class Moves(Protocol):
    """Copies between one accelerator and host memory, on a way of their own beside the device's other work."""

    def out(self, buffer: Array) -> tuple[Array, Any]:
        """Begin to copy a buffer to the host after all work queued so far; return the copy to be, and its event."""

    def back(self, host: Array) -> tuple[Array, Any]:
        """Begin to copy a buffer back to the device; return the copy to be, and its event."""

    def arrived(self, event: Any) -> bool:
        """Tell whether a copy is done."""

    def finish(self, event: Any) -> None:
        """Wait until a copy is done."""

    def wait(self, buffer: Array, event: Any) -> None:
        """Let the device's work that is queued from now on, which may use ``buffer``, wait until a copy is done."""


class Backend(Protocol):
    """A set of kernels; all of them agree with ``reference`` byte for byte, and in sums but for rounding.

    ``values``, ``grad`` and ``out`` are dense arrays of shape (samples, elements), in memory order; with ``any_shape``
    they may have any shape, as long as their elements lie in that order, and ``rows`` tells samples and elements where
    nothing else does. Poolings over three axes take rows all the same. What makes a code writes it to ``buffer``,
    contiguous bytes of just its size, where it is given one, and returns that; it raises FormatError for a buffer of
    another size. What has an ``out`` writes its result there, where it is given, and returns that.
    """

    name: str
    any_shape: bool

    def encode(
        self,
        arrays: Arrays,
        values: Array,
        layout: AnyLayout,
        key: Key,
        buffer: Array | None = None,
        division: Division | None = None,
    ) -> Array:
        """Return the buffer of a split code.

        With ``division``, the ranges of the values and the widths that follow from them are written to the layout's
        block first.
        """

    def divide(self, layout: DividedLayout, division: Division) -> None:
        """Write the widths and offsets that follow from the ranges of a layout's block to that block.

        With (A-, A+, B-, B+) the ranges of a sample, ``w`` the weights and ``s`` its norm, or 1, noise on a side costs
        ``(w[0] A- + w[2] B-) s`` and ``(w[1] A+ + w[3] B+) s`` in units of the side's squared step, float64. Every
        sample has the family's least width; the planes that remain go where they lower the cost most, among equals to
        the lower width and then to the first sample. Planes are divided evenly, the first samples getting what remains,
        without weights and where a range or what a plane gains is not finite.
        """

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
        """Return what a split code, or some of its samples, stands for, of shape (samples, elements).

        With ``affine``, value v is returned as the output of a BatchNorm: with scale |gamma| and shift
        beta + |gamma| threshold as ``v * scale + shift``, the shift of a positive part being at least 0. Without a
        threshold, scale and shift are gamma and beta themselves.
        """

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
        """Return f(x), or f'(x) where ``derivative`` is 1, of what a split code stands for; times ``grad`` where given.

        With ``affine``, which has no threshold and goes with codes without sides, x is gamma value + beta, and the
        derivative still that by x. The mean over the noise is right to second order: with g what is returned, s the
        step of what is coded and x(u) the value before the mean of dither is mended, it is
        ``g - s**2 / 24 (g'' x'**2 + g' x'')``. Backends agree but for rounding.
        """

    def encode_mask(
        self,
        arrays: Arrays,
        values: Array,
        buffer: Array | None = None,
        rows: tuple[int, int] | None = None,
        upper: float | None = None,
    ) -> Array:
        """Return one plane of ``not (values <= 0)``, and with ``upper`` also ``not (values >= upper)``."""

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
        """Return ``grad`` times ``above`` where the mask holds and ``below`` elsewhere.

        With a layout, ``mask`` is a split code, read as ``word >= N``.
        """

    def encode_index(self, arrays: Arrays, values: Array, bits: int, buffer: Array | None = None) -> Array:
        """Return the planes of int32 ``values`` below ``2**bits``."""

    def decode_index(self, arrays: Arrays, planes: Array, samples: int, elements: int, bits: int) -> Array:
        """Return the int32 values of an index code, of shape (samples, elements)."""

    def max_pool(self, arrays: Arrays, values: Array, out: Array, pool: Pool, buffer: Array | None = None) -> Array:
        """Write the maxima to ``out``; return the index code of their positions within their windows.

        Positions count row by row. NaN wins, as in the frameworks' own pooling; then the first of equal values.
        """

    def max_pool_backward(
        self, arrays: Arrays, planes: Array, grad: Array, pool: Pool, out: Array | None = None
    ) -> Array:
        """Return the gradient of the pooled values, of shape (samples, elements)."""

    def channel_statistics(self, arrays: Arrays, values: Array, channels: Channels) -> tuple[Array, ...]:
        """Return mean, biased variance, minimum and maximum of each channel, float32."""

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
        """Write the normalised output to ``out``, which may be ``values``; return the code of what it was made from.

        With c the channel of an element, ``y = x * slope[c] + offset[c]`` and the coded value is
        ``v = (x - mean[c]) * inverse[c] - threshold[c]``, each a single float32 operation. In a split code the side
        of v is that of y, and a v on the wrong side of zero by rounding counts as zero.
        """

    def gradient_sums(
        self, arrays: Arrays, grad: Array, channels: Channels, code: Array, layout: AnyLayout, rectified: bool
    ) -> tuple[Array, Array]:
        """Return the sums over each channel of ``grad`` and of ``grad * v``, v being the decoded value.

        ``rectified`` counts ``grad`` as zero where the code's word lies below N.
        """

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
        """Return ``a[c] * grad + b[c] * v + d[c]`` for coefficients (a, b, d).

        With ``of_noise``, grad is multiplied by ``1 + of_noise[c] * Var(v)`` before, the variance of the noise in v.
        """

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
        """Return sums of squared ranges (A-, A+, B-, B+) of each sample, float32 of shape (samples, 4).

        A is the sum over the elements of a side of the squared range of that side of their group, B the same sum
        weighted by ``weight[c]``, or A where there is no weight. With v the value, or what ``normalize`` would code,
        an affine code has the one range ``max v - min v``, on the positive side. Else the side of an element is
        ``not (v <= 0)``, and the ranges are ``max(0, max v)`` and ``max(0, -min v)``, the latter 0 where zero is exact.
        Along a curve, ranges are those of what is coded, and an element counts by its squared slope, at most 2^118:
        the factor by which noise there is larger in v. A v that a curve has not is like one that is not finite.

        Only the groups ``stride // 2``, ``stride // 2 + stride``, … of a sample are read, the first one where there
        are none of these, and the sums multiplied up to the whole sample. Of the layout only shape and family count.
        All four are NaN where one of the values read is not finite.
        """

    def energy(
        self,
        arrays: Arrays,
        values: Array,
        stride: int,
        out: Span | None = None,
        rows: tuple[int, int] | None = None,
    ) -> Array | None:
        """Return the sum of squares of each sample, float32, from the groups that ``ranges`` reads.

        With ``out`` they are written there, and nothing is returned.
        """

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
        """Write the normalised values to ``out``, their code to ``buffer`` and what backward needs to ``saved``.

        Updates the running statistics where there are some. With ``division``, ranges are measured weighted by the
        squares of gamma, and divided as ``encode`` does. Comes to ``channel_statistics``, the rules of
        ``reference.batch_norm``, ``ranges`` and ``normalize``, bit for bit.
        """

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
        """Write the gradients of gamma and beta to ``grads`` (2, channels), and that of the input to ``out``.

        ``rectified`` is that of ``gradient_sums``. With ``of_input``, the code is one of the input itself and the
        second row of ``saved`` the mean. With ``sums``, the gradients of gamma and beta of all processes, only ``out``
        is written; ``share`` counts here alone. The energy of ``grad``, by ``stride``, goes to ``energy`` where that is
        given. Comes to ``gradient_sums``, the rules of ``reference.batch_norm`` and ``gradient``, bit for bit.
        """

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
        """Write ``v * gamma + beta`` to ``out``, the code of v to ``buffer`` and inverse deviations to ``saved``.

        With the mean of its row, or 0 where rows are not centred, ``v = (x - mean) * inverse``; ``out`` may be
        ``values``. With ``division``, ranges of v are measured weighted by the squares of gamma, and divided as
        ``encode`` does. Comes to the rules of ``reference.row_norm``, ``ranges`` and ``encode``, bit for bit. Raises
        UnsupportedError for a code that is not affine.
        """

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
        """Write the gradients of gamma and beta to ``grads`` (2, parameters), and that of the input to ``out``.

        Either may be None; ``out`` may be ``grad``. With v the decoded value and ``w = grad * gamma``, the gradient of
        the input is ``inverse * (w * (1 + noise / width) - (v * mean(w * v) + mean(w)))``, means being those of the
        row, that of w 0 where rows are not centred. A mean that contains v correlates with it: without the variance of
        v, the noise, the product would be biased. The energy of ``grad``, by ``stride``, goes to ``energy`` where that
        is given. Comes to the rules of ``reference.row_norm``, ``out`` bit for bit and ``grads`` but for rounding.
        """


def check_divided(layout: AnyLayout) -> DividedLayout:
    """Return a layout whose planes can be divided between its samples; raise FormatError for any other."""
    if not isinstance(layout, DividedLayout):
        raise FormatError("planes can only be divided in a DividedLayout: make one of the layout and a block.")
    return layout


def check_buffer(arrays: Arrays, buffer: Array, nbytes: int) -> Array:
    """Return a buffer that a code of ``nbytes`` can be written to; raise FormatError for any other."""
    # by the framework's own dtype: every code passes here, and names of dtypes take long to tell
    if buffer.dtype != arrays.byte or tuple(buffer.shape) != (nbytes,):
        dtype, shape = arrays.dtype(buffer), tuple(buffer.shape)
        raise FormatError(
            f"a code of {nbytes} bytes was to be written to a {dtype} buffer of shape {shape}: expected uint8 of shape "
            f"({nbytes},). Give no buffer to have one made."
        )
    return buffer
