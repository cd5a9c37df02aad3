"""QModule: one line converts a model, in place, and one call undoes it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch
from torch import nn

from actnn.amounts import parse_memory
from actnn.errors import UnsupportedError
from actnn.model.conversion import Exact, Patterns, choose, within
from actnn.model.wrapper import Wrapper, check_layers, take_over
from actnn.session.session import Session
from actnn.settings import config
from actnn.torch.door.mode import install, serving
from actnn.torch.door.registry import write_out
from actnn.torch.door.table import ModelDoor
from actnn.torch.layers import COMPRESSED, Compressed
from actnn.torch.steps import TorchSteps
from actnn.torch.tensors import ARRAYS
from actnn.torch.traced import by_compiled_code, check_precision, check_uncompiled, exporting, symbolic, traced

# the model's own dictionaries, which its wrapper has too
SHARED = (
    "_parameters",
    "_buffers",
    "_modules",
    "_non_persistent_buffers_set",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


# how a model itself is named
ROOT = "model"
UNCOMPILED = (
    "torch.compile runs this converted model as it is, uncompiled: what its session decides changes from step to step. "
    "In evaluation, compile what restore() returns."
)
# they call nothing themselves
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.Identity)


class QModule(Wrapper, nn.Module):
    """A model whose layers keep codes instead of activations.

    The wrapper shares the model's own dictionaries of parameters, buffers and children: names, state_dict keys and
    everything that walks the tree see the plain model. All other attributes are the wrapped model's.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        level: str | None = None,
        bits: float | str | None = None,
        exact: Sequence[Exact] = (),
        seed: int = 0,
        memory: str | float | None = None,
    ) -> None:
        nn.Module.__init__(self)
        check_model(model)
        allowed = None if memory is None else parse_memory(memory)
        session = Session(config.policy(level, bits), seed, 0, allowed, ARRAYS.process)
        layers, patterns = list(model.named_modules()), Patterns(exact, nn.Module)
        if session.policy.compress:
            check_precision(model, patterns.names)
        take_over(layers, serving)
        steps = TorchSteps(session, model)
        conversion = self.convert(model, steps, choose(layers, COMPRESSED, session, patterns, door=True), SHARED)
        self.__dict__["_exact"] = not session.policy.compress or patterns.names("", model)
        conversion.handles += open_doors(steps.door, layers, patterns)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        if traced() or not self._session.serves:
            return self._model(*args, **kwargs)
        if any(map(symbolic, args)):
            # torch.fx knows the wrapper, as a part of what it records, and not the model within
            return self._model.forward(*args, **kwargs)
        steps: TorchSteps = self.__dict__["_steps"]
        depth = len(steps.door.frames)
        try:
            with steps.called(whole=True):
                steps.takes(args, kwargs)
                return self._model(*args, **kwargs)
        finally:
            steps.door.unwind(depth)

    @contextmanager
    def _inside(self) -> Iterator[None]:
        door: ModelDoor = self.__dict__["_steps"].door
        depth = len(door.frames)
        door.enter(self._model, ROOT, self.__dict__["_exact"], begins=False)
        try:
            yield
        finally:
            door.unwind(depth)

    def _later(self) -> list[tuple[str, str]]:
        known = {layer for layer, _, _ in self._session.left_exact}
        found = [(name, layer) for name, layer in self._model.named_modules() if type(layer) in COMPRESSED]
        new = [(name, type(layer).__name__) for name, layer in found if name not in known]
        return new if self._session.policy.compress else []

    def _compiled(self) -> bool:
        policy = self._session.policy
        # without this module, whose import takes long, nothing compiles
        loaded = "torch._dynamo" in sys.modules and not exporting()
        return loaded and torch.is_grad_enabled() and (policy.compress or policy.swap)

    def _uncompiled(self, forward: Any) -> Any:
        def told(wrapper: QModule, *args: Any, **kwargs: Any) -> Any:
            wrapper._tell_of_compiling()
            return forward(wrapper, *args, **kwargs)

        # torch.compile would trace, and freeze, what a session decides anew in every step
        return torch.compiler.disable(told)

    def _tell_of_compiling(self) -> None:
        """Say once that a compiler leaves this model as it is."""
        if not self.__dict__.get("_told") and by_compiled_code():
            self.__dict__["_told"] = True
            warnings.warn(UNCOMPILED, UserWarning, stacklevel=4)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Say that a compiler would leave this model as it is."""
        warnings.warn(UNCOMPILED, UserWarning, stacklevel=2)

    def _symbolically(self, arguments: Any, options: Any) -> Any:
        # torch.fx hands over what stands for all arguments together: the model wants one for each
        tracer = arguments.tracer
        inputs = []
        for own in signature(self._model.forward).parameters.values():
            default = () if own.default is own.empty else (own.default,)
            inputs.append(tracer.create_proxy("placeholder", own.name, default, {}))
        for placeholder in (arguments, options):
            tracer.graph.erase_node(placeholder.node)
        return self._model.forward(*inputs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load the plain model's state."""
        return self._model.load_state_dict(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        # what a model asks that holds this one
        self._model._load_from_state_dict(*args, **kwargs)

    def train(self, mode: bool = True) -> QModule:
        """Switch this model, and no other, between training and evaluation."""
        self._model.train(mode)
        return self

    def __repr__(self) -> str:
        # a model that is a single layer has no children to show
        return super().__repr__() if self._modules else f"QModule({self._model!r})"


def open_doors(
    door: ModelDoor, layers: Sequence[tuple[str, nn.Module]], patterns: Patterns
) -> list[tuple[nn.Module, Any]]:
    """Let the modules that were not converted send what they call to operations; return what undoes that."""
    session = door.session
    if not session.serves:
        return []
    modules = []
    whole = {name for name, module in layers if name and isinstance(module, Compressed)}
    for name, module in layers:
        # what a converted layer holds is its own: it may compute with the parameters alone
        if within(name, whole):
            continue
        converted = isinstance(module, Compressed)
        if name and ((converted and session.store.keeps_in_place) or type(module) in CONTAINERS):
            continue
        if not isinstance(module, torch.jit.ScriptModule):
            exact = converted or not session.policy.compress or patterns.names(name, module)
            modules.append((name or ROOT, module, exact))
    session.serves_calls = not all(exact for _, _, exact in modules)
    # what only calls modules calls no function, whatever its class is named
    callers = [entry for entry in modules if entry[0] == ROOT or type(entry[1]).forward is not nn.Sequential.forward]
    return [*install(door, callers), *write_out(session, modules)]


def check_model(model: Any) -> None:
    """Raise a typed error unless ``model`` can be converted."""
    if not isinstance(model, nn.Module):
        raise UnsupportedError(f"QModule was given a {type(model).__name__}: expected a torch.nn.Module.")
    check_layers(model, model.named_modules())
    check_uncompiled(model)
