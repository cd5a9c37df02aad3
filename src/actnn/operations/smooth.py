"""Smooth functions of one activation: GELU, SiLU, sigmoid, tanh, Hardswish and their like.

Keeps: a code of the input, or nothing where somebody has one, a normalisation above all. Where the slope jumps
(Hardswish, Hardsigmoid), also one bit an element: on which side of the jumps it lies, which no code tells.
Shares: that code with everybody who reads the input, and with the maps that read the output f(x).
Reads in backward: the slope f'(x), decoded from the same code.
Noise: under dither the decoded value is x + e with e even over one step Δ, so that the mean of f(x + e) is
f(x) + Δ²/24 f''(x) + O(Δ⁴). Kernels subtract the second term, of values and of slopes; what remains lies far below the
noise itself. That of the slope goes on to the layers below, that of the value to the map behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from actnn.format import Part
from actnn.kernels.contract import Array, Channels, OutputAffine, Smooth
from actnn.operations.kept import Kept, Reading, Reshaped, encode, encode_mask, uncounted
from actnn.operations.rectifiers import tag_output
from actnn.session.site import Readers, Site
from actnn.session.tensors import Order, Tensors

VALUE, SLOPE = range(2)
# the mean squares of f' and f'' over normal values, where they jump between the jumps
SLOPES: dict[Smooth, tuple[float, float]] = {
    Smooth.GELU: (0.46, 0.28),
    Smooth.GELU_TANH: (0.46, 0.28),
    Smooth.QUICK_GELU: (0.46, 0.28),
    Smooth.SILU: (0.38, 0.14),
    Smooth.MISH: (0.48, 0.20),
    Smooth.SIGMOID: (0.045, 0.005),
    Smooth.TANH: (0.46, 0.30),
    Smooth.SOFTPLUS: (0.29, 0.045),
    Smooth.ELU: (0.67, 0.17),
    Smooth.HARDSWISH: (0.36, 0.11),
    Smooth.HARDSIGMOID: (0.028, 0.0),
}
# bits that an own code of the input has more than others: values and slopes are both read from it
EXTRA = 2.0


class Curved(Reading):
    """How f(x), or a gradient times f'(x), is read from a code of x."""

    __slots__ = ("_channels", "function")

    def __init__(self, base: Reading, function: Smooth) -> None:
        super().__init__(base.order, base.backend, base.layout, base.record, base.normalized)
        self._channels = base.channels if base.normalized else None
        self.function = function

    @property
    def channels(self) -> Channels:
        """Which elements of a sample have the same gamma and beta."""
        assert self._channels is not None
        return self._channels

    @property
    def signed(self) -> bool:
        """Whether the code's sides are those of the activation: they are those of its input."""
        return False

    @property
    def direct(self) -> bool:
        """Whether the code's values are those of the activation."""
        return False

    def value(self, site: Site, saved: Sequence[Array], dtype: str, samples: range | None = None) -> Array:
        """Return f(x), or some samples of it."""
        order = self.order if samples is None else self.order.of_samples(len(samples))
        out = order.tensors.unfilled(order, dtype, saved[0])
        self._evaluate(saved, VALUE, dtype, samples, order, out, None)
        return out

    def gradient(self, site: Site, saved: Sequence[Array], grad: Array) -> Array:
        """Return ``grad`` times f'(x); it has the shape of the code's tensor."""
        order, saved = self.order, self.fetched(site, saved)
        tensors = order.tensors
        dtype = tensors.dtype(grad)
        out = tensors.unfilled(order, dtype, grad)
        self._evaluate(saved, SLOPE, dtype, None, order, out, grad)
        self.observe_slope(site)
        return out

    def observe(self, site: Site, grad: Array, coefficient: float, scale: Callable[[], float] | None = None) -> None:
        """Tell the planner the gradient with which a map read f(x), whose noise is f'(x) times that of x."""
        super().observe(site, grad, coefficient * SLOPES[self.function][0], scale)

    def observe_slope(self, site: Site) -> None:
        """Tell the planner what noise in slopes is to the gradient that goes on: f''(x) times that of x."""
        squared, bent = SLOPES[self.function]
        # relative to values of mean square 1, over which both are averaged
        self.hand_down(site, lambda: bent / squared * self.power_of_input)

    @property
    def power(self) -> float:
        """The mean square of f(x), which is about the slope's times that of x."""
        return SLOPES[self.function][0] * self.power_of_input

    @property
    def power_of_input(self) -> float:
        """The mean square of x."""
        return super().power

    def _evaluate(
        self,
        saved: Sequence[Array],
        derivative: int,
        dtype: str,
        samples: range | None,
        order: Order,
        out: Array,
        grad: Array | None,
    ) -> None:
        assert self.layout is not None
        affine = OutputAffine(self.channels, saved[1], saved[2]) if self.normalized else None
        direct = self.backend.any_shape
        if grad is not None and not (direct and order.dense(grad)):
            grad = order.flat(grad)
        self.backend.decode_function(
            order.tensors,
            saved[0],
            self.layout,
            self.function,
            derivative,
            dtype,
            affine,
            samples,
            out if direct else order.flat(out),
            grad,
        )


class Jumping(Curved):
    """How a gradient times f'(x) is read where the slope jumps at -3 and 3: a mask tells what lies between."""

    __slots__ = ("_base", "_between")

    def __init__(self, base: Reading, function: Smooth, between: Reading) -> None:
        super().__init__(base, function)
        self._base, self._between = base, between

    def gradient(self, site: Site, saved: Sequence[Array], grad: Array) -> Array:
        """Return ``grad`` times f'(x); it has the shape of the code's tensor."""
        *own, mask = saved
        shape, between = tuple(grad.shape), self._between
        if self.function is Smooth.HARDSIGMOID:
            return between.masked(site, mask, grad, 1 / 6, 0.0).reshape(shape)
        tensors = self.order.tensors
        x = self._base.whole(site, own, grad).reshape(shape)
        inside = between.masked(site, mask, grad * ((2 * x + 3) * (1 / 6)), 1.0, 0.0)
        # what lies outside is so far from zero that its sign is certain
        outside = between.masked(site, mask, grad * tensors.cast(x > 0, tensors.dtype(grad)), 0.0, 1.0)
        self.observe_slope(site)
        return (inside + outside).reshape(shape)


def keep_slope(tensors: Tensors, x: Array, kept: Kept, function: Smooth, site: Site) -> Kept:
    """Return what the slope of a function of ``x`` is read from, beginning with the code of ``x``."""
    base = base_of(kept.reading)
    if function not in (Smooth.HARDSWISH, Smooth.HARDSIGMOID):
        return Kept(Curved(base, function), kept.tensors)
    between = encode_mask(tensors, tensors.detach(x) + 3.0, site, upper=6.0)
    return Kept(Jumping(base, function, between.reading), (*kept.tensors, *between.tensors))


def keep_input(tensors: Tensors, x: Array, site: Site) -> Kept | None:
    """Return the code from which a function of ``x`` is read in training; None where there is none to be had."""
    session, form = site.session, tensors.form(x)
    tag = session.tags.current(tensors, x, form)
    exact_bytes = uncounted(tensors, x, tag)
    if tag.owner is not None and tag.readers is not None:
        tag.readers.values = True
        if tag.kept is not None and readable(tag.kept.reading):
            tag.readers.curved = base_of(tag.kept.reading).normalized
            tag.owner.read_by(site, exact_bytes)
            shared: Kept = tag.kept
            return shared
    kept = encode(tensors, x, form, site, None, exact_bytes)
    if kept is None:
        # the plain function will keep it, and somebody else count it
        tag.counted = False
        return None
    if session.policy.share_codes and tensors.recorded(x) and tag.kept is None:
        tag.kept, tag.owner, tag.readers, tag.bypass = kept, site, Readers(), None
    return kept


def readable(reading: Reading) -> bool:
    """Tell whether kernels read functions of an activation from its code."""
    base = base_of(reading)
    if base.layout is None or isinstance(base, Curved):
        return False
    return base.part is Part.WHOLE and base.layout.family.affine


def base_of(reading: Reading) -> Reading:
    """Return the reading of the code itself, whatever shape the activation has."""
    return reading.bases[0][0] if isinstance(reading, Reshaped) else reading


def tag_value(tensors: Tensors, y: Array, kept: Kept, function: Smooth, site: Site) -> int:
    """Let the readers of f(x) find it in the code of x; return what exact training would keep of it."""
    found = Kept(Curved(base_of(kept.reading), function), kept.tensors)
    if isinstance(kept.reading, Reshaped):
        found = found.reshaped(tensors, y)
    return tag_output(tensors, y, found, site, Readers())
