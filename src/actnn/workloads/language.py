"""Language models of Hugging Face by configuration: real classes with random weights, so that nothing is downloaded.

``gpt2:layers=4,width=256,tokens=128`` is a name with options; ``Language`` has them all. Texts are random tokens, the
k-th most frequent of which comes about 1 / k as often as the first, as words do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from actnn.console.extras import require
from actnn.errors import ConfigError
from actnn.workloads import options
from actnn.workloads.batch import Batch

if TYPE_CHECKING:
    from torch import Tensor, nn

# the width of one head where nobody says how many there are, as in all three
HEAD_WIDTH = 64
MASKED_SHARE = 0.15
# what the loss of every model leaves out
NO_LABEL = -100


@dataclass(frozen=True)
class Language:
    """A language model and the length of its texts; 0 ``heads`` are as many as have the usual width each."""

    family: str
    vocabulary: int
    layers: int = 12
    width: int = 768
    heads: int = 0
    tokens: int = 512
    dropout: float = 0.0
    attention: str = "sdpa"

    def build(self) -> nn.Module:
        """Return a fresh model with its own initialisation."""
        row = FAMILIES[self.family]
        require(f"the model {self.family!r}", ("transformers",))
        transformers = import_module("transformers")
        # it would say how it chooses the loss of a GPT-2, once a process
        transformers.logging.set_verbosity_error()
        heads = self.head_count
        if self.width % heads:
            raise ConfigError(f"{self.family} has {heads} heads on a width of {self.width}: expected a divisor of it.")
        configuration = getattr(transformers, row.configuration)(
            vocab_size=self.vocabulary,
            num_hidden_layers=self.layers,
            hidden_size=self.width,
            num_attention_heads=heads,
            max_position_embeddings=self.tokens,
            attn_implementation=self.attention,
            use_cache=False,
            # a small vocabulary has no room for those of the published models
            **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
            **row.settings(self),
        )
        model: nn.Module = getattr(transformers, row.model)(configuration)
        return model

    @property
    def head_count(self) -> int:
        """How many heads an attention has."""
        return self.heads or max(1, self.width // HEAD_WIDTH)

    def batch(self, count: int) -> Batch:
        """Draw some texts from torch's random numbers."""
        import torch

        # a uniform logarithm: what lies between k and k + 1 is the k-th token
        drawn = (self.vocabulary + 1) ** torch.rand(count, self.tokens, dtype=torch.float64)
        return self.batch_of((drawn.long() - 1).clamp(0, self.vocabulary - 1))

    def batch_of(self, texts: Tensor) -> Batch:
        """Return what the model is to predict of some texts."""
        return Batch((), FAMILIES[self.family].inputs(texts, self.vocabulary), None)

    @property
    def smallest(self) -> str:
        """The name of the smallest model of the same family."""
        return f"{self.family}:layers=1,width=16,tokens=8,vocabulary=16"


def next_tokens(texts: Tensor, vocabulary: int) -> dict[str, Tensor]:
    """Let a model predict every token from those before it; the model itself compares each with the next."""
    return {"input_ids": texts, "labels": texts}


def masked_tokens(texts: Tensor, vocabulary: int) -> dict[str, Tensor]:
    """Let a model predict some tokens from all others; the last token of the vocabulary stands in their place."""
    import torch

    masked = torch.rand(texts.shape) < MASKED_SHARE
    # at least one, of which there is a loss
    masked[..., 0] = True
    return {
        "input_ids": torch.where(masked, vocabulary - 1, texts),
        "labels": torch.where(masked, texts, NO_LABEL),
    }


def of_gpt2(model: Language) -> dict[str, Any]:
    """Return the settings that only GPT-2 has."""
    return dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), model.dropout)


def of_llama(model: Language) -> dict[str, Any]:
    """Return the settings that only Llama has; three matrices of 8/3 of the width are as large as two of 4 times."""
    return {"intermediate_size": max(1, 8 * model.width // 3), "attention_dropout": model.dropout}


def of_bert(model: Language) -> dict[str, Any]:
    """Return the settings that only BERT has."""
    dropouts = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), model.dropout)
    return {**dropouts, "intermediate_size": 4 * model.width}


def of_qwen2(model: Language) -> dict[str, Any]:
    """Return the settings that only Qwen2 has; unlike the published ones it has as many heads of keys as of queries."""
    return {**of_llama(model), "num_key_value_heads": model.head_count}


def of_opt(model: Language) -> dict[str, Any]:
    """Return the settings that only OPT has."""
    widths = {"ffn_dim": 4 * model.width, "word_embed_proj_dim": model.width}
    return {**widths, "dropout": model.dropout, "attention_dropout": model.dropout}


def of_distilbert(model: Language) -> dict[str, Any]:
    """Return the settings that only DistilBERT has."""
    return {"hidden_dim": 4 * model.width, "dropout": model.dropout, "attention_dropout": model.dropout}


def is_count(value: Any) -> bool:
    """Tell whether a value is a whole number above 0."""
    return type(value) is int and value > 0


def is_share(value: Any) -> bool:
    """Tell whether a value is a number from 0 to below 1."""
    return type(value) in (int, float) and 0 <= value < 1


class Family(NamedTuple):
    """The classes of a kind of model, the vocabulary of the published one, its own settings, and what it predicts."""

    model: str
    configuration: str
    vocabulary: int
    settings: Callable[[Language], dict[str, Any]]
    inputs: Callable[[Tensor, int], dict[str, Tensor]]


FAMILIES: Mapping[str, Family] = {
    "gpt2": Family("GPT2LMHeadModel", "GPT2Config", 50257, of_gpt2, next_tokens),
    "llama": Family("LlamaForCausalLM", "LlamaConfig", 32000, of_llama, next_tokens),
    "bert": Family("BertForMaskedLM", "BertConfig", 30522, of_bert, masked_tokens),
    "qwen2": Family("Qwen2ForCausalLM", "Qwen2Config", 151936, of_qwen2, next_tokens),
    "opt": Family("OPTForCausalLM", "OPTConfig", 50272, of_opt, next_tokens),
    "distilbert": Family("DistilBertForMaskedLM", "DistilBertConfig", 30522, of_distilbert, masked_tokens),
}
ATTENTIONS = ("sdpa", "eager")
# whether a value of an option fits, and what is expected of it
OPTIONS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("layers", "width", "heads", "tokens", "vocabulary"), (is_count, "a whole number of at least 1")),
    "dropout": (is_share, "a number from 0 to below 1"),
    "attention": (ATTENTIONS.__contains__, " or ".join(ATTENTIONS)),
}
HELP = f"{', '.join(FAMILIES)} (of Hugging Face, with options as in gpt2:layers=4,width=256,tokens=128)"


def find(name: str) -> Language | None:
    """Return the language model of a name, None where it is that of another model."""
    family, _, text = name.partition(":")
    if family not in FAMILIES:
        return None
    given = options.parsed(name, text)
    for option, value in given.items():
        if option not in OPTIONS:
            raise ConfigError(f"the model {name!r} has no option {option!r}: expected one of {', '.join(OPTIONS)}.")
        fits, expected = OPTIONS[option]
        if not fits(value):
            raise ConfigError(f"the model {name!r} has {option}={value}: expected {expected}.")
    return Language(family, **({"vocabulary": FAMILIES[family].vocabulary} | given))
