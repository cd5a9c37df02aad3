"""Convolution and linear maps that keep a code of their input."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import paddle
from paddle import Tensor

# Paddle has no public function for the gradients of a convolution alone; its own PyLayers call these
from paddle import _C_ops as operators
from paddle.nn import functional as F

from actnn.operations.kept import Kept
from actnn.operations.maps import LEAST_VARIANCE, ReadTransfer, few, transfer_of
from actnn.paddle.functions.batch_norm import over_channels
from actnn.paddle.functions.kept import Function, Inputs, first_order, forward, save, saved
from actnn.paddle.padding import Padding
from actnn.paddle.tensors import ARRAYS, NAMES, PaddleOrder, widened
from actnn.planning.noise import convolution_coefficient, linear_coefficient
from actnn.session.site import Site

FORWARD: dict[tuple[int, bool], Callable[..., Tensor]] = {
    (1, False): F.conv1d,
    (2, False): F.conv2d,
    (3, False): F.conv3d,
    (1, True): F.conv1d_transpose,
    (2, True): F.conv2d_transpose,
    (3, True): F.conv3d_transpose,
}
# by rank, and whether channels are last
FORMATS = {
    **{(1, False): "NCL", (2, False): "NCHW", (3, False): "NCDHW"},
    **{(1, True): "NLC", (2, True): "NHWC", (3, True): "NDHWC"},
}


class Geometry(NamedTuple):
    """The fixed parameters of a convolution, as its layer was given them."""

    stride: tuple[int, ...]
    padding: Padding
    dilation: tuple[int, ...]
    groups: int
    channels_last: bool
    transposed: bool = False
    output_padding: tuple[int, ...] = ()
    output_size: tuple[int, ...] | None = None

    @property
    def rank(self) -> int:
        """The number of axes besides samples and channels."""
        return len(self.stride)


class Convolution:
    """A convolution of batches of one form: its geometry in numbers, and how batches are cut into parts."""

    def __init__(self, site: Site, x: Tensor, weight: Tensor, geometry: Geometry) -> None:
        stride, padding, dilation, groups, last, transposed, *_ = geometry
        self.site, self.geometry, self.order = site, geometry, PaddleOrder(tuple(x.shape), last)
        self.kernel, self.groups = tuple(weight.shape[2:]), groups
        self.channel_axis = geometry.rank + 1 if last else 1
        self.outputs = weight.shape[1] * groups if transposed else weight.shape[0]
        site.depthwise = 1 < groups == x.shape[self.channel_axis]
        inputs = self.space_of(x)
        self._around = padding.around(inputs, self.kernel, stride)
        # 'SAME' goes without dilation in Paddle
        self._dilation = (1,) * geometry.rank if padding.algorithm == "SAME" else dilation
        self.space = self.output_space(inputs)
        before = tuple(pair[0] for pair in self._around)
        self.coefficient = convolution_coefficient(
            inputs, self.space, self.kernel, stride, before, self._dilation, groups, transposed
        )
        self._forward, self._options = self.function()
        self._opposite, self._opposite_options = self.opposite(inputs)
        self._both = getattr(operators, self.operator_name(weight))
        self._parameters = self.operator_parameters(weight)
        self._on_host, self._weight_numbers = ARRAYS.on_host(x), math.prod(weight.shape)
        self._parts: dict[tuple[int, bool], list[range]] = {}

    def space_of(self, x: Tensor) -> tuple[int, ...]:
        """Return the axes of a tensor that are neither samples nor channels."""
        return tuple(x.shape[1:-1] if self.geometry.channels_last else x.shape[2:])

    def output_space(self, space: Sequence[int]) -> tuple[int, ...]:
        """Return the axes of the output that are neither samples nor channels."""
        geometry = self.geometry
        if geometry.output_size is not None:
            return geometry.output_size
        axes = zip(space, self.kernel, geometry.stride, map(sum, self._around), self._dilation, strict=True)
        if geometry.transposed:
            added = zip(axes, geometry.output_padding, strict=True)
            return tuple((size - 1) * s - p + d * (k - 1) + o + 1 for (size, k, s, p, d), o in added)
        return tuple((size + p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in axes)

    def parts(self, x: Tensor, backward: bool) -> list[range]:
        """Return the parts of a batch that are worked on one after another, in the precision of ``x``.

        On the host Paddle rearranges input and output of a convolution whose channels are last, which takes as much
        memory as both. A backward decodes its input, and has that and its gradient at once.
        """
        key = x.element_size(), backward
        if key not in self._parts:
            bytes_each, (samples, elements) = x.element_size(), self.order.rows
            inputs, outputs = samples * elements, samples * self.outputs * math.prod(self.space)
            bounded = self._on_host and (backward or self.geometry.channels_last)
            working, weight = (inputs + outputs, self._weight_numbers) if bounded else (0, 0)
            sizes = (bytes_each * count for count in (inputs if backward else 0, working, weight))
            self._parts[key] = self.site.session.pieces(samples, *sizes)
        return self._parts[key]

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the convolution."""
        return self._forward(x, weight, bias, **self._options)

    def gradients(self, grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of input and weight, of which Paddle computes neither alone from an activation."""
        if self.geometry.rank > 1:
            both: tuple[Tensor, Tensor] = self._both(x, weight, grad, *self._parameters)
            return both
        # Paddle computes one axis as two, the first of size 1
        axis = 1 if self.geometry.channels_last else 2
        arguments = x.unsqueeze(axis), weight.unsqueeze(2), grad.unsqueeze(axis)
        grad_x, grad_weight = self._both(*arguments, *self._parameters)
        return grad_x.squeeze(axis), grad_weight.squeeze(2)

    def input_gradient(self, grad: Tensor, weight: Tensor) -> Tensor:
        """Return the gradient of the input, which needs no activation: it is the opposite convolution."""
        return self._opposite(grad, weight, None, **self._opposite_options)

    def function(self) -> tuple[Callable[..., Tensor], dict[str, Any]]:
        """Return Paddle's function for this convolution, and its options."""
        geometry, padding = self.geometry, self.geometry.padding
        around = list(padding.numbers) if padding.algorithm == "EXPLICIT" else padding.algorithm
        options = self.options(around, geometry.dilation)
        if geometry.output_size is not None:
            options["output_size"] = list(geometry.output_size)
        elif geometry.transposed:
            options["output_padding"] = list(geometry.output_padding)
        return FORWARD[geometry.rank, geometry.transposed], options

    def opposite(self, space: tuple[int, ...]) -> tuple[Callable[..., Tensor], dict[str, Any]]:
        """Return Paddle's function for the convolution that leads from outputs back to inputs, and its options."""
        geometry = self.geometry
        options = self.options([number for pair in self._around for number in pair], self._dilation)
        if not geometry.transposed:
            # several sizes have as many outputs
            options["output_size"] = list(space)
        return FORWARD[geometry.rank, not geometry.transposed], options

    def options(self, padding: list[int] | str, dilation: tuple[int, ...]) -> dict[str, Any]:
        """Return the options that both directions share."""
        geometry = self.geometry
        form = FORMATS[geometry.rank, geometry.channels_last]
        sizes = {"stride": list(geometry.stride), "padding": padding, "dilation": list(dilation)}
        return sizes | {"groups": self.groups, "data_format": form}

    def operator_name(self, weight: Tensor) -> str:
        """Return the name of Paddle's operator for both gradients."""
        name = f"conv{max(2, self.geometry.rank)}d" + "_transpose" * self.geometry.transposed
        return f"{'depthwise_' * self.depthwise(weight)}{name}_grad"

    def depthwise(self, weight: Tensor) -> bool:
        """Tell whether Paddle takes this for a depthwise convolution."""
        if self.geometry.rank == 3 or self.groups == 1:
            return False
        if self.geometry.transposed:
            return tuple(weight.shape[:2]) == (self.groups, 1)
        return bool(weight.shape[1] == 1 and weight.shape[0] % self.groups == 0)

    def operator_parameters(self, weight: Tensor) -> tuple[Any, ...]:
        """Return the fixed parameters in the order in which the operator takes them."""
        geometry, algorithm = self.geometry, self.geometry.padding.algorithm
        stride, dilation = list(geometry.stride), list(geometry.dilation)
        numbers, output_padding = list(geometry.padding.numbers), list(geometry.output_padding)
        if geometry.rank == 1:
            stride, dilation, output_padding = [1, *stride], [1, *dilation], [0, *output_padding]
            numbers = [0] * len(numbers) + numbers
        # transposed convolutions have one name for either rank
        rank = 2 if geometry.transposed else len(stride)
        form = FORMATS[rank, geometry.channels_last]
        if geometry.transposed:
            return stride, numbers, output_padding, [], algorithm, self.groups, dilation, form
        if rank == 2 and not self.depthwise(weight):
            return stride, numbers, algorithm, dilation, self.groups, form
        return stride, numbers, algorithm, self.groups, dilation, form

    def transfer(self, x: Tensor, y: Tensor, weight: Tensor) -> ReadTransfer:
        """Return what reads how noise in the gradient of ``y`` reaches that of the weight."""
        positions = math.prod(self.space)
        with paddle.no_grad():
            x, y = (few(ARRAYS, values, positions) for values in (x, y))
            axes = [axis for axis in range(len(y.shape)) if axis != self.channel_axis]
            aligned = self.gradients(normalized(y, axes), x, weight.detach().astype(y.dtype))[1]
            if self.geometry.transposed:
                inputs, outputs = weight.shape[0] // self.groups, weight.shape[1]
                aligned = aligned.reshape([self.groups, inputs, outputs, -1]).transpose([0, 2, 1, 3])
            sums = aligned.reshape([self.outputs, -1])
            return transfer_of(ARRAYS, sums, max(1, len(y) * positions), x, self.coefficient)


class ConvolutionFunction(Function):
    """A convolution that keeps a code of its input."""

    @staticmethod
    @forward
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        kept: Kept | None,
        convolution: Convolution,
    ) -> Tensor:
        ctx.convolution, ctx.inputs = convolution, Inputs(x, weight, bias)
        save_map(ctx, weight, kept)
        first, *others = parts = convolution.parts(x, backward=False)
        if not others:
            return convolution(x, weight, bias)
        y = with_part(None, convolution(samples_of(x, first), weight, bias), first, parts)
        for part in others:
            with_part(y, convolution(samples_of(x, part), weight, bias), part, parts)
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs: Inputs = ctx.inputs
        need_x, need_weight, need_bias = inputs.needed
        weight, *kept = saved(ctx)
        convolution: Convolution = ctx.convolution
        if weight.dtype != grad.dtype:
            weight = weight.astype(grad.dtype)
        grad_x = grad_weight = None
        if need_weight:
            parts = convolution.parts(grad, backward=True)
            of_parts = zip(parts, ctx.reading.parts(ctx.site, kept, grad, parts), strict=True)
            for part, (of_part, x) in of_parts:
                of_x, of_weight = convolution.gradients(of_part, x, weight)
                del x
                grad_weight = added(grad_weight, of_weight)
                if need_x:
                    grad_x = with_part(grad_x, of_x, part, parts)
            ctx.reading.observe(ctx.site, grad, convolution.coefficient)
            ctx.reading.observe_weight(ctx.site, grad_weight)
        elif need_x:
            grad_x = convolution.input_gradient(grad, weight)
        grad_bias = over_channels(grad, convolution.geometry.channels_last) if need_bias else None
        return inputs.gradients(grad_x, grad_weight, grad_bias)


class LinearFunction(Function):
    """``F.linear`` that keeps a code of its input; the weight has shape (inputs, outputs)."""

    @staticmethod
    @forward
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, kept: Kept | None) -> Tensor:
        ctx.inputs = Inputs(x, weight, bias)
        save_map(ctx, weight, kept)
        return F.linear(x, weight, bias)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs: Inputs = ctx.inputs
        need_x, need_weight, need_bias = inputs.needed
        weight, *kept = saved(ctx)
        grad_weight = None
        if need_weight:
            grad_weight = LinearFunction.weight_gradient(ctx, grad, kept)
            ctx.reading.observe(ctx.site, grad, linear_coefficient(math.prod(grad.shape[1:-1])))
            ctx.reading.observe_weight(ctx.site, grad_weight, outer, kept, grad)
        grad_bias = rows(grad).sum(0) if need_bias else None
        grad_x = paddle.matmul(grad, weight.astype(grad.dtype), transpose_y=True) if need_x else None
        return inputs.gradients(grad_x, grad_weight, grad_bias)

    @staticmethod
    def weight_gradient(ctx: Any, grad: Tensor, kept: list[Any]) -> Tensor | None:
        """Return the gradient of the weight, summed over parts of the batch."""
        grad_weight = None
        samples, elements = ctx.reading.order.rows
        parts = ctx.site.session.pieces(samples, samples * elements * grad.element_size())
        for part, x in ctx.reading.parts(ctx.site, kept, grad, parts):
            grad_weight = added(grad_weight, outer(part, x))
        return grad_weight


def transfer(x: Tensor, y: Tensor) -> ReadTransfer:
    """Return what reads how noise in the gradient of a linear layer's output reaches that of its weight."""
    with paddle.no_grad():
        x, y = (rows(few(ARRAYS, values, math.prod(values.shape[1:-1]))) for values in (x, y))
        return transfer_of(ARRAYS, paddle.matmul(normalized(y, [0]), x, transpose_x=True), max(1, len(y)), x)


def normalized(y: Tensor, axes: list[int]) -> Tensor:
    """Return a tensor with mean 0 and variance 1 along some axes."""
    centred = y - y.mean(axes, keepdim=True)
    variance = (centred * centred).mean(axes, keepdim=True)
    return centred / (variance + LEAST_VARIANCE).sqrt()


def save_map(ctx: Any, weight: Tensor, kept: Kept | None) -> None:
    """Save the weight, and of the input what is kept of it."""
    ctx.reading = None if kept is None else kept.reading
    save(ctx, weight, *(() if kept is None else kept.tensors))


def samples_of(x: Tensor, part: range) -> Tensor:
    """Return some samples of a batch, in the same memory."""
    return x[part.start : part.stop]


def with_part(whole: Tensor | None, result: Tensor, part: range, parts: Sequence[range]) -> Tensor:
    """Return a batch, a new one for its first part, with what was computed of a part put in its place."""
    if len(parts) == 1:
        return result
    if whole is None:
        order = ARRAYS.order(result).of_samples(parts[-1].stop)
        whole = ARRAYS.unfilled(order, NAMES[result.dtype], result)
    # not by an index, which copies the whole batch first
    paddle.assign(result, output=samples_of(whole, part))
    return whole


def added(total: Tensor | None, part: Tensor) -> Tensor:
    """Return a sum of which the first term may be missing; from the second on, in float32 at least."""
    # half precision would lose what small parts add to a large sum
    return part if total is None else widened(total).add_(widened(part))


def outer(grad: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of a linear layer's weight from that of its output and its input."""
    product: Tensor = paddle.matmul(rows(x), rows(grad), transpose_x=True)
    return product


def rows(x: Tensor) -> Tensor:
    """Return a tensor as a matrix, its last axis kept."""
    return x.reshape([-1, x.shape[-1]])
