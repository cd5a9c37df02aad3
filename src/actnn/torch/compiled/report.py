"""What a compiled forward really hands to its backward, as numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from actnn.torch.compiled.graph import VIEWS, Node
from actnn.torch.compiled.library import CodeForm
from actnn.torch.compiled.rules import Coding

# what makes codes, masks and positions, and which of its results those are
MAKERS: dict[Any, tuple[str, int | None]] = {
    torch.ops.actnn.encode.default: ("code", None),
    torch.ops.actnn.encode_mask.default: ("mask", None),
    torch.ops.actnn.batch_norm.default: ("code", 1),
    torch.ops.actnn.row_norm.default: ("code", 1),
    torch.ops.actnn.max_pool.default: ("positions", 1),
}


@dataclass(frozen=True)
class Saved:
    """One tensor that a forward keeps for its backward: a code, a mask, positions, or an exact one."""

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int


@dataclass(frozen=True)
class CodeSite:
    """A code that a forward keeps: which one of its graph's it is, its name, and its form.

    The name is that of what is coded, and which of its codes this is: ``x#0``, ``x#1``.
    """

    number: int
    of: str
    form: CodeForm


@dataclass(frozen=True)
class GraphReport:
    """All that one compiled forward keeps, apart from parameters and buffers, which are there anyway.

    ``structure`` names what was compiled: graphs of inputs of other shapes have the same.
    """

    saved: tuple[Saved, ...]
    codes: tuple[CodeSite, ...] = ()
    structure: str = ""

    @property
    def kept_bytes(self) -> int:
        """Bytes of all that is kept."""
        return sum(each.nbytes for each in self.saved)

    def bytes_of(self, kind: str) -> int:
        """Bytes of what is kept of one kind: ``code``, ``mask``, ``positions`` or ``exact``."""
        return sum(each.nbytes for each in self.saved if each.kind == kind)


@dataclass(frozen=True)
class CompiledReport:
    """What a compiled model keeps for its backward; one entry for each graph that was compiled for training."""

    graphs: tuple[GraphReport, ...] = field(default=())

    @property
    def kept_bytes(self) -> int:
        """Bytes that all graphs keep, each of them called once."""
        return sum(graph.kept_bytes for graph in self.graphs)

    def bytes_of(self, kind: str) -> int:
        """Bytes of what is kept of one kind: ``code``, ``mask``, ``positions`` or ``exact``."""
        return sum(graph.bytes_of(kind) for graph in self.graphs)

    def __str__(self) -> str:
        lines = []
        for place, graph in enumerate(self.graphs):
            kinds = ", ".join(f"{kind} {graph.bytes_of(kind)}" for kind in ("code", "mask", "positions", "exact"))
            lines.append(f"graph {place}: {graph.kept_bytes} bytes kept ({kinds})")
            lines += [
                f"  {each.kind:9} {each.nbytes:12} {each.dtype:9} {list(each.shape)} {each.name}"
                for each in graph.saved
            ]
        return "\n".join(lines) or "nothing was compiled for training yet"


def describe(forward: fx.GraphModule, outputs: int, coding: Coding, structure: str) -> GraphReport:
    """Return what a forward keeps beyond its first ``outputs`` results."""
    (results,) = next(node for node in forward.graph.nodes if node.op == "output").args
    names, draw = {node.name for node in coding.graph.static}, coding.graph.draw.name
    found: dict[str, Saved] = {}
    codes: dict[int, CodeSite] = {}
    for node in results[outputs:]:
        value = node.meta.get("val") if isinstance(node, fx.Node) else None
        if isinstance(value, Tensor) and source_of(node).name not in names:
            found[node.name] = Saved(
                node.name,
                kind_of(node),
                tuple(value.shape),
                str(value.dtype).removeprefix("torch."),
                value.numel() * value.element_size(),
            )
            if found[node.name].kind == "code":
                number = site_of(node, draw)
                codes[number] = CodeSite(number, *coding.sites[number])
    return GraphReport(tuple(found.values()), tuple(codes.values()), structure)


def site_of(node: Node, draw: str) -> int:
    """Return the number of the site of a code, which whatever makes one is told behind the draw."""
    maker = node if node.target in MAKERS else node.args[0]
    place = next(place for place, each in enumerate(maker.args) if isinstance(each, fx.Node) and each.name == draw)
    return int(maker.args[place + 1])


def source_of(node: Node) -> Node:
    """Return the tensor whose memory a view shares."""
    while node.op == "call_function" and node.target in VIEWS:
        node = node.args[0]
    return node


def kind_of(node: Node) -> str:
    """Return what kind of thing a saved tensor is."""
    place = node.args[1] if len(node.args) > 1 and node.target not in MAKERS else None
    maker = node.args[0] if place is not None else node
    kind, result = MAKERS.get(getattr(maker, "target", None), ("exact", None))
    return kind if result == place else "exact"
