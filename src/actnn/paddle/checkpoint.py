"""Checkpoints of training with Paddle: see NOTE [Checkpoints]."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import paddle
from paddle import distributed as dist
from paddle.base.core import GeneratorState
from paddle.nn import Layer

from actnn.errors import SessionError
from actnn.model.checkpoint import ADVICE, Checkpoints
from actnn.paddle import archive
from actnn.paddle.tensors import ARRAYS

# what Paddle's optimizers save that is not named after a parameter
MASTERS = "master_weights"


class PaddleCheckpoints(Checkpoints):
    """Checkpoints as archives of arrays: Paddle's own files are pickles."""

    def layers(self, model: Layer) -> Iterable[Layer]:
        layers: list[Layer] = model.sublayers(include_self=True)
        return layers

    def process(self) -> int:
        return ARRAYS.process()

    def process_count(self) -> int:
        return int(dist.get_world_size()) if dist.is_initialized() else 1

    def of_all_processes(self, value: Any) -> list[Any]:
        if self.process_count() == 1:
            return [value]
        everyone: list[Any] = []
        dist.all_gather_object(everyone, value)
        return everyone

    def wait(self) -> None:
        dist.barrier()

    def model_state(self, model: Layer) -> Any:
        return model.state_dict()

    def load_model_state(self, model: Layer, state: Any, whole: bool) -> None:
        # Paddle goes on without what is missing, and warns
        own = model.state_dict()
        if different := sorted(own.keys() ^ state.keys()):
            raise SessionError(
                f"the checkpoint is that of another model: {different[0]!r} is not in both. Build the model as it was "
                "built when the checkpoint was saved."
            )
        for name, value in state.items():
            if list(own[name].shape) != list(value.shape):
                raise SessionError(
                    f"the checkpoint is that of another model: {name!r} has the shape {list(value.shape)} there, and "
                    f"{list(own[name].shape)} here. Build the model as it was built when the checkpoint was saved."
                )
        model.set_state_dict(state)

    def part_state(self, model: Layer, part: Any) -> Any:
        state = part.state_dict()
        # names of parameters count up in a process, so that those of the next one may differ
        names = [parameter.name for parameter in model.parameters()] if is_optimizer(part) else None
        return {"state": state, "parameters": names}

    def load_part_state(self, model: Layer, part: Any, state: Any, whole: bool) -> None:
        content = state["state"]
        if state["parameters"] is not None:
            content = renamed(content, state["parameters"], [parameter.name for parameter in model.parameters()])
        # optimizers and schedules have the one, scalers the other
        (part.set_state_dict if hasattr(part, "set_state_dict") else part.load_state_dict)(content)

    def generator_states(self) -> dict[str, Any]:
        return {"paddle": [list(state.__getstate__()) for state in paddle.get_rng_state()]}

    def set_generator_states(self, states: Mapping[str, Any]) -> None:
        if len(states["paddle"]) == len(paddle.get_rng_state()):
            paddle.set_rng_state([generator_state(state) for state in states["paddle"]])

    def serialized(self, state: dict[str, Any]) -> memoryview:
        return archive.packed(state)

    def parsed(self, path: str | os.PathLike[str]) -> Any:
        try:
            return archive.unpacked(path)
        except (ValueError, EOFError, KeyError, zipfile.BadZipFile) as problem:
            reason = str(problem).partition("\n")[0]
            raise SessionError(f"the checkpoint {path} cannot be read ({reason}). {ADVICE}") from problem


CHECKPOINTS = PaddleCheckpoints()


def save(path: str | os.PathLike[str], model: Layer, **parts: Any) -> None:
    """Write a checkpoint, between two steps, from which training goes on bit for bit.

    ``parts`` are objects with a ``state_dict`` (optimizer, scheduler, scaler) and plain data (epoch). Random generators
    of Paddle, numpy and Python are saved too. Where several processes train together all have to call, and the first
    one writes.
    """
    CHECKPOINTS.save(path, model, parts)


def load(path: str | os.PathLike[str], model: Layer, **parts: Any) -> dict[str, Any]:
    """Bring a model and objects to where ``save`` was called; return the plain data that were saved with them."""
    return CHECKPOINTS.load(path, model, parts)


def is_optimizer(part: Any) -> bool:
    """Tell whether an object is an optimizer."""
    return isinstance(part, paddle.optimizer.Optimizer)


def renamed(state: Mapping[str, Any], old: Sequence[str], new: Sequence[str]) -> dict[str, Any]:
    """Return the state of an optimizer with the names that parameters have now, in the order of the model's."""
    # the longest first: a name may begin with another
    names = sorted(zip(old, new, strict=True), key=lambda pair: -len(pair[0]))

    def current(key: str) -> str:
        return next((after + key[len(before) :] for before, after in names if key.startswith(before)), key)

    found = {current(key): value for key, value in state.items()}
    if MASTERS in state:
        found[MASTERS] = {current(key): value for key, value in state[MASTERS].items()}
    return found


def generator_state(values: Sequence[Any]) -> Any:
    """Return the state of one of Paddle's random generators from its numbers."""
    state = GeneratorState.__new__(GeneratorState)
    state.__setstate__(tuple(values))
    return state
