"""The compressed layers: each is its plain counterpart, and keeps a code where that keeps floats."""

from __future__ import annotations

from paddle import nn

from actnn.paddle.layers.activation import QDropout, QLeakyReLU, QReLU, QReLU6
from actnn.paddle.layers.attention import QMultiHeadAttention
from actnn.paddle.layers.base import Compressed
from actnn.paddle.layers.batch_norm import (
    CompressedBatchNorm,
    QBatchNorm,
    QBatchNorm1D,
    QBatchNorm2D,
    QBatchNorm3D,
    QSyncBatchNorm,
)
from actnn.paddle.layers.functional import (
    QELU,
    QGELU,
    QCrossEntropyLoss,
    QEmbedding,
    QGroupNorm,
    QHardsigmoid,
    QHardswish,
    QLayerNorm,
    QLogSoftmax,
    QMish,
    QSigmoid,
    QSilu,
    QSoftmax,
    QSoftplus,
    QSwish,
    QTanh,
)
from actnn.paddle.layers.maps import (
    QConv1D,
    QConv1DTranspose,
    QConv2D,
    QConv2DTranspose,
    QConv3D,
    QConv3DTranspose,
    QLinear,
)
from actnn.paddle.layers.pooling import QAdaptiveAvgPool2D, QAvgPool2D, QMaxPool1D, QMaxPool2D, QMaxPool3D

LAYERS: tuple[type[Compressed], ...] = (
    QConv1D,
    QConv2D,
    QConv3D,
    QConv1DTranspose,
    QConv2DTranspose,
    QConv3DTranspose,
    QLinear,
    QBatchNorm1D,
    QBatchNorm2D,
    QBatchNorm3D,
    QBatchNorm,
    QSyncBatchNorm,
    QReLU,
    QReLU6,
    QLeakyReLU,
    QDropout,
    QMaxPool1D,
    QMaxPool2D,
    QMaxPool3D,
    QAvgPool2D,
    QAdaptiveAvgPool2D,
    QLayerNorm,
    QGroupNorm,
    QGELU,
    QSilu,
    QSwish,
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
    QMultiHeadAttention,
    QEmbedding,
)

# conversion looks layers up by exact type: a subclass may have overridden anything
COMPRESSED: dict[type[nn.Layer], type[Compressed]] = {layer.plain: layer for layer in LAYERS}

# torch's spelling, which the published port has too
ALIASES: dict[str, type[Compressed]] = {
    "QConv1d": QConv1D,
    "QConv2d": QConv2D,
    "QConv3d": QConv3D,
    "QConvTranspose1d": QConv1DTranspose,
    "QConvTranspose2d": QConv2DTranspose,
    "QConvTranspose3d": QConv3DTranspose,
    "QBatchNorm1d": QBatchNorm1D,
    "QBatchNorm2d": QBatchNorm2D,
    "QBatchNorm3d": QBatchNorm3D,
    "QMaxPool1d": QMaxPool1D,
    "QMaxPool2d": QMaxPool2D,
    "QMaxPool3d": QMaxPool3D,
    "QAvgPool2d": QAvgPool2D,
    "QAdaptiveAvgPool2d": QAdaptiveAvgPool2D,
    "QSiLU": QSilu,
    "QMultiheadAttention": QMultiHeadAttention,
}

__all__ = ["ALIASES", "COMPRESSED", "Compressed", "CompressedBatchNorm", *(layer.__name__ for layer in LAYERS)]
