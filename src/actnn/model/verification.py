"""Verification: what codes do to a gradient, layer by layer — bias and variance, beside the sampling noise of a batch.

NOTE [Statistics]
1. Everything is kept as deviations from the exact gradient, and of those only sums: memory does not grow with the
   number of parameters times the number of draws.
2. The variance of a layer is the sum over its parameters' elements of the unbiased sample variance, so that variances
   add over layers and compare with the squared norm of the gradient.
3. Elements of a gradient are correlated, so bias is tested as a whole: the inner products of different draws'
   deviations have the squared bias as their mean, and without bias no correlation among each other. Their sum over
   their root sum of squares is about standard normal without bias; sqrt(draws * (draws - 1) / 2) is its maximum.
4. Inner products of long vectors are taken between count sketches, whose inner products have the right mean.
5. An exact gradient is itself known to float rounding only. What changing every parameter by one unit in the last
   place does to it is the measure: a deviation of this size is no bias.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actnn.errors import UnsupportedError
from actnn.session import html
from actnn.session.whole import some

Floats = NDArray[np.float64]
Gradients = Mapping[str, NDArray[Any]]
Row = dict[str, Any]

BUCKETS = 4096
# rounding differs from one way of computing a gradient to another by a few times what it does within one
ROUNDING_MARGIN = 3.0
# a layer with one parameter passes this once in 500 times without any bias, one with many practically never;
# it takes 10 draws to get there
BIAS_ALARM = 6.0
SAFE = 0.1

COLUMNS = ("layer", "norm", "bias z", "measured", "predicted", "sampling", "measured / sampling")
# how each variance is drawn; told apart by people who see fewer colours, and by shape in print
SERIES: Mapping[str, Mapping[str, Any]] = {
    "sampling": {"color": "#555555", "marker": "_", "markersize": 10, "markeredgewidth": 2.0},
    "predicted": {"color": "#d55e00", "marker": "o", "markersize": 8, "fillstyle": "none"},
    "measured": {"color": "#0072b2", "marker": "o", "markersize": 4},
}
MOST_LABELS = 60


def energy(vector: NDArray[Any]) -> float:
    """Return the squared norm of a vector."""
    # not a product of vectors: BLAS may share one out between threads, which takes longer on a busy machine
    return float(np.square(vector, dtype=np.float64).sum())


class Moments:
    """The mean and the variance of a stream of vectors (Welford's way), without the vectors."""

    def __init__(self, size: int) -> None:
        self.count = 0
        self._mean = np.zeros(size)
        self._squares = 0.0

    def add(self, vector: Floats) -> None:
        """Take one more vector in."""
        self.count += 1
        step = vector - self._mean
        self._squares += (1.0 - 1.0 / self.count) * energy(step)
        step /= self.count
        self._mean += step

    @property
    def energy_of_mean(self) -> float:
        """Squared norm of the mean."""
        return energy(self._mean)

    @property
    def variance(self) -> float:
        """Sum over the elements of their unbiased sample variances."""
        return self._squares / (self.count - 1)


class Sketch:
    """A map to at most ``BUCKETS`` numbers that keeps inner products on average.

    Every element has a bucket and a sign; a vector that has no more elements than there are buckets stays as it is.
    """

    def __init__(self, size: int, seed: int) -> None:
        # one number for both: the upper half of the places are buckets of negative sign
        random = np.random.default_rng(seed)
        self._places = random.integers(0, 2 * BUCKETS, size, dtype=np.uint16) if size > BUCKETS else None

    def __call__(self, vector: Floats) -> Floats:
        """Return the sketch of a vector."""
        if self._places is None:
            return vector
        sums = np.asarray(np.bincount(self._places, weights=vector, minlength=2 * BUCKETS), np.float64)
        return sums[:BUCKETS] - sums[BUCKETS:]


@dataclass(frozen=True)
class Bias:
    """The test of one layer's bias: inner products of its draws' deviations, and the square of what rounding explains.

    Layers add up: their inner products do.
    """

    products: Floats
    rounding: float

    def __add__(self, other: Bias) -> Bias:
        return Bias(self.products + other.products, self.rounding + other.rounding)

    @property
    def size(self) -> float:
        """The norm of the bias, estimated; 0 where rounding explains it."""
        return math.sqrt(max(0.0, float(self._pairs.mean()) - self.rounding))

    @property
    def z(self) -> float:
        """How many standard deviations the squared bias is above 0."""
        pairs = self._pairs
        total, deviation = float(pairs.sum()), float(np.linalg.norm(pairs))
        if total > 0.0:
            total = max(0.0, total - len(pairs) * self.rounding)
        return total / deviation if deviation > 0.0 else 0.0

    @property
    def _pairs(self) -> Floats:
        return self.products[np.triu_indices(len(self.products), 1)]


class LayerStatistics:
    """What is gathered of one layer's gradient."""

    def __init__(self, exact: NDArray[Any], seed: int) -> None:
        self.exact = exact
        self.draws = Moments(exact.size)
        self.parts = Moments(exact.size)
        self.rounding = 0.0
        self._sketch = Sketch(exact.size, seed)
        self._sketches: list[NDArray[np.float32]] = []

    def add_draw(self, gradient: NDArray[Any]) -> None:
        """Take in a gradient from codes."""
        deviation = self.deviation(gradient)
        self.draws.add(deviation)
        self._sketches.append(self._sketch(deviation).astype(np.float32))

    def add_part(self, gradient: NDArray[Any]) -> None:
        """Take in the exact gradient of a part of the batch."""
        self.parts.add(self.deviation(gradient))

    def add_rounded(self, gradient: NDArray[Any]) -> None:
        """Take in the exact gradient of parameters that differ by rounding."""
        self.rounding = max(self.rounding, ROUNDING_MARGIN**2 * energy(self.deviation(gradient)))

    def deviation(self, gradient: NDArray[Any]) -> Floats:
        """Return by how much a gradient differs from the exact one."""
        deviation: Floats = np.subtract(gradient, self.exact, dtype=np.float64)
        return deviation

    def bias(self) -> Bias:
        """Return the test of this layer's bias."""
        sketches = np.stack(self._sketches).astype(np.float64)
        return Bias(sketches @ sketches.T, self.rounding)

    def row(self, layer: str, bias: Bias, predicted: float, share: float) -> Row:
        """Return the row of this layer."""
        return {
            "layer": layer,
            "norm": math.sqrt(energy(self.exact)),
            "bias_z": bias.z,
            "measured": self.draws.variance,
            "predicted": predicted,
            "sampling": self.parts.variance * share if self.parts.count > 1 else None,
        }


class Comparison:
    """Gathers gradients of one batch, each a vector per layer, and compares them with the exact ones."""

    def __init__(self, exact: Gradients) -> None:
        check_finite(exact, "the exact gradient", "verify a model and a batch on which exact training works")
        self._layers = {name: LayerStatistics(vector, seed) for seed, (name, vector) in enumerate(exact.items())}

    def add_draw(self, gradients: Gradients) -> None:
        """Take in gradients from codes, whose noise was drawn anew."""
        check_finite(gradients, "a gradient from codes", "leave the layer exact, or look for activations that overflow")
        for name, layer in self._layers.items():
            layer.add_draw(gradients[name])

    def add_part(self, gradients: Gradients) -> None:
        """Take in the exact gradients of one part of the batch; all parts have the same size."""
        check_finite(gradients, "the exact gradient of a part of the batch", "verify with a larger batch")
        for name, layer in self._layers.items():
            layer.add_part(gradients[name])

    def add_rounded(self, gradients: Gradients) -> None:
        """Take in the exact gradients of parameters that differ by one unit in the last place."""
        for name, layer in self._layers.items():
            layer.add_rounded(gradients[name])

    def result(self, predicted: Mapping[str, float], share: float, unpredicted: Sequence[str] = ()) -> Verification:
        """Return the verification; ``share`` of the batch is what one part holds.

        ``unpredicted`` names codes whose noise is found in none of the predictions.
        """
        biases = {name: layer.bias() for name, layer in self._layers.items()}
        rows = [layer.row(name, biases[name], predicted.get(name, 0.0), share) for name, layer in self._layers.items()]
        first, *others = biases.values()
        total = total_of(rows, sum(others, first))
        warned = warning(rows, biases)
        noisy = [row["layer"] for row in rows if row["measured"] > 0.0 and not row["predicted"]]
        told = conclusion(rows, total, biased=warned is not None)
        return Verification(rows, total, told, warned, (*unpredicted, *noisy))


def check_finite(gradients: Gradients, what: str, advice: str) -> None:
    """Raise UnsupportedError where a gradient holds NaN or infinity."""
    broken = [name for name, vector in gradients.items() if not np.isfinite(vector).all()]
    if broken:
        # the last one is nearest to the loss: backward came there first
        raise UnsupportedError(
            f"{what} is not finite at {broken[-1]!r} ({len(broken)} of {len(gradients)} layers): there is nothing to "
            f"compare. To go on, {advice}."
        )


def total_of(rows: Sequence[Row], bias: Bias) -> Row:
    """Return the row of all layers together."""
    sampled = all(row["sampling"] is not None for row in rows)
    return {
        "layer": "total",
        "norm": math.hypot(*(row["norm"] for row in rows)),
        "bias_z": bias.z,
        "measured": math.fsum(row["measured"] for row in rows),
        "predicted": math.fsum(row["predicted"] for row in rows),
        "sampling": math.fsum(row["sampling"] for row in rows) if sampled else None,
    }


def conclusion(rows: Sequence[Row], total: Row, biased: bool) -> str:
    """Return in one sentence whether the codes' noise matters."""
    measured, sampling = total["measured"], total["sampling"]
    safe = "." if biased else ": safe."
    largest = max(rows, key=lambda row: row["measured"])["layer"]
    if measured == 0.0:
        return f"Codes add no noise to this gradient{safe}"
    if not sampling:
        relative = percent(measured / total["norm"] ** 2) if total["norm"] > 0.0 else "more than 100 %"
        return (
            f"Codes add noise of {relative} of the squared norm of this gradient; verify with at least 4 different "
            "samples to compare it with the sampling noise of a batch."
        )
    ratio = measured / sampling
    noisy = [row["layer"] for row in rows if row["measured"] > row["sampling"]]
    if ratio < SAFE and noisy:
        return (
            f"Codes add {percent(ratio)} to the variance of a batch, but more than its own to {len(noisy)} of "
            f"{len(rows)} layers, such as {noisy[0]!r}: leave these exact where every layer has a step size of its own."
        )
    if ratio < SAFE:
        return f"Codes add {percent(ratio)} to the variance of a batch{safe}"
    if ratio < 1.0:
        return (
            f"Codes add {percent(ratio)} to the variance of a batch, as if it had {percent(ratio / (1.0 + ratio))} "
            f"fewer samples, the largest part at {largest!r}: watch the loss, or use more bits."
        )
    return (
        f"Codes add {ratio:.3g} times the variance of a batch, the largest part at {largest!r}: use more bits, or "
        "leave that layer exact."
    )


def warning(rows: Sequence[Row], biases: Mapping[str, Bias]) -> str | None:
    """Return a warning where the mean of the draws is not the exact gradient."""
    alarming = [row for row in rows if row["bias_z"] > BIAS_ALARM]
    if not alarming:
        return None
    worst = max(alarming, key=lambda row: row["bias_z"])
    size = biases[worst["layer"]].size
    share = f", by about {percent(size / worst['norm'])} of its norm" if worst["norm"] > 0.0 else ""
    return (
        f"Warning: the mean gradient is off at {len(alarming)} of {len(rows)} layers, most clearly at "
        f"{worst['layer']!r} (z = {worst['bias_z']:.1f}{share}): noise averages out over steps, a bias does not."
    )


def percent(ratio: float) -> str:
    """Return a ratio for people."""
    if ratio < 1e-4:
        return "less than 0.01 %"
    return f"{100 * ratio:.2g} %" if ratio < 0.0995 else f"{100 * ratio:.0f} %"


@dataclass(frozen=True, repr=False)
class Verification:
    """Bias and variance of a gradient from codes; prints as a table that ends in a conclusion.

    ``rows`` holds one dict per layer, ``total`` one for all of them: ``layer``, the ``norm`` of the exact gradient,
    ``bias_z``, and the variances ``measured``, ``predicted`` and ``sampling`` (None where the batch is too small).
    ``unpredicted`` names what the predictions leave out: codes whose noise goes on to layers below, and layers that
    have noise of others alone.
    """

    rows: list[Row] = field(repr=False)
    total: Row
    conclusion: str
    warning: str | None = None
    unpredicted: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """Return the table as notebooks show it, with the conclusion."""
        cells = [COLUMNS, *(_cells(row) for row in self.rows), _cells(self.total)]
        last = self._sentences()
        return f"{html.table(cells)}{html.words(last)}"

    def __str__(self) -> str:
        cells = [COLUMNS, *(_cells(row) for row in self.rows), _cells(self.total)]
        widths = [max(len(row[column]) for row in cells) for column in range(len(COLUMNS))]
        lines = []
        for layer, *figures in cells:
            adjusted = [figure.rjust(width) for figure, width in zip(figures, widths[1:], strict=True)]
            lines.append("  ".join([layer.ljust(widths[0]), *adjusted]))
        rule = "-" * len(lines[0])
        last = self._sentences()
        return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1], "", *last])

    def _sentences(self) -> list[str]:
        """Return what there is to say under the table."""
        left_out = f"Predictions leave out noise at {len(self.unpredicted)} places: {some(self.unpredicted)}"
        warned = [] if self.warning is None else [self.warning]
        return [*([left_out] if self.unpredicted else []), self.conclusion, *warned]

    def plot(self, path: str | Path) -> None:
        """Draw the variances by layer into a file, whose ending tells its format.

        Raises UnsupportedError where matplotlib is missing.
        """
        try:
            figure_class = import_module("matplotlib.figure").Figure
        except ImportError as problem:
            raise UnsupportedError("drawing needs matplotlib: pip install 'actnn[plots]'") from problem
        figure = figure_class(figsize=(min(24.0, 4.5 + 0.25 * len(self.rows)), 5.5), layout="constrained")
        axes = figure.subplots()
        for name, style in SERIES.items():
            points = [(place, row[name]) for place, row in enumerate(self.rows) if row[name]]
            axes.plot([place for place, _ in points], [value for _, value in points], linestyle="", label=name, **style)
        stride = -(-len(self.rows) // MOST_LABELS)
        axes.set_xticks(
            range(0, len(self.rows), stride), [row["layer"] for row in self.rows[::stride]], rotation=90, fontsize=8
        )
        if any(row[name] for row in self.rows for name in SERIES):
            axes.set_yscale("log")
        axes.set_ylabel("variance of the gradient")
        axes.set_title(self.conclusion, fontsize=10, wrap=True)
        axes.grid(axis="y", alpha=0.3, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside right upper", frameon=False)
        figure.savefig(path, dpi=150)


def _cells(row: Row) -> tuple[str, ...]:
    sampling = row["sampling"]
    return (
        row["layer"],
        f"{row['norm']:.3g}",
        f"{row['bias_z']:+.1f}",
        f"{row['measured']:.3g}",
        f"{row['predicted']:.3g}",
        "-" if sampling is None else f"{sampling:.3g}",
        f"{row['measured'] / sampling:.3g}" if sampling else "-",
    )
