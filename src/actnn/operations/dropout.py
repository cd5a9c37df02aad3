"""Dropout.

Keeps: one bit an element, which of them stay.
Shares: where its input has a code, that code with readers of its output, who drop the same elements.
Reads in backward: the mask. Noise: none of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from actnn.format import plane_bytes
from actnn.kernels.contract import Array
from actnn.operations.kept import Kept, Reading, encode_mask
from actnn.session.site import Site
from actnn.session.tags import Tag
from actnn.session.tensors import Tensors


class DroppedReading(Reading):
    """How the output of a dropout reads from the code of its input and the mask, which is saved behind that."""

    __slots__ = ("base", "factor", "mask")

    def __init__(self, base: Reading, mask: Reading, factor: float) -> None:
        super().__init__(base.order, base.backend, base.layout, base.record)
        self.base, self.mask, self.factor = base, mask, factor

    @property
    def signed(self) -> bool:
        """Whether words tell the sign: no, what was dropped is neither."""
        return False

    @property
    def direct(self) -> bool:
        """Whether the code's values are those of the activation: no, some were dropped."""
        return False

    def value(self, site: Site, saved: Sequence[Array], dtype: str, samples: range | None = None) -> Array:
        """Return the output, or some samples of it, ``saved`` beginning with the buffer itself."""
        *own, mask = saved
        values = self.base.value(site, own, dtype, samples)
        reading, order = self.mask, self.order
        if samples is not None:
            mask = site.session.store.get(order.tensors, mask)
            if order.batched:
                plane = plane_bytes(order.rows[1])
                mask = mask[plane * samples.start : plane * samples.stop]
            reading = Reading(order.of_samples(len(samples)), reading.backend)
        return reading.masked(site, mask, values, self.factor, 0.0)


def keep_chosen(tensors: Tensors, chosen: Array, site: Site, exact_bytes: int) -> Kept:
    """Return the mask of what stays, ``chosen`` being positive there; exact training would keep ``exact_bytes``."""
    kept = encode_mask(tensors, chosen, site)
    site.keeps(0, exact_bytes)
    return kept


def code_to_share(tensors: Tensors, x: Array, site: Site) -> Tag | None:
    """Return the tag of an input whose code readers of the output may read, before the input is overwritten."""
    tag = site.session.tags.find(tensors, x, tensors.form(x))
    # codes with sides and those of a BatchNorm have readers of other kinds, for whom they are made
    if tag is None or tag.kept is None or not (tag.kept.reading.direct and tag.kept.reading.layout.family.affine):
        return None
    return tag


def share_dropped(tensors: Tensors, y: Array, tag: Tag, mask: Kept, factor: float) -> None:
    """Let readers of a dropout's output find the code of its input."""
    kept, owner, readers = tag.kept, tag.owner, tag.readers
    if owner is None or readers is None or kept.reading.order != mask.reading.order:
        return
    if not tensors.recorded(y):
        return
    reading = DroppedReading(kept.reading, mask.reading, factor)
    dropped = owner.session.tags.current(tensors, y, tensors.form(y))
    dropped.kept, dropped.owner, dropped.readers = Kept(reading, (*kept.tensors, *mask.tensors)), owner, readers
    dropped.bypass = None
