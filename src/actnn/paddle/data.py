"""DataLoader: Paddle's own, which also says where in the dataset each sample lies.

Levels that give every sample a width of its own remember samples from epoch to epoch, by their position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from paddle import io

from actnn.model.data import IndexedItems, check_dataset, whole_numbers


class DataLoader(io.DataLoader):
    """Paddle's DataLoader, with its arguments; yields ``[indices, batch]``.

    ``indices`` is an int64 tensor of the samples' positions in the dataset, ``batch`` what Paddle's loader would yield.
    The loader's ``dataset`` wraps the given one: attributes and length are the same, items are ``(index, item)``.
    """

    def __init__(self, dataset: Any, *args: Any, **kwargs: Any) -> None:
        check_dataset(dataset, io.IterableDataset, "Paddle")
        super().__init__(dataset if isinstance(dataset, Indexed) else Indexed(dataset), *args, **kwargs)
        # Paddle's own collate function takes nested items as they are
        if self.collate_fn is not None and not isinstance(self.collate_fn, CollateIndexed):
            collate: Any = CollateIndexed(self.collate_fn)
            self.collate_fn = collate


class Indexed(IndexedItems, io.Dataset[Any]):
    """A dataset of Paddle whose items come with their index."""

    def __getitem__(self, position: Any) -> tuple[Any, Any]:
        if isinstance(position, list):
            return np.array(whole_numbers(position, "Paddle")), self.dataset[position]
        return whole_numbers([position], "Paddle")[0], self.dataset[position]


class CollateIndexed:
    """A collate function that leaves the indices aside; a class, since worker processes may receive it pickled."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.collate = collate

    def __call__(self, indexed: Sequence[tuple[int, Any]]) -> list[Any]:
        indices, items = zip(*indexed, strict=True)
        return [np.array(indices), self.collate(list(items))]
