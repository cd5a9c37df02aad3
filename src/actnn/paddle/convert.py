"""QModule: one line converts a model, in place, and one call undoes it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import paddle
from paddle import nn

from actnn.amounts import parse_memory
from actnn.errors import UnsupportedError
from actnn.model.conversion import Exact, Patterns, choose
from actnn.model.wrapper import Wrapper, check_layers, take_over
from actnn.paddle.door.calls import inside, serving
from actnn.paddle.door.table import open_doors
from actnn.paddle.layers import COMPRESSED
from actnn.paddle.steps import PaddleSteps
from actnn.paddle.tensors import ARRAYS
from actnn.session.session import Session
from actnn.settings import config

# the model's own dictionaries, which its wrapper has too
SHARED = ("_parameters", "_buffers", "_sub_layers", "_non_persistable_buffer_names_set")


class QModule(Wrapper, nn.Layer):
    """A model whose layers keep codes instead of activations.

    The wrapper shares the model's own dictionaries of parameters, buffers and sublayers: names, state_dict keys and
    everything that walks the tree see the plain model. All other attributes are the wrapped model's.
    """

    def __init__(
        self,
        model: nn.Layer,
        *,
        level: str | None = None,
        bits: float | str | None = None,
        exact: Sequence[Exact] = (),
        seed: int = 0,
        memory: str | float | None = None,
    ) -> None:
        nn.Layer.__init__(self)
        check_model(model)
        allowed = None if memory is None else parse_memory(memory)
        session = Session(config.policy(level, bits), seed, 0, allowed, ARRAYS.process)
        layers, patterns = list(model.named_sublayers(include_self=True)), Patterns(exact, nn.Layer)
        take_over(layers, serving)
        steps = PaddleSteps(session, model)
        conversion = self.convert(model, steps, choose(layers, COMPRESSED, session, patterns, door=True), SHARED)
        conversion.handles += open_doors(steps, layers, patterns)
        self.__dict__["_exact"] = not session.policy.compress or patterns.names("", model)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        if not paddle.in_dynamic_mode():
            # a static graph keeps no codes, and layers refuse to train through one
            return self._model(*args, **kwargs)
        return super()._call(*args, **kwargs)

    def _inside(self) -> AbstractContextManager[Any]:
        return inside(self._steps, self.__dict__["_exact"])

    def set_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load the plain model's state."""
        return self._model.set_state_dict(*args, **kwargs)

    # Paddle's other names for it
    set_dict = load_dict = set_state_dict

    def train(self, mode: bool = True) -> QModule:
        """Switch this model, and no other, between training and evaluation."""
        self._model.train() if mode else self._model.eval()
        return self

    def eval(self) -> QModule:
        """Switch this model, and no other, to evaluation."""
        self._model.eval()
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "forward":
            raise UnsupportedError(
                "the forward of a converted model was to be replaced, as paddle.jit.to_static does, and a static graph "
                "keeps no codes: expected dynamic mode. Call model.restore() first."
            )
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        # a model that is a single layer has no sublayers to show
        return super().__repr__() if self._sub_layers else f"QModule({self._model!r})"


def check_model(model: Any) -> None:
    """Raise a typed error unless ``model`` can be converted."""
    if not isinstance(model, nn.Layer):
        raise UnsupportedError(f"QModule was given a {type(model).__name__}: expected a paddle.nn.Layer.")
    if not paddle.in_dynamic_mode():
        raise UnsupportedError(
            "Paddle is in static graph mode, where nothing can be kept as codes: expected dynamic mode. "
            "Call paddle.disable_static() before building the model."
        )
    for name, layer in model.named_sublayers(include_self=True):
        if hasattr(type(layer.forward), "concrete_program"):
            raise UnsupportedError(
                f"the forward of {name or 'model'!r} was compiled by paddle.jit.to_static, and a static graph keeps no "
                "codes: expected dynamic mode. Convert a model that was not compiled."
            )
    check_layers(model, model.named_sublayers(include_self=True))
