"""Rules by operation: what the forward makes and the backward reads in the place of what autograd would save.

Each rule takes one node of the backward and declines (returns False) where it does not apply; what no rule takes is
left to ``values``, and what that cannot code either stays exact.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch

from actnn.format import MAX_BITS, Family
from actnn.kernels.contract import Smooth
from actnn.operations.attention import EXTRA_BITS
from actnn.operations.row_normalization import EXTRA as ROW_NORM_EXTRA
from actnn.operations.smooth import EXTRA as SMOOTH_EXTRA
from actnn.planning.learnt import signs
from actnn.session import families
from actnn.settings import Policy
from actnn.torch.compiled.graph import RESHAPES, JointGraph, Node, Reading, codable, decode_as, is_tensor, value_of
from actnn.torch.compiled.library import CodeForm

aten = torch.ops.aten
ours = torch.ops.actnn


class Coding:
    """What rules share: the graph, the policy, and the codes that were made so far.

    ``widths`` holds those that were planned, by the names of sites; all others follow from ``bits``.
    """

    def __init__(self, graph: JointGraph, policy: Policy, bits: int, widths: Mapping[str, int]) -> None:
        self.graph, self.policy, self.bits, self.widths = graph, policy, bits, widths
        # the name of each site, and the form of its code
        self.sites: dict[int, tuple[str, CodeForm]] = {}
        # how many codes each tensor has so far
        self._codes_of: Counter[str] = Counter()
        # codes of values as they are, or of what a normalisation normalised: (code, form, arguments of the affine)
        self.functions: dict[Node, tuple[Node, CodeForm, tuple[Any, ...], bool]] = {}

    def site(self, node: Node, family: Family, extra: float, image: bool, batched: bool) -> tuple[int, CodeForm]:
        """Return a number for a code of a tensor, and its form: of planned width, or ``extra`` above the average."""
        # a tensor that a normalisation codes and a product reads has two codes, of which each has its width
        name = f"{node.name}#{self._codes_of[node.name]}"
        self._codes_of[node.name] += 1
        bits = min(self.bits + extra, MAX_BITS)
        width = self.widths.get(name, min(int(bits + signs(family, bits)), MAX_BITS))
        last = image and self.graph.order_of(node)
        shape = tuple(value_of(node).shape)
        form = CodeForm(shape, last, batched, family, max(width, family.least_bits), self.policy.rounding)
        number = self.graph.next_site()
        self.sites[number] = name, form
        return number, form

    def encode(
        self, node: Node, family: Family, extra: float = 0.0, image: bool = False, batched: bool = False
    ) -> tuple[Node, CodeForm]:
        """Add a code of a tensor to the forward."""
        site, form = self.site(node, family, extra, image, batched)
        graph = self.graph
        # what is added stands behind all inputs, of which the last is the draw
        after = graph.draw if node.op == "placeholder" else node
        code = graph.call_forward(after, ours.encode.default, node, graph.draw, site, *form.arguments)
        return code, form


def batch_norm(coding: Coding, node: Node) -> bool:
    """Let a BatchNorm keep a code of what it normalised, with sides where a ReLU alone reads its output."""
    graph = coding.graph
    grad, x, gamma, _, _, mean, _, training, epsilon, _ = node.args
    if not (coding.policy.compress_batch_norm and training and is_tensor(x) and x in graph.forward and codable(x)):
        return False
    forward = mean.args[0] if mean is not None and mean.target is operator.getitem else None
    if forward is None or forward.target not in BATCH_NORMS:
        return False
    parts = graph.parts(forward)
    if any(user is not node for place in (1, 2) if place in parts for user in parts[place].users):
        return False
    output = parts[0]
    relu = rectifier_of(graph, output)
    smooth = any(user.target in SMOOTH for user in output.users)
    without_sides = families.of_normalized(coding.policy)
    family = without_sides if relu is None else families.with_sides(coding.policy)
    site, form = coding.site(x, family, CURVED_EXTRA if smooth else 0.0, image=True, batched=True)
    arguments = BATCH_NORMS[forward.target](*forward.args)
    made = graph.call_forward(forward, ours.batch_norm.default, *arguments, graph.draw, site, *form.arguments)
    y, code, saved, *averages = results_forward(graph, made, 5)
    graph.replace(output, y)
    for place, average in zip((3, 4), averages, strict=True):
        if place in parts:
            let_forward_read(graph, parts[place], average)
    beta, channels = arguments[2], form.order.channels
    affine = (gamma, beta, saved, channels.count, channels.inner)
    rectified = False
    dtype = value_of(y).dtype
    if relu is None:
        graph.readings[y] = output_reading(code, form, affine, False, dtype)
        graph.codes[y] = code
        coding.functions[y] = code, form, affine, True
    else:
        graph.readings[relu] = output_reading(code, form, affine, True, dtype)
        graph.codes[relu] = code
        for threshold in [user for user in graph.readers(relu) if user.target is aten.threshold_backward.default]:
            alone = threshold is grad and len(threshold.users) == 1
            rectified = rectified or alone
            sides = (threshold.args[0], code, *form.arguments)
            by = threshold.args[0] if alone else graph.call_backward(threshold, ours.apply_sides.default, *sides)
            graph.replace(threshold, by)
    back = graph.call_backward(
        node, ours.batch_norm_backward.default, node.args[0], code, saved, gamma, epsilon, rectified, *form.arguments
    )
    replace_gradients(graph, node, back)
    return True


def rectifier_of(graph: JointGraph, output: Node) -> Node | None:
    """Return the ReLU that alone reads a tensor, whose output a threshold in backward reads."""
    if len(output.users) != 1:
        return None
    (user,) = output.users
    if user.target is not aten.relu.default or user not in graph.forward:
        return None
    read = any(reader.target is aten.threshold_backward.default for reader in graph.readers(user))
    return user if read else None


def output_reading(code: Node, form: CodeForm, affine: tuple[Any, ...], positive: bool, dtype: torch.dtype) -> Reading:
    """Return how the output of a normalisation, or its positive part, reads from its code."""

    def reading(graph: JointGraph, before: Node) -> Node:
        arguments = (code, *form.arguments, *affine, positive, dtype)
        return graph.call_backward(before, ours.decode_output.default, *arguments)

    return reading


def results_forward(graph: JointGraph, made: Node, count: int) -> list[Node]:
    """Return the single results of a call in the forward."""
    return [graph.call_forward(made, operator.getitem, made, place) for place in range(count)]


def let_forward_read(graph: JointGraph, old: Node, new: Node) -> None:
    """Let the forward and the graph's outputs read a new node; who reads the old one in backward goes with its rule."""
    old.replace_all_uses_with(new, delete_user_cb=lambda user: user in graph.forward or user.op == "output")


def replace_gradients(graph: JointGraph, node: Node, back: Node) -> None:
    """Let those who read the gradients of input, gamma and beta read them from our backward."""
    grads = graph.call_backward(node, operator.getitem, back, 1)
    parts = graph.parts(node)
    for place, part in parts.items():
        if place == 0:
            by = graph.call_backward(node, operator.getitem, back, 0)
        else:
            by = graph.call_backward(node, aten.select.int, grads, 0, place - 1)
            value = value_of(part)
            if value_of(by).dtype != value.dtype:
                by = graph.call_backward(node, torch.ops.prims.convert_element_type.default, by, value.dtype)
            if value_of(by).shape != value.shape:
                by = graph.call_backward(node, aten.reshape.default, by, list(value.shape))
        graph.replace(part, by)
    graph.erase(node)


def row_norm(coding: Coding, node: Node) -> bool:
    """Let a LayerNorm keep a code of what it normalised, which serves whoever reads its output."""
    graph = coding.graph
    grad, x, shape, mean, _, gamma, beta, _ = node.args
    if not (is_tensor(x) and x in graph.forward and codable(x) and mean.target is operator.getitem):
        return False
    width = int(torch.Size(shape).numel())
    return _row_norm(coding, node, grad, x, mean.args[0], (gamma, beta), (width, width, 1), mean.args[0].args[4])


def group_norm(coding: Coding, node: Node) -> bool:
    """Let a GroupNorm keep a code of what it normalised."""
    graph = coding.graph
    grad, x, mean, _, gamma, _, channels, positions, groups, _ = node.args
    if not (is_tensor(x) and x in graph.forward and codable(x) and mean.target is operator.getitem):
        return False
    forward = mean.args[0]
    rows = (channels // groups * positions, channels, positions)
    return _row_norm(coding, node, grad, x, forward, (gamma, forward.args[2]), rows, forward.args[7])


def _row_norm(
    coding: Coding,
    node: Node,
    grad: Node,
    x: Node,
    forward: Node,
    parameters: tuple[Any, Any],
    rows: tuple[int, int, int],
    epsilon: float,
) -> bool:
    graph = coding.graph
    parts = graph.parts(forward)
    if 0 not in parts or any(user is not node for place in (1, 2) if place in parts for user in parts[place].users):
        return False
    family = families.of_normalized(coding.policy)
    site, form = coding.site(x, family, ROW_NORM_EXTRA, image=False, batched=True)
    made = graph.call_forward(
        forward,
        ours.row_norm.default,
        *(x, *parameters, *rows, epsilon, graph.draw, site, *form.arguments),
    )
    y, code, inverse = results_forward(graph, made, 3)
    graph.replace(parts[0], y)
    affine = (*parameters, None, rows[1], rows[2])
    graph.readings[y] = output_reading(code, form, affine, False, value_of(y).dtype)
    graph.codes[y] = code
    coding.functions[y] = code, form, affine, True
    back = graph.call_backward(
        node, ours.row_norm_backward.default, grad, code, inverse, parameters[0], *rows, *form.arguments
    )
    replace_gradients(graph, node, back)
    return True


def smooth(coding: Coding, node: Node) -> bool:
    """Let a smooth function read its slope from a code of its input, and the readers of its output its value."""
    graph = coding.graph
    found = SMOOTH[node.target](node)
    if found is None:
        return False
    function, forward = found
    if forward is None or forward not in graph.forward:
        return False
    base = base_of(forward.args[0])
    if not codable(base) or base in graph.static:
        return False
    known = coding.functions.get(base)
    if known is None:
        code, form = coding.encode(base, families.of_values(coding.policy), SMOOTH_EXTRA, image=True)
        known = coding.functions[base] = code, form, (None, None, None, 1, 1), False
        if base not in graph.readings:
            graph.readings[base] = decode_as(code, form, value_of(base).dtype)
            graph.codes[base] = code
    code, form, affine, normalized = known
    if not form.family.affine:
        return False
    dtype = value_of(forward).dtype
    shape = list(form.shape)

    def call(before: Node, grad: Node | None, of: torch.dtype) -> Node:
        arguments = (code, grad, *form.arguments, *affine, normalized, int(function), of)
        return graph.call_backward(before, ours.decode_function.default, *arguments)

    def value(_: JointGraph, before: Node) -> Node:
        whole = call(before, None, dtype)
        return graph.call_backward(before, aten.reshape.default, whole, list(value_of(forward).shape))

    graph.readings[forward] = value
    graph.codes[forward] = code
    grad = node.args[0]
    reshaped = graph.call_backward(node, aten.reshape.default, grad, shape)
    slope = call(node, reshaped, value_of(grad).dtype)
    graph.replace(node, graph.call_backward(node, aten.reshape.default, slope, list(value_of(node).shape)))
    return True


def base_of(node: Node) -> Node:
    """Return the tensor of which another is only another shape."""
    while node.op == "call_function" and node.target in RESHAPES:
        node = node.args[0]
    return node


def producer(of: Node, target: Any) -> Node | None:
    """Return the call that made a tensor, where it is one of the given function."""
    base = base_of(of)
    return base if base.target is target else None


def forward_of(x: Node, target: Any) -> Node | None:
    """Return the call of a function on a tensor."""
    return next((user for user in x.users if user.target is target), None)


def gelu_of(node: Node) -> tuple[Smooth, Node | None] | None:
    """Return which GELU a backward belongs to, and its forward."""
    kind = node.kwargs.get("approximate", node.args[2] if len(node.args) > 2 else "none")
    function = {"none": Smooth.GELU, "tanh": Smooth.GELU_TANH}[str(kind)]
    return function, forward_of(node.args[1], aten.gelu.default)


def attention(coding: Coding, node: Node) -> bool:
    """Let an attention keep codes of queries, keys and values, and be computed anew from them."""
    graph = coding.graph
    grad, *inputs = node.args[:4]
    dropout, is_causal = node.args[6], node.args[7]
    mask, scale = node.kwargs.get("attn_mask"), node.kwargs.get("scale")
    if dropout or not all(each in graph.forward and codable(each) for each in inputs):
        return False
    family = families.of_values(coding.policy)
    made = []
    for x, extra in zip(inputs, EXTRA_BITS.values(), strict=True):
        # heads side by side, as the map in front of an attention leaves them
        beside = graph.call_forward(x, aten.transpose.int, x, 1, 2)
        made.append(coding.encode(beside, family, extra, batched=True))
    forms = [form for _, form in made]
    back = graph.call_backward(
        node,
        ours.attention_backward.default,
        grad,
        *(code for code, _ in made),
        *(list(form.shape) for form in forms),
        [form.bits for form in forms],
        family.name,
        int(coding.policy.rounding),
        mask,
        is_causal,
        scale,
        graph.draw,
        graph.next_site(),
    )
    for place, part in graph.parts(node).items():
        graph.replace(part, graph.call_backward(node, operator.getitem, back, place))
    graph.erase(node)
    return True


def max_pool(coding: Coding, node: Node) -> bool:
    """Let a max pooling keep the positions of maxima within their windows."""
    graph = coding.graph
    grad, x, kernel, stride, padding, dilation, _, indices = node.args
    if indices.target is not operator.getitem or value_of(x).dim() != 4 or not codable(x):
        return False
    forward = indices.args[0]
    if any(user is not node for user in indices.users):
        return False
    output = graph.parts(forward)[0]
    sizes = [pair(each) for each in (kernel, stride or kernel, padding, dilation)]
    last = graph.order_of(x)
    geometry = (list(value_of(x).shape), last, list(value_of(output).shape[2:]), *sizes)
    made = graph.call_forward(forward, ours.max_pool.default, forward.args[0], *geometry)
    y, positions = results_forward(graph, made, 2)
    graph.replace(output, y)
    graph.replace(node, graph.call_backward(node, ours.max_pool_backward.default, grad, positions, *geometry))
    return True


def pair(sizes: Any) -> list[int]:
    """Return a size for each of two axes."""
    return list(sizes) * (2 // len(sizes))


def rectifier(coding: Coding, node: Node) -> bool:
    """Let a ReLU read its mask from the code of its output, where others read that, or keep one bit an element."""
    graph = coding.graph
    grad, result, threshold = node.args
    base = base_of(result)
    if threshold != 0 or base not in graph.forward or not codable(base):
        return False
    alike = base.target is aten.relu.default and value_of(base).shape == value_of(result).shape
    if alike and base not in graph.readings and any(reads_values(reader) for reader in graph.readers(base)):
        code, form = coding.encode(base, families.of_rectified(coding.policy), image=True)
        graph.readings[base] = decode_as(code, form, value_of(base).dtype)
        by = graph.call_backward(node, ours.apply_sides.default, grad, code, *form.arguments)
        graph.replace(node, by)
        return True
    outside = graph.call_forward(result, aten.le.Scalar, result, 0)
    where_not(coding, node, outside, grad, 0.0)
    return True


def reads_values(reader: Node) -> bool:
    """Tell whether a node reads more of a tensor than its sign or its shape."""
    return reader.target not in (
        aten.threshold_backward.default,
        *SHAPE_ONLY,
        aten.max_pool2d_with_indices_backward.default,
    )


def bounded(coding: Coding, node: Node) -> bool:
    """Let a Hardtanh, ReLU6 among them, keep one bit an element."""
    grad, x, low, high = node.args
    graph = coding.graph
    if x not in graph.forward or not codable(x):
        return False
    above = graph.call_forward(x, aten.ge.Scalar, x, high)
    below = graph.call_forward(above, aten.le.Scalar, x, low)
    outside = graph.call_forward(below, aten.logical_or.default, above, below)
    where_not(coding, node, outside, grad, 0.0)
    return True


def leaky(coding: Coding, node: Node) -> bool:
    """Let a LeakyReLU keep one bit an element."""
    grad, x, slope, _ = node.args
    graph = coding.graph
    if x not in graph.forward or not codable(x):
        return False
    where_not(coding, node, graph.call_forward(x, aten.le.Scalar, x, 0), grad, slope)
    return True


def where_not(coding: Coding, node: Node, outside: Node, grad: Node, slope: float) -> None:
    """Let a backward node be a gradient, times ``slope`` where the forward's tensor of booleans holds."""
    graph = coding.graph
    mask = masked(coding, outside)(graph, node)
    below = graph.call_backward(node, aten.mul.Scalar, grad, slope) if slope else None
    if below is None:
        by = graph.call_backward(node, aten.masked_fill.Scalar, grad, mask, 0.0)
    else:
        by = graph.call_backward(node, aten.where.self, mask, below, grad)
    graph.replace(node, by)


def masked(coding: Coding, flags: Node) -> Reading:
    """Return the reading of a tensor of booleans, kept as one bit an element."""
    graph = coding.graph
    last = graph.order_of(flags)
    mask = graph.call_forward(flags, ours.encode_mask.default, flags, last)
    shape = list(value_of(flags).shape)

    def reading(joint: JointGraph, before: Node) -> Node:
        return joint.call_backward(before, ours.decode_mask.default, mask, shape, last)

    graph.readings[flags] = reading
    return reading


# bits that a BatchNorm's code has more where a smooth function reads values and slopes from it
CURVED_EXTRA = 3.0

Rule = Callable[[Coding, Node], bool]

# forwards of BatchNorms, and the arguments of ours: x, gamma, beta, running mean and variance, momentum, epsilon
BATCH_NORMS: dict[Any, Callable[..., tuple[Any, ...]]] = {
    aten._native_batch_norm_legit_functional.default: lambda x, g, b, m, v, _, momentum, e: (
        x,
        g,
        b,
        m,
        v,
        momentum,
        e,
    ),
    aten._native_batch_norm_legit.no_stats: lambda x, g, b, _, momentum, e: (x, g, b, None, None, momentum, e),
}
# the smooth function to which a backward belongs, and its forward; None where kernels do not have it
SMOOTH: dict[Any, Callable[[Node], tuple[Smooth, Node | None] | None]] = {
    aten.gelu_backward.default: gelu_of,
    aten.silu_backward.default: lambda node: (Smooth.SILU, forward_of(node.args[1], aten.silu.default)),
    aten.mish_backward.default: lambda node: (Smooth.MISH, forward_of(node.args[1], aten.mish.default)),
    aten.sigmoid_backward.default: lambda node: (Smooth.SIGMOID, producer(node.args[1], aten.sigmoid.default)),
    aten.tanh_backward.default: lambda node: (Smooth.TANH, producer(node.args[1], aten.tanh.default)),
}
# backwards that read of some argument its shape alone
SHAPE_ONLY = {aten.avg_pool2d_backward.default: 1, aten._adaptive_avg_pool2d_backward.default: 1}

# normalisations first: others read their codes
RULES: tuple[dict[Any, Rule], ...] = (
    {aten.max_pool2d_with_indices_backward.default: max_pool},
    {
        aten.native_batch_norm_backward.default: batch_norm,
        aten.native_layer_norm_backward.default: row_norm,
        aten.native_group_norm_backward.default: group_norm,
    },
    dict.fromkeys(SMOOTH, smooth),
    {aten._scaled_dot_product_flash_attention_for_cpu_backward.default: attention},
    {
        aten.threshold_backward.default: rectifier,
        aten.hardtanh_backward.default: bounded,
        aten.leaky_relu_backward.default: leaky,
    },
)
