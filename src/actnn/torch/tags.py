"""Tags of torch tensors: see NOTE [Tags] in actnn.core.tags."""

from __future__ import annotations

import weakref

from torch import Tensor

from actnn.core.session import Session
from actnn.core.site import Readers, Site
from actnn.core.tags import Place, Tag
from actnn.torch.functions.batch_norm import Bypass
from actnn.torch.functions.kept import Kept
from actnn.torch.tensors import nbytes


def put(x: Tensor, kept: Kept | None, owner: Site, readers: Readers, bypass: Bypass | None = None) -> None:
    """Let later readers of ``x`` find its code; without one, let them tell that they would have read it."""
    if x.grad_fn is None or not owner.session.policy.share_codes:
        return
    tag = owner.session.tags.current(place(x), x._version)
    tag.kept, tag.owner, tag.readers, tag.bypass = kept, owner, readers, bypass
    tag.result = weakref.ref(x)


def place(x: Tensor) -> Place:
    """Return where a tensor lies. Autograd may hand another object than it was given to whoever computes anew."""
    # a view that torch negates or conjugates only when it is read lies where its base does
    return Place(x.untyped_storage(), (x.storage_offset(), x.shape, x.stride(), x.dtype, x.is_neg(), x.is_conj()))


def find(x: Tensor, session: Session) -> Tag | None:
    """Return the tag that a producer put on ``x``, if it can be trusted."""
    tag = session.tags.find(place(x), x._version)
    return tag if tag is not None and tag.owner is not None else None


def set_source(x: Tensor, site: Site) -> None:
    """Let a BatchNorm that reads ``x`` find the map that made it."""
    site.session.tags.current(place(x), x._version).source = site


def source(x: Tensor, session: Session) -> Site | None:
    """Return the map that made ``x``, where that is known."""
    tag = session.tags.find(place(x), x._version)
    return None if tag is None else tag.source


def exact_bytes(x: Tensor, session: Session) -> int:
    """Return the bytes that exact training keeps for this tensor, 0 where another reader counted it already."""
    tag = session.tags.current(place(x), x._version)
    if tag.counted:
        return 0
    tag.counted = True
    return nbytes(x)
