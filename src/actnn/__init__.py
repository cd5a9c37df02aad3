"""actnn: activation compressed training. Importing it loads no framework."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from actnn.core.settings import QBNScheme, QScheme, config, set_optimization_level
from actnn.errors import (
    ActnnError,
    BudgetError,
    ConfigError,
    DemandError,
    FormatError,
    SessionError,
    ShapeError,
    SwapError,
    UnsupportedError,
)

# resolved on first use, so that a framework is loaded only by those who use it
_LAZY = dict.fromkeys(
    (
        "DataLoader",
        "QModule",
        "QConv1d",
        "QConv2d",
        "QConv3d",
        "QConvTranspose1d",
        "QConvTranspose2d",
        "QConvTranspose3d",
        "QLinear",
        "QBatchNorm1d",
        "QBatchNorm2d",
        "QBatchNorm3d",
        "QSyncBatchNorm",
        "QReLU",
        "QReLU6",
        "QLeakyReLU",
        "QDropout",
        "QMaxPool1d",
        "QMaxPool2d",
        "QMaxPool3d",
        "QAvgPool2d",
        "verify",
    ),
    "actnn.torch",
)

__all__ = [
    "ActnnError",
    "BudgetError",
    "ConfigError",
    "DemandError",
    "FormatError",
    "QBNScheme",
    "QScheme",
    "SessionError",
    "ShapeError",
    "SwapError",
    "UnsupportedError",
    "config",
    "set_optimization_level",
    *_LAZY,
]

try:
    __version__ = version("actnn")
except PackageNotFoundError:  # run from the sources
    __version__ = "0+source"


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'actnn' has no attribute {name!r}")
    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
