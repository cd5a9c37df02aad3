"""What each block of memory is there for."""

from __future__ import annotations

from dataclasses import dataclass

from actnn.report.trace import CODE, GRADIENT, PARAMETER_GRADIENT, SAVED, Block, Step

CODES = "codes"
EXACT = "exact activations"
IN_FLIGHT = "activations in flight"
DECODED = "decoded copies"
ACTIVATION_GRADIENTS = "gradients of activations"
PARAMETER_GRADIENTS = "gradients of parameters"
WORKSPACES = "framework workspaces"
OTHER = "other"

# in the order in which they are stacked and listed
CATEGORIES = {
    CODES: "kept for backward, as codes",
    EXACT: "kept for backward as they are: inputs, outputs and statistics of layers",
    IN_FLIGHT: "results of the forward pass that nobody keeps",
    DECODED: "values of a code, there while a gradient is computed from them",
    ACTIVATION_GRADIENTS: "on their way through the backward pass",
    PARAMETER_GRADIENTS: "before they are added to those of the model",
    WORKSPACES: "taken and given back within one operator",
    OTHER: "everything else: small results within a backward, the optimizer's temporaries",
}
KEPT = (CODES, EXACT)

# what a block was seen to hold, the first of which decides
OF_MARKS = {
    CODE: CODES,
    SAVED: EXACT,
    PARAMETER_GRADIENT: PARAMETER_GRADIENTS,
    GRADIENT: ACTIVATION_GRADIENTS,
}


@dataclass(frozen=True)
class Piece:
    """A block with its purpose; ``layer`` is the one that keeps it where it is kept, else the one that made it."""

    start: float
    end: float
    nbytes: int
    layer: str
    category: str


def pieces(step: Step) -> list[Piece]:
    """Return all blocks of a step with their purposes."""
    return [piece(block) for block in step.blocks]


def piece(block: Block) -> Piece:
    """Return a block with its purpose."""
    for mark, category in OF_MARKS.items():
        if mark in block.marks and not (block.decoding and mark == GRADIENT):
            layer = block.marks[mark] if category in KEPT else block.layer
            return Piece(block.start, block.end, block.nbytes, layer, category)
    return Piece(block.start, block.end, block.nbytes, block.layer, unmarked(block))


def unmarked(block: Block) -> str:
    """Return the purpose of a block of which nobody said what it holds: how long it lived tells."""
    if block.decoding:
        return DECODED
    if block.operator is not None and block.end < block.operator.end:
        return WORKSPACES
    if block.node is not None:
        # what outlives a node waits to be added to another gradient
        return OTHER if block.end < block.node.end else ACTIVATION_GRADIENTS
    return IN_FLIGHT if block.phase == "forward" else OTHER
