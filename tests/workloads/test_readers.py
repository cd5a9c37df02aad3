"""Data in open formats: what is read of them, and what is said of bad ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from task_files import SIDE, write_coco, write_masks, write_table, write_text, write_voc

from actnn.workloads.datasets import DataError
from actnn.workloads.readers.coco import coco_folder
from actnn.workloads.readers.masks import NO_CLASS, mask_folder
from actnn.workloads.readers.plain_text import text_windows
from actnn.workloads.readers.tables import PADDING, UNKNOWN, text_table
from actnn.workloads.readers.voc import voc_folder

pytest.importorskip("PIL")


def test_masks_are_read_as_numbers_of_classes(tmp_path):
    data = mask_folder(write_masks(tmp_path), 32, seed=None)
    assert (data.train.image_count, data.test.image_count, data.classes) == (8, 2, 2)
    images, masks = data.train.batch(torch.arange(3), 0)
    assert images.shape == (3, 3, 32, 32)
    assert masks.dtype == torch.int64
    assert bool((masks[:, 0] == NO_CLASS).all())
    # the square of class 1 is brighter
    assert float(images.mean(1)[masks == 1].min()) > float(images.mean(1)[masks == 0].mean())


def test_masks_are_mirrored_with_their_images(tmp_path):
    plain = mask_folder(write_masks(tmp_path), 16, seed=None).train.batch(torch.arange(8), 0)
    data = mask_folder(tmp_path, 16, seed=3)
    images, masks = data.train.batch(torch.arange(8), 0)
    turned = [number for number in range(8) if not torch.equal(images[number], plain[0][number])]
    assert 0 < len(turned) < 8
    for number in turned:
        assert torch.equal(images[number], plain[0][number].flip(2))
        assert torch.equal(masks[number], plain[1][number].flip(1))
    # evaluation sees them as they are
    assert torch.equal(data.train.batch(torch.arange(8), None)[0], plain[0])


def test_an_image_without_a_mask_is_named(tmp_path):
    write_masks(tmp_path)
    (tmp_path / "masks" / "4.png").unlink()
    with pytest.raises(DataError, match="'4' without the other"):
        mask_folder(tmp_path, 16, seed=None)


def test_boxes_of_voc_are_read_in_pixels_of_the_squashed_image_and_what_is_no_box_is_left_out(tmp_path):
    data = voc_folder(write_voc(tmp_path), 2 * SIDE, seed=None)
    assert (data.train.image_count, data.test.image_count, data.classes) == (4, 2, 2)
    images, wanted = data.train.batch(torch.arange(4), 0)
    assert images.shape == (4, 3, 64, 64)
    for each in wanted:
        assert each["labels"].tolist() == [1]
        assert (each["boxes"][:, 2:] - each["boxes"][:, :2]).tolist() == [[SIDE, SIDE]]


def test_boxes_of_voc_without_lists_of_parts_are_divided(tmp_path):
    data = voc_folder(write_voc(tmp_path, 10, parts=False), 16, seed=None)
    assert (data.train.image_count, data.test.image_count) == (8, 2)


def test_boxes_are_mirrored_with_their_images(tmp_path):
    plain = voc_folder(write_voc(tmp_path), 32, seed=None).train.batch(torch.arange(4), 0)
    images, wanted = voc_folder(tmp_path, 32, seed=1).train.batch(torch.arange(4), 0)
    turned = [number for number in range(4) if not torch.equal(images[number], plain[0][number])]
    assert 0 < len(turned) < 4
    for number in range(4):
        (before,), (after,) = plain[1][number]["boxes"].tolist(), wanted[number]["boxes"].tolist()
        expected = [32 - before[2], before[1], 32 - before[0], before[3]] if number in turned else before
        assert after == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("content", ["<annotation>", "<annotation><size><width>x</width></size></annotation>"])
def test_a_damaged_annotation_is_named(tmp_path, content):
    write_voc(tmp_path)
    (tmp_path / "Annotations" / "3.xml").write_text(content)
    with pytest.raises(DataError, match=r"3\.xml is not an annotation of VOC"):
        voc_folder(tmp_path, 16, seed=None)


def test_boxes_of_coco_are_read_without_crowds(tmp_path):
    data = coco_folder(write_coco(tmp_path), SIDE, seed=None)
    assert (data.train.image_count, data.test.image_count, data.classes) == (4, 1, 1)
    _, wanted = data.train.batch(torch.arange(4), 0)
    assert all(each["labels"].tolist() == [1] for each in wanted)


def test_what_is_no_file_of_coco_is_named(tmp_path):
    with pytest.raises(DataError, match=r"holds no train\.json"):
        coco_folder(tmp_path, 16, seed=None)
    (tmp_path / "train.json").write_text('{"images": []}')
    with pytest.raises(DataError, match="lacks annotations, categories"):
        coco_folder(tmp_path, 16, seed=None)


def test_a_text_is_cut_into_windows_of_bytes(tmp_path):
    data = text_windows(write_text(tmp_path), 16)
    tokens, wanted = data.train.batch(torch.tensor([0, 1]), 0)
    assert bytes(tokens.flatten().tolist()).decode() == "the cat sat on the mat. the cat "
    assert torch.equal(tokens, wanted)
    assert (data.train.image_count, data.test.image_count) == (90, 12)
    assert data.limited(5).train.image_count == 5


def test_the_end_of_one_file_is_for_testing(tmp_path):
    write_text(tmp_path)
    data = text_windows(tmp_path / "train.txt", 8)
    assert (data.train.image_count, data.test.image_count) == (171, 9)


def test_a_text_shorter_than_a_window_is_refused(tmp_path):
    with pytest.raises(DataError, match="at least one window of 4096"):
        text_windows(write_text(tmp_path), 4096)


def test_a_table_is_read_as_words_of_the_most_frequent_first(tmp_path):
    data = text_table(write_table(tmp_path), 8)
    tokens, labels = data.train.batch(torch.arange(24), 0)
    assert (tokens.shape, data.classes, data.test.image_count) == ((24, 8), 2, 8)
    assert labels.tolist() == [0, 1] * 12
    assert tokens[0, :2].tolist() == [2, 6]
    assert tokens[0, 6:].tolist() == [PADDING, PADDING]
    assert UNKNOWN not in tokens


def test_a_line_with_other_columns_is_named(tmp_path):
    write_table(tmp_path)
    (tmp_path / "test.tsv").write_text("good\t1\nbad\n")
    with pytest.raises(DataError, match=r"line 2 of .*test\.tsv has 1 columns"):
        text_table(tmp_path, 8)


def test_an_unreadable_image_is_named(tmp_path):
    write_masks(tmp_path)
    (tmp_path / "images" / "2.png").write_bytes(np.arange(20, dtype=np.uint8).tobytes())
    with pytest.raises(DataError, match=r"2\.png cannot be read as an image"):
        mask_folder(tmp_path, 16, seed=None)
