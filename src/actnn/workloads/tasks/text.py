"""Classification of texts: cross entropy, judged by the share of test texts that a model gets right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actnn.console.extras import require
from actnn.errors import ConfigError
from actnn.workloads import text_models
from actnn.workloads.metrics import METRICS
from actnn.workloads.readers.tables import PADDING, text_table
from actnn.workloads.tasks.goal import Call, Goal
from actnn.workloads.tasks.sources import source_of

if TYPE_CHECKING:
    from torch import Tensor, nn

    from actnn.workloads.datasets import DataSet
    from actnn.workloads.runs.settings import Settings
    from actnn.workloads.training import Recipe

WORDS = 64


class TextClassification(Goal):
    """Tell which class a text belongs to."""

    metric = METRICS["accuracy"]
    needs_two = False

    def load(self, settings: Settings) -> DataSet:
        require("--task text", ["torchmetrics"])
        _, path = source_of(settings, ("tsv",))
        length = settings.size or WORDS
        return text_table(Path(path), length, text_models.tokenizer_of(settings.model, length))

    def build(self, settings: Settings, data: DataSet) -> nn.Module:
        return text_models.build(settings.model, data.classes, settings.size or WORDS)

    def loss(self, call: Call, given: Any, wanted: Any, data: DataSet, recipe: Recipe) -> Tensor:
        from torch.nn import functional

        return functional.cross_entropy(scores_of(call, given), wanted, label_smoothing=recipe.label_smoothing)

    def score(self, call: Call, data: DataSet, batch: int, after_batch: Callable[[], object]) -> float:
        import torch
        from torchmetrics.classification import MulticlassAccuracy

        if data.classes < 2:
            raise ConfigError("all texts have one label: expected two at least.")
        metric = MulticlassAccuracy(data.classes, average="micro")
        for positions in torch.arange(data.test.image_count).split(batch):
            tokens, labels = data.test.batch(positions, None)
            metric.update(scores_of(call, tokens), labels)
            after_batch()
        return float(metric.compute())


def scores_of(call: Call, tokens: Any) -> Any:
    """Return the scores of some texts, whose padding nobody looks at."""
    outputs: Any = call(tokens, attention_mask=(tokens != PADDING).long())
    scores: Any = getattr(outputs, "logits", outputs)
    return scores.float()
