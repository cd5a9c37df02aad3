"""Selective checkpointing of blocks: what convolutions, matrix products and attention gave is kept, the rest is redone.

It is ``torch.utils.checkpoint`` with a ``context_fn`` of our own: torch's would hold what it keeps where nobody who
asks autograd can count it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint

from actnn.errors import UnsupportedError
from actnn.workloads.checkpointing import blocks_of
from actnn.workloads.peers.saved import Saved

aten = torch.ops.aten
DEAR = frozenset(
    (
        *(aten.convolution.default, aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default),
        *(aten._scaled_dot_product_flash_attention_for_cpu.default, aten._scaled_dot_product_flash_attention.default),
        *(aten._scaled_dot_product_efficient_attention.default, aten._scaled_dot_product_cudnn_attention.default),
    )
)


class _Results:
    """What the dear operations of one block gave, in their order."""

    def __init__(self) -> None:
        self.new: list[tuple[list[Any], Any, list[int]]] = []
        self._old: list[tuple[Saved, list[Any], Any]] = []

    def hand_over(self) -> None:
        """Let autograd hold what was noted."""
        for leaves, form, versions in self.new:
            tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
            if [tensor._version for tensor in tensors] != versions:
                raise UnsupportedError(
                    "what a product gave is changed in place within its block, where checkpoint-selective keeps it: "
                    "leave that contestant out."
                )
            places = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            self._old.append((Saved(*tensors), places, form))
        self.new = []

    def again(self) -> Iterator[Any]:
        """Yield the results once more."""
        for saved, places, form in self._old:
            tensors = iter(saved.tensors)
            yield tree_unflatten([next(tensors) if place is None else place for place in places], form)


class _Noting(TorchDispatchMode):
    """Notes what dear operations give."""

    def __init__(self, results: _Results) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._results = results

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in DEAR:
            leaves, form = tree_flatten(out)
            versions = [leaf._version for leaf in leaves if isinstance(leaf, Tensor)]
            self._results.new.append((leaves, form, versions))
        return out


class _Repeating(TorchDispatchMode):
    """Gives what dear operations gave before."""

    def __init__(self, results: _Results) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._results = results
        self._again: Iterator[Any] = iter(())

    def __enter__(self) -> _Repeating:
        self._again = self._results.again()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return next(self._again) if func in DEAR else func(*args, **(kwargs or {}))


class _Selected:
    """The forward of a block."""

    def __init__(self, forward: Any) -> None:
        self._forward = forward

    def __call__(self, *args: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._forward(*args, **named)
        results = _Results()

        def contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
            return _Noting(results), _Repeating(results)

        out = checkpoint(self._forward, *args, use_reentrant=False, context_fn=contexts, **named)
        # only now: within the block checkpointing itself holds back what autograd saves
        results.hand_over()
        return out


def selective(model: nn.Module, *, seed: int = 0) -> nn.Module:
    """Return a model whose blocks keep what was dear to compute."""
    for block in blocks_of(model):
        block.forward = _Selected(block.forward)
    return model
