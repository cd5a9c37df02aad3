"""DataLoader: torch's own, which also says where in the dataset each sample lies.

Levels that give every sample a width of its own remember samples from epoch to epoch, by their position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils import data

from actnn.model.data import IndexedItems, check_dataset, whole_numbers


class DataLoader(data.DataLoader[Any]):
    """torch's DataLoader, with its arguments; yields ``(indices, batch)``.

    ``indices`` is an int64 tensor of the samples' positions in the dataset, ``batch`` what torch's loader would yield.
    With ``batch_size=None`` it yields ``(index, item)`` for the index that the sampler gave, a list as such a tensor.
    The loader's ``dataset`` wraps the given one: attributes and length are the same, items are ``(index, item)``.
    """

    def __init__(self, dataset: Any, *args: Any, **kwargs: Any) -> None:
        check_dataset(dataset, data.IterableDataset, "torch")
        # who makes a loader anew from the parts of this one hands in parts that are wrapped already
        super().__init__(dataset if isinstance(dataset, Indexed) else Indexed(dataset), *args, **kwargs)
        if not isinstance(self.collate_fn, CollateIndexed):
            self.collate_fn = CollateIndexed(self.collate_fn)


class Indexed(IndexedItems, data.Dataset[Any]):
    """A dataset of torch whose items come with their index."""

    def __getitem__(self, position: Any) -> tuple[Any, Any]:
        return positions(position) if isinstance(position, list) else position, self.dataset[position]

    def __getitems__(self, batch: Any) -> tuple[Tensor, Any]:
        """Return a batch's positions and items; torch hands them to the collate function as they are."""
        fetch = getattr(self.dataset, "__getitems__", None)
        return positions(batch), fetch(batch) if fetch else [self.dataset[position] for position in batch]


class CollateIndexed:
    """A collate function that leaves the indices aside; a class, since worker processes may receive it pickled."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.collate = collate

    def __call__(self, indexed: tuple[Any, Any]) -> tuple[Any, Any]:
        indices, items = indexed
        return indices, self.collate(items)


def positions(batch: Iterable[Any]) -> Tensor:
    """Return what a sampler gave for one batch as an int64 tensor."""
    return torch.tensor(whole_numbers(batch, "torch"), dtype=torch.int64)
