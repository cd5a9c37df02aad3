"""Who calls a module: whether a running function calls it with a tensor that it reads no more."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

from torch import nn

from actnn.frames import variables_of
from actnn.torch.instructions import Call

# a variable, the parameter of the function called with it, and the argument of the counting
PLAIN_REFERENCES = 3


def observed() -> bool:
    """Tell whether a debugger may show the variables of this thread's functions, or they are evaluated elsewhere."""
    if sys.gettrace() is not None:
        return True
    monitoring: Any = getattr(sys, "monitoring", None)
    if monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID) is not None:
        return True
    return evaluated_elsewhere()


def evaluated_elsewhere() -> bool:
    """Tell whether not Python itself evaluates functions, but a compiler.

    Calls then hold their arguments more often, and numbers of references mean something else.
    """
    held = object()
    return references(held) != PLAIN_REFERENCES


def references(held: object) -> int:
    """Return how many references an argument has."""
    return sys.getrefcount(held)


def holds(frame: FrameType, call: Call, called: Any, x: Any) -> bool:
    """Tell whether a function is in a call of this very module, with ``x`` where a variable holds the argument.

    Asked at each call: a name may stand for something else by now, which called the module with another tensor.
    """
    owner, argument = variables_of(frame, (call.path[0], call.variable))
    if call.variable is not None and argument is not x:
        return False
    if not call.asks:
        return found(owner, call.path[1:]) is called
    own = frame.f_globals.get(getattr.__name__, getattr) is getattr
    return own and isinstance(owner, nn.Module) and any(child is called for child in owner.children())


def found(owner: Any, names: Sequence[str]) -> Any:
    """Return what a path of attributes leads to, None where it is not a path of plain modules."""
    for name in names:
        if not isinstance(owner, nn.Module):
            return None
        owner = next((child for key, child in owner.named_children() if key == name), None)
    return owner
