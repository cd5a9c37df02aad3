"""Which variables of the user's functions hold a tensor, and at which line of them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from actnn.frames import variables_of

if TYPE_CHECKING:
    from torch import Tensor

OURS = str(Path(__file__).parents[1])


def holders(frame: FrameType | None) -> Iterator[tuple[Tensor, str]]:
    """Yield every tensor that a variable of a calling function holds, also in a list, and where that is.

    Functions of this library, and torch's own way to a module's forward, tell nothing of the user's code.
    """
    from torch.nn.modules import module

    machinery = module.__file__
    while frame is not None:
        code = frame.f_code
        skipped = code.co_filename == machinery or code.co_filename.startswith(OURS)
        # the variables of a function; those of a module or a class are a dictionary that everybody holds
        if not skipped and code.co_flags & inspect.CO_OPTIMIZED:
            names = code.co_varnames + code.co_cellvars + code.co_freevars
            place = f"{code.co_qualname} ({Path(code.co_filename).name}:{frame.f_lineno})"
            for name, value in zip(names, variables_of(frame, names), strict=True):
                for tensor in tensors(value):
                    yield tensor, f"{name} in {place}"
        frame = frame.f_back


def tensors(value: Any) -> Iterable[Tensor]:
    """Return a tensor, or those of a list or a dictionary."""
    from torch import Tensor

    if isinstance(value, Tensor):
        return (value,)
    if isinstance(value, Mapping):
        value = tuple(value.values())
    return [part for part in value if isinstance(part, Tensor)] if isinstance(value, (list, tuple)) else ()
