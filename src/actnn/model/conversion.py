"""Conversion of a model: which layers are chosen, and which are left exact and why."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from actnn.errors import ConfigError
from actnn.model.layers import CompressedLayer
from actnn.model.wrapper import Choice
from actnn.session.session import Session
from actnn.settings import Policy

# what a user may name to leave a layer exact: a path, or a type of the framework's layers
Exact = str | type[Any]


def choose(
    layers: Sequence[tuple[str, Any]],
    twins: Mapping[type[Any], type[CompressedLayer]],
    session: Session,
    patterns: Patterns,
    door: bool = False,
) -> list[Choice]:
    """Choose, without changing anything, the layers to convert; note in the session what is left exact and why.

    With a functional ``door``, what a layer that is not converted calls is served all the same.
    """
    chosen: list[Choice] = []
    converted: set[str] = set()
    parents = {parent for name, _ in layers for parent in list(with_parents(name))[1:]}
    for name, layer in layers:
        compressed = isinstance(layer, CompressedLayer)
        twin = type(layer) if compressed else twins.get(type(layer))
        reason = patterns.reason(name, layer, twin is not None) or reason_to_leave(
            layer, twin, twins, session.policy, door
        )
        if reason is None and twin is not None:
            group = layer.site.group if compressed else 0
            site = session.site(name or "model", twin.__name__, group, twin.normalizes, twin.extra)
            chosen.append((layer, twin, site))
            converted.add(name)
        elif reason is not None:
            session.left_exact.append((name or "model", type(layer).__name__, reason))
        elif name and name not in parents and not within(name, converted):
            session.other_kinds[type(layer).__name__].append(name)
    patterns.check_all_matched([name for name, _ in layers])
    return chosen


def reason_to_leave(
    layer: Any,
    twin: type[CompressedLayer] | None,
    twins: Mapping[type[Any], type[CompressedLayer]],
    policy: Policy,
    door: bool,
) -> str | None:
    """Return why a layer is not converted; None where it is, or where nobody would expect it."""
    if twin is None:
        for base in twins:
            if isinstance(layer, base) and not (door and policy.compress):
                if hasattr(layer, "parametrizations"):
                    return "it is parametrised, so its weight is computed anew in each forward"
                return f"it is a subclass of {base.__name__}, which may compute something else"
        return None
    if twin.normalizes and policy.compress and not policy.compress_batch_norm:
        return "this level keeps BatchNorm exact"
    return twin.reason_to_leave(layer)


class Patterns:
    """The layers that the user wants exact: by path, by path with wildcards, or by type derived from ``base``."""

    def __init__(self, exact: Sequence[Exact], base: type[Any]) -> None:
        if isinstance(exact, (str, type)):
            raise ConfigError(f"exact={exact!r}: expected a list, such as [{exact!r}].")
        for pattern in exact:
            if not isinstance(pattern, str) and not (isinstance(pattern, type) and issubclass(pattern, base)):
                raise ConfigError(f"exact holds {pattern!r}: expected paths of layers or types of layers.")
        self._patterns = list(exact)
        self._matched: set[int] = set()

    def reason(self, name: str, layer: Any, convertible: bool) -> str | None:
        """Return a reason where a pattern names this layer, and it would be converted otherwise."""
        for index, pattern in enumerate(self._patterns):
            if isinstance(pattern, str):
                hit = any(fnmatchcase(path, pattern) for path in with_parents(name))
            else:
                hit = isinstance(layer, pattern)
            if hit:
                self._matched.add(index)
                if convertible:
                    shown = pattern if isinstance(pattern, str) else pattern.__name__
                    return f"exact asks for it ({shown})"
        return None

    def names(self, name: str, layer: Any) -> bool:
        """Tell whether a pattern names this layer or what holds it."""
        return any(
            isinstance(layer, pattern)
            if isinstance(pattern, type)
            else any(fnmatchcase(path, pattern) for path in with_parents(name))
            for pattern in self._patterns
        )

    def check_all_matched(self, names: Sequence[str]) -> None:
        """Raise ConfigError where a pattern names nothing: a typing error would go unseen."""
        missing = [pattern for index, pattern in enumerate(self._patterns) if index not in self._matched]
        if missing:
            some = ", ".join(names[1:6])
            raise ConfigError(f"exact={missing} matches no layer of this model. Its layers are named like {some}.")


def within(name: str, layers: Collection[str]) -> bool:
    """Tell whether a path lies inside one of some layers."""
    return any(path in layers for path in list(with_parents(name))[1:])


def with_parents(name: str) -> Iterator[str]:
    """Yield a path and the paths of the modules that hold it."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        yield ".".join(parts[:count])
