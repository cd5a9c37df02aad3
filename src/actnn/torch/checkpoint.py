"""Checkpoints of training with torch: see NOTE [Checkpoints]."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import distributed as dist
from torch import nn

from actnn.errors import SessionError
from actnn.model import checkpoint
from actnn.model.checkpoint import ADVICE, Checkpoints
from actnn.torch.convert import QModule
from actnn.torch.tensors import ARRAYS


class TorchCheckpoints(Checkpoints):
    """Checkpoints as files of torch's own."""

    def layers(self, model: nn.Module) -> Iterable[nn.Module]:
        return model.modules()

    def process(self) -> int:
        return ARRAYS.process()

    def process_count(self) -> int:
        return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1

    def of_all_processes(self, value: Any) -> list[Any]:
        everyone: list[Any] = [value] * self.process_count()
        if len(everyone) > 1:
            dist.all_gather_object(everyone, value)
        return everyone

    def wait(self) -> None:
        dist.barrier()

    def model_state(self, model: nn.Module) -> Any:
        return parts_together().model_state(model) if self.process_count() > 1 else model.state_dict()

    def load_model_state(self, model: nn.Module, state: Any, whole: bool) -> None:
        if whole:
            parts_together().load_model_state(model, state)
        else:
            model.load_state_dict(state)

    def part_state(self, model: nn.Module, part: Any) -> Any:
        if self.process_count() > 1 and isinstance(part, torch.optim.Optimizer):
            return parts_together().optimizer_state(model, part)
        return part.state_dict()

    def load_part_state(self, model: nn.Module, part: Any, state: Any, whole: bool) -> None:
        if whole and isinstance(part, torch.optim.Optimizer):
            parts_together().load_optimizer_state(model, part, state)
        else:
            part.load_state_dict(state)

    def generator_states(self) -> dict[str, Any]:
        accelerators = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        return {"torch": torch.get_rng_state(), "accelerators": accelerators}

    def set_generator_states(self, states: Mapping[str, Any]) -> None:
        torch.set_rng_state(states["torch"])
        if states["accelerators"] and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(states["accelerators"])

    def serialized(self, state: dict[str, Any]) -> memoryview:
        buffer = io.BytesIO()
        torch.save(state, buffer)
        return buffer.getbuffer()

    def parsed(self, path: str | os.PathLike[str]) -> Any:
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as problem:
            reason = str(problem).partition("\n")[0]
            raise SessionError(f"the checkpoint {path} cannot be read ({reason}). {ADVICE}") from problem


CHECKPOINTS = TorchCheckpoints()


class SessionStates(checkpoint.SessionStates):
    """The sessions of one model of torch in all processes, for trainers that save what has ``state_dict``."""

    def __init__(self, model: nn.Module, generators: bool = False) -> None:
        super().__init__(CHECKPOINTS, model, generators)


def converted(model: nn.Module) -> QModule:
    """Return the converted model inside what wraps it for many processes, or for a compiler."""
    found: Any = CHECKPOINTS.converted(model)
    return found  # type: ignore[no-any-return]


def save(path: str | os.PathLike[str], model: nn.Module, **parts: Any) -> None:
    """Write a checkpoint, between two steps, from which training goes on bit for bit.

    ``parts`` are objects with a ``state_dict`` (optimizer, scheduler, scaler) and plain data (epoch). Random generators
    of torch, numpy and Python are saved too. Where several processes train together all have to call, and the first one
    writes; parameters that they share out are gathered.
    """
    CHECKPOINTS.save(path, model, parts)


def load(path: str | os.PathLike[str], model: nn.Module, **parts: Any) -> dict[str, Any]:
    """Bring a model and objects to where ``save`` was called; return the plain data that were saved with them."""
    return CHECKPOINTS.load(path, model, parts)


def parts_together() -> Any:
    """Return what puts the parts together that processes hold; loaded only then, for not every torch has it."""
    return import_module("actnn.torch.sharded")
