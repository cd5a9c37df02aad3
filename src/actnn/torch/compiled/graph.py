"""The joint graph of forward and backward that AOTAutograd traces, and how to change it.

A *reading* tells how the backward has the value of a forward's tensor: by decoding the code that the forward made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._guards import detect_fake_mode

from actnn.errors import UnsupportedError
from actnn.torch.compiled.library import CodeForm
from actnn.torch.tensors import CHANNELS_LAST, FLOATING

aten = torch.ops.aten

# other shapes of the same elements in the same order
RESHAPES = {
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.detach.default,
    aten.alias.default,
}
# other views of all elements
VIEWS = RESHAPES | {aten.t.default, aten.transpose.int, aten.permute.default}
# nodes of the backward between two readers that share what was decoded; beyond that it is decoded again, and freed
NEAR = 48
# elements below which a tensor stays as it is: numbers of channels and rows, and what else is small
LEAST_ELEMENTS = 4096

# torch types the arguments of a node as all that any call may take, of which every rule knows better
Node = Any
# makes the node of the backward, before the given one, that holds the value of a forward's tensor
Reading = Callable[["JointGraph", Node], Node]


class JointGraph:
    """A traced forward and backward in one graph, whose nodes know on which side they are."""

    def __init__(self, module: fx.GraphModule, static_inputs: Sequence[int]) -> None:
        self.module, self.graph = module, module.graph
        nodes = list(self.graph.nodes)
        primals = [node for node in nodes if node.op == "placeholder" and not is_tangent(node)]
        # (seed, call): the last input, which the backend added
        self.draw = primals[-1]
        self.static = {primals[place] for place in static_inputs if place < len(primals)}
        self.forward = set(forward_nodes(nodes))
        self.readings: dict[Node, Reading] = {}
        # the code that a reading decodes, where others read that too
        self.codes: dict[Node, Node] = {}
        self._decoded: dict[Node, tuple[Node, int]] = {}
        self._positions: dict[Node, int] = {}
        self._mode: Any = detect_fake_mode([node.meta.get("val") for node in primals])
        self.sites = 0
        self.last_forward = [node for node in nodes if node in self.forward][-1]
        # inductor lays tensors of convolutions out with channels last, wherever oneDNN computes them
        self.prefers_channels_last = torch.backends.mkldnn.is_available() and any(
            node.target is aten.convolution.default and value_of(node).device.type == "cpu" for node in nodes
        )

    def backward(self) -> list[Node]:
        """Return the nodes of the backward, in order."""
        return [node for node in self.graph.nodes if node.op == "call_function" and node not in self.forward]

    def next_site(self) -> int:
        """Return a number for a new code, by which its noise differs from that of others."""
        self.sites += 1
        return self.sites - 1

    def call_forward(self, after: Node, target: Any, *arguments: Any) -> Node:
        """Add a call to the forward, after a node of it."""
        with self.graph.inserting_after(after):
            node = self._call(target, arguments)
        self.forward.add(node)
        node.meta["partitioner_tag"] = "is_forward"
        return node

    def call_backward(self, before: Node, target: Any, *arguments: Any) -> Node:
        """Add a call to the backward, before a node of it."""
        with self.graph.inserting_before(before):
            node = self._call(target, arguments)
        node.meta["partitioner_tag"] = "is_backward"
        return node

    def _call(self, target: Any, arguments: tuple[Any, ...]) -> Node:
        node = self.graph.call_function(target, arguments)
        arguments = fx.map_arg(arguments, lambda each: each.meta["val"])
        with self._mode:
            node.meta["val"] = target(*arguments)
        return node

    def parts(self, node: Node) -> dict[int, Node]:
        """Return the results of a call with several, those that anybody reads."""
        return {user.args[1]: user for user in node.users}

    def replace(self, node: Node, by: Node) -> None:
        """Let everybody read another node; the old one goes."""
        node.replace_all_uses_with(by)
        self.erase(node)

    def erase(self, node: Node) -> None:
        """Take out a node that nobody reads any more."""
        self.forward.discard(node)
        self.graph.erase_node(node)

    def read(self, node: Node, before: Node) -> Node:
        """Return the value of a forward's tensor, for a node of the backward."""
        position = self.position(before)
        if node in self._decoded:
            found, where = self._decoded[node]
            if 0 <= position - where <= NEAR:
                return found
        if node in self.readings:
            found = self.readings[node](self, before)
        else:
            # another view of what has a reading: copies that a view cannot be of what was decoded count as one
            target = aten.reshape.default if node.target in RESHAPES else node.target
            base = self.read(node.args[0], before)
            shape = list(value_of(node).shape)
            arguments = (shape,) if target is aten.reshape.default else node.args[1:]
            found = self.call_backward(before, target, base, *arguments)
        self._decoded[node] = found, position
        return found

    def position(self, node: Node) -> int:
        """Return a node's place in the graph; that of one which was added later is a new count."""
        if node not in self._positions:
            self._positions = {each: place for place, each in enumerate(self.graph.nodes)}
            self._decoded.clear()
        return self._positions[node]

    def has_reading(self, node: Node) -> Node | None:
        """Return the node with a reading of which another is a view, or is itself."""
        while node not in self.readings:
            if node.op != "call_function" or node.target not in VIEWS:
                return None
            node = node.args[0]
        return node

    def readers(self, node: Node) -> list[Node]:
        """Return the nodes of the backward that read a forward's tensor, or a view of it made in the forward."""
        found = []
        for user in node.users:
            if user in self.forward:
                if user.target in VIEWS:
                    found += self.readers(user)
            elif user.op != "output":
                found.append(user)
        return found

    def order_of(self, node: Node) -> bool:
        """Tell whether the elements of an image are coded with channels last, as the compiler will lay them out."""
        value = value_of(node)
        form = CHANNELS_LAST.get(value.dim())
        if form is None:
            return False
        if self.prefers_channels_last and value.dim() == 4:
            return True
        return not value.is_contiguous() and value.is_contiguous(memory_format=form)


def forward_nodes(nodes: Sequence[Node]) -> Iterator[Node]:
    """Yield the nodes of the forward: all before its last one, apart from gradients of outputs."""
    last = max(
        place
        for place, node in enumerate(nodes)
        if node.meta.get("partitioner_tag") == "is_forward" or (node.op == "placeholder" and not is_tangent(node))
    )
    yield from (node for node in nodes[: last + 1] if not is_tangent(node))


def is_tangent(node: Node) -> bool:
    """Tell whether a node is the gradient of an output."""
    return node.op == "placeholder" and "tangents" in str(node.target)


def value_of(node: Node) -> Tensor:
    """Return the fake tensor that stands for a node's result."""
    value: Tensor = node.meta["val"]
    return value


def is_tensor(node: Any) -> bool:
    """Tell whether a node's result is one tensor."""
    return isinstance(node, fx.Node) and isinstance(node.meta.get("val"), Tensor)


def codable(node: Node) -> bool:
    """Tell whether a tensor is one of values that a code of can be smaller."""
    value = value_of(node)
    return value.dtype in FLOATING and value.numel() >= LEAST_ELEMENTS


def check_static(node: Node) -> None:
    """Raise UnsupportedError unless the shape of a tensor is known."""
    value = node.meta.get("val")
    if isinstance(value, Tensor) and not all(isinstance(size, int) for size in value.shape):
        raise UnsupportedError(
            f"actnn.compile was given a graph in which {node.name!r} has the dynamic shape {tuple(value.shape)}: sizes "
            "of codes must be known. Do not mark sizes as dynamic; each new shape is compiled by itself."
        )


def decode_as(code: Node, form: CodeForm, dtype: torch.dtype) -> Reading:
    """Return the reading of a code as it is."""

    def reading(graph: JointGraph, before: Node) -> Node:
        return graph.call_backward(before, torch.ops.actnn.decode.default, code, *form.arguments, dtype)

    return reading
