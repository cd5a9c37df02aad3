"""How layers put tags on a front end's tensors and find them again: see NOTE [Tags] in actnn.session.tags."""

from __future__ import annotations

import weakref
from typing import Any

from actnn.kernels.contract import Array
from actnn.operations.kept import Kept
from actnn.session.session import Session
from actnn.session.site import Readers, Site
from actnn.session.tags import Tag
from actnn.session.tensors import Tensors


def put(tensors: Tensors, x: Array, kept: Kept | None, owner: Site, readers: Readers, bypass: Any = None) -> None:
    """Let later readers of ``x`` find its code; without one, let them tell that they would have read it."""
    if not (tensors.recorded(x) and owner.session.policy.share_codes):
        return
    tag = owner.session.tags.current(tensors.place(x))
    tag.kept, tag.owner, tag.readers, tag.bypass = kept, owner, readers, bypass
    tag.result = weakref.ref(x)


def find(tensors: Tensors, x: Array, session: Session) -> Tag | None:
    """Return the tag that a producer put on ``x``, if it can be trusted."""
    tag = session.tags.find(tensors.place(x))
    return tag if tag is not None and tag.owner is not None else None


def set_source(tensors: Tensors, x: Array, site: Site) -> None:
    """Let a BatchNorm that reads ``x`` find the map that made it."""
    site.session.tags.current(tensors.place(x)).source = site


def source(tensors: Tensors, x: Array, session: Session) -> Site | None:
    """Return the map that made ``x``, where that is known."""
    tag = session.tags.find(tensors.place(x))
    return None if tag is None else tag.source


def exact_bytes(tensors: Tensors, x: Array, session: Session) -> int:
    """Return the bytes that exact training keeps for this tensor, 0 where another reader counted it already."""
    tag = session.tags.current(tensors.place(x))
    if tag.counted:
        return 0
    tag.counted = True
    return tensors.nbytes(x)
