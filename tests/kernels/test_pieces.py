"""The reference works piece by piece: the same bytes as at once, in less room than the activation takes."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch
from code_cases import KEY, NUMPY, REFERENCE, assorted_values, layout_of, same_bits
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from actnn.format import FAMILIES, Layout, Part
from actnn.kernels.contract import Channels, Normalization, OutputAffine, Smooth
from actnn.kernels.reference import pieces
from actnn.torch.tensors import ARRAYS

SHAPES = [(1, 5000), (7, 300), (3, 1031), (40, 30), (2, 512)]


class Living(TorchDispatchMode):
    """Counts the bytes of tensors that are made and not yet gone, and the most that there were at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = {id(leaf.untyped_storage()) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                if id(storage) not in given and id(storage) not in self._known:
                    self._add(storage)
        return result

    def _add(self, storage) -> None:
        number, name = storage.nbytes(), id(storage)
        self._known.add(name)
        self.now += number
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._gone, name, number)

    def _gone(self, name: int, number: int) -> None:
        self._known.discard(name)
        self.now -= number


def most_beside(work, results: int) -> int:
    """Return the most bytes that some work takes beside its results, of so many bytes."""
    with Living() as living:
        result = work()
    del result
    return living.most - results


def both_ways(monkeypatch, work):
    """Return what some work gives at once, and in pieces of two groups."""
    found = []
    for least in (1 << 30, 512):
        monkeypatch.setattr(pieces, "LEAST_PIECE", least)
        monkeypatch.setattr(pieces, "PIECES", 1 << 30)
        found.append(work())
    return found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shape", SHAPES)
def test_pieces_have_the_bytes_of_the_whole(monkeypatch, family, shape):
    values = assorted_values(*shape)
    layout = layout_of(values, family, 3)
    whole, parts = both_ways(monkeypatch, lambda: REFERENCE.encode(NUMPY, values, layout, KEY))
    assert np.array_equal(whole, parts)
    same_bits(*both_ways(monkeypatch, lambda: REFERENCE.decode(NUMPY, whole, layout, Part.WHOLE, "float32")))


@pytest.mark.parametrize("family", FAMILIES)
def test_pieces_of_samples_of_unlike_widths_have_the_bytes_of_the_whole(monkeypatch, family):
    values = assorted_values(9, 700)
    layout = layout_of(values, family, sample_bits=(2, 8, 8, 3, 5, 5, 7, 4, 6))
    whole, parts = both_ways(monkeypatch, lambda: REFERENCE.encode(NUMPY, values, layout, KEY))
    assert np.array_equal(whole, parts)
    same_bits(
        *both_ways(
            monkeypatch,
            lambda: REFERENCE.decode(NUMPY, whole, layout, Part.WHOLE, "float32", samples=range(2, 7)),
        )
    )


@pytest.mark.parametrize("channels", [Channels(7, 300), Channels(300, 7), Channels(70, 1)], ids=str)
def test_pieces_are_normalised_and_read_as_the_whole(monkeypatch, channels):
    values = np.random.default_rng(1).standard_normal((3, 2100)).astype(np.float32)
    parts = np.random.default_rng(2).normal(size=(5, channels.count)).astype(np.float32)
    layout = layout_of(values, "two_sided", 3)
    affine = OutputAffine(channels, parts[0], parts[1], parts[2])

    def work():
        out = np.empty_like(values)
        buffer = REFERENCE.normalize(NUMPY, values, out, channels, Normalization(*parts), layout, KEY)
        read = REFERENCE.decode(NUMPY, buffer, layout, Part.POSITIVE, "float32", affine)
        mask = REFERENCE.apply_mask(NUMPY, buffer, layout, values, 1.0, 0.0)
        slope = REFERENCE.decode_function(NUMPY, buffer, layout, Smooth.GELU, 1, "float32")
        return out, read, mask, slope, buffer

    whole, in_pieces = both_ways(monkeypatch, work)
    for one, other in zip(whole[:-1], in_pieces[:-1], strict=True):
        same_bits(one, other)
    assert np.array_equal(whole[-1], in_pieces[-1])


@pytest.mark.parametrize(
    ("family", "dtype", "shape"),
    [
        *((family, torch.float32, (32, 28 * 28 * 32)) for family in FAMILIES),
        ("companded", torch.bfloat16, (32, 28 * 28 * 32)),
        ("companded", torch.float32, (1, 900_000)),
    ],
    ids=str,
)
def test_an_encode_takes_less_room_than_the_activation(family, dtype, shape):
    values = torch.rand(shape, dtype=torch.float32).to(dtype)
    layout = Layout(*shape, FAMILIES[family], 3)
    beside = most_beside(lambda: REFERENCE.encode(ARRAYS, values, layout, KEY), layout.nbytes)
    assert beside <= 4 * values.numel()


@pytest.mark.parametrize("family", ["affine", "zero_exact_companded"])
def test_a_decode_takes_less_room_than_the_activation_beside_it(family):
    values = torch.rand(32, 28 * 28 * 32)
    layout = Layout(*values.shape, FAMILIES[family], 3)
    buffer = REFERENCE.encode(ARRAYS, values, layout, KEY)
    beside = most_beside(lambda: REFERENCE.decode(ARRAYS, buffer, layout, Part.WHOLE, "float32"), 4 * values.numel())
    assert beside <= 4 * values.numel()
