"""BatchNorm layers: which statistics they normalise by, and which code their backward reads."""

from __future__ import annotations

import math
from typing import Any

from actnn.errors import ShapeError
from actnn.format import AFFINE
from actnn.kernels.contract import Array
from actnn.model.layers.base import CompressedLayer
from actnn.operations import batch_norm_rules as rules
from actnn.operations.kept import Kept
from actnn.operations.normalization import Call, Processes
from actnn.session import tagging
from actnn.session.site import Readers
from actnn.session.tensors import Order


class BatchNormLayer(CompressedLayer):
    """BatchNorm of any rank."""

    normalizes = True

    def forward(self, x: Array) -> Array:
        """Return ``x`` normalised: by the batch in training, by the running statistics in evaluation."""
        processes = self.processes()
        if not self.records(x) and processes is None:
            return self.plain.forward(self, x)
        self.check_rank(x)
        self.check_floating(x)
        exact_bytes = self.counts_exact(x)
        if self.uses_running_statistics():
            self.site.keeps(0, exact_bytes)
            return self.fixed(x)
        if not self.training:
            self.site.keeps(exact_bytes, exact_bytes)
            return self.plain.forward(self, x)
        order = self.order(x)
        self.check_channels(x, order)
        single = processes is None and math.prod(order.rows) == order.channels.count
        if single:
            self.check_single(x)
        shared = None if single else self.shared_code(x)
        if single or (shared is None and processes is None and self.too_small(x, order)):
            self.site.keeps(exact_bytes, exact_bytes)
            return self.plain.forward(self, x)
        self.site.session.check_open()
        self.site.keeps(0, exact_bytes)
        self.site.below = tagging.source(self.tensors, x, self.site.session)
        call = Call(self.site, order, self.epsilon(), Readers(), self.exact, shared, processes)
        y = self.normalized(x, call)
        if call.kept is not None and self.tensors.recorded(y):
            tagging.put(self.tensors, y, call.kept, self.site, call.readers, self.expected_bypass(x, call))
        assert call.statistics is not None
        self.track(call.statistics)
        return y

    def expected_bypass(self, x: Array, call: Call) -> Any:
        """Return what an in-place ReLU needs to take the gradient past this layer, where one is expected."""
        assert call.backward is not None
        return None if call.backward.layout.family.affine else self.bypass(x, call)

    def check_channels(self, x: Array, order: Order) -> None:
        """Raise a typed error unless ``x`` has as many channels as this layer."""
        channels, expected = order.channels.count, self.features()
        if channels != expected:
            raise ShapeError(
                f"{self.site.name!r} was given an input of shape {tuple(x.shape)}: expected {expected} channels."
            )

    def check_single(self, x: Array) -> None:
        """Raise a typed error where the plain layer refuses one value a channel in training."""

    def shared_code(self, x: Array) -> Kept | None:
        """Return a code of the input itself that another layer made."""
        tag = tagging.find(self.tensors, x, self.site.session)
        if tag is None or tag.owner is None:
            return None
        tag.readers.values = True
        if tag.kept is None or not tag.kept.reading.direct:
            return None
        tag.owner.read_by(self.site, 0)
        shared: Kept = tag.kept
        return shared

    def records(self, x: Array) -> bool:
        """Tell whether codes are to serve this call's gradient."""
        return self.site.session.policy.compress_batch_norm and super().records(x)

    def too_small(self, x: Array, order: Order) -> bool:
        """Tell whether a code would be no smaller than the input itself."""
        return self.site.session.layout(self.site, *order.rows, AFFINE).nbytes >= self.tensors.nbytes(x)

    def order(self, x: Array) -> Order:
        """Return the order of an input, with its channels where this layer has them."""
        return self.tensors.order(x)

    def processes(self) -> Processes | None:
        """Return the processes that share the statistics of this call; None where there are no others."""
        return None

    def check_rank(self, x: Array) -> None:
        """Raise the plain layer's error where an input has the wrong number of axes."""
        raise NotImplementedError

    def features(self) -> int:
        """Return the number of channels."""
        raise NotImplementedError

    def epsilon(self) -> float:
        """Return what is added to the variance."""
        raise NotImplementedError

    def uses_running_statistics(self) -> bool:
        """Tell whether this call normalises by the running statistics."""
        raise NotImplementedError

    def fixed(self, x: Array) -> Array:
        """Return ``x`` normalised by the running statistics."""
        raise NotImplementedError

    def exact(self, x: Array, mean: Array, variance: Array, weight: Array | None, bias: Array | None) -> Array:
        """Return ``x`` normalised by given statistics."""
        raise NotImplementedError

    def normalized(self, x: Array, call: Call) -> Array:
        """Return ``x`` normalised by the batch, recorded by autograd."""
        raise NotImplementedError

    def bypass(self, x: Array, call: Call) -> Any:
        """Return what an in-place ReLU needs to take the gradient past this layer."""
        return None

    def track(self, statistics: rules.Statistics) -> None:
        """Update the running statistics as the plain layer does."""
        raise NotImplementedError
