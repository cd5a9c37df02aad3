"""Layers and shapes that the tests of every front end run through; names and options in torch's spelling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """A layer, by its plain name and constructor arguments, and the shape of an input for it.

    ``lossless`` layers keep masks, positions or nothing: their gradient is exact at any width.
    """

    kind: str
    shape: tuple[int, ...]
    arguments: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    lossless: bool = False

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value}" for name, value in self.options.items())
        return " ".join(part for part in (self.kind, options, "x".join(map(str, self.shape))) if part)


def _lossless(kind: str, shape: tuple[int, ...], *arguments: Any, **options: Any) -> Case:
    return Case(kind, shape, arguments, options, lossless=True)


def _coded(kind: str, shape: tuple[int, ...], *arguments: Any, **options: Any) -> Case:
    return Case(kind, shape, arguments, options)


MAPS = [
    _coded("Conv1d", (4, 6, 61), 6, 5, 3),
    _coded("Conv2d", (4, 6, 11, 13), 6, 5, 3),
    _coded("Conv3d", (3, 4, 5, 7, 6), 4, 3, 3),
    _coded("ConvTranspose1d", (4, 6, 61), 6, 5, 3),
    _coded("ConvTranspose2d", (4, 6, 11, 13), 6, 5, 3),
    _coded("ConvTranspose3d", (3, 4, 5, 7, 6), 4, 3, 3),
    _coded("Linear", (16, 150), 150, 7),
]
NORMS = [
    _coded("BatchNorm1d", (64, 6, 15), 6),
    _coded("BatchNorm2d", (8, 6, 13, 11), 6),
    _coded("BatchNorm3d", (4, 5, 6, 7, 5), 5),
]
ACTIVATIONS = [
    _lossless("ReLU", (4, 6, 11, 13)),
    _lossless("ReLU6", (4, 6, 11, 13)),
    _lossless("LeakyReLU", (4, 6, 11, 13), 0.1),
]
DROPOUT = _lossless("Dropout", (4, 6, 11, 13), 0.3)
POOLS = [
    _lossless("MaxPool1d", (4, 6, 61), 3),
    _lossless("MaxPool2d", (4, 6, 11, 13), 3, stride=2, padding=1),
    _lossless("MaxPool3d", (2, 4, 7, 9, 8), 3, stride=2),
    _lossless("AvgPool2d", (4, 6, 11, 13), 3, stride=2, padding=1),
]

ROW_NORMS = [
    _coded("LayerNorm", (6, 9, 160), 160),
    _coded("GroupNorm", (4, 6, 11, 13), 2, 6),
]
SMOOTH = [
    _coded("GELU", (4, 6, 11, 13)),
    _coded("GELU", (4, 6, 11, 13), approximate="tanh"),
    *(_coded(kind, (4, 6, 11, 13)) for kind in ("SiLU", "Mish", "Hardswish", "Sigmoid", "Tanh")),
    *(_coded(kind, (4, 6, 11, 13)) for kind in ("Softplus", "ELU")),
    # of slope 1 / 6 where its mask holds
    _lossless("Hardsigmoid", (4, 6, 11, 13)),
]
SOFTMAXES = [
    _coded("Softmax", (6, 9, 130), dim=-1),
    _coded("Softmax", (6, 130, 9), dim=1),
    _coded("LogSoftmax", (6, 9, 130), dim=-1),
]
# layers that are one functional call
FUNCTIONAL = [*ROW_NORMS, *SMOOTH, *SOFTMAXES]

# one of each kind
KINDS = [*MAPS, *NORMS, *ACTIVATIONS, DROPOUT, *POOLS]

CONVOLUTION_GEOMETRY = [
    _coded("Conv2d", (4, 6, 11, 13), 6, 8, 3, groups=2),
    _coded("Conv2d", (4, 6, 11, 13), 6, 6, 3, groups=6, padding=1),
    _coded("Conv2d", (4, 6, 13, 15), 6, 5, 3, dilation=2),
    _coded("Conv2d", (4, 6, 13, 15), 6, 5, 3, dilation=(1, 3), stride=(2, 1), padding=(1, 2)),
    _coded("Conv2d", (4, 6, 12, 14), 6, 5, 3, stride=2),
    _coded("Conv2d", (4, 6, 11, 13), 6, 5, 3, padding="same"),
    _coded("Conv2d", (4, 6, 11, 13), 6, 5, 4, padding="same"),
    _coded("Conv2d", (4, 6, 11, 13), 6, 5, (2, 3), padding="same", dilation=3),
    _coded("Conv2d", (4, 6, 11, 13), 6, 5, 3, padding="valid"),
    _coded("Conv2d", (4, 6, 11, 13), 6, 5, 3, padding=1, padding_mode="circular"),
    _coded("Conv2d", (4, 6, 11, 13), 6, 5, 3, padding=(2, 1), padding_mode="reflect"),
    _coded("Conv2d", (4, 6, 11, 13), 6, 5, 3, padding=1, padding_mode="replicate"),
    _coded("Conv2d", (4, 6, 11, 13), 6, 5, 4, padding="same", padding_mode="circular"),
    _coded("Conv2d", (4, 6, 11, 13), 6, 5, 1, bias=False),
    _coded("Conv2d", (4, 1, 29, 31), 1, 5, (5, 7)),
    _coded("Conv1d", (4, 6, 61), 6, 4, 5, padding="same", groups=2),
    _coded("Conv1d", (4, 6, 61), 6, 4, 4, padding="same"),
    _coded("Conv1d", (4, 6, 61), 6, 4, 3, padding=2, padding_mode="circular"),
    _coded("Conv3d", (2, 4, 5, 7, 6), 4, 4, 3, padding=1, groups=2, stride=2),
    _coded("Conv3d", (2, 4, 5, 7, 6), 4, 3, 2, padding="same"),
    _coded("ConvTranspose2d", (4, 6, 9, 7), 6, 4, 3, stride=2, padding=1, output_padding=1),
    _coded("ConvTranspose2d", (4, 6, 9, 7), 6, 4, 3, groups=2, dilation=2),
    _coded("ConvTranspose2d", (4, 6, 9, 7), 6, 4, 3, bias=False),
    _coded("ConvTranspose1d", (4, 6, 61), 6, 4, 4, stride=3, output_padding=2),
    _coded("ConvTranspose3d", (2, 4, 5, 4, 6), 4, 4, 3, stride=2, groups=2),
]
LINEAR_GEOMETRY = [
    _coded("Linear", (700,), 700, 5),
    _coded("Linear", (9, 70), 70, 5),
    _coded("Linear", (5, 9, 70), 70, 5),
    _coded("Linear", (3, 4, 5, 70), 70, 5),
    _coded("Linear", (5, 9, 70), 70, 5, bias=False),
]
NORM_OPTIONS = [
    _coded("BatchNorm1d", (300, 6), 6),
    _coded("BatchNorm2d", (8, 6, 13, 11), 6, momentum=None),
    _coded("BatchNorm2d", (8, 6, 13, 11), 6, momentum=0.3),
    _coded("BatchNorm2d", (8, 6, 13, 11), 6, affine=False),
    _coded("BatchNorm2d", (8, 6, 13, 11), 6, track_running_stats=False),
    _coded("BatchNorm2d", (8, 6, 13, 11), 6, affine=False, track_running_stats=False),
    _coded("BatchNorm2d", (8, 6, 13, 11), 6, eps=0.1),
    _coded("BatchNorm2d", (2, 300, 5, 3), 300),
]
POOL_GEOMETRY = [
    _lossless("MaxPool2d", (4, 6, 11, 13), 2),
    _lossless("MaxPool2d", (4, 6, 12, 14), 3, stride=2, ceil_mode=True),
    _lossless("MaxPool2d", (4, 6, 12, 14), 3, stride=2, padding=1, ceil_mode=True),
    _lossless("MaxPool2d", (4, 6, 13, 15), 3, dilation=2),
    _lossless("MaxPool2d", (4, 6, 13, 15), (3, 2), stride=(1, 2), padding=(1, 0), dilation=(2, 3)),
    _lossless("MaxPool2d", (2, 3, 40, 41), 17, stride=5),
    _lossless("MaxPool2d", (2, 3, 40, 41), 17, stride=3, padding=8, ceil_mode=True),
    _lossless("MaxPool2d", (4, 6, 11, 13), 1),
    _lossless("MaxPool2d", (4, 6, 11, 13), 3, stride=1),
    _lossless("MaxPool1d", (4, 6, 61), 4, stride=3, padding=2, dilation=2, ceil_mode=True),
    _lossless("MaxPool1d", (4, 6, 61), 17),
    _lossless("MaxPool3d", (2, 4, 7, 9, 8), 2, stride=2, padding=1, ceil_mode=True),
    _lossless("MaxPool3d", (2, 4, 9, 9, 9), 3, dilation=2),
    _lossless("AvgPool2d", (4, 6, 11, 13), 2),
    _lossless("AvgPool2d", (4, 6, 12, 14), 3, stride=2, ceil_mode=True),
    _lossless("AvgPool2d", (4, 6, 11, 13), 3, padding=1, count_include_pad=False),
    _lossless("AvgPool2d", (4, 6, 11, 13), 3, padding=1, divisor_override=5),
    _lossless("AvgPool2d", (4, 6, 11, 13), (3, 2), stride=(1, 2), padding=(1, 0)),
    _lossless("AvgPool2d", (2, 3, 40, 41), 17),
]
GEOMETRY = [*CONVOLUTION_GEOMETRY, *LINEAR_GEOMETRY, *POOL_GEOMETRY]

FUNCTIONAL_OPTIONS = [
    _coded("LayerNorm", (6, 9, 16, 10), (16, 10)),
    _coded("LayerNorm", (40, 60), 60, eps=1e-3),
    _coded("LayerNorm", (6, 9, 160), 160, elementwise_affine=False),
    _coded("LayerNorm", (6, 9, 160), 160, bias=False),
    _coded("GroupNorm", (4, 6, 143), 6, 6),
    _coded("GroupNorm", (4, 6, 11, 13), 1, 6, eps=0.1),
    _coded("GroupNorm", (4, 6, 11, 13), 3, 6, affine=False),
    _coded("GELU", (600,)),
    _coded("Softplus", (4, 6, 11, 13), beta=2.0),
    _coded("ELU", (4, 6, 11, 13), alpha=0.5),
    _coded("Softmax", (40, 60), dim=0),
    _coded("LogSoftmax", (40, 60), dim=0),
]

# inputs that do not fill a group, are odd, single or without a batch axis
SIZES = [
    _coded("Conv2d", (1, 6, 11, 13), 6, 5, 3),
    _coded("Conv2d", (2, 1, 3, 3), 1, 2, 3),
    _coded("Conv2d", (1, 1, 1, 1), 1, 1, 1),
    _coded("Conv2d", (6, 11, 13), 6, 5, 3),
    _coded("Conv1d", (6, 61), 6, 5, 3),
    _coded("Conv3d", (4, 5, 7, 6), 4, 3, 3),
    _coded("ConvTranspose2d", (6, 11, 13), 6, 5, 3),
    _coded("Linear", (1, 3), 3, 2),
    _coded("Linear", (2, 257), 257, 3),
    _coded("BatchNorm2d", (1, 3, 5, 7), 3),
    _coded("BatchNorm2d", (2, 1, 1, 1), 1),
    _coded("BatchNorm1d", (5, 3), 3),
    _lossless("ReLU", (1,)),
    _lossless("ReLU", (7,)),
    _lossless("ReLU", ()),
    _lossless("ReLU", (2, 257)),
    _lossless("Dropout", (7,), 0.5),
    _lossless("MaxPool2d", (6, 11, 13), 2),
    _lossless("MaxPool1d", (6, 61), 2),
    _lossless("MaxPool3d", (4, 7, 9, 8), 2),
    _lossless("AvgPool2d", (6, 11, 13), 2),
    _lossless("MaxPool2d", (1, 1, 2, 2), 2),
]
EMPTY = [
    _coded("Conv2d", (0, 6, 11, 13), 6, 5, 3),
    _coded("ConvTranspose2d", (0, 6, 11, 13), 6, 5, 3),
    _coded("Linear", (0, 70), 70, 5),
    _coded("Linear", (4, 0, 70), 70, 5),
    _lossless("ReLU", (0, 6, 11, 13)),
    _lossless("LeakyReLU", (0, 5)),
    _lossless("Dropout", (0, 5), 0.5),
    _lossless("MaxPool2d", (0, 6, 11, 13), 2),
    _lossless("AvgPool2d", (0, 6, 11, 13), 2),
]
