"""Models by name, for benchmarks: torchvision's, and how each is cut into parts for checkpointing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actnn.errors import ConfigError, UnsupportedError

if TYPE_CHECKING:
    from torch import nn

NAMES = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "wide_resnet50_2", "densenet121", "vgg16_bn")
BLOCKS = ("BasicBlock", "Bottleneck", "_DenseLayer")


def build(name: str) -> nn.Module:
    """Return a fresh model with its own initialisation."""
    try:
        from torchvision import models
    except (ImportError, RuntimeError) as problem:
        raise UnsupportedError(f"models come from torchvision, which does not import here: {problem}") from problem
    if name not in NAMES:
        raise ConfigError(f"there is no model {name!r}: expected one of {', '.join(NAMES)}.")
    return getattr(models, name)()


def checkpointed(model: nn.Module) -> nn.Module:
    """Let every block keep only its input and compute the rest anew in backward."""
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    blocks = [layer for layer in model.modules() if type(layer).__name__ in BLOCKS]
    if not blocks:
        blocks = stages(model.features)
        model.features = nn.Sequential(*blocks)
    for block in blocks:
        block.forward = _Recomputed(block.forward, checkpoint)
    return model


def stages(features: nn.Sequential) -> list[nn.Module]:
    """Cut a chain of layers behind each pooling."""
    from torch import nn

    parts: list[list[nn.Module]] = [[]]
    for layer in features:
        parts[-1].append(layer)
        if isinstance(layer, nn.MaxPool2d):
            parts.append([])
    return [nn.Sequential(*part) for part in parts if part]


class _Recomputed:
    """A forward that is computed anew in backward."""

    def __init__(self, forward: Any, checkpoint: Any) -> None:
        self._forward, self._checkpoint = forward, checkpoint

    def __call__(self, *args: Any) -> Any:
        return self._checkpoint(self._forward, *args, use_reentrant=False)
