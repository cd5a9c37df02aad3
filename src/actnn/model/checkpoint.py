"""Checkpoints of training: weights, optimizer, session and random numbers, of one process or of many.

NOTE [Checkpoints]
1. Weights are the same in every process, or parts of one whole: a checkpoint holds them once. What a session learnt and
   the state of random generators differ between processes: a checkpoint holds those of each.
2. All processes take part in saving, one writes. All read.
3. A file is the last state or the one before, never half of one; reading it runs no code of whoever wrote it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from actnn.errors import ConfigError, SessionError
from actnn.files import write_atomically
from actnn.model.wrapper import Wrapper

FORMAT = "actnn checkpoint 1"
PROCESSES = "actnn processes 1"
# parts of a checkpoint that are no object's own
RESERVED = ("format", "model", "processes", "rest", "whole")
ADVICE = "Expected a file that actnn.save wrote; parts of it must be tensors and plain data."


class Checkpoints:
    """Checkpoints of one framework; a front end says how its framework does what is asked here."""

    def layers(self, model: Any) -> Iterable[Any]:
        """Return a model and all layers in it."""
        raise NotImplementedError

    def process(self) -> int:
        """Return the number of this process, from 0."""
        raise NotImplementedError

    def process_count(self) -> int:
        """Return how many processes train together."""
        raise NotImplementedError

    def of_all_processes(self, value: Any) -> list[Any]:
        """Return what each process gives; all of them have to call."""
        raise NotImplementedError

    def wait(self) -> None:
        """Wait until all processes are here."""
        raise NotImplementedError

    def model_state(self, model: Any) -> Any:
        """Return the whole state of a model."""
        raise NotImplementedError

    def load_model_state(self, model: Any, state: Any, whole: bool) -> None:
        """Give a model its state; ``whole`` where several processes saved it."""
        raise NotImplementedError

    def part_state(self, model: Any, part: Any) -> Any:
        """Return the state of an object that takes part in training."""
        raise NotImplementedError

    def load_part_state(self, model: Any, part: Any, state: Any, whole: bool) -> None:
        """Give an object that takes part in training its state."""
        raise NotImplementedError

    def generator_states(self) -> dict[str, Any]:
        """Return the states of the framework's random generators."""
        raise NotImplementedError

    def set_generator_states(self, states: Mapping[str, Any]) -> None:
        """Bring the framework's random generators to where they were."""
        raise NotImplementedError

    def serialized(self, state: dict[str, Any]) -> memoryview:
        """Return the content of a file."""
        raise NotImplementedError

    def parsed(self, path: str | os.PathLike[str]) -> Any:
        """Return what a file holds; raise SessionError where it cannot be read."""
        raise NotImplementedError

    def converted(self, model: Any) -> Wrapper:
        """Return the converted model inside what wraps it for many processes, or for a compiler."""
        for layer in self.layers(model):
            if isinstance(layer, Wrapper):
                return layer
        raise ConfigError(
            f"a {type(model).__name__} was given that holds no converted model: pass what QModule returned."
        )

    def save(self, path: str | os.PathLike[str], model: Any, parts: Mapping[str, Any]) -> None:
        """Write a checkpoint."""
        if taken := sorted(set(parts) & set(RESERVED)):
            raise ConfigError(f"a part of a checkpoint cannot be named {taken[0]!r}: choose another name.")
        state = {
            "format": FORMAT,
            "whole": self.process_count() > 1,
            "model": self.model_state(model),
            "processes": SessionStates(self, model, generators=True).state_dict(),
            "rest": {name: part for name, part in parts.items() if not hasattr(part, "state_dict")},
        }
        state |= {name: self.part_state(model, part) for name, part in parts.items() if hasattr(part, "state_dict")}
        if self.process() == 0:
            # in memory first: a framework's own writer may hide why the system refused to write
            write_atomically(Path(path), self.serialized(state))
        if self.process_count() > 1:
            # nobody goes on, and perhaps reads, before it is there
            self.wait()

    def load(self, path: str | os.PathLike[str], model: Any, parts: Mapping[str, Any]) -> dict[str, Any]:
        """Bring a model and objects to where a checkpoint was written; return the plain data in it."""
        state = self.parsed(path)
        if not isinstance(state, dict) or state.get("format") != FORMAT:
            raise SessionError(f"{path} is not a checkpoint of actnn.save. {ADVICE}")
        if missing := sorted(name for name in parts if name not in state or name in RESERVED):
            raise ConfigError(f"the checkpoint {path} holds no state of {missing[0]!r}: save it with {missing[0]}=….")
        self.load_model_state(model, state["model"], state["whole"])
        for name, part in parts.items():
            self.load_part_state(model, part, state[name], state["whole"])
        # last: what comes before may draw random numbers
        SessionStates(self, model, generators=True).load_state_dict(state["processes"])
        rest: dict[str, Any] = state["rest"]
        return rest


class SessionStates:
    """The sessions of one model in all processes, for trainers that save what has ``state_dict``.

    With ``generators``, the states of random generators too. All processes have to ask for the state.
    """

    def __init__(self, checkpoints: Checkpoints, model: Any, generators: bool = False) -> None:
        self._checkpoints, self._generators = checkpoints, generators
        self._model = checkpoints.converted(model)

    def own_state(self) -> dict[str, Any]:
        """Return the state of this process alone."""
        random_state = generator_states() | self._checkpoints.generator_states() if self._generators else None
        return {"session": self._model.session_state(), "random": random_state}

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all processes."""
        return {"format": PROCESSES, "processes": self._checkpoints.of_all_processes(self.own_state())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where the process of the same number was; where there are more than there were, as one of those."""
        if not isinstance(state, Mapping) or state.get("format") != PROCESSES or not state.get("processes"):
            raise SessionError("what was given holds no states of sessions: expected what state_dict() returned.")
        own = state["processes"][self._checkpoints.process() % len(state["processes"])]
        self._model.load_session_state(own["session"])
        # with another number of processes the generators would be in one state twice
        if (
            self._generators
            and own["random"] is not None
            and len(state["processes"]) == self._checkpoints.process_count()
        ):
            set_generator_states(own["random"])
            self._checkpoints.set_generator_states(own["random"])


def generator_states() -> dict[str, Any]:
    """Return the states of the random generators of numpy and Python, as plain data."""
    legacy: Any = np.random.get_state()
    name, keys, *rest = legacy
    version, words, gauss = random.getstate()
    return {"numpy": [name, keys.tolist(), *rest], "python": [version, list(words), gauss]}


def set_generator_states(states: Mapping[str, Any]) -> None:
    """Bring the random generators of numpy and Python to where they were."""
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
