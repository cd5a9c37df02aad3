"""torch.compile with an ``activation_memory_budget``: its partitioner chooses what is computed anew in backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch._functorch import config

# of what a compiled step would keep at most
BUDGET = 0.5


def compile_budget(model: nn.Module, *, seed: int = 0, budget: float = BUDGET, backend: str = "inductor") -> nn.Module:
    """Return a model whose forward is compiled with a budget; the first step takes long."""
    compiled = torch.compile(model.forward, backend=backend)

    def forward(*args: Any, **named: Any) -> Any:
        with config.patch(activation_memory_budget=budget):
            return compiled(*args, **named)

    model.forward = forward
    return model
