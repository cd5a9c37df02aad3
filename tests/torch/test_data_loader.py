"""actnn.DataLoader: torch's loader with the same arguments, and the positions of the samples besides."""

from __future__ import annotations

import pickle
from typing import NamedTuple

import numpy as np
import pytest
import torch
from planned_networks import pictures, plain_network, train
from torch.utils import data
from torch_framework import FRAMEWORK

import actnn
from actnn.errors import UnsupportedError

COUNT = 10


class Squares(data.Dataset):
    """Numbers and their squares, with an attribute of its own."""

    classes = ("even", "odd")

    def __init__(self, count: int = COUNT) -> None:
        self.count, self.offset = count, 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, position):
        return torch.tensor(float(position)), int(position) ** 2 + self.offset


class Fetched(Squares):
    """A dataset that fetches a batch at once."""

    def __getitems__(self, positions):
        return [("fetched", position) for position in positions]


class Bulk(Squares):
    """A dataset that is indexed with lists."""

    def __getitem__(self, positions):
        return torch.tensor(positions) ** 2


class Stream(data.IterableDataset):
    def __iter__(self):
        return iter(range(COUNT))


class Collated(NamedTuple):
    total: int
    items: list


def total(items):
    return Collated(sum(square for _, square in items), items)


class Backwards(data.Sampler):
    """A sampler that gives tensors, as ``iter(torch.randperm(n))`` would."""

    def __iter__(self):
        return iter(torch.arange(COUNT).flip(0))

    def __len__(self):
        return COUNT


class Named(data.Sampler):
    def __iter__(self):
        return iter(["a", "b"])

    def __len__(self):
        return 2


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


ARGUMENTS = {
    "defaults": dict,
    "batches": lambda: {"batch_size": 4},
    "last batch dropped": lambda: {"batch_size": 4, "drop_last": True},
    "shuffled": lambda: {"batch_size": 3, "shuffle": True, "generator": seeded()},
    "a collate function": lambda: {"batch_size": 4, "collate_fn": total},
    "a sampler of tensors": lambda: {"batch_size": 4, "sampler": Backwards()},
    "a random subset": lambda: {"batch_size": 2, "sampler": data.SubsetRandomSampler([7, 1, 4], generator=seeded())},
    "drawn with replacement": lambda: {"sampler": data.WeightedRandomSampler([1.0] * COUNT, 20, generator=seeded())},
    "a batch sampler": lambda: {"batch_sampler": [[1, 5], [9], [0, 2, 4]]},
    "two workers": lambda: {"batch_size": 4, "num_workers": 2, "shuffle": True, "generator": seeded()},
    "workers that stay": lambda: {"batch_size": 4, "num_workers": 1, "persistent_workers": True},
}


def equal(found, expected) -> None:
    """Raise unless two batches are the same, types and tensors alike."""
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            equal(one, other)
    else:
        assert found == expected


@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
def test_batches_are_those_of_torchs_loader(arguments):
    ours, theirs = actnn.DataLoader(Squares(), **arguments()), data.DataLoader(Squares(), **arguments())
    assert len(ours) == len(theirs)
    equal([batch for _, batch in ours], list(theirs))


@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
def test_indices_are_the_positions_of_the_samples(arguments):
    for indices, batch in actnn.DataLoader(Squares(), **arguments()):
        assert (indices.dtype, indices.dim()) == (torch.int64, 1)
        numbers = [number for number, _ in batch.items] if isinstance(batch, Collated) else batch[0]
        assert indices.tolist() == [int(number) for number in numbers]


def test_every_epoch_is_shuffled_anew_in_torchs_order():
    ours = actnn.DataLoader(Squares(), batch_size=COUNT, shuffle=True, generator=seeded())
    theirs = data.DataLoader(Squares(), batch_size=COUNT, shuffle=True, generator=seeded())
    orders = [indices.tolist() for _ in range(2) for indices, _ in ours]
    assert orders[0] != orders[1]
    assert orders == [numbers.int().tolist() for _ in range(2) for numbers, _ in theirs]


def test_a_dataset_that_fetches_whole_batches_still_does():
    loader = actnn.DataLoader(Fetched(), batch_size=2, collate_fn=list)
    indices, batch = next(iter(loader))
    assert batch == [("fetched", 0), ("fetched", 1)]
    assert indices.tolist() == [0, 1]


def test_without_batches_it_yields_each_index_with_its_item():
    found = list(actnn.DataLoader(Squares(3), batch_size=None))
    assert [(position, square) for position, (_, square) in found] == [(0, 0), (1, 1), (2, 4)]


def test_a_sampler_of_whole_batches_gives_their_indices():
    batches = data.BatchSampler(data.SequentialSampler(range(4)), 2, drop_last=False)
    found = [(indices.tolist(), items.tolist()) for indices, items in actnn.DataLoader(Bulk(), None, sampler=batches)]
    assert found == [([0, 1], [0, 1]), ([2, 3], [4, 9])]


@pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")
def test_pinned_batches_are_those_of_torchs_loader():
    ours = actnn.DataLoader(Squares(), batch_size=4, pin_memory=True)
    for (indices, batch), expected in zip(ours, data.DataLoader(Squares(), batch_size=4, pin_memory=True), strict=True):
        equal(batch, expected)
        assert indices.tolist() == batch[0].int().tolist()


def test_the_dataset_stays_reachable():
    squares = Squares()
    loader = actnn.DataLoader(squares, batch_size=2)
    assert isinstance(loader, data.DataLoader)
    assert len(loader.dataset) == COUNT
    assert loader.dataset.classes == ("even", "odd")
    assert loader.dataset.dataset is squares
    loader.dataset.offset = 5
    assert squares.offset == 5
    with pytest.raises(AttributeError, match="colour"):
        _ = loader.dataset.colour


def test_a_loader_made_anew_from_its_parts_wraps_nothing_twice():
    first = actnn.DataLoader(Squares(), batch_size=4)
    again = actnn.DataLoader(first.dataset, batch_sampler=first.batch_sampler, collate_fn=first.collate_fn)
    plain = data.DataLoader(first.dataset, batch_size=4, collate_fn=first.collate_fn)
    for loader in (again, plain):
        equal(list(loader), list(first))


def test_what_workers_receive_can_be_pickled():
    loader = actnn.DataLoader(Squares(), batch_size=4, collate_fn=total)
    dataset, collate = pickle.loads(pickle.dumps((loader.dataset, loader.collate_fn)))
    indices, batch = collate(dataset.__getitems__([3, 2]))
    assert (indices.tolist(), batch.total) == ([3, 2], 13)


def test_a_spawned_worker_yields_the_same():
    arguments = {"batch_size": 6, "collate_fn": total}
    spawned = actnn.DataLoader(Squares(), num_workers=1, multiprocessing_context="spawn", **arguments)
    equal(list(spawned), list(actnn.DataLoader(Squares(), **arguments)))


def test_samples_without_positions_are_refused_with_advice():
    with pytest.raises(UnsupportedError, match=r"Stream, an IterableDataset.*Use torch's DataLoader"):
        actnn.DataLoader(Stream())


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sampler_of_names_is_refused(workers):
    with pytest.raises(UnsupportedError, match="only whole numbers are positions"):
        next(iter(actnn.DataLoader(Squares(), batch_size=2, sampler=Named(), num_workers=workers)))


def test_a_model_remembers_samples_by_the_positions_that_the_loader_gives():
    model = FRAMEWORK.compressed(plain_network(FRAMEWORK), 2, level="L3")
    dataset = data.Subset(data.TensorDataset(torch.from_numpy(pictures(12))), range(8))
    for indices, (x,) in actnn.DataLoader(dataset, batch_size=4, shuffle=True):
        model.set_samples(indices)
        train(FRAMEWORK, model, x)
    # the gradients of a step are taken in when the next one begins
    model(torch.from_numpy(pictures(4)))
    norms = model._session.planner.norms.of(np.arange(12))
    assert len(set(norms[:8].tolist())) == 8
    assert set(norms[:8].tolist()).isdisjoint(norms[8:].tolist())
