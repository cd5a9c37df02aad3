"""A mode that sees the functions which a converted model calls while its modules run.

NOTE [Door]
1. Every module that was not converted itself opens the door when it is called and closes it when it returns, by a pair
   of hooks, or by a forward of ours where hooks would keep torch from a fast path. A block that is computed anew in
   backward (checkpointing) finds it open too, and so does a module that is called past the wrapper.
2. A site is named by the module that called, the function, and how many calls of that function came before it in the
   same call of the module. It is made at the first call.
3. A rule may decline: the function then runs as it is, and keeps what it keeps.
4. While a rule or a converted layer runs, the door is closed: what they call is theirs.
5. Nothing is sent on where autograd records nothing, or where the user wants a module exact.
6. What a function that checkpointing was given calls itself, not through a module, is computed anew past the door:
   it is left to torch the first time too, so that both times the same is saved.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch
import torch.utils.checkpoint
from torch import nn
from torch.overrides import TorchFunctionMode

from actnn.model.door import DECLINED, Frame, Rule
from actnn.model.steps import Steps
from actnn.operations.others import sensitive
from actnn.session.session import Session
from actnn.torch.release import Known, release_input
from actnn.torch.traced import symbolic, traced

# in evaluation torch computes them by one fast kernel, unless they have hooks
WITHOUT_HOOKS = (nn.TransformerEncoderLayer,)
MODULES, CHECKPOINT = nn.modules.module.__file__, torch.utils.checkpoint.__file__


class OpenedFrame(Frame):
    """A frame of a thread, which may have opened the door."""

    __slots__ = ("entered",)

    def __init__(self, session: Session, module: nn.Module, name: str, active: bool, entered: bool) -> None:
        super().__init__(session, module, name, active)
        self.entered = entered


class Door(TorchFunctionMode):
    """The door of one converted model, with the frames of the modules that run in each thread."""

    rules: ClassVar[Mapping[Any, Rule]]

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self.steps, self.session = steps, steps.session
        # what functions without a rule save is coded by who calls them: which one runs, and whether it is to stay exact
        self.noting = self.session.policy.other_bits is not None and self.session.policy.compress
        self.calling: Any = None
        self.sensitive = False
        self._local = threading.local()

    @property
    def frames(self) -> list[OpenedFrame]:
        """The calls of modules that this thread is in, the innermost last."""
        frames: list[OpenedFrame] | None = getattr(self._local, "frames", None)
        if frames is None:
            frames = self._local.frames = []
        return frames

    def enter(self, module: nn.Module, name: str, exact: bool, begins: bool = True) -> None:
        """Open the door for a call of a module, where a gradient may be asked for.

        ``begins`` tells that it computes something for certain, so that a step begins with it.
        """
        frames = self.frames
        if not frames:
            self.steps.enter(whole=begins and module is self.steps.model)
        if begins and self.session.over:
            self.session.begin_late()
        active = not exact and torch.is_grad_enabled() and not self.session.closed
        entered = active and not any(frame.entered for frame in frames)
        frames.append(OpenedFrame(self.session, module, name, active, entered))
        if entered:
            self.__enter__()  # type: ignore[no-untyped-call]

    def leave(self, module: nn.Module) -> None:
        """Close the door behind a call of a module."""
        frames = self.frames
        # another hook may have failed before this module's call was noted
        if frames and frames[-1].module is module:
            if frames.pop().entered:
                self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            if not frames:
                self.steps.leave()

    def unwind(self, depth: int) -> None:
        """Close the door behind all calls but the first ``depth``: torch runs no hooks where an interrupt ends one."""
        frames = self.frames
        while len(frames) > depth:
            self.leave(frames[-1].module)

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        """Send a call to its rule, or let torch have it."""
        rule = self.rules.get(function)
        if rule is not None:
            frame = self.frames[-1]
            if frame.active and torch.is_grad_enabled() and not called_by_checkpoint():
                found = rule(frame, function, *arguments, **(options or {}))
                if found is not DECLINED:
                    return found
        if not self.noting:
            return function(*arguments, **(options or {}))
        before = self.calling, self.sensitive
        self.calling, self.sensitive = function, sensitive(getattr(function, "__name__", ""), arguments)
        try:
            return function(*arguments, **(options or {}))
        finally:
            self.calling, self.sensitive = before

    def __getstate__(self) -> dict[str, Any]:
        # frames are calls of this process
        return {name: value for name, value in self.__dict__.items() if name != "_local"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._local = threading.local()


def called_by_checkpoint() -> bool:
    """Tell whether the running code was called by checkpointing, with no call of a module between."""
    frame = sys._getframe(1).f_back
    while frame is not None:
        file = frame.f_code.co_filename
        if file == MODULES:
            return False
        if file == CHECKPOINT:
            return True
        frame = frame.f_back
    return False


class Opens:
    """The hook that opens the door before a module runs."""

    blind = True

    def __init__(self, door: Door, name: str, exact: bool) -> None:
        self.door, self.name, self.exact = door, name, exact

    def __call__(self, module: nn.Module, arguments: Any, options: Any = None) -> None:
        if not (traced() or any(map(symbolic, arguments))):
            self.open(module, arguments, options)

    def open(self, module: nn.Module, arguments: Any, options: Any) -> None:
        """Open the door; a hook is told options where it was registered for them."""
        self.door.enter(module, self.name, self.exact)


class OpensModel(Opens):
    """The same before the whole model runs, whose wrapper nobody may have called: what it takes is noted."""

    def open(self, module: nn.Module, arguments: Any, options: Any) -> None:
        """Open the door, and note what the outermost call takes."""
        super().open(module, arguments, options)
        if len(self.door.frames) == 1:
            self.door.steps.takes(arguments, options)


class Closes:
    """The hook that closes it."""

    blind = True

    def __init__(self, door: Door) -> None:
        self.door = door
        self.known: Known = {}

    def __call__(self, module: nn.Module, arguments: Any, result: Any) -> None:
        if not traced():
            self.door.leave(module)
            if self.door.session.policy.overwrite:
                release_input(module, arguments, self.known)

    def __getstate__(self) -> dict[str, Any]:
        # what is known is known of functions of this process
        return self.__dict__ | {"known": {}}


class Within:
    """The forward of a module that opens the door and closes it, where a hook would change what torch does with it."""

    def __init__(self, door: Door, module: nn.Module, name: str, exact: bool) -> None:
        self.door, self.module, self.name, self.exact = door, module, name, exact

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call the module's own forward."""
        forward = type(self.module).forward
        if traced() or any(map(symbolic, arguments)):
            return forward(self.module, *arguments, **options)
        self.door.enter(self.module, self.name, self.exact)
        try:
            return forward(self.module, *arguments, **options)
        finally:
            self.door.leave(self.module)

    def remove(self) -> None:
        """Give the module its own forward back."""
        self.module.__dict__.pop("forward", None)


def install(door: Door, modules: Iterable[tuple[str, nn.Module, bool]]) -> list[tuple[nn.Module, Any]]:
    """Let modules, each with its name and whether it is exact, open and close the door; return what undoes it."""
    handles: list[tuple[nn.Module, Any]] = []
    for name, module, exact in modules:
        if type(module) in WITHOUT_HOOKS and "forward" not in module.__dict__:
            module.__dict__["forward"] = within = Within(door, module, name, exact)
            handles.append((module, within))
            continue
        whole = module is door.steps.model
        opens = (OpensModel if whole else Opens)(door, name, exact)
        handles.append((module, module.register_forward_pre_hook(opens, prepend=True, with_kwargs=whole)))
        handles.append((module, module.register_forward_hook(Closes(door), always_call=True)))
    return handles


def serving(module: nn.Module) -> list[Session]:
    """Return the sessions that serve what a module calls."""
    opening = (*module._forward_pre_hooks.values(), module.__dict__.get("forward"))
    return [hook.door.session for hook in opening if isinstance(hook, (Opens, Within))]


# makes a context in which no mode sees what is called: what a converted layer does is its own
closed: Callable[[], AbstractContextManager[Any]] = torch._C.DisableTorchFunction
