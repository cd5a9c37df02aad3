"""All rules of the functional door, and where their functions are found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import paddle
from paddle import nn
from paddle.nn import functional as F
from paddle.nn.layer import norm

from actnn.model.conversion import Patterns
from actnn.model.door import Rule
from actnn.model.steps import Steps
from actnn.paddle.door import activations, attention, embedding, layers, norms, products
from actnn.paddle.door.calls import ROOT, Entered, patches
from actnn.paddle.door.written import written
from actnn.paddle.layers import Compressed

RULES: dict[str, Rule] = {
    **layers.RULES,
    **norms.RULES,
    **activations.RULES,
    **products.RULES,
    **attention.RULES,
    **embedding.RULES,
}
OWNERS = (F, paddle, paddle.tensor, paddle.Tensor)
# they call nothing themselves
CONTAINERS = (nn.Sequential, nn.LayerList, nn.LayerDict, nn.Identity)


def places() -> list[tuple[Any, str, Rule]]:
    """Return where Paddle has functions that rules know."""
    found = [(owner, name, rule) for owner in OWNERS for name, rule in RULES.items() if name in vars(owner)]
    inner = [(F.conv, name, rule) for name, rule in layers.INNER.items() if name in vars(F.conv)]
    # the one module of layers that imports functions by their names
    inner += [(norm, name, rule) for name, rule in norms.RULES.items() if name in vars(norm)]
    return [*found, *inner, *((paddle.Tensor, name, rule) for name, rule in products.OPERATORS.items())]


patches.know(places())


def open_doors(
    steps: Steps, given: Sequence[tuple[str, nn.Layer]], patterns: Patterns
) -> list[tuple[nn.Layer, Entered]]:
    """Let the layers that were not converted send what they call to operations; return what undoes that."""
    policy = steps.session.policy
    if not steps.session.serves:
        return []
    doors = []
    for name, layer in given:
        # the model itself has one whatever it is: a step may begin with a call of it
        calls_nothing = isinstance(layer, (Compressed, *CONTAINERS))
        if not name or not calls_nothing:
            exact = calls_nothing or not policy.compress or patterns.names(name, layer)
            function, reason = (None, None) if exact else written(layer)
            if reason is not None:
                steps.session.left_exact.append((name or ROOT, type(layer).__name__, reason))
            doors.append(Entered(layer, name or ROOT, exact, steps, function))
    steps.session.serves_calls = not all(door.exact for door in doors)
    for door in doors:
        door.install()
    return [(door.layer, door) for door in doors]
