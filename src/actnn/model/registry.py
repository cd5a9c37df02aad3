"""Classes that users say to be one operation, and the functions that compute the same by what the door knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from actnn.errors import ConfigError

# given the layer and what it was called with
Forward = Callable[..., Any]


class Registry:
    """The classes that users registered, all of which derive from ``base``, in words ``of``."""

    def __init__(self, base: type[Any], of: str) -> None:
        self._base, self._of = base, of
        self._rows: dict[type[Any], Forward] = {}

    def register(self, kind: type[Any], forward: Forward) -> None:
        """Let converted models compute layers of a class by another function, called with the layer and its inputs.

        ``forward`` calls what actnn knows (``F.layer_norm``, ``F.gelu`` …) and must return what the class's own forward
        returns. It serves training only; in evaluation the class's own forward runs.
        """
        if not (isinstance(kind, type) and issubclass(kind, self._base)):
            raise ConfigError(f"register was given {kind!r}: expected a class of {self._of}.")
        if not callable(forward):
            raise ConfigError(f"register was given {forward!r} for {kind.__name__}: expected a function of the layer.")
        self._rows[kind] = forward

    def of(self, layer: Any) -> Forward | None:
        """Return what computes layers of exactly this class; None where nobody registered it."""
        return self._rows.get(type(layer))
