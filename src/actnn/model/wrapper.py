"""The wrapper of a converted model: what it offers in every framework."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from inspect import Parameter, signature
from types import MethodType
from typing import Any

from actnn.errors import ConfigError
from actnn.model.layers import CompressedLayer
from actnn.planning.samples import Indices, check_indices
from actnn.session.report import Report
from actnn.session.session import Session
from actnn.session.site import Site
from actnn.settings import QScheme

Choice = tuple[Any, type[CompressedLayer], Site]


class Forward:
    """The method that calls a wrapped model, with the signature of that: trainers ask it for the names of inputs."""

    def __get__(self, wrapper: Wrapper | None, owner: type[Any] | None = None) -> Any:
        """Return the method, itself where a class is asked for it."""
        if wrapper is None:
            return self

        model_forward, compiled = wrapper._model.forward, wrapper._compiled()
        # made once, for as long as it stands for the same function
        known = wrapper.__dict__.get("_forward")
        if known is None or known[:2] != (model_forward, compiled):
            known = wrapper.__dict__["_forward"] = model_forward, compiled, called(wrapper, model_forward, compiled)
        return MethodType(known[2], wrapper)


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

    A front end's QModule derives from this class first. It holds ``_model``, ``_session``, ``_previous`` (layers that
    were adopted, with the site that they had before) and ``_samples`` in its own dictionary; all other attributes are
    those of the wrapped model.
    """

    _model: Any
    _session: Session
    _previous: list[tuple[Any, Site | None]]
    _samples: Indices | None
    training: bool

    forward = Forward()

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        """Call the wrapped model."""
        session = self._session
        if (threshold := session.policy.trim_threshold) is not None:
            self._trim_caches(threshold)
        session.forward_begins(self._batch_indices())
        if not (self.training and self._recording()):
            return self._model(*args, **kwargs)
        if session.swaps_activations:
            with self._swapping():
                return self._model(*args, **kwargs)
        if not session.measures_memory:
            return self._model(*args, **kwargs)
        return self._measured(*args, **kwargs)

    def _compiled(self) -> bool:
        """Tell whether a compiler of the framework may trace a forward that keeps codes."""
        return False

    def _uncompiled(self, forward: Any) -> Any:
        """Return a function that no compiler of the framework traces."""
        return forward

    def _recording(self) -> bool:
        """Tell whether autograd records operations now."""
        raise NotImplementedError

    def _trim_caches(self, threshold: float) -> None:
        """Empty the caches of accelerators of which more than a share is not in use."""
        raise NotImplementedError

    def _swapping(self) -> AbstractContextManager[Any]:
        """Return a context in which what autograd saves leaves memory."""
        raise NotImplementedError

    def _measured(self, *args: Any, **kwargs: Any) -> Any:
        """Call the wrapped model, and tell its session what autograd keeps of that."""
        raise NotImplementedError

    def convert(self, model: Any, session: Session, chosen: Sequence[Choice], shared: Iterable[str]) -> None:
        """Let the chosen layers keep codes, and hold the model; ``shared`` names the dictionaries that both have."""
        own = self.__dict__
        own["_previous"] = [(layer, site_by_hand(layer)) for layer, _, _ in chosen]
        for layer, twin, site in chosen:
            twin.adopt(layer, site)
        own["_model"], own["_session"], own["_samples"] = model, session, None
        session.converted_for(self)
        for name in shared:
            own[name] = model.__dict__[name]
        # the flag is the model's, reached like its other attributes
        del own["training"]

    def set_samples(self, indices: Any) -> None:
        """Tell which samples of the training set the next batches hold, by position; None where that is not known.

        Where widths are decided while training, samples whose gradients were large get more bits.
        """
        self.__dict__["_samples"] = None if indices is None else self._indices(indices, None)

    def _batch_indices(self) -> Indices | None:
        if self._samples is not None or not self._session.policy.use_gradient or QScheme.batch is None:
            return self._samples
        return self._indices(QScheme.batch, QScheme.num_samples)

    def _indices(self, given: Any, num_samples: int | None) -> Indices:
        """Return positions in the training set as an array on the host."""
        return check_indices(given, num_samples)

    def report(self) -> Report:
        """Return the bytes that each layer kept in the last training step."""
        return self._session.report()

    def restore(self) -> Any:
        """Give the plain model back: same object, same parameters; this wrapper keeps nothing any more."""
        for layer, site in self._previous:
            if site is None:
                layer.release()
            else:
                layer.site = site
        self.__dict__["_previous"] = []
        self._session.close()
        return self._model

    def session_state(self) -> dict[str, Any]:
        """Return, between steps, what codes depend on besides weights: keys, and what was learnt about widths.

        A checkpoint that holds it beside ``state_dict()`` lets training go on bit for bit. It is plain data.
        """
        samples = None if self._samples is None else self._samples.tolist()
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

    def __getattr__(self, name: str) -> Any:
        model = self.__dict__.get("_model")
        if model is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(model, name)

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


def check_layers(model: Any, layers: Iterable[tuple[str, Any]]) -> None:
    """Raise ConfigError where a model, or a part of it, was converted already."""
    if isinstance(model, Wrapper):
        raise ConfigError("this model was converted already. Call model.restore() first to convert it anew.")
    for name, layer in layers:
        if isinstance(layer, Wrapper):
            raise ConfigError(f"{name!r} was converted already. Call restore() on it before converting what holds it.")
        if isinstance(layer, CompressedLayer) and layer.site.session.in_use:
            raise ConfigError(
                f"the layer {name or 'model'!r} belongs to a model that was converted already. Use what QModule "
                "returned for that, or call restore() on it to convert the model anew."
            )


def site_by_hand(layer: Any) -> Site | None:
    """Return the site of a layer that was made by hand; None for a plain one, or what a conversion left of one."""
    site = layer.site if isinstance(layer, CompressedLayer) else None
    return site if site is not None and site.session.by_hand else None
