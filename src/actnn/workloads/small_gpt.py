"""A small language model of our own, for where Hugging Face's are not installed: GPT-2's blocks in plain torch."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from actnn.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor, nn

NAME = "small_gpt"
HEAD_WIDTH = 32
DEVIATION = 0.02


def small_gpt(
    name: str, *, tokens: int, vocabulary: int, layers: int = 4, width: int = 128, **others: Any
) -> nn.Module:
    """Return a model that gives a score of each token at every place, from the tokens up to there."""
    if others or min(layers, width, tokens, vocabulary) < 1 or width % min(width, HEAD_WIDTH):
        raise ConfigError(
            f"the model {name!r} cannot be made: expected layers, width, tokens and vocabulary from 1 on, the width a "
            f"multiple of {HEAD_WIDTH}, and no other option."
        )
    model: nn.Module = types()["SmallGpt"](tokens, vocabulary, layers, width)
    return model


@cache
def types() -> dict[str, Any]:
    """Return the classes by name; they are made on first use because importing a benchmark must not import torch."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Attention(nn.Module):
        """Every place looks at those before it or, unless it is causal, at all that a mask allows."""

        def __init__(self, width: int, causal: bool) -> None:
            super().__init__()
            self.causal = causal
            self.heads = max(1, width // HEAD_WIDTH)
            self.inputs, self.outputs = nn.Linear(width, 3 * width), nn.Linear(width, width)

        def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
            batch, tokens, width = x.shape
            parts = self.inputs(x).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            queries, keys, values = parts.unbind()
            found = functional.scaled_dot_product_attention(queries, keys, values, mask, is_causal=self.causal)
            outputs: Tensor = self.outputs(found.transpose(1, 2).reshape(batch, tokens, width))
            return outputs

    class Block(nn.Module):
        """Attention and two linear layers, each behind a norm and with a way around."""

        def __init__(self, width: int, causal: bool = True) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.attention = Attention(width, causal)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            x = x + self.attention(self.norm1(x), mask)
            found: Tensor = x + self.mlp(self.norm2(x))
            return found

    class SmallGpt(nn.Module):
        """Tokens and places, blocks, and scores by the same matrix that tokens come in by."""

        def __init__(self, tokens: int, vocabulary: int, layers: int, width: int) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(tokens, width)
            self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
            self.norm = nn.LayerNorm(width)
            for layer in self.modules():
                if isinstance(layer, nn.Linear | nn.Embedding):
                    nn.init.normal_(layer.weight, std=DEVIATION)

        def forward(self, tokens: Tensor) -> Tensor:
            places = torch.arange(tokens.shape[1], device=tokens.device)
            x = self.norm(self.blocks(self.tokens(tokens) + self.places(places)))
            return functional.linear(x, self.tokens.weight)

    return {"SmallGpt": SmallGpt, "Block": Block}
