"""Sets of images in IDX files, and the set that stands in where none is installed."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from actnn.errors import ActnnError
from actnn.workloads import datasets
from actnn.workloads.datasets import DataError, read_idx

GOOD = struct.pack(">HBB1I", 0, 8, 1, 4) + b"abcd"


def write_idx(path: Path, array: np.ndarray) -> None:
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    path.write_bytes(gzip.compress(header + array.tobytes()))


def write_set(folder: Path, count: int = 40) -> None:
    """Write a data set as Debian's package has it, of random images."""
    numbers = np.random.default_rng(0)
    for name in ("train", "t10k"):
        write_idx(folder / f"{name}-images-idx3-ubyte.gz", numbers.integers(0, 256, (count, 12, 10), np.uint8))
        write_idx(folder / f"{name}-labels-idx1-ubyte.gz", numbers.integers(0, 10, count, np.uint8))


@pytest.mark.parametrize(
    ("name", "folder", "expected"),
    [
        ("auto", None, "digits"),
        ("auto", Path("here"), "fashion-mnist"),
        ("digits", Path("here"), "digits"),
        ("fashion-mnist", None, "fashion-mnist"),
    ],
)
def test_digits_stand_in_where_fashion_mnist_is_not_installed(name, folder, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets, "FASHION_MNIST", tmp_path / "absent")
    assert datasets.chosen(name, folder) == expected


def test_an_idx_file_is_read(tmp_path):
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    write_idx(tmp_path / "a.gz", array)
    (tmp_path / "a").write_bytes(gzip.decompress((tmp_path / "a.gz").read_bytes()))
    np.testing.assert_array_equal(read_idx(tmp_path / "a.gz", 3), array)
    np.testing.assert_array_equal(read_idx(tmp_path / "a", 3), array)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "begins with"),
        (b"\x01" + GOOD[1:], "begins with 01 00 08 01"),
        (GOOD[:2] + b"\x0d" + GOOD[3:], "begins with 00 00 0d 01"),
        (GOOD[:3] + b"\x02" + GOOD[4:], "begins with 00 00 08 02"),
        (GOOD[:6], "within its header"),
        (GOOD[:-1], "holds 11 bytes"),
        (GOOD + b"e", "holds 13 bytes"),
    ],
)
def test_a_damaged_idx_file_is_refused(content, complaint, tmp_path):
    (tmp_path / "plain").write_bytes(content)
    with pytest.raises(DataError, match=complaint):
        read_idx(tmp_path / "plain", 1)


@pytest.mark.parametrize(
    "damage",
    [
        lambda packed: b"PK" + packed[2:],
        lambda packed: packed[:-9],
        lambda packed: packed[:9] + b"\xff\xff" + packed[11:],
    ],
)
def test_a_damaged_gzip_file_is_refused(damage, tmp_path):
    path = tmp_path / "labels.gz"
    path.write_bytes(damage(gzip.compress(GOOD)))
    with pytest.raises(DataError, match="cannot be read"):
        read_idx(path, 1)


def test_both_parts_of_a_set_are_normalised_by_the_part_to_learn_from(tmp_path):
    pytest.importorskip("torch")
    write_set(tmp_path)
    found = datasets.load("fashion-mnist", tmp_path)
    assert found.train.images.shape == found.test.images.shape == (40, 1, 12, 10)
    assert abs(float(found.train.images.mean())) < 1e-5
    assert abs(float(found.train.images.std()) - 1) < 1e-5
    pixels = read_idx(tmp_path / "t10k-images-idx3-ubyte.gz", 3)
    learnt = read_idx(tmp_path / "train-images-idx3-ubyte.gz", 3)
    expected = (pixels - learnt.mean()) / learnt.std(ddof=1)
    np.testing.assert_allclose(found.test.images[:, 0].numpy(), expected, rtol=1e-4, atol=1e-5)
    assert len(found.limited(7).train.labels) == 7
    assert len(found.limited(7).test.labels) == 40


def test_images_without_their_labels_are_refused(tmp_path):
    write_set(tmp_path)
    write_idx(tmp_path / "train-labels-idx1-ubyte.gz", np.zeros(39, np.uint8))
    with pytest.raises(ActnnError, match="40 train images and 39 labels"):
        datasets.pixels_and_labels(tmp_path, "train")
