"""Cross entropy that keeps a code of the probabilities: the loss of torch, and an unbiased gradient of the logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hand_made_sessions import exact_bytes, gradients, kept_bytes, saved_tensors, session_of
from torch import Tensor
from torch.nn import functional as F
from torch_framework import close_tensors, same_tensors
from z_tests import check_unbiased

from actnn.errors import UnsupportedError
from actnn.session.site import Site
from actnn.torch.functions.cross_entropy import cross_entropy

CLASSES = 40
SHAPES = {"rows": (60, CLASSES), "sequences": (6, CLASSES, 10), "images": (3, CLASSES, 5, 4), "one row": (CLASSES,)}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "weights": {"weight": torch.linspace(0.1, 2, CLASSES)},
    "smoothing": {"label_smoothing": 0.2},
    "both": {"weight": torch.linspace(0.1, 2, CLASSES), "label_smoothing": 0.2},
}
shapes = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
options = pytest.mark.parametrize("given", OPTIONS.values(), ids=OPTIONS)
reductions = pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
targets = pytest.mark.parametrize("kind", ["classes", "ignored", "probabilities"])
REPEATS = 300


def site_of(bits: float, level: str = "L2", **settings) -> Site:
    """Return the site of a loss by itself."""
    return session_of(bits, level, **settings).site("loss", "cross entropy")


def batch(shape: tuple[int, ...], kind: str) -> tuple[Tensor, Tensor, dict[str, int]]:
    """Return logits, targets, and the option that such targets need."""
    x, axis = 2 * torch.randn(shape), 1 if len(shape) > 1 else 0
    if kind == "probabilities":
        return x, torch.softmax(torch.randn(shape), axis), {}
    rows = shape[:axis] + shape[axis + 1 :]
    target = torch.randint(0, CLASSES, rows)
    if kind == "classes":
        return x, target, {}
    return x, torch.where(torch.rand(rows) < 0.3, 7, target), {"ignore_index": 7}


def both(site: Site, x: Tensor, target: Tensor, **given) -> list[list[Tensor]]:
    """Return loss and gradient of torch's cross entropy and of ours."""
    loss = F.cross_entropy(x, target, **given)
    grad = torch.randn_like(loss)
    calls = (lambda x: F.cross_entropy(x, target, **given), lambda x: cross_entropy(site, x, target, **given))
    return [gradients(call, [x], grad) for call in calls]


@shapes
@options
@reductions
@targets
def test_eight_bits_give_the_loss_and_the_gradient_of_torch(shape, given, reduction, kind):
    x, target, more = batch(shape, kind)
    exact, found = both(site_of(8), x, target, reduction=reduction, **given, **more)
    same_tensors(found[0], exact[0], "loss")
    close_tensors(found[1], exact[1], 0.01)


@pytest.mark.parametrize("shape", [SHAPES["rows"], SHAPES["sequences"]])
@options
@reductions
@targets
def test_parts_of_the_batch_give_what_the_whole_does(shape, given, reduction, kind):
    x, target, more = batch(shape, kind)
    site = site_of(8, pipeline_threshold=4 * x[0].numel())
    exact, found = both(site, x, target, reduction=reduction, **given, **more)
    close_tensors(found[0], exact[0], 1e-6, "loss")
    close_tensors(found[1], exact[1], 0.01)


@targets
@pytest.mark.parametrize("bits", [2, 3])
@pytest.mark.parametrize("level", ["L2", "L3"])
def test_the_mean_gradient_is_exact(kind, bits, level):
    site = site_of(bits, level)
    x, target, more = batch(SHAPES["sequences"], kind)
    given = OPTIONS["both"] | more
    exact = gradients(lambda x: F.cross_entropy(x, target, **given), [x])[1]
    found = [gradients(lambda x: cross_entropy(site, x, target, **given), [x])[1].numpy() for _ in range(REPEATS)]
    assert np.std(found, 0).max() > 0
    check_unbiased(np.stack(found), exact.numpy())


@pytest.mark.parametrize("parts", [1, 4])
def test_kept_bytes_are_those_of_the_codes(parts):
    x, target = torch.randn(64, 1000).requires_grad_(), torch.randint(0, 1000, (64,))
    site = site_of(3, pipeline_threshold=4 * x.numel() // parts)
    saved = saved_tensors(lambda: cross_entropy(site, x, target))
    codes = [tensor for tensor in saved if tensor.dtype == torch.uint8]
    assert len(codes) == parts
    assert len(saved) == parts + 1
    assert kept_bytes(site.session) == sum(code.numel() for code in codes)
    assert 3 / 8 * x.numel() < kept_bytes(site.session) < 0.5 * x.numel()
    assert exact_bytes(site.session) == 4 * x.numel()


def test_short_rows_share_groups():
    x, target = torch.randn(256, 10).requires_grad_(), torch.randint(0, 10, (256,))
    site = site_of(2)
    cross_entropy(site, x, target)
    assert kept_bytes(site.session) < 0.3 * x.numel()


@pytest.mark.parametrize("kind", ["evaluation", "no_grad", "frozen"])
def test_nothing_is_kept_where_no_code_is_wanted(kind):
    site, (x, target, _) = site_of(2), batch(SHAPES["rows"], "classes")
    x.requires_grad_(kind != "frozen")
    with torch.set_grad_enabled(kind != "no_grad"):
        loss = cross_entropy(site, x, target, training=kind != "evaluation")
    same_tensors(loss.detach(), F.cross_entropy(x, target).detach())
    assert site.session.report().rows == []


def test_targets_that_learn_have_the_gradient_of_torch():
    site, (x, target, _) = site_of(2), batch(SHAPES["rows"], "probabilities")
    exact, found = (
        gradients(call, [x, target]) for call in (F.cross_entropy, lambda x, target: cross_entropy(site, x, target))
    )
    for ours, theirs in zip(found, exact, strict=True):
        same_tensors(ours, theirs)


def test_rows_that_are_all_ignored_have_no_gradient():
    site, x = site_of(2), torch.randn(SHAPES["rows"])
    target = torch.full((60,), -100)
    exact, found = both(site, x, target)
    same_tensors(found[0], exact[0], "loss")
    same_tensors(found[1], exact[1])


def test_wrong_targets_are_refused_as_by_torch():
    site, x = site_of(2), torch.randn(SHAPES["rows"], requires_grad=True)
    with pytest.raises(ValueError, match="batch_size"):
        cross_entropy(site, x, torch.zeros(3, dtype=torch.int64))
    with pytest.raises(IndexError, match="out of bounds"):
        cross_entropy(site, x, torch.full((60,), CLASSES))


def test_the_gradient_of_a_gradient_is_refused():
    site, (x, target, _) = site_of(4), batch(SHAPES["rows"], "classes")
    with pytest.raises(UnsupportedError, match="loss"):
        torch.autograd.grad(cross_entropy(site, x.requires_grad_(), target), x, create_graph=True)


def test_a_retained_graph_gives_the_same_gradient_again():
    site, (x, target, _) = site_of(2), batch(SHAPES["rows"], "classes")
    loss = cross_entropy(site, x.requires_grad_(), target)
    (first,) = torch.autograd.grad(loss, x, retain_graph=True)
    (again,) = torch.autograd.grad(loss, x)
    same_tensors(again, first)


@targets
def test_half_precision_stays_half(kind):
    x, target, more = batch(SHAPES["rows"], kind)
    target = target.bfloat16() if kind == "probabilities" else target
    exact, found = both(site_of(8), x.bfloat16(), target, **more)
    same_tensors(found[0], exact[0], "loss")
    close_tensors(found[1], exact[1], 0.03)


def test_autocast_decides_the_precision():
    x, target, _ = batch(SHAPES["rows"], "classes")
    with torch.autocast("cpu", torch.bfloat16):
        exact, found = both(site_of(8), x.bfloat16(), target)
    assert found[0].dtype == torch.float32
    same_tensors(found[0], exact[0], "loss")
    close_tensors(found[1], exact[1], 0.01)
