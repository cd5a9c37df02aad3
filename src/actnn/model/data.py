"""Datasets whose items come with their position: what a DataLoader of either framework is made of."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Any

from actnn.errors import UnsupportedError


class IndexedItems:
    """A dataset whose items come with their index; other attributes are those of the ``dataset`` that it wraps."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitem__(self, position: Any) -> tuple[Any, Any]:
        return position, self.dataset[position]

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        # a copy that is being unpickled has no dataset yet, and is asked for what Python itself calls
        if name == "dataset" or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "dataset":
            super().__setattr__(name, value)
        else:
            setattr(self.dataset, name, value)


def whole_numbers(batch: Iterable[Any], framework: str) -> list[int]:
    """Return what a sampler gave for one batch; raise UnsupportedError unless these are positions."""
    try:
        return [index(position) for position in batch]
    except TypeError as problem:
        raise UnsupportedError(
            f"the sampler gave {batch!r}, and only whole numbers are positions in a dataset: let it give those, or use "
            f"{framework}'s DataLoader."
        ) from problem


def check_dataset(dataset: Any, iterable: type[Any], framework: str) -> None:
    """Raise UnsupportedError for a dataset whose samples have no positions."""
    if isinstance(dataset, iterable):
        raise UnsupportedError(
            f"actnn.DataLoader was given a {type(dataset).__name__}, an IterableDataset, whose samples have no "
            f"positions: expected a dataset with __getitem__ and __len__. Use {framework}'s DataLoader, and either let "
            "the dataset yield a number with each sample for model.set_samples, or leave use_gradient off."
        )
