"""Layers that are one functional call: each sends it to the rule that serves the same call in anybody's code."""

from __future__ import annotations

from typing import Any, ClassVar

from paddle import Tensor, nn
from paddle.nn import functional as F

from actnn.model.door import DECLINED, OwnSite
from actnn.operations import row_normalization, smooth
from actnn.paddle.door import activations, attention, embedding, norms
from actnn.paddle.layers.base import Compressed


class FunctionalLayer(Compressed):
    """A layer whose forward is one functional call."""

    def served(self, x: Tensor, *arguments: Any) -> Any:
        """Return what the plain layer returns."""
        found = self.sent(OwnSite(self.site, self.training), x, *arguments) if self.records(x) else DECLINED
        return self.plainly(x, *arguments) if found is DECLINED else found

    def sent(self, call: Any, x: Tensor, *arguments: Any) -> Any:
        """Return what the rule makes of the call."""
        raise NotImplementedError


class RowNormLayer(FunctionalLayer):
    """A normalisation over rows."""

    extra = row_normalization.EXTRA

    def forward(self, input: Tensor) -> Any:
        """Return an input normalised."""
        return self.served(input)


class LayerOfX(FunctionalLayer):
    """A function of one tensor, which Paddle calls x."""

    def forward(self, x: Tensor) -> Any:
        """Return what the function makes of an input."""
        return self.served(x)


class QLayerNorm(RowNormLayer, nn.LayerNorm):
    """``nn.LayerNorm`` that keeps a code of its normalised input."""

    plain = nn.LayerNorm

    def sent(self, call: Any, x: Tensor, *arguments: Any) -> Any:
        """Return what the rule makes of the call."""
        own = (self._normalized_shape, self.weight, self.bias, self._epsilon)
        return norms.layer_norm(call, F.layer_norm, x, *own)


class QGroupNorm(RowNormLayer, nn.GroupNorm):
    """``nn.GroupNorm`` that keeps a code of its normalised input."""

    plain = nn.GroupNorm

    def sent(self, call: Any, x: Tensor, *arguments: Any) -> Any:
        """Return what the rule makes of the call."""
        own = (self._num_groups, self._epsilon, self.weight, self.bias, self._data_format)
        return norms.group_norm(call, F.group_norm, x, *own)


class SmoothLayer(LayerOfX):
    """A smooth function; ``options`` are the attributes that hold what the function takes."""

    extra = smooth.EXTRA
    function: ClassVar[str]
    options: ClassVar[tuple[str, ...]] = ()

    def sent(self, call: Any, x: Tensor, *arguments: Any) -> Any:
        """Return what the rule makes of the call."""
        own = (getattr(self, name) for name in self.options)
        return activations.RULES[self.function](call, getattr(F, self.function), x, *own)


class QGELU(SmoothLayer, nn.GELU):
    """``nn.GELU`` that keeps a code of its input, or shares one."""

    plain, function, options = nn.GELU, "gelu", ("_approximate",)


class QSilu(SmoothLayer, nn.Silu):
    """``nn.Silu`` that keeps a code of its input, or shares one."""

    plain, function, options = nn.Silu, "silu", ("_inplace",)


class QSwish(SmoothLayer, nn.Swish):
    """``nn.Swish`` that keeps a code of its input, or shares one."""

    plain, function = nn.Swish, "swish"


class QMish(SmoothLayer, nn.Mish):
    """``nn.Mish`` that keeps a code of its input, or shares one."""

    plain, function = nn.Mish, "mish"


class QHardswish(SmoothLayer, nn.Hardswish):
    """``nn.Hardswish`` that keeps a code of its input, or shares one."""

    plain, function = nn.Hardswish, "hardswish"


class QHardsigmoid(SmoothLayer, nn.Hardsigmoid):
    """``nn.Hardsigmoid`` that keeps a code of its input, or shares one."""

    plain, function = nn.Hardsigmoid, "hardsigmoid"


class QSigmoid(SmoothLayer, nn.Sigmoid):
    """``nn.Sigmoid`` that keeps a code of its input, or shares one."""

    plain, function = nn.Sigmoid, "sigmoid"


class QTanh(SmoothLayer, nn.Tanh):
    """``nn.Tanh`` that keeps a code of its input, or shares one."""

    plain, function = nn.Tanh, "tanh"


class QSoftplus(SmoothLayer, nn.Softplus):
    """``nn.Softplus`` that keeps a code of its input, or shares one."""

    plain, function, options = nn.Softplus, "softplus", ("_beta", "_threshold")


class QELU(SmoothLayer, nn.ELU):
    """``nn.ELU`` that keeps a code of its input, or shares one."""

    plain, function, options = nn.ELU, "elu", ("_alpha",)


class QSoftmax(LayerOfX, nn.Softmax):
    """``nn.Softmax`` that keeps a code of the probabilities."""

    plain = nn.Softmax

    def sent(self, call: Any, x: Tensor, *arguments: Any) -> Any:
        """Return what the rule makes of the call."""
        return attention.softmax(call, F.softmax, x, self._axis)


class QLogSoftmax(LayerOfX, nn.LogSoftmax):
    """``nn.LogSoftmax`` that keeps a code of the probabilities."""

    plain = nn.LogSoftmax

    def sent(self, call: Any, x: Tensor, *arguments: Any) -> Any:
        """Return what the rule makes of the call."""
        return attention.log_softmax(call, F.log_softmax, x, self._axis)


class QCrossEntropyLoss(FunctionalLayer, nn.CrossEntropyLoss):
    """``nn.CrossEntropyLoss`` that keeps a code of the probabilities."""

    plain = nn.CrossEntropyLoss

    def forward(self, input: Tensor, label: Any = None, target: Any = None) -> Any:
        """Return the loss; ``target`` is Paddle's second name for labels."""
        return self.served(input, target if label is None else label)

    def sent(self, call: Any, x: Tensor, *arguments: Any) -> Any:
        """Return what the rule makes of the call."""
        (label,) = arguments
        own = (self.weight, self.ignore_index, self.reduction, self.soft_label, self.axis)
        return attention.cross_entropy(call, F.cross_entropy, x, label, *own, self.use_softmax, self.label_smoothing)


class QEmbedding(LayerOfX, nn.Embedding):
    """``nn.Embedding`` that keeps its indices in half the bytes."""

    plain = nn.Embedding

    def sent(self, call: Any, x: Tensor, *arguments: Any) -> Any:
        """Return what the rule makes of the call."""
        norm = {"max_norm": self._max_norm, "norm_type": self._norm_type}
        own: dict[str, Any] = {"sparse": self._sparse, "scale_grad_by_freq": self._scale_grad_by_freq, **norm}
        padding: Any = self._padding_idx
        return embedding.embedding(call, F.embedding, x, self.weight, padding, **own)
