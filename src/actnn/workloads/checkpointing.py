"""Checkpointing as a contestant: how a model is cut into parts that keep only their input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actnn.errors import UnsupportedError

if TYPE_CHECKING:
    from torch import nn

BLOCKS = (
    *("BasicBlock", "Bottleneck", "_DenseLayer", "Block", "InvertedResidual", "EncoderBlock", "CNBlock"),
    *("SwinTransformerBlock", "GPT2Block", "LlamaDecoderLayer", "BertLayer", "Qwen2DecoderLayer", "OPTDecoderLayer"),
    # of DistilBERT
    "TransformerBlock",
)


def checkpointed(model: nn.Module) -> nn.Module:
    """Let every block keep only its input and compute the rest anew in backward."""
    from torch.utils.checkpoint import checkpoint

    for block in blocks_of(model):
        block.forward = _Recomputed(block.forward, checkpoint)
    return model


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the parts that a model is cut into; a chain of layers is cut into chains."""
    from torch import nn

    blocks = [layer for layer in model.modules() if type(layer).__name__ in BLOCKS]
    if not blocks:
        features = getattr(model, "features", None)
        if not isinstance(features, nn.Sequential):
            raise UnsupportedError(
                f"a {type(model).__name__} cannot be cut into parts for checkpointing: expected layers of a type among "
                f"{', '.join(BLOCKS)}, or a chain of layers named features. Leave the contestant checkpoint out."
            )
        blocks = stages(features)
        model.features = nn.Sequential(*blocks)
    return blocks


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

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._checkpoint(self._forward, *args, use_reentrant=False, **named)
