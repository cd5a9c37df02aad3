"""The wrapper of a converted model: what it offers in every framework."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from functools import wraps
from inspect import Parameter, signature
from types import MethodType
from typing import Any

from actnn.errors import ConfigError
from actnn.model.layers import CompressedLayer
from actnn.model.steps import Steps
from actnn.session.report import Report
from actnn.session.session import Session
from actnn.session.site import Site

Choice = tuple[Any, type[CompressedLayer], Site]


class Forward:
    """The method that calls a wrapped model, with the signature of that: trainers ask it for the names of inputs."""

    def __get__(self, wrapper: Wrapper | None, owner: type[Any] | None = None) -> Any:
        """Return the method; where a class is asked for it, a function that calls any of its wrappers."""
        if wrapper is None:
            return call_wrapped

        model_forward, compiled = wrapper._model.forward, wrapper._compiled()
        # made once, for as long as it stands for the same function
        known = wrapper.__dict__.get("_forward")
        if known is None or known[:2] != (model_forward, compiled):
            known = wrapper.__dict__["_forward"] = model_forward, compiled, called(wrapper, model_forward, compiled)
        return MethodType(known[2], wrapper)


def call_wrapped(wrapper: Wrapper, *args: Any, **kwargs: Any) -> Any:
    """Call a wrapped model."""
    if not isinstance(args, tuple):
        # a tracer that changed this function hands over one thing that stands for all
        return wrapper._symbolically(args, kwargs)
    return wrapper.forward(*args, **kwargs)


def called(wrapper: Wrapper, model_forward: Any, compiled: bool) -> Any:
    """Return the function that calls a wrapped model, with the signature of that model's forward."""

    def forward(wrapper: Wrapper, *args: Any, **kwargs: Any) -> Any:
        return wrapper._call(*args, **kwargs)

    function: Any = wrapper._uncompiled(forward) if compiled else forward
    # what is compiled may have none to ask for
    with suppress(TypeError, ValueError):
        plain = signature(model_forward)
        # bound: some ask for its signature with the wrapper as the first, some without
        inputs = [Parameter("self", Parameter.POSITIONAL_ONLY), *plain.parameters.values()]
        function.__signature__ = plain.replace(parameters=inputs)
    return function


class Wrapper:
    """What a converted model offers in every framework.

    A front end's QModule derives from this class first. It holds ``_model``, ``_session`` and ``_steps`` in its own
    dictionary; all other attributes are those of the wrapped model.
    """

    _model: Any
    _session: Session
    _steps: Steps
    training: bool

    forward = Forward()

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        """Call the wrapped model."""
        if not self._session.serves:
            return self._model(*args, **kwargs)
        with self._steps.called(whole=True):
            self._steps.takes(args, kwargs)
            return self._model(*args, **kwargs)

    def _inside(self) -> AbstractContextManager[Any]:
        """Return a context in which code of the model's own class runs: what it calls is served."""
        raise NotImplementedError

    def _compiled(self) -> bool:
        """Tell whether a compiler of the framework may trace a forward that keeps codes."""
        return False

    def _symbolically(self, arguments: Any, options: Any) -> Any:
        """Return what the wrapped model makes of what stands for its arguments in a tracer."""
        raise NotImplementedError

    def _uncompiled(self, forward: Any) -> Any:
        """Return a function that no compiler of the framework traces."""
        return forward

    def convert(self, model: Any, steps: Steps, chosen: Sequence[Choice], shared: Iterable[str]) -> Conversion:
        """Let the chosen layers keep codes, and hold the model; ``shared`` names the dictionaries that both have."""
        own, session = self.__dict__, steps.session
        conversion = Conversion([(layer, site_by_hand(layer)) for layer, _, _ in chosen])
        for layer, twin, site in chosen:
            twin.adopt(layer, site)
        own["_model"], own["_session"], own["_steps"] = model, session, steps
        session.converted_for(conversion, steps.begin_late)
        session.used_by(self)
        for name in shared:
            own[name] = model.__dict__[name]
        # the flag is the model's, reached like its other attributes
        del own["training"]
        return conversion

    def set_samples(self, indices: Any) -> None:
        """Tell which samples of the training set the next batches hold, by position; None where that is not known.

        Where widths are decided while training, samples whose gradients were large get more bits.
        """
        self._steps.samples = None if indices is None else self._steps.indices(indices, None)

    def report(self) -> Report:
        """Return the bytes that the model, and each layer of it, keep for backward, as counted in training steps.

        The first call after the batch changed its form runs one more forward, without codes and without any effect, to
        count what exact training would keep.
        """
        return self._session.report(self._steps.whole(), self._later())

    def _later(self) -> list[tuple[str, str]]:
        """Return the layers, by name and kind, that would be converted and came after the conversion."""
        return []

    def restore(self) -> Any:
        """Give the plain model back: same object, same parameters; this wrapper keeps nothing any more."""
        self._session.conversion.undo()
        self._session.close()
        return self._model

    def session_state(self) -> dict[str, Any]:
        """Return, between steps, what codes depend on besides weights: keys, and what was learnt about widths.

        A checkpoint that holds it beside ``state_dict()`` lets training go on bit for bit. It is plain data.
        """
        samples = None if self._steps.samples is None else self._steps.samples.tolist()
        return self._session.state_dict() | {"samples": samples}

    def load_session_state(self, state: dict[str, Any]) -> None:
        """Go on where a conversion of the same model with the same settings was when its state was taken."""
        self._session.load_state_dict(state)
        self.set_samples(state.get("samples"))

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the plain model's state."""
        return self._model.state_dict(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        # functions made for this process cannot be pickled, and are made again
        return {name: value for name, value in self.__dict__.items() if name != "_forward"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        # a copy has a session of its own, unless it is a shallow one
        if not self._session.in_use:
            self._session.used_by(self)

    def __getattr__(self, name: str) -> Any:
        model = self.__dict__.get("_model")
        if model is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        value = getattr(model, name)
        if isinstance(value, MethodType) and value.__self__ is model and self._session.serves:
            return self._served(value)
        return value

    def _served(self, method: Any) -> Any:
        """Return a method of the wrapped model that runs as its forward does: a step may come in by it."""

        @wraps(method)
        def served(*args: Any, **kwargs: Any) -> Any:
            with self._inside():
                return method(*args, **kwargs)

        return served

    def __setattr__(self, name: str, value: Any) -> None:
        # what the wrapper's own class has is the wrapper's: its forward, its class, whether it is compiled
        if "_model" in self.__dict__ and name not in self.__dict__ and not hasattr(type(self), name):
            setattr(self._model, name, value)
        else:
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if name in self.__dict__:
            super().__delattr__(name)
        else:
            delattr(self._model, name)

    def __getitem__(self, key: Any) -> Any:
        return self._model[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._model[key] = value

    def __contains__(self, key: Any) -> bool:
        return key in self._model

    def __iter__(self) -> Iterator[Any]:
        return iter(self._model)

    def __len__(self) -> int:
        return len(self._model)

    def __bool__(self) -> bool:
        # without it, a model that has no length would have no truth value either
        return True

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._model)})


def session_of(model: Any) -> Session:
    """Return the session of a converted model."""
    session: Session = model._session
    return session


def model_of(wrapper: Any) -> Any:
    """Return the model that a wrapper holds."""
    return wrapper._model


class Conversion:
    """What a conversion changed in a model: layers with the site that they had before, and what gives parts back."""

    def __init__(self, layers: Sequence[tuple[Any, Site | None]]) -> None:
        self._layers = list(layers)
        # what has a method ``remove``, and the part of the model that it gives back
        self.handles: list[tuple[Any, Any]] = []

    def undo(self, within: Collection[int] | None = None) -> None:
        """Give all layers back, or those that are ``within`` some by identity."""
        for part, handle in self._taken("handles", within):
            handle.remove()
            del part
        for layer, site in self._taken("_layers", within):
            # somebody may have put another session in its place
            if isinstance(layer, CompressedLayer) and layer.site.session.conversion is self:
                if site is None:
                    layer.release()
                else:
                    layer.site = site

    def _taken(self, name: str, within: Collection[int] | None) -> list[tuple[Any, Any]]:
        """Return the entries that concern some layers; they are entries no more."""
        entries = getattr(self, name)
        setattr(self, name, [entry for entry in entries if within is not None and id(entry[0]) not in within])
        return [entry for entry in entries if within is None or id(entry[0]) in within]


def check_layers(model: Any, layers: Iterable[tuple[str, Any]]) -> None:
    """Raise ConfigError where a model, or a part of it, is a wrapper already."""
    if isinstance(model, Wrapper):
        raise ConfigError("this model was converted already. Call model.restore() first to convert it anew.")
    for name, layer in layers:
        if isinstance(layer, Wrapper):
            raise ConfigError(f"{name!r} was converted already. Call restore() on it before converting what holds it.")


def take_over(layers: Sequence[tuple[str, Any]], serving: Callable[[Any], Iterable[Session]]) -> None:
    """Undo what is left of conversions whose wrappers nobody has any more; raise ConfigError where somebody has.

    ``serving`` returns the sessions that serve what a layer calls.
    """
    found: dict[int, Session] = {}
    for name, layer in layers:
        own = [layer.site.session] if isinstance(layer, CompressedLayer) else []
        for session in (*own, *serving(layer)):
            if session.in_use:
                raise ConfigError(
                    f"the layer {name or 'model'!r} belongs to a model that was converted already. Use what QModule "
                    "returned for that, or call restore() on it to convert the model anew."
                )
            found[id(session)] = session
    parts = {id(layer) for _, layer in layers}
    for session in found.values():
        if not session.by_hand:
            session.conversion.undo(parts)


def site_by_hand(layer: Any) -> Site | None:
    """Return the site of a layer that was made by hand; None for a plain one, or what a conversion left of one."""
    site = layer.site if isinstance(layer, CompressedLayer) else None
    return site if site is not None and site.session.by_hand else None
