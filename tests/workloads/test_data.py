"""Images that commands train on: folders, files that are damaged, and images varied at random."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from image_files import write_idx_set, write_image_folder
from PIL import Image

from actnn.workloads import datasets
from actnn.workloads.augmentation import Shifted, central_box, random_box, random_of
from actnn.workloads.datasets import DataError, Part
from actnn.workloads.image_folder import image_folder

SIZE = 16


def folder(path, size: int = SIZE, seed: int = 0, augment: bool = False):
    return image_folder(path, size, seed, augment)


def test_classes_are_the_names_of_folders_in_order(tmp_path):
    data = folder(write_image_folder(tmp_path))
    assert data.classes == 3
    assert data.train.labels.tolist() == [0] * 6 + [1] * 6 + [2] * 6
    images, labels = data.test.batch(torch.tensor([0, 7, 14]), None)
    assert images.shape == (3, 3, SIZE, SIZE)
    # the colour of an image tells its class
    assert images.mean((2, 3)).argmax(1).tolist() == labels.tolist() == [0, 1, 2]


def test_a_folder_without_parts_is_divided_and_no_image_is_in_both(tmp_path):
    data = folder(write_image_folder(tmp_path, ("",)))
    learnt, tested = ({path for path, _ in part.files} for part in data[:2])
    assert (len(learnt), len(tested)) == (15, 3)
    assert not learnt & tested


@pytest.mark.parametrize("test", ["val", "valid", "validation", "test"])
def test_every_name_of_the_part_to_test_with_is_known(test, tmp_path):
    data = folder(write_image_folder(tmp_path, ("train", test)))
    assert (data.classes, data.train.image_count, data.test.image_count) == (3, 18, 18)
    assert {path.parts[-3] for path, _ in data.test.files} == {test}


@pytest.mark.parametrize("part", ["train", "train/train"])
def test_a_part_to_learn_from_alone_is_divided(part, tmp_path):
    data = folder(write_image_folder(tmp_path, (part,)))
    assert (data.classes, data.train.image_count, data.test.image_count) == (3, 15, 3)


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        (("training", "validation"), "training"),
        (("training",), "training"),
        (("Training", "Test"), "Training"),
        (("Train", "val"), "Train"),
        (("train", "eval"), "train"),
        (("train", "bus"), "train"),
        (("train", "training", "val"), "train and training"),
        (("test", "val"), "test and val"),
    ],
    ids=str,
)
def test_parts_are_never_taken_for_classes(parts, named, tmp_path):
    write_image_folder(tmp_path, parts)
    with pytest.raises(DataError) as refused:
        folder(tmp_path)
    assert str(refused.value).startswith(f"{tmp_path} holds {named}, which is how parts are called and no class: ")
    assert "expected train beside val, valid, validation or test, or train alone. Rename" in str(refused.value)


def test_a_class_may_be_called_like_a_part_where_there_is_no_doubt(tmp_path):
    write_image_folder(tmp_path / "one", ("",))
    (tmp_path / "one" / "eel").rename(tmp_path / "one" / "test")
    assert folder(tmp_path / "one").classes == 3
    write_image_folder(tmp_path / "two")
    for part in ("train", "val"):
        (tmp_path / "two" / part / "eel").rename(tmp_path / "two" / part / "train")
    assert folder(tmp_path / "two").classes == 3


def test_grey_and_transparent_images_and_palettes_become_three_channels(tmp_path):
    write_image_folder(tmp_path)
    for number, mode in enumerate(("L", "RGBA", "P", "1")):
        Image.new(mode, (9, 40)).save(tmp_path / "train" / "cat" / f"z{number}.png")
    data = folder(tmp_path)
    assert data.train.batch(torch.arange(6, 10), None)[0].shape == (4, 3, SIZE, SIZE)


@pytest.mark.parametrize("kind", ["png", "tiff", "pgm"])
def test_grey_of_16_bits_is_what_it_is_in_8_bits(kind, tmp_path):
    write_image_folder(tmp_path)
    grey = np.random.default_rng(0).integers(0, 256, (20, 30)).astype(np.uint8)
    for name, pixels in (("y8", grey), ("z16", grey.astype(np.uint16) * 257)):
        Image.fromarray(pixels).save(tmp_path / "train" / "cat" / f"{name}.{kind}")
    shallow, deep = folder(tmp_path).train.batch(torch.tensor([6, 7]), None)[0]
    assert torch.equal(shallow, deep)
    assert len(deep.unique()) > 50


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_pixels_of_an_unknown_range_are_refused(dtype, tmp_path):
    write_image_folder(tmp_path)
    Image.fromarray(np.ones((20, 30), dtype)).save(tmp_path / "train" / "cat" / "z.tiff")
    with pytest.raises(DataError, match=r"z\.tiff cannot be read as an image \(pixels of mode [FI], where 8 or 16"):
        folder(tmp_path).train.batch(torch.tensor([6]), None)


def test_hidden_folders_and_other_files_are_left_out(tmp_path):
    write_image_folder(tmp_path)
    (tmp_path / "train" / ".cache").mkdir()
    (tmp_path / "train" / "cat" / "notes.txt").write_text("no image")
    assert folder(tmp_path).train.image_count == 18


def test_fewer_images_are_of_all_classes(tmp_path):
    data = folder(write_image_folder(tmp_path)).limited(9)
    assert data.train.image_count == 9
    assert set(data.train.labels.tolist()) == {0, 1, 2}
    assert data.test.image_count == 18


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda path: (path / "val" / "fox").mkdir(), "is a class that train does not have"),
        (lambda path: [file.unlink() for file in path.glob("val/*/*")], "0 to test"),
        (lambda path: [file.unlink() for file in path.glob("train/*/*")], "0 images to learn from"),
    ],
)
def test_a_folder_that_is_no_set_is_refused(spoil, complaint, tmp_path):
    spoil(write_image_folder(tmp_path))
    with pytest.raises(DataError, match=complaint):
        folder(tmp_path)


def test_an_empty_folder_is_refused_with_what_was_expected(tmp_path):
    with pytest.raises(DataError, match=r"0 classes.*expected a folder for each class"):
        folder(tmp_path)


@pytest.mark.parametrize("content", [b"", b"no image", "cut"], ids=str)
def test_a_damaged_image_is_named(content, tmp_path):
    path = write_image_folder(tmp_path) / "train" / "cat" / "0.png"
    path.write_bytes(path.read_bytes()[:200] if content == "cut" else content)
    with pytest.raises(DataError, match=r"cat/0\.png cannot be read as an image"):
        folder(tmp_path).train.batch(torch.tensor([0]), None)


def test_images_are_the_same_whether_they_were_prepared_or_not(tmp_path):
    write_image_folder(tmp_path)
    first, second = (folder(tmp_path, augment=True).train for _ in range(2))
    positions = torch.tensor([3, 1, 17])
    first.prepare(positions, 2)
    for _ in range(2):
        assert torch.equal(first.batch(positions, 2)[0], second.batch(positions, 2)[0])
    # nothing waits for ever
    assert not first._waiting


def test_varied_images_depend_on_seed_epoch_and_position_alone(tmp_path):
    write_image_folder(tmp_path)
    images = folder(tmp_path, augment=True).train
    together = images.batch(torch.tensor([4, 9]), 1)[0]
    assert torch.equal(images.batch(torch.tensor([9]), 1)[0][0], together[1])
    assert not torch.equal(images.batch(torch.tensor([9]), 2)[0][0], together[1])
    other = folder(tmp_path, seed=1, augment=True).train
    assert not torch.equal(other.batch(torch.tensor([9]), 1)[0][0], together[1])


def test_images_to_test_with_are_never_varied(tmp_path):
    write_image_folder(tmp_path)
    positions = torch.tensor([4])
    varied, plain = folder(tmp_path, augment=True), folder(tmp_path)
    assert torch.equal(varied.test.batch(positions, None)[0], plain.test.batch(positions, None)[0])
    assert torch.equal(plain.train.batch(positions, 1)[0], plain.train.batch(positions, 2)[0])


@pytest.mark.parametrize("shape", [(40, 40), (7, 90), (90, 7), (1, 1)])
def test_random_parts_lie_within_the_image(shape):
    width, height = shape
    for position in range(200):
        box = random_box(width, height, random_of(0, 0, position))
        assert 0 <= box.left < box.right <= width + 1e-9
        assert 0 <= box.upper < box.lower <= height + 1e-9
    assert central_box(width, height, 0.5).right <= width


def test_half_of_all_images_are_mirrored():
    mirrored = [random_box(10, 10, random_of(0, 0, position)).mirrored for position in range(400)]
    assert 140 < sum(mirrored) < 260


def test_shifted_images_hold_the_same_pixels_at_another_place():
    images = torch.zeros(20, 1, 16, 16)
    images[:, :, 8, 8] = 1.0
    shifted = Shifted(Part(images, torch.arange(20)), seed=0)
    found, labels = shifted.batch(torch.arange(20), 0)
    assert torch.equal(labels, torch.arange(20))
    assert found.sum((1, 2, 3)).tolist() == [1.0] * 20
    places = {tuple(map(int, place)) for place in found.nonzero()[:, 2:]}
    assert len(places) > 5
    assert np.abs(np.array(list(places)) - 8).max() <= 2
    assert torch.equal(shifted.batch(torch.arange(20), None)[0], images)


def test_an_idx_folder_tells_how_many_classes_it_has(tmp_path):
    assert datasets.idx_folder(write_idx_set(tmp_path / "a", classes=12)).classes == 12
    write_idx_set(tmp_path / "b", classes=3)
    for name in ("images-idx3", "labels-idx1"):
        (tmp_path / "a" / f"t10k-{name}-ubyte.gz").replace(tmp_path / "b" / f"t10k-{name}-ubyte.gz")
    with pytest.raises(DataError, match="a t10k label 11: expected labels below 3"):
        datasets.idx_folder(tmp_path / "b")
