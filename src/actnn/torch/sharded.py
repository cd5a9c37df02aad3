"""States of models and optimizers whose parameters processes share out: put together, and taken apart again."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.checkpoint import state_dict as distributed
from torch.optim import Optimizer

# whole, and on the host
OPTIONS = distributed.StateDictOptions(full_state_dict=True, cpu_offload=True)


def model_state(model: nn.Module) -> dict[str, Any]:
    """Return the whole state of a model in the first process; all have to call."""
    return distributed.get_model_state_dict(model, options=OPTIONS)


def load_model_state(model: nn.Module, state: dict[str, Any]) -> None:
    """Give a model its part of a whole state."""
    distributed.set_model_state_dict(model, state, options=OPTIONS)


def optimizer_state(model: nn.Module, optimizer: Optimizer) -> Any:
    """Return the whole state of an optimizer, by names of parameters, in the first process; all have to call."""
    return distributed.get_optimizer_state_dict(model, optimizer, options=OPTIONS)


def load_optimizer_state(model: nn.Module, optimizer: Optimizer, state: Any) -> None:
    """Give an optimizer its part of a whole state."""
    distributed.set_optimizer_state_dict(model, optimizer, state, options=OPTIONS)
