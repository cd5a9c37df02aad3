"""Statistical checks with stated confidence: each raises AssertionError, and falsely so once in 1 / FALSE_ALARM times.

Seeds are fixed wherever these are used, so that a check that passed keeps passing until the code changes.
"""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist

import numpy as np

FALSE_ALARM = 1e-6
ROUNDING = 1e-5


def normal_bound(comparisons: int, repeats: int = 10**9) -> float:
    """Return what no |z| of so many exceeds (Bonferroni), deviations being estimated from ``repeats`` samples."""
    z = NormalDist().inv_cdf(1 - FALSE_ALARM / (2 * comparisons))
    # the first term of the expansion of Student's quantile about the normal one
    return z + (z**3 + z) / (4 * (repeats - 1))


def chi_square_bound(freedom: int, tail: float = FALSE_ALARM) -> float:
    """Return the quantile of chi-square that is exceeded with probability ``tail`` (Wilson and Hilferty)."""
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + NormalDist().inv_cdf(1 - tail) * sqrt(spread)) ** 3


def check_unbiased(samples, exact, allowance=0.0) -> None:
    """Raise unless the mean of ``samples`` (repeats, ...) is ``exact``.

    Two tests: no element's |z| passes the Bonferroni bound, and Hotelling's T² along a few directions (the exact value
    itself, which shows shrinkage, the sum, and random ones) stays below its bound. Elements without noise must be equal
    to float rounding. ``allowance`` is a known bias, element by element; with one, only elements are tested.
    """
    samples = np.asarray(samples, np.float64).reshape(len(samples), -1)
    exact = np.asarray(exact, np.float64).reshape(-1)
    repeats, size = samples.shape
    mean, deviation = samples.mean(0), samples.std(0, ddof=1)
    rounding = ROUNDING * (np.abs(exact).max(initial=0) + 1e-30)
    excess = np.abs(mean - exact) - rounding - allowance
    error = normal_bound(size, repeats) * deviation / sqrt(repeats)
    worst = int(np.argmax(excess - error)) if size else 0
    assert size == 0 or excess[worst] <= error[worst], (
        f"element {worst} is biased: mean {mean[worst]:.6g}, exact {exact[worst]:.6g}, "
        f"bound {error[worst]:.3g} ({repeats} repeats)"
    )
    if size and np.isscalar(allowance) and allowance == 0:
        check_directions(samples, exact, rounding)


def check_directions(samples, exact, rounding: float) -> None:
    """Raise unless Hotelling's T² of the mean error along a few directions is below its bound."""
    repeats, size = samples.shape
    generator = np.random.default_rng(5)
    directions = np.stack([exact, np.ones(size), np.sign(exact), *generator.standard_normal((5, size))])
    directions /= np.linalg.norm(directions, axis=1, keepdims=True) + 1e-30
    along = (samples - exact) @ directions.T
    values, vectors = np.linalg.eigh(np.cov(along, rowvar=False))
    # directions with no more noise than rounding, and those that repeat another, tell nothing
    usable = values > max(repeats * rounding**2, 1e-9 * values.max())
    rank = int(usable.sum())
    if rank == 0:
        return
    scores = (along.mean(0) @ vectors)[usable] / np.sqrt(values[usable] / repeats)
    statistic = (scores**2).sum() * (repeats - rank) / (repeats - 1)
    # a tenth more than chi-square: the tail of F with a few hundred degrees of freedom
    bound = 1.1 * chi_square_bound(rank)
    assert statistic <= bound, f"biased: T² {statistic:.1f} along {rank} directions, bound {bound:.1f}"


def squared_bias(samples, exact) -> tuple[float, float]:
    """Return an unbiased estimate of the squared bias of ``samples`` (repeats, ...) over |exact|², and its error.

    Products of different samples have the squared bias as their mean; noise leaves them alone.
    """
    samples = np.asarray(samples, np.float64).reshape(len(samples), -1)
    exact = np.asarray(exact, np.float64).reshape(-1)
    off = samples - exact
    products = (off @ off.T / (exact @ exact))[~np.eye(len(off), dtype=bool)]
    # every pair is there twice
    return float(products.mean()), float(products.std() / sqrt(len(products) / 2))


def check_uniform(numbers, bins: int) -> None:
    """Raise unless whole numbers from 0 to bins - 1 are uniform: neither too uneven nor too even."""
    counts = np.bincount(np.asarray(numbers).reshape(-1), minlength=bins)
    expected = counts.sum() / bins
    statistic = ((counts - expected) ** 2 / expected).sum()
    low, high = chi_square_bound(bins - 1, 1 - FALSE_ALARM), chi_square_bound(bins - 1)
    assert low < statistic < high, f"chi-square {statistic:.1f}, expected {low:.1f} to {high:.1f}"


def check_uncorrelated(x, y) -> None:
    """Raise unless two equally long sequences show no linear correlation."""
    x, y = (np.asarray(each, np.float64).reshape(-1) for each in (x, y))
    score = np.corrcoef(x, y)[0, 1] * sqrt(len(x))
    assert abs(score) < normal_bound(1), f"correlation of {score:.1f} standard deviations"


def check_no_shifted_copy(x, y) -> None:
    """Raise if one sequence resembles the other, cyclically shifted by any amount but that of a sequence to itself."""
    x, y = (np.asarray(each, np.float64).reshape(-1) for each in (x, y))
    same = np.array_equal(x, y)
    spectra = [np.fft.rfft((each - each.mean()) / each.std()) for each in (x, y)]
    scores = np.fft.irfft(spectra[0] * spectra[1].conj(), len(x)) / sqrt(len(x))
    shift = int(np.argmax(np.abs(scores[same:]))) + same
    bound = normal_bound(len(x))
    assert abs(scores[shift]) < bound, f"shifted by {shift} they correlate by {scores[shift]:.1f} standard deviations"
