"""Language modelling: the next byte of a text, judged by perplexity."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actnn.console.extras import require
from actnn.errors import ConfigError
from actnn.workloads import language, options, small_gpt
from actnn.workloads.metrics import METRICS
from actnn.workloads.readers.plain_text import VOCABULARY, text_windows
from actnn.workloads.tasks.goal import Call, Goal
from actnn.workloads.tasks.sources import source_of

if TYPE_CHECKING:
    from torch import Tensor, nn

    from actnn.workloads.datasets import DataSet
    from actnn.workloads.runs.settings import Settings
    from actnn.workloads.training import Recipe

TOKENS = 128
FAMILIES = ("gpt2", "llama")


class LanguageModelling(Goal):
    """Predict each byte of a text from those before it."""

    metric = METRICS["perplexity"]
    needs_two = False

    def load(self, settings: Settings) -> DataSet:
        require("--task language", ["torchmetrics"])
        _, path = source_of(settings, ("text",))
        return text_windows(Path(path), settings.size or TOKENS)

    def build(self, settings: Settings, data: DataSet) -> nn.Module:
        name, _, text = settings.model.partition(":")
        sizes = {"tokens": settings.size or TOKENS, "vocabulary": VOCABULARY}
        if name == small_gpt.NAME:
            return small_gpt.small_gpt(settings.model, **(sizes | options.parsed(settings.model, text)))
        if name not in FAMILIES:
            raise ConfigError(
                f"{settings.model!r} is no language model: expected {small_gpt.NAME}, {' or '.join(FAMILIES)}, with "
                f"options as in {small_gpt.NAME}:layers=4,width=128."
            )
        given = ",".join(f"{option}={value}" for option, value in sizes.items() if f"{option}=" not in text)
        found = language.find(f"{name}:{','.join(filter(None, (text, given)))}")
        assert found is not None
        return found.build()

    def loss(self, call: Call, given: Any, wanted: Any, data: DataSet, recipe: Recipe) -> Tensor:
        from torch.nn import functional

        scores = logits_of(call(given))[:, :-1]
        smoothing = recipe.label_smoothing
        return functional.cross_entropy(scores.flatten(0, 1), wanted[:, 1:].flatten(), label_smoothing=smoothing)

    def score(self, call: Call, data: DataSet, batch: int, after_batch: Callable[[], object]) -> float:
        import torch
        from torchmetrics.text import Perplexity

        metric = Perplexity()
        for positions in torch.arange(data.test.image_count).split(batch):
            tokens, _ = data.test.batch(positions, None)
            metric.update(logits_of(call(tokens))[:, :-1], tokens[:, 1:])
            after_batch()
        return float(metric.compute())


def logits_of(outputs: Any) -> Any:
    """Return the scores that a model gave: Hugging Face's lie in an object."""
    return getattr(outputs, "logits", outputs).float()
