"""How many planes each sample of each code gets: what noise costs, and how a budget is spent on it."""

from __future__ import annotations

from actnn.planning.noise import (
    batch_norm_coefficient,
    convolution_coefficient,
    handed_down,
    linear_coefficient,
    noise_of_widths,
    rounding_factor,
)
from actnn.planning.problem import Demand, variance
from actnn.planning.solvers import allocate_jointly, allocate_layers, allocate_samples

__all__ = [
    "Demand",
    "allocate_jointly",
    "allocate_layers",
    "allocate_samples",
    "batch_norm_coefficient",
    "convolution_coefficient",
    "handed_down",
    "linear_coefficient",
    "noise_of_widths",
    "rounding_factor",
    "variance",
]
