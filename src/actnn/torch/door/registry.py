"""Whole classes that are one operation, though their forward is written out in small pieces.

A row is a class, or what tells such classes by their names, and a function that computes the same by functions that the
door knows. A row found by name is used only where a trial shows that it computes the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from actnn.model.door import disagreement
from actnn.model.registry import Forward, Registry
from actnn.session.session import Session

TOLERANCE = 1e-5
TRIAL_ROWS = 3


def rms_norm(module: Any, hidden_states: Tensor) -> Tensor:
    """Return an RMSNorm as Hugging Face's models have it."""
    weight = module.weight
    epsilon = getattr(module, "variance_epsilon", None)
    return F.rms_norm(hidden_states, weight.shape, weight, module.eps if epsilon is None else epsilon)


def tanh_gelu(module: Any, input: Tensor) -> Tensor:
    """Return the GELU by tanh, which many write by hand."""
    return F.gelu(input, approximate="tanh")


# what a class of these endings is taken for, if a trial agrees
BY_NAME: Sequence[tuple[str, Forward]] = (
    ("RMSNorm", rms_norm),
    ("T5LayerNorm", rms_norm),
    ("NewGELUActivation", tanh_gelu),
    ("FastGELUActivation", tanh_gelu),
    ("GELUTanh", tanh_gelu),
)


registry = Registry(nn.Module, "torch modules")
register = registry.register


def forward_of(module: nn.Module) -> tuple[Forward | None, str | None]:
    """Return what computes a module by functions that the door knows, None where its own forward serves.

    Where its name says that there is such a function, and a trial says otherwise, tell that too.
    """
    if (given := registry.of(module)) is not None:
        return given, None
    name, reason = type(module).__name__, None
    for ending, forward in BY_NAME:
        if name.endswith(ending) and not type(module).__module__.startswith("torch."):
            reason = disagreement(ending, partial(agrees, module, forward))
            if reason is None:
                return forward, None
    return None, reason


def agrees(module: nn.Module, forward: Forward) -> bool:
    """Tell whether a function computes what a module does, by a trial on a few random rows."""
    weight = getattr(module, "weight", None)
    width = weight.shape[-1] if isinstance(weight, Tensor) and weight.dim() else 1
    options = {} if weight is None else {"device": weight.device}
    if isinstance(weight, Tensor) and weight.is_meta:
        raise ValueError("a weight on the meta device holds no numbers")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(TRIAL_ROWS, width, generator=generator).to(**options)
    with torch.no_grad():
        expected, found = module.forward(x), forward(module, x)
    return isinstance(expected, Tensor) and torch.allclose(found.float(), expected.float(), TOLERANCE, TOLERANCE)


class Written:
    """The forward of a module that is computed by functions that the door knows, while it trains."""

    def __init__(self, module: nn.Module, forward: Forward, session: Session) -> None:
        self.module, self.forward, self.session = module, forward, session

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if self.module.training and torch.is_grad_enabled() and not self.session.closed:
            return self.forward(self.module, *arguments, **options)
        return type(self.module).forward(self.module, *arguments, **options)


class Undo:
    """Gives a module its own forward back."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def remove(self) -> None:
        """Do so."""
        self.module.__dict__.pop("forward", None)


def write_out(session: Session, modules: Sequence[tuple[str, nn.Module, bool]]) -> Iterator[tuple[nn.Module, Undo]]:
    """Let modules of registered classes be computed by functions that the door knows; yield what undoes that."""
    for name, module, exact in modules:
        if exact or "forward" in module.__dict__:
            continue
        forward, reason = forward_of(module)
        if reason is not None:
            session.left_exact.append((name, type(module).__name__, reason))
        if forward is not None:
            module.__dict__["forward"] = Written(module, forward, session)
            yield module, Undo(module)
