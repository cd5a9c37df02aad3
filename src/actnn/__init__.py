"""actnn: activation compressed training. Importing it loads no framework."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from actnn.model.usage import compute_tensor_bytes
    from actnn.settings import QBNScheme, QScheme, config, set_optimization_level

# resolved on first use, so that a framework is loaded only by those who use it
_LAZY = dict.fromkeys(
    (
        "DataLoader",
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
        "QAdaptiveAvgPool2d",
        "QLayerNorm",
        "QRMSNorm",
        "QGroupNorm",
        "QGELU",
        "QSiLU",
        "QMish",
        "QHardswish",
        "QHardsigmoid",
        "QSigmoid",
        "QTanh",
        "QSoftplus",
        "QELU",
        "QSoftmax",
        "QLogSoftmax",
        "QCrossEntropyLoss",
        "QMultiheadAttention",
        "QEmbedding",
    ),
    "actnn.torch",
) | {
    # numpy with them: the command line must be able to catch Ctrl-C before that is loaded
    "QBNScheme": "actnn.settings",
    "QScheme": "actnn.settings",
    "config": "actnn.settings",
    "set_optimization_level": "actnn.settings",
    "compute_tensor_bytes": "actnn.model.usage",
    # by itself: it loads torch's compiler
    "compile": "actnn.torch.compiled",
}

__all__ = [
    "ActnnError",
    "BudgetError",
    "ConfigError",
    "DemandError",
    "FormatError",
    "QBNScheme",
    "QModule",
    "QScheme",
    "SessionError",
    "ShapeError",
    "SwapError",
    "UnsupportedError",
    "compile",
    "compute_tensor_bytes",
    "config",
    "get_memory_usage",
    "load",
    "register",
    "save",
    "set_optimization_level",
    "verify",
    *(name for name in _LAZY if _LAZY[name] == "actnn.torch"),
]
# the frameworks, by the package in which the types of their models are defined
_FRONT_ENDS = {"torch": "actnn.torch", "paddle": "actnn.paddle"}


def _front_end(what: str, model: Any) -> Any:
    """Return the front end that a model belongs to; loads no framework but the one that made the model."""
    name = _front_end_of(type(model))
    if name is None:
        raise UnsupportedError(
            f"{what} was given a {type(model).__name__}: expected a torch.nn.Module or a paddle.nn.Layer."
        )
    return import_module(name)


def _front_end_of(kind: type[Any]) -> str | None:
    """Return the name of the front end whose framework a class derives from, if there is one."""
    packages = (base.__module__.partition(".")[0] for base in kind.__mro__)
    return next((_FRONT_ENDS[package] for package in packages if package in _FRONT_ENDS), None)


class _AnyWrapper(type):
    """The type of QModule: models that either front end converted are its instances."""

    def __instancecheck__(cls, instance: Any) -> bool:
        from actnn.model.wrapper import Wrapper

        return isinstance(instance, Wrapper)


class QModule(metaclass=_AnyWrapper):
    """A model whose layers keep codes instead of activations: see QModule of actnn.torch and actnn.paddle."""

    def __new__(cls, model: Any, **settings: Any) -> Any:
        """Convert a torch.nn.Module or a paddle.nn.Layer with its own front end's QModule."""
        from actnn.model.wrapper import Wrapper, check_layers

        if isinstance(model, Wrapper):
            check_layers(model, ())
        return _front_end("QModule", model).QModule(model, **settings)


def verify(model: Any, *args: Any, **kwargs: Any) -> Any:
    """Compare a model's gradient from codes with its exact one: see verify of actnn.torch and actnn.paddle."""
    return _front_end("verify", model).verify(model, *args, **kwargs)


def save(path: Any, model: Any, **parts: Any) -> None:
    """Write a checkpoint from which training goes on bit for bit: see save of actnn.torch and actnn.paddle."""
    _front_end("save", model).save(path, model, **parts)


def load(path: Any, model: Any, **parts: Any) -> dict[str, Any]:
    """Bring a model and objects to where ``save`` was called: see load of actnn.torch and actnn.paddle."""
    found: dict[str, Any] = _front_end("load", model).load(path, model, **parts)
    return found


def register(kind: type[Any], forward: Any) -> None:
    """Let converted models compute layers of a class by another function: see register of the front ends."""
    name = _front_end_of(kind) if isinstance(kind, type) else None
    if name is None:
        raise ConfigError(f"register was given {kind!r}: expected a class of torch modules or of paddle layers.")
    import_module(name).register(kind, forward)


def get_memory_usage(print_info: bool = False) -> int:
    """Return the bytes that tensors take on accelerators or, where there are none, that this process holds."""
    from actnn.model.usage import memory_usage

    fronts = [front_end for framework, front_end in _FRONT_ENDS.items() if framework in sys.modules]
    loaded = [import_module(f"{front_end}.memory") for front_end in fronts]
    return memory_usage(sum(each.device_bytes() for each in loaded), print_info)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("actnn")
    except PackageNotFoundError:  # run from the sources
        return "0+source"


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value = _version()
    elif name in _LAZY:
        value = getattr(import_module(_LAZY[name]), name)
    else:
        raise AttributeError(f"module 'actnn' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
