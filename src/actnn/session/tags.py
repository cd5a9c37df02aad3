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

Key = tuple[int, Form]

# forms that are remembered: where shapes never come again, they would pile up
MOST_FORMS = 4096


class Tag(weakref.ref[Any]):
    """What is known of one tensor in one step: its producer and its code, and whether exact training would keep it.

    It is a weak reference to the tensor's memory, with which it goes. ``source`` is the map that made the tensor.
    ``kept`` is its code and how to read it; ``readers`` notes who did. ``bypass`` is a shorter way for the gradient of
    ``result``, the one tensor object that it serves.
    """

    key: Key
    tags: dict[Key, Tag]
    first: dict[int, Tag]
    version: int
    owner: Site | None = None
    kept: Any = None
    readers: Readers | None = None
    bypass: Any = None
    result: weakref.ref[Any] | None = None
    source: Site | None = None
    counted = False


def forget(tag: Tag) -> None:
    """Drop the tag of memory that is gone."""
    if tag.tags.get(tag.key) is tag:
        del tag.tags[tag.key]
    if tag.first.get(tag.key[0]) is tag:
        del tag.first[tag.key[0]]


class Tags:
    """The tags of one session."""

    def __init__(self) -> None:
        self._tags: dict[Key, Tag] = {}
        self._forms: dict[Form, Form] = {}
        # the first tag at each address, by which a tensor of another shape finds it
        self._first: dict[int, Tag] = {}

    def find(self, tensors: Tensors, x: Array, form: Form) -> Tag | None:
        """Return the tag of a tensor, None where there is none or the tensor was changed since."""
        pointer = tensors.pointer(x)
        key = pointer, form
        tag = self._tags.get(key)
        if tag is None:
            return self._reshaped(tensors, x, form, pointer)
        if not tensors.lies_in(x, tag()):
            return None
        if tag.version != tensors.version(x):
            # whatever it holds is of no use any more, and the tensor may live long
            del self._tags[key]
            return None
        return tag

    def _reshaped(self, tensors: Tensors, x: Array, form: Form, pointer: int) -> Tag | None:
        """Return a tag for a tensor whose elements another tensor holds in the same order and another shape."""
        origin = self._first.get(pointer)
        if origin is None or not tensors.lies_in(x, origin()) or origin.version != tensors.version(x):
            return None
        if not tensors.same_elements(form, origin.key[1]):
            return None
        return self.hand_on(tensors, origin, x, form)

    def hand_on(self, tensors: Tensors, origin: Tag, x: Array, form: Form) -> Tag:
        """Return a new tag for a tensor that holds the elements of another in the same order."""
        tag = self.fresh(tensors, x, form)
        tag.owner, tag.readers, tag.source, tag.counted = origin.owner, origin.readers, origin.source, origin.counted
        tag.kept = None if origin.kept is None else origin.kept.reshaped(tensors, x)
        return tag

    def current(self, tensors: Tensors, x: Array, form: Form) -> Tag:
        """Return the tag of a tensor, a new one where there is none."""
        # one object for all equal forms: what lives through a forward is what the garbage collector walks through
        key = tensors.pointer(x), self._forms.setdefault(form, form)
        tag = self._tags.get(key)
        if tag is not None and tag.version == tensors.version(x) and tensors.lies_in(x, tag()):
            return tag
        return self._reshaped(tensors, x, form, key[0]) or self._put(tensors, x, key)

    def fresh(self, tensors: Tensors, x: Array, form: Form) -> Tag:
        """Return a new tag for a tensor, in the place of any other."""
        return self._put(tensors, x, (tensors.pointer(x), self._forms.setdefault(form, form)))

    def _put(self, tensors: Tensors, x: Array, key: Key) -> Tag:
        tag = Tag(tensors.memory(x), forget)
        tag.key, tag.tags, tag.first, tag.version = key, self._tags, self._first, tensors.version(x)
        self._tags[key] = tag
        first = self._first.get(key[0])
        if first is None or first.key == key or first() is not tag() or first.version != tag.version:
            self._first[key[0]] = tag
        return tag

    def clear(self) -> None:
        """Forget all tags."""
        self._tags.clear()
        self._first.clear()
        if len(self._forms) > MOST_FORMS:
            self._forms.clear()

    def __len__(self) -> int:
        return len(self._tags)
