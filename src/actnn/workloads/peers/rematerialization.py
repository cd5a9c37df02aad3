"""DTR (Kirisame et al., ICLR 2021): activations are dropped when memory is short, and computed anew when read.

What is dropped next is where h = cost / (size · staleness) is least: cheap to compute, large, and long not used. Ours
works by blocks instead of single operations, so that a block's activations go together and come back from its input,
which stays; what the layers outside of blocks keep is not counted. The budget is a share of what a step would keep,
known from a small batch before training.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_flatten, tree_map_only

from actnn.workloads.checkpointing import blocks_of
from actnn.workloads.peers.saved import Saved

SHARE = 0.5


class Activations:
    """What one call of a block has autograd save, there or dropped."""

    def __init__(self, memory: Memory, block: nn.Module, forward: Any, args: Any, named: Any) -> None:
        self.memory, self._block, self._forward = memory, block, forward
        self._inputs = args, named
        self._random, self._autocast = torch.get_rng_state(), autocast_of(args)
        self._new: list[Tensor] = []
        self._old: Saved | None = None
        self._held: Saved | None = None
        self.size, self.cost, self.used = 0, 0.0, 0.0

    @property
    def dropped(self) -> bool:
        """Whether they would have to be computed anew."""
        return not self._new and self._old is None

    def run(self, *args: Any, **named: Any) -> Any:
        """Return what the block gives, and note what it has autograd save."""
        begin = time.perf_counter()
        with saved_tensors_hooks(self._pack, self._unpack):
            out = self._forward(*args, **named)
        self.used = time.perf_counter()
        self.cost = self.used - begin
        self.size = self.memory.bytes_of(self._new)
        return out

    def hand_over(self) -> None:
        """Let autograd hold the input, and the activations unless they were dropped."""
        if self._held is None:
            inputs, _ = tree_flatten(self._inputs)
            self._held = Saved(*(leaf for leaf in inputs if isinstance(leaf, Tensor)))
        if self._new:
            self._old, self._new = Saved(*self._new), []

    def drop(self) -> None:
        """Let the activations go."""
        self._new, self._old = [], None

    def worth(self, now: float) -> float:
        """Return h: the one with the least is dropped next."""
        return self.cost / (max(1, self.size) * max(now - self.used, 1e-9))

    def _pack(self, x: Tensor) -> tuple[Activations, int]:
        self._new.append(x.detach())
        return self, len(self._new) - 1

    @staticmethod
    def _unpack(packed: tuple[Activations, int]) -> Tensor:
        activations, place = packed
        return activations.read(place)

    def read(self, place: int) -> Tensor:
        """Return one of the activations, computed anew where they were dropped."""
        if self.dropped:
            self._compute()
            self.memory.make_room(keep=self)
        self.used = time.perf_counter()
        return (self._new or self._old.tensors)[place]  # type: ignore[union-attr]

    def _compute(self) -> None:
        args, named = tree_map_only(Tensor, lambda x: x.detach().requires_grad_(x.requires_grad), self._inputs)
        with torch.random.fork_rng(devices=[]), torch.enable_grad(), unchanged(self._block), self._autocast():
            torch.set_rng_state(self._random)
            with saved_tensors_hooks(self._pack, self._refuse):
                self._forward(*args, **named)

    @staticmethod
    def _refuse(packed: Any) -> Tensor:
        raise RuntimeError("nothing goes backward through what was computed anew")


class Memory:
    """All activations that are there, and how many bytes they may take; None before that is known."""

    def __init__(self, model: nn.Module, share: float) -> None:
        own = (*model.parameters(), *model.buffers())
        self._own = {tensor.untyped_storage().data_ptr() for tensor in own}
        self._all: weakref.WeakSet[Activations] = weakref.WeakSet()
        self._share = share
        self.bytes_a_sample: float | None = None
        self.samples = 1

    def call(self, block: nn.Module, forward: Any, args: Any, named: Any) -> Any:
        """Return what a block gives, and drop what there is no room for."""
        activations = Activations(self, block, forward, args, named)
        self._all.add(activations)
        out = activations.run(*args, **named)
        self.make_room(keep=None)
        return out

    def make_room(self, keep: Activations | None) -> None:
        """Drop activations until the rest fits; what is being read stays."""
        if self.bytes_a_sample is None:
            return
        budget = self._share * self.bytes_a_sample * self.samples
        there = [each for each in self._all if not each.dropped]
        total = sum(each.size for each in there)
        now = time.perf_counter()
        for each in sorted((each for each in there if each is not keep), key=lambda each: each.worth(now)):
            if total <= budget:
                return
            each.drop()
            total -= each.size

    def hand_over(self) -> None:
        """Let autograd hold what is there at the end of a forward."""
        for each in list(self._all):
            each.hand_over()

    def total(self) -> int:
        """Return the bytes that are there."""
        return sum(each.size for each in self._all if not each.dropped)

    def bytes_of(self, tensors: list[Tensor]) -> int:
        """Return the bytes of the memory of some tensors, each once, the model's own left out."""
        memories = [tensor.untyped_storage() for tensor in tensors]
        found = {memory.data_ptr(): memory.nbytes() for memory in memories}
        return sum(nbytes for place, nbytes in found.items() if place not in self._own)


@contextmanager
def unchanged(block: nn.Module) -> Iterator[None]:
    """Put the buffers of a block back: running means would take a batch in twice."""
    before = [(buffer, buffer.clone()) for buffer in block.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)


def autocast_of(args: Any) -> Callable[[], Any]:
    """Return a context that casts as now."""
    device = next((leaf.device.type for leaf in tree_flatten(args)[0] if isinstance(leaf, Tensor)), "cpu")
    dtype, enabled = torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
    return lambda: torch.autocast(device, dtype, enabled=enabled)


def samples_of(args: Any, named: Any) -> int:
    """Return how many samples a model is called with."""
    leaves, _ = tree_flatten((args, named))
    return next((len(leaf) for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim()), 1)


def rematerialized(model: Any, *, seed: int = 0, share: float = SHARE) -> Any:
    """Return a model that keeps a share of what it would, once ``prepare_peer`` has seen a step of it."""
    memory = Memory(model, share)
    for block in blocks_of(model):
        block.forward = _in(memory, block, block.forward)
    forward = model.forward

    def within_budget(*args: Any, **named: Any) -> Any:
        memory.samples = samples_of(args, named)
        out = forward(*args, **named)
        if torch.is_grad_enabled():
            memory.hand_over()
        return out

    def prepare(backward: Callable[[], object]) -> None:
        memory.bytes_a_sample = None
        seen: list[float] = []
        handle = model.register_forward_hook(lambda *_: seen.append(memory.total() / memory.samples))
        backward()
        handle.remove()
        memory.bytes_a_sample = seen[-1]

    model.forward = within_budget
    model.prepare_peer = prepare
    return model


def _in(memory: Memory, block: nn.Module, forward: Any) -> Callable[..., Any]:
    def call(*args: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **named)
        return memory.call(block, forward, args, named)

    return call
