"""By what trainings are judged: names, words, and which way is better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """A figure that an evaluation gives: a share, shown in percent, or a number of which less is better."""

    name: str
    words: str
    is_share: bool = True

    def shown(self, value: float | None) -> str:
        """Return a value in words."""
        if value is None:
            return "not measured"
        return f"{value:.2%}" if self.is_share else f"{value:.3f}"

    def difference(self, value: float, other: float) -> float:
        """Return by how much a value is better than another, in points of a share or in percent of a number."""
        return 100 * (value - other) if self.is_share else 100 * (other - value) / other

    def words_of(self, difference: float) -> str:
        """Return a difference in words."""
        return f"{difference:+.2f} points" if self.is_share else f"{-difference:+.2f} %"


METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "test accuracy"),
        Metric("mean_iou", "mean intersection over union"),
        Metric("mean_ap", "mean average precision"),
        Metric("neighbour_accuracy", "accuracy of nearest neighbours"),
        Metric("linear_accuracy", "accuracy of a linear probe"),
        Metric("perplexity", "perplexity", is_share=False),
    )
}
