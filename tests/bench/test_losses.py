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
from actnn.workloads import texts
from actnn.workloads.datasets import DataError
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
def test_contestants_begin_with_equal_weights_and_see_equal_images(framework, folder, tmp_path, capsys, request):
    pytest.importorskip(framework)
    if framework != "torch":
        request.getfixturevalue("in_this_process")
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


def test_the_floor_is_exact_training_in_another_order(tmp_path):
    pytest.importorskip("transformers")
    text = tmp_path / "text.txt"
    text.write_text("what is said once is said twice, and then once more. " * 40)
    task = Task("gpt2:layers=1,width=32,heads=2,tokens=16,vocabulary=256", 8, 32, 32, rate=1e-2, optimizer="adamw")
    settings = {"task": task.settings, "steps": 6, "data": f"text:{text}", "folder": ""}
    found = {
        name: losses.train(settings | {"contestant": name}, lambda message: None)["losses"]
        for name in ("exact", "floor", "L3")
    }
    assert found["floor"] != found["exact"]
    assert found["floor"] == pytest.approx(found["exact"], rel=1e-4)
    assert found["L3"] == pytest.approx(found["exact"], rel=0.05)
    assert found["exact"][-1] < found["exact"][0]


def test_digits_are_bytes_of_ten_classes():
    pytest.importorskip("sklearn")
    pixels, labels = losses.digits()
    assert pixels.shape[1:] == (8, 8)
    assert (pixels.max(), set(labels)) == (255, set(range(10)))


def test_python_brings_a_text_along():
    text = texts.load("text")
    pieces = texts.pieces(text, 3, 20, np.random.default_rng(0))
    assert pieces.shape == (3, 20)
    assert bytes(pieces[0].astype(np.uint8)) in text.tobytes()


def test_a_text_that_is_too_short_or_missing_is_refused(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        texts.load(f"text:{tmp_path / 'none'}")
    with pytest.raises(DataError, match="take a longer one"):
        texts.pieces(np.zeros(5, np.uint8), 2, 9, np.random.default_rng(0))


def test_a_model_of_images_does_not_learn_from_texts(capsys):
    assert main(["bench", "losses", "--data", "text", "--model", "resnet18"]) == 1
    assert "resnet18 does not learn from --data text" in capsys.readouterr().err


def test_the_table_holds_codes_beside_the_floor():
    same = {"framework": "torch", "model": "gpt2", "batch": 16, "size": "64 tokens", "rate": 0.001, "first": 5.0}
    ends = {"exact": (3.0, 3.1, 3.2), "floor": (3.001, 3.099, 3.201), "L3": (3.002, 3.101, 3.2), "L2": (3.5, 3.6, 3.7)}
    records = [
        same | {"contestant": name, "bits": 2, "seed": seed, "last": last, "data": "text", "optimizer": "adamw"}
        for name, all_of_it in ends.items()
        for seed, last in enumerate(all_of_it)
    ]
    heading, rows = tables.losses(records)
    assert heading[-1] == "beside the floor"
    assert {row[0] for row in rows} == {"gpt2, 16, 64 tokens, text, adamw, rate 0.001"}
    beside = {row[1]: row[-1] for row in rows}
    assert beside["**actnn L3, 2 bits**"].endswith(", within")
    assert beside["**actnn L2, 2 bits**"].endswith("not within")
