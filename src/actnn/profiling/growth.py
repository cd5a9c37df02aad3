"""What of a step grows with the batch, and the batch that some memory holds.

What a process needs is measured at two batches, in processes of their own: what does not grow with the batch, weights
and whatever is as large as they are, is in both, and falls out of the difference. Workspaces grow up to a bound, so the
two are a batch at which much has grown and its half.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from actnn.measuring.search import extrapolated
from actnn.profiling.blocks import OTHER, PARAMETER_GRADIENTS, WORKSPACES, Piece
from actnn.profiling.timeline import STORE, changes

FIXED, GROWING = "fixed", "growing"
# the replayed peak agrees with the resident one up to this: less than that cannot be told from nothing
MEASURABLE_BYTES = 4 * 2**20
# a difference of needs that allocators and the first steps of a process do not blur, and how it is looked for
FAR_APART = 64 * 2**20
STRIDE = 8
MOST_TRIALS = 4


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


def needs_of(need: Callable[[int], int | None], batch: int, memory: int) -> list[tuple[int, int]]:
    """Return two batches and what a process needs of memory for each, far enough apart to tell by how much that grows.

    ``need`` returns None for a batch that does not fit. Fewer than two are returned where no larger batch does.
    """
    first = need(batch)
    if first is None:
        return []
    larger = 2 * batch
    found = [(batch, first)]
    for _ in range(MOST_TRIALS):
        second = need(larger)
        if second is None:
            break
        found = [(batch, first), (larger, second)]
        # half of what the smaller batch left free: a process may be large before it has any batch
        if second - first >= FAR_APART or second >= (first + memory) / 2:
            break
        larger *= STRIDE
    largest = found[-1][0]
    if largest // 2 > batch and (half := need(largest // 2)) is not None:
        found[0] = largest // 2, half
    return found


def tells(measured: Mapping[str, Any]) -> bool:
    """Tell whether what a process needs grows enough from one batch to the other to say what further ones need."""
    needs = measured["needs"]
    return len(needs) == 2 and needs[1][1] - needs[0][1] >= MEASURABLE_BYTES


def fitting(measured: Mapping[str, Any], memory: int) -> int:
    """Return the largest batch that should fit into some memory."""
    if not tells(measured):
        return 0
    first, second = measured["needs"]
    found = extrapolated(first, second, memory)
    # two figures: it is no more than an estimate
    unit = 10 ** max(0, len(str(found)) - 2)
    return found - found % int(unit)
