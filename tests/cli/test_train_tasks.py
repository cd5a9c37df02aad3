"""``actnn train --task``: every task learns, resumes exactly, and says what it needs."""

from __future__ import annotations

import pytest
import torch
from task_files import write_coco, write_masks, write_table, write_text, write_voc
from tiny_runs import events

from actnn.cli import main
from actnn.console import extras
from actnn.workloads import contrast, models

WRITERS = {"masks": write_masks, "voc": write_voc, "coco": write_coco, "text": write_text, "tsv": write_table}
# by task: format, arguments, and what its metric is called
CASES = {
    "segmentation": ("masks", ["--model", "fpn", "--size", "32", "--batch", "4"], "mean_iou"),
    "detection": ("voc", ["--model", "retinanet_small", "--size", "64", "--batch", "2", "--rate", "0.01"], "mean_ap"),
    "language": ("text", ["--model", "small_gpt:layers=1,width=32", "--size", "16", "--batch", "16"], "perplexity"),
    "text": ("tsv", ["--model", "small_encoder:layers=1,width=32", "--size", "8", "--batch", "8"], "accuracy"),
    "selfsupervised": (None, ["--model", "moco:small_resnet", "--batch", "16", "--images", "32"], "neighbour_accuracy"),
    "selfsupervised-linear": (
        None,
        ["--model", "byol:small_resnet", "--batch", "16", "--images", "32"],
        "linear_accuracy",
    ),
}
NEEDED = {"detection": ("torchvision", "pycocotools"), "segmentation": ("torchmetrics",)}


def arguments_of(task, folder):
    kind, more, _ = CASES[task]
    for module in NEEDED.get(task, ("torchmetrics",)):
        pytest.importorskip(module)
    data = "digits" if kind is None else f"{kind}:{WRITERS[kind](folder)}"
    return ["train", "--task", task, "--data", data, "--threads", "1", "--seed", "1", "--log-every", "1", *more]


@pytest.mark.parametrize("task", CASES)
def test_a_task_is_trained_beside_exact_training_and_judged_by_its_metric(task, tmp_path, capsys):
    out = tmp_path / "run"
    given = [*arguments_of(task, tmp_path / "data"), "--epochs", "1", "--compare", "exact"]
    assert main([*given, "--out", str(out)]) == 0
    metric = CASES[task][2]
    exact, ours = events(out, "epoch")
    assert (exact["training"], ours["training"]) == ("exact", "L3")
    assert exact[metric] >= 0
    assert ours["kept_bytes"] < exact["kept_bytes"]
    first = {event["training"]: event["loss"] for event in events(out, "step") if event["step"] == 0}
    # the forward pass is exact, and both see the same examples
    assert first["L3"] == pytest.approx(first["exact"], rel=1e-4)
    assert "difference" in capsys.readouterr().out


@pytest.mark.parametrize("task", ["selfsupervised", "language"])
def test_a_task_that_goes_on_ends_with_the_very_weights(task, tmp_path):
    given = (
        [*arguments_of(task, tmp_path / "data"), "--augment"]
        if task != "language"
        else arguments_of(task, tmp_path / "data")
    )
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main([*given, "--epochs", "2", "--schedule", "constant", "--warm-up", "0", "--out", str(whole)]) == 0
    for epochs in ("1", "2"):
        own = ["--epochs", epochs, "--schedule", "constant", "--warm-up", "0", "--resume", "--out", str(parts)]
        assert main([*given, *own]) == 0
    weights = [torch.load(out / "model.pt", weights_only=True) for out in (whole, parts)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_text_of_repetitions_is_learnt(tmp_path):
    given = [*arguments_of("language", tmp_path / "data"), "--optimizer", "adamw", "--rate", "0.01"]
    assert main([*given, "--epochs", "10", "--level", "L3", "--bits", "2", "--out", str(tmp_path / "run")]) == 0
    scores = [event["perplexity"] for event in events(tmp_path / "run", "epoch")]
    assert scores[-1] < 4 < scores[0]


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (["--task", "segmentation", "--data", "digits"], "expected masks:PATH"),
        (["--task", "detection", "--data", "masks:x"], "expected voc:PATH or coco:PATH"),
        (["--task", "selfsupervised", "--model", "small_resnet"], "expected moco:MODEL or byol:MODEL"),
        (["--task", "language", "--data", "text:nowhere.txt"], "nowhere.txt cannot be read"),
    ],
)
def test_what_a_task_cannot_learn_from_is_said_in_one_line(given, complaint, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda name: name)
    assert main(["train", *given, "--out", str(tmp_path / "run")]) == 1
    printed = capsys.readouterr().err
    assert complaint in printed
    assert printed.count("\n") == 1


def test_a_missing_library_of_metrics_is_named_with_what_installs_it(tmp_path, capsys, monkeypatch):
    found = extras.find_spec
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "pycocotools" else found(name))
    assert main(["train", "--task", "detection", "--data", "voc:x", "--out", str(tmp_path / "run")]) == 1
    assert "pip install 'actnn[tasks]'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["dilation8_small", "fpn", "fcn_hrnet_w18"])
def test_a_network_for_segmentation_gives_a_score_of_every_pixel(name):
    torch.manual_seed(0)
    model = models.build(name, classes=3).eval()
    with torch.no_grad():
        assert model(torch.randn(1, 3, 64, 32)).shape == (1, 3, 64, 32)


def test_views_have_the_form_of_images_and_differ():
    torch.manual_seed(0)
    images = torch.rand(4, 3, 16, 16)
    first, second = contrast.views(images), contrast.views(images)
    assert first.shape == images.shape
    assert not torch.allclose(first, second)


def test_the_following_network_follows_and_the_queue_remembers():
    torch.manual_seed(0)
    model = contrast.build("moco:small_resnet", 1)
    before = [own.clone() for own in model.following.parameters()]
    queue = model.queue.clone()
    with torch.no_grad():
        for own in model.encoder.parameters():
            own.add_(1.0)
    images = torch.randn(4, 1, 16, 16)
    model(images, images).backward()
    after = list(model.following.parameters())
    assert all(not own.requires_grad for own in after)
    assert torch.allclose(after[0] - before[0], torch.full_like(before[0], 1 - contrast.MOMENTUM), atol=1e-5)
    assert int(model.place) == 4
    assert not torch.equal(queue[:4], model.queue[:4])
    assert torch.equal(queue[4:], model.queue[4:])
