"""Learning without labels: MoCo v2 and BYOL, judged by what labels tell of their features afterwards."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from actnn.console.extras import require
from actnn.workloads import contrast, models
from actnn.workloads.images import images_of
from actnn.workloads.metrics import METRICS
from actnn.workloads.tasks.goal import Call, Goal

if TYPE_CHECKING:
    from torch import Tensor, nn

    from actnn.workloads.datasets import DataSet, Images
    from actnn.workloads.runs.settings import Settings
    from actnn.workloads.training import Recipe

# images with labels that features are judged with
LABELLED = 4096
NEIGHBOURS = 20
PROBE_STEPS = 200


class Unlabelled(Goal):
    """Learn what describes images."""

    def load(self, settings: Settings) -> DataSet:
        require("--task selfsupervised", ["sklearn"])
        return images_of(settings)

    def build(self, settings: Settings, data: DataSet) -> nn.Module:
        import torch

        channels = data.test.batch(torch.arange(1), None)[0].shape[1]
        with models.one_line(settings.model, "cannot be made"):
            return contrast.build(settings.model, channels)

    def loss(self, call: Call, given: Any, wanted: Any, data: DataSet, recipe: Recipe) -> Tensor:
        loss: Tensor = call(contrast.views(given), contrast.views(given))
        return loss

    def score(self, call: Call, data: DataSet, batch: int, after_batch: Callable[[], object]) -> float:
        learnt = described(call, data.train.limited(min(LABELLED, data.train.image_count)), batch, after_batch)
        tested = described(call, data.test, batch, after_batch)
        judge = self.judge(len(learnt[0]))
        judge.fit(*learnt)
        return float(judge.score(*tested))

    @abstractmethod
    def judge(self, count: int) -> Any:
        """Return what learns labels from the features of so many images."""


class SelfSupervised(Unlabelled):
    """Judged by the labels of nearest neighbours."""

    metric = METRICS["neighbour_accuracy"]

    def judge(self, count: int) -> Any:
        from sklearn.neighbors import KNeighborsClassifier

        return KNeighborsClassifier(min(NEIGHBOURS, count), weights="distance", metric="cosine")


class LinearProbe(Unlabelled):
    """Judged by a linear classifier."""

    metric = METRICS["linear_accuracy"]

    def judge(self, count: int) -> Any:
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        return make_pipeline(StandardScaler(), LogisticRegression(max_iter=PROBE_STEPS))


def described(call: Call, images: Images, batch: int, after_batch: Callable[[], object]) -> tuple[Any, Any]:
    """Return the features of some images and their labels."""
    import torch

    features = []
    for positions in torch.arange(images.image_count).split(batch):
        features.append(call(images.batch(positions, None)[0]))
        after_batch()
    return torch.cat(features).numpy(), images.labels.numpy()
