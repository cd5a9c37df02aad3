"""Models for texts by name: a small encoder of our own, BERT by configuration, and pretrained ones in folders."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from actnn.console.extras import require
from actnn.errors import ConfigError, UnsupportedError
from actnn.workloads import options, small_gpt
from actnn.workloads.readers.tables import MOST_WORDS, PADDING

if TYPE_CHECKING:
    from torch import Tensor, nn

SMALL, BERT, PRETRAINED = "small_encoder", "bert", "pretrained"
HELP = f"{SMALL}, {BERT} (with options as in {SMALL}:layers=2,width=64) or {PRETRAINED}:FOLDER of Hugging Face"
SIZES = {"layers": 2, "width": 128}


def build(name: str, classes: int, length: int) -> nn.Module:
    """Return a model that takes tokens and a mask, and gives a score of each class."""
    kind, _, text = name.partition(":")
    if kind == PRETRAINED:
        return pretrained(text, classes)
    sizes = SIZES | options.parsed(name, text)
    if kind not in (SMALL, BERT) or sizes.keys() != SIZES.keys():
        raise ConfigError(f"there is no model for texts {name!r}: expected {HELP}.")
    if kind == SMALL:
        made: nn.Module = types()["SmallEncoder"](length, classes, **sizes)
        return made
    return bert(classes, length, **sizes)


def bert(classes: int, length: int, layers: int, width: int) -> nn.Module:
    """Return Hugging Face's BERT with random weights."""
    require(f"the model {BERT!r}", ("transformers",))
    transformers = import_module("transformers")
    configuration = transformers.BertConfig(
        vocab_size=MOST_WORDS,
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=max(1, width // small_gpt.HEAD_WIDTH),
        intermediate_size=4 * width,
        max_position_embeddings=length,
        pad_token_id=PADDING,
        num_labels=classes,
    )
    model: nn.Module = transformers.BertForSequenceClassification(configuration)
    return model


def pretrained(folder: str, classes: int) -> nn.Module:
    """Return a pretrained model whose files lie in a folder, with a classifier that is new."""
    require(f"the model {PRETRAINED}:{folder}", ("transformers",))
    transformers = import_module("transformers")
    transformers.logging.set_verbosity_error()
    kind = transformers.AutoModelForSequenceClassification
    try:
        model: nn.Module = kind.from_pretrained(folder, num_labels=classes, local_files_only=True)
    except (OSError, ValueError) as problem:
        raise ConfigError(f"{folder} holds no model of Hugging Face ({problem}).") from problem
    return model


def tokenizer_of(name: str, length: int) -> Callable[[list[str]], list[list[int]]] | None:
    """Return what numbers the words of texts for a pretrained model, None where the data's own vocabulary does."""
    kind, _, folder = name.partition(":")
    if kind != PRETRAINED:
        return None
    require(f"the model {name}", ("transformers",))
    tokenizer = import_module("transformers").AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if tokenizer.pad_token_id != PADDING:
        raise UnsupportedError(f"{folder} pads texts with {tokenizer.pad_token_id}: expected {PADDING}, as BERT does.")

    def numbered(texts: list[str]) -> list[list[int]]:
        found: list[list[int]] = tokenizer(texts, padding="max_length", truncation=True, max_length=length).input_ids
        return found

    return numbered


@cache
def types() -> dict[str, Any]:
    """Return the classes by name; they are made on first use because importing a benchmark must not import torch."""
    import torch
    from torch import nn

    class SmallEncoder(nn.Module):
        """Words and places, blocks in which all look at all, and a classifier of their mean."""

        def __init__(self, length: int, classes: int, layers: int, width: int) -> None:
            super().__init__()
            block = small_gpt.types()["Block"]
            self.words, self.places = nn.Embedding(MOST_WORDS, width), nn.Embedding(length, width)
            self.blocks = nn.ModuleList(block(width, causal=False) for _ in range(layers))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)
            for embedding in (self.words, self.places):
                nn.init.normal_(embedding.weight, std=small_gpt.DEVIATION)

        def forward(self, tokens: Tensor, attention_mask: Tensor) -> Tensor:
            # a text without a word looks at its first place
            seen = attention_mask.bool() | (torch.arange(tokens.shape[1], device=tokens.device) == 0)
            x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
            for block in self.blocks:
                x = block(x, seen[:, None, None, :])
            share = seen[..., None] / seen.sum(1)[:, None, None]
            scores: Tensor = self.head((self.norm(x) * share).sum(1))
            return scores

    return {"SmallEncoder": SmallEncoder}
