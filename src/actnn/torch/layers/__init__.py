"""The compressed layers: each is its plain counterpart, and keeps a code where that keeps floats."""

from __future__ import annotations

from torch import nn

from actnn.torch.layers.activation import QDropout, QLeakyReLU, QReLU, QReLU6
from actnn.torch.layers.attention import QMultiheadAttention
from actnn.torch.layers.base import Compressed
from actnn.torch.layers.batch_norm import CompressedBatchNorm, QBatchNorm1d, QBatchNorm2d, QBatchNorm3d, QSyncBatchNorm
from actnn.torch.layers.functional import (
    QELU,
    QGELU,
    QAdaptiveAvgPool2d,
    QCrossEntropyLoss,
    QEmbedding,
    QGroupNorm,
    QHardsigmoid,
    QHardswish,
    QLayerNorm,
    QLogSoftmax,
    QMish,
    QRMSNorm,
    QSigmoid,
    QSiLU,
    QSoftmax,
    QSoftplus,
    QTanh,
)
from actnn.torch.layers.maps import (
    QConv1d,
    QConv2d,
    QConv3d,
    QConvTranspose1d,
    QConvTranspose2d,
    QConvTranspose3d,
    QLinear,
)
from actnn.torch.layers.pooling import QAvgPool2d, QMaxPool1d, QMaxPool2d, QMaxPool3d

LAYERS: tuple[type[Compressed], ...] = (
    QConv1d,
    QConv2d,
    QConv3d,
    QConvTranspose1d,
    QConvTranspose2d,
    QConvTranspose3d,
    QLinear,
    QBatchNorm1d,
    QBatchNorm2d,
    QBatchNorm3d,
    QSyncBatchNorm,
    QReLU,
    QReLU6,
    QLeakyReLU,
    QDropout,
    QMaxPool1d,
    QMaxPool2d,
    QMaxPool3d,
    QAvgPool2d,
    QAdaptiveAvgPool2d,
    QLayerNorm,
    QRMSNorm,
    QGroupNorm,
    QGELU,
    QSiLU,
    QMish,
    QHardswish,
    QHardsigmoid,
    QSigmoid,
    QTanh,
    QSoftplus,
    QELU,
    QSoftmax,
    QLogSoftmax,
    QCrossEntropyLoss,
    QMultiheadAttention,
    QEmbedding,
)

# conversion looks layers up by exact type: a subclass may have overridden anything
COMPRESSED: dict[type[nn.Module], type[Compressed]] = {layer.plain: layer for layer in LAYERS}

__all__ = ["COMPRESSED", "Compressed", "CompressedBatchNorm", *(layer.__name__ for layer in LAYERS)]
