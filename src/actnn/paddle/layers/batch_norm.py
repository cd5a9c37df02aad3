"""BatchNorm layers that keep a code of their normalised input."""

from __future__ import annotations

from functools import partial

from paddle import Tensor, nn
from paddle import distributed as dist
from paddle.nn import functional as F

from actnn.errors import ShapeError
from actnn.model.layers.batch_norm import BatchNormLayer
from actnn.operations import batch_norm_rules as rules
from actnn.operations.normalization import Call
from actnn.paddle.functions.batch_norm import BatchNormFunction, FixedBatchNormFunction, Processes
from actnn.paddle.layers.base import Compressed, channels_last
from actnn.paddle.tensors import PaddleOrder


class CompressedBatchNorm(Compressed, BatchNormLayer):
    """BatchNorm of Paddle, of any rank; its running statistics are ``_mean`` and ``_variance``."""

    def check_rank(self, x: Tensor) -> None:
        """Raise Paddle's error where an input has the wrong number of axes."""
        self._check_data_format(self._data_format)
        self._check_input_dim(x)

    def features(self) -> int:
        """Return the number of channels."""
        return self._mean.shape[0]

    def epsilon(self) -> float:
        """Return what is added to the variance."""
        return self._epsilon

    def data_format(self) -> str:
        """Return the order of an input's axes."""
        return self._data_format

    def order(self, x: Tensor) -> PaddleOrder:
        """Return the order of an input, with its channels where this layer has them."""
        return PaddleOrder(tuple(x.shape), channels_last(self.data_format()) and len(x.shape) > 2)

    def uses_running_statistics(self) -> bool:
        """Tell whether this call normalises by the running statistics."""
        return bool(self._use_global_stats) or (not self.training and self._use_global_stats is None)

    def fixed(self, x: Tensor) -> Tensor:
        """Return ``x`` normalised by the running statistics."""
        exact = partial(self.exact, mean=self._mean, variance=self._variance, weight=self.weight, bias=self.bias)
        last = self.order(x).channels_last
        return FixedBatchNormFunction.record(self.site, x, self.weight, self.bias, exact, self.running, last)

    def running(self) -> tuple[Tensor, Tensor]:
        """Return the running mean and the inverse of the running deviation."""
        return self._mean.detach(), rules.inverse_deviation(self.tensors, self._variance.detach(), self._epsilon)

    def exact(self, x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """Return ``x`` normalised by given statistics."""
        form = self.data_format()
        return F.batch_norm(x, mean, variance, weight, bias, epsilon=self._epsilon, data_format=form)

    def normalized(self, x: Tensor, call: Call) -> Tensor:
        """Return ``x`` normalised by the batch, recorded by autograd."""
        return BatchNormFunction.record(self.site, x, self.weight, self.bias, call)

    def track(self, statistics: rules.Statistics) -> None:
        """Update the running statistics as the plain layer does; ``_momentum`` weighs the old ones."""
        factor = 1.0 - self._momentum
        for running, new in ((self._mean, statistics.mean), (self._variance, statistics.variance)):
            running.set_value(rules.running(running.detach(), new, factor).astype(running.dtype))


class QBatchNorm1D(CompressedBatchNorm, nn.BatchNorm1D):
    """``nn.BatchNorm1D`` that keeps a code of its normalised input."""

    plain = nn.BatchNorm1D


class QBatchNorm2D(CompressedBatchNorm, nn.BatchNorm2D):
    """``nn.BatchNorm2D`` that keeps a code of its normalised input."""

    plain = nn.BatchNorm2D


class QBatchNorm3D(CompressedBatchNorm, nn.BatchNorm3D):
    """``nn.BatchNorm3D`` that keeps a code of its normalised input."""

    plain = nn.BatchNorm3D


class QBatchNorm(CompressedBatchNorm, nn.BatchNorm):
    """``nn.BatchNorm``, of any rank and with an activation of its own, that keeps a code of its normalised input."""

    plain = nn.BatchNorm

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` normalised, and activated where the layer was given an activation."""
        if self._act is None or not self.records(x):
            return super().forward(x)
        activation, self._act = self._act, None
        try:
            y = super().forward(x)
        finally:
            self._act = activation
        return getattr(F, activation)(y)

    def check_rank(self, x: Tensor) -> None:
        """Raise a typed error where an input has too few axes."""
        if len(x.shape) < 2:
            raise ShapeError(
                f"{self.site.name!r} was given an input of shape {tuple(x.shape)}: expected a channel axis."
            )

    def data_format(self) -> str:
        """Return the order of an input's axes."""
        return self._data_layout

    def uses_running_statistics(self) -> bool:
        """Tell whether this call normalises by the running statistics."""
        return bool(self._use_global_stats) or not (self.training or self._trainable_statistics)


class QSyncBatchNorm(CompressedBatchNorm, nn.SyncBatchNorm):
    """``nn.SyncBatchNorm`` that keeps a code, and works on any device whose processes can gather."""

    plain = nn.SyncBatchNorm

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` normalised: by the joint batch in training, by the running statistics in evaluation."""
        if self.training or not self.tensors.on_host(x):
            return super().forward(x)
        # Paddle's own has no kernel for the host
        statistics = {"training": False, "use_global_stats": self._use_global_stats, "momentum": self._momentum}
        form = {"epsilon": self._epsilon, "data_format": self.data_format()}
        return F.batch_norm(x, self._mean, self._variance, self.weight, self.bias, **statistics, **form)

    def check_rank(self, x: Tensor) -> None:
        """Raise Paddle's error where the data format is none."""
        self._check_data_format()

    def processes(self) -> Processes | None:
        """Return the processes that share statistics, in training with more than one of them."""
        policy = self.site.session.policy
        if not (self.training and policy.compress and policy.compress_batch_norm):
            return None
        return Processes() if dist.is_initialized() and dist.get_world_size() > 1 else None
