"""QModule: one line converts a model, in place, and one call undoes it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from actnn.amounts import parse_memory
from actnn.errors import UnsupportedError
from actnn.model.conversion import Exact, Patterns, choose
from actnn.model.wrapper import Wrapper, check_layers
from actnn.session.session import Session
from actnn.settings import config
from actnn.torch.door.mode import install
from actnn.torch.door.registry import write_out
from actnn.torch.door.table import ModelDoor
from actnn.torch.layers import COMPRESSED, Compressed
from actnn.torch.memory import KeptBytes, trim_caches
from actnn.torch.swapping import SwappedActivations

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
        exact: Sequence[Exact] = (),
        seed: int = 0,
        memory: str | float | None = None,
    ) -> None:
        nn.Module.__init__(self)
        check_model(model)
        stream = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
        session = Session(config.policy(level), seed, stream, None if memory is None else parse_memory(memory))
        layers, patterns = list(model.named_modules()), Patterns(exact, nn.Module)
        chosen = choose(layers, COMPRESSED, session, patterns, door=True)
        self.convert(model, session, chosen, SHARED)
        self.__dict__["_door"] = door = ModelDoor(session)
        self.__dict__["_hooks"] = self._open_doors(door, layers, patterns)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        if not self.__dict__["_hooks"]:
            return super()._call(*args, **kwargs)
        door: ModelDoor = self.__dict__["_door"]
        depth = len(door.frames)
        try:
            return super()._call(*args, **kwargs)
        finally:
            door.unwind(depth)

    def _open_doors(self, door: ModelDoor, layers: Sequence[tuple[str, nn.Module]], patterns: Patterns) -> list[Any]:
        """Let the modules that were not converted send what they call to operations; return what undoes that."""
        session = self._session
        if not session.policy.compress:
            return []
        modules = []
        for name, module in layers:
            converted = isinstance(module, Compressed)
            if (converted and session.store.keeps_in_place) or type(module) in CONTAINERS:
                continue
            if not isinstance(module, torch.jit.ScriptModule):
                modules.append((name or "model", module, converted or patterns.names(name, module)))
        return [*install(door, modules), *write_out(session, modules)]

    def restore(self) -> Any:
        """Give the plain model back: same object, same parameters; this wrapper keeps nothing any more."""
        for handle in self.__dict__["_hooks"]:
            handle.remove()
        self.__dict__["_hooks"] = []
        return super().restore()

    def _compiled(self) -> bool:
        policy = self._session.policy
        # without this module, whose import takes long, nothing compiles
        return "torch._dynamo" in sys.modules and torch.is_grad_enabled() and (policy.compress or policy.swap)

    def _uncompiled(self, forward: Any) -> Any:
        # torch.compile would trace, and freeze, what a session decides anew in every step
        return torch.compiler.disable(forward)

    def _recording(self) -> bool:
        return torch.is_grad_enabled()

    def _trim_caches(self, threshold: float) -> None:
        trim_caches(self._model, threshold)

    def _swapping(self) -> SwappedActivations:
        return SwappedActivations(self._model, self._session, self._session.whole_model())

    def _measured(self, *args: Any, **kwargs: Any) -> Any:
        with KeptBytes(self._model) as kept:
            result = self._model(*args, **kwargs)
        self._session.all_kept(kept.total)
        return result

    def _indices(self, given: Any, num_samples: int | None) -> Any:
        if isinstance(given, Tensor):
            # numpy knows no bfloat16; floats are refused, but with a reason
            given = (given.float() if given.is_floating_point() else given).detach().cpu().numpy()
        return super()._indices(given, num_samples)

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


def check_model(model: Any) -> None:
    """Raise a typed error unless ``model`` can be converted."""
    if not isinstance(model, nn.Module):
        raise UnsupportedError(f"QModule was given a {type(model).__name__}: expected a torch.nn.Module.")
    check_layers(model, model.named_modules())
