"""The reference works piece by piece: the same bytes as at once, in less room than the activation takes."""

from __future__ import annotations

import weakref
from functools import cache

import numpy as np
import pytest
import torch
from code_cases import KEY, NUMPY, REFERENCE, SIDED, assorted_values, divided_layout, layout_of, same_bits
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from actnn.format import FAMILIES, Layout, Part
from actnn.kernels.contract import (
    BatchNorm,
    Channels,
    Division,
    Normalization,
    OutputAffine,
    Pool,
    RowNorm,
    Rows,
    Smooth,
)
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
        grad = REFERENCE.gradient(NUMPY, values, channels, buffer, layout, False, tuple(parts[:3]), abs(parts[3]))
        return out, read, mask, slope, grad, buffer

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


SAMPLES, CHANNELS, SIDE = 16, 32, 28
ROOMY = (SAMPLES, CHANNELS * SIDE * SIDE)
POOLED = (SAMPLES, CHANNELS * (SIDE // 2) ** 2)
IMAGE = Channels(CHANNELS, SIDE * SIDE)


def pool_of(channels_last: bool) -> Pool:
    return Pool(SAMPLES, CHANNELS, (SIDE, SIDE), (SIDE // 2,) * 2, (3, 3), (2, 2), (1, 1), (1, 1), channels_last)


@cache
def coded(family: str):
    """Return an activation and its code, which takes the reference most of a second."""
    torch.manual_seed(0)
    x = torch.rand(ROOMY)
    return x, REFERENCE.encode(ARRAYS, x, Layout(*ROOMY, FAMILIES[family], 3), KEY)


class Room:
    """What rows are called with: an activation, its code, and room for their results."""

    def __init__(self, family: str = "affine") -> None:
        self.x, self.code = (tensor.clone() for tensor in coded(family))
        self.out = torch.empty(ROOMY)
        self.layout = Layout(*ROOMY, FAMILIES[family], 3)
        self.saved, self.grads = torch.ones(2, CHANNELS), torch.empty(2, CHANNELS)
        self.norm = BatchNorm(IMAGE, 1e-5, SAMPLES * SIDE**2, None, None, None, 0.1, None, self.saved)
        self.rows = RowNorm(Rows(SIDE * SIDE, CHANNELS, SIDE * SIDE), 1e-5, True, None, None, torch.ones(SAMPLES * 32))
        self.pool, self.last = pool_of(False), pool_of(True)
        self.pooled, self.planes = torch.rand(POOLED), torch.zeros(self.pool.nbytes, dtype=torch.uint8)
        self.mask = REFERENCE.encode_mask(ARRAYS, self.x)
        # by sample, so that ranges of a division have where to be
        self.divided = divided_layout(ROOMY, "normalized", 3 * SAMPLES)
        self.divided_code = torch.empty(self.divided.nbytes, dtype=torch.uint8)


def divided_row_norm(room: Room) -> None:
    REFERENCE.row_norm(ARRAYS, room.x, room.out, room.divided, room.rows, KEY, room.divided_code, Division(1))


# every row of the contract that passes over an activation, with a result that lies in the room which it is given
ROWS = {
    "encode": lambda r: REFERENCE.encode(ARRAYS, r.x, r.layout, KEY, r.code),
    "decode": lambda r: REFERENCE.decode(ARRAYS, r.code, r.layout, Part.WHOLE, "float32", out=r.out),
    "decode_function": lambda r: REFERENCE.decode_function(
        ARRAYS, r.code, r.layout, Smooth.GELU, 1, "float32", out=r.out, grad=r.x
    ),
    "encode_mask": lambda r: REFERENCE.encode_mask(ARRAYS, r.x, r.mask, None, 6.0),
    "apply_mask": lambda r: REFERENCE.apply_mask(ARRAYS, r.mask, None, r.x, 1.0, 0.5, out=r.out),
    "apply_mask of a code": lambda r: REFERENCE.apply_mask(ARRAYS, r.code, r.layout, r.x, 1.0, 0.0, out=r.out),
    "max_pool": lambda r: REFERENCE.max_pool(ARRAYS, r.x, r.pooled, r.pool, r.planes),
    "max_pool channels last": lambda r: REFERENCE.max_pool(ARRAYS, r.x, r.pooled, r.last, r.planes),
    "max_pool_backward": lambda r: REFERENCE.max_pool_backward(ARRAYS, r.planes, r.pooled, r.pool, r.out),
    "channel_statistics": lambda r: REFERENCE.channel_statistics(ARRAYS, r.x, IMAGE),
    "gradient_sums": lambda r: REFERENCE.gradient_sums(ARRAYS, r.x, IMAGE, r.code, r.layout, True),
    "ranges": lambda r: REFERENCE.ranges(ARRAYS, r.x, r.layout, 1),
    "energy": lambda r: REFERENCE.energy(ARRAYS, r.x, 1),
    "batch_norm": lambda r: REFERENCE.batch_norm(ARRAYS, r.x, r.out, r.layout, r.norm, KEY, r.code),
    "batch_norm_backward": lambda r: REFERENCE.batch_norm_backward(
        ARRAYS, r.x, r.code, r.layout, r.norm, True, False, r.grads, r.out
    ),
    "row_norm": lambda r: REFERENCE.row_norm(ARRAYS, r.x, r.out, r.layout, r.rows, KEY, r.code),
    "row_norm divided": divided_row_norm,
    "row_norm_backward": lambda r: REFERENCE.row_norm_backward(
        ARRAYS, r.x, r.code, r.layout, r.rows, torch.empty(2, CHANNELS), r.out
    ),
}


@pytest.mark.parametrize("row", ROWS)
def test_a_row_takes_less_room_than_the_activation(row):
    room = Room("normalized" if "row_norm" in row else "affine")
    assert most_beside(lambda: ROWS[row](room), 0) <= room.x.nbytes


@pytest.mark.parametrize("family", ["affine", "normalized", "two_sided_normalized", "zero_exact_companded"])
def test_a_gradient_weighed_by_its_noise_takes_less_room_than_the_activation(family):
    room = Room(family)
    ones = torch.ones(CHANNELS)
    fixed = ARRAYS, room.x, IMAGE, room.code, room.layout, family in SIDED, (ones, ones, ones), ones, room.out
    assert most_beside(lambda: REFERENCE.gradient(*fixed), 0) <= room.x.nbytes


def test_indices_take_less_room_than_the_activation():
    values = torch.randint(0, 16, ROOMY, dtype=torch.int32)
    planes = REFERENCE.encode_index(ARRAYS, values, 4)
    assert most_beside(lambda: REFERENCE.encode_index(ARRAYS, values, 4, planes), 0) <= values.nbytes
    beside = most_beside(lambda: REFERENCE.decode_index(ARRAYS, planes, *ROOMY, 4), values.nbytes)
    assert beside <= values.nbytes


@pytest.mark.parametrize("family", ["affine", "zero_exact_companded"])
def test_a_decode_takes_less_room_than_the_activation_beside_it(family):
    values = torch.rand(32, 28 * 28 * 32)
    layout = Layout(*values.shape, FAMILIES[family], 3)
    buffer = REFERENCE.encode(ARRAYS, values, layout, KEY)
    beside = most_beside(lambda: REFERENCE.decode(ARRAYS, buffer, layout, Part.WHOLE, "float32"), 4 * values.numel())
    assert beside <= 4 * values.numel()
