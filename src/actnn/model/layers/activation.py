"""Piecewise linear activations: which code their mask is read from, and who else may read it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from actnn.format import Family
from actnn.kernels.contract import Array
from actnn.model.layers.base import CompressedLayer
from actnn.operations.kept import Kept, encode, encode_mask
from actnn.session import tagging
from actnn.session.site import Readers, Site
from actnn.session.tags import Tag


@dataclass
class Call:
    """One call of a piecewise linear activation of slope 1 where its mask holds and ``below`` elsewhere.

    The mask is read from ``kept``, a code of the input; where there is none, from what ``code`` makes of the output.
    """

    site: Site
    function: Callable[[Array], Array]
    below: float
    inplace: bool
    code: Callable[[Array], Kept]
    kept: Kept | None = None
    readers: Readers | None = None


class ActivationLayer(CompressedLayer):
    """A piecewise linear activation; ``family`` is that of a code of its output from which its mask can be read."""

    family: ClassVar[Family | None] = None

    def forward(self, x: Array) -> Array:
        """Return the activation of ``x``; its mask comes from the code of ``x`` where that tells signs."""
        if not self.records(x):
            return self.plain.forward(self, x)
        self.check_floating(x)
        call, tag = self.call(x), tagging.find(self.tensors, x, self.site.session)
        if tag is not None and tag.owner is not None and call.kept is None:
            # a producer that is asked for signs in vain will provide them in the next step
            tag.readers.sides = True
            if tag.kept is not None and tag.kept.reading.signed:
                call.kept = tag.kept
                y = self.shared(x, call, tag)
                tag.owner.read_by(self.site, self.counts_exact(y))
                self.pass_on(y, tag)
                return y
        readers = call.readers = Readers()
        y = self.applied(x, call)
        self.site.keeps(0, self.counts_exact(y))
        assert call.kept is not None
        tagging.put(self.tensors, y, call.kept if call.kept.reading.signed else None, self.site, readers)
        return y

    def call(self, x: Array) -> Call:
        """Return what this layer computes, and how its mask is kept."""
        raise NotImplementedError

    def applied(self, x: Array, call: Call) -> Array:
        """Return the activation, recorded by autograd."""
        raise NotImplementedError

    def mask(self, x: Array) -> Kept:
        """Return one bit an element."""
        return encode_mask(self.tensors, x, self.site)

    def code(self, y: Array) -> Kept:
        """Return a code of the output that also tells its sign, where it has readers; else of its mask."""
        # in evaluation nobody reads codes of others
        if self.training and self.family is not None and self.site.codes_output(self.family):
            kept = encode(self.tensors, y, self.site, self.family, batched=len(y.shape) > 1)
            if kept is not None:
                return kept
        return self.mask(y)

    def shared(self, x: Array, call: Call, tag: Tag) -> Array:
        """Return the activation, its mask read from the code that the tag holds."""
        return self.applied(x, call)

    def pass_on(self, y: Array, tag: Tag) -> None:
        """Let readers of ``y`` find the code of the input, where ``y`` can be read from it."""


class RectifierLayer(ActivationLayer):
    """max(x, 0): its output is the positive part of the code of its input."""

    inplace: bool

    def shared(self, x: Array, call: Call, tag: Tag) -> Array:
        """Return max(x, 0); where it overwrites a BatchNorm's output, one backward serves both layers."""
        overwrites = call.inplace and tag.bypass is not None and tag.result is not None and tag.result() is x
        if overwrites and not self.watched(x):
            return tag.bypass.rectify(x)
        return super().shared(x, call, tag)

    def watched(self, x: Array) -> bool:
        """Tell whether somebody wants to see the gradient of the input itself."""
        raise NotImplementedError

    def pass_on(self, y: Array, tag: Tag) -> None:
        """Let readers of ``y`` read the positive part of the input's code."""
        assert tag.owner is not None
        tagging.put(self.tensors, y, tag.kept.rectified(), tag.owner, tag.readers)
