"""BatchNorm layers that keep a code of their normalised input."""

from __future__ import annotations

import math
from typing import Any

import paddle
from paddle import Tensor, nn
from paddle import distributed as dist
from paddle.nn import functional as F

from actnn.errors import ShapeError
from actnn.operations.kept import counted_once
from actnn.operations.normalization import Normalizing, batch_norm
from actnn.paddle.functions.batch_norm import BatchNormFunction, FixedBatchNormFunction, Processes, Running
from actnn.paddle.layers.base import Compressed, channels_last
from actnn.paddle.tensors import ARRAYS, PaddleOrder
from actnn.session.tensors import check_floating


class CompressedBatchNorm(Compressed):
    """BatchNorm of Paddle, of any rank; its running statistics are ``_mean`` and ``_variance``."""

    normalizes = True

    def forward(self, input: Tensor) -> Tensor:
        """Return an input normalised: by the batch in training, by the running statistics in evaluation."""
        processes = self.processes()
        if processes is None and not self.records(input):
            return self.plainly(input)
        self.check_rank(input)
        site = self.site
        check_floating(ARRAYS, input, site.name)
        last = channels_last(self.data_format()) and len(input.shape) > 2
        if self.uses_running_statistics():
            site.keeps(0, counted_once(ARRAYS, input, site))
            return self.fixed(input, last)
        self.check_channels(input, last)
        single = processes is None and math.prod(input.shape) == self._mean.shape[0]
        if single or not self.training:
            exact_bytes = counted_once(ARRAYS, input, site)
            site.keeps(exact_bytes, exact_bytes)
            return self.plainly(input)
        # where channels are not last, the tensor tells its order itself
        order = PaddleOrder(tuple(input.shape), channels_last=True) if last else None
        running = self.running()
        y: Tensor | None = batch_norm(
            *(ARRAYS, input, order, site, self._epsilon, running, processes, self.exact, self.normalized),
            (self.weight, self.bias),
        )
        return self.plainly(input) if y is None else y

    def compresses(self) -> bool:
        """Tell whether this layer's level lets it keep codes."""
        policy = self.site.session.policy
        return policy.compress and policy.compress_batch_norm

    def processes(self) -> Processes | None:
        """Return the processes that share the statistics of this call; None where there are no others."""
        return None

    def check_rank(self, x: Tensor) -> None:
        """Raise Paddle's error where an input has the wrong number of axes."""
        self._check_data_format(self._data_format)
        self._check_input_dim(x)

    def check_channels(self, x: Tensor, last: bool) -> None:
        """Raise a typed error unless ``x`` has as many channels as this layer."""
        (expected,) = self._mean.shape
        if x.shape[-1 if last else 1] != expected:
            raise ShapeError(
                f"{self.site.name!r} was given an input of shape {tuple(x.shape)}: expected {expected} channels."
            )

    def data_format(self) -> Any:
        """Return the order of an input's axes."""
        return self._data_format

    def uses_running_statistics(self) -> bool:
        """Tell whether this call normalises by the running statistics."""
        return bool(self._use_global_stats) or (not self.training and self._use_global_stats is None)

    def running(self) -> Running:
        """Return the running statistics; ``_momentum`` weighs their old values."""
        return Running(self._mean, self._variance, 1.0 - self._momentum)

    def fixed(self, x: Tensor, last: bool) -> Tensor:
        """Return ``x`` normalised by the running statistics."""
        options = self.running(), self.exact, self._epsilon, last
        return FixedBatchNormFunction.record(self.site, x, self.weight, self.bias, *options)

    def exact(self, x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """Return ``x`` normalised by given statistics."""
        form = self.data_format()
        return F.batch_norm(x, mean, variance, weight, bias, epsilon=self._epsilon, data_format=form)

    def normalized(
        self, x: Tensor, weight: Tensor | None, bias: Tensor | None, call: Normalizing
    ) -> tuple[Tensor, None]:
        """Return ``x`` normalised by the batch, recorded by autograd; nothing in Paddle overwrites that in place."""
        return BatchNormFunction.record(self.site, x, weight, bias, call), None


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

    def forward(self, input: Tensor) -> Tensor:
        """Return an input normalised, and activated where the layer was given an activation."""
        if self._act is None or not self.records(input):
            return super().forward(input)
        activation, self._act = self._act, None
        try:
            y = super().forward(input)
        finally:
            self._act = activation
        activated: Tensor = getattr(F, activation)(y)
        return activated

    def check_rank(self, x: Tensor) -> None:
        """Raise a typed error where an input has too few axes."""
        if len(x.shape) < 2:
            raise ShapeError(
                f"{self.site.name!r} was given an input of shape {tuple(x.shape)}: expected a channel axis."
            )

    def data_format(self) -> Any:
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
        if self.training or (paddle.in_dynamic_mode() and not ARRAYS.on_host(x)):
            return super().forward(x)
        # Paddle's own has no kernel for the host, where a saved static graph may be run
        options: dict[str, Any] = {"epsilon": self._epsilon, "data_format": self.data_format()}
        options |= {"training": False, "use_global_stats": self._use_global_stats, "momentum": self._momentum}
        return F.batch_norm(x, self._mean, self._variance, self.weight, self.bias, **options)

    def check_rank(self, x: Tensor) -> None:
        """Raise Paddle's error where the data format is none."""
        self._check_data_format()

    def processes(self) -> Processes | None:
        """Return the processes that share statistics, in training with more than one of them."""
        if not (self.training and self.compresses()):
            return None
        return Processes() if dist.is_initialized() and dist.get_world_size() > 1 else None
