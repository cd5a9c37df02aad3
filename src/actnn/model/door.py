"""The functional door in every framework: one call of one module, and what rules make of the functions in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from actnn.session.session import Session
from actnn.session.site import Site

# what a rule returns where it leaves the function to the framework
DECLINED = NotImplemented
# given the call's frame, the function and its arguments
Rule = Callable[..., Any]


# what the code of a class may raise on rows of numbers that it was not written for
UNLIKE = (TypeError, ValueError, RuntimeError, AttributeError, LookupError, AssertionError, ArithmeticError, OSError)


def disagreement(name: str, trial: Callable[[], bool]) -> str | None:
    """Return why a class is not taken for the function that its name says, None where a trial shows that it is.

    ``trial`` lets the class and the function compute the same few rows, and tells whether they agree.
    """
    try:
        agrees = trial()
    except UNLIKE as problem:
        words = next(iter(str(problem).strip().splitlines()), "")
        told = f"raised {type(problem).__name__}{': ' + words if words else ''}"
    else:
        told = "computed something else"
        if agrees:
            return None
    return f"it is named like {name}, but on a few rows of numbers it {told}; what it calls is served by itself"


class Frame:
    """One call of one module: its functions are counted, so that each has a site of its own."""

    __slots__ = ("_counts", "active", "module", "name", "session")
    # whether a rule may write over the tensor that it was given
    overwrites = False

    def __init__(self, session: Session, module: Any, name: str, active: bool) -> None:
        self.session, self.module, self.name, self.active = session, module, name, active
        self._counts: dict[str, int] = {}

    @property
    def training(self) -> bool:
        """Whether the module trains."""
        training: bool = self.module.training
        return training

    def count(self, function: str) -> str:
        """Return the name of the next call of a function."""
        calls = self._counts.get(function, 0)
        self._counts[function] = calls + 1
        return function if calls == 0 else f"{function}#{calls + 1}"

    def site(self, function: str, *, batch_norm: bool = False, extra: float = 0.0, part: str = "") -> Site:
        """Return the site of a call that ``count`` named; calls of several codes have one for each ``part``."""
        name = f"{self.name}/{function}{part}"
        return self.session.call_site(name, function.partition("#")[0], batch_norm, extra)


class OwnSite:
    """What a rule asks of a call: a layer has one site for all its calls, and may know that nobody reads its input."""

    __slots__ = ("_site", "overwrites", "training")

    def __init__(self, site: Site, training: bool, overwrites: bool = False) -> None:
        self._site, self.training, self.overwrites = site, training, overwrites

    def count(self, function: str) -> str:
        """Return the name of a call."""
        return function

    def site(self, function: str, *, batch_norm: bool = False, extra: float = 0.0, part: str = "") -> Site:
        """Return the site of the layer."""
        return self._site
