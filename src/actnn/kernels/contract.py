"""What a framework lends to the kernels, and what every kernel backend offers in return."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from actnn.errors import FormatError
from actnn.format import Layout, Part, index_bytes

if TYPE_CHECKING:
    import numpy as np

Array = Any
Key = tuple[int, int, int, int]

FLOATS = ("float32", "float16", "bfloat16")


class Arrays(Protocol):
    """The few array operations that the kernels ask of a framework; one object a framework.

    Besides these, the reference uses only operators (+, *, >>, &, <=, …), indexing, ``reshape`` and ``sum``.
    """

    def dtype(self, x: Array) -> str: ...
    def on_host(self, x: Array) -> bool: ...
    def device(self, x: Array) -> str:
        """Return a name of the device that an array lies on."""

    def transfers(self, x: Array) -> Transfers:
        """Return what moves buffers between the device of ``x`` and the host."""

    def pointer(self, x: Array) -> int: ...
    def numpy(self, x: Array) -> np.ndarray:
        """Return a small array as one of numpy, in host memory."""

    def threads(self) -> int:
        """Return how many threads compute."""

    def runtime(self) -> Path | None:
        """Return the file of the OpenMP runtime whose threads compute; None for the one that kernels are linked to."""

    def empty(self, shape: Sequence[int], dtype: str, like: Array) -> Array: ...
    def arange(self, start: int, stop: int, like: Array) -> Array: ...
    def cast(self, x: Array, dtype: str) -> Array: ...
    def where(self, condition: Array, x: Array, y: Array | float) -> Array:
        """Choose between two broadcast arrays; a number ``y`` takes the dtype of ``x``."""

    def amin(self, x: Array) -> Array:
        """Return the minimum over the last axis."""

    def amax(self, x: Array) -> Array:
        """Return the maximum over the last axis."""

    def rint(self, x: Array) -> Array: ...
    def sqrt(self, x: Array) -> Array: ...
    def isfinite(self, x: Array) -> Array: ...
    def concatenate(self, parts: Sequence[Array], axis: int) -> Array: ...
    def stack(self, parts: Sequence[Array], axis: int) -> Array: ...
    def transpose(self, x: Array, axes: Sequence[int]) -> Array: ...
    def from_numpy(self, x: np.ndarray[Any, Any]) -> Array:
        """Return a host array of the framework that shares the memory of a numpy array."""

    def ticket(self, number: int, release: Callable[[int], None]) -> Array:
        """Return an int64 array (1,) of a number; ``release`` is called with it when the array's memory goes."""

    def float_bits(self, x: Array) -> Array:
        """Return the bits of float32 values as int64."""

    def bits_float(self, x: Array) -> Array:
        """Return the float32 values whose bits an int64 array holds."""


class Transfers(Protocol):
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

    ``values`` and ``grad`` are dense arrays of shape (samples, elements), in memory order. What makes a code writes it
    to ``buffer``, contiguous bytes of just its size, where it is given one, and returns that; it raises FormatError for
    a buffer of another size.
    """

    name: str

    def encode(self, arrays: Arrays, values: Array, layout: Layout, key: Key, buffer: Array | None = None) -> Array:
        """Return the buffer of a split code."""

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
        """Return what a split code, or some of its samples, stands for, of shape (samples, elements).

        With ``affine``, value v of channel c is returned as ``v * scale[c] + shift[c]``.
        """

    def encode_mask(self, arrays: Arrays, values: Array, buffer: Array | None = None) -> Array:
        """Return one plane of ``not (values <= 0)``."""

    def apply_mask(
        self, arrays: Arrays, mask: Array, layout: Layout | None, grad: Array, above: float, below: float
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

    def max_pool_backward(self, arrays: Arrays, planes: Array, grad: Array, pool: Pool) -> Array:
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
        layout: Layout,
        key: Key,
        buffer: Array | None = None,
    ) -> Array:
        """Write the normalised output to ``out``, which may be ``values``; return the code of what it was made from.

        With c the channel of an element, ``y = x * slope[c] + offset[c]`` and the coded value is
        ``v = (x - mean[c]) * inverse[c] - threshold[c]``, each a single float32 operation. In a split code the side
        of v is that of y, and a v on the wrong side of zero by rounding counts as zero.
        """

    def gradient_sums(
        self, arrays: Arrays, grad: Array, channels: Channels, code: Array, layout: Layout, rectified: bool
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
        layout: Layout,
        rectified: bool,
        coefficients: tuple[Array, Array, Array],
    ) -> Array:
        """Return ``a[c] * grad + b[c] * v + d[c]`` for coefficients (a, b, d)."""

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
        """Return sums of squared ranges (A-, A+, B-, B+) of each sample, float32 of shape (samples, 4).

        A is the sum over the elements of a side of the squared range of that side of their group, B the same sum
        weighted by ``weight[c]``, or A where there is no weight. With v the value, or what ``normalize`` would code,
        an affine code has the one range ``max v - min v``, on the positive side. Else the side of an element is
        ``not (v <= 0)``, and the ranges are ``max(0, max v)`` and ``max(0, -min v)``, the latter 0 where zero is exact.

        Only the groups ``stride // 2``, ``stride // 2 + stride``, … of a sample are read, the first one where there
        are none of these, and the sums multiplied up to the whole sample. Of the layout only shape and family count.
        All four are NaN where one of the values read is not finite.
        """

    def energy(self, arrays: Arrays, values: Array, stride: int) -> Array:
        """Return the sum of squares of each sample, float32, from the groups that ``ranges`` reads."""


def check_buffer(arrays: Arrays, buffer: Array, nbytes: int) -> Array:
    """Return a buffer that a code of ``nbytes`` can be written to; raise FormatError for any other."""
    dtype, shape = arrays.dtype(buffer), tuple(buffer.shape)
    if dtype != "uint8" or shape != (nbytes,):
        raise FormatError(
            f"a code of {nbytes} bytes was to be written to a {dtype} buffer of shape {shape}: expected uint8 of shape "
            f"({nbytes},). Give no buffer to have one made."
        )
    return buffer


@dataclass(frozen=True)
class Channels:
    """How the elements of a sample divide into channels: element e belongs to ``e // inner % count``."""

    count: int
    inner: int


@dataclass(frozen=True)
class ChannelAffine:
    """A scale and a shift for each channel, float32."""

    channels: Channels
    scale: Array
    shift: Array


@dataclass(frozen=True)
class Normalization:
    """The float32 arrays, one value a channel, with which ``normalize`` works."""

    slope: Array
    offset: Array
    mean: Array
    inverse: Array
    threshold: Array


@dataclass(frozen=True)
class Pool:
    """A max pooling over one to three axes: one number an axis, ``bits`` planes of positions within a window."""

    samples: int
    channels: int
    input: tuple[int, ...]
    output: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    channels_last: bool

    @property
    def bits(self) -> int:
        """Width of an index code that holds any position of a window."""
        return max(1, (math.prod(self.kernel) - 1).bit_length())

    @property
    def nbytes(self) -> int:
        """Size of that code."""
        return index_bytes(self.samples, self.elements[1], self.bits)

    @property
    def elements(self) -> tuple[int, int]:
        """Elements of a sample: of the input, and of the output."""
        return self.channels * math.prod(self.input), self.channels * math.prod(self.output)


@dataclass(frozen=True)
class Status:
    """Which backend serves host memory, and why."""

    name: str
    reason: str
    simd: str
    threads: int
    library: str | None
