"""What no rule takes: a tensor whose readers are all linear in it becomes a code, any other stays exact.

A gradient that is linear in what was decoded is unbiased, as is one linear in each of several codes, whose noise is
independent. One code that meets itself in a product is not: such a tensor stays exact, too.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch

from actnn.session import families
from actnn.torch.compiled.graph import (
    LEAST_ELEMENTS,
    VIEWS,
    JointGraph,
    Node,
    codable,
    decode_as,
    is_tangent,
    is_tensor,
    value_of,
)
from actnn.torch.compiled.rules import SHAPE_ONLY, Coding, masked

aten = torch.ops.aten

# arguments in which a node's result is linear, all others being fixed
LINEAR: dict[Any, tuple[int, ...]] = {
    aten.convolution_backward.default: (1, 2),
    aten.mm.default: (0, 1),
    aten.bmm.default: (0, 1),
    aten.mul.Tensor: (0, 1),
    aten.mul.Scalar: (0,),
    aten.div.Tensor: (0,),
    aten.div.Scalar: (0,),
    aten.neg.default: (0,),
    aten.add.Tensor: (0, 1),
    aten.sub.Tensor: (0, 1),
    aten.sum.dim_IntList: (0,),
    aten.sum.default: (0,),
    aten.where.self: (1, 2),
    aten.masked_fill.Scalar: (0,),
    aten.clone.default: (0,),
    aten._to_copy.default: (0,),
    aten.expand.default: (0,),
    aten.slice.Tensor: (0,),
    aten.select.int: (0,),
    torch.ops.prims.convert_element_type.default: (0,),
    **dict.fromkeys(VIEWS, (0,)),
}
# arguments that each of several results depends on
DEPENDS: dict[Any, tuple[tuple[int, ...], ...]] = {aten.convolution_backward.default: ((0, 2), (0, 1), (0,))}
# whatever noise their arguments share, none is multiplied with itself
SUMS = {aten.add.Tensor, aten.sub.Tensor, aten.where.self, aten.cat.default, aten.stack.default}
# readers of images, whose elements are coded as the compiler lays them out
IMAGES = {aten.convolution_backward.default, aten.native_batch_norm_backward.default}
COMPARISONS = {
    getattr(getattr(aten, name), form) for name in ("le", "lt", "ge", "gt", "eq", "ne") for form in ("Scalar", "Tensor")
}


def hoist_comparisons(graph: JointGraph) -> None:
    """Let the forward compare what the backward would, so that one bit is kept instead of a number."""
    for node in graph.backward():
        inputs = node.all_input_nodes
        if node.target in COMPARISONS and all(each in graph.forward for each in inputs):
            by = graph.call_forward(graph.last_forward, node.target, *node.args)
            graph.replace(node, by)


def drop_shapes(graph: JointGraph) -> None:
    """Let backwards that read of a tensor its shape alone read it of a constant."""
    for node in graph.backward():
        place = SHAPE_ONLY.get(node.target)
        if place is None or not is_tensor(node.args[place]) or node.args[place] not in graph.forward:
            continue
        value = value_of(node.args[place])
        empty = graph.call_backward(node, aten.full.default, list(value.shape), 0.0)
        if value.dtype != torch.float32:
            empty = graph.call_backward(node, torch.ops.prims.convert_element_type.default, empty, value.dtype)
        node.update_arg(place, empty)


def code_flags(coding: Coding) -> None:
    """Let the forward keep tensors of booleans as one bit an element."""
    graph = coding.graph
    for node in saved(graph):
        value = value_of(node)
        if value.dtype is torch.bool and value.numel() >= LEAST_ELEMENTS and node.op != "placeholder":
            masked(coding, node)
            read_by(graph, node, graph.readers(node))


def code_values(coding: Coding) -> None:
    """Let the forward keep codes of what the backward reads linearly, where nobody made one already."""
    graph = coding.graph
    learning = depends_on_gradients(graph)
    roots: dict[Node, None] = {}
    for node in saved(graph):
        root = root_of(graph, node)
        if codable(root) and root not in graph.static:
            roots[root] = None
    groups = {root: graph.readers(root) for root in roots}
    chosen = {
        root
        for root, readers in groups.items()
        if readers and all(linear(reader, node, learning, graph) for reader, node in reads(graph, root))
    }
    for root in conflicts(graph, chosen):
        if root in graph.codes:
            # it meets the code of a normalisation or a function, and must have one of its own
            del graph.codes[root], graph.readings[root]
    chosen -= conflicts(graph, chosen)
    for root in roots:
        if root not in chosen:
            continue
        readers = groups[root]
        if root not in graph.readings:
            image = any(reader.target in IMAGES for reader in readers)
            code, form = coding.encode(root, families.of_values(coding.policy), image=image)
            graph.readings[root] = decode_as(code, form, value_of(root).dtype)
        read_by(graph, root, readers)


def saved(graph: JointGraph) -> list[Node]:
    """Return the tensors of the forward that the backward reads."""
    found: dict[Node, None] = {}
    for node in graph.backward():
        for each in node.all_input_nodes:
            if each in graph.forward and is_tensor(each):
                found[each] = None
    return list(found)


def root_of(graph: JointGraph, node: Node) -> Node:
    """Return the tensor, one with a reading above all, of which another is a view."""
    known = graph.has_reading(node)
    if known is not None:
        return known
    while node.op == "call_function" and node.target in VIEWS:
        node = node.args[0]
    return node


def reads(graph: JointGraph, root: Node) -> Iterator[tuple[Node, Node]]:
    """Yield the readers in backward of a tensor and its views, with what they read."""
    for user in root.users:
        if user in graph.forward:
            if user.target in VIEWS and user not in graph.readings:
                yield from reads(graph, user)
        elif user.op != "output":
            yield user, root


def linear(reader: Node, node: Node, learning: set[Node], graph: JointGraph) -> bool:
    """Tell whether all that a reader makes of a tensor is linear in it."""
    if reader.op == "output":
        return True
    places = LINEAR.get(reader.target, ())
    if any(each is node and place not in places for place, each in enumerate(reader.args)):
        return False
    if sum(each is node for each in reader.args) != 1 or node in reader.kwargs.values():
        return False
    if reader in learning:
        return True
    return all(linear(user, reader, learning, graph) for user in reader.users)


def depends_on_gradients(graph: JointGraph) -> set[Node]:
    """Return the nodes that depend on gradients of outputs: every backward is linear in those."""
    found: set[Node] = set()
    for node in graph.graph.nodes:
        if is_tangent(node) or any(each in found for each in node.all_input_nodes):
            found.add(node)
    return found


def conflicts(graph: JointGraph, chosen: set[Node]) -> set[Node]:
    """Return the tensors of which a code would meet itself in a product, be it through views or a gradient."""
    # a tensor that has no code yet will have one of its own
    sources = {root: graph.codes.get(root, root) for root in chosen}
    bits = {source: 1 << place for place, source in enumerate(dict.fromkeys(sources.values()))}
    reading: dict[Node, dict[Node, Node]] = {}
    for root in chosen:
        for reader, node in reads(graph, root):
            reading.setdefault(reader, {})[node] = root
    taint: dict[Node, int] = {}

    def noise(node: Node, reader: Node) -> int:
        """Return the codes whose noise a reader finds in one of its arguments, which may be a code."""
        root = reading.get(reader, {}).get(node)
        return bits.get(node, 0) | taint.get(node, 0) if root is None else bits[sources[root]]

    met = 0
    for node in graph.backward():
        reader = node.args[0] if node.target is operator.getitem else node
        found = [noise(each, reader) for each in noisy_inputs(node)]
        taint[node] = 0
        for each in found:
            # of what has several results, each is looked at by itself
            if node.target not in SUMS and node.target not in DEPENDS:
                met |= taint[node] & each
            taint[node] |= each
    return {root for root in chosen if met & bits[sources[root]]}


def noisy_inputs(node: Node) -> list[Node]:
    """Return the nodes that a result depends on: of a convolution's backward, each result on two of its arguments."""
    if node.target is operator.getitem and node.args[0].target in DEPENDS:
        whole = node.args[0]
        return [whole.args[place] for place in DEPENDS[whole.target][node.args[1]]]
    found: list[Node] = node.all_input_nodes
    return found


def read_by(graph: JointGraph, root: Node, readers: list[Node]) -> None:
    """Let readers in backward read a tensor, and its views, from its code."""
    for reader in readers:
        for node in list(reader.all_input_nodes):
            if node in graph.forward and graph.has_reading(node) is root:
                reader.replace_input_with(node, graph.read(node, reader))
