"""BatchNorm layers that keep a code of their normalised input."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch import distributed as dist

from actnn.core import batch_norm as rules
from actnn.core.format import AFFINE
from actnn.core.site import Readers
from actnn.errors import ShapeError
from actnn.torch import tags
from actnn.torch.functions.batch_norm import BatchNormFunction, Bypass, Call, EntranceFunction, FixedBatchNormFunction
from actnn.torch.functions.kept import Kept
from actnn.torch.layers.base import Compressed
from actnn.torch.tensors import Order, check_floating, nbytes


class CompressedBatchNorm(Compressed):
    """BatchNorm of any rank."""

    normalizes = True

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` normalised: by the batch in training, by the running statistics in evaluation."""
        processes = self.processes()
        if not self.records(x) and processes is None:
            return super().forward(x)
        self._check_input_dim(x)
        check_floating(x, self.site.name)
        call = Call(self.site, self.eps, Readers(), processes=processes)
        exact_bytes = tags.exact_bytes(x, self.site.session)
        if not self.training and self.running_mean is not None:
            self.site.keeps(0, exact_bytes)
            return FixedBatchNormFunction.apply(x, self.weight, self.bias, self.running_mean, self.running_var, call)
        if not self.training:
            self.site.keeps(exact_bytes, exact_bytes)
            return super().forward(x)
        self.check_input(x, processes)
        call.shared = self.shared_code(x)
        if call.shared is None and processes is None and self.too_small(x):
            self.site.keeps(exact_bytes, exact_bytes)
            return super().forward(x)
        self.site.session.check_open()
        self.site.keeps(0, exact_bytes)
        self.site.below = tags.source(x, self.site.session)
        y = BatchNormFunction.apply(x, self.weight, self.bias, call)
        if y.requires_grad and call.kept is not None:
            tags.put(y, call.kept, self.site, call.readers, self.bypass(x, call))
        self.track(call.statistics)
        return y

    def bypass(self, x: Tensor, call: Call) -> Bypass | None:
        """Return what an in-place ReLU needs to take the gradient past this layer, where one is expected."""
        if call.backward.layout.family.affine:
            return None
        entrance = EntranceFunction.apply(x) if x.requires_grad else x.new_empty(1).expand(x.shape)
        return Bypass(entrance, self.weight, self.bias, call.backward, call.saved)

    def check_input(self, x: Tensor, processes: Any) -> None:
        """Raise a typed error unless ``x`` is what this layer takes."""
        if x.shape[1] != self.num_features:
            raise ShapeError(
                f"{self.site.name!r} was given an input of shape {tuple(x.shape)}: "
                f"expected {self.num_features} channels."
            )
        if processes is None and x.numel() == x.shape[1]:
            raise ShapeError(
                f"{self.site.name!r} was given one value a channel (shape {tuple(x.shape)}), whose variance means "
                "nothing: train it with larger batches, or put it into eval()."
            )

    def shared_code(self, x: Tensor) -> Kept | None:
        """Return a code of the input itself that another layer made."""
        tag = tags.find(x, self.site.session)
        if tag is None:
            return None
        tag.readers.values = True
        if tag.kept is None or not tag.kept.reading.direct:
            return None
        tag.owner.read_by(self.site, 0)
        return tag.kept

    def records(self, x: Tensor) -> bool:
        """Tell whether codes are to serve this call's gradient."""
        return self.site.session.policy.compress_batch_norm and super().records(x)

    def too_small(self, x: Tensor) -> bool:
        """Tell whether a code would be no smaller than the input itself."""
        return self.site.session.layout(self.site, *Order.of(x).rows, AFFINE).nbytes >= nbytes(x)

    def processes(self) -> Any:
        """Return the process group that shares the statistics of this call; None where there is none."""
        return None

    def track(self, statistics: rules.Statistics) -> None:
        """Update the running statistics as the plain layer does."""
        if not (self.training and self.track_running_stats) or self.running_mean is None:
            return
        self.num_batches_tracked.add_(1)
        factor = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
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

    def processes(self) -> Any:
        """Return the process group, in training with more than one process."""
        policy = self.site.session.policy
        if not (self.training and policy.compress and policy.compress_batch_norm):
            return None
        if not (dist.is_available() and dist.is_initialized()):
            return None
        group = self.process_group or dist.group.WORLD
        return group if dist.get_world_size(group) > 1 else None
