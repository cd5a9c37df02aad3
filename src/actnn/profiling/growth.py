"""What of a step grows with the batch, and the batch that some memory holds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from actnn.profiling.blocks import OTHER, PARAMETER_GRADIENTS, WORKSPACES, Piece
from actnn.profiling.timeline import STORE, changes
from actnn.stores.store import BUFFER_BYTES

FIXED, GROWING = "fixed", "growing"
FLOAT_BYTES = 4
# the replayed peak agrees with the resident one up to this: less than that cannot be told from nothing
MEASURABLE_BYTES = 4 * 2**20
# a smaller part of the peak says little of the batch at which that part is nearly all
LEAST_SHARE = 0.2


def extremes(pieces: Sequence[Piece]) -> list[tuple[int, int]]:
    """Return (fixed, growing) bytes of the moments that could be the peak of some batch: none has less of both."""
    held = {FIXED: 0, GROWING: 0}
    found = set()
    for _, nbytes, (_, part) in changes(divided(pieces)):
        held[part] += nbytes
        found.add((held[FIXED], held[GROWING]))
    kept: list[tuple[int, int]] = []
    for fixed, growing in sorted(found, reverse=True):
        if not kept or growing > kept[-1][1]:
            kept.append((fixed, growing))
    return kept


def divided(pieces: Sequence[Piece]) -> Iterable[Piece]:
    """Yield all pieces, with whether they grow with the batch as their category.

    A workspace as large as a gradient of its layer's weights holds those weights in another order; every other one
    holds activations. What a store has in memory of its own are buffers of a fixed size.
    """
    weights = {(piece.layer, piece.nbytes) for piece in pieces if piece.category == PARAMETER_GRADIENTS}
    for piece in pieces:
        of_weights = piece.category == WORKSPACES and (piece.layer, piece.nbytes) in weights
        fixed = of_weights or piece.category in (PARAMETER_GRADIENTS, OTHER) or piece.layer == STORE
        yield replace(piece, category=FIXED if fixed else GROWING)


def tells(measured: Mapping[str, Any]) -> bool:
    """Tell whether enough of a step grows with the batch to say what other batches take."""
    most = max((growing for _, growing in measured["extremes"]), default=0)
    return bool(most >= max(MEASURABLE_BYTES, LEAST_SHARE * measured["peak"]["bytes"]))


def fitting(measured: Mapping[str, Any], settings: Mapping[str, Any], memory: int) -> int:
    """Return the largest batch that should fit into some memory; what is resident before the step stays."""
    batch = settings["batch"]
    # the batch itself was there before the step
    images = batch * math.prod(settings["input"]) * FLOAT_BYTES
    room = memory - measured["resident"] + images - (2 * BUFFER_BYTES if measured["stored"] else 0)
    share = min(((room - fixed) / (growing + images) for fixed, growing in measured["extremes"]), default=0.0)
    found: int = max(0, int(batch * share))
    # two figures: it is no more than an estimate
    unit = 10 ** max(0, len(str(found)) - 2)
    return found - found % int(unit)
