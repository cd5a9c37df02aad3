"""``actnn bench losses``: equal beginnings, equal images, and a table over seeds."""

from __future__ import annotations

import json

import numpy as np
import pytest
from frameworks import NAMES
from image_files import write_idx_set

from actnn.bench import losses, tables
from actnn.cli import main
from actnn.errors import ConfigError
from actnn.measuring.records import recorded
from actnn.workloads.task import Task


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a set of small images."""
    return write_idx_set(tmp_path_factory.mktemp("images"))


def arguments(folder, *more: str) -> list[str]:
    """Return the arguments of a small run."""
    few = ["--steps", "5", "--batch", "4", "--size", "32", "--threads", "1", "--seeds", "3"]
    return [*few, "--model", "small_resnet", "--data-dir", str(folder), *more]


@pytest.mark.parametrize("framework", NAMES)
def test_contestants_begin_with_equal_weights_and_see_equal_images(framework, folder, tmp_path, capsys):
    pytest.importorskip(framework)
    out = tmp_path / "losses.jsonl"
    command = arguments(folder, "--framework", framework, "--contestants", "exact,L0,L3", "--out", str(out))
    assert losses.main(command) == 0
    exact, unchanged, coded = recorded(out)
    assert exact["losses"] == unchanged["losses"]
    assert coded["losses"][0] == pytest.approx(exact["losses"][0], rel=1e-4)
    assert coded["losses"] != exact["losses"]
    assert exact["first"] == exact["losses"][0]
    assert exact["last"] == exact["losses"][-1]
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert losses.main(command) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == printed
    assert len(recorded(out)) == 3


def test_a_loss_that_is_not_finite_is_an_error(folder):
    pytest.importorskip("torch")
    task = Task("small_resnet", 4, 32, 32, rate=1e30, label_count=10)
    settings = {"task": task.settings, "contestant": "exact", "steps": 9, "folder": str(folder)}
    with pytest.raises(ConfigError, match=r"the loss of exact became .* in step \d: use a lower --rate"):
        losses.train(settings, lambda message: None)


def test_a_folder_without_images_is_an_error_of_one_line(tmp_path, capsys):
    assert main(["bench", "losses", *arguments(tmp_path)]) == 1
    complaint = capsys.readouterr().err
    assert "has no file train-images-idx3-ubyte" in complaint
    assert complaint.count("\n") == 1


def test_images_are_resized_and_have_three_channels():
    pixels = np.array([[[0, 51], [102, 255]]], np.uint8)
    images = losses.resized(pixels, 4, 2)
    assert images.shape == (1, 3, 4, 2)
    np.testing.assert_allclose(images[0, 1], [[-1, -0.6], [-1, -0.6], [-0.2, 1], [-0.2, 1]], rtol=1e-6)
    np.testing.assert_array_equal(images[0, 0], images[0, 2])


def test_the_table_compares_equal_seeds():
    same = {"framework": "paddle", "model": "vgg16_bn", "batch": 16, "size": 64, "rate": 0.01, "first": 2.0}
    exact = [same | {"contestant": "exact", "bits": None, "seed": seed, "last": 1.0 + seed} for seed in (0, 1, 2)]
    coded = [same | {"contestant": "L3", "bits": 2, "seed": seed, "last": last} for seed, last in ((1, 2.1), (2, 3.3))]
    heading, rows = tables.losses(exact + coded)
    assert rows == [
        ["vgg16_bn (paddle), 16, 64, rate 0.01", "exact", "3", "2.000", "2.000", "–"],
        ["vgg16_bn (paddle), 16, 64, rate 0.01", "**actnn L3, 2 bits**", "2", "2.000", "2.700", "+0.200 ± 0.100"],
    ]
    assert len(heading) == len(rows[0])
