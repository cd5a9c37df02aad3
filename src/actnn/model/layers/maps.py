"""Convolution and linear layers: how a BatchNorm behind one finds it, and what noise does to its weights."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from actnn.kernels.contract import Array
from actnn.model.layers.base import CompressedLayer
from actnn.operations.kept import on_host
from actnn.planning.noise import Transfer
from actnn.session import tagging
from actnn.session.tensors import Tensors

# positions over which the statistics of a layer's transfer are averaged, and the variance of a channel that has none
ENOUGH_POSITIONS = 2048
LEAST_VARIANCE = 1e-12


class MapLayer(CompressedLayer):
    """A layer that is linear in its input, of which it keeps a code."""

    weight: Array

    def is_source(self, y: Array, measure: Callable[[], Transfer]) -> None:
        """Let a BatchNorm that reads ``y`` find this layer, and how this layer hands noise on to its weights."""
        planner = self.site.session.planner
        if planner.active and self.training and self.tensors.wants_gradient(self.weight):
            tagging.set_source(self.tensors, y, self.site)
            if self.site.transfer is None or planner.is_time(self.site):
                transfer = measure()
                # a batch that overflows tells nothing
                if math.isfinite(transfer.patch) and np.isfinite(transfer.aligned).all():
                    self.site.transfer = transfer


def transfer_of(tensors: Tensors, rows_of_channels: Array, patch: float) -> Transfer:
    """Return a transfer from mean(x̂ h) of each channel and the energy of a patch."""
    return Transfer(on_host(tensors, (rows_of_channels * rows_of_channels).sum(1)), patch)


def few(tensors: Tensors, values: Array, positions: int) -> Array:
    """Return, as float32, as many samples as have enough positions to average over."""
    return tensors.cast(tensors.detach(values)[: -(-ENOUGH_POSITIONS // max(1, positions))], "float32")


def normalize(tensors: Tensors, y: Array, axes: list[int]) -> Array:
    """Return a tensor with mean 0 and variance 1 along some axes."""
    centred = y - y.mean(axes, keepdim=True)
    variance = (centred * centred).mean(axes, keepdim=True)
    return centred / tensors.sqrt(variance + LEAST_VARIANCE)


def energy_of(x: Array) -> float:
    """Return the mean squared norm of a sample."""
    return float((x * x).sum()) / max(1, len(x))
