"""Tags: how later readers of a tensor find the code that its producer made.

NOTE [Tags]
1. A session holds the tags of its tensors by the memory that they lie in, weakly: a tag goes with that memory. Another
   tensor of the same elements in the same order has the same tag, in another shape too where both lie densely; any
   other view, copy or result has none. Nothing is attached to a tensor that its user might save or copy.
2. A tag holds the tensor's version: after an in-place change by anybody else it is not used.
3. All tags go when the first forward of the whole model after a backward begins: a tensor that outlives the step is
   coded anew, so that no noise freezes. Until then a block that is computed anew (checkpointing) finds the same tags as
   the first time.
4. Only results of a recorded operation carry a code; a batch or a parameter does not.
5. Whatever a tag says, a reader may ignore it and make a code of its own.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from actnn.kernels.contract import Array
from actnn.session.tensors import Form, Tensors

if TYPE_CHECKING:
    from actnn.session.site import Readers, Site


class Noted(weakref.ref[Any]):
    """A tensor that is known again by its object alone.

    A class of its own: Python has one plain reference for all who ask, so nobody could tell ours from a user's.
    """

    __slots__ = ()


class Tag(weakref.ref[Any]):
    """What is known of one tensor in one step: its producer and its code, and whether exact training would keep it.

    It is a weak reference to the tensor's memory, with which it goes; ``pointer``, ``form`` and ``version`` are those
    of the tensor. ``source`` is the map that made the tensor. ``kept`` is its code and how to read it; ``readers``
    notes who did. ``bypass`` is a shorter way for the gradient of ``result``, the one tensor object that it serves.
    """

    pointer: int
    form: Form
    version: int
    owner: Site | None = None
    kept: Any = None
    readers: Readers | None = None
    bypass: Any = None
    result: Noted | None = None
    source: Site | None = None
    counted = False


class Tags:
    """The tags of one session, by address: the first at each, and those of tensors of other forms."""

    def __init__(self) -> None:
        # also that by which a tensor of another shape finds its code
        self._first: dict[int, Tag] = {}
        self._others: dict[tuple[int, Form], Tag] = {}
        # one object for all tags to call when their memory goes
        self._gone = self.drop

    def find(self, tensors: Tensors, x: Array, form: Form) -> Tag | None:
        """Return the tag of a tensor, None where there is none or the tensor was changed since."""
        pointer = tensors.pointer(x)
        tag = first = self._first.get(pointer)
        if first is None or first.form != form:
            tag = self._others.get((pointer, form)) if self._others else None
        if tag is None:
            return None if first is None else self._reshaped(tensors, x, form, first)
        if not tensors.lies_in(x, tag()):
            return None
        if tag.version != tensors.version(x):
            # whatever it holds is of no use any more, and the tensor may live long
            self.drop(tag)
            return None
        return tag

    def current(self, tensors: Tensors, x: Array, form: Form) -> Tag:
        """Return the tag of a tensor, a new one where there is none."""
        pointer = tensors.pointer(x)
        tag = first = self._first.get(pointer)
        if first is None or first.form != form:
            tag = self._others.get((pointer, form)) if self._others else None
        if tag is not None and tag.version == tensors.version(x) and tensors.lies_in(x, tag()):
            return tag
        handed = None if first is None else self._reshaped(tensors, x, form, first)
        return handed or self.put(tensors, x, pointer, form)

    def _reshaped(self, tensors: Tensors, x: Array, form: Form, origin: Tag) -> Tag | None:
        """Return a tag for a tensor whose elements another tensor holds in the same order and another shape."""
        if origin.version != tensors.version(x) or not tensors.lies_in(x, origin()):
            return None
        if not tensors.same_elements(form, origin.form):
            return None
        return self.hand_on(tensors, origin, x, form)

    def hand_on(self, tensors: Tensors, origin: Tag, x: Array, form: Form) -> Tag:
        """Return a new tag for a tensor that holds the elements of another in the same order."""
        tag = self.put(tensors, x, tensors.pointer(x), form)
        tag.owner, tag.readers, tag.source, tag.counted = origin.owner, origin.readers, origin.source, origin.counted
        tag.kept = None if origin.kept is None else origin.kept.reshaped(tensors, x)
        return tag

    def put(self, tensors: Tensors, x: Array, pointer: int, form: Form) -> Tag:
        """Return a new tag for a tensor, in the place of any other."""
        tag = Tag(tensors.memory(x), self._gone)
        tag.pointer, tag.form, tag.version = pointer, form, tensors.version(x)
        if self._others:
            self._others.pop((pointer, form), None)
        first = self._first.get(pointer)
        if first is None or first.form == form:
            self._first[pointer] = tag
        elif first() is not tag() or first.version != tag.version:
            self._others[pointer, first.form] = first
            self._first[pointer] = tag
        else:
            self._others[pointer, tag.form] = tag
        return tag

    def drop(self, tag: Tag) -> None:
        """Forget one tag, unless another took its place."""
        pointer = tag.pointer
        if self._first.get(pointer) is tag:
            del self._first[pointer]
        elif self._others.get((pointer, tag.form)) is tag:
            del self._others[pointer, tag.form]

    def clear(self) -> None:
        """Forget all tags."""
        self._first.clear()
        self._others.clear()

    def __len__(self) -> int:
        return len(self._first) + len(self._others)
