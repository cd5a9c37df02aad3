"""BatchNorm layers that keep a code of their normalised input."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch import distributed as dist

from actnn.core import batch_norm as rules
from actnn.core.format import AFFINE
from actnn.errors import ShapeError
from actnn.torch.functions.batch_norm import BatchNormFunction, FixedBatchNormFunction, Normalized
from actnn.torch.layers.base import Compressed
from actnn.torch.tensors import Order, check_floating, nbytes


class CompressedBatchNorm(Compressed):
    """BatchNorm of any rank."""

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` normalised: by the batch in training, by the running statistics in evaluation."""
        processes = self.processes()
        if not self.records(x) and processes is None:
            return super().forward(x)
        self._check_input_dim(x)
        check_floating(x, self.site.name)
        call = Normalized(self.site, self.eps, processes)
        if not self.training and self.running_mean is not None:
            fixed = (self.running_mean, self.running_var, call)
            return FixedBatchNormFunction.apply(x, self.weight, self.bias, *fixed)
        if processes is None and self.too_small(x):
            self.site.record(nbytes(x), nbytes(x))
            return super().forward(x)
        if x.shape[1] != self.num_features:
            raise ShapeError(
                f"{self.site.name!r} was given an input of shape {tuple(x.shape)}: expected {self.num_features} channels."
            )
        if processes is None and x.numel() == x.shape[1]:
            raise ShapeError(
                f"{self.site.name!r} was given one value a channel (shape {tuple(x.shape)}), whose variance means nothing: "
                "train it with larger batches, or put it into eval()."
            )
        self.site.session.check_open()
        y, mean, variance, count = BatchNormFunction.apply(x, self.weight, self.bias, call)
        self.track(mean, variance, count)
        return y

    def records(self, x: Tensor) -> bool:
        """Tell whether codes are to serve this call's gradient."""
        return self.site.session.policy.compress_batch_norm and super().records(x)

    def too_small(self, x: Tensor) -> bool:
        """Tell whether a code would be no smaller than the input itself."""
        return self.site.session.layout(self.site, *Order.of(x).rows, AFFINE).nbytes >= nbytes(x)

    def processes(self) -> Any:
        """Return the process group that shares the statistics of this call; None where there is none."""
        return None

    def track(self, mean: Tensor, variance: Tensor, count: int) -> None:
        """Update the running statistics as the plain layer does."""
        if not (self.training and self.track_running_stats) or self.running_mean is None:
            return
        self.num_batches_tracked.add_(1)
        factor = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = variance * (count / max(1, count - 1))
        self.running_mean.copy_(rules.running(self.running_mean, mean, factor))
        self.running_var.copy_(rules.running(self.running_var, unbiased, factor))


class QBatchNorm1d(CompressedBatchNorm, nn.BatchNorm1d):
    """``nn.BatchNorm1d`` that keeps a code of its normalised input."""

    plain = nn.BatchNorm1d


class QBatchNorm2d(CompressedBatchNorm, nn.BatchNorm2d):
    """``nn.BatchNorm2d`` that keeps a code of its normalised input."""

    plain = nn.BatchNorm2d


class QBatchNorm3d(CompressedBatchNorm, nn.BatchNorm3d):
    """``nn.BatchNorm3d`` that keeps a code of its normalised input."""

    plain = nn.BatchNorm3d


class QSyncBatchNorm(CompressedBatchNorm, nn.SyncBatchNorm):
    """``nn.SyncBatchNorm`` that keeps a code, and works on any device whose process group can gather."""

    plain = nn.SyncBatchNorm

    def processes(self) -> Any:
        """Return the process group, in training with more than one process."""
        policy = self.site.session.policy
        if not (self.training and policy.compress and policy.compress_batch_norm):
            return None
        if not (dist.is_available() and dist.is_initialized()):
            return None
        group = self.process_group or dist.group.WORLD
        return group if dist.get_world_size(group) > 1 else None
