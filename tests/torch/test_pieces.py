"""Large convolutions work on parts of the batch: same forward, same gradients, and a bounded workspace."""

from __future__ import annotations

import pytest
import torch
from layer_cases import CONVOLUTION_GEOMETRY, MAPS, Case
from torch import nn
from torch_layers import close, compressed, input_of, plain_layer, same, step

from actnn.core import session
from actnn.core.policy import Config
from actnn.core.session import Session

CONVOLUTIONS = [case for case in (*MAPS, *CONVOLUTION_GEOMETRY) if case.kind.startswith("Conv")]


@pytest.fixture
def small_pieces(monkeypatch):
    """Let hardly more than a sample be worked on at once, whatever the weight."""
    monkeypatch.setattr(session, "WORKING_BYTES", 4096)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_a_convolution_in_pieces_is_the_one_in_one_piece(case: Case, monkeypatch):
    layer, x = plain_layer(case), input_of(case)
    found = step(compressed(layer, 2), x)
    monkeypatch.undo()
    expected = step(compressed(layer, 2), x)
    close(found.output, expected.output, 1e-6, "output")
    for name, gradient in expected.gradients.items():
        close(found.gradients[name], gradient, 1e-5, name)


@pytest.mark.usefixtures("small_pieces")
def test_a_batch_in_channels_last_stays_so_in_pieces():
    layer = nn.Conv2d(6, 8, 3, padding=1)
    x = torch.randn(5, 6, 20, 20).contiguous(memory_format=torch.channels_last).requires_grad_()
    y = compressed(layer, 2)(x)
    assert y.is_contiguous(memory_format=torch.channels_last)
    close(y, layer(x), 1e-6)
    y.square().sum().backward()
    assert x.grad.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.usefixtures("small_pieces")
def test_pieces_are_computed_in_the_dtype_of_autocast():
    layer, x = nn.Conv2d(6, 8, 3, padding=1), torch.randn(5, 6, 20, 20)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = compressed(layer, 8)(x), layer(x)
    same(found, expected)


def test_a_large_convolution_is_cut_and_a_small_one_is_not():
    pieces = Session(Config().policy("L2")).pieces
    bound = session.WORKING_BYTES
    assert pieces(8, 0, bound) == [range(8)]
    assert pieces(8, 0, bound + 1) == [range(4), range(4, 8)]
    assert pieces(7, 0, 3 * bound) == [range(3), range(3, 6), range(6, 7)]
    assert pieces(2, 0, 100 * bound) == [range(1), range(1, 2)]
    assert pieces(0, 0, 0) == [range(0)]


def test_a_large_weight_keeps_pieces_large():
    pieces = Session(Config().policy("L2")).pieces
    bound = session.WORKING_BYTES
    assert pieces(8, 0, 4 * bound, weight_bytes=2 * bound) == [range(8)]
    assert len(pieces(8, 0, 8 * bound, weight_bytes=2 * bound)) == 2
