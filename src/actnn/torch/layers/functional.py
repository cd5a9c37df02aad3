"""Layers that are one functional call: each sends it to the rule that serves the same call in anybody's code."""

from __future__ import annotations

import sys
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from actnn.model.door import DECLINED, OwnSite
from actnn.operations import row_normalization, smooth
from actnn.torch.door import activations, attention, embedding, norms, pooling
from actnn.torch.layers.base import Compressed
from actnn.torch.readers import overwrites


class FunctionalLayer(Compressed):
    """A layer whose forward is one functional call; where that is a smooth function, it may overwrite its input."""

    curved: ClassVar[bool] = False

    def forward(self, *arguments: Any, **options: Any) -> Any:
        """Return what the plain layer returns."""
        first = arguments[0] if arguments else next(iter(options.values()))
        found = DECLINED
        if self.records(first):
            over = self.curved and overwrites(self, first, sys.getrefcount(first), starred=True)
            found = self.sent(OwnSite(self.site, self.training, over), *arguments, **options)
        return self.plain.forward(self, *arguments, **options) if found is DECLINED else found

    def sent(self, call: Any, *arguments: Any, **options: Any) -> Any:
        """Return what the rule makes of the call."""
        raise NotImplementedError


class QLayerNorm(FunctionalLayer, nn.LayerNorm):
    """``nn.LayerNorm`` that keeps a code of its normalised input."""

    plain, extra = nn.LayerNorm, row_normalization.EXTRA

    def sent(self, call: Any, input: Tensor) -> Any:
        """Return what the rule makes of the call."""
        return norms.layer_norm(call, F.layer_norm, input, self.normalized_shape, self.weight, self.bias, self.eps)


class QRMSNorm(FunctionalLayer, nn.RMSNorm):
    """``nn.RMSNorm`` that keeps a code of its normalised input."""

    plain, extra = nn.RMSNorm, row_normalization.EXTRA

    def sent(self, call: Any, input: Tensor) -> Any:
        """Return what the rule makes of the call."""
        return norms.rms_norm(call, F.rms_norm, input, self.normalized_shape, self.weight, self.eps)


class QGroupNorm(FunctionalLayer, nn.GroupNorm):
    """``nn.GroupNorm`` that keeps a code of its normalised input."""

    plain, extra = nn.GroupNorm, row_normalization.EXTRA

    def sent(self, call: Any, input: Tensor) -> Any:
        """Return what the rule makes of the call."""
        return norms.group_norm(call, F.group_norm, input, self.num_groups, self.weight, self.bias, self.eps)


class QGELU(FunctionalLayer, nn.GELU):
    """``nn.GELU`` that keeps a code of its input, or shares one."""

    plain, extra, curved = nn.GELU, smooth.EXTRA, True

    def sent(self, call: Any, input: Tensor) -> Any:
        """Return what the rule makes of the call."""
        return activations.RULES[F.gelu](call, F.gelu, input, approximate=self.approximate)


class QSoftplus(FunctionalLayer, nn.Softplus):
    """``nn.Softplus`` that keeps a code of its input, or shares one."""

    plain, extra = nn.Softplus, smooth.EXTRA

    def sent(self, call: Any, input: Tensor) -> Any:
        """Return what the rule makes of the call."""
        return activations.RULES[F.softplus](call, F.softplus, input, self.beta, self.threshold)


class QELU(FunctionalLayer, nn.ELU):
    """``nn.ELU`` that keeps a code of its input, or shares one."""

    plain, extra, curved = nn.ELU, smooth.EXTRA, True

    def sent(self, call: Any, input: Tensor) -> Any:
        """Return what the rule makes of the call."""
        return activations.RULES[F.elu](call, F.elu, input, self.alpha, inplace=self.inplace)


class SmoothLayer(FunctionalLayer):
    """A smooth function without options but that it may work in place."""

    extra, curved = smooth.EXTRA, True
    function: ClassVar[Any]
    inplace: bool

    def sent(self, call: Any, input: Tensor) -> Any:
        """Return what the rule makes of the call."""
        function = type(self).function
        # not all of them can work in place
        options = {"inplace": True} if getattr(self, "inplace", False) else {}
        return activations.RULES[function](call, function, input, **options)


class QSiLU(SmoothLayer, nn.SiLU):
    """``nn.SiLU`` that keeps a code of its input, or shares one."""

    plain, function = nn.SiLU, staticmethod(F.silu)


class QMish(SmoothLayer, nn.Mish):
    """``nn.Mish`` that keeps a code of its input, or shares one."""

    plain, function = nn.Mish, staticmethod(F.mish)


class QHardswish(SmoothLayer, nn.Hardswish):
    """``nn.Hardswish`` that keeps a code of its input, or shares one."""

    plain, function = nn.Hardswish, staticmethod(F.hardswish)


class QHardsigmoid(SmoothLayer, nn.Hardsigmoid):
    """``nn.Hardsigmoid`` that keeps a code of its input, or shares one."""

    plain, function = nn.Hardsigmoid, staticmethod(F.hardsigmoid)


class QSigmoid(SmoothLayer, nn.Sigmoid):
    """``nn.Sigmoid`` that keeps a code of its input, or shares one."""

    plain, function = nn.Sigmoid, Tensor.sigmoid


class QTanh(SmoothLayer, nn.Tanh):
    """``nn.Tanh`` that keeps a code of its input, or shares one."""

    plain, function = nn.Tanh, Tensor.tanh


class QSoftmax(FunctionalLayer, nn.Softmax):
    """``nn.Softmax`` that keeps a code of the probabilities."""

    plain = nn.Softmax

    def sent(self, call: Any, input: Tensor) -> Any:
        """Return what the rule makes of the call."""
        return attention.softmax(call, F.softmax, input, self.dim)


class QLogSoftmax(FunctionalLayer, nn.LogSoftmax):
    """``nn.LogSoftmax`` that keeps a code of the probabilities."""

    plain = nn.LogSoftmax

    def sent(self, call: Any, input: Tensor) -> Any:
        """Return what the rule makes of the call."""
        return attention.log_softmax(call, F.log_softmax, input, self.dim)


class QCrossEntropyLoss(FunctionalLayer, nn.CrossEntropyLoss):
    """``nn.CrossEntropyLoss`` that keeps a code of the probabilities."""

    plain = nn.CrossEntropyLoss

    def sent(self, call: Any, input: Tensor, target: Tensor) -> Any:
        """Return what the rule makes of the call."""
        return attention.cross_entropy(
            call,
            F.cross_entropy,
            input,
            target,
            weight=self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )


class QEmbedding(FunctionalLayer, nn.Embedding):
    """``nn.Embedding`` that keeps its indices in half the bytes."""

    plain = nn.Embedding

    def sent(self, call: Any, input: Tensor) -> Any:
        """Return what the rule makes of the call."""
        own = (self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse)
        return embedding.embedding(call, F.embedding, input, self.weight, *own)


class QAdaptiveAvgPool2d(FunctionalLayer, nn.AdaptiveAvgPool2d):
    """``nn.AdaptiveAvgPool2d`` that keeps only shapes; its gradient is exact."""

    plain = nn.AdaptiveAvgPool2d

    def sent(self, call: Any, input: Tensor) -> Any:
        """Return what the rule makes of the call."""
        return pooling.RULES[F.adaptive_avg_pool2d](call, F.adaptive_avg_pool2d, input, self.output_size)
