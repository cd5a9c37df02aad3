"""ActNN as it was published (Chen et al., ICML 2021), at its level L2: 2 bits for every group of 256.

Groups are coded between their least and greatest value with stochastic rounding; convolutions, linear layers and
BatchNorms keep codes of their inputs, ReLUs a bit, and poolings positions. Every layer codes what it reads for itself.
The kernels, and where the bytes lie, are ours: its time is that of our kernels, not of its own for accelerators.
"""

from __future__ import annotations

from typing import Any

from actnn.workloads.training import compressed


def original(model: Any, *, seed: int = 0, bits: float = 2) -> Any:
    """Return a model that trains as the original does."""
    return compressed(model, "L2", bits, seed=seed, share_codes=False, rounding="stochastic")
