"""BatchNorm layers that keep a code of their normalised input."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

from actnn.errors import ShapeError
from actnn.model.layers.batch_norm import BatchNormLayer
from actnn.operations import batch_norm_rules as rules
from actnn.operations.normalization import Call
from actnn.torch.functions.batch_norm import (
    BatchNormFunction,
    Bypass,
    EntranceFunction,
    FixedBatchNormFunction,
    Processes,
)
from actnn.torch.layers.base import Compressed


class CompressedBatchNorm(Compressed, BatchNormLayer):
    """BatchNorm of torch, of any rank."""

    def check_rank(self, x: Tensor) -> None:
        """Raise torch's error where an input has the wrong number of axes."""
        self._check_input_dim(x)

    def check_single(self, x: Tensor) -> None:
        """Raise a typed error: torch refuses one value a channel."""
        raise ShapeError(
            f"{self.site.name!r} was given one value a channel (shape {tuple(x.shape)}), whose variance means "
            "nothing: train it with larger batches, or put it into eval()."
        )

    def features(self) -> int:
        """Return the number of channels."""
        return self.num_features

    def epsilon(self) -> float:
        """Return what is added to the variance."""
        return self.eps

    def uses_running_statistics(self) -> bool:
        """Tell whether this call normalises by the running statistics."""
        return not self.training and self.running_mean is not None

    def fixed(self, x: Tensor) -> Tensor:
        """Return ``x`` normalised by the running statistics."""
        statistics = (self.running_mean, self.running_var, self.eps)
        return FixedBatchNormFunction.apply(x, self.weight, self.bias, *statistics, self.site)

    def exact(self, x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """Return ``x`` normalised by given statistics."""
        return F.batch_norm(x, mean, variance, weight, bias, False, 0.0, self.eps)

    def normalized(self, x: Tensor, call: Call) -> Tensor:
        """Return ``x`` normalised by the batch, recorded by autograd."""
        return BatchNormFunction.apply(x, self.weight, self.bias, call)

    def bypass(self, x: Tensor, call: Call) -> Bypass:
        """Return what an in-place ReLU needs to take the gradient past this layer."""
        entrance = EntranceFunction.apply(x) if x.requires_grad else x.new_empty(1).expand(x.shape)
        return Bypass(entrance, self.weight, self.bias, call.backward, call.saved)

    def track(self, statistics: rules.Statistics) -> None:
        """Update the running statistics as the plain layer does."""
        if not (self.training and self.track_running_stats) or self.running_mean is None:
            return
        factor = self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            factor = 1.0 / float(self.num_batches_tracked) if factor is None else factor
        # as torch's own: without a number of batches there is no average over them
        factor = 0.0 if factor is None else factor
        unbiased = statistics.variance * (statistics.count / max(1, statistics.count - 1))
        self.running_mean.copy_(rules.running(self.running_mean, statistics.mean, factor))
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

    def processes(self) -> Processes | None:
        """Return the processes that share statistics, in training with more than one of them."""
        policy = self.site.session.policy
        if not (self.training and policy.compress and policy.compress_batch_norm):
            return None
        if not (dist.is_available() and dist.is_initialized()):
            return None
        group: Any = self.process_group or dist.group.WORLD
        return Processes(group) if dist.get_world_size(group) > 1 else None
