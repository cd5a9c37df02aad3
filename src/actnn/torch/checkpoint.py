"""Checkpoints of training: weights, optimizer, session and random numbers, of one process or of many.

NOTE [Checkpoints]
1. Weights are the same in every process, or parts of one whole: a checkpoint holds them once. What a session learnt and
   the state of random generators differ between processes: a checkpoint holds those of each.
2. All processes take part in saving, one writes. All read.
3. A file is the last state or the one before, never half of one; reading it runs no code of whoever wrote it.
"""

from __future__ import annotations

import io
import os
import pickle
import random
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed as dist
from torch import nn

from actnn.errors import ConfigError, SessionError
from actnn.files import write_atomically
from actnn.torch.convert import QModule
from actnn.torch.tensors import ARRAYS

FORMAT = "actnn checkpoint 1"
PROCESSES = "actnn processes 1"
# parts of a checkpoint that are no object's own
RESERVED = ("format", "model", "processes", "rest", "whole")


def converted(model: nn.Module) -> QModule:
    """Return the converted model inside what wraps it for many processes, or for a compiler."""
    for module in model.modules():
        if isinstance(module, QModule):
            return module
    raise ConfigError(f"a {type(model).__name__} was given that holds no converted model: pass what QModule returned.")


def process_count() -> int:
    """Return how many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def of_all_processes(value: Any) -> list[Any]:
    """Return what each process gives; all of them have to call."""
    everyone: list[Any] = [value] * process_count()
    if len(everyone) > 1:
        dist.all_gather_object(everyone, value)
    return everyone


class SessionStates:
    """The sessions of one model in all processes, for trainers that save what has ``state_dict``.

    With ``generators``, the states of random generators too. All processes have to ask for the state.
    """

    def __init__(self, model: nn.Module, generators: bool = False) -> None:
        self._model, self._generators = converted(model), generators

    def own_state(self) -> dict[str, Any]:
        """Return the state of this process alone."""
        random_state = generator_states() if self._generators else None
        return {"session": self._model.session_state(), "random": random_state}

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all processes."""
        return {"format": PROCESSES, "processes": of_all_processes(self.own_state())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where the process of the same number was; where there are more than there were, as one of those."""
        if not isinstance(state, Mapping) or state.get("format") != PROCESSES or not state.get("processes"):
            raise SessionError("what was given holds no states of sessions: expected what state_dict() returned.")
        own = state["processes"][ARRAYS.process() % len(state["processes"])]
        self._model.load_session_state(own["session"])
        # with another number of processes the generators would be in one state twice
        if self._generators and own["random"] is not None and len(state["processes"]) == process_count():
            set_generator_states(own["random"])


def save(path: str | os.PathLike[str], model: nn.Module, **parts: Any) -> None:
    """Write a checkpoint, between two steps, from which training goes on bit for bit.

    ``parts`` are objects with a ``state_dict`` (optimizer, scheduler, scaler) and plain data (epoch). Random generators
    of torch, numpy and Python are saved too. Where several processes train together all have to call, and the first one
    writes; parameters that they share out are gathered.
    """
    if taken := sorted(set(parts) & set(RESERVED)):
        raise ConfigError(f"a part of a checkpoint cannot be named {taken[0]!r}: choose another name.")
    joined = process_count() > 1
    state = {
        "format": FORMAT,
        "whole": joined,
        "model": parts_together().model_state(model) if joined else model.state_dict(),
        "processes": SessionStates(model, generators=True).state_dict(),
        "rest": {name: part for name, part in parts.items() if not hasattr(part, "state_dict")},
    }
    state |= {name: state_of(model, part, joined) for name, part in parts.items() if hasattr(part, "state_dict")}
    if ARRAYS.process() == 0:
        # in memory first: torch's own writer hides why the system refused to write
        buffer = io.BytesIO()
        torch.save(state, buffer)
        write_atomically(Path(path), buffer.getbuffer())
    if joined:
        # nobody goes on, and perhaps reads, before it is there
        dist.barrier()


def load(path: str | os.PathLike[str], model: nn.Module, **parts: Any) -> dict[str, Any]:
    """Bring a model and objects to where ``save`` was called; return the plain data that were saved with them."""
    state = read(path)
    if missing := sorted(name for name in parts if name not in state or name in RESERVED):
        raise ConfigError(f"the checkpoint {path} holds no state of {missing[0]!r}: save it with {missing[0]}=….")
    if state["whole"]:
        parts_together().load_model_state(model, state["model"])
    else:
        model.load_state_dict(state["model"])
    for name, part in parts.items():
        if state["whole"] and isinstance(part, torch.optim.Optimizer):
            parts_together().load_optimizer_state(model, part, state[name])
        else:
            part.load_state_dict(state[name])
    # last: what comes before may draw random numbers
    SessionStates(model, generators=True).load_state_dict(state["processes"])
    rest: dict[str, Any] = state["rest"]
    return rest


def parts_together() -> Any:
    """Return what puts the parts together that processes hold; loaded only then, for not every torch has it."""
    return import_module("actnn.torch.sharded")


def state_of(model: nn.Module, part: Any, joined: bool) -> Any:
    """Return the state of an object that takes part in training."""
    if joined and isinstance(part, torch.optim.Optimizer):
        return parts_together().optimizer_state(model, part)
    return part.state_dict()


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what a file holds; raise SessionError where it is no checkpoint of ``save``."""
    advice = "Expected a file that actnn.save wrote; parts of it must be tensors and plain data."
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as problem:
        reason = str(problem).partition("\n")[0]
        raise SessionError(f"the checkpoint {path} cannot be read ({reason}). {advice}") from problem
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise SessionError(f"{path} is not a checkpoint of actnn.save. {advice}")
    found: dict[str, Any] = state
    return found


def generator_states() -> dict[str, Any]:
    """Return the states of the random generators of torch, numpy and Python, as tensors and plain data."""
    legacy: Any = np.random.get_state()
    name, keys, *rest = legacy
    version, words, gauss = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "accelerators": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [name, keys.tolist(), *rest],
        "python": [version, list(words), gauss],
    }


def set_generator_states(states: Mapping[str, Any]) -> None:
    """Bring random generators to where they were."""
    torch.set_rng_state(states["torch"])
    if states["accelerators"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["accelerators"])
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
