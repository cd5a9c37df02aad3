"""BatchNorm layers that keep a code of their normalised input."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

from actnn.errors import ShapeError
from actnn.operations.kept import counted_once
from actnn.operations.normalization import batch_norm
from actnn.session.tensors import check_floating
from actnn.torch.functions.batch_norm import FixedBatchNormFunction, Processes, Running, normalized
from actnn.torch.holders import LEAST_BYTES
from actnn.torch.layers.base import Compressed
from actnn.torch.readers import overwrites
from actnn.torch.tensors import ARRAYS


class CompressedBatchNorm(Compressed):
    """BatchNorm of torch, of any rank."""

    normalizes = True
    # whether processes may share the statistics of a batch
    joins: ClassVar[bool] = False
    num_features: int
    eps: float
    momentum: float | None
    track_running_stats: bool
    # torch's own types say that both are always there
    weight: Any
    bias: Any
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None
    _check_input_dim: Callable[[Tensor], None]

    def forward(self, input: Tensor) -> Tensor:
        """Return an input normalised: by the batch in training, by the running statistics in evaluation."""
        processes = self.processes() if self.joins else None
        if processes is None and not self.records(input):
            return self.plainly(input)
        if not self.training:
            return self.fixed(input)
        # before anything else holds the input
        over = input.nbytes >= LEAST_BYTES and overwrites(self, input, sys.getrefcount(input))
        y: Tensor | None = batch_norm(
            *(ARRAYS, input, None, self.site, self.eps, self.running(), processes, self.exact, normalized),
            self.weight_and_bias(),
            self.check_joined if processes is not None else self.check_input,
            over,
        )
        return self.plainly(input) if y is None else y

    def fixed(self, x: Tensor) -> Tensor:
        """Return an input normalised by the running statistics, or in evaluation without them by the plain layer."""
        self._check_input_dim(x)
        check_floating(ARRAYS, x, self.site.name)
        exact_bytes = counted_once(ARRAYS, x, self.site)
        if self.running_mean is None:
            self.site.keeps(exact_bytes, exact_bytes)
            return self.plainly(x)
        self.site.keeps(0, exact_bytes)
        y: Tensor = FixedBatchNormFunction.apply(
            x, self.weight, self.bias, self.running_mean, self.running_var, self.eps, self.site
        )
        return y

    def processes(self) -> Processes | None:
        """Return the processes that share the statistics of this call; None where there are no others."""
        return None

    def check_joined(self, x: Tensor) -> None:
        """Raise an error unless ``x`` has the axes and channels of this layer."""
        self._check_input_dim(x)
        if x.shape[1] != self.num_features:
            raise ShapeError(
                f"{self.site.name!r} was given an input of shape {tuple(x.shape)}: "
                f"expected {self.num_features} channels."
            )

    def check_input(self, x: Tensor) -> None:
        """Raise an error unless ``x`` is what this layer takes alone: it also has more than one value a channel."""
        self.check_joined(x)
        if x.numel() == self.num_features:
            raise ShapeError(
                f"{self.site.name!r} was given one value a channel (shape {tuple(x.shape)}), whose variance means "
                "nothing: train it with larger batches, or put it into eval()."
            )

    def running(self) -> Running | None:
        """Return the running statistics where this call is to average them as the plain layer does."""
        buffers = self._buffers
        try:
            mean, variance, batches = buffers["running_mean"], buffers["running_var"], buffers["num_batches_tracked"]
        except KeyError:
            # somebody may have put plain tensors in their place
            mean, variance, batches = self.running_mean, self.running_var, self.num_batches_tracked
        if not self.track_running_stats or mean is None or variance is None:
            return None
        factor = self.momentum
        if factor is None:
            # as torch's own: without a number of batches there is no average over them
            factor = 0.0 if batches is None else 1.0 / (float(batches) + 1.0)
        plans = self.site.plans
        known: Running | None = plans.get("running")
        if known is None or known.mean is not mean or known.variance is not variance or known.batches is not batches:
            known = plans["running"] = Running(mean, variance, factor, batches)
        known.momentum = factor
        return known

    def exact(self, x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """Return ``x`` normalised by given statistics."""
        return F.batch_norm(x, mean, variance, weight, bias, False, 0.0, self.eps)


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

    plain, joins = nn.SyncBatchNorm, True

    def processes(self) -> Processes | None:
        """Return the processes that share statistics, in training with more than one of them."""
        policy = self.site.session.policy
        if not (self.training and policy.compress and policy.compress_batch_norm):
            return None
        if not (dist.is_available() and dist.is_initialized()):
            return None
        group: Any = self.process_group or dist.group.WORLD
        return Processes(group) if dist.get_world_size(group) > 1 else None


def join_statistics(model: nn.Module, process_group: Any = None) -> None:
    """Let the BatchNorms of a converted model normalise by the batch of all processes, as SyncBatchNorm does.

    It may come after DistributedDataParallel, which refuses models on the host that have a SyncBatchNorm already.
    """
    for layer in model.modules():
        if isinstance(layer, CompressedBatchNorm) and not layer.joins:
            twin: Any = layer
            twin.__class__, twin.process_group = QSyncBatchNorm, process_group
