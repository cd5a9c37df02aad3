"""Tags: how later readers of a tensor find the code that its producer made.

NOTE [Tags]
1. A session holds the tags of its tensors by identity, weakly: a tag goes with its tensor object, and views, copies and
   results have none. Nothing is attached to a tensor that its user might save or copy.
2. A tag holds the tensor's version: after an in-place change by anybody else it is not used.
3. All tags go when a backward begins: a tensor that outlives the step is coded anew, so that no noise freezes, and no
   tag keeps a code that backward has done with.
4. Only results of a recorded operation carry a code; a batch or a parameter does not.
5. Whatever a tag says, a reader may ignore it and make a code of its own.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

from actnn.core.site import Readers, Site


@dataclass
class Tag:
    """What is known of one tensor in one step: its producer and its code, and whether exact training would keep it.

    ``source`` is the map that made the tensor. ``kept`` and ``bypass`` are the front end's: a code and how to read it,
    and a shorter way for the gradient.
    """

    version: int
    owner: Site | None = None
    kept: Any = None
    readers: Readers = field(default_factory=Readers)
    bypass: Any = None
    source: Site | None = None
    counted: bool = False


class Tags:
    """The tags of one session."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[Any], Tag]] = {}

    def find(self, x: Any, version: int) -> Tag | None:
        """Return the tag of a tensor, None where there is none or it was changed since."""
        entry = self._entries.get(id(x))
        if entry is None or entry[0]() is not x:
            return None
        if entry[1].version != version:
            # whatever it holds is of no use any more, and the tensor may live long
            del self._entries[id(x)]
            return None
        return entry[1]

    def current(self, x: Any, version: int) -> Tag:
        """Return the tag of a tensor, a new one where there is none."""
        tag = self.find(x, version)
        if tag is None:
            tag, place, entries = Tag(version), id(x), self._entries

            def forget(reference: weakref.ref[Any]) -> None:
                if place in entries and entries[place][0] is reference:
                    del entries[place]

            entries[place] = (weakref.ref(x, forget), tag)
        return tag

    def clear(self) -> None:
        """Forget all tags."""
        self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)
