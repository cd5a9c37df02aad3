"""What each block of memory is there for."""

from __future__ import annotations

from dataclasses import dataclass

from actnn.profiling.trace import CODE, GRADIENT, NODE, PARAMETER_GRADIENT, SAVED, Block, Holder, Step

CODES = "codes"
EXACT = "exact activations"
IN_FLIGHT = "activations in flight"
DECODED = "decoded copies"
ACTIVATION_GRADIENTS = "gradients of activations"
PARAMETER_GRADIENTS = "gradients of parameters"
WORKSPACES = "framework workspaces"
WORKING = "working buffers"
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
    WORKING: "results within the backward of one layer",
    OTHER: "everything else, such as the optimizer's temporaries",
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
    """A block with its purpose; ``layer`` is the one that keeps it where it is kept, else the one that made it.

    ``maker`` names the operator or the node of backward that took it, ``held`` is as in a block.
    """

    start: float
    end: float
    nbytes: int
    layer: str
    category: str
    maker: str = ""
    held: tuple[Holder, ...] = ()


def pieces(step: Step) -> list[Piece]:
    """Return all blocks of a step with their purposes."""
    return [piece(block) for block in step.blocks]


def piece(block: Block) -> Piece:
    """Return a block with its purpose."""
    layer, category = block.layer, unmarked(block)
    for mark, meant in OF_MARKS.items():
        if mark in block.marks and not (block.decoding and mark == GRADIENT):
            layer, category = block.marks[mark] if meant in KEPT else layer, meant
            break
    return Piece(block.start, block.end, block.nbytes, layer, category, maker(block), tuple(block.held))


def maker(block: Block) -> str:
    """Return the name of what took a block: node and operator, as far as there are any."""
    names = [span.name.removeprefix(NODE) for span in (block.node, block.operator) if span is not None]
    return " > ".join(names)


def unmarked(block: Block) -> str:
    """Return the purpose of a block without a mark, from how long it lived and what took it."""
    if block.decoding:
        return DECODED
    if block.operator is not None and block.end < block.operator.end:
        return WORKSPACES
    if block.node is not None:
        # what outlives the function of a node is its result, or a sum of results
        inner = block.function is not None and block.end < block.function.end
        return WORKING if inner else ACTIVATION_GRADIENTS
    return IN_FLIGHT if block.phase == "forward" else OTHER
