"""All rules of the functional door."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actnn.model.door import Rule
from actnn.torch.door import activations, attention, einsum, embedding, maps, multi_head, norms, pooling, products
from actnn.torch.door.mode import Door

RULES: Mapping[Any, Rule] = {
    **maps.RULES,
    **einsum.RULES,
    **norms.RULES,
    **activations.RULES,
    **products.RULES,
    **attention.RULES,
    **multi_head.RULES,
    **embedding.RULES,
    **pooling.RULES,
}


class ModelDoor(Door):
    """The door of a converted model."""

    rules = RULES
