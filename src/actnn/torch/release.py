"""Gives back the memory of a block's input that only variables hold which are read no more.

NOTE [Early release]
1. ``x = self.stage(x)`` holds its argument until the whole of ``stage`` has run, though only its first block reads it.
   When that block is done, every holder that is left is a variable or an argument of a call further up; where none of
   them can be read again (``callers``), the tensor is given another, empty memory. It stays what it is in the graph.
2. All references must be accounted for: those that calls of modules make, with hooks of ours and without, are counted
   once with calls of which all is known; a variable holds one more. What a call is given that no variable holds, as
   ``self.head(torch.cat(maps))``, is held by that call alone.
3. A convolution does the same with its own input, which may be read no more while the block goes on.
4. Modules with hooks are left alone, which might see their arguments afterwards, but for hooks that say of themselves
   that they are ``blind``: ours, and those of a profiler. Hooks may come and go, so they are asked for at each call.
   Everything is left alone while somebody watches (``callers.observed``).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn

from actnn.frames import variables_of
from actnn.torch.callers import holds, observed
from actnn.torch.holders import LARGE_BYTES, alone
from actnn.torch.instructions import Call, call_at

CALL, WRAPPED = nn.Module._call_impl.__code__, nn.Module._wrapped_call_impl.__code__
# where a module has hooks, a function within runs them
INNER = next(part for part in CALL.co_consts if isinstance(part, CodeType) and part.co_name == "inner")
# functions further up that may hold a tensor: a block in a sequence, in a stage, in a model
MOST_LEVELS = 3

# what the instructions of functions tell that call one another, by their addresses and places
Known = dict[tuple[int, ...], tuple[tuple[CodeType, ...], tuple[Call | None, ...]]]


def release_input(module: nn.Module, arguments: Any, known: Known) -> None:
    """Give back the memory of the first argument of a module whose forward is done, if nobody reads it again.

    Called by a forward hook. ``known`` remembers what the instructions of its callers tell.
    """
    x = arguments[0] if arguments else None
    if type(x) is not Tensor or not large(x):
        return
    references = sys.getrefcount(x)
    release(module, x, references, references_of("block"), callers(sys._getframe(2)), known)


def release(
    module: Any,
    x: Tensor,
    references: int,
    expected: int,
    levels: Iterable[tuple[FrameType, bool]],
    known: Known,
) -> None:
    """Give back the memory of a tensor if all its references are known, and none can be read again.

    ``expected`` are those of a call of ``module`` with a variable; ``levels`` is what ``callers`` yields.
    """
    if not alone(x) or observed():
        return
    frames: list[FrameType] = []
    temporary = False
    for caller, hooked in levels:
        if frames:
            kind = "hooked" if hooked else "plain"
            temporary = expected + references_of(kind, temporary=True) == references
            expected += references_of(kind, temporary)
        frames.append(caller)
        if expected >= references:
            break
    # what the next function up holds goes at once anyway
    if expected != references or len(frames) < 2:
        return
    codes = tuple(frame.f_code for frame in frames)
    key = tuple(number for frame in frames for number in (id(frame.f_code), frame.f_lasti))
    found = known.get(key)
    if found is None or found[0] != codes:
        found = known[key] = codes, tuple(call_at(frame.f_code, frame.f_lasti) for frame in frames)
    if forgotten(module, frames, found[1], x, temporary):
        x.data = x.new_empty(0)


def large(x: Tensor) -> bool:
    """Tell whether it may be worth the while to release a tensor."""
    # a sparse tensor has no number of bytes
    return x.layout is torch.strided and x.nbytes >= LARGE_BYTES and not x.is_leaf and x.device.type == "cpu"


def callers(frame: FrameType | None) -> Iterator[tuple[FrameType, bool]]:
    """Yield the functions that called a module, the module within which they ran, and so on, and whether hooks ran."""
    for _ in range(MOST_LEVELS):
        hooked = frame is not None and frame.f_code is INNER
        if hooked and frame is not None:
            frame = frame.f_back
        for code in (CALL, WRAPPED):
            if frame is None or frame.f_code is not code:
                return
            frame = frame.f_back
        if frame is None:
            return
        yield frame, hooked
        frame = frame.f_back


def forgotten(
    module: Any, frames: Sequence[FrameType], calls: Sequence[Call | None], x: Tensor, temporary: bool = False
) -> bool:
    """Tell whether each function calls the module within with ``x`` in a variable that it reads no more.

    In the last one only the call may hold it: ``temporary`` is what the count of references says of that.
    """
    *within, last = calls
    if not all(call is not None and call.variable is not None for call in within):
        return False
    if last is None or (last.variable is None) != temporary:
        return False
    for frame, call in zip(frames, calls, strict=True):
        if not isinstance(module, nn.Module) or watched(module) or call is None or not holds(frame, call, module, x):
            return False
        (module,) = variables_of(frame, frame.f_code.co_varnames[:1])
    return True


def watched(module: nn.Module) -> bool:
    """Tell whether a module has hooks, or all modules have, that might see its arguments when it has run."""
    hooks = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
    if not all(getattr(hook, "blind", False) for hook in hooks):
        return True
    return bool(module._backward_hooks or module._backward_pre_hooks) or nn.modules.module._has_any_global_hook()


class Counting:
    """A hook that counts the references of a module's argument as ``release_input`` does."""

    def __init__(self, counted: list[int]) -> None:
        self.counted = counted

    def __call__(self, module: nn.Module, arguments: Any, result: Any) -> None:
        self.count(module, arguments, {})

    def count(self, module: nn.Module, arguments: Any, known: Known) -> None:
        """Stand in the place of ``release_input``."""
        x = arguments[0] if arguments else None
        self.counted.append(sys.getrefcount(x))


class Block(nn.Module):
    """A module that does not hold its argument."""

    def forward(self, x: Tensor) -> Tensor:
        """Return another tensor."""
        return torch.empty(0)


class Stage(nn.Module):
    """A module that hands its argument on."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        """Return what the block makes of it."""
        x = self.block(x)
        return x


@cache
def references_of(kind: str, temporary: bool = False) -> int:
    """Return how many references a call of a block makes in its hook, and how many more one of a stage around it.

    A ``temporary`` is held by no variable of the function that calls the stage.
    """
    counted: list[int] = []
    block = Block()
    block.register_forward_hook(Counting(counted), always_call=True)
    stage = Stage(block)
    if kind == "hooked":
        stage.register_forward_hook(Counting([]), always_call=True)
    called = block if kind == "block" else stage
    if temporary:
        called(torch.empty(0))
    else:
        x = torch.empty(0)
        x = called(x)
    return counted[0] - (0 if kind == "block" else references_of("block"))
