"""Accelerate: ``model = compress(accelerator, model)`` before ``accelerator.prepare``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actnn.integrations.session import figures, missing
from actnn.torch.checkpoint import SessionStates, converted
from actnn.torch.convert import QModule

if TYPE_CHECKING:
    from torch import nn

try:
    from accelerate import Accelerator
except ImportError as problem:
    raise missing("accelerate") from problem


def compress(accelerator: Accelerator, model: nn.Module, **settings: Any) -> QModule:
    """Convert a model, and let ``save_state`` and ``load_state`` of an accelerator take its session with them."""
    compressed = model if isinstance(model, QModule) else QModule(model, **settings)
    accelerator.register_for_checkpointing(SessionStates(compressed))
    return compressed


def log(accelerator: Accelerator, model: nn.Module, values: dict[str, Any], step: int | None = None) -> None:
    """Log values with what the last step kept beside them; ``model`` may be what ``prepare`` returned."""
    accelerator.log(values | figures(converted(model)), step=step)
