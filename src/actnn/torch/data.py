"""DataLoader: torch's own, which also says where in the dataset each sample lies.

Levels that give every sample a width of its own remember samples from epoch to epoch, by their position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import index
from typing import Any

import torch
from torch import Tensor
from torch.utils import data

from actnn.errors import UnsupportedError


class DataLoader(data.DataLoader):
    """torch's DataLoader, with its arguments; yields ``(indices, batch)``.

    ``indices`` is an int64 tensor of the samples' positions in the dataset, ``batch`` what torch's loader would yield.
    With ``batch_size=None`` it yields ``(index, item)`` for the index that the sampler gave, a list as such a tensor.
    The loader's ``dataset`` wraps the given one: attributes and length are the same, items are ``(index, item)``.
    """

    def __init__(self, dataset: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(dataset, data.IterableDataset):
            raise UnsupportedError(
                f"actnn.DataLoader was given a {type(dataset).__name__}, an IterableDataset, whose samples have no "
                "positions: expected a dataset with __getitem__ and __len__. Use torch's DataLoader, and either let "
                "the dataset yield a number with each sample for model.set_samples, or leave use_gradient off."
            )
        # who makes a loader anew from the parts of this one hands in parts that are wrapped already
        super().__init__(dataset if isinstance(dataset, Indexed) else Indexed(dataset), *args, **kwargs)
        if not isinstance(self.collate_fn, CollateIndexed):
            self.collate_fn = CollateIndexed(self.collate_fn)


class Indexed(data.Dataset):
    """A dataset whose items come with their index; other attributes are those of the ``dataset`` that it wraps."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitem__(self, position: Any) -> tuple[Any, Any]:
        return positions(position) if isinstance(position, list) else position, self.dataset[position]

    def __getitems__(self, batch: Any) -> tuple[Tensor, Any]:
        """Return a batch's positions and items; torch hands them to the collate function as they are."""
        fetch = getattr(self.dataset, "__getitems__", None)
        return positions(batch), fetch(batch) if fetch else [self.dataset[position] for position in batch]

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


class CollateIndexed:
    """A collate function that leaves the indices aside; a class, since worker processes may receive it pickled."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.collate = collate

    def __call__(self, indexed: tuple[Any, Any]) -> tuple[Any, Any]:
        indices, items = indexed
        return indices, self.collate(items)


def positions(batch: Iterable[Any]) -> Tensor:
    """Return what a sampler gave for one batch as an int64 tensor."""
    try:
        return torch.tensor([index(position) for position in batch], dtype=torch.int64)
    except TypeError as problem:
        raise UnsupportedError(
            f"the sampler gave {batch!r}, and only whole numbers are positions in a dataset: let it give those, or use "
            "torch's DataLoader."
        ) from problem
