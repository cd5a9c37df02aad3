"""A session's state as plain data: what a checkpoint holds beside weights, so that training goes on bit for bit.

Plain data are None, numbers, strings, lists, and dictionaries with strings for keys: any format stores them, and
reading them runs no code. Whatever is neither one of these nor a list is a dictionary of one entry, the name of its
kind and what it holds; an array is its type, shape and bytes. Arrays and objects, which may be met several times and
must stay one, lie in a list of their own and are named by their place in it; sites are named by their index.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from actnn.errors import SessionError
from actnn.format import Family, Layout, Rounding
from actnn.planning.budget import MemoryBudget
from actnn.planning.noise import Transfer
from actnn.planning.planner import Planner
from actnn.planning.problem import Demand
from actnn.planning.records import Record
from actnn.planning.samples import SampleNorms
from actnn.session.site import Account, Readers, Site
from actnn.settings import Policy

if TYPE_CHECKING:
    from actnn.session.session import Session

FORMAT = "actnn session 1"
ADVICE = "Convert the same model with the same settings as the one that was saved."

PLAIN = (type(None), bool, int, float, str)
# settings that change neither codes nor gradients: a run may go on with others
FREE_SETTINGS = ("swap", "swap_dir", "swap_bytes", "arena", "trim_threshold", "log_memory", "log_speed")

KINDS: Mapping[str, type] = {
    kind.__name__: kind
    for kind in (Account, Demand, Family, Layout, MemoryBudget, Planner, Readers, Record, SampleNorms, Transfer)
}
# what conversion gives, or what belongs to one process
NOT_STATE: Mapping[type, tuple[str, ...]] = {
    Planner: ("policy",),
    Site: ("session", "name", "kind", "index", "group", "batch_norm"),
}
SESSION_STATE = ("seed", "planner", "_step", "_backward_seen", "_whole")


def state_of(session: Session) -> dict[str, Any]:
    """Return everything by which the next steps of a session differ from those of one just made.

    A step must be over: its backward done, nothing of it kept any more.
    """
    writer = Writer()
    return {
        "format": FORMAT,
        "policy": settings_of(session.policy),
        "names": names_of(session),
        "session": {name: writer.plain(getattr(session, name)) for name in SESSION_STATE},
        "sites": [writer.attributes(site) for site in session.sites],
        "objects": writer.objects,
    }


def load_state(session: Session, state: Mapping[str, Any]) -> None:
    """Let a session go on where another one of the same model was; the session stays as it was where that fails."""
    if not isinstance(state, Mapping) or state.get("format") != FORMAT:
        raise SessionError(
            "what was given is not the state of a session of this version: expected what session_state() returns."
        )
    if session.swaps_activations and state.get("names"):
        # its only site is made in the first forward
        session.whole_model()
    check_equal("settings", settings_of(session.policy), state.get("policy"))
    check_equal("layers", names_of(session), state.get("names"))
    try:
        reader = Reader(session, state["objects"])
        of_session = {name: reader.value(state["session"][name]) for name in SESSION_STATE}
        of_sites = [{name: reader.value(value) for name, value in site.items()} for site in state["sites"]]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as problem:
        raise SessionError(f"the state of this session is damaged ({problem!r}): use another checkpoint.") from problem
    planner: Planner = of_session.pop("planner")
    check_equal("memory budget", limit_of(session.planner), limit_of(planner))
    planner.policy = session.policy
    session.planner = planner
    vars(session).update(of_session)
    for site, attributes in zip(session.sites, of_sites, strict=True):
        vars(site).update(attributes)
    session.tags.clear()


def settings_of(policy: Policy) -> dict[str, Any]:
    """Return the settings on which codes depend."""
    settings = {name: value for name, value in asdict(policy).items() if name not in FREE_SETTINGS}
    return settings | {"bits": list(policy.bits), "rounding": policy.rounding.name}


def names_of(session: Session) -> list[list[Any]]:
    """Return what conversion made of the model."""
    return [[site.name, site.kind, site.group] for site in session.sites]


def limit_of(planner: Planner) -> int | None:
    """Return the bytes that a planner may spend."""
    return None if planner.budget is None else planner.budget.limit


def check_equal(what: str, own: Any, saved: Any) -> None:
    """Raise SessionError where a state is that of another conversion; say the first difference."""
    if own == saved:
        return
    if isinstance(own, Mapping) and isinstance(saved, Mapping):
        name = next(name for name in {**own, **saved} if own.get(name) != saved.get(name))
        what, own, saved = name, own.get(name), saved.get(name)
    elif isinstance(own, list) and isinstance(saved, list):
        pairs = zip(own, saved, strict=False)
        own, saved = next(((mine, other) for mine, other in pairs if mine != other), (len(own), len(saved)))
    raise SessionError(f"the saved session has {what} {saved!r}, this one {own!r}. {ADVICE}")


def attribute_names(thing: Any) -> list[str]:
    """Return the attributes of an object that are state."""
    # vars would hold what a dataclass has only cached
    names = [field.name for field in fields(thing)] if is_dataclass(thing) else list(vars(thing))
    return [name for name in names if name not in NOT_STATE.get(type(thing), ())]


def plain_array(array: NDArray[Any]) -> dict[str, list[Any]]:
    """Return an array as plain data."""
    return {"array": [array.dtype.str, list(array.shape), b64encode(array.tobytes()).decode("ascii")]}


def array_of(dtype: str, shape: list[int], content: str) -> NDArray[Any]:
    """Return the array that plain data stand for."""
    # a copy: what is made of bytes cannot be written to
    return np.frombuffer(b64decode(content, validate=True), np.dtype(dtype)).reshape(shape).copy()


class Writer:
    """Turns state into plain data."""

    def __init__(self) -> None:
        self.objects: list[Any] = []
        # with the object itself, so that its id is not given to another
        self._places: dict[int, tuple[int, Any]] = {}

    def plain(self, value: Any) -> Any:
        """Return a value as plain data."""
        kind = type(value)
        if kind in PLAIN:
            return value
        if kind in WRITERS:
            return WRITERS[kind](self, value)
        if kind.__name__ not in KINDS:
            raise SessionError(f"a session holds a {kind.__name__}, of which no state can be saved.")
        return self.shared(value, lambda: {kind.__name__: self.attributes(value)})

    def attributes(self, thing: Any) -> dict[str, Any]:
        """Return the attributes of an object that are state."""
        return {name: self.plain(getattr(thing, name)) for name in attribute_names(thing)}

    def plain_list(self, values: Any) -> list[Any]:
        """Return the elements of a collection."""
        return [self.plain(value) for value in values]

    def shared(self, value: Any, content: Callable[[], Any]) -> dict[str, int]:
        """Return the name of an object that others may refer to as well."""
        if id(value) not in self._places:
            written = content()
            self._places[id(value)] = len(self.objects), value
            self.objects.append(written)
        return {"object": self._places[id(value)][0]}


WRITERS: Mapping[type, Callable[[Writer, Any], Any]] = {
    list: Writer.plain_list,
    tuple: lambda writer, value: {"tuple": writer.plain_list(value)},
    # a set has no order, but equal states are to look equal
    set: lambda writer, value: {"set": sorted(writer.plain_list(value), key=repr)},
    deque: lambda writer, value: {"deque": [value.maxlen, writer.plain_list(value)]},
    dict: lambda writer, value: {"dict": [writer.plain_list(pair) for pair in value.items()]},
    Rounding: lambda writer, value: {"Rounding": value.name},
    np.float64: lambda writer, value: float(value),
    np.int64: lambda writer, value: int(value),
    np.ndarray: lambda writer, value: writer.shared(value, lambda: plain_array(value)),
    Site: lambda writer, value: {"site": value.index},
}


class Reader:
    """Turns plain data into state again."""

    def __init__(self, session: Session, objects: list[Any]) -> None:
        self.session = session
        self._objects = objects
        self._read: dict[int, Any] = {}

    def value(self, plain: Any) -> Any:
        """Return the value that plain data stand for."""
        if isinstance(plain, list):
            return self.values(plain)
        if not isinstance(plain, dict):
            return plain
        ((kind, content),) = plain.items()
        if kind in READERS:
            return READERS[kind](self, content)
        made: Any = object.__new__(KINDS[kind])
        # past the checks of frozen classes: what is read was checked when it was made
        vars(made).update({name: self.value(value) for name, value in content.items()})
        return made

    def values(self, plain: list[Any]) -> list[Any]:
        """Return the values of a list."""
        return [self.value(value) for value in plain]

    def shared(self, place: int) -> Any:
        """Return an object that others may refer to as well."""
        if place not in self._read:
            self._read[place] = self.value(self._objects[place])
        return self._read[place]


READERS: Mapping[str, Callable[[Reader, Any], Any]] = {
    "tuple": lambda reader, content: tuple(reader.values(content)),
    "set": lambda reader, content: set(reader.values(content)),
    "deque": lambda reader, content: deque(reader.values(content[1]), maxlen=content[0]),
    "dict": lambda reader, content: {reader.value(key): reader.value(value) for key, value in content},
    "Rounding": lambda reader, content: Rounding[content],
    "array": lambda reader, content: array_of(*content),
    "object": Reader.shared,
    "site": lambda reader, content: reader.session.sites[content],
}
