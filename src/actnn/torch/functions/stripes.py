"""Convolutions of large samples, some rows at a time.

NOTE [Stripes]
1. Parts of a batch bound what torch rearranges for a convolution only as far as single samples do: the head of a
   segmentation network works on a hundred megabytes of each. A convolution on the host whose one sample is that large
   works on stripes of rows, each with the rows beside it that its kernel reaches.
2. Stripes of which no two read the same row may write over what they read. The gradients of others overlap, and are
   added into memory of their own, always in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from actnn.torch.functions.maps import Convolution

# a convolution of smaller samples, input and output together, works on them as a whole, of larger ones on so much
LEAST_BYTES, STRIPE_BYTES = 64 * 2**20, 16 * 2**20
# torch has no public function for single gradients of any rank
convolution_backward = torch.ops.aten.convolution_backward.default
INPUT = (True, False, False)


class Stripe(NamedTuple):
    """Some rows of an output, the rows of the input that they read, and how many rows of padding on either side."""

    rows: slice
    read: slice
    before: int
    after: int


class Stripes:
    """The stripes of one convolution; ``apart`` tells that each reads the very rows that it writes, and no others."""

    def __init__(self, convolution: Convolution, count: int) -> None:
        height, rows = convolution.order.shape[2], convolution.space[0]
        (stride, *_), (padding, *others), (dilation, *_) = convolution.stride, convolution.padding, convolution.dilation
        reach = dilation * (convolution.kernel[0] - 1) + 1
        self.apart = (reach, stride, padding) == (1, 1, 0)
        # what is read is padded by these rows; the convolution pads the other axes itself
        self._fixed = (convolution.stride, (0, *others), *convolution.fixed[2:])
        self._forward = (convolution.stride, (0, *others), convolution.dilation, convolution.groups)
        self._convolution, self._all = convolution, []
        size = max(1, rows // count)
        for start in range(0, rows, size):
            stop = min(start + size, rows)
            first, last = start * stride - padding, (stop - 1) * stride - padding + reach
            read = slice(min(max(first, 0), height), max(min(last, height), 0))
            self._all.append(Stripe(slice(start, stop), read, max(0, -first), max(0, last - height)))

    def output(self, x: Tensor, weight: Tensor, bias: Tensor | None, place: Tensor | None) -> Tensor:
        """Return the convolution of a batch, written to ``place`` where that is given."""
        convolution = self._convolution
        shape = (x.shape[0], convolution.outputs, *convolution.space)
        for sample, stripe in self._each(x):
            piece = convolution.function(self._read(sample, x, stripe), weight, bias, *self._forward)
            if place is None:
                place = piece.new_empty(shape)
            place[sample, :, stripe.rows].copy_(piece)
            # before the next one is computed
            del piece
        assert place is not None
        return place

    def parameter_gradients(
        self, grad: Tensor, x: Tensor, weight: Tensor, wanted: Sequence[bool]
    ) -> tuple[Tensor, Tensor | None]:
        """Return the gradients of weight and, where that is wanted, bias."""
        found: list[Tensor | None] = [None, None]
        for sample, stripe in self._each(x):
            rows = grad[sample, :, stripe.rows], self._read(sample, x, stripe)
            pieces = self._backward(*rows, weight, wanted)[1:]
            for place, piece in enumerate(pieces):
                if piece is not None:
                    total = found[place]
                    # half precision would lose what small pieces add to a large sum
                    precise = torch.promote_types(piece.dtype, torch.float32)
                    found[place] = piece.to(precise) if total is None else total.add_(piece)
        of_weight, of_bias = (None if each is None else each.to(grad.dtype) for each in found)
        assert of_weight is not None
        return of_weight, of_bias

    def input_gradient(self, grad: Tensor, weight: Tensor, place: Tensor | None, add: bool = False) -> Tensor:
        """Return the gradient of the input, written to ``place``, or added to it; both only where stripes are apart."""
        shape = (grad.shape[0], *self._convolution.order.shape[1:])
        if place is None:
            place, add = (grad.new_empty(shape), False) if self.apart else (grad.new_zeros(shape), True)
        for sample, stripe in self._each(grad):
            height = stripe.before + stripe.read.stop - stripe.read.start + stripe.after
            like = grad.new_empty((1, shape[1], height, *shape[3:]))
            piece = self._backward(grad[sample, :, stripe.rows], like, weight, INPUT)[0]
            own = piece[:, :, stripe.before : height - stripe.after]
            target = place[sample, :, stripe.read]
            if add:
                target.add_(own)
            else:
                target.copy_(own)
            del piece, own
        return place

    def _each(self, x: Tensor) -> Iterator[tuple[slice, Stripe]]:
        for sample in range(x.shape[0]):
            for stripe in self._all:
                yield slice(sample, sample + 1), stripe

    def _read(self, sample: slice, x: Tensor, stripe: Stripe) -> Tensor:
        rows = x[sample, :, stripe.read]
        if not (stripe.before or stripe.after):
            return rows
        return F.pad(rows, (*(0, 0) * (x.dim() - 3), stripe.before, stripe.after))

    def _backward(self, grad: Tensor, x: Tensor, weight: Tensor, wanted: Sequence[bool]) -> Any:
        return convolution_backward(grad, x, weight, [self._convolution.outputs], *self._fixed, wanted)


def stripes_of(convolution: Convolution, bytes_each: int) -> Stripes | None:
    """Return the stripes in which a convolution on the host works, None where its samples are small enough."""
    order = convolution.order
    if convolution.transposed or order.channels_last or not convolution.space[0]:
        return None
    outputs = convolution.outputs
    for size in convolution.space:
        outputs *= size
    nbytes = bytes_each * (order.rows[1] + outputs)
    return Stripes(convolution, -(-nbytes // STRIPE_BYTES)) if nbytes > LEAST_BYTES else None
