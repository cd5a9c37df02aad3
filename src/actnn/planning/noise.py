"""How much noise a code adds to the gradient: energy by width, and the way from an input to a weight's gradient.

A code of sample n at width b adds noise of energy E_n = f (A_n⁻ ν⁻(b) + A_n⁺ ν⁺(b)): f is the factor of the rounding,
ν the noise of a width (``noise_of_widths``), and A the sum, over the elements on one side, of the squared range of
that side of their group. A layer that reads the code turns that energy into c |g_n|² E_n of variance in its weight's
gradient, g_n being sample n's gradient of the layer's output and c the layer's coefficient. Several readers of one
code add up.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from actnn.format import MAX_BITS, Family, Rounding

Floats = NDArray[np.float64]

# squared error in units of a squared step: the mean over uniform positions between two levels, and the most it can be
FACTORS = {
    Rounding.DITHER: (1 / 12, 1 / 12),
    Rounding.STOCHASTIC: (1 / 6, 1 / 4),
    Rounding.NEAREST: (1 / 12, 1 / 4),
}


@dataclass(frozen=True)
class Transfer:
    """How a layer with input h hands noise in its output's gradient on to the gradient of its weights.

    ``aligned`` is, for each channel of the output, the squared norm of mean(x̂ h), with x̂ the normalised output and h
    the patch that each of its positions sees; ``patch`` is the mean squared norm of a patch.
    """

    aligned: Floats
    patch: float


def rounding_factor(rounding: Rounding, bound: bool = False) -> float:
    """Return the mean squared error of a rounding in squared steps, or its bound; with dither they are the same."""
    mean, most = FACTORS[rounding]
    return most if bound else mean


@lru_cache(maxsize=16)
def noise_of_widths(family: Family) -> Floats:
    """Return the squared step of each width, relative to the squared range: (MAX_BITS + 1, 2), negative side first.

    A side of one level or none is exact, its noise 0; widths that the family does not have are infinitely noisy.
    """
    noise = np.full((MAX_BITS + 1, 2), np.inf)
    for bits in range(family.least_bits, MAX_BITS + 1):
        negative = family.negative[bits]
        noise[bits] = [squared_step(negative), squared_step(2**bits - negative)]
    noise.setflags(write=False)
    return noise


def squared_step(levels: int) -> float:
    """Return the squared distance of neighbours among so many levels over a range of 1; a single level is exact."""
    return (levels - 1) ** -2.0 if levels > 1 else 0.0


@lru_cache(maxsize=1024)
def convolution_coefficient(
    input_size: tuple[int, ...],
    output_size: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
    transposed: bool = False,
) -> float:
    """Return the variance of a convolution's weight gradient per unit of |g_n|² E_n.

    Mean field: noise and gradient are spread evenly over positions and channels, so that only the part of all pairs
    of an input and an output position counts that meet in the kernel. Without padding it is kernel volume / input
    positions / groups. ``padding`` is that before the first element; the one behind the last follows from the sizes.
    """
    positions = prod(input_size) * prod(output_size)
    if positions == 0:
        return 0.0
    # a transposed convolution is the backward of one that leads from its output to its input
    ends = (output_size, input_size) if transposed else (input_size, output_size)
    axes = zip(*ends, kernel, stride, padding, dilation, strict=True)
    return prod(meeting_pairs(*axis) for axis in axes) / (positions * groups)


def meeting_pairs(inputs: int, outputs: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """Count the pairs of an input and an output position along one axis that meet through an offset of the kernel."""
    windows = stride * np.arange(outputs)[:, None] - padding
    met = windows + dilation * np.arange(kernel)
    return int(np.count_nonzero((met >= 0) & (met < inputs)))


@lru_cache(maxsize=1024)
def linear_coefficient(tokens: int) -> float:
    """Return the variance of a linear layer's weight gradient per unit of |g_n|² E_n, with ``tokens`` rows a sample."""
    return 1 / tokens if tokens else 0.0


def batch_norm_coefficient(elements: int, rectified: bool) -> float:
    """Return the variance of gamma's gradient per unit of |g_n|² E_n, a sample having ``elements`` values.

    Where a ReLU follows (``rectified``), gradients live on the positive side alone, and there about half of the
    elements lie: the coefficient doubles, and E_n is to hold the positive side's energy only.
    """
    return (2 if rectified else 1) / elements if elements else 0.0


def handed_down(slope: Floats, mean_product: Floats, below: Transfer, coefficient: float, energy: float) -> float:
    """Return the variance that noise in a BatchNorm's code adds to the weights below it, per that in gamma's gradient.

    The gradient of BatchNorm's input is slope_c (g - mean g - x̂ m_c), m_c = mean(g x̂) being ``mean_product``. Noise in
    x̂ enters twice. Through m_c it adds x̂ times one number to a whole channel, which the layer below turns into
    slope_c² |mean(x̂ h)|² of the variance of gamma's gradient. Through x̂ itself it adds m_c² of its own energy, spread
    over all elements; each meets a patch of the layer's input. ``coefficient`` and ``energy``, the mean |g_n|², tell
    the variance of gamma's gradient for comparison.
    """
    squared = np.square(slope)
    coherent = float(np.mean(squared * below.aligned))
    scattered = float(np.mean(squared * np.square(mean_product))) * below.patch
    own = coefficient * energy
    return coherent + (scattered / own if own > 0 else 0.0)
