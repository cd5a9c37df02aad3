"""Functions of Paddle that a converted model's layers call while they run, sent to the operations.

NOTE [Paddle's door]
1. Paddle has no mode that sees functions: while a layer of a converted model runs, those that rules know are replaced
   in ``paddle``, ``paddle.nn.functional`` and ``paddle.Tensor``. The first call of any thread replaces them, the end of
   the last one puts them back, whatever it raised. A name that somebody imported from there before is not seen.
2. In a thread in which no such layer runs, a replaced function is the one that it replaced.
3. Every layer that was not converted itself has a forward that notes the call in a frame: Paddle's hooks do not run
   behind a forward that raises. A block that is computed anew in backward, or called past the wrapper, notes itself
   too.
4. Functions that a layer holds itself, as an encoder its activation, are replaced there until the model is restored.
5. While a rule or a converted layer runs, the door is closed: what they call is theirs.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import update_wrapper
from inspect import Parameter, Signature, signature
from types import MethodType
from typing import Any

import paddle
from paddle import nn

from actnn.model.door import DECLINED, Frame, Rule
from actnn.model.steps import Steps
from actnn.session.session import Session

# how a model itself is named
ROOT = "model"
# Paddle's other names for what a function takes
ALIASES = {"input": "x", "x": "input", "other": "y", "dim": "axis", "eps": "epsilon", "target": "label"}
NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


class Sent:
    """A function of Paddle in whose place a rule is asked first, where a converted model's layer calls it."""

    def __init__(self, function: Any, rule: Rule, name: str) -> None:
        update_wrapper(self, function)
        self.function, self.rule, self.name = function, rule, name
        # without the frame and the function itself
        given = list(signature(rule).parameters.values())[2:]
        self._names = frozenset(own.name for own in given if own.kind in NAMED)
        self._most = sum(own.kind is Parameter.POSITIONAL_OR_KEYWORD for own in given)
        self._any = any(own.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD) for own in given)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Ask the rule, or call the function."""
        frames = calls.frames
        if not frames or not frames[-1].active or not paddle.is_grad_enabled():
            return self.function(*arguments, **options)
        named = self._named(options) if options else options
        if named is None or (len(arguments) > self._most and not self._any):
            return self._closed(arguments, options)
        with calls.closed(frames):
            found = self.rule(frames[-2], self.function, *arguments, **named)
        return self._closed(arguments, options) if found is DECLINED else found

    def _closed(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Return what the function computes: what it calls itself is its own."""
        with calls.closed(calls.frames):
            return self.function(*arguments, **options)

    def _named(self, options: dict[str, Any]) -> dict[str, Any] | None:
        """Return options by the names that the rule has for them; None where it knows one of them not."""
        if self._any or options.keys() <= self._names:
            return options
        named = {name if name in self._names else ALIASES.get(name, name): value for name, value in options.items()}
        return named if named.keys() <= self._names else None

    def __get__(self, x: Any, owner: type[Any] | None = None) -> Any:
        """Return the method of a tensor."""
        return self if x is None else MethodType(self, x)

    def __reduce__(self) -> Any:
        return sent_named, (self.name,)


class Calls(threading.local):
    """The frames of the layers that this thread is in, the innermost last."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []

    @contextmanager
    def closed(self, frames: list[Frame]) -> Iterator[None]:
        """Let functions be those of Paddle."""
        frames.append(CLOSED)
        try:
            yield
        finally:
            frames.pop()


class Shut:
    """The frame of what is not to be seen."""

    active = False


class Patches:
    """The functions that are replaced, by where they are found: process-wide, so counted over threads and models."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._places: list[tuple[Any, str, Sent]] = []

    def know(self, places: Sequence[tuple[Any, str, Rule]]) -> None:
        """Note the functions to replace, each by its owner, its name there and its rule."""
        made: dict[int, Sent] = {}
        for owner, name, rule in places:
            function = vars(owner)[name]
            sent = made.setdefault(id(function), Sent(function, rule, name))
            self._places.append((owner, name, sent))

    @property
    def sent(self) -> Mapping[Any, Sent]:
        """What stands for each function."""
        return {sent.function: sent for _, _, sent in self._places}

    @contextmanager
    def replaced(self) -> Iterator[None]:
        """Replace the functions for a while."""
        with self._lock:
            self._count += 1
            if self._count == 1:
                for owner, name, sent in self._places:
                    setattr(owner, name, sent)
        try:
            yield
        finally:
            with self._lock:
                self._count -= 1
                if self._count == 0:
                    for owner, name, sent in self._places:
                        setattr(owner, name, sent.function)


CLOSED: Any = Shut()
calls, patches = Calls(), Patches()


def sent_named(name: str) -> Sent:
    """Return what stands for a function of ``paddle.nn.functional``."""
    return next(sent for sent in patches.sent.values() if sent.name == name)


class Entered:
    """The forward of a layer that notes its calls in frames; ``written`` computes it by functions that rules know."""

    def __init__(self, layer: nn.Layer, name: str, exact: bool, steps: Steps, written: Any = None) -> None:
        self.layer, self.name, self.exact, self.steps, self.written = layer, name, exact, steps, written
        self.previous = vars(layer).get("forward")
        functions = {} if exact else patches.sent
        self.held = [key for key, value in vars(layer).items() if callable(value) and hashed(value) in functions]

    def install(self) -> None:
        """Take the place of the layer's forward, and of the functions that it holds."""
        own, functions = vars(self.layer), patches.sent
        own["forward"] = self
        for name in self.held:
            own[name] = functions[own[name]]

    def remove(self) -> None:
        """Give the layer its own forward and functions back."""
        own = vars(self.layer)
        if own.get("forward") is self:
            del own["forward"]
            if self.previous is not None:
                own["forward"] = self.previous
        for name in self.held:
            if isinstance(own.get(name), Sent):
                own[name] = own[name].function

    @property
    def plainly(self) -> Any:
        """The layer's own forward."""
        return MethodType(type(self.layer).forward, self.layer) if self.previous is None else self.previous

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call the forward within a frame, where a gradient may be asked for."""
        if not paddle.in_dynamic_mode() or self.steps.session.closed:
            return self.plainly(*arguments, **options)
        if not (paddle.is_grad_enabled() or calls.frames):
            return self.plainly(*arguments, **options)
        with inside(self.steps, self.exact, self.layer, self.name):
            if calls.frames[-1].active and self.written is not None and self.layer.training:
                return self.written(self.layer, self.plainly, *arguments, **options)
            return self.plainly(*arguments, **options)

    @property
    def __signature__(self) -> Signature:
        return signature(self.plainly)


@contextmanager
def inside(steps: Steps, exact: bool, layer: nn.Layer | None = None, name: str = ROOT) -> Iterator[None]:
    """Note a call of a layer, or of a method of the model itself, in which functions are sent to operations."""
    session, frames = steps.session, calls.frames
    active = paddle.is_grad_enabled() and not exact
    with steps.called(whole=layer is steps.model), patches.replaced() if active or frames else nullcontext():
        if layer is not None and session.over:
            session.begin_late()
        frames.append(Frame(session, layer or steps.model, name, active))
        try:
            yield
        finally:
            frames.pop()


@contextmanager
def within(session: Session, layer: nn.Layer, name: str) -> Iterator[None]:
    """Send to operations what a converted layer calls itself."""
    frames = calls.frames
    with patches.replaced():
        frames.append(Frame(session, layer, name, True))
        try:
            yield
        finally:
            frames.pop()


def serving(layer: nn.Layer) -> list[Session]:
    """Return the sessions that serve what a layer calls."""
    forward = vars(layer).get("forward")
    return [forward.steps.session] if isinstance(forward, Entered) else []


def hashed(value: Any) -> Any:
    """Return what a function is known by; None for what has no hash."""
    return value if getattr(type(value), "__hash__", None) is not None else None
