"""Every layer of today's models has a compressed twin, under the same name in both frameworks."""

from __future__ import annotations

from importlib import import_module

import pytest

NORMS = ("QBatchNorm2d", "QLayerNorm", "QGroupNorm")
SMOOTH = ("QGELU", "QSiLU", "QMish", "QHardswish", "QHardsigmoid", "QSigmoid", "QTanh", "QSoftplus", "QELU")
OTHERS = ("QLinear", "QConv2d", "QSoftmax", "QLogSoftmax", "QMultiheadAttention", "QEmbedding", "QCrossEntropyLoss")
POOLS = ("QMaxPool2d", "QAvgPool2d", "QAdaptiveAvgPool2d")
NAMES = (*NORMS, *SMOOTH, *OTHERS, *POOLS, "QReLU", "QDropout")


@pytest.mark.parametrize("package", ["actnn", "actnn.paddle"])
def test_layers_have_one_name_in_both_frameworks(package: str):
    front = import_module(package)
    assert [name for name in NAMES if not hasattr(front, name)] == []


def test_only_torch_has_a_layer_of_its_own_for_rms_norm():
    # Paddle has none to convert: classes of that name are served by what they compute
    assert hasattr(import_module("actnn"), "QRMSNorm")
