"""Tags: how later readers of a tensor find the code that its producer made.

NOTE [Tags]
1. A tag is an attribute of the tensor object. It goes with the object, and views, copies and results have none.
2. It holds the tensor's version: after an in-place change by anybody else the tag is not used.
3. It holds the step in which it was made: a tensor that outlives the step is coded anew, so that no noise freezes.
4. Only results of a recorded operation carry a code; a batch or a parameter, which users hold for long, does not.
5. Whatever a tag says, a reader may ignore it and make a code of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from actnn.core.session import Session
from actnn.core.site import Readers, Site
from actnn.torch.functions.batch_norm import Bypass
from actnn.torch.functions.kept import Kept
from actnn.torch.tensors import nbytes

ATTRIBUTE = "_actnn_tag"


@dataclass
class Tag:
    """What is known of one tensor in one step: its producer and its code, and whether exact training would keep it."""

    version: int
    session: Session
    step: int
    owner: Site | None = None
    kept: Kept | None = None
    readers: Readers = field(default_factory=Readers)
    bypass: Bypass | None = None
    counted: bool = False


def put(x: Tensor, kept: Kept | None, owner: Site, readers: Readers, bypass: Bypass | None = None) -> None:
    """Let later readers of ``x`` find its code; without one, let them tell that they would have read it."""
    if x.grad_fn is None or not owner.session.policy.share_codes:
        return
    tag = _current(x, owner.session)
    tag.kept, tag.owner, tag.readers, tag.bypass = kept, owner, readers, bypass


def find(x: Tensor, session: Session) -> Tag | None:
    """Return the tag that a producer put on ``x``, if it can be trusted."""
    tag = _valid(x, session)
    return tag if tag is not None and tag.owner is not None else None


def exact_bytes(x: Tensor, session: Session) -> int:
    """Return the bytes that exact training keeps for this tensor, 0 where another reader counted it already."""
    tag = _current(x, session)
    if tag.counted:
        return 0
    tag.counted = True
    return nbytes(x)


def _valid(x: Tensor, session: Session) -> Tag | None:
    tag: Tag | None = getattr(x, ATTRIBUTE, None)
    if tag is None or tag.session is not session:
        return None
    if tag.version == x._version and tag.step == session.current_step():
        return tag
    # whatever it holds is of no use any more, and the tensor may live long
    delattr(x, ATTRIBUTE)
    return None


def _current(x: Tensor, session: Session) -> Tag:
    """Return the valid tag of ``x``, a new one where there is none."""
    tag = _valid(x, session)
    if tag is None:
        tag = Tag(x._version, session, session.current_step())
        setattr(x, ATTRIBUTE, tag)
    return tag
