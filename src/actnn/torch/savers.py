"""Which operations keep what for backward: what autograd saved, by the node of its graph that saved it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from actnn.torch.memory import address, whole_bytes

# what operations of torch save are attributes of their nodes; those of functions in Python have one for all
OF_OPERATIONS, OF_FUNCTIONS = "_saved_", "saved_tensors"


class Part(NamedTuple):
    """What all nodes of one name keep, codes and exact tensors apart."""

    operation: str
    is_code: bool
    nbytes: int


@dataclass
class Saved:
    """A tensor that autograd saved, and the name of the node that did."""

    tensor: Tensor
    operation: str = "unknown"


class Savers(saved_tensors_hooks):
    """Counts what autograd saves while it is entered; its graph may then be looked at, and not run backward."""

    def __init__(self, model: nn.Module) -> None:
        self._own = frozenset(map(address, (*model.parameters(), *model.buffers())))
        self._saved: list[Saved] = []
        self._looking_at = ""
        super().__init__(self._note, self._name)

    # torch's own returns None, and no other type may take the place of that
    def __enter__(self) -> Any:
        super().__enter__()
        return self

    def _note(self, tensor: Tensor) -> Saved:
        self._saved.append(Saved(tensor))
        return self._saved[-1]

    def _name(self, saved: Saved) -> Tensor:
        saved.operation = self._looking_at
        return saved.tensor

    def parts(self, output: Tensor) -> list[Part]:
        """Return the parts, largest first, of what the graph of an output keeps.

        Each block of memory counts once, for the first that saved it; the model's own do not count.
        """
        for node in nodes(output.grad_fn):
            self._looking_at = node.name()
            for name in dir(node):
                if name.startswith(OF_OPERATIONS) or name == OF_FUNCTIONS:
                    getattr(node, name)
        blocks: dict[int, tuple[Saved, int]] = {}
        for saved in self._saved:
            if (place := address(saved.tensor)) not in self._own:
                blocks.setdefault(place, (saved, whole_bytes(saved.tensor)))
        found: dict[tuple[str, bool], int] = {}
        for saved, whole in blocks.values():
            kind = saved.operation, saved.tensor.dtype == torch.uint8
            found[kind] = found.get(kind, 0) + whole
        return sorted((Part(*kind, size) for kind, size in found.items()), key=lambda part: -part.nbytes)


def nodes(root: Any) -> Iterator[Any]:
    """Yield every node of a graph once."""
    # held as long as it is searched: a node's object in Python lasts no longer than somebody holds it
    seen = set()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        waiting += [below for below, _ in node.next_functions]
