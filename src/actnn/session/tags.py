"""Tags: how later readers of a tensor find the code that its producer made.

NOTE [Tags]
1. A session holds the tags of its tensors by the memory that they lie in, weakly: a tag goes with that memory. Another
   tensor of the same elements in the same order has the same tag, any other view, copy or result has none. Nothing is
   attached to a tensor that its user might save or copy.
2. A tag holds the tensor's version: after an in-place change by anybody else it is not used.
3. All tags go when the first forward of the whole model after a backward begins: a tensor that outlives the step is
   coded anew, so that no noise freezes. Until then a block that is computed anew (checkpointing) finds the same tags as
   the first time.
4. Only results of a recorded operation carry a code; a batch or a parameter does not.
5. Whatever a tag says, a reader may ignore it and make a code of its own.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from actnn.session.site import Readers, Site


@dataclass
class Tag:
    """What is known of one tensor in one step: its producer and its code, and whether exact training would keep it.

    ``source`` is the map that made the tensor. ``kept`` and ``bypass`` are the front end's: a code and how to read it,
    and a shorter way for the gradient of ``result``, the one tensor object that it serves.
    """

    version: int
    owner: Site | None = None
    kept: Any = None
    readers: Readers = field(default_factory=Readers)
    bypass: Any = None
    result: weakref.ref[Any] | None = None
    source: Site | None = None
    counted: bool = False


class Place(NamedTuple):
    """Where a tensor lies, and in which version.

    ``memory`` is an object that lives as long as the memory, or shorter; ``key`` distinguishes this place from all
    others while it does.
    """

    memory: Any
    key: tuple[Any, ...]
    version: int

    def is_in(self, memory: Any) -> bool:
        """Tell whether this place still belongs to a memory that had its key."""
        return memory is not None


class Tags:
    """The tags of one session."""

    def __init__(self) -> None:
        self._entries: dict[tuple[Any, ...], tuple[weakref.ref[Any], Tag]] = {}

    def find(self, place: Place) -> Tag | None:
        """Return the tag of a tensor, None where there is none or it was changed since."""
        entry = self._entries.get(place.key)
        if entry is None or not place.is_in(entry[0]()):
            return None
        if entry[1].version != place.version:
            # whatever it holds is of no use any more, and the tensor may live long
            del self._entries[place.key]
            return None
        return entry[1]

    def current(self, place: Place) -> Tag:
        """Return the tag of a tensor, a new one where there is none."""
        tag = self.find(place)
        if tag is None:
            tag, key, entries = Tag(place.version), place.key, self._entries

            def forget(reference: weakref.ref[Any]) -> None:
                if key in entries and entries[key][0] is reference:
                    del entries[key]

            entries[key] = (weakref.ref(place.memory, forget), tag)
        return tag

    def clear(self) -> None:
        """Forget all tags."""
        self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)
