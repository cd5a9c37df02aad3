"""actnn.DataLoader: Paddle's loader with the same arguments, and the positions of the samples besides."""

from __future__ import annotations

import numpy as np
import pytest
from paddle import io, nn

import actnn.paddle as actnn

COUNT = 10


class Squares(io.Dataset):
    """Numbers and their squares, with an attribute of its own."""

    classes = ("even", "odd")

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, position):
        return np.float32(position), np.int64(position**2)


class Stream(io.IterableDataset):
    def __iter__(self):
        return iter(range(COUNT))


def total(items):
    """Collate to the numbers, and the sum of their squares."""
    return [np.array([number for number, _ in items]), sum(square for _, square in items)]


def batches_of(**options):
    return {"batch_sampler": io.BatchSampler(Squares(), **options)}


ARGUMENTS = {
    "defaults": dict,
    "batches": lambda: {"batch_size": 4},
    "last batch dropped": lambda: {"batch_size": 4, "drop_last": True},
    "shuffled": lambda: {"batch_size": 3, "shuffle": True},
    "a collate function": lambda: {"batch_size": 4, "collate_fn": total},
    "a batch sampler": lambda: batches_of(batch_size=3, shuffle=True),
    "a sampler": lambda: {"batch_sampler": io.BatchSampler(sampler=io.RandomSampler(Squares()), batch_size=4)},
    "two workers": lambda: {"batch_size": 4, "num_workers": 2, "shuffle": True},
}


@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
def test_batches_are_those_of_paddles_loader_and_come_with_positions(arguments):
    np.random.seed(3)
    theirs = list(io.DataLoader(Squares(), **arguments()))
    np.random.seed(3)
    ours = actnn.DataLoader(Squares(), **arguments())
    assert len(ours) == len(theirs)
    for (indices, batch), expected in zip(ours, theirs, strict=True):
        assert type(batch) is type(expected)
        for one, other in zip(batch, expected, strict=True):
            np.testing.assert_array_equal(np.array(one), np.array(other))
        assert np.array(indices).tolist() == [int(number) for number in np.array(batch[0])]


def test_the_dataset_stays_reachable():
    squares = Squares()
    loader = actnn.DataLoader(squares, batch_size=2)
    assert isinstance(loader, io.DataLoader)
    assert loader.dataset.classes == ("even", "odd")
    assert loader.dataset.dataset is squares
    with pytest.raises(AttributeError, match="colour"):
        _ = loader.dataset.colour


def test_a_model_takes_its_indices_as_positions():
    model = actnn.QModule(nn.Linear(2, 2), level="L3")
    for indices, _ in actnn.DataLoader(Squares(), batch_size=4, shuffle=True):
        model.set_samples(indices)
        assert model._steps.samples.tolist() == indices.tolist()


def test_samples_without_positions_are_refused_with_advice():
    with pytest.raises(actnn.UnsupportedError, match=r"Stream, an IterableDataset.*Use Paddle's DataLoader"):
        actnn.DataLoader(Stream())


def test_a_sampler_of_names_is_refused():
    with pytest.raises(actnn.UnsupportedError, match="only whole numbers are positions"):
        _ = actnn.DataLoader(Squares()).dataset["a"]
