"""Rectifiers: piecewise linear functions of slope 1 where a mask holds and another slope elsewhere.

Keeps: nothing where the code of its input tells signs; else a code of its output where maps read that; else one bit an
element.
Shares: a BatchNorm's code with its producer and its readers, or a code of its output with its readers.
Reads in backward: the side of each word, ``word >= N``, which is exactly the mask.
Noise: none of its own, the mask is lossless.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from actnn.format import Family
from actnn.kernels.contract import FLOATS, Array
from actnn.operations.kept import Kept, counted_once, encode, encode_mask
from actnn.session.site import Readers, Site
from actnn.session.tags import Noted, Tag
from actnn.session.tensors import Form, Tensors, check_floating


class Rectifier:
    """One call of a rectifier, of slope 1 where its mask holds and ``below`` elsewhere.

    ``function`` computes it. ``family`` is that of a code of the output from which the mask can be read, None where
    there is none; ``rectifies`` tells that the output is the positive part of the input. The mask is read from
    ``kept``, a code of the input; where there is none, from what ``code`` makes of the output. With ``upper`` the mask
    ends there, and no code of the input tells it. ``form`` is that of the output, once it is known.
    """

    # known once it has run
    readers: Readers | None = None
    form: Form | None = None

    def __init__(
        self,
        site: Site,
        function: Callable[[Array], Array],
        *,
        below: float = 0.0,
        inplace: bool = False,
        family: Family | None = None,
        rectifies: bool = False,
        training: bool = True,
        kept: Kept | None = None,
        code: Callable[[Array], Kept] | None = None,
        upper: float | None = None,
    ) -> None:
        self.site = site
        self.function = function
        self.below = below
        self.inplace = inplace
        self.family = family
        self.rectifies = rectifies
        self.training = training
        self.kept = kept
        self.code = code
        self.upper = upper

    def keep_output(self, tensors: Tensors, y: Array) -> Kept:
        """Return a code of the output that also tells its sign, where it has readers; else of its mask."""
        if self.code is not None:
            return self.code(y)
        if self.form is None:
            self.form = tensors.form(y)
        # in evaluation nobody reads codes of others
        if self.training and self.family is not None and self.site.codes_output(self.family):
            kept = encode(tensors, y, self.form, self.site, self.family)
            if kept is not None:
                return kept
        return encode_mask(tensors, y, self.site, self.upper, self.form)


def rectify(
    tensors: Tensors,
    x: Array,
    rectifier: Rectifier,
    apply: Callable[[Array, Rectifier], Array],
    bypassed: Callable[[Array, Tag], Array | None] | None = None,
) -> Array:
    """Return the rectifier of ``x``; its mask comes from the code of ``x`` where that tells signs.

    ``apply`` computes it, recorded by autograd. ``bypassed`` may return the result in another way, in which one
    backward serves a BatchNorm and the rectifier that overwrites its output.
    """
    site = rectifier.site
    if tensors.dtype(x) not in FLOATS:
        check_floating(tensors, x, site.name)
    form = tensors.form(x)
    if rectifier.inplace:
        rectifier.form = form
    reads_sides = rectifier.upper is None and rectifier.kept is None
    tag = site.session.tags.find(tensors, x, form) if reads_sides else None
    if tag is not None and tag.owner is not None and tag.readers is not None:
        # a producer that is asked for signs in vain will provide them in the next step
        tag.readers.sides = True
        if tag.kept is not None and tag.kept.reading.signed:
            return shared(tensors, x, rectifier, tag, apply, bypassed)
    readers = rectifier.readers = Readers()
    y = apply(x, rectifier)
    kept = rectifier.kept
    assert kept is not None
    signed = kept if kept.reading.signed else None
    # it kept something just now, so the account is that of this step
    site.account.exact_bytes += tag_output(tensors, y, signed, site, readers, form=rectifier.form)
    return y


def shared(tensors: Tensors, x: Array, rectifier: Rectifier, tag: Tag, apply: Any, bypassed: Any) -> Array:
    """Return the rectifier of ``x``, its mask read from the code that the tag of ``x`` holds."""
    owner, kept, readers = tag.owner, tag.kept, tag.readers
    assert owner is not None
    assert readers is not None
    y = None
    if rectifier.inplace and bypassed is not None:
        readers.overwrites = True
        if tag.bypass is not None:
            y = bypassed(x, tag)
    if y is None:
        rectifier.kept = kept
        y = apply(x, rectifier)
    if rectifier.rectifies:
        positive = Kept(kept.reading.positive, kept.tensors)
        exact_bytes = tag_output(tensors, y, positive, owner, readers, form=rectifier.form)
    else:
        exact_bytes = counted_once(tensors, y, rectifier.site)
    owner.read_by(rectifier.site, exact_bytes)
    return y


def tag_output(
    tensors: Tensors,
    y: Array,
    kept: Kept | None,
    owner: Site,
    readers: Readers,
    bypass: Any = None,
    form: Form | None = None,
) -> int:
    """Let readers of an output find its code, or tell that they would have read it; return its uncounted bytes."""
    session = owner.session
    tag = session.tags.current(tensors, y, tensors.form(y) if form is None else form)
    if session.policy.share_codes and tensors.recorded(y):
        tag.kept, tag.owner, tag.readers, tag.bypass = kept, owner, readers, bypass
        if bypass is not None:
            tag.result = Noted(y)
    if tag.counted:
        return 0
    tag.counted = True
    return tensors.nbytes(y)
