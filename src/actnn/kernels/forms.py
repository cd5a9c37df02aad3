"""What rows of the kernels take besides arrays: channels, normalisations, poolings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar

from actnn.format import index_bytes

Array = Any


class Smooth(IntEnum):
    """A smooth function that ``decode_function`` applies; the numbers are those of the C ABI.

    GELU is that of erf, softplus has beta 1 and threshold 20, ELU alpha 1, and QUICK_GELU is x sigmoid(1.702 x).
    """

    GELU = 0
    GELU_TANH = 1
    SILU = 2
    SIGMOID = 3
    TANH = 4
    HARDSWISH = 5
    HARDSIGMOID = 6
    SOFTPLUS = 7
    MISH = 8
    ELU = 9
    QUICK_GELU = 10


@dataclass(frozen=True)
class Channels:
    """How the elements of a sample divide into channels: element e belongs to ``e // inner % count``."""

    count: int
    inner: int


@dataclass(slots=True)
class OutputAffine:
    """The parameters of a BatchNorm, by which its output reads from the coded value.

    One number a channel: gamma and beta of any float, None for 1 and 0, the threshold float32, None for affine codes.
    It may be a row of a matrix (rows, channels), with so many ``rows_before`` it.
    """

    channels: Channels
    gamma: Array | None = None
    beta: Array | None = None
    threshold: Array | None = None
    rows_before: int | None = None


@dataclass(frozen=True)
class Normalization:
    """The float32 arrays, one value a channel, with which ``normalize`` works."""

    slope: Array
    offset: Array
    mean: Array
    inverse: Array
    threshold: Array


class BatchNorm:
    """One call of a BatchNorm in training: its parameters, and what its forward leaves for its backward.

    Arrays are contiguous, with one number a channel: gamma, beta and the running mean and variance of any float, None
    where there are none, the rest float32. ``statistics`` is (4, channels): mean, variance, minimum and maximum, None
    where they are to be measured. ``saved`` is (rows, channels): the inverse deviations, then the thresholds where the
    code has sides. ``count`` is the number of values of a channel over all processes; where only an accelerator knows
    that, ``share`` is one float32 there: ``count`` over the true number. The running variance is that of ``unbiased``
    estimates or not. ``batches`` is the number of batches so far, an int64 that is counted up, or None.
    """

    __slots__ = (
        *("batches", "beta", "channels", "count", "epsilon", "gamma", "momentum", "running", "saved", "share"),
        "statistics",
        "unbiased",
    )

    def __init__(
        self,
        channels: Channels,
        epsilon: float,
        count: int,
        gamma: Array | None,
        beta: Array | None,
        running: tuple[Array, Array] | None,
        momentum: float,
        statistics: Array | None,
        saved: Array,
        unbiased: bool = True,
        share: Array | None = None,
        batches: Array | None = None,
    ) -> None:
        self.channels = channels
        self.epsilon = epsilon
        self.count = count
        self.gamma = gamma
        self.beta = beta
        self.running = running
        self.momentum = momentum
        self.statistics = statistics
        self.saved = saved
        self.unbiased = unbiased
        self.share = share
        self.batches = batches


@dataclass(frozen=True)
class Rows:
    """How a sample divides into rows of ``width`` consecutive elements that are normalised together.

    Element e has the parameter ``e // inner % parameters``: with D the elements of a row, LayerNorm has (D, D, 1), and
    GroupNorm over H*W positions of C channels (C / groups * H*W, C, H*W).
    """

    width: int
    parameters: int
    inner: int

    @classmethod
    def of_channels(cls, shape: Sequence[int], groups: int) -> Rows:
        """Return the rows of groups of channels, which lie on axis 1 of an activation of this shape."""
        channels, space = shape[1], math.prod(shape[2:])
        return cls(channels // max(1, groups) * space, channels, space)

    @property
    def channels(self) -> Channels:
        """The parameters as channels."""
        return Channels(self.parameters, self.inner)


class RowNorm:
    """One call of a normalisation over rows in training: its parameters, and what forward leaves for backward.

    Arrays are contiguous: gamma and beta of any float, one number a parameter, None for 1 and 0; ``saved`` float32, the
    inverse deviation of each row of the batch. Rows that are not ``centred`` keep their mean, as those of RMSNorm.
    """

    __slots__ = ("beta", "centred", "epsilon", "gamma", "rows", "saved")

    def __init__(
        self, rows: Rows, epsilon: float, centred: bool, gamma: Array | None, beta: Array | None, saved: Array
    ) -> None:
        self.rows = rows
        self.epsilon = epsilon
        self.centred = centred
        self.gamma = gamma
        self.beta = beta
        self.saved = saved


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

    # what a backend made of this pooling for itself, once it was given it
    handle: ClassVar[Any] = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the handle: it may hold addresses, which mean nothing in a copy."""
        return {name: value for name, value in vars(self).items() if name != "handle"}

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
