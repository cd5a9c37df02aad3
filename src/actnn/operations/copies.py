"""Copies and views: what moves the elements of an activation, or casts them, and computes nothing.

Keeps: nothing. Shares: the code of what is copied, with those who read the copy. Noise: none of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from actnn.kernels.contract import Array
from actnn.operations.kept import Derived, Kept, Reading
from actnn.operations.rectifiers import tag_output
from actnn.session.session import Session
from actnn.session.tensors import Order, Tensors


class Copied(Derived):
    """What a copy makes of the activation that it was made from."""

    __slots__ = ("_copy",)

    def __init__(self, order: Order, copy: Callable[[Array], Array], base: tuple[Reading, int]) -> None:
        super().__init__(order, base)
        self._copy = copy

    def compute(self, *values: Array) -> Array:
        """Return the copy."""
        return self._copy(values[0])


def tag_copy(tensors: Tensors, x: Array, y: Array, session: Session, copy: Callable[[Array], Array]) -> None:
    """Let those who read a copy find the code of what was copied, where there is one."""
    form, of_copy = tensors.form(x), tensors.form(y)
    if tensors.pointer(x) == tensors.pointer(y) and tensors.same_elements(form, of_copy):
        # whoever holds the same elements in the same order finds the same tag, as long as what it was put on lives
        lasting = tensors.memory(x) is tensors.memory(y)
        if not lasting and (origin := session.tags.find(tensors, x, form)) is not None:
            session.tags.hand_on(tensors, origin, y, of_copy)
        return
    tag = session.tags.find(tensors, x, form)
    if tag is None or tag.kept is None or tag.owner is None or tag.readers is None:
        return
    kept = tag.kept
    order = tensors.order(y, batched=len(y.shape) > 1)
    found = Kept(Copied(order, copy, (kept.reading, len(kept.tensors))), kept.tensors)
    tag_output(tensors, y, found, tag.owner, tag.readers)
