"""A contestant by its name and width, ``L3:1.25``: how it turns a plain model of torch into the one that it trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from actnn.errors import ConfigError
from actnn.settings import LEVELS
from actnn.workloads.checkpointing import checkpointed
from actnn.workloads.peers import PEERS
from actnn.workloads.task import CHECKPOINT, CONTESTANTS, EXACT
from actnn.workloads.training import compressed


@dataclass(frozen=True)
class Contestant:
    """Who trains: exact training, checkpointing, a level with a width, or a method of others with its own."""

    name: str
    bits: float | None = None

    @staticmethod
    def of(text: str) -> Contestant:
        """Read ``NAME`` or ``NAME:BITS``; only levels that make codes have a width to choose."""
        name, colon, width = text.partition(":")
        if name not in CONTESTANTS:
            raise ConfigError(f"there is no contestant {name!r}: expected one of {', '.join(CONTESTANTS)}.")
        own = PEERS[name].bits if name in PEERS else default_width(name)
        if not colon:
            return Contestant(name, own)
        try:
            bits = float(width)
        except ValueError:
            raise ConfigError(f"the contestant {text!r} has no width: expected {name}:BITS, such as L3:2.") from None
        if name in PEERS or own is None:
            raise ConfigError(f"the contestant {name!r} has no width to choose: leave :{width} out.")
        return Contestant(name, bits)

    def applied(self, model: Any, seed: int) -> Any:
        """Return a plain model as this one trains it."""
        if self.name == EXACT:
            return model
        if self.name == CHECKPOINT:
            return checkpointed(model)
        if self.name in PEERS:
            return PEERS[self.name].applied(model, seed)
        return compressed(model, self.name, self.bits, seed=seed)

    def __str__(self) -> str:
        chosen = self.name in LEVELS and self.bits is not None
        return f"{self.name}, {self.bits:g} bits" if chosen else self.name


def default_width(name: str) -> float | None:
    """Return the width of a level, None for whoever makes no codes."""
    level = LEVELS.get(name)
    if level is None or not level.get("compress_activation", True):
        return None
    width: float = level["activation_compression_bits"][0]
    return width
