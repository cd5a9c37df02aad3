"""Convolution and linear maps that keep a code of their input."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from actnn.operations.kept import Kept
from actnn.operations.maps import LEAST_VARIANCE, ReadTransfer, few, transfer_of
from actnn.planning.noise import convolution_coefficient, linear_coefficient
from actnn.session.site import Site
from actnn.torch.functions.gradients import note_waiting, owned, waiting_sum
from actnn.torch.functions.kept import KeepingFunction, first_order
from actnn.torch.functions.standing import gradient_by_rows, large
from actnn.torch.functions.stripes import stripes_of
from actnn.torch.tensors import ARRAYS, NAMES

FORWARD: dict[tuple[int, bool], Callable[..., Tensor]] = {
    (1, False): F.conv1d,
    (2, False): F.conv2d,
    (3, False): F.conv3d,
    (1, True): F.conv_transpose1d,
    (2, True): F.conv_transpose2d,
    (3, True): F.conv_transpose3d,
}
# torch has no public function for the gradient of the weight alone that takes any rank and the bias along
convolution_backward = torch.ops.aten.convolution_backward.default
INPUT, WEIGHT = (True, False, False), (False, True, False)
WEIGHT_AND_BIAS = (False, True, True)
# up to this size of the decoded input one call for all gradients takes less time than two, and hardly any memory
SMALL_BYTES = 1 << 16


class Convolution:
    """A convolution of batches of one form: its fixed parameters, and how batches are cut into parts.

    ``fixed`` holds stride, padding, dilation, whether it is transposed, output padding and groups, in the order in
    which torch's backward takes them. ``batched`` tells that inputs come with a batch axis.
    """

    def __init__(self, site: Site, x: Tensor, weight: Tensor, fixed: tuple[Any, ...], batched: bool = True) -> None:
        self.site, self.order, self.fixed, self.batched = site, ARRAYS.order(x), fixed, batched
        self.weight_shape = weight.shape
        self.stride, self.padding, self.dilation, self.transposed, self.output_padding, self.groups = fixed
        self.kernel = tuple(weight.shape[2:])
        self.space = self.output_space(x.shape[2:])
        self.outputs = weight.shape[1] * self.groups if self.transposed else weight.shape[0]
        site.depthwise = 1 < self.groups == x.shape[1]
        # what computes it, and with which arguments behind those that are tensors
        self.function = FORWARD[len(self.kernel), self.transposed]
        self.rest: tuple[Any, ...]
        if self.transposed:
            self.rest = (self.stride, self.padding, self.output_padding, self.groups, self.dilation)
        else:
            self.rest = (self.stride, self.padding, self.dilation, self.groups)
        self._on_host, self._weight_numbers = ARRAYS.on_host(x), weight.numel()
        self.stripes = stripes_of(self, x.element_size()) if self._on_host else None
        # those of a backward by the bytes of a number, which autocast may change
        self.cut: dict[int, list[range]] = {}
        # None where that is one
        parts = self.parts(x.element_size(), backward=False)
        self.forward_parts = parts if len(parts) > 1 else None
        self.keeps_shape = tuple(x.shape[1:]) == (self.outputs, *self.space) and self.order.dense(x)
        self.small = ARRAYS.nbytes(x) <= SMALL_BYTES and site.session.policy.pipeline_threshold is None
        self.coefficient = convolution_coefficient(
            tuple(x.shape[2:]), self.space, self.kernel, *fixed[:3], self.groups, self.transposed
        )

    def output_space(self, space: Sequence[int]) -> tuple[int, ...]:
        """Return the axes of the output that are neither samples nor channels."""
        axes = zip(space, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        if self.transposed:
            added = zip(axes, self.output_padding, strict=True)
            return tuple((size - 1) * s - 2 * p + d * (k - 1) + o + 1 for (size, k, s, p, d), o in added)
        return tuple((size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in axes)

    def parts(self, bytes_each: int, backward: bool) -> list[range]:
        """Return the parts of a batch that are worked on one after another, in numbers of so many bytes.

        On the host torch rearranges input, output and weight for a convolution, and the output again afterwards: as
        much memory as all of them, which parts bound. A backward also decodes its input.
        """
        samples, elements = self.order.rows
        inputs, outputs = samples * elements, samples * self.outputs * math.prod(self.space)
        decoded = inputs if backward else 0
        working, weight = (inputs + outputs + decoded, self._weight_numbers) if self._on_host else (0, 0)
        return self.site.session.pieces(samples, *(bytes_each * count for count in (decoded, working, weight)))

    def backward_parts(self, bytes_each: int) -> list[range]:
        """Return the parts of a backward, and remember them in ``cut``."""
        found = self.cut[bytes_each] = self.parts(bytes_each, backward=True)
        return found

    def may_overwrite(self, parts: Sequence[range] | None) -> bool:
        """Tell whether a result may take the place of what it is made of: its parts are read before that is written."""
        if not self.keeps_shape:
            return False
        return self.stripes.apart if self.stripes is not None else parts is not None and len(parts) > 1

    def parameter_gradients(self, grad: Tensor, x: Tensor, weight: Tensor, bias: bool) -> tuple[Tensor, Tensor | None]:
        """Return the gradients of weight and, where asked for, bias."""
        wanted = WEIGHT_AND_BIAS if bias else WEIGHT
        if self.stripes is not None:
            return self.stripes.parameter_gradients(grad, x, weight, wanted)
        grads: tuple[Tensor, Tensor | None]
        grads = convolution_backward(grad, x, weight, [self.outputs], *self.fixed, wanted)[1:]
        return grads

    def input_gradient(self, grad: Tensor, weight: Tensor) -> Tensor:
        """Return the gradient of the input, which needs no activation: torch only asks for its shape and order."""
        samples = grad.shape[0]
        order = self.order if samples == self.order.shape[0] else self.order.of_samples(samples)
        if self._on_host or order.channels_last:
            like = ARRAYS.unfilled(order, NAMES[grad.dtype], grad)
        else:
            # one number for all: memory that nobody writes to costs nothing on the host, but it does on a device
            like = grad.new_empty(()).expand(order.shape)
        grad_x: Tensor = convolution_backward(grad, like, weight, [self.outputs], *self.fixed, INPUT)[0]
        return grad_x

    def transfer(self, x: Tensor, y: Tensor, weight: Tensor) -> ReadTransfer:
        """Return what reads how noise in the gradient of ``y`` reaches that of the weight."""
        positions = math.prod(y.shape[2:])
        with exactly(y):
            x, y = (few(ARRAYS, values, positions) for values in (x, y))
            aligned = self.parameter_gradients(normalized(y), x, weight.float(), False)[0]
            if self.transposed:
                aligned = aligned.unflatten(0, (self.groups, -1)).transpose(1, 2).flatten(0, 1)
            return transfer_of(ARRAYS, aligned.flatten(1), max(1, len(y) * positions), x, self.coefficient)


class ConvolutionFunction(KeepingFunction):
    """A convolution that keeps a code of its input."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        kept: Kept | None,
        convolution: Convolution,
        overwrites: bool = False,
    ) -> Tensor:
        ctx.site, ctx.convolution = convolution.site, convolution
        save(ctx, weight, kept)
        parts = convolution.forward_parts
        place = ARRAYS.over(x) if overwrites else None
        if convolution.stripes is not None:
            return convolution.stripes.output(x, weight, bias, place)
        if parts is None:
            return convolution.function(x, weight, bias, *convolution.rest)
        function, rest = convolution.function, convolution.rest
        return in_pieces(parts, lambda part: function(samples_of(x, part), weight, bias, *rest), place)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        need_x, need_weight, need_bias, *_ = ctx.needs_input_grad
        weight, *saved = ctx.saved_tensors
        convolution: Convolution = ctx.convolution
        if weight.dtype != grad.dtype:
            weight = weight.to(grad.dtype)
        bytes_each = grad.element_size()
        parts = convolution.cut.get(bytes_each) or convolution.backward_parts(bytes_each)
        over = convolution.keeps_shape and convolution.may_overwrite(parts) and owned(ctx, grad, sys.getrefcount(grad))
        grad_x = grad_weight = grad_bias = None
        if need_x and need_weight and convolution.small and len(parts) == 1:
            x = ctx.reading.whole(ctx.site, saved, grad)
            wanted = True, True, need_bias
            found = convolution_backward(grad, x, weight, [convolution.outputs], *convolution.fixed, wanted)
            if convolution.site.session.planner.traces:
                ctx.reading.observe(ctx.site, grad, convolution.coefficient)
                ctx.reading.observe_weight(ctx.site, found[1])
            return *found, None, None, None
        if need_weight:
            # before the gradient of the input: the decoded activation and that gradient are never there together
            for part, x in ctx.reading.parts(ctx.site, saved, grad, parts):
                of_weight, of_bias = convolution.parameter_gradients(part, x, weight, need_bias)
                grad_weight, grad_bias = added(grad_weight, of_weight), added(grad_bias, of_bias)
                del x
            ctx.reading.observe(ctx.site, grad, convolution.coefficient)
            ctx.reading.observe_weight(ctx.site, grad_weight)
        elif need_bias:
            grad_bias = grad.sum([axis for axis in range(grad.dim()) if axis != 1])
        if need_x:
            if len(parts) == 1 and convolution.stripes is None:
                grad_x = convolution.input_gradient(grad, weight)
            else:
                grad_x = ConvolutionFunction.input_gradient(ctx, grad, weight, parts, over)
        return grad_x, grad_weight, grad_bias, None, None, None

    @staticmethod
    def input_gradient(ctx: Any, grad: Tensor, weight: Tensor, parts: list[range], over: bool) -> Tensor | None:
        """Return the gradient of the input, computed in parts; None where it was added to what another branch left.

        It may be written ``over`` that of the output, which is read no more.
        """
        convolution: Convolution = ctx.convolution
        stripes = convolution.stripes
        # what overlaps is summed by itself first, so that no bit depends on what waits
        overlaps = stripes is not None and not stripes.apart
        total = None if overlaps else waiting_sum(ctx, convolution.order.shape, grad.dtype)
        if total is None:
            place = grad if over and convolution.order.dense(grad) else None
            if stripes is not None:
                grad_x = stripes.input_gradient(grad, weight, place)
            else:
                compute = partial(ConvolutionFunction.part_of_gradient, convolution, grad, weight)
                grad_x = in_pieces(parts, compute, place)
            note_waiting(ctx, grad_x)
            return grad_x
        if stripes is not None:
            stripes.input_gradient(grad, weight, total, add=True)
            return None
        for part in parts:
            samples_of(total, part).add_(ConvolutionFunction.part_of_gradient(convolution, grad, weight, part))
        return None

    @staticmethod
    def part_of_gradient(convolution: Convolution, grad: Tensor, weight: Tensor, part: range) -> Tensor:
        """Return the gradient of some samples of the input."""
        return convolution.input_gradient(samples_of(grad, part), weight)


class LinearFunction(KeepingFunction):
    """``F.linear`` that keeps a code of its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, kept: Kept | None, site: Site) -> Tensor:
        ctx.site = site
        save(ctx, weight, kept)
        y = F.linear(x, weight, bias)
        # the matrix that torch makes of more axes would hold the memory too, and keep readers from overwriting it
        return ARRAYS.over(y) if y._is_view() else y

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        need_x, need_weight, need_bias, *_ = ctx.needs_input_grad
        weight, *saved = ctx.saved_tensors
        grad_weight = None
        if need_weight:
            grad_weight = LinearFunction.weight_gradient(ctx, grad, weight, saved)
            ctx.reading.observe(ctx.site, grad, linear_coefficient(math.prod(grad.shape[1:-1])))
        grad_bias = rows(grad).sum(0) if need_bias else None
        grad_x = grad @ weight.to(grad.dtype) if need_x else None
        return grad_x, grad_weight, grad_bias, None, None

    @staticmethod
    def weight_gradient(ctx: Any, grad: Tensor, weight: Tensor, saved: list[Tensor]) -> Tensor | None:
        """Return the gradient of the weight, summed over parts of the batch; None where it stands in the weight."""
        grad_weight = None
        samples, elements = ctx.reading.order.rows
        parts = ctx.site.session.pieces(samples, samples * elements * grad.element_size())
        if len(parts) == 1 and large(weight):
            return LinearFunction.large_gradient(ctx, grad, weight, saved)
        for part, x in ctx.reading.parts(ctx.site, saved, grad, parts):
            grad_weight = added(grad_weight, outer(part, x))
        ctx.reading.observe_weight(ctx.site, grad_weight, outer, saved, grad)
        return grad_weight

    @staticmethod
    def large_gradient(ctx: Any, grad: Tensor, weight: Tensor, saved: list[Tensor]) -> Tensor | None:
        """Return the gradient of a large weight, made a few rows at a time."""
        x, columns = rows(ctx.reading.whole(ctx.site, saved, grad)), rows(grad).T

        def of_rows(own: slice) -> Tensor:
            piece = columns[own] @ x
            ctx.reading.observe_weight(ctx.site, piece)
            return piece

        return gradient_by_rows(ctx, 1, weight, of_rows)


def transfer(x: Tensor, y: Tensor) -> ReadTransfer:
    """Return what reads how noise in the gradient of a linear layer's output reaches that of its weight."""
    with exactly(y):
        x, y = (rows(few(ARRAYS, values, math.prod(values.shape[1:-1]))) for values in (x, y))
        return transfer_of(ARRAYS, normalized(y).T @ x, max(1, len(y)), x)


def normalized(y: Tensor) -> Tensor:
    """Return a tensor with mean 0 and variance 1 in each channel, by one launch."""
    found: Tensor = torch.batch_norm(y, None, None, None, None, True, 0.0, LEAST_VARIANCE, False)
    return found


@contextmanager
def exactly(y: Tensor) -> Iterator[None]:
    """Measure with no gradient, and without autocast: sums may pass what half precision can hold."""
    with torch.no_grad(), torch.autocast(y.device.type, enabled=False):
        yield


def save(ctx: Any, weight: Tensor, kept: Kept | None) -> None:
    """Save the weight, and of the input what is kept of it."""
    if kept is None:
        ctx.reading = None
        ctx.save_for_backward(weight)
    else:
        ctx.reading = kept.reading
        ctx.save_for_backward(weight, *kept.tensors)


def in_pieces(parts: list[range], compute: Callable[[range], Tensor], whole: Tensor | None = None) -> Tensor:
    """Return what ``compute`` makes of each part of a batch, as one tensor: ``whole`` where that is given."""
    for part in parts:
        result = compute(part)
        if whole is None:
            whole = ARRAYS.unfilled(ARRAYS.order(result).of_samples(parts[-1].stop), NAMES[result.dtype], result)
        samples_of(whole, part).copy_(result)
        # before the next one is computed
        del result
    assert whole is not None
    return whole


def samples_of(x: Tensor, part: range) -> Tensor:
    """Return some samples of a batch."""
    return x[part.start : part.stop]


def added(total: Tensor | None, part: Tensor | None) -> Tensor | None:
    """Return a sum of which the first term may be missing; from the second on, in float32 at least."""
    if total is None or part is None:
        return part
    # half precision would lose what small parts add to a large sum
    return total.to(torch.promote_types(total.dtype, torch.float32)).add_(part)


def outer(grad: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of a linear layer's weight from that of its output and its input."""
    return rows(grad).T @ rows(x)


def rows(x: Tensor) -> Tensor:
    """Return a tensor as a matrix, its last axis kept."""
    return x.reshape(-1, x.shape[-1])
