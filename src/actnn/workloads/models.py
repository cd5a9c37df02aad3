"""Models for images by name: own ones, torchvision's, timm's, and functions of the user's."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from actnn.console.extras import require
from actnn.errors import ActnnError, ConfigError, UnsupportedError
from actnn.measuring.processes import in_one_line
from actnn.workloads import language, options, resnets
from actnn.workloads.dilation import dilation8
from actnn.workloads.hrnet import fcn_hrnet
from actnn.workloads.pyramid import fpn
from actnn.workloads.small_resnet import small_resnet

if TYPE_CHECKING:
    from torch import nn

# takes how many classes a model tells apart and how many channels images have, and options of a package's own
Builder = Callable[..., "nn.Module"]

OWN: Mapping[str, Builder] = {
    "small_resnet": lambda classes, channels: small_resnet(classes, inputs=channels),
    "fcn_hrnet_w48": partial(fcn_hrnet, 48),
    "fcn_hrnet_w18": partial(fcn_hrnet, 18),
    "dilation8": partial(dilation8, 64),
    "dilation8_small": partial(dilation8, 16),
    "fpn": fpn,
    **{name: partial(resnets.resnet, shape) for name, shape in resnets.SHAPES.items()},
}
# families with a number in their name: the scaled ResNet, by depth and by width; Python reads 4300 digits
SCALED: Mapping[str, Callable[[int], resnets.Shape]] = {
    r"resnet-(\d{1,99})": resnets.deep,
    r"wide-resnet-(\d{1,99})": resnets.wide,
}
NAMES = tuple(OWN)
SEGMENTATION = ("fcn_hrnet_w48", "fcn_hrnet_w18", "dilation8", "dilation8_small", "fpn")
HELP = (
    f"{', '.join(NAMES)}, resnet-DEPTH, wide-resnet-WIDTH, a name of torchvision or timm, torchvision:NAME or "
    "timm:NAME (with options as in timm:vit_tiny_patch16_224:img_size=64,depth=4), or module:function"
)


def build(name: str, *, classes: int = 1000, channels: int = 3) -> nn.Module:
    """Return a fresh model for images of so many channels, with its own initialisation."""
    if name in OWN:
        return OWN[name](classes, channels)
    for pattern, shape in SCALED.items():
        if found := re.fullmatch(pattern, name):
            return resnets.resnet(shape(int(found[1])), classes, channels)
    if language.find(name) is not None:
        raise ConfigError(f"{name} is a language model, which learns from texts: expected a model for images.")
    if name.partition(":")[0] in PACKAGES:
        return from_package(name, classes, channels)
    if ":" in name:
        return from_function(name, classes, channels)
    missing = []
    known = list(NAMES)
    for package, load in PACKAGES.items():
        try:
            builders = load()
        except (ImportError, RuntimeError) as problem:
            # a torchvision built for another torch raises RuntimeError
            missing.append(f"{package} ({problem})")
            continue
        if name in builders:
            return builders[name](classes, channels)
        known += builders
    raise unknown(name, known, missing)


def unknown(name: str, known: Iterable[str], missing: list[str]) -> Exception:
    """Return the error for an unknown name; it names missing packages, since the model may be one of theirs."""
    # several packages have a ResNet-50
    close = difflib.get_close_matches(name, list(dict.fromkeys(known)), n=3)
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"expected {HELP}."
    if missing:
        return UnsupportedError(
            f"there is no model {name!r} here; {hint} These packages of models do not import: {', '.join(missing)}. "
            "Install them with pip install 'actnn[models]' if it is one of theirs."
        )
    return ConfigError(f"there is no model {name!r}: {hint}")


def torchvision_builders() -> Mapping[str, Builder]:
    """Return torchvision's classification models; other tasks return more than one tensor."""
    from torchvision import models

    def build(name: str, classes: int, channels: int, **options: Any) -> nn.Module:
        given = {"num_classes": classes} | OF_TORCHVISION.get(name, {}) | options
        return adapted(getattr(models, name)(**given), channels)

    return {name: partial(build, name) for name in models.list_models(module=models)}


def timm_builders() -> Mapping[str, Builder]:
    """Return timm's models."""
    import timm

    def build(name: str, classes: int, channels: int, **options: Any) -> nn.Module:
        model: nn.Module = timm.create_model(name, **{"num_classes": classes, "in_chans": channels} | options)
        return model

    return {name: partial(build, name) for name in timm.list_models()}


PACKAGES: Mapping[str, Callable[[], Mapping[str, Builder]]] = {
    "torchvision": torchvision_builders,
    "timm": timm_builders,
}


# networks that would otherwise be initialised in a way that torchvision itself warns of
OF_TORCHVISION = {name: {"init_weights": True} for name in ("googlenet", "inception_v3")}


def from_package(name: str, classes: int, channels: int) -> nn.Module:
    """Return the model of a ``package:model`` or ``package:model:option=value,…``."""
    package, own, text = (*name.split(":", 2), "")[:3]
    require(f"the model {name!r}", (package,))
    given = options.parsed(name, text)
    with one_line(name, f"cannot be made by {package}"):
        builders = PACKAGES[package]()
        if own not in builders:
            raise unknown(name, [f"{package}:{known}" for known in builders], [])
        return builders[own](classes, channels, **given)


def adapted(model: nn.Module, channels: int) -> nn.Module:
    """Give the first convolution of a model for colour images as many input channels as the images have."""
    from torch import nn

    if channels == 3:
        return model
    place, first = next((name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d))
    shape: dict[str, Any] = {name: getattr(first, name) for name in ("kernel_size", "stride", "padding", "dilation")}
    replaced = nn.Conv2d(channels, first.out_channels, **shape, bias=first.bias is not None)
    parent, _, own = place.rpartition(".")
    setattr(model.get_submodule(parent), own, replaced)
    return model


def from_function(name: str, classes: int, channels: int) -> nn.Module:
    """Return what a ``module:function`` of the user's makes; it gets ``classes`` and ``channels`` if it names them."""
    from torch import nn

    module, _, attribute = name.partition(":")
    # an installed command does not look into the working directory by itself
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())
    with one_line(name, "cannot be loaded as module:function"):
        function = getattr(importlib.import_module(module), attribute)
    if not callable(function):
        raise ConfigError(f"the model {name!r} is a {type(function).__name__}: expected a function that makes a model.")
    with one_line(name, "cannot be made from classes and channels alone"):
        taken = inspect.signature(function).parameters
        given = {"classes": classes, "channels": channels}
        model = function(**{key: value for key, value in given.items() if key in taken})
    if not isinstance(model, nn.Module):
        raise ConfigError(f"the model {name!r} made a {type(model).__name__}: expected a torch.nn.Module.")
    return model


@contextmanager
def one_line(name: str, fails: str) -> Iterator[None]:
    """Turn any error of the user's code, and an attempt to end the program, into a ConfigError of one line."""
    try:
        yield
    except ActnnError:
        raise
    except (Exception, SystemExit) as problem:
        raise ConfigError(f"the model {name!r} {fails}: {in_one_line(problem)}") from problem
