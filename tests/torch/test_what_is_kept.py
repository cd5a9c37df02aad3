"""What autograd keeps, seen through torch's own hooks: freed when exact training frees it."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from frameworks import input_of
from layer_cases import KINDS, Case
from networks import images, small_network
from torch import nn
from torch_framework import FRAMEWORK

import actnn


@pytest.mark.parametrize("case", KINDS, ids=str)
def test_nothing_is_kept_in_inference_mode(case: Case):
    ours, x = FRAMEWORK.compressed(FRAMEWORK.plain_layer(case)), FRAMEWORK.tensor(input_of(case))
    with torch.inference_mode():
        ours(x)
    assert ours.report().kept_bytes == 0


class Remember:
    """Weak references to everything that autograd saves of a call, apart from what the model or the caller owns."""

    def __init__(self, model: nn.Module, x: torch.Tensor) -> None:
        self._own = {id(tensor) for tensor in (*model.parameters(), *model.buffers(), x)}
        self._saved: list[weakref.ref] = []

    def __enter__(self) -> Remember:
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)
        self._hooks.__enter__()
        return self

    def __exit__(self, *problem) -> None:
        self._hooks.__exit__(*problem)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in self._own:
            self._saved.append(weakref.ref(tensor))
        return tensor

    def alive(self) -> list[tuple[int, ...]]:
        """Return the shapes of what still exists."""
        gc.collect()
        assert self._saved
        return [tuple(reference().shape) for reference in self._saved if reference() is not None]


def test_codes_are_freed_by_backward_while_the_loss_is_alive():
    ours, x = FRAMEWORK.compressed(small_network(FRAMEWORK), 2), FRAMEWORK.tensor(images())
    with Remember(ours, x) as saved:
        loss = ours(x).square().sum()
    loss.backward()
    assert saved.alive() == []


def test_a_graph_that_is_dropped_frees_its_codes():
    ours, x = FRAMEWORK.compressed(small_network(FRAMEWORK), 2), FRAMEWORK.tensor(images())
    with Remember(ours, x) as saved:
        loss = ours(x).square().sum()
    del loss
    assert saved.alive() == []


def test_a_memory_budget_counts_sparse_tensors_by_what_they_are_made_of():
    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(64, 64)
            self.adjacency = torch.eye(32).to_sparse()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sparse.mm(self.adjacency, self.linear(x))

    model = actnn.QModule(Graph(), memory="100MB")
    model(torch.randn(32, 64)).sum().backward()
    assert model.report().other_bytes >= 32 * (2 * 8 + 4)
