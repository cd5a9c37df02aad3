"""Activations and dropout that keep one bit an element."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from actnn.core.format import TWO_SIDED, ZERO_EXACT, Family
from actnn.core.site import Readers
from actnn.core.tags import Tag
from actnn.torch import tags
from actnn.torch.functions.activation import ActivationFunction, Call, DropoutFunction
from actnn.torch.functions.kept import Kept, encode, encode_mask
from actnn.torch.layers.base import Compressed
from actnn.torch.tensors import check_floating, nbytes


class CompressedActivation(Compressed):
    """A piecewise linear activation; ``family`` is that of a code of its output from which its mask can be read."""

    family: ClassVar[Family | None] = None

    def forward(self, x: Tensor) -> Tensor:
        """Return the activation of ``x``; its mask comes from the code of ``x`` where that tells signs."""
        if not self.records(x):
            return super().forward(x)
        check_floating(x, self.site.name)
        call, tag = self.call(x), tags.find(x, self.site.session)
        if tag is not None and call.kept is None:
            # a producer that is asked for signs in vain will provide them in the next step
            tag.readers.sides = True
            if tag.kept is not None and tag.kept.reading.signed:
                call.kept = tag.kept
                y = self.shared(x, call, tag)
                tag.owner.read_by(self.site, tags.exact_bytes(y, self.site.session))
                self.pass_on(y, tag)
                return y
        call.readers = Readers()
        y = ActivationFunction.apply(x, call)
        self.site.keeps(0, tags.exact_bytes(y, self.site.session))
        tags.put(y, call.kept if call.kept.reading.signed else None, self.site, call.readers)
        return y

    def call(self, x: Tensor) -> Call:
        """Return what this layer computes, and how its mask is kept."""
        raise NotImplementedError

    def code(self, y: Tensor) -> Kept:
        """Return a code of the output that also tells its sign, where it has readers; else of its mask."""
        if self.family is not None and self.site.codes_output(self.family):
            kept = encode(y, self.site, self.family, batched=y.dim() > 1)
            if kept is not None:
                return kept
        return encode_mask(y, self.site)

    def shared(self, x: Tensor, call: Call, tag: Tag) -> Tensor:
        """Return the activation, its mask read from the code that the tag holds."""
        return ActivationFunction.apply(x, call)

    def pass_on(self, y: Tensor, tag: Tag) -> None:
        """Let readers of ``y`` find the code of the input, where ``y`` can be read from it."""


class QReLU(CompressedActivation, nn.ReLU):
    """``nn.ReLU`` that shares a code with its input or its readers, or keeps one bit an element."""

    plain, family = nn.ReLU, ZERO_EXACT

    def call(self, x: Tensor) -> Call:
        """Return max(x, 0)."""
        return Call(self.site, partial(F.relu, inplace=self.inplace), 0.0, self.inplace, self.code)

    def shared(self, x: Tensor, call: Call, tag: Tag) -> Tensor:
        """Return max(x, 0); where it overwrites a BatchNorm's output, one backward serves both layers."""
        watched = x.retains_grad or x._backward_hooks
        if self.inplace and tag.bypass is not None and tag.result() is x and not watched:
            return tag.bypass.rectify(x)
        return super().shared(x, call, tag)

    def pass_on(self, y: Tensor, tag: Tag) -> None:
        """Let readers of ``y`` read the positive part of the input's code."""
        tags.put(y, tag.kept.rectified(), tag.owner, tag.readers)


class QReLU6(CompressedActivation, nn.ReLU6):
    """``nn.ReLU6`` that keeps one bit an element."""

    plain = nn.ReLU6

    def call(self, x: Tensor) -> Call:
        """Return x clipped to [0, 6]."""
        inside = x.detach().clamp(0, 6)
        # something positive exactly where 0 < x < 6
        kept = encode_mask(inside * (6 - inside), self.site)
        return Call(self.site, partial(F.relu6, inplace=self.inplace), 0.0, self.inplace, self.code, kept)


class QLeakyReLU(CompressedActivation, nn.LeakyReLU):
    """``nn.LeakyReLU`` that shares a code with its input or its readers, or keeps one bit an element."""

    plain, family = nn.LeakyReLU, TWO_SIDED

    def call(self, x: Tensor) -> Call:
        """Return x, or a fraction of it below zero."""
        function = partial(F.leaky_relu, negative_slope=self.negative_slope, inplace=self.inplace)
        # with a negative slope the output does not tell the sign of the input
        kept = encode_mask(x, self.site) if self.negative_slope < 0 else None
        return Call(self.site, function, self.negative_slope, self.inplace, self.code, kept)


class QDropout(Compressed, nn.Dropout):
    """``nn.Dropout`` that keeps one bit an element."""

    plain = nn.Dropout

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` with elements dropped in training."""
        if not (self.training and self.p > 0 and self.records(x)):
            return super().forward(x)
        check_floating(x, self.site.name)
        y = DropoutFunction.apply(x, self.site, self.p, self.inplace)
        self.site.keeps(0, nbytes(x))
        return y
