"""Softmax and its logarithm, which keep a code of the probabilities: exact forward, unbiased gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hand_made_sessions import exact_bytes, gradients, kept_bytes, saved_tensors, session_of
from torch import Tensor
from torch.nn import functional as F
from torch_framework import close_tensors, same_tensors
from z_tests import check_unbiased

from actnn.errors import UnsupportedError
from actnn.operations.kept import keep
from actnn.session.site import Site
from actnn.torch.functions.activation import dropout
from actnn.torch.functions.softmax import log_softmax, softmax
from actnn.torch.tensors import ARRAYS

SHAPE = (4, 3, 20, 30)
KINDS = {"softmax": (F.softmax, softmax), "log_softmax": (F.log_softmax, log_softmax)}
kinds = pytest.mark.parametrize(("plain", "ours"), KINDS.values(), ids=KINDS)
REPEATS = 300


def site_of(bits: float, level: str = "L2", **settings) -> Site:
    """Return the site of a softmax by itself."""
    return session_of(bits, level, **settings).site("probabilities", "softmax")


def logits(shape: tuple[int, ...] = SHAPE) -> Tensor:
    """Return logits of which some are much larger than others."""
    return 2 * torch.randn(shape)


@kinds
@pytest.mark.parametrize("dim", [0, 1, 2, 3, -1, -2])
def test_eight_bits_give_the_gradient_of_torch(plain, ours, dim):
    site, x, grad = site_of(8), logits(), torch.randn(SHAPE)
    exact, found = (
        gradients(lambda x, call=call: call(x, dim), [x], grad) for call in (plain, lambda *a: ours(site, *a))
    )
    same_tensors(found[0], exact[0], "output")
    close_tensors(found[1], exact[1], 0.01)


@kinds
@pytest.mark.parametrize("level", ["L2", "L2.5", "L3", "L4", "L5"])
def test_every_level_that_makes_codes_has_the_gradient(plain, ours, level):
    site, x, grad = site_of(8, level), logits(), torch.randn(SHAPE)
    close_tensors(
        gradients(lambda x: ours(site, x, -1), [x], grad)[1], gradients(lambda x: plain(x, -1), [x], grad)[1], 0.01
    )


@kinds
@pytest.mark.parametrize("bits", [2, 3])
@pytest.mark.parametrize("dim", [1, 3])
@pytest.mark.parametrize("level", ["L2", "L2.5"])
def test_the_mean_gradient_is_exact(plain, ours, bits, dim, level):
    site, x, grad = site_of(bits, level), logits(), torch.randn(SHAPE)
    exact = gradients(lambda x: plain(x, dim), [x], grad)[1]
    found = [gradients(lambda x: ours(site, x, dim), [x], grad)[1].numpy() for _ in range(REPEATS)]
    assert np.std(found, 0).max() > 0
    check_unbiased(np.stack(found), exact.numpy())


@kinds
@pytest.mark.parametrize("rounding", ["dither", "stochastic", "nearest"])
def test_every_rounding_has_the_gradient(plain, ours, rounding):
    site, x, grad = site_of(8, rounding=rounding), logits(), torch.randn(SHAPE)
    exact, found = (gradients(call, [x], grad)[1] for call in (lambda x: plain(x, -1), lambda x: ours(site, x, -1)))
    close_tensors(found, exact, 0.03)


@kinds
def test_parts_of_the_batch_give_what_the_whole_does(plain, ours):
    x, grad = logits(), torch.randn(SHAPE)
    sites = [site_of(4, pipeline_threshold=threshold) for threshold in (None, 1 << 13)]
    whole, parts = (gradients(lambda x, site=site: ours(site, x, -1), [x], grad)[1] for site in sites)
    close_tensors(parts, whole, 1e-6)


@kinds
def test_a_vector_has_a_softmax_too(plain, ours):
    site, x, grad = site_of(8), logits((1000,)), torch.randn(1000)
    exact, found = (gradients(call, [x], grad) for call in (lambda x: plain(x, 0), lambda x: ours(site, x, 0)))
    same_tensors(found[0], exact[0])
    close_tensors(found[1], exact[1], 0.01)


@kinds
@pytest.mark.parametrize("shape", [(), (0, 5), (2, 3)])
def test_what_is_too_small_for_a_code_is_exact(plain, ours, shape):
    site, x = site_of(2), logits(shape)
    grad = torch.randn(shape)
    for found, exact in zip(
        gradients(lambda x: ours(site, x, -1), [x], grad), gradients(lambda x: plain(x, -1), [x], grad), strict=True
    ):
        close_tensors(found, exact, 1e-6)


@kinds
@pytest.mark.parametrize("bits", [2, 4])
def test_kept_bytes_are_those_of_the_code(plain, ours, bits):
    site, x = site_of(bits), logits().requires_grad_()
    (saved,) = saved_tensors(lambda: ours(site, x, -1))
    assert kept_bytes(site.session) == saved.numel()
    assert x.numel() * bits / 8 < saved.numel() < x.numel() * (bits / 8 + 0.1)
    assert exact_bytes(site.session) == 4 * x.numel()


def test_a_reader_of_probabilities_finds_their_code():
    site = site_of(4)
    reader = site.session.site("product", "matmul")
    y = softmax(site, logits().requires_grad_() * 1, -1)
    kept = keep(ARRAYS, y, reader, training=True)
    (row,) = site.session.report().rows
    assert row.readers == ("product",)
    decoded = kept.reading.value(reader, kept.tensors, "float32")
    close_tensors(decoded, y.detach(), 0.1)


def test_a_logarithm_is_not_taken_for_its_probabilities():
    site = site_of(8)
    reader = site.session.site("product", "matmul")
    y = log_softmax(site, logits().requires_grad_() * 1, -1)
    kept = keep(ARRAYS, y, reader, training=True)
    close_tensors(kept.reading.value(reader, kept.tensors, "float32"), y.detach(), 0.01)


@kinds
@pytest.mark.parametrize("kind", ["evaluation", "no_grad", "frozen"])
def test_nothing_is_kept_where_no_code_is_wanted(plain, ours, kind):
    site, x = site_of(4), logits().requires_grad_(kind != "frozen")
    with torch.set_grad_enabled(kind != "no_grad"):
        y = ours(site, x, -1, training=kind != "evaluation")
    same_tensors(y.detach(), plain(x, -1).detach())
    assert site.session.report().rows == []


@kinds
def test_the_gradient_of_a_gradient_is_refused(plain, ours):
    site, x = site_of(4), logits().requires_grad_()
    with pytest.raises(UnsupportedError, match="probabilities"):
        torch.autograd.grad(ours(site, x, -1).sum(), x, create_graph=True)


@kinds
def test_a_retained_graph_gives_the_same_gradient_again(plain, ours):
    site, x = site_of(3), logits().requires_grad_()
    loss = ours(site, x, -1).square().sum()
    (first,) = torch.autograd.grad(loss, x, retain_graph=True)
    (again,) = torch.autograd.grad(loss, x)
    same_tensors(again, first)


@kinds
@pytest.mark.parametrize("dtype", [None, torch.float32, torch.bfloat16])
def test_half_precision_stays_half_unless_another_is_asked_for(plain, ours, dtype):
    site, x = site_of(8), logits().bfloat16()
    grad = torch.randn(SHAPE).to(dtype or torch.bfloat16)
    exact, found = (
        gradients(call, [x], grad) for call in (lambda x: plain(x, -1, dtype=dtype), lambda x: ours(site, x, -1, dtype))
    )
    same_tensors(found[0], exact[0])
    close_tensors(found[1], exact[1], 0.01)


@kinds
def test_autocast_decides_the_precision(plain, ours):
    site, x = site_of(8), logits().bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        grad = torch.randn(SHAPE).to(plain(x, -1).dtype)
        exact, found = (gradients(call, [x], grad) for call in (lambda x: plain(x, -1), lambda x: ours(site, x, -1)))
    same_tensors(found[0], exact[0])
    close_tensors(found[1], exact[1], 0.01)


def test_an_overflow_shows_in_the_gradient():
    site, x = site_of(4), logits()
    x[0, 0, 0, 0] = float("nan")
    (found,) = gradients(lambda x: softmax(site, x, -1), [x], torch.randn(SHAPE))[1:]
    assert found[0, 0, 0].isnan().all()
    assert found[1:].isfinite().all()


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("store", [False, True])
def test_a_reader_behind_a_dropout_finds_the_code_of_the_probabilities(inplace, store):
    site = site_of(8, swap=store)
    session = site.session
    behind, reader = session.site("dropout", "dropout"), session.site("product", "matmul")
    y = softmax(site, logits((64, 8, 32, 32)).requires_grad_(), -1)
    dropped = dropout(behind, y, 0.3, inplace)
    kept = keep(ARRAYS, dropped, reader, training=True)
    assert {row.layer: row.readers for row in session.report().rows} == {"probabilities": ("product",), "dropout": ()}
    for parts in ([range(64)], [range(20), range(20, 64)]):
        read = kept.reading.parts(reader, kept.tensors, dropped.detach(), parts)
        decoded = torch.cat([values for _, values in read])
        close_tensors(decoded, dropped.detach(), 0.03)
        assert torch.equal(decoded == 0, dropped == 0)
